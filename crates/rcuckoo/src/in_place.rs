//! Changes where batches execute in place: the common case without futures, windows and searches.
//!
//! The posts are those of any change: the new value's extent, locks of both rows and their READs; for an entry with an
//! extent, its key; then the commit. What is left out is the bookkeeping of paths: a change of an entry, or an insert
//! into a row with room, touches one row. Whatever is not so is handed over, with its locks held and its rows sampled,
//! and goes on in mutate.rs where it stands.

use std::task::{Context, Poll, Waker};

use arrayvec::ArrayVec;
use guira_fabric::{Addr, Effect, FabricError, Lane, LocalLane, MaskedCas, Verb, post, post_in_place};
use guira_in_place::in_place;
use guira_layout::{
    Candidate, EXTENT_HEADER_WORDS, ExtentRef, LockMask, OwnerId, Part, Placement, Probe, Record, RowId, Seal,
    extent_key_matches,
};

use crate::handover::Rest;
use crate::journal::{Flight, Try, release_verb};
use crate::locks::{Conflict, ExtentWrite, WRITE_WORDS};
use crate::mutate::{Change, Changed, NewValue, Outcome};
use crate::{Client, Error, Expected, RowPair, Synchronize, Table, Token};

/// Lock words of one key's rows.
pub(crate) const PAIR_WORDS: usize = 2;
/// Verbs that lock: an extent, tries, READs of both rows.
const LOCK_VERBS: usize = 3 + PAIR_WORDS;
/// Verbs that commit: a record, its retirement, a row, a mark, releases.
const COMMIT_VERBS: usize = 4 + PAIR_WORDS;

/// How far a change came in place.
#[derive(Debug)]
pub enum Begun {
    /// To its end.
    Done(Changed),
    /// It failed.
    Failed(Error),
    /// Not to its end: [`Client::finish`] does the rest.
    Rest(Rest),
}

/// Where a change stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// At its beginning.
    #[default]
    Beginning,
    /// Both rows are locked, and in the window.
    Locked,
    /// Somebody else holds a lock; this client may hold others.
    Contended(Conflict),
}

/// What to do under the locks.
enum Plan {
    /// Nothing: only give the locks back.
    Leave(Outcome),
    /// Change this slot of one of the rows.
    Change { which: usize, slot: usize, outcome: Outcome },
    /// Read the key in the extent of this slot, which has the same digest.
    ReadKey { which: usize, slot: usize },
    /// More than one row, or a row or an extent that is not as it should be.
    HandOver,
}

/// An extent, and where its mark lies.
#[derive(Clone, Copy)]
struct Marked {
    extent: ExtentRef,
    mark: Addr,
}

impl Client {
    /// Carries out `change` on `key`, if its lane executes batches in place and it concerns one row.
    ///
    /// Round trips: as [`Client::change`].
    #[in_place(inline)]
    pub async fn begin(&mut self, lane: &mut dyn Lane, key: &[u8], change: &Change<'_>) -> Begun {
        self.committed = false;
        let caps = lane.caps();
        let in_place = caps.local && caps.masked_cas != MaskedCas::CasLoop;
        let by_path = self.config.synchronize == Synchronize::Path && self.table.config().rules.lock_both_rows;
        let extent = change.extent();
        let is_one_write = extent.as_ref().is_none_or(|extent| extent.words.len() <= WRITE_WORDS);
        let applies = in_place && by_path && is_one_write && self.journal.is_clean();
        if !applies || self.check_lengths(key, change).is_err() || !is_idle(lane) {
            return Begun::Rest(Rest::ALL);
        }
        self.waiting_since_ns = None;
        let digest = self.table.placement().digest(key);
        let pair = self.table.placement().rows(digest);
        self.handover.begin(digest);
        match self.lock_pair(lane, pair, extent).await {
            Ok(Stage::Locked) => self.change_locked(lane, key, digest, pair, change).await,
            Ok(stage) => self.handover.hand_over(stage),
            Err(source) => Begun::Failed(Error::Fabric { operation: change.operation(), source }),
        }
    }

