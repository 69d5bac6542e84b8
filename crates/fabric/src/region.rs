//! A region: the bytes a memory node exposes, and who is alive on it.

use std::any::Any;
use std::fmt;
use std::sync::Mutex;
use std::task::{Context, Poll};

use crate::{Caps, FabricError, HoldSet, Lane, SeparateHolds};

/// Proof that this process holds a client slot: while it lives, every prober finds the slot's owner alive; when it is
/// dropped, or its process dies, the slot's owner is dead. Whoever obtains the hold of a slot somebody else used has
/// thereby proved that owner dead.
///
/// Nobody looks into it: it lies in a mutex so that tasks that share a hold may go from thread to thread.
pub struct SlotHold(#[expect(dead_code, reason = "held for its Drop")] Mutex<Box<dyn Any + Send>>);

impl SlotHold {
    /// Wraps the backend's guard, whose `Drop` ends the owner's life.
    pub fn new(guard: impl Any + Send) -> SlotHold {
        SlotHold(Mutex::new(Box::new(guard)))
    }
}

impl fmt::Debug for SlotHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotHold")
    }
}

/// The bytes of one memory node, as its backend offers them.
pub trait Region {
    /// The lanes of this backend.
    type Lane: Lane;

    /// What the region promises.
    fn caps(&self) -> &Caps;

    /// Bytes of the main space.
    fn main_bytes(&self) -> u64;

    /// Bytes of the device space.
    fn device_bytes(&self) -> u64;

    /// A new lane. Lanes of one region are independent of each other.
    fn lane(&self) -> Self::Lane;

    /// Whether bytes of the region were lost since it was opened: by a file that was truncated, or a memory node that
    /// says so. Then what a batch has found since may be zeros, and what it wrote may be nowhere. A few loads: to be
    /// asked after a batch, before anybody is told what it found. Once true it is true for good.
    fn has_lost_bytes(&self) -> bool {
        false
    }

    /// Asks whether all of its bytes are there now: a system call at most.
    ///
    /// # Errors
    /// `Backend`: they are not, and how they were lost.
    fn verify_bytes(&self) -> Result<(), FabricError> {
        Ok(())
    }

    /// Takes slot `slot`'s liveness, or returns `None` if a living owner has it. Waits for nobody but a memory node's
    /// answer.
    ///
    /// # Errors
    /// The backend's resources failed (descriptors, kernel locks).
    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError>;

    /// As [`Region::hold`], for a task: a backend that has to ask somebody else wakes `cx` when it has the answer, and
    /// is polled with the same slot again; being polled with another slot, or dropped, it gives back what it may have
    /// been granted meanwhile. One task at a time asks through one handle of a region.
    ///
    /// # Errors
    /// As [`Region::hold`].
    fn poll_hold(&self, slot: u16, _cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
        Poll::Ready(self.hold(slot))
    }

    /// The slots of one more owner, of which it has none yet. Many slots of one owner may cost less than as many holds.
    fn hold_set(&self) -> Box<dyn HoldSet>
    where
        Self: Clone + Send + Sized + 'static,
    {
        Box::new(SeparateHolds::new(self.clone()))
    }
}

/// Proof that the client that took a slot under a generation is dead, so that none of its verbs takes effect any more:
/// while it lives, nobody else can prove the same or take the slot.
///
/// The fabric may know slots only: then the proof holds if the slot's word, read under the proof, still has this
/// generation. // [R-RECOVER-1]
#[derive(Debug)]
pub struct FenceProof {
    slot: u16,
    generation: u64,
    hold: SlotHold,
}

impl FenceProof {
    /// The proof that `hold`, the liveness of `slot`, is: the client found there under `generation` does not have it.
    pub fn new(slot: u16, generation: u64, hold: SlotHold) -> FenceProof {
        FenceProof { slot, generation, hold }
    }

    /// The dead client's slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The generation under which it took the slot.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The slot's liveness, for whoever takes the slot after its last client was recovered.
    pub fn into_hold(self) -> SlotHold {
        self.hold
    }
}

/// Who is alive, as a region's backend knows it. A timeout decides when to ask, and nothing else. // [R-RECOVER-1]
pub trait Liveness: Send {
    /// Proves that the client that took `slot` under `generation` is dead; `None` if it lives (stopped, frozen and
    /// traced clients do), or if somebody else has the proof. Costs a few system calls; over a network, a round trip.
    ///
    /// # Errors
    /// The backend's resources failed (descriptors, kernel locks).
    fn poll_fence(
        &mut self,
        slot: u16,
        generation: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<FenceProof>, FabricError>>;
}

/// Regions whose slots are held: to obtain the hold of a slot that a client took is to prove it dead.
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
