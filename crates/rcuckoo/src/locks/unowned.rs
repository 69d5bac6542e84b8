//! Finding and freeing locks that name a client slot which the table does not have.
//!
//! Invariant: no client takes a lock while it is damaged in this way, so a client that may have held it before the
//! damage was already a client when the damage was found.

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{LockId, LockMask, STATE_WORD, TableState};

use crate::table::destroy::is_destroyed;
use crate::{DamagedItem, ErrorKind, Table};

/// Number of lock words in one READ: a page.
const PIECE_WORDS: u64 = 512;
/// Maximum number of tries to free a lock whose neighbours in the same word keep changing.
const FREE_TRIES: u32 = 1024;

/// Returns the error of an operation that found `lock`, which names an owner beyond the table's client slots although
/// the table is not destroyed. [R-LOCK-9]
pub(crate) fn damaged(lock: LockId) -> ErrorKind {
    ErrorKind::Corrupt { item: DamagedItem::Lock(lock) }
}

/// Returns the locks that name an owner beyond the table's client slots; none if the table is destroyed, where such
/// locks are no damage, or if locks do not name their owners (preset `paper`). 1 round trip for 512 lock words, and 1
/// if there are any. Source: R-LOCK-9.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn unowned_locks(lane: &mut dyn Lane, table: &Table) -> Result<Vec<LockId>, FabricError> {
    let locks = table.locks();
    let (mut found, mut words) = (Vec::new(), Vec::new());
    for first in (0..locks.words()).step_by(PIECE_WORDS as usize) {
        words.clear();
        words.resize(PIECE_WORDS.min(locks.words() - first) as usize, 0);
        post(&mut *lane, [Verb::Read { addr: locks.addr(first), into: &mut words }]).await?;
        for (word, value) in (first..).zip(&words) {
            let held = locks.all_held(word, *value).filter(|(lock, _)| lock.0 < locks.locks());
            found.extend(held.filter(|(_, owner)| locks.is_poison(*owner)).map(|(lock, _)| lock));
        }
    }
    // The state is marked before the first lock is poisoned. // [R-DESTROY-1]
    if !found.is_empty() && is_destroyed(lane, table).await? {
        found.clear();
    }
    Ok(found)
}

/// Frees those of `locks` that still name an owner beyond the table's client slots; returns them. After these locks
/// were found, the caller must have found each client slot free, or recovered its client. If another client destroys
/// the table meanwhile, its locks stay poisoned. 2 round trips for each, 2 more each time a neighbour changed, and 1.
/// Source: R-LOCK-9.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn free_unowned_locks(
    lane: &mut dyn Lane,
    table: &Table,
    locks: &[LockId],
) -> Result<Vec<LockId>, FabricError> {
    let layout = table.locks();
    let mut freed = Vec::new();
    if locks.is_empty() || is_destroyed(lane, table).await? {
        return Ok(freed);
    }
    for lock in locks {
        let mask = layout.mask(*lock);
        for _ in 0..FREE_TRIES {
            let (addr, mut seen) = (layout.addr(mask.word), [0]);
            post(&mut *lane, [Verb::Read { addr, into: &mut seen }]).await?;
            let [seen] = seen;
            let owner = layout.first_held(mask.word, seen, mask.mask).map(|(_, owner)| owner);
            if !owner.is_some_and(|owner| layout.is_poison(owner)) {
                break;
            }
            let (mut found, mut state) = (0, [0]);
            let cas = Verb::Cas { addr, compare: seen, swap: seen & !mask.mask, found: &mut found };
            let state_at = table.geometry().superblock_word(STATE_WORD);
            post(&mut *lane, [cas, Verb::Read { addr: state_at, into: &mut state }]).await?;
            if found != seen {
                continue;
            }
            if TableState::decode(state[0]) == Some(TableState::Destroyed) {
                // The table was marked before its first lock was poisoned: this lock may have been poisoned by that.
                // // [R-DESTROY-1]
                poison_again(&mut *lane, table, mask).await?;
                return Ok(freed);
            }
            freed.push(*lock);
            break;
        }
    }
    Ok(freed)
}

/// Takes a lock permanently, as destroying a table does, if it is free.
async fn poison_again(lane: &mut dyn Lane, table: &Table, lock: LockMask) -> Result<(), FabricError> {
    let addr = table.locks().addr(lock.word);
    for _ in 0..FREE_TRIES {
        let mut seen = [0];
        post(&mut *lane, [Verb::Read { addr, into: &mut seen }]).await?;
        let [seen] = seen;
        if seen & lock.mask != 0 {
            break;
        }
        let mut found = 0;
        post(&mut *lane, [Verb::Cas { addr, compare: seen, swap: seen | lock.mask, found: &mut found }]).await?;
        if found == seen {
            break;
        }
    }
    Ok(())
}
