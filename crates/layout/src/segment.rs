//! Segments: equal parts of a table's rows. Both rows of a key lie in one segment, and with them their locks and every
//! cuckoo path, so a segment can be split without touching another. [R-GROW-1]
//!
//! A key's *position* is a 64-bit number that follows from its digest. A segment of *depth* D has the keys of one of
//! 2^D equal intervals of positions. Positions are not uniform: the interval at 0 has five thirds of the keys of the one
//! at the end, so segments become full one after the other, nearly in the order of their addresses. [R-GROW-2]

use std::ops::Range;

use crate::config::{MAX_SEGMENT_ROWS, MIN_SEGMENT_ROWS};
use crate::{RowId, TableConfig};

/// Maximum number of segments of a new table.
pub(crate) const MAX_INITIAL_SEGMENTS: u64 = 1 << 24;
/// Maximum number of segments: a client's map has 32 bits for each, and so many of the largest have 32 TiB of rows.
pub(crate) const MAX_SEGMENTS: u64 = 1 << 27;
/// The highest level: the trailer of a row has 4 bits for it. [R-GROW-3]
pub(crate) const MAX_LEVEL: u32 = 15;
/// Maximum size of a segment with more rows than the least, in bytes.
const MAX_SEGMENT_BYTES: u64 = 256 << 10;
/// Maximum number of lock words of a segment.
pub(crate) const MAX_SEGMENT_LOCK_WORDS: u64 = 16;

/// The segments of a table, as they are when it is created, and those that it can have. [R-GROW-1] [R-GROW-2]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// log2 of the rows of a segment.
    row_bits: u32,
    /// The depth of the first segments, of which there are 2^depth.
    first_depth: u32,
    /// First segments that are created split: those with the smallest positions.
    split: u64,
    /// Segments that the table has addresses for.
    most: u64,
}

impl Segments {
    /// Returns the segments of a table with `config`; `None` if it is not divided.
    pub fn of(config: &TableConfig) -> Option<Segments> {
        let row_bits = config.segment_rows?.trailing_zeros();
        let most = (config.rows >> row_bits).max(1);
        let count = config.initial_segments.map_or(most, u64::from).max(1);
        Some(Segments { row_bits, first_depth: count.ilog2(), split: count - (1 << count.ilog2()), most })
    }

    /// Returns the position of the keys with this digest: x (x + 3 / 4) for its upper 31 bits as a part x of the whole,
    /// as a part of all positions. [R-GROW-2]
    #[inline(always)]
    pub fn position(digest: u64) -> u64 {
        let x = digest >> 33;
        // Less than 2^31 times 2^33.
        x * (x + 3 * (1 << 31))
    }

    /// Returns the number of rows of a segment.
    pub fn rows(&self) -> u64 {
        1 << self.row_bits
    }

    /// Returns the number of segments of the new table.
    pub fn count(&self) -> u64 {
        (1 << self.first_depth) + self.split
    }

    /// Whether the table can have more segments than it is created with.
    pub fn grows(&self) -> bool {
        self.count() < self.most
    }

    /// Returns the number of segments that the table has addresses for: all segments have smaller numbers.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Returns the first row of a segment.
    #[inline(always)]
    pub fn first_row(&self, segment: u64) -> RowId {
        RowId(segment << self.row_bits)
    }

    /// Returns the segment of a new table that has the keys of `position`. A first segment that is split keeps its
    /// number for the left half of its interval; the right half is as many segments behind it as there are first ones.
    /// [R-GROW-2]
    #[inline(always)]
    pub fn of_position(&self, position: u64) -> u64 {
        let half = interval(position, self.first_depth + 1);
        let (first, is_right) = (half >> 1, half & 1);
        first + (u64::from(first < self.split && is_right == 1) << self.first_depth)
    }

    /// Returns the first segment that has, or had before any split, the keys of `position`.
    pub fn first_of(&self, position: u64) -> u64 {
        interval(position, self.first_depth)
    }

    /// Returns the segment that `row` lies in.
    #[inline(always)]
    pub fn of_row(&self, row: RowId) -> u64 {
        row.0 >> self.row_bits
    }

