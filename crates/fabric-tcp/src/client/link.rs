//! A connection's core: what both ways of waiting share.
//!
//! The outbox and the slots are locked, each on its own and never both. The receiver lies with the slots: a thread that
//! waits takes it, reads until it has its own answer, hands out the others', and puts it back. Once a lane waits
//! cooperatively, the driver takes it for good, and threads wait until it has read for them.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use guira_fabric::process::Process;
use guira_fabric::{Effect, FabricError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::time::Timespec;

use super::loss::Loss;
use super::outbox::{Flushed, Outbox};
use super::receive::Receiver;
use super::request_slots::{Delivered, Expected, RequestSlots};
use super::transport::{ReceiveMode, SLICE, Transport};
use crate::wire::{Kind, WireError, append, encode_slot};

pub(super) struct Link {
    pub(super) transport: Box<dyn Transport>,
    pub(super) timeout: Duration,
    /// The process that connected.
    process: Process,
    outbox: Mutex<Outbox>,
    /// Whether frames wait for room, or cannot leave: whoever reads sees to them.
    has_backlog: AtomicBool,
    /// Whether frames wait for others to leave with: who takes the last answer of a round sees to them, or else the
    /// driver, when the round is over.
    has_coalesced: AtomicBool,
    /// Tasks that were woken with an answer in this round, and have not taken it.
    awaited_tasks: AtomicU32,
    state: Mutex<State>,
    /// Answers arrived for threads that wait, or it is somebody's turn to read.
    progress: Condvar,
    lost: OnceLock<Loss>,
    /// Wakes the driver, if there is one.
    wakeup: OnceLock<OwnedFd>,
    pub(super) is_closing: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) slots: RequestSlots,
    receiver: Option<Receiver>,
    /// Whether the driver reads, or waits for its turn to.
    is_driven: bool,
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
    Lost(Unanswered),
}

/// A request whose connection was lost.
pub(super) struct Unanswered {
    pub(super) loss: Loss,
    /// Whether a part of it was answered.
    is_partly_answered: bool,
}

impl Failure {
    /// What a caller is told whose request had `effect`, if the connection was lost.
    pub(super) fn error(self, effect: impl FnOnce(&Unanswered) -> Effect) -> FabricError {
        match self {
            Failure::Refused(error) => error,
            Failure::Lost(unanswered) => unanswered.loss.error(effect(&unanswered)),
        }
    }
}

impl Link {
    /// A connection whose greeting is over, and has all that was received behind it in `receiver`.
    pub(super) fn new(transport: Box<dyn Transport>, timeout: Duration, process: Process, receiver: Receiver) -> Link {
        Link {
            transport,
            timeout,
            process,
            outbox: Mutex::default(),
            has_backlog: AtomicBool::new(false),
            has_coalesced: AtomicBool::new(false),
            awaited_tasks: AtomicU32::new(0),
            state: Mutex::new(State { receiver: Some(receiver), ..State::default() }),
            progress: Condvar::new(),
            lost: OnceLock::new(),
            wakeup: OnceLock::new(),
            is_closing: AtomicBool::new(false),
        }
    }

