//! A client: one logical owner, its locks, its cache, its slot.

use std::future::poll_fn;
use std::sync::Arc;

use guira_fabric::{Effect, FabricError, Lane, Liveness, LocalLane};
use guira_layout::OwnerId;

use crate::change::{ChangeProgress, Paths, Workspace};
use crate::locks::journal::{Flight, Journal};
use crate::recovery::failure_detector::FailureDetector;
use crate::table::policy::LockedRows;
use crate::{Counters, Error, ErrorKind, Observer, Operation, Reader, SlotClient, Table, Token, TryGet};

/// The paper's failure timeout (section 4.1).
const PRINTED_TIMEOUT_NS: u64 = 100_000_000;

/// From which rows a path may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchRoots {
    /// From both of the key's rows, the primary first.
    Both,
    /// From the primary row only, as the paper prints it.
    Primary,
}

/// Which rows are sampled under the locks of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronize {
    /// The key's rows and the path's.
    Path,
    /// Every row the locks guard, as the paper prints it: more bytes, more paths for the second search.
    Locks,
}

/// What each client chooses for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Bytes of rows remembered for path searches.
    pub cache_bytes: usize,
    /// How long an operation waits for a lock, in nanoseconds.
    pub deadline_ns: u64,
    /// Wait after the first failure to take a lock, in nanoseconds; doubles with each further one.
    pub backoff_ns: u64,
    /// The longest such wait, in nanoseconds.
    pub longest_backoff_ns: u64,
    /// Samples of a row that does not verify before its lock is looked at.
    pub row_samples: u32,
    /// Rows between two wanted rows that one covering READ may fetch for nothing.
    pub covering_gap_rows: u64,
    /// Moves on a cuckoo path; at most the table's `max_path_rows` less one.
    pub search_depth: usize,
    /// Rows one search visits.
    pub search_rows: usize,
    /// Where paths start.
    pub search_roots: SearchRoots,
    /// Paths tried from the cache before rows are sampled for the search.
    pub speculations: u32,
    /// Which rows an insert samples.
    pub synchronize: Synchronize,
    /// How long a lock stays taken, and the rows sampled under it unchanged, before its holder is presumed dead, in
    /// nanoseconds: 100 ms, as printed (paper, section 4.1). For tables that are repaired only. // [R-REPAIR-1]
    pub failure_timeout_ns: u64,
    /// How long a repair lease stays unchanged before its holder is presumed dead, too, in nanoseconds: the same, "a
    /// timeout mechanism similar to normal locks" (section 4.2). // [R-REPAIR-4]
    pub lease_timeout_ns: u64,
    /// Seed of the jitter.
    pub seed: u64,
}

impl ClientConfig {
    /// The configuration for `table`: as printed for tables of the `paper` preset (they keep no redo records), hardened
    /// otherwise.
    pub fn for_table(table: &Table) -> ClientConfig {
        let printed = table.policy().locked_rows == LockedRows::OfPath;
        ClientConfig {
            cache_bytes: 64 << 10,
            deadline_ns: 10_000_000_000,
            backoff_ns: 500,
            longest_backoff_ns: 200_000,
            row_samples: 16,
            covering_gap_rows: 0,
            search_depth: usize::from(table.config().max_path_rows) - 1,
            search_rows: 2048,
            search_roots: if printed { SearchRoots::Primary } else { SearchRoots::Both },
            speculations: 2,
            synchronize: if printed { Synchronize::Locks } else { Synchronize::Path },
            failure_timeout_ns: PRINTED_TIMEOUT_NS,
            lease_timeout_ns: PRINTED_TIMEOUT_NS,
            seed: 0,
        }
    }
}

