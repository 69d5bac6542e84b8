//! Exact round trips of every operation without contention, under the promises of every fabric.

use std::collections::{BTreeMap, BTreeSet};

use guira_conformance::{Bench, Extents, Op, TestClient, block_on};
use guira_fabric::heap::HeapLane;
use guira_fabric::{Lane, Profile, Region, Traffic};
use guira_layout::{Preset, TableConfig};
use guira_rcuckoo::{Change, Error, Expected, NewValue, Outcome, read_slot, slots};

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

/// A table and its client, and another lane through which places for the client's extents are found.
fn with_extents(profile: Profile) -> (Bench, TestClient, HeapLane, Extents) {
    let bench = Bench::of_rows(Preset::Hardened, "bytes:64", 256, profile, 7);
    let client = bench.client(0);
    let (lane, extents) = (bench.region.lane(), Extents::new(&bench.table, client.client.owner()));
    (bench, client, lane, extents)
}

/// The answer of `operation`, and the round trips it took.
fn with_trips<T>(client: &mut TestClient, operation: impl FnOnce(&mut TestClient) -> Result<T, Error>) -> (T, u64) {
    let (answer, traffic) = client.traffic_of(operation);
    (answer.expect("nobody contends, and nothing is damaged"), traffic.round_trips)
}

fn get(client: &mut TestClient, key: &[u8]) -> (Option<Vec<u8>>, u64) {
    with_trips(client, |client| client.get(key))
}

fn change(client: &mut TestClient, key: &[u8], change: Change<'_>) -> (Outcome, u64) {
    let (changed, trips) = with_trips(client, |client| client.change(key, change));
    (changed.outcome, trips)
}

/// [R-READ-1] [R-UPDATE-1] A hit is 1 round trip; update, remove and put on an existing key are exactly 2.
#[test]
fn remote_operations_cost_what_they_promise() {
    for profile in Profile::REMOTE {
        let (_bench, mut client, keys) = filled(profile, "fixed:8:8", 1024, 85);
        for i in (0..keys).step_by(7) {
            assert_eq!(get(&mut client, &key(i)), (Some(key(i).to_vec()), 1), "{profile}: hit");
            let (missing, trips) = get(&mut client, &key(keys + i));
            assert_eq!(missing, None);
            let most = if profile == Profile::Tcp { 1 } else { 2 };
            assert!(trips <= most, "{profile}: miss in {trips}");
            let put = Change::Put(NewValue::Inline(&key(i + 1)));
            assert_eq!(change(&mut client, &key(i), put), (Outcome::Replaced, 2), "{profile}: put");
            let update = Change::Update(NewValue::Inline(&key(i)));
            assert_eq!(change(&mut client, &key(i), update), (Outcome::Replaced, 2), "{profile}: update");
            assert_eq!(change(&mut client, &key(i), Change::Remove), (Outcome::Removed, 2), "{profile}: remove");
        }
    }
}

/// [R-READ-6] [R-UPDATE-2] An extent hit is exactly 2 round trips; changing an existing extent key is 3, a new one 2.
#[test]
fn extents_cost_what_they_promise() {
    for profile in Profile::REMOTE {
        let (_bench, mut client, mut lane, mut extents) = with_extents(profile);
        for i in 0..200 {
            let value = vec![i as u8; 100 + i as usize];
            for expected in [(Outcome::Inserted, 2), (Outcome::Replaced, 3)] {
                let prepared = extents.prepare(&mut lane, &key(i), &value).expect("too long for a row");
                let put = Change::Put(prepared.value());
                assert_eq!(change(&mut client, &key(i), put), expected, "{profile}: put");
            }
            assert_eq!(get(&mut client, &key(i)), (Some(value), 2), "{profile}: hit");
        }
        for i in 0..200 {
            assert_eq!(change(&mut client, &key(i), Change::Remove), (Outcome::Removed, 3), "{profile}: remove");
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
            let (found, trips) = with_trips(&mut client, |client| client.get_versioned(&key(i)));
            let (_, stale) = found.unwrap();
            assert_eq!(trips, 1, "{profile}: versioned lookup");
            let mut swap =
                |expected, value: &[u8]| change(&mut client, &key(i), Change::Swap(expected, NewValue::Inline(value)));
            assert_eq!(swap(Expected::Unchanged(stale), &new), (Outcome::Replaced, 2), "{profile}: by token");
            assert_eq!(swap(Expected::Unchanged(stale), &old), (Outcome::Different, 2), "{profile}: stale");
            assert_eq!(swap(Expected::Value(&old), &old), (Outcome::Different, 2), "{profile}: other value");
            assert_eq!(swap(Expected::Value(&new), &old), (Outcome::Replaced, 2), "{profile}: by value");
            let mut remove = |expected| change(&mut client, &key(i), Change::RemoveIf(Expected::Value(expected)));
            assert_eq!(remove(&new), (Outcome::Different, 2), "{profile}: removal by other value");
            assert_eq!(remove(&old), (Outcome::Removed, 2), "{profile}: removal by value");
            assert_eq!(remove(&old), (Outcome::Missing, 2), "{profile}: removal of a missing key");
        }
    }
}

