//! Lookups of many keys at once, whose memory accesses overlap. [R-READ-8]
//!
//! Where batches execute in place, the first rows of a group of keys are prefetched before the first of them is read;
//! keys that are not there have their second rows prefetched before the first of those is read, and keys in extents
//! likewise. Elsewhere all READs of a group travel in one batch, and those of its extents in another. Each answer is
//! that of a lookup of its own: there is no snapshot of several keys. What does not settle at once (a row that is being
//! written, a miss that does not validate) is looked up again by itself.

use std::future::poll_fn;
use std::ops::Range;

use arrayvec::ArrayVec;
use guira_fabric::{Addr, FabricError, Lane, Verb, post};
use guira_layout::{Candidate, ExtentRef, RowShape, Rows, parse_extent};

use crate::read::{READ_WORDS, Sampled};
use crate::sample::{Lookup, Trailers, Verdict};
use crate::{Batch, Error, Reader};

/// Keys whose accesses overlap. More than the lines a core can wait for at once; where a batch is sent, two rows and a
/// trailer for each of them fit in the smallest batch of all fabrics.
const GROUP_KEYS: usize = 32;
/// READs for one key, at most: two rows, and one or two trailers.
const KEY_READS: usize = 4;

/// Extent words one group reads together: beyond them reading one after the other costs nothing.
const GROUP_EXTENT_WORDS: usize = 1 << 16;

const _: () = assert!(GROUP_EXTENT_WORDS < READ_WORDS, "every extent of a group is one READ");
const _: () = assert!(GROUP_KEYS * KEY_READS <= 128, "Rxe's max_batch is the smallest");

/// How far one key of a group has come.
enum Step {
    /// Its value is in this part of the group's bytes.
    Value(Range<usize>),
    /// It does not exist.
    Absent,
    /// Its value is in this extent, if that holds this key.
    Extent(ExtentRef),
    /// It has to be looked up by itself.
    Alone,
}

/// The group under way, without an allocation for each key.
#[derive(Debug, Default)]
pub(crate) struct Group {
    words: Vec<u64>,
    bytes: Vec<u8>,
}

