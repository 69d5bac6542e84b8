//! Client slots: the state word, the seal, and the redo record.

use guira_layout::{
    Delta, EntryFormat, Generation, Placement, Record, RowId, Seal, SlotState, SlotWord, Version, slot_words,
};

use super::feed::{Feed, bytes_of};
use super::shape::{Shape, heads};
use super::{Answer, Seed};

/// Words of a record in front of its deltas, and of a delta in front of its entry (docs/layout.md).
const HEADER_WORDS: usize = 3;

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
    let end = Record::WORD + record_words(&shape, words[Record::WORD]);
    let Some(sealed) = words.get(Record::WORD..end) else { return refused(&shape, &words) };
    words[Seal::WORD] = Seal::of(sealed, seal.sequence()).0;
    assert_eq!((Seal(words[Seal::WORD]).sequence(), Seal(words[Seal::WORD]).is_sealed()), (seal.sequence(), true));
    let answer = record(&shape, &words, &row, cut);
    words[Seal::WORD] = Seal::retired(seal.sequence()).0;
    assert_eq!(Record::decode(&words, &shape.rows), Ok(None), "a retired record");
    answer
}

fn record_words(shape: &Shape, deltas: u64) -> usize {
    HEADER_WORDS + deltas as usize * (4 + shape.rows.entry_words())
}

/// A record that says it is longer than its slot.
fn refused(shape: &Shape, words: &[u64]) -> Answer {
    let mut words = words.to_vec();
    words[Seal::WORD] |= 1 << 63;
    assert!(Record::decode(&words, &shape.rows).is_err(), "a record beyond its slot");
    Answer::Refused
}

/// What a slot's words hold, if anything: a record within the slot, which encodes to itself, whose deltas complete any
/// row of the table.
fn record(shape: &Shape, words: &[u64], row: &[u64], cut: u64) -> Answer {
    let seal = Seal(words[Seal::WORD]);
    let record = match Record::decode(words, &shape.rows) {
        Ok(Some(record)) => record,
        Ok(None) => {
            assert!(!seal.is_sealed());
            return Answer::Refused;
        }
        Err(error) => {
            assert!(seal.is_sealed() && error.sequence == seal.sequence());
            return Answer::Refused;
        }
    };
    let count = words[Record::WORD];
    assert_eq!(record.words(), &words[Record::WORD..][..record_words(shape, count)]);
    assert_eq!(Seal::of(record.words(), seal.sequence()), seal);
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
    let stride = 4 + shape.rows.entry_words();
    let freed = record.words()[1] != 0 || record.words()[2] == 0;
    freed
        && record.words()[HEADER_WORDS..].chunks_exact(stride).all(|delta| {
            let (bits, occupied) = (delta[1] >> 40, delta[2] >> 36 >> (delta[1] >> 32 & 0xff) & 1 != 0);
            bits == 0 && (occupied || delta[4..].iter().all(|word| *word == 0))
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
            if change % 2 == 0 {
                rows.put_entry(
                    &mut row,
                    slot,
                    &vec![0x1111 * u64::from(change); rows.entry_words()],
                    Placement::Inline,
                );
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
