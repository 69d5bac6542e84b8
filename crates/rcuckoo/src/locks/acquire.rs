//! Taking locks: several words in one batch, retries that carry only atomics, and as a last resort one word after the
//! other in address order.

use arrayvec::ArrayVec;
use guira_fabric::{FabricError, Lane, MaskedCas, pause_until};
use guira_layout::{LockId, LockMask, OwnerId, RowId};

use super::batch::{ExtentWrite, LockBatch};
use super::journal::{Flight, Try};
use crate::recovery::failure_detector::WaitProgress;
use crate::table::destroy::is_destroyed;
use crate::{Client, ErrorKind, MAX_LOCKS, Table, locks::unowned};

/// Locks by word, in address order. No word occurs twice.
pub(crate) type LockSet = ArrayVec<LockMask, MAX_LOCKS>;

/// Number of failed tries to take all locks at once before they are taken one by one in address order. [R-LOCK-3]
const TRIES_AT_ONCE: u32 = 3;
/// Number of consecutive posts without masked CAS that may fail only because of a neighbouring lock in the same word.
/// [R-LOCK-6]
const NEIGHBOUR_TRIES: u32 = 16;

/// A lock that another client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    lock: LockId,
    owner: Option<OwnerId>,
    /// Whether the same batch won other locks.
    is_partial: bool,
}

impl Conflict {
    /// Returns the lock among `locks` that is taken in `found`, the word as a try found it.
    pub(crate) fn of(table: &Table, locks: &LockMask, found: u64, is_partial: bool) -> Option<Conflict> {
        let layout = table.locks();
        let (lock, owner) = layout.first_held(locks.word, found, locks.mask)?;
        Some(Conflict { lock, owner: layout.has_owner_ids().then_some(owner), is_partial })
    }
}

/// The result of a try.
pub(super) enum Tried {
    /// Every lock is held.
    All,
    /// Another client holds a lock.
    Conflict(Conflict),
}

/// A wait for locks, over all tries of an operation.
pub(super) struct Wait {
    started_ns: u64,
    deadline_ns: u64,
    pauses: u32,
}

/// The result of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    /// The client paused, or did not have to.
    Paused,
    /// The holder was recovered: its lock is free, and this client holds nothing.
    Recovered,
}

/// The first step of a batch of tries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Releases all locks that are held.
    Release,
    /// Keeps the locks that are held.
    Keep,
}

/// The rows of the window that a batch also samples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    With,
    Without,
    /// The READ that covers this row.
    Row(RowId),
}

impl Reads {
    /// Whether the READ of `rows` rows from `first` on is made.
    fn covers(self, first: RowId, rows: usize) -> bool {
        match self {
            Reads::With => true,
            Reads::Without => false,
            Reads::Row(row) => (first.0..first.0 + rows as u64).contains(&row.0),
        }
    }

    /// Returns the setting for a retry: no reads, unless the rows' checksums are the only sign of a holder's progress.
    /// [R-LOCK-4] [R-REPAIR-1]
    fn of_retry(table: &Table) -> Reads {
        if table.is_repairable() { Reads::With } else { Reads::Without }
    }
}

impl Client {
    /// Tries to take the locks of `plan` and samples the window's rows after them, after releasing the locks held
    /// before. Returns the conflict if another client holds one. 1 round trip. `extent` is written first, in the same
    /// batch. [R-LOCK-2] [R-LOCK-3] [R-EXTENT-1]
    pub(crate) async fn try_acquire(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        extent: Option<ExtentWrite<'_>>,
    ) -> Result<Option<Conflict>, ErrorKind> {
        match self.try_all(lane, plan, Before::Release, Reads::With, extent).await? {
            Tried::All => Ok(None),
            Tried::Conflict(conflict) => Ok(Some(conflict)),
        }
    }

    /// Takes the locks of `plan` after a first try that failed because of `conflict`, and samples the window's rows
    /// under them.
    pub(crate) async fn acquire_contended(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        conflict: Conflict,
    ) -> Result<(), ErrorKind> {
        self.contend(lane, plan, conflict).await?;
        Ok(self.sample_window(lane).await?)
    }

