//! Client slots: the state word, the seal, and the redo record.

use guira_layout::{
    CHUNK_HEADER_WORDS, Delta, EntryFormat, ExtentRef, Generation, Placement, Record, RecordError, RowId, Seal,
    SlotState, SlotWord, Version, slot_words,
};

use super::extent::mark;
use super::feed::{Feed, bytes_of};
use super::shape::{Shape, heads};
use super::{Answer, Seed};

/// Words of a record in front of its deltas (docs/layout.md).
const HEADER_WORDS: usize = 3;
/// Words of a delta in front of its entry (docs/layout.md).
const DELTA_WORDS: usize = 4;

/// A table, how many rows the record changes, where a write is cut, and the words of a slot.
///
/// # Panics
/// If a promise of slots or records is broken.
pub fn slot(data: &[u8]) -> Answer {
    let mut feed = Feed(data);
    let shape = Shape::draw(&mut feed);
    let deltas = u64::from(feed.byte());
    let cut = feed.word();
    let mut words = feed.words(slot_words(shape.config()));
    let row = feed.words(shape.rows.row_words());

    if let Some(word) = SlotWord::decode(words[SlotWord::WORD]) {
        assert_eq!(word.encode(), words[SlotWord::WORD]);
    } else {
        assert!(words[SlotWord::WORD] & 0xff > 2, "three states are known");
    }
    let seal = Seal(words[Seal::WORD]);
    assert_eq!(seal.0, u64::from(seal.is_sealed()) << 63 | u64::from(seal.sequence()) << 32 | seal.0 & 0xffff_ffff);
    record(&shape, &words, &row, cut);

    // As many deltas as an insert makes, and one more, sealed as they are.
    let room = shape.config().max_path_rows;
    words[Record::WORD] = deltas % (u64::from(room) + 2);
    if !seal_again(&shape, &mut words) {
        return refused(&shape, &words);
    }
    let answer = record(&shape, &words, &row, cut);
    // The same record, of this table.
    adopt(&shape, &mut words[Record::WORD..]);
    assert!(seal_again(&shape, &mut words));
    assert_eq!(record(&shape, &words, &row, cut), Answer::Accepted);
    words[Seal::WORD] = Seal::retired(seal.sequence()).0;
    assert_eq!(decode(&shape, &words), Ok(None), "a retired record");
    answer
}

/// Seals the record with the sequence number that is there; `false` if it says that it is longer than its slot.
fn seal_again(shape: &Shape, words: &mut [u64]) -> bool {
    let sequence = Seal(words[Seal::WORD]).sequence();
    let Some(found) = within(shape, words) else { return false };
    let seal = Seal::of(found, sequence);
    assert_eq!((seal.sequence(), seal.is_sealed()), (sequence, true));
    words[Seal::WORD] = seal.0;
    true
}

fn decode(shape: &Shape, words: &[u64]) -> Result<Option<Record>, RecordError> {
    Record::decode(words, &shape.rows, shape.config(), &shape.geometry)
}

/// The words of the record, by the number of deltas that it states; `None` if that is more than the slot has.
fn within<'w>(shape: &Shape, words: &'w [u64]) -> Option<&'w [u64]> {
    let deltas = usize::try_from(words[Record::WORD]).ok()?;
    let end = deltas.checked_mul(stride(shape))?.checked_add(HEADER_WORDS)?;
    words[Record::WORD..].get(..end)
}

/// Words of a delta.
fn stride(shape: &Shape) -> usize {
    DELTA_WORDS + shape.rows.entry_words()
}

/// A record that says it is longer than its slot.
fn refused(shape: &Shape, words: &[u64]) -> Answer {
    let mut words = words.to_vec();
    words[Seal::WORD] |= 1 << 63;
    let sequence = Seal(words[Seal::WORD]).sequence();
    assert_eq!(decode(shape, &words), Err(RecordError::Seal { sequence }), "a record beyond its slot");
    Answer::Refused
}

