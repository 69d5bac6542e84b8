//! The members of a pool and those who wait for one, in the order of coming. Nothing here waits, wakes or closes: the
//! caller does. Nor is a waker cloned or dropped here, which may end a task, and with it what the task holds of the
//! same pool: the caller does it when nothing is locked.
//!
//! Invariants: as long as somebody waits, no member is idle and no other one may be opened; who was granted something
//! waits no more; a member or the right to open one is in one place: idle, granted, or with somebody.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

/// Who waits: numbers grow in the order of coming.
pub(super) type Number = u64;

/// A turn with a member of the pool.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Grant<T> {
    /// This one.
    Member(T),
    /// A new one, which whoever is granted this opens.
    MayOpen,
}

/// The members of a pool, and those who wait for one.
#[derive(Debug)]
pub(super) struct Queue<T> {
    max: usize,
    /// Members, and rights to open one that were granted.
    open: usize,
    idle: Vec<T>,
    waiting: BTreeMap<Number, Waker>,
    /// What was granted to those who have not come for it yet.
    granted: HashMap<Number, Grant<T>>,
    next: Number,
}

impl<T> Queue<T> {
    /// A pool of at most `max` members, none of which is open.
    pub(super) fn new(max: usize) -> Queue<T> {
        Queue { max, open: 0, idle: Vec::new(), waiting: BTreeMap::new(), granted: HashMap::new(), next: 0 }
    }

    /// The member that was used last, or the right to open another one. `None` if the caller has to wait.
    pub(super) fn take(&mut self) -> Option<Grant<T>> {
        if let Some(member) = self.idle.pop() {
            return Some(Grant::Member(member));
        }
        (self.open < self.max).then(|| {
            self.open += 1;
            Grant::MayOpen
        })
    }

    /// A member that nobody has; its place stays taken.
    pub(super) fn take_idle(&mut self) -> Option<T> {
        self.idle.pop()
    }

    /// Joins those who wait.
    pub(super) fn join(&mut self, waker: Waker) -> Number {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, waker);
        number
    }

    /// What was granted to `number`, which otherwise goes on waiting, with this waker; gives back the one before.
    pub(super) fn claim(&mut self, number: Number, waker: &mut Waker) -> Option<Grant<T>> {
        if let Some(known) = self.waiting.get_mut(&number) {
            std::mem::swap(known, waker);
            return None;
        }
        self.granted.remove(&number)
    }

    /// `number` waits no more. What was granted to it is the caller's to pass on; otherwise there is its waker.
    #[must_use]
    pub(super) fn leave(&mut self, number: Number) -> (Option<Grant<T>>, Option<Waker>) {
        (self.granted.remove(&number), self.waiting.remove(&number))
    }

    /// Grants it to the first who waits, whom the caller wakes; otherwise keeps the member, or gives up the right.
    #[must_use]
    pub(super) fn give(&mut self, grant: Grant<T>) -> Option<Waker> {
        if let Some((number, waker)) = self.waiting.pop_first() {
            self.granted.insert(number, grant);
            return Some(waker);
        }
        match grant {
            Grant::Member(member) => self.idle.push(member),
            Grant::MayOpen => self.open -= 1,
        }
        None
    }

    /// Members there may be.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Members there are, or are being opened.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Members nobody has.
    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noop() -> Waker {
        Waker::noop().clone()
    }

    fn claim(queue: &mut Queue<u32>, number: Number) -> Option<Grant<u32>> {
        queue.claim(number, &mut noop())
    }

    /// A queue of two members, 1 and 2, which are lent.
    fn lent() -> Queue<u32> {
        let mut queue = Queue::new(2);
        assert_eq!((queue.take(), queue.take(), queue.take()), (Some(Grant::MayOpen), Some(Grant::MayOpen), None));
        assert_eq!((queue.max(), queue.open(), queue.idle(), queue.waiting()), (2, 2, 0, 0));
        queue
    }

    #[test]
    fn members_go_to_those_who_wait_in_order() {
        let mut queue = lent();
        let [first, second, third] = [(); 3].map(|()| queue.join(noop()));
        assert!(queue.give(Grant::Member(1)).is_some() && queue.give(Grant::Member(2)).is_some());
        assert_eq!(claim(&mut queue, third), None);
        assert_eq!(
            (claim(&mut queue, second), claim(&mut queue, first)),
            (Some(Grant::Member(2)), Some(Grant::Member(1)))
        );
        assert_eq!((claim(&mut queue, first), queue.waiting()), (None, 1));
        assert!(queue.give(Grant::Member(1)).is_some());
        assert_eq!(claim(&mut queue, third), Some(Grant::Member(1)));
        assert!(queue.give(Grant::Member(1)).is_none() && queue.give(Grant::Member(2)).is_none());
        assert_eq!((queue.idle(), queue.take()), (2, Some(Grant::Member(2))), "the one that was used last");
    }

    #[test]
    fn those_who_leave_hold_nobody_up() {
        let mut queue = lent();
        let [first, second] = [(); 2].map(|()| queue.join(noop()));
        assert!(matches!(queue.leave(first), (None, Some(_))));
        assert!(queue.give(Grant::Member(1)).is_some());
        // Granted, and left before it came for it: the caller passes it on.
        assert!(matches!(queue.leave(second), (Some(Grant::Member(1)), None)));
        assert!(matches!((queue.waiting(), queue.leave(second)), (0, (None, None))));
        let third = queue.join(noop());
        assert!(queue.give(Grant::Member(1)).is_some());
        assert_eq!(claim(&mut queue, third), Some(Grant::Member(1)));
    }

    #[test]
    fn a_member_that_is_closed_makes_room_for_another() {
        let mut queue = lent();
        let first = queue.join(noop());
        assert!(queue.give(Grant::MayOpen).is_some());
        assert_eq!((claim(&mut queue, first), queue.open()), (Some(Grant::MayOpen), 2));
        assert!(queue.give(Grant::MayOpen).is_none());
        assert_eq!((queue.open(), queue.take(), queue.take()), (1, Some(Grant::MayOpen), None));
    }
}
