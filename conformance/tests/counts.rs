//! Exact round trips of every operation without contention, under the promises of every fabric.

use std::collections::BTreeMap;

use guira_conformance::{Bench, Extents, Op, TestClient};
use guira_fabric::{Profile, Region, Traffic};
use guira_layout::Preset;
use guira_rcuckoo::{Change, Expected, NewValue, Outcome};

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

#[expect(clippy::unwrap_used, reason = "a test's helper: a failure is the test's")]
fn filled(profile: Profile, format: &str, rows: u64, percent: u64) -> (Bench, TestClient, u64) {
    let bench = Bench::of_rows(Preset::Hardened, format, rows, profile, 7);
    let mut client = bench.client(0);
    let keys = bench.table.config().slots() * percent / 100;
    for i in 0..keys {
        assert_eq!(client.put(&key(i), &key(i)).unwrap().outcome, Outcome::Inserted);
    }
    (bench, client, keys)
}

/// [R-READ-1] [R-UPDATE-1] A hit is 1 round trip; update, remove and put on an existing key are exactly 2.
#[test]
fn remote_operations_cost_what_they_promise() {
    for profile in Profile::REMOTE {
        let (_bench, mut client, keys) = filled(profile, "fixed:8:8", 1024, 85);
        for i in (0..keys).step_by(7) {
            let (value, traffic) = client.traffic_of(|client| client.get(&key(i)).unwrap());
            assert_eq!(value.as_deref(), Some(&key(i)[..]));
            assert_eq!(traffic.round_trips, 1, "{profile}: hit");
            let (value, traffic) = client.traffic_of(|client| client.get(&key(keys + i)).unwrap());
            assert_eq!(value, None);
            let most = if profile == Profile::Tcp { 1 } else { 2 };
            assert!(traffic.round_trips <= most, "{profile}: miss in {}", traffic.round_trips);
            let put = |client: &mut TestClient| client.put(&key(i), &key(i + 1)).unwrap().outcome;
            let (outcome, traffic) = client.traffic_of(put);
            assert_eq!((outcome, traffic.round_trips), (Outcome::Replaced, 2), "{profile}: put");
            let update = |client: &mut TestClient| {
                client.change(&key(i), Change::Update(NewValue::Inline(&key(i)))).unwrap().outcome
            };
            let (outcome, traffic) = client.traffic_of(update);
            assert_eq!((outcome, traffic.round_trips), (Outcome::Replaced, 2), "{profile}: update");
            let remove = |client: &mut TestClient| client.change(&key(i), Change::Remove).unwrap().outcome;
            let (outcome, traffic) = client.traffic_of(remove);
            assert_eq!((outcome, traffic.round_trips), (Outcome::Removed, 2), "{profile}: remove");
        }
    }
}

/// [R-READ-6] [R-UPDATE-2] An extent hit is exactly 2 round trips; changing an existing extent key is 3, a new one 2.
#[test]
fn extents_cost_what_they_promise() {
    for profile in Profile::REMOTE {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:64", 256, profile, 7);
        let mut client = bench.client(0);
        let mut lane = bench.region.lane();
        let mut extents = Extents::new(&bench.table, client.client.owner());
        for i in 0..200 {
            let value = vec![i as u8; 100 + i as usize];
            for round in 0..2 {
                let prepared = extents.prepare(&mut lane, &key(i), &value).expect("too long for a row");
                let put = |client: &mut TestClient| client.change(&key(i), Change::Put(prepared.value())).unwrap();
                let (changed, traffic) = client.traffic_of(put);
                let (outcome, trips) = if round == 0 { (Outcome::Inserted, 2) } else { (Outcome::Replaced, 3) };
                assert_eq!((changed.outcome, traffic.round_trips), (outcome, trips), "{profile}: put");
            }
            let (found, traffic) = client.traffic_of(|client| client.get(&key(i)).unwrap());
            assert_eq!((found.as_deref(), traffic.round_trips), (Some(&value[..]), 2), "{profile}: hit");
        }
        for i in 0..200 {
            let remove = |client: &mut TestClient| client.change(&key(i), Change::Remove).unwrap().outcome;
            let (outcome, traffic) = client.traffic_of(remove);
            assert_eq!((outcome, traffic.round_trips), (Outcome::Removed, 3), "{profile}: remove");
        }
    }
}

