//! Changes: put, insert, update, remove, compare-and-swap, compare-and-remove.
//!
//! All are one: lock both of the key's rows and sample them, look for the key, then change it in place or find it
//! a place. Linearization point: the WRITE of the one row that holds the key afterwards, or held it before.

use arrayvec::ArrayVec;
use guira_fabric::{Lane, Verb, post};
use guira_layout::{Candidate, EXTENT_HEADER_WORDS, ExtentRef, MAX_KEY_BYTES, Placement, Probe, RowId, parse_extent};

use crate::commit::Write;
use crate::destroy::is_marked_destroyed;
use crate::handover::Rest;
use crate::in_place::{Begun, Stage};
use crate::locks::{ExtentWrite, LockSet, lock_set};
use crate::lookup::read_extent;
use crate::search::{Limits, Path, Progress, Sight};
use crate::window::cover;
use crate::{Client, Error, Operation, Place, RowPair, SearchRoots, Synchronize, Token};

/// Attempts of one insert before it gives up with [`Error::Busy`]: each failed one means that another client moved
/// entries along the path in the meantime.
const INSERT_ATTEMPTS: u32 = 1024;
/// Rows one batch of a sampled search fetches.
const SEARCH_BATCH_ROWS: usize = 32;
/// The same where a batch executes in place, and costs nothing to split.
const LOCAL_SEARCH_BATCH_ROWS: usize = 8;
/// Samples of a locked row before it counts as damaged: a READ that overtakes the previous owner's last WRITE is
/// possible on no fabric, so one repetition is for the fabric's sake only.
const LOCKED_ROW_SAMPLES: u32 = 3;

/// What a value is stored as.
#[derive(Clone, Copy, Debug)]
pub enum NewValue<'v> {
    /// In the row.
    Inline(&'v [u8]),
    /// In an extent, which the operation writes before it points to it.
    Extent {
        /// Where it goes.
        extent: ExtentRef,
        /// The encoded extent; see [`guira_layout::encode_extent`].
        words: &'v [u64],
    },
}

/// What to do with a key.
#[derive(Clone, Copy, Debug)]
pub enum Change<'v> {
    /// Insert it, or replace its value.
    Put(NewValue<'v>),
    /// Insert it; change nothing if it exists.
    Insert(NewValue<'v>),
    /// Replace its value; change nothing if it is missing.
    Update(NewValue<'v>),
    /// Remove it.
    Remove,
    /// Replace its value if it is what is expected; change nothing otherwise. // [R-CAS-1]
    Swap(Expected<'v>, NewValue<'v>),
    /// Remove it if its value is what is expected; change nothing otherwise. // [R-CAS-1]
    RemoveIf(Expected<'v>),
}

/// The state a key has to be in for a change that depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected<'v> {
    /// It has this value, whatever it had in the meantime. // [R-CAS-1]
    Value(&'v [u8]),
    /// Nobody has changed it since it was read. // [R-CAS-2]
    Unchanged(Token),
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key is new.
    Inserted,
    /// The key had another value before.
    Replaced,
    /// The key is gone.
    Removed,
    /// Nothing changed: the key exists.
    Exists,
    /// Nothing changed: there is no such key.
    Missing,
    /// Nothing changed: the key is not in the state that was expected.
    Different,
}

/// A change that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// What became of it.
    pub outcome: Outcome,
    /// The extent that the key no longer refers to. Its mark is written already.
    pub freed: Option<ExtentRef>,
}

impl Changed {
    fn nothing(outcome: Outcome) -> Changed {
        Changed { outcome, freed: None }
    }

    /// Whether the table changed, and an extent that came with the change is in use.
    pub fn took_effect(&self) -> bool {
        !matches!(self.outcome, Outcome::Exists | Outcome::Missing | Outcome::Different)
    }
}

/// Where a key was found: under the lock of its row.
#[derive(Clone, Copy, Debug)]
struct Found {
    place: usize,
    slot: usize,
    extent: Option<ExtentRef>,
}

/// What a search makes of a row that was sampled while it was being written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TornRows {
    /// It leads nowhere.
    Avoided,
    /// It may have room: the locks will tell.
    PresumedRoom,
}

/// What an attempt under locks came to.
enum Attempt {
    Done(Changed),
    /// The path did not hold; another has to be found.
    Again,
}

impl<'v> Change<'v> {
    pub(crate) fn operation(&self) -> Operation {
        match self {
            Change::Put(_) => Operation::Put,
            Change::Insert(_) => Operation::Insert,
            Change::Update(_) => Operation::Update,
            Change::Remove => Operation::Remove,
            Change::Swap(..) => Operation::CompareAndSwap,
            Change::RemoveIf(_) => Operation::CompareAndRemove,
        }
    }

    pub(crate) fn expected(&self) -> Option<Expected<'v>> {
        match self {
            Change::Swap(expected, _) | Change::RemoveIf(expected) => Some(*expected),
            _ => None,
        }
    }

    pub(crate) fn value(&self) -> Option<NewValue<'v>> {
        match self {
            Change::Put(value) | Change::Insert(value) | Change::Update(value) | Change::Swap(_, value) => Some(*value),
            Change::Remove | Change::RemoveIf(_) => None,
        }
    }

    pub(crate) fn extent(&self) -> Option<ExtentWrite<'v>> {
        match self.value() {
            Some(NewValue::Extent { extent, words }) => Some(ExtentWrite { extent, words }),
            _ => None,
        }
    }
}

