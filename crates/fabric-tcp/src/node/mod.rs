//! The memory node: it executes verbs on the bytes of a region for clients that connect, and knows nothing of tables.
//!
//! A [`Node`] is one thread per core with a poll of its own; a connection belongs to one of them, and its batches
//! execute in order on that thread. A session is a connection that has greeted the node. It ends when its connection
//! does, when somebody asks the node to drop it, when the kernel finds that the client's machine is gone, or when the
//! client does not take its answers. Then none of its verbs executes any more, and only then are the client slots free
//! that it had: so whoever is granted a slot has the proof that its last owner is dead.
//!
//! # Bounds
//! A session's buffers take at most [`MAX_SESSION_BYTES`]; it has at most [`MAX_HOLDS`] client slots, and all of them
//! together [`MAX_NODE_HOLDS`]. There are as many sessions as [`NodeOptions::max_sessions`] allows, a quarter of them
//! for clients that may write, and at most 256 more connections, 64 from one address, which may send no more than a
//! greeting: when there are more, the oldest goes. Nothing is allocated per batch or verb once a connection's buffers
//! have grown to what it sends. With TLS a connection takes up to 200 KiB more, and each record of up to 16 KiB is
//! allocated.
//!
//! # Lost memory
//! A region may lose bytes while it is served: whoever may write its file may truncate it. The node asks the region
//! after each batch, and answers none that may have found what was lost; about once a second it asks whether all bytes
//! are there. If not, every client is told why, and the node ends. A region that is not guarded ends the process
//! instead, when what is gone is touched (`ShmRegion::guard_against_truncation`).
//!
//! # Turns
//! A session has its turn for about half a millisecond, then others have theirs. Sessions whose turns take long wait
//! for those whose turns do not, and the kernel is asked for more of these after each long turn. Beside sixteen
//! sessions that do all they can, on two threads, 99 of 100 READs of an honest client take 1.0 ms, and half of them 0.2
//! ms, beside the time in which its thread or the node's has no processor; where all take their turns in a row it is
//! 1.7 ms and 0.8 ms. Turns of 0.2 ms change nothing: one largest batch takes as long as a turn.
//!
//! What goes over the wire is docs/wire.md.

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
mod session;
mod shared;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod transport;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;

use guira_fabric::{MaskedCas, Region};
use mio::net::TcpListener;
use mio::{Poll, Waker};

pub use access::NodeAccess;
pub use counters::{Buckets, LATENCY_BUCKETS, NodeCounters};
pub use event::{NodeEvent, NodeEventKind, TokenNumber};
pub use options::{NodeError, NodeOptions};
pub use session::MAX_HOLDS;
pub use shared::MAX_NODE_HOLDS;

use crate::wire::{MAX_BATCH_VERBS, MAX_VERB_WORDS};
use buffers::{MAX_INPUT_BYTES, MAX_OUTPUT_BYTES};
use event_loop::{EventLoop, LoopParts, WAKER};
use shared::{Mailbox, Shared};

/// Connections that the kernel keeps for a listener until they are accepted; it may allow fewer (`somaxconn`). Of a
/// flood that fills its queue the kernel drops what comes, and a client asks again only after a second; the standard
/// library asks for 128.
const LISTEN_BACKLOG: i32 = 4096;

/// Bytes of one session's buffers, at most.
pub const MAX_SESSION_BYTES: usize = MAX_INPUT_BYTES + MAX_OUTPUT_BYTES;

const _: () = assert!(MAX_SESSION_BYTES == 2_191_400, "docs/wire.md says how much a session takes");

/// A region that a node can serve.
trait NodeRegion: Region + Clone + Send + 'static {}

impl<R: Region + Clone + Send + 'static> NodeRegion for R {}

/// A memory node that listens, and serves nobody yet.
pub struct Node<R> {
    region: R,
    shared: Arc<Shared>,
    loops: Vec<LoopParts>,
    local_addrs: Vec<SocketAddr>,
}

