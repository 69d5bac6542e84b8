//! The table in the memory of the simulated node, and its initial contents.
//!
//! Rows lie one after the other in the main space, lock words in the device space. A row is eight entries; the later
//! code has one more word, a checksum that nothing verifies. The first word of an entry is all that is looked at.

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::{AtomicU64, prefetch_line};
use guira_fabric::{Addr, Profile, Region, Space, WORD_BYTES};
use std::cell::RefCell;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use super::client::{Client, ClientRules, Outcome};
use super::hash::{Placement, RowPair};
use super::local::apply;
use super::locks::{LockGroup, LockRules};
use super::mirror::{Mirror, Mirrors};
use super::search::{ENTRIES, RowView, Scope, SearchOrder, find_path};

/// The checksums of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSums {
    /// Rows have none, as in the public code.
    None,
    /// Each changed row gets one, by a WRITE of its own, as in later code.
    Written,
}

/// The layout of a table.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The rows of keys.
    pub placement: Placement,
    /// The locks of rows.
    pub locks: LockRules,
    /// The checksums of rows.
    pub sums: RowSums,
    /// The words of an entry.
    pub entry_words: u64,
}

impl Layout {
    /// Returns the number of words of a row.
    pub fn row_words(&self) -> u64 {
        ENTRIES as u64 * self.entry_words + u64::from(self.sums == RowSums::Written)
    }

    /// Returns the first words of the entries of a row, of which these are the words.
    pub fn entries_of(&self, words: &[u64]) -> [u64; ENTRIES] {
        std::array::from_fn(|index| words[index * self.entry_words as usize])
    }

    /// Returns the address of a row.
    pub fn row_addr(&self, row: u64) -> Addr {
        Addr::main_word(row * self.row_words())
    }

    /// Returns the address of an entry of a row, or of the row's checksum behind its entries.
    pub fn entry_addr(&self, row: u64, index: usize) -> Addr {
        self.row_addr(row).add_words(index as u64 * self.entry_words)
    }

    /// Returns the rows that a READ behind the message covers: see [`LockRules::covered`]. The last lock of a table may
    /// have fewer rows than the others.
    pub fn covered(&self, group: LockGroup) -> Range<u64> {
        let rows = self.locks.covered(group);
        rows.start..rows.end.min(self.placement.rows())
    }

    /// Returns the address of the lease of the table: the word behind its locks.
    pub fn lease_addr(&self) -> Addr {
        Addr::device(self.locks.table_bytes(self.placement.rows()) - WORD_BYTES)
    }

    /// Returns the address of the word of a group of locks.
    pub fn lock_addr(&self, group: LockGroup) -> Addr {
        Addr::device(group.word * WORD_BYTES)
    }
}

/// A table in a node's memory.
#[derive(Clone)]
pub struct Table {
    /// The layout.
    pub layout: Layout,
    /// The memory.
    pub region: HeapRegion,
    /// The keys 1 to this are in it.
    pub keys: u32,
    /// The mirrors of its clients. Empty if it was not filled by clients: then they can insert nothing.
    pub mirrors: Mirrors,
}

/// The number of keys whose rows are loaded ahead of their use.
const AHEAD: u32 = 32;

impl Table {
    /// Creates an empty table with mirrors for `clients` clients.
    pub fn empty(layout: Layout, clients: u32) -> Table {
        let rows = layout.placement.rows();
        let main_bytes = rows * layout.row_words() * WORD_BYTES;
        let region = HeapRegion::new(main_bytes, layout.locks.table_bytes(rows), Profile::Mlx5.caps());
        let mirrors = if clients == 0 { Mirrors::default() } else { Mirrors::new(rows, clients) };
        Table { layout, region, keys: 0, mirrors }
    }

