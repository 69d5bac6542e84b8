//! Lookups: lock-free, one round trip for an inline hit, never a wrong miss.
//!
//! Linearization points: of a hit, the sample of the row that holds the key; of a miss, the sample of the second row,
//! because the first row was the same before and after it.

mod cache;
mod many;
mod predictor;
mod read_through_record;
mod sample;
mod verdict;

use std::future::poll_fn;
use std::sync::Arc;

use arrayvec::ArrayVec;
use guira_fabric::{
    Addr, Backoff, FabricError, Lane, LocalLane, Verb, pause_until, post, post_in_place, read_in_place,
};
use guira_in_place::in_place;
use guira_layout::{Candidate, CopyBlock, ExtentRef, LockId, OwnerId, RowFormat, RowId, RowShape, Rows};

pub(crate) use self::cache::RowCache;
use self::many::Group;
use self::predictor::Prediction;
pub use self::predictor::{RowGuess, RowPredictor};
use self::sample::{Covering, Lookup, Second};
use self::verdict::{ExtentMatch, KeyState, Value, match_extent, match_long_extent, value_of};
pub(crate) use self::verdict::{MissSample, TRAILER_WORDS, Verdict, WhichRow, miss_verdict};
use crate::paper::failure_timer::FailureTimers;
use crate::table::destroy::is_marked_destroyed;
use crate::table::segment_map::SegmentMap;
use crate::{
    Batch, CacheFill, ClientConfig, Counters, DamagedItem, Error, ErrorKind, MAX_COVERING_BYTES, Observer, Operation,
    Table, Token, locks::unowned,
};

/// Times an extent may fail to verify while its entry stays the same. [R-READ-6]
const EXTENT_SAMPLES: u32 = 3;
/// Keys of one row pair that can share a 64-bit digest before the reader gives up: even two are extremely rare.
const DIGEST_TWINS: usize = 8;
/// Maximum number of extent words that one READ carries: the smallest `max_verb_words` of all fabrics.
pub(crate) const READ_WORDS: usize = 1 << 17;

/// A reader of a table. Holds no slot and no lock: any number of readers may use a table.
#[derive(Debug)]
pub struct Reader {
    pub(crate) table: Arc<Table>,
    pub(crate) config: ClientConfig,
    pub(crate) extent: Vec<u64>,
    /// Where the values of extents pass through in place; see [`block_of`].
    pub(crate) block: Option<Box<CopyBlock>>,
    pub(crate) shape: RowShape,
    words: Vec<u64>,
    /// The segments in which to look for keys.
    pub(crate) segments: SegmentMap,
    /// Rows for the path searches of the reader's client.
    pub(crate) cache: RowCache,
    pub(crate) group: Option<Box<Group>>,
    pub(crate) backoff: Backoff,
    /// The client whose reader this is, where tables are repaired. [R-REPAIR-2]
    pub(crate) repairs_as: Option<OwnerId>,
    /// Receives reports of the clients that this one suspects, recovers and repairs after.
    pub(crate) observer: Option<Box<dyn Observer>>,
    pub(crate) failure_timers: FailureTimers,
    pub(crate) counters: Counters,
    prediction: Option<Prediction>,
}

/// The reason to sample a row again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryReason {
    /// The row does not verify.
    Torn,
    /// The row changed between two samples, or its entry does not match the extent it refers to.
    Changed,
}

/// The result of a lookup in place that never waits.
#[derive(Debug)]
pub enum TryGet<S = Token> {
    /// The lookup is complete: the state of the key, or `None` if there is no such key.
    Done(Option<S>),
    /// Nothing is known, and the value's buffer has the same content: [`Reader::get`] must wait for another client, or
    /// report an error.
    MustWait,
}

/// The result of sampling the rows of a key until that settles something.
enum Sampled {
    /// The key has this state.
    Found(Token),
    /// There is no such key.
    Absent,
    /// The key is in another segment, which the reader knows now.
    Elsewhere,
}

/// State of a lookup's retries: counts its samples and decides when to stop.
#[derive(Default)]
pub(crate) struct RetryState {
    pub(crate) samples: u32,
    started_ns: u64,
    pub(crate) unlocked_checks: u32,
    mismatched_extent: Option<(ExtentRef, u32)>,
    pub(crate) rejected: ArrayVec<ExtentRef, DIGEST_TWINS>,
}

