//! Destroying a table: no client can change it any more, and no reader finds anything in it.
//!
//! Order: the state, then every lock, then every row. Once the locks are poisoned only those who held one can write a
//! row, so a row that is overwritten then stays so, but for theirs: for them destroying waits a while, and overwrites
//! what they wrote.

use guira_fabric::{FabricError, Lane, Verb, pause_until, post};
use guira_layout::{DESTROYED_TRAILER, LockId, LockMask, RowId, STATE_WORD, TableState};

use crate::{Batch, ErrorKind, Reader, Table};

/// Lock words poisoned by one batch.
const POISON_WORDS: usize = 64;
/// Tries before a lock word that changes all the time is left to the state word alone.
const POISON_TRIES: u32 = 1024;
/// Rows overwritten by one batch.
const OVERWRITTEN_ROWS: usize = 64;
/// How long destroying waits for changes that were under way. They are over in microseconds, unless their process gets
/// no processor, is stopped, or dead.
const LONGEST_WAIT_NS: u64 = 100_000_000;
/// The first pause of that wait; it doubles with each.
const FIRST_PAUSE_NS: u64 = 50_000;

/// Marks the table destroyed; takes every lock for good, so that no client that still maps it can change it and think
/// the change was kept; and overwrites the trailer of every row, so that no lookup finds anything. // [R-DESTROY-1]
/// [R-DESTROY-2]
///
/// A client that holds a lock at this moment completes its commit; its release leaves that lock neither free nor
/// anybody's. (1-bit locks cannot tell: there the release frees the lock, which is poisoned again.)
/// It is waited for up to 100 ms; what it writes later stays, and so does what is written later by who recovers it and
/// had begun that before. Round trips: 1 for 64 lock words and 1 for 64 rows; if
/// locks were held, 1 for each pause until they are not, and 1 for 64 of their rows.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn destroy_table(lane: &mut dyn Lane, table: &Table) -> Result<(), FabricError> {
    let state = [TableState::Destroyed.encode()];
    let addr = table.geometry().superblock_word(STATE_WORD);
    post(lane, [Verb::Write { addr, words: &state }]).await?;
    let held = poison_locks(lane, table).await?;
    overwrite_rows(lane, table, (0..table.config().rows).map(RowId)).await?;
    await_release(lane, table, &held).await?;
    for lock in held {
        overwrite_rows(lane, table, table.locks().guarded_rows(lock, table.config().rows)).await?;
    }
    Ok(())
}

/// Poisons every lock; returns those that somebody held.
async fn poison_locks(lane: &mut dyn Lane, table: &Table) -> Result<Vec<LockId>, FabricError> {
    let locks = table.locks();
    let mut held = Vec::new();
    let words: Vec<u64> = (0..locks.words()).collect();
    for words in words.chunks(POISON_WORDS) {
        let mut wanted: Vec<(u64, u64)> = words.iter().map(|word| (*word, 0)).collect();
        for _ in 0..POISON_TRIES {
            let found = poison_words(lane, table, &wanted).await?;
            let mut changed = Vec::new();
            for ((word, seen), found) in wanted.into_iter().zip(found) {
                if seen == found {
                    let owned = locks.all_held(word, seen).filter(|(_, owner)| !locks.is_poison(*owner));
                    held.extend(owned.map(|(lock, _)| lock));
                } else {
                    changed.push((word, found));
                }
            }
            wanted = changed;
            if wanted.is_empty() {
                break;
            }
        }
    }
    Ok(held)
}

/// Tries to poison words by what they held when last seen; returns what they held.
async fn poison_words(lane: &mut dyn Lane, table: &Table, wanted: &[(u64, u64)]) -> Result<Vec<u64>, FabricError> {
    let mut found = vec![0; wanted.len()];
    let mut batch: Vec<Verb<'_>> = Vec::with_capacity(wanted.len());
    for ((word, seen), found) in wanted.iter().zip(&mut found) {
        let addr = table.locks().addr(*word);
        batch.push(Verb::Cas { addr, compare: *seen, swap: table.locks().poison(), found });
    }
    post(lane, batch).await?;
    Ok(found)
}

