//! Statistics about the extent space: live bytes, size classes, owners, and fragmentation.

use guira_layout::{ChunkState, ExtentClass, ExtentRef, OwnerId};
use guira_rcuckoo::Table;

use crate::ChunkCounts;

/// Use of a table's extent space. All zero in a table without extents.
///
/// A *place* holds one extent: it is a chunk slot or a run of chunks. Of the bytes of chunks in use, `place_bytes` are
/// places of extents that entries refer to; `live_bytes` of these are keys and values. The other places are free, or
/// held by operations in progress.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct SpaceStats {
    /// Bytes of all chunks that have memory.
    pub total_bytes: u64,
    /// Bytes of all chunks that the table may have; `total_bytes` if it does not grow.
    pub most_bytes: u64,
    /// Bytes of the chunks that are not free.
    pub used_bytes: u64,
    /// Bytes of the places of extents that entries refer to.
    pub place_bytes: u64,
    /// Bytes of the keys and values in these places.
    pub live_bytes: u64,
    /// `place_bytes` / `live_bytes`: internal fragmentation. 0 if there are no live bytes.
    pub place_factor: f64,
    /// `used_bytes` / `live_bytes`: total fragmentation. 0 if there are no live bytes.
    pub used_factor: f64,
    /// Length of the longest run of consecutive free chunks, which bounds the largest new value.
    pub longest_free_run: u64,
    /// All size classes in use: chunk slots by size, then runs by length.
    pub classes: Vec<ClassStats>,
    /// The clients that own chunks, by slot.
    pub owners: Vec<OwnerChunks>,
}

/// Use of a size class: chunk slots of one size, or runs of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClassStats {
    /// Bytes of a place.
    pub place_bytes: u64,
    /// Chunks of a place; 0 if places are chunk slots.
    pub run_chunks: u32,
    /// Number of chunks of the class.
    pub chunks: u64,
    /// Number of places in these chunks.
    pub slots: u64,
    /// Number of places of extents that entries refer to.
    pub used: u64,
    /// Number of places that no entry refers to: free, or held by operations in progress.
    pub free: u64,
}

/// The chunks of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OwnerChunks {
    /// The client's slot.
    pub slot: u16,
    /// Number of its chunks, including those of runs.
    pub chunks: u64,
}

impl SpaceStats {
    /// Counts an extent that an entry refers to, unless its address is impossible.
    pub(crate) fn count_extent(&mut self, table: &Table, extent: &ExtentRef) {
        let (config, geometry) = (table.config(), table.geometry());
        let (Some(words), Some(_)) = (extent.words(), extent.mark_offset(config, geometry)) else { return };
        let class = ExtentClass::of(words, config.chunk_bytes);
        self.place_bytes += class.bytes(config.chunk_bytes);
        self.live_bytes += u64::from(extent.key_bytes) + u64::from(extent.value_bytes);
        self.class(class, config.chunk_bytes).used += 1;
    }

    /// Counts chunk `chunk`; chunks are counted in order. `free` is the number of consecutive free chunks right before
    /// it.
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
        let Some(slot) = owner.slot() else { return };
        let at = self.owners.binary_search_by_key(&slot, |known| known.slot).unwrap_or_else(|at| {
            self.owners.insert(at, OwnerChunks { slot, chunks: 0 });
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

    /// Computes the numbers that follow from others.
    pub(crate) fn finish(&mut self, table: &Table, chunks: &ChunkCounts) {
        let config = table.config();
        (self.total_bytes, self.most_bytes) = (chunks.total() * config.chunk_bytes, config.extent_bytes());
        self.used_bytes = chunks.in_use() * config.chunk_bytes;
        let factor = |bytes: u64| if self.live_bytes == 0 { 0.0 } else { bytes as f64 / self.live_bytes as f64 };
        (self.place_factor, self.used_factor) = (factor(self.place_bytes), factor(self.used_bytes));
        for class in &mut self.classes {
            class.free = class.slots.saturating_sub(class.used);
        }
    }
}