    /// Tries again until every lock is held or the deadline passes. [R-LOCK-4]
    #[cold]
    pub(super) async fn contend(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        mut conflict: Conflict,
    ) -> Result<(), ErrorKind> {
        let mut wait = self.begin_wait(lane);
        let reads = Reads::of_retry(&self.table);
        for attempt in 1u32.. {
            self.release_held(lane).await?;
            self.wait_once(lane, &mut wait, attempt, conflict).await?;
            if attempt >= TRIES_AT_ONCE {
                break;
            }
            match self.try_all(lane, plan, Before::Release, reads, None).await? {
                Tried::All => {
                    self.reader.failure_timers.clear();
                    return Ok(());
                }
                Tried::Conflict(again) => conflict = again,
            }
        }
        while self.acquire_in_order(lane, plan, &mut wait).await? == WaitOutcome::Recovered {}
        self.reader.failure_timers.clear();
        Ok(())
    }

    /// Begins a wait, or continues that of an earlier path: the deadline is the operation's. [R-LOCK-4]
    pub(super) fn begin_wait(&mut self, lane: &mut dyn Lane) -> Wait {
        if self.progress.waiting_since_ns.is_none() {
            self.reader.failure_timers.clear();
        }
        let started_ns = *self.progress.waiting_since_ns.get_or_insert_with(|| lane.now_ns());
        let deadline_ns = started_ns.saturating_add(self.reader.config.deadline_ns);
        Wait { started_ns, deadline_ns, pauses: 0 }
    }

    /// Takes one word after the other in address order, keeping those it has: a waiting client holds only words with
    /// smaller addresses, so clients never wait in a circle. Starts again if it had to release everything to recover a
    /// dead holder.
    /// [R-LOCK-3]
    async fn acquire_in_order(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        wait: &mut Wait,
    ) -> Result<WaitOutcome, ErrorKind> {
        let reads = Reads::of_retry(&self.table);
        for locks in plan {
            let word: LockSet = std::iter::once(*locks).collect();
            for attempt in 1u32.. {
                let tried = self.try_all(lane, &word, Before::Keep, reads, None).await?;
                let Tried::Conflict(conflict) = tried else { break };
                match self.wait_once(lane, wait, attempt, conflict).await {
                    Ok(WaitOutcome::Paused) => {}
                    Ok(WaitOutcome::Recovered) => return Ok(WaitOutcome::Recovered),
                    Err(error) => {
                        self.release_held(lane).await?;
                        return Err(error);
                    }
                }
            }
        }
        Ok(WaitOutcome::Paused)
    }

    /// Pauses, unless the table is destroyed, the deadline has passed, or the lock's holder was dead and has been
    /// recovered.
    pub(super) async fn wait_once(
        &mut self,
        lane: &mut dyn Lane,
        wait: &mut Wait,
        attempt: u32,
        conflict: Conflict,
    ) -> Result<WaitOutcome, ErrorKind> {
        let is_late = lane.now_ns() >= wait.deadline_ns;
        let progress = if is_late { WaitProgress::Expired } else { WaitProgress::Pauses(wait.pauses) };
        // Rare, and larger than the rest of a change's future.
        if let Some(owner) = conflict.owner.filter(|owner| !self.table.locks().is_poison(*owner))
            && self.may_probe(lane.now_ns(), progress)
            && Box::pin(self.recover_if_dead(lane, owner, progress)).await?
        {
            return Ok(WaitOutcome::Recovered);
        }
        if self.table.is_repairable()
            && Box::pin(self.repair_if_suspected(lane, conflict.lock, wait.deadline_ns)).await?
        {
            return Ok(WaitOutcome::Recovered);
        }
        self.check_conflict(lane, conflict, wait, is_late).await?;
        self.reader.counters.lock_conflicts += 1;
        self.reader.counters.partial_conflicts += u64::from(conflict.is_partial);
        lane.traffic_mut().retries += 1;
        wait.pauses += 1;
        let until_ns = lane.now_ns() + self.reader.backoff.wait_ns(attempt);
        pause_until(lane, until_ns.min(wait.deadline_ns)).await;
        Ok(WaitOutcome::Paused)
    }

    /// Ends the wait when the table is destroyed, the lock is damaged, or the deadline has passed.
    async fn check_conflict(
        &mut self,
        lane: &mut dyn Lane,
        conflict: Conflict,
        wait: &Wait,
        is_late: bool,
    ) -> Result<(), ErrorKind> {
        let poisoned = conflict.owner.is_some_and(|owner| self.table.locks().is_poison(owner));
        if !is_late && !poisoned {
            return Ok(());
        }
        if is_destroyed(lane, &self.table).await? {
            return Err(ErrorKind::Destroyed);
        }
        // No client can release it: the state is marked before the first lock is poisoned. // [R-LOCK-9]
        if poisoned {
            return Err(unowned::damaged(conflict.lock));
        }
        self.reader.counters.timeouts += 1;
        let waited_ms = lane.now_ns().saturating_sub(wait.started_ns) / 1_000_000;
        Err(ErrorKind::Busy { lock: conflict.lock, owner: conflict.owner, waited_ms })
    }