impl RetryState {
    /// Records that `extent` does not match its entry. Fails with `Corrupt` if the entry has stayed the same for
    /// several samples. [R-READ-6]
    pub(crate) fn note_mismatch(&mut self, extent: &ExtentRef) -> Result<(), ErrorKind> {
        let times = match self.mismatched_extent {
            Some((before, times)) if before == *extent => times + 1,
            _ => 1,
        };
        self.mismatched_extent = Some((*extent, times));
        if times < EXTENT_SAMPLES { Ok(()) } else { Err(ErrorKind::Corrupt { item: DamagedItem::of(extent) }) }
    }
}

/// Returns the block through which the words of extents pass in place; made when it is first needed.
#[inline]
pub(crate) fn block_of(block: &mut Option<Box<CopyBlock>>) -> &mut CopyBlock {
    block.get_or_insert_with(|| Box::new([0; Reader::SHORT_WORDS]))
}

impl Reader {
    /// Creates a reader of `table`.
    pub fn new(table: Arc<Table>, config: ClientConfig) -> Reader {
        Reader {
            config,
            extent: Vec::new(),
            block: None,
            shape: table.rows().shape(),
            words: Vec::new(),
            segments: table.map(),
            cache: RowCache::none(),
            group: None,
            backoff: Backoff::new(config.seed ^ 0x7265_6164, config.backoff_ns, config.longest_backoff_ns),
            repairs_as: None,
            observer: None,
            failure_timers: FailureTimers::default(),
            counters: Counters::default(),
            prediction: None,
            table,
        }
    }

    /// Creates the reader of a client, which repairs in the client's name where tables are repaired. [R-REPAIR-2]
    pub(crate) fn of_client(table: Arc<Table>, config: ClientConfig, owner: OwnerId) -> Reader {
        let repairs_as = table.is_repairable().then_some(owner);
        let seed = config.seed ^ u64::from(owner.0) << 48;
        let cache = RowCache::new(config.cache_bytes, table.rows().row_words());
        Reader { repairs_as, cache, ..Reader::new(table, ClientConfig { seed, ..config }) }
    }

    /// Makes lookups on lanes whose batches travel read one row instead of two where `predictor` knows or guesses which
    /// one has the key. With [`RowGuess::Rationed`] at most 2 % of them guess wrong and take a second round trip; so do
    /// some lookups of missing keys. [R-READ-10]
    pub fn set_predictor(&mut self, predictor: Arc<RowPredictor>) {
        self.prediction = Some(Prediction::new(predictor));
    }

    /// Frees the buffers for extents and groups of keys that are larger than `bytes`; between lookups they only save
    /// allocations.
    pub fn shrink_to(&mut self, bytes: usize) {
        if self.extent.capacity() * size_of::<u64>() > bytes {
            self.extent = Vec::new();
        }
        if self.group.as_ref().is_some_and(|group| group.value_bytes() > bytes) {
            self.group = None;
        }
    }

    /// Returns the table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Sets how long each later operation waits for other clients; zero never waits.
    pub fn set_deadline_ns(&mut self, deadline_ns: u64) {
        self.config.deadline_ns = deadline_ns;
    }

    /// Makes the reader look for every key in the segment that had it before any split: as one that has slept through
    /// them. For tests.
    #[doc(hidden)]
    pub fn forget_splits(&mut self) {
        if let Some(segments) = self.table.placement().segments() {
            self.segments.forget(segments);
        }
    }

    /// Returns the reader's counters: rows sampled again, rows read through records, lookups that timed out.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Looks `key` up without a future and without waiting, on a lane that executes in place. On a table of records in
    /// rows this completes every lookup of a key whose rows are not being written.
    #[inline(always)]
    pub fn try_get<L: LocalLane>(&mut self, lane: &mut L, key: &[u8], into: &mut Vec<u8>) -> TryGet {
        self.try_lookup(lane, key, into)
    }

