//! Addresses of a table's areas, derived from its parameters with checked arithmetic.

use std::ops::Range;

use guira_fabric::{Addr, WORD_BYTES};

use crate::slot::slot_words;
use crate::{ConfigError, LockLayout, RowFormat, RowId, SUPERBLOCK_BYTES, Segments, TableConfig};

/// Alignment of the areas of the main space: a memory page.
const PAGE_BYTES: u64 = 4096;

/// Rows of a word of the map of full rows, a bit each. [R-INSERT-7]
pub const ROWS_OF_FULL_WORD: u64 = 64;

/// Addresses of a table's areas. Main space: superblock, client slots, repair leases, map of segments, map of full
/// rows, rows, chunk table, chunks. Device space: locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    slots_at: u64,
    slot_words: u64,
    max_clients: u16,
    leases_at: u64,
    repair_regions: u8,
    map_at: u64,
    map_words: u64,
    full_rows_at: u64,
    full_rows_words: u64,
    rows_at: u64,
    row_bytes: u64,
    chunk_table_at: u64,
    chunks_at: u64,
    chunk_bytes: u64,
    chunks: u64,
    main_bytes: u64,
    device_bytes: u64,
}

impl Geometry {
    /// Computes the addresses for `config`.
    ///
    /// # Errors
    /// `TooLarge` if the areas do not fit in 62 bits of addresses.
    pub fn new(config: &TableConfig) -> Result<Geometry, ConfigError> {
        Geometry::checked(config).ok_or(ConfigError::TooLarge {
            rows: config.rows,
            row_bytes: config.row_bytes,
            chunks: config.chunks,
            chunk_bytes: config.chunk_bytes,
        })
    }

    fn checked(config: &TableConfig) -> Option<Geometry> {
        let slot_words = slot_words(config) as u64;
        let slots_at = SUPERBLOCK_BYTES;
        let slot_bytes = u64::from(config.max_clients).checked_mul(slot_words * WORD_BYTES)?;
        let leases_at = slots_at.checked_add(slot_bytes)?;
        let map_at = leases_at.checked_add(u64::from(config.repair_regions) * WORD_BYTES)?;
        let map_words = map_words(config);
        let full_rows_at = map_at.checked_add(map_words * WORD_BYTES)?;
        let full_rows_words = if config.rules.map_full_rows { config.rows / ROWS_OF_FULL_WORD } else { 0 };
        let rows_at = page_up(full_rows_at.checked_add(full_rows_words * WORD_BYTES)?)?;
        let row_bytes = u64::from(config.row_bytes);
        let chunk_table_at = page_up(rows_at.checked_add(config.rows.checked_mul(row_bytes)?)?)?;
        let chunks_at = page_up(chunk_table_at.checked_add(config.chunks.checked_mul(WORD_BYTES)?)?)?;
        let chunk_area = config.chunks.checked_mul(config.chunk_bytes)?;
        let main_bytes = page_up(chunks_at.checked_add(chunk_area)?)?;
        let device_bytes = page_up(LockLayout::new(config).words().checked_mul(WORD_BYTES)?)?;
        if main_bytes.checked_add(device_bytes)? >= 1 << 62 {
            return None;
        }
        Some(Geometry {
            slots_at,
            slot_words,
            max_clients: config.max_clients,
            leases_at,
            repair_regions: config.repair_regions,
            map_at,
            map_words,
            full_rows_at,
            full_rows_words,
            rows_at,
            row_bytes,
            chunk_table_at,
            chunks_at,
            chunk_bytes: config.chunk_bytes,
            chunks: config.chunks,
            main_bytes,
            device_bytes,
        })
    }

    /// Returns the bytes of main space the table needs.
    pub fn main_bytes(&self) -> u64 {
        self.main_bytes
    }

    /// Returns the bytes of device space the table needs.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Returns the address of word `word` of the superblock.
    pub fn superblock_word(&self, word: usize) -> Addr {
        Addr::main(word as u64 * WORD_BYTES)
    }

