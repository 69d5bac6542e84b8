//! One connection: its greeting, its session, and its Close.
//!
//! Invariants: frames are executed in the order of arrival, by one thread; the reply to a frame comes after the replies
//! to all batches before it; a Close is the last frame, and requests that were not answered before it were not
//! executed. When a session has ended, none of its verbs executes any more and its slots are free; only then is that
//! reported.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guira_fabric::{Addr, FabricError, Lane, Region, Submitted, Verb};

use super::access::NodeAccess;
use super::budget::Budget;
use super::buffers::{Completeness, Input, MAX_UNSENT_BYTES, Output};
use super::connections::Key;
use super::counters::Counter;
use super::event::{NodeEventKind, TokenNumber};
use super::pending::{PendingId, Phase};
use super::service::{CloseCause, Responder, Service};
use super::session::{MAX_HOLDS, Session};
use super::shared::{ConnectionId, DropReason, MAX_NODE_HOLDS, Message, Shared};
use super::transport::{More, Transport};
use crate::tls::{self, TlsError};
use crate::wire::{
    CloseReason, FenceReply, Grant, HEADER_WORDS, HTTP, Hello, Kind, PriorSession, SessionId, VERSION, Welcome,
    WireError, foreign,
};

/// Maximum number of fences of one session that wait for other sessions to end. With so many, it executes nothing until
/// one is answered.
const MAX_PENDING_FENCES: u32 = 64;
/// Maximum number of rounds of executing and sending in one turn.
const MAX_ROUNDS: usize = 4;
/// Maximum duration of a light turn: after a longer one, the turns of a connection come after those of others.
const LIGHT_TURN: Duration = Duration::from_micros(100);
/// A turn that moved fewer bytes than this, and few frames, counts as light even if it took long: something else has
/// taken the time.
const SMALL_BYTES: usize = 16 << 10;
/// Time for which the turns of a heavy connection come after those of others.
const HEAVY_PERIOD: Duration = Duration::from_millis(20);
/// Time that a client has to receive its Close.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Number of words of the longest first frame.
const GREETING_WORDS: usize = HEADER_WORDS + 7;

/// The resources that a loop lends its connections.
pub(super) struct LoopContext<'l, S> {
    pub(super) shared: &'l Shared,
    pub(super) loop_index: usize,
    pub(super) service: S,
    /// A buffer for control frames.
    pub(super) frame: Vec<u64>,
    /// The time when the loop woke up.
    pub(super) now: Instant,
}

impl<S: Service> LoopContext<'_, S> {
    pub(super) fn region(&self) -> &S::Region {
        self.service.region()
    }

    /// Returns the service, and what it answers a session by.
    #[inline]
    pub(super) fn split<'c>(&'c mut self, output: &'c mut Output) -> (&'c mut S, Responder<'c>) {
        let counters = &self.shared.counters[self.loop_index];
        (&mut self.service, Responder { counters, output, frame: &mut self.frame })
    }

    /// Reads the first `words` words of Main space.
    fn sample(&self, words: u16) -> Result<Vec<u64>, FabricError> {
        let region = self.region();
        let mut sample = vec![0; u64::from(words).min(region.main_bytes() / 8) as usize];
        if sample.is_empty() {
            return Ok(sample);
        }
        match region.lane().submit(&mut [Verb::Read { addr: Addr::main(0), into: &mut sample }]) {
            Submitted::Done(result) => result.map(|()| sample),
            // Only regions whose lanes execute in place are served.
            Submitted::InFlight => Err(FabricError::Unsupported { verb: "READ" }),
        }
    }

    pub(super) fn count(&self, counter: Counter, count: u64) {
        self.shared.counters[self.loop_index].add(counter, count);
    }

    /// Stops the node, because bytes of the region are lost.
    pub(super) fn lose_memory(&self) {
        let reason = match self.region().verify_bytes() {
            Err(error) => error.to_string(),
            Ok(()) => "a page could not be read: the file was truncated for a moment, or its disk failed".to_owned(),
        };
        let error = reason.clone();
        if self.shared.lose_memory(reason) {
            self.count(Counter::MemoryLost, 1);
            tracing::error!(%error, "the memory of this node is lost; all sessions end");
        }
    }
}

