//! Exact round trips of every operation without contention, under the promises of every fabric, over real connections
//! to a memory node, which has its own count of what it executes, and over RDMA, where the device counts packets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use guira_conformance::{AnyLane, Bench, BenchNode, Extents, Op, RdmaDevices, TestClient, block_on};
use guira_fabric::heap::HeapLane;
use guira_fabric::{Lane, Profile, Region, Traffic, VerbCounts};
use guira_layout::{Preset, TableConfig};
use guira_rcuckoo::{Change, Error, Expected, NewValue, Outcome, read_slot, slots};

/// The destination of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The heap, with the promises of this profile.
    Heap(Profile),
    /// A memory node.
    Node,
    /// A memory node whose device executes the batches.
    Rdma,
}

impl Way {
    fn remote() -> impl Iterator<Item = Way> {
        let rdma = RdmaDevices::find("counts").map(|_| Way::Rdma);
        Profile::REMOTE.into_iter().map(Way::Heap).chain([Way::Node]).chain(rdma)
    }

    fn profile(self) -> Profile {
        match self {
            Way::Heap(profile) => profile,
            Way::Node => Profile::Tcp,
            Way::Rdma => Profile::Rxe,
        }
    }

    /// A round trip to a node takes about a thousand times as long.
    fn rows(self, rows: u64) -> u64 {
        match self {
            Way::Heap(_) => rows,
            Way::Node | Way::Rdma => rows / 8,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Heap(profile) => write!(f, "{profile}"),
            Way::Node => f.write_str("a node"),
            Way::Rdma => f.write_str("a node over RDMA"),
        }
    }
}

/// A table, and a client whose traffic is counted.
struct Subject {
    bench: Bench,
    client: TestClient<AnyLane>,
    node: Option<BenchNode>,
    way: Way,
}

impl Subject {
    fn of_rows(preset: Preset, format: &str, rows: u64, way: Way) -> Subject {
        let bench = Bench::of_rows(preset, format, rows, way.profile(), 7);
        let devices = || RdmaDevices::find("counts").expect("it was there before");
        let node = match way {
            Way::Heap(_) => None,
            Way::Node => Some(BenchNode::over(&bench)),
            Way::Rdma => Some(BenchNode::over_rdma(&bench, &devices())),
        };
        let client = Subject::client_of(&bench, node.as_ref(), 0);
        Subject { bench, client, node, way }
    }

    fn client_of(bench: &Bench, node: Option<&BenchNode>, slot: u16) -> TestClient<AnyLane> {
        let lane = node.map_or_else(|| AnyLane::of(bench.region.lane()), BenchNode::lane);
        bench.client(slot).through(lane)
    }

    /// Returns the traffic of `action` by its lane's count, which must equal that of the node.
    fn traffic_of<T>(&mut self, action: impl FnOnce(&mut TestClient<AnyLane>) -> T) -> (T, Traffic) {
        let before = self.executed();
        let (result, traffic) = self.client.traffic_of(action);
        if let (Some((frames, verbs)), Some((frames_now, verbs_now))) = (before, self.executed()) {
            let verbs = VerbCounts {
                reads: verbs_now.reads - verbs.reads,
                writes: verbs_now.writes - verbs.writes,
                swaps: verbs_now.swaps - verbs.swaps,
                adds: verbs_now.adds - verbs.adds,
            };
            assert_eq!((frames_now - frames, verbs), (traffic.round_trips, traffic.verbs), "what the node executed");
        }
        (result, traffic)
    }

    /// Returns the requests and verbs that the node has executed, if there is one that counts them.
    fn executed(&self) -> Option<(u64, VerbCounts)> {
        if self.way == Way::Rdma {
            return None;
        }
        let counters = self.node.as_ref()?.counters();
        let (reads, writes) = (counters.reads, counters.writes);
        Some((counters.batches, VerbCounts { reads, writes, swaps: counters.swaps, adds: counters.adds }))
    }
}

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

#[expect(clippy::unwrap_used, reason = "a test's helper: a failure is the test's")]
fn filled(way: Way, format: &str, rows: u64, percent: u64) -> (Subject, u64) {
    let mut subject = Subject::of_rows(Preset::Hardened, format, way.rows(rows), way);
    let keys = subject.bench.table.config().max_entries() * percent / 100;
    for i in 0..keys {
        assert_eq!(subject.client.put(&key(i), &key(i)).unwrap().outcome, Outcome::Inserted);
    }
    (subject, keys)
}