    /// Writes `extent`, locks and samples both rows. // [R-EXTENT-1] [R-LOCK-2] [R-LOCK-5]
    #[in_place]
    async fn lock_pair(
        &mut self,
        lane: &mut dyn Lane,
        pair: RowPair,
        extent: Option<ExtentWrite<'_>>,
    ) -> Result<Stage, FabricError> {
        let table = &self.table;
        let (layout, row_words) = (table.locks(), table.rows().row_words());
        let locks = pair_locks(layout.mask(layout.lock_of(pair.first)), layout.mask(layout.lock_of(pair.second)));
        let tries = locks.map(|locks| Try { locks, compare: 0, compare_mask: locks.mask });
        let words = if locks[0].word == locks[1].word { 1 } else { PAIR_WORDS };
        self.pair.resize(2 * row_words, 0);
        let mut found = [0; PAIR_WORDS];
        let (first, second) = self.pair.split_at_mut(row_words);
        self.journal.flight = Flight::AcquirePair(tries, words);
        let lock = LockPair { table, owner: self.owner, pair, locks: &locks, words };
        let posted = match (&extent, row_words) {
            // Rows of fixed:4:4 and fixed:8:8: copied without a loop.
            (None, 8) => lock.post_pair(lane, &mut first[..8], &mut second[..8], &mut found).await,
            (None, 16) => lock.post_pair(lane, &mut first[..16], &mut second[..16], &mut found).await,
            (None, _) => lock.post_pair(lane, first, second, &mut found).await,
            (Some(extent), _) => lock.post_with(lane, extent, [first, second], &mut found).await,
        };
        posted.inspect_err(|error| self.journal.failed(error))?;
        self.written = extent.map(|write| write.extent.generation);
        self.journal.landed_pair(&tries[..words], &found);
        if self.journal.held.len() == words {
            return Ok(Stage::Locked);
        }
        let conflict = locks.iter().zip(found).take(words).find_map(|(locks, found)| Conflict::of(table, locks, found));
        Ok(conflict.map_or(Stage::Beginning, Stage::Contended))
    }

    #[in_place(inline(always))]
    async fn change_locked(
        &mut self,
        lane: &mut dyn Lane,
        key: &[u8],
        digest: u64,
        pair: RowPair,
        change: &Change<'_>,
    ) -> Begun {
        let probe = self.table.rows().probe(key, digest);
        match self.plan_locked(&probe, pair, change) {
            Plan::ReadKey { which, slot } => self.change_extent(lane, &probe, pair, (which, slot), change).await,
            plan => self.carry_out(lane, &probe, pair, plan, None, change).await,
        }
    }

    /// Changes an entry that has the key's digest, and refers to an extent, if the extent has the key as well. 1 round
    /// trip more, unless the keys' lengths differ. // [R-UPDATE-2]
    #[in_place]
    async fn change_extent(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        (which, slot): (usize, usize),
        change: &Change<'_>,
    ) -> Begun {
        let (table, key) = (&self.table, probe.key());
        let extent = table.rows().extent_of(&self.pair[which * table.rows().row_words()..], slot);
        let as_expected = match change.expected() {
            None => true,
            Some(Expected::Unchanged(token)) => token == Token::Extent { generation: extent.generation },
            // The value has to be read.
            Some(Expected::Value(_)) => return self.hand_over(pair),
        };
        let mark = extent.mark_offset(table.config(), table.geometry());
        let Some(mark) = mark.filter(|_| extent.key_bytes as usize == key.len()) else { return self.hand_over(pair) };
        self.extent.resize(EXTENT_HEADER_WORDS + key.len().div_ceil(8), 0);
        let read = Verb::Read { addr: Addr::main(extent.offset), into: &mut self.extent };
        if let Err(source) = post(lane, [read]).await {
            return Begun::Failed(Error::Fabric { operation: change.operation(), source });
        }
        if extent_key_matches(&self.extent, &extent, key) != Ok(true) {
            return self.hand_over(pair);
        }
        let plan = plan_found(change, which, slot, as_expected);
        let freed = Marked { extent, mark: Addr::main(mark) };
        self.carry_out(lane, probe, pair, plan, Some(&freed), change).await
    }

