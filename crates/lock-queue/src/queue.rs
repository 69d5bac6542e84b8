//! The queue of requests for locks, in order of arrival. Nothing here waits or wakes: the caller does.
//!
//! Invariants: a request joins the queues of all its locks at once, behind every request that wants one of them, so
//! requests never wait for each other in a circle. A request that is first in all its queues has the permit. A request
//! that was combined with another one is in no queue.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use guira_rcuckoo::{Key, Outcome, Table};

use super::combine::{BlindWrite, WriteCombiner};

/// Empty queues that are kept for reuse.
const MAX_SPARE: usize = 1_024;
/// Bytes of capacity that a free entry keeps for the next key.
const KEPT_KEY_BYTES: usize = 256;

/// A request to change a key.
#[derive(Clone, Copy, Debug)]
pub struct Request<'k> {
    /// The key.
    pub key: &'k [u8],
    /// The locks that guard its rows; the same one twice, if one guards both.
    pub locks: [u64; 2],
    /// The kind of blind write, if the change is one.
    pub blind_write: Option<BlindWrite>,
}

impl<'k> Request<'k> {
    /// Returns the request for a change of `key` in `table`.
    #[inline(always)]
    pub fn of(table: &Table, key: &Key<'k>, blind_write: Option<BlindWrite>) -> Request<'k> {
        let rows = key.rows();
        let locks = [rows.first, rows.second].map(|row| table.locks().lock_of(row).0);
        Request { key: key.bytes(), locks, blind_write }
    }
}

/// Each of a key's locks, once.
fn distinct(locks: [u64; 2]) -> impl Iterator<Item = u64> {
    let [first, second] = locks;
    std::iter::once(first).chain((first != second).then_some(second))
}

/// The index of a [`Waiter`].
pub(crate) type WaiterId = u32;

/// The queues for all locks of one table.
#[derive(Debug, Default)]
pub(crate) struct LockQueue {
    by_lock: HashMap<u64, Waiters, BuildHasherDefault<LockHasher>>,
    waiters: Vec<Waiter>,
    free: Vec<WaiterId>,
    spare: Vec<Waiters>,
}

/// The requests for one lock. The first has the permit once it is first for its other lock, too.
#[derive(Debug, Default)]
struct Waiters {
    queue: VecDeque<WaiterId>,
    /// Permits that were given back.
    releases: u64,
}

/// A request, and its state in the queue.
#[derive(Debug, Default)]
struct Waiter {
    locks: [u64; 2],
    blind_write: Option<BlindWrite>,
    /// Its key, if it is a blind write that has to wait: two keys can have the same digest, but writes are combined
    /// for one key only.
    key: Vec<u8>,
    is_queued: bool,
    /// Queues in which another request is ahead of it.
    blocked_in: u32,
    /// The request it can be combined with, whose change began while it waited.
    leader: Option<WaiterId>,
    combined: Option<Outcome>,
    waker: Option<Waker>,
}

/// The state of a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueState {
    /// It has the permit.
    Permitted,
    /// It was combined with another request, and this is its outcome.
    Combined(Outcome),
    /// It waits behind others; `releases` permits were given back in its queues so far.
    Waiting { releases: u64 },
    /// The queue belongs to the process that this one was forked from.
    Forked,
}

