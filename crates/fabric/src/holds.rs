//! The client slots of one owner, taken and released one by one, and released together.

use std::collections::BTreeMap;

use crate::{FabricError, Region, SlotHold};

/// The client slots that one owner holds, such as a session of a memory node. Dropping the set releases all of them.
///
/// To every prober each slot looks as if it had a [`SlotHold`] of its own; a backend may hold all of them by one
/// resource of the kernel.
pub trait HoldSet: Send {
    /// Takes the client slot `slot`. Returns `false` if a living owner holds it, including this one.
    ///
    /// # Errors
    /// Same as [`Region::hold`]; nothing was changed.
    fn hold(&mut self, slot: u16) -> Result<bool, FabricError>;

    /// Releases `slot`. Returns `false` if this owner does not hold it, or keeps it because the kernel refused.
    fn release(&mut self, slot: u16) -> bool;

    /// Returns the slots, ascending.
    fn slots(&self) -> Vec<u16>;

    /// Returns the number of slots.
    fn count(&self) -> usize;
}

/// A set whose slots are held separately, each by a [`SlotHold`] of its region.
pub struct SeparateHolds<R> {
    region: R,
    holds: BTreeMap<u16, SlotHold>,
}

impl<R> SeparateHolds<R> {
    /// Creates a set that holds no slot of `region` yet.
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
    fn slots_of_one_owner_are_taken_one_by_one_and_released_together() {
        let region = HeapRegion::new(4096, 64, Profile::Shm.caps());
        let mut set = region.hold_set();
        assert_eq!((set.hold(7), set.hold(3), set.hold(7)), (Ok(true), Ok(true), Ok(false)));
        assert!(region.hold(7).expect("the region answers").is_none(), "other owners see the hold");
        assert_eq!((set.slots(), set.count()), (vec![3, 7], 2));
        assert!(set.release(7) && !set.release(7));
        let other = region.hold(7).expect("the region answers").expect("it is free");
        assert_eq!(set.hold(7), Ok(false), "another owner holds it");
        drop((set, other));
        assert!(region.hold(3).expect("the region answers").is_some());
    }
}
