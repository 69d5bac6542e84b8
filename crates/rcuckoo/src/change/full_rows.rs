//! The table's map of full rows: hints that lead an insert to rows that have room. [R-INSERT-7]

use arrayvec::ArrayVec;
use guira_fabric::{FabricError, Lane, LocalLane, MaskedCas, Verb, post, post_in_place};
use guira_in_place::in_place;
use guira_layout::{ROWS_OF_FULL_WORD, RowId};

use super::path::Attempt;
use super::search::{Limits, MAX_PATH_ROWS, Path, Progress, RowView, Unsampled};
use super::workspace::Paths;
use super::{Changed, Task};
use crate::locks::{Before, Reads, Tried, divide_among_messages, lock_set};
use crate::{Client, ErrorKind, MAX_LOCKS, Outcome, RowPair, Table};

/// Paths that an insert tries by the map.
const PATHS: usize = 2;
/// Batches of full rows that an insert samples for each of these paths, to learn where their entries may move. Few need
/// more than two. (docs/decisions/0052)
const BATCHES: usize = 8;
/// Rows for which each of these batches asks.
const BATCH_ROWS: usize = 4;
/// Words of the map that a search reads before and behind that of a row: most entries of the row may move to the rows of
/// these. (docs/decisions/0052)
const WORDS_AROUND: u64 = 4;
/// Most words of a part of the map: those around two rows.
const PART_WORDS: usize = 4 * WORDS_AROUND as usize + 2;
/// Most words that a search corrects.
pub(crate) const MAX_CORRECTED: usize = 4;

/// Bits of one word of the map that are to be set and cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FullBits {
    word: u64,
    mask: u64,
    full: u64,
}

impl FullBits {
    fn of(row: RowId, is_full: bool) -> FullBits {
        let mask = 1 << (row.0 % ROWS_OF_FULL_WORD);
        FullBits { word: row.0 / ROWS_OF_FULL_WORD, mask, full: if is_full { mask } else { 0 } }
    }

    /// Returns what to note when `row`, which has these words afterwards, becomes full, or no longer is.
    #[inline(always)]
    pub(crate) fn of_change(table: &Table, row: RowId, words: &[u64], outcome: Outcome) -> Option<FullBits> {
        let was_removed = outcome == Outcome::Removed;
        let is_noted = table.rows().occupied(words) + u32::from(was_removed)
            == u32::from(table.config().entries_per_row)
            && table.config().rules.map_full_rows;
        is_noted.then(|| FullBits::of(row, !was_removed))
    }

    /// Notes the bits before the commit: where batches execute in place, that costs less than a longer commit.
    #[in_place(inline(never))]
    pub(crate) async fn post(&self, lane: &mut dyn Lane, table: &Table) -> Result<(), FabricError> {
        if lane.caps().masked_cas == MaskedCas::CasLoop {
            return Ok(());
        }
        post(lane, [self.verb(table, &mut 0)]).await
    }

    /// Returns the verb that notes the bits, and no others.
    pub(crate) fn verb<'v>(&self, table: &Table, found: &'v mut u64) -> Verb<'v> {
        let addr = table.geometry().full_rows_word(self.word);
        Verb::MaskedCas { addr, compare: 0, swap: self.full, compare_mask: 0, swap_mask: self.mask, found }
    }
}

/// Neighbouring words of the map.
#[derive(Debug)]
struct Part {
    first: u64,
    words: ArrayVec<u64, PART_WORDS>,
}

/// The parts of the map that a search has read.
#[derive(Debug, Default)]
pub(crate) struct FullRows {
    parts: ArrayVec<Part, 2>,
    /// Bits that the search has found to be wrong.
    corrections: ArrayVec<FullBits, MAX_CORRECTED>,
}

impl FullRows {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.corrections.clear();
    }

    /// Forgets the corrections, which have been posted.
    pub(crate) fn corrected(&mut self) {
        self.corrections.clear();
    }

    /// Returns READs of the parts around the rows `near`.
    pub(crate) fn reads<'r>(&'r mut self, table: &Table, near: [RowId; 2]) -> impl Iterator<Item = Verb<'r>> {
        self.clear();
        let mut words = near.map(|row| row.0 / ROWS_OF_FULL_WORD);
        words.sort_unstable();
        for word in words {
            let first = word.saturating_sub(WORDS_AROUND);
            let end = (word + WORDS_AROUND + 1).min(table.geometry().full_rows_words());
            match self.parts.last_mut() {
                Some(part) if first <= part.first + part.words.len() as u64 => {
                    let known = part.first + part.words.len() as u64;
                    part.words.extend((known..end).map(|_| 0));
                }
                _ => self.parts.push(Part { first, words: (first..end).map(|_| 0).collect() }),
            }
        }
        let addr = |first| table.geometry().full_rows_word(first);
        self.parts.iter_mut().map(move |part| Verb::Read { addr: addr(part.first), into: &mut part.words })
    }

    /// Whether `row` had a free entry when it was last noted; `None` if its word was not read.
    fn has_room(&self, row: RowId) -> Option<bool> {
        let FullBits { word, mask, .. } = FullBits::of(row, true);
        let part = self.parts.iter().find_map(|part| part.words.get(word.checked_sub(part.first)? as usize));
        part.map(|word| word & mask == 0)
    }

    /// Whether `row` is known to have had a free entry when it was last noted.
    pub(crate) fn promises_room(&self, row: RowId) -> bool {
        self.has_room(row) == Some(true)
    }

    /// Notes that `row` was found full, or not, if the map says otherwise.
    pub(crate) fn correct(&mut self, row: RowId, is_full: bool) {
        if self.has_room(row) != Some(is_full) {
            return;
        }
        let bits = FullBits::of(row, is_full);
        if let Some(known) = self.corrections.iter_mut().find(|known| known.word == bits.word) {
            known.full = known.full & !bits.mask | bits.full;
            known.mask |= bits.mask;
        } else {
            // One more search will come across it.
            let _ = self.corrections.try_push(bits);
        }
    }

    /// Returns what to note of `row`, which still has room, if the map says that it has none.
    pub(crate) fn denial(&self, row: RowId) -> Option<FullBits> {
        (self.has_room(row) == Some(false)).then(|| FullBits::of(row, false))
    }

    /// Returns verbs that correct the map.
    pub(crate) fn corrections<'w>(&self, table: &Table, found: &'w mut [u64]) -> impl Iterator<Item = Verb<'w>> {
        self.corrections.iter().zip(found).map(|(bits, found)| bits.verb(table, found))
    }
}

