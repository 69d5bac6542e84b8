//! The parameters that all clients of a table must agree on: fixed at creation, fingerprinted in the superblock.

use std::fmt;
use std::str::FromStr;

use crate::EntryKind;
use crate::lease::MAX_REPAIR_REGIONS;
use crate::segment::{MAX_INITIAL_SEGMENTS, MAX_LEVEL, MAX_SEGMENT_LOCK_WORDS, MAX_SEGMENTS};

pub use crate::sum::ChecksumKind;

/// Maximum number of entries in a row: the trailer has that many occupancy bits.
pub const MAX_ENTRIES_PER_ROW: usize = 14;
/// Maximum size of a row, in bytes.
pub const MAX_ROW_BYTES: u32 = 16 << 10;
/// Maximum size of a key, in bytes.
pub const MAX_KEY_BYTES: usize = 64 << 10;
/// Maximum size of a value, in bytes.
pub const MAX_VALUE_BYTES: usize = 64 << 20;
/// Maximum number of rows that one insert may change.
pub const MAX_PATH_ROWS: u8 = 32;
/// Same, in tables whose values may lie in extents.
pub const MAX_PATH_ROWS_WITH_EXTENTS: u8 = 16;
/// Number of rows in a group: rows are created and split in groups.
pub(crate) const ROW_GROUP: u64 = 64;
/// Least number of rows of a segment. [R-GROW-1]
pub(crate) const MIN_SEGMENT_ROWS: u32 = 64;
/// Maximum number of rows of a segment. [R-GROW-1]
pub(crate) const MAX_SEGMENT_ROWS: u32 = 1024;
/// Maximum number of rows that share a lock.
pub const MAX_ROWS_PER_LOCK: u32 = 512;
/// Maximum size of the rows that share a lock, in bytes: one READ covers them on every fabric.
pub const MAX_LOCK_BYTES: u64 = 1 << 20;
/// Bytes of the trailer at the end of each row.
pub(crate) const TRAILER_BYTES: u32 = 16;
/// Bytes of the header word in front of an inline entry of `bytes:N`.
pub(crate) const INLINE_HEADER_BYTES: usize = 8;
/// Words of an entry that refers to an extent.
pub(crate) const EXTENT_ENTRY_WORDS: usize = 4;
/// The largest number of trailing zeros of h3 that the offset table distinguishes.
pub(crate) const MAX_ZEROS: usize = 32;
/// Maximum size of an inline key and value together, in bytes.
pub(crate) const MAX_INLINE_BYTES: u32 = 1024;

/// Format of the entries of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryFormat {
    /// Every key has exactly `key_bytes`, every value exactly `value_bytes`, both inline: the paper's format.
    Fixed {
        /// Bytes of each key, 1 to 256.
        key_bytes: u16,
        /// Bytes of each value, 0 to 1,024 less the key's.
        value_bytes: u16,
    },
    /// Keys of 0 to 64 KiB and values of 0 to 64 MiB: inline when key and value together have at most `inline_bytes`,
    /// in an extent otherwise.
    Bytes {
        /// Bytes of key and value that fit in a row, 24 to 1,024, a multiple of 8.
        inline_bytes: u16,
    },
}

impl EntryFormat {
    /// The texts that are formats.
    pub const ACCEPTED: &str = "fixed:K:V (K 1 to 256, K + V to 1024) or bytes:N (N 24 to 1024, a multiple of 8)";

    /// Words of one entry in a row.
    pub const fn entry_words(self) -> usize {
        match self {
            EntryFormat::Fixed { key_bytes, value_bytes } => (key_bytes as usize + value_bytes as usize).div_ceil(8),
            EntryFormat::Bytes { inline_bytes } => (inline_bytes as usize + INLINE_HEADER_BYTES).div_ceil(8),
        }
    }

    /// Whether entries of this format may refer to extents.
    pub const fn has_extents(self) -> bool {
        matches!(self, EntryFormat::Bytes { .. })
    }

