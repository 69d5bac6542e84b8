//! Repair as the paper prints it: for tables whose locks do not name their owners and whose commits leave no record.
//!
//! A client that suspects the holder of a lock takes the repair lease of the lock's region, determines in which of four
//! states the death left the table, takes it from state to state by one WRITE each, and clears the lock (paper, section
//! 4.3). It knows only what the rows contain; docs/protocol.md, R-REPAIR-1 to R-REPAIR-8, states what this cannot
//! guarantee, and docs/holes.md shows it.
//!
//! Invariants: nothing here runs on tables that can be recovered ([`Table::is_recoverable`]); a repairing client holds
//! no lock.

use std::collections::BTreeMap;

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{EntryKind, LockId, OwnerId, RowId};

use crate::locks::batch::clear_verb;
use crate::locks::journal::Flight;
use crate::paper::failure_timer::FailureTimer;
use crate::paper::lease::{Lease, Leased, READS};
use crate::{Client, ErrorKind, LockIncident, Reader, Table};

/// Maximum number of transitions of one repair: a single death needs two.
const MAX_TRANSITIONS: usize = 64;

/// A repair in progress.
pub(crate) struct Repair<'r, L: ?Sized> {
    pub(crate) lane: &'r mut L,
    pub(crate) table: &'r Table,
    /// Provides counters, backoff and the observer.
    pub(crate) reader: &'r mut Reader,
    pub(crate) holder: OwnerId,
    pub(crate) suspect: &'r FailureTimer,
    pub(crate) deadline_ns: u64,
}

/// The paper's four states (section 4.3), each with the target of the step out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// 1: an entry is in both of its rows, and one of these does not verify.
    TornDuplicate { torn: RowId },
    /// 2: an entry is in both of its rows, which verify.
    Duplicate { second: RowId, slot: usize },
    /// 3: no entry is in two rows, but a row does not verify.
    Torn { row: RowId },
    /// 4: no duplicate entry, and every row verifies.
    Clean,
}

/// The result of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repaired {
    /// The lock was reclaimed.
    Reclaimed,
    /// Nothing was done: the suspicion was wrong, another client repaired, or the deadline passed.
    Nothing,
    /// The table is destroyed.
    Destroyed,
}

/// Sampled rows.
type Samples = BTreeMap<RowId, Vec<u64>>;

