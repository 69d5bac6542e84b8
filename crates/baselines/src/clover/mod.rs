//! Clover: chains of values at a memory node, of which clients cache the last entry, and a metadata server beside them.
//!
//! A change appends an entry to the chain of its key: the client WRITEs it to space of its own, and then sets the next pointer
//! of the last entry by CAS. A lookup READs the entry that the client believes to be the last one; a next pointer says that it
//! is not. A removal is an entry, too. The metadata server knows where the chain of each key is, gives clients space, and
//! decides who begins a chain; of later changes it is told behind them, and so is the key's shortcut, a word in the node's
//! memory from which clients jump close to the end of the chain.
//!
//! Invariants: a key has one chain, for ever; an entry does not change once it is in a chain, but for its next pointer, which
//! is set once; the record of a key is the last entry of its chain, whatever server and shortcut say. So an operation takes
//! effect with the CAS of its entry, with the READ of an entry that has no next pointer, or, on a key without a chain, with
//! its call. Entries are not used again: what clients took and never linked is lost.
//!
//! Source: Clover (USENIX ATC'20), as the paper on in-network contention resolution describes it in section 2, with one copy.

mod cache;
mod client;
mod entry;
mod server;

pub use cache::Cache;
pub use client::{CloverClient, Counts};

use std::cell::RefCell;
use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Caps, Region, WORD_BYTES};
use guira_fabric_sim::Service;

use self::entry::{Pointer, entry_words_of};
use self::server::Server;
use crate::record::{checked_value, record_words};
use crate::{BuildError, Places, Ports, Store};

/// The sizes of entries are multiples of this, as those of the authors' smallest entries.
const ENTRY_BYTES: u64 = 128;

/// The size of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The most keys that ever exist.
    pub keys: u64,
    /// The most entries of all chains: every record that is stored, every change and every entry that a client has in reserve
    /// takes one. At most 2^32 - 1.
    pub entries: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
}

impl Shape {
    /// Returns the bytes of a store.
    pub fn bytes(&self) -> u64 {
        self.first_word()
            .saturating_add(self.entries.saturating_add(1).saturating_mul(self.entry_words()))
            .saturating_mul(WORD_BYTES)
    }

    /// Returns the words of an entry: a link, a record, and zeros.
    fn entry_words(&self) -> u64 {
        (1 + record_words(self.value_bytes)).next_multiple_of(ENTRY_BYTES / WORD_BYTES)
    }

    /// Returns the first word behind the shortcuts: that of entry 0, which no chain has.
    fn first_word(&self) -> u64 {
        self.keys.next_multiple_of(ENTRY_BYTES / WORD_BYTES)
    }

    fn shortcut_addr(&self, shortcut: u32) -> Addr {
        Addr::main_word(shortcut.into())
    }

    fn entry_addr(&self, entry: u32) -> Addr {
        Addr::main_word(self.first_word() + u64::from(entry) * self.entry_words())
    }
}

/// The chains of a store, each of one entry.
#[derive(Clone)]
pub struct Table {
    region: HeapRegion,
    shape: Shape,
    records: u64,
}

impl Table {
    /// Creates the chains of `records` records. `key` returns the key of a record, and `value` writes its value; `is_stopped` is
    /// asked now and then, and then the result is `None`. It has no memory for further entries: see [`Table::fork`].
    ///
    /// # Errors
    /// [`BuildError::Key`] or [`BuildError::Value`]; [`BuildError::Full`] if the shape has fewer keys or entries.
    pub fn build(
        shape: Shape,
        caps: Caps,
        records: u64,
        key: impl Fn(u64) -> u32,
        mut value: impl FnMut(u64, &mut Vec<u8>),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Table>, BuildError> {
        let most = shape.keys.min(shape.entries).min(u32::MAX.into());
        if records > most || shape.entries > u32::MAX.into() {
            return Err(BuildError::Full { records: most });
        }
        let region = HeapRegion::new(Shape { entries: records, ..shape }.bytes(), WORD_BYTES, caps);
        let (shortcuts, entries) = region.memory().main.split_at(shape.first_word() as usize);
        let (words, mut bytes) = (shape.entry_words() as usize, Vec::new());
        for (record, entry) in (0..records).zip(entries.chunks_exact(words).skip(1)) {
            if record % 4096 == 0 && is_stopped() {
                return Ok(None);
            }
            checked_value(record, &mut value, shape.value_bytes, &mut bytes)?;
            let (key, own) = (key(record), Pointer::of_record(record));
            if key == 0 {
                return Err(BuildError::Key);
            }
            shortcuts[record as usize].store(own.word(), Ordering::Relaxed);
            let content = entry_words_of(own, key, &bytes);
            entry.iter().zip(content).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        }
        Ok(Some(Table { region, shape, records }))
    }

    /// Returns the table with bytes of its own, and with memory for all entries of its shape. Fork it before clients change it:
    /// a metadata server begins with the chains as they were built.
    #[must_use]
    pub fn fork(&self) -> Table {
        let region = HeapRegion::new(self.shape.bytes(), WORD_BYTES, *self.region.caps());
        for (from, to) in self.region.memory().main.iter().zip(region.memory().main) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Table { region, ..*self }
    }
}

/// Chains of entries, the caches of their clients, and the threads of the metadata server.
#[derive(Clone)]
pub struct CloverStore {
    table: Table,
    places: Places,
    cache_keys: u64,
    threads: u32,
}

impl CloverStore {
    /// Creates the store of clients that change `table`, which was forked for them. A client caches so many keys, at first
    /// those of the first records; the metadata server has so many threads.
    pub fn new(table: Table, places: Places, cache_keys: u64, threads: u32) -> CloverStore {
        CloverStore { table, places, cache_keys, threads }
    }
}

impl Store for CloverStore {
    type Client = CloverClient;
    type Host = ();
    type Thread = RefCell<Cache>;

    fn nodes(&self) -> &[HeapRegion] {
        std::slice::from_ref(&self.table.region)
    }

    /// Returns a store with bytes of its own; see [`Table::fork`].
    fn fork(&self) -> CloverStore {
        CloverStore { table: self.table.fork(), ..self.clone() }
    }

    fn host(&self) {}

    /// Creates the cache of a thread.
    fn thread(&self) -> RefCell<Cache> {
        RefCell::new(Cache::new(Rc::clone(&self.places), self.cache_keys, self.table.records))
    }

    fn service(&self) -> Option<(u32, Box<dyn Service>)> {
        let Table { shape, records, .. } = self.table;
        Some((self.threads, Box::new(Server::new(shape, Rc::clone(&self.places), records))))
    }

    fn client(&self, ports: Ports, _number: u32, _host: &Rc<()>, thread: &Rc<RefCell<Cache>>) -> CloverClient {
        CloverClient::new(ports, self.table.shape, Rc::clone(thread))
    }
}
