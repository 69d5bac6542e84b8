//! Every geometry of a table behaves alike: lock widths, few and many locks, row layouts, checksums, version widths,
//! and segments.
//!
//! Two clients alternate on a small table and a model, one of them on a lane whose promises differ, like the two sides
//! of a mixed region.

use std::collections::BTreeMap;

use guira_conformance::Bench;
use guira_fabric::{Profile, Region, SplitMix64};
use guira_layout::{ChecksumKind, LockMask, OffsetRule, Preset, PresetOptions, RowId, Rules, Segments, TableConfig};
use guira_rcuckoo::{Change, ClientConfig, InsertRow, NewValue, Outcome, SearchRoots, Synchronize};

fn config(rng: &mut SplitMix64, seed: u64) -> TableConfig {
    let options = PresetOptions {
        capacity: 1,
        format: "fixed:8:8".parse().expect("a format"),
        extent_bytes: None,
        max_clients: Some(2),
        hash_seed: seed,
        device_bytes: u64::MAX,
    };
    let preset = Preset::ALL[rng.below(3) as usize];
    // Up to 512 rows to a lock, and then up to 1,024 rows.
    let rows_per_lock = 1u32 << rng.below(10);
    let rows = u64::from(rows_per_lock).max(64) * (1 + rng.below(if rows_per_lock > 64 { 2 } else { 5 }));
    let mut config = preset.config_of_rows(rows, &options).expect("a table");
    config.entries_per_row = 1 + rng.below(14) as u8;
    config.row_bytes = u32::from(config.entries_per_row) * 16 + 16 + 8 * rng.below(4) as u32;
    config.checksum = ChecksumKind::ALL[rng.below(ChecksumKind::ALL.len() as u64) as usize];
    config.version_bits = 8 + rng.below(25) as u8;
    config.rows_per_lock = rows_per_lock;
    config.lock_bits = [1, 3, 4, 5, 6, 7, 8, 11, 16][rng.below(9) as usize];
    let logical = rows / u64::from(config.rows_per_lock);
    let divisors: Vec<u64> = (1..=logical).filter(|p| logical.is_multiple_of(*p)).collect();
    config.physical_locks = divisors[rng.below(divisors.len() as u64) as usize];
    config.offset_rule = [OffsetRule::Odd, OffsetRule::Printed, OffsetRule::Independent][rng.below(3) as usize];
    config.offsets = TableConfig::offset_table(1.9 + rng.below(12) as f64 / 10.0, rows);
    config.max_path_rows = 1 + rng.below(32) as u8;
    config.rules.commit_records = rng.below(2) == 0;
    let may_divide = config.rules.commit_records && config.rules.lock_both_rows && config.repair_regions == 0;
    if may_divide && config.lock_bits > 1 && rng.below(2) == 0 {
        divide(&mut config, rng);
    }
    config.check().expect("a valid configuration");
    config
}

/// Divides a table into the largest possible segments or into smaller ones. Its rows and locks stay as they are.
fn divide(config: &mut TableConfig, rng: &mut SplitMix64) {
    let least = config.rows_per_lock.max(64);
    let sizes = (0..5).map(|shift| least << shift).filter(|size| config.rows.is_multiple_of(u64::from(*size)));
    let divided = sizes.map(|size| TableConfig {
        segment_rows: Some(size),
        offsets: config.offsets.map(|offset| offset.min(size.into())),
        rules: Rules { map_full_rows: false, ..config.rules },
        ..config.clone()
    });
    let valid: Vec<TableConfig> = divided.filter(|config| config.check().is_ok()).collect();
    if !valid.is_empty() {
        *config = valid[rng.below(valid.len() as u64) as usize].clone();
    }
    // Some are created with one segment, and grow.
    let growing = TableConfig { initial_segments: Some(1), ..config.clone() };
    if growing.check().is_ok() && rng.below(4) > 0 {
        *config = growing;
    }
}

fn locks_are_free(bench: &Bench) {
    let layout = bench.table.locks();
    for word in bench.region.memory().device {
        assert_eq!(word.load(guira_fabric::memory::Ordering::Relaxed), 0, "{layout:?}");
    }
}

