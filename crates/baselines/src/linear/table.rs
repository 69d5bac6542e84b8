//! The layout of a table, and its builder.
//!
//! A slot is a record: a key of 4 bytes, which is not 0, and a value, padded to whole words. A slot whose key is 0 is empty.
//! The home of a key is Knuth's multiplicative hash of it, scaled to the number of slots.

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::{Ordering, prefetch_line};
use guira_fabric::{Addr, Caps, WORD_BYTES};

/// 2^32 divided by the golden ratio: the factor of Knuth's multiplicative hash.
const FACTOR: u32 = 2_654_435_761;
/// The most slots, of which every one is the home of a key.
const MOST_SLOTS: u64 = 1 << 32;
/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 4;

/// The layout of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots, of which one is empty at least.
    pub slots: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
}

impl Shape {
    /// Returns the home of a key.
    #[inline]
    pub fn home(&self, key: u32) -> u64 {
        (u64::from(key.wrapping_mul(FACTOR)) * self.slots) >> 32
    }

    /// Returns the words of a slot.
    pub fn slot_words(&self) -> u64 {
        ((KEY_BYTES + self.value_bytes) as u64).div_ceil(WORD_BYTES)
    }

    /// Returns the bytes of the table; `u64::MAX` if no memory has as many.
    pub fn bytes(&self) -> u64 {
        self.slots.saturating_mul(self.slot_words() * WORD_BYTES)
    }

    /// Returns the address of a slot.
    #[inline]
    pub(super) fn addr(&self, slot: u64) -> Addr {
        Addr::main_word(slot * self.slot_words())
    }

    /// Returns the slot behind `slot`, across the end of the table.
    #[inline]
    fn next(&self, slot: u64) -> u64 {
        if slot + 1 == self.slots { 0 } else { slot + 1 }
    }
}

/// The reason why a table was not built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The number of slots is impossible.
    #[error("a table has 2 to {MOST_SLOTS} slots, not {slots}")]
    Slots {
        /// The slots asked for.
        slots: u64,
    },
    /// A key marks an empty slot.
    #[error("key 0 marks an empty slot, and no record can have it")]
    Key,
    /// A value has another length than those of the table.
    #[error("a value of {bytes} bytes does not go into a table of values of {value_bytes} bytes")]
    Value {
        /// Bytes of the value.
        bytes: usize,
        /// Bytes of the values of the table.
        value_bytes: usize,
    },
    /// Only one slot is empty, at which lookups end.
    #[error("the table is full after {records} records: lookups need one empty slot")]
    Full {
        /// Records in the table.
        records: u64,
    },
}

/// A table that is being built.
pub struct Builder {
    table: Table,
}

/// A table in the memory of one node. Clones share the bytes.
#[derive(Clone)]
pub struct Table {
    region: HeapRegion,
    shape: Shape,
    records: u64,
}

impl Builder {
    /// Creates an empty table in memory with the guarantees `caps`.
    ///
    /// # Errors
    /// [`BuildError::Slots`].
    pub fn new(shape: Shape, caps: Caps) -> Result<Builder, BuildError> {
        if !(2..=MOST_SLOTS).contains(&shape.slots) {
            return Err(BuildError::Slots { slots: shape.slots });
        }
        let region = HeapRegion::new(shape.bytes(), 0, caps);
        Ok(Builder { table: Table { region, shape, records: 0 } })
    }

    /// Loads the home of a key that is about to be added.
    #[inline]
    pub fn prefetch(&self, key: u32) {
        let Table { region, shape, .. } = &self.table;
        prefetch_line(&region.memory().main[shape.addr(shape.home(key)).word() as usize]);
    }

    /// Adds a record. Keys may repeat.
    ///
    /// # Errors
    /// Any [`BuildError`] but `Slots`; the table is then as before.
    pub fn add(&mut self, key: u32, value: &[u8]) -> Result<(), BuildError> {
        let Table { region, shape, records } = &mut self.table;
        if key == 0 {
            return Err(BuildError::Key);
        }
        if value.len() != shape.value_bytes {
            return Err(BuildError::Value { bytes: value.len(), value_bytes: shape.value_bytes });
        }
        if *records + 1 == shape.slots {
            return Err(BuildError::Full { records: *records });
        }
        let main = region.memory().main;
        let mut slot = shape.home(key);
        while main[shape.addr(slot).word() as usize].load(Ordering::Relaxed) as u32 != 0 {
            slot = shape.next(slot);
        }
        let words = &main[shape.addr(slot).word() as usize..][..shape.slot_words() as usize];
        let mut bytes = key.to_le_bytes().into_iter().chain(value.iter().copied());
        for word in words {
            let part = std::array::from_fn(|_| bytes.next().unwrap_or(0));
            word.store(u64::from_le_bytes(part), Ordering::Relaxed);
        }
        *records += 1;
        Ok(())
    }

    /// Returns the table.
    pub fn finish(self) -> Table {
        self.table
    }
}

impl Table {
    /// Returns the memory.
    pub fn region(&self) -> &HeapRegion {
        &self.region
    }

    /// Returns the layout.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of records.
    pub fn records(&self) -> u64 {
        self.records
    }
}
