//! Locks of one bit, and their grouping into messages.
//!
//! Lock i protects the rows from i × [`LockRules::rows_per_lock`] on. A message takes locks of one aligned word, and no
//! more than the rules allow.

use std::ops::Range;

/// Locks in a word.
pub const WORD_LOCKS: u64 = 64;

/// The rules by which rows are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRules {
    /// Rows that share a lock.
    pub rows_per_lock: u64,
    /// The maximum number of locks that one message takes.
    pub locks_per_message: u32,
}

/// The locks of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockGroup {
    /// The index of their word in the lock table.
    pub word: u64,
    /// Their bits.
    pub mask: u64,
}

impl LockRules {
    /// Returns the number of locks of a table of `rows` rows.
    pub fn locks(self, rows: u64) -> u64 {
        rows.div_ceil(self.rows_per_lock)
    }

    /// Returns the size of the lock table of `rows` rows: one word more than the locks need, which is the lease of clients
    /// that take the locks of others.
    pub fn table_bytes(self, rows: u64) -> u64 {
        (self.locks(rows).div_ceil(WORD_LOCKS) + 1) * 8
    }

    /// Returns the messages that lock `rows`, in ascending order.
    pub fn groups(self, rows: impl IntoIterator<Item = u64>) -> Vec<LockGroup> {
        let mut locks: Vec<u64> = rows.into_iter().map(|row| row / self.rows_per_lock).collect();
        locks.sort_unstable();
        locks.dedup();
        let mut groups: Vec<LockGroup> = Vec::new();
        for lock in locks {
            let (word, bit) = (lock / WORD_LOCKS, 1 << (lock % WORD_LOCKS));
            match groups.last_mut() {
                Some(group) if group.word == word && group.mask.count_ones() < self.locks_per_message => {
                    group.mask |= bit;
                }
                _ => groups.push(LockGroup { word, mask: bit }),
            }
        }
        groups
    }

    /// Returns the rows that a READ behind the message covers: from the first row of the lowest lock to the last row of
    /// the highest.
    pub fn covered(self, group: LockGroup) -> Range<u64> {
        let first = group.word * WORD_LOCKS + u64::from(group.mask.trailing_zeros());
        let last = group.word * WORD_LOCKS + u64::from(group.mask.ilog2());
        first * self.rows_per_lock..(last + 1) * self.rows_per_lock
    }

    /// Whether the message takes the lock of a row.
    pub fn is_in(self, group: LockGroup, row: u64) -> bool {
        let lock = row / self.rows_per_lock;
        lock / WORD_LOCKS == group.word && group.mask >> (lock % WORD_LOCKS) & 1 == 1
    }

    /// Returns the rows that the locks of the messages protect, in ascending order.
    pub fn rows_of(self, groups: &[LockGroup]) -> Vec<u64> {
        let locks = groups.iter().flat_map(|group| {
            let bits = (0..WORD_LOCKS).filter(|bit| group.mask >> bit & 1 == 1);
            bits.map(|bit| group.word * WORD_LOCKS + bit)
        });
        locks.flat_map(|lock| lock * self.rows_per_lock..(lock + 1) * self.rows_per_lock).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: LockRules = LockRules { rows_per_lock: 16, locks_per_message: 64 };

    #[test]
    fn near_rows_share_a_message() {
        // Locks 0, 1 and 63 of word 0, and lock 64, the first of word 1.
        let groups = STORE.groups([1024, 1, 31, 1023, 16]);
        assert_eq!(groups, [LockGroup { word: 0, mask: 1 << 63 | 3 }, LockGroup { word: 1, mask: 1 }]);
        assert_eq!(STORE.covered(groups[0]), 0..1024);
        assert_eq!(STORE.covered(groups[1]), 1024..1040);
        assert_eq!(STORE.covered(LockGroup { word: 1, mask: 0b110 }), 1040..1072);
    }

    #[test]
    fn a_message_has_no_more_locks_than_allowed() {
        let rules = LockRules { rows_per_lock: 2, locks_per_message: 2 };
        let groups = rules.groups([0, 1, 2, 9, 10]);
        assert_eq!(groups, [LockGroup { word: 0, mask: 0b11 }, LockGroup { word: 0, mask: 0b11_0000 }]);
        assert_eq!(rules.rows_of(&groups), [0, 1, 2, 3, 8, 9, 10, 11]);
    }

    #[test]
    fn a_table_has_a_lock_for_each_group_of_rows() {
        assert_eq!(STORE.locks(13_107_200), 819_200);
        assert_eq!(STORE.table_bytes(13_107_200), 102_408);
    }
}
