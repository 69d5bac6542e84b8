//! Scans of a whole table that report whether they are a snapshot, and estimates of the number of entries.
//!
//! A snapshot is a double collect: every row is read, then all rows are sampled again, sweep after sweep, and those that
//! have changed are read again. If one whole sweep finds no change, then all rows were as they were read when it began,
//! because a trailer never recurs: its version grows, and its checksum covers the row. [R-SCAN-1]
//!
//! Lookups see what a record makes of a row as soon as the row is torn [R-READ-9], before its trailer changes. So whole
//! rows are sampled, and one that does not verify counts as what its record makes of it.
//!
//! At such a moment an insert may be half committed: an entry that it moves is in its new row already, and in the old
//! one still [R-INSERT-4]. The copy that lookups find first is returned, the other copy is not.

use std::collections::BTreeSet;

use guira_fabric::{FabricError, Lane, SplitMix64, post};
use guira_layout::{DESTROYED_TRAILER, RowId};

use crate::scan::Trailer;
use crate::table::destroy::is_destroyed;
use crate::{Error, ErrorKind, Operation, Reader, RowItems, RowList, Table, TableRows};

/// Trailers sampled by one batch: within the smallest `max_batch` of all fabrics.
const BATCH_TRAILERS: u64 = 64;
/// Rows sampled by one batch of a sweep.
const BATCH_ROWS: usize = 64;
/// Minimum width of row versions in a stable snapshot: narrower versions wrap within one scan of a busy table.
const STABLE_VERSION_BITS: u8 = 32;
/// Maximum number of times that the rows of a table that grows are listed for an estimate.
const LEN_TRIES: u32 = 4;
/// Rows whose occupancy is sampled for an estimate. [R-SCAN-2]
pub const LEN_SAMPLES: u64 = 4096;

const _: () = assert!(BATCH_TRAILERS <= 128 && LEN_SAMPLES.is_multiple_of(BATCH_TRAILERS));

/// Keys and values of a whole table, row by row.
#[derive(Debug)]
pub struct Snapshot {
    rows: Vec<ScannedRow>,
    /// Second copies of keys, by the row's position and the index among its items.
    copies: BTreeSet<(usize, usize)>,
    sweeps: u32,
    is_stable: bool,
}

impl Snapshot {
    /// Returns each key and its value. If the snapshot is stable, no key occurs twice; otherwise a key that was moved
    /// meanwhile may.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let items =
            self.rows.iter().enumerate().flat_map(|(row, scanned)| {
                scanned.items.iter().enumerate().map(move |(place, item)| ((row, place), item))
            });
        items.filter(|(at, _)| !self.copies.contains(at)).map(|(_, item)| item)
    }

    /// Returns the number of keys that [`Snapshot::iter`] returns.
    pub fn len(&self) -> usize {
        self.rows.iter().map(|scanned| scanned.items.len()).sum::<usize>() - self.copies.len()
    }

    /// Whether the snapshot has no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of rows of the table.
    pub fn rows(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Returns how often every row was sampled after the rows had been read.
    pub fn sweeps(&self) -> u32 {
        self.sweeps
    }

    /// Whether all rows had this content at one moment. Never for a table with versions of less than 32 bits (preset
    /// `paper`): there a row may have returned to an earlier trailer.
    pub fn is_stable(&self) -> bool {
        self.is_stable
    }
}

/// A row as a scan has read it.
#[derive(Debug)]
struct ScannedRow {
    row: RowId,
    trailer: Trailer,
    items: RowItems,
}

impl ScannedRow {
    fn level(&self) -> u8 {
        guira_layout::Trailer(self.trailer[0]).level()
    }
}

/// An estimate of the number of entries of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Len {
    /// Entries.
    pub entries: u64,
    /// Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
    pub error: u64,
    /// Rows of the table: those that it has now, if it grows.
    pub rows: u64,
}

fn failed(kind: impl Into<ErrorKind>) -> Error {
    kind.into().during(Operation::Scan)
}