impl Client {
    /// Carries out `change` on `key`.
    ///
    /// Round trips without contention: 2 for an existing inline key and for an insert whose rows have room (the usual
    /// case); 3 for an existing extent key, and for most inserts that have to move others.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::effect`] tells whether anything changed. `Full` only if no path exists among rows
    /// sampled in this operation. // [R-INSERT-5]
    pub async fn change(&mut self, lane: &mut dyn Lane, key: &[u8], change: Change<'_>) -> Result<Changed, Error> {
        match self.begin(lane, key, &change).await {
            Begun::Done(changed) => Ok(changed),
            begun => self.finish(lane, key, change, begun).await,
        }
    }

    /// The rest of a change that [`Client::begin`] of this client began with the same key and change. If it was another
    /// client, key or change, or if the client was used in between, the change begins anew.
    ///
    /// # Errors
    /// As [`Client::change`].
    pub async fn finish(
        &mut self,
        lane: &mut dyn Lane,
        key: &[u8],
        change: Change<'_>,
        begun: Begun,
    ) -> Result<Changed, Error> {
        let fabric = Error::fabric(change.operation());
        let result = match begun {
            Begun::Done(changed) => Ok(changed),
            Begun::Failed(error) => Err(error),
            Begun::Rest(rest) => self.change_rest(lane, key, change, rest).await,
        };
        if !self.journal.is_clean()
            && let Err(error) = self.settle(lane).await
            && result.is_ok()
        {
            return Err(fabric(error));
        }
        result
    }

    async fn change_rest(
        &mut self,
        lane: &mut dyn Lane,
        key: &[u8],
        change: Change<'_>,
        rest: Rest,
    ) -> Result<Changed, Error> {
        let operation = change.operation();
        let digest = self.table.placement().digest(key);
        let pair = self.table.placement().rows(digest);
        let stage = self.resume(rest, digest, pair, &change);
        self.entry_stage = stage;
        self.check_lengths(key, &change)?;
        if stage == Stage::Beginning {
            self.refuse_if_lost(operation)?;
            self.settle(lane).await.map_err(Error::fabric(operation))?;
            self.committed = false;
            self.waiting_since_ns = self.came_ns.take();
            if self.waiting_since_ns.is_some() {
                self.suspects.clear();
            }
        }
        let table = std::sync::Arc::clone(&self.table);
        let probe = table.rows().probe(key, digest);
        self.change_settled(lane, &probe, pair, change).await
    }