/// The next state of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum TurnOutcome {
    /// The connection waits for an event of the kernel.
    Wait,
    /// The connection needs another turn.
    Again,
    /// The connection is removed.
    Remove,
}

/// One connection.
pub(super) struct Connection<T> {
    transport: Transport,
    /// The access control when it was accepted.
    access: Arc<NodeAccess>,
    key: Key,
    peer: SocketAddr,
    /// The connection's id among those without a session, while it has none.
    pending_id: Option<PendingId>,
    input: Input,
    output: Output,
    state: State<T>,
    /// Whether there may be something to receive.
    readable: bool,
    /// Whether the client has shut down its side of the connection, or is gone.
    hung_up: bool,
    /// Whether there are complete frames that may not be executed yet.
    stalled: bool,
    /// Whether the connection is in one of the loop's queues.
    pub(super) is_scheduled: bool,
    /// The time until which the turns of this connection come after those of others.
    heavy_until: Option<Instant>,
    /// The bytes that were received and sent in this turn, or the last one, and whether it was small.
    moved: usize,
    was_small: bool,
    /// The time since which the kernel has accepted no replies.
    blocked_since: Option<Instant>,
    /// The number of executed frames whose replies are not all sent, and the time when the loop woke up for the first
    /// of them.
    unanswered: u64,
    noticed: Option<Instant>,
}

enum State<T> {
    /// No complete Hello was received yet.
    Greeting {
        deadline: Instant,
    },
    /// The client's prior session is being dropped.
    Superseding {
        hello: Hello,
        deadline: Instant,
    },
    Open(Session<T>),
    /// A Close is being sent; input is ignored.
    Closing {
        deadline: Instant,
    },
}

impl<T: Default> Connection<T> {
    pub(super) fn new(
        transport: Transport,
        access: Arc<NodeAccess>,
        key: Key,
        peer: SocketAddr,
        pending_id: PendingId,
        deadline: Instant,
    ) -> Connection<T> {
        Connection {
            transport,
            access,
            key,
            peer,
            pending_id: Some(pending_id),
            input: Input::new(),
            output: Output::new(),
            state: State::Greeting { deadline },
            readable: true,
            hung_up: false,
            stalled: false,
            is_scheduled: false,
            heavy_until: None,
            moved: 0,
            was_small: true,
            blocked_since: None,
            unanswered: 0,
            noticed: None,
        }
    }

    /// Returns the connection's id among those without a session; `None` if it has a session.
    pub(super) fn pending_id(&self) -> Option<PendingId> {
        self.pending_id
    }

    pub(super) fn transport(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// Notes that there is input.
    pub(super) fn note_readable(&mut self) {
        self.readable = true;
    }

    /// Notes that the client will send nothing more.
    pub(super) fn note_hung_up(&mut self) {
        (self.readable, self.hung_up) = (true, true);
    }

    /// Whether the turns of this connection come after those of others, because a recent one took long.
    pub(super) fn is_heavy(&self, now: Instant) -> bool {
        self.heavy_until.is_some_and(|until| now < until)
    }

    /// Notes that a turn started at `begin` and ended at `end`.
    pub(super) fn note_turn(&mut self, begin: Instant, end: Instant) {
        if !self.was_small && end.saturating_duration_since(begin) > LIGHT_TURN {
            self.heavy_until = Some(end + HEAVY_PERIOD);
        }
    }

    /// Takes a turn that starts at `begin`: receives once, executes complete frames as far as the budget allows, and
    /// sends.
    pub(super) fn turn<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        begin: Instant,
    ) -> TurnOutcome {
        let mut budget = Budget::new(begin);
        self.moved = 0;
        let outcome = self.turn_within(context, &mut budget);
        self.was_small = self.moved <= SMALL_BYTES && budget.is_small();
        outcome
    }

