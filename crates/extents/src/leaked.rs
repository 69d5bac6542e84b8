//! Leaked extents: dead clients leave extents that nothing refers to, although their marks do not say that they are
//! free.
//! [R-RECOVER-7]
//!
//! Invariants: a chunk is swept by its owner only; its header says how many recoveries had been counted when the last
//! sweep that settled every slot began, so nothing is leaked in it until another recovery is counted.

use guira_fabric::{FabricError, Lane, Verb, WORD_BYTES, post};
use guira_layout::{CHUNK_SWEPT_WORD, ChunkWord, ExtentClass, Generation};
use guira_rcuckoo::{ExtentUse, count_recoveries, look_up_extent};

use super::chunk_table::orphans;
use super::owned_chunks::Freed;
use super::reclaim_scan::Orphan;
use super::{BATCH_VERBS, Extents};

impl Extents {
    /// Returns the number of leaked extents that this client found and freed.
    pub fn swept(&self) -> u64 {
        self.swept
    }

    /// Frees the leaked extents in chunk `index`, which this client owns. Does nothing if the chunk was last swept when
    /// the same number of `recoveries` had been counted. Extents that were handed out and not linked yet belong to the
    /// caller. Round trips: those of [`look_up_extent`] for each extent that is not marked, and 1; none if nothing can
    /// be leaked.
    pub(super) async fn sweep_leaked(
        &mut self,
        lane: &mut dyn Lane,
        index: u64,
        recoveries: u64,
    ) -> Result<(), FabricError> {
        let Some(chunk) = self.chunks.get(index).filter(|chunk| chunk.swept != recoveries) else { return Ok(()) };
        let (class, words) = (chunk.class, self.slot_words(chunk.class));
        let taken = chunk.slots.iter().zip(0..).filter(|(held, _)| **held != 0 && !self.handed_out.contains(held));
        let taken: Vec<(u64, u64)> = taken.map(|(held, slot)| (*held, slot)).collect();
        let mut is_settled = true;
        for (generation, slot) in taken {
            let offset = self.slot_addr(index, class, slot).offset();
            match look_up_extent(lane, &self.table, offset, Generation(generation), words).await? {
                ExtentUse::Linked => {}
                ExtentUse::Unsettled => is_settled = false,
                ExtentUse::Leaked => {
                    self.chunks.give_back(index, slot, generation, Freed::Unlinked);
                    self.swept += 1;
                }
            }
        }
        if is_settled {
            let addr = self.table.geometry().chunk(index).add_words(CHUNK_SWEPT_WORD);
            post(lane, [Verb::Write { addr, words: &[recoveries] }]).await?;
            self.chunks.note_swept(index, recoveries);
        }
        Ok(())
    }

    /// Returns the words from the start of an extent of `class` to the end of its slot.
    fn slot_words(&self, class: ExtentClass) -> u64 {
        let chunk_bytes = self.table.config().chunk_bytes;
        let bytes = match class {
            ExtentClass::Slot(_) => class.bytes(chunk_bytes),
            ExtentClass::Run(_) => class.bytes(chunk_bytes) - class.slot_at(0, chunk_bytes),
        };
        bytes / WORD_BYTES
    }

    /// Sweeps leaked extents in all chunks of this client.
    pub(super) async fn sweep_own(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let recoveries = count_recoveries(lane, &self.table).await?;
        let chunks: Vec<u64> = self.chunks.from(0).map(|(index, _)| index).collect();
        for index in chunks {
            self.sweep_leaked(lane, index, recoveries).await?;
        }
        Ok(())
    }

    /// Sweeps leaked extents in all orphans among `words`, the chunk table, that may have some. An orphan that holds
    /// nothing afterwards becomes free. 1 round trip for 64 orphans, and those of adopting and sweeping each.
    pub(super) async fn sweep_orphans(&mut self, lane: &mut dyn Lane, words: &[ChunkWord]) -> Result<(), FabricError> {
        let recoveries = count_recoveries(lane, &self.table).await?;
        let orphans: Vec<Orphan> =
            orphans(words).filter(|(index, class, _)| self.is_possible(*index, *class)).collect();
        for orphans in orphans.chunks(BATCH_VERBS) {
            let mut swept = vec![[0]; orphans.len()];
            let reads = orphans.iter().zip(&mut swept).map(|((index, ..), into)| Verb::Read {
                addr: self.table.geometry().chunk(*index).add_words(CHUNK_SWEPT_WORD),
                into,
            });
            post(lane, reads.collect::<Vec<_>>()).await?;
            for ((index, class, _), [swept]) in orphans.iter().zip(&swept) {
                if *swept != recoveries {
                    self.give_back_if_empty(lane, *index, *class, words[*index as usize]).await?;
                }
            }
        }
        Ok(())
    }
}
