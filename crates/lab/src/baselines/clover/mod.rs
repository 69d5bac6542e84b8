//! Clover: chains of values at a memory node, of which clients cache the last entry, and a metadata server beside them.
//!
//! A change appends an entry to the chain of its key: the client WRITEs it to space of its own, and then sets the next pointer
//! of the last entry by CAS. A lookup READs the entry that the client believes to be the last one; a next pointer says that it
//! is not. A removal is an entry, too. The metadata server knows where the chain of each key is, gives clients space, and
//! decides who begins a chain; of later changes it is told behind them, and so is the key's shortcut, a word in the node's
//! memory from which clients jump close to the end of the chain.
//!
//! Invariants: a key has one chain, for ever; an entry does not change once it is in a chain, but for its next pointer,
//! which is set once; the record of a key is the last entry of its chain, whatever server and shortcut say. So an
//! operation takes effect with the CAS of its entry, with the READ of an entry that has no next pointer, or, on a key
//! without a chain, with its call. What clients took and never linked is lost.
//!
//! With [`Reuse::Checked`], the server collects entries, and hands them out again. Each use of an entry has a version
//! of its own, which is in the entry's link and in every pointer to it. That makes it safe:
//!
//! - An entry is collected when it has a next pointer. So no link ever says again that this use of it is the last of
//!   its chain: a CAS that expects this fails, however late, and a READ finds the next pointer, or another version.
//! - Only the server collects, along the chain, and never the entry that it knows: clients with stale pointers ask it.
//! - A client links an entry when its WRITE is acknowledged. So no WRITE is on its way to an entry that was collected.
//!   A late one, of a dead client or after a lost connection, is to an entry that no chain has, and that nobody gets.
//! - A READ may sample the link of one use and words of the next one; then the checksum behind the record does not fit.
//!
//! Source: Clover (USENIX ATC'20), as the paper on in-network contention resolution describes it in section 2, with one copy.

mod cache;
mod client;
mod entry;
mod resolver;
mod server;

pub use cache::Cache;
pub use client::{CloverClient, Counts};
pub use resolver::{Steering, Trust};

use std::cell::RefCell;
use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Caps, Region, Space, WORD_BYTES};
use guira_fabric_sim::{Element, Service};

use self::entry::Pointer;
use self::resolver::Resolver;
use self::server::Server;
use crate::baselines::record::{checked_value, checksum, record_words, words_of};
use crate::baselines::{BuildError, Places, Ports, Store};

/// The sizes of entries are multiples of this, as those of the authors' smallest entries.
const ENTRY_BYTES: u64 = 128;

/// The reuse of entries that are no longer the last of their chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// They stay where they are.
    Never,
    /// The server hands them out again, and clients check which use of an entry they have read.
    Checked,
    /// *Unsafe, for tests:* clients compare versions, but no checksums.
    WithoutChecksums,
    /// *Unsafe, for tests:* clients compare the keys and checksums of entries, but no versions.
    WithoutVersions,
}

/// The size of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The most keys that ever exist.
    pub keys: u64,
    /// The most entries of all chains: every record that is stored, every change and every entry that a client has in
    /// reserve takes one. With reuse, those of superseded records are taken again. At most 2^32 - 1.
    pub entries: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The reuse of superseded entries.
    pub reuse: Reuse,
}

impl Shape {
    /// Returns the bytes of a store.
    pub fn bytes(&self) -> u64 {
        self.first_word()
            .saturating_add(self.entries.saturating_add(1).saturating_mul(self.entry_words()))
            .saturating_mul(WORD_BYTES)
    }

    /// Returns the words of an entry: a link, a record, with reuse its checksum, and zeros.
    fn entry_words(&self) -> u64 {
        let words = 1 + record_words(self.value_bytes) + u64::from(self.reuse != Reuse::Never);
        words.next_multiple_of(ENTRY_BYTES / WORD_BYTES)
    }

    /// Replaces the contents of `words` by those of an entry that is the last of its chain.
    fn write_entry(&self, own: Pointer, key: u32, value: &[u8], words: &mut Vec<u64>) {
        words.clear();
        words.push(own.link(None));
        words.extend(words_of(key, value).take(self.entry_words() as usize - 1));
        let (record, behind) = words[1..].split_at_mut(record_words(self.value_bytes) as usize);
        if self.reuse != Reuse::Never {
            behind[0] = checksum(own.link(None), record);
        }
    }

    /// Whether the words of an entry are those of one use of it, as far as clients check that.
    fn is_of_one_use(&self, words: &[u64]) -> bool {
        let (record, behind) = words[1..].split_at(record_words(self.value_bytes) as usize);
        matches!(self.reuse, Reuse::Never | Reuse::WithoutChecksums) || behind[0] == checksum(words[0], record)
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

    /// Returns the entry whose first word this is, if it is one.
    fn entry_at(&self, addr: Addr) -> Option<u32> {
        let words = addr.word().checked_sub(self.first_word()).filter(|_| addr.space() == Space::Main)?;
        let entry = u32::try_from(words / self.entry_words()).ok()?;
        (self.entry_addr(entry) == addr && entry != 0).then_some(entry)
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
        let (mut words, mut bytes) = (Vec::new(), Vec::new());
        for (record, entry) in (0..records).zip(entries.chunks_exact(shape.entry_words() as usize).skip(1)) {
            if record % 4096 == 0 && is_stopped() {
                return Ok(None);
            }
            checked_value(record, &mut value, shape.value_bytes, &mut bytes)?;
            let (key, own) = (key(record), Pointer::of_record(record));
            if key == 0 {
                return Err(BuildError::Key);
            }
            shortcuts[record as usize].store(own.word(), Ordering::Relaxed);
            shape.write_entry(own, key, &bytes, &mut words);
            entry.iter().zip(&words).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
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
    shortcut_lag_ns: u64,
    steering: Option<Steering>,
}

impl CloverStore {
    /// Creates the store of clients that change `table`, which was forked for them. A client caches so many keys, at first
    /// those of the first records; the metadata server has so many threads.
    pub fn new(table: Table, places: Places, cache_keys: u64, threads: u32) -> CloverStore {
        CloverStore { table, places, cache_keys, threads, shortcut_lag_ns: 0, steering: None }
    }

    /// Returns the store with shortcuts that are written so long after a change, when their client next does something:
    /// as by a server that is behind.
    #[must_use]
    pub fn lagging(self, shortcut_lag_ns: u64) -> CloverStore {
        CloverStore { shortcut_lag_ns, ..self }
    }

    /// Returns the store with an element that resolves conflicts in front of its node, or without one.
    #[must_use]
    pub fn behind(self, steering: Option<Steering>) -> CloverStore {
        CloverStore { steering, ..self }
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

    fn thread(&self) -> RefCell<Cache> {
        RefCell::new(Cache::new(Rc::clone(&self.places), self.cache_keys, self.table.records))
    }

    fn service(&self) -> Option<(u32, Box<dyn Service>)> {
        let Table { shape, records, .. } = self.table;
        Some((self.threads, Box::new(Server::new(shape, Rc::clone(&self.places), records))))
    }

    fn element(&self) -> Option<Box<dyn Element>> {
        let resolver = |steering| Resolver::new(self.table.shape, Rc::clone(&self.places), steering);
        self.steering.map(|steering| Box::new(resolver(steering)) as Box<dyn Element>)
    }

    fn client(&self, ports: Ports, _number: u32, _host: &Rc<()>, thread: &Rc<RefCell<Cache>>) -> CloverClient {
        CloverClient::new(ports, self.table.shape, self.shortcut_lag_ns, Rc::clone(thread))
    }
}