    #[inline]
    pub(crate) fn check_lengths(&self, key: &[u8], change: &Change<'_>) -> Result<(), Error> {
        let operation = change.operation();
        let (rows, format) = (self.table.rows(), self.table.rows().entry_format());
        if !rows.accepts_key(key.len()) {
            return Err(Error::KeyLength { operation, bytes: key.len(), format });
        }
        match change.value() {
            Some(NewValue::Inline(value))
                if !rows.accepts_value(value.len()) || rows.place(key.len(), value.len()) != Placement::Inline =>
            {
                Err(Error::ValueLength { operation, bytes: value.len(), format })
            }
            _ => Ok(()),
        }
    }

    async fn change_settled(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        change: Change<'_>,
    ) -> Result<Changed, Error> {
        if self.table.config().rules.lock_both_rows {
            return self.change_locking_both(lane, probe, pair, change).await;
        }
        // As printed: updates and deletes lock both rows, inserts only the rows of their path. // [R-LOCK-7]
        match change {
            Change::Insert(_) => self.insert_printed(lane, probe, pair, change).await,
            Change::Update(_) | Change::Remove | Change::Swap(..) | Change::RemoveIf(_) => {
                self.change_locking_both(lane, probe, pair, change).await
            }
            Change::Put(value) => {
                let updated = self.change_locking_both(lane, probe, pair, Change::Update(value)).await?;
                match updated.outcome {
                    Outcome::Missing => self.insert_printed(lane, probe, pair, change).await,
                    _ => Ok(updated),
                }
            }
        }
    }

    async fn insert_printed(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        change: Change<'_>,
    ) -> Result<Changed, Error> {
        self.attempts(lane, probe, pair, change, &[]).await
    }

    async fn change_locking_both(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        change: Change<'_>,
    ) -> Result<Changed, Error> {
        self.attempts(lane, probe, pair, change, &[pair.first, pair.second]).await
    }

    /// Locks `always` and the rows of a path, until a path holds under its locks.
    async fn attempts(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        change: Change<'_>,
        always: &[RowId],
    ) -> Result<Changed, Error> {
        let operation = change.operation();
        let inserts = matches!(change, Change::Put(_) | Change::Insert(_));
        // Where batches execute in place, the rows themselves are as near as any cache.
        let speculations = if lane.caps().local { 1 } else { self.config.speculations.max(1) };
        // What was begun in place has written it.
        let mut extent = change.extent().filter(|_| self.entry_stage == Stage::Beginning);
        let mut started_ns = 0;
        for attempt in 0..INSERT_ATTEMPTS {
            let path = if !inserts || attempt == 0 && lane.caps().local {
                None
            } else if attempt < speculations {
                self.speculate(pair)
            } else {
                self.release_held(lane).await.map_err(Error::fabric(operation))?;
                match self.sampled_path(lane, pair, operation).await {
                    // The room that was there may have gone to this very key, put by somebody else. // [R-INSERT-5]
                    Err(Error::Full { .. })
                        if !always.is_empty() && self.seems_there(lane, probe, pair, operation).await? =>
                    {
                        None
                    }
                    path => Some(path?),
                }
            };
            match std::mem::take(&mut self.entry_stage) {
                // What was begun in place has its locks and samples.
                Stage::Locked => {}
                Stage::Contended(conflict) => {
                    let locks = self.plan_rows(always, path.as_ref(), pair);
                    self.acquire_contended(lane, &locks, conflict, operation).await?;
                }
                Stage::Beginning => {
                    let locks = self.plan_rows(always, path.as_ref(), pair);
                    self.acquire(lane, &locks, extent.take(), operation).await?;
                }
            }
            self.verify_window(lane, operation).await?;
            match self.attempt(lane, probe, pair, change).await? {
                Attempt::Done(changed) => return Ok(changed),
                Attempt::Again if attempt == 0 => started_ns = lane.now_ns(),
                Attempt::Again => self.counters.stale_paths += 1,
            }
        }
        self.release_held(lane).await.map_err(Error::fabric(operation))?;
        self.counters.timeouts += 1;
        let lock = self.table.locks().lock_of(pair.first);
        let waited_ms = lane.now_ns().saturating_sub(started_ns) / 1_000_000;
        Err(Error::Busy { operation, lock, owner: None, waited_ms })
    }

