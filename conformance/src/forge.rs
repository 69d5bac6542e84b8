//! Forged tables: keys chosen by their rows, and entries written directly into rows.

use std::collections::HashMap;

use guira_fabric::Addr;
use guira_layout::{EntryKind, RowId};
use guira_rcuckoo::Table;

use crate::{Bench, Prepared};

/// Keys of 8 bytes, indexed by the rows they belong to. Each key is handed out once.
pub struct KeyFinder {
    by_rows: HashMap<(u64, u64), Vec<u64>>,
}

impl KeyFinder {
    /// Groups the keys 1 to `keys` of `table` by their rows.
    pub fn new(table: &Table, keys: u64) -> KeyFinder {
        let mut by_rows: HashMap<_, Vec<u64>> = HashMap::new();
        for key in (1..=keys).rev() {
            let pair = table.placement().rows(table.placement().digest(&key.to_le_bytes()));
            by_rows.entry((pair.first.0, pair.second.0)).or_default().push(key);
        }
        KeyFinder { by_rows }
    }

    /// Takes an unused key whose primary row is `first` and whose secondary row is `second`.
    pub fn take(&mut self, first: RowId, second: RowId) -> Option<[u8; 8]> {
        self.by_rows.get_mut(&(first.0, second.0))?.pop().map(u64::to_le_bytes)
    }

    /// Takes an unused key whose rows satisfy `suits`, and returns it with its primary and secondary row. The lowest
    /// such rows are chosen, so equal tables give equal keys.
    pub fn take_any(&mut self, suits: impl Fn(RowId, RowId) -> bool) -> Option<([u8; 8], RowId, RowId)> {
        let known = self.by_rows.iter().filter(|(_, keys)| !keys.is_empty()).map(|(rows, _)| *rows);
        let (first, second) = known.filter(|(first, second)| suits(RowId(*first), RowId(*second))).min()?;
        let (first, second) = (RowId(first), RowId(second));
        self.take(first, second).map(|key| (key, first, second))
    }
}

impl Bench {
    /// Writes an extent and appends an entry that refers to it to `row`, without taking any lock.
    ///
    /// # Panics
    /// If the row is full.
    pub fn plant(&self, row: RowId, prepared: &Prepared) {
        self.store(Addr::main(prepared.extent.offset), &prepared.words);
        self.plant_entry(row, prepared);
    }

    /// Appends an entry that refers to an extent to `row`, without writing the extent or taking any lock.
    ///
    /// # Panics
    /// If the row is full.
    pub fn plant_entry(&self, row: RowId, prepared: &Prepared) {
        let rows = self.table.rows();
        let (mut words, mut entry) = (self.row_words(row), vec![0; rows.entry_words()]);
        rows.encode_extent_entry(&mut entry, &prepared.extent);
        let slot = rows.free_entry(&words).expect("room in the row");
        rows.put_entry(&mut words, slot, &entry, EntryKind::Extent);
        rows.finish(row, &mut words);
        self.store(self.table.geometry().row(row), &words);
    }

    /// Removes every entry from `row`, without taking any lock.
    pub fn empty_row(&self, row: RowId) {
        let rows = self.table.rows();
        let mut words = self.row_words(row);
        rows.occupied_entries(&words).for_each(|slot| rows.clear_entry(&mut words, slot));
        rows.finish(row, &mut words);
        self.store(self.table.geometry().row(row), &words);
    }

    /// Appends inline entries to `row`, without taking any lock.
    ///
    /// # Panics
    /// If the row has too little room.
    pub fn fill_row(&self, row: RowId, entries: &[(&[u8], &[u8])]) {
        let rows = self.table.rows();
        let mut words = self.row_words(row);
        let mut entry = vec![0; rows.entry_words()];
        for (key, value) in entries {
            let probe = rows.probe(key, self.table.placement().digest(key));
            rows.encode_inline(&mut entry, &probe, value);
            let slot = rows.free_entry(&words).expect("room in the row");
            rows.put_entry(&mut words, slot, &entry, EntryKind::Inline);
        }
        rows.finish(row, &mut words);
        self.store(self.table.geometry().row(row), &words);
        if let Some((word, bit)) = self.full_bit(row)
            && rows.free_entry(&words).is_none()
        {
            let known = self.words_at(word, 1)[0];
            self.store(word, &[known | bit]);
        }
    }

    /// Overwrites the map of full rows with `word`, repeated.
    pub fn store_full_rows(&self, word: u64) {
        let geometry = self.table.geometry();
        (0..geometry.full_rows_words()).for_each(|index| self.store(geometry.full_rows_word(index), &[word]));
    }
}
