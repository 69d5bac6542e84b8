//! A local queue in front of the locks of a table behind a memory node, for the clients of this process.
//!
//! A client that finds a remote lock taken can only ask again. Each attempt costs a round trip, and work on both
//! machines; where hundreds of clients want one lock, their attempts delay the holder's release. So one client of a
//! process asks at a time, and the others wait here, in order of arrival: a local queue in front of a remote lock, as
//! in Sherman (Wang, Lu, Shu: SIGMOD 2022). [R-LOCK-4]
//!
//! Blind writes of one key need not all be carried out: when the change of the client with the permit is done, the
//! writes that waited when it began are completed as if they had come right before it. No client saw their values, and
//! none could have: SMART combines writes in this way (Luo et al.: OSDI 2023). [R-LOCK-8]
//!
//! Invariants: dropping a [`Permit`] or a [`Ticket`] leaves the queue. A permit is a hint: the locks of the table are
//! what isolates changes. So a client that has waited for [`STALL_TIMEOUT`] while no permit was given back goes on
//! without one, and a permit holder that is stopped, slow or waiting for another process's lock delays the others for
//! no longer. No client waits here while it holds a lock, or while its session is lost. A queued request has changed
//! nothing: until it is combined, it may leave at any time and be carried out by itself.

mod combine;
mod queue;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use guira_fabric::Lane;
use guira_fabric::process::Process;
use guira_rcuckoo::Outcome;

use crate::fabric::Waiting;
pub(crate) use combine::BlindWrite;
pub(crate) use queue::Request;
use queue::{LockQueue, QueueState, WaiterId};

/// The longest wait in a queue in which no permit is given back: the time of some hundred changes.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Attempts to lock the list of tables, each followed by a yield. The lock is only ever held briefly.
const MAX_YIELDS: usize = 1_000;

/// The identity of a table, as this process reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableName {
    /// The random numbers drawn at its creation: of the table, and of its incarnation.
    pub(crate) drawn: [u64; 2],
    /// The node's name for the memory: it may be a copy.
    pub(crate) memory: [u64; 2],
    /// The node's address: another node may serve a copy.
    pub(crate) peer: SocketAddr,
}

/// The lock queue of one table, which all clients of this process share.
#[derive(Debug)]
pub(crate) struct SharedLockQueue {
    /// The process that made it. In a forked child nothing is locked or waited for: the threads that would end the wait
    /// do not exist there.
    process: Option<Process>,
    queue: Mutex<LockQueue>,
}

/// The queue of a table, as long as a client uses it.
struct RegisteredQueue {
    table: TableName,
    queue: Weak<SharedLockQueue>,
}

/// The result of a request for a permit.
pub(crate) enum Admission {
    Permit(Permit),
    /// Another client is ahead.
    Queued(Ticket),
    /// This is a forked child: the queue is its parent's.
    Forked,
}

/// The permission to take the locks of a key. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Permit(Ticket);

/// A request in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    queue: Arc<SharedLockQueue>,
    id: WaiterId,
}

/// The end of a wait in the queue.
#[derive(Debug)]
pub(crate) enum WaitResult {
    Permit(Permit),
    /// Another client's change came right after this one and overwrote it: this one's outcome.
    Combined(Outcome),
    /// The time is over, or this is a forked child.
    NoPermit,
}

/// The bounds of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits {
    /// Time in which no permit is given back.
    pub(crate) stall: Duration,
    /// Time in all.
    pub(crate) total: Duration,
}

