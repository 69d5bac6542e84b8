//! Parameters of a table drawn from a few bytes, which can give every valid combination that matters to a decoder.

use guira_layout::{
    ChecksumKind, EntryFormat, Geometry, LockLayout, Preset, PresetOptions, RowFormat, Secret, Superblock, TableConfig,
};

use super::feed::Feed;

/// Formats whose keys and values have no, one or several whole words, with padding and without.
const FORMATS: [&str; 9] = [
    "fixed:4:4",
    "fixed:8:8",
    "fixed:16:3",
    "fixed:5:0",
    "fixed:1:7",
    "fixed:9:256",
    "bytes:24",
    "bytes:64",
    "bytes:1024",
];
/// Bytes that [`Case::draw`] consumes.
pub(crate) const CASE_BYTES: usize = 30;

/// The parameters of a table and the values derived from them.
pub(crate) struct Case {
    pub(crate) superblock: Superblock,
    pub(crate) rows: RowFormat,
    pub(crate) geometry: Geometry,
    pub(crate) locks: LockLayout,
}

impl Case {
    /// Draws a table from [`CASE_BYTES`] bytes.
    pub(crate) fn draw(feed: &mut Feed<'_>) -> Case {
        let preset = feed.pick(&Preset::ALL);
        let format: EntryFormat = feed.pick(&FORMATS).parse().expect("a valid format");
        let mut config = base(preset, format);
        config.checksum = feed.pick(&ChecksumKind::ALL);
        config.version_bits = 8 + feed.byte() % 25;
        config.entries_per_row = 1 + feed.byte() % 14;
        let words = usize::from(config.entries_per_row) * format.entry_words() + 2 + usize::from(feed.byte() % 4);
        config.row_bytes = words as u32 * 8;
        config.rows = 64 * (1 + u64::from(feed.byte()));
        config.offsets = [1; 33];
        config.rows_per_lock = 1 << (feed.byte() % 7);
        config.lock_bits = 2 + feed.byte() % 15;
        let logical = config.rows / u64::from(config.rows_per_lock);
        config.physical_locks = logical >> u64::from(feed.byte()).min(logical.trailing_zeros().into());
        let owners = (1u16 << (config.lock_bits - 1)) - 1;
        config.max_clients = match feed.byte() {
            0xff => owners,
            drawn => 1 + u16::from(drawn) % owners,
        };
        if feed.byte().is_multiple_of(4) {
            // 1-bit locks name no owner, so they do not bound the number of clients.
            config.lock_bits = 1;
        }
        let (chunk_shift, chunks) = (feed.byte() % 19, 1 + u64::from(feed.byte()));
        if format.has_extents() {
            (config.chunk_bytes, config.chunks) = (4096 << chunk_shift, chunks);
        }
        let (incarnation, table) = (feed.word(), feed.word());
        let is_recoverable = config.rules.commit_records && config.repair_regions == 0 && config.lock_bits > 1;
        if is_recoverable && incarnation.is_multiple_of(3) {
            config.segment_rows = Some(64);
            if config.check().is_err() {
                // More lock words than a segment may have.
                config.segment_rows = None;
            }
        }
        let superblock = Superblock { incarnation, table, secret: Secret([incarnation, table, 1, 2]), config };
        Case::of(superblock)
    }

    /// Returns the case of the table that `superblock` describes.
    pub(crate) fn of(superblock: Superblock) -> Case {
        superblock.config.check().expect("every drawn table is valid");
        let geometry = Geometry::new(&superblock.config).expect("every drawn table fits in an address space");
        let locks = LockLayout::new(&superblock.config);
        Case { rows: RowFormat::new(&superblock), geometry, locks, superblock }
    }

    pub(crate) fn config(&self) -> &TableConfig {
        &self.superblock.config
    }

    /// Draws a key that the table takes; in a `bytes` format, mostly one that fits in a row.
    pub(crate) fn key(&self, feed: &mut Feed<'_>) -> Vec<u8> {
        let drawn = usize::from(feed.byte());
        let bytes = match self.config().format {
            EntryFormat::Fixed { key_bytes, .. } => key_bytes.into(),
            EntryFormat::Bytes { .. } => drawn % 80,
        };
        feed.bytes(bytes)
    }

    /// Draws a value that the table takes.
    pub(crate) fn value(&self, feed: &mut Feed<'_>) -> Vec<u8> {
        let drawn = usize::from(feed.byte());
        let bytes = match self.config().format {
            EntryFormat::Fixed { value_bytes, .. } => value_bytes.into(),
            EntryFormat::Bytes { .. } => drawn % 80,
        };
        feed.bytes(bytes)
    }
}

fn base(preset: Preset, format: EntryFormat) -> TableConfig {
    let options = PresetOptions {
        capacity: 1_000,
        format,
        extent_bytes: None,
        max_clients: None,
        hash_seed: 3,
        device_bytes: u64::MAX,
    };
    preset.config(&options).expect("valid parameters")
}

/// Returns heads of inputs that draw different tables: small tables of each format, and extremes of every width.
pub(crate) fn heads() -> Vec<(String, Vec<u8>)> {
    let mut heads = Vec::new();
    for (format, name) in FORMATS.iter().enumerate() {
        for (preset, preset_name) in Preset::ALL.iter().enumerate() {
            let n = preset as u8;
            // Preset, format, checksum, version bits, entries, padding, rows, rows a lock, lock bits, locks, clients.
            let mut head = vec![n, format as u8, n, 24 * (1 - n / 2), 2 + 3 * n, n, 1, 4, 14, n, 20];
            // One-bit locks, chunk bytes, chunks; incarnation; table.
            head.extend([1 + 3 * (n / 2), 4 * n, 40, 7, 1, 0, 0, 0, 0, 0, 0, 9]);
            head.resize(CASE_BYTES, 0);
            heads.push((format!("{preset_name}-{}", name.replace(':', "-")), head));
        }
    }
    // These are the two row formats with specialized readers: 6 entries in 8 words, and 7 in 16.
    for (format, entries, name) in [(0, 5, "hardened-rows-4x4"), (1, 6, "hardened-rows-8x8")] {
        let head = [1, format, 3, 24, entries, 0, 1, 4, 14, 0, 20, 1, 0, 40, 7];
        heads.push((name.to_owned(), [&head[..], &[0; CASE_BYTES - 15]].concat()));
    }
    heads
}

#[cfg(test)]
mod tests {
    use guira_layout::RowShape;

    use super::*;

    #[test]
    fn heads_reach_every_reader_of_rows() {
        let shapes: Vec<RowShape> = heads().iter().map(|(_, head)| Case::draw(&mut Feed(head)).rows.shape()).collect();
        assert!(shapes.iter().any(|case| matches!(case, RowShape::Fixed4x4(_))));
        assert!(shapes.iter().any(|case| matches!(case, RowShape::Fixed8x8(_))));
        assert!(shapes.contains(&RowShape::General));
    }
}
