//! The state that the loops of a node share: the open sessions, the client slots that they have, and how sessions
//! ended.
//!
//! Invariants: a session is open or has ended, never both; it has ended only when its loop executes no more verbs of it
//! and its slots are free. A batch uses nothing of this state.

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

/// The ended sessions whose outcome is remembered for their clients.
const REMEMBERED_SESSIONS: usize = 4096;
/// Maximum number of client slots of all sessions of a node: the kernel's work for one slot grows with their number.
pub const MAX_NODE_HOLDS: u32 = 16_384;
/// The divisor of the share of sessions that is reserved for clients with write access.
const WRITERS_SHARE: u32 = 4;

/// The id of a connection in the node: its loop, and its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId {
    pub(super) loop_index: usize,
    pub(super) key: Key,
}

/// The reason why a session is dropped on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DropReason {
    /// Another client requested it.
    Fenced,
    /// Its own client has connected again.
    Superseded,
}

/// A message from one loop to another.
pub(super) enum Message {
    /// A connection was accepted, and belongs to the receiving loop.
    Connected { stream: TcpStream, peer: SocketAddr, pending_id: PendingId },
    /// A connection without a session is to be closed to make room for another.
    Evict { victim: Key, pending_id: PendingId },
    /// A session is to be dropped; `requester` gets `Dropped` when that is done. `by` is the number and the client of
    /// the session that requested it, if another one did.
    Drop { victim: Key, drop_reason: DropReason, requester: ConnectionId, request: u64, by: Option<(u64, SocketAddr)> },
    /// The session that `requester` wanted to drop is gone.
    Dropped { requester: Key, request: u64, drop_reason: DropReason },
}

/// The mailbox of a loop.
pub(super) struct Mailbox {
    pub(super) sender: Sender<Message>,
    pub(super) waker: Arc<Waker>,
}

impl Mailbox {
    /// Sends a message. It is lost if the loop has ended, which has no session left then.
    pub(super) fn send(&self, message: Message) {
        if self.sender.send(message).is_ok() {
            self.wake();
        }
    }

    /// Wakes the loop. If the kernel refuses, no message is lost: loops wake up by themselves once a second.
    pub(super) fn wake(&self) {
        if let Err(cause) = self.waker.wake() {
            tracing::warn!(%cause, "a loop of the memory node could not be woken");
        }
    }
}

/// A session that has ended.
pub(super) struct EndedSession {
    pub(super) session: SessionId,
    pub(super) number: u64,
    pub(super) grant: Grant,
    pub(super) addr: IpAddr,
    /// The client slots that it had.
    pub(super) slots: Vec<u16>,
}

pub(super) struct Shared {
    pub(super) options: NodeOptions,
    pub(super) mailboxes: Vec<Mailbox>,
    pub(super) counters: Vec<LoopCounters>,
    /// The current access control; the options have the initial one.
    access: Mutex<Arc<NodeAccess>>,
    pub(super) pending: PendingConnections,
    stopping: AtomicBool,
    /// The way in which bytes of the region were lost, if they were.
    lost: OnceLock<String>,
    /// The reason why a session could not be ended, if that happened.
    unended: OnceLock<String>,
    sessions: AtomicU32,
    /// The number of the last session that started.
    last_session: AtomicU64,
    /// The sessions with read-only access.
    readers: AtomicU32,
    /// The number of sessions by address, if it is limited.
    by_address: Mutex<HashMap<[u8; 8], u32>>,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    slots: HashMap<u16, ConnectionId>,
    open: HashMap<SessionId, ConnectionId>,
    ended: HashMap<SessionId, PriorSession>,
    /// The sessions of `ended`, oldest first.
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
            unended: OnceLock::new(),
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

    /// Returns the current access control.
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

    /// Stops the node, because bytes of the region are lost. Returns false if that was known.
    pub(super) fn lose_memory(&self, reason: String) -> bool {
        let is_first = self.lost.set(reason).is_ok();
        self.stop();
        is_first
    }

    /// Returns how bytes of the region were lost, if they were.
    pub(super) fn memory_loss(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Stops the node, because verbs of session `number` may still execute.
    pub(super) fn fail_to_end(&self, number: u64, reason: &str) {
        tracing::error!(session = number, reason, "a session could not be ended; the memory node stops");
        // The first of several is reported.
        let _ = self.unended.set(reason.to_owned());
        self.stop();
    }

    /// Returns the reason why a session could not be ended, if that happened.
    pub(super) fn unended(&self) -> Option<&str> {
        self.unended.get().map(String::as_str)
    }

    /// Asks a connection's loop to close it. The eviction of a connection that no loop has yet is noticed by its loop.
    pub(super) fn evict(&self, Evicted { pending_id, connection_id }: Evicted) {
        if let Some(ConnectionId { loop_index, key }) = connection_id {
            self.mailboxes[loop_index].send(Message::Evict { victim: key, pending_id });
        }
    }

    /// Reserves a session for a client at `addr`.
    ///
    /// # Errors
    /// `Full` or `AddressFull` if there may be no further session.
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

    /// Gives back the reservation of a session at `addr`.
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

    /// Returns the number of a new session. It appears in logs only, and grants nothing.
    pub(super) fn next_session_number(&self) -> u64 {
        self.last_session.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn open(&self, session: SessionId, connection_id: ConnectionId) {
        self.registry().open.insert(session, connection_id);
    }

    /// Notes that a session has ended: its verbs execute no more, and its slots are free.
    pub(super) fn close(
        &self,
        EndedSession { session, grant, addr, slots, .. }: &EndedSession,
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

    /// Returns the connection of a session, if it is open.
    pub(super) fn find(&self, session: SessionId) -> Option<ConnectionId> {
        self.registry().open.get(&session).copied()
    }

    pub(super) fn prior_session(&self, session: SessionId) -> PriorSession {
        self.registry().ended.get(&session).copied().unwrap_or(PriorSession::Unknown)
    }

    /// Whether sessions may have one more client slot. Loops that ask at the same time may each exceed the bound by
    /// one.
    pub(super) fn may_hold(&self) -> bool {
        self.registry().slots.len() < MAX_NODE_HOLDS as usize
    }

    pub(super) fn hold(&self, slot: u16, connection_id: ConnectionId) {
        self.registry().slots.insert(slot, connection_id);
    }

    /// Notes that the session at `connection_id` no longer has `slot`.
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