    /// Fills the window with the rows to lock and sample, and says which locks they need.
    fn plan_rows(&mut self, always: &[RowId], path: Option<&Path>, pair: RowPair) -> LockSet {
        let mut rows = std::mem::take(&mut self.plan);
        rows.clear();
        rows.extend_from_slice(always);
        rows.extend(path.into_iter().flatten().map(|hop| hop.row));
        if rows.is_empty() {
            rows.push(pair.first);
        }
        let locks = lock_set(&self.table, rows.iter().copied());
        if self.config.synchronize == Synchronize::Locks {
            let group = u64::from(self.table.config().rows_per_lock);
            let wanted = rows.len();
            for i in 0..wanted {
                let first = rows[i].0 / group * group;
                rows.extend((first..first + group).map(RowId));
            }
        }
        cover(&mut rows, self.config.covering_gap_rows);
        self.window.clear();
        self.window.extend(&rows);
        self.plan = rows;
        locks
    }

    /// A path by the cache alone. // [R-INSERT-2]
    fn speculate(&mut self, pair: RowPair) -> Option<Path> {
        let limits = self.limits();
        self.search.start(pair, self.roots(&[pair.first, pair.second]), limits);
        let cache = &self.cache;
        self.search.advance(&self.table, |row| cache.get(row).map_or(Sight::PresumedRoom, Sight::Row));
        self.search.found()
    }

    fn limits(&self) -> Limits {
        let depth = self.config.search_depth.min(usize::from(self.table.config().max_path_rows) - 1);
        Limits { depth, rows: self.config.search_rows }
    }

