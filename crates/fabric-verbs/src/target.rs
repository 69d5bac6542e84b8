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
//! order of its addresses, without gaps.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guira_fabric::memory::{AtomicU64, SharedWords};
use guira_fabric::{MaskedCas, Space};
use guira_session::wire::{ClientParameters, Grant, Segment, TargetParameters};

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
        let slice: &[AtomicU64] = (*words).as_ref();
        let (start, bytes) = (slice.as_ptr().cast_mut().cast::<u8>(), size_of_val(slice));
        if bytes == 0 {
            return Err(VerbsError::Mismatch { reason: "a segment of no bytes cannot be registered".to_owned() });
        }
        let all_bytes = (GRANTS.len() * bytes) as u64;
        let registrations = self.for_each_grant(|domain, access| {
            // SAFETY: `words` is kept beside the registration, and longer; it consists of atomics, so this program
            // expects that others change it.
            unsafe { Registration::new(domain, start, bytes, access) }
                .map_err(|error| memlock::of_all(error, all_bytes))
        })?;
        self.push(space, start as u64, bytes as u64, registrations, Place::Host(words));
        Ok(())
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
                        // Addresses in the device's memory are offsets.
                        self.push(Space::Device, 0, memory.bytes(), registrations, space.place().clone());
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

    fn push(&self, space: Space, address: u64, bytes: u64, registrations: [Registration; 2], memory: Place) {
        let segment = RegisteredSegment { space, address, bytes, registrations, _memory: memory };
        self.shared.segments().push(segment);
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
        let (main, on_device) = (self.shared.list(Space::Main, grant), self.shared.list(Space::Device, grant));
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

    fn list(&self, space: Space, grant: Grant) -> Vec<Segment> {
        let index = GRANTS.iter().position(|(of, _)| *of == grant).unwrap_or(0);
        let segment = |segment: &RegisteredSegment| {
            let RegisteredSegment { address, bytes, .. } = *segment;
            Segment { address, bytes, key: segment.registrations[index].remote_key() }
        };
        self.segments().iter().filter(|segment| segment.space == space).map(segment).collect()
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
