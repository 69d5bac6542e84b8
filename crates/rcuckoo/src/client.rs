//! A client: one logical owner with its locks, its row cache and its client slot.

use std::future::poll_fn;
use std::sync::Arc;

use guira_fabric::{Caps, Effect, FabricError, Lane, Liveness, LocalLane, MaskedCas};
use guira_layout::OwnerId;

use crate::change::{ChangeProgress, Paths, Workspace};
use crate::locks::journal::{Flight, Journal};
use crate::recovery::failure_detector::FailureDetector;
use crate::table::policy::LockedRows;
use crate::{
    Counters, Error, ErrorKind, Key, Observer, Operation, Reader, RowGuess, RowPair, RowPredictor, SlotClient, Table,
    Token, TryGet,
};

/// Paths that are tried from the cache where the paper would try any number: two rows that the cache keeps in one place
/// could otherwise displace each other without end.
const PRINTED_SPECULATIONS: u32 = 32;
/// Maximum value of [`ClientConfig::covering_bytes`]: the READs of a lookup of many keys have at most 1 MiB together.
pub const MAX_COVERING_BYTES: usize = 32 << 10;
/// Locks of one bit in a word.
const MAX_LOCKS_PER_MESSAGE: u32 = 64;

/// The first wait for a lock that clients of a network card hold: less than a round trip, which a lock is held for.
const CARD_BACKOFF_NS: u64 = 1_000;
/// The longest wait between two attempts to take such a lock: several hundred clients that wait for locks of one word
/// must leave time for its release, because a card executes atomics on one address one after the other.
const MAX_CARD_BACKOFF_NS: u64 = 64_000;
/// The first wait for a lock behind a processor that executes verbs: about a round trip, because a lock is held for at
/// least one, and each attempt costs one and some work of the node.
const NODE_BACKOFF_NS: u64 = 50_000;
/// The longest wait between two attempts to take such a lock.
const MAX_NODE_BACKOFF_NS: u64 = 2_000_000;

/// Rows from which a cuckoo path may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchRoots {
    /// Both of the key's rows, the primary first.
    Both,
    /// The primary row only, as the paper prints it.
    Primary,
}

/// The row that a new key goes to if both of its rows have a free entry. Both are roots of paths then
/// ([`SearchRoots::Both`]), otherwise it is the primary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertRow {
    /// The primary row: lookups that look at one row after the other end there.
    Primary,
    /// The row with more free entries, the primary one if they have as many: a full table has fewer keys whose rows are
    /// both full, so fewer inserts need a path.
    Emptier,
}

/// Rows that an insert samples under its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronize {
    /// The key's rows and the path's.
    Path,
    /// Every row that the locks guard, as the paper prints it: more bytes, more paths for the second search.
    Locks,
}

/// Order in which a search for a cuckoo path visits rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchOrder {
    /// Nearest rows first: the shortest path, among those the one that needs the fewest messages to lock.
    BreadthFirst,
    /// A random walk, as in earlier cuckoo hash tables: it follows one entry after the other, and turns back only at
    /// its greatest depth. Where rows are sampled for it, each step is a round trip.
    DepthFirst,
}

/// Order in which the locks of an operation are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// All at once; one after the other only if that fails repeatedly. [R-LOCK-3]
    Together,
    /// One message in each round trip, as the paper prints it (section 3.4.1): in the order of addresses, each with the
    /// READs of the rows under its locks, and again at once until it succeeds.
    OneMessageATrip,
}

/// Operations whose rows are cached for path searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheFill {
    /// Changes: rows that were read under their locks.
    Changes,
    /// Also lookups, and searches that sample rows, as the paper prints it (section 3.2.3). Not where verbs execute in
    /// place: no search uses the cache there.
    AllOperations,
}

