//! The rows that a table has: all of them, or, in a table that grows, those of the segments that exist.
//!
//! Segments are visited by ascending number. A segment that was split from another has a greater number, so a scan finds
//! it in time from the levels of the rows that it reads, even if it came to be during the scan. [R-GROW-14]

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use guira_fabric::{FabricError, Lane, Verb, post, reserve};
use guira_layout::{RowId, Segments, Trailer};

use crate::table::MAP_WORDS;
use crate::{RowSample, Table, sample_rows};

/// Maximum number of samples of a row for its level.
const LEVEL_SAMPLES: u32 = 4;

/// The rows of a table, which a scan visits in ascending order: those of one segment after the other, or all at once in
/// a table that does not grow.
#[derive(Clone, Debug, Default)]
pub struct TableRows {
    /// The segments of a table that grows.
    segments: Option<Segments>,
    /// First rows of all ranges, and the level of their segments as far as the map of a table that grows has it.
    known: BTreeMap<u64, u8>,
    /// First rows of the ranges that were not visited yet.
    ahead: BTreeSet<u64>,
    /// Rows of a range.
    range: u64,
    /// The segment of the last row that was noted, and its level: the segments split from it are known.
    noted: Option<(u64, u8)>,
}

impl TableRows {
    /// Returns the rows of a new table.
    pub fn of_new(table: &Table) -> TableRows {
        let config = table.config();
        let segments = table.growing_segments().copied();
        let range = segments.map_or(config.rows, |segments| segments.rows());
        let level = |first: &u64| segments.map_or(0, |segments| segments.level(first / range));
        let ahead: BTreeSet<u64> = (0..config.initial_rows()).step_by(range as usize).collect();
        let known = ahead.iter().map(|first| (*first, level(first))).collect();
        TableRows { segments, ahead, known, range, noted: None }
    }

