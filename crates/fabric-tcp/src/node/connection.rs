//! One connection: a client that greets the node, has a session, and is told why it ends.
//!
//! Invariants: frames are executed in the order they came, by one thread; what a frame is answered stands behind the
//! answers to all batches before it; a farewell is the last frame, and what was not answered before it was not
//! executed. When a session has ended, none of its verbs executes any more, its slots are free, and only then is that
//! told.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use guira_fabric::{Addr, FabricError, Region, Verb};

use super::NodeRegion;
use super::budget::Budget;
use super::buffers::{Completeness, Input, MAX_UNSENT_BYTES, Output};
use super::connections::Key;
use super::counters::Counter;
use super::event::NodeEventKind;
use super::pending::{PendingId, Phase};
use super::session::{MAX_HOLDS, Session, answer, batch, execute_in_place};
use super::shared::{ConnectionId, DropReason, MAX_NODE_HOLDS, Message, Shared};
use super::transport::{More, Transport};
use crate::tls::{self, TlsError};
use crate::wire::{
    CloseReason, FenceReply, Grant, HEADER_WORDS, Hello, Kind, PriorSession, SessionId, VERSION, Welcome, WireError,
};

/// Requests of one session that wait for the end of others, at most; it executes nothing more before one is answered.
const MAX_PENDING_FENCES: u32 = 64;
/// How often one connection executes, sends and executes again before others have their turn.
const MAX_ROUNDS: usize = 4;
/// A connection whose turn took longer has its next ones behind those of others.
const LIGHT_TURN: Duration = Duration::from_micros(100);
/// Unless it moved fewer bytes than these, and few frames: then something else has taken the time.
const SMALL_BYTES: usize = 16 << 10;
/// For how long it has them there.
const HEAVY_PERIOD: Duration = Duration::from_millis(20);
/// How long a client that is told to go may take to hear it.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Words of the longest first frame.
const GREETING_WORDS: usize = HEADER_WORDS + 7;

/// What a loop lends its connections.
pub(super) struct LoopContext<'l, R: Region> {
    pub(super) shared: &'l Shared,
    pub(super) loop_index: usize,
    pub(super) region: R,
    pub(super) lane: R::Lane,
    /// For frames that are rare.
    pub(super) frame: Vec<u64>,
    /// When the loop woke up.
    pub(super) now: Instant,
}

impl<R: Region> LoopContext<'_, R> {
    pub(super) fn count(&self, counter: Counter, count: u64) {
        self.shared.counters[self.loop_index].add(counter, count);
    }

    /// Ends the node, because bytes of the region are gone.
    pub(super) fn lose_memory(&self) {
        let reason = match self.region.verify_bytes() {
            Err(error) => error.to_string(),
            Ok(()) => "a page could not be had: the file was truncated for a moment, or its disk failed".to_owned(),
        };
        let error = reason.clone();
        if self.shared.lose_memory(reason) {
            self.count(Counter::MemoryLost, 1);
            tracing::error!(%error, "the memory that was served is lost; all sessions end");
        }
    }
}

/// What is to become of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum TurnOutcome {
    /// It waits for the kernel.
    Wait,
    /// It has more to do than one turn allows.
    Again,
    /// It is over.
    Remove,
}

/// One connection.
pub(super) struct Connection {
    transport: Transport,
    key: Key,
    peer: SocketAddr,
    /// What it is called at the door, while it has no session.
    pending_id: Option<PendingId>,
    input: Input,
    output: Output,
    state: State,
    /// Whether there may be something to receive.
    readable: bool,
    /// Whether the client has said that it will send nothing more, or is gone.
    hung_up: bool,
    /// Whether whole frames are at hand that may not be executed yet.
    stalled: bool,
    /// Whether the loop has it on one of its lists.
    pub(super) is_scheduled: bool,
    /// Until when its turns are behind those of others.
    heavy_until: Option<Instant>,
    /// Bytes that were received and sent in this turn, or the last one, and whether it was for little.
    moved: usize,
    was_small: bool,
    /// Since when the kernel takes no answers.
    blocked_since: Option<Instant>,
    /// Frames that were executed and whose answers were not all sent, and when the first of them was noticed.
    unanswered: u64,
    noticed: Option<Instant>,
}

enum State {
    /// Nothing was received yet, or not all of a greeting.
    Greeting {
        deadline: Instant,
    },
    /// The client's session before this one is being dropped.
    Superseding {
        hello: Hello,
        deadline: Instant,
    },
    Open(Session),
    /// A farewell is being sent; what comes is not looked at.
    Closing {
        deadline: Instant,
    },
}

