//! One loop: a thread, its poll, its connections; and the listeners, in the first loop.
//!
//! Invariants: a turn of the loop handles each connection once, however much it has to say; every connection that has
//! more to do than its turn allows is on a list for the next; nothing but the poll waits. Connections whose turns take
//! long wait for those whose turns do not, and the kernel is asked for more of these every [`HEAVY_TIME`]: so who asks
//! for little waits for one long turn at most, and each long one still has its turn.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use guira_fabric::Region;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::NodeRegion;
use super::connection::{Connection, LINGER, Tools, Verdict};
use super::connections::{Connections, Key};
use super::counters::Counter;
use super::door::{Phase, Ticket};
use super::options::NodeError;
use super::shared::{Message, Place, Shared};
use super::transport::Transport;
use crate::wire::PriorSession;

/// Reports of one poll, at most.
const MAX_EVENTS: usize = 1024;
/// Connections that are accepted in one turn, at most: each takes some ten system calls.
const MAX_ACCEPTS: usize = 16;
/// Messages that are handled in one turn, at most, and for how long.
const MAX_MESSAGES: usize = 1024;
const MESSAGES_TIME: Duration = Duration::from_micros(500);
/// How long connections whose turns take long have theirs, before the others are looked at again.
const HEAVY_TIME: Duration = Duration::from_micros(500);
/// Connections whose turns take long, before anything is allocated for more of them.
const LONG_LIST: usize = 64;
/// How often deadlines are looked at, at most and at least.
const MIN_SWEEP: Duration = Duration::from_millis(10);
const MAX_SWEEP: Duration = Duration::from_secs(1);
/// How long no connection is accepted after the kernel refused one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The token of a loop's waker. Those of connections have a clear highest bit.
pub(super) const WAKER: Token = Token(usize::MAX);
const FIRST_LISTENER: usize = 1 << 63;

/// The parts of a loop that are made before its thread is.
pub(super) struct Parts {
    pub(super) poll: Poll,
    pub(super) inbox: Receiver<Message>,
    /// Those of the first loop.
    pub(super) listeners: Vec<TcpListener>,
}

/// A loop, running.
pub(super) struct EventLoop<'l, R: Region> {
    tools: Tools<'l, R>,
    parts: Parts,
    connections: Connections<Connection>,
    /// Connections that have more to do.
    list: Vec<Key>,
    /// Those of them whose turns take long, who has waited longest first.
    heavy: VecDeque<Key>,
    /// Those whose turn it is; empty between turns.
    turn: Vec<Key>,
    /// Whether listeners may have more connections, and until when nothing is accepted.
    acceptable: bool,
    accept_from: Instant,
    next_loop: usize,
    next_sweep: Instant,
    sweep_period: Duration,
    /// Set when the node ends: when the loop gives up on those who do not go.
    stop_at: Option<Instant>,
}

impl<'l, R: NodeRegion> EventLoop<'l, R> {
    pub(super) fn new(shared: &'l Shared, loop_index: usize, region: R, parts: Parts) -> EventLoop<'l, R> {
        let (now, lane) = (Instant::now(), region.lane());
        let shortest = shared.options.greeting_timeout.min(shared.options.session_timeout);
        let sweep_period = (shortest / 4).clamp(MIN_SWEEP, MAX_SWEEP);
        EventLoop {
            tools: Tools { shared, loop_index, region, lane, frame: Vec::new(), now },
            parts,
            connections: Connections::new(),
            list: Vec::new(),
            heavy: VecDeque::with_capacity(LONG_LIST),
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
            match self.parts.poll.poll(&mut events, Some(self.patience())) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                other => other.map_err(NodeError::io("wait for clients"))?,
            }
            self.tools.now = Instant::now();
            self.hear();
            for event in &events {
                self.note(event);
            }
            self.accept();
            self.serve();
            self.sweep();
        }
        self.for_each(Self::remove);
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        if self.stop_at.is_none() && self.tools.shared.is_stopping() {
            self.stop_at = Some(Instant::now() + LINGER);
            self.parts.listeners.clear();
            self.for_each(|all, key| {
                if let Some(connection) = all.connections.get(key) {
                    connection.shut_down(&mut all.tools);
                    all.enlist(key);
                }
            });
        }
        self.stop_at.is_some_and(|stop_at| self.connections.is_empty() || self.tools.now >= stop_at)
    }

