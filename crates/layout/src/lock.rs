//! The lock table: the lock that guards a row, and the position of its bits.
//!
//! A lock guards `rows_per_lock` consecutive rows. Logical lock l is physical lock l mod P (paper, section 3.4.2), so
//! rows r and r + P x rows_per_lock share one. Physical locks are bit fields of 64-bit words; a lock's value is 0 when
//! free, its owner's id when held (1 for 1-bit locks), all ones when the table was destroyed.

use guira_fabric::{Addr, WORD_BYTES};

use crate::{LockId, OwnerId, RowId, TableConfig};

/// Layout of the lock table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLayout {
    rows_per_lock_shift: u32,
    physical: u64,
    bits: u32,
    per_word: u64,
    /// A word with the value 1 in each lock's field.
    ones: u64,
    max_clients: u16,
}

/// A set of locks in one word, as a bit mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockMask {
    /// Index of the word in the lock table.
    pub word: u64,
    /// All bits of these locks.
    pub mask: u64,
}

impl LockLayout {
    /// Makes the layout of the lock table of `config`.
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

    /// Returns the number of 64-bit words of the lock table.
    pub fn words(&self) -> u64 {
        self.physical.div_ceil(self.per_word)
    }

    /// Returns the number of physical locks.
    pub fn locks(&self) -> u64 {
        self.physical
    }

    /// Returns the physical lock that guards `row`.
    #[inline(always)]
    pub fn lock_of(&self, row: RowId) -> LockId {
        let logical = row.0 >> self.rows_per_lock_shift;
        LockId(if logical < self.physical { logical } else { logical % self.physical })
    }

    /// Returns the word and the bits of `lock`.
    #[inline(always)]
    pub fn mask(&self, lock: LockId) -> LockMask {
        // Widths that divide 64 are the usual ones, and a division would take longer than the rest of this function.
        let (word, field) = match self.per_word.is_power_of_two() {
            true => (lock.0 >> self.per_word.trailing_zeros(), lock.0 & (self.per_word - 1)),
            false => (lock.0 / self.per_word, lock.0 % self.per_word),
        };
        LockMask { word, mask: self.field_mask() << (field * u64::from(self.bits)) }
    }

    /// Returns the number of locks in a word.
    pub fn locks_per_word(&self) -> u64 {
        self.per_word
    }

    /// Divides the locks in `locks` into sets of at most `most`, at least 1, in ascending order.
    pub fn divide(&self, locks: LockMask, most: u32) -> impl Iterator<Item = LockMask> + use<> {
        let layout = *self;
        let mut rest = locks.mask;
        std::iter::from_fn(move || {
            let mut mask = 0;
            for _ in 0..most.max(1) {
                if rest == 0 {
                    break;
                }
                let field = u64::from(rest.trailing_zeros()) / u64::from(layout.bits);
                let lock = layout.field_mask() << (field * u64::from(layout.bits));
                (mask, rest) = (mask | lock, rest & !lock);
            }
            (mask != 0).then_some(LockMask { word: locks.word, mask })
        })
    }

    #[inline(always)]
    fn field_mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Returns the address of lock word `word`.
    #[inline(always)]
    pub fn addr(&self, word: u64) -> Addr {
        Addr::device(word * WORD_BYTES)
    }

    /// Returns the value that the locks in `mask` have while `owner` holds them. 1-bit locks have the value 1 for every
    /// owner.
    #[inline(always)]
    pub fn held(&self, owner: OwnerId, mask: u64) -> u64 {
        let value = if self.bits == 1 { 1 } else { u64::from(owner.0) & self.field_mask() };
        (self.ones * value) & mask
    }

    /// Returns the number that, added to a word, sets the locks in `mask` from held by `owner` to free. The addition is
    /// exact while `owner` holds them: each lock's bits become 0 without a borrow from the next lock.
    #[inline(always)]
    pub fn release_addend(&self, owner: OwnerId, mask: u64) -> u64 {
        self.held(owner, mask).wrapping_neg()
    }