    /// Tries every word of `plan` at once, and keeps what it wins. One batch, or a few where a plain CAS failed only
    /// because a neighbouring lock of the same word changed.
    pub(super) async fn try_all(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        mut before: Before,
        reads: Reads,
        mut extent: Option<ExtentWrite<'_>>,
    ) -> Result<Tried, FabricError> {
        let mut guesses = Guesses::default();
        let mut wanted = plan.clone();
        for _ in 0..NEIGHBOUR_TRIES {
            let found = self.post_tries(lane, &wanted, &guesses, before, reads, extent.take()).await?;
            guesses.clear();
            let mut missing = LockSet::new();
            for (locks, found) in wanted.iter().zip(found).filter(|(locks, _)| !self.journal.holds(locks)) {
                let is_partial = before == Before::Release && !self.journal.held.is_empty();
                if let Some(conflict) = Conflict::of(&self.table, locks, found, is_partial) {
                    let (table, journal) = (&self.table, &self.journal);
                    self.reader.failure_timers.retain(|lock| !journal.holds(&table.locks().mask(lock)));
                    return Ok(Tried::Conflict(conflict));
                }
                missing.push(*locks);
                guesses.push(found);
            }
            if missing.is_empty() {
                return Ok(Tried::All);
            }
            // Only neighbours changed: post the CAS again with the words found, and the READs after it. // [R-LOCK-6]
            lane.traffic_mut().retries += 1;
            self.reader.counters.neighbour_retries += 1;
            wanted = missing;
            before = Before::Keep;
        }
        let lock = LockId(wanted[0].word * (64 / u64::from(self.table.config().lock_bits)));
        Ok(Tried::Conflict(Conflict { lock, owner: None, is_partial: false }))
    }

    /// Posts one batch of tries and records what it won. Returns the words found, in the order of `wanted`.
    async fn post_tries(
        &mut self,
        lane: &mut dyn Lane,
        wanted: &LockSet,
        guesses: &Guesses,
        before: Before,
        reads: Reads,
        extent: Option<ExtentWrite<'_>>,
    ) -> Result<Guesses, FabricError> {
        let masked_cas = lane.caps().masked_cas;
        let released = if before == Before::Release { self.journal.held.clone() } else { LockSet::new() };
        let flight = if before == Before::Release { Flight::Acquire } else { Flight::Extend };
        let tries = wanted.iter().enumerate().map(|(i, locks)| match masked_cas {
            MaskedCas::CasLoop => Try::plain(*locks, guesses.get(i).copied().unwrap_or(0)),
            _ => Try::masked(*locks),
        });
        self.journal.expect_tries(flight, tries);
        let (table, owner, tries) = (&self.table, self.owner, &self.journal.tries);
        let batch = LockBatch { table, owner, masked_cas, released: &released, extent: extent.as_ref(), tries };
        let mut found = [0; 2 * MAX_LOCKS];
        let row_words = table.rows().row_words();
        let stretches = self.work.window.stretches().filter(|(row, into)| reads.covers(*row, into.len() / row_words));
        let posted = batch.post_all(lane, &mut self.work.buffer, stretches, &mut found).await;
        posted.inspect_err(|error| self.journal.failed(error))?;
        let atomics = released.len() + wanted.len();
        self.journal.completed(&found[..atomics]);
        Ok(found[released.len()..atomics].iter().copied().collect())
    }

    /// Samples the window's rows. 1 round trip.
    pub(crate) async fn sample_window(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let (table, owner, masked_cas) = (&self.table, self.owner, lane.caps().masked_cas);
        let batch = LockBatch { table, owner, masked_cas, released: &[], extent: None, tries: &[] };
        batch.post_all(lane, &mut self.work.buffer, self.work.window.stretches(), &mut []).await
    }

    /// Releases every lock. 1 round trip, none if no lock is held.
    pub(crate) async fn release_held(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        self.journal.release(lane, &self.table, self.owner).await
    }
}

/// Words found by tries, in the order of the tries.
type Guesses = ArrayVec<u64, MAX_LOCKS>;
