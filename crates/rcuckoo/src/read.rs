//! Lookups: lock-free, one round trip for an inline hit, never a wrong miss.
//!
//! Linearization points: a hit, the sample of the row that holds the key; a miss, the sample of the second row, because
//! the first row was the same before and after it.

use std::future::poll_fn;
use std::sync::Arc;

use arrayvec::ArrayVec;
use guira_fabric::{Addr, FabricError, Lane, Verb, pause_until, post};
use guira_layout::{Candidate, ExtentError, ExtentRef, LockId, OwnerId, Probe, RowId, parse_extent};

use crate::pace::Pace;
use crate::{Batch, ClientConfig, Error, Operation, Place, RowPair, Table};

/// Words of two rows that are kept on the stack; larger rows use the reader's buffer.
const STACK_WORDS: usize = 32;
/// Words of a trailer.
const TRAILER_WORDS: usize = 2;
/// Times an extent may fail to verify while its entry stays the same. // [R-READ-6]
const EXTENT_SAMPLES: u32 = 3;
/// Keys of one row pair that can share a 64-bit digest before the reader gives up: two is a once-in-ages event.
const DIGEST_TWINS: usize = 8;
/// Extent words one READ carries, at most: the smallest `max_verb_words` of all fabrics.
const READ_WORDS: usize = 1 << 17;

/// Looks keys up. Holds no slot and no lock: any number of readers may use a table.
#[derive(Debug)]
pub struct Reader {
    pub(crate) table: Arc<Table>,
    pub(crate) config: ClientConfig,
    pub(crate) extent: Vec<u64>,
    large: Vec<u64>,
    pace: Pace,
    row_retries: u64,
}

/// What a sample of both rows says.
enum Verdict {
    /// The key is in this slot of the verified row; the flag says of which one.
    Hit(Which, Candidate),
    /// Both rows verify, and neither has the key.
    Absent,
    /// This row does not verify.
    Torn(RowId),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Second,
}

/// Counts a lookup's samples and decides when to stop.
#[derive(Default)]
pub(crate) struct Patience {
    samples: u32,
    started_ns: u64,
    unlocked: u32,
    torn_extent: Option<(ExtentRef, u32)>,
    rejected: ArrayVec<ExtentRef, DIGEST_TWINS>,
}

impl Patience {
    /// Notes that `extent` does not fit its entry: damage, if the entry has said so several times. // [R-READ-6]
    pub(crate) fn note_unfit(&mut self, extent: &ExtentRef, operation: Operation) -> Result<(), Error> {
        let times = match self.torn_extent {
            Some((before, times)) if before == *extent => times + 1,
            _ => 1,
        };
        self.torn_extent = Some((*extent, times));
        if times < EXTENT_SAMPLES {
            return Ok(());
        }
        let place = Place::Extent { offset: extent.offset, generation: extent.generation };
        Err(Error::Corrupt { operation, place })
    }
}

impl Reader {
    /// A reader of `table`.
    pub fn new(table: Arc<Table>, config: ClientConfig) -> Reader {
        let pace = Pace::new(config.seed ^ 0x7265_6164, config.backoff_ns, config.longest_backoff_ns);
        Reader { table, config, extent: Vec::new(), large: Vec::new(), pace, row_retries: 0 }
    }

    /// Rows sampled again so far.
    pub fn row_retries(&self) -> u64 {
        self.row_retries
    }

    /// Appends the value of `key` to `into` and returns true, or returns false if there is no such key.
    ///
    /// Round trips without contention: an inline hit 1, an extent hit 2, a miss 2 (1 where READs of a batch sample in
    /// order). On a local fabric a hit in the key's second row takes 2 posts.
    ///
    /// # Errors
    /// `KeyLength`, `Corrupt`, `Busy` (a row stayed half written until the deadline), or the fabric's. `into` is
    /// unchanged.
    #[inline]
    pub async fn get<L: Lane + ?Sized>(&mut self, lane: &mut L, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        // A lookup that was dropped may have left its READs in flight. // [R-DROP-1]
        poll_fn(|cx| lane.poll_drain(&mut [], cx)).await.map_err(Error::fabric(Operation::Get))?;
        let row_words = self.table.rows().row_words();
        if !self.table.rows().accepts_key(key.len()) {
            let format = self.table.rows().entry_format();
            return Err(Error::KeyLength { operation: Operation::Get, bytes: key.len(), format });
        }
        if 2 * row_words <= STACK_WORDS {
            let mut words = [0; STACK_WORDS];
            return self.get_with(lane, key, into, &mut words[..2 * row_words]).await;
        }
        let mut words = std::mem::take(&mut self.large);
        words.resize(2 * row_words, 0);
        let result = self.get_with(lane, key, into, &mut words).await;
        self.large = words;
        result
    }

