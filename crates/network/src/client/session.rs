//! A session with a memory node.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use guira_fabric::{Effect, FabricError, SlotHold, Waiting};

use super::connect::{self, ConnectError};
use super::control::ControlRequest;
use super::link::Link;
use super::loss::Loss;
use super::options::ConnectOptions;
use crate::node::NodeCounters;
use crate::wire::{
    CloseReason, Fabric, FenceReply, Grant, Kind, PriorSession, SessionId, Welcome, WireError, encode_slot,
};

/// A session with a memory node, through one connection. Clones and holds share the connection; it is closed with the
/// last of them, and of what a fabric makes of it.
///
/// A lost connection stays lost: every request on it fails, and the client connects again, with
/// [`ConnectOptions::with_prior_session`]. A forked child cannot use the connection: it makes its own. But as long as
/// the child has the session, or anything made from it, the node does not notice the end of the parent: the child
/// should drop them, or execute another program.
pub struct NodeSession {
    connection: Arc<Connection>,
    /// The hold that a task has requested and that is not answered yet.
    pending_hold: Mutex<Option<ControlRequest>>,
}

/// The connection of a session, which all its handles share.
pub struct Connection {
    /// The frames in both directions.
    pub link: Arc<Link>,
    /// The way in which lanes wait by default.
    pub waiting: Waiting,
    /// The node's address.
    pub peer: SocketAddr,
    /// The node's reply to the greeting.
    pub welcome: Welcome,
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

impl NodeSession {
    /// Connects to a memory node and starts a session that will use the memory over `fabric`: 1 round trip, after those
    /// of TCP and TLS.
    ///
    /// # Errors
    /// [`ConnectError`] with the address and the reason. Nothing was changed.
    pub fn connect(options: &ConnectOptions, fabric: Fabric) -> Result<NodeSession, ConnectError> {
        connect::connect(options, fabric).map(|connection| NodeSession::of(Arc::new(connection)))
    }

    /// Creates a session of a connection whose greeting was answered.
    pub fn of(connection: Arc<Connection>) -> NodeSession {
        NodeSession { connection, pending_hold: Mutex::new(None) }
    }

    /// Returns the connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Returns the size of the Main space in bytes.
    #[must_use]
    pub fn main_bytes(&self) -> u64 {
        self.connection.welcome.main_bytes
    }

    /// Returns the bytes of one WRITE that no crash of the node can tear: [`guira_fabric::Caps::atomic_write_unit`].
    #[must_use]
    pub fn atomic_write_unit(&self) -> u64 {
        self.connection.welcome.atomic_write_unit
    }

    /// Returns the size of the Device space in bytes.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.connection.welcome.device_bytes
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
    pub fn id(&self) -> SessionId {
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

    /// Same as [`NodeSession::loss`], after reading what has arrived. Does not wait.
    pub fn notice_loss(&self) -> Option<Loss> {
        self.connection.link.notice_loss()
    }

    /// Whether the node has closed the session because it lost its memory.
    #[must_use]
    pub fn has_lost_bytes(&self) -> bool {
        self.loss() == Some(Loss::Closed(CloseReason::MemoryLost))
    }

    /// Ends the session: closes the connection, without waiting. The node then frees the session's slots, once none of
    /// its verbs executes any more.
    pub fn end(&self) {
        if !self.is_stale() {
            self.connection.link.lose(Loss::EndedHere);
        }
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

    /// Sends the client's queue pair and returns the node's: the body of the reply, as `decode` reads it. 1 round trip,
    /// waited for in place.
    ///
    /// # Errors
    /// The connection was lost; the node refused the request.
    pub fn attach<T>(&self, body: &[u64], decode: impl Fn(&[u64]) -> Result<T, WireError>) -> Result<T, FabricError> {
        ControlRequest::ask(&self.connection, Kind::Attach, Kind::Attached, body)?.wait(Effect::None, decode)
    }

    /// Requests the liveness of client slot `slot`: 1 round trip, waited for in place. The hold outlives this handle;
    /// it ends with the session, or when it is dropped, once the node has executed what was sent before.
    ///
    /// # Errors
    /// The connection was lost; the node refused the request.
    pub fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        ControlRequest::hold(&self.connection, self.grant(), slot)?.wait_for_hold(slot)
    }

    /// Same as [`NodeSession::hold`]; with [`Waiting::Cooperative`] the task waits, not its thread. Each clone of the
    /// session has at most one request in flight: a request for another slot replaces it.
    ///
    /// # Errors
    /// Same as [`NodeSession::hold`].
    pub fn poll_hold(&self, slot: u16, cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
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

impl Clone for NodeSession {
    fn clone(&self) -> NodeSession {
        NodeSession::of(Arc::clone(&self.connection))
    }
}

impl fmt::Debug for NodeSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { peer, welcome, .. } = &*self.connection;
        f.debug_struct("NodeSession").field("peer", peer).field("welcome", welcome).field("loss", &self.loss()).finish()
    }
}