    fn turn_within<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        budget: &mut Budget,
    ) -> TurnOutcome {
        if let Err(error) = self.receive(context) {
            return self.connection_lost(context, &error);
        }
        for _ in 0..MAX_ROUNDS {
            if let Err(cause) = self.execute(context, budget) {
                self.close(context, cause);
            }
            match self.send(context) {
                Ok(Sent::All) => {}
                Ok(Sent::Blocked) => return TurnOutcome::Wait,
                Err(error) => return self.connection_lost(context, &error),
            }
            if !self.stalled {
                return if self.readable && self.wants_input() { TurnOutcome::Again } else { TurnOutcome::Wait };
            }
            if self.is_waiting_for_others() {
                return TurnOutcome::Wait;
            }
            if budget.is_spent() {
                break;
            }
        }
        TurnOutcome::Again
    }

    /// Whether the connection may receive: not while frames wait, nor while the prior session is being dropped.
    fn wants_input(&self) -> bool {
        !self.stalled && !matches!(self.state, State::Superseding { .. })
    }

    fn is_waiting_for_others(&self) -> bool {
        matches!(&self.state, State::Open(session) if session.pending_fences >= MAX_PENDING_FENCES)
    }

    /// Receives once.
    fn receive<S: Service<Session = T>>(&mut self, context: &mut LoopContext<'_, S>) -> io::Result<()> {
        if !self.readable || !self.wants_input() {
            return Ok(());
        }
        if matches!(self.state, State::Closing { .. }) {
            self.input.discard();
        }
        match self.transport.read(self.input.space()) {
            Ok((0, _)) => return Err(io::ErrorKind::ConnectionReset.into()),
            Ok((bytes, more)) => {
                // The kernel reports later input, but does not report the end of the stream again.
                self.readable = more == More::Maybe || self.hung_up;
                self.input.received(bytes);
                self.moved += bytes;
                self.noticed.get_or_insert(context.now);
                context.count(Counter::BytesIn, bytes as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => match TlsError::of(&error) {
                Some(reason) => self.fail_tls(context, reason),
                None => return Err(error),
            },
        }
        Ok(())
    }

    /// Sends as much output as the kernel accepts.
    fn send<S: Service<Session = T>>(&mut self, context: &mut LoopContext<'_, S>) -> io::Result<Sent> {
        match self.transport.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked_since.get_or_insert(context.now);
                return Ok(Sent::Blocked);
            }
            flushed => flushed?,
        }
        while self.output.unsent_bytes() > 0 {
            match self.transport.write(self.output.unsent()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.output.sent(bytes);
                    self.moved += bytes;
                    self.blocked_since = None;
                    context.count(Counter::BytesOut, bytes as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked_since.get_or_insert(context.now);
                    return Ok(Sent::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.unanswered > 0 {
            let time = self.noticed.map_or(Duration::ZERO, |noticed| noticed.elapsed());
            context.shared.counters[context.loop_index].answered(self.unanswered, time);
            self.unanswered = 0;
        }
        if !self.stalled {
            self.noticed = None;
        }
        if matches!(self.state, State::Closing { .. }) {
            // The client sees the end of the stream; a failure means that it is gone.
            self.transport.finish()?;
        }
        Ok(Sent::All)
    }

    /// Executes the complete frames of the input, while few replies wait and the turn is not over.
    fn execute<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        budget: &mut Budget,
    ) -> Result<(), CloseCause> {
        loop {
            self.stalled = false;
            let (is_open, pending) = match &self.state {
                State::Greeting { .. } => (false, 0),
                State::Open(session) => (true, session.pending_fences),
                State::Superseding { .. } | State::Closing { .. } => return Ok(()),
            };
            let Some((header, whole)) = self.input.next()? else {
                // A client of another protocol may wait for an answer to fewer bytes than a header has.
                let foreign = if is_open { None } else { foreign(self.input.unread()) };
                return foreign.map_or(Ok(()), |protocol| Err(WireError::Foreign { protocol }.into()));
            };
            if !is_open && (header.kind != Kind::Hello || header.words > GREETING_WORDS) {
                return Err(WireError::Kind { kind: header.kind as u8 }.into());
            }
            if whole == Completeness::Partial {
                return Ok(());
            }
            if self.output.unsent_bytes() > MAX_UNSENT_BYTES || pending >= MAX_PENDING_FENCES || budget.is_spent() {
                self.stalled = true;
                return Ok(());
            }
            self.unanswered += 1;
            let Connection { input, output, state, key, .. } = self;
            let unsent = output.unsent_bytes();
            let body = input.take(&header);
            match state {
                State::Open(session) => session.request(context, *key, &header, body, output)?,
                _ => {
                    let hello = Hello::decode(body)?;
                    self.greet(context, header.id, hello)?;
                }
            }
            budget.spend(&header, (self.output.unsent_bytes() - unsent) / 8);
        }
    }

    fn greet<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        id: u64,
        hello: Hello,
    ) -> Result<(), CloseCause> {
        let shared = context.shared;
        if hello.fabric != S::FABRIC {
            context.count(Counter::RefusedFabric, 1);
            return Err(CloseCause::Reason(CloseReason::OtherFabric { node: S::FABRIC }));
        }
        if let Err(refused) = self.granted(shared, &hello) {
            let is_unauthorized = matches!(refused, CloseCause::Reason(CloseReason::Unauthorized));
            context.count(Counter::RefusedToken, u64::from(is_unauthorized));
            return Err(refused);
        }
        let Some(connection_id) = hello.prior_session.and_then(|prior| shared.find(prior)) else {
            return self.welcome(context, id, &hello);
        };
        let requester = ConnectionId { loop_index: context.loop_index, key: self.key };
        let message = Message::Drop {
            victim: connection_id.key,
            drop_reason: DropReason::Superseded,
            requester,
            request: id,
            by: None,
        };
        shared.mailboxes[connection_id.loop_index].send(message);
        self.state = State::Superseding { hello, deadline: context.now + shared.options.greeting_timeout };
        Ok(())
    }

    /// Returns the access of the client. The access control must be that under which the connection was accepted, with
    /// or without TLS.
    fn granted(&self, shared: &Shared, hello: &Hello) -> Result<(Grant, Option<TokenNumber>), CloseCause> {
        let access = shared.access();
        if !Arc::ptr_eq(&access, &self.access) {
            return Err(CloseCause::AccessReplaced);
        }
        access.granted(hello, shared.options.grant).ok_or(CloseCause::Reason(CloseReason::Unauthorized))
    }

    fn welcome<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        id: u64,
        hello: &Hello,
    ) -> Result<(), CloseCause> {
        let shared = context.shared;
        let options = &shared.options;
        let (grant, token) = self.granted(shared, hello)?;
        let session = random_session_id().map_err(CloseCause::Broken)?;
        if let Err(reason) = shared.admit(grant, self.peer.ip()) {
            let is_of_address = matches!(reason, CloseReason::AddressFull { .. });
            context.count(if is_of_address { Counter::RefusedAddress } else { Counter::RefusedFull }, 1);
            return Err(CloseCause::Reason(reason));
        }
        if let Some(pending_id) = self.pending_id.take() {
            shared.pending.remove(pending_id);
        }
        let connection_id = ConnectionId { loop_index: context.loop_index, key: self.key };
        shared.open(session, connection_id);
        let number = shared.next_session_number();
        context.count(Counter::SessionsOpened, 1);
        self.state = State::Open(Session::new(session, number, self.peer, grant));
        let sample = context.sample(hello.sample_words).map_err(CloseCause::Broken)?;
        if context.region().has_lost_bytes() {
            return Err(CloseCause::MemoryLost);
        }
        let prior_session = hello.prior_session.map_or(PriorSession::None, |prior| shared.prior_session(prior));
        let welcome = Welcome {
            grant,
            prior_session,
            session,
            region: options.region_id,
            main_bytes: context.region().main_bytes(),
            device_bytes: context.region().device_bytes(),
            atomic_write_unit: options.atomic_write_unit,
            session_timeout_ms: u32::try_from(options.session_timeout.as_millis()).unwrap_or(u32::MAX),
            session_holds: MAX_HOLDS as u32,
            node_holds: MAX_NODE_HOLDS,
            sample,
        };
        context.split(&mut self.output).1.reply(Kind::Welcome, id, &welcome.encode());
        tracing::info!(peer = %self.peer, ?grant, ?prior_session, "a session was opened");
        let (may_write, name) = (grant == Grant::ReadWrite, || self.transport.peer_name());
        let opened = || NodeEventKind::SessionOpened { session: number, may_write, token, name: name() };
        options.observer.notify(self.peer, opened);
        Ok(())
    }

    /// Notes that the session which request `request` wanted to drop is gone.
    pub(super) fn session_dropped<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        request: u64,
        drop_reason: DropReason,
    ) {
        match (&mut self.state, drop_reason) {
            (State::Superseding { hello, .. }, DropReason::Superseded) => {
                let hello = *hello;
                if let Err(cause) = self.welcome(context, request, &hello) {
                    self.close(context, cause);
                }
            }
            (State::Open(session), DropReason::Fenced) => {
                session.pending_fences -= 1;
                context.count(Counter::FencesDropped, 1);
                context.split(&mut self.output).1.reply(Kind::Fenced, request, &FenceReply::Dropped.encode());
            }
            _ => {}
        }
    }

    /// Drops the session, if there is one: when this returns, none of its verbs executes any more.
    pub(super) fn drop_session<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        drop_reason: DropReason,
        by: Option<(u64, SocketAddr)>,
    ) {
        if let State::Open(Session { number, .. }) = self.state {
            if drop_reason == DropReason::Fenced {
                context.count(Counter::SessionsFenced, 1);
            }
            if let Some((by, by_peer)) = by {
                let fenced = || NodeEventKind::Fenced { session: number, by, by_peer };
                context.shared.options.observer.notify(self.peer, fenced);
            }
            self.close_with(
                context,
                CloseReason::Fenced,
                if drop_reason == DropReason::Fenced { PriorSession::Fenced } else { PriorSession::Ended },
            );
        }
    }

    /// Closes the connection because the node stops.
    pub(super) fn shut_down<S: Service<Session = T>>(&mut self, context: &mut LoopContext<'_, S>) {
        if !matches!(self.state, State::Closing { .. }) {
            let reason =
                if context.shared.memory_loss().is_some() { CloseReason::MemoryLost } else { CloseReason::Shutdown };
            self.close_with(context, reason, PriorSession::Ended);
        }
    }

    /// Checks deadlines, and frees unused memory.
    pub(super) fn sweep<S: Service<Session = T>>(&mut self, context: &mut LoopContext<'_, S>) -> TurnOutcome {
        let options = &context.shared.options;
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self.input.sweep();
        self.output.sweep();
        match &self.state {
            State::Closing { deadline } if context.now >= *deadline => self.remove(context),
            State::Greeting { deadline } | State::Superseding { deadline, .. } if context.now >= *deadline => {
                context.count(Counter::GreetedLate, 1);
                let reason = CloseReason::TooSlow { seconds: seconds(options.greeting_timeout) };
                let is_greeting = matches!(self.state, State::Greeting { .. });
                let arrived = if is_greeting { arrived(self.input.unread()) } else { String::new() };
                tracing::info!(peer = ?self.peer, "refused a client: {reason}{arrived}");
                let refused = || NodeEventKind::Refused { reason: format!("{reason}{arrived}") };
                options.observer.notify(self.peer, refused);
                self.close_with(context, reason, PriorSession::Ended);
                TurnOutcome::Again
            }
            State::Open(_) => {
                let blocked = self.blocked_since.map(|since| context.now.saturating_duration_since(since));
                if blocked.is_none_or(|blocked| blocked < options.session_timeout) {
                    return TurnOutcome::Wait;
                }
                context.count(Counter::SessionsTooSlow, 1);
                self.close_with(
                    context,
                    CloseReason::TooSlow { seconds: seconds(options.session_timeout) },
                    PriorSession::Fenced,
                );
                TurnOutcome::Again
            }
            _ => TurnOutcome::Wait,
        }
    }

    /// Closes the connection because of an error of the client or the region.
    fn close<S: Service<Session = T>>(&mut self, context: &mut LoopContext<'_, S>, cause: CloseCause) {
        let is_open = matches!(self.state, State::Open(_));
        let peer = self.peer;
        let foreign = match cause {
            CloseCause::ProtocolError(WireError::Foreign { protocol }) if !is_open => Some(protocol),
            _ => None,
        };
        let reason = match cause {
            CloseCause::ProtocolError(WireError::Value { what: "version", value }) if !is_open => {
                context.count(Counter::RefusedVersion, 1);
                tracing::info!(?peer, version = value, "refused a client of another protocol version");
                CloseReason::Version { node: VERSION }
            }
            CloseCause::ProtocolError(_) if !is_open && tls::is_handshake(self.input.unread()) => {
                context.count(Counter::RefusedTls, 1);
                tracing::info!(?peer, "refused a client that speaks TLS, which this node does not");
                CloseReason::ProtocolError
            }
            CloseCause::ProtocolError(error) => {
                let counter = if is_open { Counter::SessionsMisunderstood } else { Counter::GreetedWrongly };
                context.count(counter, 1);
                tracing::info!(?peer, %error, "a client sent an invalid frame");
                CloseReason::ProtocolError
            }
            CloseCause::Reason(reason) => {
                tracing::info!(?peer, reason = %reason, "refused a client");
                reason
            }
            CloseCause::Broken(error) => {
                tracing::error!(?peer, %error, "ended a session because the effect of a request is unknown");
                CloseReason::Shutdown
            }
            CloseCause::MemoryLost => {
                context.lose_memory();
                CloseReason::MemoryLost
            }
            CloseCause::AccessReplaced => {
                context.count(Counter::ConnectionsShed, 1);
                self.input.discard();
                return self.linger(context);
            }
        };
        let said = || match foreign {
            Some(protocol) => WireError::Foreign { protocol }.to_string(),
            None => reason.to_string(),
        };
        context.shared.options.observer.notify(peer, || NodeEventKind::Refused { reason: said() });
        if foreign == Some(HTTP) {
            self.linger(context);
            return self.output.append(&http_answer());
        }
        self.close_with(context, reason, PriorSession::Ended);
    }

    /// Closes the connection because of a TLS failure: further input is ignored, and the client is informed by an alert
    /// of TLS, or by an unencrypted Close if it does not speak TLS.
    fn fail_tls<S: Service<Session = T>>(&mut self, context: &mut LoopContext<'_, S>, reason: &TlsError) {
        let peer = self.peer;
        tracing::info!(?peer, %reason, "refused a client: TLS failed");
        context.shared.options.observer.notify(peer, || NodeEventKind::Refused { reason: reason.to_string() });
        match (&self.state, reason) {
            (State::Greeting { .. }, TlsError::NotSpoken) => {
                context.count(Counter::RefusedPlain, 1);
                self.transport.disable_tls();
                return self.close_with(context, CloseReason::TlsRequired, PriorSession::Ended);
            }
            (State::Greeting { .. }, _) => context.count(Counter::RefusedHandshake, 1),
            (State::Open(_), _) => context.count(Counter::SessionsMisunderstood, 1),
            _ => {}
        }
        self.end_session(context, PriorSession::Ended);
        self.input.discard();
        self.output.discard();
        self.linger(context);
    }

    /// Moves the connection to those without a session, where it is among the first to be evicted.
    fn linger<S: Service<Session = T>>(&mut self, context: &mut LoopContext<'_, S>) {
        let shared = context.shared;
        self.stalled = false;
        self.state = State::Closing { deadline: context.now + LINGER };
        match self.pending_id {
            Some(pending_id) => shared.pending.mark_closing(pending_id),
            // When the node stops, all of them get their Close, however many they are.
            None if shared.is_stopping() => {}
            None => {
                let connection_id = ConnectionId { loop_index: context.loop_index, key: self.key };
                let (pending_id, evicted) = shared.pending.admit(self.peer.ip(), Some(connection_id), Phase::Closing);
                self.pending_id = Some(pending_id);
                if let Some(evicted) = evicted {
                    context.count(Counter::ConnectionsShed, 1);
                    shared.evict(evicted);
                }
            }
        }
    }

    /// Ends the session, if there is one, and sends a Close.
    fn close_with<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        reason: CloseReason,
        outcome: PriorSession,
    ) {
        self.end_session(context, outcome);
        // A client that reads another reason would take it that none of its verbs executes any more.
        let reason = if context.shared.unended().is_some() { CloseReason::Shutdown } else { reason };
        self.linger(context);
        context.split(&mut self.output).1.reply(Kind::Close, 0, &reason.encode());
    }

    /// Ends the session, if there is one, because its connection is lost: the client ended it, or the kernel did,
    /// because the client's machine was silent for too long.
    fn connection_lost<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        error: &io::Error,
    ) -> TurnOutcome {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        let is_by_client = matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected);
        if !is_by_client && matches!(self.state, State::Open(_)) {
            context.count(Counter::SessionsCutOff, 1);
            tracing::warn!(peer = %self.peer, cause = %error, "a client was cut off");
            self.end_session(context, PriorSession::Fenced);
        }
        self.remove(context)
    }

    /// Ends the session, if there is one, and removes the connection.
    fn remove<S: Service<Session = T>>(&mut self, context: &mut LoopContext<'_, S>) -> TurnOutcome {
        self.end_session(context, PriorSession::Ended);
        TurnOutcome::Remove
    }

    /// Ends the session, if there is one: after this none of its verbs executes, and its slots are free.
    pub(super) fn end_session<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        outcome: PriorSession,
    ) {
        let ended = State::Closing { deadline: context.now };
        let State::Open(session) = std::mem::replace(&mut self.state, ended) else { return };
        let number = session.number;
        let ended = match session.end(&mut context.service) {
            Ok(ended) => ended,
            // The slots stay taken, so nobody recovers what the session may still change.
            Err(error) => return context.shared.fail_to_end(number, &error.to_string()),
        };
        context.count(Counter::HoldsEnded, ended.slots.len() as u64);
        context.count(Counter::SessionsEnded, 1);
        let connection_id = ConnectionId { loop_index: context.loop_index, key: self.key };
        tracing::info!(peer = %self.peer, ?outcome, slots = ended.slots.len(), "a session ended");
        let (session, slots, dropped) = (ended.number, ended.slots.len(), outcome == PriorSession::Fenced);
        let event = || NodeEventKind::SessionEnded { session, slots, dropped };
        context.shared.options.observer.notify(self.peer, event);
        context.shared.close(&ended, connection_id, outcome);
    }
}

