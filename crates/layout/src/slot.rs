//! Client slots: who is alive, and the redo record of the commit a client has begun.
//!
//! Word 0 is the slot's state and generation, word 1 the seal of its record, words 2 to 4 say who the client is, and
//! from word 8 on lies the record: how many rows change, which extent is freed, then one *delta* a row. A delta
//! replaces one entry and the trailer, so applied to the row before, to the row after, and to any mixture of both it
//! gives the row after.

use crate::row::Placement;
use crate::{Generation, RowFormat, RowId, TableConfig, Trailer, Version};

const SEAL_WORD: usize = 1;
const RECORD_WORD: usize = 8;
const RECORD_HEADER_WORDS: usize = 3;
const DELTA_HEADER_WORDS: usize = 4;
/// Slots start at multiples of two cache lines, so that no two clients write one line.
const SLOT_ALIGN_WORDS: usize = 16;

const _: () = assert!(RECORD_WORD > SEAL_WORD);

/// Words of one client slot.
pub const fn slot_words(config: &TableConfig) -> usize {
    let delta = DELTA_HEADER_WORDS + config.format.entry_words();
    let words = RECORD_WORD + RECORD_HEADER_WORDS + config.max_path_rows as usize * delta;
    words.next_multiple_of(SLOT_ALIGN_WORDS)
}

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// By nobody.
    Free,
    /// By a client, dead or alive: its fabric's liveness tells.
    Live,
    /// Its dead client is being recovered.
    Recovering,
}

/// Word 0 of a slot: state 8 bits, generation 56. The generation grows each time the slot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWord {
    /// What the slot is used for.
    pub state: SlotState,
    /// How often it was taken.
    pub generation: u64,
}

impl SlotWord {
    /// Index of this word in a slot.
    pub const WORD: usize = 0;
    /// Index of the word with the client's process id.
    pub const PROCESS_WORD: usize = 2;
    /// Index of the word with the time its client opened it, in nanoseconds since 1970.
    pub const SINCE_WORD: usize = 3;

    /// As a word.
    pub const fn encode(self) -> u64 {
        let state = match self.state {
            SlotState::Free => 0,
            SlotState::Live => 1,
            SlotState::Recovering => 2,
        };
        state | self.generation << 8
    }

    /// What a word means; `None` if nothing (a damaged word).
    pub const fn decode(word: u64) -> Option<SlotWord> {
        let state = match word & 0xff {
            0 => SlotState::Free,
            1 => SlotState::Live,
            2 => SlotState::Recovering,
            _ => return None,
        };
        Some(SlotWord { state, generation: word >> 8 })
    }
}

/// Word 1 of a slot: sealed 1 bit, sequence 31, checksum of the record 32. One aligned word, so it is never torn.
///
/// A sealed record says: its rows may be half written, its locks are all still held, and replaying it completes the
/// operation. A retired one says: all of its rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(pub u64);

impl Seal {
    /// Index of this word in a slot.
    pub const WORD: usize = SEAL_WORD;
    const SEALED: u64 = 1 << 63;

    /// The seal of record `words`, the client's `sequence`th.
    pub fn of(words: &[u64], sequence: u32) -> Seal {
        Seal(Seal::SEALED | u64::from(sequence & 0x7fff_ffff) << 32 | u64::from(checksum(words, sequence)))
    }

    /// The word that retires the client's `sequence`th record.
    pub fn retired(sequence: u32) -> Seal {
        Seal(u64::from(sequence & 0x7fff_ffff) << 32)
    }

    /// Whether the record counts.
    pub fn is_sealed(self) -> bool {
        self.0 & Seal::SEALED != 0
    }

    /// The sequence number, 31 bits.
    pub fn sequence(self) -> u32 {
        (self.0 >> 32) as u32 & 0x7fff_ffff
    }
}

