//! Destroying a table: afterwards no client can change it, and no reader finds anything in it.
//!
//! Order: the state, then every lock, then every row. Once the locks are poisoned, only clients that already held one
//! can write a row. So a row that is overwritten stays so unless one of these writes it: destroying waits for them a
//! while, and overwrites what they wrote.

use guira_fabric::{FabricError, Lane, Verb, pause_until, post};
use guira_layout::{DESTROYED_TRAILER, LockId, LockMask, RowId, STATE_WORD, TableState};

use crate::{Batch, ErrorKind, Reader, RowList, Table};

/// Lock words poisoned by one batch.
const POISON_WORDS: usize = 64;
/// Maximum number of tries to poison a lock word that keeps changing; after them only the state word protects the
/// table.
const POISON_TRIES: u32 = 1024;
/// Rows overwritten by one batch.
const OVERWRITTEN_ROWS: usize = 64;
/// Maximum time that destroying waits for pending changes. They take microseconds, unless their process gets no
/// processor time, is stopped, or is dead.
const LONGEST_WAIT_NS: u64 = 100_000_000;
/// First pause of the wait for pending changes; it doubles with each further pause.
const FIRST_PAUSE_NS: u64 = 50_000;

/// Marks the table destroyed; takes every lock permanently, so that no client that still maps the table can change it
/// and believe that the change was kept; and overwrites the trailer of every row, so that no lookup finds anything.
/// [R-DESTROY-1] [R-DESTROY-2]
///
/// A client that holds a lock at this moment completes its commit; its release leaves that lock neither free nor owned.
/// (1-bit locks are the exception: there the release frees the lock, which is poisoned again.) Destroying waits for
/// such a client up to 100 ms. Rows that the client writes later stay, and so do rows that its recovery writes later,
/// if that had begun before. Round trips: 1 for 64 lock words and 1 for 64 rows; if locks were held, 1 for each pause
/// until they are released, and 1 for 64 of their rows.
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn destroy_table(lane: &mut dyn Lane, table: &Table) -> Result<(), FabricError> {
    let state = [TableState::Destroyed.encode()];
    let addr = table.geometry().superblock_word(STATE_WORD);
    post(lane, [Verb::Write { addr, words: &state }]).await?;
    let held = poison_locks(lane, table).await?;
    let mut rows = RowList::read(lane, table).await?;
    overwrite_rows(lane, table, rows.ranges().flatten().map(RowId)).await?;
    await_release(lane, table, &held).await?;
    if held.is_empty() {
        return Ok(());
    }
    let is_held = |row: &RowId| held.contains(&table.locks().lock_of(*row));
    // A client that held them may have split a segment: the rows of its new half, too. // [R-GROW-14]
    rows.add_children(lane, table, |first| is_held(&RowId(first))).await?;
    overwrite_rows(lane, table, rows.ranges().flatten().map(RowId).filter(is_held)).await
}

/// Poisons every lock; returns those that were held.
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

/// Tries to poison `wanted` lock words, each if it is unchanged since it was last read; returns the words found.
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

/// Poisons a lock that is free in `seen`, its word as last read. Returns whether the word was unchanged.
async fn poison_free(lane: &mut dyn Lane, table: &Table, lock: LockMask, seen: u64) -> Result<bool, FabricError> {
    let (addr, mut found) = (table.locks().addr(lock.word), 0);
    post(lane, [Verb::Cas { addr, compare: seen, swap: seen | lock.mask, found: &mut found }]).await?;
    Ok(found == seen)
}

/// Overwrites the trailers of these rows with the mark of a destroyed table.
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
        // Ends: the iterator of rows is finite.
        if batch.is_empty() {
            return Ok(());
        }
        post(lane, &mut batch[..]).await?;
    }
}

/// Waits until the locks `held`, which were poisoned while held, are released: their bits are no longer all ones. A
/// lock that is free then is poisoned again.
async fn await_release(lane: &mut dyn Lane, table: &Table, held: &[LockId]) -> Result<(), FabricError> {
    let locks = table.locks();
    let deadline_ns = lane.now_ns().saturating_add(LONGEST_WAIT_NS);
    let mut pause_ns = FIRST_PAUSE_NS;
    for mask in held.iter().map(|lock| locks.mask(*lock)) {
        // Ends: by the deadline, which all locks share.
        loop {
            let mut word = [0];
            post(lane, [Verb::Read { addr: locks.addr(mask.word), into: &mut word }]).await?;
            let (held, now_ns) = (word[0] & mask.mask, lane.now_ns());
            // A 1-bit lock is free then, and would be taken again: no client may write the rows that are overwritten
            // next.
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

/// Whether the table was destroyed, or is being destroyed. 1 round trip. [R-DESTROY-1]
///
/// # Errors
/// The fabric refused or lost the batch.
pub async fn is_destroyed<L: Lane + ?Sized>(lane: &mut L, table: &Table) -> Result<bool, FabricError> {
    Ok(state(lane, table).await? != Some(TableState::Live))
}

/// Whether the table is marked destroyed. A table whose memory came back empty, or is damaged, is not. 1 round trip.
/// [R-DESTROY-2]
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
    /// Fails with `Destroyed` if `sample`, of a row that does not verify, has the mark of a destroyed table, and the
    /// superblock has it, too. 1 round trip then, and none otherwise. [R-DESTROY-2]
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
