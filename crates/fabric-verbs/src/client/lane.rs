//! Lanes over a queue pair.
//!
//! Invariants: a lane has at most one batch in flight; an invalid batch is refused before any of it is posted; nothing
//! is allocated for a batch once a lane has sent one as long; every method is refused in a forked child before it takes
//! the connection's lock, which another thread may have held when the process was forked.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread;

use guira_fabric::{Caps, Effect, FabricError, Lane, Submitted, Traffic, Verb, Waiting, clock_ns};
use guira_network::client::Reserving;
use guira_network::wire::Reserve;

use super::buffers::Buffer;
use super::connection::{Inner, User};
use super::parts::Parts;
use super::plan::{self, AtomicResult, Plan, Planned, Requests};
use super::queue::{Results, Stage};

/// Attempts to take a slot for a new lane.
const SLOT_ATTEMPTS: u32 = 16;
/// Fruitless polls of a spinning lane before it gives its processor away at each further one: longer than a round trip
/// of a network card takes. A device in software needs the processor itself.
const SPINS: u32 = 200;

/// A lane of a [`crate::Connection`]. It can move between threads, and keeps the connection open.
pub struct VerbsLane {
    user: Arc<User>,
    waiting: Waiting,
    /// The lane's slot, if one was free.
    slot: Option<usize>,
    /// The parts that the lane knows.
    parts: Arc<Parts>,
    is_in_flight: bool,
    /// The bytes of the main space in no known part, for which the batch in flight waits: nothing of it was posted.
    missing: Option<Range<u64>>,
    /// The request for a part.
    reserving: Option<Reserving>,
    /// Requests of the batch before the last one, whose memory the next batch uses.
    requests: Requests,
    /// The results of the batch's atomics.
    atomics: Vec<AtomicResult>,
    spins: u32,
    traffic: Traffic,
}

impl VerbsLane {
    pub(super) fn new(user: Arc<User>) -> VerbsLane {
        let slot = if user.inner.is_own() { take_slot(&user.inner).ok() } else { None };
        let parts = user.inner.parts();
        VerbsLane {
            user,
            waiting: Waiting::InPlace,
            slot,
            parts,
            is_in_flight: false,
            missing: None,
            reserving: None,
            requests: Requests::default(),
            atomics: Vec::new(),
            spins: 0,
            traffic: Traffic::default(),
        }
    }