fn checksum(words: &[u64], sequence: u32) -> u32 {
    let sum = guira_sum::bytes_checksum(words, u64::from(sequence & 0x7fff_ffff));
    (sum ^ sum >> 32) as u32
}

/// What one row of a commit becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'r> {
    /// The row.
    pub row: RowId,
    /// Its version before.
    pub before: Version,
    /// The one slot that changes.
    pub slot: u8,
    /// The entry it holds afterwards; zeros if it is free.
    pub entry: &'r [u64],
    /// The two trailer words afterwards.
    pub trailer: [u64; 2],
}

/// A redo record in its encoded form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    words: Vec<u64>,
}

/// A sealed record cannot be read: it was damaged after it was sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the redo record of sequence {sequence} does not match its seal")]
pub struct RecordError {
    /// The seal's sequence number.
    pub sequence: u32,
}

impl Record {
    /// Index of the record's first word in a slot.
    pub const WORD: usize = RECORD_WORD;

    /// Starts an empty record, keeping the buffer.
    pub fn clear(&mut self) {
        self.words.clear();
        self.words.resize(RECORD_HEADER_WORDS, 0);
    }

    /// Notes that the extent whose mark lies at `mark_offset` is freed, by writing `generation` there.
    pub fn free_extent(&mut self, mark_offset: u64, generation: Generation) {
        self.words[1] = mark_offset;
        self.words[2] = generation.0;
    }

    /// Adds what `row` becomes: `after` is its finished image, in which only `slot` and the trailer differ from before.
    pub fn push(&mut self, format: &RowFormat, row: RowId, before: Version, slot: usize, after: &[u64]) {
        self.words[0] += 1;
        self.words.push(row.0);
        self.words.push(u64::from(before.0) | (slot as u64) << 32);
        self.words.extend_from_slice(&after[format.trailer_word()..][..2]);
        self.words.extend_from_slice(format.entry(after, slot));
    }

    /// The record's words.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The sealed record in `slot_words`, the words of a whole slot.
    ///
    /// # Errors
    /// The seal does not match.
    pub fn decode(slot_words: &[u64], format: &RowFormat) -> Result<Option<Record>, RecordError> {
        let seal = Seal(slot_words[SEAL_WORD]);
        if !seal.is_sealed() {
            return Ok(None);
        }
        let damaged = || RecordError { sequence: seal.sequence() };
        let delta_words = DELTA_HEADER_WORDS + format.entry_words();
        let deltas = usize::try_from(slot_words[RECORD_WORD]).map_err(|_| damaged())?;
        let words = deltas.checked_mul(delta_words).and_then(|words| words.checked_add(RECORD_HEADER_WORDS));
        let end = words.and_then(|words| words.checked_add(RECORD_WORD)).ok_or_else(damaged)?;
        let words = slot_words.get(RECORD_WORD..end).ok_or_else(damaged)?;
        let record = Record { words: words.to_vec() };
        let slots_exist = record.deltas(format).all(|delta| usize::from(delta.slot) < format.entries());
        if Seal::of(words, seal.sequence()) != seal || !slots_exist {
            return Err(damaged());
        }
        Ok(Some(record))
    }

    /// What each row becomes, in the order of the commit.
    pub fn deltas<'r>(&'r self, format: &RowFormat) -> impl Iterator<Item = Delta<'r>> {
        let delta_words = DELTA_HEADER_WORDS + format.entry_words();
        self.words[RECORD_HEADER_WORDS..].chunks_exact(delta_words).map(|words| Delta {
            row: RowId(words[0]),
            before: Version(words[1] as u32),
            slot: (words[1] >> 32) as u8,
            trailer: [words[2], words[3]],
            entry: &words[DELTA_HEADER_WORDS..],
        })
    }

    /// Where the mark of the freed extent lies, and its generation.
    pub fn freed_extent(&self) -> Option<(u64, Generation)> {
        (self.words[1] != 0).then(|| (self.words[1], Generation(self.words[2])))
    }
}

