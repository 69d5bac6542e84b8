//! A client's face of the simulation: its region and its lanes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Caps, FabricError, Lane, Region, SlotHold, Submitted, Traffic, Verb};

use crate::sim::ClientId;
use crate::world::World;

/// The one lock of a simulation. It is never contended, and held by nobody while a client's code runs.
pub(crate) type Shared = Arc<Mutex<World>>;

pub(crate) fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The region as one client of a simulation reaches it. Made by [`crate::Sim::spawn`].
#[derive(Clone)]
pub struct SimRegion {
    world: Shared,
    bytes: HeapRegion,
    client: ClientId,
}

impl SimRegion {
    pub(crate) fn new(world: Shared, client: ClientId) -> SimRegion {
        let bytes = lock(&world).region.clone();
        SimRegion { world, bytes, client }
    }

    /// Nanoseconds of virtual time since the simulation began.
    pub fn now_ns(&self) -> u64 {
        lock(&self.world).now_ns
    }
}

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

    fn lane(&self) -> SimLane {
        let (index, caps) = {
            let mut world = lock(&self.world);
            (world.add_lane(self.client), *world.caps())
        };
        SimLane { world: Arc::clone(&self.world), index, caps, traffic: Traffic::default() }
    }

    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        self.bytes.hold(slot)
    }
}

/// A lane of a simulated region. Every batch takes virtual time, on every profile: none is executed in place.
pub struct SimLane {
    world: Shared,
    index: u32,
    caps: Caps,
    traffic: Traffic,
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
        match lock(&self.world).submit(self.index, batch) {
            Ok(()) => Submitted::InFlight,
            Err(error) => Submitted::Done(Err(error)),
        }
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        lock(&self.world).poll(self.index, cx, |sent| sent.receive(batch))
    }

    /// Nothing to do: the batch goes on by itself.
    fn forget(&mut self) {}

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        let mut world = lock(&self.world);
        if world.is_idle(self.index) {
            return Poll::Ready(Ok(0));
        }
        world.poll(self.index, cx, |sent| sent.receive_atomics(found))
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        lock(&self.world).poll_pause(self.index, until_ns, cx)
    }

    fn now_ns(&mut self) -> u64 {
        lock(&self.world).now_ns
    }
}
