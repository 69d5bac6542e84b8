//! The metadata server: where the chain of each key is, and which entries no client has.
//!
//! It decides who begins the chain of a key. Where a chain ends it hears behind the changes, in any order, so that it knows an
//! entry of the chain and not always the last one.
//!
//! Its work for a call is that of a hash table with a bucket of one cache line; an entry of the shortcuts is another line.

use std::collections::HashMap;

use guira_fabric::memory::{Memory, Ordering};
use guira_fabric_sim::{Service, Work};

use super::Shape;
use super::entry::{Known, Pointer};
use crate::Places;

/// Entries that a client gets at once.
const GRANTED: u64 = 16;

/// The kinds of requests.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Asks for the chain of a key.
    Locate,
    /// Begins the chain of a key with an entry, unless it has one.
    Insert,
    /// Says that an entry was appended to the chain of a key.
    Appended,
    /// Asks for entries.
    Grant,
}

/// Returns the words of a request.
pub(super) fn request(kind: Kind, key: u32, entry: Option<Pointer>) -> [u64; 3] {
    [kind as u64, key.into(), entry.map_or(0, Pointer::word)]
}

/// Reads the answer to [`Kind::Locate`] or [`Kind::Insert`]; `None` if the key has no chain, or there is no room for one.
pub(super) fn located(reply: &[u64]) -> Option<Known> {
    let [tail, shortcut] = *reply else { return None };
    Some(Known { tail: Pointer::parse(tail)?, shortcut: u32::try_from(shortcut).ok()? })
}

/// Reads the answer to [`Kind::Grant`]: the entries that the client gets, none if there are no more.
pub(super) fn granted(reply: &[u64]) -> std::ops::Range<u32> {
    let [first, count] = *reply else { return 0..0 };
    let entry = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    entry(first)..entry(first.saturating_add(count.min(GRANTED)))
}

/// The state of the server. What it knows of the records with which the store was built takes no memory, until it changes.
pub(super) struct Server {
    shape: Shape,
    places: Places,
    /// The records with which the store was built.
    records: u64,
    /// The chains that have changed since, or are new.
    changed: HashMap<u32, Known>,
    /// The first entry and the first shortcut that nobody has.
    next_entry: u64,
    next_shortcut: u64,
}

impl Server {
    pub(super) fn new(shape: Shape, places: Places, records: u64) -> Server {
        Server { shape, places, records, changed: HashMap::new(), next_entry: records + 1, next_shortcut: records }
    }

    fn known(&self, key: u32) -> Option<Known> {
        let record = (self.places)(key);
        self.changed.get(&key).copied().or((record < self.records).then(|| Known::of_record(record)))
    }

    /// Begins a chain; `None` if there are as many keys as the store may have.
    fn begin(&mut self, memory: Memory<'_>, key: u32, tail: Pointer) -> Option<Known> {
        let shortcut = u32::try_from(self.next_shortcut).ok().filter(|_| self.next_shortcut < self.shape.keys)?;
        let known = Known { tail, shortcut };
        memory.main[self.shape.shortcut_addr(shortcut).word() as usize].store(tail.word(), Ordering::Relaxed);
        self.next_shortcut += 1;
        self.changed.insert(key, known);
        Some(known)
    }
}

impl Service for Server {
    fn handle(&mut self, memory: Memory<'_>, request: &[u64], reply: &mut Vec<u64>) -> Work {
        let [kind, key, entry] = *request else { return Work::default() };
        let Ok(key) = u32::try_from(key) else { return Work::default() };
        let by_key = Work { hashes: 1, comparisons: 1, accesses: 1, ..Work::default() };
        let mut answer = |known: Known| reply.extend([known.tail.word(), known.shortcut.into()]);
        match Pointer::parse(entry) {
            None if kind == Kind::Locate as u64 => self.known(key).into_iter().for_each(answer),
            Some(tail) if kind == Kind::Insert as u64 => match self.known(key) {
                Some(known) => answer(known),
                None => {
                    self.begin(memory, key, tail).into_iter().for_each(answer);
                    return Work { accesses: 2, ..by_key };
                }
            },
            Some(tail) if kind == Kind::Appended as u64 => {
                let known = self.known(key);
                self.changed.extend(known.map(|known| (key, Known { tail, ..known })));
            }
            None if kind == Kind::Grant as u64 => {
                let count = GRANTED.min((self.shape.entries + 1).saturating_sub(self.next_entry));
                reply.extend([self.next_entry, count]);
                self.next_entry += count;
                return Work::default();
            }
            _ => return Work::default(),
        }
        by_key
    }

    /// Begins anew, with a store that has no key.
    fn restart(&mut self) {
        *self = Server::new(self.shape, self.places.clone(), 0);
    }
}
