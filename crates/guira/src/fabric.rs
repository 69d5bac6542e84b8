//! The fabrics that tables may be on. This module alone knows them all: another fabric is a variant of [`FabricRegion`]
//! and of [`FabricLane`], and an arm of the macro and of each `match` here.
//!
//! Invariant: an operation whose instructions are counted asks once whether verbs execute in place
//! ([`FabricLane::in_place`]), and then uses that lane directly; all other code takes any lane, from
//! [`FabricLane::any`].

use std::net::SocketAddr;
use std::ops::Range;
use std::task::{Context, Poll};

use guira_fabric::{Addr, Caps, FabricError, Lane, Region, SlotHold, Submitted, Traffic, Verb, Waiting};
use guira_fabric_shm::{NameLoss, ShmLane, ShmRegion};
use guira_fabric_verbs::{VerbsLane, VerbsRegion};
use guira_network::client::NodeSession;
use guira_network::tcp::{TcpLane, TcpRegion};
use guira_network::wire::{Fabric, Grant};

use crate::Error;
use crate::admin::stat::{FileStat, NodeStat, RegionStat};

/// A region of one of the fabrics. Clones share it.
#[derive(Clone)]
pub(crate) enum FabricRegion {
    /// A file mapped by this process.
    Shm(ShmRegion),
    /// The memory of a node that executes batches, through one connection, which is one session.
    Tcp(TcpRegion),
    /// The memory of a node, through a queue pair, which belongs to a session.
    Rdma(VerbsRegion),
}

/// A lane of a [`FabricRegion`].
pub(crate) enum FabricLane {
    /// Executes verbs in place.
    Shm(ShmLane),
    /// Sends batches to a node.
    Tcp(TcpLane),
    /// Posts batches to a network card.
    Rdma(VerbsLane),
}

/// Evaluates `$body` with `$it` bound to the concrete region or lane in `$on`, a [`FabricRegion`] or [`FabricLane`], as
/// `$kind` says.
macro_rules! on_fabric {
    ($kind:ident, $on:expr, $it:ident => $body:expr) => {
        match $on {
            $kind::Shm($it) => $body,
            $kind::Tcp($it) => $body,
            $kind::Rdma($it) => $body,
        }
    };
}

impl FabricRegion {
    /// Opens a lane that waits in the given way. On a memory node all lanes of a session wait as it was opened to.
    pub(crate) fn lane_waiting(&self, waiting: Waiting) -> FabricLane {
        match (self, waiting) {
            (FabricRegion::Shm(region), Waiting::InPlace) => FabricLane::Shm(region.lane()),
            (FabricRegion::Shm(region), Waiting::Cooperative) => {
                FabricLane::Shm(region.lane().waiting(Waiting::Cooperative))
            }
            (FabricRegion::Tcp(region), _) => FabricLane::Tcp(region.lane()),
            (FabricRegion::Rdma(region), _) => FabricLane::Rdma(region.lane()),
        }
    }

    /// Returns the session with the memory node, if the region is on one.
    pub(crate) fn session(&self) -> Option<&NodeSession> {
        match self {
            FabricRegion::Shm(_) => None,
            FabricRegion::Tcp(region) => Some(region.session()),
            FabricRegion::Rdma(region) => Some(region.session()),
        }
    }

    /// Whether the connection to the memory is known to be lost for good.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            FabricRegion::Shm(_) => false,
            FabricRegion::Tcp(region) => region.session().loss().is_some(),
            FabricRegion::Rdma(region) => region.is_lost(),
        }
    }

    /// Whether this process was forked from the one that opened the region.
    pub(crate) fn is_stale(&self) -> bool {
        match self {
            FabricRegion::Shm(region) => region.is_stale(),
            FabricRegion::Tcp(_) | FabricRegion::Rdma(_) => self.session().is_some_and(NodeSession::is_stale),
        }
    }

    /// Returns the known loss of the name of the table's file, if it has one.
    pub(crate) fn name_loss(&self) -> Option<NameLoss> {
        match self {
            FabricRegion::Shm(region) => region.name().loss(),
            FabricRegion::Tcp(_) | FabricRegion::Rdma(_) => None,
        }
    }

    /// Whether a memory node lets this session only read, whatever was requested.
    pub(crate) fn is_granted_reads_only(&self) -> bool {
        self.session().is_some_and(|session| session.grant() == Grant::ReadOnly)
    }

    /// Returns the address of the memory node, and the node's name for the memory, if the region is on a node.
    pub(crate) fn node(&self) -> Option<(SocketAddr, [u64; 2])> {
        self.session().map(|session| (session.peer(), session.region_id()))
    }

    /// Returns the region's statistics.
    pub(crate) fn stat(&self) -> Result<RegionStat, Error> {
        match self {
            FabricRegion::Shm(region) => Ok(RegionStat::File(FileStat::new(&region.info()?))),
            FabricRegion::Tcp(region) => {
                Ok(RegionStat::Node(NodeStat::new(region.session(), Fabric::Tcp, region.caps())))
            }
            FabricRegion::Rdma(region) => {
                Ok(RegionStat::Node(NodeStat::new(region.session(), Fabric::Rdma, region.caps())))
            }
        }
    }
}

