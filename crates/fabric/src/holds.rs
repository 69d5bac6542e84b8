//! The client slots of one owner, taken and given back one by one, and given up together.

use std::collections::BTreeMap;

use crate::{FabricError, Region, SlotHold};

/// The client slots whose liveness one owner has: a session of a memory node. Dropping it gives up all of them.
///
/// To every prober each slot is as if it had a [`SlotHold`] of its own; a backend may keep all of them by one resource
/// of the kernel.
pub trait HoldSet: Send {
    /// Takes `slot`'s liveness. `false`: a living owner has it, this one included.
    ///
    /// # Errors
    /// As [`Region::hold`]; nothing was changed.
    fn hold(&mut self, slot: u16) -> Result<bool, FabricError>;

    /// Gives `slot`'s liveness back. `false`: this owner does not have it, or keeps it, because the kernel refused.
    fn release(&mut self, slot: u16) -> bool;

    /// The slots, ascending.
    fn slots(&self) -> Vec<u16>;

    /// How many there are.
    fn count(&self) -> usize;
}

/// Slots that are held apart, each by a [`SlotHold`] of its region.
pub struct SeparateHolds<R> {
    region: R,
    holds: BTreeMap<u16, SlotHold>,
}

impl<R> SeparateHolds<R> {
    /// No slot of `region`.
    pub fn new(region: R) -> SeparateHolds<R> {
        SeparateHolds { region, holds: BTreeMap::new() }
    }
}

impl<R: Region + Send> HoldSet for SeparateHolds<R> {
    fn hold(&mut self, slot: u16) -> Result<bool, FabricError> {
        let hold = self.region.hold(slot)?;
        Ok(hold.map(|hold| self.holds.insert(slot, hold)).is_some())
    }

    fn release(&mut self, slot: u16) -> bool {
        self.holds.remove(&slot).is_some()
    }

    fn slots(&self) -> Vec<u16> {
        self.holds.keys().copied().collect()
    }

    fn count(&self) -> usize {
        self.holds.len()
    }
}

#[cfg(test)]
mod tests {
    use crate::Profile;
    use crate::heap::HeapRegion;

    use super::*;

    #[test]
    fn slots_of_one_owner_are_taken_one_by_one_and_given_up_together() {
        let region = HeapRegion::new(4096, 64, Profile::Shm.caps());
        let mut set = region.hold_set();
        assert_eq!((set.hold(7), set.hold(3), set.hold(7)), (Ok(true), Ok(true), Ok(false)));
        assert!(region.hold(7).expect("the region answers").is_none(), "others see it");
        assert_eq!((set.slots(), set.count()), (vec![3, 7], 2));
        assert!(set.release(7) && !set.release(7));
        let other = region.hold(7).expect("the region answers").expect("it is free");
        assert_eq!(set.hold(7), Ok(false), "somebody else has it");
        drop((set, other));
        assert!(region.hold(3).expect("the region answers").is_some());
    }
}
