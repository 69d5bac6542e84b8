//! The space of extents in numbers: what lives in it, what it is cut into, who has it, and what is lost between.

use guira_layout::{ChunkState, ExtentClass, ExtentRef, OwnerId};
use guira_rcuckoo::Table;

use crate::ChunkCounts;

/// What the chunks of a table are used for. All zero in a table without extents.
///
/// Of the bytes of chunks in use, `place_bytes` are places of extents that entries refer to; `live_bytes` of these are
/// keys and values. The rest of the places are free, or held by operations under way.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct SpaceStats {
    /// Bytes of all chunks.
    pub total_bytes: u64,
    /// Bytes of the chunks that are not free.
    pub used_bytes: u64,
    /// Bytes of the places of extents that entries refer to: slots, and runs of chunks.
    pub place_bytes: u64,
    /// Bytes of the keys and values in these places.
    pub live_bytes: u64,
    /// `place_bytes` / `live_bytes`: internal fragmentation. 0 if nothing lives.
    pub place_factor: f64,
    /// `used_bytes` / `live_bytes`: what all fragmentation together costs. 0 if nothing lives.
    pub used_factor: f64,
    /// The longest run of neighbouring free chunks: what the largest value needs.
    pub longest_free_run: u64,
    /// Every size class in use, slots by size, then runs by length.
    pub classes: Vec<ClassStats>,
    /// Chunks of each client that has any, by owner id.
    pub owners: Vec<OwnerChunks>,
}

/// A size class: slots of one size, or runs of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClassStats {
    /// Bytes of a place.
    pub place_bytes: u64,
    /// Chunks of a place; 0 if places are slots of a chunk.
    pub run_chunks: u32,
    /// Chunks of the class.
    pub chunks: u64,
    /// Places in them.
    pub slots: u64,
    /// Places of extents that entries refer to.
    pub used: u64,
    /// Places that no entry refers to: free, or held by operations under way.
    pub free: u64,
}

/// A client's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OwnerChunks {
    /// The client's owner id: its slot plus one.
    pub owner: u16,
    /// Its chunks, those of runs included.
    pub chunks: u64,
}

impl SpaceStats {
    /// Counts an extent that an entry refers to; not if it lies where none can.
    pub(crate) fn count_extent(&mut self, table: &Table, extent: &ExtentRef) {
        let (config, geometry) = (table.config(), table.geometry());
        let (Some(words), Some(_)) = (extent.words(), extent.mark_offset(config, geometry)) else { return };
        let class = ExtentClass::of(words, config.chunk_bytes);
        self.place_bytes += class.bytes(config.chunk_bytes);
        self.live_bytes += u64::from(extent.key_bytes) + u64::from(extent.value_bytes);
        self.class(class, config.chunk_bytes).used += 1;
    }

    /// Counts chunk `chunk`, in the order of the table; `free` is how many free ones are right before it.
    pub(crate) fn count_chunk(&mut self, table: &Table, chunk: u64, state: Option<ChunkState>, free: &mut u64) {
        let config = table.config();
        *free = if state == Some(ChunkState::Free) { *free + 1 } else { 0 };
        self.longest_free_run = self.longest_free_run.max(*free);
        let possible = |class: ExtentClass| class.fits(config) && chunk + class.chunks() <= config.chunks;
        let (class, owner) = match state {
            Some(ChunkState::Owned { owner, class }) => (class, Some(owner)),
            Some(ChunkState::Orphan { class, .. }) => (class, None),
            Some(ChunkState::Claiming { owner, class }) if possible(class) => return self.count_owned(owner, class),
            _ => return,
        };
        if !possible(class) {
            return;
        }
        if let Some(owner) = owner {
            self.count_owned(owner, class);
        }
        let counts = self.class(class, config.chunk_bytes);
        counts.chunks += class.chunks();
        counts.slots += class.slots(config.chunk_bytes);
    }

    fn count_owned(&mut self, owner: OwnerId, class: ExtentClass) {
        let at = self.owners.binary_search_by_key(&owner.0, |known| known.owner).unwrap_or_else(|at| {
            self.owners.insert(at, OwnerChunks { owner: owner.0, chunks: 0 });
            at
        });
        self.owners[at].chunks += class.chunks();
    }

    fn class(&mut self, class: ExtentClass, chunk_bytes: u64) -> &mut ClassStats {
        let run_chunks = if let ExtentClass::Run(chunks) = class { chunks } else { 0 };
        let place_bytes = class.bytes(chunk_bytes);
        let of = |known: &ClassStats| (known.run_chunks, known.place_bytes);
        let at = self.classes.binary_search_by_key(&(run_chunks, place_bytes), of).unwrap_or_else(|at| {
            self.classes.insert(at, ClassStats { place_bytes, run_chunks, ..ClassStats::default() });
            at
        });
        &mut self.classes[at]
    }

    /// Fills in what follows from the rest.
    pub(crate) fn finish(&mut self, table: &Table, chunks: &ChunkCounts) {
        let config = table.config();
        self.total_bytes = config.chunks * config.chunk_bytes;
        self.used_bytes = chunks.in_use() * config.chunk_bytes;
        let factor = |bytes: u64| if self.live_bytes == 0 { 0.0 } else { bytes as f64 / self.live_bytes as f64 };
        (self.place_factor, self.used_factor) = (factor(self.place_bytes), factor(self.used_bytes));
        for class in &mut self.classes {
            class.free = class.slots.saturating_sub(class.used);
        }
    }
}
