//! Changes that need more than one row, or more than one try: locks held by other clients, rows that are sampled again,
//! and inserts that move entries along a cuckoo path.

use std::ops::RangeInclusive;

use arrayvec::ArrayVec;
use guira_fabric::{Lane, Verb, post};
use guira_layout::{Probe, RowId};

use super::commit::{Commit, Write};
use super::full_rows::FullBits;
use super::pair::{Begun, Continuation, Stage};
use super::search::{Limits, MAX_PATH_ROWS, Path, Progress, RowView, Unsampled};
use super::split::{SPLIT_AFTER_ROWS, Split};
use super::{Changed, NewValue, Outcome, Task};
use crate::change::window::{cover, rows_between, stretches};
use crate::change::workspace::Paths;
use crate::locks::{Conflict, LockSet, SeenKey, divide_among_messages, lock_set};
use crate::table::destroy::is_marked_destroyed;
use crate::table::policy::LockedRows;
use crate::{Acquisition, Client, DamagedItem, ErrorKind, RowPair, SearchOrder, SearchRoots, Synchronize};

/// Attempts of one insert before it fails with [`ErrorKind::Busy`]: each failed one means that another client moved
/// entries along the path in the meantime.
const INSERT_ATTEMPTS: u32 = 1024;
/// Attempts that lock only the key's rows if the cache knows no path: it may be stale.
const KEY_ROWS_ATTEMPTS: u32 = 2;
/// Rows for which the batches of a sampled search ask: few at first, because up to a fill of 95 % a path is mostly found
/// after one or two of them.
const EARLY_BATCH_ROWS: [usize; 5] = [4, 8, 8, 8, 8];
/// Rows for which the first batch asks where few rows are visited at all.
const FIRST_BATCH_ROWS: usize = 8;
/// Rows for which each batch asks where batches execute in place, and splitting them costs nothing: enough for most
/// searches up to a fill of 90 %, and few of them in vain. (docs/decisions/0048)
const LOCAL_BATCH_ROWS: usize = 5;
/// Rows for which later batches ask, so that a full table is found full soon.
const LATE_BATCH_ROWS: usize = 32;
/// Bytes between two rows that a search fetches along with them: a READ of its own costs a network card more.
/// (docs/decisions/0048)
const SEARCH_GAP_BYTES: u64 = 768;
/// Samples of a locked row before it counts as damaged. No fabric lets a READ overtake the previous owner's last WRITE;
/// the repetition only guards against a fabric that does.
const LOCKED_ROW_SAMPLES: u32 = 3;

/// Treatment of rows that a search sampled while they were being written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TornRows {
    /// No path leads through the row.
    Avoided,
    /// The row is presumed to have a free entry, which is checked under its lock.
    PresumedRoom,
}

/// The result of an attempt under locks.
pub(super) enum Attempt {
    Done(Changed),
    /// The path no longer holds; another one must be found.
    Again,
    /// The key is in another segment, which the client knows now. No lock is held.
    Elsewhere,
}

