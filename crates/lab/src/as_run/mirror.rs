//! Mirrors: the rows of the table as each client has seen them, for its searches.
//!
//! The authors' client registers a mirror of the whole table, and lets its READs write there. So a search sees each row
//! as the client has read it last: full rows that it has never read look empty, and the fewer of all inserts are its
//! own, the older is what it sees. Hundreds of whole mirrors do not fit in memory. Here the changes of each row are kept
//! once, and a mirror is a number for each row: how many of them the client has seen.
//!
//! Invariant: a row is changed under its locks only, one entry at a time, so that every READ of it finds what some
//! number of its changes makes. Lookups and updates do not search, and fill no mirror.

use std::cell::RefCell;
use std::rc::Rc;

use super::search::{ENTRIES, RowView};

/// The changes of a table's rows, and how many of them each client has seen.
#[derive(Clone, Debug, Default)]
pub struct Mirrors {
    rows: usize,
    /// The changes of each row.
    changes: Vec<Vec<Change>>,
    /// The number of changes that a client has seen: of the first client, row by row, then of the next. A client that
    /// has seen [`u8::MAX`] changes sees every later one.
    seen: Vec<u8>,
}

/// A change of an entry.
#[derive(Clone, Copy, Debug)]
struct Change {
    key: u32,
    index: u8,
}

impl Mirrors {
    /// Creates the mirrors of `clients` clients of an empty table of `rows` rows.
    pub fn new(rows: u64, clients: u32) -> Mirrors {
        let (rows, clients) = (rows as usize, clients as usize);
        Mirrors { rows, changes: vec![Vec::new(); rows], seen: vec![0; rows * clients] }
    }

    /// Returns the bytes that the mirrors of a table take after so many inserts.
    pub fn needed_bytes(rows: u64, clients: u32, inserts: u64) -> u64 {
        /// Changes for each insert. With those of moved entries there are 1.5 at most, on average, in a table that is 90 %
        /// full; vectors hold twice as many.
        const CHANGES: u64 = 3;
        let of_rows = rows * (u64::from(clients) + size_of::<Vec<Change>>() as u64);
        of_rows + inserts * CHANGES * size_of::<Change>() as u64
    }

    /// Returns a row after its first `count` changes.
    fn row_after(&self, row: usize, count: usize) -> [u64; ENTRIES] {
        let mut entries = [0; ENTRIES];
        for change in self.changes[row].iter().take(count) {
            entries[usize::from(change.index)] = change.key.into();
        }
        entries
    }

    /// Returns the number of changes that make this row; the largest, if several do.
    fn count_of(&self, row: usize, entries: &[u64; ENTRIES]) -> usize {
        (0..=self.changes[row].len()).rev().find(|count| self.row_after(row, *count) == *entries).unwrap_or(0)
    }
}

/// The mirror of one client.
#[derive(Clone, Debug)]
pub struct Mirror {
    all: Rc<RefCell<Mirrors>>,
    client: usize,
}

impl Mirror {
    /// Creates the view of a client, which has not more than one.
    pub fn of(all: &Rc<RefCell<Mirrors>>, client: u32) -> Mirror {
        Mirror { all: Rc::clone(all), client: client as usize }
    }

    /// Stores a row that was read.
    pub fn store(&mut self, row: u64, entries: &[u64; ENTRIES]) {
        let mut all = self.all.borrow_mut();
        let (row, place) = (row as usize, self.client * all.rows + row as usize);
        all.seen[place] = u8::try_from(all.count_of(row, entries)).unwrap_or(u8::MAX);
    }

    /// Changes an entry of a row that the client has locked and read, before it writes the entry.
    pub fn change(&mut self, row: u64, index: usize, entry: u64) {
        let mut all = self.all.borrow_mut();
        let (row, place) = (row as usize, self.client * all.rows + row as usize);
        all.changes[row].push(Change { key: entry as u32, index: index as u8 });
        all.seen[place] = u8::try_from(all.changes[row].len()).unwrap_or(u8::MAX);
    }
}

impl RowView for Mirror {
    fn row(&self, row: u64) -> [u64; ENTRIES] {
        let (all, row) = (self.all.borrow(), row as usize);
        match all.seen[self.client * all.rows + row] {
            u8::MAX => all.row_after(row, usize::MAX),
            count => all.row_after(row, count.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_sees_a_row_as_it_has_read_it_last() {
        let all = Rc::new(RefCell::new(Mirrors::new(4, 2)));
        let (mut first, mut second) = (Mirror::of(&all, 0), Mirror::of(&all, 1));
        let row = |entries: &[u64]| std::array::from_fn(|index| entries.get(index).copied().unwrap_or(0));
        first.change(3, 0, 7);
        first.change(3, 1, 8);
        assert_eq!((first.row(3), second.row(3)), (row(&[7, 8]), row(&[])));
        // The second client's READ was faster than the WRITE of the second entry.
        second.store(3, &row(&[7]));
        assert_eq!((second.row(3), second.row(2)), (row(&[7]), row(&[])));
        second.store(3, &row(&[7, 8]));
        second.change(3, 0, 0);
        assert_eq!((first.row(3), second.row(3)), (row(&[7, 8]), row(&[0, 8])));
    }

    #[test]
    fn a_client_that_has_seen_many_changes_sees_all() {
        let all = Rc::new(RefCell::new(Mirrors::new(1, 2)));
        let (mut first, second) = (Mirror::of(&all, 0), Mirror::of(&all, 1));
        (1..=300).for_each(|entry| first.change(0, 0, entry));
        assert_eq!((first.row(0)[0], second.row(0)[0]), (300, 0));
    }
}