/// Creates a table, its client, and another lane through which the client's extents are allocated.
fn with_extents(way: Way) -> (Subject, HeapLane, Extents) {
    let subject = Subject::of_rows(Preset::Hardened, "bytes:64", 256, way);
    let owner = subject.client.client.owner();
    let (lane, extents) = (subject.bench.region.lane(), Extents::new(&subject.bench.table, owner));
    (subject, lane, extents)
}

/// Returns the answer of `operation` and the round trips it took.
fn with_trips<T>(
    subject: &mut Subject,
    operation: impl FnOnce(&mut TestClient<AnyLane>) -> Result<T, Error>,
) -> (T, u64) {
    let (answer, traffic) = subject.traffic_of(operation);
    (answer.expect("no contention and no damage"), traffic.round_trips)
}

fn get(subject: &mut Subject, key: &[u8]) -> (Option<Vec<u8>>, u64) {
    with_trips(subject, |client| client.get(key))
}

fn change(subject: &mut Subject, key: &[u8], change: Change<'_>) -> (Outcome, u64) {
    let (changed, trips) = with_trips(subject, |client| client.change(key, change));
    (changed.outcome, trips)
}

/// [R-READ-1] [R-UPDATE-1] [R-ADD-1] A hit takes 1 round trip; an update, addition, remove or put on an existing key
/// takes exactly 2.
#[test]
fn remote_operations_cost_what_they_promise() {
    for way in Way::remote() {
        let (mut subject, keys) = filled(way, "fixed:8:8", 1024, 85);
        for i in (0..keys).step_by(7) {
            assert_eq!(get(&mut subject, &key(i)), (Some(key(i).to_vec()), 1), "{way}: hit");
            let (missing, trips) = get(&mut subject, &key(keys + i));
            assert_eq!(missing, None);
            let most = if way.profile() == Profile::Tcp { 1 } else { 2 };
            assert!(trips <= most, "{way}: miss in {trips}");
            let put = Change::Put(NewValue::Inline(&key(i + 1)));
            assert_eq!(change(&mut subject, &key(i), put), (Outcome::Replaced, 2), "{way}: put");
            let update = Change::Update(NewValue::Inline(&key(i)));
            assert_eq!(change(&mut subject, &key(i), update), (Outcome::Replaced, 2), "{way}: update");
            let sum = (Outcome::Replaced, 2);
            assert_eq!(change(&mut subject, &key(i), Change::Add(&[1; 8])), sum, "{way}: addition");
            assert_eq!(change(&mut subject, &key(i), Change::Remove), (Outcome::Removed, 2), "{way}: remove");
        }
    }
}

/// Over RDMA the device sends as many packets as the lane counts messages: nothing is asked for that is not counted.
#[test]
fn packets_of_operations_are_their_messages() {
    let Some(devices) = RdmaDevices::find("counts") else { return };
    let Some(before) = devices.sent_packets() else { return println!("skipped: no count of the client's packets") };
    let (mut subject, keys) = filled(Way::Rdma, "fixed:8:8", 1024, 50);
    let filled = devices.sent_packets().expect("it was there before");
    assert!(filled - before >= 5 * keys, "{} packets for {keys} inserts", filled - before);
    let mut packets = |operation: &mut dyn FnMut(&mut TestClient<AnyLane>) -> bool| {
        let before = devices.sent_packets().expect("it was there before");
        let (is_done, traffic) = subject.traffic_of(operation);
        assert!(is_done, "no contention and no damage");
        let sent = devices.sent_packets().expect("it was there before") - before;
        assert_eq!(sent, traffic.messages(), "packets, messages");
        sent
    };
    assert_eq!(packets(&mut |client| client.get(&key(1)).is_ok()), 2, "lookup");
    let sent = packets(&mut |client| client.put(&key(1), &key(2)).is_ok());
    assert!(sent >= 5, "a put in {sent} messages");
    assert!(packets(&mut |client| client.change(&key(1), Change::Remove).is_ok()) >= 5);
}

