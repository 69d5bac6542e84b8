//! The objects of libibverbs, each released when its last user is gone.
//!
//! Invariants: an object holds everything that it was made from; in a forked child nothing is released; a queue pair is
//! destroyed before the memory that its work requests name.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use guira_network::wire::{QueuePairEndpoint, QueuePairNumber};

use crate::device::Opened;
use crate::device_memory::DeviceMemory;
use crate::exchange::{Agreed, mtu_code, random_packet_number};
use crate::ffi;
use crate::memlock;
use crate::mlx5;
#[cfg(test)]
use crate::poster::{self, Extended};
use crate::poster::{PostError, Poster};
use crate::{Device, GidKind, VerbsError};

/// Routers that a packet may pass; the largest value, because connections are not meant to be bounded by it.
const HOP_LIMIT: u8 = 255;
/// The longest wait that a side without receive requests asks for (InfiniBand's code for 0.01 ms). One-sided verbs use
/// no receive requests, so it is never asked for.
const RNR_TIMER: u8 = 1;
/// Repeated transmissions without an answer before a connection is lost.
const RETRIES: u8 = 3;
/// Waits for an answer are 4.096 µs · 2^16 = 268 ms, and a device may take up to four times as long: about one second,
/// so that the way of packets may change, and at most five until the connection is lost.
const TIMEOUT_CODE: u8 = 16;

/// A protection domain: its registrations are usable on its queue pairs only.
pub(crate) struct ProtectionDomain {
    device: Arc<Opened>,
    raw: NonNull<ffi::Pd>,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(device: &Device) -> Result<Arc<ProtectionDomain>, VerbsError> {
        let device = Arc::clone(device.opened());
        device.check_process()?;
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (device.library.alloc_pd)(device.context.as_ptr()) });
        let raw = raw.ok_or_else(|| device.last_error("ibv_alloc_pd"))?;
        Ok(Arc::new(ProtectionDomain { device, raw }))
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if self.device.is_own() {
            // SAFETY: registrations and queue pairs of the domain hold it, so they are gone.
            unsafe { (self.device.library.dealloc_pd)(self.raw.as_ptr()) };
        }
    }
}

/// A registration of memory with a device.
pub(crate) struct Registration {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<ffi::Mr>,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `bytes` bytes at `start`.
    ///
    /// # Safety
    /// The memory must stay mapped until the registration is dropped, and every access to it by this program must
    /// allow that the device changes it.
    ///
    /// # Errors
    /// `Memlock` or `System`.
    pub(crate) unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        start: *mut u8,
        bytes: usize,
        access: c_int,
    ) -> Result<Registration, VerbsError> {
        let device = &domain.device;
        device.check_process()?;
        // SAFETY: the domain exists; the caller vouches for the memory.
        let raw = NonNull::new(unsafe { (device.library.reg_mr)(domain.raw.as_ptr(), start.cast(), bytes, access) });
        match raw {
            Some(raw) => Ok(Registration { domain: Arc::clone(domain), raw }),
            None => Err(memlock::explain(device.last_error("ibv_reg_mr"), bytes as u64)),
        }
    }

    /// Registers all of a device's own memory; remote addresses are offsets in it.
    ///
    /// # Errors
    /// `System`.
    pub(crate) fn of_device_memory(
        domain: &Arc<ProtectionDomain>,
        memory: &DeviceMemory,
        access: c_int,
    ) -> Result<Registration, VerbsError> {
        domain.device.check_process()?;
        Ok(Registration { domain: Arc::clone(domain), raw: memory.register(domain.raw, access)? })
    }

    /// The key of work requests of this side.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the registration exists, and its keys never change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key of work requests of the other side.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.domain.device.is_own() {
            // SAFETY: it is released once.
            unsafe { (self.domain.device.library.dereg_mr)(self.raw.as_ptr()) };
        }
    }
}