impl Client {
    /// Locks `always` and the rows of a path, until a path holds under its locks. Returns `None`, without a lock, if the
    /// key is in another segment, which the client knows now. [R-GROW-5]
    pub(crate) async fn attempts(
        &mut self,
        lane: &mut dyn Lane,
        task: Task<'_>,
        always: &[RowId],
    ) -> Result<Option<Changed>, ErrorKind> {
        let Task { pair, change, .. } = task;
        let inserts = change.inserts();
        // Where batches execute in place, reading the rows is as cheap as any cache.
        let speculations = if lane.caps().local { 1 } else { self.reader.config.speculations.max(1) };
        // If the change was begun in place, its extent is written.
        let mut extent = change.extent().filter(|_| self.progress.stage == Stage::Start);
        self.paths.sampled.clear();
        self.paths.full.clear();
        let mut first_attempt = u32::from(self.progress.stage == Stage::NoRoom);
        let mut started_ns = if first_attempt > 0 { lane.now_ns() } else { 0 };
        if self.progress.stage == Stage::NoRoom && self.may_search_under_locks(lane, pair) {
            if let Some(changed) = self.search_under_locks(lane, task).await? {
                return Ok(Some(changed));
            }
            // The cache knows no more than the rows that were just sampled, which the search has.
            first_attempt = speculations;
        } else if self.progress.stage == Stage::NoRoom && lane.caps().local {
            self.paths.sampled.add_pair(pair, &self.work.pair);
        }
        for attempt in first_attempt..INSERT_ATTEMPTS {
            let may_speculate = attempt < speculations;
            let path = if !inserts || attempt == 0 && lane.caps().local {
                None
            } else if let Some(hint) = may_speculate.then(|| self.speculate(pair)).flatten() {
                Some(hint)
            } else if may_speculate && attempt < KEY_ROWS_ATTEMPTS {
                None
            } else {
                self.release_held(lane).await?;
                match self.sampled_path(lane, pair).await {
                    // The last free entry may have gone to this very key, put by another client. // [R-INSERT-5]
                    Err(ErrorKind::Full { .. }) if !always.is_empty() && self.seems_present(lane, task).await? => None,
                    // Another client has split the segment meanwhile. // [R-GROW-5]
                    Err(ErrorKind::Full { .. }) if self.has_left(pair, task.probe.digest())? => return Ok(None),
                    // Rare, and larger than the rest of a change's future.
                    Err(ErrorKind::Full { .. }) if self.may_split() => {
                        match Box::pin(self.split_segment(lane, pair)).await? {
                            Split::Done => return Ok(None),
                            Split::Impossible => continue,
                        }
                    }
                    path => Some(path.map_err(|error| self.why_full(error))?),
                }
            };
            let locks = self.plan_rows(task, always, path.as_ref());
            let conflict = match std::mem::take(&mut self.progress.stage) {
                Stage::Contended(conflict) => Some(conflict),
                Stage::Start | Stage::NoRoom | Stage::Elsewhere => {
                    self.try_acquire(lane, &locks, extent.take()).await?
                }
            };
            if let Some(conflict) = conflict
                && let Some(changed) = self.wait_for_locks(lane, task, &locks, conflict).await?
            {
                return Ok(Some(changed));
            }
            self.verify_window(lane).await?;
            match self.attempt(lane, task).await? {
                Attempt::Done(changed) => return Ok(Some(changed)),
                Attempt::Elsewhere => return Ok(None),
                Attempt::Again if attempt == 0 => started_ns = lane.now_ns(),
                Attempt::Again => self.reader.counters.stale_paths += 1,
            }
        }
        self.release_held(lane).await?;
        self.reader.counters.timeouts += 1;
        let lock = self.table.locks().lock_of(pair.first);
        let waited_ms = lane.now_ns().saturating_sub(started_ns) / 1_000_000;
        Err(ErrorKind::Busy { lock, owner: None, waited_ms })
    }

    /// Whether an insert that found no room may look for it under its locks: not where its settings say how locks are
    /// taken and paths are searched, nor where a row costs no round trip. [R-INSERT-6]
    fn may_search_under_locks(&self, lane: &dyn Lane, pair: RowPair) -> bool {
        let config = &self.reader.config;
        let is_default = config.acquisition == Acquisition::Together
            && config.synchronize == Synchronize::Path
            && self.is_default_search()
            && self.table.policy().locked_rows == LockedRows::OfKeyAndPath;
        let holds_both = [pair.first, pair.second].iter().all(|row| self.journal.holds_row(&self.table, *row));
        is_default && holds_both && !pair.is_single() && (!lane.caps().local || self.uses_map(lane))
    }

