//! The options a table was created with, derived from its parameters: neither the preset's name nor the capacity is
//! stored, but the parameters that follow from them are.

use crate::{Preset, PresetOptions, Segments, TableConfig};

impl Preset {
    /// Returns the preset that a table with these parameters was created with, or `None` if no preset of this program
    /// gives them. Rows, extents, clients, seed and redo records are not compared: options choose them.
    pub fn of(config: &TableConfig) -> Option<Preset> {
        let options = PresetOptions {
            capacity: 1,
            format: config.format,
            extent_bytes: Some(config.extent_bytes()),
            max_clients: Some(config.max_clients),
            hash_seed: config.hash_seed,
            device_bytes: u64::MAX,
        };
        let is_of = |preset: &Preset| {
            preset.config_of_rows(config.rows, &options).is_ok_and(|own| {
                (own.row_bytes, own.entries_per_row) == (config.row_bytes, config.entries_per_row)
                    && (own.checksum, own.version_bits) == (config.checksum, config.version_bits)
                    && (own.rows_per_lock, own.lock_bits) == (config.rows_per_lock, config.lock_bits)
                    && (own.offset_rule, own.max_path_rows) == (config.offset_rule, config.max_path_rows)
                    && own.rules.lock_both_rows == config.rules.lock_both_rows
                    && own.rules.validate_misses == config.rules.validate_misses
            })
        };
        Preset::ALL.into_iter().find(is_of)
    }
}

impl TableConfig {
    /// Returns the number of keys the table has room for: the largest capacity it could have been created with. It is
    /// at least the capacity that was asked for, because rows come in groups. In a table that is divided into segments,
    /// the one with most keys is then expected to be as full as others are as a whole. [R-GROW-2]
    pub fn capacity(&self) -> u64 {
        let percent = Preset::of(self).unwrap_or_default().fill_percent();
        if let Some(segments) = Segments::of(self) {
            return segments.capacity(self.entries_per_row.into(), percent);
        }
        let keys = u128::from(self.max_entries()) * u128::from(percent) / 100;
        u64::try_from(keys).unwrap_or(u64::MAX)
    }

    /// Returns the number of keys that the table has room for once it has grown as far as it may. [R-GROW-6]
    pub fn max_capacity(&self) -> u64 {
        TableConfig { initial_segments: None, initial_chunks: None, ..self.clone() }.capacity()
    }

    /// Returns the bytes of extent space, for keys and values that do not fit in a row, in whole chunks. A table that
    /// grows may have less of it at first.
    pub fn extent_bytes(&self) -> u64 {
        self.chunks.saturating_mul(self.chunk_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preset_and_capacity_are_derived_from_the_parameters() {
        for preset in Preset::ALL {
            for format in ["fixed:4:4", "fixed:8:8", "fixed:16:100", "bytes:24", "bytes:64", "bytes:1024"] {
                for capacity in [1, 63, 1_000, 999_983, 100_000_000] {
                    let options = PresetOptions {
                        capacity,
                        format: format.parse().unwrap(),
                        extent_bytes: (capacity == 63).then_some(5 << 20),
                        max_clients: (capacity == 63).then_some(7),
                        hash_seed: capacity,
                        device_bytes: 256 << 10,
                    };
                    let config = preset.config(&options).unwrap();
                    let case = format!("{preset} {format} {capacity}");
                    assert_eq!(Preset::of(&config), Some(preset), "{case}");
                    let room = config.capacity();
                    assert!(room >= capacity, "{case}: {room}");
                    // It is the largest such capacity.
                    let rows = |capacity| preset.config(&PresetOptions { capacity, ..options }).unwrap().rows;
                    assert!(rows(room + 1) > config.rows && rows(room - 1) <= config.rows, "{case}: {room}");
                }
            }
        }
    }

    #[test]
    fn parameters_of_no_preset_give_none() {
        let options = PresetOptions {
            capacity: 1_000,
            format: "fixed:8:8".parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 1,
            device_bytes: u64::MAX,
        };
        let config = Preset::Hardened.config(&options).unwrap();
        assert_eq!(Preset::of(&TableConfig { rows_per_lock: 32, ..config.clone() }), None);
        let mut unrecorded = config;
        unrecorded.rules.commit_records = false;
        assert_eq!(Preset::of(&unrecorded), Some(Preset::Hardened));
    }
}
