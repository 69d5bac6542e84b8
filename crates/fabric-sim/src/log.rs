//! The event log: a hash of all events, and the last of them as text.

use std::collections::VecDeque;
use std::fmt;

use guira_fabric::Addr;

use crate::batch::VerbKind;

/// An event of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The virtual time in nanoseconds.
    pub at_ns: u64,
    /// The client concerned; [`Event::NODE`] for the memory node.
    pub client: u32,
    /// The lane, numbered in the order of creation.
    pub lane: u32,
    /// The kind of the event.
    pub kind: EventKind,
}

impl Event {
    /// The client and lane of an event of the memory node.
    pub const NODE: u32 = u32::MAX;
}

/// The kind of an event, with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A client posted a batch of this number of verbs.
    Posted(u32),
    /// A READ, or a part of one, was executed.
    Read(Part),
    /// A WRITE, or a part of one, was executed.
    Write(Part),
    /// A CAS, masked or not, was executed; the word is the one that it found.
    Swap(Part),
    /// A FETCH-ADD was executed; the word is the one that it found.
    Add(Part),
    /// The service handled a request of this number of words; the word is the first of them.
    Handled(Part),
    /// A client asked for memory of this number of bytes from an address on.
    Reserved(Addr, u64),
    /// The memory node refused memory of this number of bytes from an address on.
    Refused(Addr, u64),
    /// The reply to a batch reached its client.
    Replied,
    /// A pause ended.
    Resumed,
    /// The client died.
    Died,
    /// The client was stopped for this number of nanoseconds.
    Stalled(u64),
    /// The rest of a batch was delayed by this number of nanoseconds.
    Delayed(u64),
    /// The lane's connection was lost.
    Disconnected,
    /// WRITEs that were executed earlier became visible.
    Visible,
    /// The memory node restarted empty.
    Restarted,
    /// The threads of the service were stopped for this number of nanoseconds.
    ServiceStalled(u64),
    /// The element in front of the node rewrote a verb, which goes to this address now.
    Rewritten(Addr),
    /// The element in front of the node forgot everything.
    ElementReset,
    /// These bits of a word flipped.
    Flipped(Addr, u64),
    /// The rest of a batch was dropped, so that another client can take the slot of the lane's client.
    Fenced,
}

/// The words touched by one step of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The address of the first word.
    pub addr: Addr,
    /// The number of words.
    pub words: u32,
    /// The first word: before an atomic, after a WRITE, or as read by a READ.
    pub word: u64,
}

impl EventKind {
    pub(crate) fn verb(kind: VerbKind, part: Part) -> EventKind {
        match kind {
            VerbKind::Read | VerbKind::SwapAsRead => EventKind::Read(part),
            VerbKind::Write => EventKind::Write(part),
            VerbKind::Swap => EventKind::Swap(part),
            VerbKind::Add => EventKind::Add(part),
            VerbKind::Call => EventKind::Handled(part),
        }
    }

    /// Returns the numbers that are hashed: the code of the kind, and the event's data.
    #[inline(always)]
    fn numbers(&self) -> (u64, u64, u64) {
        match self {
            EventKind::Posted(verbs) => (1, u64::from(*verbs), 0),
            EventKind::Read(part) => part.numbers(2),
            EventKind::Write(part) => part.numbers(3),
            EventKind::Swap(part) => part.numbers(4),
            EventKind::Add(part) => part.numbers(5),
            EventKind::Replied => (6, 0, 0),
            EventKind::Resumed => (7, 0, 0),
            EventKind::Died => (8, 0, 0),
            EventKind::Stalled(for_ns) => (9, *for_ns, 0),
            EventKind::Delayed(by_ns) => (10, *by_ns, 0),
            EventKind::Disconnected => (11, 0, 0),
            EventKind::Visible => (12, 0, 0),
            EventKind::Restarted => (13, 0, 0),
            EventKind::Flipped(addr, bits) => Part { addr: *addr, words: 1, word: *bits }.numbers(14),
            EventKind::Fenced => (15, 0, 0),
            EventKind::Reserved(addr, bytes) => Part { addr: *addr, words: 1, word: *bytes }.numbers(16),
            EventKind::Handled(part) => part.numbers(18),
            EventKind::ServiceStalled(for_ns) => (19, *for_ns, 0),
            EventKind::ElementReset => (20, 0, 0),
            EventKind::Rewritten(addr) => Part { addr: *addr, words: 1, word: 0 }.numbers(21),
            EventKind::Refused(addr, bytes) => Part { addr: *addr, words: 1, word: *bytes }.numbers(17),
        }
    }
}

