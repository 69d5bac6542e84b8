//! What a node is asked to do, and why it could not.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use guira_fabric::Caps;

use super::access::NodeAccess;
use super::event::{NodeEvent, Observer};
#[cfg(feature = "tls")]
use crate::tls::TlsServer;
use crate::wire::{Grant, Token};

/// Sessions at a time, unless asked otherwise.
const DEFAULT_SESSIONS: u32 = 1024;
/// How long a client's machine may be silent, unless asked otherwise.
const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to greet the node, unless asked otherwise.
const DEFAULT_GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest timeout of sessions: the kernel counts in seconds.
const MIN_SESSION_TIMEOUT: Duration = Duration::from_secs(1);
/// Threads, at most: more than any machine has cores for.
const MAX_THREADS: usize = 1024;

/// What a node does, and for whom.
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

/// Who may connect from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exposure {
    Authenticated,
    Anyone,
}

impl NodeOptions {
    /// A node that listens on `listen` (port 0: one that is free), with a thread per core, 1,024 sessions, no token,
    /// and memory whose bytes die with it. `region_id` names the memory: memory that came back empty must have another.
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

    /// Speaks TLS only, and lets those in who show a certificate that `tls` takes. A token may be wanted besides.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: TlsServer) -> NodeOptions {
        self.access = self.access.tls(tls);
        self
    }

    /// Listens on `addr`, too.
    #[must_use]
    pub fn listen(mut self, addr: SocketAddr) -> NodeOptions {
        self.listen.push(addr);
        self
    }

    /// How many threads serve sessions: 1 to 1,024. Each session belongs to one.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> NodeOptions {
        self.threads = threads.clamp(1, MAX_THREADS);
        self
    }

    /// Tells `observer` who comes, who is refused and who drops whom: on the node's threads, so it must not wait.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(&NodeEvent) + Send + Sync + 'static) -> NodeOptions {
        self.observer = Observer(Some(Arc::new(observer)));
        self
    }

    /// Lets in whom `access` lets in, and nobody else.
    #[must_use]
    pub fn access(mut self, access: NodeAccess) -> NodeOptions {
        self.access = access;
        self
    }

    /// Lets nobody in who does not know `token`, another one that was named so, or one of
    /// [`NodeOptions::reader_token`].
    #[must_use]
    pub fn token(mut self, token: Token) -> NodeOptions {
        self.access = self.access.token(token);
        self
    }

    /// Lets those who know `token` read, and do nothing else.
    #[must_use]
    pub fn reader_token(mut self, token: Token) -> NodeOptions {
        self.access = self.access.reader_token(token);
        self
    }

    /// What any session may do, at most.
    #[must_use]
    pub fn grant(mut self, grant: Grant) -> NodeOptions {
        self.grant = grant;
        self
    }

    /// Listens to other machines without a token or TLS: anybody who reaches the address may read and write all the
    /// memory.
    #[must_use]
    pub fn insecure(mut self) -> NodeOptions {
        self.exposure = Exposure::Anyone;
        self
    }

    /// Sessions at a time, at most; a quarter of them is kept for clients that may write, if any may.
    #[must_use]
    pub fn max_sessions(mut self, sessions: u32) -> NodeOptions {
        self.max_sessions = sessions;
        self
    }

    /// Sessions at a time of one address, at most, which of IPv6 is the first 64 bits; no limit of its own unless one
    /// is set, because the clients of a whole site may come from one address, and a limit would turn honest ones away.
    #[must_use]
    pub fn max_sessions_per_address(mut self, sessions: u32) -> NodeOptions {
        self.max_sessions_per_address = Some(sessions);
        self
    }

    /// How long a client's machine may be silent, or a client not take its answers, before its session is dropped: at
    /// least a second, in whole seconds. A process that is stopped is not silent: its kernel answers for it. From 4 s
    /// on an idle host is asked three times before; below that one or two lost packets may cost its session.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> NodeOptions {
        let whole = Duration::from_secs(timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0));
        self.session_timeout = whole.clamp(MIN_SESSION_TIMEOUT, Duration::from_secs(u64::from(u16::MAX)));
        self
    }

    /// How long a client may take to greet the node.
    #[must_use]
    pub fn greeting_timeout(mut self, timeout: Duration) -> NodeOptions {
        self.greeting_timeout = timeout;
        self
    }

    /// Bytes of one WRITE that no death can tear, the node's included: [`Caps::WHOLE_WRITE`] if the bytes die with the
    /// node, 8 if they outlive it.
    #[must_use]
    pub fn atomic_write_unit(mut self, bytes: u64) -> NodeOptions {
        self.atomic_write_unit = bytes;
        self
    }

    /// The first address that other machines reach, if `access` does not keep them out and they may not come in so.
    pub(super) fn exposed(&self, access: &NodeAccess) -> Option<SocketAddr> {
        let is_guarded = access.is_guarded() || self.exposure == Exposure::Anyone;
        self.listen.iter().copied().find(|addr| !is_guarded && !addr.ip().to_canonical().is_loopback())
    }
}

/// A node could not be started, or could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Other machines would reach the memory without a token or a certificate.
    #[error("{addr} can be reached from other machines, who could read and write all the memory: set a token, or TLS")]
    Exposed {
        /// The address.
        addr: SocketAddr,
    },
    /// The region is not one whose bytes this process touches itself, or promises less than the fabric does.
    #[error("this region cannot be served: {what}")]
    Unsuitable {
        /// What it lacks.
        what: &'static str,
    },
    /// An address could not be listened on.
    #[error("could not listen on {addr}: {cause}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why.
        cause: io::Error,
    },
    /// The kernel refused what the node needs.
    #[error("could not {what}: {cause}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
    /// Bytes of the region were lost, and the node ended. Its clients were told.
    #[error("the memory that was served is lost: {reason}; all sessions have ended")]
    MemoryLost {
        /// How.
        reason: String,
    },
    /// A thread of the node panicked, and the node ended.
    #[error("a thread of the node panicked; all of its sessions have ended")]
    Panicked,
}

impl NodeError {
    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> NodeError {
        move |cause| NodeError::Io { what, cause }
    }
}
