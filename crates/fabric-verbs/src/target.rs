//! The memory side: registered bytes, and the queue pairs of the clients that may use them.
//!
//! Each grant has a protection domain, in which every segment is registered with that grant's access: a queue pair of
//! the read-only grant cannot change a byte, whatever its client posts. The processor does nothing for a verb.
//!
//! # End of a queue pair
//! [`Accepted::end`] moves the queue pair to the error state, so that the device drops packets that arrive from then
//! on, and then destroys it. When it has returned, no packet of the client is being executed or will be:
//!
//! - **rxe** (Soft-RoCE, Linux 6.1): the error state does not wait. The responder task may be executing a packet when
//!   the state changes, and goes on to copy its bytes. `ibv_destroy_qp` removes the number from the table of queue
//!   pairs, marks the queue pair invalid, and waits until its responder task is idle and can never run again
//!   (`rxe_qp_do_cleanup`, `rxe_cleanup_task` in drivers/infiniband/sw/rxe). A later packet finds no queue pair and is
//!   dropped.
//! - **mlx5** and other devices with firmware: destroying is a command that returns after the device has released the
//!   context of the queue pair; until then it completes what it has begun, afterwards it drops what arrives. InfiniBand
//!   allows the resources of a queue pair to be released only when the device no longer uses them (InfiniBand
//!   Architecture Specification, volume 1, sections 10.2.4.5 and 10.3.1). This was not tried on hardware.
//!
//! Invariants: memory outlives its registrations; a target outlives its queue pairs; the segments of a space are in the
//! order of its addresses and do not overlap. Only the main space may have gaps between them, which are filled later.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guira_fabric::memory::{AtomicU64, SharedWords};
use guira_fabric::{MaskedCas, Space, WORD_BYTES};
use guira_network::wire::{ClientParameters, Grant, MAX_SEGMENTS, Segment, TargetParameters};

use crate::device_memory::{DeviceSpace, Place};
use crate::exchange::Agreed;
use crate::ffi;
use crate::memlock;
use crate::probe;
use crate::resources::{Capacity, CompletionQueue, Posting, ProtectionDomain, QueuePair, Registration, Side};
use crate::{AtomicScope, Device, VerbsError};

/// The access of each grant's registrations.
const GRANTS: [(Grant, i32); 2] = [
    (
        Grant::ReadWrite,
        ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_READ | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_ATOMIC,
    ),
    (Grant::ReadOnly, ffi::ACCESS_REMOTE_READ),
];

/// The queue of a memory side holds no completion, because it posts no work request; a queue has one entry at least.
const COMPLETIONS: u32 = 1;
/// The send queue of a memory side: one entry, the least there is, because it posts no work request.
const SEND_DEPTH: u32 = 1;

/// Memory that is registered with a device, and accepts clients. Clones share it.
#[derive(Clone)]
pub struct Target {
    shared: Arc<Shared>,
}

struct Shared {
    device: Device,
    domains: [Arc<ProtectionDomain>; 2],
    completions: Arc<CompletionQueue>,
    /// The way in which the device executes masked CAS for clients.
    masked_cas: MaskedCas,
    segments: Mutex<Vec<RegisteredSegment>>,
}

/// A part of a space, registered once for each grant.
struct RegisteredSegment {
    space: Space,
    /// The first byte in the space.
    offset: u64,
    address: u64,
    bytes: u64,
    registrations: [Registration; 2],
    /// Held, and declared last, so that it is released after the registrations.
    _memory: Place,
}

impl Target {
    /// Creates a target without memory on an open device. The first target or client of an mlx5 device finds out
    /// whether it has masked CAS, by batches on a connection of the device to itself.
    ///
    /// # Errors
    /// `Unsupported` if the device has no atomics, `Forked` or `System`.
    pub fn new(device: &Device) -> Result<Target, VerbsError> {
        let has_masked_cas = probe::masked_cas(device).is_some();
        Target::with(device, if has_masked_cas { MaskedCas::Native } else { MaskedCas::CasLoop })
    }

    /// Creates a target without memory that tells its clients about masked CAS as said.
    pub(crate) fn with(device: &Device, masked_cas: MaskedCas) -> Result<Target, VerbsError> {
        if device.atomics() == AtomicScope::None {
            return Err(VerbsError::Unsupported { device: device.name().to_owned(), what: "atomics (CAS, FETCH-ADD)" });
        }
        let domains = [ProtectionDomain::new(device)?, ProtectionDomain::new(device)?];
        let completions = CompletionQueue::new(device, COMPLETIONS, None)?;
        let segments = Mutex::default();
        let shared = Shared { device: device.clone(), domains, completions, masked_cas, segments };
        Ok(Target { shared: Arc::new(shared) })
    }

