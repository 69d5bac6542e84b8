//! What the loops of a node share: who is connected, which session has which client slot, and how sessions ended.
//!
//! Invariants: a session is open or has ended, never both; it has ended only when its loop executes no more verbs of
//! it, and its slots are free. Nothing here is touched by a batch.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mio::Waker;
use mio::net::TcpStream;

use super::access::NodeAccess;
use super::connections::Key;
use super::counters::{LoopCounters, NodeCounters};
use super::options::NodeOptions;
use super::pending::{Evicted, PendingConnections, PendingId, network};
use crate::wire::{CloseReason, Grant, PriorSession, SessionId};

/// Sessions that ended and are remembered, so that their clients can be told.
const REMEMBERED_SESSIONS: usize = 4096;
/// Client slots whose liveness all sessions of a node have, at most: what the kernel does for one of them grows with
/// how many there are.
pub const MAX_NODE_HOLDS: u32 = 16_384;
/// Sessions that only clients have that may write: one of so many. Readers cannot take them.
const WRITERS_SHARE: u32 = 4;

/// A connection, and the loop it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId {
    pub(super) loop_index: usize,
    pub(super) key: Key,
}

/// Why a session is dropped on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropReason {
    /// Another client asked for it.
    Fenced,
    /// Its own client has connected anew.
    Superseded,
}

/// What one loop tells another.
pub(super) enum Message {
    /// A connection was accepted, and is the loop's from now on.
    Connected { stream: TcpStream, peer: SocketAddr, pending_id: PendingId },
    /// A connection without a session has to go, because another came.
    Evict { victim: Key, pending_id: PendingId },
    /// A session is to be dropped, because session `by` of that client wants it; `asked` is to be told by `Dropped`
    /// when that is done.
    Drop { victim: Key, drop_reason: DropReason, asked: ConnectionId, request: u64, by: Option<(u64, SocketAddr)> },
    /// The session that `asked` wanted to be dropped is gone.
    Dropped { asked: Key, request: u64, drop_reason: DropReason },
}

/// The way to a loop.
pub(super) struct Mailbox {
    pub(super) sender: Sender<Message>,
    pub(super) waker: Arc<Waker>,
}

impl Mailbox {
    /// Tells the loop. One that has ended hears nothing, and has no session left.
    pub(super) fn send(&self, message: Message) {
        if self.sender.send(message).is_ok() {
            self.wake();
        }
    }

    /// Wakes the loop. Nothing is lost if the kernel refuses: loops look around once a second.
    pub(super) fn wake(&self) {
        if let Err(cause) = self.waker.wake() {
            tracing::warn!(%cause, "a loop of the memory node could not be woken");
        }
    }
}

/// A session that is over.
pub(super) struct Ended {
    pub(super) session: SessionId,
    pub(super) number: u64,
    pub(super) grant: Grant,
    pub(super) addr: IpAddr,
    /// The slots that it had.
    pub(super) slots: Vec<u16>,
}

pub(super) struct Shared {
    pub(super) options: NodeOptions,
    pub(super) mailboxes: Vec<Mailbox>,
    pub(super) counters: Vec<LoopCounters>,
    /// Who is let in now; the options say who was at first.
    access: Mutex<Arc<NodeAccess>>,
    pub(super) pending: PendingConnections,
    stopping: AtomicBool,
    /// How bytes of the region were lost, if they were.
    lost: OnceLock<String>,
    sessions: AtomicU32,
    /// The number of the last session that began.
    last_session: AtomicU64,
    /// Those of them that may only read.
    readers: AtomicU32,
    /// Sessions by address, where these are limited.
    by_address: Mutex<HashMap<[u8; 8], u32>>,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    slots: HashMap<u16, ConnectionId>,
    open: HashMap<SessionId, ConnectionId>,
    ended: HashMap<SessionId, PriorSession>,
    /// The sessions of `ended`, the oldest first.
    order: VecDeque<SessionId>,
}

impl Shared {
    pub(super) fn new(options: NodeOptions, mailboxes: Vec<Mailbox>) -> Shared {
        Shared {
            counters: mailboxes.iter().map(|_| LoopCounters::new()).collect(),
            access: Mutex::new(Arc::new(options.access.clone())),
            options,
            mailboxes,
            pending: PendingConnections::default(),
            stopping: AtomicBool::new(false),
            lost: OnceLock::new(),
            sessions: AtomicU32::new(0),
            last_session: AtomicU64::new(0),
            readers: AtomicU32::new(0),
            by_address: Mutex::default(),
            registry: Mutex::default(),
        }
    }

    pub(super) fn sum(&self) -> NodeCounters {
        LoopCounters::sum(&self.counters)
    }

