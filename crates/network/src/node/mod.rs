//! The memory node: it serves the bytes of a region to clients that connect, by a [`Service`], and knows nothing of
//! tables.
//!
//! A [`Node`] has one thread per core, each with a poll of its own; a connection belongs to one thread, and its batches
//! execute in order on that thread. A session is a connection that has sent its Hello. It ends when its connection
//! does, when another client asks the node to drop it, when the kernel finds that the client's machine is gone, or when
//! the client does not read its replies. Then none of its verbs executes any more, and only then are its client slots
//! free: so a granted slot is the proof that its previous owner is dead.
//!
//! # Bounds
//! A session's buffers take at most [`MAX_SESSION_BYTES`]; it has at most [`MAX_HOLDS`] client slots, and all of them
//! together [`MAX_NODE_HOLDS`]. There are at most [`NodeOptions::max_sessions`] sessions, a quarter of them reserved
//! for clients with write access, and at most 256 more connections, 64 from one address, which may send no more than a
//! Hello: when there are more, the oldest is closed. Nothing is allocated per batch or verb once a connection's buffers
//! have grown to what it sends. With TLS a connection takes up to 200 KiB more, and each record of up to 16 KiB is
//! allocated.
//!
//! # Lost memory
//! A region may lose bytes while it is served: any process that may write its file may truncate it. The node checks the
//! region after each batch, and answers no batch that may have read lost bytes; about once a second it checks whether
//! all bytes are there. If not, every client gets the reason, and the node stops. A region that is not guarded ends the
//! process instead, when lost bytes are accessed (`ShmRegion::guard_against_truncation`).
//!
//! # Turns
//! A session has its turn for about half a millisecond, then others have theirs. Sessions with long turns wait for
//! those with short ones, and the kernel is polled for more of these after each long turn. Beside sixteen hostile
//! sessions, on two threads, 99 of 100 READs of an honest client take 1.0 ms, and half of them 0.2 ms, not counting the
//! time in which its thread or the node's waits for a processor; with plain round robin it is 1.7 ms and 0.8 ms. Turns
//! of 0.2 ms change nothing: one largest batch takes as long as a turn.
//!
//! The protocol is described in docs/wire.md.

mod access;
mod budget;
mod buffers;
mod connection;
mod connections;
mod counters;
mod event;
mod event_loop;
mod options;
mod pending;
mod service;
mod session;
mod shared;
#[cfg(feature = "tls")]
mod tls;
mod transport;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;

use guira_fabric::signals::without_signals;

use mio::net::TcpListener;
use mio::{Poll, Waker};

pub use access::NodeAccess;
pub use counters::{Buckets, Counter, LATENCY_BUCKETS, NodeCounters};
pub use event::{NodeEvent, NodeEventKind, TokenNumber};
pub use options::{NodeError, NodeOptions};
pub use service::{CloseCause, EndError, Request, Responder, Service};
pub use session::MAX_HOLDS;
pub use shared::MAX_NODE_HOLDS;

use buffers::{MAX_INPUT_BYTES, MAX_OUTPUT_BYTES};
use event_loop::{EventLoop, LoopParts, WAKER};
use shared::{Mailbox, Shared};

/// The connections that the kernel queues for a listener until they are accepted; it may allow fewer (`somaxconn`).
/// When a flood fills the queue, the kernel drops further requests, and a client retries only after a second; the
/// standard library uses 128.
const LISTEN_BACKLOG: i32 = 4096;

/// Maximum number of bytes of one session's buffers.
pub const MAX_SESSION_BYTES: usize = MAX_INPUT_BYTES + MAX_OUTPUT_BYTES;

const _: () = assert!(MAX_SESSION_BYTES == 2_191_400, "docs/wire.md states the memory of a session");

/// A memory node that listens, and does not serve clients yet.
pub struct Node<S> {
    service: S,
    shared: Arc<Shared>,
    loops: Vec<LoopParts>,
    local_addrs: Vec<SocketAddr>,
}

impl<S: Service> Node<S> {
    /// Creates a node that listens for clients of `service`.
    ///
    /// # Errors
    /// `Exposed` if other machines could connect without a token or TLS; `Unsuitable` if the region's lanes do not
    /// execute in place, or lack a capability of the fabric; `Listen`, `Io`.
    pub fn bind(service: S, options: NodeOptions) -> Result<Node<S>, NodeError> {
        if let Some(addr) = options.exposed(&options.access) {
            return Err(NodeError::Exposed { addr });
        }
        if let Some(what) = service.unsuitable() {
            return Err(NodeError::Unsuitable { what });
        }
        let mut listeners = Vec::new();
        let mut local_addrs = Vec::new();
        for addr in &options.listen {
            let failed = |cause| NodeError::Listen { addr: *addr, cause };
            let listener = TcpListener::bind(*addr).map_err(failed)?;
            // The second call changes only the length of the queue.
            rustix::net::listen(&listener, LISTEN_BACKLOG).map_err(|errno| failed(errno.into()))?;
            local_addrs.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        let (mut loops, mut mailboxes) = (Vec::new(), Vec::new());
        for _ in 0..options.threads {
            let poll = Poll::new().map_err(NodeError::io("make a poll"))?;
            let waker = Waker::new(poll.registry(), WAKER).map_err(NodeError::io("make a waker"))?;
            let (sender, inbox) = mpsc::channel();
            loops.push(LoopParts { poll, inbox, listeners: std::mem::take(&mut listeners) });
            mailboxes.push(Mailbox { sender, waker: Arc::new(waker) });
        }
        Ok(Node { service, shared: Arc::new(Shared::new(options, mailboxes)), loops, local_addrs })
    }

    /// Returns the addresses on which the node listens, in the order of the options.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Returns a function that reads the node's counters, at any time.
    pub fn counters(&self) -> impl Fn() -> NodeCounters + Clone + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.sum()
    }