/// A descriptor that becomes readable when a completion arrives.
pub(crate) struct CompletionChannel {
    device: Arc<Opened>,
    raw: NonNull<ffi::CompChannel>,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Creates a channel whose descriptor does not block.
    pub(crate) fn new(device: &Device) -> Result<Arc<CompletionChannel>, VerbsError> {
        let device = Arc::clone(device.opened());
        device.check_process()?;
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (device.library.create_comp_channel)(device.context.as_ptr()) });
        let raw = raw.ok_or_else(|| device.last_error("ibv_create_comp_channel"))?;
        let channel = CompletionChannel { device, raw };
        // SAFETY: the descriptor is open.
        if unsafe { libc::fcntl(channel.descriptor(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
            return Err(channel.device.last_error("fcntl"));
        }
        Ok(Arc::new(channel))
    }

    pub(crate) fn descriptor(&self) -> c_int {
        // SAFETY: the channel exists, and its descriptor never changes.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    /// Takes all events that have arrived.
    pub(crate) fn take_events(&self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel exists, its descriptor does not block, and each event is acknowledged once to the queue
        // that it belongs to.
        unsafe {
            while (self.device.library.get_cq_event)(self.raw.as_ptr(), &mut queue, &mut context) == 0 {
                (self.device.library.ack_cq_events)(queue, 1);
            }
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if self.device.is_own() {
            // SAFETY: the completion queue that uses it holds it, so it is gone.
            unsafe { (self.device.library.destroy_comp_channel)(self.raw.as_ptr()) };
        }
    }
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    device: Arc<Opened>,
    channel: Option<Arc<CompletionChannel>>,
    raw: NonNull<ffi::Cq>,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(crate) fn new(
        device: &Device,
        entries: u32,
        channel: Option<&Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        let device = Arc::clone(device.opened());
        device.check_process()?;
        let (context, none) = (device.context.as_ptr(), std::ptr::null_mut());
        let raw_channel = channel.map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: the context is open, and the channel exists as long as the queue.
        let raw = NonNull::new(unsafe { (device.library.create_cq)(context, entries, none, raw_channel, 0) });
        let raw = raw.ok_or_else(|| device.last_error("ibv_create_cq"))?;
        Ok(Arc::new(CompletionQueue { device, channel: channel.cloned(), raw }))
    }

    /// Takes completions into `into` and returns their number.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn poll(&self, into: &mut [ffi::Wc]) -> Result<usize, ()> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue and its context exist; the driver sets the function when it opens a device, and writes at
        // most `room` completions.
        let count = unsafe {
            let poll = (*(*self.raw.as_ptr()).context).ops.poll_cq.ok_or(())?;
            poll(self.raw.as_ptr(), room, into.as_mut_ptr())
        };
        usize::try_from(count).map_err(|_| ())
    }

    /// Asks for an event with the next completion.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn request_event(&self) -> Result<(), ()> {
        // SAFETY: as in `poll`.
        let failed = unsafe {
            let request = (*(*self.raw.as_ptr()).context).ops.req_notify_cq.ok_or(())?;
            request(self.raw.as_ptr(), 0)
        };
        if failed == 0 { Ok(()) } else { Err(()) }
    }

    pub(crate) fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.device.is_own() {
            // SAFETY: the queue pairs that use it hold it, so they are gone.
            unsafe { (self.device.library.destroy_cq)(self.raw.as_ptr()) };
        }
    }
}

/// The side of a connection that a queue pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It asks for verbs. The other side has no access to its memory.
    Client,
    /// It executes READs.
    TargetReadOnly,
    /// It executes all verbs.
    Target,
}

/// The capacities of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) send_depth: u32,
    pub(crate) inline_bytes: u32,
}

/// The work requests that can be posted to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posting {
    /// READ, WRITE, CAS and FETCH-ADD, as every device has them.
    Generic,
    /// Also masked CAS, which only mlx5 devices have.
    MaskedCas,
    /// As `Generic`, by the functions that masked CAS needs.
    #[cfg(test)]
    OneByOne,
    /// As `OneByOne`, with raw entries that are interpreted.
    #[cfg(test)]
    Interpreted,
}

/// A reliable queue pair.
pub(crate) struct QueuePair {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<ffi::Qp>,
    poster: Poster,
    /// Held so that it outlives the queue pair.
    _completions: Arc<CompletionQueue>,
    capacity: Capacity,
    endpoint: QueuePairEndpoint,
    gid_index: u8,
    side: Side,
    /// Set by `destroy`, which consumes the value.
    is_destroyed: bool,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair that neither sends nor receives yet.
    pub(crate) fn new(
        device: &Device,
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        asked: Capacity,
        (side, posting): (Side, Posting),
    ) -> Result<QueuePair, VerbsError> {
        let opened = device.opened();
        opened.check_process()?;
        let gid = device.gid();
        let unsupported = |what| VerbsError::Unsupported { device: opened.name().to_owned(), what };
        let gid_index = u8::try_from(gid.index).map_err(|_| unsupported("connections from a GID index over 255"))?;
        let first_packet = random_packet_number()?;
        let Created { raw, poster, capacity } = create(domain, completions, asked, posting)?;
        let limits = device.limits();
        let endpoint = QueuePairEndpoint {
            gid: gid.gid,
            lid: device.lid(),
            // SAFETY: the queue pair exists.
            queue_pair: QueuePairNumber(unsafe { (*raw.as_ptr()).qp_num }),
            first_packet,
            mtu: device.mtu(),
            reads_in: if side == Side::Client { 0 } else { limits.reads_in },
            reads_out: if side == Side::Client { limits.reads_out } else { 0 },
        };
        let (domain, _completions) = (Arc::clone(domain), Arc::clone(completions));
        let is_destroyed = false;
        let pair = QueuePair { domain, raw, poster, _completions, capacity, endpoint, gid_index, side, is_destroyed };
        pair.initialize(device.port())?;
        Ok(pair)
    }

