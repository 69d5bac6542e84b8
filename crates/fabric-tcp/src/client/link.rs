//! A connection's core: what both ways of waiting share.
//!
//! Three things are locked, each on its own and never two at once: the outbox, the slots, and whose turn it is to read.
//! With [`Waiting::InPlace`] the receiver lies with the slots; a thread that waits takes it, reads until it has its own
//! answer, hands out the others', and puts it back. With [`Waiting::Cooperative`] the driver has it for good.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use guira_fabric::{Effect, FabricError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::time::Timespec;

use super::loss::Loss;
use super::options::Waiting;
use super::outbox::{Flushed, Outbox};
use super::receive::Receiver;
use super::slots::{Delivered, Expected, Slots};
use super::transport::{Patience, SLICE, Transport};
use crate::wire::{Kind, WireError, append, encode_slot};

pub(super) struct Link {
    pub(super) transport: Box<dyn Transport>,
    pub(super) waiting: Waiting,
    pub(super) timeout: Duration,
    /// The process that connected: a forked child has another number.
    process: u32,
    outbox: Mutex<Outbox>,
    /// Whether frames wait for room, or cannot leave: whoever reads sees to them.
    has_rest: AtomicBool,
    state: Mutex<State>,
    /// Answers arrived for threads that wait, or it is somebody's turn to read.
    turn: Condvar,
    lost: OnceLock<Loss>,
    /// Wakes the driver, if there is one.
    pub(super) bell: Option<OwnedFd>,
    pub(super) is_closing: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) slots: Slots,
    receiver: Option<Receiver>,
    /// Threads that wait for their turn or answer.
    waiting: u32,
}

/// A request that was sent, and that a thread waits for.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) slot: u32,
    pub(super) id: u64,
    pub(super) expected: Expected,
}

/// Takes what was found out of an answer's words.
pub(super) type Take<'t> = &'t mut dyn FnMut(&[u64]) -> Result<(), WireError>;

/// Why a request was not carried out.
pub(super) enum Failure {
    Refused(FabricError),
    Lost(Loss),
}

impl Failure {
    /// What a caller is told whose request had `effect`, if the connection was lost.
    pub(super) fn error(self, effect: Effect) -> FabricError {
        match self {
            Failure::Refused(error) => error,
            Failure::Lost(loss) => loss.error(effect),
        }
    }
}

impl Link {
    /// A connection whose greeting is over; `receiver` is in the driver's hands if lanes wait cooperatively.
    pub(super) fn new(
        transport: Box<dyn Transport>,
        waiting: Waiting,
        timeout: Duration,
        receiver: Option<Receiver>,
    ) -> io::Result<Link> {
        let bell = match waiting {
            Waiting::InPlace => None,
            Waiting::Cooperative => Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        };
        Ok(Link {
            transport,
            waiting,
            timeout,
            process: std::process::id(),
            outbox: Mutex::default(),
            has_rest: AtomicBool::new(false),
            state: Mutex::new(State { receiver, ..State::default() }),
            turn: Condvar::new(),
            lost: OnceLock::new(),
            bell,
            is_closing: AtomicBool::new(false),
        })
    }

