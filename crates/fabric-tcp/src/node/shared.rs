//! What the loops of a node share: who is connected, which session has which client slot, and how sessions ended.
//!
//! Invariants: a session is open or has ended, never both; it has ended only when its loop executes no more verbs of
//! it, and its slots are free. Nothing here is touched by a batch.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::Waker;
use mio::net::TcpStream;

use super::connections::Key;
use super::counters::{LoopCounters, NodeCounters};
use super::options::NodeOptions;
use crate::wire::{Fate, SessionId};

/// Sessions that ended and are remembered, so that their clients can be told.
const REMEMBERED_SESSIONS: usize = 4096;
/// Client slots whose liveness all sessions of a node have, at most: what the kernel does for one of them grows with
/// how many there are.
pub const MAX_NODE_HOLDS: u32 = 16_384;
/// Connections beyond the number of sessions: clients that have not greeted yet, and those that are being told why not.
const SPARE_CONNECTIONS: u32 = 256;

/// A connection, and the loop it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) loop_index: usize,
    pub(super) key: Key,
}

/// Why a session is dropped on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Another client asked for it.
    Fenced,
    /// Its own client has connected anew.
    Succeeded,
}

/// What one loop tells another.
pub(super) enum Message {
    /// A connection was accepted, and is the loop's from now on.
    Connected(TcpStream),
    /// A session is to be dropped; `asked` is to be told by `Dropped` when that is done.
    Drop { victim: Key, why: Why, asked: Place, request: u64 },
    /// The session that `asked` wanted to be dropped is gone.
    Dropped { asked: Key, request: u64, why: Why },
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

pub(super) struct Shared {
    pub(super) options: NodeOptions,
    pub(super) mailboxes: Vec<Mailbox>,
    pub(super) counters: Vec<LoopCounters>,
    stopping: AtomicBool,
    connections: AtomicU32,
    sessions: AtomicU32,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    slots: HashMap<u16, Place>,
    open: HashMap<SessionId, Place>,
    ended: HashMap<SessionId, Fate>,
    /// The sessions of `ended`, the oldest first.
    order: VecDeque<SessionId>,
}

impl Shared {
    pub(super) fn new(options: NodeOptions, mailboxes: Vec<Mailbox>) -> Shared {
        Shared {
            counters: mailboxes.iter().map(|_| LoopCounters::new()).collect(),
            options,
            mailboxes,
            stopping: AtomicBool::new(false),
            connections: AtomicU32::new(0),
            sessions: AtomicU32::new(0),
            registry: Mutex::default(),
        }
    }

    pub(super) fn sum(&self) -> NodeCounters {
        LoopCounters::sum(&self.counters)
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.mailboxes.iter().for_each(Mailbox::wake);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Makes room for a connection, if there may be another.
    pub(super) fn connect(&self) -> bool {
        take_one(&self.connections, self.options.max_sessions.saturating_add(SPARE_CONNECTIONS))
    }

    pub(super) fn disconnect(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes room for a session, if there may be another.
    pub(super) fn admit(&self) -> bool {
        take_one(&self.sessions, self.options.max_sessions)
    }

    pub(super) fn open(&self, session: SessionId, place: Place) {
        self.registry().open.insert(session, place);
    }

    /// The session's verbs are over and its slots are free.
    pub(super) fn close(&self, session: SessionId, place: Place, fate: Fate, slots: &[u16]) {
        let mut registry = self.registry();
        for slot in slots {
            registry.release(*slot, place);
        }
        registry.open.remove(&session);
        registry.ended.insert(session, fate);
        registry.order.push_back(session);
        if registry.order.len() > REMEMBERED_SESSIONS {
            let oldest = registry.order.pop_front();
            oldest.map(|oldest| registry.ended.remove(&oldest));
        }
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// Where a session is, if it is open.
    pub(super) fn find(&self, session: SessionId) -> Option<Place> {
        self.registry().open.get(&session).copied()
    }

    pub(super) fn fate(&self, session: SessionId) -> Fate {
        self.registry().ended.get(&session).copied().unwrap_or(Fate::Unknown)
    }

    /// Whether sessions have fewer slots than they may. Loops that ask at the same time may each get one more.
    pub(super) fn may_hold(&self) -> bool {
        self.registry().slots.len() < MAX_NODE_HOLDS as usize
    }

    pub(super) fn hold(&self, slot: u16, place: Place) {
        self.registry().slots.insert(slot, place);
    }

    /// The session at `place` does not have `slot` any more; somebody else may.
    pub(super) fn release(&self, slot: u16, place: Place) {
        self.registry().release(slot, place);
    }

    pub(super) fn holder(&self, slot: u16) -> Option<Place> {
        self.registry().slots.get(&slot).copied()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn release(&mut self, slot: u16, place: Place) {
        if self.slots.get(&slot) == Some(&place) {
            self.slots.remove(&slot);
        }
    }
}

fn take_one(count: &AtomicU32, limit: u32) -> bool {
    let more = |now: u32| now.checked_add(1).filter(|more| *more <= limit);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}
