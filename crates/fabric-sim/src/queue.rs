//! The event queue, ordered by virtual time, and for equal times by the order of scheduling.
//!
//! Events of the next [`WHEEL_NS`] nanoseconds are on a timing wheel with one list for each nanosecond, so that
//! scheduling and taking an event takes constant time; later events wait in a heap. Invariants: the wheel contains
//! exactly the events earlier than `start_ns` + [`WHEEL_NS`]; `start_ns` is the time of the last event taken. Whenever
//! it grows, events in the heap that fit on the wheel move there, before another can be scheduled at their times: so
//! the lists are in the order of scheduling.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The content of a scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The next verb of this lane arrives, or its reply does.
    Lane(u32),
    /// The pause of this lane ends.
    Pause(u32),
    /// The WRITEs of this lane become visible.
    Late(u32),
    /// This fault of the memory node happens.
    Node(u32),
    /// The job of this thread of the service ends, or its stall.
    Thread(u32),
}

/// The span of the wheel: longer than a round trip on the fastest network, and small enough for the processor's L1
/// cache.
const WHEEL_NS: u64 = 4096;
const GROUPS: usize = WHEEL_NS as usize / 64;
const _: () = assert!(GROUPS == 64, "one word records which groups are in use");
/// The index that marks the end of a list.
const NONE: u32 = u32::MAX;

/// The events of one nanosecond, first to last.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    due: Due,
    next: u32,
}

/// The scheduled events.
#[derive(Debug)]
pub(crate) struct Queue {
    start_ns: u64,
    lists: Vec<List>,
    /// For each group of 64 lists, the set of those that are not empty.
    used: [u64; GROUPS],
    /// The set of groups that have such lists.
    used_groups: u64,
    nodes: Vec<Node>,
    free: u32,
    late: BinaryHeap<Reverse<(u64, u64, Due)>>,
    /// The number of events that were put on the heap.
    sequence: u64,
}

impl Queue {
    pub(crate) fn new() -> Queue {
        Queue {
            start_ns: 0,
            lists: vec![List { first: NONE, last: NONE }; WHEEL_NS as usize],
            used: [0; GROUPS],
            used_groups: 0,
            nodes: Vec::new(),
            free: NONE,
            late: BinaryHeap::new(),
            sequence: 0,
        }
    }

    /// Schedules `due` at `at_ns`, which must not be earlier than the last event taken.
    #[inline(always)]
    pub(crate) fn push(&mut self, at_ns: u64, due: Due) {
        assert!(at_ns >= self.start_ns, "events are scheduled for the future");
        if at_ns - self.start_ns < WHEEL_NS {
            self.append(at_ns, due);
        } else {
            self.sequence += 1;
            self.late.push(Reverse((at_ns, self.sequence, due)));
        }
    }

    #[inline(always)]
    fn append(&mut self, at_ns: u64, due: Due) {
        let node = self.node(due);
        let at = (at_ns % WHEEL_NS) as usize;
        let list = &mut self.lists[at];
        match list.last {
            NONE => list.first = node,
            last => self.nodes[last as usize].next = node,
        }
        list.last = node;
        self.used[at / 64] |= 1 << (at % 64);
        self.used_groups |= 1 << (at / 64);
    }

    #[inline(always)]
    fn node(&mut self, due: Due) -> u32 {
        let node = Node { due, next: NONE };
        match self.free {
            NONE => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
            free => {
                self.free = self.nodes[free as usize].next;
                self.nodes[free as usize] = node;
                free
            }
        }
    }