    pub(crate) fn endpoint(&self) -> &QueuePairEndpoint {
        &self.endpoint
    }

    pub(crate) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Whether a masked CAS can be posted.
    pub(crate) fn has_masked_cas(&self) -> bool {
        self.poster.has_masked_cas()
    }

    fn initialize(&self, port: u8) -> Result<(), VerbsError> {
        let mut attr: ffi::QpAttr = ffi::zeroed();
        attr.qp_state = ffi::QP_STATE_INIT;
        attr.port_num = port;
        attr.qp_access_flags = match self.side {
            Side::Client => 0,
            Side::TargetReadOnly => ffi::ACCESS_REMOTE_READ,
            Side::Target => ffi::ACCESS_REMOTE_READ | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_ATOMIC,
        };
        let mask = ffi::QP_STATE | ffi::QP_PKEY_INDEX | ffi::QP_PORT | ffi::QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp (INIT)", &mut attr, mask)
    }

    /// Connects to `other`. From now on it executes the other side's verbs.
    pub(crate) fn receive_from(
        &self,
        other: &QueuePairEndpoint,
        agreed: &Agreed,
        device: &Device,
    ) -> Result<(), VerbsError> {
        let mut attr: ffi::QpAttr = ffi::zeroed();
        attr.qp_state = ffi::QP_STATE_RTR;
        attr.path_mtu = mtu_code(agreed.mtu);
        attr.dest_qp_num = other.queue_pair.0;
        attr.rq_psn = other.first_packet.0;
        attr.max_dest_rd_atomic = agreed.reads_in;
        attr.min_rnr_timer = RNR_TIMER;
        attr.ah_attr.port_num = device.port();
        attr.ah_attr.dlid = other.lid;
        // Within one InfiniBand subnet the local identifier is the address; RoCE always has the global one.
        let is_roce = device.gid().kind != GidKind::InfiniBand;
        attr.ah_attr.is_global = u8::from(is_roce || other.lid == 0);
        attr.ah_attr.grh.dgid = other.gid.0;
        attr.ah_attr.grh.sgid_index = self.gid_index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        let mask = ffi::QP_STATE
            | ffi::QP_AV
            | ffi::QP_PATH_MTU
            | ffi::QP_DEST_QPN
            | ffi::QP_RQ_PSN
            | ffi::QP_MAX_DEST_RD_ATOMIC
            | ffi::QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp (RTR)", &mut attr, mask)
    }

    /// Makes a connected queue pair able to ask for verbs.
    pub(crate) fn send_to(&self, agreed: &Agreed) -> Result<(), VerbsError> {
        let mut attr: ffi::QpAttr = ffi::zeroed();
        attr.qp_state = ffi::QP_STATE_RTS;
        attr.timeout = TIMEOUT_CODE;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RETRIES;
        attr.sq_psn = self.endpoint.first_packet.0;
        attr.max_rd_atomic = agreed.reads_out;
        let mask = ffi::QP_STATE
            | ffi::QP_TIMEOUT
            | ffi::QP_RETRY_CNT
            | ffi::QP_RNR_RETRY
            | ffi::QP_SQ_PSN
            | ffi::QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp (RTS)", &mut attr, mask)
    }

    /// Moves the queue pair to the error state: its work requests end with errors, and new packets are not executed.
    pub(crate) fn fail(&self) -> Result<(), VerbsError> {
        let mut attr: ffi::QpAttr = ffi::zeroed();
        attr.qp_state = ffi::QP_STATE_ERROR;
        self.modify("ibv_modify_qp (ERR)", &mut attr, ffi::QP_STATE)
    }

    fn modify(&self, call: &'static str, attr: &mut ffi::QpAttr, mask: c_int) -> Result<(), VerbsError> {
        let device = &self.domain.device;
        // SAFETY: the queue pair exists; the call reads the members that the mask names.
        match unsafe { (device.library.modify_qp)(self.raw.as_ptr(), attr, mask) } {
            0 => Ok(()),
            errno => Err(device.error(call, errno)),
        }
    }

