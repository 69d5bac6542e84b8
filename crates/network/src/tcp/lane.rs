//! Lanes over a connection.
//!
//! Batches of tasks that share a connection are coalesced: while other tasks have been woken with a reply and have not
//! taken it, a batch waits, because their next batches are likely to follow; the task that takes the last reply sends
//! all. With 16 tasks in lockstep that is one system call for 16 batches, here and, as they arrive together, at the
//! node. The longest wait is defined in the driver ([`crate::client`]).
//!
//! Invariants: a lane has at most one batch in flight; an invalid batch is refused before a byte of it is sent; nothing
//! is allocated for a batch once a lane has sent one as large; a waiting batch whose task is dropped is sent then.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use guira_fabric::{Caps, Effect, FabricError, Lane, Submitted, Traffic, Verb, Waiting, clock_ns};

use crate::client::{Connection, Expected, MAX_REQUEST_SLOTS, Request, Reserving, frame_id, start_driver};
use crate::wire::WireError;

use crate::tcp::batch::decode_reply;
use crate::tcp::plan::{self, Bounds};

/// A lane of a [`crate::tcp::TcpRegion`]. It can move between threads, and keeps the connection open.
pub struct TcpLane {
    connection: Arc<Connection>,
    waiting: Waiting,
    /// The lane's request slot, if one was free.
    request_slot: Option<u32>,
    bounds: Bounds,
    in_flight: Option<Flight>,
    /// The position in the results of each atomic's word.
    atomics: Vec<u32>,
    /// The results, if another thread read them.
    found: Vec<u64>,
    /// The memory that is being reserved.
    reserving: Option<Reserving>,
    traffic: Traffic,
}

/// A batch in flight.
#[derive(Clone, Copy)]
struct Flight {
    request: Request,
    /// The end in the stream of the first frame that changes memory, if there is one and it was submitted.
    change_end: Option<u64>,
}

/// The longest pause that yields instead of sleeping: about as long as the kernel oversleeps.
const YIELD_NS: u64 = 50_000;

impl TcpLane {
    pub(crate) fn new(connection: &Arc<Connection>, bounds: Bounds) -> TcpLane {
        let connection = Arc::clone(connection);
        let request_slot = if connection.link.is_stale() { None } else { connection.link.state().slots.take() };
        let (atomics, found, traffic) = (Vec::new(), Vec::new(), Traffic::default());
        let waiting = connection.waiting;
        TcpLane { connection, waiting, request_slot, bounds, in_flight: None, atomics, found, reserving: None, traffic }
    }