/// [R-CAS-1] [R-CAS-2] Of an extent key, by token or by a value of another length, 3: its key is read. By a value of
/// the same length 4: its value is read, too.
#[test]
fn conditional_changes_of_extent_keys_cost_what_they_promise() {
    for profile in Profile::REMOTE {
        let (_bench, mut client, mut lane, mut extents) = with_extents(profile);
        for i in 0..200 {
            let (old, new) = (vec![1; 100 + i as usize], vec![2; 100 + i as usize]);
            let mut swap = |client: &mut TestClient, expected, value: &[u8]| {
                let prepared = extents.prepare(&mut lane, &key(i), value).expect("too long for a row");
                let (outcome, trips) = change(client, &key(i), Change::Swap(expected, prepared.value()));
                if outcome != Outcome::Replaced {
                    extents.give_back(prepared);
                }
                (outcome, trips)
            };
            assert_eq!(swap(&mut client, Expected::Value(&old), &old), (Outcome::Missing, 2), "{profile}: no such key");
            client.apply(&Op::Put(key(i).to_vec(), old.clone())).unwrap();
            let (found, trips) = with_trips(&mut client, |client| client.get_versioned(&key(i)));
            let (_, stale) = found.unwrap();
            assert_eq!(trips, 2, "{profile}: versioned lookup");
            let mut swap = |expected, value: &[u8]| swap(&mut client, expected, value);
            assert_eq!(swap(Expected::Unchanged(stale), &new), (Outcome::Replaced, 3), "{profile}: by token");
            assert_eq!(swap(Expected::Unchanged(stale), &old), (Outcome::Different, 3), "{profile}: stale");
            assert_eq!(swap(Expected::Value(&[2; 99]), &old), (Outcome::Different, 3), "{profile}: other length");
            assert_eq!(swap(Expected::Value(&old), &old), (Outcome::Different, 4), "{profile}: other value");
            assert_eq!(swap(Expected::Value(&new), &old), (Outcome::Replaced, 4), "{profile}: by value");
            let remove = Change::RemoveIf(Expected::Value(&old));
            assert_eq!(change(&mut client, &key(i), remove), (Outcome::Removed, 4), "{profile}: remove by value");
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
            // The record and its retirement; what it says of further rows is a WRITE of its own.
            let record = if moved { 3 } else { 2 * (after.records - before.records) };
            assert_eq!(traffic.verbs.writes, rows + record, "{profile}: put {i}");
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

/// Who has a table open is asked of as many slots at once as the fabric takes READs, 256 at most; and of each is told
/// what it says when it is read alone.
#[test]
fn all_slots_are_read_in_a_few_round_trips() {
    for (profile, most) in [(Profile::Shm, 256), (Profile::Tcp, 256), (Profile::Mlx5, 256), (Profile::Rxe, 128)] {
        for max_clients in [1, 127, 128, 129, 256, 257, 1_024] {
            let config = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, profile, 7).table.config().clone();
            let bench = Bench::of_config(TableConfig { max_clients, ..config }, profile, 7);
            let taken = BTreeSet::from([0, 127, 128, 255, 256, 1_023].map(|slot: u16| slot.min(max_clients - 1)));
            let _clients: Vec<TestClient> = taken.iter().map(|slot| bench.client(*slot)).collect();
            let mut lane = bench.region.lane();
            let used = block_on(slots(&mut lane, &bench.table)).expect("the heap reads");
            let Traffic { round_trips, verbs, .. } = *lane.traffic();
            assert_eq!(round_trips, u64::from(max_clients).div_ceil(most), "{profile}: {max_clients} slots");
            assert_eq!(verbs.reads, u64::from(max_clients), "{profile}: {max_clients} slots");
            assert!(used.iter().map(|info| info.slot).eq(taken), "{profile}: {used:?}");
            for info in used {
                assert_eq!(block_on(read_slot(&mut lane, &bench.table, info.slot)), Ok(info), "{profile}");
            }
        }
    }
}