    /// Posts a list of work requests, linked in the order of the slice.
    ///
    /// # Safety
    /// The requests and their pieces must be valid and linked; the memory that they name must be registered in this
    /// queue pair's domain and must stay so until they have completed or the queue pair is destroyed. No other thread
    /// may post at the same time.
    ///
    /// # Errors
    /// The number of requests that were posted before the one that the driver refused.
    pub(crate) unsafe fn post(&self, requests: &mut [ffi::SendWr]) -> Result<(), PostError> {
        // SAFETY: the queue pair exists, and the poster was made with it; the caller vouches for the rest.
        unsafe { self.poster.post(self.raw, requests) }
    }

    /// Destroys the queue pair, and returns once the device executes none of its packets.
    ///
    /// # Errors
    /// `System`, with the queue pair, which still exists.
    pub(crate) fn destroy(mut self) -> Result<(), Box<(QueuePair, VerbsError)>> {
        let device = &self.domain.device;
        // SAFETY: the queue pair exists, and is not used after a success.
        match unsafe { (device.library.destroy_qp)(self.raw.as_ptr()) } {
            0 => {
                self.is_destroyed = true;
                Ok(())
            }
            errno => {
                let error = device.error("ibv_destroy_qp", errno);
                Err(Box::new((self, error)))
            }
        }
    }
}

/// A new queue pair.
struct Created {
    raw: NonNull<ffi::Qp>,
    poster: Poster,
    capacity: Capacity,
}

/// Creates a queue pair, without room for inline data if the device has none.
fn create(
    domain: &ProtectionDomain,
    completions: &CompletionQueue,
    asked: Capacity,
    posting: Posting,
) -> Result<Created, VerbsError> {
    let attempt = |asked: Capacity| match posting {
        Posting::Generic => create_generic(domain, completions, asked),
        Posting::MaskedCas => create_with_masked_cas(domain, completions, asked),
        #[cfg(test)]
        Posting::OneByOne | Posting::Interpreted => create_one_by_one(domain, completions, asked, posting),
    };
    let call = if posting == Posting::MaskedCas { "mlx5dv_create_qp" } else { "ibv_create_qp" };
    let created = attempt(asked).or_else(|| attempt(Capacity { inline_bytes: 0, ..asked }));
    created.ok_or_else(|| domain.device.last_error(call))
}

fn create_generic(domain: &ProtectionDomain, completions: &CompletionQueue, asked: Capacity) -> Option<Created> {
    let mut init: ffi::QpInitAttr = ffi::zeroed();
    (init.send_cq, init.recv_cq) = (completions.raw.as_ptr(), completions.raw.as_ptr());
    init.qp_type = ffi::QP_TYPE_RC;
    init.cap.max_send_wr = asked.send_depth;
    init.cap.max_recv_wr = 1;
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    init.cap.max_inline_data = asked.inline_bytes;
    // SAFETY: the domain and the completion queue exist; the call reads and writes the structure.
    let raw = NonNull::new(unsafe { (domain.device.library.create_qp)(domain.raw.as_ptr(), &mut init) })?;
    let capacity = Capacity { send_depth: init.cap.max_send_wr, inline_bytes: init.cap.max_inline_data };
    Some(Created { raw, poster: Poster::List, capacity })
}

fn create_with_masked_cas(
    domain: &ProtectionDomain,
    completions: &CompletionQueue,
    asked: Capacity,
) -> Option<Created> {
    // SAFETY: the domain and the completion queue exist, and are the device's.
    let (raw, extended, capacity) = unsafe { mlx5::create(&domain.device, domain.raw, completions.raw, asked) }?;
    Some(Created { raw, poster: Poster::Extended(extended), capacity })
}

#[cfg(test)]
fn create_one_by_one(
    domain: &ProtectionDomain,
    completions: &CompletionQueue,
    asked: Capacity,
    posting: Posting,
) -> Option<Created> {
    let device = &domain.device;
    let mut init = mlx5::extended_init(domain.raw, completions.raw, asked);
    // SAFETY: the structure names objects that exist.
    let raw = unsafe { device.extended()?.create_qp_ex(&mut init) }.ok()?;
    let capacity = Capacity { send_depth: init.cap.max_send_wr, inline_bytes: init.cap.max_inline_data };
    // SAFETY: the queue pair exists.
    let (verbs, number) = unsafe { ((device.library.qp_to_qp_ex)(raw.as_ptr()), (*raw.as_ptr()).qp_num) };
    let (verbs, number) = (NonNull::new(verbs).expect("it was created with extended verbs"), QueuePairNumber(number));
    let entries = (posting == Posting::Interpreted).then(|| poster::interpreter::entries(verbs, number));
    Some(Created { raw, poster: Poster::Extended(Extended { verbs, entries, number }), capacity })
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.domain.device.is_own() && !self.is_destroyed {
            // SAFETY: the queue pair exists and is not used afterwards.
            unsafe { (self.domain.device.library.destroy_qp)(self.raw.as_ptr()) };
        }
    }
}