    /// Returns the level that the rows of a segment have first: how often the first segment that it is part of was split
    /// along the way to it. The first segments of a new table may have been split already. [R-GROW-3]
    pub fn level(&self, segment: u64) -> u8 {
        if segment >> self.first_depth == 0 {
            return u8::from(segment < self.split);
        }
        (segment.ilog2() + 1 - self.first_depth) as u8
    }

    /// Returns the depth of a segment whose rows have `level`. [R-GROW-3]
    #[inline(always)]
    pub fn depth(&self, level: u8) -> u32 {
        self.first_depth + u32::from(level)
    }

    /// Returns the least position of a segment's keys: that of its left edge, which it keeps when it is split.
    #[inline(always)]
    pub fn edge(&self, segment: u64) -> u64 {
        if segment >> self.first_depth == 0 {
            return segment << 1 << (63 - self.first_depth);
        }
        // The right half of interval i of depth D has the number 2^D + i.
        let depth = segment.ilog2();
        (2 * (segment - (1 << depth)) + 1) << (63 - depth)
    }

    /// Returns the segment that the right half of a segment's interval goes to when the segment, whose rows have
    /// `level`, is split; `None` if it cannot be: the level is the highest one, or the table has no addresses for more
    /// segments. [R-GROW-2]
    pub fn child(&self, segment: u64, level: u8) -> Option<u64> {
        if u32::from(level) >= MAX_LEVEL {
            return None;
        }
        let depth = self.depth(level);
        Some((1 << depth) + interval(self.edge(segment), depth)).filter(|child| *child < self.most)
    }

    /// Returns the segment from which a segment of no new table was split.
    pub fn parent(&self, segment: u64) -> Option<u64> {
        if segment < self.count() {
            return None;
        }
        // Interval i of the depth at which it was split off; its own is the right half of that.
        let (depth, i) = (segment.ilog2(), segment - (1 << segment.ilog2()));
        let odd = i >> i.trailing_zeros().min(depth - self.first_depth);
        let depth = depth - i.trailing_zeros().min(depth - self.first_depth);
        Some(if depth == self.first_depth { odd } else { (1 << (depth - 1)) + (odd >> 1) })
    }

    /// Returns the segments that were split from a segment whose rows have `level` now, without those of a new table.
    pub fn children(&self, segment: u64, level: u8) -> impl Iterator<Item = u64> + use<> {
        let segments = *self;
        (self.level(segment)..level).filter_map(move |level| segments.child(segment, level))
    }

    /// Returns the word of a segment in the table's map, when its rows have `level`: its depth and 1. [R-GROW-12]
    pub fn map_word(&self, level: u8) -> u64 {
        u64::from(self.depth(level)) + 1
    }

    /// Returns the segments whose words of the map are in use as soon as one of them is, with `segment` among them: those
    /// of one depth, or all first ones. [R-GROW-12]
    pub fn mapped_with(&self, segment: u64) -> Range<u64> {
        match segment >> self.first_depth {
            0 => 0..1 << self.first_depth,
            _ => 1 << segment.ilog2()..(2 << segment.ilog2()).min(self.most),
        }
    }

    /// Returns the level of a segment whose word in the table's map is `word`; `None` if there is no such segment, or the
    /// word is damaged.
    pub fn level_of(&self, segment: u64, word: u64) -> Option<u8> {
        let level = u8::try_from(word.checked_sub(self.map_word(0))?).ok()?;
        (self.level(segment)..=MAX_LEVEL as u8).contains(&level).then_some(level)
    }

    /// Returns the segment that the keys of `position` went to when they left `segment`, whose rows have `level` now,
    /// for a client that was led to it; `None` if they are still there: its rows *cover* them. That segment may have
    /// been split, too. [R-GROW-3]
    pub fn next(&self, segment: u64, level: u8, position: u64) -> Option<u64> {
        // Its keys first went to the right where their distance from the left edge has its first bit.
        let depth = position.wrapping_sub(self.edge(segment)).leading_zeros();
        (depth < self.depth(level)).then(|| (1 << depth) + interval(position, depth))
    }

