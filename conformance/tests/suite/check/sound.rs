//! Checks of sound tables.

use guira_check::{CheckOptions, Concurrency, Progress, Stage, TableStats, check_table, table_stats};
use guira_conformance::{Extents, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::{Preset, TableConfig};
use guira_rcuckoo::Change;

use crate::check::table::{FORMATS, assert_clean, check, filled, key, write_extent};

#[test]
fn sound_tables_are_clean() {
    for preset in Preset::ALL {
        for format in FORMATS {
            for profile in [Profile::Shm, Profile::Rxe] {
                let what = format!("{preset} {format} {profile}");
                println!("{what}");
                let (bench, mut client) = filled(preset, format, profile);
                for i in 0..30 {
                    client.change(&key(&bench, i), Change::Remove).unwrap();
                }
                for concurrency in [Concurrency::Exclusive, Concurrency::Shared] {
                    let report = check(&bench, concurrency);
                    assert_clean(&report, &what);
                    let (counts, config) = (&report.counts, bench.table.config());
                    let extents = if config.format.has_extents() { 8 } else { 0 };
                    assert_eq!((counts.inline_entries, counts.extent_entries), (70, extents), "{what}");
                    assert_eq!(counts.primary_entries + counts.secondary_entries, counts.entries);
                    assert_eq!((counts.rows, counts.unverified_rows), (128, 0));
                    assert_eq!(counts.rows_by_occupancy.iter().sum::<u64>(), 128);
                    let weighed = counts.rows_by_occupancy.iter().zip(0..).map(|(rows, entries)| rows * entries);
                    assert_eq!(weighed.sum::<u64>(), counts.entries);
                    assert!((counts.fill - (70 + extents) as f64 / config.max_entries() as f64).abs() < 1e-9);
                    let chunks = counts.chunks;
                    assert_eq!(chunks.free + chunks.owned + chunks.tail, config.chunks);
                    assert_eq!((report.used_slots, report.held_locks, report.unreferenced_extents), (1, 0, 0));
                    assert_space(counts, config);
                    let stats = block_on(table_stats(&mut bench.region.lane(), &bench.table)).unwrap();
                    assert_eq!(&stats, counts, "{what}");
                }
            }
        }
    }
}

/// Asserts the sums that hold in every sound table.
fn assert_space(counts: &TableStats, config: &TableConfig) {
    let (space, chunks) = (&counts.space, &counts.chunks);
    assert_eq!(space.total_bytes, config.chunks * config.chunk_bytes);
    assert_eq!(space.used_bytes, chunks.in_use() * config.chunk_bytes);
    assert_eq!(chunks.free + chunks.in_use(), config.chunks);
    assert!(space.longest_free_run <= chunks.free && (space.longest_free_run > 0) == (chunks.free > 0));
    assert!(space.live_bytes <= space.place_bytes && space.place_bytes <= space.used_bytes);
    assert_eq!(space.classes.iter().map(|class| class.used).sum::<u64>(), counts.extent_entries);
    assert_eq!(space.classes.iter().map(|class| class.chunks).sum::<u64>(), chunks.in_use());
    assert_eq!(space.classes.iter().map(|class| class.used * class.place_bytes).sum::<u64>(), space.place_bytes);
    assert!(space.classes.iter().all(|class| class.used + class.free == class.slots));
    assert_eq!(space.owners.iter().map(|owner| owner.chunks).sum::<u64>(), chunks.owned + chunks.tail);
}

#[test]
fn progress_goes_through_every_stage() {
    let (bench, _client) = filled(Preset::Tiny, "bytes:64", Profile::Tcp);
    let mut seen: Vec<Progress> = Vec::new();
    let options = CheckOptions::default();
    block_on(check_table(&mut bench.region.lane(), &bench.table, &options, &mut |progress| seen.push(progress)))
        .unwrap();
    for stage in [Stage::Superblock, Stage::Slots, Stage::Locks, Stage::Rows, Stage::Chunks] {
        assert!(seen.iter().any(|progress| progress.stage == stage), "{stage}");
    }
    assert!(seen.iter().all(|progress| progress.done <= progress.total));
}

#[test]
fn unreferenced_extents_are_counted_not_reported() {
    let (bench, client) = filled(Preset::Hardened, "bytes:64", Profile::Shm);
    let mut extents = Extents::new(&bench.table, client.client.owner());
    for bytes in [100, 100, 200_000] {
        write_extent(&bench, &mut extents, b"lost", &vec![1; bytes]);
    }
    let report = check(&bench, Concurrency::Exclusive);
    assert_clean(&report, "leaked extents");
    assert_eq!(report.unreferenced_extents, 3);
}