    /// Sees to it that there is a driver, which `start` starts.
    pub(super) fn drive(&self, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.wakeup.get().is_none() {
            // Whoever comes second throws his own away.
            let _ = self.wakeup.set(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        }
        let mut state = self.state();
        if state.is_driven {
            return Ok(());
        }
        start()?;
        state.is_driven = true;
        Ok(())
    }

    /// What the driver waits on beside the socket.
    pub(super) fn wakeup(&self) -> &OwnedFd {
        self.wakeup.get().expect("a driver is started after its wakeup was made")
    }

    /// The driver's turn, which does not end.
    pub(super) fn take_receiver(&self) -> Receiver {
        let mut state = self.state();
        loop {
            if let Some(receiver) = state.receiver.take() {
                return receiver;
            }
            state.waiting += 1;
            state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }

    /// Whether this process was forked after it connected. One load.
    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        !self.process.is_this()
    }

    /// Why the connection is no more.
    #[inline]
    pub(super) fn lost(&self) -> Option<Loss> {
        self.lost.get().copied()
    }

    /// What a batch did that was not answered before the connection was lost. Its first change ends at `change_end` of
    /// the stream.
    pub(super) fn effect(&self, failure: &Unanswered, change_end: Option<u64>) -> Effect {
        // A frame is executed when all of it has arrived, and not before.
        let sent_bytes = lock(&self.outbox).sent_bytes();
        let may_have_arrived = change_end.is_some_and(|end| end <= sent_bytes);
        let was_none_executed = failure.loss.is_final() && !failure.is_partly_answered;
        if may_have_arrived && !was_none_executed { Effect::Unknown } else { Effect::None }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Appends what `write` writes to the stream and sends what there is room for. Says where in the stream it begins;
    /// nothing if the connection was lost.
    pub(super) fn send<T>(&self, write: impl FnOnce(&mut Vec<u64>) -> T) -> Option<(T, u64)> {
        let mut outbox = lock(&self.outbox);
        let written = outbox.append(write);
        self.flush_unless_blocked(outbox);
        written
    }

    /// As [`Link::send`], but lets it wait for others while a round is under way, unless much waits already.
    pub(super) fn coalesce<T>(&self, write: impl FnOnce(&mut Vec<u64>) -> T) -> Option<(T, u64)> {
        let mut outbox = lock(&self.outbox);
        let written = outbox.append(write);
        // Looked at under the lock: who ends a round sends afterwards, and finds this if it was not noticed here.
        if self.awaited_tasks.load(Ordering::Relaxed) == 0 || outbox.is_coalescing_limit_reached() {
            self.flush_unless_blocked(outbox);
        } else if written.is_some() {
            self.has_coalesced.store(true, Ordering::Relaxed);
        }
        written
    }

    /// So many tasks are about to be woken with an answer each: their next batches may leave together, and with those
    /// of tasks that have been woken before.
    pub(super) fn extend_flush_window(&self, tasks: u32) {
        let more = |awaited_tasks: u32| Some(awaited_tasks.saturating_add(tasks));
        let _ = self.awaited_tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether tasks are awaited.
    pub(super) fn is_flush_window_open(&self) -> bool {
        self.awaited_tasks.load(Ordering::Relaxed) > 0
    }

    /// A task has taken its answer.
    pub(super) fn note_reply_taken(&self) {
        let less = |awaited_tasks: u32| awaited_tasks.checked_sub(1);
        // It is none of the round's if nobody is awaited.
        let _ = self.awaited_tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Nobody is waited for any more.
    pub(super) fn close_flush_window(&self) {
        self.awaited_tasks.store(0, Ordering::Relaxed);
        // Not only if something is known to have been gathered: who gathers just now is seen by the lock alone.
        self.flush_unless_blocked(lock(&self.outbox));
    }

    /// Sends what was gathered, if nobody has yet.
    pub(super) fn flush_coalesced(&self) {
        if self.has_coalesced() {
            self.flush_unless_blocked(lock(&self.outbox));
        }
    }

    /// Whether frames wait for others to leave with.
    pub(super) fn has_coalesced(&self) -> bool {
        self.has_coalesced.load(Ordering::Relaxed)
    }

    fn flush_unless_blocked(&self, mut outbox: MutexGuard<'_, Outbox>) {
        self.has_coalesced.store(false, Ordering::Relaxed);
        if !outbox.is_blocked() && outbox.flush(&*self.transport) != Flushed::All {
            self.has_backlog.store(true, Ordering::Relaxed);
            drop(outbox);
            self.wake_driver();
        }
    }

    /// Sends frames that had to wait.
    pub(super) fn flush(&self) -> Flushed {
        let mut outbox = lock(&self.outbox);
        self.has_coalesced.store(false, Ordering::Relaxed);
        let flushed = outbox.flush(&*self.transport);
        self.has_backlog.store(flushed != Flushed::All, Ordering::Relaxed);
        flushed
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.has_backlog.load(Ordering::Relaxed)
    }

    /// Wakes the driver.
    pub(super) fn wake_driver(&self) {
        if let Some(wakeup) = self.wakeup.get() {
            // It fails if the bell has been rung 2^64 - 2 times and not been heard.
            let _ = rustix::io::write(wakeup, &1u64.to_ne_bytes());
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
        self.progress.notify_all();
        self.wake_driver();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Does what an answer that was taken in asks for.
    pub(super) fn complete(&self, delivered: Delivered) {
        if let Some(slot) = delivered.release {
            self.send(|out| append(out, Kind::Release, 0, &encode_slot(slot)));
        }
        delivered.waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the threads that wait, if there are any: what they wait for may have come.
    pub(super) fn notify_waiters(&self, state: MutexGuard<'_, State>) {
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.progress.notify_all();
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
                let is_partly_answered = state.slots.reset(request.slot);
                return Err(Failure::Lost(Unanswered { loss, is_partly_answered }));
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.timeout);
            let receiver = if state.is_driven { None } else { state.receiver.take() };
            if let Some(receiver) = receiver {
                drop(state);
                if self.read_for_all(receiver, request, deadline, take) {
                    return Ok(());
                }
            } else {
                state.waiting += 1;
                let (mut state, _) = self.progress.wait_timeout(state, SLICE).unwrap_or_else(PoisonError::into_inner);
                state.waiting -= 1;
                drop(state);
                if Instant::now() >= deadline {
                    self.lose(self.timed_out());
                }
            }
        }
    }

    /// Asks whether a request is answered; otherwise `waker` is woken when it is.
    pub(super) fn poll(
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
            let is_partly_answered = state.slots.reset(request.slot);
            return Poll::Ready(Err(Failure::Lost(Unanswered { loss, is_partly_answered })));
        }
        Poll::Pending
    }

    /// The owner of a slot is gone; `hold` is the client slot whose liveness it had asked for.
    pub(super) fn release_slot(&self, slot: u32, hold: Option<u16>) {
        let mut state = self.state();
        if self.lost().is_some() {
            state.slots.reset(slot);
        }
        let delivered = state.slots.release_slot(slot, hold);
        drop(state);
        self.complete(delivered);
    }

    /// Reads until the request is answered. True if its answer was taken from the stream itself; otherwise it is in its
    /// slot, or the connection is lost.
    fn read_for_all(&self, mut receiver: Receiver, request: Request, deadline: Instant, take: Take<'_>) -> bool {
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
        self.notify_waiters(state);
        is_taken
    }

    fn read_until_answered(
        &self,
        receiver: &mut Receiver,
        request: Request,
        deadline: Instant,
        take: Take<'_>,
    ) -> Result<Answered, Loss> {
        if let Some(answered) = self.dispatch(receiver, request, take)? {
            return Ok(answered);
        }
        loop {
            self.fill(receiver)?;
            if let Some(answered) = self.dispatch(receiver, request, take)? {
                return Ok(answered);
            }
            if Instant::now() >= deadline {
                return Err(self.timed_out());
            }
        }
    }

    /// Hands out the frames that are here, up to the request's answer.
    fn dispatch(&self, receiver: &mut Receiver, request: Request, take: Take<'_>) -> Result<Option<Answered>, Loss> {
        while let Some((header, body)) = receiver.next().map_err(Loss::ProtocolError)? {
            let is_whole = request.expected == Expected::Found { words: body.len(), frames: 1 };
            if header.kind == Kind::Done && header.id == request.id && is_whole {
                take(body).map_err(Loss::ProtocolError)?;
                return Ok(Some(Answered::Here));
            }
            let mut state = self.state();
            let delivered = state.slots.deliver(header, body)?;
            let is_answered = !state.slots.is_waiting(request.slot);
            self.notify_waiters(state);
            self.complete(delivered);
            if is_answered {
                return Ok(Some(Answered::InSlot));
            }
        }
        Ok(None)
    }

    /// Waits a while for bytes to arrive, and for room for those that wait to leave.
    fn fill(&self, receiver: &mut Receiver) -> Result<(), Loss> {
        if !self.has_backlog() {
            return self.receive(receiver, ReceiveMode::Timed).map(|_| ());
        }
        let flushed = self.flush();
        match (self.receive(receiver, ReceiveMode::NonBlocking)?, flushed) {
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
    pub(super) fn receive(&self, receiver: &mut Receiver, mode: ReceiveMode) -> Result<Received, Loss> {
        match receiver.fill(&*self.transport, mode) {
            Ok(0) => Err(Loss::EndOfStream),
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
            self.lose(Loss::ProtocolError(wrong));
            Failure::Lost(Unanswered {
                loss: self.lost().unwrap_or(Loss::ProtocolError(wrong)),
                is_partly_answered: true,
            })
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
