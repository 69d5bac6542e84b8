//! Regions: the bytes that a memory node exposes, and the liveness of its clients.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::task::{Context, Poll};

use crate::{Addr, Caps, FabricError, HoldSet, Lane, SeparateHolds, WORD_BYTES};

/// The name of the operation that makes memory, in errors.
pub const RESERVING: &str = "reserving memory";

/// Checks that bytes for which memory is to be made are some bytes of the main space, which has `space_bytes`.
///
/// # Errors
/// `OutOfBounds`.
pub fn check_reserve(bytes: &Range<u64>, space_bytes: u64) -> Result<(), FabricError> {
    if bytes.start < bytes.end && bytes.end <= space_bytes {
        return Ok(());
    }
    let words = (bytes.end.saturating_sub(bytes.start) / WORD_BYTES) as usize;
    Err(FabricError::OutOfBounds { verb: RESERVING, addr: Addr::main(bytes.start), words, space_bytes })
}

/// Proof that this process holds a client slot: while it exists, every prober finds the slot's owner alive; once it is
/// dropped, or its process dies, the owner is dead. A client that obtains the hold of a slot that another client used
/// has thereby proved that client dead.
///
/// The content is never accessed: the mutex only makes it `Sync`, so that tasks that share a hold may move between
/// threads.
pub struct SlotHold(#[expect(dead_code, reason = "held for its Drop")] Mutex<Box<dyn Any + Send>>);

impl SlotHold {
    /// Wraps the guard of the backend, whose `Drop` ends the owner's liveness.
    pub fn new(guard: impl Any + Send) -> SlotHold {
        SlotHold(Mutex::new(Box::new(guard)))
    }
}

impl fmt::Debug for SlotHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotHold")
    }
}

/// The bytes of one memory node, as its backend provides them.
pub trait Region {
    /// The lane type of this backend.
    type Lane: Lane;

    /// Returns the capabilities of the region.
    fn caps(&self) -> &Caps;

    /// Returns the size of the main space in bytes.
    fn main_bytes(&self) -> u64;

    /// Returns the size of the device space in bytes.
    fn device_bytes(&self) -> u64;

    /// Creates a lane. The lanes of a region are independent of each other.
    fn lane(&self) -> Self::Lane;

    /// Whether bytes of the region were lost since it was opened, because its file was truncated or its memory node
    /// reported it. Batches executed since may have read zeros, and their writes may be lost. Costs a few loads; call
    /// it after a batch, before its results are used. Once true, it stays true.
    fn has_lost_bytes(&self) -> bool {
        false
    }

    /// Checks that all bytes of the region exist now. Costs one system call at most.
    ///
    /// # Errors
    /// `Backend` if bytes are missing, with the reason.
    fn verify_bytes(&self) -> Result<(), FabricError> {
        Ok(())
    }

    /// Whether the region has addresses without memory, which no verb may touch before [`Region::reserve`] or
    /// [`Lane::poll_reserve`].
    fn has_holes(&self) -> bool {
        false
    }

    /// Makes memory for `bytes` of the main space, unless more than `most` bytes of them have none. Returns the number
    /// of bytes that had none.
    ///
    /// # Errors
    /// `NoMemory`, or others with effect `None`: no word was changed.
    fn reserve(&self, _bytes: Range<u64>, _most: u64) -> Result<u64, FabricError> {
        Ok(0)
    }

    /// Takes the client slot `slot`, or returns `None` if a living owner holds it. Waits for nothing but the answer of
    /// a memory node.
    ///
    /// # Errors
    /// A resource of the backend failed (descriptors, kernel locks).
    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError>;

    /// Same as [`Region::hold`], for a task: a backend that has to send a request wakes `cx` when it has the answer,
    /// and is then polled with the same slot again. If it is polled with another slot, or dropped, it releases a slot
    /// that it was granted in the meantime. Only one task at a time may poll through one handle of a region.
    ///
    /// # Errors
    /// Same as [`Region::hold`].
    fn poll_hold(&self, slot: u16, _cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
        Poll::Ready(self.hold(slot))
    }

    /// Creates an empty set of client slots for one owner. A set may cost less than the same number of single holds.
    fn hold_set(&self) -> Box<dyn HoldSet>
    where
        Self: Clone + Send + Sized + 'static,
    {
        Box::new(SeparateHolds::new(self.clone()))
    }
}

/// Proof that the client that took a client slot under a generation is dead, so that none of its verbs takes effect any
/// more. While the proof exists, no other client can obtain the same proof or take the slot.
///
/// The fabric may not know generations: then the proof is valid only if the slot's word, read under the proof, still
/// has this generation. [R-RECOVER-1]
#[derive(Debug)]
pub struct FenceProof {
    slot: u16,
    generation: u64,
    hold: SlotHold,
}

impl FenceProof {
    /// Makes `hold`, the hold of `slot`, the proof that the client found there under `generation` is dead.
    pub fn new(slot: u16, generation: u64, hold: SlotHold) -> FenceProof {
        FenceProof { slot, generation, hold }
    }

    /// Returns the dead client's slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Returns the generation under which the dead client took the slot.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the hold of the slot, for taking the slot after its dead client was recovered.
    pub fn into_hold(self) -> SlotHold {
        self.hold
    }
}

/// Liveness of clients, as known by a region's backend. A timeout decides when to probe, and nothing else.
/// [R-RECOVER-1]
pub trait Liveness: Send {
    /// Proves that the client that took `slot` under `generation` is dead. Returns `None` if it is alive (stopped,
    /// frozen and traced clients are), or if another client has the proof. Costs a few system calls; over a network,
    /// one round trip.
    ///
    /// # Errors
    /// A resource of the backend failed (descriptors, kernel locks).
    fn poll_fence(
        &mut self,
        slot: u16,
        generation: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<FenceProof>, FabricError>>;
}

/// Liveness by holds: obtaining the hold of a slot proves that the client that took it is dead.
impl<R: Region + Send> Liveness for R {
    fn poll_fence(
        &mut self,
        slot: u16,
        generation: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<FenceProof>, FabricError>> {
        self.poll_hold(slot, cx).map_ok(|hold| hold.map(|hold| FenceProof::new(slot, generation, hold)))
    }
}

impl fmt::Debug for dyn Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Liveness")
    }
}