/// [R-READ-6] [R-UPDATE-2] An extent hit takes exactly 2 round trips; changing an existing extent key takes 3, a new
/// one 2.
#[test]
fn extents_cost_what_they_promise() {
    for way in Way::remote() {
        let (mut subject, mut lane, mut extents) = with_extents(way);
        for i in 0..200 {
            let value = vec![i as u8; 100 + i as usize];
            for expected in [(Outcome::Inserted, 2), (Outcome::Replaced, 3)] {
                let prepared = extents.prepare(&mut lane, &key(i), &value).expect("too long for a row");
                let put = Change::Put(prepared.value());
                assert_eq!(change(&mut subject, &key(i), put), expected, "{way}: put");
            }
            assert_eq!(get(&mut subject, &key(i)), (Some(value), 2), "{way}: hit");
        }
        for i in 0..200 {
            assert_eq!(change(&mut subject, &key(i), Change::Remove), (Outcome::Removed, 3), "{way}: remove");
        }
    }
}

/// [R-CAS-1] [R-CAS-2] A swap or conditional removal of an inline key takes 2 round trips whether it takes effect or
/// not.
#[test]
fn conditional_changes_of_inline_keys_cost_what_changes_do() {
    for way in Way::remote() {
        let (mut subject, keys) = filled(way, "fixed:8:8", 1024, 85);
        for i in (0..keys).step_by(7) {
            let (old, new) = (key(i), key(i + 1));
            let (found, trips) = with_trips(&mut subject, |client| client.get_versioned(&key(i)));
            let (_, stale) = found.unwrap();
            assert_eq!(trips, 1, "{way}: versioned lookup");
            let mut swap =
                |expected, value: &[u8]| change(&mut subject, &key(i), Change::Swap(expected, NewValue::Inline(value)));
            assert_eq!(swap(Expected::Unchanged(stale), &new), (Outcome::Replaced, 2), "{way}: by token");
            assert_eq!(swap(Expected::Unchanged(stale), &old), (Outcome::Different, 2), "{way}: stale");
            assert_eq!(swap(Expected::Value(&old), &old), (Outcome::Different, 2), "{way}: other value");
            assert_eq!(swap(Expected::Value(&new), &old), (Outcome::Replaced, 2), "{way}: by value");
            let mut remove = |expected| change(&mut subject, &key(i), Change::RemoveIf(Expected::Value(expected)));
            assert_eq!(remove(&new), (Outcome::Different, 2), "{way}: removal by other value");
            assert_eq!(remove(&old), (Outcome::Removed, 2), "{way}: removal by value");
            assert_eq!(remove(&old), (Outcome::Missing, 2), "{way}: removal of a missing key");
        }
    }
}