    /// Returns the kind of entry that stores a key and a value of these lengths.
    #[inline(always)]
    pub const fn kind_for(self, key_bytes: usize, value_bytes: usize) -> EntryKind {
        match self {
            EntryFormat::Fixed { .. } => EntryKind::Inline,
            EntryFormat::Bytes { inline_bytes } => {
                let fits = key_bytes.saturating_add(value_bytes) <= inline_bytes as usize;
                if fits { EntryKind::Inline } else { EntryKind::Extent }
            }
        }
    }

    pub(crate) fn check(self) -> Result<(), ConfigError> {
        let within = match self {
            EntryFormat::Fixed { key_bytes, value_bytes } => {
                (1..=256).contains(&key_bytes) && u32::from(key_bytes) + u32::from(value_bytes) <= MAX_INLINE_BYTES
            }
            EntryFormat::Bytes { inline_bytes } => {
                (24..=MAX_INLINE_BYTES).contains(&u32::from(inline_bytes)) && inline_bytes % 8 == 0
            }
        };
        if within { Ok(()) } else { Err(ConfigError::Format { text: self.to_string() }) }
    }

    pub(crate) fn encode(self) -> u64 {
        match self {
            EntryFormat::Fixed { key_bytes, value_bytes } => {
                1 | u64::from(key_bytes) << 16 | u64::from(value_bytes) << 32
            }
            EntryFormat::Bytes { inline_bytes } => 2 | u64::from(inline_bytes) << 16,
        }
    }

    pub(crate) fn decode(word: u64) -> Option<EntryFormat> {
        let format = match word & 0xffff {
            1 => EntryFormat::Fixed { key_bytes: (word >> 16) as u16, value_bytes: (word >> 32) as u16 },
            2 => EntryFormat::Bytes { inline_bytes: (word >> 16) as u16 },
            _ => return None,
        };
        (format.encode() == word).then_some(format)
    }
}

impl fmt::Display for EntryFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryFormat::Fixed { key_bytes, value_bytes } => write!(f, "fixed:{key_bytes}:{value_bytes}"),
            EntryFormat::Bytes { inline_bytes } => write!(f, "bytes:{inline_bytes}"),
        }
    }
}

impl FromStr for EntryFormat {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<EntryFormat, ConfigError> {
        let bad = || ConfigError::Format { text: text.to_owned() };
        let number = |part: Option<&str>| part.and_then(|p| p.parse::<u16>().ok()).ok_or_else(bad);
        let mut parts = text.split(':');
        let format = match parts.next() {
            Some("fixed") => {
                EntryFormat::Fixed { key_bytes: number(parts.next())?, value_bytes: number(parts.next())? }
            }
            Some("bytes") => EntryFormat::Bytes { inline_bytes: number(parts.next())? },
            _ => return Err(bad()),
        };
        if parts.next().is_some() {
            return Err(bad());
        }
        // One spelling for each format: no signs, no leading zeros.
        if format.to_string() != text {
            return Err(bad());
        }
        format.check().map(|()| format)
    }
}

/// Rule that gives the distance between a key's two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OffsetRule {
    /// `h2 mod m[z]`, as the paper prints it: 0 for some keys, so that both rows are one.
    Printed,
    /// `1 + 2 (h2 ceil(m[z] / 2) / 2^32)`: always odd, so never 0 modulo an even number of rows.
    Odd,
    /// An odd number below the number of rows, uniform and independent of the primary row: the hashing of other cuckoo
    /// hash tables. The offset table is not used.
    Independent,
}

/// Protocol rules that all clients of a table must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Whether a mutation that a dying client could leave half done is first written to its client slot as a redo
    /// record.
    pub commit_records: bool,
    /// Whether every mutation locks and reads both of its key's rows, not just those on its path.
    pub lock_both_rows: bool,
    /// Whether a miss is returned only after the trailers were sampled again.
    pub validate_misses: bool,
    /// Whether the table has a map of its full rows. [R-INSERT-7]
    pub map_full_rows: bool,
}

