//! Chunks, from which extents are cut.
//!
//! Chunks are of equal size; a chunk is cut into chunk slots of one size class, or is the head or a tail of a run of
//! chunks that holds one larger extent. A chunk starts with a header: 8 words, then a *mark* for each chunk slot, which is
//! the generation of the last extent freed there; then the slots. A word of the chunk table says who owns a chunk.

use guira_fabric::WORD_BYTES;

use crate::{ExtentRef, Geometry, OwnerId, TableConfig};

/// Words in front of a chunk's marks.
pub const CHUNK_HEADER_WORDS: u64 = 8;
/// Index of the word in a chunk's header with the number of recoveries counted when the chunk was last swept.
pub const CHUNK_SWEPT_WORD: u64 = 0;

/// Size class of an extent: a chunk slot, or a run of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExtentClass {
    /// A chunk slot of this class: class 0 has 64 bytes, and there are four classes for each doubling (80, 96, 112, 128,
    /// 160, ...).
    Slot(u8),
    /// A run of this many whole chunks.
    Run(u32),
}

const FIRST_CLASS_BYTES: u64 = 64;
/// Number of classes of chunk slots: the largest has 768 MiB, more than half of the largest chunk.
const CLASSES: u8 = 95;

/// Returns the bytes of a chunk slot of class `class`.
const fn class_bytes(class: u8) -> u64 {
    (FIRST_CLASS_BYTES / 4 * (4 + class as u64 % 4)) << (class / 4)
}

/// Returns the first class whose slots have `bytes` bytes or more; it may be beyond [`CLASSES`].
const fn smallest_class(bytes: u64) -> u8 {
    if bytes <= FIRST_CLASS_BYTES {
        return 0;
    }
    // The four sizes above 2^n are 5/4, 6/4, 7/4 and 8/4 of it: the two bits below the highest tell how many of them the
    // last byte is beyond.
    let last = bytes - 1;
    let n = last.ilog2();
    let doublings = n - FIRST_CLASS_BYTES.ilog2();
    let beyond = last >> (n - 2) & 3;
    (4 * doublings + 1) as u8 + beyond as u8
}

/// Returns the bytes of the largest chunk slot: at least two fit in a chunk. Larger extents get runs of chunks.
const fn largest_slot(chunk_bytes: u64) -> u64 {
    (chunk_bytes - CHUNK_HEADER_WORDS * WORD_BYTES) / 2 - WORD_BYTES
}

impl ExtentClass {
    /// Returns the class of an extent of `words` words in chunks of `chunk_bytes`.
    pub fn of(words: usize, chunk_bytes: u64) -> ExtentClass {
        let bytes = words as u64 * WORD_BYTES;
        let largest = largest_slot(chunk_bytes);
        if bytes <= largest {
            let class = smallest_class(bytes);
            if class < CLASSES && class_bytes(class) <= largest {
                return ExtentClass::Slot(class);
            }
        }
        let whole = (bytes + ExtentClass::run_header_bytes()).div_ceil(chunk_bytes);
        ExtentClass::Run(u32::try_from(whole).unwrap_or(u32::MAX))
    }

    /// Whether chunks of `config` can be of this class: a damaged chunk word may have any class.
    pub fn fits(self, config: &TableConfig) -> bool {
        match self {
            ExtentClass::Slot(class) => class < CLASSES && class_bytes(class) <= largest_slot(config.chunk_bytes),
            ExtentClass::Run(chunks) => chunks > 0 && u64::from(chunks) <= config.chunks,
        }
    }

    /// Returns the number of chunks of a run of this class; 1 for chunk slots.
    pub fn chunks(self) -> u64 {
        match self {
            ExtentClass::Slot(_) => 1,
            ExtentClass::Run(chunks) => u64::from(chunks),
        }
    }

    /// Returns the number of slots in a chunk of this class; 1 for a run.
    pub fn slots(self, chunk_bytes: u64) -> u64 {
        match self {
            ExtentClass::Slot(class) => {
                let room = chunk_bytes - CHUNK_HEADER_WORDS * WORD_BYTES;
                room / (class_bytes(class) + WORD_BYTES)
            }
            ExtentClass::Run(_) => 1,
        }
    }

    /// Returns the bytes that an extent of this class occupies.
    pub fn bytes(self, chunk_bytes: u64) -> u64 {
        match self {
            ExtentClass::Slot(class) => class_bytes(class),
            ExtentClass::Run(chunks) => u64::from(chunks) * chunk_bytes,
        }
    }

    /// Returns the byte offset of slot `slot` within its chunk.
    pub fn slot_at(self, slot: u64, chunk_bytes: u64) -> u64 {
        match self {
            ExtentClass::Slot(class) => {
                let marks = self.slots(chunk_bytes);
                (CHUNK_HEADER_WORDS + marks) * WORD_BYTES + slot * class_bytes(class)
            }
            ExtentClass::Run(_) => ExtentClass::run_header_bytes(),
        }
    }

