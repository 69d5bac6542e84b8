//! Dependent hashing: a key's 64-bit digest gives both of its rows (paper, section 3.3).
//!
//! Everything derives from the digest, so that an extent entry, which stores the digest, can be moved without its key.
//! The first row is uniform in the table, or in the key's segment [R-GROW-1]; the second lies a short,
//! probabilistically bounded distance after it, or, under [`OffsetRule::Independent`], anywhere there.

use super::segment_map::SegmentMap;
use guira_layout::{OffsetRule, RowId, Segments, TableConfig};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Mixes the digest into the bits that h2 and h3 are taken from. Odd, with about as many ones as zeros.
const SECOND_HASH_MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;

/// A key's two rows. For some keys they are the same row under [`OffsetRule::Printed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPair {
    /// The primary row, L1.
    pub first: RowId,
    /// The secondary row, L2.
    pub second: RowId,
}

impl RowPair {
    /// Returns the first row (0) or the second (1).
    #[inline(always)]
    pub(crate) fn row(self, which: usize) -> RowId {
        if which == 0 { self.first } else { self.second }
    }

    /// Returns the row of the pair that is not `row`; `None` if `row` is not in the pair.
    #[inline(always)]
    pub fn other(self, row: RowId) -> Option<RowId> {
        if row == self.first {
            Some(self.second)
        } else if row == self.second {
            Some(self.first)
        } else {
            None
        }
    }

    /// Whether both rows are the same.
    #[inline(always)]
    pub fn is_single(self) -> bool {
        self.first == self.second
    }
}

/// Returns floor(2^64 / rows), for more than one row.
fn inverse_of(rows: u64) -> u64 {
    ((1 << 64) / u128::from(rows)) as u64
}

/// The mapping from keys to rows of a table.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Rows of the table, or of a segment.
    rows: u64,
    /// floor(2^64 / rows)
    inverse: u64,
    /// The bits of a row's number that are those of its segment's first row; none in a table that is not divided.
    base_bits: u64,
    /// The other bits.
    local_bits: u64,
    segments: Option<Segments>,
    seed: u64,
    rule: OffsetRule,
    offsets: [u64; 33],
}

impl Placement {
    /// Creates the placement of a table with `config`.
    pub fn new(config: &TableConfig) -> Placement {
        let mut offsets = config.offsets;
        if config.offset_rule == OffsetRule::Odd {
            offsets = offsets.map(|m| m.div_ceil(2));
        }
        let rows = config.hashed_rows();
        let base_bits = config.segment_rows.map_or(0, |rows| !(u64::from(rows) - 1));
        assert!(rows > 1 && offsets.iter().all(|m| *m <= rows), "checked with the configuration");
        Placement {
            rows,
            inverse: inverse_of(rows),
            base_bits,
            local_bits: !base_bits,
            segments: Segments::of(config),
            seed: config.hash_seed,
            rule: config.offset_rule,
            offsets,
        }
    }