/// Parameters of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// Rows of the index (T), a multiple of 64. A table that grows has fewer of them at first.
    pub rows: u64,
    /// Rows of a segment: a power of two, 64 to 1,024; `None` if the table is not divided into segments. [R-GROW-1]
    pub segment_rows: Option<u32>,
    /// Segments that the table is created with, if it grows; `None` if it is created with all of its rows. [R-GROW-2]
    pub initial_segments: Option<u32>,
    /// Bytes of a row, trailer included; a multiple of 8, at most 16,384.
    pub row_bytes: u32,
    /// Entries in a row, 1 to 14.
    pub entries_per_row: u8,
    /// Format of the entries.
    pub format: EntryFormat,
    /// Checksum in the trailer of each row.
    pub checksum: ChecksumKind,
    /// Width of a row's version in bits, 8 to 32.
    pub version_bits: u8,
    /// Rule that gives the distance between a key's two rows.
    pub offset_rule: OffsetRule,
    /// m\[z\] = floor(f^(f+z)) for z = 0 to 32, capped at the rows of the table or of a segment, and stored as integers
    /// because powers computed at run time may differ between hosts.
    pub offsets: [u64; MAX_ZEROS + 1],
    /// Rows that share a lock: a power of two, at most 512, that divides `rows`. Together they have at most 1 MiB.
    pub rows_per_lock: u32,
    /// Width of a lock in bits, 1 to 16. A lock of one bit does not record its owner.
    pub lock_bits: u8,
    /// Number of physical locks; divides `rows / rows_per_lock`.
    pub physical_locks: u64,
    /// Number of client slots, 1 to 32,767; fewer with narrower locks: half of a lock's values, less one.
    pub max_clients: u16,
    /// Rows that one insert may change, 1 to 16, or to 32 if the format has no extents: its search depth plus one.
    /// Determines the size of the redo record.
    pub max_path_rows: u8,
    /// Regions of the lock table with a repair lease each, 0 to 128; 0 where dead clients are recovered by their redo
    /// records, or not at all. [R-REPAIR-3]
    pub repair_regions: u8,
    /// Bytes of an extent chunk, a power of two; 0 if the format has no extents.
    pub chunk_bytes: u64,
    /// Number of chunks. A table that grows may have fewer of them at first.
    pub chunks: u64,
    /// Chunks that a table which grows is created with; `None` if it is created with all of them. [R-GROW-15]
    pub initial_chunks: Option<u64>,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Protocol rules.
    pub rules: Rules,
}

/// The parameters are not those of a valid table. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The entry format does not parse, or is outside its bounds.
    #[error("entry format {text:?} is not {}", EntryFormat::ACCEPTED)]
    Format {
        /// The text.
        text: String,
    },
    /// A parameter is outside its bounds.
    #[error("{name} is {value}, but must be {bounds}")]
    OutOfRange {
        /// The name of the parameter.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The values it may have.
        bounds: &'static str,
    },
    /// The table would be larger than the address space.
    #[error("{rows} rows of {row_bytes} bytes and {chunks} chunks of {chunk_bytes} bytes need more than 2^62 bytes")]
    TooLarge {
        /// Rows.
        rows: u64,
        /// Bytes of a row.
        row_bytes: u32,
        /// Chunks.
        chunks: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
}

impl TableConfig {
    /// Returns the number of entries the table holds if every row is full.
    pub fn max_entries(&self) -> u64 {
        self.rows.saturating_mul(u64::from(self.entries_per_row))
    }

    /// Whether the table is created with fewer rows than it may have.
    pub fn grows(&self) -> bool {
        self.initial_segments.is_some()
    }

    /// Returns the number of rows that the table is created with.
    pub fn initial_rows(&self) -> u64 {
        match (self.segment_rows, self.initial_segments) {
            (Some(rows), Some(segments)) => u64::from(rows) * u64::from(segments),
            _ => self.rows,
        }
    }

    /// Returns the number of rows among which both rows of a key lie: those of a segment, or of the whole table.
    pub fn hashed_rows(&self) -> u64 {
        self.segment_rows.map_or(self.rows, u64::from)
    }

