//! A connection to a memory side, and its creation.

#[cfg(test)]
mod by_hand;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use guira_fabric::{Caps, Effect, FabricError, Fence, MaskedCas, WORD_BYTES, Waiting, clock_ns};
use guira_network::client::{Loss, NodeSession};
use guira_network::wire::{ClientParameters, CloseReason, Segment, TargetParameters, WireError, decode_segments};

use super::buffers::Buffers;
use super::driver::{self, Driver};
use super::lane::VerbsLane;
use super::options::ConnectionOptions;
use super::parts::Parts;
use super::plan::Bounds;
use super::queue::{Drained, Port, Queue, Ready};
use crate::exchange::Agreed;
use crate::ffi;
use crate::probe::{self, ByteOrder};
use crate::resources::{Capacity, CompletionChannel, CompletionQueue, Posting, ProtectionDomain, QueuePair, Side};
use crate::{Device, VerbsError};

/// The maximum number of words in one READ or WRITE: 1 MiB, as over TCP.
const MAX_VERB_WORDS: usize = 1 << 17;
/// Completions taken at a time: enough for a burst, few enough for the stack.
const COMPLETIONS: usize = 16;

/// The reason why a connection was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostConnection {
    /// A work request ended with an error.
    #[error("a work request failed: {status}")]
    Request {
        /// The status, in the words of libibverbs.
        status: String,
    },
    /// The driver refused work requests.
    #[error("the driver refused work requests")]
    Refused,
    /// The driver could not return completions.
    #[error("the driver could not return completions")]
    Completions,
    /// The device completed nothing for longer than requests are repeated: it failed or was removed.
    #[error("the device completed nothing for {} s", STALL_NS / 1_000_000_000)]
    Stalled,
}

/// Time after which a device that completes none of the posted requests has failed. A request that the other side does
/// not answer ends after 5 s at most.
pub(super) const STALL_NS: u64 = 30_000_000_000;
/// The longest rest of a lane that spins: short, because the event that it waits for may be taken by another lane.
const REST_NS: u64 = 1_000_000;

/// A queue pair that is not connected yet. Dropping it destroys the queue pair.
pub struct Connecting {
    device: Device,
    domain: Arc<ProtectionDomain>,
    completions: Arc<CompletionQueue>,
    pair: QueuePair,
    options: ConnectionOptions,
    depth: u32,
    /// The byte order of the results of masked CAS, which only some queue pairs have.
    masked_order: ByteOrder,
}

impl Connecting {
    /// Creates a queue pair on an open device. Sends nothing; but the first target or client of an mlx5 device finds
    /// out whether it has masked CAS, by batches on a connection of the device to itself.
    ///
    /// # Errors
    /// `Mismatch` (an option out of its bounds), `Forked` or `System`.
    pub fn new(device: &Device, options: &ConnectionOptions) -> Result<Connecting, VerbsError> {
        let generic = || Connecting::with(device, options, Posting::Generic, ByteOrder::HOST);
        match probe::masked_cas(device) {
            // Such a queue pair needs more room for each work request; one that is too large does without masked CAS.
            Some(order) => Connecting::with(device, options, Posting::MaskedCas, order).or_else(|_| generic()),
            None => generic(),
        }
    }

    /// Creates a queue pair for the given work requests; the results of masked CAS are in `masked_order`.
    pub(crate) fn with(
        device: &Device,
        options: &ConnectionOptions,
        posting: Posting,
        masked_order: ByteOrder,
    ) -> Result<Connecting, VerbsError> {
        options.check()?;
        let limits = device.limits();
        let asked_depth = options.queue_depth.min(limits.queue_depth).min(limits.completions);
        let domain = ProtectionDomain::new(device)?;
        let channel = CompletionChannel::new(device)?;
        // Even an unsignalled request completes if it fails, so there is a completion for each.
        let completions = CompletionQueue::new(device, asked_depth, Some(&channel))?;
        let capacity = Capacity { send_depth: asked_depth, inline_bytes: options.inline_bytes };
        let pair = QueuePair::new(device, &domain, &completions, capacity, (Side::Client, posting))?;
        let depth = asked_depth.min(pair.capacity().send_depth);
        let (device, options) = (device.clone(), *options);
        Ok(Connecting { device, domain, completions, pair, options, depth, masked_order })
    }

