//! Adding chunks to a table that grows. [R-GROW-15]
//!
//! Invariant: chunks have memory, and so have their words in the chunk table, before any client learns of them.

use std::sync::Arc;

use guira_fabric::{FabricError, Lane, Verb, post, reserve};
use guira_layout::{CHUNKS_WORD, ExtentClass, ExtentRef};
use guira_rcuckoo::Key;

use super::{ExtentError, Extents};

/// The part of the chunks that are added at once, one in so many.
const ADDED_SHARE: u64 = 8;
/// Maximum size of the chunks that are added at once, unless one value needs more, in bytes: the system clears their
/// memory in some milliseconds.
const MAX_ADDED_BYTES: u64 = 16 << 20;

impl Extents {
    /// Same as [`Extents::reserve`], and lets a table that grows have more chunks if there is no other space. Recover the
    /// dead clients among [`Extents::owners`] first.
    ///
    /// # Errors
    /// Same as [`Extents::reserve`].
    pub async fn reserve_growing(
        &mut self,
        lane: &mut dyn Lane,
        key: &Key<'_>,
        value: &[u8],
    ) -> Result<ExtentRef, ExtentError> {
        loop {
            match self.reserve(lane, key, value).await {
                // It ends, because each time there are more chunks than before, or none may be added.
                Err(ExtentError::Full(_)) if self.allow_chunks() => {}
                reserved => return reserved,
            }
        }
    }

    /// Adds chunks until there is one, or a run of them, for `class`. Returns false if the table has all chunks that it
    /// may have, fewer left than a run needs, or no memory.
    pub(super) async fn find_new_chunk(
        &mut self,
        lane: &mut dyn Lane,
        class: ExtentClass,
    ) -> Result<bool, FabricError> {
        // Other clients may take all of them. It ends, because each time there are more chunks than before.
        while self.add_chunks(lane, class).await? {
            if self.find_chunk(lane, class).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds chunks, as many as one of `class` needs at least, behind those that are free at the end. Returns whether
    /// there are more now, whoever added them. 1 round trip and 2 reservations; 2 more reservations if there is too
    /// little memory.
    async fn add_chunks(&mut self, lane: &mut dyn Lane, class: ExtentClass) -> Result<bool, FabricError> {
        let table = Arc::clone(&self.table);
        let config = table.config();
        let Some(initial) = config.initial_chunks else { return Ok(false) };
        let (first, room) = (self.available, config.chunks - self.available);
        let least = class.chunks().saturating_sub(self.free_at_end).max(1);
        if least > room {
            return Ok(false);
        }
        let usual = (first / ADDED_SHARE).min(MAX_ADDED_BYTES / config.chunk_bytes).clamp(least, room);
        for added in [usual, least] {
            let end = first + added;
            if !self.reserve_chunks(lane, first..end).await? {
                continue;
            }
            let (addr, mut found) = (table.geometry().superblock_word(CHUNKS_WORD), 0);
            post(lane, [Verb::Cas { addr, compare: first, swap: end, found: &mut found }]).await?;
            self.available = if found == first { end } else { found.clamp(initial, config.chunks) };
            // Not if the word is damaged.
            return Ok(self.available > first);
        }
        Ok(false)
    }

    /// Makes memory for these chunks and their words. Returns false if there is none.
    async fn reserve_chunks(&mut self, lane: &mut dyn Lane, chunks: std::ops::Range<u64>) -> Result<bool, FabricError> {
        for bytes in self.table.geometry().chunk_parts(chunks) {
            match reserve(lane, bytes).await {
                Ok(()) => {}
                Err(refused @ FabricError::NoMemory { .. }) => {
                    self.refused = Some(refused);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