impl Reader {
    /// Reads every row, and again those that change, until a sweep over all rows finds no change or `max_sweeps` sweeps
    /// are done. Keeps every key and value in memory. `progress` is called with the number of rows read or
    /// swept, and their total if no further sweep is needed. [R-SCAN-1]
    ///
    /// Round trips: 1 a row, 1 more for each extent, and 1 for 64 rows of each sweep.
    ///
    /// # Errors
    /// Same as [`Reader::read_row`].
    pub async fn snapshot<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        max_sweeps: u32,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Snapshot, Error> {
        let table = std::sync::Arc::clone(&self.table);
        let mut ahead = TableRows::read(lane, &table).await.map_err(failed)?;
        let mut rows = Vec::with_capacity(ahead.count() as usize);
        self.read_ahead(lane, &mut ahead, &mut rows, |done, count| progress(done, 2 * count)).await?;
        let mut words = Vec::new();
        for sweep in 1..=max_sweeps {
            let count = rows.len();
            let (mut done, mut changed) = (u64::from(sweep) * count as u64, 0u64);
            let all = done + count as u64;
            for batch in rows.chunks_mut(BATCH_ROWS) {
                words.resize(batch.len() * table.rows().row_words(), 0);
                sample_again(lane, &table, batch, &mut words).await.map_err(failed)?;
                for (scanned, words) in batch.iter_mut().zip(words.chunks_exact_mut(table.rows().row_words())) {
                    let is_whole = table.rows().verify(scanned.row, words).is_ok()
                        || self.sample_through_record(lane, scanned.row, words).await.map_err(failed)?.is_some();
                    if !is_whole || table.rows().trailer_words(words) != scanned.trailer {
                        changed += 1;
                        scanned.items.reset();
                        scanned.trailer = self.read_row(lane, scanned.row, &mut scanned.items).await?;
                        ahead.note(scanned.row, scanned.trailer[0]);
                    }
                }
                done += batch.len() as u64;
                progress(done, all);
            }
            // Segments that were split off meanwhile: their parents' rows have changed.
            self.read_ahead(lane, &mut ahead, &mut rows, |_, _| ()).await?;
            if changed == 0 {
                let copies = second_copies(&table, &rows);
                let is_stable = table.config().version_bits >= STABLE_VERSION_BITS;
                return Ok(Snapshot { rows, copies, sweeps: sweep, is_stable });
            }
        }
        Ok(Snapshot { rows, copies: BTreeSet::new(), sweeps: max_sweeps, is_stable: false })
    }

    /// Reads every row that `ahead` has not visited yet. `progress` is called with the number of rows read, and that of
    /// all rows.
    async fn read_ahead<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        ahead: &mut TableRows,
        rows: &mut Vec<ScannedRow>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), Error> {
        while let Some(range) = ahead.next_range() {
            for row in range.map(RowId) {
                let mut items = RowItems::default();
                let trailer = self.read_row(lane, row, &mut items).await?;
                ahead.note(row, trailer[0]);
                rows.push(ScannedRow { row, trailer, items });
                progress(rows.len() as u64, ahead.count());
            }
        }
        Ok(())
    }

    /// Estimates the number of entries from 4,096 rows drawn with `seed`; counts all rows if the table has no more. 1
    /// round trip for 64 rows; in a table that grows, 1 more for each segment. [R-SCAN-2]
    ///
    /// # Errors
    /// `Destroyed`; the fabric refused or lost a batch.
    pub async fn len<L: Lane + ?Sized>(&mut self, lane: &mut L, seed: u64) -> Result<Len, Error> {
        let table = std::sync::Arc::clone(&self.table);
        let mut tries = 1;
        // Ends: after a few tries, however often segments are split.
        loop {
            let list = RowList::read(lane, &table).await.map_err(failed)?;
            let (len, is_current) = self.len_of(lane, &list, seed).await?;
            match is_current {
                true => return Ok(len),
                false if tries < LEN_TRIES => tries += 1,
                // The entries of a segment that was split may count twice, or by half.
                false => return Ok(Len { error: len.error.max(list.range_entries(&table)), ..len }),
            }
        }
    }

    /// Estimates the number of entries in the rows of `list`. Also returns whether their levels are those of the list: no
    /// segment was split since.
    async fn len_of<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        list: &RowList,
        seed: u64,
    ) -> Result<(Len, bool), Error> {
        let table = std::sync::Arc::clone(&self.table);
        let count = list.count();
        let is_exact = count <= LEN_SAMPLES;
        let samples = count.min(LEN_SAMPLES);
        let mut random = SplitMix64(seed);
        let (mut sum, mut squares, mut is_current) = (0u64, 0u64, true);
        for start in (0..samples).step_by(BATCH_TRAILERS as usize) {
            let batch = start..(start + BATCH_TRAILERS).min(samples);
            // Strata of equal size, one row of each: the variance is no larger than that of independent rows.
            let places: Vec<u64> = batch.map(|i| if is_exact { i } else { stratum(i, count, &mut random) }).collect();
            let rows = places.iter().map(|place| list.row(*place));
            let found = sample_trailers(lane, &table, rows).await.map_err(failed)?;
            if found.contains(&DESTROYED_TRAILER) && is_destroyed(lane, &table).await.map_err(failed)? {
                return Err(failed(ErrorKind::Destroyed));
            }
            for (place, trailer) in places.into_iter().zip(found) {
                let occupied = u64::from(table.rows().occupied_by(trailer[0]));
                sum += occupied;
                squares += occupied * occupied;
                let level = guira_layout::Trailer(trailer[0]).level();
                is_current &= list.level(place).is_none_or(|listed| listed == level);
            }
        }
        if is_exact {
            return Ok((Len { entries: sum, error: 0, rows: count }, is_current));
        }
        let (n, rows) = (samples as f64, count as f64);
        let mean = sum as f64 / n;
        let variance = (squares as f64 - n * mean * mean) / (n - 1.0);
        // The half width of the sampled entries. Adding one to the variance and two to the width makes the interval
        // right where entries are so rare that a sample contains none, or a few; elsewhere they are negligible.
        let half_width = 1.96 * (n * variance.max(0.0) * (1.0 - n / rows) + 1.0).sqrt() + 2.0;
        let (entries, error) = ((mean * rows).round() as u64, (half_width / n * rows).ceil() as u64);
        Ok((Len { entries, error, rows: count }, is_current))
    }
}

