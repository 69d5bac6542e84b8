//! Samples of a key's two rows, and what they say about the key.
//!
//! A verdict is about one sample: a hit is true at the sample of its row, an absence at the sample of the second row,
//! because the first row was the same before and after it. Everything else is to be sampled again, both rows.

use std::future::poll_fn;

use arrayvec::ArrayVec;
use guira_fabric::{FabricError, Lane, Verb, post, post_now};
use guira_layout::{Candidate, ExtentRef, RowId, Rows};

use crate::Table;

/// Words of a trailer.
pub(crate) const TRAILER_WORDS: usize = 2;

/// A key that is looked for, in rows read as `R` says.
pub(crate) struct Lookup<'k, R: Rows> {
    pub(crate) rows: R,
    pub(crate) probe: R::Probe<'k>,
    pub(crate) digest: u64,
    /// The primary row. The other one is computed when it is needed: most hits do without.
    first: RowId,
}

/// What a sample of both rows says.
#[derive(Debug)]
pub(crate) enum Verdict<H = Candidate> {
    /// This verified row has the key, here.
    Hit(Which, H),
    /// Both rows verify, and neither has the key.
    Absent,
    /// This row does not verify.
    Torn(RowId),
    /// This row changed between two samples.
    Changed(RowId),
}

/// One of a key's two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    First,
    Second,
}

/// The first row, sampled without finding the key: what an absence is to be judged by, later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstRow {
    is_whole: bool,
    trailer: [u64; TRAILER_WORDS],
}

/// What the sample of the first row alone says.
pub(crate) enum FirstSample<H> {
    /// It has the key.
    Hit(H),
    /// The second row has to tell.
    Without,
}

/// The first trailer of each row, sampled again after the rows.
pub(crate) type Trailers = [[u64; TRAILER_WORDS]; 2];

