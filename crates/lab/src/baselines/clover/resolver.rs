//! An element in front of the memory node that resolves conflicts: it knows where the chains of some keys end, and steers
//! CASes and READs there whose clients know less.
//!
//! Clients take no part in it. A WRITE of a whole entry says which key the client is about to change; the CAS that
//! follows on the same queue pair and points to that entry belongs to the same key. If the element knows the end of its
//! chain, and the CAS is to another entry, it goes to the end instead. A READ of an entry that is known to have a next
//! pointer goes to the end, too.
//!
//! It is safe, whatever the element forgets:
//!
//! - It steers to an entry only if it has seen that its link is in the chain: by the answer to the CAS that linked it,
//!   which found what it expected. The paper steers to the entry of a CAS that is still on its way. If that fails, or its
//!   client dies, others have appended to an entry that no chain has, and what they were told is lost.
//! - It steers only where the words that the client sent fit: to an entry of the same version, which is a removal if and
//!   only if the other is. The words remain as they are, so that an answer needs no translation, and means the same
//!   to a client if the element has forgotten everything meanwhile. If the words were rewritten for another
//!   version, a client whose answer is not translated would try again what has been done.
//! - The memory decides. A CAS that is steered to the wrong entry fails; then the link that it found leads on.
//!
//! Invariant: what it takes for the end of a chain is behind every entry of the chain that it knows to have a next
//! pointer, since both are noted together; so no READ is steered back.
//!
//! Source: the paper on in-network contention resolution, sections 3 and 5.

use std::collections::{HashMap, VecDeque};

use guira_fabric::Addr;
use guira_fabric_sim::{Element, Passing, Rewrite};

use super::Shape;
use super::entry::Pointer;
use crate::baselines::Places;
use crate::baselines::record::key_in;

/// Bytes of what is known of a key: the key, and the end of its chain.
const KEY_BYTES: u64 = 16;
/// Bytes of what is known of a queue pair: its number, the key and the entry that it writes, and the entry that a CAS
/// goes to.
const QUEUE_PAIR_BYTES: u64 = 32;
/// Bytes of what is known of an entry that has a next pointer: the entry, its key and its mark.
const ENTRY_BYTES: u64 = 12;
/// Queue pairs of which it knows something, at most. With more, it forgets everything.
const QUEUE_PAIRS_MAX: usize = 4096;

/// Options of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Keys whose ends of chains it knows, at most: those of the first records, which are the most popular ones.
    pub keys: u64,
    /// Entries of which it knows that they have a next pointer, at most; with 0, it steers no READs.
    pub entries: u64,
    /// The knowledge that it relies on.
    pub trust: Trust,
}

/// The knowledge that an element relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Entries that it has seen to be linked.
    Linked,
    /// *Unsafe, for tests:* entries that are about to be linked, too, as printed.
    Sent,
    /// *Unsafe, for tests:* its memory: it translates the words of CASes for other versions, and their answers back.
    Memory,
}

/// The state of the element.
pub(super) struct Resolver {
    shape: Shape,
    places: Places,
    steering: Steering,
    /// The ends of chains.
    ends: HashMap<u32, Pointer>,
    /// What each queue pair is about.
    changes: HashMap<u32, Change>,
    /// The entries that have a next pointer, with their keys, and in the order in which they got it.
    passed: HashMap<u32, (u32, Pointer)>,
    order: VecDeque<u32>,
}

/// A change that a client is making.
#[derive(Clone, Copy)]
struct Change {
    key: u32,
    /// The entry that it has written.
    own: Pointer,
    /// The CAS that is on its way.
    sent: Option<SentCas>,
}

/// A CAS that has passed.
#[derive(Clone, Copy)]
struct SentCas {
    /// The entry that it goes to.
    target: Pointer,
    /// What the client expects there.
    compare: u64,
}

impl Resolver {
    pub(super) fn new(shape: Shape, places: Places, steering: Steering) -> Resolver {
        let (ends, changes) = (HashMap::new(), HashMap::new());
        Resolver { shape, places, steering, ends, changes, passed: HashMap::new(), order: VecDeque::new() }
    }

