//! Samples of a key's two rows: one after the other where a batch is executed in place, and otherwise both in one
//! batch.
//!
//! A verdict concerns one sample: a hit is true at the sample of its row, a miss at the sample of the second row,
//! because the first row was the same before and after it. In all other cases both rows are sampled again.

use arrayvec::ArrayVec;
use guira_fabric::{Addr, FabricError, Lane, LocalLane, Verb, post, post_in_place};
use guira_in_place::in_place;
use guira_layout::{ExtentRef, RowId, Rows};

use super::cache::RowCache;
use super::verdict::{MissSample, TRAILER_WORDS, TrailerSample, Verdict, WhichRow, miss_verdict};
use crate::Table;
use crate::table::segment_map::SegmentMap;

/// A lookup of a key in rows of format `R`.
pub(crate) struct Lookup<'k, R: Rows> {
    pub(crate) rows: R,
    pub(crate) probe: R::Probe<'k>,
    pub(crate) digest: u64,
    /// The primary row. The secondary row is computed when it is needed: most hits do not need it.
    first: RowId,
}

/// The rules for covering READs of lookups. [R-READ-2]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covering {
    /// Maximum number of rows, from L1 to L2, that one READ fetches.
    pub(crate) most_rows: usize,
}

impl Covering {
    /// Every row has a READ of its own.
    pub(crate) const NONE: Covering = Covering { most_rows: 0 };
}

/// The result of sampling L2 after L1 did not have the key.
pub(crate) enum Second<H> {
    /// L2 verifies and has the key, at this entry.
    Hit(H),
    /// L2 does not have the key; with L1's trailer as sampled afterwards.
    Miss(MissSample, TrailerSample),
}

/// The trailers of both rows, sampled again after the rows.
pub(crate) type Trailers = [TrailerSample; 2];