/// Settings that each client chooses for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Bytes of rows that are cached for path searches.
    pub cache_bytes: usize,
    /// Longest time that an operation waits for a lock, in nanoseconds.
    pub deadline_ns: u64,
    /// Wait after the first failure to take a lock, in nanoseconds; doubles with each further failure. 0 never waits.
    pub backoff_ns: u64,
    /// The longest such wait, in nanoseconds.
    pub longest_backoff_ns: u64,
    /// Samples of a row that does not verify before its lock is read.
    pub row_samples: u32,
    /// Rows between two wanted rows that one covering READ may fetch without need.
    pub covering_gap_rows: u64,
    /// Maximum size of the READ by which a lookup fetches both rows and those between them, in bytes: two rows cover
    /// neighbours only. At most [`MAX_COVERING_BYTES`] count. Rows that lie farther apart, or of which the second has
    /// the smaller number, are two READs.
    pub covering_bytes: usize,
    /// Order in which locks are taken.
    pub acquisition: Acquisition,
    /// Maximum number of locks that one masked CAS takes or releases, 1 to 64; all of them lie in one word.
    pub locks_per_message: u32,
    /// Order in which paths are searched.
    pub search: SearchOrder,
    /// Maximum number of moves on a cuckoo path; at most the table's `max_path_rows` less one.
    pub search_depth: usize,
    /// Maximum number of rows that one search visits.
    pub search_rows: usize,
    /// Rows from which paths start.
    pub search_roots: SearchRoots,
    /// The row that a new key goes to if both have a free entry. [R-INSERT-1]
    pub insert_row: InsertRow,
    /// The way in which lookups treat a key of which their predictor knows nothing. [R-READ-10]
    pub row_guess: RowGuess,
    /// Paths tried from the cache before rows are sampled for the search.
    pub speculations: u32,
    /// Rows that an insert samples under its locks.
    pub synchronize: Synchronize,
    /// Operations whose rows are cached.
    pub cache_fill: CacheFill,
    /// Time after which the holder of a lock is presumed dead, if the lock stays taken and the rows sampled under it
    /// stay unchanged, in nanoseconds: 100 ms, as printed (paper, section 4.1). Only for tables that are repaired.
    /// [R-REPAIR-1]
    pub failure_timeout_ns: u64,
    /// Time after which the holder of an unchanged repair lease is also presumed dead, in nanoseconds: the same, "a
    /// timeout mechanism similar to normal locks" (section 4.2). [R-REPAIR-4]
    pub lease_timeout_ns: u64,
    /// Seed of the backoff's jitter, and of depth-first searches.
    pub seed: u64,
}

impl ClientConfig {
    /// The failure timeout unless another one is set, in nanoseconds: that of the paper (section 4.1).
    pub const FAILURE_TIMEOUT_NS: u64 = 100_000_000;

    /// Returns the configuration for `table`: as printed for tables of the `paper` preset (they keep no redo records),
    /// hardened otherwise.
    pub fn for_table(table: &Table) -> ClientConfig {
        let printed = table.policy().locked_rows == LockedRows::OfPath;
        ClientConfig {
            cache_bytes: 64 << 10,
            deadline_ns: 10_000_000_000,
            backoff_ns: if printed { 0 } else { 500 },
            longest_backoff_ns: 200_000,
            row_samples: 16,
            covering_gap_rows: 0,
            covering_bytes: 2 * table.config().row_bytes as usize,
            acquisition: if printed { Acquisition::OneMessageATrip } else { Acquisition::Together },
            locks_per_message: MAX_LOCKS_PER_MESSAGE,
            search: SearchOrder::BreadthFirst,
            search_depth: usize::from(table.config().max_path_rows) - 1,
            search_rows: 2048,
            search_roots: if printed { SearchRoots::Primary } else { SearchRoots::Both },
            insert_row: InsertRow::Primary,
            row_guess: RowGuess::Rationed,
            speculations: if printed { PRINTED_SPECULATIONS } else { 2 },
            synchronize: if printed { Synchronize::Locks } else { Synchronize::Path },
            cache_fill: if printed { CacheFill::AllOperations } else { CacheFill::Changes },
            failure_timeout_ns: ClientConfig::FAILURE_TIMEOUT_NS,
            lease_timeout_ns: ClientConfig::FAILURE_TIMEOUT_NS,
            seed: 0,
        }
    }
}

impl ClientConfig {
    /// Returns the configuration that suits lanes of a region with `caps`: the waits, because what an attempt costs
    /// depends on who executes it [R-LOCK-4]; and the row of a new key, because only where verbs execute in place a
    /// lookup saves a row if it finds the key in the first. [R-INSERT-1]
    #[must_use]
    pub fn across(self, caps: &Caps) -> ClientConfig {
        let (backoff_ns, longest_backoff_ns) = match caps.masked_cas {
            // A client without a backoff never waits.
            _ if caps.local || self.backoff_ns == 0 => (self.backoff_ns, self.longest_backoff_ns),
            MaskedCas::Native => (CARD_BACKOFF_NS, MAX_CARD_BACKOFF_NS),
            MaskedCas::Software | MaskedCas::CasLoop => (NODE_BACKOFF_NS, MAX_NODE_BACKOFF_NS),
        };
        let both_at_once = !caps.local && self.search_roots == SearchRoots::Both;
        let insert_row = if both_at_once { InsertRow::Emptier } else { self.insert_row };
        ClientConfig { backoff_ns, longest_backoff_ns, insert_row, ..self }
    }
}

