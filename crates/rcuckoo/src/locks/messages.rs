//! The division of locks among messages: one masked CAS takes locks of one word, and no more than a client allows.

use guira_layout::RowId;

use super::{LockSet, lock_set};
use crate::Table;

/// Divides the locks in `set` among the messages that take them: sets of at most `most` locks of a word. [R-LOCK-3]
pub(crate) fn divide_among_messages(table: &Table, set: &mut LockSet, most: u32) {
    if u64::from(most) < table.locks().locks_per_word() {
        *set = set.iter().flat_map(|locks| table.locks().divide(*locks, most)).collect();
    }
}

/// Returns the number of messages that take the locks of `rows`, with at most `most` locks in each.
pub(crate) fn count_messages(table: &Table, rows: impl IntoIterator<Item = RowId>, most: u32) -> usize {
    let set = lock_set(table, rows);
    if u64::from(most) >= table.locks().locks_per_word() {
        return set.len();
    }
    set.iter().map(|locks| table.locks().divide(*locks, most).count()).sum()
}