    /// Changes the way in which the lane waits. The first lane of a connection that sleeps starts the connection's
    /// thread; if it cannot be started, the lane spins.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> VerbsLane {
        let can_sleep = waiting == Waiting::Cooperative && self.slot.is_some() && self.user.start_driver();
        self.waiting = if can_sleep { Waiting::Cooperative } else { Waiting::InPlace };
        self
    }

    /// Whether this process was forked after it connected.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !self.user.inner.is_own()
    }

    /// Whether the connection is known to be lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.user.is_lost()
    }

    /// Posts or queues the batch, or lets it wait for a part; returns false if it does nothing.
    fn send(&mut self, batch: &[Verb<'_>]) -> Result<bool, FabricError> {
        if !self.user.inner.is_own() {
            return Err(FabricError::Forked);
        }
        if self.is_in_flight {
            return Err(FabricError::Backend("a batch is still in flight on this lane".to_owned()));
        }
        match self.plan(batch)? {
            Planned::Ready(plan) if plan.requests == 0 => Ok(false),
            Planned::Ready(plan) => self.submit_planned(batch, plan).map(|()| true),
            Planned::Missing(bytes) => {
                (self.is_in_flight, self.missing) = (true, Some(bytes));
                Ok(true)
            }
        }
    }

    /// Checks the batch, with the newest parts if it needs them.
    fn plan(&mut self, batch: &[Verb<'_>]) -> Result<Planned, FabricError> {
        let inner = &*self.user.inner;
        match inner.bounds.plan(&self.parts, batch)? {
            Planned::Missing(_) => {
                self.parts = inner.parts();
                inner.bounds.plan(&self.parts, batch)
            }
            ready => Ok(ready),
        }
    }

    fn submit_planned(&mut self, batch: &[Verb<'_>], plan: Plan) -> Result<(), FabricError> {
        let inner = &*self.user.inner;
        let slot = match self.slot {
            Some(slot) => slot,
            // There was none when the lane was made.
            None => *self.slot.insert(take_slot(inner)?),
        };
        let own = Buffer::Lane(slot);
        let buffer = (plan.words <= inner.buffers.lane_words).then_some(own);
        plan::encode(&self.parts, batch, (slot, inner.inline_bytes), &mut self.requests, |word, words| {
            if buffer.is_some() {
                inner.buffers.write(own, word, words);
            }
        });
        self.atomics.clear();
        plan::each_atomic(batch, inner.bounds.masked_order, |atomic| self.atomics.push(atomic));
        let mut queue = inner.queue();
        if queue.lost().is_some() {
            drop(queue);
            return Err(self.user.lost_error(Effect::None));
        }
        queue.submit(slot, plan, &mut self.requests, buffer, |large, moved| {
            copy_writes(batch, |word, words| match large {
                Some(buffer) => inner.buffers.write(buffer, word, words),
                None => moved[word..word + words.len()].copy_from_slice(words),
            });
        });
        queue.advance(&inner.port());
        drop(queue);
        inner.wake();
        (self.is_in_flight, self.spins) = (true, 0);
        Ok(())
    }

    /// Asks the memory node for the parts that have these bytes: 1 round trip on the connection for each MiB.
    fn poll_parts(&mut self, bytes: &Range<u64>, cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        let inner = &self.user.inner;
        let Some(session) = self.user.session.as_ref().filter(|_| inner.is_own()) else {
            let reason = format!("the bytes from {} to {} are not registered", bytes.start, bytes.end);
            return Poll::Ready(Err(if inner.is_own() { FabricError::Backend(reason) } else { FabricError::Forked }));
        };
        let waiting = (session.waiting(), cx);
        Reserving::poll(&mut self.reserving, session.connection(), bytes, waiting, |asked, reply| {
            inner.learn(asked, reply)
        })
    }

    /// Waits for the batch in flight, and calls `take` with a function that copies words of its results.
    fn wait(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&dyn Fn(usize, &mut [u64]), &[AtomicResult]),
    ) -> Poll<Result<(), FabricError>> {
        let (inner, Some(slot)) = (&*self.user.inner, self.slot) else {
            return Poll::Ready(Err(no_batch()));
        };
        if !inner.is_own() {
            return Poll::Ready(Err(FabricError::Forked));
        }
        inner.drain();
        let mut queue = inner.queue();
        match queue.stage(slot) {
            Stage::Done => {
                let results = queue.take_results(slot);
                drop(queue);
                copy_results(inner, &results, &self.atomics, take);
                let mut queue = inner.queue();
                queue.release(slot, results);
                queue.advance(&inner.port());
                drop(queue);
                inner.wake();
                self.is_in_flight = false;
                Poll::Ready(Ok(()))
            }
            Stage::Failed(effect) => {
                queue.clear(slot);
                drop(queue);
                self.is_in_flight = false;
                Poll::Ready(Err(self.user.lost_error(effect)))
            }
            Stage::Idle => Poll::Ready(Err(no_batch())),
            Stage::Waiting | Stage::Posted(_) => {
                if self.waiting == Waiting::Cooperative {
                    let other = queue.register(slot, cx.waker());
                    drop(queue);
                    drop(other);
                    return Poll::Pending;
                }
                drop(queue);
                if self.spins < inner.spins(SPINS) {
                    self.spin(cx);
                } else {
                    inner.lose_if_stalled();
                    if !inner.rest() {
                        thread::yield_now();
                    }
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    fn spin(&mut self, cx: &Context<'_>) {
        self.spins = self.spins.saturating_add(1);
        if self.spins > SPINS {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        cx.waker().wake_by_ref();
    }
}

/// Takes a free slot, or makes more. Batches of dropped lanes may have completed without anybody noticing.
///
/// # Errors
/// There are as many lanes as there may be, or no memory for more can be locked.
fn take_slot(inner: &Inner) -> Result<usize, FabricError> {
    if let Some(free) = inner.queue().take_slot() {
        return Ok(free);
    }
    inner.drain();
    // Another thread may take the slots that this one made.
    for _ in 0..SLOT_ATTEMPTS {
        if let Some(free) = inner.queue().take_slot() {
            return Ok(free);
        }
        inner.add_slots().map_err(|error| FabricError::Backend(format!("no more lanes: {error}")))?;
    }
    Err(FabricError::Backend("other threads have taken all new lanes; nothing was posted".to_owned()))
}

fn no_batch() -> FabricError {
    FabricError::Backend("no batch is in flight on this lane".to_owned())
}

fn copy_results(
    inner: &Inner,
    results: &Results,
    atomics: &[AtomicResult],
    take: impl FnOnce(&dyn Fn(usize, &mut [u64]), &[AtomicResult]),
) {
    match results {
        Results::Buffer(buffer) => take(&|word, into| inner.buffers.read(*buffer, word, into), atomics),
        Results::Moved(words) => {
            take(&|word, into| into.copy_from_slice(&words[word..word + into.len()]), atomics);
        }
    }
}

/// Calls `write` with the word offset in the buffer and the words of each WRITE.
fn copy_writes(batch: &[Verb<'_>], mut write: impl FnMut(usize, &[u64])) {
    let mut word = 0;
    for verb in batch {
        if let Verb::Write { words, .. } = verb {
            write(word, words);
        }
        word += verb.words();
    }
}

impl Lane for VerbsLane {
    #[inline(always)]
    fn caps(&self) -> &Caps {
        &self.user.inner.bounds.caps
    }

    #[inline(always)]
    fn is_local(&self) -> bool {
        false
    }

    #[inline(always)]
    fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    #[inline(always)]
    fn traffic_mut(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        match self.send(batch) {
            Ok(true) => Submitted::InFlight,
            Ok(false) => Submitted::Done(Ok(())),
            Err(error) => Submitted::Done(Err(error)),
        }
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        if !self.is_in_flight {
            return Poll::Ready(Err(no_batch()));
        }
        // At most once for each verb: what was asked for is known then.
        while let Some(missing) = self.missing.clone() {
            let asked = ready!(self.poll_parts(&missing, cx));
            (self.is_in_flight, self.missing) = (false, None);
            if let Err(error) = asked.and_then(|()| self.send(batch)) {
                return Poll::Ready(Err(error));
            }
        }
        self.wait(cx, |read, atomics| plan::copy_results(read, batch, atomics))
    }

    /// A batch that was posted completes by itself, and one that waits for a part has no effect. One that still waits
    /// in the queue is posted before this returns, if no thread of the connection does it: that takes as long as the
    /// batches before it.
    fn forget(&mut self) {
        if self.missing.take().is_some() {
            (self.is_in_flight, self.reserving) = (false, None);
            return;
        }
        let inner = &*self.user.inner;
        let Some(slot) = self.slot else { return };
        if self.waiting == Waiting::Cooperative {
            return;
        }
        while inner.is_own() && inner.queue().stage(slot) == Stage::Waiting {
            inner.lose_if_stalled();
            inner.drain();
            thread::yield_now();
        }
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        if !self.is_in_flight {
            return Poll::Ready(Ok(0));
        }
        let drained = self.wait(cx, |read, atomics| {
            for (into, atomic) in found.iter_mut().zip(atomics) {
                *into = atomic.read(read);
            }
        });
        drained.map_ok(|()| self.atomics.len())
    }

    /// 1 round trip on the connection for each part that is not known, and each MiB.
    fn poll_reserve(&mut self, bytes: Range<u64>, cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        while let Some(from) = self.parts.missing_in(&bytes) {
            self.parts = self.user.inner.parts();
            if self.parts.missing_in(&bytes) == Some(from) {
                let piece = from..bytes.end.min(from.saturating_add(Reserve::MAX_BYTES));
                match ready!(self.poll_parts(&piece, cx)) {
                    Ok(()) => self.parts = self.user.inner.parts(),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        if clock_ns() >= until_ns {
            return Poll::Ready(());
        }
        let inner = &*self.user.inner;
        match (self.waiting, self.slot) {
            // A forked child has no thread.
            (Waiting::Cooperative, Some(slot)) if inner.is_own() => {
                let (is_next, other) = inner.queue().pause(slot, until_ns, cx.waker());
                drop(other);
                if is_next {
                    inner.driver.wake();
                }
            }
            _ => self.spin(cx),
        }
        Poll::Pending
    }

    #[inline]
    fn now_ns(&mut self) -> u64 {
        clock_ns()
    }
}

impl Drop for VerbsLane {
    fn drop(&mut self) {
        let inner = &*self.user.inner;
        if let Some(slot) = self.slot
            && inner.is_own()
        {
            let mut queue = inner.queue();
            queue.give_slot(slot);
            // A batch may have waited for the lane's buffer.
            queue.advance(&inner.port());
            drop(queue);
            inner.wake();
        }
    }
}
