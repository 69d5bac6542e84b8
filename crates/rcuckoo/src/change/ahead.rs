//! Splits ahead of need: of the segments that would be full if the table had more keys. [R-GROW-6] [R-GROW-8]

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use guira_fabric::Lane;
use guira_layout::{SegmentSplit, Segments};

use crate::{Client, Error, ErrorKind, Operation, TableRows};

/// The fill of a segment, in percent, below which inserts hardly ever visit [`super::split::SPLIT_AFTER_ROWS`] rows
/// without finding room.
const ROOMY_PERCENT: u64 = 58;

/// The result of [`Client::grow`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    /// Segments that this client split.
    pub splits: u64,
    /// Whether the observer has ended it early.
    pub is_stopped: bool,
}

impl Client {
    /// Splits segments until inserts will hardly split any before the table has `keys` keys, if it may have so many;
    /// does nothing in a table that does not grow. `watch` gets the number of segments that are done, and of all, and
    /// may end it. Round trips: those of [`TableRows::read`]; for each split 3, and the
    /// reservations of R-GROW-7.
    ///
    /// # Errors
    /// `NoMemory`; `Busy` if other clients hold a lock until the deadline; `Corrupt` if a row is damaged; `Destroyed`;
    /// `Lost`; `Fabric`. Segments that were split before stay split; no key was changed.
    pub async fn grow(
        &mut self,
        lane: &mut dyn Lane,
        keys: u64,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Grown, Error> {
        self.split_ahead(lane, keys, watch).await.map_err(|kind| kind.during(Operation::Grow))
    }

    async fn split_ahead(
        &mut self,
        lane: &mut dyn Lane,
        keys: u64,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Grown, ErrorKind> {
        let (table, mut grown) = (Arc::clone(&self.table), Grown::default());
        let Some(segments) = table.growing_segments() else { return Ok(grown) };
        self.refuse_if_lost()?;
        self.settle(lane).await?;
        self.progress.committed = false;
        self.progress.waiting_since_ns = None;
        let ahead = Ahead { segments, room: room(segments, table.config().entries_per_row), keys };
        let rows = TableRows::read(lane, &table).await?;
        let mut due: VecDeque<(u64, u8)> = rows.known_segments().collect();
        let all = due.iter().map(|(segment, level)| ahead.count(*segment, *level)).sum();
        let mut done = 0;
        // The largest segments first: they are of use even if memory is refused for the rest.
        while let Some((segment, level)) = due.pop_front() {
            let Some(split) = ahead.split(segment, level) else { continue };
            if watch(done, all).is_break() {
                grown.is_stopped = true;
                break;
            }
            // If another client was faster, its halves are looked at in the same way.
            grown.splits += u64::from(self.split_as(lane, segments, &split).await?);
            due.extend([(split.child, level + 1), (segment, level + 1)]);
            done += 1;
        }
        Ok(grown)
    }
}

/// Returns the number of keys that a segment takes before inserts split it.
fn room(segments: &Segments, entries_per_row: u8) -> f64 {
    (segments.rows() * u64::from(entries_per_row) * ROOMY_PERCENT / 100) as f64
}

/// The splits that a number of keys needs.
struct Ahead<'t> {
    segments: &'t Segments,
    room: f64,
    keys: u64,
}

impl Ahead<'_> {
    /// Returns the split of a segment, if it needs one and can be split.
    fn split(&self, segment: u64, level: u8) -> Option<SegmentSplit> {
        let is_due = self.segments.expected_keys(segment, level, self.keys) > self.room;
        SegmentSplit::of(self.segments, segment, level).filter(|_| is_due)
    }

    /// Returns the number of splits that a segment and its halves need.
    fn count(&self, segment: u64, level: u8) -> u64 {
        let (mut count, mut due) = (0, vec![(segment, level)]);
        // Ends: at the highest level.
        while let Some((segment, level)) = due.pop() {
            if let Some(split) = self.split(segment, level) {
                count += 1;
                due.extend([(split.child, level + 1), (segment, level + 1)]);
            }
        }
        count
    }
}
