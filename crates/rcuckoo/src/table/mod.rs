//! A table as all clients see it: formatting, opening and destroying it, the rows of its keys, its client slots, and
//! the choice between the two protocols.

pub(crate) mod destroy;
pub(crate) mod hash;
pub(crate) mod key;
pub(crate) mod policy;
pub(crate) mod segment_map;
pub(crate) mod session;

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use guira_fabric::{Addr, FabricError, Lane, Verb, post, reserve};
use guira_layout::{
    CHUNKS_WORD, Geometry, LeaseWord, LockLayout, RowFormat, RowId, SUPERBLOCK_WORDS, Segments, Superblock,
    SuperblockError, TableConfig, TableState,
};

use self::policy::{Deaths, Policy};
use self::segment_map::SegmentMap;
use crate::{Placement, RowList, TableRows};

/// The properties of a table that all its clients share, derived from its superblock.
#[derive(Clone, Debug)]
pub struct Table {
    superblock: Superblock,
    geometry: Geometry,
    rows: RowFormat,
    locks: LockLayout,
    placement: Placement,
    policy: Policy,
    /// The map with which clients begin, if it was read.
    map: OnceLock<SegmentMap>,
}

/// A table could not be opened. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The superblock could not be read.
    #[error("cannot read the superblock: {0}")]
    Fabric(FabricError),
    /// The superblock is invalid.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The region is smaller than the table in it.
    #[error("the table needs {wanted} bytes but its region has {found}: it was truncated")]
    Truncated {
        /// Bytes that the superblock implies.
        wanted: u64,
        /// Bytes of the region.
        found: u64,
    },
    /// The table was destroyed.
    #[error("the table was destroyed")]
    Destroyed,
}

impl From<FabricError> for TableError {
    fn from(error: FabricError) -> TableError {
        TableError::Fabric(error)
    }
}

impl Table {
    /// Creates the table that `superblock` describes.
    ///
    /// # Errors
    /// The superblock's parameters are impossible.
    pub fn new(superblock: Superblock) -> Result<Arc<Table>, SuperblockError> {
        superblock.config.check()?;
        let geometry = Geometry::new(&superblock.config)?;
        let rows = RowFormat::new(&superblock);
        let locks = LockLayout::new(&superblock.config);
        let placement = Placement::new(&superblock.config);
        let policy = Policy::of(&superblock.config, &locks);
        Ok(Arc::new(Table { superblock, geometry, rows, locks, placement, policy, map: OnceLock::new() }))
    }

    /// Returns the table's parameters.
    #[inline(always)]
    pub fn config(&self) -> &TableConfig {
        &self.superblock.config
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the addresses of the table's areas.
    #[inline(always)]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the format of rows.
    #[inline(always)]
    pub fn rows(&self) -> &RowFormat {
        &self.rows
    }

    /// Returns the layout of the lock table.
    #[inline(always)]
    pub fn locks(&self) -> &LockLayout {
        &self.locks
    }

    /// Returns the protocol that the table's clients follow.
    #[inline(always)]
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether dead clients can be recovered: locks name their owners, and commits leave records. [R-RECOVER-3]
    pub fn is_recoverable(&self) -> bool {
        self.policy.deaths == Deaths::Recovered
    }

    /// Whether the locks and rows of dead clients are repaired as printed: locks do not name their owners, commits
    /// leave no record, and there are leases. [R-REPAIR-1]
    #[inline]
    pub fn is_repairable(&self) -> bool {
        self.policy.deaths == Deaths::Repaired
    }

    /// Returns a READ of `row`.
    #[inline(always)]
    pub(crate) fn read_row<'v>(&self, row: RowId, into: &'v mut [u64]) -> Verb<'v> {
        Verb::Read { addr: self.geometry.row(row), into }
    }

    /// Returns READs of `rows`, one each, into consecutive parts of `words`.
    pub(crate) fn read_rows<'v>(&self, rows: &[RowId], words: &'v mut [u64]) -> impl Iterator<Item = Verb<'v>> {
        let into = words.chunks_exact_mut(self.rows.row_words());
        rows.iter().zip(into).map(|(row, into)| self.read_row(*row, into))
    }

    /// Returns a READ of the trailer of `row`.
    pub(crate) fn read_trailer<'v>(&self, row: RowId, into: &'v mut [u64]) -> Verb<'v> {
        Verb::Read { addr: self.geometry.trailer(row, &self.rows), into }
    }

    /// Returns a READ of the checksum of `row`.
    pub(crate) fn read_checksum<'v>(&self, row: RowId, into: &'v mut [u64; 1]) -> Verb<'v> {
        Verb::Read { addr: self.geometry.trailer(row, &self.rows).add_words(1), into }
    }

    /// Returns the segments of a table that grows.
    pub(crate) fn growing_segments(&self) -> Option<&Segments> {
        self.placement.segments().filter(|segments| segments.grows())
    }

    /// Returns the map with which a client begins.
    pub(crate) fn map(&self) -> SegmentMap {
        self.map.get().cloned().unwrap_or_else(|| SegmentMap::new(self.placement.segments()))
    }

    /// Returns the mapping from keys to rows.
    #[inline(always)]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
}