    #[in_place]
    async fn carry_out(
        &mut self,
        lane: &mut dyn Lane,
        probe: &Probe<'_>,
        pair: RowPair,
        plan: Plan,
        freed: Option<&Marked>,
        change: &Change<'_>,
    ) -> Begun {
        match plan {
            Plan::Leave(outcome) => self.release_pair(lane, Changed { outcome, freed: None }, change).await,
            Plan::Change { which, slot, outcome } => {
                let rows = self.table.rows();
                let words = &mut self.pair[which * rows.row_words()..][..rows.row_words()];
                match change.value() {
                    Some(NewValue::Inline(value)) => {
                        rows.encode_inline(&mut self.entry, probe, value);
                        rows.put_entry(words, slot, &self.entry, Placement::Inline);
                    }
                    Some(NewValue::Extent { extent, .. }) => {
                        rows.encode_extent_entry(&mut self.entry, &extent);
                        rows.put_entry(words, slot, &self.entry, Placement::Extent);
                    }
                    None => rows.clear_entry(words, slot),
                }
                let row = if which == 0 { pair.first } else { pair.second };
                rows.finish(row, words);
                self.commit_pair(lane, (which, row, slot), freed, outcome, change).await
            }
            Plan::ReadKey { .. } | Plan::HandOver => self.hand_over(pair),
        }
    }

    fn hand_over(&mut self, pair: RowPair) -> Begun {
        let both = [pair.first, pair.second];
        self.window.clear();
        self.plan.clear();
        self.plan.extend(both);
        self.plan.sort_unstable();
        self.plan.dedup();
        self.window.extend(&self.plan);
        for (row, words) in both.iter().zip(self.pair.chunks_exact(self.table.rows().row_words())) {
            if let Some(place) = self.window.place(*row) {
                self.window.at_mut(place).copy_from_slice(words);
            }
        }
        self.handover.hand_over(Stage::Locked)
    }

    /// What the sampled rows ask for. An entry of the key, or one that may be the key's, answers if its row verifies,
    /// whatever the other row is; without one, both have to. A row that does not verify is for others. // [R-LOCK-7]
    fn plan_locked(&self, probe: &Probe<'_>, pair: RowPair, change: &Change<'_>) -> Plan {
        let rows = self.table.rows();
        let (first, second) = self.pair.split_at(rows.row_words());
        let is_whole = |row, words| rows.verify(row, words).is_ok();
        for (which, row, words) in [(0, pair.first, first), (1, pair.second, second)] {
            match rows.find(words, probe, 0) {
                None => {}
                Some(_) if !is_whole(row, words) => return Plan::HandOver,
                Some(Candidate::Inline(slot)) => {
                    // [R-CAS-1] [R-CAS-2]
                    let as_expected = match change.expected() {
                        None => true,
                        Some(Expected::Value(value)) => rows.inline_value_is(words, slot, value),
                        Some(Expected::Unchanged(token)) => {
                            token == Token::Inline { row, version: rows.trailer(words).version() }
                        }
                    };
                    return plan_found(change, which, slot, as_expected);
                }
                Some(Candidate::Extent(slot)) => return Plan::ReadKey { which, slot },
            }
        }
        if pair.is_single() || !is_whole(pair.first, first) || !is_whole(pair.second, second) {
            return Plan::HandOver;
        }
        match (change, rows.free_slot(first), rows.free_slot(second)) {
            (Change::Put(_) | Change::Insert(_), Some(slot), _) => {
                Plan::Change { which: 0, slot, outcome: Outcome::Inserted }
            }
            (Change::Put(_) | Change::Insert(_), None, Some(slot)) => {
                Plan::Change { which: 1, slot, outcome: Outcome::Inserted }
            }
            (Change::Put(_) | Change::Insert(_), None, None) => Plan::HandOver,
            _ => Plan::Leave(Outcome::Missing),
        }
    }