    /// Changes how the lane waits. The first lane of a connection that waits cooperatively starts the connection's
    /// thread; if the thread cannot be started, the lane waits in place.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> TcpLane {
        let is_driven = || !self.is_stale() && start_driver(&self.connection.link).is_ok();
        self.waiting = if waiting == Waiting::Cooperative && is_driven() { waiting } else { Waiting::InPlace };
        self
    }

    /// Whether this process was forked after it connected; its lanes refuse every batch.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.connection.link.is_stale()
    }

    /// Whether the connection is known to be lost. One load.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.connection.link.lost().is_some()
    }

    /// Frees the buffer for results if it is larger than `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        if self.found.capacity() * size_of::<u64>() > bytes {
            self.found = Vec::new();
        }
    }

    /// Sends the batch; returns false if it does nothing.
    fn send(&mut self, batch: &[Verb<'_>]) -> Result<bool, FabricError> {
        let link = &self.connection.link;
        if link.is_stale() {
            return Err(FabricError::Forked);
        }
        if self.in_flight.is_some() {
            return Err(FabricError::Backend("a batch is still in flight on this lane".to_owned()));
        }
        let plan = self.bounds.plan(batch, &mut self.atomics)?;
        if plan.frames == 0 {
            return Ok(false);
        }
        let mut state = link.state();
        if let Some(loss) = link.lost() {
            return Err(loss.error(Effect::None));
        }
        let Some(slot) = self.request_slot else {
            return Err(FabricError::Backend(format!(
                "a connection has at most {MAX_REQUEST_SLOTS} lanes; nothing was sent"
            )));
        };
        let expected = Expected::Found { words: plan.found_words, frames: plan.frames };
        let id = state.slots.begin(slot, expected);
        drop(state);
        let encode = |out: &mut Vec<u64>| plan::encode(out, batch, plan, |frame| frame_id(id, frame));
        let sent = match self.waiting {
            Waiting::Cooperative => link.coalesce(encode),
            Waiting::InPlace => link.send(encode),
        };
        let change_end = match sent {
            Some((Some(words), start)) => Some(start + words as u64 * 8),
            _ => None,
        };
        self.in_flight = Some(Flight { request: Request { slot, id, expected }, change_end });
        Ok(true)
    }

    /// Waits for the batch in flight, and passes its results to `take`.
    fn wait_for_reply(
        &mut self,
        flight: Flight,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&[u64], &[u32]) -> Result<(), WireError>,
    ) -> Poll<Result<(), FabricError>> {
        let link = &self.connection.link;
        if link.is_stale() {
            return Poll::Ready(Err(FabricError::Forked));
        }
        let mut take = |words: &[u64]| take(words, &self.atomics);
        let result = match self.waiting {
            Waiting::InPlace => link.wait(flight.request, &mut self.found, &mut take),
            Waiting::Cooperative => match link.poll(flight.request, &mut self.found, &mut take, cx.waker()) {
                Poll::Ready(result) => {
                    link.note_reply_taken();
                    result
                }
                Poll::Pending => return Poll::Pending,
            },
        };
        self.in_flight = None;
        Poll::Ready(result.map_err(|failure| failure.error(|lost| link.effect(lost, flight.change_end))))
    }

    fn pause_in_place(&self, until_ns: u64) {
        loop {
            match until_ns.saturating_sub(clock_ns()) {
                0 => return,
                1..=YIELD_NS => std::thread::yield_now(),
                left_ns => std::thread::sleep(Duration::from_nanos(left_ns - YIELD_NS)),
            }
        }
    }
}

impl Lane for TcpLane {
    #[inline(always)]
    fn caps(&self) -> &Caps {
        &self.bounds.caps
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
        let Some(flight) = self.in_flight else {
            return Poll::Ready(Err(FabricError::Backend("no batch is in flight on this lane".to_owned())));
        };
        self.wait_for_reply(flight, cx, |words, _| decode_reply(words, batch))
    }

    /// Sends a batch that waits to be coalesced: once sent, it completes by itself.
    fn forget(&mut self) {
        if !self.is_stale() {
            self.connection.link.flush_coalesced();
        }
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        let Some(flight) = self.in_flight else { return Poll::Ready(Ok(0)) };
        let take = |words: &[u64], atomics: &[u32]| {
            let cut = WireError::Body { what: "the results of this batch", words: words.len() };
            for (into, at) in found.iter_mut().zip(atomics) {
                *into = *words.get(*at as usize).ok_or(cut)?;
            }
            Ok(())
        };
        let drained = self.wait_for_reply(flight, cx, take);
        drained.map_ok(|()| self.atomics.len())
    }

    /// 1 round trip for each MiB.
    fn poll_reserve(&mut self, bytes: Range<u64>, cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        let take = |_: &Range<u64>, body: &[u64]| match body {
            [] => Ok(()),
            _ => Err(WireError::Body { what: "a reply without a body", words: body.len() }),
        };
        Reserving::poll(&mut self.reserving, &self.connection, &bytes, (self.waiting, cx), take)
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        let link = &self.connection.link;
        match (self.waiting, self.request_slot) {
            // A forked child has no driver, and the driver cannot wake a lane without a request slot.
            (Waiting::Cooperative, Some(slot)) if !link.is_stale() => {
                if clock_ns() >= until_ns {
                    link.state().slots.end_pause(slot);
                    return Poll::Ready(());
                }
                if link.state().slots.pause(slot, until_ns, cx.waker()) {
                    link.wake_driver();
                }
                Poll::Pending
            }
            _ => {
                self.pause_in_place(until_ns);
                Poll::Ready(())
            }
        }
    }

    #[inline]
    fn now_ns(&mut self) -> u64 {
        clock_ns()
    }
}

impl Drop for TcpLane {
    fn drop(&mut self) {
        let link = &self.connection.link;
        if let Some(slot) = self.request_slot
            && !link.is_stale()
        {
            link.flush_coalesced();
            link.release_slot(slot, None);
        }
    }
}