    /// Notes what a client is about to link.
    fn written(&mut self, queue_pair: u32, addr: Addr, words: &[u64]) {
        let Some(entry) = self.shape.entry_at(addr) else { return };
        // Where the entry was used before, it has no next pointer any more.
        self.passed.remove(&entry);
        let key = key_in(&words[1..]);
        if (self.places)(key) >= self.steering.keys {
            self.changes.remove(&queue_pair);
            return;
        }
        if self.changes.len() >= QUEUE_PAIRS_MAX && !self.changes.contains_key(&queue_pair) {
            self.reset();
        }
        self.changes.insert(queue_pair, Change { key, own: Pointer::of_link(entry, words[0]), sent: None });
    }

    fn steer_cas(&mut self, queue_pair: u32, addr: Addr, compare: u64, swap: u64) -> Rewrite {
        let Some(change) = self.changes.get_mut(&queue_pair) else { return Rewrite::Nothing };
        change.sent = None;
        let (Some(entry), Some(own)) = (self.shape.entry_at(addr), Pointer::parse(swap)) else {
            return Rewrite::Nothing;
        };
        if own != change.own {
            return Rewrite::Nothing;
        }
        let (believed, trust) = (Pointer::of_link(entry, compare), self.steering.trust);
        let fits = |end: &Pointer| match trust {
            Trust::Memory => end.is_removal() == believed.is_removal(),
            Trust::Linked | Trust::Sent => end.is_like(believed),
        };
        let target = self.ends.get(&change.key).copied().filter(fits).unwrap_or(believed);
        change.sent = Some(SentCas { target, compare });
        if trust == Trust::Sent {
            self.ends.insert(change.key, own);
        }
        let addr = self.shape.entry_addr(target.entry);
        match target {
            _ if target == believed => Rewrite::Nothing,
            _ if target.is_like(believed) => Rewrite::Address(addr),
            _ => Rewrite::Cas { addr, compare: target.link(None), swap: target.link(Some(own)) },
        }
    }

    fn steer_read(&self, addr: Addr) -> Rewrite {
        let passed = self.shape.entry_at(addr).and_then(|entry| self.passed.get(&entry));
        let Some((key, pointer)) = passed else { return Rewrite::Nothing };
        let end = self.ends.get(key).filter(|end| end.is_like(*pointer));
        end.map_or(Rewrite::Nothing, |end| Rewrite::Address(self.shape.entry_addr(end.entry)))
    }

    /// Notes that an entry has a next pointer.
    fn pass(&mut self, key: u32, entry: Pointer) {
        if self.steering.entries == 0 {
            return;
        }
        if self.passed.insert(entry.entry, (key, entry)).is_none() {
            self.order.push_back(entry.entry);
        }
        // Some entries were forgotten when they were used again, and may be in the order twice.
        while self.order.len() as u64 > self.steering.entries {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.passed.remove(&oldest));
        }
    }
}

impl Element for Resolver {
    fn request(&mut self, queue_pair: u32, _verb: u32, passing: Passing<'_>) -> Rewrite {
        let entry_words = self.shape.entry_words();
        match passing {
            Passing::Write { addr, words } if words.len() as u64 == entry_words => {
                self.written(queue_pair, addr, words);
                Rewrite::Nothing
            }
            Passing::Read { addr, words } if u64::from(words) == entry_words => self.steer_read(addr),
            Passing::Cas { addr, compare, swap, .. } => self.steer_cas(queue_pair, addr, compare, swap),
            _ => Rewrite::Nothing,
        }
    }

    fn reply(&mut self, queue_pair: u32, _verb: u32, found: &mut u64) {
        let Some(change) = self.changes.get_mut(&queue_pair) else { return };
        let Some(SentCas { target, compare }) = change.sent.take() else { return };
        let Change { key, own, .. } = *change;
        if *found == target.link(None) {
            *found = compare;
            if self.steering.trust != Trust::Sent {
                self.ends.insert(key, own);
            }
            self.pass(key, target);
            return;
        }
        if *found == compare {
            // That is what the client expects, and elsewhere.
            *found = 0;
        }
        if self.steering.trust == Trust::Sent || self.ends.get(&key) == Some(&target) {
            // What it knows is wrong.
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.ends.clear();
        self.changes.clear();
        self.passed.clear();
        self.order.clear();
    }

    fn state_bytes(&self) -> u64 {
        self.ends.len() as u64 * KEY_BYTES
            + self.changes.len() as u64 * QUEUE_PAIR_BYTES
            + self.order.len() as u64 * ENTRY_BYTES
    }
}