/// A table was not formatted. Its region holds no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The fabric refused or lost a batch.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The progress function stopped it.
    #[error("stopped on request")]
    Stopped,
}

/// Words of the map of segments that one READ or WRITE covers.
pub(crate) const MAP_WORDS: u64 = 4096;
/// Rows formatted by one WRITE: large enough to be fast, small enough for every fabric's limits.
const FORMAT_ROWS: u64 = 64;

/// Formats a region that is not visible to other clients yet: rows, slots, leases, map, locks and chunk table; the
/// superblock last, so that a region whose creator died is never taken for a table. [R-CREATE-1]
///
/// The region must be zeroed and as large as the table's [`Geometry`] says. Of a table that grows, the first segments
/// are formatted. Round trips: one for 64 rows, one for repair leases, one for 4,096 segments of a table that grows.
/// `progress` is called after each batch of rows, with the number of rows done; `Break` stops formatting there.
///
/// # Errors
/// The fabric refused or lost a batch, or `progress` stopped it.
pub async fn format_table(
    lane: &mut dyn Lane,
    table: &Table,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), FormatError> {
    let row_words = table.rows.row_words();
    let mut words = vec![0; row_words * FORMAT_ROWS as usize];
    let rows = table.config().initial_rows();
    for start in (0..rows).step_by(FORMAT_ROWS as usize) {
        for (i, row) in words.chunks_exact_mut(row_words).enumerate() {
            table.rows.format(RowId(start + i as u64), row);
        }
        let addr = table.geometry.row(RowId(start));
        post(lane, [Verb::Write { addr, words: &words }]).await?;
        if progress((start + FORMAT_ROWS).min(rows)).is_break() {
            return Err(FormatError::Stopped);
        }
    }
    if let Some(segments) = table.growing_segments() {
        for first in (0..segments.count()).step_by(MAP_WORDS as usize) {
            let numbers = first..(first + MAP_WORDS).min(segments.count());
            let map: Vec<u64> = numbers.map(|segment| segments.map_word(segments.level(segment))).collect();
            post(lane, [Verb::Write { addr: table.geometry.map_word(first), words: &map }]).await?;
        }
    }
    if table.config().repair_regions > 0 {
        let leases: Vec<u64> =
            (0..table.config().repair_regions).map(|region| LeaseWord::of_region(region).0).collect();
        post(lane, [Verb::Write { addr: table.geometry.lease(0), words: &leases }]).await?;
    }
    let superblock = table.superblock.encode();
    let (magic, rest) = superblock.split_at(1);
    let write_rest = Verb::Write { addr: Addr::main(8), words: rest };
    let write_magic = Verb::Write { addr: Addr::main(0), words: magic };
    Ok(post(lane, [write_rest, write_magic]).await?)
}

