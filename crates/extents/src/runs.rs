//! Runs of chunks, each of which holds one value: a run in use needs no owner, and the client that removes its value
//! from the index takes it over. [R-EXTENT-6]
//!
//! Invariants: a run is an orphan only once its extent was written and linked; a run taken over counts as empty only if
//! its mark and generation, read after its word was won, say so: its word alone may be that of a later use.

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{ChunkState, ChunkWord, ExtentClass, ExtentRef, Generation};

use super::{BATCH_VERBS, Extents};

/// Number of chunks in linked and freed runs at which the words of these runs are changed: one round trip for this much
/// space, or for one run.
const SETTLE_CHUNKS: u64 = 16;
/// Runs that one batch settles: each takes a CAS and two READs.
const RUNS_OF_BATCH: usize = BATCH_VERBS / 3;

/// Runs whose words are to be changed.
#[derive(Default)]
pub(super) struct Runs {
    /// This client's runs whose extent was linked: head, and the extent's generation. The same chunks may have been
    /// freed and used again since, for another run, or for slots.
    linked: Vec<(u64, u64)>,
    /// Unowned runs whose extent this client freed.
    freed: Vec<(u64, ExtentClass)>,
    chunks: u64,
}

/// A run, its class, and the expected and the new value of its word.
type Swap = (u64, ExtentClass, ChunkWord, ChunkWord);

/// The result of swapping a run's word: the word found, and the run's mark and generation afterwards.
struct Settled {
    found: u64,
    mark: u64,
    generation: u64,
}

impl Extents {
    /// Records that an extent of this client was linked.
    #[inline]
    pub fn link(&mut self, extent: &ExtentRef) {
        self.settle_handed_out(extent);
        let Some((index, _)) = self.table.geometry().chunk_of(extent.offset) else { return };
        if let Some(chunk) = self.chunks.get(index)
            && matches!(chunk.class, ExtentClass::Run(_))
        {
            self.runs.chunks += chunk.class.chunks();
            self.runs.linked.push((index, extent.generation.0));
        }
    }

    /// Records that this client freed an extent that lies in none of its chunks.
    pub(super) fn free_run(&mut self, extent: &ExtentRef) {
        let location = self.table.geometry().chunk_of(extent.offset);
        let (Some((index, _)), Some(words)) = (location, extent.words()) else { return };
        let class = ExtentClass::of(words, self.table.config().chunk_bytes);
        if matches!(class, ExtentClass::Run(_)) && self.is_possible(index, class) {
            self.runs.chunks += class.chunks();
            self.runs.freed.push((index, class));
        }
    }

    /// Whether so many runs are waiting that they should be settled now.
    pub(super) fn are_runs_due(&self) -> bool {
        self.runs.chunks >= SETTLE_CHUNKS
    }

    /// Makes linked runs orphans, and takes over freed ones. 1 round trip for 21 runs of either.
    pub(super) async fn settle_runs(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        while !self.runs.linked.is_empty() {
            let some = self.runs.linked.len().min(RUNS_OF_BATCH);
            // A run that was freed since is in the reserve, or about to be given back, or in another use.
            let in_use = self.runs.linked[..some].iter().filter_map(|(index, generation)| {
                let chunk = self.chunks.get(*index).filter(|chunk| chunk.slots[0] == *generation)?;
                Some((*index, chunk.class, *generation))
            });
            let in_use: Vec<(u64, ExtentClass, u64)> = in_use.collect();
            if !in_use.is_empty() {
                self.orphan_linked(lane, &in_use).await?;
            }
            self.runs.linked.drain(..some);
        }
        // Freed runs that the loop above adds are taken over next time.
        let mut freed = self.runs.freed.len();
        while freed > 0 {
            let some = freed.min(RUNS_OF_BATCH);
            let runs = self.runs.freed[..some].to_vec();
            self.take_over_freed(lane, &runs).await?;
            self.runs.freed.drain(..some);
            freed -= some;
        }
        self.runs.chunks = 0;
        Ok(())
    }

    /// Makes runs with the given generations orphans.
    async fn orphan_linked(
        &mut self,
        lane: &mut dyn Lane,
        runs: &[(u64, ExtentClass, u64)],
    ) -> Result<(), FabricError> {
        let swap =
            |(index, class, _): &(u64, ExtentClass, u64)| (*index, *class, self.owned(*class), orphan_word(*class));
        let swaps: Vec<Swap> = runs.iter().map(swap).collect();
        self.mark_pending(runs.iter().map(|(index, ..)| *index));
        let settled = self.settle_words(lane, &swaps).await?;
        for ((index, class, generation), settled) in runs.iter().zip(settled) {
            self.chunks.remove(*index);
            // It was freed before it was an orphan: the client that freed it could not take it over.
            if settled.mark == *generation {
                self.runs.freed.push((*index, *class));
            }
        }
        self.clear_pending();
        Ok(())
    }

    /// Takes over orphans whose extent was freed. One that is in use again is left as it was.
    async fn take_over_freed(&mut self, lane: &mut dyn Lane, runs: &[(u64, ExtentClass)]) -> Result<(), FabricError> {
        let swap = |(index, class): &(u64, ExtentClass)| (*index, *class, orphan_word(*class), self.owned(*class));
        let swaps: Vec<Swap> = runs.iter().map(swap).collect();
        self.mark_pending(runs.iter().map(|(index, _)| *index));
        let settled = self.settle_words(lane, &swaps).await?;
        let mut in_use = Vec::new();
        for ((index, class, compare, _), Settled { found, mark, generation }) in swaps.into_iter().zip(settled) {
            if found != compare.0 {
                continue;
            }
            let is_free = generation == 0 || generation == mark;
            self.chunks.add(index, class, vec![if is_free { 0 } else { generation }], 0);
            if !is_free {
                in_use.push(index);
            }
        }
        self.clear_pending();
        if in_use.is_empty() { Ok(()) } else { self.give_up(lane, &in_use).await }
    }

    /// Swaps the words of runs, and reads the mark and the generation of each after its swap. 1 round trip.
    async fn settle_words(&self, lane: &mut dyn Lane, swaps: &[Swap]) -> Result<Vec<Settled>, FabricError> {
        let mut settled: Vec<Settled> = swaps.iter().map(|_| Settled { found: 0, mark: 0, generation: 0 }).collect();
        let mut batch = Vec::with_capacity(BATCH_VERBS);
        for ((index, class, compare, swap), Settled { found, mark, generation }) in swaps.iter().zip(&mut settled) {
            let addr = self.table.geometry().chunk_word(*index);
            batch.push(Verb::Cas { addr, compare: compare.0, swap: swap.0, found });
            let into = std::slice::from_mut(mark);
            batch.push(Verb::Read { addr: self.mark_addr(*index, *class, 0), into });
            let into = std::slice::from_mut(generation);
            batch.push(Verb::Read { addr: self.slot_addr(*index, *class, 0), into });
        }
        post(lane, batch).await?;
        for Settled { generation, .. } in &mut settled {
            *generation = Generation::of_first_word(*generation).0;
        }
        Ok(settled)
    }
}

/// Returns the word of an unowned run that holds an extent.
fn orphan_word(class: ExtentClass) -> ChunkWord {
    ChunkWord::encode(ChunkState::Orphan { class, free: 0 })
}