    /// Posts `sealed record | row | retire | mark | release` for one row. // [R-COMMIT-1]
    #[in_place]
    async fn commit_pair(
        &mut self,
        lane: &mut dyn Lane,
        (which, row, slot): (usize, RowId, usize),
        freed: Option<&Marked>,
        outcome: Outcome,
        change: &Change<'_>,
    ) -> Begun {
        let (table, owner) = (&self.table, self.owner);
        let rows = table.rows();
        let words = &self.pair[which * rows.row_words()..][..rows.row_words()];
        // [R-COMMIT-2]
        let torn = words.len() as u64 * guira_fabric::WORD_BYTES > lane.caps().atomic_write_unit;
        let recorded = table.config().rules.commit_records && torn;
        let (slot_word, held) = (self.slot_word, &self.journal.held);
        let commit = Commit { table, owner, slot_word, row, slot, words, freed, held };
        self.journal.flight = Flight::Release;
        self.committed = true;
        let sequence = recorded.then(|| {
            self.counters.records += 1;
            self.counters.sequence()
        });
        // Rows of fixed:4:4, fixed:8:8 and bytes:64, so that a record is a few registers.
        let posted = if let (None, 1, Ok(row)) = (freed, rows.entry_words(), words.try_into()) {
            commit.post_row::<5, 8>(lane, row, sequence).await
        } else if let (None, 2, Ok(row)) = (freed, rows.entry_words(), words.try_into()) {
            commit.post_row::<6, 16>(lane, row, sequence).await
        } else if let (None, 9, Ok(row)) = (freed, rows.entry_words(), words.try_into()) {
            commit.post_row::<13, 56>(lane, row, sequence).await
        } else {
            commit.post_any(lane, &mut self.record, sequence).await
        };
        self.conclude(posted, Changed { outcome, freed: freed.map(|freed| freed.extent) }, change)
    }

    #[in_place]
    async fn release_pair(&mut self, lane: &mut dyn Lane, changed: Changed, change: &Change<'_>) -> Begun {
        let mut found = [0; PAIR_WORDS];
        let mut batch = ArrayVec::<Verb<'_>, PAIR_WORDS>::new();
        for (locks, found) in self.journal.held.iter().zip(&mut found) {
            batch.push(release_verb(&self.table, self.owner, locks, found));
        }
        self.journal.flight = Flight::Release;
        let posted = post(lane, &mut batch[..]).await;
        drop(batch);
        self.conclude(posted, changed, change)
    }

    /// Books what became of the last batch.
    #[inline(always)]
    fn conclude(&mut self, posted: Result<(), FabricError>, changed: Changed, change: &Change<'_>) -> Begun {
        match posted {
            Ok(()) => {
                self.journal.landed_release();
                Begun::Done(changed)
            }
            Err(error) => self.conclude_failed(error, change),
        }
    }

    /// Books that the last batch failed.
    #[cold]
    fn conclude_failed(&mut self, source: FabricError, change: &Change<'_>) -> Begun {
        self.committed &= source.effect() != Effect::None;
        self.journal.failed(&source);
        Begun::Failed(Error::Fabric { operation: change.operation(), source })
    }
}

/// The locks of two rows, and the READs behind them.
struct LockPair<'l> {
    table: &'l Table,
    owner: OwnerId,
    pair: RowPair,
    locks: &'l [LockMask; PAIR_WORDS],
    /// In so many words, one or two.
    words: usize,
}