    /// Returns the address of client slot `slot`.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn slot(&self, slot: u16) -> Addr {
        assert!(slot < self.max_clients, "client slot {slot} of {}", self.max_clients);
        Addr::main(self.slots_at + u64::from(slot) * self.slot_words * WORD_BYTES)
    }

    /// Returns the number of words of a client slot.
    pub fn slot_words(&self) -> usize {
        self.slot_words as usize
    }

    /// Returns the address of the repair lease of region `region`. [R-REPAIR-3]
    ///
    /// # Panics
    /// If there is no such region.
    pub fn lease(&self, region: u8) -> Addr {
        assert!(region < self.repair_regions, "region {region} of {}", self.repair_regions);
        Addr::main(self.leases_at + u64::from(region) * WORD_BYTES)
    }

    /// Returns the address of the word of segment `segment` in the table's map: its depth and 1, or 0 if there is no such
    /// segment yet. Only tables that grow have a map. [R-GROW-12]
    ///
    /// # Panics
    /// If the table has no address for it.
    pub fn map_word(&self, segment: u64) -> Addr {
        assert!(segment < self.map_words, "segment {segment} of {}", self.map_words);
        Addr::main(self.map_at + segment * WORD_BYTES)
    }

    /// Returns the number of words of the map of full rows: one for [`ROWS_OF_FULL_WORD`] rows, or 0 if the table has
    /// no such map. [R-INSERT-7]
    #[inline]
    pub fn full_rows_words(&self) -> u64 {
        self.full_rows_words
    }

    /// Returns the address of word `word` of the map of full rows. [R-INSERT-7]
    ///
    /// # Panics
    /// If there is no such word.
    pub fn full_rows_word(&self, word: u64) -> Addr {
        assert!(word < self.full_rows_words, "word {word} of {}", self.full_rows_words);
        Addr::main(self.full_rows_at + word * WORD_BYTES)
    }

    /// Returns the bytes of the main space that need no memory in a new table of `config`, because they are those of
    /// segments and chunks that do not exist yet: parts of the map, of the rows, of the chunk table, and of the chunks.
    /// Some may be empty. [R-GROW-7] [R-GROW-15]
    pub fn holes(&self, config: &TableConfig) -> [Range<u64>; 4] {
        let Some(segments) = Segments::of(config).filter(|_| config.grows()) else {
            return [0; 4].map(|at| at..at);
        };
        let mapped = segments.mapped_with(segments.count() - 1).end;
        let rows = self.row(RowId(config.initial_rows())).offset();
        let [table, chunks] = self.chunk_parts(0..config.initial_chunks.unwrap_or(config.chunks));
        [
            self.map_at + mapped * WORD_BYTES..self.rows_at,
            rows..self.chunk_table_at,
            table.end..self.chunks_at,
            chunks.end..self.main_bytes,
        ]
    }

    /// Returns the parts of the main space that have memory in a new table of `config`. [R-GROW-7] [R-GROW-15]
    pub fn solid(&self, config: &TableConfig) -> [Range<u64>; 5] {
        let holes = self.holes(config);
        let [map, rows, table, chunks] = holes;
        [0..map.start, map.end..rows.start, rows.end..table.start, table.end..chunks.start, chunks.end..self.main_bytes]
    }

    /// Returns the bytes of the main space in which the words of these chunks lie in the chunk table, and the chunks.
    /// [R-GROW-15]
    pub fn chunk_parts(&self, chunks: Range<u64>) -> [Range<u64>; 2] {
        [(self.chunk_table_at, WORD_BYTES), (self.chunks_at, self.chunk_bytes)]
            .map(|(at, bytes)| at + chunks.start * bytes..at + chunks.end * bytes)
    }

    /// Returns the bytes of the main space in which the rows of `segment` lie, and the words of the map that are in use
    /// with its own. [R-GROW-7]
    pub fn segment_bytes(&self, segments: &Segments, segment: u64) -> [Range<u64>; 2] {
        let at = |segment| self.row(segments.first_row(segment)).offset();
        let mapped = segments.mapped_with(segment);
        [at(segment)..at(segment + 1), self.map_at + mapped.start * WORD_BYTES..self.map_at + mapped.end * WORD_BYTES]
    }

    /// Returns the address of `row`, which the caller knows to be below T.
    #[inline(always)]
    pub fn row(&self, row: RowId) -> Addr {
        Addr::main(self.rows_at + row.0 * self.row_bytes)
    }

    /// Returns the address of the trailer of `row`.
    #[inline(always)]
    pub fn trailer(&self, row: RowId, format: &RowFormat) -> Addr {
        self.row(row).add_words(format.trailer_word() as u64)
    }

    /// Returns the address of the chunk table's word for chunk `chunk`.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn chunk_word(&self, chunk: u64) -> Addr {
        assert!(chunk < self.chunks, "chunk {chunk} of {}", self.chunks);
        Addr::main(self.chunk_table_at + chunk * WORD_BYTES)
    }

    /// Returns the address of chunk `chunk`.
    ///
    /// # Panics
    /// If there is no such chunk.
    pub fn chunk(&self, chunk: u64) -> Addr {
        assert!(chunk < self.chunks, "chunk {chunk} of {}", self.chunks);
        Addr::main(self.chunks_at + chunk * self.chunk_bytes)
    }

    /// Returns the chunk that byte `offset` of the main space lies in, and the offset within it.
    pub fn chunk_of(&self, offset: u64) -> Option<(u64, u64)> {
        let inside = offset.checked_sub(self.chunks_at)?;
        let chunk = inside.checked_div(self.chunk_bytes)?;
        (chunk < self.chunks).then_some((chunk, inside % self.chunk_bytes))
    }
}

