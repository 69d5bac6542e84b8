//! The reclaim scan: finds extents that other clients have freed, by the marks of this client's chunks, and orphans
//! that have become empty. [R-EXTENT-5]
//!
//! Owners are not notified when one of their extents is freed; they read marks. A client does so when a class runs out
//! of slots, and in a scan of a few round trips once in [`SCAN_EVERY`] extents, so that chunks of classes from which it
//! no longer allocates are reclaimed as well. The same scan examines orphans, which have no owner.

use std::ops::Range;

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{ChunkState, ChunkWord, ExtentClass, Generation};

use super::chunk_table::orphans;
use super::owned_chunks::Chunk;
use super::{BATCH_VERBS, Extents};

/// Extents handed out or freed by this client between two scans.
pub(super) const SCAN_EVERY: u64 = 64;
/// Maximum number of words of marks in one batch, unless a single chunk has more: 128 KiB.
const BATCH_MARK_WORDS: u64 = 1 << 14;
/// Maximum number of words of marks that a scan reads: 128 bytes for each extent between two scans.
pub(super) const SCAN_MARK_WORDS: u64 = 1 << 10;
/// Words of the chunk table that a scan reads to find orphans.
const SCAN_TABLE_WORDS: u64 = 128;
/// Maximum number of neighbouring slots of an orphan that are sampled: with the READ of their marks, a quarter of a
/// batch.
const SAMPLE_SLOTS: u64 = BATCH_VERBS as u64 / 4 - 1;
/// An orphan's word is rewritten if its count of free slots is too low by more than one in this many of its slots.
const HINT_SHARE: u64 = 8;

/// Slots of one of this client's chunks, whose marks are to be read.
type Marks = (u64, ExtentClass, Range<u64>);
/// An orphan: its chunk, its class, and the number of free slots in its word.
pub(super) type Orphan = (u64, ExtentClass, u16);

/// The progress of this client's scans.
#[derive(Default)]
pub(super) struct ReclaimScan {
    /// Extents handed out or freed since the last scan.
    pub(super) handled: u64,
    /// The next of this client's chunks to scan, and its next slot.
    next_own: (u64, u64),
    /// The next word of the chunk table to scan.
    next_table_word: u64,
    /// Number of samples taken so far; it determines which slots the next one samples.
    samples: u64,
}

impl ReclaimScan {
    pub(super) fn starting_at(chunk: u64) -> ReclaimScan {
        ReclaimScan { next_table_word: chunk, ..ReclaimScan::default() }
    }
}

