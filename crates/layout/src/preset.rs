//! Presets: named sets of parameters. They are values of one configuration, not forks of code.

use std::fmt;
use std::str::FromStr;

use crate::config::{EXTENT_ENTRY_WORDS, MAX_ZEROS, MIN_SEGMENT_ROWS, ROW_GROUP, TRAILER_BYTES};
use crate::lease::MAX_REPAIR_REGIONS;
use crate::segment::{MAX_INITIAL_SEGMENTS, MAX_LEVEL, MAX_SEGMENTS, segment_rows_for};
use crate::space::{chunk_bytes_for, default_extent_bytes, most_extent_bytes};
use crate::{ChecksumKind, ConfigError, EntryFormat, OffsetRule, Rules, TableConfig};

/// A named set of parameters for new tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Preset {
    /// The protocol as the paper prints it, with its holes, for measurements.
    Paper,
    /// The default: every known hole is closed, with the same number of round trips.
    #[default]
    Hardened,
    /// `Hardened` with small sizes everywhere, so that tests reach every edge case.
    Tiny,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Preset; 3] = [Preset::Paper, Preset::Hardened, Preset::Tiny];
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Preset::Paper => "paper",
            Preset::Hardened => "hardened",
            Preset::Tiny => "tiny",
        })
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Preset, String> {
        let known = Preset::ALL.into_iter().find(|preset| preset.to_string() == text);
        known.ok_or_else(|| format!("preset {text:?} is not one of paper, hardened, tiny"))
    }
}

/// Options of a new table; the preset derives the other parameters from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresetOptions {
    /// Number of keys the table must hold. They fill the table to 90 %.
    pub capacity: u64,
    /// Format of the entries.
    pub format: EntryFormat,
    /// Bytes for extents; `None` derives them from the capacity. Ignored by fixed formats.
    pub extent_bytes: Option<u64>,
    /// Number of client slots; `None` is the preset's number.
    pub max_clients: Option<u16>,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Maximum size of the lock table in bytes: the size of the region's device space.
    pub device_bytes: u64,
}

/// Fill of a table that holds the keys of its capacity: tables of these presets reach it before their first `Full`.
const TARGET_FILL_PERCENT: u64 = 90;
/// Same for `tiny`, whose rows of 3 entries fill to only about 80 %.
const TINY_FILL_PERCENT: u64 = 60;
/// The paper's locality factor (section 3.3).
const PAPER_FACTOR: f64 = 2.3;
/// Locality factor of the other presets. With odd offsets, rows of 6 or 7 entries and L1 tried first, 2.3 reaches a
/// fill of 92 %, and 2.6 reaches 97 % (docs/decisions/0001).
const HARDENED_FACTOR: f64 = 2.6;
/// Rows of a cuckoo path: the paper's search depth, 5, plus the root.
const PAPER_PATH_ROWS: u8 = 6;
/// Rows of a cuckoo path: search depth 8, plus the root (R-INSERT-1).
const HARDENED_PATH_ROWS: u8 = 9;
/// Least size of the lock table of a table that grows, in bytes, unless the region has less device space. [R-GROW-13]
const MIN_GROWING_LOCK_BYTES: u64 = 64 << 10;
/// Default number of client slots (docs/protocol.md, liveness).
const DEFAULT_CLIENTS: u16 = 1024;
/// Number of client slots of `tiny`: few enough that tests run out of them.
const TINY_CLIENTS: u16 = 24;