    /// Returns the byte offset of the mark of slot `slot` within its chunk.
    pub fn mark_at(self, slot: u64) -> u64 {
        (CHUNK_HEADER_WORDS + slot) * WORD_BYTES
    }

    /// Returns the slot that starts at byte `within` of its chunk, if there is one.
    pub fn slot_of(self, within: u64, chunk_bytes: u64) -> Option<u64> {
        let from_first = within.checked_sub(self.slot_at(0, chunk_bytes))?;
        match self {
            ExtentClass::Slot(class) => {
                let (slot, rest) = (from_first / class_bytes(class), from_first % class_bytes(class));
                (rest == 0 && slot < self.slots(chunk_bytes)).then_some(slot)
            }
            ExtentClass::Run(_) => (from_first == 0).then_some(0),
        }
    }

    const fn run_header_bytes() -> u64 {
        (CHUNK_HEADER_WORDS + 1) * WORD_BYTES
    }

    fn encode(self) -> u64 {
        match self {
            ExtentClass::Slot(class) => u64::from(class),
            ExtentClass::Run(_) => 0xff,
        }
    }
}

impl ExtentRef {
    /// Returns the byte offset, in the main space, of the mark that frees this extent; `None` if no extent can lie at
    /// its offset (a damaged entry).
    pub fn mark_offset(&self, config: &TableConfig, geometry: &Geometry) -> Option<u64> {
        let (chunk, within) = geometry.chunk_of(self.offset)?;
        let class = ExtentClass::of(self.words()?, config.chunk_bytes);
        let fits = class.fits(config) && chunk + class.chunks() <= config.chunks;
        let slot = class.slot_of(within, config.chunk_bytes).filter(|_| fits)?;
        Some(self.offset - within + class.mark_at(slot))
    }
}

/// Whether an extent's mark can lie at byte `offset` of the main space: behind the header of a chunk, among as many
/// marks as a chunk of the smallest slots has, or at the mark of a run where no slots fit.
pub(crate) fn is_mark(offset: u64, config: &TableConfig, geometry: &Geometry) -> bool {
    let Some((_, within)) = geometry.chunk_of(offset) else { return false };
    let smallest = ExtentClass::Slot(0);
    let marks = if smallest.fits(config) { smallest.slots(config.chunk_bytes) } else { 1 };
    let mark = within.checked_sub(smallest.mark_at(0));
    offset.is_multiple_of(WORD_BYTES) && mark.is_some_and(|mark| mark / WORD_BYTES < marks)
}

/// State of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// Not in use.
    Free,
    /// Owned by a client, which alone allocates from it.
    Owned {
        /// The owner.
        owner: OwnerId,
        /// The size class of its extents.
        class: ExtentClass,
    },
    /// Without an owner: its client closed or died, or it is a run that holds a value. Any client that needs its class
    /// may adopt it.
    Orphan {
        /// The size class of its extents.
        class: ExtentClass,
        /// Number of slots that were free when the chunk was last examined, at most 65,535. It is a hint: more may be
        /// free now.
        free: u16,
    },
    /// A chunk of a run other than the first.
    Tail {
        /// The run's first chunk.
        head: u32,
    },
    /// In transition from free to owned, or, if it heads a run, from owned to free: its contents have no meaning, and
    /// no entry refers to it.
    Claiming {
        /// The client that claims or frees the chunk.
        owner: OwnerId,
        /// The class that the chunk will have, or had. Any number of a run's tails may be missing.
        class: ExtentClass,
    },
}

/// A word of the chunk table: state 8 bits, class 8, owner or an orphan's number of free slots 16, chunks of a run or
/// the head of a tail 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkWord(pub u64);

impl ChunkWord {
    /// The word of a free chunk. In a new table, every word of the chunk table is this.
    pub const FREE: ChunkWord = ChunkWord(0);

    /// Returns the word of a chunk in `state`.
    pub fn encode(state: ChunkState) -> ChunkWord {
        let pack = |state: u64, class: ExtentClass, owner: u16| {
            let run = if let ExtentClass::Run(chunks) = class { u64::from(chunks) } else { 0 };
            state | class.encode() << 8 | u64::from(owner) << 16 | run << 32
        };
        ChunkWord(match state {
            ChunkState::Free => 0,
            ChunkState::Owned { owner, class } => pack(1, class, owner.0),
            ChunkState::Orphan { class, free } => pack(2, class, free),
            ChunkState::Tail { head } => 3 | u64::from(head) << 32,
            ChunkState::Claiming { owner, class } => pack(4, class, owner.0),
        })
    }