    /// Who is let in.
    pub(super) fn access(&self) -> Arc<NodeAccess> {
        Arc::clone(&self.access.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_access(&self, access: NodeAccess) {
        *self.access.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.mailboxes.iter().for_each(Mailbox::wake);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Stops the node, because bytes of the region are gone. False if that was known.
    pub(super) fn lose_memory(&self, reason: String) -> bool {
        let is_first = self.lost.set(reason).is_ok();
        self.stop();
        is_first
    }

    /// How bytes of the region were lost, if they were.
    pub(super) fn memory_loss(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Tells a connection's loop that it has to go. One that no loop has yet finds out by itself.
    pub(super) fn evict(&self, Evicted { pending_id, connection_id }: Evicted) {
        if let Some(ConnectionId { loop_index, key }) = connection_id {
            self.mailboxes[loop_index].send(Message::Evict { victim: key, pending_id });
        }
    }

    /// Makes room for a session of a client at `addr`.
    ///
    /// # Errors
    /// Why there may be no other: `Full`, `AddressFull`.
    pub(super) fn admit(&self, grant: Grant, addr: IpAddr) -> Result<(), CloseReason> {
        if let Some(limit) = self.options.max_sessions_per_address {
            let mut by_address = self.by_address();
            let sessions = by_address.entry(network(addr)).or_default();
            if *sessions >= limit {
                return Err(CloseReason::AddressFull { limit });
            }
            *sessions += 1;
        }
        self.admit_from_anywhere(grant).map_err(|limit| {
            self.release_address(addr);
            CloseReason::Full { limit }
        })
    }

    fn admit_from_anywhere(&self, grant: Grant) -> Result<(), u32> {
        let limit = self.options.max_sessions;
        let of_readers = match self.options.grant {
            Grant::ReadWrite => limit - limit / WRITERS_SHARE,
            Grant::ReadOnly => limit,
        };
        if grant == Grant::ReadOnly && !try_increment(&self.readers, of_readers) {
            return Err(of_readers);
        }
        if try_increment(&self.sessions, limit) {
            return Ok(());
        }
        self.release_reader(grant);
        Err(limit)
    }

    /// Gives the place of a session at `addr` back.
    fn release_address(&self, addr: IpAddr) {
        if self.options.max_sessions_per_address.is_none() {
            return;
        }
        let mut by_address = self.by_address();
        let network = network(addr);
        if let Some(sessions) = by_address.get_mut(&network) {
            *sessions -= 1;
            if *sessions == 0 {
                by_address.remove(&network);
            }
        }
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<[u8; 8], u32>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_reader(&self, grant: Grant) {
        if grant == Grant::ReadOnly {
            self.readers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A session's number, for people: nobody can do anything with it.
    pub(super) fn next_session_number(&self) -> u64 {
        self.last_session.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn open(&self, session: SessionId, connection_id: ConnectionId) {
        self.registry().open.insert(session, connection_id);
    }

    /// The session's verbs are over and its slots are free.
    pub(super) fn close(
        &self,
        Ended { session, grant, addr, slots, .. }: &Ended,
        connection_id: ConnectionId,
        outcome: PriorSession,
    ) {
        let mut registry = self.registry();
        for slot in slots {
            registry.release(*slot, connection_id);
        }
        registry.open.remove(session);
        registry.ended.insert(*session, outcome);
        registry.order.push_back(*session);
        if registry.order.len() > REMEMBERED_SESSIONS {
            let oldest = registry.order.pop_front();
            oldest.map(|oldest| registry.ended.remove(&oldest));
        }
        self.release_address(*addr);
        self.release_reader(*grant);
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// Where a session is, if it is open.
    pub(super) fn find(&self, session: SessionId) -> Option<ConnectionId> {
        self.registry().open.get(&session).copied()
    }

    pub(super) fn prior_session(&self, session: SessionId) -> PriorSession {
        self.registry().ended.get(&session).copied().unwrap_or(PriorSession::Unknown)
    }

    /// Whether sessions have fewer slots than they may. Loops that ask at the same time may each get one more.
    pub(super) fn may_hold(&self) -> bool {
        self.registry().slots.len() < MAX_NODE_HOLDS as usize
    }

    pub(super) fn hold(&self, slot: u16, connection_id: ConnectionId) {
        self.registry().slots.insert(slot, connection_id);
    }

    /// The session at `place` does not have `slot` any more; somebody else may.
    pub(super) fn release(&self, slot: u16, connection_id: ConnectionId) {
        self.registry().release(slot, connection_id);
    }

    pub(super) fn holder(&self, slot: u16) -> Option<ConnectionId> {
        self.registry().slots.get(&slot).copied()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn release(&mut self, slot: u16, connection_id: ConnectionId) {
        if self.slots.get(&slot) == Some(&connection_id) {
            self.slots.remove(&slot);
        }
    }
}

fn try_increment(count: &AtomicU32, limit: u32) -> bool {
    let more = |now: u32| now.checked_add(1).filter(|more| *more <= limit);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}