    /// Same as [`Reader::try_get`], for callers that do not need the state of the key.
    #[inline(always)]
    pub fn try_get_value<L: LocalLane>(&mut self, lane: &mut L, key: &[u8], into: &mut Vec<u8>) -> TryGet<()> {
        self.try_lookup(lane, key, into)
    }

    /// Looks `key` up in rows whose lengths are all known at compile time, if the table's are.
    #[inline(always)]
    fn try_lookup<L: LocalLane, S: KeyState>(&mut self, lane: &mut L, key: &[u8], into: &mut Vec<u8>) -> TryGet<S> {
        match self.shape {
            RowShape::Fixed8x8(rows) => self.try_lookup_in_turn::<_, _, _, 16>(lane, rows, key, into),
            RowShape::Fixed4x4(rows) => self.try_lookup_in_turn::<_, _, _, 8>(lane, rows, key, into),
            RowShape::General => self.try_lookup_general(lane, key, into),
        }
    }

    /// Makes each sample where it is read, so that it stays in registers.
    #[inline(always)]
    fn try_lookup_in_turn<L: LocalLane, R: Rows, S: KeyState, const ROW_WORDS: usize>(
        &mut self,
        lane: &mut L,
        rows: R,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> TryGet<S> {
        if !rows.accepts_key(key.len()) {
            return TryGet::MustWait;
        }
        let lookup = Lookup::new(&self.table, &self.segments, rows, key);
        let mut first = [0; ROW_WORDS];
        if let Some(result) = self.try_first_row(lane, &lookup, key, &mut first, into) {
            return result;
        }
        let mut second = [0; ROW_WORDS];
        self.try_second_row(lane, &lookup, key, &first, &mut second, into)
    }

    #[inline(never)]
    fn try_lookup_general<L: LocalLane, S: KeyState>(
        &mut self,
        lane: &mut L,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> TryGet<S> {
        let table = Arc::clone(&self.table);
        let rows = table.rows();
        if !rows.accepts_key(key.len()) {
            return TryGet::MustWait;
        }
        let lookup = Lookup::new(&table, &self.segments, rows, key);
        let mut words = std::mem::take(&mut self.words);
        words.resize(2 * rows.row_words(), 0);
        let (first, second) = words.split_at_mut(rows.row_words());
        let result = match self.try_first_row(lane, &lookup, key, first, into) {
            Some(result) => result,
            None => self.try_second_row(lane, &lookup, key, first, second, into),
        };
        self.words = words;
        result
    }

    /// Samples L1. Returns `None` if it does not have the key. [R-READ-7]
    #[inline(always)]
    fn try_first_row<L: LocalLane, R: Rows, S: KeyState>(
        &mut self,
        lane: &mut L,
        lookup: &Lookup<'_, R>,
        key: &[u8],
        first: &mut [u64],
        into: &mut Vec<u8>,
    ) -> Option<TryGet<S>> {
        match lookup.sample_first_in_place(&self.table, lane, first, &[]) {
            Ok(Some(hit)) => Some(self.finish_hit(lane, &lookup.rows, lookup.first_row(), first, &hit, key, into)),
            Ok(None) => None,
            Err(_) => Some(TryGet::MustWait),
        }
    }

    /// Samples L2, after a sample `first` of L1 that does not have the key.
    #[inline(always)]
    fn try_second_row<L: LocalLane, R: Rows, S: KeyState>(
        &mut self,
        lane: &mut L,
        lookup: &Lookup<'_, R>,
        key: &[u8],
        first: &[u64],
        second: &mut [u64],
        into: &mut Vec<u8>,
    ) -> TryGet<S> {
        match lookup.sample_second_in_place(&self.table, lane, second, &[]) {
            Ok(Second::Hit(hit)) => {
                self.finish_hit(lane, &lookup.rows, lookup.second(&self.table), second, &hit, key, into)
            }
            Ok(Second::Miss(second, again)) => {
                let first = lookup.first_miss_sample(&self.table, first);
                if lookup.is_absent_in_turn(&self.table, [&first, &second], again) {
                    TryGet::Done(None)
                } else {
                    TryGet::MustWait
                }
            }
            Err(_) => TryGet::MustWait,
        }
    }

    /// Reads the value of a hit from the row or its extent.
    #[expect(clippy::too_many_arguments, reason = "a sample, its row, and the lookup")]
    #[inline(always)]
    fn finish_hit<L: LocalLane, R: Rows, S: KeyState>(
        &mut self,
        lane: &mut L,
        rows: &R,
        row: RowId,
        words: &[u64],
        hit: &R::Hit,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> TryGet<S> {
        match value_of(rows, row, words, hit, into) {
            Value::Inline(state) => TryGet::Done(Some(state)),
            Value::Extent(extent) => match self.sample_extent_in_place(lane, &extent, key, into) {
                Ok(ExtentMatch::Value) => TryGet::Done(Some(S::extent(extent.generation))),
                Ok(ExtentMatch::OtherKey | ExtentMatch::Mismatch) | Err(_) => TryGet::MustWait,
            },
        }
    }

    /// Appends the value of `key` to `into` and returns a token of the state it was in, or returns `None` if there is
    /// no such key.
    ///
    /// Round trips without contention: an inline hit 1, an extent hit 2, a miss 2 (1 where READs of a batch sample in
    /// order). On a local fabric a hit in the key's second row takes 2 posts. With a predictor, 1 more if the key is
    /// not in the row that was predicted, and 2 more for a miss if the reader always guesses.
    ///
    /// # Errors
    /// `KeyLength`, `Corrupt`, `Busy` (a row stayed half written until the deadline), or the fabric's. `into` is
    /// unchanged.
    pub async fn get<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Option<Token>, Error> {
        let table = Arc::clone(&self.table);
        let rows = table.rows();
        if !rows.accepts_key(key.len()) {
            return Err(table.refuse_key(key.len()).during(Operation::Get));
        }
        // A lookup that was dropped may have left its READs in flight. // [R-DROP-1]
        let drained = poll_fn(|cx| lane.poll_drain(&mut [], cx)).await;
        drained.map_err(|source| ErrorKind::from(source).during(Operation::Get))?;
        let mut words = std::mem::take(&mut self.words);
        // Ends: a lookup that goes on does so in a segment that was split from the one before. // [R-GROW-4]
        let result = loop {
            let lookup = Lookup::new(&table, &self.segments, rows, key);
            words.resize(lookup.sampled_rows(&table, self.covering(lane)) * rows.row_words(), 0);
            match self.get_sampled(lane, lookup, into, &mut words).await {
                Ok(Sampled::Elsewhere) => self.counters.segment_steps += 1,
                Ok(Sampled::Found(token)) => break Ok(Some(token)),
                Ok(Sampled::Absent) => break Ok(None),
                Err(kind) => break Err(kind.during(Operation::Get)),
            }
        };
        self.words = words;
        result
    }

    async fn get_sampled<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        lookup: Lookup<'_, &RowFormat>,
        into: &mut Vec<u8>,
        words: &mut [u64],
    ) -> Result<Sampled, ErrorKind> {
        let mut retries = RetryState::default();
        loop {
            // A retry samples both rows again: the earlier samples are stale. // [R-READ-4]
            let (row, why) = match self.sample_rows(lane, &lookup, words, &retries).await? {
                Verdict::Absent => return Ok(Sampled::Absent),
                Verdict::Elsewhere { row, trailer } => {
                    self.table.placement().learn(&mut self.segments, row, trailer, lookup.digest)?;
                    return Ok(Sampled::Elsewhere);
                }
                Verdict::Torn(row) => {
                    let which = if row == lookup.first_row() { WhichRow::First } else { WhichRow::Second };
                    let (_, sample) = lookup.row_sample(&self.table, words, which);
                    // Rare, and larger than the rest of a lookup's future.
                    Box::pin(self.refuse_destroyed(lane, sample)).await?;
                    (row, RetryReason::Torn)
                }
                Verdict::Changed(row) => (row, RetryReason::Changed),
                Verdict::Hit(which, hit) => {
                    let (row, sample) = lookup.row_sample(&self.table, words, which);
                    match value_of(&lookup.rows, row, sample, &hit, into) {
                        Value::Inline(token) => return Ok(Sampled::Found(token)),
                        Value::Extent(extent) => {
                            let (entry, key) = (DamagedItem::Entry { row, index: hit.index() }, lookup.probe.key());
                            if self.read_value(lane, entry, &extent, key, into, &mut retries).await? {
                                return Ok(Sampled::Found(Token::Extent { generation: extent.generation }));
                            }
                            (row, RetryReason::Changed)
                        }
                    }
                }
            };
            self.wait_for(lane, row, why, &mut retries).await?;
        }
    }

    /// Samples both rows; through the records of their writers, if that already takes long. [R-READ-9]
    async fn sample_rows<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        lookup: &Lookup<'_, &RowFormat>,
        words: &mut [u64],
        retries: &RetryState,
    ) -> Result<Verdict<Candidate>, ErrorKind> {
        // Rare, and larger than the rest of a lookup's future.
        if self.may_read_through_record(retries)
            && let both = &mut words[..2 * self.table.rows().row_words()]
            && let Some(verdict) = Box::pin(self.read_through_record(lane, lookup, both, retries)).await?
        {
            return Ok(verdict);
        }
        if let Some(verdict) = self.sample_predicted(lane, lookup, words, retries).await? {
            return Ok(verdict);
        }
        let covering = self.covering(lane);
        let verdict = lookup.sample(&self.table, lane, words, &retries.rejected, covering).await?;
        if let (Some(prediction), Verdict::Hit(which, _)) = (&mut self.prediction, &verdict) {
            prediction.found(lookup.digest, *which);
        }
        if self.caches_all_operations(lane) {
            lookup.remember(&self.table, words, covering, &mut self.cache);
        }
        Ok(verdict)
    }

    /// Returns the row in which the key with this digest is expected, if there is a predictor and it expects one.
    pub(crate) fn predicted_row(&self, digest: u64) -> Option<WhichRow> {
        self.prediction.as_ref()?.row(digest, self.config.row_guess)
    }

    /// Tells the predictor that the key with this digest is in a row.
    pub(crate) fn found_in(&mut self, digest: u64, which: WhichRow) {
        if let Some(prediction) = &mut self.prediction {
            prediction.found(digest, which);
        }
    }

    /// Tells the predictor that the key with this digest is not in the row that it predicted.
    pub(crate) fn not_found_in(&mut self, digest: u64, which: WhichRow) {
        if let Some(prediction) = &mut self.prediction {
            prediction.missed(digest, which);
        }
    }

    /// Samples only the row in which the key is expected, in the first sample of a lookup, and then only the other one if
    /// the client always guesses. `None` if no row is expected to have it, or if neither has it after all, or does not
    /// verify. 1 round trip, or 2. [R-READ-10]
    async fn sample_predicted<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        lookup: &Lookup<'_, &RowFormat>,
        words: &mut [u64],
        retries: &RetryState,
    ) -> Result<Option<Verdict<Candidate>>, FabricError> {
        let Some(prediction) = self.prediction.as_mut().filter(|_| retries.samples == 0 && !lane.caps().local) else {
            return Ok(None);
        };
        let guess = self.config.row_guess;
        let Some(expected) = prediction.row(lookup.digest, guess) else { return Ok(None) };
        let row_words = lookup.rows.row_words();
        let mut which = expected;
        loop {
            let (row, from) = match which {
                WhichRow::First => (lookup.first_row(), 0),
                WhichRow::Second => (lookup.second(&self.table), row_words),
            };
            let into = &mut words[from..][..row_words];
            post(lane, [self.table.read_row(row, &mut *into)]).await?;
            let hit = lookup.verified(&self.table, row, into, &retries.rejected);
            if hit.is_some() {
                prediction.found(lookup.digest, which);
            } else if which == expected {
                prediction.missed(lookup.digest, which);
                if guess == RowGuess::Always {
                    which = which.other();
                    continue;
                }
            }
            return Ok(hit.map(|hit| Verdict::Hit(which, hit)));
        }
    }

