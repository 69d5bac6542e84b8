//! What samples say about a key: the one place that believes a miss, and the one that takes a value for an answer.

use guira_layout::{ExtentError, ExtentRef, Generation, RowId, Rows, Sums, Version, parse_extent};

use crate::{Table, Token};

/// Words of a trailer.
pub(crate) const TRAILER_WORDS: usize = 2;

/// A row's trailer, as it was sampled.
pub(crate) type TrailerSample = [u64; TRAILER_WORDS];

/// What a sample of both rows says.
#[derive(Debug)]
pub(crate) enum Verdict<H> {
    /// This verified row has the key, here.
    Hit(WhichRow, H),
    /// Both rows verify, and neither has the key.
    Absent,
    /// This row does not verify.
    Torn(RowId),
    /// This row changed between two samples.
    Changed(RowId),
}

/// One of a key's two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhichRow {
    First,
    Second,
}

/// A row that was sampled without finding the key: what an absence is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissSample {
    pub(crate) row: RowId,
    pub(crate) is_whole: bool,
    pub(crate) trailer: TrailerSample,
}

impl MissSample {
    /// The sample `words` of `row`.
    #[inline(always)]
    pub(crate) fn of<R: Rows>(table: &Table, rows: &R, row: RowId, words: &[u64]) -> MissSample {
        let at = rows.row_words() - TRAILER_WORDS;
        let is_whole = rows.verify(table.rows().sums(), row, words).is_ok();
        MissSample { row, is_whole, trailer: [words[at], words[at + 1]] }
    }
}

/// Whether a key is absent that neither of its rows, in order, was sampled with: if both are whole, and stayed as they
/// were until both had been sampled. `again` are their trailers in later samples; there is none of a row that was
/// sampled after the other one, nor where misses are not validated. // [R-READ-3]
#[inline(always)]
pub(crate) fn miss_verdict<H>(rows: [&MissSample; 2], again: [Option<TrailerSample>; 2]) -> Verdict<H> {
    let [(first, first_again), (second, second_again)] = [(rows[0], again[0]), (rows[1], again[1])];
    let stayed = |row: &MissSample, again: Option<TrailerSample>| again.is_none_or(|again| again == row.trailer);
    // A torn row may have a writer that stands still, and is told of first, however often the other one changes.
    if !first.is_whole {
        Verdict::Torn(first.row)
    } else if !second.is_whole {
        Verdict::Torn(second.row)
    } else if !stayed(first, first_again) {
        Verdict::Changed(first.row)
    } else if !stayed(second, second_again) {
        Verdict::Changed(second.row)
    } else {
        Verdict::Absent
    }
}

/// What a lookup is to remember of the state it found its key in.
pub(crate) trait KeyState: Sized {
    /// In a row.
    fn inline(row: RowId, version: Version) -> Self;

    /// In an extent.
    fn extent(generation: Generation) -> Self;
}

impl KeyState for Token {
    #[inline(always)]
    fn inline(row: RowId, version: Version) -> Token {
        Token::Inline { row, version }
    }

    #[inline(always)]
    fn extent(generation: Generation) -> Token {
        Token::Extent { generation }
    }
}

/// Nothing.
impl KeyState for () {
    #[inline(always)]
    fn inline(_: RowId, _: Version) {}

    #[inline(always)]
    fn extent(_: Generation) {}
}

/// Where the value of a hit is.
pub(crate) enum Value<S> {
    /// In the row: it was appended.
    Inline(S),
    /// In this extent, if that holds this key.
    Extent(ExtentRef),
}

/// Appends the value of `hit`, which verified sample `words` of `row` has, to `into`, unless it is in an extent.
#[inline(always)]
pub(crate) fn value_of<R: Rows, S: KeyState>(
    rows: &R,
    row: RowId,
    words: &[u64],
    hit: &R::Hit,
    into: &mut Vec<u8>,
) -> Value<S> {
    if let Some(extent) = rows.extent_of(words, hit) {
        return Value::Extent(extent);
    }
    rows.append_value(words, hit, into);
    Value::Inline(S::inline(row, rows.version(words)))
}

/// What the words of an extent say to who looks for a key by an entry that refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentMatch {
    /// They have the key: its value was appended.
    Value,
    /// They have another key, with the same digest.
    OtherKey,
    /// They are not what the entry says: the extent is being written, or was replaced.
    Mismatch,
}

/// Appends the value of `key` in `extent`, sampled as `words`, to `into`, if it is what its entry says and holds the
/// key. // [R-READ-6]
#[inline]
pub(crate) fn match_extent(
    words: &[u64],
    extent: &ExtentRef,
    sums: &Sums,
    key: &[u8],
    into: &mut Vec<u8>,
) -> ExtentMatch {
    match parse_extent(words, extent, sums) {
        Ok(parsed) if parsed.has_key(key) => {
            parsed.append_value(into);
            ExtentMatch::Value
        }
        Ok(_) => ExtentMatch::OtherKey,
        Err(ExtentError::Torn { .. } | ExtentError::Replaced { .. }) => ExtentMatch::Mismatch,
    }
}
