//! Reading through the record of a stopped writer: a row that is half written is completed, in the reader's memory
//! only, from the writer's record.
//!
//! A sealed record is always completed, by its writer or by a client that recovers it, so once the WRITE of a row has
//! begun, the row holds what the record makes of it. Nothing is written here: a writer that was only paused continues
//! unaffected.

use std::sync::Arc;

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{Candidate, Record, RowFormat, RowId, SegmentSplit, SlotState, SlotWord, SplitImage, Trailer};

use super::sample::{Lookup, Trailers};
use super::verdict::{MissSample, TrailerSample, Verdict, WhichRow};
use super::{Reader, RetryState};
use crate::ErrorKind;

impl Reader {
    /// Whether rows that do not verify were sampled so often that a writer may have stopped inside one. [R-READ-9]
    pub(crate) fn may_read_through_record(&self, retries: &RetryState) -> bool {
        // A lock that was free when it was last read has no owner whose record could help.
        retries.samples + 1 >= self.config.row_samples && retries.unlocked_checks == 0 && self.table.is_recoverable()
    }

    /// Samples both rows of a lookup, in order, each through its writer's record. Returns `None` if that settles
    /// nothing. Round trips: those of [`Reader::sample_through_record`] twice, and 1 for a miss. [R-READ-9]
    /// [R-READ-3]
    pub(crate) async fn read_through_record<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        lookup: &Lookup<'_, &RowFormat>,
        words: &mut [u64],
        retries: &RetryState,
    ) -> Result<Option<Verdict<Candidate>>, ErrorKind> {
        let table = Arc::clone(&self.table);
        let (table, rejected) = (&*table, &retries.rejected);
        let (first, second) = words.split_at_mut(table.rows().row_words());
        let mut samples = [None; 2];
        let rows_at = [(WhichRow::First, lookup.first_row(), first), (WhichRow::Second, lookup.second(table), second)];
        for ((which, row, words), sample) in rows_at.into_iter().zip(&mut samples) {
            let Some(trailer) = self.sample_through_record(lane, row, words).await? else { continue };
            if let Some(hit) = lookup.verified(table, row, words, rejected) {
                return Ok(Some(Verdict::Hit(which, hit)));
            }
            *sample = Some(MissSample { row, is_whole: true, trailer });
        }
        let [Some(first), Some(second)] = samples else { return Ok(None) };
        let mut again = Trailers::default();
        let [into_first, into_second] = &mut again;
        post(lane, [table.read_trailer(first.row, into_first), table.read_trailer(second.row, into_second)]).await?;
        let verdict = lookup.verdict_without_hit(table, [&first, &second], again.map(Some));
        Ok(matches!(verdict, Verdict::Absent | Verdict::Elsewhere { .. }).then_some(verdict))
    }

    /// Samples `row` into `words`, and completes it from its writer's record if a writer stopped inside it. Returns its
    /// trailer as it was sampled, or `None` if the row does not verify even so. Round trips: 1 if it verifies, up to 5
    /// if not.
    // [R-READ-9]
    pub(crate) async fn sample_through_record<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        words: &mut [u64],
    ) -> Result<Option<TrailerSample>, FabricError> {
        let table = Arc::clone(&self.table);
        let (geometry, rows) = (table.geometry(), table.rows());
        post(lane, [table.read_row(row, &mut *words)]).await?;
        if rows.verify(row, words).is_ok() {
            return Ok(Some(rows.trailer_words(words)));
        }
        let (_, owner) = self.lock_owner(lane, row).await?;
        let slot = owner.and_then(|owner| owner.slot()).filter(|slot| *slot < table.config().max_clients);
        let Some(slot) = slot else { return Ok(None) };
        let (mut before, mut after) = (vec![0; geometry.slot_words()], vec![0; geometry.slot_words()]);
        post(lane, [Verb::Read { addr: geometry.slot(slot), into: &mut before }]).await?;
        let is_used = SlotWord::decode(before[SlotWord::WORD]).is_some_and(|word| word.state != SlotState::Free);
        let record = Record::decode(&before, rows, table.config(), geometry).ok().flatten().filter(|_| is_used);
        let Some(record) = record else { return Ok(None) };
        if let Some(split) = record.split() {
            return self.sample_through_split(lane, row, words, (slot, &before, split)).await;
        }
        let Some(delta) = record.deltas(rows).find(|delta| delta.row == row) else { return Ok(None) };
        self.counters.reads_through_record += 1;
        post(lane, [table.read_row(row, &mut *words)]).await?;
        post(lane, [Verb::Read { addr: geometry.slot(slot), into: &mut after }]).await?;
        let sampled = rows.trailer_words(words);
        if rows.verify(row, words).is_ok() {
            return Ok(Some(sampled));
        }
        // The record was sealed before and after the sample, under one sequence number of one client: so it was sealed
        // in between. And it is whole, not a mix of two commits: its words were read again after their seal.
        let version = Trailer(sampled[0]).version();
        let fits = version == delta.before || version == Trailer(delta.trailer[0]).version();
        if before != after || !fits {
            return Ok(None);
        }
        delta.apply(rows, words);
        let is_whole = rows.verify(row, words).is_ok();
        self.counters.rows_through_record += u64::from(is_whole);
        Ok(is_whole.then_some(sampled))
    }

    /// Samples `row` of a segment that is being split into `words`, and completes it from its child's row: a split whose
    /// record is sealed has written that. `before` are the words of the splitting client's slot, read before. Returns
    /// the row's trailer, or `None` if the row does not verify even so. 3 round trips. [R-GROW-11]
    async fn sample_through_split<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        words: &mut [u64],
        (slot, before, split): (u16, &[u64], SegmentSplit),
    ) -> Result<Option<TrailerSample>, FabricError> {
        let table = Arc::clone(&self.table);
        let (geometry, rows) = (table.geometry(), table.rows());
        let child_row = table.growing_segments().and_then(|segments| split.child_row(segments, row));
        let Some(child_row) = child_row else { return Ok(None) };
        self.counters.reads_through_record += 1;
        let (mut child, mut after) = (vec![0; words.len()], vec![0; before.len()]);
        post(lane, [table.read_row(child_row, &mut child)]).await?;
        post(lane, [table.read_row(row, &mut *words)]).await?;
        post(lane, [Verb::Read { addr: geometry.slot(slot), into: &mut after }]).await?;
        let sampled = rows.trailer_words(words);
        if rows.verify(row, words).is_ok() {
            return Ok(Some(sampled));
        }
        // The record was sealed before and after both samples, so the locks were held in between. The row becomes what
        // its trailer says, because that also says whether it covers a key.
        let is_whole = before == after
            && rows.verify(child_row, &child).is_ok()
            && rows.complete_split_row(row, words, &child, SplitImage::AsSampled);
        self.counters.rows_through_record += u64::from(is_whole);
        Ok(is_whole.then_some(sampled))
    }
}