impl<'k, R: Rows> Lookup<'k, R> {
    /// Creates a lookup of `key`, whose length the caller has checked.
    #[inline(always)]
    pub(crate) fn new(table: &Table, map: &SegmentMap, rows: R, key: &'k [u8]) -> Lookup<'k, R> {
        let digest = table.placement().digest(key);
        Lookup::at(rows, key, (digest, table.placement().first(map, digest)))
    }

    /// Creates a lookup of `key`, whose digest and primary row are known.
    #[inline(always)]
    pub(crate) fn at(rows: R, key: &'k [u8], (digest, first): (u64, RowId)) -> Lookup<'k, R> {
        Lookup { rows, probe: rows.probe(key, digest), digest, first }
    }

    /// Returns the primary row.
    #[inline(always)]
    pub(crate) fn first_row(&self) -> RowId {
        self.first
    }

    /// Returns the secondary row.
    #[inline(always)]
    pub(crate) fn second(&self, table: &Table) -> RowId {
        table.placement().second(self.digest, self.first)
    }

    /// Returns the row that `which` names, and its sample in `words`, which hold both.
    #[inline(always)]
    pub(crate) fn row_sample<'w>(&self, table: &Table, words: &'w [u64], which: WhichRow) -> (RowId, &'w [u64]) {
        match which {
            WhichRow::First => (self.first, &words[..self.rows.row_words()]),
            WhichRow::Second => (self.second(table), &words[self.rows.row_words()..][..self.rows.row_words()]),
        }
    }

    /// Starts loading the second row.
    #[inline(always)]
    pub(crate) fn prefetch_second<L: Lane + ?Sized>(&self, table: &Table, lane: &L) {
        lane.prefetch(table.geometry().row(self.second(table)), self.rows.row_words());
    }

    /// Returns the hit in a sampled row, if the row verifies. A row that does not verify decides nothing: the other row
    /// may still hold the key. [R-READ-1]
    #[inline(always)]
    pub(crate) fn verified(&self, table: &Table, row: RowId, words: &[u64], rejected: &[ExtentRef]) -> Option<R::Hit> {
        self.verified_after(table, row, words, rejected, |_| {})
    }

    /// Same as [`Lookup::verified`]; `then` is passed the hit before the row is verified.
    #[inline(always)]
    fn verified_after(
        &self,
        table: &Table,
        row: RowId,
        words: &[u64],
        rejected: &[ExtentRef],
        then: impl FnOnce(&R::Hit),
    ) -> Option<R::Hit> {
        let hit = self.rows.seek(words, &self.probe, rejected)?;
        then(&hit);
        self.rows.verify(table.rows().sums(), row, words).is_ok().then_some(hit)
    }

    /// Starts loading the extent of a hit in the sample `words` of its row, which need not verify.
    #[inline(always)]
    fn prefetch_extent<L: Lane + ?Sized>(&self, lane: &L, words: &[u64], hit: &R::Hit) {
        if let Some(extent) = self.rows.extent_of(words, hit) {
            lane.prefetch(Addr::main(extent.offset), extent.words().unwrap_or(0));
        }
    }

    /// Returns what to keep of a sample of L1 that does not have the key.
    #[inline(always)]
    pub(crate) fn first_miss_sample(&self, table: &Table, first: &[u64]) -> MissSample {
        MissSample::of(table, &self.rows, self.first, first)
    }

    /// Samples L1 only, and returns its hit. 1 round trip.
    #[in_place(inline(always))]
    pub(crate) async fn sample_first<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        first: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Result<Option<R::Hit>, FabricError> {
        post(lane, [table.read_row(self.first, &mut *first)]).await?;
        let prefetch = |hit: &R::Hit| self.prefetch_extent(lane, first, hit);
        Ok(self.verified_after(table, self.first, first, rejected, prefetch))
    }

    /// Samples L2, after a sample of L1 that does not have the key, and L1's trailer once more. 1 round trip.
    // [R-READ-3]
    #[in_place(inline(always))]
    pub(crate) async fn sample_second<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        second: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Result<Second<R::Hit>, FabricError> {
        let second_row = self.second(table);
        let mut trailer = [0; TRAILER_WORDS];
        let first_trailer = table.geometry().row(self.first).add_words((self.rows.row_words() - TRAILER_WORDS) as u64);
        let again = Verb::Read { addr: first_trailer, into: &mut trailer };
        post(lane, [table.read_row(second_row, &mut *second), again]).await?;
        let prefetch = |hit: &R::Hit| self.prefetch_extent(lane, second, hit);
        Ok(match self.verified_after(table, second_row, second, rejected, prefetch) {
            Some(hit) => Second::Hit(hit),
            None => Second::Miss(MissSample::of(table, &self.rows, second_row, second), trailer),
        })
    }

    /// Returns the verdict on both rows, sampled one after the other without the key: `first_again` is L1's trailer,
    /// sampled after L2. [R-READ-3]
    #[inline(always)]
    pub(crate) fn miss_verdict_in_turn(
        &self,
        table: &Table,
        rows: [&MissSample; 2],
        first_again: TrailerSample,
    ) -> Verdict<R::Hit> {
        let again = table.policy().validates_misses.then_some(first_again);
        self.verdict_without_hit(table, rows, [again, None])
    }

    /// Whether both rows, sampled one after the other without the key, say that there is none: same as
    /// [`Lookup::miss_verdict_in_turn`] for a lookup that takes no other verdict. The segments, which few tables have,
    /// are asked last, so that no sample is kept across a call for them.
    #[inline(always)]
    pub(crate) fn is_absent_in_turn(&self, table: &Table, rows: [&MissSample; 2], first_again: TrailerSample) -> bool {
        let again = table.policy().validates_misses.then_some(first_again);
        matches!(miss_verdict::<R::Hit>(rows, [again, None]), Verdict::Absent)
            && !self.leads_elsewhere(table, rows[0])
            && !self.leads_elsewhere(table, rows[1])
    }

    /// Returns the verdict on both rows, sampled without the key, and on later samples of their trailers: see
    /// [`miss_verdict`]. A row that verifies and does not cover the key leads elsewhere. [R-READ-3] [R-GROW-4]
    #[inline(always)]
    pub(crate) fn verdict_without_hit(
        &self,
        table: &Table,
        rows: [&MissSample; 2],
        again: [Option<TrailerSample>; 2],
    ) -> Verdict<R::Hit> {
        for row in rows {
            if self.leads_elsewhere(table, row) {
                return Verdict::Elsewhere { row: row.row, trailer: row.trailer[0] };
            }
        }
        miss_verdict(rows, again)
    }

    /// Whether a row verifies and does not cover the key. [R-GROW-4]
    #[inline(always)]
    fn leads_elsewhere(&self, table: &Table, row: &MissSample) -> bool {
        row.is_whole && table.placement().moved_to(row.row, row.trailer[0], self.digest).is_some()
    }

    /// Samples L1, and L2 only without a hit: in place, a second post costs only its bytes. 1 or 2 round trips.
    // [R-READ-7]
    async fn sample_in_turn<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        words: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Result<Verdict<R::Hit>, FabricError> {
        let (first, second) = words.split_at_mut(self.rows.row_words());
        if let Some(hit) = self.sample_first(table, lane, first, rejected).await? {
            return Ok(Verdict::Hit(WhichRow::First, hit));
        }
        Ok(match self.sample_second(table, lane, second, rejected).await? {
            Second::Hit(hit) => Verdict::Hit(WhichRow::Second, hit),
            Second::Miss(second, again) => {
                self.miss_verdict_in_turn(table, [&self.first_miss_sample(table, first), &second], again)
            }
        })
    }

    /// Samples both rows in the order that suits the lane.
    pub(crate) async fn sample<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        words: &mut [u64],
        rejected: &[ExtentRef],
        covering: Covering,
    ) -> Result<Verdict<R::Hit>, FabricError> {
        if lane.caps().local {
            return self.sample_in_turn(table, lane, words, rejected).await;
        }
        self.sample_together(table, lane, words, rejected, covering).await
    }