    /// How long to wait for the kernel.
    fn patience(&self) -> Duration {
        let can_accept = self.acceptable && self.tools.now >= self.accept_from && !self.parts.listeners.is_empty();
        if !self.list.is_empty() || !self.heavy.is_empty() || can_accept {
            return Duration::ZERO;
        }
        let mut until = self.next_sweep;
        if self.acceptable && !self.parts.listeners.is_empty() {
            until = until.min(self.accept_from);
        }
        until.saturating_duration_since(Instant::now())
    }

    fn note(&mut self, event: &mio::event::Event) {
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
        self.enlist(key);
    }

    /// Puts a connection on a list, once.
    fn enlist(&mut self, key: Key) {
        if let Some(connection) = self.connections.get(key)
            && !connection.listed
        {
            connection.listed = true;
            if connection.is_heavy(self.tools.now) {
                self.heavy.push_back(key);
            } else {
                self.list.push(key);
            }
        }
    }

    /// Gives each connection on the list its turn, then some of those whose turns take long.
    fn serve(&mut self) {
        std::mem::swap(&mut self.list, &mut self.turn);
        let mut now = self.tools.now;
        for index in 0..self.turn.len() {
            now = self.serve_one(self.turn[index], now);
        }
        self.turn.clear();
        let heavy_until = now + HEAVY_TIME;
        for _ in 0..self.heavy.len() {
            let Some(key) = self.heavy.pop_front() else { return };
            now = self.serve_one(key, now);
            if now >= heavy_until {
                return;
            }
        }
    }

    /// Gives a connection its turn, which begins at `begin`; when it ended.
    fn serve_one(&mut self, key: Key, begin: Instant) -> Instant {
        let Some(connection) = self.connections.get(key) else { return begin };
        connection.listed = false;
        let verdict = connection.turn(&mut self.tools, begin);
        let end = Instant::now();
        connection.note_turn(begin, end);
        self.obey(key, verdict);
        end
    }

