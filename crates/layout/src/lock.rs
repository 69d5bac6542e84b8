//! The lock table: which lock guards a row, and where its bits are.
//!
//! A lock guards `rows_per_lock` neighbouring rows. Logical lock l is physical lock l mod P (paper, section 3.4.2), so
//! rows r and r + P x rows_per_lock share one. Physical locks lie side by side in 64-bit words; a lock's value is 0
//! when free, its owner's id when held (1 for 1-bit locks), all ones when the table was destroyed.

use guira_fabric::{Addr, WORD_BYTES};

use crate::{LockId, OwnerId, RowId, TableConfig};

/// Where locks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLayout {
    rows_per_lock_shift: u32,
    physical: u64,
    bits: u32,
    per_word: u64,
    /// A word with a 1 in each lock.
    ones: u64,
    max_clients: u16,
}

/// Some locks of one word, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockMask {
    /// The index of the word in the lock table.
    pub word: u64,
    /// Every bit of the locks meant.
    pub mask: u64,
}

impl LockLayout {
    /// The lock table of `config`.
    pub fn new(config: &TableConfig) -> LockLayout {
        let bits = u32::from(config.lock_bits);
        let per_word = 64 / u64::from(config.lock_bits.max(1));
        LockLayout {
            rows_per_lock_shift: config.rows_per_lock.trailing_zeros(),
            physical: config.physical_locks.max(1),
            bits,
            per_word,
            ones: ones(bits, per_word),
            max_clients: config.max_clients,
        }
    }

    /// 64-bit words of the lock table.
    pub fn words(&self) -> u64 {
        self.physical.div_ceil(self.per_word)
    }

    /// Physical locks.
    pub fn locks(&self) -> u64 {
        self.physical
    }

    /// The physical lock that guards `row`.
    #[inline(always)]
    pub fn lock_of(&self, row: RowId) -> LockId {
        let logical = row.0 >> self.rows_per_lock_shift;
        LockId(if logical < self.physical { logical } else { logical % self.physical })
    }

    /// The word and bits of `lock`.
    #[inline(always)]
    pub fn mask(&self, lock: LockId) -> LockMask {
        // Widths that divide 64 are the usual ones, and a division takes longer than all the rest.
        let (word, field) = match self.per_word.is_power_of_two() {
            true => (lock.0 >> self.per_word.trailing_zeros(), lock.0 & (self.per_word - 1)),
            false => (lock.0 / self.per_word, lock.0 % self.per_word),
        };
        LockMask { word, mask: self.field_mask() << (field * u64::from(self.bits)) }
    }

    #[inline(always)]
    fn field_mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// The address of lock word `word`.
    #[inline(always)]
    pub fn addr(&self, word: u64) -> Addr {
        Addr::device(word * WORD_BYTES)
    }

    /// The value the locks in `mask` have while `owner` holds them. 1-bit locks hold a 1, whoever it is.
    #[inline(always)]
    pub fn held(&self, owner: OwnerId, mask: u64) -> u64 {
        let value = if self.bits == 1 { 1 } else { u64::from(owner.0) & self.field_mask() };
        (self.ones * value) & mask
    }

    /// What to add to a word to set the locks in `mask` from held by `owner` to free. Exact while `owner` holds them:
    /// each lock's bits reach 0 without a borrow from its neighbour.
    #[inline(always)]
    pub fn release_addend(&self, owner: OwnerId, mask: u64) -> u64 {
        self.held(owner, mask).wrapping_neg()
    }

    /// The rows that `lock` guards, in a table of `rows` rows: a stretch of neighbours, or several of equal length with
    /// virtual locks.
    pub fn guarded_rows(&self, lock: LockId, rows: u64) -> impl Iterator<Item = RowId> + use<> {
        let shift = self.rows_per_lock_shift;
        let logical = (lock.0..rows >> shift).step_by(self.physical as usize);
        logical.flat_map(move |logical| (logical << shift..(logical + 1) << shift).map(RowId))
    }