impl<L: Lane + ?Sized> Repair<'_, L> {
    pub(crate) fn report(&mut self, incident: &LockIncident) {
        if let Some(observer) = &mut self.reader.observer {
            observer.observe_lock(self.suspect.lock, incident);
        }
    }

    /// Repairs the rows that the suspected lock guards, and clears the lock. Round trips: those of
    /// [`Repair::take_lease`], 2 to 16 for each state the table is found in, 1 for each transition, 1 to end.
    pub(crate) async fn run(&mut self) -> Result<Repaired, FabricError> {
        self.reader.counters.suspicions += 1;
        self.report(&LockIncident::Suspected);
        let repaired = self.take_lease_and_repair().await;
        if let Err(error) = &repaired {
            self.report(&LockIncident::Failed { error: error.clone() });
        }
        repaired
    }

    async fn take_lease_and_repair(&mut self) -> Result<Repaired, FabricError> {
        let began_ns = self.lane.now_ns();
        let lease = match self.take_lease().await? {
            Leased::Taken(lease) => lease,
            Leased::NotTaken => return Ok(Repaired::Nothing),
            Leased::Destroyed => return Ok(Repaired::Destroyed),
        };
        for _ in 0..MAX_TRANSITIONS {
            let (state, samples) = self.examine().await?;
            let (number, count) = match state {
                State::TornDuplicate { .. } => (1, &mut self.reader.counters.repair_state_1),
                State::Duplicate { .. } => (2, &mut self.reader.counters.repair_state_2),
                State::Torn { .. } => (3, &mut self.reader.counters.repair_state_3),
                State::Clean => (4, &mut self.reader.counters.repair_state_4),
            };
            *count += 1;
            self.report(&LockIncident::Found { state: number });
            // [R-REPAIR-7]
            match state {
                State::TornDuplicate { torn: row } | State::Torn { row } => self.write_checksum(row, &samples).await?,
                State::Duplicate { second, slot } => self.clear_duplicate(second, slot, &samples).await?,
                State::Clean => {
                    self.clear_lock(lease).await?;
                    let took_ns = self.lane.now_ns().saturating_sub(began_ns);
                    self.report(&LockIncident::Reclaimed { took_ns });
                    return Ok(Repaired::Reclaimed);
                }
            }
        }
        // Other clients keep changing these rows: the next client that suspects the holder continues.
        let mut found = 0;
        post(&mut *self.lane, [lease.return_verb(&mut found)]).await?;
        self.report(&LockIncident::GivenUp);
        Ok(Repaired::Nothing)
    }

    /// Determines the state of the table from the rows that the lock guards, and the other row of each entry in them;
    /// returns the samples as well. Takes the first finding in the order of rows and entries, so that all clients find
    /// the same. [R-REPAIR-6]
    async fn examine(&mut self) -> Result<(State, Samples), FabricError> {
        let guarded: Vec<RowId> =
            self.table.locks().guarded_rows(self.suspect.lock, self.table.config().rows).collect();
        let mut samples = Samples::new();
        self.sample(guarded.clone(), &mut samples).await?;
        let mut elsewhere: Vec<RowId> = Vec::new();
        for row in &guarded {
            let others = self.entries(*row, &samples[row]).filter_map(|entry| entry.other);
            elsewhere.extend(others.filter(|other| !samples.contains_key(other)));
        }
        elsewhere.sort_unstable();
        elsewhere.dedup();
        self.sample(elsewhere, &mut samples).await?;
        Ok((self.state_of(&guarded, &samples), samples))
    }

    fn state_of(&self, guarded: &[RowId], samples: &Samples) -> State {
        let is_torn = |row: &RowId| self.table.rows().verify(*row, &samples[row]).is_err();
        for row in guarded {
            for entry in self.entries(*row, &samples[row]) {
                let Some(other) = entry.other.filter(|other| samples.contains_key(other)) else { continue };
                let Some(duplicate) =
                    self.entries(other, &samples[&other]).find(|duplicate| duplicate.has_same_key(&entry))
                else {
                    continue;
                };
                if let Some(torn) = [*row, other].into_iter().find(is_torn) {
                    return State::TornDuplicate { torn };
                }
                let (second, slot) = if entry.is_in_second { (*row, entry.index) } else { (other, duplicate.index) };
                return State::Duplicate { second, slot };
            }
        }
        let torn = guarded.iter().chain(samples.keys()).copied().find(is_torn);
        torn.map_or(State::Clean, |row| State::Torn { row })
    }

    /// Returns the entries of a row, whether it verifies or not.
    fn entries<'s>(&'s self, row: RowId, words: &'s [u64]) -> impl Iterator<Item = Entry> + 's {
        let rows = self.table.rows();
        rows.occupied_entries(words).map(move |slot| {
            let (digest, key_bytes) = match rows.entry_kind(words, slot) {
                EntryKind::Inline => {
                    let mut key = Vec::new();
                    rows.append_inline_key(words, slot, &mut key);
                    (self.table.placement().digest(&key), key.len())
                }
                EntryKind::Extent => {
                    let extent = rows.extent_of(words, slot);
                    (extent.digest, extent.key_bytes as usize)
                }
            };
            let pair = self.table.placement().rows(digest);
            // A key whose two rows are one has no other row, and is no duplicate of itself: H13.
            let other = pair.other(row).filter(|other| *other != row);
            Entry { index: slot, digest, key_bytes, other, is_in_second: pair.second == row }
        })
    }

    /// Samples the rows `wanted`. A row that does not verify is sampled up to `row_samples` times, because its writer
    /// may be alive.
    async fn sample(&mut self, mut wanted: Vec<RowId>, samples: &mut Samples) -> Result<(), FabricError> {
        let rows = self.table.rows();
        for sample in 0..self.reader.config.row_samples.max(1) {
            self.reader.counters.row_retries += if sample > 0 { wanted.len() as u64 } else { 0 };
            for wanted in wanted.chunks(READS) {
                let mut words = vec![0; wanted.len() * rows.row_words()];
                post(&mut *self.lane, self.table.read_rows(wanted, &mut words).collect::<Vec<_>>()).await?;
                let sampled = wanted.iter().zip(words.chunks_exact(rows.row_words()));
                samples.extend(sampled.map(|(row, words)| (*row, words.to_vec())));
            }
            wanted.retain(|row| rows.verify(*row, &samples[row]).is_err());
            if wanted.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Goes from state 1 to 2, or from 3 to 4: writes a checksum that makes the row verify as it is. If a WRITE can be
    /// torn, no client may ever have written that row (hole H10); the row may also belong to another client by now
    /// (H8). [R-REPAIR-7]
    async fn write_checksum(&mut self, row: RowId, samples: &Samples) -> Result<(), FabricError> {
        let (geometry, rows) = (self.table.geometry(), self.table.rows());
        let mut words = samples[&row].clone();
        rows.rewrite_checksum(row, &mut words);
        let checksum = &words[rows.trailer_word() + 1..];
        let addr = geometry.trailer(row, rows).add_words(1);
        post(&mut *self.lane, [Verb::Write { addr, words: checksum }]).await
    }

    /// Goes from state 2 to 4: removes the copy in the key's second row. [R-REPAIR-7]
    async fn clear_duplicate(&mut self, second: RowId, slot: usize, samples: &Samples) -> Result<(), FabricError> {
        let rows = self.table.rows();
        let mut words = samples[&second].clone();
        rows.clear_entry(&mut words, slot);
        rows.finish(second, &mut words);
        let addr = self.table.geometry().row(second);
        post(&mut *self.lane, [Verb::Write { addr, words: &words }]).await
    }

    /// Ends in state 4: clears the lock, whichever client has it by now (hole H7), and returns the lease. 1 round trip.
    /// [R-REPAIR-8]
    async fn clear_lock(&mut self, lease: Lease) -> Result<(), FabricError> {
        let lock = self.table.locks().mask(self.suspect.lock);
        let masked_cas = self.lane.caps().masked_cas;
        let mut found = [0; 2];
        let [unlocked, returned] = &mut found;
        let unlock = clear_verb(self.table, self.holder, masked_cas, &lock, unlocked);
        post(&mut *self.lane, [unlock, lease.return_verb(returned)]).await
    }
}

/// An entry of a row.
struct Entry {
    index: usize,
    digest: u64,
    key_bytes: usize,
    /// The key's other row; `None` if it has none, or does not belong into this one.
    other: Option<RowId>,
    is_in_second: bool,
}

impl Entry {
    /// Whether both entries have the same key. Equal digests of equally long keys count as such: entries of extents
    /// store no more, where the printed ones store the key.
    fn has_same_key(&self, entry: &Entry) -> bool {
        (self.digest, self.key_bytes) == (entry.digest, entry.key_bytes)
    }
}

impl Client {
    /// Records that `lock` was found taken, and repairs what it guards if its holder is suspected. Returns true if the
    /// lock was reclaimed; this client holds no lock any more then. [R-REPAIR-1]
    pub(crate) async fn repair_if_suspected(
        &mut self,
        lane: &mut dyn Lane,
        lock: LockId,
        deadline_ns: u64,
    ) -> Result<bool, ErrorKind> {
        let (table, window) = (&self.table, &self.work.window);
        let checksum = table.rows().trailer_word() + 1;
        let guarded = window.rows().iter().enumerate().filter(|(_, row)| table.locks().lock_of(**row) == lock);
        let rows = guarded.map(|(place, row)| (*row, window.at(place)[checksum]));
        let Some(suspect) = self.reader.observe_taken_lock(lane.now_ns(), lock, rows) else { return Ok(false) };
        self.release_held(lane).await?;
        // If this operation is dropped from here on, a batch of the repair may be in flight: its atomics take no locks.
        self.journal.flight = Flight::Recovery;
        let repaired = self.reader.repair(lane, self.owner, &suspect, deadline_ns).await;
        match &repaired {
            Err(ErrorKind::Fabric { source }) => self.journal.failed(source),
            _ => self.journal.completed(&[]),
        }
        repaired
    }
}

impl Reader {
    /// Same as [`Client::repair_if_suspected`] for `row`, which does not verify and whose `lock` was found taken, by a
    /// client's reader. [R-REPAIR-2]
    pub(crate) async fn repair_if_suspected<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        lock: LockId,
        deadline_ns: u64,
    ) -> Result<bool, ErrorKind> {
        let Some(holder) = self.repairs_as else { return Ok(false) };
        let mut checksum = [0];
        post(lane, [self.table.read_checksum(row, &mut checksum)]).await?;
        match self.observe_taken_lock(lane.now_ns(), lock, std::iter::once((row, checksum[0]))) {
            Some(suspect) => self.repair(lane, holder, &suspect, deadline_ns).await,
            None => Ok(false),
        }
    }

    /// Updates the timer of `lock`, found taken with these rows and their checksums. Returns the timer if it has
    /// expired.
    fn observe_taken_lock(
        &mut self,
        now_ns: u64,
        lock: LockId,
        rows: impl Iterator<Item = (RowId, u64)>,
    ) -> Option<FailureTimer> {
        self.failure_timers.observe(lock, rows, now_ns, self.config.failure_timeout_ns)
    }

    /// Repairs after the holder of the suspected lock. Returns whether the lock was reclaimed.
    async fn repair<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        holder: OwnerId,
        suspect: &FailureTimer,
        deadline_ns: u64,
    ) -> Result<bool, ErrorKind> {
        let table = &std::sync::Arc::clone(&self.table);
        match (Repair { lane, table, reader: self, holder, suspect, deadline_ns }).run().await? {
            Repaired::Destroyed => Err(ErrorKind::Destroyed),
            repaired => Ok(repaired == Repaired::Reclaimed),
        }
    }
}