    /// Returns the rows that `table` has, as far as its map knows. No round trip if it does not grow; otherwise 1 for
    /// 4,096 segments, and 1 more for each level that they have.
    ///
    /// # Errors
    /// The fabric refused or lost a batch.
    pub async fn read<L: Lane + ?Sized>(lane: &mut L, table: &Table) -> Result<TableRows, FabricError> {
        let mut rows = TableRows::of_new(table);
        let Some(segments) = rows.segments else { return Ok(rows) };
        let (mut words, mut mapped, mut deepest) = (Vec::new(), segments.mapped_with(0), 0);
        // Ends: each turn reads the words of one depth more, and only those that the table has addresses for.
        loop {
            for first in mapped.clone().step_by(MAP_WORDS as usize) {
                words.clear();
                words.resize(MAP_WORDS.min(mapped.end - first) as usize, 0);
                post(lane, [Verb::Read { addr: table.geometry().map_word(first), into: &mut words }]).await?;
                for (segment, word) in (first..).zip(&words) {
                    let level = segments.level_of(segment, *word).filter(|_| rows.is_possible(&segments, segment));
                    deepest = deepest.max(level.map_or(0, |level| segments.depth(level)));
                    level.into_iter().for_each(|level| rows.add(segment, level));
                }
            }
            // A segment of any earlier range may have been split so far.
            if deepest <= mapped.end.ilog2() || mapped.end >= segments.most() {
                break;
            }
            mapped = segments.mapped_with(mapped.end);
            // A copy of the file may have lost pages of zeros. // [R-GROW-7]
            match reserve(lane, table.geometry().segment_bytes(&segments, mapped.start)[1].clone()).await {
                Ok(()) | Err(FabricError::ReadOnly { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rows)
    }

    /// Returns the next rows to visit, by their numbers.
    pub fn next_range(&mut self) -> Option<Range<u64>> {
        let first = self.ahead.pop_first()?;
        Some(first..first + self.range)
    }

    /// Returns the first rows of all ranges that are known of, in ascending order.
    pub(crate) fn known_rows(&self) -> impl Iterator<Item = RowId> {
        self.known.keys().copied().map(RowId)
    }

    /// Returns all segments of a table that grows that are known of, in ascending order, each with the level that the
    /// table's map has for it.
    pub(crate) fn known_segments(&self) -> impl Iterator<Item = (u64, u8)> {
        let segments = self.segments;
        let of_row = move |(first, level): (&u64, &u8)| Some((segments?.of_row(RowId(*first)), *level));
        self.known.iter().filter_map(of_row)
    }

    /// Whether all rows that are known of were visited.
    pub fn is_done(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Returns the number of rows that are known of, visited or not.
    pub fn count(&self) -> u64 {
        self.known.len() as u64 * self.range
    }

    /// Notes that a row of a range that is being visited verifies, and that its trailer begins with this word: the
    /// segments that were split from its own exist.
    #[inline]
    pub fn note(&mut self, row: RowId, trailer: u64) {
        let Some(segments) = self.segments else { return };
        let (segment, level) = (segments.of_row(row), Trailer(trailer).level());
        if self.noted == Some((segment, level)) {
            return;
        }
        self.noted = Some((segment, level));
        segments.children(segment, level).for_each(|child| self.add(child, segments.level(child)));
    }

    /// Same as [`TableRows::note`], for a row that was sampled, if it verifies.
    pub fn note_sample(&mut self, table: &Table, sample: &RowSample<'_>) {
        if sample.valid {
            self.note(sample.row, table.rows().trailer(sample.words).0);
        }
    }

    /// Adds a segment's rows, unless they are known, and its level.
    fn add(&mut self, segment: u64, level: u8) {
        let first = segment * self.range;
        match self.known.entry(first) {
            Entry::Occupied(mut known) => *known.get_mut() = level.max(*known.get()),
            Entry::Vacant(unknown) => {
                unknown.insert(level);
                self.ahead.insert(first);
            }
        }
    }

    /// Whether a segment that the map has can exist: the one that it was split from is known, with a level that says
    /// so. The words of both are written by one batch, and rows know of the segment, too.
    fn is_possible(&self, segments: &Segments, segment: u64) -> bool {
        segments.parent(segment).is_none_or(|parent| {
            self.known.get(&(parent * self.range)).is_some_and(|level| *level >= segments.level(segment))
        })
    }
}

/// The rows that a table has, by their position among them.
#[derive(Clone, Debug)]
pub struct RowList {
    /// First rows of ranges of equal length, and the level of those of a table that grows.
    ranges: Vec<(u64, Option<u8>)>,
    range: u64,
}

impl RowList {
    /// Lists the rows that `table` has: those that its map and the rows that it leads to know of. Round trips: those of
    /// [`TableRows::read`], and 1 for each segment of a table that grows.
    ///
    /// # Errors
    /// The fabric refused or lost a batch.
    pub async fn read<L: Lane + ?Sized>(lane: &mut L, table: &Table) -> Result<RowList, FabricError> {
        let mut rows = TableRows::read(lane, table).await?;
        let mut ranges = Vec::new();
        while let Some(range) = rows.next_range() {
            let level = level_of(lane, table, &mut rows, range.start).await?;
            ranges.push((range.start, level.or_else(|| rows.known.get(&range.start).copied())));
        }
        Ok(RowList { ranges, range: rows.range })
    }

    /// Adds the segments that are not listed and that are being split from listed ones whose first row `is_wanted`
    /// selects: those whose first row verifies. 1 round trip for each.
    pub(crate) async fn add_children<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        table: &Table,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Result<(), FabricError> {
        let Some(segments) = table.growing_segments() else { return Ok(()) };
        let (mut rows, listed) = (TableRows::of_new(table), self.ranges.len());
        for i in 0..listed {
            let (first, level) = self.ranges[i];
            let child = level.filter(|_| is_wanted(first)).and_then(|level| segments.child(first / self.range, level));
            let Some(child) = child else { continue };
            // A segment without memory has no rows, and if there is no memory for it, it has none. // [R-GROW-7]
            if reserve(lane, table.geometry().segment_bytes(segments, child)[0].clone()).await.is_err() {
                continue;
            }
            let child = child * self.range;
            if let Some(level) = level_of(lane, table, &mut rows, child).await? {
                self.ranges.push((child, Some(level)));
            }
        }
        Ok(())
    }

    /// Returns the number of rows.
    pub fn count(&self) -> u64 {
        self.ranges.len() as u64 * self.range
    }

    /// Returns the number of the row at `position`, which is less than [`RowList::count`].
    pub fn row(&self, position: u64) -> u64 {
        self.ranges[(position / self.range) as usize].0 + position % self.range
    }

    /// Returns the level of the row at `position` of a table that grows, as it was listed.
    pub(crate) fn level(&self, position: u64) -> Option<u8> {
        self.ranges[(position / self.range) as usize].1
    }

    /// Returns the number of entries in a range.
    pub(crate) fn range_entries(&self, table: &Table) -> u64 {
        self.range * u64::from(table.config().entries_per_row)
    }

    /// Returns the ranges of rows.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(first, _)| *first..first + self.range)
    }
}

/// Returns the level of the segment that begins with row `first` in a table that grows, if that row verifies, and notes
/// it in `rows`. 1 round trip.
async fn level_of<L: Lane + ?Sized>(
    lane: &mut L,
    table: &Table,
    rows: &mut TableRows,
    first: u64,
) -> Result<Option<u8>, FabricError> {
    if rows.segments.is_none() {
        return Ok(None);
    }
    let (mut words, mut level) = (Vec::new(), None);
    // A row that is being written is whole again soon, or its writer has stopped.
    for _ in 0..LEVEL_SAMPLES {
        sample_rows(lane, table, RowId(first), 1, &mut words, |sample| {
            rows.note_sample(table, &sample);
            level = sample.valid.then(|| table.rows().trailer(sample.words).level());
        })
        .await?;
        if level.is_some() {
            break;
        }
    }
    Ok(level)
}
