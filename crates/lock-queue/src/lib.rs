//! A local queue in front of the locks of a table behind a memory node, for the clients of one process or of one
//! simulated host.
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
//! what isolates changes. So a client that has waited for [`STALL_TIMEOUT_NS`] while no permit was given back goes on
//! without one, and a permit holder that is stopped, slow or waiting for another process's lock delays the others for
//! no longer. No client waits here while it holds a lock, or while its session is lost. A queued request has changed
//! nothing: until it is combined, it may leave at any time and be carried out by itself. Time is that of the waiting
//! client's lane: nothing here reads a clock.

#![forbid(unsafe_code)]

mod combine;
mod queue;
mod registry;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use guira_fabric::Lane;
use guira_fabric::process::Process;
use guira_rcuckoo::{Client, Outcome};

pub use combine::BlindWrite;
pub use queue::Request;
use queue::{LockQueue, QueueState, WaiterId};
pub use registry::TableName;

/// The longest wait in a queue in which no permit is given back, in nanoseconds: the time of some hundred changes.
pub const STALL_TIMEOUT_NS: u64 = 1_000_000_000;

/// The lock queue of one table, which its clients in one process share, or those of one simulated host.
#[derive(Debug, Default)]
pub struct SharedLockQueue {
    /// The process that made it, if it may be forked. In a forked child nothing is locked or waited for: the threads
    /// that would end the wait do not exist there.
    process: Option<Process>,
    queue: Mutex<LockQueue>,
}

/// The result of a request for a permit.
#[derive(Debug)]
pub enum Admission {
    /// No other client is ahead.
    Permit(Permit),
    /// Another client is ahead.
    Queued(Ticket),
    /// This is a forked child: the queue is its parent's.
    Forked,
}

/// The permission to take the locks of a key. Dropping it passes it on.
#[derive(Debug)]
pub struct Permit(Ticket);

/// A request in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub struct Ticket {
    queue: Arc<SharedLockQueue>,
    id: WaiterId,
}

/// The end of a wait in the queue.
#[derive(Debug)]
pub enum WaitResult {
    /// The permission to take the locks.
    Permit(Permit),
    /// Another client's change came right after this one and overwrote it: this one's outcome.
    Combined(Outcome),
    /// The time is over, or this is a forked child.
    NoPermit,
}

/// The way in which a client waits in the queue, and the bounds of its wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The way.
    pub mode: WaitMode,
    /// The longest time in which no permit is given back, in nanoseconds of the lane's clock.
    pub stall_ns: u64,
    /// The longest time in all, in nanoseconds of the lane's clock.
    pub total_ns: u64,
}

/// The ways to wait in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// The thread is parked: nothing else runs on it.
    Park,
    /// The task is suspended, and the lane's clock wakes it at the limit.
    Suspend,
}

impl Wait {
    /// Returns the bounds for an operation whose deadline is `deadline_ns` nanoseconds away.
    pub const fn within(deadline_ns: u64, mode: WaitMode) -> Wait {
        let stall_ns = if deadline_ns < STALL_TIMEOUT_NS { deadline_ns } else { STALL_TIMEOUT_NS };
        Wait { mode, stall_ns, total_ns: deadline_ns }
    }
}

impl SharedLockQueue {
    /// Creates a queue for clients that are not in a forked child of this process: those of a simulation.
    pub fn new() -> SharedLockQueue {
        SharedLockQueue::default()
    }

    fn of_this_process() -> SharedLockQueue {
        SharedLockQueue { process: Process::current().ok(), queue: Mutex::default() }
    }

    /// Whether this process made the queue.
    fn is_own(&self) -> bool {
        self.process.is_none_or(Process::is_this)
    }

    /// Requests the permit to take the locks that a change of `client` needs, and waits for it within `wait`. The time
    /// counts as waiting for the locks, which the change's deadline bounds. The client must hold no lock, and its
    /// session must not be lost: other clients would wait for that behind this one. [R-LOCK-4]
    #[inline(always)]
    pub async fn permit(
        self: &Arc<Self>,
        request: Request<'_>,
        wait: Wait,
        client: &mut Client,
        lane: &mut dyn Lane,
    ) -> WaitResult {
        match self.request(request) {
            Admission::Permit(permit) => WaitResult::Permit(permit),
            Admission::Forked => WaitResult::NoPermit,
            // Boxed: it is rare, and larger than the rest of a change's future.
            Admission::Queued(ticket) => Box::pin(ticket.wait_for(client, wait, lane)).await,
        }
    }

    /// Requests the permit to take the locks that a change needs.
    pub fn request(self: &Arc<Self>, request: Request<'_>) -> Admission {
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
    /// what this change did; returns the outcome it has as the last of them. A change that is no blind write combines
    /// none. [R-LOCK-8]
    pub fn combine_waiting(&self, outcome: Outcome) -> Outcome {
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
    /// Waits in the queue, and counts the wait as one of `client`. [R-LOCK-4]
    #[cold]
    async fn wait_for(self, client: &mut Client, wait: Wait, lane: &mut dyn Lane) -> WaitResult {
        let since_ns = lane.now_ns();
        let result = self.wait(wait, lane).await;
        match result {
            WaitResult::Combined(_) => client.count_combined(),
            WaitResult::Permit(_) | WaitResult::NoPermit => client.count_queue_wait(since_ns),
        }
        result
    }

    /// Waits for the permit, or to be combined. No round trip.
    pub async fn wait(self, wait: Wait, lane: &mut dyn Lane) -> WaitResult {
        let begun_ns = lane.now_ns();
        let mut before = self.poll(None);
        loop {
            let now_ns = lane.now_ns();
            let left_ns = wait.total_ns.saturating_sub(now_ns.saturating_sub(begun_ns));
            let interval_ns = wait.stall_ns.min(left_ns);
            let until_ns = now_ns.saturating_add(interval_ns);
            let state = match wait.mode {
                WaitMode::Park => self.park(until_ns, lane),
                WaitMode::Suspend => self.pause(until_ns, lane).await,
            };
            let is_moving = matches!(state, QueueState::Waiting { .. }) && state != before && interval_ns < left_ns;
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

    /// Parks the thread until the state changes, or until `until_ns`, and returns the state.
    fn park(&self, until_ns: u64, lane: &mut dyn Lane) -> QueueState {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            let state = self.poll(Some(waker.clone()));
            let left_ns = until_ns.saturating_sub(lane.now_ns());
            if !matches!(state, QueueState::Waiting { .. }) || left_ns == 0 {
                return state;
            }
            std::thread::park_timeout(Duration::from_nanos(left_ns));
        }
    }

    /// Suspends the task until the state changes, or until `until_ns`, and returns the state.
    async fn pause(&self, until_ns: u64, lane: &mut dyn Lane) -> QueueState {
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