/// One logical owner: one operation at a time. It holds a slot of the table, by the number of its owner id.
///
/// Dropping an operation in the middle strands nothing: the next one first waits for what was in flight and gives back
/// what it had acquired. // [R-DROP-1]
#[derive(Debug)]
pub struct Client {
    pub(crate) table: Arc<Table>,
    pub(crate) owner: OwnerId,
    /// Index in the main space of the first word of its slot.
    pub(crate) slot_word: u64,
    pub(crate) journal: Journal,
    pub(crate) failure_detector: FailureDetector,
    pub(crate) paths: Paths,
    pub(crate) work: Workspace,
    pub(crate) progress: ChangeProgress,
    /// What the client shares with its lookups: its configuration, its waits, its suspects, and what it counts.
    pub(crate) reader: Reader,
}

impl Client {
    /// A client that acts as `owner`, whose slot the caller holds: see [`crate::claim_slot`].
    pub fn new(table: Arc<Table>, owner: OwnerId, config: ClientConfig) -> Client {
        let row_words = table.rows().row_words();
        Client {
            reader: Reader::of_client(Arc::clone(&table), config, owner),
            owner,
            slot_word: table.geometry().slot(owner.0 - 1).word(),
            journal: Journal::default(),
            failure_detector: FailureDetector::default(),
            paths: Paths::new(&config, row_words),
            work: Workspace::new(&table),
            progress: ChangeProgress::default(),
            table,
        }
    }

    /// The same client, which asks `liveness` about those it waits for, and recovers the dead. // [R-RECOVER-1]
    #[must_use]
    pub fn with_liveness(mut self, liveness: Box<dyn Liveness>) -> Client {
        self.failure_detector.set_liveness(liveness);
        self
    }

    /// The same client, of the process `process`: as it is named in its slot, it is in the slots of the dead whom it
    /// recovers. Without this, what it is stopped in cannot be told. // [R-RECOVER-4]
    #[must_use]
    pub fn with_process(mut self, process: &SlotClient) -> Client {
        self.failure_detector.set_process(process);
        self
    }

    /// The same client, which tells `observer` whom it suspects and recovers.
    #[must_use]
    pub fn with_observer(mut self, observer: Box<dyn Observer>) -> Client {
        self.reader.observer = Some(observer);
        self
    }

    /// The table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The owner id the client's locks carry.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The change that comes next, on a lane that does not execute in place, has waited in a line of its process since
    /// `since_ns` of the lane's clock: its deadline counts from there. // [R-LOCK-4]
    pub fn count_queue_wait(&mut self, since_ns: u64) {
        self.progress.queued_since_ns = Some(since_ns);
        self.reader.counters.queue_waits += 1;
    }

    /// The change that comes next has not waited, whatever became of one that had.
    pub fn clear_queue_wait(&mut self) {
        self.progress.queued_since_ns = None;
    }

    /// Whether there is nothing left of earlier changes: no lock, no batch that is not known to have ended, and no lost
    /// one. Otherwise [`Client::settle`] is due, or this client is lost.
    pub fn is_settled(&self) -> bool {
        self.journal.is_clean()
    }

    /// A change waited in a line of its process, and was answered as one that came before another. // [R-LOCK-8]
    pub fn count_combined(&mut self) {
        self.reader.counters.queue_waits += 1;
        self.reader.counters.combined += 1;
    }

    /// What the client met.
    pub fn counters(&self) -> Counters {
        *self.reader.counters()
    }

    /// Whether the last change, dropped or not, posted its commit, which then takes effect as a whole. Meaningful after
    /// [`Client::settle`].
    pub fn has_committed(&self) -> bool {
        self.progress.committed
    }

    /// The number that the last [`crate::Change::Add`] of this client made of one that was there.
    /// // [R-ADD-1]
    pub fn sum(&self) -> u64 {
        self.progress.sum
    }

    /// Looks `key` up through the client's own lane; see [`Reader::get`]. Settles first, because a change that was
    /// dropped may have its batch in flight on this lane. // [R-DROP-1]
    ///
    /// # Errors
    /// As [`Reader::get`], or `Lost`.
    pub async fn get<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Option<Token>, Error> {
        if !self.journal.is_clean() {
            self.settle_for_get(lane).await.map_err(|kind| kind.during(Operation::Get))?;
        }
        self.reader.get(lane, key, into).await
    }

