//! Changes of existing keys by clients with a predictor: both rows are locked, and only the predicted one is read.
//! [R-READ-10]

use guira_fabric::{FabricError, Lane, LocalLane, post, post_in_place};
use guira_in_place::in_place;

use super::pair::PAIR_WORDS;
use super::{Begun, Change, Continuation, Stage, Task};
use crate::locks::journal::{Flight, Try};
use crate::locks::{LockBatch, lock_set};
use crate::lookup::WhichRow;
use crate::{Client, ErrorKind, Key, RowPair};

impl Client {
    /// Returns the row that has the key, if it is predicted and the change is of an existing key: one that may insert
    /// has to read both rows, and an entry with an extent may be that of another key.
    pub(super) fn predicted_row(&self, key: &Key<'_>, change: &Change<'_>) -> Option<WhichRow> {
        let has_extents = self.table.config().format.has_extents();
        let may_predict = !change.inserts() && !has_extents && !key.rows().is_single();
        if may_predict { self.reader.predicted_row(key.digest()) } else { None }
    }

    /// Same as [`Client::begin`] where the first batch travels, with a READ of the row `which` only. If that row does
    /// not have the key, both are read under their locks, in one more round trip. [R-LOCK-7] [R-READ-10]
    #[in_place]
    pub(super) async fn begin_predicted(
        &mut self,
        lane: &mut dyn Lane,
        key: &Key<'_>,
        change: &Change<'_>,
        which: WhichRow,
    ) -> Begun {
        let pair = key.rows();
        let stage = match self.lock_predicted(lane, key, which).await {
            Ok(stage) => stage,
            Err(source) => return Begun::Failed(ErrorKind::Fabric { source }),
        };
        let row_words = self.table.rows().row_words();
        let (index, row) = if which == WhichRow::First { (0, pair.first) } else { (1, pair.second) };
        let probe = self.table.probe(key);
        let task = Task { probe: &probe, pair, change };
        let words = &self.work.pair[index * row_words..][..row_words];
        if let Some(stage) = stage {
            self.progress.seen = self.see(&task, std::iter::once((words, row)));
            return Begun::Continue(Continuation(stage));
        }
        let mut at_hand = [index == 0, index == 1];
        if self.inline_entry(&probe, row, words).is_some() {
            self.reader.found_in(key.digest(), which);
        } else {
            self.reader.not_found_in(key.digest(), which);
            at_hand = [true; 2];
            if let Err(source) = self.sample_pair(lane, key.rows()).await {
                return Begun::Failed(ErrorKind::Fabric { source });
            }
        }
        let begun = self.change_locked(lane, task, at_hand).await;
        if let Begun::Done(_) | Begun::Failed(_) = begun {
            self.progress.queued_since_ns = None;
        }
        begun
    }

    /// Locks both rows of `key` and reads the row `which`. Returns where to continue unless both are locked.
    #[in_place]
    async fn lock_predicted(
        &mut self,
        lane: &mut dyn Lane,
        key: &Key<'_>,
        which: WhichRow,
    ) -> Result<Option<Stage>, FabricError> {
        let (table, pair, row_words) = (&self.table, key.rows(), self.table.rows().row_words());
        debug_assert!(self.journal.held.is_empty(), "the batch releases no lock");
        let plan = lock_set(table, [pair.first, pair.second]);
        self.journal.expect_tries(Flight::Acquire, plan.iter().map(|locks| Try::masked(*locks)));
        let (owner, tries, masked_cas) = (self.owner, &self.journal.tries, lane.caps().masked_cas);
        let batch = LockBatch { table, owner, masked_cas, released: &[], extent: None, tries, full: None };
        self.work.pair.resize(2 * row_words, 0);
        let (first, second) = self.work.pair.split_at_mut(row_words);
        let read = if which == WhichRow::First { (pair.first, first) } else { (pair.second, second) };
        let mut found = [0; PAIR_WORDS];
        let posted = batch.post_all(lane, &mut self.work.buffer, std::iter::once(read), &mut found).await;
        posted.inspect_err(|error| self.journal.failed(error))?;
        self.progress.written = None;
        Ok(self.complete_pair(&plan, &found))
    }

    /// Reads both rows of `pair`, under their locks. 1 round trip.
    #[in_place]
    pub(super) async fn sample_pair(&mut self, lane: &mut dyn Lane, pair: RowPair) -> Result<(), FabricError> {
        let table = &self.table;
        let (first, second) = self.work.pair.split_at_mut(table.rows().row_words());
        post(lane, [table.read_row(pair.first, first), table.read_row(pair.second, second)]).await
    }
}