/// Makes a record name only what its table has, by what it names: rows, entries, extents and a mark.
fn adopt(shape: &Shape, record: &mut [u64]) {
    let deltas = record[0] as usize;
    if !is_mark(shape, record[1]) {
        record[1] = 0;
    }
    for delta in record[HEADER_WORDS..].chunks_exact_mut(stride(shape)).take(deltas) {
        delta[0] %= shape.config().rows;
        let slot = (delta[1] >> 32) % shape.rows.entries() as u64;
        delta[1] = delta[1] & 0xffff_ffff | slot << 32;
        if extent_of(shape, delta).is_some_and(|extent| !is_possible(shape, &extent)) {
            // Inline instead.
            delta[2] &= !(1 << (50 + slot));
        }
    }
}

/// Why a sealed record cannot be replayed: the first thing it names that the table does not have.
fn missing(shape: &Shape, record: &[u64], sequence: u32) -> Option<RecordError> {
    let (rows, entries) = (shape.config().rows, shape.rows.entries());
    for delta in record[HEADER_WORDS..].chunks_exact(stride(shape)) {
        let (row, slot) = (RowId(delta[0]), delta[1] >> 32);
        if row.0 >= rows {
            return Some(RecordError::Row { sequence, row, rows });
        }
        if slot >= entries as u64 {
            return Some(RecordError::Slot { sequence, row, slot, entries });
        }
        if let Some(extent) = extent_of(shape, delta).filter(|extent| !is_possible(shape, extent)) {
            return Some(RecordError::Extent { sequence, row, offset: extent.offset });
        }
    }
    let offset = record[1];
    (offset != 0 && !is_mark(shape, offset)).then_some(RecordError::Mark { sequence, offset })
}

/// The extent that a delta's entry refers to, if it is occupied and refers to one.
fn extent_of(shape: &Shape, delta: &[u64]) -> Option<ExtentRef> {
    let slot = delta[1] >> 32;
    let both = 1 << (36 + slot) | 1 << (50 + slot);
    let refers = shape.config().format.has_extents() && delta[2] & both == both;
    refers.then(|| shape.rows.extent_of(&delta[DELTA_WORDS..], 0))
}

/// Whether the table can have the extent: then it lies inside the chunks, and its mark in front of it.
fn is_possible(shape: &Shape, extent: &ExtentRef) -> bool {
    mark(shape, extent);
    extent.mark_offset(shape.config(), &shape.geometry).is_some()
}

/// Whether a chunk has a mark at byte `offset`: behind its header, one a slot of 64 bytes at most. // [R-EXTENT-4]
fn is_mark(shape: &Shape, offset: u64) -> bool {
    let (chunk_bytes, header) = (shape.config().chunk_bytes, CHUNK_HEADER_WORDS * 8);
    if shape.config().chunks == 0 {
        return false;
    }
    let first = shape.geometry.chunk(0).offset();
    let inside = first <= offset && offset < first + shape.config().chunks * chunk_bytes;
    let marks = header..header + (chunk_bytes.saturating_sub(header)) / (64 + 8) * 8;
    inside && offset.is_multiple_of(8) && marks.contains(&((offset - first) % chunk_bytes))
}

/// What a slot's words hold, if anything: a record within the slot, which encodes to itself, names only what the table
/// has, and whose deltas complete any row of the table.
fn record(shape: &Shape, words: &[u64], row: &[u64], cut: u64) -> Answer {
    let seal = Seal(words[Seal::WORD]);
    let sealed = within(shape, words).filter(|record| Seal::of(record, seal.sequence()) == seal);
    let wrong = match sealed {
        _ if !seal.is_sealed() => None,
        Some(record) => missing(shape, record, seal.sequence()),
        None => Some(RecordError::Seal { sequence: seal.sequence() }),
    };
    let decoded = decode(shape, words);
    assert_eq!(decoded.as_ref().err(), wrong.as_ref());
    let Ok(Some(record)) = decoded else {
        assert!(wrong.is_some() || !seal.is_sealed());
        return Answer::Refused;
    };
    assert_eq!(Some(record.words()), sealed);
    let count = words[Record::WORD];
    let deltas: Vec<Delta<'_>> = record.deltas(&shape.rows).collect();
    assert_eq!(deltas.len() as u64, count);
    let freed = (words[Record::WORD + 1] != 0).then(|| (words[Record::WORD + 1], Generation(words[Record::WORD + 2])));
    assert_eq!(record.freed_extent(), freed);

    let mut rebuilt = Record::default();
    rebuilt.clear();
    if let Some((mark, generation)) = freed {
        rebuilt.free_extent(mark, generation);
    }
    for delta in &deltas {
        let after = completes(shape, delta, row, cut);
        rebuilt.push(&shape.rows, delta.row, delta.before, delta.slot.into(), &after);
    }
    if is_canonical(shape, &record) {
        assert_eq!(rebuilt, record);
    }
    Answer::Accepted
}