    /// Returns the parameters that the memory side needs.
    #[must_use]
    pub fn parameters(&self) -> ClientParameters {
        ClientParameters { endpoint: *self.pair.endpoint() }
    }

    /// Connects to the memory side that answered with `target`. Sends nothing: whether the other side is there shows
    /// with the first batch. Locks memory as the options say.
    ///
    /// # Errors
    /// `Mismatch` (impossible parameters), `Memlock`, `Forked` or `System`.
    pub fn connect(self, target: TargetParameters) -> Result<Connection, VerbsError> {
        self.connect_in(None, target)
    }

    /// Same as [`Connecting::connect`], for a queue pair that lives as long as `session` does: the session stays open
    /// as long as the connection or a lane exists, a lane that fails because the node dropped the session says so, and
    /// parts of the main space may come later.
    pub(crate) fn connect_in(
        self,
        session: Option<NodeSession>,
        target: TargetParameters,
    ) -> Result<Connection, VerbsError> {
        let Connecting { device, domain, completions, pair, options, depth, masked_order } = self;
        let of_segments = |segments: &[Segment]| segments.last().map_or(0, Segment::end);
        let (main_bytes, device_bytes) = match &session {
            Some(session) => (session.main_bytes(), session.device_bytes()),
            None => (of_segments(&target.main), of_segments(&target.device)),
        };
        let parts = Parts::new(&target, main_bytes, device_bytes)?;
        let agreed = Agreed::of(pair.endpoint(), &target.endpoint)?;
        agreed.check_reads(agreed.reads_out)?;
        let buffers = Buffers::new(&domain, &options)?;
        pair.receive_from(&target.endpoint, &agreed, &device)?;
        pair.send_to(&agreed)?;
        let both_have_it = pair.has_masked_cas() && target.masked_cas == MaskedCas::Native;
        let masked_cas = if both_have_it { MaskedCas::Native } else { MaskedCas::CasLoop };
        let message_words = device.limits().message_bytes as usize / WORD_BYTES as usize;
        // A WRITE is also torn where the memory of the node is, if that outlives the node.
        let unit_of_node = session.as_ref().map_or(Caps::WHOLE_WRITE, NodeSession::atomic_write_unit);
        let caps = Caps {
            local: false,
            atomic_write_unit: unit_of_node.min(agreed.mtu.bytes().into()),
            masked_cas,
            ordered_read_sampling: false,
            device_bytes,
            max_batch: depth as usize,
            max_verb_words: MAX_VERB_WORDS.min(message_words).min(buffers.large_words),
            fence: Fence::Agent,
        };
        let queue = Queue::new(options.lanes.into(), options.large_buffers.into(), depth as usize);
        let (grant, batch_words) = (target.grant, buffers.large_words);
        let bounds = Bounds { main_bytes, device_bytes, grant, caps, batch_words, masked_order };
        let parts = Mutex::new(Arc::new(parts));
        let inline_bytes = pair.capacity().inline_bytes;
        let driver = Driver::new()?;
        let queue = Mutex::new(queue);
        let inner = Inner { pair, completions, buffers, queue, bounds, parts, inline_bytes, device, driver };
        Ok(Connection { user: Arc::new(User { inner: Arc::new(inner), session }), waiting: options.waiting })
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("device", &self.device).field("endpoint", self.pair.endpoint()).finish()
    }
}

/// A connection to a memory side: one queue pair, shared by its lanes. Clones share it; it ends with its last clone or
/// lane.
#[derive(Clone)]
pub struct Connection {
    user: Arc<User>,
    waiting: Waiting,
}

impl Connection {
    /// Creates a lane that waits as the options say. If there are more lanes than memory is locked for, locks more; if
    /// that fails, the lane tries again with its first batch.
    #[must_use]
    pub fn lane(&self) -> VerbsLane {
        VerbsLane::new(Arc::clone(&self.user)).waiting(self.waiting)
    }