    /// Returns the key's digest: XXH3-64 with the table's seed.
    #[inline(always)]
    pub fn digest(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    /// Returns the rows of the key with this digest, in the segment that it belongs to in a new table. [R-HASH-1]
    /// [R-HASH-2] [R-GROW-2]
    #[inline(always)]
    pub fn rows(&self, digest: u64) -> RowPair {
        let segment = |segments: &Segments| segments.first_row(segments.of_position(Segments::position(digest)));
        self.rows_beside(self.segments.as_ref().map_or(RowId(0), segment), digest)
    }

    /// Returns the rows that the key with this digest has in the segment of `row`, whether that is the key's or not.
    /// [R-GROW-1]
    #[inline(always)]
    pub fn rows_beside(&self, row: RowId, digest: u64) -> RowPair {
        let first = RowId((row.0 & self.base_bits) + self.reduce(digest));
        RowPair { first, second: self.second(digest, first) }
    }

    /// Returns the primary row in which to look for the key with this digest, as `map` has its segment. [R-HASH-1]
    #[inline(always)]
    pub(crate) fn first(&self, map: &SegmentMap, digest: u64) -> RowId {
        match &self.segments {
            None => RowId(self.reduce(digest)),
            // The rows of a segment are a power of two.
            Some(_) => {
                let segment = map.segment(Segments::position(digest));
                RowId(segment * self.rows + (digest & self.local_bits))
            }
        }
    }

    /// Returns the first row of the segment of `row`: row 0 in a table that is not divided.
    pub fn base(&self, row: RowId) -> RowId {
        RowId(row.0 & self.base_bits)
    }

    /// Returns the segments of the table, if it is divided.
    #[inline(always)]
    pub(crate) fn segments(&self) -> Option<&Segments> {
        self.segments.as_ref()
    }

    /// Returns the secondary row of the key with this digest, whose primary row is `first`. [R-HASH-2]
    #[inline(always)]
    pub(crate) fn second(&self, digest: u64, first: RowId) -> RowId {
        let product = u128::from(digest) * u128::from(SECOND_HASH_MULTIPLIER);
        let mixed = (product >> 64) as u64 ^ product as u64;
        let (h2, h3) = (mixed >> 32, mixed as u32);
        let bound = || self.offsets[h3.trailing_zeros() as usize];
        let offset = match self.rule {
            OffsetRule::Odd => 1 + 2 * ((u128::from(h2) * u128::from(bound())) >> 32) as u64,
            OffsetRule::Printed => h2 % bound(),
            // Odd, because the number of rows is even.
            OffsetRule::Independent => self.reduce(mixed | 1),
        };
        let (row, end) = (first.0 + offset, (first.0 & self.base_bits) + self.rows);
        RowId(if row >= end { row - self.rows } else { row })
    }

    /// Returns `value` modulo the rows, by two multiplications: a division would take as long as the rest of the hash.
    ///
    /// With m = floor(2^64 / rows), value x m / 2^64 lies below value / rows by less than 1: its floor is the quotient,
    /// or one less.
    #[inline(always)]
    fn reduce(&self, value: u64) -> u64 {
        let quotient = ((u128::from(value) * u128::from(self.inverse)) >> 64) as u64;
        let rest = value - quotient * self.rows;
        if rest >= self.rows { rest - self.rows } else { rest }
    }
}

#[cfg(test)]
mod tests {
    use guira_layout::{Preset, PresetOptions};

    use super::*;

    fn options() -> PresetOptions {
        PresetOptions {
            capacity: 1,
            format: "fixed:8:8".parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 11,
            device_bytes: u64::MAX,
        }
    }

    fn placement(preset: Preset, rows: u64) -> Placement {
        Placement::new(&preset.config_of_rows(rows, &options()).unwrap())
    }

    fn pairs(placement: &Placement) -> impl Iterator<Item = RowPair> {
        (0..200_000u64).map(|i| placement.rows(placement.digest(&i.to_le_bytes())))
    }

    /// [R-HASH-1] Two multiplications give the remainder of a division.
    #[test]
    fn rows_are_remainders() {
        for rows in [64, 128, 192, 64 * 3 * 1_000_003, 1 << 20, (1 << 40) - 64, 1 << 40] {
            let placement = placement(Preset::Hardened, rows);
            let edges = [0, 1, rows - 1, rows, 2 * rows - 1, u64::MAX, u64::MAX - 1, u64::MAX / rows * rows];
            let digests = (0..100_000u64).map(|i| placement.digest(&i.to_le_bytes())).chain(edges);
            for digest in digests.chain(edges.map(|edge| edge.wrapping_sub(1))) {
                assert_eq!(placement.rows(digest).first.0, digest % rows, "{digest} mod {rows}");
            }
        }
    }

    /// [R-HASH-2] Under the odd rule both rows of a key differ, for any even number of rows.
    #[test]
    fn odd_offsets_give_two_distinct_rows() {
        for rows in [64, 128, 192, 320, 1 << 17, 100_032] {
            let placement = placement(Preset::Hardened, rows);
            for pair in pairs(&placement) {
                assert!(pair.first.0 < rows && pair.second.0 < rows);
                assert_eq!((pair.first.0 + pair.second.0) % 2, 1, "opposite parity");
                assert_eq!(pair.other(pair.first), Some(pair.second));
            }
        }
    }

    /// The hole H13 of the printed formula: about a tenth of all keys have L1 = L2 (10.5 % at f = 2.3).
    #[test]
    fn printed_offsets_give_one_row_for_a_tenth_of_the_keys() {
        let placement = placement(Preset::Paper, 1 << 17);
        let single = pairs(&placement).filter(|pair| pair.is_single()).count();
        assert!((18_000..24_000).contains(&single), "{single} of 200,000");
    }

