//! Statistics about the contents of a table.

use guira_fabric::{FabricError, Lane, Verb, pause_until, post};
use guira_layout::{ChunkState, ChunkWord, EntryKind, RowId};
use guira_rcuckoo::{Table, TableRows, available_chunks, is_destroyed, sample_rows};

use crate::scan::WORDS_PER_READ;
use crate::{CheckError, SpaceStats, Stage};

/// Number of rows in one READ. The number of rows of a table is a multiple of it, and this many of the largest rows
/// fill the smallest `max_verb_words` of all fabrics.
pub(crate) const BLOCK_ROWS: u64 = 64;
/// Maximum number of samples of a row that does not verify.
const SAMPLES: u32 = 12;
/// Pause before the second sample of a row that does not verify; it doubles with each further sample, to 41 ms in all.
const FIRST_PAUSE_NS: u64 = 20_000;
/// Maximum number of rows that wait for further samples at the same time. It bounds memory, and is large because the
/// pauses are shared.
const MAX_TORN: usize = 16_384;

/// Statistics about the contents of a table.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct TableStats {
    /// Number of rows of the table.
    pub rows: u64,
    /// Number of rows that the table may grow to; `rows` if it does not grow.
    pub most_rows: u64,
    /// Number of segments; 0 if the table is not divided.
    pub segments: u64,
    /// Number of rows that were not counted, because no sample of them verified.
    pub unverified_rows: u64,
    /// Number of entries the table has room for.
    pub capacity: u64,
    /// Number of occupied entries.
    pub entries: u64,
    /// Number of entries that hold key and value inline.
    pub inline_entries: u64,
    /// Number of entries that refer to an extent.
    pub extent_entries: u64,
    /// Number of entries in their key's primary row.
    pub primary_entries: u64,
    /// Number of entries in their key's secondary row.
    pub secondary_entries: u64,
    /// `entries` / `capacity`.
    pub fill: f64,
    /// Number of rows with 0, 1, 2, ... occupied entries.
    pub rows_by_occupancy: Vec<u64>,
    /// Bytes of all extents that entries refer to, without the unused bytes behind them.
    pub extent_bytes: u64,
    /// Statistics about the chunk table.
    pub chunks: ChunkCounts,
    /// Statistics about the extent space.
    pub space: SpaceStats,
}

/// Statistics about the chunk table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ChunkCounts {
    /// Number of free chunks.
    pub free: u64,
    /// Number of chunks that a client allocates from, and of the heads of runs that a client filled.
    pub owned: u64,
    /// Number of chunks without an owner, because their client closed or died, or because they are heads of runs that
    /// hold a value.
    pub orphan: u64,
    /// Number of chunks that are not the first of their run.
    pub tail: u64,
    /// Number of chunks that a client is claiming or freeing.
    pub claiming: u64,
    /// Number of chunks whose word is not valid.
    pub damaged: u64,
}

impl TableStats {
    /// Counts the entries of a row that verifies.
    pub(crate) fn count_row(&mut self, table: &Table, row: RowId, words: &[u64], key: &mut Vec<u8>) {
        self.rows_by_occupancy.resize(table.rows().entries() + 1, 0);
        self.rows_by_occupancy[table.rows().occupied(words) as usize] += 1;
        for index in table.rows().occupied_entries(words) {
            self.entries += 1;
            match table.rows().entry_kind(words, index) {
                EntryKind::Inline => self.inline_entries += 1,
                EntryKind::Extent => {
                    self.extent_entries += 1;
                    let extent = table.rows().extent_of(words, index);
                    self.extent_bytes += extent.words().unwrap_or(0) as u64 * 8;
                    self.space.count_extent(table, &extent);
                }
            }
            let pair = table.entry_rows(row, words, index, key);
            if pair.first == row {
                self.primary_entries += 1;
            } else if pair.second == row {
                self.secondary_entries += 1;
            }
        }
    }

    /// Computes the numbers that follow from others.
    pub(crate) fn finish(&mut self, table: &Table) {
        self.capacity = self.rows * u64::from(table.config().entries_per_row);
        self.most_rows = table.config().rows;
        self.segments = table.config().segment_rows.map_or(0, |rows| self.rows / u64::from(rows));
        self.rows_by_occupancy.resize(table.rows().entries() + 1, 0);
        self.fill = self.entries as f64 / self.capacity as f64;
        self.space.finish(table, &self.chunks);
    }

    /// Counts chunk `chunk`; chunks are counted in order. `free` is the number of consecutive free chunks right before
    /// it.
    pub(crate) fn count_chunk(&mut self, table: &Table, chunk: u64, state: Option<ChunkState>, free: &mut u64) {
        self.chunks.count(state);
        self.space.count_chunk(table, chunk, state, free);
    }
}

impl ChunkCounts {
    /// Returns the number of all chunks that have memory.
    pub fn total(&self) -> u64 {
        self.free + self.in_use()
    }