impl LockPair<'_> {
    #[in_place(inline(always))]
    async fn post_pair(
        &self,
        lane: &mut dyn Lane,
        first: &mut [u64],
        second: &mut [u64],
        [found_one, found_other]: &mut [u64; PAIR_WORDS],
    ) -> Result<(), FabricError> {
        let (RowPair { first: first_row, second: second_row }, [one, other]) = (self.pair, self.locks);
        if self.words == 1 {
            return post(
                lane,
                [self.acquire(one, found_one), self.read(first_row, first), self.read(second_row, second)],
            )
            .await;
        }
        post(
            lane,
            [
                self.acquire(one, found_one),
                self.acquire(other, found_other),
                self.read(first_row, first),
                self.read(second_row, second),
            ],
        )
        .await
    }

    /// Writes `extent` first.
    #[in_place]
    async fn post_with(
        &self,
        lane: &mut dyn Lane,
        ExtentWrite { extent, words }: &ExtentWrite<'_>,
        [first, second]: [&mut [u64]; 2],
        found: &mut [u64; PAIR_WORDS],
    ) -> Result<(), FabricError> {
        let mut batch = ArrayVec::<Verb<'_>, LOCK_VERBS>::new();
        batch.push(Verb::Write { addr: Addr::main(extent.offset), words });
        batch.extend(self.locks.iter().zip(found).take(self.words).map(|(locks, found)| self.acquire(locks, found)));
        batch.extend([self.read(self.pair.first, first), self.read(self.pair.second, second)]);
        post(lane, &mut batch[..]).await
    }

    #[inline(always)]
    fn acquire<'v>(&self, LockMask { word, mask }: &LockMask, found: &'v mut u64) -> Verb<'v> {
        let (addr, swap) = (self.table.locks().addr(*word), self.table.locks().held(self.owner, *mask));
        Verb::MaskedCas { addr, compare: 0, swap, compare_mask: *mask, swap_mask: *mask, found }
    }

    #[inline(always)]
    fn read<'v>(&self, row: RowId, into: &'v mut [u64]) -> Verb<'v> {
        Verb::Read { addr: self.table.geometry().row(row), into }
    }
}

/// A commit of one row. The verbs are made where they are posted, in arrays of the lengths that a lane in shared memory
/// executes without a loop.
struct Commit<'c> {
    table: &'c Table,
    owner: OwnerId,
    /// Where its slot lies, by the index of its first word.
    slot_word: u64,
    row: RowId,
    /// The entry that changes.
    slot: usize,
    /// The row afterwards.
    words: &'c [u64],
    /// The extent that it frees.
    freed: Option<&'c Marked>,
    held: &'c [LockMask],
}