/// Reads the superblock of a region of `main_bytes` bytes. 1 round trip. [R-OPEN-1]
///
/// # Errors
/// The region holds no table, or one that this program cannot use.
pub async fn open_table(lane: &mut dyn Lane, main_bytes: u64) -> Result<Arc<Table>, TableError> {
    let mut words = vec![0; SUPERBLOCK_WORDS];
    if main_bytes < words.len() as u64 * 8 {
        return Err(TableError::Truncated { wanted: words.len() as u64 * 8, found: main_bytes });
    }
    post(lane, [Verb::Read { addr: Addr::main(0), into: &mut words }]).await?;
    let (superblock, state) = Superblock::decode(&words)?;
    let table = Table::new(superblock)?;
    let wanted = table.geometry.main_bytes();
    if wanted > main_bytes {
        return Err(TableError::Truncated { wanted, found: main_bytes });
    }
    match state {
        TableState::Live => Ok(table),
        TableState::Destroyed => Err(TableError::Destroyed),
    }
}

/// Returns the number of chunks that have memory; they come before all others. No round trip if the table was created
/// with all of its chunks, otherwise 1. [R-GROW-15]
///
/// # Errors
/// The fabric refused or lost the batch.
pub async fn available_chunks(lane: &mut dyn Lane, table: &Table) -> Result<u64, FabricError> {
    let chunks = table.config().chunks;
    let Some(initial) = table.config().initial_chunks else { return Ok(chunks) };
    let mut available = [0];
    post(lane, [Verb::Read { addr: table.geometry.superblock_word(CHUNKS_WORD), into: &mut available }]).await?;
    // A damaged word may have any value.
    Ok(available[0].clamp(initial, chunks))
}

/// Reads the map of a table that grows, once: clients that are made of `table` afterwards know of the splits until
/// then. Round trips: those of [`TableRows::read`]. [R-GROW-12]
///
/// # Errors
/// The fabric refused or lost a batch.
pub async fn read_map(lane: &mut dyn Lane, table: &Table) -> Result<(), FabricError> {
    let Some(segments) = table.growing_segments() else { return Ok(()) };
    let mut map = SegmentMap::new(Some(segments));
    let rows = TableRows::read(lane, table).await?;
    map.note_segments(segments, rows.known_rows().map(|first| segments.of_row(first)));
    // Another thread may have been faster.
    let _ = table.map.set(map);
    Ok(())
}

/// Reserves the memory that a table that grows should have, and that a copy of its file may have lost: pages of zeros
/// become holes. Round trips: 1, those of [`RowList::read`], and 2 reservations for each run of segments. [R-GROW-7]
///
/// # Errors
/// There is no memory, or the fabric refused or lost a batch. No word was changed.
pub async fn reserve_table(lane: &mut dyn Lane, table: &Table) -> Result<(), FabricError> {
    let Some(segments) = table.growing_segments() else { return Ok(()) };
    let solid = table.geometry.solid(table.config());
    let chunks = table.geometry.chunk_parts(0..available_chunks(lane, table).await?);
    for bytes in solid.into_iter().chain(chunks) {
        reserve_some(lane, bytes).await?;
    }
    let mut runs: [Range<u64>; 2] = [0..0, 0..0];
    for range in RowList::read(lane, table).await?.ranges() {
        let parts = table.geometry.segment_bytes(segments, segments.of_row(RowId(range.start)));
        for (run, bytes) in runs.iter_mut().zip(parts) {
            if (run.start..=run.end).contains(&bytes.start) {
                run.end = run.end.max(bytes.end);
            } else {
                reserve_some(lane, std::mem::replace(run, bytes)).await?;
            }
        }
    }
    for run in runs {
        reserve_some(lane, run).await?;
    }
    Ok(())
}

async fn reserve_some(lane: &mut dyn Lane, bytes: Range<u64>) -> Result<(), FabricError> {
    if bytes.is_empty() { Ok(()) } else { reserve(lane, bytes).await }
}