/// Describes the part of a Hello that has arrived. Shows no more of it than a header: a token may follow.
fn arrived(bytes: &[u8]) -> String {
    let shown = bytes[..bytes.len().min(HEADER_WORDS * 8)].escape_ascii();
    match bytes.len() {
        0 => "; nothing of a greeting arrived".to_owned(),
        1 => format!("; instead of a whole greeting, 1 byte arrived: \"{shown}\""),
        count => format!("; instead of a whole greeting, {count} bytes arrived, which begin with \"{shown}\""),
    }
}

/// Returns the answer to a client that speaks HTTP, in whole words.
fn http_answer() -> Vec<u64> {
    let text = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
                 This is a memory node of Guira, which does not speak HTTP: see guira serve --metrics.\n";
    let words = text.chunks(8).map(|part| {
        let mut word = [b' '; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    });
    words.collect()
}

enum Sent {
    All,
    Blocked,
}

/// Draws a session id that cannot be guessed.
fn random_session_id() -> Result<SessionId, FabricError> {
    let mut words = [0; 2];
    getrandom::fill(zerocopy::IntoBytes::as_mut_bytes(&mut words))
        .map_err(|cause| FabricError::Backend(format!("the kernel provides no random numbers: {cause}")))?;
    Ok(SessionId(words))
}