/// [R-CAS-1] [R-CAS-2] A swap of an inline key is 2 round trips whether it takes place or not, and so is its removal.
#[test]
fn conditional_changes_of_inline_keys_cost_what_changes_do() {
    for profile in Profile::REMOTE {
        let (_bench, mut client, keys) = filled(profile, "fixed:8:8", 1024, 85);
        for i in (0..keys).step_by(7) {
            let (old, new) = (key(i), key(i + 1));
            let (found, traffic) = client.traffic_of(|client| client.get_versioned(&key(i)).unwrap());
            let (_, stale) = found.unwrap();
            assert_eq!(traffic.round_trips, 1, "{profile}: versioned lookup");
            let mut swap = |expected, value: &[u8]| {
                let (outcome, traffic) = client.traffic_of(|client| client.swap(&key(i), expected, value).unwrap());
                (outcome, traffic.round_trips)
            };
            assert_eq!(swap(Expected::Unchanged(stale), &new), (Outcome::Replaced, 2), "{profile}: by token");
            assert_eq!(swap(Expected::Unchanged(stale), &old), (Outcome::Different, 2), "{profile}: stale");
            assert_eq!(swap(Expected::Value(&old), &old), (Outcome::Different, 2), "{profile}: other value");
            assert_eq!(swap(Expected::Value(&new), &old), (Outcome::Replaced, 2), "{profile}: by value");
            let mut remove = |key: &[u8], expected| {
                let (outcome, traffic) = client.traffic_of(|client| client.remove_if(key, expected).unwrap());
                (outcome, traffic.round_trips)
            };
            assert_eq!(remove(&key(i), Expected::Value(&new)), (Outcome::Different, 2), "{profile}");
            assert_eq!(remove(&key(i), Expected::Value(&old)), (Outcome::Removed, 2), "{profile}");
            assert_eq!(remove(&key(i), Expected::Value(&old)), (Outcome::Missing, 2), "{profile}");
        }
    }
}

/// [R-CAS-1] [R-CAS-2] Of an extent key, by token or by a value of another length, 3: its key is read. By a value of
/// the same length 4: its value is read, too.
#[test]
fn conditional_changes_of_extent_keys_cost_what_they_promise() {
    for profile in Profile::REMOTE {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:64", 256, profile, 7);
        let mut client = bench.client(0);
        let mut lane = bench.region.lane();
        let mut extents = Extents::new(&bench.table, client.client.owner());
        for i in 0..200 {
            let (old, new) = (vec![1; 100 + i as usize], vec![2; 100 + i as usize]);
            let mut swap = |client: &mut TestClient, expected, value: &[u8]| {
                // The place of the extent is found before, through another lane.
                let prepared = extents.prepare(&mut lane, &key(i), value).expect("too long for a row");
                let change = Change::Swap(expected, prepared.value());
                let (changed, traffic) = client.traffic_of(|client| client.change(&key(i), change).unwrap());
                if !changed.took_effect() {
                    extents.give_back(prepared);
                }
                (changed.outcome, traffic.round_trips)
            };
            assert_eq!(swap(&mut client, Expected::Value(&old), &old), (Outcome::Missing, 2), "{profile}: no such key");
            client.apply(&Op::Put(key(i).to_vec(), old.clone())).unwrap();
            let (found, traffic) = client.traffic_of(|client| client.get_versioned(&key(i)).unwrap());
            let (_, stale) = found.unwrap();
            assert_eq!(traffic.round_trips, 2, "{profile}: versioned lookup");
            assert_eq!(
                swap(&mut client, Expected::Unchanged(stale), &new),
                (Outcome::Replaced, 3),
                "{profile}: by token"
            );
            assert_eq!(
                swap(&mut client, Expected::Unchanged(stale), &old),
                (Outcome::Different, 3),
                "{profile}: stale"
            );
            assert_eq!(
                swap(&mut client, Expected::Value(&[2; 99]), &old),
                (Outcome::Different, 3),
                "{profile}: other length"
            );
            assert_eq!(
                swap(&mut client, Expected::Value(&old), &old),
                (Outcome::Different, 4),
                "{profile}: other value"
            );
            assert_eq!(swap(&mut client, Expected::Value(&new), &old), (Outcome::Replaced, 4), "{profile}: by value");
            let remove = |client: &mut TestClient| client.remove_if(&key(i), Expected::Value(&old)).unwrap();
            let (outcome, traffic) = client.traffic_of(remove);
            assert_eq!((outcome, traffic.round_trips), (Outcome::Removed, 4), "{profile}: remove by value");
        }
    }
}

fn percentile(counts: &BTreeMap<u64, u64>, percent: u64) -> u64 {
    let total: u64 = counts.values().sum();
    let mut seen = 0;
    for (trips, count) in counts {
        seen += count;
        if seen * 100 >= total * percent {
            return *trips;
        }
    }
    unreachable!("percentiles are at most 100")
}

