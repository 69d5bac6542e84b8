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
use super::buffers::{Input, MAX_UNSENT_BYTES, Output, Whole};
use super::connections::Key;
use super::counters::Counter;
use super::door::{Phase, Ticket};
use super::event::NodeEventKind;
use super::session::{MAX_HOLDS, Session, answer, batch, execute_in_place};
use super::shared::{MAX_NODE_HOLDS, Message, Place, Shared, Why};
use super::transport::{More, Transport};
use crate::tls::{self, TlsError};
use crate::wire::{
    CloseReason, FenceReply, Grant, HEADER_WORDS, Hello, Kind, PriorSession, SessionId, VERSION, Welcome, WireError,
};

/// Requests of one session that wait for the end of others, at most; it executes nothing more before one is answered.
const MAX_PENDING: u32 = 64;
/// How often one connection executes, sends and executes again before others have their turn.
const ROUNDS: usize = 4;
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
pub(super) struct Tools<'l, R: Region> {
    pub(super) shared: &'l Shared,
    pub(super) loop_index: usize,
    pub(super) region: R,
    pub(super) lane: R::Lane,
    /// For frames that are rare.
    pub(super) frame: Vec<u64>,
    /// When the loop woke up.
    pub(super) now: Instant,
}

impl<R: Region> Tools<'_, R> {
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
pub(super) enum Verdict {
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
    ticket: Option<Ticket>,
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
    pub(super) listed: bool,
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
    Succeeding {
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
pub(super) enum End {
    ProtocolError(WireError),
    Reason(CloseReason),
    /// A batch had an effect that cannot be told.
    Broken(FabricError),
    /// Bytes of the region are gone.
    MemoryLost,
}

impl From<WireError> for End {
    fn from(error: WireError) -> End {
        End::ProtocolError(error)
    }
}

impl Connection {
    pub(super) fn new(
        transport: Transport,
        key: Key,
        peer: SocketAddr,
        ticket: Ticket,
        deadline: Instant,
    ) -> Connection {
        Connection {
            transport,
            key,
            peer,
            ticket: Some(ticket),
            input: Input::new(),
            output: Output::new(),
            state: State::Greeting { deadline },
            readable: true,
            hung_up: false,
            stalled: false,
            listed: false,
            heavy_until: None,
            moved: 0,
            was_small: true,
            blocked_since: None,
            unanswered: 0,
            noticed: None,
        }
    }

    /// What it is called at the door, if it has no session.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        self.ticket
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
    pub(super) fn turn<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, begin: Instant) -> Verdict {
        let mut budget = Budget::new(begin);
        self.moved = 0;
        let verdict = self.turn_within(tools, &mut budget);
        self.was_small = self.moved <= SMALL_BYTES && budget.is_small();
        verdict
    }

    fn turn_within<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, budget: &mut Budget) -> Verdict {
        if let Err(error) = self.receive(tools) {
            return self.lose(tools, &error);
        }
        for _ in 0..ROUNDS {
            if let Err(end) = self.execute(tools, budget) {
                self.close(tools, end);
            }
            match self.send(tools) {
                Ok(Sent::All) => {}
                Ok(Sent::Blocked) => return Verdict::Wait,
                Err(error) => return self.lose(tools, &error),
            }
            if !self.stalled {
                return if self.readable && self.wants_input() { Verdict::Again } else { Verdict::Wait };
            }
            if self.is_waiting_for_others() {
                return Verdict::Wait;
            }
            if budget.is_spent() {
                break;
            }
        }
        Verdict::Again
    }

    /// Whether it may receive: not while frames are at hand that wait, or before another session's end.
    fn wants_input(&self) -> bool {
        !self.stalled && !matches!(self.state, State::Succeeding { .. })
    }

    fn is_waiting_for_others(&self) -> bool {
        matches!(&self.state, State::Open(session) if session.pending >= MAX_PENDING)
    }