impl Preset {
    /// Returns the parameters of a table of this preset.
    ///
    /// # Errors
    /// The capacity is 0 or needs more than 2^62 bytes of rows, or an option is out of bounds.
    pub fn config(self, options: &PresetOptions) -> Result<TableConfig, ConfigError> {
        options.format.check()?;
        if options.capacity == 0 {
            return Err(ConfigError::OutOfRange { name: "capacity", value: 0, bounds: "at least 1 key" });
        }
        let (entries, row_bytes) = self.row_shape(options.format);
        let needed = u128::from(options.capacity) * 100 / u128::from(self.fill_percent()) / u128::from(entries) + 1;
        let bounds = "at most as many keys as 2^62 bytes of rows hold";
        let too_large = || ConfigError::OutOfRange { name: "capacity", value: options.capacity, bounds };
        let rows = u64::try_from(needed).ok().and_then(|rows| rows.checked_next_multiple_of(ROW_GROUP));
        let rows = rows
            .filter(|rows| rows.checked_mul(u64::from(row_bytes)).is_some_and(|bytes| bytes < 1 << 62))
            .ok_or_else(too_large)?;
        self.config_of_rows(rows, options)
    }

    /// Returns the parameters of a table of this preset that is divided into segments: as few of them as hold the
    /// capacity, where that one is expected to be full to 90 % that has most keys. [R-GROW-2]
    ///
    /// # Errors
    /// Same as [`Preset::config`]; the preset is `paper`, whose tables are not divided; or the capacity needs more than
    /// 2^24 segments.
    pub fn config_in_segments(self, options: &PresetOptions) -> Result<TableConfig, ConfigError> {
        let too_large = || ConfigError::OutOfRange {
            name: "capacity",
            value: options.capacity,
            bounds: "at most as many keys as 2^24 segments hold",
        };
        if options.capacity == 0 {
            return self.config(options);
        }
        // Each segment more makes room: the first number of segments that is enough is found by halving.
        let (mut few, mut enough) = (0, MAX_INITIAL_SEGMENTS + 1);
        while enough - few > 1 {
            let count = few + (enough - few) / 2;
            match self.config_of_segments(count, options)?.capacity() >= options.capacity {
                true => enough = count,
                false => few = count,
            }
        }
        if enough > MAX_INITIAL_SEGMENTS { Err(too_large()) } else { self.config_of_segments(enough, options) }
    }

    /// Returns the parameters of a table of exactly `segments` segments; the capacity in `options` is ignored.
    ///
    /// # Errors
    /// There are no segments, or more than 2^24; the preset is `paper`; or an option is out of bounds.
    pub fn config_of_segments(self, segments: u64, options: &PresetOptions) -> Result<TableConfig, ConfigError> {
        let whole = self.config_of_rows(ROW_GROUP, options)?;
        let segment_rows = match self {
            Preset::Tiny => MIN_SEGMENT_ROWS,
            _ => segment_rows_for(whole.row_bytes, whole.rows_per_lock, whole.lock_bits),
        };
        let rows = segments.saturating_mul(segment_rows.into());
        let config = TableConfig {
            rows,
            segment_rows: Some(segment_rows),
            offsets: TableConfig::offset_table(self.locality_factor(), segment_rows.into()),
            physical_locks: self.physical_locks(rows, options),
            // A segment that has few free entries is split.
            rules: Rules { map_full_rows: false, ..whole.rules },
            ..whole
        };
        config.check().map(|()| config)
    }

