//! A region behind a memory node.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use guira_fabric::{Caps, Effect, FabricError, Region, SlotHold};

use super::connect::{self, ConnectError};
use super::control::ControlRequest;
use super::lane::TcpLane;
use super::link::Link;
use super::loss::Loss;
use super::options::{ConnectOptions, Waiting};
use super::plan::Bounds;
use crate::node::NodeCounters;
use crate::wire::{CloseReason, FenceReply, Grant, Kind, PriorSession, SessionId, Welcome, encode_slot};

/// The region of a memory node, through one connection, which is one session. Clones, lanes and holds share the
/// connection; it is closed with the last of them.
///
/// A lost connection stays lost: every batch on it fails, and the client connects again, with
/// [`ConnectOptions::with_prior_session`]. A forked child cannot use the connection: it makes its own. But as long as
/// the child has the region, or anything made from it, the node does not notice the end of the parent: the child should
/// drop them, or execute another program.
pub struct TcpRegion {
    connection: Arc<Connection>,
    /// The hold that a task has requested and that is not answered yet.
    pending_hold: Mutex<Option<ControlRequest>>,
}

/// The state that all handles of a connection share.
pub(super) struct Connection {
    pub(super) link: Arc<Link>,
    /// The way in which lanes wait by default.
    pub(super) waiting: Waiting,
    pub(super) peer: SocketAddr,
    pub(super) welcome: Welcome,
    pub(super) bounds: Bounds,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The driver is a thread of the process that connected.
        if !self.link.is_stale() {
            self.link.is_closing.store(true, Ordering::Release);
            self.link.wake_driver();
        }
    }
}

impl TcpRegion {
    /// Connects to a memory node and starts a session: 1 round trip, after those of TCP and TLS.
    ///
    /// # Errors
    /// [`ConnectError`] with the address and the reason. Nothing was changed.
    pub fn connect(options: &ConnectOptions) -> Result<TcpRegion, ConnectError> {
        connect::connect(options).map(|connection| TcpRegion::of(Arc::new(connection)))
    }

    fn of(connection: Arc<Connection>) -> TcpRegion {
        TcpRegion { connection, pending_hold: Mutex::new(None) }
    }

    /// Returns the first words of Main space when the session started: as many as were requested and exist.
    #[must_use]
    pub fn sample(&self) -> &[u64] {
        &self.connection.welcome.sample
    }

    /// Returns the id of the region: memory that came back empty has another one.
    #[must_use]
    pub fn region_id(&self) -> [u64; 2] {
        self.connection.welcome.region
    }

    /// Returns the id of the session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.connection.welcome.session
    }

    /// Returns the outcome of the session that [`ConnectOptions::with_prior_session`] named.
    #[must_use]
    pub fn prior_session(&self) -> PriorSession {
        self.connection.welcome.prior_session
    }

    /// Returns the access that the session has.
    #[must_use]
    pub fn grant(&self) -> Grant {
        self.connection.welcome.grant
    }

    /// Returns how long this machine may be silent before the node drops the session.
    #[must_use]
    pub fn session_timeout(&self) -> Duration {
        Duration::from_millis(self.connection.welcome.session_timeout_ms.into())
    }

    /// Returns the node's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.connection.peer
    }

    /// Returns how lanes wait by default.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        self.connection.waiting
    }

    /// Returns why the connection was lost, if that was noticed.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.connection.link.lost()
    }

    /// Whether this process was forked after it connected; then every operation fails, and the child must connect
    /// again.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.connection.link.is_stale()
    }

    /// Asks the node to drop the session that has the liveness of client slot `slot`; returns when none of its verbs
    /// can execute any more. 1 round trip, waited for in place. [R-RECOVER-1]
    ///
    /// # Errors
    /// The connection was lost, and it is unknown whether the session was dropped; the node refused the request.
    pub fn fence(&self, slot: u16) -> Result<FenceReply, FabricError> {
        if self.grant() == Grant::ReadOnly {
            return Err(FabricError::ReadOnly { verb: "a fence" });
        }
        let request = ControlRequest::ask(&self.connection, Kind::Fence, Kind::Fenced, &encode_slot(slot))?;
        request.wait(Effect::Unknown, FenceReply::decode)
    }

    /// Returns what the node has counted since it was started. 1 round trip, waited for in place.
    ///
    /// # Errors
    /// The connection was lost; the node refused the request.
    pub fn counters(&self) -> Result<NodeCounters, FabricError> {
        let request = ControlRequest::ask(&self.connection, Kind::Count, Kind::Counted, &[])?;
        request.wait(Effect::None, NodeCounters::decode)
    }
}

impl Clone for TcpRegion {
    fn clone(&self) -> TcpRegion {
        TcpRegion::of(Arc::clone(&self.connection))
    }
}

impl Region for TcpRegion {
    type Lane = TcpLane;

    fn caps(&self) -> &Caps {
        &self.connection.bounds.caps
    }

    fn main_bytes(&self) -> u64 {
        self.connection.welcome.main_bytes
    }

    fn device_bytes(&self) -> u64 {
        self.connection.welcome.device_bytes
    }

    /// Whether the node has closed the session because it lost its memory.
    fn has_lost_bytes(&self) -> bool {
        self.loss() == Some(Loss::Closed(CloseReason::MemoryLost))
    }

    fn lane(&self) -> TcpLane {
        TcpLane::new(Arc::clone(&self.connection), self.connection.bounds)
    }

    /// Requests the liveness of client slot `slot`: 1 round trip, waited for in place. The hold outlives the region
    /// handle; it ends with the session, or when it is dropped, once the node has executed what was sent before.
    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        ControlRequest::hold(&self.connection, self.grant(), slot)?.wait_for_hold(slot)
    }

    /// Same as [`Region::hold`]; with [`Waiting::Cooperative`] the task waits, not its thread. Each clone of the region
    /// has at most one request in flight: a request for another slot replaces it.
    fn poll_hold(&self, slot: u16, cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
        if self.waiting() == Waiting::InPlace {
            return Poll::Ready(self.hold(slot));
        }
        let mut pending = self.pending_hold.lock().unwrap_or_else(PoisonError::into_inner);
        let request = match pending.take().filter(|request| request.slot() == Some(slot)) {
            Some(request) => request,
            None => match ControlRequest::hold(&self.connection, self.grant(), slot) {
                Ok(request) => request,
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        let polled = request.poll_hold(slot, cx);
        if polled.is_pending() {
            *pending = Some(request);
        }
        polled
    }
}

impl fmt::Debug for TcpRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { peer, welcome, .. } = &*self.connection;
        f.debug_struct("TcpRegion").field("peer", peer).field("welcome", welcome).field("loss", &self.loss()).finish()
    }
}
