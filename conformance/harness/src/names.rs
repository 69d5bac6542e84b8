//! Harnesses for names of formats and presets, and for the parameters that a preset derives from options.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use guira_layout::{
    ChecksumKind, ConfigError, EntryFormat, Geometry, Preset, PresetOptions, Secret, Superblock, TableConfig,
};

use super::feed::Feed;
use super::superblock::consistent;
use super::{Answer, Seed};

/// Decodes a name.
///
/// # Panics
/// If a parsed name is not formatted as it was.
pub fn names(data: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(data);
    let format = one_spelling::<EntryFormat>(&text);
    let preset = one_spelling::<Preset>(&text);
    if let Some(format) = format {
        assert!(format.entry_words() > 0 && text.starts_with(if format.has_extents() { "bytes:" } else { "fixed:" }));
    }
    for byte in data {
        let kind = ChecksumKind::from_code(*byte);
        assert!(kind.is_none_or(|kind| kind.code() == *byte && !kind.name().is_empty()));
    }
    Answer::of(format.is_some() || preset.is_some())
}

/// Parses `text`, which must be formatted as it was; if it names nothing, the error says what is wrong with it.
fn one_spelling<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) -> Option<T> {
    match text.parse::<T>() {
        Ok(value) => {
            assert_eq!(value.to_string(), text);
            Some(value)
        }
        Err(error) => {
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
            None
        }
    }
}

/// Decodes a user's options for a new table, in numbers of any size.
///
/// # Panics
/// If a preset derives parameters that no table can have.
pub fn preset(data: &[u8]) -> Answer {
    let mut feed = Feed(data);
    let preset = feed.pick(&Preset::ALL);
    let mut sizes = feed.words(2);
    let format = match feed.byte() % 2 {
        0 => EntryFormat::Fixed { key_bytes: sizes[0] as u16, value_bytes: sizes[1] as u16 },
        _ => EntryFormat::Bytes { inline_bytes: sizes[0] as u16 },
    };
    sizes = feed.words(4);
    let (wants_extents, wants_clients) = (feed.byte(), feed.byte());
    let options = PresetOptions {
        capacity: sizes[0] >> (feed.byte() % 64),
        format,
        extent_bytes: (wants_extents % 2 == 1).then_some(sizes[1] >> (feed.byte() % 64)),
        max_clients: (wants_clients % 2 == 1).then_some(sizes[2] as u16),
        hash_seed: sizes[2],
        device_bytes: sizes[3] >> (feed.byte() % 64),
    };
    let derived = derived(&options, preset.config(&options));
    if let Some(config) = &derived {
        assert!(config.max_entries() >= options.capacity, "the table has room for the requested keys");
    }
    let rows = options.capacity;
    if let Some(config) = self::derived(&options, preset.config_of_rows(rows, &options)) {
        assert_eq!(config.rows, rows);
    }
    Answer::of(derived.is_some())
}

/// Checks derived parameters: a table can have them, and they are as requested; otherwise there is a reason.
fn derived(options: &PresetOptions, config: Result<TableConfig, ConfigError>) -> Option<TableConfig> {
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    assert_eq!((config.format, config.hash_seed), (options.format, options.hash_seed));
    assert!(options.max_clients.is_none_or(|clients| config.max_clients == clients));
    if config.format.has_extents() {
        let bytes = u128::from(config.chunks) * u128::from(config.chunk_bytes);
        assert!(options.extent_bytes.is_none_or(|wanted| bytes >= u128::from(wanted)));
    }
    let superblock = Superblock { incarnation: 1, table: 2, secret: Secret([3; 4]), config: config.clone() };
    consistent(&superblock);
    let device_bytes = Geometry::new(&config).map(|geometry| geometry.device_bytes()).unwrap_or_default();
    assert!(device_bytes.is_multiple_of(4096));
    Some(config)
}

/// Returns valid names and near misses.
pub(super) fn name_seeds() -> Vec<Seed> {
    let right = ["fixed:4:4", "fixed:256:768", "fixed:1:0", "bytes:24", "bytes:1024", "paper", "hardened", "tiny"];
    let wrong = ["fixed:+8:08", "fixed:8", "bytes:63", "bytes:65536", "fixed:257:1", "bytes:64:", "Paper", "", "é:1"];
    let named = |(index, text): (usize, &&str)| (format!("name-{index:02}"), text.as_bytes().to_vec());
    right.iter().chain(&wrong).enumerate().map(named).collect()
}

/// Returns options of small, large and impossible tables.
pub(super) fn preset_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (preset, name) in Preset::ALL.iter().enumerate() {
        for (kind, sizes, capacity) in [
            (0, [8, 8], 1_000_000),
            (0, [256, 768], 1),
            (0, [300, 1], 5),
            (1, [64, 0], 1_000_000),
            (1, [1024, 0], u64::MAX),
            (1, [24, 0], 1 << 40),
        ] {
            let numbers = [capacity, 64 << 20, 100, 256 << 10].map(u64::to_le_bytes).concat();
            let sizes_bytes = sizes.map(u64::to_le_bytes).concat();
            let tail = [1, (capacity % 2) as u8, 0, 0, 0];
            let input = [&[preset as u8], &sizes_bytes[..], &[kind], &numbers, &tail].concat();
            seeds.push((format!("{name}-{kind}-{}-{capacity}", sizes[0]), input));
        }
    }
    seeds
}
