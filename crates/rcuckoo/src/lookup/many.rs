//! Lookups of many keys at once, whose memory accesses overlap. [R-READ-8]
//!
//! Where batches execute in place, the first rows of a group of keys are prefetched before the first of them is read;
//! for keys that are not there, the second rows are prefetched before the first of those is read; an extent is
//! prefetched as soon as its entry is found. Elsewhere all READs of a group travel in one batch, and those of its
//! extents in another. Each answer is that of a separate lookup: there is no snapshot of several keys. A key whose
//! answer is not settled at once (its row is being written, or a miss does not validate) is looked up again separately.

use std::future::poll_fn;
use std::ops::Range;

use arrayvec::ArrayVec;
use guira_fabric::{Addr, FabricError, Lane, LocalLane, Verb, post};
use guira_in_place::in_place;
use guira_layout::{ExtentRef, RowId, RowShape, Rows};

use super::sample::{Lookup, Second, Trailers};
use super::verdict::{ExtentMatch, MissSample, Value, Verdict, match_extent, value_of};
use super::{READ_WORDS, Reader};
use crate::{Batch, Error};

/// Keys whose accesses overlap. More than the cache lines that a core can wait for at once; where a batch is sent, two
/// rows and a trailer for each key fit in the smallest batch of all fabrics.
const GROUP_KEYS: usize = 32;
/// Keys whose first rows are loaded ahead of the one being read.
const AHEAD_KEYS: usize = 16;
/// Maximum number of READs for one key: two rows, and one or two trailers.
const KEY_READS: usize = 4;

/// Maximum number of extent words that one group reads together: beyond it, reading extents one by one costs nothing.
const GROUP_EXTENT_WORDS: usize = 1 << 16;

const _: () = assert!(GROUP_EXTENT_WORDS < READ_WORDS, "every extent of a group is one READ");
const _: () = assert!(GROUP_KEYS * KEY_READS <= 128, "Rxe's max_batch is the smallest");

/// Progress of one key of a group.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The value is in this range of the group's bytes.
    Value(u32, u32),
    /// The key does not exist.
    Absent,
    /// The value is in the group's extent of this index, if that holds this key.
    Extent(u32),
    /// The key must be looked up separately.
    Separate,
}

/// The group being looked up, without an allocation for each key.
#[derive(Debug, Default)]
pub(crate) struct Group {
    words: Vec<u64>,
    bytes: Vec<u8>,
    steps: ArrayVec<Step, GROUP_KEYS>,
    extents: ArrayVec<ExtentRef, GROUP_KEYS>,
    /// The words read for each extent; `None` for those that are left to separate lookups.
    ranges: ArrayVec<Option<Range<usize>>, GROUP_KEYS>,
}

impl Group {
    /// Returns the size of the buffer for values.
    pub(super) fn value_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.steps.clear();
        self.extents.clear();
        self.ranges.clear();
    }

    /// Records the hit in the verified sample `words` of `row`: an inline value is appended to the group's bytes.
    #[inline(always)]
    fn hit<R: Rows>(&mut self, rows: &R, row: RowId, words: &[u64], hit: &R::Hit) -> Step {
        let start = self.bytes.len() as u32;
        match value_of(rows, row, words, hit, &mut self.bytes) {
            Value::Inline(()) => Step::Value(start, self.bytes.len() as u32),
            Value::Extent(extent) => {
                self.extents.push(extent);
                Step::Extent(self.extents.len() as u32 - 1)
            }
        }
    }
}

