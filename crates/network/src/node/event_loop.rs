//! An event loop: a thread, its poll and its connections; the first loop has the listeners, too.
//!
//! Invariants: an iteration of the loop gives each ready connection one turn, however much it has to do; every
//! connection that needs more than its turn is queued for the next iteration; only the poll blocks. Heavy connections,
//! whose turns take long, have their turns after the others, and the kernel is polled for others every [`HEAVY_TIME`]:
//! so a light connection waits for at most one long turn, and each heavy one still has its turn.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use guira_fabric::Region;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::connection::{Connection, LINGER, LoopContext, TurnOutcome};
use super::connections::{Connections, Key};
use super::counters::Counter;
use super::options::NodeError;
use super::pending::{PendingId, Phase};
use super::service::Service;
use super::shared::{ConnectionId, Message, Shared};
use super::transport::Transport;
use crate::wire::PriorSession;

/// Maximum number of events of one poll.
const MAX_EVENTS: usize = 1024;
/// Maximum number of connections that are accepted in one iteration: each takes some ten system calls.
const MAX_ACCEPTS: usize = 16;
/// Maximum number of messages that are handled in one iteration, and the maximum time for them.
const MAX_MESSAGES: usize = 1024;
const MESSAGES_TIME: Duration = Duration::from_micros(500);
/// Time for which heavy connections have their turns before the kernel is polled again.
const HEAVY_TIME: Duration = Duration::from_micros(500);
/// The initial capacity of the queue of heavy connections.
const HEAVY_CAPACITY: usize = 64;
/// The shortest and the longest period between two checks of the deadlines.
const MIN_SWEEP: Duration = Duration::from_millis(10);
const MAX_SWEEP: Duration = Duration::from_secs(1);
/// Time for which no connection is accepted after an accept failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The token of a loop's waker. Those of connections have a clear highest bit.
pub(super) const WAKER: Token = Token(usize::MAX);
const FIRST_LISTENER: usize = 1 << 63;

/// The parts of a loop that are created before its thread.
pub(super) struct LoopParts {
    pub(super) poll: Poll,
    pub(super) inbox: Receiver<Message>,
    /// The listeners; empty except in the first loop.
    pub(super) listeners: Vec<TcpListener>,
}

/// A running event loop.
pub(super) struct EventLoop<'l, S: Service> {
    context: LoopContext<'l, S>,
    parts: LoopParts,
    connections: Connections<Connection<S::Session>>,
    /// The light connections that are due for a turn.
    ready: Vec<Key>,
    /// The heavy connections that are due for a turn, the one that has waited longest first.
    heavy_ready: VecDeque<Key>,
    /// The light connections of this iteration; empty between iterations.
    turn: Vec<Key>,
    /// Whether listeners may have more connections, and the time until which none is accepted.
    acceptable: bool,
    accept_from: Instant,
    next_loop: usize,
    next_sweep: Instant,
    sweep_period: Duration,
    /// The time at which the loop gives up on connections that are still open; set when the node stops.
    stop_at: Option<Instant>,
}

impl<'l, S: Service> EventLoop<'l, S> {
    pub(super) fn new(shared: &'l Shared, loop_index: usize, service: S, parts: LoopParts) -> EventLoop<'l, S> {
        let now = Instant::now();
        let shortest = shared.options.greeting_timeout.min(shared.options.session_timeout);
        let sweep_period = (shortest / 4).clamp(MIN_SWEEP, MAX_SWEEP);
        EventLoop {
            context: LoopContext { shared, loop_index, service, frame: Vec::new(), now },
            parts,
            connections: Connections::new(),
            ready: Vec::new(),
            heavy_ready: VecDeque::with_capacity(HEAVY_CAPACITY),
            turn: Vec::new(),
            acceptable: true,
            accept_from: now,
            next_loop: 0,
            next_sweep: now + sweep_period,
            sweep_period,
            stop_at: None,
        }
    }

    /// Runs until the node stops.
    pub(super) fn run(mut self) -> Result<(), NodeError> {
        for (index, listener) in self.parts.listeners.iter_mut().enumerate() {
            let registry = self.parts.poll.registry();
            let token = Token(FIRST_LISTENER + index);
            registry.register(listener, token, Interest::READABLE).map_err(NodeError::io("watch a listener"))?;
        }
        let mut events = Events::with_capacity(MAX_EVENTS);
        while !self.is_over() {
            match self.parts.poll.poll(&mut events, Some(self.poll_timeout())) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                other => other.map_err(NodeError::io("wait for clients"))?,
            }
            self.context.now = Instant::now();
            self.handle_messages();
            for event in &events {
                self.handle_event(event);
            }
            self.accept();
            self.run_turns();
            self.sweep();
        }
        self.for_each(Self::remove);
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        if self.stop_at.is_none() && self.context.shared.is_stopping() {
            self.stop_at = Some(Instant::now() + LINGER);
            self.parts.listeners.clear();
            self.for_each(|all, key| {
                if let Some(connection) = all.connections.get(key) {
                    connection.shut_down(&mut all.context);
                    all.schedule(key);
                }
            });
        }
        self.stop_at.is_some_and(|stop_at| self.connections.is_empty() || self.context.now >= stop_at)
    }

