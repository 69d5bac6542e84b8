//! The options of a node, and its errors.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use guira_fabric::Caps;
use guira_fabric::refusal::thread_refused;

use super::access::NodeAccess;
use super::event::{NodeEvent, Observer};
use crate::LONGEST_TIMEOUT;
#[cfg(feature = "tls")]
use crate::tls::TlsServer;
use crate::wire::{Grant, Token};

/// The default maximum number of sessions at a time.
const DEFAULT_SESSIONS: u32 = 1024;
/// The default time for which a client's machine may be silent.
const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// The default time that a client has to send its Hello.
const DEFAULT_GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The minimum session timeout: the kernel counts in seconds.
const MIN_SESSION_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of threads: more than any machine has cores.
const MAX_THREADS: usize = 1024;

/// The options of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub(super) listen: Vec<SocketAddr>,
    pub(super) region_id: [u64; 2],
    pub(super) threads: usize,
    pub(super) access: NodeAccess,
    pub(super) observer: Observer,
    pub(super) grant: Grant,
    pub(super) exposure: Exposure,
    pub(super) max_sessions: u32,
    pub(super) max_sessions_per_address: Option<u32>,
    pub(super) session_timeout: Duration,
    pub(super) greeting_timeout: Duration,
    pub(super) atomic_write_unit: u64,
}

/// The clients that may connect from other machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exposure {
    Authenticated,
    Anyone,
}

impl NodeOptions {
    /// Creates options for a node that listens on `listen` (port 0: any free port), with a thread per core, 1,024
    /// sessions, no token, and memory that is lost when the node ends. `region_id` identifies the memory: if its
    /// content was lost, the memory must get another id.
    pub fn new(listen: SocketAddr, region_id: [u64; 2]) -> NodeOptions {
        NodeOptions {
            listen: vec![listen],
            region_id,
            threads: std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_THREADS),
            access: NodeAccess::new(),
            observer: Observer::default(),
            grant: Grant::ReadWrite,
            exposure: Exposure::Authenticated,
            max_sessions: DEFAULT_SESSIONS,
            max_sessions_per_address: None,
            session_timeout: DEFAULT_SESSION_TIMEOUT,
            greeting_timeout: DEFAULT_GREETING_TIMEOUT,
            atomic_write_unit: Caps::WHOLE_WRITE,
        }
    }

    /// Requires TLS and a client certificate that `tls` accepts. A token may be required as well.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: TlsServer) -> NodeOptions {
        self.access = self.access.tls(tls);
        self
    }

    /// Listens on `addr` as well.
    #[must_use]
    pub fn listen(mut self, addr: SocketAddr) -> NodeOptions {
        self.listen.push(addr);
        self
    }

    /// Sets the number of threads that serve sessions: 1 to 1,024. Each session belongs to one thread.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> NodeOptions {
        self.threads = threads.clamp(1, MAX_THREADS);
        self
    }

    /// Calls `observer` for sessions that start and end, refused clients and fences: on the node's threads, so it must
    /// not block.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(&NodeEvent) + Send + Sync + 'static) -> NodeOptions {
        self.observer = Observer(Some(Arc::new(observer)));
        self
    }

    /// Sets the access control.
    #[must_use]
    pub fn access(mut self, access: NodeAccess) -> NodeOptions {
        self.access = access;
        self
    }

    /// Adds a token for read and write access; without one of these tokens or of those of [`NodeOptions::reader_token`]
    /// a client is refused.
    #[must_use]
    pub fn token(mut self, token: Token) -> NodeOptions {
        self.access = self.access.token(token);
        self
    }

    /// Adds a token for read-only access.
    #[must_use]
    pub fn reader_token(mut self, token: Token) -> NodeOptions {
        self.access = self.access.reader_token(token);
        self
    }

    /// Sets the most access that any session may have.
    #[must_use]
    pub fn grant(mut self, grant: Grant) -> NodeOptions {
        self.grant = grant;
        self
    }

    /// Allows other machines to connect without a token or TLS: any host that reaches the address may read and write
    /// all the memory.
    #[must_use]
    pub fn insecure(mut self) -> NodeOptions {
        self.exposure = Exposure::Anyone;
        self
    }

    /// Sets the maximum number of sessions at a time; a quarter of them is reserved for clients with write access, if
    /// there may be any.
    #[must_use]
    pub fn max_sessions(mut self, sessions: u32) -> NodeOptions {
        self.max_sessions = sessions;
        self
    }

    /// Sets the maximum number of sessions at a time from one address, which for IPv6 is the first 64 bits. There is no
    /// such limit by default, because the clients of a whole site may come from one address, and a limit would refuse
    /// honest ones.
    #[must_use]
    pub fn max_sessions_per_address(mut self, sessions: u32) -> NodeOptions {
        self.max_sessions_per_address = Some(sessions);
        self
    }

    /// Sets the time after which a session is dropped because the client's machine was silent, or the client did not
    /// read its replies: in whole seconds, from 1 s to 65,535 s. A stopped process is not silent: its kernel answers for
    /// it. From 4 s on, an idle host is probed three times before its session is dropped; with a shorter time, one or
    /// two lost packets may end the session.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> NodeOptions {
        let whole = Duration::from_secs(timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0)));
        self.session_timeout = whole.clamp(MIN_SESSION_TIMEOUT, Duration::from_secs(u64::from(u16::MAX)));
        self
    }

    /// Sets how long a client may take to send its Hello, at most 14 days.
    #[must_use]
    pub fn greeting_timeout(mut self, timeout: Duration) -> NodeOptions {
        self.greeting_timeout = timeout.min(LONGEST_TIMEOUT);
        self
    }

    /// Sets the bytes of one WRITE that no crash can tear, not even the node's: [`Caps::WHOLE_WRITE`] if the memory is
    /// lost with the node, 8 if it outlives the node.
    #[must_use]
    pub fn atomic_write_unit(mut self, bytes: u64) -> NodeOptions {
        self.atomic_write_unit = bytes;
        self
    }

    /// Returns the first address that other machines can reach, if `access` admits every client and that is not
    /// allowed.
    pub(super) fn exposed(&self, access: &NodeAccess) -> Option<SocketAddr> {
        let is_guarded = access.is_guarded() || self.exposure == Exposure::Anyone;
        self.listen.iter().copied().find(|addr| !is_guarded && !addr.ip().to_canonical().is_loopback())
    }
}