    /// Whether this process was forked after it connected. One system call, a fiftieth of a round trip.
    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        std::process::id() != self.process
    }

    /// Why the connection is no more.
    #[inline]
    pub(super) fn lost(&self) -> Option<Loss> {
        self.lost.get().copied()
    }

    /// What a batch had as effect that ends at `change_end` of the stream, or with its first change there. Only once
    /// the connection is lost.
    pub(super) fn effect(&self, change_end: Option<u64>) -> Effect {
        let left_bytes = lock(&self.outbox).left_bytes();
        match change_end {
            // A frame is executed when all of it has arrived, and not before.
            Some(end) if end <= left_bytes => Effect::Unknown,
            _ => Effect::None,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Appends what `write` writes to the stream and sends what there is room for. Says where in the stream it begins;
    /// nothing if the connection was lost.
    pub(super) fn send<T>(&self, write: impl FnOnce(&mut Vec<u64>) -> T) -> Option<(T, u64)> {
        let mut outbox = lock(&self.outbox);
        let had_rest = outbox.has_rest();
        let written = outbox.append(write);
        if !had_rest && outbox.flush(&*self.transport) != Flushed::All {
            self.has_rest.store(true, Ordering::Relaxed);
            drop(outbox);
            self.ring();
        }
        written
    }

    /// Sends frames that had to wait.
    pub(super) fn flush(&self) -> Flushed {
        let mut outbox = lock(&self.outbox);
        let flushed = outbox.flush(&*self.transport);
        self.has_rest.store(flushed != Flushed::All, Ordering::Relaxed);
        flushed
    }

    pub(super) fn has_rest(&self) -> bool {
        self.has_rest.load(Ordering::Relaxed)
    }

    /// Wakes the driver.
    pub(super) fn ring(&self) {
        if let Some(bell) = &self.bell {
            // It fails if the bell has been rung 2^64 - 2 times and not been heard.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Gives the connection up: nothing more is sent, and everybody who waits is told.
    pub(super) fn lose(&self, loss: Loss) {
        lock(&self.outbox).close();
        // Those who look now find an outbox that does not change any more.
        let _ = self.lost.set(loss);
        self.transport.shut();
        let mut state = self.state();
        let wakers = state.slots.wakers();
        drop(state);
        self.turn.notify_all();
        self.ring();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Does what an answer that was taken in asks for.
    pub(super) fn settle(&self, delivered: Delivered) {
        if let Some(slot) = delivered.release {
            self.send(|out| append(out, Kind::Release, 0, &encode_slot(slot)));
        }
        delivered.waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the threads that wait, if there are any: what they wait for may have come.
    pub(super) fn pass_turn(&self, state: MutexGuard<'_, State>) {
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.turn.notify_all();
        }
    }

    /// Waits in place for a request's answer. `spare` is room for it, if somebody else reads it.
    pub(super) fn wait(&self, request: Request, spare: &mut Vec<u64>, take: Take<'_>) -> Result<(), Failure> {
        let mut deadline = None;
        loop {
            let mut state = self.state();
            if let Some(result) = state.slots.outcome(request.slot, spare, None) {
                drop(state);
                result.map_err(Failure::Refused)?;
                return self.take(take, spare);
            }
            if let Some(loss) = self.lost() {
                state.slots.reset(request.slot);
                return Err(Failure::Lost(loss));
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.timeout);
            if let Some(receiver) = state.receiver.take() {
                drop(state);
                if self.lead(receiver, request, deadline, take) {
                    return Ok(());
                }
            } else {
                state.waiting += 1;
                let (mut state, _) = self.turn.wait_timeout(state, SLICE).unwrap_or_else(PoisonError::into_inner);
                state.waiting -= 1;
                drop(state);
                if Instant::now() >= deadline {
                    self.lose(self.timed_out());
                }
            }
        }
    }

    /// Asks whether a request is answered; otherwise `waker` is woken when it is.
    pub(super) fn ask(
        &self,
        request: Request,
        spare: &mut Vec<u64>,
        take: Take<'_>,
        waker: &Waker,
    ) -> Poll<Result<(), Failure>> {
        let mut state = self.state();
        if let Some(result) = state.slots.outcome(request.slot, spare, Some(waker)) {
            drop(state);
            return Poll::Ready(result.map_err(Failure::Refused).and_then(|()| self.take(take, spare)));
        }
        // Looked at after the waker was kept: whoever loses the connection does it the other way round.
        if let Some(loss) = self.lost() {
            state.slots.reset(request.slot);
            return Poll::Ready(Err(Failure::Lost(loss)));
        }
        Poll::Pending
    }

    /// The owner of a slot is gone; `hold` is the client slot whose liveness it had asked for.
    pub(super) fn give_back(&self, slot: u32, hold: Option<u16>) {
        let mut state = self.state();
        if self.lost().is_some() {
            state.slots.reset(slot);
        }
        let delivered = state.slots.give_back(slot, hold);
        drop(state);
        self.settle(delivered);
    }

    /// Reads until the request is answered. True if its answer was taken from the stream itself; otherwise it is in its
    /// slot, or the connection is lost.
    fn lead(&self, mut receiver: Receiver, request: Request, deadline: Instant, take: Take<'_>) -> bool {
        let answered = self.read_until_answered(&mut receiver, request, deadline, take);
        if let Err(loss) = answered {
            self.lose(loss);
        }
        let is_taken = answered == Ok(Answered::Here);
        let mut state = self.state();
        if is_taken {
            state.slots.finish(request.slot);
        }
        state.receiver = Some(receiver);
        self.pass_turn(state);
        is_taken
    }

    fn read_until_answered(
        &self,
        receiver: &mut Receiver,
        request: Request,
        deadline: Instant,
        take: Take<'_>,
    ) -> Result<Answered, Loss> {
        if let Some(answered) = self.hand_out(receiver, request, take)? {
            return Ok(answered);
        }
        loop {
            self.fill(receiver)?;
            if let Some(answered) = self.hand_out(receiver, request, take)? {
                return Ok(answered);
            }
            if Instant::now() >= deadline {
                return Err(self.timed_out());
            }
        }
    }

    /// Hands out the frames that are here, up to the request's answer.
    fn hand_out(&self, receiver: &mut Receiver, request: Request, take: Take<'_>) -> Result<Option<Answered>, Loss> {
        while let Some((header, body)) = receiver.next().map_err(Loss::Nonsense)? {
            let is_whole = request.expected == Expected::Found { words: body.len(), frames: 1 };
            if header.kind == Kind::Done && header.id == request.id && is_whole {
                take(body).map_err(Loss::Nonsense)?;
                return Ok(Some(Answered::Here));
            }
            let mut state = self.state();
            let delivered = state.slots.deliver(header, body)?;
            let is_answered = !state.slots.is_waiting(request.slot);
            self.pass_turn(state);
            self.settle(delivered);
            if is_answered {
                return Ok(Some(Answered::InSlot));
            }
        }
        Ok(None)
    }

    /// Waits a while for bytes to arrive, and for room for those that wait to leave.
    fn fill(&self, receiver: &mut Receiver) -> Result<(), Loss> {
        if !self.has_rest() {
            return self.receive(receiver, Patience::Slice).map(|_| ());
        }
        let flushed = self.flush();
        match (self.receive(receiver, Patience::None)?, flushed) {
            (Received::Nothing, Flushed::Failed(kind)) => Err(Loss::Failed(kind)),
            (Received::Nothing, Flushed::Some) => {
                let mut socket = [PollFd::from_borrowed_fd(self.transport.socket(), PollFlags::IN | PollFlags::OUT)];
                let slice = Timespec { tv_sec: 0, tv_nsec: SLICE.subsec_nanos().into() };
                // What went wrong with the socket is told by the next attempt to use it.
                let _ = poll(&mut socket, Some(&slice));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes in what has arrived.
    pub(super) fn receive(&self, receiver: &mut Receiver, patience: Patience) -> Result<Received, Loss> {
        match receiver.fill(&*self.transport, patience) {
            Ok(0) => Err(Loss::Closed),
            Ok(_) => Ok(Received::Bytes),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(Received::Nothing),
                kind => Err(Loss::Failed(kind)),
            },
        }
    }

    pub(super) fn timed_out(&self) -> Loss {
        Loss::TimedOut { timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX) }
    }

    fn take(&self, take: Take<'_>, words: &[u64]) -> Result<(), Failure> {
        take(words).map_err(|wrong| {
            self.lose(Loss::Nonsense(wrong));
            Failure::Lost(self.lost().unwrap_or(Loss::Nonsense(wrong)))
        })
    }
}

/// Where the answer to a request is that its own thread has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// Taken already.
    Here,
    /// In its slot.
    InSlot,
}

/// Whether anything arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Bytes,
    Nothing,
}

/// Nothing that is locked here is left half changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
