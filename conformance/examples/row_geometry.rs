//! A comparison of row geometries: nanoseconds and bytes of a lookup for several row layouts and checksums, in one run.
//!
//! `cargo run --release -p guira-conformance --example row_geometry [KEYS]` fills each table to 90 % and looks random
//! keys up. Nothing depends on its output; docs/decisions/0004 quotes it.

use std::time::Instant;

use guira_conformance::Bench;
use guira_fabric::{Profile, SplitMix64};
use guira_layout::{ChecksumKind, Preset, PresetOptions, TableConfig};

/// Lookups per timed round; the fastest round counts, because the machine is shared.
const LOOKUPS: u64 = 500_000;
const ROUNDS: usize = 5;

struct Shape {
    name: &'static str,
    format: &'static str,
    entries: u8,
    row_bytes: u32,
    checksum: ChecksumKind,
}

const fn shape(name: &'static str, format: &'static str, entries: u8, row_bytes: u32, checksum: ChecksumKind) -> Shape {
    Shape { name, format, entries, row_bytes, checksum }
}

const SHAPES: [Shape; 8] = [
    shape("7 x 8:8, 128 B", "fixed:8:8", 7, 128, ChecksumKind::Nh),
    shape("7 x 8:8, 128 B", "fixed:8:8", 7, 128, ChecksumKind::Crc64),
    shape("3 x 8:8, 64 B", "fixed:8:8", 3, 64, ChecksumKind::Nh),
    shape("8 x 8:8, 144 B packed", "fixed:8:8", 8, 144, ChecksumKind::Nh),
    shape("11 x 8:8, 192 B", "fixed:8:8", 11, 192, ChecksumKind::Nh),
    shape("6 x 4:4, 64 B", "fixed:4:4", 6, 64, ChecksumKind::Nh),
    shape("8 x 4:4, 80 B packed", "fixed:4:4", 8, 80, ChecksumKind::Nh),
    shape("14 x 4:4, 128 B", "fixed:4:4", 14, 128, ChecksumKind::Nh),
];

fn config(shape: &Shape, keys: u64) -> Option<TableConfig> {
    let options = PresetOptions {
        capacity: keys,
        format: shape.format.parse().ok()?,
        extent_bytes: None,
        max_clients: Some(4),
        hash_seed: 1,
        device_bytes: u64::MAX,
    };
    let rows = (keys * 10 / 9 / u64::from(shape.entries) + 1).next_multiple_of(64);
    let mut config = Preset::Hardened.config_of_rows(rows, &options).ok()?;
    config.entries_per_row = shape.entries;
    config.row_bytes = shape.row_bytes;
    config.checksum = shape.checksum;
    config.check().ok()?;
    Some(config)
}

fn measure(shape: &Shape, keys: u64) -> Option<()> {
    let bench = Bench::of_config(config(shape, keys)?, Profile::Shm, 1);
    let width = if shape.format == "fixed:4:4" { 4 } else { 8 };
    let key = |i: u64| (i * 2_654_435_761 % (1 << 32)).to_le_bytes();
    let mut client = bench.client(0);
    let mut full = 0;
    for i in 0..keys {
        full += u64::from(client.put(&key(i)[..width], &key(i)[..width]).is_err());
    }
    let mut fastest_ns = f64::MAX;
    let mut bytes = 0;
    for round in 0..ROUNDS {
        let mut rng = SplitMix64(round as u64);
        let before = *guira_fabric::Lane::traffic(&client.lane);
        let started = Instant::now();
        for _ in 0..LOOKUPS {
            std::hint::black_box(client.get(&key(rng.below(keys))[..width]).ok()?);
        }
        fastest_ns = fastest_ns.min(started.elapsed().as_nanos() as f64 / LOOKUPS as f64);
        bytes = guira_fabric::Lane::traffic(&client.lane).since(&before).payload_bytes() / LOOKUPS;
    }
    // Over a network both rows are transferred, with headers, and as one message where they are adjacent.
    let wire = 2 * (74 + 62 + shape.row_bytes);
    println!(
        "{:<24} {:<11} {fastest_ns:>7.1} ns per get, {bytes:>4} bytes read in place, \
         {wire:>4} on the wire, {full} did not fit",
        shape.name,
        shape.checksum.name(),
    );
    Some(())
}

fn main() {
    let keys = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4_000_000);
    println!("{keys} keys, each table at 90 % of its entries; fastest of {ROUNDS} rounds of {LOOKUPS} random lookups");
    for shape in &SHAPES {
        if measure(shape, keys).is_none() {
            println!("{}: not a valid table", shape.name);
        }
    }
}