impl Reader {
    /// Looks up `keys` in groups whose memory accesses overlap, and passes the index of each in `keys`, with its value
    /// or `None`, to `visit`, in order. Each answer is that of [`Reader::get`] for the key.
    ///
    /// Round trips without contention, where batches travel: 1 for 32 inline keys, 2 with extents among them; where
    /// misses need a second trip, 2 more for each. On a local fabric 1 post for a key in its first row, 2 for others.
    ///
    /// # Errors
    /// Each key has its own: same as [`Reader::get`].
    pub async fn get_many<L: Lane + ?Sized, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        let mut group = self.group.take().unwrap_or_default();
        for (i, keys) in keys.chunks(GROUP_KEYS).enumerate() {
            group.clear();
            // A lookup that was dropped may have left its READs in flight. // [R-DROP-1]
            let stepped = match poll_fn(|cx| lane.poll_drain(&mut [], cx)).await {
                Ok(_) if lane.caps().local => self.steps_general(lane, keys, &mut group).await,
                Ok(_) => self.steps_by_batch(lane, keys, &mut group).await,
                Err(error) => Err(error),
            };
            self.finish_group(lane, keys, stepped, &mut group, |key, found| visit(i * GROUP_KEYS + key, found)).await;
        }
        self.group = Some(group);
    }

    /// Same as [`Reader::get_many`], on a lane that executes in place: without a future unless it has to wait.
    ///
    /// # Errors
    /// Each key has its own: same as [`Reader::get`].
    pub async fn get_many_in_place<L: LocalLane, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        let mut group = self.group.take().unwrap_or_default();
        for (i, keys) in keys.chunks(GROUP_KEYS).enumerate() {
            group.clear();
            let stepped = match self.shape {
                RowShape::Fixed4x4(rows) => self.steps_in_turn_in_place(lane, rows, keys, &mut [0; 8], &mut group),
                RowShape::Fixed8x8(rows) => self.steps_in_turn_in_place(lane, rows, keys, &mut [0; 16], &mut group),
                RowShape::General => self.steps_general_in_place(lane, keys, &mut group),
            };
            self.finish_group(lane, keys, stepped, &mut group, |key, found| visit(i * GROUP_KEYS + key, found)).await;
        }
        self.group = Some(group);
    }

    #[in_place]
    async fn steps_general<L: Lane + ?Sized, K: AsRef<[u8]>>(
        &self,
        lane: &mut L,
        keys: &[K],
        group: &mut Group,
    ) -> Result<(), FabricError> {
        let rows = self.table.rows();
        let mut words = std::mem::take(&mut group.words);
        words.resize(rows.row_words(), 0);
        let stepped = self.steps_in_turn(lane, rows, keys, &mut words, group).await;
        group.words = words;
        stepped
    }

    /// For lanes on which a batch costs no round trip: first rows of all keys, then second rows of those that need
    /// them.
    // [R-READ-7]
    #[in_place(inline(always))]
    async fn steps_in_turn<L: Lane + ?Sized, K: AsRef<[u8]>, R: Rows>(
        &self,
        lane: &mut L,
        rows: R,
        keys: &[K],
        words: &mut [u64],
        group: &mut Group,
    ) -> Result<(), FabricError> {
        let table = &*self.table;
        // The digest of each key, and its first row.
        let mut places = [(0, RowId(0)); GROUP_KEYS];
        let prefetch = |lane: &L, i: usize, places: &mut [(u64, RowId); GROUP_KEYS]| {
            let digest = table.placement().digest(keys[i].as_ref());
            places[i] = (digest, table.placement().first(&self.segments, digest));
            lane.prefetch(table.geometry().row(places[i].1), rows.row_words());
        };
        for i in 0..keys.len().min(AHEAD_KEYS) {
            prefetch(lane, i, &mut places);
        }
        let mut second = ArrayVec::<(u8, MissSample), GROUP_KEYS>::new();
        for (i, key) in keys.iter().enumerate() {
            if i + AHEAD_KEYS < keys.len() {
                prefetch(lane, i + AHEAD_KEYS, &mut places);
            }
            let key = key.as_ref();
            let mut step = Step::Separate;
            if rows.accepts_key(key.len()) {
                let lookup = Lookup::at(rows, key, places[i]);
                match lookup.sample_first(table, lane, words, &[]).await? {
                    Some(hit) => step = group.hit(&rows, lookup.first_row(), words, &hit),
                    None => {
                        lookup.prefetch_second(table, lane);
                        second.push((i as u8, lookup.first_miss_sample(table, words)));
                    }
                }
            }
            group.steps.push(step);
        }
        for (i, first) in &second {
            let i = usize::from(*i);
            let lookup = Lookup::at(rows, keys[i].as_ref(), places[i]);
            match lookup.sample_second(table, lane, words, &[]).await? {
                Second::Hit(hit) => group.steps[i] = group.hit(&rows, lookup.second(table), words, &hit),
                Second::Miss(second, again) => {
                    let verdict = lookup.miss_verdict_in_turn(table, [first, &second], again);
                    if matches!(verdict, Verdict::Absent) {
                        group.steps[i] = Step::Absent;
                    }
                }
            }
        }
        Ok(())
    }

    /// For other lanes: all rows in one batch.
    async fn steps_by_batch<'k, L: Lane + ?Sized, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &'k [K],
        group: &mut Group,
    ) -> Result<(), FabricError> {
        let (covering, caches) = (self.covering(lane), self.caches_all_operations(lane));
        let (table, ordered) = (&*self.table, lane.caps().ordered_read_sampling);
        let rows = table.rows();
        let pair_words = covering.most_rows.max(2) * rows.row_words();
        let map = &self.segments;
        let lookup =
            |key: &'k K| rows.accepts_key(key.as_ref().len()).then(|| Lookup::new(table, map, rows, key.as_ref()));
        let mut trailers = [Trailers::default(); GROUP_KEYS];
        let mut words = std::mem::take(&mut group.words);
        words.resize(keys.len() * pair_words, 0);
        let mut batch = Batch::with_capacity(keys.len() * KEY_READS);
        let samples = words.chunks_exact_mut(pair_words).zip(&mut trailers);
        for (lookup, (words, trailers)) in keys.iter().filter_map(lookup).zip(samples) {
            lookup.reads(table, words, trailers, ordered, covering, &mut batch);
        }
        if !batch.is_empty() {
            post(lane, &mut batch[..]).await?;
        }
        drop(batch);
        for (lookup, words) in keys.iter().filter_map(lookup).zip(words.chunks_exact_mut(pair_words)) {
            lookup.arrange(table, words, covering);
            if caches {
                lookup.remember(table, words, covering, &mut self.cache);
            }
        }
        let mut samples = words.chunks_exact(pair_words).zip(&trailers);
        for key in keys {
            let step = match lookup(key).and_then(|lookup| Some((lookup, samples.next()?))) {
                None => Step::Separate,
                Some((lookup, (words, trailers))) => {
                    match lookup.verdict(table, words, trailers, ordered, covering, &[]) {
                        Some(Verdict::Hit(which, hit)) => {
                            let (row, sample) = lookup.row_sample(table, words, which);
                            group.hit(&rows, row, sample, &hit)
                        }
                        Some(Verdict::Absent) => Step::Absent,
                        Some(Verdict::Torn(_) | Verdict::Changed(_) | Verdict::Elsewhere { .. }) | None => {
                            Step::Separate
                        }
                    }
                }
            };
            group.steps.push(step);
        }
        group.words = words;
        Ok(())
    }

    /// Finishes a group whose rows were sampled with the result `stepped`: reads extents, and reports every answer.
    async fn finish_group<L: Lane + ?Sized, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &[K],
        stepped: Result<(), FabricError>,
        group: &mut Group,
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        if stepped.is_err() {
            // Each lookup finds the error by itself.
            group.clear();
            group.steps = keys.iter().map(|_| Step::Separate).collect();
        }
        let mut words = std::mem::take(&mut self.extent);
        let Group { bytes, steps, extents, ranges, .. } = group;
        if !extents.is_empty() && self.read_extents(lane, extents, &mut words, ranges).await.is_err() {
            ranges.clear();
        }
        for (i, (key, step)) in keys.iter().zip(steps.iter()).enumerate() {
            let at = bytes.len();
            let held = match step {
                Step::Value(from, to) => {
                    visit(i, Ok(Some(&bytes[*from as usize..*to as usize])));
                    continue;
                }
                Step::Absent => {
                    visit(i, Ok(None));
                    continue;
                }
                Step::Extent(place) => {
                    let (place, sums) = (*place as usize, self.table.rows().sums());
                    let words = ranges.get(place).cloned().flatten().map(|range| &words[range]);
                    words.map(|words| match_extent(words, &extents[place], sums, key.as_ref(), bytes))
                }
                Step::Separate => None,
            };
            let found = match held {
                Some(ExtentMatch::Value) => Ok(true),
                // An extent that does not match its entry was replaced meanwhile. // [R-READ-6]
                _ => self.get(lane, key.as_ref(), bytes).await.map(|token| token.is_some()),
            };
            visit(i, found.map(|found| found.then(|| &bytes[at..])));
            bytes.truncate(at);
        }
        self.extent = words;
    }

    /// Reads the extents of a group into `words`, and adds the range of words of each to `ranges`; large extents are
    /// left to separate lookups. 1 round trip.
    async fn read_extents<L: Lane + ?Sized>(
        &self,
        lane: &mut L,
        extents: &[ExtentRef],
        words: &mut Vec<u64>,
        ranges: &mut ArrayVec<Option<Range<usize>>, GROUP_KEYS>,
    ) -> Result<(), FabricError> {
        let mut end = 0;
        for extent in extents {
            let fits = extent.words().filter(|words| end + words <= GROUP_EXTENT_WORDS);
            ranges.push(fits.map(|words| end..end + words));
            end += fits.unwrap_or(0);
        }
        words.resize(end.max(words.len()), 0);
        let mut batch = ArrayVec::<Verb<'_>, GROUP_KEYS>::new();
        let mut rest = &mut words[..];
        for (extent, range) in extents.iter().zip(&*ranges) {
            let Some(range) = range else { continue };
            let (into, after) = rest.split_at_mut(range.len());
            rest = after;
            batch.push(Verb::Read { addr: Addr::main(extent.offset), into });
        }
        if !batch.is_empty() {
            post(lane, &mut batch[..]).await?;
        }
        Ok(())
    }
}