    /// Serves clients, on this thread and others, until [`Stop::stop`] is called, a thread fails, bytes of the region are
    /// lost, or a session cannot be ended. Every other session has ended when this returns.
    ///
    /// # Errors
    /// `MemoryLost`, `Unended`, `Io`, `Panicked`.
    pub fn run(self, stop: &Stop) -> Result<(), NodeError> {
        stop.watch(&self.shared);
        let Node { service, shared, loops, .. } = self;
        let mut threads = Vec::new();
        let mut result = Ok(());
        let mut loops = loops.into_iter().enumerate();
        let first = loops.next();
        for (index, parts) in loops {
            let (service, shared) = (service.clone(), Arc::clone(&shared));
            let run = {
                let shared = Arc::clone(&shared);
                move || {
                    let _stop_all = StopAll(&shared);
                    EventLoop::new(&shared, index, service, parts).run()
                }
            };
            let builder = std::thread::Builder::new().name(format!("guira-node-{index}"));
            let spawned = without_signals(|| builder.spawn(run));
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(cause) => {
                    shared.stop();
                    result = Err(NodeError::thread(cause));
                    break;
                }
            }
        }
        if let Some((index, parts)) = first {
            let run = || {
                let _stop_all = StopAll(&shared);
                EventLoop::new(&shared, index, service, parts).run()
            };
            // A panic is reported like that of another thread. What it leaves is dropped.
            let ended = std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(NodeError::Panicked));
            result = result.and(ended);
        }
        for thread in threads {
            let ended = thread.join().unwrap_or(Err(NodeError::Panicked));
            result = result.and(ended);
        }
        let lost = |reason: &str| Err(NodeError::MemoryLost { reason: reason.to_owned() });
        let unended = |reason: &str| Err(NodeError::Unended { reason: reason.to_owned() });
        result.and(shared.memory_loss().map_or(Ok(()), lost)).and(shared.unended().map_or(Ok(()), unended))
    }

    /// Serves clients on new threads.
    ///
    /// # Errors
    /// `Io` if a thread cannot be started.
    pub fn spawn(self) -> Result<NodeHandle, NodeError> {
        let stop = Stop::new();
        let (local_addrs, shared) = (self.local_addrs.clone(), Arc::clone(&self.shared));
        let run = {
            let stop = stop.clone();
            move || self.run(&stop)
        };
        let builder = std::thread::Builder::new().name("guira-node-0".to_owned());
        let thread = without_signals(|| builder.spawn(run)).map_err(NodeError::thread)?;
        Ok(NodeHandle { stop, local_addrs, shared, thread: Some(thread) })
    }
}

/// A guard that stops all loops when one ends for any reason.
struct StopAll<'s>(&'s Shared);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A handle to stop a node: the node accepts no more connections, sends every client a Close, and ends within two
/// seconds. Clones stop the same node.
#[derive(Clone, Default)]
pub struct Stop {
    inner: Arc<Stopping>,
}

#[derive(Default)]
struct Stopping {
    is_set: AtomicBool,
    nodes: Mutex<Vec<Weak<Shared>>>,
}

impl Stop {
    /// Creates a handle that has not been used.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Stops the node, now or as soon as it is run.
    pub fn stop(&self) {
        self.inner.is_set.store(true, Ordering::SeqCst);
        let nodes = self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.iter().filter_map(Weak::upgrade).for_each(|shared| shared.stop());
    }

    fn watch(&self, shared: &Arc<Shared>) {
        self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(shared));
        if self.inner.is_set.load(Ordering::SeqCst) {
            shared.stop();
        }
    }
}

/// A running node. It stops when the handle is dropped.
pub struct NodeHandle {
    stop: Stop,
    local_addrs: Vec<SocketAddr>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), NodeError>>>,
}

impl NodeHandle {
    /// Returns the addresses on which the node listens, in the order of the options.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Returns the node's counters.
    pub fn counters(&self) -> NodeCounters {
        self.shared.sum()
    }

    /// Replaces the access control. Open sessions continue, whatever their token or certificate; connections without a
    /// session are closed when they send their Hello, and those clients connect again.
    ///
    /// # Errors
    /// `Exposed` if `access` admits every client and other machines can connect. Nothing was changed.
    pub fn set_access(&self, access: NodeAccess) -> Result<(), NodeError> {
        if let Some(addr) = self.shared.options.exposed(&access) {
            return Err(NodeError::Exposed { addr });
        }
        self.shared.set_access(access);
        Ok(())
    }

    /// Whether the node runs. It ends by itself only if one of its threads fails, bytes of the region are lost, or a
    /// session cannot be ended; [`NodeHandle::stop`] returns the reason.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the node and waits for its end: at most two seconds.
    ///
    /// # Errors
    /// `Io` or `Panicked` if a thread of the node failed; `MemoryLost` if bytes of the region were lost; `Unended` if
    /// verbs of a session may still execute.
    pub fn stop(mut self) -> Result<(), NodeError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), NodeError> {
        self.stop.stop();
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Err(NodeError::Panicked)))
    }
}

impl Drop for NodeHandle {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!(%error, "the memory node failed");
        }
    }
}