impl SharedLockQueue {
    /// Returns the queue of a table, which all clients of this process share, whichever store they come from. A forked
    /// child has queues of its own: the threads that waited in its parent's do not exist in it.
    pub(crate) fn of(table: TableName) -> Arc<SharedLockQueue> {
        static TABLES: Mutex<Vec<RegisteredQueue>> = Mutex::new(Vec::new());
        let queue = Arc::new(SharedLockQueue::new());
        // In a process that was forked while a thread had it locked, the list stays locked: it does without.
        for _ in 0..MAX_YIELDS {
            match TABLES.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                Err(TryLockError::Poisoned(_)) => break,
                Ok(mut tables) => {
                    tables.retain(|known| known.queue.upgrade().is_some_and(|queue| queue.is_own()));
                    let known = tables.iter().find(|known| known.table == table);
                    if let Some(queue) = known.and_then(|known| known.queue.upgrade()) {
                        return queue;
                    }
                    tables.push(RegisteredQueue { table, queue: Arc::downgrade(&queue) });
                    break;
                }
            }
        }
        queue
    }

    fn new() -> SharedLockQueue {
        SharedLockQueue { process: Process::current().ok(), queue: Mutex::default() }
    }

    /// Whether this process made the queue.
    fn is_own(&self) -> bool {
        self.process.is_none_or(Process::is_this)
    }

    /// Requests the permit to take the locks that a change needs.
    pub(crate) fn request(self: &Arc<Self>, request: Request<'_>) -> Admission {
        if !self.is_own() {
            return Admission::Forked;
        }
        let mut queue = self.lock();
        let id = queue.join(request);
        let state = queue.poll(id, &mut None);
        drop(queue);
        let ticket = Ticket { queue: Arc::clone(self), id };
        if state == QueueState::Permitted { Admission::Permit(Permit(ticket)) } else { Admission::Queued(ticket) }
    }

    /// Locks the queue. No panic leaves it half changed.
    fn lock(&self) -> MutexGuard<'_, LockQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Completes the blind writes that waited when this change began, as if they had come right before it. `outcome` is
    /// what this change did; returns the outcome it has as the last of them. [R-LOCK-8]
    pub(crate) fn combine_waiting(&self, outcome: Outcome) -> Outcome {
        let Ticket { queue, id } = &self.0;
        if !queue.is_own() {
            return outcome;
        }
        let mut wakers = Vec::new();
        let outcome = queue.lock().combine(*id, outcome, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        outcome
    }
}

impl Ticket {
    /// Waits for the permit, or to be combined. No round trip.
    pub(crate) async fn wait(self, limits: WaitLimits, waiting: Waiting, lane: &mut dyn Lane) -> WaitResult {
        let begun = Instant::now();
        let mut before = self.poll(None);
        loop {
            let left = limits.total.saturating_sub(begun.elapsed());
            let interval = limits.stall.min(left);
            let state = match waiting {
                Waiting::InPlace => self.park(Instant::now() + interval),
                Waiting::Cooperative => self.pause(interval, lane).await,
            };
            let is_moving = matches!(state, QueueState::Waiting { .. }) && state != before && interval < left;
            if !is_moving {
                return self.finish();
            }
            before = state;
        }
    }

    /// Ends the wait with what the request has by now; without a permit it leaves the queue.
    fn finish(self) -> WaitResult {
        if !self.queue.is_own() {
            return WaitResult::NoPermit;
        }
        match self.give_up() {
            QueueState::Permitted => WaitResult::Permit(Permit(self)),
            QueueState::Combined(outcome) => WaitResult::Combined(outcome),
            QueueState::Waiting { .. } | QueueState::Forked => WaitResult::NoPermit,
        }
    }

    /// Begins the change, if the request has the permit; leaves the queue if it still waits.
    fn give_up(&self) -> QueueState {
        let mut wakers = Vec::new();
        let mut queue = self.queue.lock();
        let state = queue.give_up(self.id, &mut wakers);
        if state == QueueState::Permitted {
            queue.begin(self.id);
        }
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
        state
    }

    fn poll(&self, mut waker: Option<Waker>) -> QueueState {
        if !self.queue.is_own() {
            return QueueState::Forked;
        }
        // The waker that was kept before is dropped when the queue is unlocked.
        self.queue.lock().poll(self.id, &mut waker)
    }

    /// Parks the thread until the state changes, or until `until`, and returns the state.
    fn park(&self, until: Instant) -> QueueState {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            let state = self.poll(Some(waker.clone()));
            let left = until.saturating_duration_since(Instant::now());
            if !matches!(state, QueueState::Waiting { .. }) || left.is_zero() {
                return state;
            }
            std::thread::park_timeout(left);
        }
    }

    /// Suspends the task until the state changes, for `interval` at most, and returns the state.
    async fn pause(&self, interval: Duration, lane: &mut dyn Lane) -> QueueState {
        let until_ns = lane.now_ns() + interval.as_nanos() as u64;
        let mut poll_change = |cx: &mut Context<'_>| {
            let state = self.poll(Some(cx.waker().clone()));
            match (state, lane.poll_pause(until_ns, cx)) {
                (QueueState::Waiting { .. }, Poll::Pending) => Poll::Pending,
                (_, pause) => {
                    if pause.is_pending() {
                        // Ends the pause.
                        let _ = lane.poll_pause(0, cx);
                    }
                    Poll::Ready(state)
                }
            }
        };
        poll_fn(&mut poll_change).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.queue.is_own() {
            return;
        }
        let mut wakers = Vec::new();
        self.queue.lock().leave(self.id, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