    /// See [`Reader::try_get`].
    #[inline(always)]
    pub fn try_get<L: LocalLane>(&mut self, lane: &mut L, key: &[u8], into: &mut Vec<u8>) -> TryGet {
        if self.journal.is_clean() { self.reader.try_get(lane, key, into) } else { TryGet::MustWait }
    }

    /// See [`Reader::try_get_value`].
    #[inline(always)]
    pub fn try_get_value<L: LocalLane>(&mut self, lane: &mut L, key: &[u8], into: &mut Vec<u8>) -> TryGet<()> {
        if self.journal.is_clean() { self.reader.try_get_value(lane, key, into) } else { TryGet::MustWait }
    }

    async fn settle_for_get<L: Lane + ?Sized>(&mut self, lane: &mut L) -> Result<(), ErrorKind> {
        self.refuse_if_lost()?;
        Ok(self.settle_journal(lane).await?)
    }

    /// See [`Reader::get_many`].
    pub async fn get_many<L: Lane + ?Sized, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        if self.settle_for_many(lane, keys.len(), &mut visit).await {
            self.reader.get_many(lane, keys, visit).await;
        }
    }

    /// See [`Reader::get_many_in_place`].
    pub async fn get_many_in_place<L: LocalLane, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        if self.settle_for_many(lane, keys.len(), &mut visit).await {
            self.reader.get_many_in_place(lane, keys, visit).await;
        }
    }

    /// Settles before so many lookups; false if that failed, as each of them is told.
    async fn settle_for_many<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        keys: usize,
        visit: &mut impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) -> bool {
        if !self.journal.is_clean()
            && let Err(kind) = self.settle_for_get(lane).await
        {
            (0..keys).for_each(|i| visit(i, Err(kind.clone().during(Operation::Get))));
            return false;
        }
        true
    }

    /// Starts loading what a change of `key` looks at first: both of its rows and their locks. A hint; costs no round
    /// trip.
    pub fn prefetch<L: Lane + ?Sized>(&self, lane: &L, key: &[u8]) {
        let table = &*self.table;
        let pair = table.placement().rows(table.placement().digest(key));
        for row in [pair.first, pair.second] {
            lane.prefetch(table.geometry().row(row), table.rows().row_words());
            lane.prefetch(table.locks().addr(table.locks().mask(table.locks().lock_of(row)).word), 1);
        }
    }

    /// Waits for what a dropped operation left in flight and gives back the locks it had acquired. Every mutation does
    /// this first. No round trip if nothing was left. // [R-DROP-1]
    ///
    /// # Errors
    /// The fabric lost the batch in flight, or an earlier one.
    pub async fn settle(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        if self.journal.is_clean() {
            // A READ may still be in flight.
            return poll_fn(|cx| lane.poll_drain(&mut [], cx)).await.map(drop);
        }
        self.settle_journal(lane).await
    }

    /// Drains the batch in flight, and gives back every lock that it, or an earlier one, won. A commit that turns out
    /// to have had no effect was none. At most one round trip beyond the batch's own.
    async fn settle_journal<L: Lane + ?Sized>(&mut self, lane: &mut L) -> Result<(), FabricError> {
        let was_releasing = self.journal.flight == Flight::Release;
        let drained = self.journal.drain(lane).await;
        let had_effect = match &drained {
            Ok(had_effect) => *had_effect,
            Err(error) => error.effect() != Effect::None,
        };
        if was_releasing && !had_effect {
            self.progress.committed = false;
        }
        drained?;
        self.journal.release(lane, &self.table, self.owner).await
    }

    /// Refuses to begin an operation if the fabric lost a batch of this client: which locks that batch took or gave
    /// back is not known, so none may be given back. Every operation does this first. // [R-DROP-2]
    ///
    /// # Errors
    /// `Lost`.
    pub fn refuse_if_lost(&self) -> Result<(), ErrorKind> {
        match &self.journal.lost {
            Some(source) => Err(ErrorKind::Lost { source: source.clone() }),
            None => Ok(()),
        }
    }
}