    /// Returns the rules for covering READs of lookups on `lane`.
    fn covering<L: Lane + ?Sized>(&self, lane: &L) -> Covering {
        let bytes = self.config.covering_bytes.min(MAX_COVERING_BYTES);
        match lane.caps().local {
            true => Covering::NONE,
            false => Covering { most_rows: bytes / self.table.config().row_bytes as usize },
        }
    }

    /// Whether rows that are read on `lane` without a lock are cached.
    pub(crate) fn caches_all_operations<L: Lane + ?Sized>(&self, lane: &L) -> bool {
        self.config.cache_fill == CacheFill::AllOperations && !lane.caps().local
    }

    /// Reads the extent of an entry. 1 round trip. False means that the index must be read again. [R-READ-6]
    async fn read_value<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        entry: DamagedItem,
        extent: &ExtentRef,
        key: &[u8],
        into: &mut Vec<u8>,
        retries: &mut RetryState,
    ) -> Result<bool, ErrorKind> {
        let damaged = ErrorKind::Corrupt { item: entry };
        if extent.mark_offset(self.table.config(), self.table.geometry()).is_none() {
            return Err(damaged);
        }
        match self.sample_extent(lane, extent, key, into).await? {
            ExtentMatch::Value => Ok(true),
            ExtentMatch::OtherKey => {
                retries.rejected.try_push(*extent).map_err(|_| damaged)?;
                Ok(false)
            }
            ExtentMatch::Mismatch => {
                retries.note_mismatch(extent)?;
                Ok(false)
            }
        }
    }

    /// Appends the value of `key` in `extent`, if the extent matches its entry and holds the key. 1 round trip.
    // [R-READ-6]
    async fn sample_extent<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        extent: &ExtentRef,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<ExtentMatch, FabricError> {
        read_extent(lane, extent, &mut self.extent).await?;
        Ok(match_extent(&self.extent, extent, self.table.rows().sums(), key, into))
    }

    /// The number of words up to which an extent in place is read into the buffer. Longer ones are read in one pass, if
    /// one READ is enough.
    const SHORT_WORDS: usize = size_of::<CopyBlock>() / size_of::<u64>();

    /// [`Reader::sample_extent`] on a lane that executes in place: a long value passes through the processor once.
    // [R-READ-6]
    #[inline]
    fn sample_extent_in_place<L: LocalLane>(
        &mut self,
        lane: &mut L,
        extent: &ExtentRef,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<ExtentMatch, FabricError> {
        let sums = self.table.rows().sums();
        match extent.words() {
            Some(words) if (Self::SHORT_WORDS + 1..=READ_WORDS).contains(&words) => {
                let block = block_of(&mut self.block);
                read_in_place(lane, Addr::main(extent.offset), words, |words| {
                    match_long_extent(words, extent, sums, key, block, into)
                })
            }
            // What was read of a short one stays in the first-level cache.
            _ => {
                read_extent_in_place(lane, extent, &mut self.extent)?;
                Ok(match_extent(&self.extent, extent, sums, key, into))
            }
        }
    }

    /// Waits before another sample: not at all the first times, later after a READ of the row's lock. [R-READ-5]
    pub(crate) async fn wait_for<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        why: RetryReason,
        retries: &mut RetryState,
    ) -> Result<(), ErrorKind> {
        self.counters.row_retries += 1;
        self.counters.crc_retries += u64::from(why == RetryReason::Torn);
        lane.traffic_mut().retries += 1;
        retries.samples += 1;
        if retries.samples < self.config.row_samples {
            return Ok(());
        }
        let now_ns = lane.now_ns();
        if retries.samples == self.config.row_samples {
            retries.started_ns = now_ns;
            self.failure_timers.clear();
        }
        let (lock, owner) = self.lock_owner(lane, row).await?;
        let waited_ns = now_ns.saturating_sub(retries.started_ns);
        let deadline_ns = retries.started_ns.saturating_add(self.config.deadline_ns);
        if owner.is_some()
            && self.repairs_as.is_some()
            && Box::pin(self.repair_if_suspected(lane, row, lock, deadline_ns)).await?
        {
            return Ok(());
        }
        match owner {
            Some(_) => retries.unlocked_checks = 0,
            None => retries.unlocked_checks += 1,
        }
        let is_late = waited_ns >= self.config.deadline_ns;
        let may_be_damaged = retries.unlocked_checks > self.config.row_samples || is_late && owner.is_none();
        let is_damaged = may_be_damaged && self.row_is_damaged(lane, row).await?;
        let is_poisoned = owner.is_some_and(|owner| self.table.locks().is_poison(owner));
        // Destroying poisons the locks before it overwrites the rows, and may have died in between. // [R-DESTROY-2]
        if (is_poisoned || is_damaged || is_late) && Box::pin(is_marked_destroyed(lane, &self.table)).await? {
            return Err(ErrorKind::Destroyed);
        }
        if is_damaged {
            return Err(ErrorKind::Corrupt { item: DamagedItem::Row(row) });
        }
        // It is unknown who held it, and no client can release it. // [R-LOCK-9]
        if is_poisoned {
            return Err(unowned::damaged(lock));
        }
        if is_late {
            self.counters.timeouts += 1;
            let owner = owner.filter(|_| self.table.locks().has_owner_ids());
            return Err(ErrorKind::Busy { lock, owner, waited_ms: waited_ns / 1_000_000 });
        }
        if let Some(wait_ns) = self.next_wait_ns(retries.samples - self.config.row_samples + 1) {
            pause_until(lane, now_ns + wait_ns).await;
        }
        Ok(())
    }

    /// Returns the nanoseconds to wait before retry number `attempt`; `None` without backoff. [R-LOCK-4]
    pub(crate) fn next_wait_ns(&mut self, attempt: u32) -> Option<u64> {
        (self.config.backoff_ns > 0).then(|| self.backoff.wait_ns(attempt))
    }

    pub(crate) async fn lock_owner<L: Lane + ?Sized>(
        &self,
        lane: &mut L,
        row: RowId,
    ) -> Result<(LockId, Option<OwnerId>), FabricError> {
        let locks = self.table.locks();
        let lock = locks.lock_of(row);
        let mask = locks.mask(lock);
        let mut word = [0];
        post(lane, [Verb::Read { addr: locks.addr(mask.word), into: &mut word }]).await?;
        Ok((lock, locks.first_held(mask.word, word[0], mask.mask).map(|(_, owner)| owner)))
    }

    /// Whether two samples of a torn row are equal with a free lock between them: no client is writing it. A writer
    /// that started and finished meanwhile would have left another version, and a writer in the middle of the row holds
    /// the lock.
    async fn row_is_damaged<L: Lane + ?Sized>(&mut self, lane: &mut L, row: RowId) -> Result<bool, ErrorKind> {
        let row_words = self.table.rows().row_words();
        let (mut before, mut after) = (vec![0; row_words], vec![0; row_words]);
        post(lane, [self.table.read_row(row, &mut before)]).await?;
        let (_, owner) = self.lock_owner(lane, row).await?;
        post(lane, [self.table.read_row(row, &mut after)]).await?;
        Ok(owner.is_none() && before == after && self.table.rows().verify(row, &after).is_err())
    }
}