    /// Returns the offset table: m\[z\] = floor(f^(f+z)), at least 1 and at most `rows` (paper, section 3.3). Computed
    /// once, by the creator. [R-HASH-3]
    pub fn offset_table(f: f64, rows: u64) -> [u64; MAX_ZEROS + 1] {
        std::array::from_fn(|z| {
            let power = f.powf(f + z as f64).floor();
            if power >= rows as f64 { rows } else { (power as u64).max(1) }
        })
    }

    /// Checks every parameter and every relation between them.
    ///
    /// # Errors
    /// The first parameter that is out of bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.format.check()?;
        let bound = |holds: bool, name: &'static str, value: u64, bounds: &'static str| {
            if holds { Ok(()) } else { Err(ConfigError::OutOfRange { name, value, bounds }) }
        };
        let entries = u64::from(self.entries_per_row);
        let row_bytes = u64::from(self.row_bytes);
        let needed = entries * self.format.entry_words() as u64 * 8 + u64::from(TRAILER_BYTES);
        let rows_per_lock = u64::from(self.rows_per_lock);
        bound(self.rows > 0 && self.rows.is_multiple_of(ROW_GROUP), "rows", self.rows, "a positive multiple of 64")?;
        bound((1..=MAX_ENTRIES_PER_ROW as u64).contains(&entries), "entries_per_row", entries, "1 to 14")?;
        bound(row_bytes.is_multiple_of(8), "row_bytes", row_bytes, "a multiple of 8")?;
        bound(row_bytes >= needed, "row_bytes", row_bytes, "at least the entries and a 16-byte trailer")?;
        bound(row_bytes <= u64::from(MAX_ROW_BYTES), "row_bytes", row_bytes, "at most 16384")?;
        bound((8..=32).contains(&self.version_bits), "version_bits", self.version_bits.into(), "8 to 32")?;
        self.check_rows_per_lock()?;
        bound((1..=16).contains(&self.lock_bits), "lock_bits", self.lock_bits.into(), "1 to 16")?;
        let logical = self.rows / rows_per_lock;
        bound(
            self.physical_locks > 0 && logical.is_multiple_of(self.physical_locks),
            "physical_locks",
            self.physical_locks,
            "a divisor of rows / rows_per_lock",
        )?;
        let clients = u64::from(self.max_clients);
        let max = max_clients_of(self.lock_bits);
        bound(
            (1..=max).contains(&clients),
            "max_clients",
            clients,
            "1 to 32767 with locks of 16 bits, fewer with narrower ones",
        )?;
        self.check_path_rows()?;
        let regions = self.repair_regions;
        bound(regions <= MAX_REPAIR_REGIONS, "repair_regions", regions.into(), "0 to 128")?;
        self.check_segments()?;
        let offsets_hold = self.offsets.iter().all(|m| (1..=self.hashed_rows()).contains(m));
        bound(offsets_hold, "offsets", self.offsets[0], "1 to the number of rows of the table, or of a segment")?;
        self.check_chunks()
    }

    /// A batch may have to contain a long value's WRITEs and the locks and READs of every row of a path.
    fn check_path_rows(&self) -> Result<(), ConfigError> {
        let (most, bounds) = match self.format.has_extents() {
            true => (MAX_PATH_ROWS_WITH_EXTENTS, "1 to 16: the format has extents"),
            false => (MAX_PATH_ROWS, "1 to 32"),
        };
        if (1..=most).contains(&self.max_path_rows) {
            return Ok(());
        }
        Err(ConfigError::OutOfRange { name: "max_path_rows", value: self.max_path_rows.into(), bounds })
    }

    fn check_rows_per_lock(&self) -> Result<(), ConfigError> {
        let rows_per_lock = u64::from(self.rows_per_lock);
        let wrong = |bounds| Err(ConfigError::OutOfRange { name: "rows_per_lock", value: rows_per_lock, bounds });
        if !self.rows_per_lock.is_power_of_two() || self.rows_per_lock > MAX_ROWS_PER_LOCK {
            return wrong("a power of two, at most 512");
        }
        if !self.rows.is_multiple_of(rows_per_lock) {
            return wrong("a divisor of the number of rows");
        }
        if rows_per_lock * u64::from(self.row_bytes) > MAX_LOCK_BYTES {
            return wrong("at most as many rows as have 1 MiB together");
        }
        Ok(())
    }

    /// A segment is split under its own locks, by a client that leaves a record. [R-GROW-1]
    fn check_segments(&self) -> Result<(), ConfigError> {
        let wrong = |name, value, bounds| Err(ConfigError::OutOfRange { name, value, bounds });
        let Some(rows) = self.segment_rows else {
            let initial = |initial: u32| wrong("initial_segments", initial.into(), "none: the table has no segments");
            return self.initial_segments.map_or(Ok(()), initial);
        };
        let segment = |bounds| wrong("segment_rows", rows.into(), bounds);
        if !rows.is_power_of_two() || !(MIN_SEGMENT_ROWS..=MAX_SEGMENT_ROWS).contains(&rows) {
            return segment("a power of two, 64 to 1024");
        }
        let locks = u64::from(rows / self.rows_per_lock);
        if locks == 0 || locks.div_ceil(64 / u64::from(self.lock_bits)) > MAX_SEGMENT_LOCK_WORDS {
            return segment("at least the rows of a lock, at most those of 16 lock words");
        }
        if !self.rows.is_multiple_of(rows.into()) || self.rows / u64::from(rows) > MAX_SEGMENTS {
            return wrong("rows", self.rows, "1 to 2^27 segments");
        }
        self.check_initial_segments(self.rows / u64::from(rows))?;
        if !self.rules.commit_records || !self.rules.lock_both_rows || self.repair_regions > 0 || self.lock_bits == 1 {
            return segment("none: only tables whose clients leave redo records are divided into segments");
        }
        if self.rules.map_full_rows {
            return segment("none: a table with a map of its full rows is not divided into segments");
        }
        Ok(())
    }

    /// Each of the first segments can be split until the rows of a child would be at the highest level, or beyond the
    /// table's. [R-GROW-2] [R-GROW-3]
    fn check_initial_segments(&self, segments: u64) -> Result<(), ConfigError> {
        let wrong = |name, value, bounds| Err(ConfigError::OutOfRange { name, value, bounds });
        let Some(initial) = self.initial_segments.map(u64::from) else {
            let bounds = "1 to 2^24 segments in a table that does not grow";
            return if segments > MAX_INITIAL_SEGMENTS { wrong("rows", self.rows, bounds) } else { Ok(()) };
        };
        if !(1..=MAX_INITIAL_SEGMENTS).contains(&initial) || initial >= segments {
            return wrong("initial_segments", initial, "1 to 2^24, and fewer than the table can have");
        }
        if !segments.is_power_of_two() || segments.ilog2() - initial.ilog2() > MAX_LEVEL {
            let bounds = "those of a power of two of segments, at most 2^15 for each of the first ones";
            return wrong("rows", self.rows, bounds);
        }
        Ok(())
    }

    fn check_chunks(&self) -> Result<(), ConfigError> {
        let wrong = |name, value, bounds| Err(ConfigError::OutOfRange { name, value, bounds });
        if let Some(initial) = self.initial_chunks
            && !(self.grows() && (1..=self.chunks).contains(&initial))
        {
            return wrong("initial_chunks", initial, "1 to the number of chunks; none if the table does not grow");
        }
        if !self.format.has_extents() {
            return match (self.chunks, self.chunk_bytes) {
                (0, 0) => Ok(()),
                (0, bytes) => wrong("chunk_bytes", bytes, "0: the format has no extents"),
                (chunks, _) => wrong("chunks", chunks, "0: the format has no extents"),
            };
        }
        if !self.chunk_bytes.is_power_of_two() || !(4096..=1 << 30).contains(&self.chunk_bytes) {
            return wrong("chunk_bytes", self.chunk_bytes, "a power of two, 4 KiB to 1 GiB");
        }
        if self.chunks == 0 || self.chunks > 1 << 32 {
            return wrong("chunks", self.chunks, "1 to 2^32");
        }
        Ok(())
    }
}