/// Returns the number of words of the map: one for each segment that a table which grows may have.
fn map_words(config: &TableConfig) -> u64 {
    if config.grows() { config.rows / config.hashed_rows() } else { 0 }
}

fn page_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Preset, PresetOptions};

    #[test]
    fn areas_follow_each_other() {
        let options = PresetOptions {
            capacity: 10_000,
            format: "bytes:64".parse().unwrap(),
            extent_bytes: Some(1 << 20),
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        };
        for preset in Preset::ALL {
            let config = preset.config(&options).unwrap();
            let geometry = Geometry::new(&config).unwrap();
            let last_slot = geometry.slot(config.max_clients - 1).offset() + geometry.slot_words() as u64 * 8;
            assert!(last_slot <= geometry.row(RowId(0)).offset());
            if let Some(last) = config.repair_regions.checked_sub(1) {
                assert!(last_slot <= geometry.lease(0).offset());
                assert!(geometry.lease(last).offset() < geometry.row(RowId(0)).offset());
            }
            assert_eq!(config.repair_regions > 0, preset == Preset::Paper);
            assert!(geometry.row(RowId(config.rows)).offset() <= geometry.chunk_word(0).offset());
            assert!(geometry.chunk_word(config.chunks - 1).offset() < geometry.chunk(0).offset());
            let last = geometry.chunk(config.chunks - 1).offset();
            assert_eq!(last + config.chunk_bytes, geometry.main_bytes());
            assert_eq!(geometry.chunk_of(last + 8), Some((config.chunks - 1, 8)));
            assert_eq!(geometry.chunk_of(last + config.chunk_bytes), None);
            assert_eq!(geometry.chunk_of(0), None);
        }
    }

    /// [R-GROW-12] Only tables that grow have a map, behind what comes before the rows.
    #[test]
    fn growing_tables_have_a_map() {
        let options = PresetOptions {
            capacity: 1,
            format: "fixed:8:8".parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        };
        let growing = Preset::Hardened.config_that_grows(3, 4096, &options).unwrap();
        let geometry = Geometry::new(&growing).unwrap();
        let last_slot = geometry.slot(growing.max_clients - 1).offset() + geometry.slot_words() as u64 * 8;
        assert_eq!(last_slot, geometry.map_word(0).offset());
        assert_eq!(geometry.row(RowId(0)).offset(), (geometry.map_word(4095).offset() + 8).next_multiple_of(4096));
        let fixed = TableConfig { initial_segments: None, ..growing };
        assert_eq!(Geometry::new(&fixed).unwrap().row(RowId(0)).offset(), last_slot.next_multiple_of(4096));
    }

    #[test]
    fn tables_larger_than_the_address_space_are_refused() {
        let options = PresetOptions {
            capacity: 100,
            format: "fixed:8:8".parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        };
        let mut config = Preset::Hardened.config(&options).unwrap();
        config.rows = 1 << 60;
        assert!(matches!(Geometry::new(&config), Err(ConfigError::TooLarge { .. })));
    }
}
