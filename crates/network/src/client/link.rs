//! The core of a connection, which both ways of waiting share.
//!
//! The outbox and the request slots have a lock each, and no thread holds both. The receiver is kept with the slots: a
//! waiting thread takes it, reads until it has its own reply, dispatches the replies of others, and puts it back. Once
//! a lane waits cooperatively, the driver takes it for good, and waiting threads depend on the driver.

use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
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
use crate::wire::{Header, Kind, WireError, append, encode_slot};

/// The frames of a connection in both directions, and the requests that wait for their replies.
pub struct Link {
    pub(super) transport: Box<dyn Transport>,
    pub(super) timeout: Duration,
    /// The process that connected.
    process: Process,
    outbox: Mutex<Outbox>,
    /// Whether frames wait for room, or cannot be sent: the reading thread flushes them.
    has_backlog: AtomicBool,
    /// Whether frames wait to be coalesced: the task that takes the last reply of a flush window sends them, or else
    /// the driver when the window closes.
    has_coalesced: AtomicBool,
    /// The tasks that were woken with a reply in this flush window and have not taken it.
    awaited_tasks: AtomicU32,
    state: Mutex<State>,
    /// Notified when replies arrived for waiting threads, or the receiver was put back.
    progress: Condvar,
    lost: OnceLock<Loss>,
    /// The eventfd that wakes the driver, if there is one.
    wakeup: OnceLock<OwnedFd>,
    pub(super) is_closing: AtomicBool,
}

/// The state behind a link's lock.
#[derive(Default)]
pub struct State {
    /// The requests in flight.
    pub slots: RequestSlots,
    receiver: Option<Receiver>,
    /// Whether the driver reads, or waits for the receiver.
    is_driven: bool,
    /// The threads that wait for the receiver or a reply.
    waiting: u32,
}

/// The lock of a link's state. Wakers that the state no longer needs are dropped after it is unlocked.
pub struct StateGuard<'l> {
    state: MutexGuard<'l, State>,
    /// Declared behind the lock, and so dropped after it.
    discarded: Vec<Waker>,
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        self.discarded = self.state.slots.take_discarded();
    }
}

/// A request in flight.
#[derive(Clone, Copy)]
pub struct Request {
    /// Its request slot.
    pub slot: u32,
    /// The id of its first frame.
    pub id: u64,
    /// The reply that it expects.
    pub expected: Expected,
}

/// A function that reads the results from the words of a reply.
pub type Take<'t> = &'t mut dyn FnMut(&[u64]) -> Result<(), WireError>;

/// The reason why a request failed.
pub enum Failure {
    /// The node refused it; nothing of it was executed.
    Refused(FabricError),
    /// Its connection was lost before it was answered.
    Lost(Unanswered),
}

/// A request that was not answered because its connection was lost.
pub struct Unanswered {
    /// The reason why the connection was lost.
    pub loss: Loss,
    /// Whether a part of the request was answered.
    is_partly_answered: bool,
}

impl Failure {
    /// Returns the error to report; `effect` computes the effect of a request whose connection was lost.
    pub fn error(self, effect: impl FnOnce(&Unanswered) -> Effect) -> FabricError {
        match self {
            Failure::Refused(error) => error,
            Failure::Lost(unanswered) => unanswered.loss.error(effect(&unanswered)),
        }
    }
}