/// Maximum number of clients of a table with locks of `lock_bits` bits. A poisoned lock, all ones, that its holder
/// releases is left at all ones minus the holder's id, which must not be the id of another client. A lock of one bit
/// records no owner. [R-DESTROY-1]
fn max_clients_of(lock_bits: u8) -> u64 {
    if lock_bits == 1 { 0xfffe } else { (1 << (lock_bits - 1)) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_round_trip() {
        for text in ["fixed:4:4", "fixed:8:8", "fixed:8:56", "fixed:16:0", "bytes:24", "bytes:64", "bytes:1024"] {
            let format: EntryFormat = text.parse().unwrap();
            assert_eq!(format.to_string(), text);
            assert_eq!(EntryFormat::decode(format.encode()), Some(format));
        }
        for text in ["", "fixed", "fixed:0:8", "fixed:8", "fixed:8:8:8", "fixed:300:1", "fixed:8:2000", "bytes:0"] {
            assert!(text.parse::<EntryFormat>().is_err(), "{text}");
        }
        for text in ["fixed:+8:8", "fixed:08:8", "bytes:064"] {
            let error = text.parse::<EntryFormat>().unwrap_err();
            assert_eq!(error, ConfigError::Format { text: text.to_owned() });
        }
        for text in ["bytes:63", "bytes:16", "bytes:2048", "bytes:-8", "bytes:64:8", "inline:8", "fixed:8:99999"] {
            assert!(text.parse::<EntryFormat>().is_err(), "{text}");
        }
        assert_eq!(EntryFormat::decode(0), None);
        assert_eq!(EntryFormat::decode(1 << 63 | 2 | 64 << 16), None);
    }

    /// [R-LOCK-1] A lock guards 1 to 512 rows that one READ covers, and no row outside the table.
    #[test]
    fn locks_divide_the_rows() {
        let of = |rows: u64, row_bytes: u32, rows_per_lock: u32| {
            let physical_locks = (rows / u64::from(rows_per_lock.max(1))).max(1);
            TableConfig { row_bytes, rows_per_lock, physical_locks, ..hardened(rows, "fixed:8:8") }.check()
        };
        for shift in 0..=9 {
            assert_eq!(of(512, 128, 1 << shift), Ok(()));
        }
        assert_eq!(of(512, 2048, 512), Ok(()));
        for (rows, row_bytes, rows_per_lock) in
            [(512, 128, 0), (512, 128, 96), (1024, 128, 1024), (64, 128, 128), (192, 128, 128), (512, 2056, 512)]
        {
            let refused = of(rows, row_bytes, rows_per_lock).unwrap_err();
            assert!(matches!(refused, ConfigError::OutOfRange { name: "rows_per_lock", .. }), "{refused}");
        }
    }

    /// Paths are longer where no value needs WRITEs of its own in the batch that locks them.
    #[test]
    fn paths_have_up_to_32_rows() {
        for (format, most) in [("fixed:8:8", 32), ("bytes:64", 16)] {
            let config = hardened(64, format);
            for (max_path_rows, is_valid) in [(0, false), (1, true), (most, true), (most + 1, false), (255, false)] {
                let checked = TableConfig { max_path_rows, ..config.clone() }.check();
                assert_eq!(checked.is_ok(), is_valid, "{format} {max_path_rows}: {checked:?}");
            }
        }
    }

    fn hardened(rows: u64, format: &str) -> TableConfig {
        let options = crate::PresetOptions {
            capacity: 1,
            format: format.parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        };
        crate::Preset::Hardened.config_of_rows(rows, &options).unwrap()
    }

    #[test]
    fn offsets_are_exact_powers() {
        let m = TableConfig::offset_table(2.3, 1 << 40);
        assert_eq!(m[..10], [6, 15, 35, 82, 190, 437, 1005, 2312, 5318, 12232]);
        assert_eq!(TableConfig::offset_table(2.3, 64)[9], 64);
    }
}
