//! Cause: what a change begun in place handed over said itself how far the change had come: that its rows were locked.
//! Whether it was this client's, this change's, and the last one's was not asked.
//!
//! Effect: a rest kept while its client took the same locks once more went on with rows sampled under the first ones:
//! it undid what others had changed in between, and freed an extent twice.
//!
//! Fix: the client remembers how far the last change it handed over came, and a rest is only that change's number; any
//! other begins anew. // [R-LOCK-7] [R-DROP-1]

use std::task::{Context, Poll};

use guira_conformance::{Bench, Op, Seen, TestClient, block_on};
use guira_fabric::heap::HeapLane;
use guira_fabric::{Caps, FabricError, Lane, LocalLane, Profile, Region, Submitted, Traffic, Verb};
use guira_layout::Preset;
use guira_rcuckoo::{Begun, Change, Changed, ClientConfig, Expected, NewValue, Outcome, Rest};

const KEY: &[u8] = b"one key";
/// The value of `KEY`: in an extent, so that what depends on it is handed over with both rows locked and sampled.
const LONG: [u8; 500] = [1; 500];

/// A lane that executes in place, and refuses one batch.
struct FickleLane {
    in_place: HeapLane,
    /// Batches before that one.
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
    fn caps(&self) -> &Caps {
        self.in_place.caps()
    }

    fn traffic(&self) -> &Traffic {
        self.in_place.traffic()
    }

    fn traffic_mut(&mut self) -> &mut Traffic {
        self.in_place.traffic_mut()
    }

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        self.in_place.submit(batch)
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        self.in_place.poll(batch, cx)
    }

    fn forget(&mut self) {
        self.in_place.forget();
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        self.in_place.poll_drain(found, cx)
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        self.in_place.poll_pause(until_ns, cx)
    }

    fn now_ns(&mut self) -> u64 {
        self.in_place.now_ns()
    }
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

/// Puts `LONG`, and begins a change that depends on it: it is handed over.
fn begin<'v>(bench: &Bench, client: &mut TestClient<FickleLane>) -> (Rest, Change<'v>) {
    let put = bench.client(2).apply(&Op::Put(KEY.to_vec(), LONG.to_vec()));
    assert_eq!(put, Ok(Seen::Outcome(Outcome::Inserted)));
    let swap = Change::Swap(Expected::Value(&LONG), NewValue::Inline(b"2"));
    match client.client.begin_in_place(&mut client.lane, KEY, &swap) {
        Begun::Rest(rest) => (rest, swap),
        begun => panic!("it is not to come to its end: {begun:?}"),
    }
}

fn finish(client: &mut TestClient<FickleLane>, key: &[u8], change: Change<'_>, rest: Rest) -> Changed {
    let finished = client.client.finish(&mut client.lane, key, change, Begun::Rest(rest));
    block_on(finished).expect("nobody is in the way")
}

/// A key that no lock of `KEY` guards.
fn key_elsewhere(bench: &Bench) -> [u8; 8] {
    let locks = |key: &[u8]| {
        let rows = bench.table.placement().rows(bench.table.placement().digest(key));
        [rows.first, rows.second].map(|row| bench.table.locks().lock_of(row))
    };
    let held = locks(KEY);
    let is_elsewhere = |key: &[u8; 8]| locks(key).iter().all(|lock| !held.contains(lock));
    (0..1000).map(u64::to_le_bytes).find(is_elsewhere).expect("a key elsewhere")
}

#[test]
fn a_rest_is_that_of_its_change() {
    let bench = bench();
    let mut client = client(&bench, 0);
    let (rest, swap) = begin(&bench, &mut client);
    assert_eq!(finish(&mut client, KEY, swap, rest).outcome, Outcome::Replaced);
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"2"[..]));
    bench.audit().unwrap();
}

#[test]
fn a_rest_of_another_client_begins_anew() {
    let bench = bench();
    let (mut client, mut other) = (client(&bench, 0), client(&bench, 1));
    let key = key_elsewhere(&bench);
    let (rest, _) = begin(&bench, &mut client);
    assert_eq!(finish(&mut other, &key, put(b"3"), rest).outcome, Outcome::Inserted);
    assert_eq!(other.get(&key).unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&LONG[..]));
    bench.audit().unwrap();
}

#[test]
fn a_rest_of_another_key_begins_anew() {
    let bench = bench();
    let mut client = client(&bench, 0);
    let (rest, _) = begin(&bench, &mut client);
    assert_eq!(finish(&mut client, b"another key", put(b"3"), rest).outcome, Outcome::Inserted);
    assert_eq!(client.get(b"another key").unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&LONG[..]));
    bench.audit().unwrap();
}

#[test]
fn samples_of_earlier_locks_are_forgotten() {
    let bench = bench();
    let (mut client, mut other) = (client(&bench, 0), bench.client(1));
    let (rest, swap) = begin(&bench, &mut client);
    // A lookup gives the locks back, and another client puts an inline value.
    assert_eq!(client.get(b"another key").unwrap(), None);
    let changed = other.put(KEY, b"3").unwrap();
    assert!(changed.outcome == Outcome::Replaced && changed.freed.is_some());
    // The next change takes the same locks, and its commit is refused.
    client.lane.refuses_after = Some(1);
    let begun = client.client.begin_in_place(&mut client.lane, KEY, &put(b"4"));
    assert!(matches!(begun, Begun::Failed(_)), "{begun:?}");
    let changed = finish(&mut client, KEY, swap, rest);
    assert_eq!(changed, Changed { outcome: Outcome::Different, freed: None });
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"3"[..]));
    bench.audit().unwrap();
}