    /// Returns the number of keys that a segment whose rows have `level` is expected to have, if the table has `keys`.
    /// [R-GROW-2]
    pub fn expected_keys(&self, segment: u64, level: u8, keys: u64) -> f64 {
        let from = self.edge(segment) as f64 / 2f64.powi(64);
        share(from, from + 2f64.powi(-(self.depth(level) as i32))) * keys as f64
    }

    /// Returns the part of all keys that the segment with most of them has, from 0 to 1.
    fn largest_share(&self) -> f64 {
        let intervals = (1u64 << self.first_depth) as f64;
        let first = self.split as f64 / intervals;
        let unsplit = share(first, first + 1.0 / intervals);
        if self.split == 0 { unsplit } else { unsplit.max(share(0.0, 0.5 / intervals)) }
    }

    /// Returns the number of keys with which the segment with most of them is expected to be full to `percent` of
    /// `entries` entries a row.
    pub(crate) fn capacity(&self, entries: u64, percent: u64) -> u64 {
        let room = self.rows() * entries * percent / 100;
        (room as f64 / self.largest_share()) as u64
    }
}

/// Returns the number of the interval of this depth that a position lies in.
#[inline(always)]
fn interval(position: u64, depth: u32) -> u64 {
    position >> 1 >> (63 - depth)
}

/// Returns the part of all keys whose positions lie between two parts of all positions: the inverse of
/// [`Segments::position`] at both.
fn share(from: f64, to: f64) -> f64 {
    ((9.0 + 16.0 * to).sqrt() - (9.0 + 16.0 * from).sqrt()) / 2.0
}

/// Returns the number of rows of a segment: the largest power of two with at most 256 KiB of rows and 16 words of
/// locks. [R-GROW-1]
pub(crate) fn segment_rows_for(row_bytes: u32, rows_per_lock: u32, lock_bits: u8) -> u32 {
    let locks = MAX_SEGMENT_LOCK_WORDS * (64 / u64::from(lock_bits));
    let most = (MAX_SEGMENT_BYTES / u64::from(row_bytes)).min(locks * u64::from(rows_per_lock)).max(1);
    (1u64 << most.ilog2()).clamp(MIN_SEGMENT_ROWS.into(), MAX_SEGMENT_ROWS.into()) as u32
}

#[cfg(test)]
mod tests {
    use guira_fabric::SplitMix64;

    use super::*;

    fn segments(count: u64) -> Segments {
        let first_depth = count.ilog2();
        Segments { row_bits: 10, first_depth, split: count - (1 << first_depth), most: 1 << (first_depth + 15) }
    }

    /// [R-GROW-2] Every position belongs to one segment, whose keys are those of one interval of its depth; none is
    /// left over.
    #[test]
    fn each_segment_has_one_interval() {
        for count in (1..40).chain([63, 64, 65, 127, 1_000, 4_096, 4_097]) {
            let segments = segments(count);
            assert_eq!(segments.count(), count);
            // The smallest interval is a whole multiple of each step.
            let bits = segments.first_depth + 3;
            let mut positions = vec![Vec::new(); count as usize];
            for step in 0..1u64 << bits {
                let first = step << (64 - bits);
                let segment = segments.of_position(first);
                assert_eq!(
                    segments.of_position(first + ((1 << (64 - bits)) - 1)),
                    segment,
                    "{count} segments, step {step}"
                );
                positions[segment as usize].push(step);
            }
            for (segment, steps) in positions.iter().enumerate() {
                let depth = segments.first_depth + u32::from(segments.level(segment as u64));
                let length = 1 << (bits - depth);
                assert_eq!(steps.len(), length, "segment {segment} of {count}");
                assert!(steps[0].is_multiple_of(length as u64), "segment {segment} of {count}");
                assert!(steps.windows(2).all(|pair| pair[1] == pair[0] + 1), "segment {segment} of {count}");
            }
        }
    }