    fn roots<'r>(&self, both: &'r [RowId; 2]) -> &'r [RowId] {
        match self.config.search_roots {
            SearchRoots::Both => both,
            SearchRoots::Primary => &both[..1],
        }
    }

    /// A path over rows sampled now, without locks. // [R-INSERT-5]
    ///
    /// Rows that are being written are avoided as long as there is a path around them: their writer may have died, and
    /// whoever wants their locks would wait for nothing. Only if there is none are they presumed to have room.
    async fn sampled_path(&mut self, lane: &mut dyn Lane, pair: RowPair, operation: Operation) -> Result<Path, Error> {
        self.counters.sampled_searches += 1;
        for torn in [TornRows::Avoided, TornRows::PresumedRoom] {
            if let Some(path) = self.search_sampling(lane, pair, torn, operation).await? {
                return Ok(path);
            }
            let (sampled, rows) = (&self.sampled, self.table.rows());
            let mut samples = sampled.rows().iter().enumerate();
            if samples.all(|(place, row)| rows.verify(*row, sampled.at(place)).is_ok()) {
                break;
            }
        }
        Err(Error::Full { operation, rows: self.search.visited() })
    }

    /// Whether the rows of `pair`, sampled now, seem to hold the key. 1 round trip.
    async fn seems_there(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        operation: Operation,
    ) -> Result<bool, Error> {
        self.window.clear();
        self.window.extend(&[pair.first, pair.second]);
        self.sample_window(lane).await.map_err(Error::fabric(operation))?;
        Ok((0..self.window.rows().len()).any(|place| self.table.rows().find(self.window.at(place), probe, 0).is_some()))
    }

    async fn search_sampling(
        &mut self,
        lane: &mut dyn Lane,
        pair: RowPair,
        torn: TornRows,
        operation: Operation,
    ) -> Result<Option<Path>, Error> {
        let limits = self.limits();
        let most = if lane.caps().local { LOCAL_SEARCH_BATCH_ROWS } else { SEARCH_BATCH_ROWS };
        self.sampled.clear();
        let both = [pair.first, pair.second];
        let roots = self.roots(&both);
        self.search.start(pair, roots, limits);
        loop {
            let (sampled, rows) = (&self.sampled, self.table.rows());
            let progress = self.search.advance(&self.table, |row| match sampled.row(row) {
                None => Sight::Unsampled,
                Some(words) if rows.verify(row, words).is_ok() => Sight::Row(words),
                // The key's own rows have to be locked anyway.
                Some(_) if torn == TornRows::PresumedRoom || both.contains(&row) => Sight::PresumedRoom,
                Some(_) => Sight::Closed,
            });
            match progress {
                Progress::Found | Progress::Exhausted => return Ok(self.search.found()),
                Progress::NeedsRows => {
                    let wanted = self.search.wanted(most, |row| self.sampled.place(row).is_some());
                    let into = self.sampled.extend(wanted);
                    let mut batch: ArrayVec<Verb<'_>, SEARCH_BATCH_ROWS> = ArrayVec::new();
                    for (row, into) in wanted.iter().zip(into.chunks_exact_mut(rows.row_words())) {
                        batch.push(Verb::Read { addr: self.table.geometry().row(*row), into });
                    }
                    post(lane, &mut batch[..]).await.map_err(Error::fabric(operation))?;
                }
            }
        }
    }

    /// Makes sure that every row sampled under a lock is whole: nobody but this client may be writing it.
    async fn verify_window(&mut self, lane: &mut dyn Lane, operation: Operation) -> Result<(), Error> {
        let mut torn = None;
        for sample in 0..LOCKED_ROW_SAMPLES {
            if sample > 0 {
                self.counters.row_retries += 1;
                self.counters.crc_retries += 1;
                self.sample_window(lane).await.map_err(Error::fabric(operation))?;
            }
            let (window, rows) = (&self.window, self.table.rows());
            // Rows that a covering READ fetched along may belong to somebody else's lock, and be in the middle of a
            // write.
            let mine = window.rows().iter().copied().filter(|row| self.journal.holds_row(&self.table, *row));
            let is_torn = |row: RowId| window.row(row).is_none_or(|words| rows.verify(row, words).is_err());
            torn = mine.into_iter().find(|row| is_torn(*row));
            if torn.is_none() {
                return Ok(());
            }
        }
        match torn {
            // A lock that was won before the table was destroyed guards rows that no longer are any. // [R-DESTROY-2]
            Some(_) if is_marked_destroyed(lane, &self.table).await.map_err(Error::fabric(operation))? => {
                Err(Error::Destroyed { operation })
            }
            Some(row) => Err(Error::Corrupt { operation, place: Place::Row(row) }),
            None => Ok(()),
        }
    }

    /// Under the locks: changes the key where it is, or inserts it along a path among the locked rows.
    async fn attempt(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        change: Change<'_>,
    ) -> Result<Attempt, Error> {
        let operation = change.operation();
        let found = self.locate(lane, probe, pair, operation).await?;
        if let (Some(expected), Some(found)) = (change.expected(), &found)
            && !self.is_as_expected(lane, found, expected, operation).await?
        {
            return self.leave(lane, Outcome::Different, operation).await;
        }
        match (change, found) {
            (Change::Insert(_), Some(_)) => self.leave(lane, Outcome::Exists, operation).await,
            (Change::Update(_) | Change::Remove | Change::Swap(..) | Change::RemoveIf(_), None) => {
                self.leave(lane, Outcome::Missing, operation).await
            }
            (_, Some(found)) => self.change_in_place(lane, probe, found, change).await,
            (Change::Put(value) | Change::Insert(value), None) => {
                let Some(path) = self.second_search(pair) else {
                    self.remember_window();
                    return Ok(Attempt::Again);
                };
                self.insert_along(lane, probe, &path, value, operation).await
            }
        }
    }

    /// Whether the key, found under its lock, is in the state a change depends on. 1 round trip for the value of an
    /// extent of the same length, none otherwise. // [R-CAS-1] [R-CAS-2]
    async fn is_as_expected(
        &mut self,
        lane: &mut dyn Lane,
        found: &Found,
        expected: Expected<'_>,
        operation: Operation,
    ) -> Result<bool, Error> {
        let row = self.window.rows()[found.place];
        let words = self.window.at(found.place);
        let rows = self.table.rows();
        match (expected, found.extent) {
            (Expected::Unchanged(token), None) => {
                Ok(token == Token::Inline { row, version: rows.trailer(words).version() })
            }
            (Expected::Unchanged(token), Some(extent)) => Ok(token == Token::Extent { generation: extent.generation }),
            (Expected::Value(value), None) => Ok(rows.inline_value_is(words, found.slot, value)),
            (Expected::Value(value), Some(extent)) if extent.value_bytes as usize != value.len() => Ok(false),
            (Expected::Value(value), Some(extent)) => {
                read_extent(lane, &extent, &mut self.extent).await.map_err(Error::fabric(operation))?;
                let sums = self.table.rows().sums();
                let place = Place::Extent { offset: extent.offset, generation: extent.generation };
                let parsed = parse_extent(&self.extent, &extent, sums);
                Ok(parsed.map_err(|_| Error::Corrupt { operation, place })?.has_value(value))
            }
        }
    }

    async fn leave(&mut self, lane: &mut dyn Lane, outcome: Outcome, operation: Operation) -> Result<Attempt, Error> {
        self.release_held(lane).await.map_err(Error::fabric(operation))?;
        self.remember_window();
        Ok(Attempt::Done(Changed::nothing(outcome)))
    }

    /// Rows seen under locks are the best hints there are.
    fn remember_window(&mut self) {
        for (place, row) in self.window.rows().iter().enumerate() {
            // Rows that a covering READ fetched along may be torn.
            let words = self.window.at(place);
            if self.config.covering_gap_rows == 0 || self.table.rows().verify(*row, words).is_ok() {
                self.cache.put(*row, words);
            }
        }
    }

    /// Looks for the key in those of its rows that are in the window.
    async fn locate(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        operation: Operation,
    ) -> Result<Option<Found>, Error> {
        let second = if pair.is_single() { None } else { Some(pair.second) };
        for row in [Some(pair.first), second].into_iter().flatten() {
            let Some(place) = self.window.place(row).filter(|_| self.journal.holds_row(&self.table, row)) else {
                continue;
            };
            let mut from = 0;
            while let Some(candidate) = self.table.rows().find(self.window.at(place), probe, from) {
                let slot = candidate.slot();
                match candidate {
                    Candidate::Inline(_) => return Ok(Some(Found { place, slot, extent: None })),
                    Candidate::Extent(_) => {
                        let extent = self.table.rows().extent_of(self.window.at(place), slot);
                        if self.extent_has_key(lane, &extent, probe, row, slot, operation).await? {
                            return Ok(Some(Found { place, slot, extent: Some(extent) }));
                        }
                    }
                }
                from = slot + 1;
            }
        }
        Ok(None)
    }

    /// Whether `extent`, which the lock keeps in place, holds the key: equal digests are not equal keys. 1 round trip
    /// unless the lengths differ. // [R-UPDATE-2]
    async fn extent_has_key(
        &mut self,
        lane: &mut dyn Lane,
        extent: &ExtentRef,
        probe: &Probe<'_>,
        row: RowId,
        slot: usize,
        operation: Operation,
    ) -> Result<bool, Error> {
        let corrupt = Error::Corrupt { operation, place: Place::Entry { row, slot } };
        if extent.mark_offset(self.table.config(), self.table.geometry()).is_none() {
            return Err(corrupt);
        }
        let key = probe.key();
        if extent.key_bytes as usize != key.len() {
            return Ok(false);
        }
        const { assert!(MAX_KEY_BYTES / 8 + EXTENT_HEADER_WORDS < 1 << 17, "one READ on every fabric") };
        self.extent.clear();
        self.extent.resize(EXTENT_HEADER_WORDS + key.len().div_ceil(8), 0);
        let read = Verb::Read { addr: guira_fabric::Addr::main(extent.offset), into: &mut self.extent };
        post(lane, [read]).await.map_err(Error::fabric(operation))?;
        match guira_layout::extent_key_matches(&self.extent, extent, key) {
            Ok(matches) => Ok(matches),
            Err(_) => {
                let place = Place::Extent { offset: extent.offset, generation: extent.generation };
                Err(Error::Corrupt { operation, place })
            }
        }
    }

    /// Replaces or removes the key where it is. 1 round trip. // [R-UPDATE-1]
    async fn change_in_place(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        found: Found,
        change: Change<'_>,
    ) -> Result<Attempt, Error> {
        let outcome = match change.value() {
            Some(value) => {
                let placement = self.encode_entry(probe, value);
                let row = self.window.at_mut(found.place);
                self.table.rows().put_entry(row, found.slot, &self.entry, placement);
                Outcome::Replaced
            }
            None => {
                self.table.rows().clear_entry(self.window.at_mut(found.place), found.slot);
                Outcome::Removed
            }
        };
        let write = self.finish_row(found.place, found.slot);
        self.commit(lane, &[write], found.extent, change.operation()).await?;
        Ok(Attempt::Done(Changed { outcome, freed: found.extent }))
    }

    /// Ends the change of one window row, and notes what has to be written.
    fn finish_row(&mut self, place: usize, slot: usize) -> Write {
        let (row, rows) = (self.window.rows()[place], self.table.rows());
        let words = self.window.at_mut(place);
        rows.finish(row, words);
        Write { place, row, slot }
    }

    fn encode_entry(&mut self, probe: &Probe<'_>, value: NewValue<'_>) -> Placement {
        match value {
            NewValue::Inline(value) => {
                self.table.rows().encode_inline(&mut self.entry, probe, value);
                Placement::Inline
            }
            NewValue::Extent { extent, .. } => {
                self.table.rows().encode_extent_entry(&mut self.entry, &extent);
                Placement::Extent
            }
        }
    }

    /// A path among the rows that are locked and were sampled under these locks. // [R-INSERT-3]
    fn second_search(&mut self, pair: RowPair) -> Option<Path> {
        let limits = self.limits();
        let both = [pair.first, pair.second];
        let roots = self.roots(&both);
        self.search.start(pair, roots, limits);
        let (table, window, journal) = (&self.table, &self.window, &self.journal);
        self.search.advance(table, |row| match window.row(row) {
            Some(words) if journal.holds_row(table, row) => Sight::Row(words),
            _ => Sight::Closed,
        });
        self.search.found()
    }

    /// Moves entries along `path`, from its empty end, and puts the new one in its first row. 1 round trip.
    /// [R-INSERT-4]
    async fn insert_along(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        path: &Path,
        value: NewValue<'_>,
        operation: Operation,
    ) -> Result<Attempt, Error> {
        let mut writes: ArrayVec<Write, { crate::search::MAX_PATH_ROWS }> = ArrayVec::new();
        for at in (0..path.len()).rev() {
            let hop = path[at];
            let (Some(place), Some(slot)) = (self.window.place(hop.row), hop.slot) else {
                return Ok(Attempt::Again);
            };
            let placement = match at.checked_sub(1).map(|before| path[before]) {
                None => self.encode_entry(probe, value),
                Some(before) => {
                    let (Some(from), Some(slot)) = (self.window.row(before.row), before.slot) else {
                        return Ok(Attempt::Again);
                    };
                    self.entry.copy_from_slice(self.table.rows().entry(from, slot));
                    self.table.rows().placement(from, slot)
                }
            };
            self.table.rows().put_entry(self.window.at_mut(place), slot, &self.entry, placement);
            writes.push(self.finish_row(place, slot));
        }
        self.counters.moves += path.len() as u64 - 1;
        self.commit(lane, &writes, None, operation).await?;
        Ok(Attempt::Done(Changed { outcome: Outcome::Inserted, freed: None }))
    }
}
