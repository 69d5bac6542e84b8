//! A region behind a memory node that executes batches.

use std::task::{Context, Poll};

use crate::client::{ConnectError, ConnectOptions, NodeSession};
use crate::wire::Fabric;
use guira_fabric::{Caps, FabricError, Region, SlotHold};

use crate::tcp::lane::TcpLane;
use crate::tcp::plan::Bounds;

/// The region of a memory node, whose verbs are sent on the connection of a session. Clones, lanes and holds share the
/// session.
#[derive(Clone, Debug)]
pub struct TcpRegion {
    session: NodeSession,
    bounds: Bounds,
}

impl TcpRegion {
    /// Connects to a memory node and starts a session: 1 round trip, after those of TCP and TLS.
    ///
    /// # Errors
    /// [`ConnectError`] with the address and the reason. Nothing was changed.
    pub fn connect(options: &ConnectOptions) -> Result<TcpRegion, ConnectError> {
        NodeSession::connect(options, Fabric::Tcp).map(TcpRegion::of)
    }

    fn of(session: NodeSession) -> TcpRegion {
        let bounds = Bounds::of(&session.connection().welcome);
        TcpRegion { session, bounds }
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &NodeSession {
        &self.session
    }
}

impl Region for TcpRegion {
    type Lane = TcpLane;

    fn caps(&self) -> &Caps {
        &self.bounds.caps
    }

    fn main_bytes(&self) -> u64 {
        self.session.main_bytes()
    }

    fn device_bytes(&self) -> u64 {
        self.session.device_bytes()
    }

    fn has_lost_bytes(&self) -> bool {
        self.session.has_lost_bytes()
    }

    fn lane(&self) -> TcpLane {
        TcpLane::new(self.session.connection(), self.bounds)
    }

    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        self.session.hold(slot)
    }

    fn poll_hold(&self, slot: u16, cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
        self.session.poll_hold(slot, cx)
    }
}