impl Region for FabricRegion {
    type Lane = FabricLane;

    fn caps(&self) -> &Caps {
        on_fabric!(FabricRegion, self, region => region.caps())
    }

    fn main_bytes(&self) -> u64 {
        on_fabric!(FabricRegion, self, region => region.main_bytes())
    }

    fn device_bytes(&self) -> u64 {
        on_fabric!(FabricRegion, self, region => region.device_bytes())
    }

    fn lane(&self) -> FabricLane {
        match self {
            FabricRegion::Shm(region) => FabricLane::Shm(region.lane()),
            FabricRegion::Tcp(region) => FabricLane::Tcp(region.lane()),
            FabricRegion::Rdma(region) => FabricLane::Rdma(region.lane()),
        }
    }

    fn has_lost_bytes(&self) -> bool {
        on_fabric!(FabricRegion, self, region => region.has_lost_bytes())
    }

    fn verify_bytes(&self) -> Result<(), FabricError> {
        on_fabric!(FabricRegion, self, region => region.verify_bytes())
    }

    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        on_fabric!(FabricRegion, self, region => region.hold(slot))
    }

    fn poll_hold(&self, slot: u16, cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
        on_fabric!(FabricRegion, self, region => region.poll_hold(slot, cx))
    }
}

impl FabricLane {
    /// Returns the concrete lane, if verbs are executed in place. Not if the table's file has lost its name, so that
    /// what may wait reports it: [`Inner::refuse_nameless`](crate::store::Inner::refuse_nameless).
    #[inline(always)]
    pub(crate) fn in_place(&mut self) -> Option<&mut ShmLane> {
        match self {
            FabricLane::Shm(lane) if lane.name_loss().is_none() => Some(lane),
            _ => None,
        }
    }

    /// Returns the known loss of the name of the table's file, if it has one.
    pub(crate) fn name_loss(&self) -> Option<NameLoss> {
        match self {
            FabricLane::Shm(lane) => lane.name_loss(),
            FabricLane::Tcp(_) | FabricLane::Rdma(_) => None,
        }
    }

    /// Frees a buffer of the lane that has grown larger than `bytes`. Lanes of network cards have fixed ones.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if let FabricLane::Tcp(lane) = self {
            lane.shrink_to(bytes);
        }
    }

    /// Returns the lane as a trait object.
    #[inline(always)]
    pub(crate) fn any(&mut self) -> &mut dyn Lane {
        on_fabric!(FabricLane, self, lane => lane)
    }

    /// Whether this process was forked from the one that opened the region: the lane is its parent's.
    pub(crate) fn is_stale(&self) -> bool {
        on_fabric!(FabricLane, self, lane => lane.is_stale())
    }

    /// Whether the connection to the memory is known to be lost for good.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            FabricLane::Shm(_) => false,
            FabricLane::Tcp(lane) => lane.is_lost(),
            FabricLane::Rdma(lane) => lane.is_lost(),
        }
    }

    /// Whether the lane is one of a memory node, whose sessions can be lost.
    #[inline(always)]
    pub(crate) fn is_remote(&self) -> bool {
        match self {
            FabricLane::Shm(_) => false,
            FabricLane::Tcp(_) | FabricLane::Rdma(_) => true,
        }
    }
}

/// For functions that take the lane of a region, and for prefetch hints.
impl Lane for FabricLane {
    #[inline(always)]
    fn caps(&self) -> &Caps {
        on_fabric!(FabricLane, self, lane => lane.caps())
    }

    #[inline(always)]
    fn traffic(&self) -> &Traffic {
        on_fabric!(FabricLane, self, lane => lane.traffic())
    }

    #[inline(always)]
    fn traffic_mut(&mut self) -> &mut Traffic {
        on_fabric!(FabricLane, self, lane => lane.traffic_mut())
    }

    #[inline(always)]
    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        on_fabric!(FabricLane, self, lane => lane.submit(batch))
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        on_fabric!(FabricLane, self, lane => lane.poll(batch, cx))
    }

    fn forget(&mut self) {
        on_fabric!(FabricLane, self, lane => lane.forget());
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        on_fabric!(FabricLane, self, lane => lane.poll_drain(found, cx))
    }

    #[inline(always)]
    fn prefetch(&self, addr: Addr, words: usize) {
        on_fabric!(FabricLane, self, lane => lane.prefetch(addr, words));
    }

    fn poll_reserve(&mut self, bytes: Range<u64>, cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        on_fabric!(FabricLane, self, lane => lane.poll_reserve(bytes, cx))
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        on_fabric!(FabricLane, self, lane => lane.poll_pause(until_ns, cx))
    }

    fn now_ns(&mut self) -> u64 {
        on_fabric!(FabricLane, self, lane => lane.now_ns())
    }
}
