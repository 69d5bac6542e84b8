//! Sizes of the extent space: how much a key and value take, and how much a new table gets. docs/space.md has the
//! measurements.

use crate::{EntryFormat, EntryKind, ExtentClass, MAX_KEY_BYTES, MAX_VALUE_BYTES, TableConfig, extent_words};

/// Extent space of the smallest default table: 64 chunks of 64 KiB.
const MIN_EXTENT_BYTES: u64 = 4 << 20;
/// Inline bytes of the capacity for each byte of extent space of a default table. Most tables hold small values; for
/// those with larger ones, options say how large they are ([`extent_bytes_for`]).
const INLINE_BYTES_PER_EXTENT_BYTE: u64 = 16;
/// Size of a record, for the addresses of a table that grows: address space costs nothing.
const GROWING_RECORD_BYTES: u64 = 4 << 10;
/// Least and largest size of the address space for extents of a table that grows, unless options set it: enough for
/// some of the largest values, and a quarter of the largest file of ext4.
const MOST_EXTENT_BYTES: std::ops::RangeInclusive<u64> = 1 << 30..=4 << 40;
/// Partly used chunks, beyond those that are full: four clients that write values of eight size classes.
const OPEN_CHUNKS: u64 = 32;
/// Size of the smallest chunk, in bytes.
const MIN_CHUNK_BYTES: u64 = 64 << 10;
/// Size of the largest chunk, in bytes.
const MAX_CHUNK_BYTES: u64 = 1 << 20;

/// Returns the bytes of extent space of a table for `capacity` keys with values of unknown size: at least 4 MiB.
pub(crate) fn default_extent_bytes(capacity: u64, inline_bytes: u16) -> u64 {
    (capacity.saturating_mul(inline_bytes.into()) / INLINE_BYTES_PER_EXTENT_BYTE).max(MIN_EXTENT_BYTES)
}

/// Returns the bytes of extent space that a table has addresses for which grows until it has `max_capacity` keys, if
/// nothing is known of their size.
pub(crate) fn most_extent_bytes(format: EntryFormat, max_capacity: u64) -> u64 {
    let wanted = extent_bytes_for(format, max_capacity, GROWING_RECORD_BYTES);
    wanted.clamp(*MOST_EXTENT_BYTES.start(), *MOST_EXTENT_BYTES.end())
}

/// Returns the bytes of a chunk in an extent space of `extent_bytes`: at most 1/1024 of them, 64 KiB to 1 MiB, so that
/// there are enough chunks for every client and size class, and the words of 4 GiB are read in one round trip.
pub(crate) fn chunk_bytes_for(extent_bytes: u64) -> u64 {
    1 << (extent_bytes / 1024).clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES).ilog2()
}

/// Returns the bytes of extent space in which `capacity` records of `record_bytes` bytes, key and value together, can
/// be stored and updated; those of a default table if the records fit in rows of `format`.
pub fn extent_bytes_for(format: EntryFormat, capacity: u64, record_bytes: u64) -> u64 {
    let EntryFormat::Bytes { inline_bytes } = format else { return 0 };
    let bytes = usize::try_from(record_bytes).unwrap_or(usize::MAX).min(MAX_KEY_BYTES + MAX_VALUE_BYTES);
    let least = default_extent_bytes(capacity, inline_bytes);
    if format.kind_for(0, bytes) == EntryKind::Inline {
        return least;
    }
    // Key and value are each rounded up to whole words.
    let live = capacity.saturating_mul(max_space(extent_words(0, bytes).saturating_add(1)));
    // Half as much again for space that is freed and not yet reclaimed, and for the rounding to size classes of records
    // that are larger; and space for the largest value beside its old version.
    let held = live.saturating_add(live / 2).saturating_add(record_bytes.saturating_mul(3));
    held.saturating_add(OPEN_CHUNKS * chunk_bytes_for(held)).max(least)
}

/// Returns an upper bound for the bytes of extent space that a key and value take in a new table, for any size of its
/// chunks: 0 if they fit in a row of `format`.
pub fn record_space(format: EntryFormat, key_bytes: usize, value_bytes: usize) -> u64 {
    match format.kind_for(key_bytes, value_bytes) {
        EntryKind::Inline => 0,
        EntryKind::Extent => max_space(extent_words(key_bytes, value_bytes)),
    }
}