/// [R-INSERT-1] The median insert takes 2 round trips while a table fills to 90 %.
#[test]
fn the_median_insert_takes_two_round_trips() {
    for profile in Profile::REMOTE {
        for format in ["fixed:4:4", "fixed:8:8"] {
            let bench = Bench::of_rows(Preset::Hardened, format, 4096, profile, 7);
            let mut client = bench.client(0);
            let keys = bench.table.config().slots() * 90 / 100;
            let mut trips = BTreeMap::new();
            let mut sum = Traffic::default();
            let width = if format == "fixed:4:4" { 4 } else { 8 };
            for i in 0..keys {
                let (changed, traffic) = client.traffic_of(|client| client.put(&key(i)[..width], &key(i)[..width]));
                assert_eq!(changed.unwrap().outcome, Outcome::Inserted);
                *trips.entry(traffic.round_trips).or_insert(0) += 1;
                sum.round_trips += traffic.round_trips;
                sum.bytes_in += traffic.payload_bytes();
            }
            println!(
                "{profile} {format}: insert round trips mean {:.2}, p50 {}, p90 {}, p99 {}, max {}; \
                 {} payload bytes; {:?}",
                sum.round_trips as f64 / keys as f64,
                percentile(&trips, 50),
                percentile(&trips, 90),
                percentile(&trips, 99),
                trips.keys().max().unwrap(),
                sum.bytes_in / keys,
                client.client.counters(),
            );
            assert_eq!(percentile(&trips, 50), 2, "{profile} {format}");
        }
    }
}

/// [R-READ-7] On a local fabric a hit reads its second row only when it needs it: at most 2 posts, 1.2 on average.
#[test]
fn local_hits_rarely_read_their_second_row() {
    for format in ["fixed:4:4", "fixed:8:8"] {
        let width = if format == "fixed:4:4" { 4 } else { 8 };
        let bench = Bench::of_rows(Preset::Hardened, format, 4096, Profile::Shm, 7);
        let mut client = bench.client(0);
        let keys = bench.table.config().slots() * 90 / 100;
        for i in 0..keys {
            client.put(&key(i)[..width], &key(i)[..width]).unwrap();
        }
        let mut posts = 0;
        for i in 0..keys {
            let (found, traffic) = client.traffic_of(|client| client.get(&key(i)[..width]).unwrap());
            assert_eq!(found.as_deref(), Some(&key(i)[..width]));
            assert!(traffic.round_trips <= 2);
            posts += traffic.round_trips;
            let (missing, traffic) = client.traffic_of(|client| client.get(&key(keys + i)[..width]).unwrap());
            assert_eq!((missing, traffic.round_trips), (None, 2));
        }
        let mean = posts as f64 / keys as f64;
        println!("{format}: {mean:.3} posts a hit at 90 % fill");
        assert!(mean <= 1.2, "{format}: {mean}");
    }
}

/// [R-COMMIT-2] A record is written when more than one row changes, or when a dying client could tear the one row.
#[test]
fn records_are_written_when_a_death_could_leave_half_a_change() {
    for (profile, always) in [(Profile::Shm, true), (Profile::Tcp, false), (Profile::Mlx5, false)] {
        let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, profile, 7);
        let mut client = bench.client(0);
        let keys = bench.table.config().slots() * 90 / 100;
        for i in 0..keys {
            let before = client.client.counters();
            let (_, traffic) = client.traffic_of(|client| client.put(&key(i), &key(i)).unwrap());
            let after = client.client.counters();
            let moved = after.moves > before.moves;
            assert_eq!(after.records - before.records, u64::from(moved || always), "{profile}: put {i}");
            let rows = after.moves - before.moves + 1;
            assert_eq!(traffic.verbs.writes, rows + 3 * (after.records - before.records), "{profile}: put {i}");
        }
        assert!(client.client.counters().moves > 0, "some inserts moved others");
    }
}

/// [R-INSERT-2] What the cache says may be stale: that costs round trips, never a key.
#[test]
fn a_stale_cache_costs_trips_only() {
    let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, Profile::Mlx5, 7);
    let (mut stale, mut busy) = (bench.client(0), bench.client(1));
    let keys = bench.table.config().slots() * 90 / 100;
    // Sees every row while it is almost empty, and remembers that.
    for i in 0..40 {
        stale.put(&key(i), &key(i)).unwrap();
    }
    for i in 40..keys - 20 {
        busy.put(&key(i), &key(i)).unwrap();
    }
    let before = stale.client.counters();
    for i in keys - 20..keys {
        stale.put(&key(i), &key(i)).unwrap();
    }
    assert!(stale.client.counters().sampled_searches > before.sampled_searches, "the cache was stale");
    for i in 0..keys {
        assert_eq!(stale.get(&key(i)).unwrap().as_deref(), Some(&key(i)[..]));
    }
    assert_eq!(bench.occupied(), (keys, 64));
}
