//! The metadata server: where the chain of each key is, and which entries no client has.
//!
//! It decides who begins the chain of a key. Where a chain ends it hears behind the changes, in any order, so that it
//! knows an entry of the chain and not always the last one. With reuse it then follows the chain, and collects the
//! entries that it passes. Invariant: of a chain, the entry that it knows and all behind it are not collected.
//!
//! Its work for a call is that of a hash table with a bucket of one cache line; a shortcut or an entry passed is one
//! more.

use std::collections::{HashMap, VecDeque};

use guira_fabric::memory::{Memory, Ordering};
use guira_fabric_sim::{Service, Work};

use super::entry::{Known, Pointer};
use super::{Reuse, Shape};
use crate::baselines::Places;

/// Entries that a client gets at once.
const GRANTED: u64 = 16;
/// Entries of a chain that it passes for a notice, at most: each change of the chain sends one, so it catches up.
const PASSED_MAX: u64 = 64;

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

/// Appends the entries that a client gets by the answer to [`Kind::Grant`]: a range of new ones, and those that are
/// used again.
pub(super) fn granted(reply: &[u64], entries: &mut Vec<Pointer>) {
    let [first, count, again @ ..] = reply else { return };
    let new = *first..first.saturating_add(*count);
    entries.extend(new.take(GRANTED as usize).filter_map(|entry| u32::try_from(entry).ok()).map(Pointer::of_new));
    entries.extend(again.iter().filter_map(|word| Pointer::parse(*word)));
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
    /// The next uses of the entries that were collected, the first of them first.
    collected: VecDeque<Pointer>,
}

impl Server {
    pub(super) fn new(shape: Shape, places: Places, records: u64) -> Server {
        let (changed, collected) = (HashMap::new(), VecDeque::new());
        Server { shape, places, records, changed, next_entry: records + 1, next_shortcut: records, collected }
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

    /// Collects the entries of a chain from `tail` on that are not the last. Returns the one in front of which it
    /// stopped, and how many it passed.
    fn collect(&mut self, memory: Memory<'_>, mut tail: Pointer) -> (Pointer, u64) {
        let mut passed = 0;
        while passed < PASSED_MAX {
            let link = memory.main[self.shape.entry_addr(tail.entry).word() as usize].load(Ordering::Relaxed);
            let Some(next) = Pointer::parse(link).filter(|_| tail.has_link(link)) else { break };
            // An entry whose versions are exhausted is never used again: no version means two uses.
            self.collected.extend(tail.next_use());
            (tail, passed) = (next, passed + 1);
        }
        (tail, passed)
    }

    /// Hands out entries: new ones, and then those that were collected first, which the fewest clients still believe
    /// in.
    fn grant(&mut self, reply: &mut Vec<u64>) {
        let new = GRANTED.min((self.shape.entries + 1).saturating_sub(self.next_entry));
        let again = (GRANTED - new).min(self.collected.len() as u64) as usize;
        reply.extend([self.next_entry, new]);
        reply.extend(self.collected.drain(..again).map(Pointer::word));
        self.next_entry += new;
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
            Some(last) if kind == Kind::Appended as u64 => {
                let Some(known) = self.known(key) else { return by_key };
                // With reuse, `last` may have been collected by now.
                let is_reusing = self.shape.reuse != Reuse::Never;
                let (tail, passed) = if is_reusing { self.collect(memory, known.tail) } else { (last, 0) };
                self.changed.insert(key, Known { tail, ..known });
                return Work { accesses: 1 + passed, ..by_key };
            }
            None if kind == Kind::Grant as u64 => {
                self.grant(reply);
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::rc::Rc;

    use guira_fabric::heap::HeapRegion;
    use guira_fabric::{Profile, WORD_BYTES};

    use super::*;

    /// One client changes one key until the server has no more entries: each use of an entry is handed out once, and no
    /// use has the version of an earlier one.
    #[test]
    fn entries_are_handed_out_until_their_versions_are_exhausted() {
        let shape = Shape { keys: 1, entries: 3, value_bytes: 8, reuse: Reuse::Checked };
        let region = HeapRegion::new(shape.bytes(), WORD_BYTES, Profile::Mlx5.caps());
        let memory = region.memory();
        let link_of = |entry: Pointer| &memory.main[shape.entry_addr(entry.entry).word() as usize];
        let (mut server, mut reply) = (Server::new(shape, Rc::new(|key| u64::from(key) - 1), 0), Vec::new());
        let (mut uses, mut entries, mut tail) = (HashSet::new(), Vec::new(), None);
        loop {
            if entries.is_empty() {
                reply.clear();
                server.handle(memory, &request(Kind::Grant, 0, None), &mut reply);
                granted(&reply, &mut entries);
            }
            let Some(own) = entries.pop() else { break };
            assert!(uses.insert(own.word()), "handed out twice: {own:?}");
            link_of(own).store(own.link(None), Ordering::Relaxed);
            let kind = match tail.replace(own) {
                Some(last) => {
                    link_of(last).store(last.link(Some(own)), Ordering::Relaxed);
                    Kind::Appended
                }
                None => Kind::Insert,
            };
            server.handle(memory, &request(kind, 1, Some(own)), &mut reply);
            assert_eq!(server.known(1).map(|known| known.tail), tail);
        }
        assert!((98_000..=3 * 32_767).contains(&uses.len()), "{} uses", uses.len());
    }
}