/// [R-HASH-3] [R-LOCK-1] [R-LOCK-5] [R-ROW-3] [R-GROW-1] Random geometries, each against a model.
#[test]
fn every_geometry_agrees_with_the_model() {
    let (mut segments, mut splits) = (Vec::new(), 0);
    for seed in 0..150 {
        let mut rng = SplitMix64(seed);
        let config = config(&mut rng, seed);
        let profiles = [Profile::ALL[rng.below(4) as usize], Profile::ALL[rng.below(4) as usize]];
        println!("seed {seed}: {profiles:?} {config:?}");
        segments.extend(Segments::of(&config).map(|segments| segments.count()));
        let bench = Bench::of_config(config, profiles[0], seed);
        let other = bench.region.with_caps(profiles[1].caps()).lane();
        let base = ClientConfig::for_table(&bench.table);
        let roots = if rng.below(2) == 0 { SearchRoots::Both } else { SearchRoots::Primary };
        let insert_row = if rng.below(2) == 0 { InsertRow::Primary } else { InsertRow::Emptier };
        let synchronize = if rng.below(2) == 0 { Synchronize::Path } else { Synchronize::Locks };
        let tuned = ClientConfig {
            covering_gap_rows: rng.below(4),
            cache_bytes: rng.below(4096) as usize,
            search_roots: roots,
            insert_row,
            synchronize,
            ..base
        };
        let mut clients = [bench.client(0), bench.client_with(1, other, tuned)];
        let mut model = BTreeMap::new();
        let grows = bench.table.config().grows();
        let most = bench.table.config().max_entries();
        let keys = if grows { most } else { 1 + rng.below(most) };
        for step in 0..if grows { 4 * keys } else { 600 } {
            let key = rng.below(keys).to_le_bytes();
            let value = rng.next_u64().to_le_bytes();
            let client = &mut clients[rng.below(2) as usize];
            match rng.below(4) {
                0 => assert_eq!(client.get(&key).unwrap(), model.get(&key).map(|v: &[u8; 8]| v.to_vec()), "{step}"),
                1 => {
                    let outcome = client.change(&key, Change::Remove).unwrap().outcome;
                    let had = model.remove(&key).is_some();
                    assert_eq!(outcome, if had { Outcome::Removed } else { Outcome::Missing });
                }
                _ => match client.change(&key, Change::Put(NewValue::Inline(&value))) {
                    Ok(_) => drop(model.insert(key, value)),
                    Err(error) => assert!(error.to_string().contains("full"), "{error}"),
                },
            }
        }
        for (key, value) in &model {
            assert_eq!(clients[0].get(key).unwrap().as_deref(), Some(&value[..]));
        }
        assert_eq!(bench.occupied(), (model.len() as u64, bench.rows().count()));
        splits += clients.iter().map(|client| client.client.counters().splits).sum::<u64>();
        locks_are_free(&bench);
    }
    assert!(splits > 5, "{splits} segments split");
    let several = segments.iter().filter(|count| **count > 1).count();
    assert!(segments.len() > several && several > 5, "segments of the tables that have some: {segments:?}");
}

/// [R-LOCK-5] Under few physical locks, rows far apart share one, and an operation that needs both takes it once.
#[test]
fn rows_that_share_a_lock_take_it_once() {
    let mut rng = SplitMix64(1);
    let mut config = config(&mut rng, 1);
    (config.rows_per_lock, config.physical_locks, config.lock_bits, config.segment_rows) = (1, 1, 16, None);
    config.check().expect("one lock for all");
    let bench = Bench::of_config(config, Profile::Mlx5, 1);
    assert_eq!(bench.table.locks().lock_of(RowId(0)), bench.table.locks().lock_of(RowId(63)));
    assert_eq!(bench.table.locks().mask(bench.table.locks().lock_of(RowId(5))), LockMask { word: 0, mask: 0xffff });
    let mut client = bench.client(0);
    for i in 0..50u64 {
        client.put(&i.to_le_bytes(), &i.to_le_bytes()).unwrap();
        assert_eq!(client.get(&i.to_le_bytes()).unwrap(), Some(i.to_le_bytes().to_vec()));
    }
    locks_are_free(&bench);
}