impl Client {
    /// Whether searches go by the map of full rows. [R-INSERT-7]
    pub(super) fn uses_map(&self, lane: &dyn Lane) -> bool {
        self.is_default_search()
            && !self.may_split()
            && self.table.config().rules.map_full_rows
            && lane.caps().masked_cas != MaskedCas::CasLoop
    }

    /// Inserts the key along a path that ends where the map of full rows says that there is room, under further locks
    /// beside those of the key's rows. Returns `None`, perhaps with all of these locks held, if there is no such path, if
    /// one of its locks is taken, or if a row is damaged. 4 round trips with the first one if it inserts with one move.
    /// [R-INSERT-7]
    pub(super) async fn search_by_map(
        &mut self,
        lane: &mut dyn Lane,
        task: Task<'_>,
    ) -> Result<Option<Changed>, ErrorKind> {
        let pair = task.pair;
        self.paths.sampled.add_pair(pair, &self.work.pair);
        let mut reads: ArrayVec<Verb<'_>, 2> = self.paths.full.reads(&self.table, [pair.first, pair.second]).collect();
        post(lane, &mut reads[..]).await?;
        drop(reads);
        for _ in 0..PATHS {
            let Some(path) = self.path_by_map(lane, pair).await? else { break };
            if !self.extend_locks(lane, pair, &path).await? {
                break;
            }
            match self.attempt(lane, task).await? {
                Attempt::Done(changed) => return Ok(Some(changed)),
                Attempt::Again => {}
                Attempt::Elsewhere => break,
            }
        }
        Ok(None)
    }

    /// Takes the locks of `path` that are not held, in one try, and fills the window with its rows and those of `pair`,
    /// all sampled under their locks. Returns whether it has all locks, and all rows are whole. 1 round trip.
    async fn extend_locks(&mut self, lane: &mut dyn Lane, pair: RowPair, path: &Path) -> Result<bool, ErrorKind> {
        let mut rows: ArrayVec<RowId, MAX_PATH_ROWS> =
            path.iter().map(|hop| hop.row).filter(|row| *row != pair.first && *row != pair.second).collect();
        rows.sort_unstable();
        let is_needed = |row: &RowId| !self.journal.holds_row(&self.table, *row);
        let mut further = lock_set(&self.table, rows.iter().copied().filter(is_needed));
        divide_among_messages(&self.table, &mut further, self.reader.config.locks_per_message);
        if self.journal.held.len() + further.len() > MAX_LOCKS {
            return Ok(false);
        }
        self.work.window.clear();
        self.work.window.extend(&rows);
        // Only once: no client waits for a lock while it holds others out of order. // [R-LOCK-3]
        if let Tried::Conflict(_) = self.try_all(lane, &further, Before::Keep, Reads::All, None).await? {
            return Ok(false);
        }
        let (Paths { sampled, full, .. }, table) = (&mut self.paths, &self.table);
        let mut are_whole = true;
        for (row, words) in rows.into_iter().filter_map(|row| Some((row, self.work.window.row(row)?))) {
            if table.rows().verify(row, words).is_ok() {
                full.correct(row, table.rows().free_entry(words).is_none());
            } else {
                are_whole = false;
            }
            sampled.set(row, words);
        }
        self.work.window.add_pair(pair, &self.work.pair);
        Ok(are_whole)
    }

    /// Finds a path that ends in a row that has room, or has by the map of full rows, with rows in between that are
    /// sampled here. Up to [`BATCHES`] round trips, mostly none. [R-INSERT-7]
    async fn path_by_map(&mut self, lane: &mut dyn Lane, pair: RowPair) -> Result<Option<Path>, ErrorKind> {
        let limits = Limits { unsampled: Unsampled::Last, ..self.limits() };
        self.paths.search.start(pair, &[pair.first, pair.second], limits);
        for batch in 0..=BATCHES {
            let Paths { search, sampled, full, .. } = &mut self.paths;
            let rows = self.table.rows();
            let progress = search.advance(&self.table, |row| match sampled.row(row) {
                Some(words) if rows.verify(row, words).is_ok() => RowView::Row(words),
                Some(_) => RowView::Closed,
                None if full.promises_room(row) => RowView::PresumedRoom,
                None => RowView::Unsampled,
            });
            match progress {
                Progress::Found => break,
                Progress::NeedsRows if batch < BATCHES => self.sample_for_search(lane, BATCH_ROWS).await?,
                Progress::NeedsRows | Progress::Exhausted => return Ok(None),
            }
        }
        Ok(self.paths.search.found())
    }
}