impl Delta<'_> {
    /// Turns `words`, the row before, after, or any mixture of both, into the row after. // [R-COMMIT-3]
    pub fn apply(&self, format: &RowFormat, words: &mut [u64]) {
        let occupied = Trailer(self.trailer[0]).occupancy() & 1 << self.slot != 0;
        let extent = Trailer(self.trailer[0]).extents() & 1 << self.slot != 0;
        if occupied {
            let placement = if extent { Placement::Extent } else { Placement::Inline };
            format.put_entry(words, usize::from(self.slot), self.entry, placement);
        } else {
            format.clear_entry(words, usize::from(self.slot));
        }
        words[format.trailer_word()..][..2].copy_from_slice(&self.trailer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;
    use crate::row::tests::row_format;

    /// [R-COMMIT-3] A delta completes a row torn at any word, is idempotent, and clears as well as it sets.
    #[test]
    fn deltas_complete_rows_torn_anywhere() {
        for name in ["fixed:4:4", "fixed:8:8", "bytes:64"] {
            let format = row_format(Preset::Hardened, name);
            let mut before = vec![0; format.row_words()];
            format.format(RowId(3), &mut before);
            let entry = |seed: u64| vec![seed; format.entry_words()];
            format.put_entry(&mut before, 1, &entry(11), Placement::Inline);
            format.finish(RowId(3), &mut before);
            for clears in [false, true] {
                let mut after = before.clone();
                match clears {
                    true => format.clear_entry(&mut after, 1),
                    false => format.put_entry(&mut after, 1, &entry(22), Placement::Inline),
                }
                format.finish(RowId(3), &mut after);
                let mut record = Record::default();
                record.clear();
                record.push(&format, RowId(3), format.trailer(&before).version(), 1, &after);
                for cut in 0..=after.len() {
                    let mut torn = before.clone();
                    torn[..cut].copy_from_slice(&after[..cut]);
                    for _ in 0..2 {
                        record.deltas(&format).for_each(|delta| delta.apply(&format, &mut torn));
                        assert_eq!(torn, after, "{name} cut at word {cut}");
                    }
                }
            }
        }
    }

    #[test]
    fn records_round_trip_and_notice_damage() {
        let format = row_format(Preset::Hardened, "fixed:8:8");
        let mut row = vec![0; format.row_words()];
        format.format(RowId(3), &mut row);
        let mut record = Record::default();
        record.clear();
        record.push(&format, RowId(3), Version(7), 1, &row);
        record.push(&format, RowId(9), Version(8), 6, &row);
        record.free_extent(4096, Generation(55));
        let mut slot = vec![0; 128];
        assert_eq!(Record::decode(&slot, &format), Ok(None));
        slot[RECORD_WORD..][..record.words().len()].copy_from_slice(record.words());
        slot[SEAL_WORD] = Seal::of(record.words(), 5).0;
        assert_eq!(Record::decode(&slot, &format), Ok(Some(record.clone())));
        assert_eq!(record.freed_extent(), Some((4096, Generation(55))));
        assert_eq!(record.deltas(&format).map(|delta| delta.row.0).collect::<Vec<_>>(), [3, 9]);
        for word in RECORD_WORD..RECORD_WORD + record.words().len() {
            for bit in 0..64 {
                slot[word] ^= 1 << bit;
                assert!(Record::decode(&slot, &format).is_err(), "word {word} bit {bit}");
                slot[word] ^= 1 << bit;
            }
        }
        slot[SEAL_WORD] = Seal::retired(5).0;
        assert_eq!(Record::decode(&slot, &format), Ok(None));
    }

    #[test]
    fn slot_words_round_trip() {
        for state in [SlotState::Free, SlotState::Live, SlotState::Recovering] {
            let word = SlotWord { state, generation: 1 << 40 };
            assert_eq!(SlotWord::decode(word.encode()), Some(word));
        }
        assert_eq!(SlotWord::decode(9), None);
    }
}
