//! What happens next: events by virtual time, and among equal times by the order in which they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The next verb of this lane arrives, or its reply does.
    Lane(u32),
    /// The pause of this lane ends.
    Pause(u32),
}

/// Events as single numbers: time, sequence, kind, index; so the smallest is the next.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<u128>>,
    sequence: u64,
}

const INDEX_BITS: u32 = 24;
const KIND_BITS: u32 = 3;
const SEQUENCE_BITS: u32 = 64 - INDEX_BITS - KIND_BITS;
/// Lanes and planned faults a simulation can have, each.
pub(crate) const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;

impl Queue {
    /// Schedules `due` at `at_ns`.
    ///
    /// # Panics
    /// After 2^37 events: at 10 million a second, that is four hours.
    #[inline(always)]
    pub(crate) fn push(&mut self, at_ns: u64, due: Due) {
        let (kind, index) = match due {
            Due::Lane(index) => (0, index),
            Due::Pause(index) => (1, index),
        };
        self.sequence += 1;
        assert!(self.sequence >> SEQUENCE_BITS == 0, "a simulation has at most 2^{SEQUENCE_BITS} events");
        let what = (self.sequence << KIND_BITS | kind) << INDEX_BITS | u64::from(index);
        self.heap.push(Reverse(u128::from(at_ns) << 64 | u128::from(what)));
    }

    /// When the next event happens.
    #[inline(always)]
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(event)| (event >> 64) as u64)
    }

    /// The next event and its time.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<(u64, Due)> {
        let Reverse(event) = self.heap.pop()?;
        let what = event as u64;
        let index = what as u32 & MAX_INDEX;
        let due = match what >> INDEX_BITS & ((1 << KIND_BITS) - 1) {
            0 => Due::Lane(index),
            _ => Due::Pause(index),
        };
        Some(((event >> 64) as u64, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_scheduled() {
        let mut queue = Queue::default();
        let scheduled = [(5, Due::Lane(9)), (3, Due::Pause(MAX_INDEX)), (5, Due::Pause(1)), (5, Due::Lane(0))];
        scheduled.iter().for_each(|(at_ns, due)| queue.push(*at_ns, *due));
        assert_eq!(queue.next_ns(), Some(3));
        let came: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(came, [scheduled[1], scheduled[0], scheduled[2], scheduled[3]]);
    }
}