/// Returns the items that are second copies of others: of a key in its second row that is also in its first row, and of
/// a key that its segment's deepest level does not cover, while that segment is being split. [R-GROW-14]
fn second_copies(table: &Table, rows: &[ScannedRow]) -> BTreeSet<(usize, usize)> {
    let (placement, mut copies, mut begins_at) = (table.placement(), BTreeSet::new(), 0);
    // The rows of a segment follow each other.
    for segment in rows.chunk_by(|row, next| placement.base(row.row) == placement.base(next.row)) {
        let deepest = segment.iter().map(ScannedRow::level).max().unwrap_or_default();
        for (at, scanned) in segment.iter().enumerate() {
            for (place, (key, _)) in scanned.items.iter().enumerate() {
                let digest = placement.digest(key);
                let pair = placement.rows_beside(scanned.row, digest);
                let is_second = !pair.is_single() && pair.second == scanned.row;
                let first = &segment[(pair.first.0 - segment[0].row.0) as usize];
                let is_moved = scanned.level() < deepest && placement.has_left(scanned.row, deepest, digest);
                if is_moved || is_second && first.items.iter().any(|(other, _)| other == key) {
                    copies.insert((begins_at + at, place));
                }
            }
        }
        begins_at += segment.len();
    }
    copies
}

/// Draws a row of the `i`-th of [`LEN_SAMPLES`] equal parts of a table.
fn stratum(i: u64, rows: u64, random: &mut SplitMix64) -> u64 {
    let part = |i: u64| (u128::from(i) * u128::from(rows) / u128::from(LEN_SAMPLES)) as u64;
    let (start, end) = (part(i), part(i + 1));
    start + random.below(end - start)
}

/// Samples `rows` into `words`: one READ for those that follow each other. 1 round trip.
async fn sample_again<L: Lane + ?Sized>(
    lane: &mut L,
    table: &Table,
    rows: &[ScannedRow],
    words: &mut [u64],
) -> Result<(), FabricError> {
    let mut rest = words;
    let reads = rows.chunk_by(|row, next| row.row.0 + 1 == next.row.0).map(|run| {
        let (into, behind) = std::mem::take(&mut rest).split_at_mut(run.len() * table.rows().row_words());
        rest = behind;
        table.read_row(run[0].row, into)
    });
    post(lane, reads.collect::<Vec<_>>()).await
}

/// Samples the trailers of `rows`, at most [`BATCH_TRAILERS`] of them. 1 round trip.
async fn sample_trailers<L: Lane + ?Sized>(
    lane: &mut L,
    table: &Table,
    rows: impl Iterator<Item = u64>,
) -> Result<Vec<Trailer>, FabricError> {
    let rows: Vec<u64> = rows.collect();
    let mut trailers = vec![Trailer::default(); rows.len()];
    let reads = rows.iter().zip(&mut trailers).map(|(row, into)| table.read_trailer(RowId(*row), into));
    post(lane, reads.collect::<Vec<_>>()).await?;
    Ok(trailers)
}
