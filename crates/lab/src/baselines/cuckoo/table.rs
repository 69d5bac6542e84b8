//! The layout of a table, and its builder.
//!
//! A slot of one record has the record, or a signature of 1 byte and an offset of 4 bytes into the heap behind the table. A
//! slot of four has four records one after the other, or four signatures and one offset: the records are at this offset and
//! the three behind. Offsets count records from 1. A record whose key is 0, and a signature that is 0, are an empty place.

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Caps, SplitMix64, WORD_BYTES};

use crate::baselines::record::{
    BuildError, Layout, OFFSET_BYTES, SIGNATURE_BYTES, record_words, signature, store_bytes, store_record,
};

/// Candidate slots of a key: the k of k-way.
pub const WAYS: usize = 3;
/// The most slots.
const MOST_SLOTS: u64 = 1 << 32;
/// Moves of other records for one record, after which the builder gives up: a hundred times as many as the last records of
/// a table need that can be built.
const MOST_MOVES: u64 = 100_000;
/// Records between two calls of the progress function.
const PROGRESS_RECORDS: usize = 1 << 20;

/// The layout of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots.
    pub slots: u64,
    /// Records of a slot: 1 or 4.
    pub associativity: u64,
    /// Where records are.
    pub layout: Layout,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Seed of the hash functions.
    pub seed: u64,
}

impl Shape {
    /// Returns the candidate slots of a key, which may be equal.
    #[inline]
    pub fn candidates(&self, key: u32) -> [u64; WAYS] {
        std::array::from_fn(|way| {
            let hash = SplitMix64::mix(u64::from(key) << 8 ^ way as u64 ^ self.seed << 40);
            ((hash >> 32) * self.slots) >> 32
        })
    }

    /// Returns the bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        match self.layout {
            Layout::Inline => self.associativity * record_words(self.value_bytes) * WORD_BYTES,
            Layout::Heap => self.associativity * SIGNATURE_BYTES + OFFSET_BYTES,
        }
    }

    /// Returns the bytes of the table with its heap; `u64::MAX` if no memory has as many.
    pub fn bytes(&self) -> u64 {
        let heap_words = match self.layout {
            Layout::Inline => 0,
            Layout::Heap => self.places().saturating_mul(record_words(self.value_bytes)),
        };
        self.table_words().saturating_add(heap_words).saturating_mul(WORD_BYTES)
    }

    /// Returns the bytes of memory that building a table takes besides its own.
    pub fn building_bytes(&self) -> u64 {
        self.places().saturating_mul(size_of::<u32>() as u64)
    }

    /// Returns the places for records.
    pub fn places(&self) -> u64 {
        self.slots.saturating_mul(self.associativity)
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

/// A table in the memory of one node. Clones share the bytes.
#[derive(Clone)]
pub struct Table {
    region: HeapRegion,
    shape: Shape,
    records: u64,
}

impl Table {
    /// Builds a table of `records` records in memory with the guarantees `caps`. `key` returns the key of a record, counted
    /// from 0, and `value` replaces a buffer's content with its value; keys may repeat. `is_stopped` is asked at times.
    ///
    /// # Errors
    /// Any [`BuildError`]; `Ok(None)` if `is_stopped` said so.
    pub fn build(
        shape: Shape,
        caps: Caps,
        records: u64,
        key: impl Fn(u64) -> u32,
        mut value: impl FnMut(u64, &mut Vec<u8>),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Table>, BuildError> {
        if !(2..=MOST_SLOTS / shape.associativity).contains(&shape.slots) {
            return Err(BuildError::Slots { slots: shape.slots, most: MOST_SLOTS / shape.associativity });
        }
        if records > shape.places() {
            return Err(BuildError::Full { records: shape.places() });
        }
        let mut walk = Walk { shape, places: vec![EMPTY; shape.places() as usize], draws: SplitMix64(shape.seed) };
        for record in 0..records {
            if (record as usize).is_multiple_of(PROGRESS_RECORDS) && is_stopped() {
                return Ok(None);
            }
            if key(record) == 0 {
                return Err(BuildError::Key);
            }
            walk.place(record, records, &key)?;
        }
        let table = Table { region: HeapRegion::new(shape.bytes(), 0, caps), shape, records };
        let mut bytes = Vec::new();
        for (place, record) in walk.places.iter().enumerate().filter(|(_, record)| **record != EMPTY) {
            value(u64::from(*record), &mut bytes);
            if bytes.len() != shape.value_bytes {
                return Err(BuildError::Value { bytes: bytes.len(), value_bytes: shape.value_bytes });
            }
            table.store(place as u64, key(u64::from(*record)), &bytes);
        }
        Ok(Some(table))
    }

    /// Stores a record in a place.
    fn store(&self, place: u64, key: u32, value: &[u8]) {
        let Table { shape, region, .. } = self;
        let (main, words) = (region.memory().main, record_words(shape.value_bytes));
        let record = match shape.layout {
            Layout::Inline => place * words,
            Layout::Heap => {
                let (slot, index) = (place / shape.associativity, place % shape.associativity);
                let (first, offset) = (slot * shape.slot_bytes(), slot * shape.associativity + 1);
                store_bytes(main, first + index * SIGNATURE_BYTES, signature(key), SIGNATURE_BYTES);
                store_bytes(main, first + shape.associativity * SIGNATURE_BYTES, offset, OFFSET_BYTES);
                shape.record_addr(offset + index).word()
            }
        };
        store_record(&main[record as usize..][..words as usize], key, value);
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

/// The mark of an empty place.
const EMPTY: u32 = u32::MAX;

/// The places of records while a table is built.
struct Walk {
    shape: Shape,
    /// The record of each place.
    places: Vec<u32>,
    draws: SplitMix64,
}

impl Walk {
    /// Finds a place for a record: where there is none, it takes that of a drawn record, which moves on to another slot.
    fn place(&mut self, record: u64, records: u64, key: &impl Fn(u64) -> u32) -> Result<(), BuildError> {
        let associativity = self.shape.associativity as usize;
        let (mut homeless, mut came_from) = (record as u32, None);
        for _ in 0..=MOST_MOVES {
            let candidates = self.shape.candidates(key(homeless.into()));
            for slot in candidates {
                let places = &mut self.places[slot as usize * associativity..][..associativity];
                if let Some(place) = places.iter_mut().find(|place| **place == EMPTY) {
                    *place = homeless;
                    return Ok(());
                }
            }
            // Not back to where it came from, unless its candidates are one slot.
            let others = candidates.map(|slot| (slot, Some(slot) != came_from));
            let eligible = others.iter().filter(|(_, is_other)| *is_other).count();
            let drawn = self.draws.below(eligible.max(1) as u64) as usize;
            let slot = others.iter().filter(|(_, is_other)| *is_other || eligible == 0).nth(drawn);
            let slot = slot.map_or(candidates[0], |(slot, _)| *slot);
            let index = self.draws.below(associativity as u64) as usize;
            std::mem::swap(&mut homeless, &mut self.places[slot as usize * associativity + index]);
            came_from = Some(slot);
        }
        Err(BuildError::Moves { record: record + 1, records, moves: MOST_MOVES })
    }
}