    /// Samples both rows in one batch, and trailers in another if only that validates a miss. 1 or 2 round trips.
    // [R-READ-1] [R-READ-2] [R-READ-3]
    async fn sample_together<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        words: &mut [u64],
        rejected: &[ExtentRef],
        covering: Covering,
    ) -> Result<Verdict<R::Hit>, FabricError> {
        let ordered = lane.caps().ordered_read_sampling;
        let mut trailers = Trailers::default();
        {
            let mut batch = ArrayVec::<_, 4>::new();
            self.reads(table, words, &mut trailers, ordered, covering, &mut batch);
            post(lane, batch).await?;
        }
        self.arrange(table, words, covering);
        if let Some(verdict) = self.verdict(table, words, &trailers, ordered, covering, rejected) {
            return Ok(verdict);
        }
        {
            let [first, second] = &mut trailers;
            let again = [table.read_trailer(self.first, first), table.read_trailer(self.second(table), second)];
            post(lane, again).await?;
        }
        Ok(self.miss_verdict(table, words, trailers.map(Some)))
    }

    /// Adds the READs of both rows, one READ if that may cover them, and of the trailers that validate a miss where
    /// READs of one batch sample in order. [`Lookup::arrange`] then puts the rows in their places. [R-READ-1]
    /// [R-READ-2] [R-READ-3]
    pub(crate) fn reads<'b>(
        &self,
        table: &Table,
        words: &'b mut [u64],
        trailers: &'b mut Trailers,
        ordered: bool,
        covering: Covering,
        batch: &mut impl Extend<Verb<'b>>,
    ) {
        let row_words = self.rows.row_words();
        let covered = self.covered_rows(table, covering);
        if let Some(rows) = covered {
            batch.extend([table.read_row(self.first, &mut words[..rows * row_words])]);
        } else {
            let (first, second) = words[..2 * row_words].split_at_mut(row_words);
            batch.extend([table.read_row(self.first, first), table.read_row(self.second(table), second)]);
        }
        if table.policy().validates_misses && ordered {
            // The second row's own sample follows the first's, except within a covering READ.
            let again = [self.first, self.second(table)].into_iter().zip(trailers);
            let count = if covered.is_some() { 2 } else { 1 };
            batch.extend(again.take(count).map(|(row, into)| table.read_trailer(row, into)));
        }
    }

    /// Returns the number of rows that one READ of both rows fetches; `None` if each has a READ of its own.
    fn covered_rows(&self, table: &Table, covering: Covering) -> Option<usize> {
        let distance = usize::try_from(self.second(table).0.checked_sub(self.first.0)?).ok()?;
        (distance < covering.most_rows).then_some(distance + 1)
    }

    /// Returns the number of rows for which the READs of both rows need words.
    pub(crate) fn sampled_rows(&self, table: &Table, covering: Covering) -> usize {
        self.covered_rows(table, covering).map_or(2, |rows| rows.max(2))
    }

    /// Puts both rows first, as they are without a covering READ: exchanges L2 with the row behind L1.
    pub(crate) fn arrange(&self, table: &Table, words: &mut [u64], covering: Covering) {
        let row_words = self.rows.row_words();
        match self.covered_rows(table, covering) {
            None | Some(2) => {}
            // Both rows are one, by the printed offset rule.
            Some(1) => words.copy_within(..row_words, row_words),
            Some(rows) => {
                let (front, last) = words.split_at_mut((rows - 1) * row_words);
                front[row_words..2 * row_words].swap_with_slice(&mut last[..row_words]);
            }
        }
    }

    /// Caches the rows in the arranged `words` that verify.
    pub(crate) fn remember(&self, table: &Table, words: &[u64], covering: Covering, cache: &mut RowCache) {
        let second = self.second(table);
        let between = 2..self.sampled_rows(table, covering) as u64;
        let last = between.end.saturating_sub(1);
        // The row behind L1 is where L2 was.
        let between = between.map(|place| RowId(self.first.0 + if place == last { 1 } else { place }));
        let rows = [self.first, second].into_iter().chain(between);
        for (row, words) in rows.zip(words.chunks_exact(self.rows.row_words())) {
            if table.rows().verify(row, words).is_ok() {
                cache.put(row, words);
            }
        }
    }

    /// Returns the verdict on the words that [`Lookup::reads`] fetched. `None`: a miss that only another sample of both
    /// trailers can validate, because a covering READ or an unordered batch may have sampled L2 first.
    pub(crate) fn verdict(
        &self,
        table: &Table,
        words: &[u64],
        trailers: &Trailers,
        ordered: bool,
        covering: Covering,
        rejected: &[ExtentRef],
    ) -> Option<Verdict<R::Hit>> {
        for which in [WhichRow::First, WhichRow::Second] {
            let (row, sample) = self.row_sample(table, words, which);
            if let Some(hit) = self.verified(table, row, sample, rejected) {
                return Some(Verdict::Hit(which, hit));
            }
        }
        let validates = table.policy().validates_misses;
        let [first, second] = *trailers;
        let again = match validates && ordered {
            false => [None, None],
            true => [Some(first), self.covered_rows(table, covering).map(|_| second)],
        };
        let verdict = self.miss_verdict(table, words, again);
        let is_settled = !validates || ordered || !matches!(verdict, Verdict::Absent);
        is_settled.then_some(verdict)
    }

    fn miss_verdict(&self, table: &Table, words: &[u64], again: [Option<TrailerSample>; 2]) -> Verdict<R::Hit> {
        let [first, second] = [WhichRow::First, WhichRow::Second].map(|which| {
            let (row, sample) = self.row_sample(table, words, which);
            MissSample::of(table, &self.rows, row, sample)
        });
        self.verdict_without_hit(table, [&first, &second], again)
    }
}