impl<'k, R: Rows> Lookup<'k, R> {
    /// A lookup of `key`, whose length the caller has checked.
    #[inline(always)]
    pub(crate) fn new(table: &Table, rows: R, key: &'k [u8]) -> Lookup<'k, R> {
        Lookup::of_digest(table, rows, key, table.placement().digest(key))
    }

    /// A lookup of `key`, whose digest is known.
    #[inline(always)]
    pub(crate) fn of_digest(table: &Table, rows: R, key: &'k [u8], digest: u64) -> Lookup<'k, R> {
        Lookup { rows, probe: rows.probe(key, digest), digest, first: table.placement().first(digest) }
    }

    /// The secondary row.
    #[inline(always)]
    pub(crate) fn second(&self, table: &Table) -> RowId {
        table.placement().second(self.digest, self.first)
    }

    /// The row `which` names, and its sample among `words`, which hold both.
    #[inline(always)]
    pub(crate) fn half<'w>(&self, table: &Table, words: &'w [u64], which: Which) -> (RowId, &'w [u64]) {
        match which {
            Which::First => (self.first, &words[..self.rows.row_words()]),
            Which::Second => (self.second(table), &words[self.rows.row_words()..]),
        }
    }

    /// Starts loading the second row.
    #[inline(always)]
    pub(crate) fn prefetch_second<L: Lane + ?Sized>(&self, table: &Table, lane: &L) {
        lane.prefetch(table.geometry().row(self.second(table)), self.rows.row_words());
    }

    /// The primary row.
    #[inline(always)]
    pub(crate) fn first_row(&self) -> RowId {
        self.first
    }

    /// Samples L1 alone, on a lane that executes in place. `None` if it refused, or does not do so after all.
    #[inline(always)]
    pub(crate) fn sample_first_now<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        first: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Option<FirstSample<R::Hit>> {
        if !post_now(lane, &mut [Verb::Read { addr: table.geometry().row(self.first), into: &mut *first }]) {
            return None;
        }
        Some(self.verified(table, self.first, first, rejected).map_or(FirstSample::Without, FirstSample::Hit))
    }

    /// What to keep of a sample of L1 that was without the key.
    #[inline(always)]
    pub(crate) fn without_key(&self, table: &Table, first: &[u64]) -> FirstRow {
        let at = self.rows.row_words() - TRAILER_WORDS;
        FirstRow { is_whole: self.is_whole(table, self.first, first), trailer: [first[at], first[at + 1]] }
    }

    /// Samples L2, after a sample of L1 that was without the key: `first` tells what it was, for a miss to be judged
    /// by. `None` as above. // [R-READ-3]
    #[inline(always)]
    pub(crate) fn sample_second_now<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        first: impl FnOnce() -> FirstRow,
        second: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Option<Verdict<R::Hit>> {
        let second_row = self.second(table);
        let mut trailer = [0; TRAILER_WORDS];
        let first_trailer = table.geometry().row(self.first).add_words((self.rows.row_words() - TRAILER_WORDS) as u64);
        let again = Verb::Read { addr: first_trailer, into: &mut trailer };
        if !post_now(lane, &mut [Verb::Read { addr: table.geometry().row(second_row), into: &mut *second }, again]) {
            return None;
        }
        if let Some(hit) = self.verified(table, second_row, second, rejected) {
            return Some(Verdict::Hit(Which::Second, hit));
        }
        let first = first();
        let stayed = !table.config().rules.validate_misses || trailer == first.trailer;
        Some(if !first.is_whole {
            Verdict::Torn(self.first)
        } else if !stayed {
            Verdict::Changed(self.first)
        } else if !self.is_whole(table, second_row, second) {
            Verdict::Torn(second_row)
        } else {
            Verdict::Absent
        })
    }

    /// Samples L1, and L2 only without a hit: in place, a second post costs nothing but its bytes. `None` if the lane
    /// refused, or does not execute in place after all: then [`Lookup::sample`] finds out. (To carry the error from
    /// here would cost each hit more than its checksum.) // [R-READ-7]
    #[inline(always)]
    pub(crate) fn sample_now<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        first: &mut [u64],
        second: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Option<Verdict<R::Hit>> {
        match self.sample_first_now(table, lane, first, rejected)? {
            FirstSample::Hit(hit) => Some(Verdict::Hit(Which::First, hit)),
            FirstSample::Without => {
                self.sample_second_now(table, lane, || self.without_key(table, first), second, rejected)
            }
        }
    }

    /// The READs of both rows, one READ if they are neighbours, and of the trailers that validate a miss where READs of
    /// one batch sample in order. // [R-READ-1] [R-READ-2] [R-READ-3]
    pub(crate) fn reads<'b>(
        &self,
        table: &Table,
        words: &'b mut [u64],
        trailers: &'b mut Trailers,
        ordered: bool,
        batch: &mut impl Extend<Verb<'b>>,
    ) {
        let (geometry, rows) = (table.geometry(), table.rows());
        let first_at = geometry.row(self.first);
        if self.are_neighbours(table) {
            batch.extend([Verb::Read { addr: first_at, into: words }]);
        } else {
            let (first, second) = words.split_at_mut(self.rows.row_words());
            let second_at = geometry.row(self.second(table));
            batch.extend([Verb::Read { addr: first_at, into: first }, Verb::Read { addr: second_at, into: second }]);
        }
        if table.config().rules.validate_misses && ordered {
            // The second row's own sample follows the first's, except within a covering READ.
            let again =
                [self.first, self.second(table)].into_iter().take(if self.are_neighbours(table) { 2 } else { 1 });
            let reread = |(row, into): (RowId, &'b mut [u64; TRAILER_WORDS])| Verb::Read {
                addr: geometry.trailer(row, rows),
                into,
            };
            batch.extend(again.zip(trailers).map(reread));
        }
    }

    fn are_neighbours(&self, table: &Table) -> bool {
        self.first.0 + 1 == self.second(table).0
    }