    /// Returns the capabilities of the connection: a WRITE is torn at packets only (`atomic_write_unit` is the path
    /// MTU), masked CAS is native if the devices of both sides execute it and else unsupported (`CasLoop`), and a batch
    /// has at most as many work requests as the send queue.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        &self.user.inner.bounds.caps
    }

    /// Returns the size of the main space in bytes.
    #[must_use]
    pub fn main_bytes(&self) -> u64 {
        self.user.inner.bounds.main_bytes
    }

    /// Returns the size of the device space in bytes.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.user.inner.bounds.device_bytes
    }

    /// Returns the reason why the connection was lost; `None` as long as it was not, or in a forked child.
    #[must_use]
    pub fn lost(&self) -> Option<LostConnection> {
        if self.is_stale() { None } else { self.user.inner.queue().lost().cloned() }
    }

    /// Whether the connection, or the session that it belongs to, is known to be lost; never in a forked child.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.user.is_lost()
    }

    /// Calls `action` once all batches that were submitted before have completed, or the connection is lost. If no
    /// thread of the connection does it, waits for that: as long as the batches take, and at most until a lost
    /// connection is noticed. In a forked child, `action` is dropped.
    pub fn when_drained(&self, action: impl FnOnce(Drained) + Send + 'static) {
        let inner = &*self.user.inner;
        if !inner.is_own() {
            return;
        }
        inner.queue().defer(Box::new(action));
        inner.drain();
        while !inner.driver.is_started() && inner.queue().has_deferred() {
            thread::yield_now();
            inner.lose_if_stalled();
            inner.drain();
        }
    }

    /// Whether this process was forked after it connected: the connection is its parent's.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !self.user.inner.is_own()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { device, pair, .. } = &*self.user.inner;
        f.debug_struct("Connection").field("device", device).field("endpoint", pair.endpoint()).finish()
    }
}

/// The connection as its handles and lanes hold it: with the last of them, the connection's thread ends.
pub(super) struct User {
    pub(super) inner: Arc<Inner>,
    /// The session that the queue pair belongs to, if a memory node has it.
    pub(super) session: Option<NodeSession>,
}

impl User {
    /// Whether the connection, or the session that it belongs to, is known to be lost.
    pub(super) fn is_lost(&self) -> bool {
        let is_ended = self.session.as_ref().is_some_and(|session| session.loss().is_some());
        is_ended || self.inner.is_own() && self.inner.queue().lost().is_some()
    }

    /// Returns the error of a batch that had `effect`, on a connection that is lost. Ends the session, if the node did
    /// not: so a session of the same client that supersedes it is not taken for a fence.
    #[cold]
    pub(super) fn lost_error(&self, effect: Effect) -> FabricError {
        let Some(session) = &self.session else { return FabricError::Disconnected { effect } };
        match session.notice_loss() {
            Some(Loss::Closed(CloseReason::Fenced)) => return FabricError::Fenced { effect },
            Some(_) => return FabricError::Disconnected { effect },
            None => session.end(),
        }
        let cause = self.inner.queue().lost().map(LostConnection::to_string);
        cause.map_or(FabricError::Disconnected { effect }, |cause| FabricError::ConnectionFailed { cause, effect })
    }

    /// Starts the connection's thread, if there is none; returns whether there is one.
    pub(super) fn start_driver(&self) -> bool {
        self.inner.is_own() && driver::start(&self.inner)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.inner.driver.stop();
    }
}

/// The connection itself.
pub(super) struct Inner {
    /// Declared first: it is destroyed before the memory that its work requests name.
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    pub(super) buffers: Buffers,
    queue: Mutex<Queue>,
    pub(super) bounds: Bounds,
    /// The parts that are known. Lanes have copies, which may be older.
    parts: Mutex<Arc<Parts>>,
    pub(super) inline_bytes: u32,
    device: Device,
    pub(super) driver: Driver,
}

impl Inner {
    #[inline(always)]
    pub(super) fn is_own(&self) -> bool {
        self.device.opened().is_own()
    }

