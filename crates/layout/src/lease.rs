//! Repair leases, as the paper prints them, for tables whose locks do not record their owners: the holder of a region's
//! lease may reclaim stranded locks of that region.
//!
//! Each region of the lock table has one word in the main space (paper, section 4.2): the region's number, a flag that
//! says whether the lease is taken, its current or last holder, and how often it was taken. The counter has 8 bits and
//! wraps: after 256 acquisitions by one holder the word has its old value again (hole H9).

use crate::{LockId, OwnerId};

/// Maximum number of regions of a table: the region's number has 7 bits in the word.
pub const MAX_REPAIR_REGIONS: u8 = 128;

const SET: u64 = 1 << 7;
const HOLDER_SHIFT: u32 = 8;
const HOLDER_BITS: u32 = 48;
const COUNTER_SHIFT: u32 = HOLDER_SHIFT + HOLDER_BITS;

const _: () = assert!(MAX_REPAIR_REGIONS as u64 == SET, "a region's number lies below the flag");
const _: () = assert!(COUNTER_SHIFT + 8 == 64);

/// The lease of one region: number 7 bits, flag 1, holder 48, counter 8. Every word is a valid lease. [R-REPAIR-3]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseWord(pub u64);

impl LeaseWord {
    /// Makes the lease of `region` as it is before it is first taken.
    pub const fn of_region(region: u8) -> LeaseWord {
        LeaseWord(region as u64 & (SET - 1))
    }

    /// Returns the region of physical lock `lock`, of `locks` in a table with `regions` regions. A region is a range of
    /// consecutive locks; all regions have the same length up to one lock.
    pub fn region_of(lock: LockId, locks: u64, regions: u8) -> u8 {
        let region = u128::from(lock.0) * u128::from(regions) / u128::from(locks.max(1));
        region.min(u128::from(u8::MAX)) as u8
    }

    /// Returns the region's number.
    pub const fn region(self) -> u8 {
        (self.0 & (SET - 1)) as u8
    }

    /// Whether the lease is taken.
    pub const fn is_set(self) -> bool {
        self.0 & SET != 0
    }

    /// Returns the current or last holder; owner 0 if the lease was never taken.
    pub const fn holder(self) -> OwnerId {
        OwnerId((self.0 >> HOLDER_SHIFT) as u16)
    }

    /// Returns how often the lease was taken, modulo 256.
    pub const fn counter(self) -> u8 {
        (self.0 >> COUNTER_SHIFT) as u8
    }

    /// Returns the word after `holder` takes the lease.
    #[must_use]
    pub const fn taken_by(self, holder: OwnerId) -> LeaseWord {
        let counter = self.counter().wrapping_add(1) as u64;
        LeaseWord(self.region() as u64 | SET | (holder.0 as u64) << HOLDER_SHIFT | counter << COUNTER_SHIFT)
    }

    /// Returns the word after the holder releases the lease.
    #[must_use]
    pub const fn released(self) -> LeaseWord {
        LeaseWord(self.0 & !SET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [R-REPAIR-3] A lease records its holder and how often it was taken, and wraps after 256 acquisitions.
    #[test]
    fn leases_count_and_wrap() {
        let first = LeaseWord::of_region(127);
        assert_eq!((first.region(), first.is_set(), first.holder(), first.counter()), (127, false, OwnerId(0), 0));
        let mut lease = first;
        for i in 1..=255u8 {
            lease = lease.taken_by(OwnerId(0xffff));
            assert_eq!((lease.region(), lease.is_set(), lease.holder()), (127, true, OwnerId(0xffff)));
            assert_eq!(lease.counter(), i);
            let released = lease.released();
            assert_eq!((released.is_set(), released.holder(), released.counter()), (false, lease.holder(), i));
        }
        let taken_once = first.taken_by(OwnerId(0xffff));
        assert_eq!(lease.taken_by(OwnerId(0xffff)).taken_by(OwnerId(0xffff)), taken_once, "256 later");
        assert_eq!(lease.0 >> 24 & 0xffff_ffff, 0, "the holder's upper half");
    }

    /// [R-REPAIR-3] Every lock belongs to a region of the table, and regions are ranges of consecutive locks.
    #[test]
    fn regions_cover_the_locks_in_order() {
        for (locks, regions) in [(1, 1), (4, 4), (1000, 128), (128, 128), (u64::MAX, 128), (3, 128)] {
            let region = |lock| LeaseWord::region_of(LockId(lock), locks, regions);
            assert_eq!(region(0), 0);
            assert!(region(locks - 1) < regions);
            assert!((0..locks.min(2000) - 1).all(|lock| region(lock) <= region(lock + 1)));
            if locks >= u64::from(regions) {
                assert_eq!(region(locks - 1), regions - 1);
            }
        }
    }
}