    /// Returns the number of chunks that are not free.
    pub fn in_use(&self) -> u64 {
        self.owned + self.orphan + self.tail + self.claiming + self.damaged
    }

    fn count(&mut self, state: Option<ChunkState>) {
        match state {
            Some(ChunkState::Free) => self.free += 1,
            Some(ChunkState::Owned { .. }) => self.owned += 1,
            Some(ChunkState::Orphan { .. }) => self.orphan += 1,
            Some(ChunkState::Tail { .. }) => self.tail += 1,
            Some(ChunkState::Claiming { .. }) => self.claiming += 1,
            None => self.damaged += 1,
        }
    }
}

/// Counts the contents of `table` without checking them. 1 round trip for 64 rows and for 4,096 chunks; rows that do
/// not verify are sampled up to 11 times more, over 41 ms. 1 more round trip if rows say that the table was destroyed.
/// Source: R-DESTROY-2.
///
/// # Errors
/// `Destroyed` if rows, and the superblock, say that the table was destroyed; the fabric refused or lost a batch.
pub async fn table_stats(lane: &mut dyn Lane, table: &Table) -> Result<TableStats, CheckError> {
    let mut stats = TableStats::default();
    let fabric = |stage| move |source| CheckError::Fabric { stage, source };
    if count_rows(lane, table, &mut stats).await.map_err(fabric(Stage::Rows))? == Counted::UntilDestroyed {
        return Err(CheckError::Destroyed);
    }
    count_chunks(lane, table, &mut stats).await.map_err(fabric(Stage::Chunks))?;
    stats.finish(table);
    Ok(stats)
}

/// Whether all rows were counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// All rows were counted.
    All,
    /// The table was destroyed: counting ended early.
    UntilDestroyed,
}

async fn count_rows(lane: &mut dyn Lane, table: &Table, stats: &mut TableStats) -> Result<Counted, FabricError> {
    let (mut words, mut key, mut torn) = (Vec::new(), Vec::new(), Vec::new());
    let mut rows = TableRows::read(lane, table).await?;
    // Ends: a table has addresses for so many segments.
    while !rows.is_done() {
        while let Some(range) = rows.next_range() {
            for first in range.step_by(BLOCK_ROWS as usize) {
                let mut is_marked = false;
                sample_rows(lane, table, RowId(first), BLOCK_ROWS as usize, &mut words, |sample| {
                    rows.note_sample(table, &sample);
                    if sample.valid {
                        return stats.count_row(table, sample.row, sample.words, &mut key);
                    }
                    is_marked |= table.rows().is_destroyed(sample.words);
                    torn.push(sample.row);
                })
                .await?;
                if is_marked && is_destroyed(lane, table).await? {
                    return Ok(Counted::UntilDestroyed);
                }
                if torn.len() >= MAX_TORN {
                    count_torn(lane, table, stats, &mut torn, &mut rows).await?;
                }
            }
        }
        // They may lead to further segments.
        count_torn(lane, table, stats, &mut torn, &mut rows).await?;
    }
    stats.rows = rows.count();
    Ok(Counted::All)
}

/// Samples the rows `torn` until they verify or [`SAMPLES`] is reached, and counts them. All rows share the pauses
/// between the samples.
async fn count_torn(
    lane: &mut dyn Lane,
    table: &Table,
    stats: &mut TableStats,
    torn: &mut Vec<RowId>,
    table_rows: &mut TableRows,
) -> Result<(), FabricError> {
    let (mut words, mut key) = (Vec::new(), Vec::new());
    for sample in 0..SAMPLES - 1 {
        let rows = std::mem::take(torn);
        if rows.is_empty() {
            return Ok(());
        }
        let until_ns = lane.now_ns().saturating_add(FIRST_PAUSE_NS << sample);
        pause_until(lane, until_ns).await;
        for row in rows {
            sample_rows(lane, table, row, 1, &mut words, |sample| {
                table_rows.note_sample(table, &sample);
                match sample.valid {
                    true => stats.count_row(table, row, sample.words, &mut key),
                    false => torn.push(row),
                }
            })
            .await?;
        }
    }
    stats.unverified_rows += torn.len() as u64;
    torn.clear();
    Ok(())
}

async fn count_chunks(lane: &mut dyn Lane, table: &Table, stats: &mut TableStats) -> Result<(), FabricError> {
    let chunks = available_chunks(lane, table).await?;
    let (mut words, mut free) = (Vec::new(), 0);
    for first in (0..chunks).step_by(WORDS_PER_READ as usize) {
        words.clear();
        words.resize(WORDS_PER_READ.min(chunks - first) as usize, 0);
        post(lane, [Verb::Read { addr: table.geometry().chunk_word(first), into: &mut words }]).await?;
        for (chunk, word) in (first..).zip(&words) {
            stats.count_chunk(table, chunk, ChunkWord(*word).decode(), &mut free);
        }
    }
    Ok(())
}