impl Extents {
    /// Whether [`Extents::maintain`] has anything to do.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.scan.handled >= SCAN_EVERY || self.are_runs_due() || self.chunks.may_have_surplus() || !self.is_settled()
    }

    /// Does the maintenance that is due: a reclaim scan, and giving back empty chunks beyond the reserve. Called before
    /// each operation on extents. No round trip if nothing is due.
    pub async fn maintain(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        self.settle_pending_claims(lane).await?;
        if self.scan.handled >= SCAN_EVERY {
            self.scan.handled = 0;
            self.settle_runs(lane).await?;
            self.scan_own(lane).await?;
            self.scan_orphans(lane).await?;
        }
        if self.are_runs_due() {
            self.settle_runs(lane).await?;
        }
        let surplus = self.chunks.surplus();
        if surplus.is_empty() { Ok(()) } else { self.give_back_chunks(lane, &surplus).await }
    }

    /// Reads the marks of all chunks of `class`. Returns true if one has a free slot afterwards. 1 round trip for 64
    /// chunks.
    pub(super) async fn read_class_marks(
        &mut self,
        lane: &mut dyn Lane,
        class: ExtentClass,
    ) -> Result<bool, FabricError> {
        let chunks = self.chunks.begin_mark_read(class);
        let chunks: Vec<Marks> =
            chunks.into_iter().filter_map(|index| Some(marks_of((index, self.chunks.get(index)?)))).collect();
        self.read_marks(lane, &chunks).await?;
        Ok(self.chunks.has_free(class))
    }

    /// Reads all marks of this client's chunks.
    pub(super) async fn read_all_marks(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let chunks: Vec<Marks> = self.chunks.from(0).map(marks_of).collect();
        self.read_marks(lane, &chunks).await
    }

    /// Reads the next marks of this client's chunks, continuing where the last scan stopped.
    pub(super) async fn scan_own(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let (chunk, slot) = self.scan.next_own;
        let (mut left, mut chunks) = (SCAN_MARK_WORDS, Vec::new());
        for (index, class, slots) in self.chunks.from(chunk).map(marks_of).take(BATCH_VERBS) {
            // Only the chunk at which the last scan stopped was begun.
            let first = if index == chunk { slot.min(slots.end) } else { 0 };
            let end = slots.end.min(first + left);
            self.scan.next_own = if end < slots.end { (index, end) } else { (index + 1, 0) };
            left -= end - first;
            if first < end {
                chunks.push((index, class, first..end));
            }
            if left == 0 {
                break;
            }
        }
        self.read_marks(lane, &chunks).await
    }

    async fn read_marks(&mut self, lane: &mut dyn Lane, mut chunks: &[Marks]) -> Result<(), FabricError> {
        while !chunks.is_empty() {
            let (now, later) = chunks.split_at(fitting(chunks));
            let mut marks = vec![0; now.iter().map(words_of).sum::<u64>() as usize];
            let mut batch: Vec<Verb<'_>> = Vec::with_capacity(now.len());
            let mut rest = &mut marks[..];
            for part in now {
                let (into, others) = rest.split_at_mut(words_of(part) as usize);
                rest = others;
                let (index, class, slots) = part;
                batch.push(Verb::Read { addr: self.mark_addr(*index, *class, slots.start), into });
            }
            post(lane, batch).await?;
            let mut rest = &marks[..];
            for part in now {
                let (marks, others) = rest.split_at(words_of(part) as usize);
                rest = others;
                self.chunks.apply_marks(part.0, part.2.start, marks);
            }
            chunks = later;
        }
        Ok(())
    }

    /// Examines the next few orphans. 2 round trips if there are any, 1 more if a word is wrong, and those of giving
    /// back each empty one.
    async fn scan_orphans(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let chunks = self.available;
        let first = self.scan.next_table_word % chunks;
        let mut words = vec![0; SCAN_TABLE_WORDS.min(chunks - first) as usize];
        post(lane, [Verb::Read { addr: self.table.geometry().chunk_word(first), into: &mut words }]).await?;
        let words: Vec<ChunkWord> = words.into_iter().map(ChunkWord).collect();
        self.scan.next_table_word = first + words.len() as u64;
        let mut orphans: Vec<Orphan> = orphans(&words).map(|(at, class, free)| (first + at, class, free)).collect();
        orphans.retain(|(index, class, _)| self.is_possible(*index, *class));
        let fitting = self.fitting_samples(&orphans);
        if fitting < orphans.len() {
            self.scan.next_table_word = orphans[fitting].0;
            orphans.truncate(fitting);
        }
        self.reclaim_drained(lane, &orphans, |index| words[(index - first) as usize]).await
    }

    /// Examines orphans, as many as one batch can sample. An empty one becomes free; if one has many more free slots
    /// than its word says, the word is rewritten.
    pub(super) async fn reclaim_drained(
        &mut self,
        lane: &mut dyn Lane,
        orphans: &[Orphan],
        seen: impl Fn(u64) -> ChunkWord,
    ) -> Result<(), FabricError> {
        let mut orphans = orphans.to_vec();
        orphans.retain(|(index, class, _)| self.is_possible(*index, *class));
        if orphans.is_empty() {
            return Ok(());
        }
        let estimates = self.estimate(lane, &orphans).await?;
        let (mut drained, mut swaps) = (Vec::new(), Vec::new());
        for ((index, class, free), estimate) in orphans.into_iter().zip(estimates) {
            let slots = class.slots(self.table.config().chunk_bytes);
            if estimate == slots {
                drained.push((index, class));
            } else if (estimate.saturating_sub(free.into())) * HINT_SHARE > slots {
                let free = u16::try_from(estimate).unwrap_or(u16::MAX);
                swaps.push((index, seen(index), ChunkWord::encode(ChunkState::Orphan { class, free })));
            }
        }
        self.swap_all(lane, &swaps).await?;
        for (index, class) in drained {
            self.give_back_if_empty(lane, index, class, seen(index)).await?;
        }
        Ok(())
    }

    /// Whether a chunk at `index` can be of `class`: a damaged word may have any value, and lead to addresses without
    /// memory.
    pub(super) fn is_possible(&self, index: u64, class: ExtentClass) -> bool {
        class.fits(self.table.config()) && index + class.chunks() <= self.available
    }

    /// Returns how many of the first `orphans` one batch can sample; at least 1 unless there are none.
    pub(super) fn fitting_samples(&self, orphans: &[Orphan]) -> usize {
        let (chunk_bytes, mut verbs) = (self.table.config().chunk_bytes, 0);
        let fits = |(_, class, _): &&Orphan| {
            verbs += 1 + class.slots(chunk_bytes).min(SAMPLE_SLOTS);
            verbs <= BATCH_VERBS as u64
        };
        orphans.iter().take_while(fits).count()
    }

    /// Estimates the number of free slots of each orphan from a few neighbouring slots; returns the number of all slots
    /// only if all that were sampled are free. 1 round trip.
    pub(super) async fn estimate(&mut self, lane: &mut dyn Lane, orphans: &[Orphan]) -> Result<Vec<u64>, FabricError> {
        let chunk_bytes = self.table.config().chunk_bytes;
        self.scan.samples += 1;
        let turn = self.scan.samples.wrapping_mul(SAMPLE_SLOTS);
        let window = |class: ExtentClass| {
            let slots = class.slots(chunk_bytes);
            let count = slots.min(SAMPLE_SLOTS);
            (turn % (slots - count + 1), count)
        };
        let mut marks: Vec<Vec<u64>> = orphans.iter().map(|(_, class, _)| vec![0; window(*class).1 as usize]).collect();
        let mut generations = marks.clone();
        let mut batch = Vec::with_capacity(BATCH_VERBS);
        for (((index, class, _), marks), generations) in orphans.iter().zip(&mut marks).zip(&mut generations) {
            let first = window(*class).0;
            batch.push(Verb::Read { addr: self.mark_addr(*index, *class, first), into: marks });
            for (into, slot) in generations.chunks_mut(1).zip(first..) {
                batch.push(Verb::Read { addr: self.slot_addr(*index, *class, slot), into });
            }
        }
        post(lane, batch).await?;
        let estimates = orphans.iter().zip(&marks).zip(&generations).map(|(((_, class, _), marks), generations)| {
            let held = generations.iter().map(|first| Generation::of_first_word(*first).0);
            let free = marks.iter().zip(held).filter(|(mark, held)| *held == 0 || *mark == held).count();
            free as u64 * class.slots(chunk_bytes) / marks.len() as u64
        });
        Ok(estimates.collect())
    }

    /// Adopts an orphan, and makes it free if it holds nothing, otherwise an orphan again.
    pub(super) async fn give_back_if_empty(
        &mut self,
        lane: &mut dyn Lane,
        index: u64,
        class: ExtentClass,
        seen: ChunkWord,
    ) -> Result<(), FabricError> {
        if !self.adopt(lane, index, seen, class).await? {
            return Ok(());
        }
        if self.chunks.is_empty(index) {
            self.give_back_chunks(lane, &[index]).await
        } else {
            self.give_up(lane, &[index]).await
        }
    }
}

fn marks_of((index, chunk): (u64, &Chunk)) -> Marks {
    (index, chunk.class, 0..chunk.slots.len() as u64)
}

/// Returns the number of words of these marks.
fn words_of((.., slots): &Marks) -> u64 {
    slots.end - slots.start
}

/// Returns how many of the first `chunks` one batch of marks can hold; at least 1 unless there are none.
fn fitting(chunks: &[Marks]) -> usize {
    let mut words = 0;
    let fits = |part: &&Marks| {
        words += words_of(part);
        words <= BATCH_MARK_WORDS
    };
    chunks.iter().take(BATCH_VERBS).take_while(fits).count().max(usize::from(!chunks.is_empty()))
}
