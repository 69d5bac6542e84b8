//! Destroyed tables: every lookup and scan that begins afterwards says so, under every preset and profile, within a
//! bounded number of round trips, and also of rows that somebody was in the middle of writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering as Std};

use guira_conformance::{Bench, Moment, Sampling, SteppedLane, TestClient, block_on};
use guira_fabric::memory::Ordering;
use guira_fabric::{Profile, Region, Traffic};
use guira_layout::{LockMask, OwnerId, Preset, RowId};
use guira_rcuckoo::{Change, ClientConfig, Error, NewValue, Reader, RowItems, destroy_table};

const SEED: u64 = 11;
const KEYS: u64 = 100;
const ROWS: u64 = 256;
const STRANGER: OwnerId = OwnerId(40);
/// A lookup samples its rows, samples them again, and looks at the superblock; in place each row is a trip of its own.
const MOST_TRIPS: u64 = 6;

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// A table with [`KEYS`] keys, every seventh of them in an extent if the format has any, and a client in slot 0.
fn filled(preset: Preset, format: &str, profile: Profile) -> (Bench, TestClient) {
    println!("destroyed: preset {preset}, format {format}, profile {profile}, seed {SEED}");
    let bench = Bench::of_rows(preset, format, ROWS, profile, SEED);
    let mut client = bench.client(0);
    for i in 0..KEYS {
        let bytes = if format == "bytes:64" && i % 7 == 0 { 500 } else { 8 };
        client.apply(&guira_conformance::Op::Put(key(i).to_vec(), vec![i as u8; bytes])).expect("there is room");
    }
    (bench, client)
}

fn reader(bench: &Bench) -> Reader {
    Reader::new(Arc::clone(&bench.table), ClientConfig::for_table(&bench.table))
}

fn is_destroyed<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Destroyed { .. }))
}

/// [R-DESTROY-2] Hits in both rows, in extents, misses, many keys at once, by readers and clients that had found them
/// before.
#[test]
fn lookups_of_a_destroyed_table_are_refused() {
    for preset in Preset::ALL {
        for format in ["fixed:8:8", "bytes:64"] {
            for profile in Profile::ALL {
                let (bench, mut client) = filled(preset, format, profile);
                let keys: Vec<_> = (0..2 * KEYS).map(key).collect();
                assert_eq!(
                    client.get_many(&keys).into_iter().filter(|found| matches!(found, Ok(Some(_)))).count(),
                    100
                );
                block_on(destroy_table(&mut bench.region.lane(), &bench.table)).unwrap();
                for key in &keys {
                    let (found, traffic) = client.traffic_of(|client| client.get(key));
                    assert!(is_destroyed(&found), "{found:?}");
                    let Traffic { round_trips, .. } = traffic;
                    assert!(round_trips <= MOST_TRIPS, "{profile}: {round_trips} round trips");
                }
                let many = client.get_many(&keys);
                assert!(many.len() == keys.len() && many.iter().all(is_destroyed), "{many:?}");
                let (mut reader, mut lane, mut value) = (reader(&bench), bench.region.lane(), Vec::new());
                assert!(is_destroyed(&block_on(reader.get(&mut lane, &keys[3], &mut value))) && value.is_empty());
            }
        }
    }
}

/// [R-DESTROY-2] Whoever reads rows in turn, samples how many there are, or wants a snapshot, is told as well.
#[test]
fn scans_of_a_destroyed_table_are_refused() {
    for preset in Preset::ALL {
        for profile in [Profile::Shm, Profile::Tcp] {
            let (bench, _client) = filled(preset, "bytes:64", profile);
            let (mut reader, mut lane) = (reader(&bench), bench.region.lane());
            assert_eq!(block_on(reader.len(&mut lane, SEED)).unwrap().entries, KEYS);
            block_on(destroy_table(&mut bench.region.lane(), &bench.table)).unwrap();
            let mut items = RowItems::default();
            assert!(is_destroyed(&block_on(reader.read_row(&mut lane, RowId(ROWS - 1), &mut items))));
            assert!(is_destroyed(&block_on(reader.len(&mut lane, SEED))));
            assert!(
                block_on(reader.snapshot(&mut lane, 3, |_, _| ()))
                    .is_err_and(|error| is_destroyed(&Err::<(), _>(error)))
            );
        }
    }
}

/// The lock of the first row of `key`, and that row.
fn lock_of(bench: &Bench, key: &[u8]) -> (LockMask, RowId) {
    let row = bench.table.placement().rows(bench.table.placement().digest(key)).first;
    (bench.table.locks().mask(bench.table.locks().lock_of(row)), row)
}

/// [R-DESTROY-2] Somebody held a lock when the table was destroyed, and writes a row afterwards: what it wrote is
/// overwritten, if it does so while destroying waits. Destroying does not wait for ever for those who do not.
#[test]
fn rows_of_changes_under_way_are_overwritten_too() {
    for preset in Preset::ALL {
        for finishes_at_pause in [1, 5, u32::MAX] {
            let (bench, mut client) = filled(preset, "fixed:8:8", Profile::Shm);
            let (lock, row) = lock_of(&bench, &key(5));
            let words: Vec<u64> = bench.row_words(row);
            let device = move |bench: &Bench, add| {
                bench.region.memory().device[lock.word as usize].fetch_add(add, Ordering::AcqRel)
            };
            assert_eq!(device(&bench, bench.table.locks().held(STRANGER, lock.mask)) & lock.mask, 0);
            let (stranger, pauses) = (bench.clone(), Arc::new(AtomicU32::new(0)));
            let paused = Arc::clone(&pauses);
            let step = move |moment| {
                if moment == Moment::Pause && paused.fetch_add(1, Std::Relaxed) + 1 == finishes_at_pause {
                    stranger.store(stranger.table.geometry().row(row), &words);
                    device(&stranger, stranger.table.locks().release_addend(STRANGER, lock.mask));
                }
            };
            let mut lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step));
            block_on(destroy_table(&mut lane, &bench.table)).unwrap();
            assert!((1..100).contains(&pauses.load(Std::Relaxed)), "{pauses:?}");
            assert!(is_destroyed(&client.get(&key(5))), "{preset}, at pause {finishes_at_pause}");
        }
    }
}

/// [R-DESTROY-2] [R-LOCK-7] A lock that was won before the table was destroyed, rows that are read after: `Destroyed`,
/// not `Corrupt`.
#[test]
fn changes_that_meet_rows_of_a_destroyed_table_say_so() {
    for preset in Preset::ALL {
        let (bench, client) = filled(preset, "fixed:8:8", Profile::Tcp);
        let other = bench.clone();
        let mut verbs = 0;
        // Between the CAS of the locks and the READs behind them.
        let step = move |moment| {
            verbs += u32::from(moment == Moment::Verb);
            if moment == Moment::Verb && verbs == 2 {
                block_on(destroy_table(&mut other.region.lane(), &other.table)).unwrap();
            }
        };
        let mut client = client.through(SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step)));
        let changed = client.change(&key(5), Change::Update(NewValue::Inline(&[1; 8])));
        assert!(is_destroyed(&changed), "{preset}: {changed:?}");
    }
}
