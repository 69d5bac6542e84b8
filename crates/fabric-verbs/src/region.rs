//! A region behind a memory node whose memory is registered with an RDMA device.

use std::net::SocketAddr;
use std::task::{Context, Poll};

use guira_fabric::{Caps, FabricError, Region, SlotHold};
use guira_network::client::{ConnectError, ConnectOptions, NodeSession};
use guira_network::wire::{Fabric, TargetParameters};

use crate::{Connecting, Connection, ConnectionOptions, Device, DeviceOptions, Drained, VerbsError, VerbsLane};

/// A session could not be started, or has no queue pair. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The local device cannot be used, or the queue pair not be connected.
    #[error(transparent)]
    Device(#[from] VerbsError),
    /// The node could not be reached, or refused the session.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The node refused the queue pair, or was lost before it answered.
    #[error("the memory node at {address} did not connect a queue pair: {source}; nothing was changed")]
    Refused {
        /// The address of the node.
        address: SocketAddr,
        /// The reason.
        r#source: FabricError,
    },
}

/// The region of a memory node, whose verbs a network card executes. Clones, lanes and holds share a session and its
/// queue pair.
///
/// The session needs its connection only to start, to end, and for client slots and fences; no batch touches it. If
/// either the connection or the queue pair is lost, the region is lost, and the client connects again, with
/// [`ConnectOptions::with_prior_session`].
#[derive(Clone, Debug)]
pub struct VerbsRegion {
    session: NodeSession,
    connection: Connection,
}

impl VerbsRegion {
    /// Opens a device of this machine, connects to a memory node, and connects a queue pair: 2 round trips on the
    /// connection, after those of TCP and TLS.
    ///
    /// # Errors
    /// [`AttachError`] with the device or the address, and the reason. Nothing was changed.
    pub fn connect(
        options: &ConnectOptions,
        device: &DeviceOptions,
        queue: &ConnectionOptions,
    ) -> Result<VerbsRegion, AttachError> {
        let connecting = Connecting::new(&Device::open(device)?, queue)?;
        let session = NodeSession::connect(options, Fabric::Rdma)?;
        let address = session.peer();
        let target = session
            .attach(&connecting.parameters().encode(), TargetParameters::decode)
            .map_err(|source| AttachError::Refused { address, source })?;
        let connection = connecting.connect_in(Some(session.clone()), target)?;
        Ok(VerbsRegion { session, connection })
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &NodeSession {
        &self.session
    }

    /// Returns the connection of the queue pair.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether the session or its queue pair is known to be lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.connection.is_lost()
    }

    fn until_drained(&self, hold: SlotHold) -> SlotHold {
        let (session, connection) = (self.session.clone(), self.connection.clone());
        SlotHold::new(DrainedHold { hold: Some(hold), session, connection })
    }
}

impl Region for VerbsRegion {
    type Lane = VerbsLane;

    fn caps(&self) -> &Caps {
        self.connection.caps()
    }

    fn main_bytes(&self) -> u64 {
        self.connection.main_bytes()
    }

    fn device_bytes(&self) -> u64 {
        self.connection.device_bytes()
    }

    fn has_lost_bytes(&self) -> bool {
        self.session.has_lost_bytes()
    }

    fn lane(&self) -> VerbsLane {
        self.connection.lane()
    }

    /// Same as [`NodeSession::hold`]. The slot is released when the hold is dropped and every batch that was submitted
    /// before has completed; if the queue pair is lost, when the session has ended.
    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        Ok(self.session.hold(slot)?.map(|hold| self.until_drained(hold)))
    }

    fn poll_hold(&self, slot: u16, cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
        self.session.poll_hold(slot, cx).map_ok(|hold| hold.map(|hold| self.until_drained(hold)))
    }
}

/// A hold that is released once no batch of its client can be executed any more: batches travel on the queue pair, and
/// the release, on the connection, could overtake them. [R-SLOT-1] [R-RECOVER-1]
struct DrainedHold {
    hold: Option<SlotHold>,
    session: NodeSession,
    connection: Connection,
}

impl Drop for DrainedHold {
    fn drop(&mut self) {
        let (hold, session) = (self.hold.take(), self.session.clone());
        self.connection.when_drained(move |drained| {
            if drained == Drained::Lost {
                // The node ends the queue pair before it frees the slot. Nothing is sent on an ended session.
                session.end();
            }
            drop(hold);
        });
    }
}
