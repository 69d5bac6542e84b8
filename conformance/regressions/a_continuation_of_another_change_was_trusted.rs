//! Cause: the continuation that a change begun in place handed over said how far the change had come, namely that its
//! rows were locked. It was not checked that the continuation belonged to this client, to this change, and to the
//! client's last one.
//!
//! Effect: a continuation that was kept while its client took the same locks once more continued with rows sampled
//! under the first locks: it undid what others had changed in between, and freed an extent twice.
//!
//! Later the search by the map of full rows relied on such rows: an insert wrote its entry over that of a key whose
//! removal had been refused, without an effect.
//!
//! Fix: a continuation says where to continue, and nothing of what was held or sampled: locks are taken, and rows
//! sampled, after it. [R-LOCK-7] [R-DROP-1]

use guira_conformance::{Bench, TestClient, delegate};
use guira_fabric::heap::HeapLane;
use guira_fabric::{FabricError, Lane, LocalLane, Profile, Region, Verb};
use guira_layout::Preset;
use guira_rcuckoo::{Begun, Change, Changed, ClientConfig, Continuation, NewValue, Outcome};

/// More keys than a table of this test holds.
const KEYS: u64 = 1_000;

/// A lane that executes in place, and refuses one batch.
struct FickleLane {
    in_place: HeapLane,
    /// Batches before the refused one.
    refuses_after: Option<u32>,
}

impl LocalLane for FickleLane {
    fn execute(&mut self, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
        match self.refuses_after.take() {
            Some(0) => Err(FabricError::Backend("refused".to_owned())),
            after => {
                self.refuses_after = after.map(|batches| batches - 1);
                self.in_place.execute(batch)
            }
        }
    }
}

impl Lane for FickleLane {
    delegate!(in_place: caps, traffic, traffic_mut, submit, poll, forget, poll_drain, poll_pause, now_ns);
}

fn bench() -> Bench {
    Bench::of_rows(Preset::Hardened, "bytes:64", 64, Profile::Shm, 3)
}

fn client(bench: &Bench, slot: u16) -> TestClient<FickleLane> {
    let lane = FickleLane { in_place: bench.region.lane(), refuses_after: None };
    bench.client_with(slot, lane, ClientConfig::for_table(&bench.table))
}

fn put(value: &[u8]) -> Change<'_> {
    Change::Put(NewValue::Inline(value))
}

/// Puts keys until a put has to be handed over, with both of its rows locked, sampled and full.
fn begin(client: &mut TestClient<FickleLane>) -> (Vec<u8>, Continuation) {
    for key in (0..KEYS).map(|i| i.to_le_bytes().to_vec()) {
        match client.begin(&key, &put(b"1")) {
            Begun::Done(changed) => assert_eq!(changed.outcome, Outcome::Inserted),
            Begun::Continue(rest) => return (key, rest),
            Begun::Failed(error) => panic!("{error}"),
        }
    }
    panic!("no put needs a path");
}

fn finish(client: &mut TestClient<FickleLane>, key: &[u8], change: Change<'_>, rest: Continuation) -> Changed {
    client.finish(key, change, rest).expect("no other client is in the way")
}

/// Returns a key that no lock of `key` guards.
fn key_elsewhere(bench: &Bench, key: &[u8]) -> [u8; 8] {
    let locks = |key: &[u8]| {
        let rows = bench.table.placement().rows(bench.table.placement().digest(key));
        [rows.first, rows.second].map(|row| bench.table.locks().lock_of(row))
    };
    let held = locks(key);
    let is_elsewhere = |key: &[u8; 8]| locks(key).iter().all(|lock| !held.contains(lock));
    (KEYS..2 * KEYS).map(u64::to_le_bytes).find(is_elsewhere).expect("a key elsewhere")
}

#[test]
fn a_continuation_finishes_its_own_change() {
    let bench = bench();
    let mut client = client(&bench, 0);
    let (key, rest) = begin(&mut client);
    assert_eq!(finish(&mut client, &key, put(b"1"), rest).outcome, Outcome::Inserted);
    assert_eq!(client.get(&key).unwrap().as_deref(), Some(&b"1"[..]));
    bench.audit().unwrap();
}

#[test]
fn a_continuation_of_another_client_starts_over() {
    let bench = bench();
    let (mut client, mut other) = (client(&bench, 0), client(&bench, 1));
    let (key, rest) = begin(&mut client);
    let elsewhere = key_elsewhere(&bench, &key);
    assert_eq!(finish(&mut other, &elsewhere, put(b"3"), rest).outcome, Outcome::Inserted);
    assert_eq!(other.get(&elsewhere).unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(client.get(&key), Ok(None));
    bench.audit().unwrap();
}

#[test]
fn a_continuation_of_another_key_starts_over() {
    let bench = bench();
    let mut client = client(&bench, 0);
    let (key, rest) = begin(&mut client);
    let elsewhere = key_elsewhere(&bench, &key);
    assert_eq!(finish(&mut client, &elsewhere, put(b"3"), rest).outcome, Outcome::Inserted);
    assert_eq!(client.get(&elsewhere).unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(client.get(&key), Ok(None));
    bench.audit().unwrap();
}

#[test]
fn samples_of_earlier_locks_are_discarded() {
    let bench = bench();
    let (mut client, mut other) = (client(&bench, 0), bench.client(1));
    let (key, rest) = begin(&mut client);
    // A lookup releases the locks, and another client puts the key.
    assert_eq!(client.get(&key), Ok(None));
    assert_eq!(other.put(&key, b"3").unwrap().outcome, Outcome::Inserted);
    // The next change takes the same locks, and its commit is refused.
    client.lane.refuses_after = Some(1);
    let begun = client.begin(&key, &put(b"4"));
    assert!(matches!(begun, Begun::Failed(_)), "{begun:?}");
    let changed = finish(&mut client, &key, Change::Insert(NewValue::Inline(b"1")), rest);
    assert_eq!((changed.outcome, changed.freed), (Outcome::Exists, None));
    assert_eq!(client.get(&key).unwrap().as_deref(), Some(&b"3"[..]));
    bench.audit().unwrap();
}

/// The same for a search that goes on with its locks: it samples the rows anew. [R-INSERT-7]
#[test]
fn rows_of_a_refused_change_are_discarded() {
    let with_neighbour = |seed| {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:64", 64, Profile::Shm, seed);
        let mut client = client(&bench, 0);
        let (key, rest) = begin(&mut client);
        let rows = |key: &[u8]| bench.table.placement().rows(bench.table.placement().digest(key));
        let mut stored: Vec<Vec<u8>> = bench.contents().unwrap().into_keys().collect();
        stored.retain(|other| (rows(other).first, rows(other).second) == (rows(&key).first, rows(&key).second));
        stored.pop().map(|neighbour| (bench, client, key, rest, neighbour))
    };
    let (bench, mut client, key, rest, neighbour) =
        (0..100).find_map(with_neighbour).expect("a stored key of the same rows");
    // A lookup releases the locks. The next change takes the same ones, and its batch after that is refused.
    assert_eq!(client.get(&key), Ok(None));
    client.lane.refuses_after = Some(1);
    let begun = client.begin(&neighbour, &Change::Remove);
    assert!(matches!(begun, Begun::Failed(_)), "{begun:?}");
    assert_eq!(finish(&mut client, &key, put(b"1"), rest).outcome, Outcome::Inserted);
    assert_eq!(client.get(&neighbour).unwrap().as_deref(), Some(&b"1"[..]));
    bench.audit().unwrap();
}
