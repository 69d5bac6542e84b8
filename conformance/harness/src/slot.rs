//! A harness for client slots: the state word, the seal, and the redo record.

use guira_layout::{
    CHUNK_HEADER_WORDS, Delta, EntryFormat, EntryKind, ExtentRef, Generation, Record, RecordError, RowId, Seal,
    SlotState, SlotWord, slot_words,
};

use super::case::{Case, heads};
use super::extent::mark;
use super::feed::{Feed, bytes_of};
use super::{Answer, Seed};

/// Words of a delta before its entry (docs/layout.md).
const DELTA_WORDS: usize = 3;
/// Bits of a delta's first word: the row, and in the first delta whether an extent is freed and whether further deltas
/// follow.
const ROW_BITS: u64 = (1 << 58) - 1;
const FREES: u64 = 1 << 62;
const FURTHER: u64 = 1 << 63;

/// Decodes a table, how many rows the record changes, where a write is cut, and the words of a slot.
///
/// # Panics
/// If a promise of slots or records is broken.
pub fn slot(data: &[u8]) -> Answer {
    let mut feed = Feed(data);
    let case = Case::draw(&mut feed);
    let deltas = u64::from(feed.byte());
    let cut = feed.word();
    let mut words = feed.words(slot_words(case.config()));
    let row = feed.words(case.rows.row_words());

    if let Some(word) = SlotWord::decode(words[SlotWord::WORD]) {
        assert_eq!(word.encode(), words[SlotWord::WORD]);
    } else {
        assert!(words[SlotWord::WORD] & 0xff > 2, "three states are known");
    }
    let seal_word = Seal::word(&case.rows);
    let seal = Seal(words[seal_word]);
    assert_eq!(seal.0, u64::from(seal.is_sealed()) << 63 | u64::from(seal.sequence()) << 32 | seal.0 & 0xffff_ffff);
    record(&case, &words, &row, cut);

    // As many further deltas as an insert makes, and one more, correctly sealed.
    let room = case.config().max_path_rows;
    if words[Record::ONE_ROW_WORD] & FURTHER != 0 {
        words[seal_word + 1] = deltas % (u64::from(room) + 1);
    }
    if !seal_again(&case, &mut words) {
        return refused(&case, &words);
    }
    let answer = record(&case, &words, &row, cut);
    // The same record, made valid for this table.
    adopt(&case, &mut words);
    assert!(seal_again(&case, &mut words));
    assert_eq!(record(&case, &words, &row, cut), Answer::Accepted);
    words[seal_word] = Seal::retired(seal.sequence()).0;
    assert_eq!(decode(&case, &words), Ok(None), "a retired record");
    answer
}

/// Seals the record with the sequence number it has; `false` if its length exceeds its slot.
fn seal_again(case: &Case, words: &mut [u64]) -> bool {
    let seal_word = Seal::word(&case.rows);
    let sequence = Seal(words[seal_word]).sequence();
    let Some(seal) = seal_of(case, words, sequence) else { return false };
    assert_eq!((seal.sequence(), seal.is_sealed()), (sequence, true));
    words[seal_word] = seal.0;
    true
}

/// Computes the seal of a slot's record by docs/layout.md; `None` if the record's length exceeds its slot.
fn seal_of(case: &Case, words: &[u64], sequence: u32) -> Option<Seal> {
    let further = further(case, words)?;
    let first = if words[Record::ONE_ROW_WORD] & FREES != 0 { Record::WORD } else { Record::ONE_ROW_WORD };
    let keys = guira_layout::sum::NhKeys::new(case.superblock.secret.0);
    let seed = if further.is_empty() {
        sequence.into()
    } else {
        guira_layout::sum::nh_at(&keys, guira_layout::sum::Level::Second, further, sequence.into())
    };
    let sum = guira_layout::sum::nh_or_zero(&keys, &words[first..Seal::word(&case.rows)], seed);
    Some(Seal(1 << 63 | u64::from(sequence) << 32 | sum & 0xffff_ffff))
}

fn decode(case: &Case, words: &[u64]) -> Result<Option<Record>, RecordError> {
    Record::decode(words, &case.rows, case.config(), &case.geometry)
}

/// Returns the record's words after the seal: the number of further deltas, and these; empty if there are no further
/// deltas. `None` if they exceed the slot.
fn further<'w>(case: &Case, words: &'w [u64]) -> Option<&'w [u64]> {
    let behind = &words[Seal::word(&case.rows) + 1..];
    if words[Record::ONE_ROW_WORD] & FURTHER == 0 {
        return Some(&[]);
    }
    let deltas = usize::try_from(*behind.first()?).ok()?;
    behind.get(..deltas.checked_mul(stride(case))?.checked_add(1)?)
}

/// Returns every delta of a slot's record, which is no longer than the slot.
fn deltas<'w>(case: &Case, words: &'w [u64]) -> Vec<&'w [u64]> {
    let further = further(case, words).and_then(|words| words.get(1..)).unwrap_or_default();
    let first = &words[Record::ONE_ROW_WORD..Seal::word(&case.rows)];
    std::iter::once(first).chain(further.chunks_exact(stride(case))).collect()
}