/// [R-CAS-1] [R-CAS-2] A conditional change of an extent key takes 3 round trips by token or by a value of another
/// length, because its key is read, and 4 by a value of the same length, because its value is read, too.
#[test]
fn conditional_changes_of_extent_keys_cost_what_they_promise() {
    for way in Way::remote() {
        let (mut subject, mut lane, mut extents) = with_extents(way);
        for i in 0..200 {
            let (old, new) = (vec![1; 100 + i as usize], vec![2; 100 + i as usize]);
            let mut swap = |subject: &mut Subject, expected, value: &[u8]| {
                let prepared = extents.prepare(&mut lane, &key(i), value).expect("too long for a row");
                let (outcome, trips) = change(subject, &key(i), Change::Swap(expected, prepared.value()));
                if outcome != Outcome::Replaced {
                    extents.give_back(prepared);
                }
                (outcome, trips)
            };
            assert_eq!(swap(&mut subject, Expected::Value(&old), &old), (Outcome::Missing, 2), "{way}: no such key");
            subject.client.apply(&Op::Put(key(i).to_vec(), old.clone())).unwrap();
            let (found, trips) = with_trips(&mut subject, |client| client.get_versioned(&key(i)));
            let (_, stale) = found.unwrap();
            assert_eq!(trips, 2, "{way}: versioned lookup");
            let mut swap = |expected, value: &[u8]| swap(&mut subject, expected, value);
            assert_eq!(swap(Expected::Unchanged(stale), &new), (Outcome::Replaced, 3), "{way}: by token");
            assert_eq!(swap(Expected::Unchanged(stale), &old), (Outcome::Different, 3), "{way}: stale");
            assert_eq!(swap(Expected::Value(&[2; 99]), &old), (Outcome::Different, 3), "{way}: other length");
            assert_eq!(swap(Expected::Value(&old), &old), (Outcome::Different, 4), "{way}: other value");
            assert_eq!(swap(Expected::Value(&new), &old), (Outcome::Replaced, 4), "{way}: by value");
            let remove = Change::RemoveIf(Expected::Value(&old));
            assert_eq!(change(&mut subject, &key(i), remove), (Outcome::Removed, 4), "{way}: remove by value");
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
    for way in Way::remote() {
        for format in ["fixed:4:4", "fixed:8:8"] {
            let mut subject = Subject::of_rows(Preset::Hardened, format, way.rows(4096), way);
            let keys = subject.bench.table.config().max_entries() * 90 / 100;
            let mut trips = BTreeMap::new();
            let mut sum = Traffic::default();
            let width = if format == "fixed:4:4" { 4 } else { 8 };
            for i in 0..keys {
                let (changed, traffic) = subject.traffic_of(|client| client.put(&key(i)[..width], &key(i)[..width]));
                assert_eq!(changed.unwrap().outcome, Outcome::Inserted);
                *trips.entry(traffic.round_trips).or_insert(0) += 1;
                sum.round_trips += traffic.round_trips;
                sum.bytes_in += traffic.payload_bytes();
            }
            println!(
                "{way} {format}: insert round trips mean {:.2}, p50 {}, p90 {}, p99 {}, max {}; \
                 {} payload bytes; {:?}",
                sum.round_trips as f64 / keys as f64,
                percentile(&trips, 50),
                percentile(&trips, 90),
                percentile(&trips, 99),
                trips.keys().max().unwrap(),
                sum.bytes_in / keys,
                subject.client.client.counters(),
            );
            assert_eq!(percentile(&trips, 50), 2, "{way} {format}");
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
        let keys = bench.table.config().max_entries() * 90 / 100;
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
    let shm = (Way::Heap(Profile::Shm), true);
    for (way, always) in [shm, (Way::Heap(Profile::Tcp), false), (Way::Heap(Profile::Mlx5), false), (Way::Node, false)]
    {
        let mut subject = Subject::of_rows(Preset::Hardened, "fixed:8:8", 64, way);
        let keys = subject.bench.table.config().max_entries() * 90 / 100;
        for i in 0..keys {
            let before = subject.client.client.counters();
            let (_, traffic) = subject.traffic_of(|client| client.put(&key(i), &key(i)).unwrap());
            let after = subject.client.client.counters();
            let moved = after.moves > before.moves;
            assert_eq!(after.records - before.records, u64::from(moved || always), "{way}: put {i}");
            let rows = after.moves - before.moves + 1;
            // A commit has the record and its retirement; the record's part for further rows is a WRITE of its own.
            let record = if moved { 3 } else { 2 * (after.records - before.records) };
            assert_eq!(traffic.verbs.writes, rows + record, "{way}: put {i}");
        }
        assert!(subject.client.client.counters().moves > 0, "some inserts moved others");
    }
}

/// [R-INSERT-2] A stale cache costs round trips, never a key.
#[test]
fn a_stale_cache_costs_only_round_trips() {
    let rdma = RdmaDevices::find("counts").map(|_| Way::Rdma);
    for way in [Way::Heap(Profile::Mlx5), Way::Node].into_iter().chain(rdma) {
        let subject = Subject::of_rows(Preset::Hardened, "fixed:8:8", 64, way);
        let Subject { bench, client: mut stale, node, .. } = subject;
        let mut busy = Subject::client_of(&bench, node.as_ref(), 1);
        let keys = bench.table.config().max_entries() * 90 / 100;
        // The client sees every row while it is almost empty, and caches that.
        for i in 0..40 {
            stale.put(&key(i), &key(i)).unwrap();
        }
        for i in 40..keys - 20 {
            busy.put(&key(i), &key(i)).unwrap();
        }
        let mut longest = 0;
        for i in keys - 20..keys {
            let (_, traffic) = stale.traffic_of(|stale| stale.put(&key(i), &key(i)).unwrap());
            longest = longest.max(traffic.round_trips);
        }
        assert!(longest > 2, "{way}: the cache was stale, and no insert looked for room under its locks");
        for i in 0..keys {
            assert_eq!(stale.get(&key(i)).unwrap().as_deref(), Some(&key(i)[..]));
        }
        assert_eq!(bench.occupied(), (keys, 64));
    }
}

/// All slots are read in groups as large as the fabric takes READs, 256 at most; and each result equals that of reading
/// the slot alone.
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