    /// Returns the timeout of the next poll.
    fn poll_timeout(&self) -> Duration {
        let can_accept = self.acceptable && self.context.now >= self.accept_from && !self.parts.listeners.is_empty();
        if !self.ready.is_empty() || !self.heavy_ready.is_empty() || can_accept {
            return Duration::ZERO;
        }
        let mut until = self.next_sweep;
        if self.acceptable && !self.parts.listeners.is_empty() {
            until = until.min(self.accept_from);
        }
        until.saturating_duration_since(Instant::now())
    }

    fn handle_event(&mut self, event: &mio::event::Event) {
        let token = event.token();
        if token == WAKER {
            return;
        }
        if token.0 >= FIRST_LISTENER {
            self.acceptable = true;
            return;
        }
        let key = Key::of(token);
        let Some(connection) = self.connections.get(key) else { return };
        if event.is_read_closed() || event.is_error() || event.is_write_closed() {
            connection.note_hung_up();
        } else if event.is_readable() {
            connection.note_readable();
        }
        self.schedule(key);
    }

    /// Queues a connection for a turn, unless it is queued.
    fn schedule(&mut self, key: Key) {
        if let Some(connection) = self.connections.get(key)
            && !connection.is_scheduled
        {
            connection.is_scheduled = true;
            if connection.is_heavy(self.context.now) {
                self.heavy_ready.push_back(key);
            } else {
                self.ready.push(key);
            }
        }
    }

    /// Gives each light connection its turn, then some of the heavy ones.
    fn run_turns(&mut self) {
        std::mem::swap(&mut self.ready, &mut self.turn);
        let mut now = self.context.now;
        for index in 0..self.turn.len() {
            now = self.run_turn(self.turn[index], now);
        }
        self.turn.clear();
        let heavy_until = now + HEAVY_TIME;
        for _ in 0..self.heavy_ready.len() {
            let Some(key) = self.heavy_ready.pop_front() else { return };
            now = self.run_turn(key, now);
            if now >= heavy_until {
                return;
            }
        }
    }

    /// Gives a connection its turn, which starts at `begin`; returns the time of its end.
    fn run_turn(&mut self, key: Key, begin: Instant) -> Instant {
        let Some(connection) = self.connections.get(key) else { return begin };
        connection.is_scheduled = false;
        let outcome = connection.turn(&mut self.context, begin);
        let end = Instant::now();
        connection.note_turn(begin, end);
        self.apply(key, outcome);
        end
    }