impl LockQueue {
    /// Adds a request to the queues of its locks.
    pub(crate) fn join(&mut self, request: Request<'_>) -> WaiterId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.waiters.push(Waiter::default());
            self.waiters.len() as WaiterId - 1
        });
        let mut blocked_in = 0;
        for lock in distinct(request.locks) {
            let waiters = match self.by_lock.entry(lock) {
                Entry::Occupied(waiters) => waiters.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(self.spare.pop().unwrap_or_default()),
            };
            blocked_in += u32::from(!waiters.queue.is_empty());
            waiters.queue.push_back(id);
        }
        let waiter = &mut self.waiters[id as usize];
        let mut key = std::mem::take(&mut waiter.key);
        let Request { locks, blind_write, .. } = request;
        if blocked_in > 0 && blind_write.is_some() {
            key.extend_from_slice(request.key);
        }
        *waiter = Waiter { locks, blind_write, key, is_queued: true, blocked_in, ..Waiter::default() };
        id
    }

    /// Returns the state of `id`. If it waits, its waker is exchanged with `waker`, to be woken when the state changes.
    pub(crate) fn poll(&mut self, id: WaiterId, waker: &mut Option<Waker>) -> QueueState {
        let state = self.state(id);
        if let QueueState::Waiting { .. } = state {
            std::mem::swap(&mut self.waiters[id as usize].waker, waker);
        }
        state
    }

    fn state(&self, id: WaiterId) -> QueueState {
        let waiter = &self.waiters[id as usize];
        match (waiter.combined, waiter.blocked_in) {
            (Some(outcome), _) => QueueState::Combined(outcome),
            (None, 0) => QueueState::Permitted,
            (None, _) => {
                let queues = distinct(waiter.locks).filter_map(|lock| self.by_lock.get(&lock));
                QueueState::Waiting { releases: queues.map(|waiters| waiters.releases).sum() }
            }
        }
    }

    /// Returns the state of `id`, which stops waiting: if it is still behind others, it leaves its queues, and is not
    /// combined any more.
    pub(crate) fn give_up(&mut self, id: WaiterId, wakers: &mut Vec<Waker>) -> QueueState {
        let state = self.state(id);
        if matches!(state, QueueState::Waiting { .. }) {
            self.dequeue(id, wakers);
        }
        state
    }

    /// Begins the change of `id`, which has the permit: the blind writes of the same key that wait now can be combined
    /// with it.
    pub(crate) fn begin(&mut self, id: WaiterId) {
        let waiter = &self.waiters[id as usize];
        let (Some(waiters), Some(_)) = (self.by_lock.get(&waiter.locks[0]), waiter.blind_write) else { return };
        let key = std::mem::take(&mut self.waiters[id as usize].key);
        for other in waiters.queue.iter().filter(|other| **other != id) {
            let other = &mut self.waiters[*other as usize];
            if other.blind_write.is_some() && other.key == key {
                other.leader = Some(id);
            }
        }
        self.waiters[id as usize].key = key;
    }

    /// Completes the blind writes that waited when `id` began, as combined with it, and adds their wakers to `wakers`.
    /// `outcome` is what the change of `id` did; returns the outcome it has as the last of them.
    pub(crate) fn combine(&mut self, id: WaiterId, outcome: Outcome, wakers: &mut Vec<Waker>) -> Outcome {
        if self.waiters[id as usize].blind_write.is_none() {
            return outcome;
        }
        let mut combiner = WriteCombiner::new(outcome);
        for lock in distinct(self.waiters[id as usize].locks) {
            let Some(waiters) = self.by_lock.get_mut(&lock) else { continue };
            waiters.queue.retain(|other| {
                let waiter = &mut self.waiters[*other as usize];
                if waiter.combined.is_none() && waiter.leader == Some(id) && *other != id {
                    // Requests for one key are in the same queues, in the same order.
                    waiter.combined = waiter.blind_write.and_then(|write| combiner.combine(write));
                    waiter.is_queued = waiter.combined.is_none();
                    wakers.extend(waiter.combined.and_then(|_| waiter.waker.take()));
                }
                waiter.is_queued
            });
        }
        combiner.leader_outcome()
    }

    /// Removes `id` from its queues, if it is in them, and frees its entry. Adds the wakers of those that have the
    /// permit now to `wakers`, and its own.
    pub(crate) fn leave(&mut self, id: WaiterId, wakers: &mut Vec<Waker>) {
        if self.waiters[id as usize].is_queued {
            self.dequeue(id, wakers);
        }
        let waiter = &mut self.waiters[id as usize];
        waiter.key.clear();
        waiter.key.shrink_to(KEPT_KEY_BYTES);
        self.free.push(id);
    }

    fn dequeue(&mut self, id: WaiterId, wakers: &mut Vec<Waker>) {
        let waiter = &mut self.waiters[id as usize];
        waiter.is_queued = false;
        // The caller drops it, when nothing is locked: dropping a waker can run any code.
        wakers.extend(waiter.waker.take());
        let had_permit = waiter.blocked_in == 0;
        for lock in distinct(waiter.locks) {
            let Entry::Occupied(mut waiters) = self.by_lock.entry(lock) else { continue };
            let Waiters { queue, releases } = waiters.get_mut();
            *releases += u64::from(had_permit);
            let was_first = queue.front() == Some(&id);
            if was_first {
                queue.pop_front();
            } else {
                queue.retain(|other| *other != id);
            }
            match queue.front() {
                Some(next) if was_first => {
                    let next = &mut self.waiters[*next as usize];
                    next.blocked_in -= 1;
                    wakers.extend(if next.blocked_in == 0 { next.waker.take() } else { None });
                }
                Some(_) => {}
                None => {
                    let waiters = waiters.remove();
                    if self.spare.len() < MAX_SPARE {
                        self.spare.push(Waiters { releases: 0, ..waiters });
                    }
                }
            }
        }
    }

    /// Whether all queues are empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_lock.is_empty() && self.free.len() == self.waiters.len()
    }
}

/// A hasher of lock numbers, which may be consecutive.
#[derive(Default)]
pub(crate) struct LockHasher(u64);

impl Hasher for LockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The odd number next to 2^64 divided by the golden ratio.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}
