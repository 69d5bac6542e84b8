//! A region: the bytes a memory node exposes, and who is alive on it.

use std::any::Any;
use std::fmt;

use crate::{Caps, FabricError, Lane};

/// Proof that this process holds a client slot: while it lives, every prober finds the slot's owner alive; when it is
/// dropped, or its process dies, the slot's owner is dead. Whoever obtains the hold of a slot somebody else used has
/// thereby proved that owner dead.
pub struct SlotHold(#[expect(dead_code, reason = "held for its Drop")] Box<dyn Any + Send>);

impl SlotHold {
    /// Wraps the backend's guard, whose `Drop` ends the owner's life.
    pub fn new(guard: impl Any + Send) -> SlotHold {
        SlotHold(Box::new(guard))
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

    /// Takes slot `slot`'s liveness, or returns `None` if a living owner has it. Never waits.
    ///
    /// # Errors
    /// The backend's resources failed (descriptors, kernel locks).
    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError>;
}
