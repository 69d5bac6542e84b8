//! Changes of chunk words that were pending when their operation was dropped. [R-DROP-1]
//!
//! Invariant: while the word of a chunk may differ from this client's record, the chunk is in `pending_claims`. The
//! next operation reads those words first, as a client that recovers this one would read all of them.

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{ChunkState, ChunkWord};

use super::Extents;
use super::chunk_table::{tail_of, tails};

impl Extents {
    /// Records that the words of these chunks are about to be changed.
    pub(super) fn mark_pending(&mut self, chunks: impl IntoIterator<Item = u64>) {
        self.pending_claims.extend(chunks);
    }

    /// Records that all pending changes are complete.
    pub(super) fn clear_pending(&mut self) {
        self.pending_claims.clear();
    }

    /// Whether no change of a chunk word is pending.
    pub fn is_settled(&self) -> bool {
        self.pending_claims.is_empty()
    }

    /// Starts to claim the first chunk, which is free, and stops there: for tests of dropped operations. 1 round trip.
    ///
    /// # Errors
    /// The fabric refused or lost a batch.
    ///
    /// # Panics
    /// If the chunk is not free.
    #[doc(hidden)]
    pub async fn claim_in_part(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let class = guira_layout::ExtentClass::Run(1);
        let claiming = ChunkWord::encode(ChunkState::Claiming { owner: self.owner, class });
        self.mark_pending([0]);
        let is_claimed = self.swap(lane, 0, ChunkWord::FREE, claiming).await?;
        assert!(is_claimed, "it is free");
        Ok(())
    }

    /// Settles the chunks of a dropped operation, whose batch has completed meanwhile: a chunk that was being claimed
    /// or given back becomes free, one that was being adopted becomes an orphan again, and one that this client no
    /// longer owns is forgotten. Round trips: none if no operation was dropped; otherwise 1 or 2 a chunk, and for a run
    /// 1 more for 64 of its chunks.
    pub(super) async fn settle_pending_claims(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        while let Some(index) = self.pending_claims.last().copied() {
            let mut word = [0];
            post(lane, [Verb::Read { addr: self.table.geometry().chunk_word(index), into: &mut word }]).await?;
            let word = ChunkWord(word[0]);
            match word.decode() {
                Some(ChunkState::Owned { owner, class }) if owner == self.owner => {
                    if self.chunks.get(index).is_none() {
                        let orphan = ChunkWord::encode(ChunkState::Orphan { class, free: 0 });
                        self.swap(lane, index, word, orphan).await?;
                    }
                }
                Some(ChunkState::Claiming { owner, class }) if owner == self.owner => {
                    self.chunks.remove(index);
                    let mut swaps: Vec<_> =
                        tails(index, class).into_iter().map(|tail| (tail, tail_of(index), ChunkWord::FREE)).collect();
                    swaps.push((index, word, ChunkWord::FREE));
                    self.swap_all(lane, &swaps).await?;
                }
                _ => drop(self.chunks.remove(index)),
            }
            self.pending_claims.pop();
        }
        Ok(())
    }
}
