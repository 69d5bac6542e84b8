//! Taking locks: several words in one batch, retries that carry only atomics, and as a last resort one word after the
//! other in address order; or, as printed, one message in each round trip.

use arrayvec::ArrayVec;
use guira_fabric::{FabricError, Lane, MaskedCas, pause_until};
use guira_layout::{LockId, LockMask, OwnerId, RowId};

use super::batch::{ExtentWrite, LockBatch};
use super::journal::{Flight, Try};
use crate::recovery::failure_detector::WaitProgress;
use crate::table::destroy::is_destroyed;
use crate::{Acquisition, Client, ErrorKind, MAX_LOCKS, Table, locks::unowned};

/// Sets of locks that one message takes each, in ascending order. No two contain the same lock; a word occurs twice
/// only where a message may not take all of its locks.
pub(crate) type LockSet = ArrayVec<LockMask, MAX_LOCKS>;

/// Number of failed tries to take all locks at once before they are taken one by one in address order. [R-LOCK-3]
const TRIES_AT_ONCE: u32 = 3;
/// Pauses of a client that holds many locks, before it gives them back. [R-GROW-8]
const PAUSES_WITH_MANY: u32 = 16;
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
pub(crate) enum Tried {
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
    /// The client has paused with locks held as often as it may.
    GivenUp,
}

/// The next batch of an acquisition in order.
struct Step<'v> {
    before: Before,
    reads: Reads,
    extent: Option<ExtentWrite<'v>>,
    /// How often the client may still pause; `None` if any number of times.
    pauses: Option<u32>,
}

/// The first step of a batch of tries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Releases all locks that are held.
    Release,
    /// Keeps the locks that are held.
    Keep,
}

/// Rows of the window that a batch of tries samples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// All rows.
    All,
    /// The rows under the locks that the batch tries to take.
    UnderTries,
    /// This row.
    Row(RowId),
    /// None.
    None,
}

impl Reads {
    /// Returns the setting for a retry: no reads, unless the rows' checksums are the only sign of a holder's progress.
    /// [R-LOCK-4] [R-REPAIR-1]
    fn of_retry(table: &Table) -> Reads {
        if table.is_repairable() { Reads::All } else { Reads::None }
    }
}