/// Why a connection ends, other than by its client.
pub(super) enum CloseCause {
    ProtocolError(WireError),
    Reason(CloseReason),
    /// A batch had an effect that cannot be told.
    Broken(FabricError),
    /// Bytes of the region are gone.
    MemoryLost,
}

impl From<WireError> for CloseCause {
    fn from(error: WireError) -> CloseCause {
        CloseCause::ProtocolError(error)
    }
}

impl Connection {
    pub(super) fn new(
        transport: Transport,
        key: Key,
        peer: SocketAddr,
        pending_id: PendingId,
        deadline: Instant,
    ) -> Connection {
        Connection {
            transport,
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

    /// What it is called at the door, if it has no session.
    pub(super) fn pending_id(&self) -> Option<PendingId> {
        self.pending_id
    }

    pub(super) fn transport(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// The kernel has something to receive.
    pub(super) fn note_readable(&mut self) {
        self.readable = true;
    }

    /// The client will send nothing more.
    pub(super) fn note_hung_up(&mut self) {
        (self.readable, self.hung_up) = (true, true);
    }

    /// Whether its turns are behind those of others, because one of the last took long.
    pub(super) fn is_heavy(&self, now: Instant) -> bool {
        self.heavy_until.is_some_and(|until| now < until)
    }

    /// Its turn began at `begin` and ended at `end`.
    pub(super) fn note_turn(&mut self, begin: Instant, end: Instant) {
        if !self.was_small && end.saturating_duration_since(begin) > LIGHT_TURN {
            self.heavy_until = Some(end + HEAVY_PERIOD);
        }
    }

    /// Receives once, executes what is whole as far as one turn allows, sends. It begins at `begin`.
    pub(super) fn turn<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>, begin: Instant) -> TurnOutcome {
        let mut budget = Budget::new(begin);
        self.moved = 0;
        let outcome = self.turn_within(context, &mut budget);
        self.was_small = self.moved <= SMALL_BYTES && budget.is_small();
        outcome
    }

    fn turn_within<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>, budget: &mut Budget) -> TurnOutcome {
        if let Err(error) = self.receive(context) {
            return self.connection_lost(context, &error);
        }
        for _ in 0..MAX_ROUNDS {
            if let Err(end) = self.execute(context, budget) {
                self.close(context, end);
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

    /// Whether it may receive: not while frames are at hand that wait, or before another session's end.
    fn wants_input(&self) -> bool {
        !self.stalled && !matches!(self.state, State::Superseding { .. })
    }

    fn is_waiting_for_others(&self) -> bool {
        matches!(&self.state, State::Open(session) if session.pending_fences >= MAX_PENDING_FENCES)
    }

    /// Receives what there is, once.
    fn receive<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>) -> io::Result<()> {
        if !self.readable || !self.wants_input() {
            return Ok(());
        }
        if matches!(self.state, State::Closing { .. }) {
            self.input.discard();
        }
        match self.transport.read(self.input.space()) {
            Ok((0, _)) => return Err(io::ErrorKind::ConnectionReset.into()),
            Ok((bytes, more)) => {
                // What comes later is told anew, but not that it was the last.
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

    /// Sends what there is.
    fn send<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>) -> io::Result<Sent> {
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
            // The client learns that this was all; if it cannot, it is gone.
            self.transport.finish()?;
        }
        Ok(Sent::All)
    }

    /// Executes the whole frames at hand, as long as the answers that wait are few and the turn is not over.
    fn execute<R: NodeRegion>(
        &mut self,
        context: &mut LoopContext<'_, R>,
        budget: &mut Budget,
    ) -> Result<(), CloseCause> {
        loop {
            self.stalled = false;
            let (may_be_any, pending) = match &self.state {
                State::Greeting { .. } => (false, 0),
                State::Open(session) => (true, session.pending_fences),
                State::Superseding { .. } | State::Closing { .. } => return Ok(()),
            };
            let Some((header, whole)) = self.input.next()? else { return Ok(()) };
            if !may_be_any && (header.kind != Kind::Hello || header.words > GREETING_WORDS) {
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
                State::Open(session) if header.kind == Kind::Batch => batch(context, session, &header, body, output)?,
                State::Open(session) => session.control(context, *key, &header, body, output)?,
                _ => {
                    let hello = Hello::decode(body)?;
                    self.greet(context, header.id, hello)?;
                }
            }
            budget.spend(&header, (self.output.unsent_bytes() - unsent) / 8);
        }
    }

    fn greet<R: NodeRegion>(
        &mut self,
        context: &mut LoopContext<'_, R>,
        id: u64,
        hello: Hello,
    ) -> Result<(), CloseCause> {
        let shared = context.shared;
        if shared.access().granted(&hello, shared.options.grant).is_none() {
            context.count(Counter::RefusedToken, 1);
            return Err(CloseCause::Reason(CloseReason::Unauthorized));
        }
        let Some(connection_id) = hello.prior_session.and_then(|prior| shared.find(prior)) else {
            return self.welcome(context, id, &hello);
        };
        let asked = ConnectionId { loop_index: context.loop_index, key: self.key };
        let message = Message::Drop {
            victim: connection_id.key,
            drop_reason: DropReason::Superseded,
            asked,
            request: id,
            by: None,
        };
        shared.mailboxes[connection_id.loop_index].send(message);
        self.state = State::Superseding { hello, deadline: context.now + shared.options.greeting_timeout };
        Ok(())
    }

    fn welcome<R: NodeRegion>(
        &mut self,
        context: &mut LoopContext<'_, R>,
        id: u64,
        hello: &Hello,
    ) -> Result<(), CloseCause> {
        let shared = context.shared;
        let options = &shared.options;
        let known = shared.access().granted(hello, options.grant);
        let (grant, token) = known.ok_or(CloseCause::Reason(CloseReason::Unauthorized))?;
        let session = random_session_id().map_err(CloseCause::Broken)?;
        if let Err(bye) = shared.admit(grant, self.peer.ip()) {
            let is_of_address = matches!(bye, CloseReason::AddressFull { .. });
            context.count(if is_of_address { Counter::RefusedAddress } else { Counter::RefusedFull }, 1);
            return Err(CloseCause::Reason(bye));
        }
        if let Some(pending_id) = self.pending_id.take() {
            shared.pending.remove(pending_id);
        }
        let connection_id = ConnectionId { loop_index: context.loop_index, key: self.key };
        shared.open(session, connection_id);
        let number = shared.next_session_number();
        context.count(Counter::SessionsOpened, 1);
        self.state = State::Open(Session::new(session, number, self.peer, grant));
        let sampled = u64::from(hello.sample_words).min(context.region.main_bytes() / 8);
        let mut sample = vec![0; sampled as usize];
        if !sample.is_empty() {
            execute_in_place(&mut context.lane, &mut [Verb::Read { addr: Addr::main(0), into: &mut sample }])
                .map_err(CloseCause::Broken)?;
        }
        if context.region.has_lost_bytes() {
            return Err(CloseCause::MemoryLost);
        }
        let prior_session = hello.prior_session.map_or(PriorSession::None, |prior| shared.prior_session(prior));
        let welcome = Welcome {
            grant,
            prior_session,
            session,
            region: options.region_id,
            main_bytes: context.region.main_bytes(),
            device_bytes: context.region.device_bytes(),
            atomic_write_unit: options.atomic_write_unit,
            session_timeout_ms: u32::try_from(options.session_timeout.as_millis()).unwrap_or(u32::MAX),
            session_holds: MAX_HOLDS as u32,
            node_holds: MAX_NODE_HOLDS,
            sample,
        };
        answer(context, &mut self.output, Kind::Welcome, id, &welcome.encode());
        tracing::info!(peer = %self.peer, ?grant, ?prior_session, "a session was opened");
        let (may_write, name) = (grant == Grant::ReadWrite, || self.transport.peer_name());
        let opened = || NodeEventKind::SessionOpened { session: number, may_write, token, name: name() };
        options.observer.notify(self.peer, opened);
        Ok(())
    }

    /// The session that request `request` wanted to be dropped is gone.
    pub(super) fn session_dropped<R: NodeRegion>(
        &mut self,
        context: &mut LoopContext<'_, R>,
        request: u64,
        drop_reason: DropReason,
    ) {
        match (&mut self.state, drop_reason) {
            (State::Superseding { hello, .. }, DropReason::Superseded) => {
                let hello = *hello;
                if let Err(end) = self.welcome(context, request, &hello) {
                    self.close(context, end);
                }
            }
            (State::Open(session), DropReason::Fenced) => {
                session.pending_fences -= 1;
                context.count(Counter::FencesDropped, 1);
                answer(context, &mut self.output, Kind::Fenced, request, &FenceReply::Dropped.encode());
            }
            _ => {}
        }
    }

    /// Drops the session, if there is one: when this returns, none of its verbs executes any more.
    pub(super) fn drop_session<R: NodeRegion>(
        &mut self,
        context: &mut LoopContext<'_, R>,
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

    /// The node ends.
    pub(super) fn shut_down<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>) {
        if !matches!(self.state, State::Closing { .. }) {
            let bye =
                if context.shared.memory_loss().is_some() { CloseReason::MemoryLost } else { CloseReason::Shutdown };
            self.close_with(context, bye, PriorSession::Ended);
        }
    }

    /// Looks after deadlines, and gives back memory that is not needed.
    pub(super) fn sweep<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>) -> TurnOutcome {
        let options = &context.shared.options;
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self.input.sweep();
        self.output.sweep();
        match &self.state {
            State::Closing { deadline } if context.now >= *deadline => self.remove(context),
            State::Greeting { deadline } | State::Superseding { deadline, .. } if context.now >= *deadline => {
                context.count(Counter::GreetedLate, 1);
                let bye = CloseReason::TooSlow { seconds: seconds(options.greeting_timeout) };
                options.observer.notify(self.peer, || NodeEventKind::Refused { reason: bye.to_string() });
                self.close_with(context, bye, PriorSession::Ended);
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

    /// Ends the connection for a reason that is the client's, or the region's.
    fn close<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>, end: CloseCause) {
        let is_open = matches!(self.state, State::Open(_));
        let peer = self.peer;
        let bye = match end {
            CloseCause::ProtocolError(WireError::Value { what: "version", value }) if !is_open => {
                context.count(Counter::RefusedVersion, 1);
                tracing::info!(?peer, version = value, "a client of another version was refused");
                CloseReason::Version { node: VERSION }
            }
            CloseCause::ProtocolError(_) if !is_open && tls::is_handshake(self.input.unread()) => {
                context.count(Counter::RefusedTls, 1);
                tracing::info!(?peer, "a client that speaks TLS was refused: this node does not");
                CloseReason::ProtocolError
            }
            CloseCause::ProtocolError(error) => {
                let counter = if is_open { Counter::SessionsMisunderstood } else { Counter::GreetedWrongly };
                context.count(counter, 1);
                tracing::info!(?peer, %error, "a client was not understood");
                CloseReason::ProtocolError
            }
            CloseCause::Reason(bye) => {
                tracing::info!(?peer, reason = %bye, "a client was refused");
                bye
            }
            CloseCause::Broken(error) => {
                tracing::error!(?peer, %error, "a session was ended, because what it asked for cannot be told");
                CloseReason::Shutdown
            }
            CloseCause::MemoryLost => {
                context.lose_memory();
                CloseReason::MemoryLost
            }
        };
        context.shared.options.observer.notify(peer, || NodeEventKind::Refused { reason: bye.to_string() });
        self.close_with(context, bye, PriorSession::Ended);
    }

    /// Ends the connection, because there is no TLS with the client, or not any more: nothing that it sends is looked
    /// at, and it is told by TLS itself, or in plain words if it does not speak it.
    fn fail_tls<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>, reason: &TlsError) {
        let peer = self.peer;
        tracing::info!(?peer, %reason, "a client was refused: there is no TLS with it");
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

    /// From now on it is one of those without a session, and among them the first to go.
    fn linger<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>) {
        let shared = context.shared;
        self.stalled = false;
        self.state = State::Closing { deadline: context.now + LINGER };
        match self.pending_id {
            Some(pending_id) => shared.pending.mark_closing(pending_id),
            // When the node ends, all of them are told, however many they are.
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

    /// Ends the session, if there is one, and adds a farewell.
    fn close_with<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>, bye: CloseReason, outcome: PriorSession) {
        self.end_session(context, outcome);
        self.linger(context);
        answer(context, &mut self.output, Kind::Close, 0, &bye.encode());
    }

    /// Ends the session, if there is one, because its connection is lost: by the client, or by the kernel, which has
    /// not heard of the client's machine for too long.
    fn connection_lost<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>, error: &io::Error) -> TurnOutcome {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        let is_by_client = matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected);
        if !is_by_client && matches!(self.state, State::Open(_)) {
            context.count(Counter::SessionsCutOff, 1);
            tracing::warn!(peer = %self.peer, cause = %error, "a client was cut off");
            self.end_session(context, PriorSession::Fenced);
        }
        self.remove(context)
    }

    /// Ends the session, if there is one.
    fn remove<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>) -> TurnOutcome {
        self.end_session(context, PriorSession::Ended);
        TurnOutcome::Remove
    }

    /// Ends the session, if there is one: no verb of it executes after this, and its slots are free.
    pub(super) fn end_session<R: NodeRegion>(&mut self, context: &mut LoopContext<'_, R>, outcome: PriorSession) {
        let ended = State::Closing { deadline: context.now };
        let State::Open(session) = std::mem::replace(&mut self.state, ended) else { return };
        let ended = session.end();
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

enum Sent {
    All,
    Blocked,
}

/// A session's name, which nobody can guess.
fn random_session_id() -> Result<SessionId, FabricError> {
    let mut words = [0; 2];
    getrandom::fill(zerocopy::IntoBytes::as_mut_bytes(&mut words))
        .map_err(|cause| FabricError::Backend(format!("the kernel has no random numbers: {cause}")))?;
    Ok(SessionId(words))
}