    /// [R-GROW-2] Segments with numbers below 2^depth begin at the interval of that number; each other one is the right
    /// half of the interval of the first segment that it was split from.
    #[test]
    fn numbers_follow_from_intervals() {
        let segments = segments(11);
        for number in 0..8u64 {
            assert_eq!(segments.of_position(number << 61), number);
            let right = segments.of_position(number << 61 | 1 << 60);
            assert_eq!(right, if number < 3 { 8 + number } else { number });
        }
        let levels: Vec<u8> = (0..11).map(|segment| segments.level(segment)).collect();
        assert_eq!(levels, [1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1]);
    }

    /// [R-GROW-2] The parent of a segment is the one whose child it is.
    #[test]
    fn children_have_parents() {
        for count in [1, 2, 3, 8, 11] {
            let segments = segments(count);
            for segment in 0..500 {
                let Some(parent) = segments.parent(segment) else {
                    assert!(segment < count);
                    continue;
                };
                assert!(parent < segment, "{count} segments: {parent} of {segment}");
                let level = segments.level(segment) - 1;
                assert!(level >= segments.level(parent));
                assert_eq!(segments.child(parent, level), Some(segment), "{count} segments: parent {parent}");
            }
        }
    }

    /// [R-GROW-2] Positions keep the order of digests, and keys at position 0 lie closer together than those at the end,
    /// by five thirds.
    #[test]
    fn positions_grow_with_digests() {
        assert_eq!(Segments::position(0), 0);
        assert!(Segments::position(u64::MAX) > u64::MAX - (1 << 34));
        let mut before = 0;
        for step in 0..1u64 << 16 {
            let position = Segments::position(step << 48);
            assert!(position >= before);
            before = position;
        }
        let apart = |digest: u64| {
            (Segments::position(digest + (1 << 52)) - Segments::position(digest)) as f64 / (1u64 << 52) as f64
        };
        assert!((apart(0) - 0.75).abs() < 1e-3, "{}", apart(0));
        assert!((apart(u64::MAX - (1 << 52)) - 1.25).abs() < 1e-3, "{}", apart(u64::MAX - (1 << 52)));
    }

    /// [R-GROW-2] Shares of keys are those that were calculated, differ by less than two within a table, and make the
    /// capacity what the fullest segment allows.
    #[test]
    fn shares_are_as_calculated() {
        const KEYS: u64 = 2_000_000;
        for count in [1, 2, 3, 7, 16, 23, 64] {
            let segments = segments(count);
            let (mut rng, mut keys) = (SplitMix64(count), vec![0u64; count as usize]);
            (0..KEYS).for_each(|_| keys[segments.of_position(Segments::position(rng.next_u64())) as usize] += 1);
            for (segment, found) in (0..).zip(&keys) {
                let expected = segments.expected_keys(segment, segments.level(segment), KEYS);
                assert!((*found as f64 - expected).abs() < 6.0 * expected.sqrt(), "{segment} of {count}: {found}");
            }
            let (least, most) = (*keys.iter().min().unwrap(), *keys.iter().max().unwrap());
            let expected = segments.largest_share() * KEYS as f64;
            assert!((most as f64 - expected).abs() < 5.0 * expected.sqrt(), "{count}: {most}, expected {expected}");
            assert!(most < 2 * least + 1_000, "{count} segments: {least} to {most} keys");
            let capacity = segments.capacity(7, 90);
            let wanted = (1024 * 7 * 90 / 100) as f64 * KEYS as f64 / expected;
            assert!((capacity as f64 - wanted).abs() <= wanted / KEYS as f64 + 1.0, "{count}: {capacity}, {wanted}");
        }
    }

    #[test]
    fn segments_are_as_large_as_they_may_be() {
        assert_eq!(segment_rows_for(64, 16, 16), 1024);
        assert_eq!(segment_rows_for(128, 16, 16), 1024);
        assert_eq!(segment_rows_for(448, 16, 16), 512);
        assert_eq!(segment_rows_for(6_208, 16, 16), 64);
        assert_eq!(segment_rows_for(64, 4, 16), 256, "64 locks of 4 rows");
    }
}