/// One logical owner, which executes one operation at a time. It holds a client slot of the table; its owner id follows
/// from the slot's number.
///
/// An operation may be dropped at any await: the next one first waits for the batch in flight and gives back the locks
/// that it had acquired. [R-DROP-1]
#[derive(Debug)]
pub struct Client {
    pub(crate) table: Arc<Table>,
    pub(crate) owner: OwnerId,
    /// Index in the main space of the first word of the client's slot.
    pub(crate) slot_word: u64,
    pub(crate) journal: Journal,
    pub(crate) failure_detector: FailureDetector,
    pub(crate) paths: Paths,
    pub(crate) work: Workspace,
    pub(crate) progress: ChangeProgress,
    /// Whether changes may begin with both rows of their key, locked and read in one batch.
    pub(crate) begins_with_pair: bool,
    /// State shared with the client's lookups: configuration, backoff, failure timers and counters.
    pub(crate) reader: Reader,
}

impl Client {
    /// Creates a client that acts as `owner`, whose slot the caller holds: see [`crate::claim_slot`].
    pub fn new(table: Arc<Table>, owner: OwnerId, config: ClientConfig) -> Client {
        let row_words = table.rows().row_words();
        let begins_with_pair = config.synchronize == Synchronize::Path
            && config.acquisition == Acquisition::Together
            && u64::from(config.locks_per_message) >= table.locks().locks_per_word()
            && table.policy().locked_rows == LockedRows::OfKeyAndPath;
        let reader = Reader::of_client(Arc::clone(&table), config, owner);
        Client {
            begins_with_pair,
            owner,
            slot_word: table.geometry().slot(owner.0 - 1).word(),
            journal: Journal::default(),
            failure_detector: FailureDetector::default(),
            paths: Paths::new(&reader.config, row_words),
            reader,
            work: Workspace::new(&table),
            progress: ChangeProgress::default(),
            table,
        }
    }

    /// Makes the client ask `liveness` about the owners of locks it waits for, and recover the dead ones.
    /// [R-RECOVER-1]
    #[must_use]
    pub fn with_liveness(mut self, liveness: Box<dyn Liveness>) -> Client {
        self.failure_detector.set_liveness(liveness);
        self
    }

    /// Sets the process of this client, which it writes into the slots of dead clients that it recovers, as it is in
    /// the client's own slot. Without it, other clients cannot see which process is recovering. [R-RECOVER-4]
    #[must_use]
    pub fn with_process(mut self, process: &SlotClient) -> Client {
        self.failure_detector.set_process(process);
        self
    }

    /// Reports to `observer` which clients this one suspects and recovers.
    #[must_use]
    pub fn with_observer(mut self, observer: Box<dyn Observer>) -> Client {
        self.reader.observer = Some(observer);
        self
    }

