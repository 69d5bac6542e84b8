//! Inserts whose rows are locked and full: the rows that the same locks guard are sampled, and a few more locks are
//! taken if hardly an entry can move there, before anything is released. [R-INSERT-6]
//!
//! Most such inserts find room there, and take three round trips. What was sampled under the first locks only chooses
//! the rows; everything that the insert acts on is sampled again, under all of its locks.

use arrayvec::ArrayVec;
use guira_fabric::{Lane, MaskedCas};
use guira_layout::RowId;

use super::path::Attempt;
use super::{Changed, Task};
use crate::change::window::cover;
use crate::locks::{LockSet, divide_among_messages, lock_set};
use crate::table::policy::LockedRows;
use crate::{Acquisition, Client, ErrorKind, RowPair, SearchOrder, SearchRoots, Synchronize};

/// Rows to which an entry of the key's rows can move, under its locks, that make other locks unnecessary: at a fill of
/// 90 %, every third row of 6 entries has a free one.
const ENOUGH_NEIGHBOURS: usize = 3;
/// Rows that are locked and sampled in addition if there are fewer; each costs a message.
const FURTHER_ROWS: usize = 4;
/// Rows to which the entries of a key's rows may move.
type Neighbours = ArrayVec<RowId, { 2 * guira_layout::MAX_ENTRIES_PER_ROW }>;

impl Client {
    /// Samples rows to which the entries of the key's rows may move, locks a few of them in addition if need be, and
    /// inserts the key if there is a path among them. Returns `None`, with or without locks, if there is none, if
    /// another client holds a lock, or if a row is damaged. 2 round trips if it inserts, otherwise 1. [R-INSERT-6]
    pub(super) async fn widen(&mut self, lane: &mut dyn Lane, task: Task<'_>) -> Result<Option<Changed>, ErrorKind> {
        let further = self.fill_window_widely(task.pair);
        let mut plan = lock_set(&self.table, further);
        divide_among_messages(&self.table, &mut plan, self.reader.config.locks_per_message);
        if !self.extend_locks(lane, &plan).await? {
            return Ok(None);
        }
        if !self.window_is_whole() {
            return Ok(None);
        }
        match self.attempt(lane, task).await? {
            Attempt::Done(changed) => Ok(Some(changed)),
            Attempt::Again | Attempt::Elsewhere => Ok(None),
        }
    }

    /// Whether every row of the window that is locked verifies. A row that does not is damaged, but the insert may not
    /// need it: a search for another path avoids it.
    fn window_is_whole(&self) -> bool {
        let (window, rows) = (&self.work.window, self.table.rows());
        let mut locked = window.rows().iter().filter(|row| self.journal.holds_row(&self.table, **row));
        locked.all(|row| window.row(*row).is_some_and(|words| rows.verify(*row, words).is_ok()))
    }

    /// Fills the window with the key's rows and rows to which their entries may move, and returns those of them whose
    /// locks are not held.
    fn fill_window_widely(&mut self, pair: RowPair) -> ArrayVec<RowId, FURTHER_ROWS> {
        let neighbours = self.neighbours(pair);
        let locks = self.table.locks();
        let mut rows = std::mem::take(&mut self.paths.plan);
        rows.clear();
        // One READ for each lock, from the first to the last row of interest.
        for root in [pair.first, pair.second] {
            let lock = locks.lock_of(root);
            let under = neighbours.iter().chain([&pair.first, &pair.second]).filter(|row| locks.lock_of(**row) == lock);
            let near = under.filter(|row| row.0.abs_diff(root.0) < u64::from(self.table.config().rows_per_lock));
            let (first, last) = near.fold((root, root), |(first, last), row| (first.min(*row), last.max(*row)));
            rows.extend((first.0..=last.0).map(RowId));
        }
        let held = neighbours.iter().filter(|row| self.journal.holds_row(&self.table, **row)).count();
        let further = if held < ENOUGH_NEIGHBOURS { self.further(&neighbours) } else { ArrayVec::new() };
        rows.extend(&further);
        cover(&mut rows, 0);
        self.work.window.clear();
        self.work.window.extend(&rows);
        self.paths.plan = rows;
        further
    }

    /// Whether an insert that found no room may widen its locks: not where its settings say how locks are taken and
    /// paths are searched, nor where a row costs no round trip.
    pub(super) fn may_widen(&self, lane: &dyn Lane, pair: RowPair) -> bool {
        let (config, caps) = (&self.reader.config, lane.caps());
        let is_default = config.acquisition == Acquisition::Together
            && config.synchronize == Synchronize::Path
            && config.search == SearchOrder::BreadthFirst
            && config.search_roots == SearchRoots::Both
            && self.table.policy().locked_rows == LockedRows::OfKeyAndPath;
        let holds_both = [pair.first, pair.second].iter().all(|row| self.journal.holds_row(&self.table, *row));
        is_default && holds_both && !pair.is_single() && !caps.local && caps.masked_cas != MaskedCas::CasLoop
    }

    /// Returns the rows to which the entries of the key's rows may move, as far as the last sample of these says.
    fn neighbours(&mut self, pair: RowPair) -> Neighbours {
        let mut all = Neighbours::new();
        let (table, row_words) = (&self.table, self.table.rows().row_words());
        let samples = self.work.pair.chunks_exact(row_words).zip([pair.first, pair.second]);
        for (words, row) in samples {
            for index in table.rows().occupied_entries(words) {
                let other = table.entry_rows(row, words, index, &mut self.paths.search.key).other(row);
                let is_new = |other: &RowId| ![pair.first, pair.second].contains(other) && !all.contains(other);
                all.extend(other.filter(is_new));
            }
        }
        all
    }

    /// Returns some of `neighbours` whose locks are not held, all under locks of one word: of the word that guards most
    /// of them.
    fn further(&self, neighbours: &Neighbours) -> ArrayVec<RowId, FURTHER_ROWS> {
        let table = &self.table;
        let word = |row: &RowId| table.locks().mask(table.locks().lock_of(*row)).word;
        let others = || neighbours.iter().filter(|row| !self.journal.holds_row(table, **row));
        let of_word = |row: &&RowId| others().filter(|other| word(other) == word(row)).count();
        // Of two words with as many rows, the one of the entry that comes first.
        let best = others().rev().max_by_key(of_word).map(word);
        others().filter(|row| Some(word(row)) == best).take(FURTHER_ROWS).copied().collect()
    }

    /// Takes the locks of `plan` in addition to those held, and samples the window. Returns false if another client
    /// holds one of them. 1 round trip.
    async fn extend_locks(&mut self, lane: &mut dyn Lane, plan: &LockSet) -> Result<bool, ErrorKind> {
        if plan.is_empty() {
            self.sample_window(lane).await?;
            return Ok(true);
        }
        Ok(self.try_acquire_more(lane, plan).await?)
    }
}