    /// Returns the parameters of a table that is created with room for the capacity, and can grow until it has room for
    /// `max_capacity` keys. Its extent space grows, too, up to the bytes in `options`; by default until it has room for
    /// records of 4 KiB, and at least to 1 GiB. [R-GROW-6] [R-GROW-15]
    ///
    /// # Errors
    /// Same as [`Preset::config_in_segments`]; `max_capacity` is less than the capacity, or more than 2^27 segments
    /// hold.
    pub fn config_growing_to(self, max_capacity: u64, options: &PresetOptions) -> Result<TableConfig, ConfigError> {
        let wrong = |bounds| Err(ConfigError::OutOfRange { name: "max_capacity", value: max_capacity, bounds });
        if self == Preset::Paper {
            return wrong("none: tables of preset paper do not grow");
        }
        if max_capacity < options.capacity {
            return wrong("at least the capacity");
        }
        let first = self.config_in_segments(options)?;
        let needed = first.rows / first.hashed_rows();
        let mut most = (needed + 1).next_power_of_two();
        while self.capacity_of_segments(most, &first) < max_capacity {
            most *= 2;
            if most > MAX_SEGMENTS {
                return wrong("at most as many keys as 2^27 segments hold");
            }
        }
        // As many first segments as it takes to grow so far.
        let initial = needed.max(most >> MAX_LEVEL);
        let config = self.config_that_grows(initial as u32, most, options)?;
        let EntryFormat::Bytes { inline_bytes } = options.format else { return Ok(config) };
        // Its memory may become many times the default, and claims of chunks read the words of all of them.
        let of_chunks = PresetOptions { capacity: max_capacity.saturating_mul(8), ..*options };
        let (chunk_bytes, mut chunks) = self.chunks(&of_chunks);
        if options.extent_bytes.is_none() {
            chunks = most_extent_bytes(options.format, max_capacity) / chunk_bytes;
        }
        let initial_chunks = default_extent_bytes(options.capacity, inline_bytes) / chunk_bytes;
        let config =
            TableConfig { chunk_bytes, chunks, initial_chunks: Some(initial_chunks.clamp(1, chunks)), ..config };
        config.check().map(|()| config)
    }

    /// Returns the capacity of a table of so many segments like those of `config`.
    fn capacity_of_segments(self, segments: u64, config: &TableConfig) -> u64 {
        TableConfig { rows: segments * config.hashed_rows(), ..config.clone() }.capacity()
    }

    /// Returns the parameters of a table that is created with `initial` segments and may have up to `most`; the
    /// capacity in `options` is ignored. The lock table is as large as that of a table of `initial` segments, and at
    /// least 64 KiB, if it may be. [R-GROW-13]
    ///
    /// # Errors
    /// There are no segments, or more than 2^24 of them initially; `most` is not a power of two above `initial`, or
    /// more than 2^15 times the power of two that `initial` is not less than; the preset is `paper`; or an option is
    /// out of bounds.
    pub fn config_that_grows(
        self,
        initial: u32,
        most: u64,
        options: &PresetOptions,
    ) -> Result<TableConfig, ConfigError> {
        let first = self.config_of_segments(initial.into(), options)?;
        let segment_rows = first.hashed_rows();
        let rows = most.saturating_mul(segment_rows);
        let locks = u64::from(initial).next_power_of_two() * segment_rows / u64::from(first.rows_per_lock);
        let locks = locks.max(MIN_GROWING_LOCK_BYTES * 8 / u64::from(first.lock_bits));
        let shared_rows = rows.min(locks * u64::from(first.rows_per_lock));
        let config = TableConfig {
            rows,
            initial_segments: Some(initial),
            physical_locks: self.physical_locks(shared_rows, options),
            ..first
        };
        config.check().map(|()| config)
    }

    /// Returns the parameters of a table of exactly `rows` rows; the capacity in `options` is ignored.
    ///
    /// # Errors
    /// An option is out of bounds.
    pub fn config_of_rows(self, rows: u64, options: &PresetOptions) -> Result<TableConfig, ConfigError> {
        options.format.check()?;
        let (entries_per_row, row_bytes) = self.row_shape(options.format);
        let hardened = self != Preset::Paper;
        let (rows_per_lock, lock_bits) = self.lock_shape();
        let (chunk_bytes, chunks) = self.chunks(options);
        let factor = self.locality_factor();
        let physical_locks = self.physical_locks(rows, options);
        let config = TableConfig {
            rows,
            segment_rows: None,
            initial_segments: None,
            row_bytes,
            entries_per_row,
            format: options.format,
            checksum: if hardened { ChecksumKind::Nh } else { ChecksumKind::Crc64 },
            version_bits: if hardened { 32 } else { 8 },
            offset_rule: if hardened { OffsetRule::Odd } else { OffsetRule::Printed },
            offsets: if rows == 0 { [1; MAX_ZEROS + 1] } else { TableConfig::offset_table(factor, rows) },
            rows_per_lock,
            lock_bits,
            physical_locks,
            max_clients: options.max_clients.unwrap_or(match self {
                Preset::Tiny => TINY_CLIENTS,
                _ => DEFAULT_CLIENTS,
            }),
            max_path_rows: if hardened { HARDENED_PATH_ROWS } else { PAPER_PATH_ROWS },
            repair_regions: if hardened { 0 } else { physical_locks.min(MAX_REPAIR_REGIONS.into()) as u8 },
            chunk_bytes,
            chunks,
            initial_chunks: None,
            hash_seed: options.hash_seed,
            rules: Rules {
                commit_records: hardened,
                lock_both_rows: hardened,
                validate_misses: hardened,
                map_full_rows: hardened,
            },
        };
        config.check().map(|()| config)
    }