/// Poisons a lock that is free in `seen`, its word when last seen; whether the word was still the same.
async fn poison_free(lane: &mut dyn Lane, table: &Table, lock: LockMask, seen: u64) -> Result<bool, FabricError> {
    let (addr, mut found) = (table.locks().addr(lock.word), 0);
    post(lane, [Verb::Cas { addr, compare: seen, swap: seen | lock.mask, found: &mut found }]).await?;
    Ok(found == seen)
}

/// Makes these rows say that their table was destroyed.
async fn overwrite_rows(
    lane: &mut dyn Lane,
    table: &Table,
    mut rows: impl Iterator<Item = RowId>,
) -> Result<(), FabricError> {
    let mut batch = Batch::with_capacity(OVERWRITTEN_ROWS);
    loop {
        batch.clear();
        let write = |row| Verb::Write { addr: table.geometry().trailer(row, table.rows()), words: &DESTROYED_TRAILER };
        batch.extend(rows.by_ref().take(OVERWRITTEN_ROWS).map(write));
        // Ends: there are so many rows.
        if batch.is_empty() {
            return Ok(());
        }
        post(lane, &mut batch[..]).await?;
    }
}

/// Waits until those who held these locks when they were poisoned have released them: their bits are all ones no more.
/// One that is free then is poisoned again.
async fn await_release(lane: &mut dyn Lane, table: &Table, held: &[LockId]) -> Result<(), FabricError> {
    let locks = table.locks();
    let deadline_ns = lane.now_ns().saturating_add(LONGEST_WAIT_NS);
    let mut pause_ns = FIRST_PAUSE_NS;
    for mask in held.iter().map(|lock| locks.mask(*lock)) {
        // Ends: by the deadline, which is that of all.
        loop {
            let mut word = [0];
            post(lane, [Verb::Read { addr: locks.addr(mask.word), into: &mut word }]).await?;
            let (held, now_ns) = (word[0] & mask.mask, lane.now_ns());
            // A 1-bit lock is free then, and would be taken again: nobody may write the rows that are overwritten next.
            let is_poisoned = match held {
                0 => poison_free(lane, table, mask, word[0]).await?,
                _ => held != mask.mask,
            };
            if is_poisoned || now_ns >= deadline_ns {
                break;
            }
            pause_until(lane, deadline_ns.min(now_ns.saturating_add(pause_ns))).await;
            pause_ns *= 2;
        }
    }
    Ok(())
}

/// Whether the table was destroyed, or is being so. 1 round trip. // [R-DESTROY-1]
///
/// # Errors
/// The fabric refused or lost the batch.
pub async fn is_destroyed<L: Lane + ?Sized>(lane: &mut L, table: &Table) -> Result<bool, FabricError> {
    Ok(state(lane, table).await? != Some(TableState::Live))
}

/// Whether the table says that it was destroyed: one whose memory came back empty, or is damaged, does not. 1 round
/// trip. // [R-DESTROY-2]
pub(crate) async fn is_marked_destroyed<L: Lane + ?Sized>(lane: &mut L, table: &Table) -> Result<bool, FabricError> {
    Ok(state(lane, table).await? == Some(TableState::Destroyed))
}

async fn state<L: Lane + ?Sized>(lane: &mut L, table: &Table) -> Result<Option<TableState>, FabricError> {
    let mut state = [0];
    let addr = table.geometry().superblock_word(STATE_WORD);
    post(lane, [Verb::Read { addr, into: &mut state }]).await?;
    Ok(TableState::decode(state[0]))
}

impl Reader {
    /// Fails with `Destroyed` if `sample`, of a row that does not verify, says that the table was destroyed, and the
    /// superblock does, too. 1 round trip then, and none otherwise. // [R-DESTROY-2]
    pub(crate) async fn refuse_destroyed<L: Lane + ?Sized>(
        &self,
        lane: &mut L,
        sample: &[u64],
    ) -> Result<(), ErrorKind> {
        if self.table.rows().is_destroyed(sample) && is_destroyed(lane, &self.table).await? {
            return Err(ErrorKind::Destroyed);
        }
        Ok(())
    }
}