    /// Creates a table with the keys from 1 to `keys`, which `clients` clients insert in turn, searching in this order, or
    /// fewer if one of them finds no path: see [`Table::keys`]. No client waits for another, so this tells nothing about time, but the
    /// clients have seen of the table what they would have seen of it in the authors' runs.
    pub fn filled_by(
        clients: u32,
        layout: Layout,
        keys: u32,
        search_order: SearchOrder,
        is_stopped: &dyn Fn() -> bool,
    ) -> Table {
        /// Inserts between two looks at `is_stopped`.
        const INSERTS: u32 = 10_000;
        let mut table = Table::empty(layout, clients);
        let all = Rc::new(RefCell::new(std::mem::take(&mut table.mirrors)));
        let rules = Rc::new(ClientRules { search_order, ..ClientRules::new(table.layout.clone()) });
        let client = |number| Client::new(table.region.lane(), Rc::clone(&rules), Mirror::of(&all, number));
        let mut clients: Vec<_> = (0..clients).map(client).collect();
        let mut cx = Context::from_waker(Waker::noop());
        for key in 1..=keys {
            if key % INSERTS == 0 && is_stopped() {
                break;
            }
            let client = (key - 1) as usize % clients.len();
            // A lane in this memory is never pending.
            match pin!(clients[client].insert(key)).poll(&mut cx) {
                Poll::Ready(Ok(Outcome::Done)) => table.keys = key,
                _ => break,
            }
        }
        drop(clients);
        table.mirrors = all.take();
        table
    }

    /// Creates a table with the keys from 1 to `keys`, or fewer if they do not fit: see [`Table::keys`].
    pub fn filled(layout: Layout, keys: u32) -> Table {
        let mut table = Table::empty(layout, 0);
        let mut ahead = [RowPair { primary: 0, secondary: 0 }; AHEAD as usize];
        while table.keys < keys {
            let first = table.keys + 1;
            let count = AHEAD.min(keys - table.keys);
            for (pair, key) in ahead.iter_mut().zip(first..first + count) {
                *pair = table.layout.placement.of(key);
                table.words(pair.primary).take(1).for_each(prefetch_line);
            }
            for (pair, key) in ahead.iter().zip(first..first + count) {
                if !table.put_in(pair.primary, key) && !table.put_in(pair.secondary, key) && !table.put_by_path(key) {
                    return table;
                }
                table.keys = key;
            }
        }
        table
    }

    /// Returns the first words of the entries of a row.
    fn words(&self, row: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = self.layout.row_addr(row).word() as usize;
        self.region.memory().space(Space::Main)[first..].iter().step_by(self.layout.entry_words as usize).take(ENTRIES)
    }

    /// Puts a key into a row, if the row has room.
    fn put_in(&self, row: u64, key: u32) -> bool {
        let empty = self.words(row).find(|word| word.load(Ordering::Relaxed) == 0);
        empty.inspect(|word| word.store(u64::from(key), Ordering::Relaxed)).is_some()
    }

    fn put_by_path(&self, key: u32) -> bool {
        let path = find_path(self, &self.layout.placement, key, Scope::Table, SearchOrder::BreadthFirst).path;
        let put = path.inspect(|path| {
            apply(path, u64::from(key), |step, entry| {
                self.words(step.row).skip(step.index).take(1).for_each(|word| word.store(entry, Ordering::Relaxed));
            });
        });
        put.is_some()
    }
}

impl RowView for Table {
    fn row(&self, row: u64) -> [u64; ENTRIES] {
        let mut words = self.words(row);
        std::array::from_fn(|_| words.next().map_or(0, |word| word.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::as_run::hash::{Distance, Program};

    #[test]
    fn a_filled_table_has_every_key_in_one_of_its_rows() {
        for (sums, entry_words) in [(RowSums::None, 1), (RowSums::Written, 1), (RowSums::None, 8)] {
            let placement = Placement::new(1024, Program::Store, Distance::Dependent { factor: 2.3 });
            let locks = LockRules { rows_per_lock: 16, locks_per_message: 64 };
            let layout = Layout { placement: placement.clone(), locks, sums, entry_words };
            let table = Table::filled(layout.clone(), 7_400);
            assert_eq!(table.keys, 7_400);
            let occupied: usize = (0..1024).map(|row| table.row(row).iter().filter(|entry| **entry != 0).count()).sum();
            assert_eq!(occupied, 7_400);
            for key in 1..=7_400 {
                let pair = placement.of(key);
                assert!([pair.primary, pair.secondary].iter().any(|row| table.row(*row).contains(&u64::from(key))));
            }
            assert!(Table::filled(layout, 9_000).keys < 8_192, "more keys than entries");
        }
    }
}