impl Part {
    #[inline(always)]
    fn numbers(&self, kind: u64) -> (u64, u64, u64) {
        let space = u64::from(self.addr.space() == guira_fabric::Space::Device);
        (kind | u64::from(self.words) << 8, self.addr.offset() << 1 | space, self.word)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client {
            Event::NODE => write!(f, "{:>12} ns  node: ", self.at_ns)?,
            client => write!(f, "{:>12} ns  client {client} lane {}: ", self.at_ns, self.lane)?,
        }
        let mut part = |name: &str, part: &Part| {
            write!(f, "{name} {} words at {}, the first {:#x}", part.words, part.addr, part.word)
        };
        match &self.kind {
            EventKind::Read(read) => part("READ", read),
            EventKind::Write(write) => part("WRITE", write),
            EventKind::Swap(swap) => part("CAS", swap),
            EventKind::Add(add) => part("FETCH-ADD", add),
            other => write!(f, "{other:?}"),
        }
    }
}

/// A function that is called with every event.
pub(crate) type Watcher = Box<dyn FnMut(&Event)>;

/// The hash of all events, the last events, and the watcher.
pub(crate) struct EventLog {
    hash: u64,
    last: VecDeque<Event>,
    keep: usize,
    watcher: Option<Watcher>,
    /// Whether events are kept or watched, and not only hashed.
    is_observed: bool,
}

impl EventLog {
    /// Creates a log that keeps the last `keep` events.
    pub(crate) fn new(keep: usize) -> EventLog {
        let last = VecDeque::with_capacity(keep.min(1 << 16));
        EventLog { hash: 0, last, keep, watcher: None, is_observed: keep > 0 }
    }

    pub(crate) fn watch(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
        self.is_observed = true;
    }

    #[inline(always)]
    pub(crate) fn record(&mut self, event: Event) {
        let (code, first, second) = event.kind.numbers();
        let source = u64::from(event.client) << 32 | u64::from(event.lane);
        for number in [event.at_ns, source, code, first, second] {
            self.hash = (self.hash.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        if self.is_observed {
            self.publish(event);
        }
    }

    fn publish(&mut self, event: Event) {
        if self.keep > 0 {
            if self.last.len() == self.keep {
                self.last.pop_front();
            }
            self.last.push_back(event);
        }
        if let Some(watcher) = &mut self.watcher {
            watcher(&event);
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash ^ self.hash >> 32
    }

    pub(crate) fn last(&self) -> impl Iterator<Item = &Event> {
        self.last.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(events: &[Event]) -> u64 {
        let mut log = EventLog::new(0);
        events.iter().for_each(|event| log.record(*event));
        log.hash()
    }

    #[test]
    fn every_part_of_an_event_counts_and_so_does_the_order() {
        let part = Part { addr: Addr::main(64), words: 2, word: 5 };
        let event = Event { at_ns: 10, client: 1, lane: 2, kind: EventKind::Read(part) };
        let others = [
            Event { at_ns: 11, ..event },
            Event { client: 2, ..event },
            Event { lane: 1, ..event },
            Event { kind: EventKind::Write(part), ..event },
            Event { kind: EventKind::Read(Part { addr: Addr::device(64), ..part }), ..event },
            Event { kind: EventKind::Read(Part { words: 3, ..part }), ..event },
            Event { kind: EventKind::Read(Part { word: 6, ..part }), ..event },
            Event { kind: EventKind::Replied, ..event },
        ];
        for other in others {
            assert_ne!(hash_of(&[event]), hash_of(&[other]), "{other}");
            assert_ne!(hash_of(&[event, other]), hash_of(&[other, event]), "{other}");
        }
    }

    #[test]
    fn the_last_events_are_kept() {
        let mut log = EventLog::new(2);
        for at_ns in 0..5 {
            log.record(Event { at_ns, client: 0, lane: 0, kind: EventKind::Resumed });
        }
        assert_eq!(log.last().map(|event| event.at_ns).collect::<Vec<_>>(), [3, 4]);
    }
}