/// A node could not be started, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Other machines could access the memory without a token or a certificate.
    #[error(
        "{addr} can be reached from other machines, which could read and write all the memory: set a token, or TLS"
    )]
    Exposed {
        /// The address that can be reached.
        addr: SocketAddr,
    },
    /// The region's lanes do not execute in place, or lack a capability of the fabric.
    #[error("this region cannot be served: {what}")]
    Unsuitable {
        /// The missing capability.
        what: &'static str,
    },
    /// An address could not be listened on.
    #[error("could not listen on {addr}: {cause}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The kernel refused what the node needs.
    #[error("could not {what}: {cause}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// Bytes of the region were lost, and the node stopped. Its clients were informed.
    #[error("the memory of this node is lost: {reason}; all sessions have ended")]
    MemoryLost {
        /// The way in which the bytes were lost.
        reason: String,
    },
    /// A session could not be ended, so that its verbs may still execute, and the node stopped.
    #[error("a session could not be ended: {reason}; its client slots stay taken until this process ends")]
    Unended {
        /// The reason.
        reason: String,
    },
    /// A thread of the node panicked, and the node stopped.
    #[error("a thread of the node panicked; all sessions have ended")]
    Panicked,
}

impl NodeError {
    pub(super) fn thread(cause: io::Error) -> NodeError {
        NodeError::Io { what: "start a thread", cause: thread_refused(&cause) }
    }

    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> NodeError {
        move |cause| NodeError::Io { what, cause }
    }
}