    fn obey(&mut self, key: Key, verdict: Verdict) {
        match verdict {
            Verdict::Wait => {}
            Verdict::Again => self.enlist(key),
            Verdict::Remove => self.remove(key),
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(mut connection) = self.connections.remove(key) else { return };
        connection.end_session(&mut self.tools, PriorSession::Ended);
        if let Err(cause) = self.parts.poll.registry().deregister(connection.transport().source()) {
            tracing::debug!(%cause, "a connection could not be taken off the poll");
        }
        connection.ticket().inspect(|ticket| self.tools.shared.door.leave(*ticket));
    }

    /// Handles messages from other loops.
    fn hear(&mut self) {
        let until = self.tools.now + MESSAGES_TIME;
        for _ in 0..MAX_MESSAGES {
            if Instant::now() >= until {
                break;
            }
            match self.parts.inbox.try_recv() {
                Ok(Message::Connected { stream, peer, ticket }) => self.adopt(stream, peer, ticket),
                Ok(Message::Shed { victim, ticket }) => {
                    // Who has greeted meanwhile has another ticket, or none.
                    if self.connections.get(victim).is_some_and(|connection| connection.ticket() == Some(ticket)) {
                        self.remove(victim);
                    }
                }
                Ok(Message::Drop { victim, why, asked, request, by }) => {
                    if let Some(connection) = self.connections.get(victim) {
                        connection.drop_session(&mut self.tools, why, by);
                        self.enlist(victim);
                    }
                    // Its session is over, if it was not before.
                    let Place { loop_index, key: asked } = asked;
                    self.tools.shared.mailboxes[loop_index].send(Message::Dropped { asked, request, why });
                }
                Ok(Message::Dropped { asked, request, why }) => {
                    if let Some(connection) = self.connections.get(asked) {
                        connection.dropped(&mut self.tools, request, why);
                        self.enlist(asked);
                    }
                }
                Err(_) => return,
            }
        }
        self.tools.shared.mailboxes[self.tools.loop_index].wake();
    }

    fn accept(&mut self) {
        if !self.acceptable || self.tools.now < self.accept_from {
            return;
        }
        self.acceptable = false;
        for index in 0..self.parts.listeners.len() {
            self.acceptable |= self.accept_from_one(index);
        }
    }

    /// Whether the listener may have more.
    fn accept_from_one(&mut self, index: usize) -> bool {
        for _ in 0..MAX_ACCEPTS {
            match self.parts.listeners[index].accept() {
                Ok((stream, peer)) => self.deal(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The client gave up while it waited.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Too many open files, mostly: those who wait are accepted when others have gone.
                    tracing::warn!(cause = %error, "a connection could not be accepted");
                    self.tools.count(Counter::AcceptErrors, 1);
                    self.accept_from = self.tools.now + ACCEPT_PAUSE;
                    return true;
                }
            }
        }
        true
    }

    /// Gives a new connection to one loop after the other.
    fn deal(&mut self, stream: TcpStream, peer: SocketAddr) {
        let shared = self.tools.shared;
        self.tools.count(Counter::ConnectionsAccepted, 1);
        let (ticket, shed) = shared.door.enter(peer.ip(), None, Phase::Waiting);
        if let Some(shed) = shed {
            self.tools.count(Counter::ConnectionsShed, 1);
            shared.shed(shed);
        }
        let loop_index = self.next_loop;
        self.next_loop = (loop_index + 1) % shared.mailboxes.len();
        if loop_index == self.tools.loop_index {
            self.adopt(stream, peer, ticket);
        } else {
            shared.mailboxes[loop_index].send(Message::Connected { stream, peer, ticket });
        }
    }

    fn adopt(&mut self, stream: TcpStream, peer: SocketAddr, ticket: Ticket) {
        let shared = self.tools.shared;
        let deadline = self.tools.now + shared.options.greeting_timeout;
        let transport = match Transport::new(stream, &shared.options, &shared.access()) {
            Ok(transport) if self.stop_at.is_none() => transport,
            Ok(_) => {
                self.tools.count(Counter::ConnectionsRefused, 1);
                return shared.door.leave(ticket);
            }
            Err(cause) => {
                tracing::debug!(%cause, "a new connection was lost");
                return shared.door.leave(ticket);
            }
        };
        let key = self.connections.insert(|key| Connection::new(transport, key, peer, ticket, deadline));
        if !shared.door.settle(ticket, Place { loop_index: self.tools.loop_index, key }) {
            return drop(self.connections.remove(key));
        }
        let Some(connection) = self.connections.get(key) else { return };
        let interest = Interest::READABLE | Interest::WRITABLE;
        let source = connection.transport().source();
        if let Err(cause) = self.parts.poll.registry().register(source, key.token(), interest) {
            tracing::warn!(%cause, "a new connection could not be watched");
            return self.remove(key);
        }
        self.enlist(key);
    }

    /// Looks after deadlines, now and then.
    fn sweep(&mut self) {
        if self.tools.now < self.next_sweep {
            return;
        }
        self.next_sweep = self.tools.now + self.sweep_period;
        // One loop asks for all. A region that is lost is lost for good, so it is asked only while the node serves.
        let is_asked = self.tools.loop_index == 0 && self.stop_at.is_none();
        if is_asked && (self.tools.region.has_lost_bytes() || self.tools.region.verify_bytes().is_err()) {
            self.tools.lose_memory();
        }
        self.for_each(|all, key| {
            if let Some(connection) = all.connections.get(key) {
                let verdict = connection.sweep(&mut all.tools);
                all.obey(key, verdict);
            }
        });
    }

    /// Does something with every connection there is now. Between turns only.
    fn for_each(&mut self, mut what: impl FnMut(&mut Self, Key)) {
        let mut keys = std::mem::take(&mut self.turn);
        self.connections.keys(&mut keys);
        keys.drain(..).for_each(|key| what(self, key));
        self.turn = keys;
    }
}