/// Returns the slot of a row that a delta changes.
fn slot_of(delta: &[u64]) -> u64 {
    delta[0] >> 58 & 0xf
}

/// Returns the number of words of a delta.
fn stride(case: &Case) -> usize {
    DELTA_WORDS + case.rows.entry_words()
}

/// Checks that a record whose length exceeds its slot is refused.
fn refused(case: &Case, words: &[u64]) -> Answer {
    let mut words = words.to_vec();
    let seal_word = Seal::word(&case.rows);
    words[seal_word] |= 1 << 63;
    let sequence = Seal(words[seal_word]).sequence();
    assert_eq!(decode(case, &words), Err(RecordError::Seal { sequence }), "a record beyond its slot");
    Answer::Refused
}

/// Makes a record name only rows, entries, extents and marks that its table has.
fn adopt(case: &Case, words: &mut [u64]) {
    if !is_mark(case, words[Record::WORD]) {
        words[Record::ONE_ROW_WORD] &= !FREES;
    }
    let count = deltas(case, words).len();
    let behind = Seal::word(&case.rows) + 2;
    for delta in 0..count {
        let at = if delta == 0 { Record::ONE_ROW_WORD } else { behind + (delta - 1) * stride(case) };
        let delta = &mut words[at..][..stride(case)];
        let (row, slot) = ((delta[0] & ROW_BITS) % case.config().rows, slot_of(delta) % case.rows.entries() as u64);
        delta[0] = delta[0] & (FREES | FURTHER) | slot << 58 | row;
        if extent_of(case, delta).is_some_and(|extent| !is_possible(case, &extent)) {
            // Such an entry becomes inline.
            delta[1] &= !(1 << (50 + slot));
        }
    }
}

/// Returns why a sealed record cannot be replayed: the first thing it names that the table does not have.
fn missing(case: &Case, words: &[u64], sequence: u32) -> Option<RecordError> {
    let (rows, entries) = (case.config().rows, case.rows.entries());
    for delta in deltas(case, words) {
        let (row, slot) = (RowId(delta[0] & ROW_BITS), slot_of(delta) as u8);
        if row.0 >= rows {
            return Some(RecordError::Row { sequence, row, rows });
        }
        if usize::from(slot) >= entries {
            return Some(RecordError::Entry { sequence, row, index: slot, entries });
        }
        if let Some(extent) = extent_of(case, delta).filter(|extent| !is_possible(case, extent)) {
            return Some(RecordError::Extent { sequence, row, offset: extent.offset });
        }
    }
    let (offset, frees) = (words[Record::WORD], words[Record::ONE_ROW_WORD] & FREES != 0);
    (frees && !is_mark(case, offset)).then_some(RecordError::Mark { sequence, offset })
}

/// Returns the extent that a delta's entry refers to, if it is occupied and refers to one.
fn extent_of(case: &Case, delta: &[u64]) -> Option<ExtentRef> {
    let slot = slot_of(delta);
    let both = 1 << (36 + slot) | 1 << (50 + slot);
    let refers = case.config().format.has_extents() && delta[1] & both == both;
    refers.then(|| case.rows.extent_of(&delta[DELTA_WORDS..], 0))
}

/// Whether the table can have the extent, which then lies inside the chunks, with its mark in front of it.
fn is_possible(case: &Case, extent: &ExtentRef) -> bool {
    mark(case, extent);
    extent.mark_offset(case.config(), &case.geometry).is_some()
}

/// Whether a chunk has a mark at byte `offset`: behind its header, one for each slot of 64 bytes at most. //
/// [R-EXTENT-4]
fn is_mark(case: &Case, offset: u64) -> bool {
    let (chunk_bytes, header) = (case.config().chunk_bytes, CHUNK_HEADER_WORDS * 8);
    if case.config().chunks == 0 {
        return false;
    }
    let first = case.geometry.chunk(0).offset();
    let inside = first <= offset && offset < first + case.config().chunks * chunk_bytes;
    let marks = header..header + (chunk_bytes.saturating_sub(header)) / (64 + 8) * 8;
    inside && offset.is_multiple_of(8) && marks.contains(&((offset - first) % chunk_bytes))
}