    /// [R-GROW-1] [R-GROW-2] Both rows of a key lie in one segment, at the same places in any segment, however many there
    /// are, under every offset rule.
    #[test]
    fn both_rows_lie_in_one_segment() {
        for rule in [OffsetRule::Odd, OffsetRule::Printed, OffsetRule::Independent] {
            let divided = |segments: u64| Placement { rule, ..divided(segments) };
            let one = divided(1);
            for segments in [1, 2, 3, 5, 64, 100] {
                let placement = divided(segments);
                let rows = placement.rows;
                let mut used = vec![false; segments as usize];
                for digest in (0..100_000u64).map(|i| placement.digest(&i.to_le_bytes())) {
                    let (pair, local) = (placement.rows(digest), one.rows(digest));
                    assert_eq!(pair.first.0 / rows, pair.second.0 / rows);
                    assert_eq!((pair.first.0 % rows, pair.second.0 % rows), (local.first.0, local.second.0));
                    assert_eq!(placement.rows_beside(pair.first, digest), pair);
                    let elsewhere = placement.rows_beside(RowId(7 * rows + 3), digest);
                    assert_eq!(
                        (elsewhere.first.0, elsewhere.second.0),
                        (local.first.0 + 7 * rows, local.second.0 + 7 * rows)
                    );
                    used[(pair.first.0 / rows) as usize] = true;
                }
                assert!(used.iter().all(|used| *used), "{segments} segments");
            }
        }
    }

    /// [R-GROW-1] A table of one segment has its keys where a table of as many rows that is not divided has them.
    #[test]
    fn one_segment_is_a_whole_table() {
        let (one, whole) = (divided(1), placement(Preset::Hardened, 1024));
        assert!(pairs(&one).eq(pairs(&whole)));
    }

    fn divided(segments: u64) -> Placement {
        Placement::new(&Preset::Hardened.config_of_segments(segments, &options()).unwrap())
    }

    fn independent(rows: u64) -> Placement {
        Placement { rule: OffsetRule::Independent, ..placement(Preset::Hardened, rows) }
    }

    /// [R-HASH-2] Independent rows differ, are of opposite parity, and are uniform: each distance, and each secondary
    /// row of the keys of one primary row, is as frequent as any other.
    #[test]
    fn independent_rows_are_uniform_and_distinct() {
        for rows in [64, 128, 192, 320] {
            let placement = independent(rows);
            let (mut distances, mut seconds) = (vec![0u64; rows as usize], vec![0u64; rows as usize]);
            let (mut keys, mut of_one) = (0, 0);
            for pair in (0..400_000u64).map(|i| placement.rows(placement.digest(&i.to_le_bytes()))) {
                assert!(pair.first.0 < rows && pair.second.0 < rows);
                assert_eq!((pair.first.0 + pair.second.0) % 2, 1, "opposite parity");
                distances[((pair.second.0 + rows - pair.first.0) % rows) as usize] += 1;
                keys += 1;
                if pair.first.0 == 7 {
                    seconds[pair.second.0 as usize] += 1;
                    of_one += 1;
                }
            }
            // The sum of squared deviations from the mean, over the mean: rows / 2 plus or minus a few roots of rows.
            let spread = |counts: &[u64], from: usize, keys: u64| {
                let mean = keys as f64 / (rows as f64 / 2.0);
                let counts = counts.iter().skip(from).step_by(2);
                counts.map(|count| (*count as f64 - mean).powi(2) / mean).sum::<f64>()
            };
            let (most, half) = (6.0 * (rows as f64).sqrt(), rows as f64 / 2.0);
            for spread in [spread(&distances, 1, keys), spread(&seconds, 0, of_one)] {
                assert!((spread - half).abs() < most, "{rows} rows: {spread}");
            }
        }
    }

    /// Most keys' rows share a lock word of 64 rows, so that one masked CAS is enough (paper, section 3.4.1).
    #[test]
    fn most_keys_need_one_lock_word() {
        let placement = placement(Preset::Hardened, 1 << 17);
        let one_word = pairs(&placement).filter(|pair| pair.first.0 / 64 == pair.second.0 / 64).count();
        assert!(one_word > 140_000, "{one_word} of 200,000 in one word of 64 rows");
    }
}
