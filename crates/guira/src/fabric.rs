//! The fabrics a table may lie on. The one place that knows them all: another fabric is a variant of [`FabricRegion`]
//! and of [`FabricLane`], and an arm of each `match` here.
//!
//! Invariant: an operation that is counted in instructions asks once which fabric it runs on, by [`on_lane`], and then
//! works on that fabric's lane itself; what is not counted takes any lane, as [`FabricLane::any`] gives it.

use std::task::{Context, Poll};

use guira_fabric::{Addr, Caps, FabricError, Lane, Region, SlotHold, Submitted, Traffic, Verb};
use guira_fabric_shm::{Access, ProcessIdentity, ShmLane, ShmRegion, Waiting};

use crate::stat::{FileStat, RegionStat};
use crate::{Error, OpenOptions, Url, options};

/// A region of one of the fabrics. Clones share it.
#[derive(Clone)]
pub(crate) enum FabricRegion {
    /// A file that this process has mapped.
    Shm(ShmRegion),
}

/// A lane of a [`FabricRegion`].
pub(crate) enum FabricLane {
    /// Verbs are executed in place.
    Shm(ShmLane),
}

/// Evaluates `$body` with `$lane` standing for the lane of the fabric that the [`FabricLane`] `$on` is of: one `match`,
/// and in each arm the code for that fabric.
macro_rules! on_lane {
    ($on:expr, $lane:ident => $body:expr) => {
        match $on {
            $crate::fabric::FabricLane::Shm($lane) => $body,
        }
    };
}

pub(crate) use on_lane;

impl FabricRegion {
    /// Opens the region at `url` as `options` say.
    pub(crate) fn open(url: &Url, options: &OpenOptions) -> Result<FabricRegion, Error> {
        let access = match options.access {
            options::Access::ReadWrite => Access::ReadWrite,
            options::Access::ReadOnly => Access::ReadOnly,
        };
        Ok(FabricRegion::Shm(ShmRegion::open(&url.location()?, access)?))
    }

    /// A lane that leaves the thread to others while it waits.
    pub(crate) fn cooperative_lane(&self) -> FabricLane {
        match self {
            FabricRegion::Shm(region) => FabricLane::Shm(region.lane().waiting(Waiting::Cooperative)),
        }
    }

    /// Whether `process`, if it lives, may hold one of the region's slots; see [`ShmRegion::may_be_held_by`].
    pub(crate) fn may_be_held_by(&self, process: &ProcessIdentity) -> bool {
        match self {
            FabricRegion::Shm(region) => region.may_be_held_by(process),
        }
    }

    /// What the region is, as statistics tell it.
    pub(crate) fn stat(&self) -> Result<RegionStat, Error> {
        match self {
            FabricRegion::Shm(region) => Ok(RegionStat::File(FileStat::new(&region.info()?))),
        }
    }
}

impl Region for FabricRegion {
    type Lane = FabricLane;

    fn caps(&self) -> &Caps {
        match self {
            FabricRegion::Shm(region) => region.caps(),
        }
    }

    fn main_bytes(&self) -> u64 {
        match self {
            FabricRegion::Shm(region) => region.main_bytes(),
        }
    }

    fn device_bytes(&self) -> u64 {
        match self {
            FabricRegion::Shm(region) => region.device_bytes(),
        }
    }

    fn lane(&self) -> FabricLane {
        match self {
            FabricRegion::Shm(region) => FabricLane::Shm(region.lane()),
        }
    }

    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        match self {
            FabricRegion::Shm(region) => region.hold(slot),
        }
    }
}

impl FabricLane {
    /// The lane itself, whichever it is.
    #[inline(always)]
    pub(crate) fn any(&mut self) -> &mut dyn Lane {
        match self {
            FabricLane::Shm(lane) => lane,
        }
    }

    /// Whether this process was forked from the one that opened the region: what the lane leads to is its parent's.
    pub(crate) fn is_stale(&self) -> bool {
        match self {
            FabricLane::Shm(lane) => lane.is_stale(),
        }
    }
}

/// For what takes the lane of a region, and for hints.
impl Lane for FabricLane {
    #[inline(always)]
    fn caps(&self) -> &Caps {
        on_lane!(self, lane => lane.caps())
    }

    #[inline(always)]
    fn traffic(&self) -> &Traffic {
        on_lane!(self, lane => lane.traffic())
    }

    #[inline(always)]
    fn traffic_mut(&mut self) -> &mut Traffic {
        on_lane!(self, lane => lane.traffic_mut())
    }

    #[inline(always)]
    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        on_lane!(self, lane => lane.submit(batch))
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        on_lane!(self, lane => lane.poll(batch, cx))
    }

    fn forget(&mut self) {
        on_lane!(self, lane => lane.forget());
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        on_lane!(self, lane => lane.poll_drain(found, cx))
    }

    #[inline(always)]
    fn prefetch(&self, addr: Addr, words: usize) {
        on_lane!(self, lane => lane.prefetch(addr, words));
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        on_lane!(self, lane => lane.poll_pause(until_ns, cx))
    }

    fn now_ns(&mut self) -> u64 {
        on_lane!(self, lane => lane.now_ns())
    }
}
