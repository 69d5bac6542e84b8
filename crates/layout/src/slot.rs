//! Client slots: the state of each client, and the redo record of its commit in progress.
//!
//! Word 0 is the slot's state and generation, words 2 to 6 identify the client, and the redo record with its seal
//! starts at word 8 (record.rs).

use crate::record::{DELTA_HEADER_WORDS, SEAL_AFTER_WORDS};
use crate::{RowFormat, TableConfig};

/// Index of a record's first word in a client slot.
pub(crate) const RECORD_WORD: usize = 8;
/// Alignment of client slots: two cache lines, so that no two clients write the same line.
const SLOT_ALIGN_WORDS: usize = 16;

/// Returns the number of words of a client slot. Rows lie behind the client slots, so this affects their addresses in
/// tables without redo records, too; records take a few words less.
pub const fn slot_words(config: &TableConfig) -> usize {
    let (path_rows, entry) = (config.max_path_rows as usize, config.format.entry_words());
    let words = RECORD_WORD + 3 + path_rows * (4 + entry);
    let further_rows = path_rows - 1;
    // The first row, the seal, and the number of further rows in front of them.
    let longest = RECORD_WORD + SEAL_AFTER_WORDS + entry + 2 + further_rows * (DELTA_HEADER_WORDS + entry);
    assert!(longest <= words, "a record fits in its slot");
    words.next_multiple_of(SLOT_ALIGN_WORDS)
}

/// State of a client slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Not in use.
    Free,
    /// In use by a client, dead or alive: the fabric tells which.
    Live,
    /// In use by a dead client that is being recovered.
    Recovering,
}

/// Word 0 of a client slot: state 8 bits, generation 56. The generation grows each time the slot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWord {
    /// The state.
    pub state: SlotState,
    /// The number of times the slot was taken.
    pub generation: u64,
}

impl SlotWord {
    /// Index of this word in a client slot.
    pub const WORD: usize = 0;
    /// Index of the word with the client's process id.
    pub const PROCESS_WORD: usize = 2;
    /// Index of the word with the time at which the client took the slot, in nanoseconds since 1970.
    pub const SINCE_WORD: usize = 3;
    /// Index of the first of three words that distinguish the process from others with the same id: when it was
    /// started, its PID namespace, and when its machine was booted, as the fabric reports them; 0 where it does not.
    pub const IDENTITY_WORD: usize = 4;

    /// Returns the word.
    pub const fn encode(self) -> u64 {
        let state = match self.state {
            SlotState::Free => 0,
            SlotState::Live => 1,
            SlotState::Recovering => 2,
        };
        state | self.generation << 8
    }

    /// Decodes a word; `None` if it is no valid state (a damaged word).
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

/// The last word of a record's WRITE: sealed 1 bit, sequence 31, checksum of the record 32. It is one aligned word, so
/// it is never torn.
///
/// While a record is sealed, its rows may be half written, all of its locks are still held, and replaying it completes
/// the operation. Once it is retired, all of its rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(pub u64);

impl Seal {
    const SEALED: u64 = 1 << 63;
    pub(crate) const SEQUENCES: u32 = 0x7fff_ffff;

    /// Returns the index of the seal in a client slot of a table with rows of this format: behind the first delta.
    #[inline(always)]
    pub fn word(format: &RowFormat) -> usize {
        RECORD_WORD + SEAL_AFTER_WORDS + format.entry_words()
    }

    /// Makes the seal of the record with sequence number `sequence`, whose 64-bit checksum is `sum`; the seal holds the
    /// low half.
    #[inline(always)]
    pub(crate) fn of(sum: u64, sequence: u32) -> Seal {
        Seal(Seal::SEALED | u64::from(sequence & Seal::SEQUENCES) << 32 | sum & 0xffff_ffff)
    }

    /// Makes the word that retires the record with sequence number `sequence`.
    #[inline(always)]
    pub fn retired(sequence: u32) -> Seal {
        Seal(u64::from(sequence & Seal::SEQUENCES) << 32)
    }

    /// Whether the record is sealed.
    pub fn is_sealed(self) -> bool {
        self.0 & Seal::SEALED != 0
    }

    /// Whether this is the seal, sealed or retired, of one of a client's records from `first` to `last`.
    pub fn is_of(self, first: u64, last: u64) -> bool {
        let since_first = self.sequence().wrapping_sub(first as u32) & Seal::SEQUENCES;
        u64::from(since_first) <= last.saturating_sub(first)
    }

    /// Returns the sequence number, 31 bits.
    #[inline(always)]
    pub fn sequence(self) -> u32 {
        (self.0 >> 32) as u32 & Seal::SEQUENCES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_client_are_told_from_others() {
        let is_of = |sequence, first, last| Seal::retired(sequence).is_of(first, last);
        assert!(is_of(7, 7, 7) && is_of(7, 6, 7) && is_of(6, 6, 7));
        assert!(!is_of(5, 6, 7) && !is_of(8, 6, 7) && !is_of(0, 1, 1));
        assert!(is_of(0, 1 << 31, 1 << 31) && is_of(1, (1 << 31) - 1, (1 << 31) + 1), "the sequence wraps around");
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