    /// Receives what there is, once.
    fn receive<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>) -> io::Result<()> {
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
                self.noticed.get_or_insert(tools.now);
                tools.count(Counter::BytesIn, bytes as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => match TlsError::of(&error) {
                Some(reason) => self.distrust(tools, reason),
                None => return Err(error),
            },
        }
        Ok(())
    }

    /// Sends what there is.
    fn send<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>) -> io::Result<Sent> {
        match self.transport.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked_since.get_or_insert(tools.now);
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
                    tools.count(Counter::BytesOut, bytes as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked_since.get_or_insert(tools.now);
                    return Ok(Sent::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.unanswered > 0 {
            let time = self.noticed.map_or(Duration::ZERO, |noticed| noticed.elapsed());
            tools.shared.counters[tools.loop_index].answered(self.unanswered, time);
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
    fn execute<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, budget: &mut Budget) -> Result<(), End> {
        loop {
            self.stalled = false;
            let (may_be_any, pending) = match &self.state {
                State::Greeting { .. } => (false, 0),
                State::Open(session) => (true, session.pending),
                State::Succeeding { .. } | State::Closing { .. } => return Ok(()),
            };
            let Some((header, whole)) = self.input.next()? else { return Ok(()) };
            if !may_be_any && (header.kind != Kind::Hello || header.words > GREETING_WORDS) {
                return Err(WireError::Kind { kind: header.kind as u8 }.into());
            }
            if whole == Whole::No {
                return Ok(());
            }
            if self.output.unsent_bytes() > MAX_UNSENT_BYTES || pending >= MAX_PENDING || budget.is_spent() {
                self.stalled = true;
                return Ok(());
            }
            self.unanswered += 1;
            let Connection { input, output, state, key, .. } = self;
            let unsent = output.unsent_bytes();
            let body = input.take(&header);
            match state {
                State::Open(session) if header.kind == Kind::Batch => batch(tools, session, &header, body, output)?,
                State::Open(session) => session.control(tools, *key, &header, body, output)?,
                _ => {
                    let hello = Hello::decode(body)?;
                    self.greet(tools, header.id, hello)?;
                }
            }
            budget.spend(&header, (self.output.unsent_bytes() - unsent) / 8);
        }
    }

    fn greet<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, id: u64, hello: Hello) -> Result<(), End> {
        let shared = tools.shared;
        if shared.access().granted(&hello, shared.options.grant).is_none() {
            tools.count(Counter::RefusedToken, 1);
            return Err(End::Reason(CloseReason::Unauthorized));
        }
        let Some(place) = hello.prior_session.and_then(|prior| shared.find(prior)) else {
            return self.welcome(tools, id, &hello);
        };
        let asked = Place { loop_index: tools.loop_index, key: self.key };
        let message = Message::Drop { victim: place.key, why: Why::Succeeded, asked, request: id, by: None };
        shared.mailboxes[place.loop_index].send(message);
        self.state = State::Succeeding { hello, deadline: tools.now + shared.options.greeting_timeout };
        Ok(())
    }

    fn welcome<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, id: u64, hello: &Hello) -> Result<(), End> {
        let shared = tools.shared;
        let options = &shared.options;
        let known = shared.access().granted(hello, options.grant);
        let (grant, token) = known.ok_or(End::Reason(CloseReason::Unauthorized))?;
        let session = draw().map_err(End::Broken)?;
        if let Err(bye) = shared.admit(grant, self.peer.ip()) {
            let is_of_address = matches!(bye, CloseReason::AddressFull { .. });
            tools.count(if is_of_address { Counter::RefusedAddress } else { Counter::RefusedFull }, 1);
            return Err(End::Reason(bye));
        }
        if let Some(ticket) = self.ticket.take() {
            shared.door.leave(ticket);
        }
        let place = Place { loop_index: tools.loop_index, key: self.key };
        shared.open(session, place);
        let number = shared.number_session();
        tools.count(Counter::SessionsOpened, 1);
        self.state = State::Open(Session::new(session, number, self.peer, grant));
        let sampled = u64::from(hello.sample_words).min(tools.region.main_bytes() / 8);
        let mut sample = vec![0; sampled as usize];
        if !sample.is_empty() {
            execute_in_place(&mut tools.lane, &mut [Verb::Read { addr: Addr::main(0), into: &mut sample }])
                .map_err(End::Broken)?;
        }
        if tools.region.has_lost_bytes() {
            return Err(End::MemoryLost);
        }
        let prior_session = hello.prior_session.map_or(PriorSession::None, |prior| shared.prior_session(prior));
        let welcome = Welcome {
            grant,
            prior_session,
            session,
            region: options.region_id,
            main_bytes: tools.region.main_bytes(),
            device_bytes: tools.region.device_bytes(),
            atomic_write_unit: options.atomic_write_unit,
            session_timeout_ms: u32::try_from(options.session_timeout.as_millis()).unwrap_or(u32::MAX),
            session_holds: MAX_HOLDS as u32,
            node_holds: MAX_NODE_HOLDS,
            sample,
        };
        answer(tools, &mut self.output, Kind::Welcome, id, &welcome.encode());
        tracing::info!(peer = %self.peer, ?grant, ?prior_session, "a session was opened");
        let (may_write, name) = (grant == Grant::ReadWrite, || self.transport.peer_name());
        let opened = || NodeEventKind::SessionOpened { session: number, may_write, token, name: name() };
        options.observer.tell(self.peer, opened);
        Ok(())
    }

    /// The session that request `request` wanted to be dropped is gone.
    pub(super) fn dropped<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, request: u64, why: Why) {
        match (&mut self.state, why) {
            (State::Succeeding { hello, .. }, Why::Succeeded) => {
                let hello = *hello;
                if let Err(end) = self.welcome(tools, request, &hello) {
                    self.close(tools, end);
                }
            }
            (State::Open(session), Why::Fenced) => {
                session.pending -= 1;
                tools.count(Counter::FencesDropped, 1);
                answer(tools, &mut self.output, Kind::Fenced, request, &FenceReply::Dropped.encode());
            }
            _ => {}
        }
    }

    /// Drops the session, if there is one: when this returns, none of its verbs executes any more.
    pub(super) fn drop_session<R: NodeRegion>(
        &mut self,
        tools: &mut Tools<'_, R>,
        why: Why,
        by: Option<(u64, SocketAddr)>,
    ) {
        if let State::Open(Session { number, .. }) = self.state {
            if why == Why::Fenced {
                tools.count(Counter::SessionsFenced, 1);
            }
            if let Some((by, by_peer)) = by {
                let fenced = || NodeEventKind::Fenced { session: number, by, by_peer };
                tools.shared.options.observer.tell(self.peer, fenced);
            }
            self.bid(
                tools,
                CloseReason::Fenced,
                if why == Why::Fenced { PriorSession::Fenced } else { PriorSession::Ended },
            );
        }
    }

    /// The node ends.
    pub(super) fn shut_down<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>) {
        if !matches!(self.state, State::Closing { .. }) {
            let bye =
                if tools.shared.memory_loss().is_some() { CloseReason::MemoryLost } else { CloseReason::Shutdown };
            self.bid(tools, bye, PriorSession::Ended);
        }
    }

    /// Looks after deadlines, and gives back memory that is not needed.
    pub(super) fn sweep<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>) -> Verdict {
        let options = &tools.shared.options;
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self.input.sweep();
        self.output.sweep();
        match &self.state {
            State::Closing { deadline } if tools.now >= *deadline => self.remove(tools),
            State::Greeting { deadline } | State::Succeeding { deadline, .. } if tools.now >= *deadline => {
                tools.count(Counter::GreetedLate, 1);
                let bye = CloseReason::TooSlow { seconds: seconds(options.greeting_timeout) };
                options.observer.tell(self.peer, || NodeEventKind::Refused { reason: bye.to_string() });
                self.bid(tools, bye, PriorSession::Ended);
                Verdict::Again
            }
            State::Open(_) => {
                let blocked = self.blocked_since.map(|since| tools.now.saturating_duration_since(since));
                if blocked.is_none_or(|blocked| blocked < options.session_timeout) {
                    return Verdict::Wait;
                }
                tools.count(Counter::SessionsTooSlow, 1);
                self.bid(
                    tools,
                    CloseReason::TooSlow { seconds: seconds(options.session_timeout) },
                    PriorSession::Fenced,
                );
                Verdict::Again
            }
            _ => Verdict::Wait,
        }
    }

    /// Ends the connection for a reason that is the client's, or the region's.
    fn close<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, end: End) {
        let is_open = matches!(self.state, State::Open(_));
        let peer = self.peer;
        let bye = match end {
            End::ProtocolError(WireError::Value { what: "version", value }) if !is_open => {
                tools.count(Counter::RefusedVersion, 1);
                tracing::info!(?peer, version = value, "a client of another version was refused");
                CloseReason::Version { node: VERSION }
            }
            End::ProtocolError(_) if !is_open && tls::is_handshake(self.input.at_hand()) => {
                tools.count(Counter::RefusedTls, 1);
                tracing::info!(?peer, "a client that speaks TLS was refused: this node does not");
                CloseReason::ProtocolError
            }
            End::ProtocolError(error) => {
                let counter = if is_open { Counter::SessionsMisunderstood } else { Counter::GreetedWrongly };
                tools.count(counter, 1);
                tracing::info!(?peer, %error, "a client was not understood");
                CloseReason::ProtocolError
            }
            End::Reason(bye) => {
                tracing::info!(?peer, reason = %bye, "a client was refused");
                bye
            }
            End::Broken(error) => {
                tracing::error!(?peer, %error, "a session was ended, because what it asked for cannot be told");
                CloseReason::Shutdown
            }
            End::MemoryLost => {
                tools.lose_memory();
                CloseReason::MemoryLost
            }
        };
        tools.shared.options.observer.tell(peer, || NodeEventKind::Refused { reason: bye.to_string() });
        self.bid(tools, bye, PriorSession::Ended);
    }

    /// Ends the connection, because there is no TLS with the client, or not any more: nothing that it sends is looked
    /// at, and it is told by TLS itself, or in plain words if it does not speak it.
    fn distrust<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, reason: &TlsError) {
        let peer = self.peer;
        tracing::info!(?peer, %reason, "a client was refused: there is no TLS with it");
        tools.shared.options.observer.tell(peer, || NodeEventKind::Refused { reason: reason.to_string() });
        match (&self.state, reason) {
            (State::Greeting { .. }, TlsError::NotSpoken) => {
                tools.count(Counter::RefusedPlain, 1);
                self.transport.speak_plainly();
                return self.bid(tools, CloseReason::TlsRequired, PriorSession::Ended);
            }
            (State::Greeting { .. }, _) => tools.count(Counter::RefusedHandshake, 1),
            (State::Open(_), _) => tools.count(Counter::SessionsMisunderstood, 1),
            _ => {}
        }
        self.end_session(tools, PriorSession::Ended);
        self.input.discard();
        self.output.discard();
        self.linger(tools);
    }

    /// From now on it is one of those without a session, and among them the first to go.
    fn linger<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>) {
        let shared = tools.shared;
        self.stalled = false;
        self.state = State::Closing { deadline: tools.now + LINGER };
        match self.ticket {
            Some(ticket) => shared.door.dismiss(ticket),
            // When the node ends, all of them are told, however many they are.
            None if shared.is_stopping() => {}
            None => {
                let place = Place { loop_index: tools.loop_index, key: self.key };
                let (ticket, shed) = shared.door.enter(self.peer.ip(), Some(place), Phase::Leaving);
                self.ticket = Some(ticket);
                if let Some(shed) = shed {
                    tools.count(Counter::ConnectionsShed, 1);
                    shared.shed(shed);
                }
            }
        }
    }

    /// Ends the session, if there is one, and adds a farewell.
    fn bid<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, bye: CloseReason, outcome: PriorSession) {
        self.end_session(tools, outcome);
        self.linger(tools);
        answer(tools, &mut self.output, Kind::Close, 0, &bye.encode());
    }

    /// Ends the session, if there is one, because its connection is lost: by the client, or by the kernel, which has
    /// not heard of the client's machine for too long.
    fn lose<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, error: &io::Error) -> Verdict {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        let is_by_client = matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected);
        if !is_by_client && matches!(self.state, State::Open(_)) {
            tools.count(Counter::SessionsCutOff, 1);
            tracing::warn!(peer = %self.peer, cause = %error, "a client was cut off");
            self.end_session(tools, PriorSession::Fenced);
        }
        self.remove(tools)
    }

    /// Ends the session, if there is one.
    fn remove<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>) -> Verdict {
        self.end_session(tools, PriorSession::Ended);
        Verdict::Remove
    }

    /// Ends the session, if there is one: no verb of it executes after this, and its slots are free.
    pub(super) fn end_session<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, outcome: PriorSession) {
        let ended = State::Closing { deadline: tools.now };
        let State::Open(session) = std::mem::replace(&mut self.state, ended) else { return };
        let ended = session.end();
        tools.count(Counter::HoldsEnded, ended.slots.len() as u64);
        tools.count(Counter::SessionsEnded, 1);
        let place = Place { loop_index: tools.loop_index, key: self.key };
        tracing::info!(peer = %self.peer, ?outcome, slots = ended.slots.len(), "a session ended");
        let (session, slots, dropped) = (ended.number, ended.slots.len(), outcome == PriorSession::Fenced);
        let event = || NodeEventKind::SessionEnded { session, slots, dropped };
        tools.shared.options.observer.tell(self.peer, event);
        tools.shared.close(&ended, place, outcome);
    }
}

enum Sent {
    All,
    Blocked,
}

/// A session's name, which nobody can guess.
fn draw() -> Result<SessionId, FabricError> {
    let mut words = [0; 2];
    getrandom::fill(zerocopy::IntoBytes::as_mut_bytes(&mut words))
        .map_err(|cause| FabricError::Backend(format!("the kernel has no random numbers: {cause}")))?;
    Ok(SessionId(words))
}