/// Reads all words of `extent` into `words`, unverified. 1 round trip.
///
/// # Errors
/// The fabric refused or lost the batch.
#[in_place(inline(always))]
pub async fn read_extent<L: Lane + ?Sized>(
    lane: &mut L,
    extent: &ExtentRef,
    words: &mut Vec<u64>,
) -> Result<(), FabricError> {
    // The words of the last extent are overwritten.
    words.resize(extent.words().unwrap_or(0), 0);
    if (1..=READ_WORDS).contains(&words.len()) {
        // Nearly every extent fits: its batch needs no memory of its own.
        return post(lane, [Verb::Read { addr: Addr::main(extent.offset), into: words }]).await;
    }
    read_long(lane, extent, words).await
}

/// Reads an extent in consecutive READs of at most [`READ_WORDS`] words each.
#[cold]
#[in_place]
async fn read_long<L: Lane + ?Sized>(lane: &mut L, extent: &ExtentRef, words: &mut [u64]) -> Result<(), FabricError> {
    let mut addr = Addr::main(extent.offset);
    let mut batch = Batch::new();
    for into in words.chunks_mut(READ_WORDS) {
        let next = addr.add_words(into.len() as u64);
        batch.push(Verb::Read { addr, into });
        addr = next;
    }
    post(lane, &mut batch[..]).await
}