impl Reader {
    /// Looks up `keys` in groups whose memory accesses overlap, and hands the place of each in `keys`, and its value or
    /// `None`, to `visit`, in order. Answers are as those of [`Reader::get`] for each key.
    ///
    /// Round trips without contention, where batches travel: 1 for 32 inline keys, 2 with extents among them; where
    /// misses need a second trip, 2 more for each. On a local fabric 1 post for each key, 2 for those in second rows.
    ///
    /// # Errors
    /// Each key has its own, as [`Reader::get`].
    pub async fn get_many<L: Lane + ?Sized, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        let mut group = std::mem::take(&mut self.group);
        for (i, keys) in keys.chunks(GROUP_KEYS).enumerate() {
            let start = i * GROUP_KEYS;
            group.bytes.clear();
            let mut steps = ArrayVec::new();
            self.group_steps(lane, keys, &mut group, &mut steps).await;
            self.finish_group(lane, keys, start, &steps, &mut group.bytes, &mut visit).await;
        }
        self.group = group;
    }

    /// The first part: every key's rows.
    async fn group_steps<L: Lane + ?Sized, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &[K],
        group: &mut Group,
        steps: &mut ArrayVec<Step, GROUP_KEYS>,
    ) {
        if lane.caps().local {
            return match self.shape {
                RowShape::Fixed8x8(rows) => self.steps_in_place(lane, rows, keys, &mut [0; 32], group, steps),
                RowShape::Fixed4x4(rows) => self.steps_in_place(lane, rows, keys, &mut [0; 16], group, steps),
                RowShape::General => {
                    let rows = *self.table.rows();
                    let mut words = std::mem::take(&mut group.words);
                    words.resize(2 * rows.row_words(), 0);
                    self.steps_in_place(lane, rows, keys, &mut words, group, steps);
                    group.words = words;
                }
            };
        }
        if self.steps_by_batch(lane, keys, group, steps).await.is_err() {
            // Each lookup finds out for itself.
            steps.clear();
            steps.extend(keys.iter().map(|_| Step::Alone));
        }
    }

    /// On a local lane: first rows of all keys, then second rows of those that need them.
    fn steps_in_place<L: Lane + ?Sized, K: AsRef<[u8]>, R: Rows>(
        &self,
        lane: &mut L,
        rows: R,
        keys: &[K],
        words: &mut [u64],
        group: &mut Group,
        steps: &mut ArrayVec<Step, GROUP_KEYS>,
    ) {
        let table = &*self.table;
        let mut lookups = ArrayVec::<Option<Lookup<'_, R>>, GROUP_KEYS>::new();
        for key in keys {
            let key = key.as_ref();
            let lookup = table.rows().accepts_key(key.len()).then(|| Lookup::new(table, rows, key));
            if let Some(lookup) = &lookup {
                lookup.prefetch_first(table, lane);
            }
            lookups.push(lookup);
        }
        let mut second = ArrayVec::<usize, GROUP_KEYS>::new();
        for (i, lookup) in lookups.iter().enumerate() {
            let verdict = lookup.as_ref().and_then(|lookup| lookup.sample_first_now(table, lane, words));
            if let (None, Some(lookup)) = (&verdict, lookup) {
                lookup.prefetch_second(table, lane);
                second.push(i);
            }
            steps.push(step(lookup, verdict, words, &mut group.bytes));
        }
        for i in second {
            let verdict = lookups[i].as_ref().and_then(|lookup| lookup.sample_now(table, lane, words, &[]));
            steps[i] = step(&lookups[i], verdict, words, &mut group.bytes);
        }
    }

    /// On other lanes: all rows in one batch.
    async fn steps_by_batch<'k, L: Lane + ?Sized, K: AsRef<[u8]>>(
        &self,
        lane: &mut L,
        keys: &'k [K],
        group: &mut Group,
        steps: &mut ArrayVec<Step, GROUP_KEYS>,
    ) -> Result<(), FabricError> {
        // A lookup that was dropped may have left its READs in flight. // [R-DROP-1]
        poll_fn(|cx| lane.poll_drain(&mut [], cx)).await?;
        let (table, ordered) = (&*self.table, lane.caps().ordered_read_sampling);
        let rows = *table.rows();
        let pair_words = 2 * rows.row_words();
        let lookup = |key: &'k K| rows.accepts_key(key.as_ref().len()).then_some(key.as_ref());
        let mut trailers = [Trailers::default(); GROUP_KEYS];
        group.words.resize(keys.len() * pair_words, 0);
        let mut batch = Batch::with_capacity(keys.len() * KEY_READS);
        let samples = group.words.chunks_exact_mut(pair_words).zip(&mut trailers);
        for (key, (words, trailers)) in keys.iter().filter_map(lookup).zip(samples) {
            Lookup::new(table, rows, key).reads(table, words, trailers, ordered, &mut batch);
        }
        if !batch.is_empty() {
            post(lane, &mut batch[..]).await?;
        }
        drop(batch);
        let mut samples = group.words.chunks_exact(pair_words).zip(&trailers);
        for key in keys {
            let looked_up = lookup(key).and_then(|key| Some((Lookup::new(table, rows, key), samples.next()?)));
            steps.push(match looked_up {
                None => Step::Alone,
                Some((lookup, (words, trailers))) => {
                    let verdict = lookup.verdict(table, words, trailers, ordered, &[]);
                    step(&Some(lookup), verdict, words, &mut group.bytes)
                }
            });
        }
        Ok(())
    }

    /// The second part: extents, and every answer.
    async fn finish_group<L: Lane + ?Sized, K: AsRef<[u8]>>(
        &mut self,
        lane: &mut L,
        keys: &[K],
        start: usize,
        steps: &[Step],
        bytes: &mut Vec<u8>,
        visit: &mut impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        let mut extents = std::mem::take(&mut self.extent);
        let mut fetched = self.read_extents(lane, steps, &mut extents).await.unwrap_or_default().into_iter();
        for (i, (key, step)) in keys.iter().zip(steps).enumerate() {
            let key = key.as_ref();
            let alone = match step {
                Step::Value(range) => {
                    visit(start + i, Ok(Some(&bytes[range.clone()])));
                    continue;
                }
                Step::Absent => {
                    visit(start + i, Ok(None));
                    continue;
                }
                Step::Extent(extent) => {
                    let words = fetched.next().flatten().map(|range| &extents[range]);
                    let seed = self.table.superblock().checksum_seed();
                    let parsed = words.and_then(|words| parse_extent(words, extent, seed).ok());
                    // An extent that is not what its entry says was replaced meanwhile. // [R-READ-6]
                    parsed.filter(|parsed| parsed.has_key(key))
                }
                Step::Alone => None,
            };
            let at = bytes.len();
            let found = match alone {
                Some(parsed) => {
                    parsed.append_value(bytes);
                    Ok(true)
                }
                None => self.get_waiting(lane, key, bytes, Sampled::default()).await.map(|token| token.is_some()),
            };
            visit(start + i, found.map(|found| found.then(|| &bytes[at..])));
            bytes.truncate(at);
        }
        self.extent = extents;
    }

    /// Reads the extents of a group into `words`, and returns which words belong to each; large ones are left to be
    /// read alone. 1 round trip.
    async fn read_extents<L: Lane + ?Sized>(
        &self,
        lane: &mut L,
        steps: &[Step],
        words: &mut Vec<u64>,
    ) -> Result<ArrayVec<Option<Range<usize>>, GROUP_KEYS>, FabricError> {
        let mut ranges = ArrayVec::new();
        let mut end = 0;
        for extent in steps.iter().filter_map(Step::extent) {
            let fits = extent.words().filter(|words| end + words <= GROUP_EXTENT_WORDS);
            ranges.push(fits.map(|words| end..end + words));
            end += fits.unwrap_or(0);
            if lane.caps().local {
                lane.prefetch(Addr::main(extent.offset), fits.unwrap_or(0));
            }
        }
        words.resize(end, 0);
        let mut batch = ArrayVec::<Verb<'_>, GROUP_KEYS>::new();
        let mut rest = &mut words[..];
        for (extent, range) in steps.iter().filter_map(Step::extent).zip(&ranges) {
            let Some(range) = range else { continue };
            let (into, after) = rest.split_at_mut(range.len());
            rest = after;
            batch.push(Verb::Read { addr: Addr::main(extent.offset), into });
        }
        if !batch.is_empty() {
            post(lane, &mut batch[..]).await?;
        }
        Ok(ranges)
    }
}

impl Step {
    fn extent(&self) -> Option<&ExtentRef> {
        match self {
            Step::Extent(extent) => Some(extent),
            _ => None,
        }
    }
}

/// What a verdict means for a key: its inline value goes to `bytes`.
#[inline(always)]
fn step<R: Rows>(lookup: &Option<Lookup<'_, R>>, verdict: Option<Verdict>, words: &[u64], bytes: &mut Vec<u8>) -> Step {
    let (Some(lookup), Some(verdict)) = (lookup, verdict) else { return Step::Alone };
    match verdict {
        Verdict::Absent => Step::Absent,
        Verdict::Torn(_) => Step::Alone,
        Verdict::Hit(which, Candidate::Inline(slot)) => {
            let start = bytes.len();
            lookup.rows.append_inline_value(lookup.half(words, which).1, slot, bytes);
            Step::Value(start..bytes.len())
        }
        Verdict::Hit(which, Candidate::Extent(slot)) => {
            Step::Extent(lookup.rows.extent_of(lookup.half(words, which).1, slot))
        }
    }
}