    /// Returns the locality factor f of the preset's tables. [R-HASH-3]
    pub fn locality_factor(self) -> f64 {
        if self == Preset::Paper { PAPER_FACTOR } else { HARDENED_FACTOR }
    }

    /// Returns the fill, in percent, of a table that holds the keys of its capacity.
    pub(crate) fn fill_percent(self) -> u64 {
        if self == Preset::Tiny { TINY_FILL_PERCENT } else { TARGET_FILL_PERCENT }
    }

    /// Returns the number of entries in a row and the bytes of a row.
    fn row_shape(self, format: EntryFormat) -> (u8, u32) {
        let entry_bytes = format.entry_words() as u32 * 8;
        let packed = |entries: u32| entries * entry_bytes + TRAILER_BYTES;
        match self {
            Preset::Paper => (8, packed(8)),
            Preset::Tiny => (3, packed(3)),
            Preset::Hardened => {
                // Rows are whole cache lines; of 6 to 8 entries, the number that wastes the fewest bytes an entry.
                let lines = |entries: u32| packed(entries).next_multiple_of(64);
                let waste = |entries: &u32| (lines(*entries) - entries * entry_bytes) * 1000 / entries;
                let entries = (6..=8).min_by_key(waste).unwrap_or(8);
                (entries as u8, lines(entries))
            }
        }
    }

    /// Returns the rows that share a lock and the bits of a lock.
    fn lock_shape(self) -> (u32, u8) {
        (if self == Preset::Tiny { 4 } else { 16 }, if self == Preset::Paper { 1 } else { 16 })
    }

    /// Returns the number of locks in memory of a table of `rows` rows.
    fn physical_locks(self, rows: u64, options: &PresetOptions) -> u64 {
        let (rows_per_lock, lock_bits) = self.lock_shape();
        let device_bytes = if self == Preset::Tiny { 16 } else { options.device_bytes };
        physical_locks(rows / u64::from(rows_per_lock), lock_bits, device_bytes)
    }

    /// Returns the bytes of a chunk and the number of chunks.
    fn chunks(self, options: &PresetOptions) -> (u64, u64) {
        let EntryFormat::Bytes { inline_bytes } = options.format else { return (0, 0) };
        debug_assert!(options.format.entry_words() >= EXTENT_ENTRY_WORDS);
        if self == Preset::Tiny {
            let wanted = options.extent_bytes.unwrap_or(1 << 20);
            return (4096, wanted.div_ceil(4096).max(1));
        }
        let wanted = options.extent_bytes.unwrap_or_else(|| default_extent_bytes(options.capacity, inline_bytes));
        let chunk_bytes = chunk_bytes_for(wanted);
        (chunk_bytes, wanted.div_ceil(chunk_bytes).max(1))
    }
}