    /// Makes lookups read one row instead of two where `predictor` knows or guesses which one has the key; see
    /// [`Reader::set_predictor`]. It expects most keys in their primary rows, so the client's inserts go there
    /// ([`InsertRow::Primary`]). [R-READ-10]
    #[must_use]
    pub fn with_predictor(mut self, predictor: Arc<RowPredictor>) -> Client {
        self.reader.set_predictor(predictor);
        self.reader.config.insert_row = InsertRow::Primary;
        self
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Returns the owner id that the client's locks carry.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Returns the key of these bytes, with the rows in which this client looks for it.
    ///
    /// # Errors
    /// `KeyLength`.
    #[inline(always)]
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, ErrorKind> {
        self.try_key(bytes).ok_or_else(|| self.table.refuse_key(bytes.len()))
    }

    /// Same as [`Client::key`], without the error: `None`; see [`Table::try_place`].
    #[inline(always)]
    pub fn try_key<'k>(&self, bytes: &'k [u8]) -> Option<Key<'k>> {
        self.table.key_by(&self.reader.segments, bytes)
    }

    /// Makes the client look for keys where they were before any split; see [`Reader::forget_splits`].
    #[doc(hidden)]
    pub fn forget_splits(&mut self) {
        self.reader.forget_splits();
    }

    /// Records that the next change, on a lane that does not execute in place, has waited in a lock queue of its
    /// process since `since_ns` of the lane's clock: its deadline counts from there. [R-LOCK-4]
    pub fn count_queue_wait(&mut self, since_ns: u64) {
        self.progress.queued_since_ns = Some(since_ns);
        self.reader.counters.queue_waits += 1;
    }

    /// Records that the next change has not waited, whatever an earlier one did.
    pub fn clear_queue_wait(&mut self) {
        self.progress.queued_since_ns = None;
    }

    /// Whether nothing is left of earlier changes: no lock, no batch in flight, and no lost batch. Otherwise
    /// [`Client::settle`] is due, or this client is lost.
    pub fn is_settled(&self) -> bool {
        self.journal.is_clean()
    }

    /// Counts a change that waited in a lock queue of its process and was combined with a later one. [R-LOCK-8]
    pub fn count_combined(&mut self) {
        self.reader.counters.queue_waits += 1;
        self.reader.counters.combined += 1;
    }

    /// Returns the client's counters.
    pub fn counters(&self) -> Counters {
        *self.reader.counters()
    }

    /// Returns the number of redo records that were made, whether they were written or not.
    pub fn records(&self) -> u64 {
        self.reader.counters().records
    }

    /// Whether the last change, dropped or not, posted its commit, which then takes effect as a whole. Meaningful after
    /// [`Client::settle`].
    pub fn has_committed(&self) -> bool {
        self.progress.committed
    }

    /// Returns the sum that the last [`crate::Change::Add`] of this client stored. [R-ADD-1]
    pub fn sum(&self) -> u64 {
        self.progress.sum
    }

    /// Looks `key` up through the client's own lane; see [`Reader::get`]. Settles first, because a change that was
    /// dropped may have its batch in flight on this lane. [R-DROP-1]
    ///
    /// # Errors
    /// Same as [`Reader::get`], or `Lost`.
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

    /// Looks `key` up without waiting; see [`Reader::try_get`].
    #[inline(always)]
    pub fn try_get<L: LocalLane>(&mut self, lane: &mut L, key: &[u8], into: &mut Vec<u8>) -> TryGet {
        if self.journal.is_clean() { self.reader.try_get(lane, key, into) } else { TryGet::MustWait }
    }

    /// Looks `key` up without waiting; see [`Reader::try_get_value`].
    #[inline(always)]
    pub fn try_get_value<L: LocalLane>(&mut self, lane: &mut L, key: &[u8], into: &mut Vec<u8>) -> TryGet<()> {
        if self.journal.is_clean() { self.reader.try_get_value(lane, key, into) } else { TryGet::MustWait }
    }

    async fn settle_for_get<L: Lane + ?Sized>(&mut self, lane: &mut L) -> Result<(), ErrorKind> {
        self.refuse_if_lost()?;
        Ok(self.settle_journal(lane).await?)
    }

    /// Looks up many keys; see [`Reader::get_many`].
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

    /// Looks up many keys in place; see [`Reader::get_many_in_place`].
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

    /// Settles before `keys` lookups. Returns false if that failed; `visit` has received the error for each of them.
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

    /// Starts loading the words that a change of `key` reads first: both of its rows and their locks. A hint; costs no
    /// round trip.
    pub fn prefetch<L: Lane + ?Sized>(&self, lane: &L, key: &[u8]) {
        let placement = self.table.placement();
        self.prefetch_pair(lane, placement.rows_by(&self.reader.segments, placement.digest(key)));
    }

    /// Same as [`Client::prefetch`], of the key with these rows.
    #[inline(always)]
    pub(crate) fn prefetch_pair<L: Lane + ?Sized>(&self, lane: &L, pair: RowPair) {
        let table = &*self.table;
        for row in [pair.first, pair.second] {
            lane.prefetch(table.geometry().row(row), table.rows().row_words());
            lane.prefetch(table.locks().addr(table.locks().mask(table.locks().lock_of(row)).word), 1);
        }
    }

    /// Waits for the batch that a dropped operation left in flight, and gives back the locks it had acquired. Every
    /// change does this first. No round trip if nothing was left. [R-DROP-1]
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

    /// Drains the batch in flight, and gives back every lock that it or an earlier one won. A commit that turns out to
    /// have had no effect counts as not posted. At most one round trip beyond the batch's own.
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

    /// Fails if the fabric lost a batch of this client: it is unknown which locks that batch took or gave back, so none
    /// may be released. Every operation calls this first. [R-DROP-2]
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
