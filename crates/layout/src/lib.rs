//! The layout of a table in remote memory, byte by byte: no I/O, no clock, no `unsafe`.
//!
//! Remote words are parsed here once, into a valid type or an error; the protocol never sees raw bits. All numbers are
//! 64-bit words as the memory holds them; byte strings are packed into words little-endian. docs/layout.md has the
//! diagrams.
#![forbid(unsafe_code)]

mod bytes;
mod chunk;
mod config;
mod derived;
mod entry;
mod extent;
mod fixed;
mod geometry;
mod ids;
mod lease;
mod lock;
mod preset;
mod record;
mod row;
mod segment;
mod slot;
mod space;
mod split;
pub mod sum;
mod sums;
mod superblock;

pub use chunk::{CHUNK_HEADER_WORDS, CHUNK_SWEPT_WORD, ChunkState, ChunkWord, ExtentClass};
pub use config::{
    ChecksumKind, ConfigError, EntryFormat, MAX_ENTRIES_PER_ROW, MAX_KEY_BYTES, MAX_LOCK_BYTES, MAX_PATH_ROWS,
    MAX_PATH_ROWS_WITH_EXTENTS, MAX_ROW_BYTES, MAX_ROWS_PER_LOCK, MAX_VALUE_BYTES, OffsetRule, Rules, TableConfig,
};
pub use entry::{Candidate, Probe};
pub use extent::{
    CopyBlock, Extent, ExtentError, ExtentRef, MAX_EXTENT_HEADER_WORDS, append_extent_value, encode_extent,
    extent_key_matches, extent_words, parse_extent, store_extent,
};
pub use fixed::{FixedRows, RowShape, Rows, Rows4x4, Rows8x8};
pub use geometry::{Geometry, ROWS_OF_FULL_WORD};
pub use ids::{Generation, LockId, OwnerId, RowId, Version};
pub use lease::{LeaseWord, MAX_REPAIR_REGIONS};
pub use lock::{LockLayout, LockMask};
pub use preset::{Preset, PresetOptions, physical_locks};
pub use record::{Delta, Part, Record, RecordError};
pub use row::{DESTROYED_TRAILER, EntryKind, MAX_ROW_WORDS, RowFormat, Torn, Trailer};
pub use segment::Segments;
pub use slot::{Seal, SlotState, SlotWord, slot_words};
pub use space::{extent_bytes_for, record_space};
pub use split::{SegmentSplit, SplitImage};
pub use sums::Sums;
pub use superblock::{
    CHUNKS_WORD, GENERATION_WORD, RECOVERIES_WORD, STATE_WORD, SUPERBLOCK_BYTES, SUPERBLOCK_WORDS, Secret, Superblock,
    SuperblockError, TOTALS_WORD, TOTALS_WORDS, TableState,
};
