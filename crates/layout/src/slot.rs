//! Client slots: who is alive, and where the redo record of the commit is that a client has begun.
//!
//! Word 0 is the slot's state and generation, words 2 to 6 say who the client is, and from word 8 on lies the record,
//! with its seal (record.rs).

use crate::record::{DELTA_HEADER_WORDS, SEAL_AFTER_WORDS};
use crate::{RowFormat, TableConfig};

/// Index of a record's first word in a slot.
pub(crate) const RECORD_WORD: usize = 8;
/// Slots start at multiples of two cache lines, so that no two clients write one line.
const SLOT_ALIGN_WORDS: usize = 16;

/// Words of one client slot. Rows lie behind the slots, so this is part of where they are in tables without records,
/// too; records take a few words less.
pub const fn slot_words(config: &TableConfig) -> usize {
    let (path_rows, entry) = (config.max_path_rows as usize, config.format.entry_words());
    let words = RECORD_WORD + 3 + path_rows * (4 + entry);
    let further_rows = path_rows - 1;
    // The first row, the seal, and the number of further rows in front of them.
    let longest = RECORD_WORD + SEAL_AFTER_WORDS + entry + 2 + further_rows * (DELTA_HEADER_WORDS + entry);
    assert!(longest <= words, "a record fits in its slot");
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
    /// Index of the first of three words that tell the process from others of the same number: when it was started,
    /// its namespace, and the start of its machine, as the fabric has them; 0 where it does not say.
    pub const IDENTITY_WORD: usize = 4;

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

/// The last word of a record's WRITE: sealed 1 bit, sequence 31, checksum of the record 32. One aligned word, so it is
/// never torn.
///
/// A sealed record says: its rows may be half written, its locks are all still held, and replaying it completes the
/// operation. A retired one says: all of its rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(pub u64);

impl Seal {
    const SEALED: u64 = 1 << 63;
    pub(crate) const SEQUENCES: u32 = 0x7fff_ffff;

    /// Index of the seal in a slot of a table with such rows: behind the record's first row.
    #[inline(always)]
    pub fn word(format: &RowFormat) -> usize {
        RECORD_WORD + SEAL_AFTER_WORDS + format.entry_words()
    }

    /// The seal of the client's `sequence`th record, whose checksum, in 64 bits, is `sum`: its low half
    /// counts.
    #[inline(always)]
    pub(crate) fn of(sum: u64, sequence: u32) -> Seal {
        Seal(Seal::SEALED | u64::from(sequence & Seal::SEQUENCES) << 32 | sum & 0xffff_ffff)
    }

    /// The word that retires the client's `sequence`th record.
    #[inline(always)]
    pub fn retired(sequence: u32) -> Seal {
        Seal(u64::from(sequence & Seal::SEQUENCES) << 32)
    }

    /// Whether the record counts.
    pub fn is_sealed(self) -> bool {
        self.0 & Seal::SEALED != 0
    }

    /// The sequence number, 31 bits.
    #[inline(always)]
    pub fn sequence(self) -> u32 {
        (self.0 >> 32) as u32 & Seal::SEQUENCES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_words_round_trip() {
        for state in [SlotState::Free, SlotState::Live, SlotState::Recovering] {
            let word = SlotWord { state, generation: 1 << 40 };
            assert_eq!(SlotWord::decode(word.encode()), Some(word));
        }
        assert_eq!(SlotWord::decode(9), None);
    }
}