    /// Returns the rows that `lock` guards in a table of `rows` rows: a range of consecutive rows, or, where logical
    /// locks share a physical one, several ranges of equal length.
    pub fn guarded_rows(&self, lock: LockId, rows: u64) -> impl Iterator<Item = RowId> + use<> {
        let shift = self.rows_per_lock_shift;
        let logical = (lock.0..rows >> shift).step_by(self.physical as usize);
        logical.flat_map(move |logical| (logical << shift..(logical + 1) << shift).map(RowId))
    }

    /// Returns the first lock in `mask` that is held in `word_value`, and its owner.
    pub fn first_held(&self, word: u64, word_value: u64, mask: u64) -> Option<(LockId, OwnerId)> {
        (0..self.per_word).find_map(|field| {
            let shift = field * u64::from(self.bits);
            let value = (word_value & mask) >> shift & self.field_mask();
            (value != 0).then(|| (LockId(word * self.per_word + field), OwnerId(value as u16)))
        })
    }

    /// Returns all held locks in `word_value`, and their owners.
    pub fn all_held(&self, word: u64, word_value: u64) -> impl Iterator<Item = (LockId, OwnerId)> {
        let layout = *self;
        (0..self.per_word).filter_map(move |field| {
            let shift = field * u64::from(layout.bits);
            let value = word_value >> shift & layout.field_mask();
            (value != 0).then(|| (LockId(word * layout.per_word + field), OwnerId(value as u16)))
        })
    }

    /// Whether a lock records its owner's id: locks of one bit do not.
    pub fn has_owner_ids(&self) -> bool {
        self.bits > 1
    }

    /// Returns the lock word of a destroyed table: every bit of every lock is set. If a client held a lock when the
    /// table was destroyed and releases it, the lock is left at all ones minus the client's id. That is never 0, so the
    /// lock is never taken again.
    pub fn poison(&self) -> u64 {
        self.ones * self.field_mask()
    }

    /// Whether `owner`, the value of a lock, is larger than any client's id: the mark of a destroyed table, or damage.
    /// [R-LOCK-9]
    pub fn is_poison(&self, owner: OwnerId) -> bool {
        self.has_owner_ids() && owner.0 > self.max_clients
    }
}

/// Returns a word with the value 1 in each lock's field.
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

    /// [R-LOCK-2] Acquiring and releasing a lock of any width leaves all other locks as they were, for every owner id.
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

    /// [R-LOCK-3] Sets of locks are disjoint, ascending, of the size asked for, and together all that were divided.
    #[test]
    fn sets_of_locks_are_divided_in_order() {
        for bits in [1, 3, 8, 16] {
            let layout = layout(bits, 1000);
            let fields: Vec<u64> = (0..layout.per_word).filter(|field| field % 3 != 1).collect();
            let mask = fields.iter().fold(0, |mask, field| mask | layout.mask(LockId(*field)).mask);
            for most in [0, 1, 2, 5, 64] {
                let sets: Vec<LockMask> = layout.divide(LockMask { word: 7, mask }, most).collect();
                assert_eq!(sets.len(), fields.len().div_ceil(most.max(1) as usize), "{bits} {most}");
                assert!(sets.iter().all(|set| set.word == 7));
                assert!(sets.windows(2).all(|pair| pair[0].mask < pair[1].mask & pair[1].mask.wrapping_neg()));
                assert_eq!(sets.iter().fold(0, |all, set| all | set.mask), mask);
            }
        }
    }

    /// [R-LOCK-5] Rows of logical locks that share a physical lock map to the same lock.
    #[test]
    fn virtual_locks_wrap() {
        let layout = layout(16, 8);
        assert_eq!(layout.lock_of(RowId(0)), layout.lock_of(RowId(8 * 16)));
        assert_eq!(layout.lock_of(RowId(17)), LockId(1));
        let guarded: Vec<RowId> = layout.guarded_rows(LockId(3), 32 * 16).collect();
        let ranges = [3, 11, 19, 27].into_iter().flat_map(|logical| (logical * 16..(logical + 1) * 16).map(RowId));
        assert_eq!(guarded, ranges.collect::<Vec<_>>());
        assert_eq!(layout.words(), 2);
        assert_eq!(
            layout.all_held(1, 0x7_0000_0000_0005).collect::<Vec<_>>(),
            [(LockId(4), OwnerId(5)), (LockId(7), OwnerId(7))]
        );
        assert!(layout.is_poison(OwnerId(0xffff)));
    }
}
