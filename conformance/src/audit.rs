//! An audit of a whole table while no client changes it: the invariants that hold between operations.

use std::collections::BTreeMap;

use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Profile, Region, Space, WORD_BYTES};
use guira_layout::{ChunkState, ChunkWord, EntryKind, ExtentRef, ROWS_OF_FULL_WORD, RowId, parse_extent};
use guira_rcuckoo::slots;

use crate::{Bench, block_on};

impl Bench {
    /// Returns the table's contents after checking that every row verifies, every key stands once and in one of its
    /// rows, every extent is whole, owned and not freed, every lock is free, and no record is sealed.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn audit(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        self.audit_idle()?;
        self.contents()
    }

    /// Checks that every lock is free, and that no record is sealed.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn audit_idle(&self) -> Result<(), String> {
        let layout = self.table.locks();
        for (word, value) in self.region.memory().device.iter().enumerate() {
            if let Some((lock, owner)) = layout.all_held(word as u64, value.load(Ordering::Relaxed)).next() {
                return Err(format!("{lock} is still held by {owner}"));
            }
        }
        let mut lane = self.region.with_caps(Profile::Shm.caps()).lane();
        for slot in block_on(slots(&mut lane, &self.table)).map_err(|error| error.to_string())? {
            if slot.seal.is_sealed() {
                return Err(format!("slot {}: it still has a sealed record", slot.slot));
            }
        }
        Ok(())
    }

    /// Returns the table's contents after the checks of [`Bench::audit`], except those of locks and records.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn contents(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        let mut contents = BTreeMap::new();
        for row in self.rows().ranges().flatten().map(RowId) {
            let words = self.row_words(row);
            self.table.rows().verify(row, &words).map_err(|_| format!("{row} does not verify"))?;
            for slot in self.table.rows().occupied_entries(&words) {
                let (digest, key, value) = self.entry(row, &words, slot)?;
                let (placement, level) = (self.table.placement(), self.table.rows().trailer(&words).level());
                let pair = placement.rows_beside(row, digest);
                if pair.other(row).is_none() || placement.has_left(row, level, digest) {
                    return Err(format!("key {key:x?} is in {row}, which is not one of its rows"));
                }
                if contents.insert(key.clone(), value).is_some() {
                    return Err(format!("key {key:x?} is in the table twice, the second time in {row}"));
                }
            }
        }
        Ok(contents)
    }

    /// Returns the address of the word of the map of full rows in which the bit of `row` is, and the bit; `None` if the
    /// table has no such map.
    pub fn full_bit(&self, row: RowId) -> Option<(Addr, u64)> {
        let (geometry, word) = (self.table.geometry(), row.0 / ROWS_OF_FULL_WORD);
        (word < geometry.full_rows_words()).then(|| (geometry.full_rows_word(word), 1 << (row.0 % ROWS_OF_FULL_WORD)))
    }

    /// Returns the rows of which the map of full rows, if the table has one, does not say what is true. [R-INSERT-7]
    pub fn misnoted_rows(&self) -> Vec<RowId> {
        let is_misnoted = |row: &RowId| {
            let is_full = self.table.rows().free_entry(&self.row_words(*row)).is_none();
            self.full_bit(*row).is_some_and(|(word, bit)| (self.words_at(word, 1)[0] & bit != 0) != is_full)
        };
        (0..self.table.config().rows).map(RowId).filter(is_misnoted).collect()
    }

    fn entry(&self, row: RowId, words: &[u64], slot: usize) -> Result<(u64, Vec<u8>, Vec<u8>), String> {
        let rows = self.table.rows();
        let (mut key, mut value) = (Vec::new(), Vec::new());
        if rows.entry_kind(words, slot) == EntryKind::Inline {
            rows.append_inline_key(words, slot, &mut key);
            rows.append_inline_value(words, slot, &mut value);
            return Ok((self.table.placement().digest(&key), key, value));
        }
        let extent = rows.extent_of(words, slot);
        let wrong = |what: &str| format!("{row} slot {slot}: {extent:?} {what}");
        self.check_chunk(&extent).map_err(wrong)?;
        let words = self.words_at(Addr::main(extent.offset), extent.words().ok_or_else(|| wrong("is impossible"))?);
        let sums = self.table.rows().sums();
        let parsed = parse_extent(&words, &extent, sums).map_err(|error| wrong(&error.to_string()))?;
        parsed.append_key(&mut key);
        parsed.append_value(&mut value);
        Ok((extent.digest, key, value))
    }

    fn check_chunk(&self, extent: &ExtentRef) -> Result<(), &'static str> {
        let (config, geometry) = (self.table.config(), self.table.geometry());
        let mark = extent.mark_offset(config, geometry).ok_or("lies where no extent can be")?;
        if self.words_at(Addr::main(mark), 1)[0] == extent.generation.0 {
            return Err("is in use but marked free");
        }
        let (chunk, _) = geometry.chunk_of(extent.offset).ok_or("lies in no chunk")?;
        let word = ChunkWord(self.words_at(geometry.chunk_word(chunk), 1)[0]);
        let owned = matches!(word.decode(), Some(ChunkState::Owned { .. } | ChunkState::Orphan { .. }));
        if owned { Ok(()) } else { Err("lies in an unclaimed chunk") }
    }

    /// Returns the words of `row`.
    pub fn row_words(&self, row: RowId) -> Vec<u64> {
        self.words_at(self.table.geometry().row(row), self.table.rows().row_words())
    }

    /// Returns `count` words from `addr` on.
    ///
    /// # Panics
    /// If they lie outside the region.
    pub fn words_at(&self, addr: Addr, count: usize) -> Vec<u64> {
        let first = (addr.offset() / WORD_BYTES) as usize;
        let words = self.region.memory().space(addr.space());
        words[first..first + count].iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Stores `words` from `addr` on, without taking any lock.
    ///
    /// # Panics
    /// If they lie outside the region.
    pub fn store(&self, addr: Addr, words: &[u64]) {
        let first = (addr.offset() / WORD_BYTES) as usize;
        let cells = &self.region.memory().space(addr.space())[first..first + words.len()];
        for (cell, word) in cells.iter().zip(words) {
            cell.store(*word, Ordering::Release);
        }
    }

    /// Returns the lock words in which a lock is held, as (word, value).
    pub fn lock_words(&self) -> Vec<(u64, u64)> {
        let words = self.region.memory().space(Space::Device).iter().enumerate();
        words
            .map(|(word, value)| (word as u64, value.load(Ordering::Relaxed)))
            .filter(|(_, value)| *value != 0)
            .collect()
    }
}