    /// Returns the state that this word encodes; `None` if it encodes none (a damaged word).
    pub fn decode(self) -> Option<ChunkState> {
        let class = match (self.0 >> 8 & 0xff, self.0 >> 32) {
            (0xff, chunks) => ExtentClass::Run(chunks as u32),
            (class, _) => ExtentClass::Slot(class as u8),
        };
        let state = match self.0 & 0xff {
            0 => ChunkState::Free,
            1 => ChunkState::Owned { owner: OwnerId((self.0 >> 16) as u16), class },
            2 => ChunkState::Orphan { class, free: (self.0 >> 16) as u16 },
            3 => ChunkState::Tail { head: (self.0 >> 32) as u32 },
            4 => ChunkState::Claiming { owner: OwnerId((self.0 >> 16) as u16), class },
            _ => return None,
        };
        (ChunkWord::encode(state) == self).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// [`smallest_class`] is the first class that is large enough.
        #[test]
        fn no_smaller_class_is_large_enough(bits in 0u32..30, low: u64) {
            let bytes = 1 << bits | low & ((1 << bits) - 1);
            for bytes in [bytes, 1 << bits, (1 << bits) + 1, 3 << bits, (3 << bits) + 1, 5 << bits, 7 << bits] {
                let first = (0..).find(|class| class_bytes(*class) >= bytes).unwrap();
                prop_assert_eq!(smallest_class(bytes), first, "{} bytes", bytes);
            }
        }

        #[test]
        fn slots_lie_within_their_chunk(words in 1usize..200_000, shift in 12u32..21) {
            let chunk_bytes = 1u64 << shift;
            let class = ExtentClass::of(words, chunk_bytes);
            let bytes = words as u64 * 8;
            match class {
                ExtentClass::Slot(_) => {
                    prop_assert!(class.bytes(chunk_bytes) >= bytes);
                    prop_assert!(class.bytes(chunk_bytes) <= (bytes * 5 / 4 + 16).max(64));
                    let slots = class.slots(chunk_bytes);
                    prop_assert!(slots >= 2);
                    prop_assert!(class.slot_at(slots - 1, chunk_bytes) + class.bytes(chunk_bytes) <= chunk_bytes);
                    prop_assert!(class.mark_at(slots - 1) < class.slot_at(0, chunk_bytes));
                    for slot in [0, slots / 2, slots - 1] {
                        let at = class.slot_at(slot, chunk_bytes);
                        prop_assert_eq!(class.slot_of(at, chunk_bytes), Some(slot));
                        prop_assert_eq!(class.slot_of(at + 8, chunk_bytes), None);
                    }
                }
                ExtentClass::Run(chunks) => {
                    let end = class.slot_at(0, chunk_bytes) + bytes;
                    prop_assert!(end <= u64::from(chunks) * chunk_bytes);
                    prop_assert!(end > (u64::from(chunks) - 1) * chunk_bytes);
                }
            }
        }

        #[test]
        fn chunk_words_encode_one_state_or_none(word: u64) {
            for word in [word, word & 0xffff_ffff_ffff_ff07, word & 0xffff_ffff_0000_0003, word & 7] {
                if let Some(state) = ChunkWord(word).decode() {
                    prop_assert_eq!(ChunkWord::encode(state), ChunkWord(word));
                }
            }
        }

        #[test]
        fn chunk_states_round_trip(state in chunk_state()) {
            prop_assert_eq!(ChunkWord::encode(state).decode(), Some(state));
            prop_assert_eq!(ChunkWord::encode(state) == ChunkWord::FREE, state == ChunkState::Free);
        }

        /// A tail's word names its run, so that the recovery of a dead client frees only tails of that client's runs.
        #[test]
        fn tails_name_their_head(a: u32, b: u32) {
            let word = |head| ChunkWord::encode(ChunkState::Tail { head });
            prop_assert_eq!(word(a) == word(b), a == b);
        }
    }

    fn chunk_state() -> impl Strategy<Value = ChunkState> {
        let slots = (0..0xff_u8).prop_map(ExtentClass::Slot);
        let class = || prop_oneof![slots.clone(), any::<u32>().prop_map(ExtentClass::Run)];
        prop_oneof![
            Just(ChunkState::Free),
            (any::<u16>(), class()).prop_map(|(owner, class)| ChunkState::Owned { owner: OwnerId(owner), class }),
            (any::<u16>(), class()).prop_map(|(free, class)| ChunkState::Orphan { class, free }),
            any::<u32>().prop_map(|head| ChunkState::Tail { head }),
            (any::<u16>(), class()).prop_map(|(owner, class)| ChunkState::Claiming { owner: OwnerId(owner), class }),
        ]
    }

    #[test]
    fn chunk_words_are_as_documented() {
        let (owner, class) = (OwnerId(5), ExtentClass::Slot(3));
        let run = ExtentClass::Run(9);
        for (state, word) in [
            (ChunkState::Free, 0),
            (ChunkState::Owned { owner, class }, 0x0005_0301),
            (ChunkState::Owned { owner, class: run }, 0x0000_0009_0005_ff01),
            (ChunkState::Orphan { class, free: 9 }, 0x0009_0302),
            (ChunkState::Tail { head: 7 }, 0x0000_0007_0000_0003),
            (ChunkState::Claiming { owner, class: run }, 0x0000_0009_0005_ff04),
        ] {
            assert_eq!((ChunkWord::encode(state), ChunkWord(word).decode()), (ChunkWord(word), Some(state)));
        }
        assert_eq!(ChunkWord(5).decode(), None);
    }
}