    /// Inserts the key if there is a path among the rows under the locks held, which are sampled one lock after the other.
    /// Returns `None` if there is none, or if a row is damaged. 2 or 3 round trips if it inserts, otherwise 1 or 2.
    /// [R-INSERT-6]
    async fn search_under_locks(&mut self, lane: &mut dyn Lane, task: Task<'_>) -> Result<Option<Changed>, ErrorKind> {
        let roots = [task.pair.first, task.pair.second];
        if lane.caps().local {
            // The change may go on after another one of its client, which left its own rows. // [R-LOCK-7]
            self.sample_pair(lane, task.pair).await?;
        }
        self.work.window.clear();
        self.work.window.add_pair(task.pair, &self.work.pair);
        if self.uses_map(lane) {
            return self.search_by_map(lane, task).await;
        }
        for (_, rows) in self.ranges_under_locks(roots) {
            if !self.sample_under_locks(lane, rows).await? {
                return Ok(None);
            }
            match self.attempt(lane, task).await? {
                Attempt::Done(changed) => return Ok(Some(changed)),
                Attempt::Again => {}
                Attempt::Elsewhere => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Returns, for each of the locks of `roots`, which are in the window, how many of their entries may move to another
    /// row under it, and the rows from the first to the last of these and of the roots: the lock with most entries first.
    fn ranges_under_locks(&mut self, roots: [RowId; 2]) -> ArrayVec<(usize, RangeInclusive<u64>), 2> {
        let (table, window) = (&self.table, &self.work.window);
        let group = |row: RowId| row.0 / u64::from(table.config().rows_per_lock);
        let mut ranges = ArrayVec::<(usize, RangeInclusive<u64>), 2>::new();
        for root in roots {
            match ranges.iter_mut().find(|(_, rows)| group(RowId(*rows.start())) == group(root)) {
                Some((_, rows)) => *rows = root.0.min(*rows.start())..=root.0.max(*rows.end()),
                None => ranges.push((0, root.0..=root.0)),
            }
        }
        for (row, words) in roots.into_iter().filter_map(|row| Some((row, window.row(row)?))) {
            for index in table.rows().occupied_entries(words) {
                let Some(to) = table.entry_rows(row, words, index, &mut self.paths.search.key).other(row) else {
                    continue;
                };
                if let Some((entries, rows)) =
                    ranges.iter_mut().find(|(_, rows)| group(RowId(*rows.start())) == group(to))
                {
                    *entries += 1;
                    *rows = to.0.min(*rows.start())..=to.0.max(*rows.end());
                }
            }
        }
        ranges.sort_by_key(|(entries, _)| std::cmp::Reverse(*entries));
        ranges
    }

    /// Samples `rows`, whose lock is held, and adds them to the window. Returns whether all of them verify: one that does
    /// not is damaged, but the insert may not need it, and a search for another path avoids it. 1 round trip.
    async fn sample_under_locks(&mut self, lane: &mut dyn Lane, rows: RangeInclusive<u64>) -> Result<bool, ErrorKind> {
        let (first, Paths { sampled, plan, .. }) = (RowId(*rows.start()), &mut self.paths);
        plan.clear();
        plan.extend(rows.map(RowId));
        // One READ fetches all rows of a lock. // [R-READ-2]
        post(lane, [self.table.read_row(first, sampled.extend(plan))]).await?;
        let mut are_whole = true;
        for (row, words) in plan.iter().filter_map(|row| Some((*row, sampled.row(*row)?))) {
            are_whole &= self.table.rows().verify(row, words).is_ok();
            self.work.window.add(row, words);
        }
        Ok(are_whole)
    }

    /// Fills the window with the rows to lock and sample, and returns the locks they need.
    fn plan_rows(&mut self, task: Task<'_>, always: &[RowId], path: Option<&Path>) -> LockSet {
        let Task { pair, change, .. } = task;
        let mut rows = std::mem::take(&mut self.paths.plan);
        rows.clear();
        rows.extend_from_slice(always);
        rows.extend(path.into_iter().flatten().map(|hop| hop.row));
        if rows.is_empty() {
            rows.push(pair.first);
        }
        let mut locks = lock_set(&self.table, rows.iter().copied());
        divide_among_messages(&self.table, &mut locks, self.reader.config.locks_per_message);
        if change.inserts() && self.reader.config.synchronize == Synchronize::Locks {
            let group = u64::from(self.table.config().rows_per_lock);
            let wanted = rows.len();
            for i in 0..wanted {
                let first = rows[i].0 / group * group;
                rows.extend((first..first + group).map(RowId));
            }
        }
        let gap = self.reader.config.covering_gap_rows;
        cover(&mut rows, |before, after| rows_between(before, after) <= gap);
        self.work.window.clear();
        self.work.window.extend(&rows);
        self.paths.plan = rows;
        locks
    }

    /// Finds a path from the cache alone. [R-INSERT-2]
    pub(super) fn speculate(&mut self, pair: RowPair) -> Option<Path> {
        let limits = self.limits();
        self.paths.search.start(pair, self.roots(&[pair.first, pair.second]), limits);
        let cache = &self.reader.cache;
        self.paths.search.advance(&self.table, |row| cache.get(row).map_or(RowView::PresumedRoom, RowView::Row));
        self.paths.search.found()
    }

    pub(super) fn limits(&self) -> Limits {
        let depth = self.reader.config.search_depth.min(usize::from(self.table.config().max_path_rows) - 1);
        let config = &self.reader.config;
        let rows = if self.may_split() { config.search_rows.min(SPLIT_AFTER_ROWS) } else { config.search_rows };
        let (locks_per_message, insert_row) = (Some(config.locks_per_message), config.insert_row);
        Limits { depth, rows, locks_per_message, insert_row, unsampled: Unsampled::InOrder }
    }

    fn roots<'r>(&self, both: &'r [RowId; 2]) -> &'r [RowId] {
        match self.reader.config.search_roots {
            SearchRoots::Both => both,
            SearchRoots::Primary => &both[..1],
        }
    }

    /// Finds a path over rows sampled in this operation, without locks: those in `sampled`, which it clears, and others
    /// that it samples now. [R-INSERT-5]
    ///
    /// Rows that are being written are avoided as long as there is a path around them: their writer may have died, and
    /// waiting for their locks would be in vain. Only if there is no such path are they presumed to have a free entry.
    async fn sampled_path(&mut self, lane: &mut dyn Lane, pair: RowPair) -> Result<Path, ErrorKind> {
        self.reader.counters.sampled_searches += 1;
        for torn in [TornRows::Avoided, TornRows::PresumedRoom] {
            let found = self.search_sampling(lane, pair, torn).await?;
            let (sampled, rows) = (&self.paths.sampled, self.table.rows());
            let mut samples = sampled.rows().iter().enumerate();
            let is_last = found.is_some() || samples.all(|(place, row)| rows.verify(*row, sampled.at(place)).is_ok());
            self.paths.sampled.clear();
            if let Some(path) = found {
                return Ok(path);
            }
            if is_last {
                break;
            }
        }
        Err(ErrorKind::Full { rows: self.paths.search.visited() })
    }

    /// Whether the rows of `task`, sampled now, appear to hold its key. 1 round trip.
    async fn seems_present(&mut self, lane: &mut dyn Lane, task: Task<'_>) -> Result<bool, ErrorKind> {
        let Task { probe, pair, .. } = task;
        self.work.window.clear();
        self.work.window.extend(&[pair.first, pair.second]);
        self.sample_window(lane).await?;
        Ok((0..self.work.window.rows().len())
            .any(|place| self.table.rows().find(self.work.window.at(place), probe, 0).is_some()))
    }

    /// Searches for a path over rows that are in `sampled` or are sampled now, and adds these. Returns `None` if there
    /// is none.
    async fn search_sampling(
        &mut self,
        lane: &mut dyn Lane,
        pair: RowPair,
        torn: TornRows,
    ) -> Result<Option<Path>, ErrorKind> {
        let unsampled = if self.saves_reads(lane) { Unsampled::Last } else { Unsampled::InOrder };
        let limits = Limits { unsampled, ..self.limits() };
        let both = [pair.first, pair.second];
        self.paths.search.start(pair, self.roots(&both), limits);
        // Ends: each batch samples a row, of those within the limits. The count is of batches before it.
        for batch in 0.. {
            let (sampled, rows) = (&self.paths.sampled, self.table.rows());
            let progress = self.paths.search.advance(&self.table, |row| match sampled.row(row) {
                None => RowView::Unsampled,
                Some(words) if rows.verify(row, words).is_ok() => RowView::Row(words),
                // The key's own rows must be locked anyway.
                Some(_) if torn == TornRows::PresumedRoom || both.contains(&row) => RowView::PresumedRoom,
                Some(_) => RowView::Closed,
            });
            match progress {
                Progress::Found | Progress::Exhausted => break,
                Progress::NeedsRows => {
                    let most = match unsampled {
                        Unsampled::Last => EARLY_BATCH_ROWS.get(batch).copied().unwrap_or(LATE_BATCH_ROWS),
                        Unsampled::InOrder if lane.caps().local => LOCAL_BATCH_ROWS,
                        Unsampled::InOrder if batch == 0 => FIRST_BATCH_ROWS,
                        Unsampled::InOrder => LATE_BATCH_ROWS,
                    };
                    self.sample_for_search(lane, most).await?;
                }
            }
        }
        Ok(self.paths.search.found())
    }

    /// Whether a search makes the most of the rows that it samples: not where a row costs no round trip, where a few rows
    /// without room are the reason to split a segment, and where settings say how paths are searched. [R-INSERT-2]
    fn saves_reads(&self, lane: &dyn Lane) -> bool {
        self.is_default_search() && !lane.caps().local && !self.may_split()
    }

    /// Whether paths are searched as by default.
    pub(super) fn is_default_search(&self) -> bool {
        let config = &self.reader.config;
        config.search == SearchOrder::BreadthFirst && config.search_roots == SearchRoots::Both
    }

    /// Samples the rows that the search wants next, up to `most`, and rows in small gaps between them. 1 round trip.
    pub(super) async fn sample_for_search(&mut self, lane: &mut dyn Lane, most: usize) -> Result<(), ErrorKind> {
        let gap_bytes = if self.saves_reads(lane) { SEARCH_GAP_BYTES } else { 0 };
        let gap = gap_bytes / u64::from(self.table.config().row_bytes);
        let Paths { search, sampled, plan: wanted, .. } = &mut self.paths;
        search.wanted(most, |row| sampled.place(row).is_some(), wanted);
        cover(wanted, |before, after| {
            rows_between(before, after) <= gap && (before.0 + 1..after.0).all(|row| sampled.place(RowId(row)).is_none())
        });
        let row_words = self.table.rows().row_words();
        let reads = stretches(wanted, sampled.extend(wanted), row_words, |_| true);
        // At most one READ for each row that the search wants: a gap that is covered is shorter than a READ may be.
        let mut batch = ArrayVec::<Verb<'_>, LATE_BATCH_ROWS>::new();
        batch.extend(reads.map(|(row, into)| self.table.read_row(row, into)));
        post(lane, &mut batch[..]).await?;
        drop(batch);
        if self.reader.caches_all_operations(lane) {
            let (sampled, rows) = (&self.paths.sampled, self.table.rows());
            let new = self.paths.plan.iter().filter_map(|row| Some((*row, sampled.row(*row)?)));
            let whole = new.filter(|(row, words)| rows.verify(*row, words).is_ok());
            whole.for_each(|(row, words)| self.reader.cache.put(row, words));
        }
        Ok(())
    }

    /// Ensures that every row sampled under a lock is whole: no other client may be writing it.
    pub(super) async fn verify_window(&mut self, lane: &mut dyn Lane) -> Result<(), ErrorKind> {
        let mut torn = None;
        for sample in 0..LOCKED_ROW_SAMPLES {
            if sample > 0 {
                self.reader.counters.row_retries += 1;
                self.reader.counters.crc_retries += 1;
                self.sample_window(lane).await?;
            }
            let (window, rows) = (&self.work.window, self.table.rows());
            // Rows that a covering READ also fetched may belong to another client's lock, and be half written.
            let mine = window.rows().iter().copied().filter(|row| self.journal.holds_row(&self.table, *row));
            let is_torn = |row: RowId| window.row(row).is_none_or(|words| rows.verify(row, words).is_err());
            torn = mine.into_iter().find(|row| is_torn(*row));
            if torn.is_none() {
                return Ok(());
            }
        }
        match torn {
            // A lock that was won before the table was destroyed guards rows that are no longer valid. // [R-DESTROY-2]
            Some(_) if is_marked_destroyed(lane, &self.table).await? => Err(ErrorKind::Destroyed),
            Some(row) => Err(ErrorKind::Corrupt { item: DamagedItem::Row(row) }),
            None => Ok(()),
        }
    }

    /// Changes the key where it is, or inserts it along a path among the locked rows. Called with the locks held.
    pub(super) async fn attempt(&mut self, lane: &mut dyn Lane, task: Task<'_>) -> Result<Attempt, ErrorKind> {
        let Task { probe, pair, change } = task;
        let at_hand = self.take_pair(pair);
        match self.change_locked(lane, task, at_hand).await {
            Begun::Done(changed) => {
                self.remember_window();
                if changed.took_effect() {
                    self.remember_pair(pair, at_hand);
                }
                Ok(Attempt::Done(changed))
            }
            Begun::Failed(error) => Err(error),
            Begun::Continue(Continuation(Stage::NoRoom)) => match (change.value(), self.second_search(pair)) {
                (Some(value), Some(path)) => self.insert_along(lane, probe, &path, value).await,
                _ => {
                    self.remember_window();
                    Ok(Attempt::Again)
                }
            },
            Begun::Continue(Continuation(Stage::Elsewhere)) => Ok(Attempt::Elsewhere),
            // A row that verified before: another client writes it without its lock.
            Begun::Continue(_) => Ok(Attempt::Again),
        }
    }

    /// Waits for `locks` after a try that failed because of `conflict`, and samples the window under them, unless the
    /// change is complete before: see [`Client::write_watching`].
    async fn wait_for_locks(
        &mut self,
        lane: &mut dyn Lane,
        task: Task<'_>,
        locks: &LockSet,
        conflict: Conflict,
    ) -> Result<Option<Changed>, ErrorKind> {
        let begun = self.progress.seen.take().filter(|seen| seen.is_of(&task));
        match begun.or_else(|| self.see_in_window(&task)) {
            Some(seen) => self.write_watching(lane, task, locks, conflict, seen).await,
            None => self.acquire_contended(lane, locks, conflict).await.map(|()| None),
        }
    }

    /// Carries out `task` in the row in which its key was seen, the only one that was sampled under its lock; `None` if
    /// the key is no longer there. Called with all locks held. [R-LOCK-7]
    pub(crate) async fn change_row_sampled(
        &mut self,
        lane: &mut dyn Lane,
        task: Task<'_>,
        seen: &SeenKey,
    ) -> Result<Option<Changed>, ErrorKind> {
        let (row_words, which) = (self.table.rows().row_words(), usize::from(seen.row() != task.pair.first));
        let Some(words) = self.work.window.row(seen.row()) else { return Ok(None) };
        if self.inline_entry(task.probe, seen.row(), words).is_none() {
            return Ok(None);
        }
        self.work.pair.resize(2 * row_words, 0);
        self.work.pair[which * row_words..][..row_words].copy_from_slice(words);
        let at_hand = [which == 0, which == 1];
        match self.change_locked(lane, task, at_hand).await {
            Begun::Done(changed) => {
                self.remember_pair(task.pair, at_hand);
                Ok(Some(changed))
            }
            Begun::Failed(error) => Err(error),
            Begun::Continue(_) => Ok(None),
        }
    }

    /// Copies the rows of `pair` from the window, and returns which are locked and were sampled under their locks.
    fn take_pair(&mut self, pair: RowPair) -> [bool; 2] {
        let row_words = self.table.rows().row_words();
        self.work.pair.resize(2 * row_words, 0);
        let mut at_hand = [false; 2];
        let wanted = [Some(pair.first), Some(pair.second).filter(|_| !pair.is_single())];
        for ((row, at_hand), words) in wanted.iter().zip(&mut at_hand).zip(self.work.pair.chunks_exact_mut(row_words)) {
            let held = row.filter(|row| self.journal.holds_row(&self.table, *row));
            if let Some(sample) = held.and_then(|row| self.work.window.row(row)) {
                words.copy_from_slice(sample);
                *at_hand = true;
            }
        }
        at_hand
    }

    /// Caches the rows of `pair` as they are after a change, for searches.
    pub(super) fn remember_pair(&mut self, pair: RowPair, at_hand: [bool; 2]) {
        let words = self.work.pair.chunks_exact(self.table.rows().row_words());
        for ((row, at_hand), words) in [pair.first, pair.second].into_iter().zip(at_hand).zip(words) {
            if at_hand {
                self.reader.cache.put(row, words);
            }
        }
    }

    /// Caches the window's rows: rows seen under locks are the best hints.
    fn remember_window(&mut self) {
        for (place, row) in self.work.window.rows().iter().enumerate() {
            // Rows that a covering READ also fetched may be torn.
            let words = self.work.window.at(place);
            if self.reader.config.covering_gap_rows == 0 || self.table.rows().verify(*row, words).is_ok() {
                self.reader.cache.put(*row, words);
            }
        }
    }

    /// Finds a path among the rows that are locked and were sampled under these locks. [R-INSERT-3]
    fn second_search(&mut self, pair: RowPair) -> Option<Path> {
        let limits = Limits { locks_per_message: None, ..self.limits() };
        let both = [pair.first, pair.second];
        let roots = self.roots(&both);
        self.paths.search.start(pair, roots, limits);
        let (table, window, journal) = (&self.table, &self.work.window, &self.journal);
        self.paths.search.advance(table, |row| match window.row(row) {
            Some(words) if journal.holds_row(table, row) => RowView::Row(words),
            _ => RowView::Closed,
        });
        self.paths.search.found()
    }

    /// Moves entries along `path`, from its empty end, and puts the new one in its first row. 1 round trip.
    // [R-INSERT-4]
    async fn insert_along(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        path: &Path,
        value: NewValue<'_>,
    ) -> Result<Attempt, ErrorKind> {
        let mut changed: ArrayVec<(RowId, usize, usize), MAX_PATH_ROWS> = ArrayVec::new();
        for at in (0..path.len()).rev() {
            let hop = path[at];
            let (Some(place), Some(index)) = (self.work.window.place(hop.row), hop.index.map(usize::from)) else {
                return Ok(Attempt::Again);
            };
            let placement = match at.checked_sub(1).map(|before| path[before]) {
                None => self.encode_entry(probe, value),
                Some(before) => {
                    let (Some(from), Some(index)) = (self.work.window.row(before.row), before.index) else {
                        return Ok(Attempt::Again);
                    };
                    let index = usize::from(index);
                    self.work.entry.copy_from_slice(self.table.rows().entry(from, index));
                    self.table.rows().entry_kind(from, index)
                }
            };
            let words = self.work.window.at_mut(place);
            self.table.rows().put_entry(words, index, &self.work.entry, placement);
            self.table.rows().finish(hop.row, words);
            changed.push((hop.row, index, place));
        }
        let noted = changed.first().and_then(|(row, _, place)| {
            let noted = FullBits::of_change(&self.table, *row, self.work.window.at(*place), Outcome::Inserted);
            noted.or_else(|| self.paths.full.denial(*row))
        });
        self.reader.counters.moves += path.len() as u64 - 1;
        self.commit_path(lane, &changed, noted).await?;
        for (row, _, place) in changed {
            self.reader.cache.put(row, self.work.window.at(place));
        }
        Ok(Attempt::Done(Changed::done(Outcome::Inserted, None)))
    }

    /// Commits rows of the window, by their indices, each with the index of the entry that changed. 1 round trip.
    async fn commit_path(
        &mut self,
        lane: &mut dyn Lane,
        changed: &[(RowId, usize, usize)],
        noted: Option<FullBits>,
    ) -> Result<(), ErrorKind> {
        let Some((last, moved)) = changed.split_last() else { return Ok(()) };
        let sequence = self.expect_commit(lane.caps(), changed.len());
        let window = &self.work.window;
        let write =
            |(row, index, place): &(RowId, usize, usize)| Write { row: *row, index: *index, words: window.at(*place) };
        let moved: ArrayVec<Write<'_>, MAX_PATH_ROWS> = moved.iter().map(write).collect();
        let (table, owner, slot_word, held) = (&self.table, self.owner, self.slot_word, &self.journal.held);
        let commit = Commit { table, owner, slot_word, moved: &moved, last: write(last), freed: None, noted, held };
        let posted = commit.post_all(lane, (&mut self.work.buffer, &mut self.work.record), sequence).await;
        drop(moved);
        self.finish_commit(posted)
    }
}
