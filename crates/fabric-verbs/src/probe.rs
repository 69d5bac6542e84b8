//! The probe of masked CAS: whether a device executes it, and the byte order of its results.
//!
//! No attribute of a device says so. A small target and a client of it, both on the device, are connected to each
//! other, and the client posts a batch whose outcome is known. The queue pairs are made as all others are, so the probe
//! covers both parts: as the one that asks (the format of work queue entries, how results are delivered, and their byte
//! order, which is a mode of the asking device) and as the one that executes (extended atomics on its queue pairs).
//!
//! A connection has two devices. Each side probes its own; the memory side says in its parameters what it found, and a
//! client uses masked CAS only if both work. A device that executes none would answer with an error, which ends the
//! connection; a client therefore never tries it on the real one.
//!
//! Invariant: a probe changes no memory but its own.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use guira_fabric::memory::AtomicU64;
use guira_fabric::{Addr, FabricError, Lane, MaskedCas, Space, Submitted, Verb, clock_ns};
use guira_network::wire::Grant;

use crate::client::{Connecting, Connection, ConnectionOptions, VerbsLane};
use crate::mlx5;
use crate::resources::Posting;
use crate::target::{Accepted, Target};
use crate::{Device, VerbsError};

/// Limit of a probe. A loop inside one device takes microseconds; a device that allows none would repeat for seconds.
const LIMIT_NS: u64 = 1_000_000_000;

/// The queues of a probe: one lane, and few requests.
const OPTIONS: ConnectionOptions = ConnectionOptions {
    queue_depth: 8,
    lanes: 1,
    lane_bytes: 64,
    large_buffers: 1,
    large_bytes: 64,
    inline_bytes: 0,
    waiting: guira_fabric::Waiting::InPlace,
};

/// The bits that are compared and swapped: one field of 16 bits, as a lock has.
const FIELD: u64 = 0xffff << 16;
/// The word before: the field is zero, and no byte equals its mirror image.
const BEFORE: u64 = 0x1122_3344_0000_5566;
/// The new value of the field.
const SWAPPED: u64 = 0x7788 << 16;
const AFTER: u64 = BEFORE | SWAPPED;
/// The value of a second attempt, which finds the field taken.
const LATE: u64 = 0x99aa << 16;

const _: () = assert!(BEFORE & FIELD == 0 && BEFORE & FIELD.swap_bytes() != 0);
const _: () = assert!(BEFORE != BEFORE.swap_bytes() && AFTER != AFTER.swap_bytes());

/// The byte order of a word that a device has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    LittleEndian,
    BigEndian,
}

impl ByteOrder {
    /// The byte order of this processor, which all results but those of masked CAS have.
    pub(crate) const HOST: ByteOrder =
        if cfg!(target_endian = "little") { ByteOrder::LittleEndian } else { ByteOrder::BigEndian };

    /// Returns the value of a word that was loaded from where the device has stored it.
    #[inline]
    pub(crate) fn value(self, loaded: u64) -> u64 {
        match self {
            ByteOrder::LittleEndian => u64::from_le(loaded),
            ByteOrder::BigEndian => u64::from_be(loaded),
        }
    }
}

/// The results of a probe's batch: words as they were loaded from the client's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Observed {
    /// Result of the masked CAS that must win.
    won: u64,
    /// Result of the FETCH-ADD of 1 to the second word, which was zero.
    added: u64,
    /// Result of the masked CAS that must lose.
    lost: u64,
    /// Both words, read behind the others.
    words: [u64; 2],
}

/// Returns the byte order of the results of masked CAS on a device; `None` if it does not work there. The result is
/// kept as long as the device is open.
pub(crate) fn masked_cas(device: &Device) -> Option<ByteOrder> {
    let opened = device.opened();
    if let Some(known) = opened.masked_cas.get() {
        return *known;
    }
    let is_mlx5 = opened.is_own() && mlx5::library(opened).is_some();
    let found = if is_mlx5 { probe(device) } else { Ok(None) };
    // A probe that could not be made, for want of memory or queue pairs, is made again for the next connection.
    found.map_or(None, |found| *opened.masked_cas.get_or_init(|| found))
}

fn probe(device: &Device) -> Result<Option<ByteOrder>, VerbsError> {
    let looped = Loop::new(device, &OPTIONS, Posting::MaskedCas)?;
    Ok(decide(observe(&mut looped.connection.lane()).as_ref()))
}

/// A connection of a device to itself.
struct Loop {
    /// Declared first: the client's queue pair ends before the other one.
    connection: Connection,
    /// Held: it is the other side.
    #[cfg_attr(not(test), expect(dead_code))]
    accepted: Accepted,
}

impl Loop {
    /// Connects a client whose masked CAS is taken to work, if it is created with it.
    fn new(device: &Device, options: &ConnectionOptions, posting: Posting) -> Result<Loop, VerbsError> {
        let target = Target::with(device, MaskedCas::Native)?;
        let words: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(BEFORE), AtomicU64::new(0)]);
        target.register(Space::Main, words as _)?;
        let connecting = Connecting::with(device, options, posting, ByteOrder::HOST)?;
        let (accepted, parameters) = target.accept(Grant::ReadWrite, &connecting.parameters())?;
        Ok(Loop { connection: connecting.connect(parameters)?, accepted })
    }
}

/// Executes the probe's batch: the four kinds of requests that batches with locks have, in one post.
fn observe(lane: &mut VerbsLane) -> Option<Observed> {
    let mut observed = Observed { won: 0, added: 0, lost: 0, words: [0; 2] };
    let Observed { won, added, lost, words } = &mut observed;
    let masked = |swap, found| Verb::MaskedCas {
        addr: Addr::main(0),
        compare: 0,
        swap,
        compare_mask: FIELD,
        swap_mask: FIELD,
        found,
    };
    let mut batch = [
        masked(SWAPPED, won),
        Verb::FetchAdd { addr: Addr::main(8), add: 1, found: added },
        masked(LATE, lost),
        Verb::Read { addr: Addr::main(0), into: words },
    ];
    run(lane, &mut batch).ok().map(|()| observed)
}

/// Executes a batch, or gives up at the probe's limit; the queue pair is destroyed then, before its memory is.
fn run(lane: &mut VerbsLane, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
    if let Submitted::Done(result) = lane.submit(batch) {
        return result;
    }
    let until_ns = clock_ns().saturating_add(LIMIT_NS);
    let mut cx = Context::from_waker(Waker::noop());
    while clock_ns() < until_ns {
        if let Poll::Ready(result) = lane.poll(batch, &mut cx) {
            return result;
        }
    }
    Err(FabricError::Backend("the device did not execute a batch on a connection to itself in a second".to_owned()))
}

/// Decides from a batch's results; `None` is a batch that failed.
fn decide(observed: Option<&Observed>) -> Option<ByteOrder> {
    let Observed { won, added, lost, words } = *observed?;
    if words != [AFTER, 1] || added != 0 {
        return None;
    }
    let is = |order: &ByteOrder| order.value(won) == BEFORE && order.value(lost) == AFTER;
    [ByteOrder::LittleEndian, ByteOrder::BigEndian].into_iter().find(is)
}

#[cfg(test)]
mod tests;