impl Commit<'_> {
    /// Posts it, for rows of `ROW` words whose records of one row have `RECORD`, with the client's `sequence`th record
    /// if it needs one.
    #[in_place(inline(always))]
    async fn post_row<const RECORD: usize, const ROW: usize>(
        &self,
        lane: &mut dyn Lane,
        row: &[u64; ROW],
        sequence: Option<u32>,
    ) -> Result<(), FabricError> {
        match sequence {
            None => self.post_plain(lane, row).await,
            Some(sequence) => {
                let words =
                    Record::of_one_row::<RECORD, ROW>(self.table.rows().sums(), self.row, self.slot, row, sequence);
                self.post_recorded(lane, row, Part { word: Record::ONE_ROW_WORD, words: &words }, sequence).await
            }
        }
    }

    /// Posts it, for any rows.
    #[in_place]
    async fn post_any(
        &self,
        lane: &mut dyn Lane,
        record: &mut Record,
        sequence: Option<u32>,
    ) -> Result<(), FabricError> {
        let Some(sequence) = sequence else { return self.post_all(lane, None).await };
        record.clear();
        record.push(self.table.rows(), self.row, self.slot, self.words);
        if let Some(Marked { extent, mark }) = self.freed {
            record.free_extent(mark.offset(), extent.generation);
        }
        record.seal(self.table.rows().sums(), sequence);
        self.post_recorded(lane, self.words, record.parts().1, sequence).await
    }

    /// Posts the row without a record: apart, so that what nearly every commit does has the registers for itself.
    #[in_place(inline(never))]
    async fn post_plain<const ROW: usize>(&self, lane: &mut dyn Lane, row: &[u64; ROW]) -> Result<(), FabricError> {
        let mut found = [0; PAIR_WORDS];
        let [found_one, found_other] = &mut found;
        match (self.held, self.freed) {
            ([one], None) => post(lane, [self.write(row), self.release(one, found_one)]).await,
            ([one, other], None) => {
                let (one, other) = (self.release(one, found_one), self.release(other, found_other));
                post(lane, [self.write(row), one, other]).await
            }
            _ => self.post_all(lane, None).await,
        }
    }

    /// Posts the row with a record.
    #[in_place(inline(always))]
    async fn post_recorded(
        &self,
        lane: &mut dyn Lane,
        row: &[u64],
        record: Part<'_>,
        sequence: u32,
    ) -> Result<(), FabricError> {
        let slot_at = |word: usize| Addr::main_word(self.slot_word.wrapping_add(word as u64));
        // The seal is a record's last word.
        let seal = record.word + record.words.len() - 1;
        let retired = [Seal::retired(sequence).0];
        let record = Verb::Write { addr: slot_at(record.word), words: record.words };
        let retire = Verb::Write { addr: slot_at(seal), words: &retired };
        let mut found = [0; PAIR_WORDS];
        let [found_one, found_other] = &mut found;
        match (self.held, self.freed) {
            ([one], None) => post(lane, [record, self.write(row), retire, self.release(one, found_one)]).await,
            ([one, other], None) => {
                let (one, other) = (self.release(one, found_one), self.release(other, found_other));
                post(lane, [record, self.write(row), retire, one, other]).await
            }
            _ => self.post_all(lane, Some([record, retire])).await,
        }
    }

    /// Posts it with the mark of the extent that it frees, if it frees one.
    #[in_place]
    async fn post_all(&self, lane: &mut dyn Lane, record: Option<[Verb<'_>; 2]>) -> Result<(), FabricError> {
        let mut found = [0; PAIR_WORDS];
        let generation = [self.freed.map_or(0, |freed| freed.extent.generation.0)];
        let (record, retire) = record.map_or((None, None), |[record, retire]| (Some(record), Some(retire)));
        let mut batch = ArrayVec::<Verb<'_>, COMMIT_VERBS>::new();
        batch.extend(record);
        batch.push(self.write(self.words));
        batch.extend(retire);
        // After the retirement and before the release, as in commit.rs. // [R-EXTENT-4]
        batch.extend(self.freed.map(|Marked { mark, .. }| Verb::Write { addr: *mark, words: &generation }));
        batch.extend(self.held.iter().zip(&mut found).map(|(locks, found)| self.release(locks, found)));
        post(lane, &mut batch[..]).await
    }

    #[inline(always)]
    fn write<'v>(&self, words: &'v [u64]) -> Verb<'v> {
        Verb::Write { addr: self.table.geometry().row(self.row), words }
    }

    #[inline(always)]
    fn release<'v>(&self, locks: &LockMask, found: &'v mut u64) -> Verb<'v> {
        release_verb(self.table, self.owner, locks, found)
    }
}

/// The locks of two rows by word, in address order; the first word twice if one word has both.
fn pair_locks(first: LockMask, second: LockMask) -> [LockMask; PAIR_WORDS] {
    if first.word == second.word {
        let both = LockMask { word: first.word, mask: first.mask | second.mask };
        [both, both]
    } else if first.word < second.word {
        [first, second]
    } else {
        [second, first]
    }
}

/// What to do about the key in this slot.
fn plan_found(change: &Change<'_>, which: usize, slot: usize, as_expected: bool) -> Plan {
    match change {
        Change::Insert(_) => Plan::Leave(Outcome::Exists),
        _ if !as_expected => Plan::Leave(Outcome::Different),
        Change::Remove | Change::RemoveIf(_) => Plan::Change { which, slot, outcome: Outcome::Removed },
        _ => Plan::Change { which, slot, outcome: Outcome::Replaced },
    }
}

/// Whether no batch of a dropped operation is in flight. // [R-DROP-1]
#[inline(always)]
fn is_idle<L: Lane + ?Sized>(lane: &mut L) -> bool {
    matches!(lane.poll_drain(&mut [], &mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_)))
}
