//! The members of a pool and the queue of waiters, in order of arrival. Nothing here waits, wakes or closes: the caller
//! does. Nor is a waker cloned or dropped here: that may end a task, and drop what the task holds of the same pool, so
//! the caller does it when nothing is locked.
//!
//! Invariants: while a waiter exists, no member is idle, at least one is open or being opened, and another one may be
//! opened only [`RETRY`] after a right was retired; a waiter that was granted something waits no more; a member, or the
//! right to open one, is in one place: idle, granted, or with a holder.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The time for which nobody tries to open one more member, while others wait, after there was no client slot for one:
/// each attempt reads all slots.
const RETRY: Duration = Duration::from_secs(1);

/// The number of a waiter. Numbers grow in order of arrival.
pub(super) type Number = u64;

/// The grant of a member of the pool.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Grant<T> {
    /// An open member.
    Member(T),
    /// The right to open a new one.
    MayOpen,
}

/// The members of a pool, and its waiters.
#[derive(Debug)]
pub(super) struct Queue<T> {
    max: usize,
    /// Members, and granted rights to open one.
    open: usize,
    idle: Vec<T>,
    waiting: BTreeMap<Number, Waker>,
    /// Grants that their waiters have not claimed yet.
    granted: HashMap<Number, Grant<T>>,
    next: Number,
    /// The time from which on one more member may be opened while others wait, after there was no client slot for one.
    retry_at: Option<Instant>,
}

impl<T> Queue<T> {
    /// Creates a pool of at most `max` members, none of which is open.
    pub(super) fn new(max: usize) -> Queue<T> {
        let (waiting, granted) = (BTreeMap::new(), HashMap::new());
        Queue { max, open: 0, idle: Vec::new(), waiting, granted, next: 0, retry_at: None }
    }

    /// Takes the member that was used last, or the right to open another one. `None` if the caller has to wait.
    pub(super) fn take(&mut self) -> Option<Grant<T>> {
        if let Some(member) = self.idle.pop() {
            return Some(Grant::Member(member));
        }
        let (now, has_refused) = (Instant::now(), self.retry_at.is_some());
        let may_try = self.waiting.is_empty() || self.retry_at.is_none_or(|at| now >= at);
        (self.open < self.max && may_try).then(|| {
            self.open += 1;
            self.retry_at = has_refused.then_some(now + RETRY);
            Grant::MayOpen
        })
    }

    /// Gives up a right to open a member without passing it on: there is no client slot for one. Returns false if no
    /// other member is open or being opened: then nobody will give one back, and the caller keeps the right.
    pub(super) fn retire_right(&mut self) -> bool {
        let has_others = self.open > 1;
        self.open -= usize::from(has_others);
        self.retry_at = Some(Instant::now() + RETRY);
        has_others
    }

    /// Takes an idle member, which stays counted as open.
    pub(super) fn take_idle(&mut self) -> Option<T> {
        self.idle.pop()
    }

    /// Adds a waiter.
    pub(super) fn join(&mut self, waker: Waker) -> Number {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, waker);
        number
    }

    /// Returns the grant of `number`, if there is one; otherwise it keeps waiting, and its waker is exchanged with
    /// `waker`.
    pub(super) fn claim(&mut self, number: Number, waker: &mut Waker) -> Option<Grant<T>> {
        if let Some(known) = self.waiting.get_mut(&number) {
            std::mem::swap(known, waker);
            return None;
        }
        self.granted.remove(&number)
    }

    /// Removes the waiter `number`. If it has a grant, the caller passes it on; otherwise its waker is returned.
    #[must_use]
    pub(super) fn leave(&mut self, number: Number) -> (Option<Grant<T>>, Option<Waker>) {
        (self.granted.remove(&number), self.waiting.remove(&number))
    }

    /// Passes `grant` to the first waiter, whose waker the caller wakes; if there is none, keeps the member, or gives
    /// up the right.
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

    /// Returns the maximum number of members.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of members that are open or being opened.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Returns the number of idle members.
    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Returns the number of waiters.
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

    /// A queue of two members, 1 and 2, both in use.
    fn lent() -> Queue<u32> {
        let mut queue = Queue::new(2);
        assert_eq!((queue.take(), queue.take(), queue.take()), (Some(Grant::MayOpen), Some(Grant::MayOpen), None));
        assert_eq!((queue.max(), queue.open(), queue.idle(), queue.waiting()), (2, 2, 0, 0));
        queue
    }

    #[test]
    fn members_go_to_waiters_in_order() {
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
    fn waiters_that_leave_delay_no_others() {
        let mut queue = lent();
        let [first, second] = [(); 2].map(|()| queue.join(noop()));
        assert!(matches!(queue.leave(first), (None, Some(_))));
        assert!(queue.give(Grant::Member(1)).is_some());
        // Granted, and left before it claimed: the caller passes it on.
        assert!(matches!(queue.leave(second), (Some(Grant::Member(1)), None)));
        assert!(matches!((queue.waiting(), queue.leave(second)), (0, (None, None))));
        let third = queue.join(noop());
        assert!(queue.give(Grant::Member(1)).is_some());
        assert_eq!(claim(&mut queue, third), Some(Grant::Member(1)));
    }

    #[test]
    fn a_closed_member_makes_room_for_another() {
        let mut queue = lent();
        let first = queue.join(noop());
        assert!(queue.give(Grant::MayOpen).is_some());
        assert_eq!((claim(&mut queue, first), queue.open()), (Some(Grant::MayOpen), 2));
        assert!(queue.give(Grant::MayOpen).is_none());
        assert_eq!((queue.open(), queue.take(), queue.take()), (1, Some(Grant::MayOpen), None));
    }

    #[test]
    fn the_last_right_is_not_retired() {
        let mut queue = lent();
        assert_eq!((queue.retire_right(), queue.retire_right(), queue.open()), (true, false, 1));
        let waiting = queue.join(noop());
        // Those who come later wait, except for one that tries to open one.
        queue.retry_at = Some(Instant::now() + Duration::from_secs(3_600));
        assert_eq!(queue.take(), None);
        queue.retry_at = Some(Instant::now());
        assert_eq!((queue.take(), queue.retire_right()), (Some(Grant::MayOpen), true));
        assert!(queue.give(Grant::MayOpen).is_some());
        assert_eq!((claim(&mut queue, waiting), queue.retire_right()), (Some(Grant::MayOpen), false));
    }
}