    /// Returns the time of the next event.
    #[inline(always)]
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let from = (self.start_ns % WHEEL_NS) as usize;
        let Some(at) = self.first_used(from) else {
            return self.late.peek().map(|Reverse((at_ns, _, _))| *at_ns);
        };
        Some(self.start_ns + (at + WHEEL_NS as usize - from) as u64 % WHEEL_NS)
    }

    /// Returns the first non-empty list, from `from` on and wrapping around.
    #[inline(always)]
    fn first_used(&self, from: usize) -> Option<usize> {
        let here = self.used[from / 64] >> (from % 64);
        if here != 0 {
            return Some(from + here.trailing_zeros() as usize);
        }
        if self.used_groups == 0 {
            return None;
        }
        // The group of `from` comes last: only its lists before `from` can be in use.
        let after = (from / 64 + 1) % GROUPS;
        let group = (after + self.used_groups.rotate_right(after as u32).trailing_zeros() as usize) % GROUPS;
        Some(group * 64 + self.used[group].trailing_zeros() as usize)
    }

    /// Takes the next event, if it is not later than `end_ns`, and returns it with its time.
    #[inline(always)]
    pub(crate) fn pop_until(&mut self, end_ns: u64) -> Option<(u64, Due)> {
        let at_ns = self.next_ns().filter(|at_ns| *at_ns <= end_ns)?;
        self.start_ns = at_ns;
        while let Some(Reverse((late_ns, _, due))) = self.late.peek().copied()
            && late_ns - at_ns < WHEEL_NS
        {
            self.late.pop();
            self.append(late_ns, due);
        }
        let at = (at_ns % WHEEL_NS) as usize;
        let first = self.lists[at].first;
        let Node { due, next } = self.nodes[first as usize];
        self.nodes[first as usize].next = self.free;
        self.free = first;
        self.lists[at].first = next;
        if next == NONE {
            self.lists[at].last = NONE;
            self.used[at / 64] &= !(1 << (at % 64));
            self.used_groups &= !(u64::from(self.used[at / 64] == 0) << (at / 64));
        }
        Some((at_ns, due))
    }

    /// Returns the content of the next event, if it is on the wheel.
    #[inline(always)]
    pub(crate) fn upcoming(&self) -> Option<Due> {
        let at = self.first_used((self.start_ns % WHEEL_NS) as usize)?;
        Some(self.nodes[self.lists[at].first as usize].due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Draws;

    #[test]
    fn events_come_by_time_and_then_as_they_were_scheduled() {
        let mut queue = Queue::new();
        let scheduled = [(5, Due::Lane(9)), (3, Due::Pause(77)), (5, Due::Pause(1)), (5, Due::Lane(0))];
        scheduled.iter().for_each(|(at_ns, due)| queue.push(*at_ns, *due));
        assert_eq!(queue.next_ns(), Some(3));
        let came: Vec<_> = std::iter::from_fn(|| queue.pop_until(u64::MAX)).collect();
        assert_eq!(came, [scheduled[1], scheduled[0], scheduled[2], scheduled[3]]);
    }

    /// A queue with events at near, equal and far times agrees with sorting.
    #[test]
    fn the_wheel_and_the_heap_together_are_one_queue() {
        for seed in 0..50 {
            let (mut queue, mut sorted, mut draws) =
                (Queue::new(), std::collections::BTreeMap::new(), Draws::new(seed));
            let (mut now_ns, mut serial) = (0, 0u32);
            for _ in 0..20_000 {
                if draws.below(100) < 52 {
                    let span = [1, 3, 64, 4095, 4096, 4097, 100_000][draws.below(7) as usize];
                    let at_ns = now_ns + draws.below(span + 1);
                    queue.push(at_ns, Due::Lane(serial));
                    sorted.insert((at_ns, serial), ());
                    serial += 1;
                } else {
                    let expected = sorted.pop_first().map(|((at_ns, serial), ())| (at_ns, Due::Lane(serial)));
                    assert_eq!(queue.next_ns(), expected.map(|(at_ns, _)| at_ns), "seed {seed}");
                    assert_eq!(queue.pop_until(u64::MAX), expected, "seed {seed}");
                    now_ns = expected.map_or(now_ns, |(at_ns, _)| at_ns);
                }
            }
            assert!(sorted.len() > 10, "seed {seed}");
        }
    }
}
