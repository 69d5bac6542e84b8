//! A client's map of the segments of a table: a hint, which is never ahead of the rows.
//!
//! A client looks for a key in the segment that its map gives. If that segment was split in the meantime, the level in
//! the trailers of its rows says so, and leads on to the segment that has the key now. [R-GROW-3]

use guira_layout::{RowId, SegmentSplit, Segments, Trailer};

use crate::{DamagedItem, ErrorKind, Placement, RowPair};

/// The segment of each interval of positions, at the greatest depth that the client has met. [R-GROW-12]
#[derive(Clone, Debug)]
pub(crate) struct SegmentMap {
    /// The bits of a position behind those of its interval: 64 less the depth of the intervals, which is at least 1.
    shift: u32,
    segments: Vec<u32>,
}

impl SegmentMap {
    /// Creates the map of a table as it was created; an empty one for a table that is not divided.
    pub(crate) fn new(segments: Option<&Segments>) -> SegmentMap {
        let Some(segments) = segments else { return SegmentMap { shift: 63, segments: Vec::new() } };
        let mut map = SegmentMap::of_first(segments);
        map.deepen(segments.depth(segments.level(segments.count() - 1)));
        let positions = (0..).map(|interval: u64| interval << map.shift);
        map.segments.iter_mut().zip(positions).for_each(|(segment, position)| {
            *segment = segments.of_position(position) as u32;
        });
        map
    }

    /// Notes the segments that were split off, by their numbers in ascending order.
    pub(crate) fn note_segments(&mut self, segments: &Segments, split_off: impl Iterator<Item = u64>) {
        for segment in split_off {
            if let Some(parent) = segments.parent(segment) {
                self.note(parent, segment, segments.edge(segment));
            }
        }
    }

    /// Creates the map of a client that knows of no split at all.
    fn of_first(segments: &Segments) -> SegmentMap {
        let depth = segments.depth(0).max(1);
        let first = |interval: u64| segments.first_of(interval << (64 - depth)) as u32;
        SegmentMap { shift: 64 - depth, segments: (0..1 << depth).map(first).collect() }
    }

    /// Forgets all splits.
    pub(crate) fn forget(&mut self, segments: &Segments) {
        *self = SegmentMap::of_first(segments);
    }

    /// Returns the segment in which to look for keys of `position`, in a table that is divided.
    #[inline(always)]
    pub(crate) fn segment(&self, position: u64) -> u64 {
        u64::from(self.segments[(position >> self.shift) as usize])
    }

    /// Whether the client knows that there is a segment as deep as `segment`, which is no first one, was at first. The
    /// words of the table's map that are in use with its own have memory then, for good. [R-GROW-7]
    pub(crate) fn is_as_deep_as(&self, segment: u64) -> bool {
        // Every map has intervals of depth 1, also that of a table with one segment.
        segment > 1 && segment.ilog2() < 64 - self.shift
    }

    /// Repeats the intervals until there are those of `depth`.
    fn deepen(&mut self, depth: u32) {
        let steps = depth.saturating_sub(64 - self.shift);
        if steps > 0 {
            let repeated = |segment: &u32| std::iter::repeat_n(*segment, 1 << steps);
            self.segments = self.segments.iter().flat_map(repeated).collect();
            self.shift -= steps;
        }
    }

    /// Notes a split.
    pub(crate) fn note_split(&mut self, segments: &Segments, split: &SegmentSplit) {
        self.note(split.segment, split.child, segments.edge(split.child));
    }

    /// Notes that the keys of `position` that were in `before` are in `next`, which was split from it.
    fn note(&mut self, before: u64, next: u64, position: u64) {
        // `next` began as the right half of an interval that is as deep as its number has bits.
        let depth = next.ilog2() + 1;
        self.deepen(depth);
        let below = 64 - self.shift - depth;
        let first = position >> (64 - depth) << below;
        let intervals = &mut self.segments[first as usize..][..1 << below];
        // Parts of it may be known to have been split from it already.
        let known = intervals.iter_mut().filter(|segment| u64::from(**segment) == before);
        known.for_each(|segment| *segment = next as u32);
    }
}

impl Placement {
    /// Returns the rows in which to look for the key with this digest, as `map` has its segment.
    #[inline(always)]
    pub(crate) fn rows_by(&self, map: &SegmentMap, digest: u64) -> RowPair {
        let first = self.first(map, digest);
        RowPair { first, second: self.second(digest, first) }
    }

    /// Returns the segment that the keys of this digest's position have gone to, if the segment of `row`, whose trailer
    /// begins with `trailer`, does not have them any more: the row does not cover the key. [R-GROW-3]
    #[inline(always)]
    pub(crate) fn moved_to(&self, row: RowId, trailer: u64, digest: u64) -> Option<u64> {
        moved_to(self.segments()?, row, trailer, digest)
    }

    /// Whether the key with this digest has left the segment of `row` for another, if that segment has this level.
    /// [R-GROW-3]
    pub fn has_left(&self, row: RowId, level: u8, digest: u64) -> bool {
        self.segments()
            .is_some_and(|segments| segments.next(segments.of_row(row), level, Segments::position(digest)).is_some())
    }

    /// Same as [`Placement::moved_to`], with the table's segments; also `None` if the table has no such segment.
    pub(crate) fn next_segment(&self, row: RowId, trailer: u64, digest: u64) -> Option<(&Segments, u64)> {
        let segments = self.segments()?;
        let next = moved_to(segments, row, trailer, digest)?;
        (next < segments.most()).then_some((segments, next))
    }

