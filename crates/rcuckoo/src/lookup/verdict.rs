//! Verdicts on samples of a key's rows: the only code that decides a miss, and the only code that accepts a value.

use guira_fabric::memory::AtomicU64;
use guira_layout::{
    CopyBlock, ExtentError, ExtentRef, Generation, RowId, Rows, Sums, Version, append_extent_value, parse_extent,
};

use crate::{Table, Token};

/// Words of a trailer.
pub(crate) const TRAILER_WORDS: usize = 2;

/// The sampled trailer of a row.
pub(crate) type TrailerSample = [u64; TRAILER_WORDS];

/// The verdict on a sample of both rows.
#[derive(Debug)]
pub(crate) enum Verdict<H> {
    /// This verified row has the key, at this entry.
    Hit(WhichRow, H),
    /// Both rows verify, and neither has the key.
    Absent,
    /// This row does not verify.
    Torn(RowId),
    /// This row changed between two samples.
    Changed(RowId),
    /// This row verifies, and according to its trailer, which begins with this word, the key is in another segment.
    /// [R-GROW-4]
    Elsewhere { row: RowId, trailer: u64 },
}

/// One of a key's two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhichRow {
    First,
    Second,
}

impl WhichRow {
    /// Returns the other row.
    pub(crate) fn other(self) -> WhichRow {
        match self {
            WhichRow::First => WhichRow::Second,
            WhichRow::Second => WhichRow::First,
        }
    }
}

/// A sample of a row in which the key was not found, from which a miss is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissSample {
    pub(crate) row: RowId,
    pub(crate) is_whole: bool,
    pub(crate) trailer: TrailerSample,
}

impl MissSample {
    /// Keeps what a miss needs of the sample `words` of `row`.
    #[inline(always)]
    pub(crate) fn of<R: Rows>(table: &Table, rows: &R, row: RowId, words: &[u64]) -> MissSample {
        let at = rows.row_words() - TRAILER_WORDS;
        let is_whole = rows.verify(table.rows().sums(), row, words).is_ok();
        MissSample { row, is_whole, trailer: [words[at], words[at + 1]] }
    }
}

/// Decides whether a key is missing that was found in neither of its rows, given in order: it is if both rows are
/// whole, and neither changed until both had been sampled. `again` are the rows' trailers in later samples: `None` for
/// a row that was sampled after the other one, and where misses are not validated. [R-READ-3]
#[inline(always)]
pub(crate) fn miss_verdict<H>(rows: [&MissSample; 2], again: [Option<TrailerSample>; 2]) -> Verdict<H> {
    let [(first, first_again), (second, second_again)] = [(rows[0], again[0]), (rows[1], again[1])];
    let stayed = |row: &MissSample, again: Option<TrailerSample>| again.is_none_or(|again| again == row.trailer);
    // A torn row is reported first, however often the other one changes: its writer may have stopped.
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

/// A record of the state in which a lookup found its key.
pub(crate) trait KeyState: Sized {
    /// The state of a key in a row.
    fn inline(row: RowId, version: Version) -> Self;

    /// The state of a key in an extent.
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

/// Records nothing.
impl KeyState for () {
    #[inline(always)]
    fn inline(_: RowId, _: Version) {}

    #[inline(always)]
    fn extent(_: Generation) {}
}

/// The location of a hit's value.
pub(crate) enum Value<S> {
    /// The row: the value was appended.
    Inline(S),
    /// This extent, if it holds this key.
    Extent(ExtentRef),
}

/// Appends the value of `hit`, found in the verified sample `words` of `row`, to `into`, unless it is in an extent.
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

/// The result of comparing the words of an extent with an entry that refers to it, and with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentMatch {
    /// The extent holds the key: its value was appended.
    Value,
    /// The extent holds another key with the same digest.
    OtherKey,
    /// The extent is not the one in the entry: it is being written, or was replaced.
    Mismatch,
}

/// Appends the value of `key` in `extent`, sampled as `words`, to `into`, if the extent matches its entry and holds the
/// key. [R-READ-6]
#[inline]
pub(crate) fn match_extent(
    words: &[u64],
    extent: &ExtentRef,
    sums: &Sums,
    key: &[u8],
    into: &mut Vec<u8>,
) -> ExtentMatch {
    verdict_of(parse_extent(words, extent, sums).map(|parsed| {
        let has_key = parsed.has_key(key);
        if has_key {
            parsed.append_value(into);
        }
        has_key
    }))
}

/// Same as [`match_extent`], of the words where they lie, in one pass. [R-READ-6]
#[inline]
pub(crate) fn match_long_extent(
    words: &[AtomicU64],
    extent: &ExtentRef,
    sums: &Sums,
    key: &[u8],
    block: &mut CopyBlock,
    into: &mut Vec<u8>,
) -> ExtentMatch {
    verdict_of(append_extent_value(words, extent, sums, key, block, into))
}

/// Returns the verdict on an extent that verifies, and has the key or not, or that does not.
#[inline(always)]
fn verdict_of(has_key: Result<bool, ExtentError>) -> ExtentMatch {
    match has_key {
        Ok(true) => ExtentMatch::Value,
        Ok(false) => ExtentMatch::OtherKey,
        Err(ExtentError::Torn { .. } | ExtentError::Replaced { .. }) => ExtentMatch::Mismatch,
    }
}