/// Returns the number of physical locks: `locks`, halved until the lock table fits in `device_bytes` or the number is
/// odd.
pub fn physical_locks(locks: u64, lock_bits: u8, device_bytes: u64) -> u64 {
    let mut physical = locks.max(1);
    let per_word = 64 / u64::from(lock_bits);
    while physical.div_ceil(per_word) > device_bytes / 8 && physical.is_multiple_of(2) {
        physical /= 2;
    }
    physical
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(capacity: u64, format: &str) -> PresetOptions {
        PresetOptions {
            capacity,
            format: format.parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        }
    }

    #[test]
    fn presets_are_valid_for_every_format() {
        for preset in Preset::ALL {
            for format in ["fixed:4:4", "fixed:8:8", "fixed:8:56", "fixed:16:100", "bytes:24", "bytes:64", "bytes:1024"]
            {
                for capacity in [1, 63, 1000, 1 << 20, 100_000_000] {
                    let config = preset.config(&options(capacity, format)).unwrap();
                    assert!(config.max_entries() >= capacity, "{preset} {format} {capacity}: {config:?}");
                }
            }
        }
    }

    #[test]
    fn hardened_rows_are_whole_lines() {
        let shape = |format: &str| Preset::Hardened.row_shape(format.parse().unwrap());
        assert_eq!(shape("fixed:4:4"), (6, 64));
        assert_eq!(shape("fixed:8:8"), (7, 128));
        assert_eq!(shape("bytes:64"), (6, 448));
    }

    #[test]
    fn a_capacity_of_zero_or_beyond_the_address_space_is_refused() {
        assert!(matches!(
            Preset::Hardened.config(&options(0, "fixed:8:8")),
            Err(ConfigError::OutOfRange { name: "capacity", .. })
        ));
        assert!(matches!(
            Preset::Hardened.config(&options(u64::MAX, "fixed:8:8")),
            Err(ConfigError::OutOfRange { name: "capacity", .. })
        ));
    }

    /// [R-GROW-1] [R-GROW-2] A divided table has the fewest segments that hold its capacity; preset `paper` is not
    /// divided.
    #[test]
    fn divided_tables_have_the_segments_that_they_need() {
        for preset in [Preset::Hardened, Preset::Tiny] {
            for format in ["fixed:4:4", "fixed:8:8", "bytes:64", "bytes:1024"] {
                for capacity in [1, 100, 5_000, 100_000, 10_000_000] {
                    let case = format!("{preset} {format} {capacity}");
                    let options = options(capacity, format);
                    let config = preset.config_in_segments(&options).unwrap();
                    let segments = crate::Segments::of(&config).unwrap();
                    assert!(config.capacity() >= capacity, "{case}: {}", config.capacity());
                    assert_eq!(segments.count() * segments.rows(), config.rows, "{case}");
                    if let Some(fewer) = segments.count().checked_sub(1).filter(|count| *count > 0) {
                        let fewer = preset.config_of_segments(fewer, &options).unwrap();
                        assert!(fewer.capacity() < capacity, "{case}: {fewer:?}");
                    }
                    assert_eq!(Preset::of(&config), Some(preset), "{case}");
                }
            }
        }
        assert!(Preset::Paper.config_of_segments(1, &options(1, "fixed:8:8")).is_err());
        for segments in [0, MAX_INITIAL_SEGMENTS + 1, u64::MAX] {
            assert!(Preset::Hardened.config_of_segments(segments, &options(1, "fixed:8:8")).is_err(), "{segments}");
        }
        for capacity in [0, u64::MAX] {
            let refused = Preset::Hardened.config_in_segments(&options(capacity, "fixed:8:8")).unwrap_err();
            assert!(matches!(refused, ConfigError::OutOfRange { name: "capacity", .. }), "{refused}");
        }
    }

    #[test]
    fn lock_tables_fit_the_device() {
        let mut options = options(100_000_000, "fixed:4:4");
        options.device_bytes = 256 << 10;
        let config = Preset::Hardened.config(&options).unwrap();
        let words = config.physical_locks.div_ceil(4);
        assert!(words * 8 <= 256 << 10 || config.physical_locks % 2 == 1, "{config:?}");
        assert_eq!((config.rows / 16) % config.physical_locks, 0);
    }
}