    /// Registers `words` for both grants, and appends them to `space`. Clients that are accepted later reach them.
    /// Locks the memory once for each grant.
    ///
    /// # Errors
    /// `Memlock`, `Mismatch` if there are no words, `Forked` or `System`.
    pub fn register(&self, space: Space, words: SharedWords) -> Result<(), VerbsError> {
        let offset = self.shared.end_of(space);
        let all = 0..size_of_val((*words).as_ref()) as u64;
        self.register_at(space, offset, words, all)
    }

    /// Registers a part of the main space, whose words are `words`, for both grants: the whole words at `bytes`, none
    /// of which is registered, and all of which have memory. Clients that are accepted later reach them, and others
    /// that ask for them. Locks the memory once for each grant.
    ///
    /// # Errors
    /// `Memlock`; `Mismatch` if there are no such words, or too many parts; `Forked` or `System`.
    pub fn register_part(&self, words: SharedWords, bytes: Range<u64>) -> Result<(), VerbsError> {
        self.register_at(Space::Main, bytes.start, words, bytes)
    }

    /// Registers those of `words` at `bytes` as the part of `space` that begins at `offset`.
    fn register_at(&self, space: Space, offset: u64, words: SharedWords, bytes: Range<u64>) -> Result<(), VerbsError> {
        let refused = |reason: String| Err(VerbsError::Mismatch { reason });
        let range = (bytes.start / WORD_BYTES) as usize..(bytes.end / WORD_BYTES) as usize;
        let slice: &[AtomicU64] = match (*words).as_ref().get(range) {
            Some(slice) if !slice.is_empty() && (bytes.start | bytes.end).is_multiple_of(WORD_BYTES) => slice,
            _ => return refused(format!("the bytes from {} to {} cannot be registered", bytes.start, bytes.end)),
        };
        let place = offset..offset + (bytes.end - bytes.start);
        if !self.shared.segments_in(space, &place, Grant::ReadWrite).is_empty() {
            return refused(format!("the bytes from {} to {} are registered already", place.start, place.end));
        }
        let (start, bytes) = (slice.as_ptr().cast_mut().cast::<u8>(), size_of_val(slice));
        let all_bytes = (GRANTS.len() * bytes) as u64;
        let registrations = self.for_each_grant(|domain, access| {
            // SAFETY: `words` is kept beside the registration, and longer; it consists of atomics, so this program
            // expects that others change it.
            unsafe { Registration::new(domain, start, bytes, access) }
                .map_err(|error| memlock::of_all(error, all_bytes))
        })?;
        self.insert(RegisteredSegment {
            space,
            offset,
            address: start as u64,
            bytes: bytes as u64,
            registrations,
            _memory: Place::Host(words),
        })
    }

    /// Returns the segments of the main space that have any of these bytes, for clients with the access `grant`.
    pub(crate) fn parts_with(&self, bytes: &Range<u64>, grant: Grant) -> Vec<Segment> {
        self.shared.segments_in(Space::Main, bytes, grant)
    }

    /// Returns the registered bytes of the main and of the device space.
    #[must_use]
    pub fn registered_bytes(&self) -> (u64, u64) {
        let segments = self.shared.segments();
        let of = |space| segments.iter().filter(|segment| segment.space == space).map(|segment| segment.bytes).sum();
        (of(Space::Main), of(Space::Device))
    }

    /// Allocates `bytes` zeroed bytes, registers them for both grants, and appends them to the device space: in the
    /// device's own memory if it has as much, else in host memory, which is locked once for each grant. Clients that
    /// are accepted later reach them. The memory node reads and writes them by what is returned.
    ///
    /// # Errors
    /// `Mismatch` if the bytes are not whole words, `Memlock`, `Forked` or `System`.
    pub fn register_device_space(&self, bytes: u64) -> Result<DeviceSpace, VerbsError> {
        let device = &self.shared.device;
        let space = DeviceSpace::new(device, bytes)?;
        let space = match space.place() {
            Place::Host(_) => space,
            Place::OnCard(memory) => {
                let one = |domain: &_, access| Registration::of_device_memory(domain, memory, access);
                match self.for_each_grant(one) {
                    Ok(registrations) => {
                        self.insert(RegisteredSegment {
                            space: Space::Device,
                            offset: self.shared.end_of(Space::Device),
                            // Addresses in the device's memory are offsets.
                            address: 0,
                            bytes: memory.bytes(),
                            registrations,
                            _memory: space.place().clone(),
                        })?;
                        return Ok(space);
                    }
                    Err(refusal) => DeviceSpace::on_host(device, bytes, Some(refusal))?,
                }
            }
        };
        if let Some(words) = space.host_words() {
            self.register(Space::Device, words)?;
        }
        Ok(space)
    }

    /// Registers the same memory for each grant.
    fn for_each_grant(
        &self,
        one: impl Fn(&Arc<ProtectionDomain>, i32) -> Result<Registration, VerbsError>,
    ) -> Result<[Registration; 2], VerbsError> {
        let of = |index: usize| one(&self.shared.domains[index], GRANTS[index].1);
        Ok([of(0)?, of(1)?])
    }