/// Returns an upper bound for the bytes of extent space that an extent of `words` words takes, with its share of its
/// chunk's header.
fn max_space(words: usize) -> u64 {
    let sizes = (MIN_CHUNK_BYTES.ilog2()..=MAX_CHUNK_BYTES.ilog2()).map(|shift| space_in(words, 1 << shift));
    sizes.max().unwrap_or(0)
}

/// Returns the bytes of extent space that an extent of `words` words takes in chunks of `chunk_bytes`.
fn space_in(words: usize, chunk_bytes: u64) -> u64 {
    let class = ExtentClass::of(words, chunk_bytes);
    class.chunks().saturating_mul(chunk_bytes).div_ceil(class.slots(chunk_bytes))
}

impl TableConfig {
    /// Returns the bytes of extent space that a key and value take in this table: 0 if they fit in a row.
    pub fn record_space(&self, key_bytes: usize, value_bytes: usize) -> u64 {
        match self.format.kind_for(key_bytes, value_bytes) {
            EntryKind::Inline => 0,
            EntryKind::Extent => space_in(extent_words(key_bytes, value_bytes), self.chunk_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };
    const FIXED: EntryFormat = EntryFormat::Fixed { key_bytes: 8, value_bytes: 8 };

    #[test]
    fn small_records_cost_little_space() {
        assert_eq!(extent_bytes_for(BYTES, 10, 64), MIN_EXTENT_BYTES);
        assert_eq!(extent_bytes_for(BYTES, 10_000_000, 16), 40_000_000);
        assert_eq!(extent_bytes_for(FIXED, 10_000_000, 1_000), 0);
        assert_eq!((record_space(BYTES, 8, 56), record_space(FIXED, 8, 8)), (0, 0));
        let close = |space: u64, class: u64| (class + 8..=class * 9 / 8 + 8).contains(&space);
        assert!(close(record_space(BYTES, 8, 57), 96), "{}", record_space(BYTES, 8, 57));
        assert!(close(record_space(BYTES, 8, 1000), 1280), "{}", record_space(BYTES, 8, 1000));
    }

    #[test]
    fn records_fit_and_can_be_updated() {
        for (record_bytes, capacity) in [(100, 50_000), (1_000, 20_000), (10_000, 8_000), (1 << 20, 100)] {
            let space = extent_bytes_for(BYTES, capacity, record_bytes);
            let live = capacity * record_bytes;
            assert!(space >= live * 3 / 2 && space <= live * 7 / 2, "{record_bytes} x {capacity}: {space}");
        }
        // Sizes just beyond a size class, and several splits of the bytes between key and value.
        for record_bytes in [990, 1_000, 1_001, 1_008, 24 << 10, 390 << 10, 1 << 20] {
            let space = extent_bytes_for(BYTES, 10_000, record_bytes);
            let config = TableConfig { chunk_bytes: chunk_bytes_for(space), ..config() };
            for key_bytes in [0, 5, 8, 31] {
                let each = config.record_space(key_bytes, record_bytes as usize - key_bytes);
                assert!(space >= each * 10_000 * 3 / 2, "{record_bytes}, {key_bytes} of them a key: {space}");
            }
        }
        assert_eq!(extent_bytes_for(BYTES, u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn record_space_is_at_least_the_size_of_the_record() {
        for value_bytes in [57, 100, 1_000, 24 << 10, 33 << 10, 1 << 20, 64 << 20] {
            for chunk_bytes in [64 << 10, 1 << 20] {
                let config = TableConfig { chunk_bytes, ..config() };
                let (exact, about) = (config.record_space(8, value_bytes), record_space(BYTES, 8, value_bytes));
                assert!(exact >= (16 + 8 + value_bytes) as u64, "{value_bytes} in {chunk_bytes}: {exact}");
                assert!(about >= exact, "{value_bytes} in {chunk_bytes}: {about}, {exact}");
            }
        }
    }

    fn config() -> TableConfig {
        let options = crate::PresetOptions {
            capacity: 100,
            format: BYTES,
            extent_bytes: None,
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        };
        crate::Preset::Hardened.config(&options).unwrap()
    }
}
