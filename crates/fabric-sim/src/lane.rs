//! The region and the lanes through which a client uses the simulation.

use std::future::poll_fn;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Caps, FabricError, Lane, Region, SlotHold, Submitted, Traffic, Verb, WORD_BYTES, pause_until};

use crate::batch::Batch;
use crate::card::{MESSAGE_BYTES, WRITE_REPLY_BYTES};
use crate::running::with_world;
use crate::sim::ClientId;
use crate::world::World;

/// The region as one client of a simulation accesses it. Created by [`crate::Sim::spawn`].
///
/// The region and its lanes work only inside the simulation, on its thread.
#[derive(Clone)]
pub struct SimRegion {
    simulation: u64,
    client: ClientId,
    host: u32,
    bytes: HeapRegion,
}

impl SimRegion {
    pub(crate) fn new(simulation: u64, client: ClientId, host: u32, bytes: HeapRegion) -> SimRegion {
        SimRegion { simulation, client, host, bytes }
    }

    /// Returns the host of the client.
    pub fn host(&self) -> u32 {
        self.host
    }

    /// Returns the virtual time since the simulation began, in nanoseconds.
    ///
    /// # Panics
    /// Outside the simulation.
    pub fn now_ns(&self) -> u64 {
        with_world(self.simulation, |world| world.now_ns).expect(OUTSIDE)
    }
}

/// The calls of a lane, which [`Traffic`] does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls: round trips of two messages.
    pub calls: u64,
    /// Notices: single messages.
    pub notices: u64,
    /// Words of requests.
    pub words_out: u64,
    /// Words of replies.
    pub words_in: u64,
}

impl Calls {
    /// Returns the bytes on the wire in both directions, headers included: requests, which are acknowledged, and replies.
    pub fn wire_bytes(&self) -> u64 {
        let requests = self.calls + self.notices;
        requests * (MESSAGE_BYTES + WRITE_REPLY_BYTES)
            + self.calls * MESSAGE_BYTES
            + (self.words_out + self.words_in) * WORD_BYTES
    }
}

const OUTSIDE: &str = "a simulated region and its lanes work only inside their simulation, on its thread";

impl Region for SimRegion {
    type Lane = SimLane;

    fn caps(&self) -> &Caps {
        self.bytes.caps()
    }

    fn main_bytes(&self) -> u64 {
        self.bytes.main_bytes()
    }

    fn device_bytes(&self) -> u64 {
        self.bytes.device_bytes()
    }

    /// Creates a lane.
    ///
    /// # Panics
    /// Outside the simulation.
    fn lane(&self) -> SimLane {
        let index = with_world(self.simulation, |world| world.add_lane(self.client)).expect(OUTSIDE);
        SimLane {
            simulation: self.simulation,
            index,
            client: self.client,
            caps: *self.bytes.caps(),
            traffic: Traffic::default(),
            calls: Calls::default(),
            reserving: None,
        }
    }

    /// Takes the client slot `slot`; see the trait. The slot is refused as long as verbs of its last holder can still
    /// be executed, as after [`crate::Lost::Late`].
    ///
    /// # Panics
    /// Outside the simulation.
    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        let hold = self.bytes.hold(slot)?;
        let may_hold = || with_world(self.simulation, |world| world.may_hold(slot, self.client.0)).expect(OUTSIDE);
        Ok(hold.filter(|_| may_hold()))
    }
}

/// A lane of a simulated region. Every batch takes virtual time, with every profile: no batch is executed in place.
///
/// Outside its simulation a lane refuses every batch, and its clock and its pauses panic.
pub struct SimLane {
    simulation: u64,
    index: u32,
    client: ClientId,
    caps: Caps,
    traffic: Traffic,
    calls: Calls,
    /// The memory that is being made, and the time at which the client learns that it is there.
    reserving: Option<(Range<u64>, u64)>,
}

impl SimLane {
    /// Waits while the client's thread computes for `near_ns` nanoseconds, or longer if it is a far thread of its host,
    /// or busy with another computation, doorbell or completion. With a [`crate::Network`] it takes `near_ns`.
    ///
    /// # Panics
    /// Outside the simulation.
    pub async fn compute(&mut self, near_ns: u64) {
        let client = self.client.0;
        let end_ns = with_world(self.simulation, |world| world.compute(client, near_ns)).expect(OUTSIDE);
        pause_until(self, end_ns).await;
    }