impl Link {
    /// Creates a connection after its greeting; `receiver` has the bytes that were received after the Welcome.
    pub fn new(transport: Box<dyn Transport>, timeout: Duration, process: Process, receiver: Receiver) -> Link {
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

    /// Starts a driver by `start`, unless there is one.
    pub(super) fn drive(&self, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.wakeup.get().is_none() {
            // The second of two threads discards its eventfd.
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

    /// Returns the eventfd that the driver polls beside the socket.
    pub(super) fn wakeup(&self) -> &OwnedFd {
        self.wakeup.get().expect("the eventfd is created before the driver is started")
    }

    /// Waits for the receiver and takes it for good, for the driver.
    pub(super) fn take_receiver(&self) -> Receiver {
        let mut state = lock(&self.state);
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
    pub fn is_stale(&self) -> bool {
        !self.process.is_this()
    }

    /// Returns the reason why the connection was lost, if it was.
    #[inline]
    pub fn lost(&self) -> Option<Loss> {
        self.lost.get().copied()
    }

    /// Returns the effect of a batch that was not answered before the connection was lost. Its first frame that changes
    /// memory ends at `change_end` of the stream.
    pub fn effect(&self, failure: &Unanswered, change_end: Option<u64>) -> Effect {
        // A frame is executed when all of it has arrived, and not before.
        let sent_bytes = lock(&self.outbox).sent_bytes();
        let may_have_arrived = change_end.is_some_and(|end| end <= sent_bytes);
        let was_none_executed = failure.loss.is_final() && !failure.is_partly_answered;
        if may_have_arrived && !was_none_executed { Effect::Unknown } else { Effect::None }
    }

    /// Locks the state that requests share.
    pub fn state(&self) -> StateGuard<'_> {
        StateGuard { state: lock(&self.state), discarded: Vec::new() }
    }

    /// Appends the frames that `write` writes and sends as much as there is room for. Returns the position in the
    /// stream at which they start, or `None` if the connection was lost.
    pub fn send<T>(&self, write: impl FnOnce(&mut Vec<u64>) -> T) -> Option<(T, u64)> {
        let mut outbox = lock(&self.outbox);
        let written = outbox.append(write);
        self.flush_unless_blocked(outbox);
        written
    }

    /// Same as [`Link::send`], but the frames wait to be coalesced while a flush window is open, unless many bytes
    /// wait.
    pub fn coalesce<T>(&self, write: impl FnOnce(&mut Vec<u64>) -> T) -> Option<(T, u64)> {
        let mut outbox = lock(&self.outbox);
        let written = outbox.append(write);
        // Read under the lock: a thread that closes the window flushes afterwards, and so finds a frame that missed it.
        if self.awaited_tasks.load(Ordering::Relaxed) == 0 || outbox.is_coalescing_limit_reached() {
            self.flush_unless_blocked(outbox);
        } else if written.is_some() {
            self.has_coalesced.store(true, Ordering::Relaxed);
        }
        written
    }

    /// Notes that `tasks` tasks are about to be woken with a reply each: their next batches may be coalesced, with each
    /// other and with those of tasks that were woken before.
    pub fn extend_flush_window(&self, tasks: u32) {
        let more = |awaited_tasks: u32| Some(awaited_tasks.saturating_add(tasks));
        let _ = self.awaited_tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether a task of the flush window has not taken its reply.
    pub(super) fn is_flush_window_open(&self) -> bool {
        self.awaited_tasks.load(Ordering::Relaxed) > 0
    }

    /// Notes that a task has taken its reply.
    pub fn note_reply_taken(&self) {
        let less = |awaited_tasks: u32| awaited_tasks.checked_sub(1);
        // If no task is awaited, the reply is not one of the window's.
        let _ = self.awaited_tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Closes the flush window and sends the coalesced frames.
    pub(super) fn close_flush_window(&self) {
        self.awaited_tasks.store(0, Ordering::Relaxed);
        // Unconditionally: a thread that is appending just now is seen only through the lock.
        self.flush_unless_blocked(lock(&self.outbox));
    }

    /// Sends the coalesced frames, if any wait.
    pub fn flush_coalesced(&self) {
        if self.has_coalesced() {
            self.flush_unless_blocked(lock(&self.outbox));
        }
    }

    /// Whether frames wait to be coalesced.
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

    /// Sends the backlog.
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
    pub fn wake_driver(&self) {
        if let Some(wakeup) = self.wakeup.get() {
            // It fails only if 2^64 - 2 wakeups are pending.
            let _ = rustix::io::write(wakeup, &1u64.to_ne_bytes());
        }
    }

    /// Gives the connection up: nothing more is sent, and all waiting threads and tasks are woken.
    pub fn lose(&self, loss: Loss) {
        lock(&self.outbox).close();
        // A thread that sees the loss finds an outbox that no longer changes.
        let _ = self.lost.set(loss);
        self.transport.shut();
        let mut state = self.state();
        let wakers = state.slots.wakers();
        drop(state);
        self.progress.notify_all();
        self.wake_driver();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Performs the actions that follow from the delivery of a reply.
    pub(super) fn complete(&self, delivered: Delivered) {
        if let Some(slot) = delivered.release {
            self.send(|out| append(out, Kind::Release, 0, &encode_slot(slot)));
        }
        delivered.waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes the waiting threads, if there are any: their reply or the receiver may be available.
    pub(super) fn notify_waiters(&self, state: StateGuard<'_>) {
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.progress.notify_all();
        }
    }

    /// Waits in place for the reply to a request. `spare` receives it if another thread reads it.
    pub fn wait(&self, request: Request, spare: &mut Vec<u64>, take: Take<'_>) -> Result<(), Failure> {
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
                drop(state);
                self.wait_for_progress(request);
                if Instant::now() >= deadline {
                    self.lose(self.timed_out());
                }
            }
        }
    }

    /// Waits until another thread may have read the reply to `request`, or has put the receiver back; at most a slice.
    fn wait_for_progress(&self, request: Request) {
        let mut state = lock(&self.state);
        let is_read_by_another = state.is_driven || state.receiver.is_none();
        if self.lost().is_none() && is_read_by_another && state.slots.is_waiting(request.slot) {
            state.waiting += 1;
            (state, _) = self.progress.wait_timeout(state, SLICE).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }

    /// Polls a request; `waker` is woken when it is answered.
    pub fn poll(
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
        // Checked after the waker was stored: `lose` sets the loss before it takes the wakers.
        if let Some(loss) = self.lost() {
            let is_partly_answered = state.slots.reset(request.slot);
            return Poll::Ready(Err(Failure::Lost(Unanswered { loss, is_partly_answered })));
        }
        Poll::Pending
    }

    /// Releases a request slot whose owner is gone; `hold` is the client slot whose liveness it had requested.
    pub fn release_slot(&self, slot: u32, hold: Option<u16>) {
        let mut state = self.state();
        if self.lost().is_some() {
            state.slots.reset(slot);
        }
        let delivered = state.slots.release_slot(slot, hold);
        drop(state);
        self.complete(delivered);
    }

    /// Reads for all waiting threads until the request is answered. Returns true if its reply was consumed from the
    /// stream itself; otherwise it is in its slot, or the connection is lost.
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

    /// Dispatches the frames that have arrived, up to the reply to `request`.
    fn dispatch(&self, receiver: &mut Receiver, request: Request, take: Take<'_>) -> Result<Option<Answered>, Loss> {
        while let Some((header, body)) = receiver.next().map_err(Loss::ProtocolError)? {
            let is_whole = request.expected == Expected::Found { words: body.len(), frames: 1 };
            if header.kind == Kind::Done && header.id == request.id && is_whole {
                take(body).map_err(Loss::ProtocolError)?;
                return Ok(Some(Answered::Here));
            }
            self.deliver(header, body)?;
            if !self.state().slots.is_waiting(request.slot) {
                return Ok(Some(Answered::InSlot));
            }
        }
        Ok(None)
    }

    /// Delivers a frame to its request slot.
    fn deliver(&self, header: Header, body: &[u64]) -> Result<(), Loss> {
        let mut state = self.state();
        let delivered = state.slots.deliver(header, body)?;
        self.notify_waiters(state);
        self.complete(delivered);
        Ok(())
    }

    /// Reads what has arrived, unless another thread does, and returns the reason why the connection was lost, if it
    /// was. Does not wait.
    pub fn notice_loss(&self) -> Option<Loss> {
        if self.lost().is_some() || self.is_stale() {
            return self.lost();
        }
        let mut state = self.state();
        let receiver = if state.is_driven { None } else { state.receiver.take() };
        drop(state);
        let Some(mut receiver) = receiver else { return self.lost() };
        if let Err(loss) = self.deliver_arrived(&mut receiver) {
            self.lose(loss);
        }
        let mut state = self.state();
        state.receiver = Some(receiver);
        self.notify_waiters(state);
        self.lost()
    }

    /// Delivers the frames that have arrived.
    fn deliver_arrived(&self, receiver: &mut Receiver) -> Result<(), Loss> {
        loop {
            while let Some((header, body)) = receiver.next().map_err(Loss::ProtocolError)? {
                self.deliver(header, body)?;
            }
            if let Received::Nothing = self.receive(receiver, ReceiveMode::NonBlocking)? {
                return Ok(());
            }
        }
    }

    /// Waits up to [`SLICE`] for bytes to arrive, or for room to send the backlog.
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
                // An error of the socket is reported by the next attempt to use it.
                let _ = poll(&mut socket, Some(&slice));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Receives what has arrived.
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

/// The place of a reply that the request's own thread has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// Consumed from the stream.
    Here,
    /// In its request slot.
    InSlot,
}

/// Whether anything arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Bytes,
    Nothing,
}

/// Locks `mutex`; a panic leaves no partial change in the data that is locked here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