    /// What the words that [`Lookup::reads`] fetched say. `None`: a miss that only another sample of both trailers can
    /// validate.
    pub(crate) fn verdict(
        &self,
        table: &Table,
        words: &[u64],
        trailers: &Trailers,
        ordered: bool,
        rejected: &[ExtentRef],
    ) -> Option<Verdict<R::Hit>> {
        let (first, second) = words.split_at(self.rows.row_words());
        if let Some(candidate) = self.verified(table, self.first, first, rejected) {
            return Some(Verdict::Hit(Which::First, candidate));
        }
        if let Some(candidate) = self.verified(table, self.second(table), second, rejected) {
            return Some(Verdict::Hit(Which::Second, candidate));
        }
        let verdict = self.absence(table, first, second);
        if !table.config().rules.validate_misses || !matches!(verdict, Verdict::Absent) {
            return Some(verdict);
        }
        ordered.then(|| self.validated(table, words, trailers, ordered && !self.are_neighbours(table)))
    }

    /// A miss, if the trailers are what they were. A covering READ or an unordered batch may have sampled L2 first:
    /// then both must be unchanged. // [R-READ-3]
    fn validated(&self, table: &Table, words: &[u64], trailers: &Trailers, second_is_later: bool) -> Verdict<R::Hit> {
        let (first, second) = words.split_at(self.rows.row_words());
        let at = table.rows().trailer_word();
        let same = trailers[0] == first[at..] && (second_is_later || trailers[1] == second[at..]);
        if same { Verdict::Absent } else { Verdict::Changed(self.first) }
    }

    /// Samples both rows, in the way that suits the lane.
    pub(crate) async fn sample<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        words: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Result<Verdict<R::Hit>, FabricError> {
        if lane.caps().local {
            let (first, second) = words.split_at_mut(self.rows.row_words());
            if let Some(verdict) = self.sample_now(table, lane, first, second, rejected) {
                return Ok(verdict);
            }
            poll_fn(|cx| lane.poll_drain(&mut [], cx)).await?;
        }
        self.sample_remote(table, lane, words, rejected).await
    }

    /// Samples both rows in one batch. // [R-READ-1] [R-READ-2]
    async fn sample_remote<L: Lane + ?Sized>(
        &self,
        table: &Table,
        lane: &mut L,
        words: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Result<Verdict<R::Hit>, FabricError> {
        let ordered = lane.caps().ordered_read_sampling;
        let mut trailers = Trailers::default();
        {
            let mut batch = ArrayVec::<_, 4>::new();
            self.reads(table, words, &mut trailers, ordered, &mut batch);
            post(lane, batch).await?;
        }
        if let Some(verdict) = self.verdict(table, words, &trailers, ordered, rejected) {
            return Ok(verdict);
        }
        let (geometry, rows) = (table.geometry(), table.rows());
        {
            let [first, second] = &mut trailers;
            let first = Verb::Read { addr: geometry.trailer(self.first, rows), into: first };
            let second = Verb::Read { addr: geometry.trailer(self.second(table), rows), into: second };
            post(lane, [first, second]).await?;
        }
        Ok(self.validated(table, words, &trailers, false))
    }

    /// What a sampled row has of the key, if the row verifies. One that does not says nothing: the other row may hold
    /// the key all the same. // [R-READ-1]
    #[inline(always)]
    pub(crate) fn verified(&self, table: &Table, row: RowId, words: &[u64], rejected: &[ExtentRef]) -> Option<R::Hit> {
        let hit = self.rows.seek(words, &self.probe, rejected)?;
        self.is_whole(table, row, words).then_some(hit)
    }

    #[inline(always)]
    fn is_whole(&self, table: &Table, row: RowId, words: &[u64]) -> bool {
        self.rows.verify(table.rows().sums(), row, words).is_ok()
    }

    /// A row without the key says nothing unless it verifies.
    #[inline]
    fn absence(&self, table: &Table, first: &[u64], second: &[u64]) -> Verdict<R::Hit> {
        let second_row = self.second(table);
        if !self.is_whole(table, self.first, first) {
            Verdict::Torn(self.first)
        } else if !self.is_whole(table, second_row, second) {
            Verdict::Torn(second_row)
        } else {
            Verdict::Absent
        }
    }
}