    /// Notes in `map` where the key with this digest has gone to, according to the verified trailer of `row`; see
    /// [`Placement::moved_to`].
    ///
    /// # Errors
    /// `Corrupt`: there is no such segment.
    #[cold]
    pub(crate) fn learn(&self, map: &mut SegmentMap, row: RowId, trailer: u64, digest: u64) -> Result<(), ErrorKind> {
        let damaged = || ErrorKind::Corrupt { item: DamagedItem::Row(row) };
        let (segments, next) = self.next_segment(row, trailer, digest).ok_or_else(damaged)?;
        map.note(segments.of_row(row), next, Segments::position(digest));
        Ok(())
    }
}

/// Compiled once: only lookups and changes that have not found their key get here.
#[inline(never)]
fn moved_to(segments: &Segments, row: RowId, trailer: u64, digest: u64) -> Option<u64> {
    segments.next(segments.of_row(row), Trailer(trailer).level(), Segments::position(digest))
}

#[cfg(test)]
mod tests {
    use guira_fabric::SplitMix64;
    use guira_layout::{Preset, PresetOptions};

    use super::*;

    fn segments(count: u64) -> Segments {
        let options = PresetOptions {
            capacity: 1,
            format: "fixed:8:8".parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        };
        let most = 1 << (count.ilog2() + 15);
        Segments::of(&Preset::Hardened.config_that_grows(count as u32, most, &options).unwrap()).unwrap()
    }

    /// [R-GROW-12] The map of a new table has all of its segments.
    #[test]
    fn new_maps_know_every_segment() {
        for count in (1..20).chain([64, 65, 127, 1_000]) {
            let (segments, mut rng) = (segments(count), SplitMix64(count));
            let map = SegmentMap::new(Some(&segments));
            for _ in 0..10_000 {
                let position = rng.next_u64();
                assert_eq!(map.segment(position), segments.of_position(position), "{count}: {position:#x}");
            }
        }
    }

    /// A table whose segments are split at random, to different depths: the level of each segment.
    struct Splits {
        segments: Segments,
        levels: std::collections::BTreeMap<u64, u8>,
    }

    impl Splits {
        fn new(first: u64) -> Splits {
            let segments = segments(first);
            Splits { segments, levels: (0..first).map(|segment| (segment, 0)).collect() }
        }

        /// Splits the segment that has the keys of `position`, unless it is the deepest possible one.
        fn split(&mut self, position: u64) {
            let segment = self.leaf(position);
            let level = self.levels[&segment];
            if let Some(child) = self.segments.child(segment, level) {
                assert_eq!(self.levels.insert(child, level + 1), None, "each number is given once");
                self.levels.insert(segment, level + 1);
            }
        }

        /// Returns the segment that has the keys of `position`, found from the first segment by levels alone.
        fn leaf(&self, position: u64) -> u64 {
            let mut segment = self.segments.of_position(position);
            while let Some(next) = self.segments.next(segment, self.levels[&segment], position) {
                assert!(next > segment);
                segment = next;
            }
            segment
        }

        /// Returns the number of times that a client which starts where `map` leads has to go on.
        fn steps(&self, map: &mut SegmentMap, position: u64) -> u32 {
            let mut steps = 0;
            loop {
                let segment = map.segment(position);
                let Some(next) = self.segments.next(segment, self.levels[&segment], position) else { return steps };
                map.note(segment, next, position);
                assert_eq!(map.segment(position), next);
                steps += 1;
            }
        }
    }

    /// [R-GROW-2] [R-GROW-3] [R-GROW-4] [R-GROW-12] From any map that was right at some time, levels lead to the segment
    /// that has a key now, in at most as many steps as that segment was split; and a map that has been led there leads
    /// there at once.
    #[test]
    fn old_maps_lead_to_every_segment() {
        for first in [1, 2, 8] {
            let (mut table, mut rng) = (Splits::new(first), SplitMix64(first));
            let mut old = SegmentMap::new(Some(&table.segments));
            for _ in 0..200 {
                // Most splits are near the same place, so that some segments become deep.
                let position = if rng.below(2) == 0 { rng.next_u64() } else { rng.below(1 << 52) };
                table.split(position);
                if rng.below(10) == 0 {
                    let position = rng.next_u64();
                    table.steps(&mut old, position);
                }
                let position = if rng.below(2) == 0 { rng.next_u64() } else { rng.below(1 << 52) };
                let leaf = table.leaf(position);
                assert!(table.steps(&mut old, position) <= u32::from(table.levels[&leaf]));
                assert_eq!((old.segment(position), table.steps(&mut old, position)), (leaf, 0));
            }
            let deepest = table.levels.values().max().unwrap();
            assert!(*deepest >= 12, "{deepest}");
            // Each leaf has the keys of one interval, and all keys have one.
            let mut share = 0u128;
            for (segment, level) in &table.levels {
                let depth = table.segments.depth(*level);
                share += 1 << (64 - depth);
                let edge = table.segments.edge(*segment);
                for position in [edge, edge + ((1u64 << (63 - depth)) - 1) * 2 + 1] {
                    assert_eq!(table.leaf(position), *segment);
                }
            }
            assert_eq!(share, 1 << 64);
        }
    }
}