    fn apply(&mut self, key: Key, outcome: TurnOutcome) {
        match outcome {
            TurnOutcome::Wait => {}
            TurnOutcome::Again => self.schedule(key),
            TurnOutcome::Remove => self.remove(key),
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(mut connection) = self.connections.remove(key) else { return };
        connection.end_session(&mut self.context, PriorSession::Ended);
        if let Err(cause) = self.parts.poll.registry().deregister(connection.transport().source()) {
            tracing::debug!(%cause, "a connection could not be removed from the poll");
        }
        connection.pending_id().inspect(|pending_id| self.context.shared.pending.remove(*pending_id));
    }

    /// Handles messages from other loops.
    fn handle_messages(&mut self) {
        let until = self.context.now + MESSAGES_TIME;
        for _ in 0..MAX_MESSAGES {
            if Instant::now() >= until {
                break;
            }
            match self.parts.inbox.try_recv() {
                Ok(Message::Connected { stream, peer, pending_id }) => self.add_connection(stream, peer, pending_id),
                Ok(Message::Evict { victim, pending_id }) => {
                    // A connection that has got a session meanwhile has another id, or none.
                    if self
                        .connections
                        .get(victim)
                        .is_some_and(|connection| connection.pending_id() == Some(pending_id))
                    {
                        self.remove(victim);
                    }
                }
                Ok(Message::Drop { victim, drop_reason, requester, request, by }) => {
                    if let Some(connection) = self.connections.get(victim) {
                        connection.drop_session(&mut self.context, drop_reason, by);
                        self.schedule(victim);
                    }
                    // The session is over now, if it was not before; or it cannot be ended, and the node stops.
                    if self.context.shared.unended().is_some() {
                        continue;
                    }
                    let ConnectionId { loop_index, key: requester } = requester;
                    self.context.shared.mailboxes[loop_index].send(Message::Dropped {
                        requester,
                        request,
                        drop_reason,
                    });
                }
                Ok(Message::Dropped { requester, request, drop_reason }) => {
                    if let Some(connection) = self.connections.get(requester) {
                        connection.session_dropped(&mut self.context, request, drop_reason);
                        self.schedule(requester);
                    }
                }
                Err(_) => return,
            }
        }
        self.context.shared.mailboxes[self.context.loop_index].wake();
    }

    fn accept(&mut self) {
        if !self.acceptable || self.context.now < self.accept_from {
            return;
        }
        self.acceptable = false;
        for index in 0..self.parts.listeners.len() {
            self.acceptable |= self.accept_from_one(index);
        }
    }

    /// Accepts connections of one listener; returns whether it may have more.
    fn accept_from_one(&mut self, index: usize) -> bool {
        for _ in 0..MAX_ACCEPTS {
            match self.parts.listeners[index].accept() {
                Ok((stream, peer)) => self.assign(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The client closed the connection before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Usually too many open files: waiting connections are accepted when others have ended.
                    tracing::warn!(cause = %error, "a connection could not be accepted");
                    self.context.count(Counter::AcceptErrors, 1);
                    self.accept_from = self.context.now + ACCEPT_PAUSE;
                    return true;
                }
            }
        }
        true
    }

    /// Assigns a new connection to a loop, round robin.
    fn assign(&mut self, stream: TcpStream, peer: SocketAddr) {
        let shared = self.context.shared;
        self.context.count(Counter::ConnectionsAccepted, 1);
        let (pending_id, evicted) = shared.pending.admit(peer.ip(), None, Phase::Greeting);
        if let Some(evicted) = evicted {
            self.context.count(Counter::ConnectionsShed, 1);
            shared.evict(evicted);
        }
        let loop_index = self.next_loop;
        self.next_loop = (loop_index + 1) % shared.mailboxes.len();
        if loop_index == self.context.loop_index {
            self.add_connection(stream, peer, pending_id);
        } else {
            shared.mailboxes[loop_index].send(Message::Connected { stream, peer, pending_id });
        }
    }

    fn add_connection(&mut self, stream: TcpStream, peer: SocketAddr, pending_id: PendingId) {
        let shared = self.context.shared;
        let deadline = self.context.now + shared.options.greeting_timeout;
        let access = shared.access();
        let transport = match Transport::new(stream, &shared.options, &access) {
            Ok(transport) if self.stop_at.is_none() => transport,
            Ok(_) => {
                self.context.count(Counter::ConnectionsRefused, 1);
                return shared.pending.remove(pending_id);
            }
            Err(cause) => {
                tracing::debug!(%cause, "a new connection failed");
                return shared.pending.remove(pending_id);
            }
        };
        let key = self.connections.insert(|key| Connection::new(transport, access, key, peer, pending_id, deadline));
        if !shared.pending.assign(pending_id, ConnectionId { loop_index: self.context.loop_index, key }) {
            return drop(self.connections.remove(key));
        }
        let Some(connection) = self.connections.get(key) else { return };
        let interest = Interest::READABLE | Interest::WRITABLE;
        let source = connection.transport().source();
        if let Err(cause) = self.parts.poll.registry().register(source, key.token(), interest) {
            tracing::warn!(%cause, "a new connection could not be added to the poll");
            return self.remove(key);
        }
        self.schedule(key);
    }

    /// Checks the deadlines of all connections, once per period.
    fn sweep(&mut self) {
        if self.context.now < self.next_sweep {
            return;
        }
        self.next_sweep = self.context.now + self.sweep_period;
        // One loop checks the region for all, and only while the node serves: a lost region stays lost.
        let checks_region = self.context.loop_index == 0 && self.stop_at.is_none();
        if checks_region && (self.context.region().has_lost_bytes() || self.context.region().verify_bytes().is_err()) {
            self.context.lose_memory();
        }
        self.for_each(|all, key| {
            if let Some(connection) = all.connections.get(key) {
                let outcome = connection.sweep(&mut all.context);
                all.apply(key, outcome);
            }
        });
    }

    /// Calls `what` for every current connection. Must not be called during turns.
    fn for_each(&mut self, mut what: impl FnMut(&mut Self, Key)) {
        let mut keys = std::mem::take(&mut self.turn);
        self.connections.keys(&mut keys);
        keys.drain(..).for_each(|key| what(self, key));
        self.turn = keys;
    }
}