/// The row after `delta`, whatever it is applied to: the row before, the row after, or one torn anywhere; however
/// often. // [R-COMMIT-3]
fn completes(shape: &Shape, delta: &Delta<'_>, before: &[u64], cut: u64) -> Vec<u64> {
    let rows = &shape.rows;
    assert!(usize::from(delta.slot) < rows.entries(), "a delta's slot exists");
    let mut after = before.to_vec();
    delta.apply(rows, &mut after);
    let occupied = delta.trailer[0] >> 36 >> delta.slot & 1 != 0;
    let entry = if occupied { delta.entry.to_vec() } else { vec![0; rows.entry_words()] };
    assert_eq!(rows.entry(&after, delta.slot.into()), entry);
    assert_eq!(after[rows.trailer_word()..], delta.trailer);
    let at = cut as usize % (before.len() + 1);
    let mut torn = [&after[..at], &before[at..]].concat();
    for _ in 0..2 {
        delta.apply(rows, &mut torn);
        assert_eq!(torn, after, "cut at word {at}");
    }
    after
}

/// Whether a record is as [`Record::push`] writes it: no bits beside a delta's fields, zeros for what is freed.
fn is_canonical(shape: &Shape, record: &Record) -> bool {
    let freed = record.words()[1] != 0 || record.words()[2] == 0;
    freed
        && record.words()[HEADER_WORDS..].chunks_exact(stride(shape)).all(|delta| {
            let (bits, occupied) = (delta[1] >> 40, delta[2] >> 36 >> (delta[1] >> 32 & 0xff) & 1 != 0);
            bits == 0 && (occupied || delta[DELTA_WORDS..].iter().all(|word| *word == 0))
        })
}

/// A slot of each table: live, with a sealed record that changes one row, several, or as many as may be.
pub(super) fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (name, head) in heads() {
        let shape = Shape::draw(&mut Feed(&head));
        let rows = &shape.rows;
        let count = match shape.config().format {
            EntryFormat::Fixed { key_bytes: 4, .. } => shape.config().max_path_rows,
            EntryFormat::Fixed { .. } => 1,
            EntryFormat::Bytes { .. } => 3,
        };
        let mut record = Record::default();
        record.clear();
        if shape.config().format.has_extents() {
            record.free_extent(shape.geometry.chunk(0).offset() + 64, Generation(55));
        }
        let mut row = vec![0; rows.row_words()];
        for change in 0..count {
            let (at, slot) = (RowId(change.into()), usize::from(change) % rows.entries());
            rows.format(at, &mut row);
            let mut entry = vec![0x1111 * u64::from(change); rows.entry_words()];
            if change == 2 && shape.config().format.has_extents() {
                rows.encode_extent_entry(&mut entry, &run_at_first_chunk(&shape));
                rows.put_entry(&mut row, slot, &entry, Placement::Extent);
            } else if change % 2 == 0 {
                rows.put_entry(&mut row, slot, &entry, Placement::Inline);
            }
            rows.finish(at, &mut row);
            record.push(rows, at, Version(change.into()), slot, &row);
        }
        let mut words = vec![0; slot_words(shape.config())];
        words[SlotWord::WORD] = SlotWord { state: SlotState::Live, generation: 3 }.encode();
        words[Seal::WORD] = Seal::of(record.words(), 5).0;
        words[Record::WORD..][..record.words().len()].copy_from_slice(record.words());
        let input = [&head[..], &[count], &9u64.to_le_bytes(), &bytes_of(&words), &bytes_of(&row)].concat();
        seeds.push((name, input));
    }
    seeds
}

/// An extent that takes the whole of the table's first chunk, behind the header and the mark.
fn run_at_first_chunk(shape: &Shape) -> ExtentRef {
    let behind = (CHUNK_HEADER_WORDS + 1) * 8;
    let value_bytes = (shape.config().chunk_bytes - behind) as u32 - 64;
    let offset = shape.geometry.chunk(0).offset() + behind;
    ExtentRef { digest: 7, offset, generation: Generation(56), key_bytes: 5, value_bytes }
}
