//! The layout of a table, and its builder.
//!
//! A slot has a record, or a signature of 1 byte and an offset of 4 bytes into the heap behind the table, whose records are
//! counted from 1. A slot whose key or offset is 0 is empty. The home of a key is Knuth's multiplicative hash of it, scaled to
//! the number of slots.

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::prefetch_line;
use guira_fabric::{Addr, Caps, WORD_BYTES};

use crate::baselines::record::{
    BuildError, KEY_BYTES, Layout, OFFSET_BYTES, SIGNATURE_BYTES, record_words, signature, store_bytes, store_record,
};

/// 2^32 divided by the golden ratio: the factor of Knuth's multiplicative hash.
const FACTOR: u32 = 2_654_435_761;
/// The most slots, of which every one is the home of a key.
const MOST_SLOTS: u64 = 1 << 32;

/// Records whose homes are loaded ahead of their use.
const AHEAD: u64 = 16;
/// Records between two looks at whether building is to end.
const STOP_RECORDS: u64 = 1 << 20;

/// The layout of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots, of which one is empty at least.
    pub slots: u64,
    /// Where records are.
    pub layout: Layout,
    /// Bytes of a value.
    pub value_bytes: usize,
}

impl Shape {
    /// Returns the home of a key.
    #[inline]
    pub fn home(&self, key: u32) -> u64 {
        (u64::from(key.wrapping_mul(FACTOR)) * self.slots) >> 32
    }

    /// Returns the bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        match self.layout {
            Layout::Inline => record_words(self.value_bytes) * WORD_BYTES,
            Layout::Heap => SIGNATURE_BYTES + OFFSET_BYTES,
        }
    }

    /// Returns the bytes of the table with room for `records` records; `u64::MAX` if no memory has as many.
    pub fn bytes(&self, records: u64) -> u64 {
        let heap_words = match self.layout {
            Layout::Inline => 0,
            Layout::Heap => records.saturating_mul(record_words(self.value_bytes)),
        };
        self.table_words().saturating_add(heap_words).saturating_mul(WORD_BYTES)
    }

    /// Returns the words of the slots, behind which the heap begins.
    fn table_words(&self) -> u64 {
        self.slots.saturating_mul(self.slot_bytes()).div_ceil(WORD_BYTES)
    }

    /// Returns the address of the record at an offset of the heap.
    #[inline]
    pub(super) fn record_addr(&self, offset: u64) -> Addr {
        Addr::main_word(self.table_words() + (offset - 1) * record_words(self.value_bytes))
    }
}

/// A table that is being built.
pub struct Builder {
    table: Table,
    most_records: u64,
    /// A bit for each slot that is in use. Those behind the last slot are set.
    used: Vec<u64>,
}

/// A table in the memory of one node. Clones share the bytes.
#[derive(Clone)]
pub struct Table {
    region: HeapRegion,
    shape: Shape,
    records: u64,
}

impl Builder {
    /// Creates an empty table for at most `records` records in memory with the guarantees `caps`.
    ///
    /// # Errors
    /// `Slots`; `Full` if so many records leave no slot empty.
    pub fn new(shape: Shape, records: u64, caps: Caps) -> Result<Builder, BuildError> {
        if !(2..=MOST_SLOTS).contains(&shape.slots) {
            return Err(BuildError::Slots { slots: shape.slots, most: MOST_SLOTS });
        }
        if records >= shape.slots {
            return Err(BuildError::Full { records: shape.slots - 1 });
        }
        let region = HeapRegion::new(shape.bytes(records), 0, caps);
        let mut used = vec![0; shape.slots.div_ceil(64) as usize];
        if let (Some(last), rest @ 1..) = (used.last_mut(), shape.slots % 64) {
            *last = u64::MAX << rest;
        }
        Ok(Builder { table: Table { region, shape, records: 0 }, most_records: records, used })
    }

    /// Loads the home of a key that is about to be added.
    #[inline]
    fn prefetch(&self, key: u32) {
        let Table { region, shape, .. } = &self.table;
        prefetch_line(&region.memory().main[(shape.home(key) * shape.slot_bytes() / WORD_BYTES) as usize]);
    }

    /// Adds a record. Keys may repeat.
    ///
    /// # Errors
    /// `Key`, `Value`; `Full` if it is more than there may be. The table is then as before.
    pub fn add(&mut self, key: u32, value: &[u8]) -> Result<(), BuildError> {
        let Table { region, shape, records } = &mut self.table;
        if key == 0 {
            return Err(BuildError::Key);
        }
        if value.len() != shape.value_bytes {
            return Err(BuildError::Value { bytes: value.len(), value_bytes: shape.value_bytes });
        }
        if *records == self.most_records {
            return Err(BuildError::Full { records: *records });
        }
        let (main, slot_bytes) = (region.memory().main, shape.slot_bytes());
        let slot = first_empty(&self.used, shape.home(key));
        self.used[(slot / 64) as usize] |= 1 << (slot % 64);
        *records += 1;
        let record = match shape.layout {
            Layout::Inline => slot * slot_bytes / WORD_BYTES,
            Layout::Heap => {
                let entry = signature(key) | *records << (8 * SIGNATURE_BYTES);
                store_bytes(main, slot * slot_bytes, entry, slot_bytes);
                shape.record_addr(*records).word()
            }
        };
        store_record(&main[record as usize..][..record_words(shape.value_bytes) as usize], key, value);
        Ok(())
    }

    /// Returns the table.
    pub fn finish(self) -> Table {
        self.table
    }
}

/// Returns the first slot from `home` on, across the end of the table, whose bit is not set. There is one.
fn first_empty(used: &[u64], home: u64) -> u64 {
    let first = (home / 64) as usize;
    let before_home = (1 << (home % 64)) - 1;
    let words = (first..used.len()).chain(0..=first);
    let mut masks = std::iter::once(before_home).chain(std::iter::repeat(0));
    let full = words.zip(&mut masks).find(|(word, mask)| used[*word] | mask != u64::MAX);
    let (word, mask) = full.unwrap_or((first, 0));
    word as u64 * 64 + u64::from((used[word] | mask).trailing_ones())
}

impl Table {
    /// Builds a table of `records` records in memory with the guarantees `caps`. `key` returns the key of a record, counted
    /// from 0, and `value` replaces a buffer's content with its value; keys may repeat. `is_stopped` is asked at times.
    ///
    /// # Errors
    /// Same as [`Builder::new`] and [`Builder::add`]; `Ok(None)` if `is_stopped` said so.
    pub fn build(
        shape: Shape,
        caps: Caps,
        records: u64,
        key: impl Fn(u64) -> u32,
        mut value: impl FnMut(u64, &mut Vec<u8>),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Table>, BuildError> {
        let (mut builder, mut bytes) = (Builder::new(shape, records, caps)?, Vec::new());
        for record in 0..records {
            if record % STOP_RECORDS == 0 && is_stopped() {
                return Ok(None);
            }
            builder.prefetch(key((record + AHEAD).min(records - 1)));
            value(record, &mut bytes);
            builder.add(key(record), &bytes)?;
        }
        Ok(Some(builder.finish()))
    }

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

const _: () = assert!(KEY_BYTES as u64 <= WORD_BYTES, "a key is in the first word of its record");
