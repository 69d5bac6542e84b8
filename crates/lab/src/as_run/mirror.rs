//! A client's mirror of the table, for its searches.
//!
//! The authors' client registers a mirror of the whole table. Here it holds the rows that were read last, within a
//! bound, so that hundreds of clients fit in memory; a bound of the table's rows makes it whole. A row that it lacks
//! looks empty, as in a mirror that was never filled. Lookups and updates do not search, and do not fill it.

use std::collections::{HashMap, VecDeque};

use super::search::{ENTRIES, RowView};

/// The rows that a client has read last.
#[derive(Debug)]
pub struct Mirror {
    rows: HashMap<u64, [u64; ENTRIES]>,
    /// The rows, the oldest first.
    order: VecDeque<u64>,
    max_rows: usize,
}

impl Mirror {
    /// Creates an empty mirror of at most `max_rows` rows between operations.
    pub fn new(max_rows: usize) -> Mirror {
        Mirror { rows: HashMap::new(), order: VecDeque::new(), max_rows }
    }

    /// Stores the entries of a row.
    pub fn store(&mut self, row: u64, entries: [u64; ENTRIES]) {
        if self.rows.insert(row, entries).is_none() {
            self.order.push_back(row);
        }
    }

    /// Changes an entry of a row that it holds.
    pub fn change(&mut self, row: u64, index: usize, entry: u64) {
        if let Some(entries) = self.rows.get_mut(&row) {
            entries[index] = entry;
        }
    }

    /// Drops the oldest rows beyond its bound.
    pub fn trim(&mut self) {
        while self.order.len() > self.max_rows
            && let Some(row) = self.order.pop_front()
        {
            self.rows.remove(&row);
        }
    }
}

impl RowView for Mirror {
    fn row(&self, row: u64) -> [u64; ENTRIES] {
        self.rows.get(&row).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_rows_are_dropped_between_operations() {
        let mut mirror = Mirror::new(2);
        (1..=3).for_each(|row| mirror.store(row, [row; ENTRIES]));
        mirror.store(1, [9; ENTRIES]);
        mirror.change(3, 0, 7);
        mirror.change(4, 0, 7);
        assert_eq!((mirror.row(1), mirror.row(3)[0], mirror.row(4)), ([9; ENTRIES], 7, [0; ENTRIES]));
        mirror.trim();
        assert_eq!((mirror.row(1), mirror.row(2)), ([0; ENTRIES], [2; ENTRIES]));
    }
}