    pub(super) fn completions(&self) -> &CompletionQueue {
        &self.completions
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic inside would be an assertion of this module; the lanes behind it may go on.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the parts that are known; none in a forked child.
    pub(super) fn parts(&self) -> Arc<Parts> {
        if !self.is_own() {
            // Another thread may have held the lock when this process was forked.
            return Arc::default();
        }
        Arc::clone(&self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Learns the parts that the memory node says have `asked`.
    ///
    /// # Errors
    /// No memory node says so: nothing was learned.
    pub(super) fn learn(&self, asked: &Range<u64>, reply: &[u64]) -> Result<(), WireError> {
        let more = decode_segments(reply)?;
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        *parts = Arc::new(parts.with(&more, asked, self.bounds.main_bytes)?);
        Ok(())
    }

    /// Adds slots and buffers for more lanes.
    ///
    /// # Errors
    /// `Mismatch` if there are as many lanes as there may be; `Memlock`, `Forked` or `System`.
    pub(super) fn add_slots(&self) -> Result<(), VerbsError> {
        let lanes = self.queue().slots();
        // Not under the lock: registering memory takes time.
        self.buffers.add(lanes)?;
        let mut queue = self.queue();
        if queue.slots() == lanes {
            queue.add_slots(self.buffers.lanes);
        }
        Ok(())
    }

    /// Gives the connection up if its device has completed nothing for [`STALL_NS`] while batches were posted.
    pub(super) fn lose_if_stalled(&self) {
        let mut queue = self.queue();
        if queue.busy_since_ns().is_some_and(|since_ns| clock_ns().saturating_sub(since_ns) > STALL_NS) {
            queue.lose(LostConnection::Stalled);
            // The device has failed already, or ends the requests that it still has.
            let _ = self.pair.fail();
        }
    }

    /// Gives the connection up because its device does not say what it has completed.
    pub(super) fn lose_completions(&self, queue: &mut Queue) {
        queue.lose(LostConnection::Completions);
        // Nothing more is sent from buffers that lanes use again.
        let _ = self.pair.fail();
    }

    pub(super) fn port(&self) -> Port<'_> {
        Port { pair: &self.pair, buffers: &self.buffers }
    }

    /// Takes the completions of all lanes, posts the batches that fit now, and wakes the lanes that are done.
    pub(super) fn drain(&self) {
        let mut completions = [ffi::zeroed::<ffi::Wc>(); COMPLETIONS];
        loop {
            let mut queue = self.queue();
            let count = self.completions.poll(&mut completions);
            match count {
                Ok(count) => completions[..count].iter().for_each(|completion| self.settle(&mut queue, completion)),
                Err(()) => self.lose_completions(&mut queue),
            }
            queue.advance(&self.port());
            drop(queue);
            self.wake();
            if count != Ok(COMPLETIONS) {
                return;
            }
        }
    }

    /// Returns how often a lane polls before it gives its processor away.
    pub(super) fn spins(&self, of_hardware: u32) -> u32 {
        if self.device.limits().is_software { 0 } else { of_hardware }
    }

    /// Sleeps until the only batch in flight completes, or for [`REST_NS`]. Returns false at once if there are others,
    /// which other threads may wait for, or if the connection's thread takes the events.
    pub(super) fn rest(&self) -> bool {
        let is_possible = || self.queue().has_one_in_flight();
        if self.driver.is_started() || !is_possible() {
            return false;
        }
        if self.completions.request_event().is_err() {
            self.lose_completions(&mut self.queue());
        }
        // A completion before the request makes no event.
        self.drain();
        if is_possible() {
            driver::wait(self.completions.channel(), None, Some(REST_NS));
        }
        if self.driver.is_started() {
            // It was started meanwhile, and may have waited for the event that was taken here.
            self.driver.wake();
        }
        true
    }

    fn settle(&self, queue: &mut Queue, completion: &ffi::Wc) {
        if completion.status == ffi::WC_SUCCESS {
            return queue.complete(usize::try_from(completion.wr_id).unwrap_or(usize::MAX));
        }
        if queue.lost().is_none() {
            queue.lose(LostConnection::Request { status: self.device.opened().library.status(completion.status) });
        }
    }

    /// Wakes the tasks and runs the actions that the last change of the queue made ready. Not under the lock: a waker
    /// may be anybody's code.
    pub(super) fn wake(&self) {
        loop {
            let ready = self.queue().pop_ready();
            match ready {
                Some(Ready::Wake(waker)) => waker.wake(),
                Some(Ready::Run(action, drained)) => action(drained),
                Some(Ready::Discard(waker)) => drop(waker),
                None => return,
            }
        }
    }
}

impl Drop for Inner {
    /// Batches of dropped lanes may be in flight, and nobody will learn when they end.
    fn drop(&mut self) {
        if self.is_own() {
            let deferred: Vec<_> = self.queue().take_deferred().collect();
            deferred.into_iter().for_each(|action| action(Drained::Lost));
        }
    }
}