    fn insert(&self, segment: RegisteredSegment) -> Result<(), VerbsError> {
        let mut segments = self.shared.segments();
        if segments.iter().filter(|other| other.space == segment.space).count() >= MAX_SEGMENTS {
            let reason = format!("a space has {MAX_SEGMENTS} registered segments, and can have no more");
            return Err(VerbsError::Mismatch { reason });
        }
        let at = segments.partition_point(|other| other.offset < segment.offset);
        segments.insert(at, segment);
        Ok(())
    }

    /// Returns the way in which the device executes masked CAS for clients: `Native` or `CasLoop`.
    #[must_use]
    pub fn masked_cas(&self) -> MaskedCas {
        self.shared.masked_cas
    }

    /// Accepts a client with the access `grant`: connects a queue pair to it, which executes the client's verbs from
    /// now on. Returns the queue pair, and the parameters that the client needs.
    ///
    /// # Errors
    /// `Mismatch`, `Forked` or `System`; there is no new queue pair.
    pub fn accept(&self, grant: Grant, client: &ClientParameters) -> Result<(Accepted, TargetParameters), VerbsError> {
        let Shared { device, domains, completions, masked_cas, .. } = &*self.shared;
        let (domain, side) = match grant {
            Grant::ReadWrite => (&domains[0], Side::Target),
            Grant::ReadOnly => (&domains[1], Side::TargetReadOnly),
        };
        let capacity = Capacity { send_depth: SEND_DEPTH, inline_bytes: 0 };
        let pair = QueuePair::new(device, domain, completions, capacity, (side, Posting::Generic))?;
        let agreed = Agreed::of(pair.endpoint(), &client.endpoint)?;
        agreed.check_reads(agreed.reads_in)?;
        pair.receive_from(&client.endpoint, &agreed, device)?;
        let all = |space| self.shared.segments_in(space, &(0..u64::MAX), grant);
        let (main, on_device) = (all(Space::Main), all(Space::Device));
        let (endpoint, masked_cas) = (*pair.endpoint(), *masked_cas);
        let parameters = TargetParameters { endpoint, grant, masked_cas, main, device: on_device };
        Ok((Accepted { pair: Some(pair), target: Arc::clone(&self.shared) }, parameters))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments = self.shared.segments().len();
        f.debug_struct("Target").field("device", &self.shared.device).field("segments", &segments).finish()
    }
}

impl Shared {
    fn segments(&self) -> MutexGuard<'_, Vec<RegisteredSegment>> {
        // A segment is pushed whole or not at all.
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the byte behind the last segment of `space`.
    fn end_of(&self, space: Space) -> u64 {
        let ends = |segment: &RegisteredSegment| (segment.space == space).then_some(segment.offset + segment.bytes);
        self.segments().iter().filter_map(ends).max().unwrap_or(0)
    }

    /// Returns the segments of `space` that have any of these bytes, in order.
    fn segments_in(&self, space: Space, within: &Range<u64>, grant: Grant) -> Vec<Segment> {
        let index = GRANTS.iter().position(|(of, _)| *of == grant).unwrap_or(0);
        let segment = |segment: &RegisteredSegment| {
            let RegisteredSegment { offset, address, bytes, .. } = *segment;
            Segment { offset, address, bytes, key: segment.registrations[index].remote_key() }
        };
        let is_in = |it: &&RegisteredSegment| {
            it.space == space && it.offset < within.end && within.start < it.offset + it.bytes
        };
        self.segments().iter().filter(is_in).map(segment).collect()
    }
}

/// The memory side's queue pair of one client. Dropping it ends it, as [`Accepted::end`] does.
#[must_use = "dropping it ends the client's queue pair"]
pub struct Accepted {
    pair: Option<QueuePair>,
    /// Declared last: the memory outlives the queue pair.
    target: Arc<Shared>,
}

impl Accepted {
    /// Ends the client's queue pair: once it has returned, no verb of the client is executed, whenever it was posted.
    /// The module's documentation has the reason for each driver. Waits for packets that are being executed, which
    /// takes microseconds; sends nothing. A queue pair that was ended stays so.
    ///
    /// # Errors
    /// `Forked` or `System`: the queue pair may execute verbs still; call it again.
    pub fn end(&mut self) -> Result<(), VerbsError> {
        let Some(pair) = self.pair.take() else { return Ok(()) };
        if let Err(error) = self.target.device.opened().check_process() {
            self.pair = Some(pair);
            return Err(error);
        }
        // Destroying is enough; the error state first lets the device drop packets while it waits for earlier ones. A
        // queue pair whose device has failed cannot change its state, and is destroyed all the same.
        let _ = pair.fail();
        pair.destroy().map_err(|failed| {
            let (pair, error) = *failed;
            self.pair = Some(pair);
            error
        })
    }
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.pair.as_ref().map(|pair| pair.endpoint().queue_pair);
        f.debug_struct("Accepted").field("queue_pair", &number).finish()
    }
}