/// Checks the record in a slot's words, if any: it lies within the slot, encodes to itself, names only what the table
/// has, and its deltas complete any row of the table.
fn record(case: &Case, words: &[u64], row: &[u64], cut: u64) -> Answer {
    let seal = Seal(words[Seal::word(&case.rows)]);
    let wrong = match seal_of(case, words, seal.sequence()) {
        _ if !seal.is_sealed() => None,
        Some(fits) if fits == seal => missing(case, words, seal.sequence()),
        _ => Some(RecordError::Seal { sequence: seal.sequence() }),
    };
    let decoded = decode(case, words);
    assert_eq!(decoded.as_ref().err(), wrong.as_ref());
    let Ok(Some(record)) = decoded else {
        assert!(wrong.is_some() || !seal.is_sealed());
        return Answer::Refused;
    };
    let (further, first) = record.parts();
    for part in further.into_iter().chain([first]) {
        assert_eq!(part.words, &words[part.word..][..part.words.len()]);
    }
    let encoded = deltas(case, words);
    let decoded: Vec<Delta<'_>> = record.deltas(&case.rows).collect();
    assert_eq!(decoded.len(), encoded.len());
    let frees = words[Record::ONE_ROW_WORD] & FREES != 0;
    let freed = frees.then(|| (words[Record::WORD], Generation(words[Record::WORD + 1])));
    assert_eq!(record.freed_extent(), freed);

    let mut rebuilt = Record::default();
    rebuilt.clear();
    if let Some((mark, generation)) = freed {
        rebuilt.free_extent(mark, generation);
    }
    for delta in &decoded {
        let after = completes(case, delta, row, cut);
        rebuilt.push(&case.rows, delta.row, delta.index.into(), &after);
    }
    rebuilt.seal(case.rows.sums(), seal.sequence());
    if is_canonical(words, &encoded) {
        assert_eq!(rebuilt, record);
    }
    Answer::Accepted
}

/// Checks that `delta` gives the same row whether it is applied to the row before, the row after, or one torn anywhere,
/// and however often; returns that row. [R-COMMIT-3]
fn completes(case: &Case, delta: &Delta<'_>, before: &[u64], cut: u64) -> Vec<u64> {
    let rows = &case.rows;
    assert!(usize::from(delta.index) < rows.entries(), "a delta's slot exists");
    let mut after = before.to_vec();
    delta.apply(rows, &mut after);
    let occupied = delta.trailer[0] >> 36 >> delta.index & 1 != 0;
    let entry = if occupied { delta.entry.to_vec() } else { vec![0; rows.entry_words()] };
    assert_eq!(rows.entry(&after, delta.index.into()), entry);
    assert_eq!(after[rows.trailer_word()..], delta.trailer);
    let at = cut as usize % (before.len() + 1);
    let mut torn = [&after[..at], &before[at..]].concat();
    for _ in 0..2 {
        delta.apply(rows, &mut torn);
        assert_eq!(torn, after, "cut at word {at}");
    }
    after
}

/// Whether a record is as [`Record::push`] writes it: no flags but those of its first delta, which are true, and zeros
/// for what is freed.
fn is_canonical(words: &[u64], deltas: &[&[u64]]) -> bool {
    let further = words[Record::ONE_ROW_WORD] & FURTHER == 0 || deltas.len() > 1;
    further
        && deltas[1..].iter().all(|delta| delta[0] & (FREES | FURTHER) == 0)
        && deltas.iter().all(|delta| {
            let occupied = delta[1] >> 36 >> slot_of(delta) & 1 != 0;
            occupied || delta[DELTA_WORDS..].iter().all(|word| *word == 0)
        })
}

/// Returns seeds: a live slot of each table, with a sealed record that changes one row, several, or as many as
/// possible.
pub(super) fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (name, head) in heads() {
        let case = Case::draw(&mut Feed(&head));
        let rows = &case.rows;
        let count = match case.config().format {
            EntryFormat::Fixed { key_bytes: 4, .. } => case.config().max_path_rows,
            EntryFormat::Fixed { .. } => 1,
            EntryFormat::Bytes { .. } => 3,
        };
        let mut record = Record::default();
        record.clear();
        if case.config().format.has_extents() {
            record.free_extent(case.geometry.chunk(0).offset() + 64, Generation(55));
        }
        let mut row = vec![0; rows.row_words()];
        for change in 0..count {
            let (at, slot) = (RowId(change.into()), usize::from(change) % rows.entries());
            rows.format(at, &mut row);
            let mut entry = vec![0x1111 * u64::from(change); rows.entry_words()];
            if change == 2 && case.config().format.has_extents() {
                rows.encode_extent_entry(&mut entry, &run_at_first_chunk(&case));
                rows.put_entry(&mut row, slot, &entry, EntryKind::Extent);
            } else if change % 2 == 0 {
                rows.put_entry(&mut row, slot, &entry, EntryKind::Inline);
            }
            rows.finish(at, &mut row);
            record.push(rows, at, slot, &row);
        }
        let mut words = vec![0; slot_words(case.config())];
        words[SlotWord::WORD] = SlotWord { state: SlotState::Live, generation: 3 }.encode();
        record.seal(rows.sums(), 5);
        words[Record::WORD..][..record.words().len()].copy_from_slice(record.words());
        let input = [&head[..], &[count - 1], &9u64.to_le_bytes(), &bytes_of(&words), &bytes_of(&row)].concat();
        seeds.push((name, input));
    }
    seeds
}

/// Returns an extent that takes the whole of the table's first chunk, behind the header and the mark.
fn run_at_first_chunk(case: &Case) -> ExtentRef {
    let behind = (CHUNK_HEADER_WORDS + 1) * 8;
    let value_bytes = (case.config().chunk_bytes - behind) as u32 - 64;
    let offset = case.geometry.chunk(0).offset() + behind;
    ExtentRef { digest: 7, offset, generation: Generation(56), key_bytes: 5, value_bytes }
}