    #[inline]
    async fn get_with<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        key: &[u8],
        into: &mut Vec<u8>,
        words: &mut [u64],
    ) -> Result<bool, Error> {
        let digest = self.table.placement().digest(key);
        let pair = self.table.placement().rows(digest);
        let probe = self.table.rows().probe(key, digest);
        let mut patience = Patience::default();
        loop {
            let sampled = if lane.caps().local {
                self.sample_local(lane, &probe, pair, words, &patience.rejected).await
            } else {
                self.sample_remote(lane, &probe, pair, words, &patience.rejected).await
            };
            // A retry samples both rows again: what was sampled before is stale. // [R-READ-4]
            let unsettled = match sampled.map_err(Error::fabric(Operation::Get))? {
                Verdict::Absent => return Ok(false),
                Verdict::Torn(row) => row,
                Verdict::Hit(which, candidate) => {
                    let (row, sample) = self.half(pair, words, which);
                    match candidate {
                        Candidate::Inline(slot) => {
                            self.table.rows().append_inline_value(sample, slot, into);
                            return Ok(true);
                        }
                        Candidate::Extent(slot) => {
                            let extent = self.table.rows().extent_of(sample, slot);
                            match self.read_value(lane, row, slot, &extent, key, into, &mut patience).await? {
                                Some(()) => return Ok(true),
                                None => row,
                            }
                        }
                    }
                }
            };
            self.wait_for(lane, unsettled, &mut patience, Operation::Get).await?;
        }
    }

    fn half<'w>(&self, pair: RowPair, words: &'w [u64], which: Which) -> (RowId, &'w [u64]) {
        let row_words = self.table.rows().row_words();
        match which {
            Which::First => (pair.first, &words[..row_words]),
            Which::Second => (pair.second, &words[row_words..]),
        }
    }

    /// Samples L1, and L2 only without a hit: in place, a second post costs nothing but its bytes. // [R-READ-7]
    #[inline]
    async fn sample_local<L: Lane + ?Sized>(
        &self,
        lane: &mut L,
        probe: &Probe<'_>,
        pair: RowPair,
        words: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Result<Verdict, FabricError> {
        let (geometry, rows) = (self.table.geometry(), self.table.rows());
        let (first, second) = words.split_at_mut(rows.row_words());
        let (first_at, second_at) = (geometry.row(pair.first), geometry.row(pair.second));
        lane.prefetch(first_at, rows.row_words());
        lane.prefetch(second_at, rows.row_words());
        post(lane, [Verb::Read { addr: first_at, into: first }]).await?;
        if let Some(candidate) = self.verified(probe, pair.first, first, rejected) {
            return Ok(Verdict::Hit(Which::First, candidate));
        }
        let mut trailer = [0; TRAILER_WORDS];
        let again = Verb::Read { addr: geometry.trailer(pair.first, rows), into: &mut trailer };
        post(lane, [Verb::Read { addr: second_at, into: second }, again]).await?;
        if let Some(candidate) = self.verified(probe, pair.second, second, rejected) {
            return Ok(Verdict::Hit(Which::Second, candidate));
        }
        let verdict = self.absence(pair, first, second);
        let moved = self.table.config().rules.validate_misses && trailer != first[rows.trailer_word()..];
        Ok(if moved && matches!(verdict, Verdict::Absent) { Verdict::Torn(pair.first) } else { verdict })
    }

    /// Samples both rows in one batch, in one READ if they are neighbours. // [R-READ-1] [R-READ-2]
    async fn sample_remote<L: Lane + ?Sized>(
        &self,
        lane: &mut L,
        probe: &Probe<'_>,
        pair: RowPair,
        words: &mut [u64],
        rejected: &[ExtentRef],
    ) -> Result<Verdict, FabricError> {
        let (geometry, rows) = (self.table.geometry(), self.table.rows());
        let row_words = rows.row_words();
        let validates = self.table.config().rules.validate_misses;
        let ordered = lane.caps().ordered_read_sampling;
        let mut trailers = [[0; TRAILER_WORDS]; 2];
        let neighbours = pair.first.0 + 1 == pair.second.0;
        {
            let mut batch = ArrayVec::<_, 4>::new();
            let first_at = geometry.row(pair.first);
            if neighbours {
                batch.push(Verb::Read { addr: first_at, into: &mut *words });
            } else {
                let (first, second) = words.split_at_mut(row_words);
                batch.push(Verb::Read { addr: first_at, into: first });
                batch.push(Verb::Read { addr: geometry.row(pair.second), into: second });
            }
            if validates && ordered {
                // The second row's own sample follows the first's, except within a covering READ.
                let again = [pair.first, pair.second].into_iter().take(if neighbours { 2 } else { 1 });
                for (row, into) in again.zip(&mut trailers) {
                    batch.push(Verb::Read { addr: geometry.trailer(row, rows), into });
                }
            }
            post(lane, batch).await?;
        }
        let (first, second) = words.split_at(row_words);
        if let Some(candidate) = self.verified(probe, pair.first, first, rejected) {
            return Ok(Verdict::Hit(Which::First, candidate));
        }
        if let Some(candidate) = self.verified(probe, pair.second, second, rejected) {
            return Ok(Verdict::Hit(Which::Second, candidate));
        }
        let verdict = self.absence(pair, first, second);
        if !validates || !matches!(verdict, Verdict::Absent) {
            return Ok(verdict);
        }
        if !ordered {
            self.sample_trailers(lane, pair, &mut trailers).await?;
        }
        // A covering READ or an unordered batch may have sampled L2 first: then both must be unchanged. // [R-READ-3]
        let at = rows.trailer_word();
        let same = trailers[0] == first[at..] && (ordered && !neighbours || trailers[1] == second[at..]);
        Ok(if same { Verdict::Absent } else { Verdict::Torn(pair.first) })
    }

    async fn sample_trailers<L: Lane + ?Sized>(
        &self,
        lane: &mut L,
        pair: RowPair,
        trailers: &mut [[u64; TRAILER_WORDS]; 2],
    ) -> Result<(), FabricError> {
        let (geometry, rows) = (self.table.geometry(), self.table.rows());
        let [first, second] = trailers;
        let first = Verb::Read { addr: geometry.trailer(pair.first, rows), into: first };
        let second = Verb::Read { addr: geometry.trailer(pair.second, rows), into: second };
        post(lane, [first, second]).await
    }

    /// The key's entry in a sampled row, if the row verifies. One that does not says nothing: the other row may hold
    /// the key all the same. // [R-READ-1]
    #[inline(always)]
    fn verified(&self, probe: &Probe<'_>, row: RowId, words: &[u64], rejected: &[ExtentRef]) -> Option<Candidate> {
        let candidate = self.find(probe, words, rejected)?;
        self.table.rows().verify(row, words).is_ok().then_some(candidate)
    }

    /// The key's entry in a sampled row, if any, other than extents known to hold another key.
    #[inline(always)]
    fn find(&self, probe: &Probe<'_>, row: &[u64], rejected: &[ExtentRef]) -> Option<Candidate> {
        let mut from = 0;
        loop {
            let candidate = self.table.rows().find(row, probe, from)?;
            match candidate {
                Candidate::Extent(slot) if rejected.contains(&self.table.rows().extent_of(row, slot)) => {
                    from = slot + 1;
                }
                _ => return Some(candidate),
            }
        }
    }

    /// A row without the key says nothing unless it verifies.
    fn absence(&self, pair: RowPair, first: &[u64], second: &[u64]) -> Verdict {
        let rows = self.table.rows();
        if rows.verify(pair.first, first).is_err() {
            Verdict::Torn(pair.first)
        } else if rows.verify(pair.second, second).is_err() {
            Verdict::Torn(pair.second)
        } else {
            Verdict::Absent
        }
    }

    /// Reads the extent of an entry. 1 round trip. `None` means: look into the index again. // [R-READ-6]
    #[expect(clippy::too_many_arguments, reason = "where the entry is, what it says, and where the answer goes")]
    async fn read_value<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        slot: usize,
        extent: &ExtentRef,
        key: &[u8],
        into: &mut Vec<u8>,
        patience: &mut Patience,
    ) -> Result<Option<()>, Error> {
        let operation = Operation::Get;
        if extent.mark_offset(self.table.config(), self.table.geometry()).is_none() {
            return Err(Error::Corrupt { operation, place: Place::Entry { row, slot } });
        }
        read_extent(lane, extent, &mut self.extent).await.map_err(Error::fabric(operation))?;
        match parse_extent(&self.extent, extent, self.table.superblock().checksum_seed()) {
            Ok(parsed) if parsed.has_key(key) => {
                parsed.append_value(into);
                Ok(Some(()))
            }
            Ok(_) => {
                let place = Place::Entry { row, slot };
                patience.rejected.try_push(*extent).map_err(|_| Error::Corrupt { operation, place })?;
                Ok(None)
            }
            Err(ExtentError::Torn { .. } | ExtentError::Replaced { .. }) => {
                patience.note_unfit(extent, operation)?;
                Ok(None)
            }
        }
    }

    /// Before another sample: at once the first times, then with a look at the row's lock. // [R-READ-5]
    pub(crate) async fn wait_for<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        patience: &mut Patience,
        operation: Operation,
    ) -> Result<(), Error> {
        self.row_retries += 1;
        lane.traffic_mut().retries += 1;
        patience.samples += 1;
        if patience.samples < self.config.row_samples {
            return Ok(());
        }
        let now_ns = lane.now_ns();
        if patience.samples == self.config.row_samples {
            patience.started_ns = now_ns;
        }
        let (lock, owner) = self.lock_owner(lane, row).await.map_err(Error::fabric(operation))?;
        let waited_ns = now_ns.saturating_sub(patience.started_ns);
        match owner {
            Some(_) => patience.unlocked = 0,
            None => patience.unlocked += 1,
        }
        if patience.unlocked > self.config.row_samples && self.row_is_damaged(lane, row).await? {
            return Err(Error::Corrupt { operation, place: Place::Row(row) });
        }
        if waited_ns >= self.config.deadline_ns {
            let owner = owner.filter(|_| self.table.locks().names_owners());
            return Err(Error::Busy { operation, lock, owner, waited_ms: waited_ns / 1_000_000 });
        }
        let until_ns = now_ns + self.pace.wait_ns(patience.samples - self.config.row_samples + 1);
        pause_until(lane, until_ns).await;
        Ok(())
    }

    async fn lock_owner<L: Lane + ?Sized>(
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

    /// Two samples of one torn image with a free lock between them: nobody is writing it. A writer who came and went
    /// would have left another version, and one who is in the middle of it holds the lock.
    async fn row_is_damaged<L: Lane + ?Sized>(&mut self, lane: &mut L, row: RowId) -> Result<bool, Error> {
        let fabric = Error::fabric(Operation::Get);
        let row_words = self.table.rows().row_words();
        let (mut before, mut after) = (vec![0; row_words], vec![0; row_words]);
        let addr = self.table.geometry().row(row);
        post(lane, [Verb::Read { addr, into: &mut before }]).await.map_err(&fabric)?;
        let (_, owner) = self.lock_owner(lane, row).await.map_err(&fabric)?;
        post(lane, [Verb::Read { addr, into: &mut after }]).await.map_err(&fabric)?;
        Ok(owner.is_none() && before == after && self.table.rows().verify(row, &after).is_err())
    }
}

/// Reads all words of `extent` into `words`, unverified. 1 round trip.
///
/// # Errors
/// The fabric refused or lost the batch.
pub async fn read_extent<L: Lane + ?Sized>(
    lane: &mut L,
    extent: &ExtentRef,
    words: &mut Vec<u64>,
) -> Result<(), FabricError> {
    words.clear();
    words.resize(extent.words().unwrap_or(0), 0);
    let mut addr = Addr::main(extent.offset);
    let mut batch = Batch::new();
    for into in words.chunks_mut(READ_WORDS) {
        let next = addr.add_words(into.len() as u64);
        batch.push(Verb::Read { addr, into });
        addr = next;
    }
    post(lane, &mut batch[..]).await
}
