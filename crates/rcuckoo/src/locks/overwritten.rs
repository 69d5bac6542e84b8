//! Blind writes that are overwritten while they wait for a lock. [R-LOCK-10]
//!
//! A put or an update that finds a lock taken samples the row of its key with every further try. If the last change of
//! that row was a put or an update of the same key, made after the waiting one was called, then the waiting one is
//! complete: it counts as carried out right before the other, which overwrote it. Nobody had to hand it a lock, and the
//! client that did the writing does not know of it.
//!
//! Invariants: the first sample was taken after the change was called; a row that does not verify proves nothing.

use guira_fabric::Lane;
use guira_layout::{Candidate, Probe, RowId, Version};

use super::acquire::{Before, Conflict, LockSet, Reads, Tried};
use crate::change::{Change, Changed, Outcome, Task};
use crate::{Client, ErrorKind, Key};

/// Tries of all locks at once of a change that watches its key. More than of others: each of them may be the last one,
/// because another client's write may end the wait.
const WATCHED_TRIES: u32 = 64;

/// A key in a row, as a change that found a lock taken sampled it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenKey {
    digest: u64,
    row: RowId,
    version: Version,
}

/// The end of a wait in which a key was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchedWait {
    /// All locks are held, and the row that had the key was sampled under them.
    RowSampled,
    /// All locks are held, and nothing was sampled under them.
    Held,
    /// No lock is held: the change was overwritten.
    Overwritten,
}

impl SeenKey {
    /// Returns the row that had the key.
    pub(crate) fn row(&self) -> RowId {
        self.row
    }

    /// Whether this is the key of `task`.
    pub(crate) fn is_of(&self, task: &Task<'_>) -> bool {
        self.digest == task.probe.digest() && [task.pair.first, task.pair.second].contains(&self.row)
    }
}

impl Client {
    /// Returns where the rows of `key` have it, just sampled without their locks, if `change` can be overwritten while
    /// it waits.
    #[cold]
    pub(crate) fn see_key(&self, key: &Key<'_>, change: &Change<'_>) -> Option<SeenKey> {
        let (probe, pair) = (self.table.probe(key), key.rows());
        let samples = self.work.pair.chunks_exact(self.table.rows().row_words());
        self.see(&Task { probe: &probe, pair, change }, samples.zip([pair.first, pair.second]))
    }

    /// Returns where the window has the key of `task`, sampled without its locks, if its change can be overwritten
    /// while it waits.
    #[cold]
    pub(crate) fn see_in_window(&self, task: &Task<'_>) -> Option<SeenKey> {
        let both = [task.pair.first, task.pair.second].into_iter();
        self.see(task, both.filter_map(|row| Some((self.work.window.row(row)?, row))))
    }

    /// Returns where `samples` have the key of `task`, if its change is a blind write, and if clients of this table can
    /// tell what the last change of a row was.
    pub(crate) fn see<'w>(
        &self,
        task: &Task<'_>,
        samples: impl Iterator<Item = (&'w [u64], RowId)>,
    ) -> Option<SeenKey> {
        let rows = self.table.rows();
        let names_writes = rows.marks_replaced_entries() && self.table.config().version_bits == 32;
        if !task.change.is_blind_write() || !names_writes || !self.table.is_recoverable() {
            return None;
        }
        let mut samples = samples;
        samples.find_map(|(words, row)| {
            self.inline_entry(task.probe, row, words)?;
            Some(SeenKey { digest: task.probe.digest(), row, version: rows.trailer(words).version() })
        })
    }

    /// Returns the entry of a sampled row that has the key, if it has one and verifies. An extent may have another key
    /// with the same digest.
    pub(crate) fn inline_entry(&self, probe: &Probe<'_>, row: RowId, words: &[u64]) -> Option<usize> {
        let rows = self.table.rows();
        let Some(Candidate::Inline(index)) = rows.find(words, probe, 0) else { return None };
        rows.verify(row, words).is_ok().then_some(index)
    }

    /// Waits for the locks of `plan`, as [`Client::acquire_contended`] does, until they are held or the change was
    /// overwritten. 1 round trip for each try. [R-LOCK-4] [R-LOCK-10]
    pub(crate) async fn acquire_watching(
        &mut self,
        lane: &mut dyn Lane,
        plan: &LockSet,
        mut conflict: Conflict,
        probe: &Probe<'_>,
        seen: &SeenKey,
    ) -> Result<WatchedWait, ErrorKind> {
        let mut wait = self.start_wait(lane);
        for attempt in 1..=WATCHED_TRIES {
            self.release_held(lane).await?;
            self.wait_once(lane, &mut wait, attempt, conflict).await?;
            match self.try_all(lane, plan, Before::Release, Reads::Row(seen.row), None).await? {
                Tried::All => return Ok(WatchedWait::RowSampled),
                Tried::Conflict(again) => conflict = again,
            }
            if self.is_overwritten(probe, seen) {
                self.release_held(lane).await?;
                self.reader.counters.combined += 1;
                return Ok(WatchedWait::Overwritten);
            }
        }
        self.contend(lane, plan, conflict).await?;
        Ok(WatchedWait::Held)
    }

    /// Whether the row that had the key, as just sampled, proves that a blind write replaced the key's value after
    /// `seen` was sampled. Linearization point of the waiting change: right before that write. [R-LOCK-10]
    fn is_overwritten(&self, probe: &Probe<'_>, seen: &SeenKey) -> bool {
        let rows = self.table.rows();
        self.work.window.row(seen.row).is_some_and(|words| {
            rows.trailer(words).version() != seen.version
                && rows.replaced_entry(words).is_some()
                && rows.replaced_entry(words) == self.inline_entry(probe, seen.row, words)
        })
    }

    /// Carries out `task`, a blind write that found a lock of `plan` taken, unless it is overwritten while it waits.
    /// Returns `None` with all locks held and the window sampled if the key is no longer where it was seen.
    /// [R-LOCK-10]
    pub(crate) async fn write_watching(
        &mut self,
        lane: &mut dyn Lane,
        task: Task<'_>,
        plan: &LockSet,
        conflict: Conflict,
        seen: SeenKey,
    ) -> Result<Option<Changed>, ErrorKind> {
        match self.acquire_watching(lane, plan, conflict, task.probe, &seen).await? {
            WatchedWait::Overwritten => {
                return Ok(Some(Changed { outcome: Outcome::Replaced, freed: None, is_overwritten: true }));
            }
            WatchedWait::RowSampled => {
                if let Some(changed) = self.change_row_sampled(lane, task, &seen).await? {
                    return Ok(Some(changed));
                }
            }
            WatchedWait::Held => {}
        }
        self.sample_window(lane).await?;
        Ok(None)
    }
}