impl<R> Node<R>
where
    R: Region + Clone + Send + Sync + 'static,
{
    /// A node that listens for clients of `region`.
    ///
    /// # Errors
    /// `Exposed` if it would listen to other machines without a token or TLS; `Unsuitable` if the region's lanes do not
    /// execute in place, or promise less than this fabric does; `Listen`, `Io`.
    pub fn bind(region: R, options: NodeOptions) -> Result<Node<R>, NodeError> {
        if let Some(addr) = options.exposed(&options.access) {
            return Err(NodeError::Exposed { addr });
        }
        require_suitable(&region)?;
        let mut listeners = Vec::new();
        let mut local_addrs = Vec::new();
        for addr in &options.listen {
            let failed = |cause| NodeError::Listen { addr: *addr, cause };
            let listener = TcpListener::bind(*addr).map_err(failed)?;
            // The second call changes how many may wait, and nothing else.
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
        Ok(Node { region, shared: Arc::new(Shared::new(options, mailboxes)), loops, local_addrs })
    }

    /// Where it listens, in the order of the options.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// What it has counted, for as long as anybody asks.
    pub fn counters(&self) -> impl Fn() -> NodeCounters + Clone + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.sum()
    }

    /// Serves clients until `stop` is told to stop, a thread fails, or bytes of the region are found to be gone; then
    /// every session has ended.
    ///
    /// # Errors
    /// `MemoryLost`, `Io`, `Panicked`.
    pub fn run(self, stop: &Stop) -> Result<(), NodeError> {
        stop.watch(&self.shared);
        let Node { region, shared, loops, .. } = self;
        let mut threads = Vec::new();
        let mut result = Ok(());
        for (index, parts) in loops.into_iter().enumerate() {
            let (region, shared) = (region.clone(), Arc::clone(&shared));
            let spawned = std::thread::Builder::new().name(format!("guira-node-{index}")).spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let _stop_all = StopAll(&shared);
                    EventLoop::new(&shared, index, region, parts).run()
                }
            });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(cause) => {
                    shared.stop();
                    result = Err(NodeError::Io { what: "start a thread", cause });
                    break;
                }
            }
        }
        for thread in threads {
            let ended = thread.join().unwrap_or(Err(NodeError::Panicked));
            result = result.and(ended);
        }
        let lost = |reason: &str| Err(NodeError::MemoryLost { reason: reason.to_owned() });
        result.and(shared.memory_loss().map_or(Ok(()), lost))
    }

    /// Serves clients on threads of its own.
    ///
    /// # Errors
    /// `Io`, if there are no threads.
    pub fn spawn(self) -> Result<NodeHandle, NodeError> {
        let stop = Stop::new();
        let (local_addrs, shared) = (self.local_addrs.clone(), Arc::clone(&self.shared));
        let thread = std::thread::Builder::new()
            .name("guira-node".to_owned())
            .spawn({
                let stop = stop.clone();
                move || self.run(&stop)
            })
            .map_err(NodeError::io("start a thread"))?;
        Ok(NodeHandle { stop, local_addrs, shared, thread: Some(thread) })
    }
}

/// Stops all loops when one ends, however it ends.
struct StopAll<'s>(&'s Shared);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn require_suitable<R: Region>(region: &R) -> Result<(), NodeError> {
    let caps = region.caps();
    let what = if !caps.local {
        "its lanes do not execute in place"
    } else if caps.masked_cas == MaskedCas::CasLoop {
        "it has no masked CAS"
    } else if caps.max_batch < MAX_BATCH_VERBS || caps.max_verb_words < MAX_VERB_WORDS {
        "its batches or verbs are shorter than those of this fabric"
    } else {
        return Ok(());
    };
    Err(NodeError::Unsuitable { what })
}

/// Tells a running node to stop: it accepts nobody, tells every client, and ends within a second or two. Clones stop
/// the same node.
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
    /// One that nobody has set.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Stops the node, now or when it is run.
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

/// A node that is running. It stops when this is dropped.
pub struct NodeHandle {
    stop: Stop,
    local_addrs: Vec<SocketAddr>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), NodeError>>>,
}

impl NodeHandle {
    /// Where it listens, in the order of the options.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// What it has counted.
    pub fn counters(&self) -> NodeCounters {
        self.shared.sum()
    }

    /// Lets in whom `access` lets in, from now on. Sessions that are open go on, whatever they have shown.
    ///
    /// # Errors
    /// `Exposed` if it keeps nobody out and the node listens to other machines. Nothing was changed.
    pub fn set_access(&self, access: NodeAccess) -> Result<(), NodeError> {
        if let Some(addr) = self.shared.options.exposed(&access) {
            return Err(NodeError::Exposed { addr });
        }
        self.shared.set_access(access);
        Ok(())
    }

    /// Whether the node runs. It ends by itself only if a thread of it fails, or bytes of the region are gone, and
    /// [`NodeHandle::stop`] tells why.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the node and waits for its end: at most a second or two.
    ///
    /// # Errors
    /// `Io`, `Panicked`, if a thread of the node failed; `MemoryLost`, if it had ended for that.
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