    /// Sends `request` to the service of the memory node, and replaces the contents of `reply` by its answer. 1 round trip. A
    /// call that is dropped goes on by itself; the next one on this lane waits for its end.
    ///
    /// # Errors
    /// The errors of a batch, with an unknown effect where a reply is lost; `Backend` if the node has no service.
    pub async fn call(&mut self, request: &[u64], reply: &mut Vec<u64>) -> Result<(), FabricError> {
        self.begin_call(request).await?;
        self.end_call(reply).await
    }

    /// Sends the request of a [`SimLane::call`] whose answer [`SimLane::end_call`] receives, and does not wait for it.
    ///
    /// # Errors
    /// The request could not be sent.
    pub async fn begin_call(&mut self, request: &[u64]) -> Result<(), FabricError> {
        self.send(request, false).await
    }

    /// Waits for the answer to the call that was begun, if it has not arrived yet, and replaces the contents of `reply` by it.
    ///
    /// # Errors
    /// Those of [`SimLane::call`]; `Backend` if no call was begun.
    pub async fn end_call(&mut self, reply: &mut Vec<u64>) -> Result<(), FabricError> {
        let mut receive = |batch: &Batch| {
            reply.clear();
            reply.extend_from_slice(batch.reply());
        };
        let poll = |cx: &mut Context<'_>| {
            let polled = self.with_world(|world| world.poll(self.index, cx, &mut receive));
            polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
        };
        poll_fn(poll).await?;
        self.calls.words_in += reply.len() as u64;
        Ok(())
    }

    /// Sends `request` to the service of the memory node, and does not wait for an answer: nobody learns whether it was
    /// handled. No round trip, but it waits while another notice of this lane is on its way.
    ///
    /// # Errors
    /// The request could not be sent.
    pub async fn notify(&mut self, request: &[u64]) -> Result<(), FabricError> {
        self.send(request, true).await
    }

    async fn send(&mut self, request: &[u64], is_notice: bool) -> Result<(), FabricError> {
        poll_fn(|cx| self.poll_drain(&mut [], cx)).await?;
        self.with_world(|world| world.submit_call(self.index, request, is_notice))??;
        let count = if is_notice { &mut self.calls.notices } else { &mut self.calls.calls };
        *count += 1;
        self.calls.words_out += request.len() as u64;
        Ok(())
    }

    /// Returns the calls of the lane so far.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    fn with_world<T>(&self, act: impl FnOnce(&mut World) -> T) -> Result<T, FabricError> {
        with_world(self.simulation, act).ok_or_else(|| FabricError::Backend(OUTSIDE.to_owned()))
    }
}

impl Lane for SimLane {
    #[inline(always)]
    fn caps(&self) -> &Caps {
        &self.caps
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
        match self.with_world(|world| world.submit(self.index, batch)) {
            Ok(Ok(())) => Submitted::InFlight,
            Ok(Err(error)) | Err(error) => Submitted::Done(Err(error)),
        }
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        let polled = self.with_world(|world| world.poll(self.index, cx, |sent| sent.receive(batch)));
        polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
    }

    /// Does nothing: the batch continues by itself.
    fn forget(&mut self) {}

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        let drained = self.with_world(|world| match world.is_idle(self.index) {
            true => Poll::Ready(Ok(0)),
            false => world.poll(self.index, cx, |sent| sent.receive_atomics(found)),
        });
        drained.unwrap_or_else(|error| Poll::Ready(Err(error)))
    }

    fn poll_reserve(&mut self, bytes: Range<u64>, cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        let until_ns = match &self.reserving {
            Some((reserving, until_ns)) if *reserving == bytes => *until_ns,
            _ => match self.with_world(|world| world.reserve(self.index, &bytes))? {
                Some(until_ns) => until_ns,
                None => {
                    let (wanted, limiter) = (bytes.end - bytes.start, "the simulated memory node".to_owned());
                    return Poll::Ready(Err(FabricError::NoMemory { wanted, available: 0, limiter }));
                }
            },
        };
        self.reserving = Some((bytes, until_ns));
        ready!(self.poll_pause(until_ns, cx));
        self.reserving = None;
        Poll::Ready(Ok(()))
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        with_world(self.simulation, |world| world.poll_pause(self.index, until_ns, cx)).expect(OUTSIDE)
    }

    fn now_ns(&mut self) -> u64 {
        with_world(self.simulation, |world| world.now_ns).expect(OUTSIDE)
    }
}