impl Client {
    /// Tries to take the locks of `plan` and samples the window's rows after them, after releasing the locks held
    /// before. Returns the conflict if another client holds one. 1 round trip. With [`Acquisition::OneMessageATrip`] it
    /// waits until it has all locks, and takes a round trip for each message. `extent` is written first, in the same
    /// batch. [R-LOCK-2] [R-LOCK-3] [R-EXTENT-1]
    pub(crate) async fn try_acquire(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        extent: Option<ExtentWrite<'_>>,
    ) -> Result<Option<Conflict>, ErrorKind> {
        if self.reader.config.acquisition == Acquisition::OneMessageATrip {
            return self.acquire_by_message(lane, plan, extent).await.map(|()| None);
        }
        match self.try_all(lane, plan, Before::Release, Reads::All, extent).await? {
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
        conflict: Conflict,
    ) -> Result<(), ErrorKind> {
        let wait = self.start_wait(lane);
        self.contend_for(lane, plan, conflict, wait, None).await.map(|_| ())
    }

    /// Same as [`Client::contend`], in a wait that has begun. Returns the wait and the locks that it could not get, with
    /// others held, if the client would have to pause more than `pauses` times while it takes one lock after the other.
    pub(super) async fn contend_for(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        mut conflict: Conflict,
        mut wait: Wait,
        pauses: Option<u32>,
    ) -> Result<Option<(Wait, LockMask)>, ErrorKind> {
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
                    return Ok(None);
                }
                Tried::Conflict(again) => conflict = again,
            }
        }
        let (mut wait, mut step) = (Some(wait), Step { before: Before::Keep, reads, extent: None, pauses });
        // Ends: each further iteration follows the recovery of a dead client.
        let outcome = loop {
            match self.acquire_in_order(lane, plan, &mut wait, &mut step).await? {
                WaitOutcome::Recovered => {}
                outcome => break outcome,
            }
        };
        self.reader.failure_timers.clear();
        let stuck = plan.iter().find(|locks| !self.journal.holds(locks)).copied();
        Ok(wait.zip(stuck).filter(|_| outcome == WaitOutcome::GivenUp))
    }

    /// Takes the locks of `plan`, of which there may be more than of any other operation, after it has released those
    /// held: those who need one of them wait for all that this client waits for, so after a few pauses it gives them
    /// back, waits for the one that it could not get, and begins again. [R-GROW-8] [R-LOCK-4]
    pub(crate) async fn acquire_many(&mut self, lane: &mut dyn Lane, plan: &LockSet) -> Result<(), ErrorKind> {
        let mut wait = None;
        // Ends: by the deadline.
        loop {
            let Tried::Conflict(conflict) = self.try_all(lane, plan, Before::Release, Reads::None, None).await? else {
                return Ok(());
            };
            let began = wait.take().unwrap_or_else(|| self.start_wait(lane));
            let Some((mut began, stuck)) =
                self.contend_for(lane, plan, conflict, began, Some(PAUSES_WITH_MANY)).await?
            else {
                return Ok(());
            };
            self.wait_alone(lane, &mut began, stuck).await?;
            wait = Some(began);
        }
    }

    /// Waits, with no other lock held, until the locks `stuck` of one message were won.
    async fn wait_alone(&mut self, lane: &mut dyn Lane, wait: &mut Wait, stuck: LockMask) -> Result<(), ErrorKind> {
        let alone: LockSet = std::iter::once(stuck).collect();
        // Ends: by the deadline.
        for attempt in 1u32.. {
            let tried = self.try_all(lane, &alone, Before::Release, Reads::None, None).await?;
            let Tried::Conflict(conflict) = tried else { break };
            self.release_held(lane).await?;
            self.wait_once(lane, wait, attempt, conflict).await?;
        }
        Ok(())
    }

    /// Takes the locks of `plan` as printed: one message in each round trip, in address order, with the READs of the
    /// rows under its locks. A message that does not win is posted again, and what was won is kept. [R-LOCK-3]
    #[cold]
    async fn acquire_by_message(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        extent: Option<ExtentWrite<'_>>,
    ) -> Result<(), ErrorKind> {
        let (mut wait, mut step) =
            (None, Step { before: Before::Release, reads: Reads::UnderTries, extent, pauses: None });
        // Ends: each further iteration follows the recovery of a dead client.
        while self.acquire_in_order(lane, plan, &mut wait, &mut step).await? == WaitOutcome::Recovered {}
        if wait.is_some() {
            self.reader.failure_timers.clear();
        }
        Ok(())
    }

    /// Starts to wait for locks. The deadline is the operation's, however many paths it tries. [R-LOCK-4]
    pub(super) fn start_wait(&mut self, lane: &mut dyn Lane) -> Wait {
        if self.progress.waiting_since_ns.is_none() {
            self.reader.failure_timers.clear();
        }
        let started_ns = *self.progress.waiting_since_ns.get_or_insert_with(|| lane.now_ns());
        let deadline_ns = started_ns.saturating_add(self.reader.config.deadline_ns);
        Wait { started_ns, deadline_ns, pauses: 0 }
    }

    /// Takes one message's locks after the other in ascending order, keeping those it has: a waiting client holds only
    /// smaller locks than all that it waits for, so clients never wait in a circle. The first batch does as `step`
    /// says; later ones keep the locks and write no extent. Starts again if it had to release everything to recover a
    /// dead holder. [R-LOCK-3]
    async fn acquire_in_order(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        wait: &mut Option<Wait>,
        step: &mut Step<'_>,
    ) -> Result<WaitOutcome, ErrorKind> {
        for locks in plan {
            let message: LockSet = std::iter::once(*locks).collect();
            for attempt in 1u32.. {
                let before = std::mem::replace(&mut step.before, Before::Keep);
                let tried = self.try_all(lane, &message, before, step.reads, step.extent.take()).await?;
                let Tried::Conflict(conflict) = tried else { break };
                match &mut step.pauses {
                    Some(0) => return Ok(WaitOutcome::GivenUp),
                    Some(pauses) => *pauses -= 1,
                    None => {}
                }
                let wait = match wait {
                    Some(wait) => wait,
                    None => wait.insert(self.start_wait(lane)),
                };
                match self.wait_once(lane, wait, attempt, conflict).await {
                    Ok(WaitOutcome::Paused | WaitOutcome::GivenUp) => {}
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

    /// Pauses, unless there is no backoff, the table is destroyed, the deadline has passed, or the lock's holder was
    /// dead and has been recovered.
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
        if let Some(wait_ns) = self.reader.next_wait_ns(attempt) {
            let until_ns = lane.now_ns() + wait_ns;
            pause_until(lane, until_ns.min(wait.deadline_ns)).await;
        }
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
    pub(crate) async fn try_all(
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
        match masked_cas {
            MaskedCas::CasLoop => {
                let kept = if before == Before::Keep { &self.journal.held[..] } else { &[] };
                let tries = plain_tries(&self.table, self.owner, wanted, guesses, kept);
                self.journal.expect_tries(flight, tries);
            }
            _ => self.journal.expect_tries(flight, wanted.iter().map(|locks| Try::masked(*locks))),
        }
        let (table, owner, tries) = (&self.table, self.owner, &self.journal.tries);
        let (extent, full) = (extent.as_ref(), Some(&self.paths.full));
        let batch = LockBatch { table, owner, masked_cas, released: &released, extent, tries, full };
        let mut found = [0; 2 * MAX_LOCKS];
        let is_read = |row: RowId| match reads {
            Reads::All => true,
            Reads::UnderTries => {
                let lock = table.locks().mask(table.locks().lock_of(row));
                wanted.iter().any(|locks| locks.word == lock.word && locks.mask & lock.mask != 0)
            }
            Reads::Row(wanted) => row == wanted,
            Reads::None => false,
        };
        let stretches = self.work.window.stretches(is_read);
        let posted = batch.post_all(lane, &mut self.work.buffer, stretches, &mut found).await;
        posted.inspect_err(|error| self.journal.failed(error))?;
        self.paths.full.corrected();
        let atomics = released.len() + wanted.len();
        self.journal.completed(&found[..atomics]);
        Ok(found[released.len()..atomics].iter().copied().collect())
    }

    /// Samples the window's rows. 1 round trip.
    pub(crate) async fn sample_window(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let (table, owner, masked_cas) = (&self.table, self.owner, lane.caps().masked_cas);
        let batch = LockBatch { table, owner, masked_cas, released: &[], extent: None, tries: &[], full: None };
        batch.post_all(lane, &mut self.work.buffer, self.work.window.stretches(|_| true), &mut []).await
    }

    /// Releases every lock. 1 round trip, none if no lock is held.
    pub(crate) async fn release_held(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        self.journal.release(lane, &self.table, self.owner).await
    }
}

/// Words found by tries, in the order of the tries.
type Guesses = ArrayVec<u64, MAX_LOCKS>;

/// Returns the tries of `wanted` by plain CAS, each of the word that was found, or that holds only the locks `kept`. A
/// further try of a word expects what the try before it leaves. [R-LOCK-6]
fn plain_tries(
    table: &Table,
    owner: OwnerId,
    wanted: &LockSet,
    guesses: &Guesses,
    kept: &[LockMask],
) -> ArrayVec<Try, MAX_LOCKS> {
    let held = |locks: &LockMask| table.locks().held(owner, locks.mask);
    let mut tries = ArrayVec::<Try, MAX_LOCKS>::new();
    for (i, locks) in wanted.iter().enumerate() {
        let before = tries.last().filter(|before| before.locks.word == locks.word);
        let left = before.map(|Try { locks, compare, .. }| compare & !locks.mask | held(locks));
        let own = kept.iter().filter(|kept| kept.word == locks.word).fold(0, |own, kept| own | held(kept));
        tries.push(Try::plain(*locks, left.or_else(|| guesses.get(i).copied()).unwrap_or(own)));
    }
    tries
}