    /// The first lock in `mask` that is not free in `word_value`, and the owner it holds.
    pub fn first_held(&self, word: u64, word_value: u64, mask: u64) -> Option<(LockId, OwnerId)> {
        (0..self.per_word).find_map(|field| {
            let shift = field * u64::from(self.bits);
            let value = (word_value & mask) >> shift & self.field_mask();
            (value != 0).then(|| (LockId(word * self.per_word + field), OwnerId(value as u16)))
        })
    }

    /// Every held lock in `word_value`.
    pub fn all_held(&self, word: u64, word_value: u64) -> impl Iterator<Item = (LockId, OwnerId)> {
        let layout = *self;
        (0..self.per_word).filter_map(move |field| {
            let shift = field * u64::from(layout.bits);
            let value = word_value >> shift & layout.field_mask();
            (value != 0).then(|| (LockId(word * layout.per_word + field), OwnerId(value as u16)))
        })
    }

    /// Whether a lock of `owner`'s width can tell owners apart.
    pub fn has_owner_ids(&self) -> bool {
        self.bits > 1
    }

    /// Every bit of every lock of a word: the word of a destroyed table. A lock that was held at that moment is left at
    /// all ones less its owner's id when that owner releases it: never 0, so it is never taken again.
    pub fn poison(&self) -> u64 {
        self.ones * self.field_mask()
    }

    /// Whether `owner` is what destroying a table leaves in its locks: nobody's id.
    pub fn is_poison(&self, owner: OwnerId) -> bool {
        self.has_owner_ids() && owner.0 > self.max_clients
    }
}

/// A word with a 1 in the lowest bit of each lock.
fn ones(bits: u32, per_word: u64) -> u64 {
    (0..per_word).fold(0, |ones, field| ones | 1 << (field * u64::from(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bits: u8, physical: u64) -> LockLayout {
        LockLayout {
            rows_per_lock_shift: 4,
            physical,
            bits: u32::from(bits),
            per_word: 64 / u64::from(bits),
            ones: ones(u32::from(bits), 64 / u64::from(bits)),
            max_clients: 8,
        }
    }

    /// [R-LOCK-2] Taking and giving back a lock of any width leaves every neighbour as it was, for every owner id.
    #[test]
    fn acquire_and_release_are_exact_for_every_width() {
        for bits in 1..=16u8 {
            let layout = layout(bits, 1000);
            for lock in 0..layout.per_word {
                let LockMask { word, mask } = layout.mask(LockId(lock));
                assert_eq!(word, 0);
                assert_eq!(mask.count_ones(), u32::from(bits));
                for owner in [1u16, 2, (((1u32 << bits) - 1).max(2) - 1) as u16] {
                    for neighbours in [0, !mask, 0x5a5a_5a5a_5a5a_5a5a & !mask] {
                        let held = neighbours | layout.held(OwnerId(owner), mask);
                        assert_eq!(held & !mask, neighbours);
                        assert_ne!(held & mask, 0);
                        let released = held.wrapping_add(layout.release_addend(OwnerId(owner), mask));
                        assert_eq!(released, neighbours);
                        let found = layout.first_held(0, held, mask).unwrap();
                        assert_eq!(found.0, LockId(lock));
                        if bits > 1 {
                            assert_eq!(found.1.0 as u64, u64::from(owner) & ((1 << bits) - 1));
                        }
                    }
                }
            }
        }
    }

    /// [R-LOCK-5] Rows that share a physical lock map to one.
    #[test]
    fn virtual_locks_wrap() {
        let layout = layout(16, 8);
        assert_eq!(layout.lock_of(RowId(0)), layout.lock_of(RowId(8 * 16)));
        assert_eq!(layout.lock_of(RowId(17)), LockId(1));
        let guarded: Vec<RowId> = layout.guarded_rows(LockId(3), 32 * 16).collect();
        let stretches = [3, 11, 19, 27].into_iter().flat_map(|logical| (logical * 16..(logical + 1) * 16).map(RowId));
        assert_eq!(guarded, stretches.collect::<Vec<_>>());
        assert_eq!(layout.words(), 2);
        assert_eq!(
            layout.all_held(1, 0x7_0000_0000_0005).collect::<Vec<_>>(),
            [(LockId(4), OwnerId(5)), (LockId(7), OwnerId(7))]
        );
        assert!(layout.is_poison(OwnerId(0xffff)));
    }
}
