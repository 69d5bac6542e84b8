//! Cause: what a change begun in place handed over said itself how far the change had come: that its commit was posted,
//! or that its rows were locked. Whether it was this client's, this change's, and the last one's was not asked.
//!
//! Effect: a change whose rest was another's counted as made, with the other's outcome, and was not. A rest kept while
//! its client took the same locks once more went on with rows sampled under the first ones: it undid what others had
//! changed in between, and freed an extent twice.
//!
//! Fix: the client remembers how far the last change it handed over came, and a rest is only that change's number; any
//! other begins anew. // [R-LOCK-7] [R-DROP-1]

use std::task::{Context, Poll};

use guira_conformance::{Bench, Op, Seen, TestClient, block_on};
use guira_fabric::heap::{HeapLane, Pace};
use guira_fabric::{Caps, FabricError, Lane, Profile, Region, Submitted, Traffic, Verb};
use guira_layout::Preset;
use guira_rcuckoo::{Begun, Change, Changed, ClientConfig, Expected, NewValue, Outcome, Rest};

const KEY: &[u8] = b"one key";

/// What becomes of one batch, the rest being executed in place.
#[derive(Clone, Copy)]
enum Fate {
    Refused,
    Sent,
}

/// A lane that executes in place, but for one batch.
struct FickleLane {
    in_place: HeapLane,
    sent: HeapLane,
    /// Batches before that one, and what becomes of it.
    after: Option<(u32, Fate)>,
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
        match self.after.take() {
            Some((0, Fate::Refused)) => Submitted::Done(Err(FabricError::Backend("refused".to_owned()))),
            Some((0, Fate::Sent)) => self.sent.submit(batch),
            after => {
                self.after = after.map(|(batches, fate)| (batches - 1, fate));
                self.in_place.submit(batch)
            }
        }
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        self.sent.poll(batch, cx)
    }

    fn forget(&mut self) {
        self.sent.forget();
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        self.sent.poll_drain(found, cx)
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
    let lane =
        FickleLane { in_place: bench.region.lane(), sent: bench.region.lane().paced(Pace::Deferred(1)), after: None };
    bench.client_with(slot, lane, ClientConfig::for_table(&bench.table))
}

fn put(value: &[u8]) -> Change<'_> {
    Change::Put(NewValue::Inline(value))
}

fn begin<L: Lane>(client: &mut TestClient<L>, key: &[u8], change: Change<'_>) -> Rest {
    match client.client.begin(&mut client.lane, key, &change) {
        Begun::Rest(rest) => rest,
        begun => panic!("it is not to come to its end: {begun:?}"),
    }
}

/// Begins to put `KEY`, with the commit in flight.
fn begin_with_commit_sent(client: &mut TestClient<FickleLane>) -> Rest {
    client.lane.after = Some((1, Fate::Sent));
    begin(client, KEY, put(b"1"))
}

fn finish<L: Lane>(client: &mut TestClient<L>, key: &[u8], change: Change<'_>, rest: Rest) -> Changed {
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
fn a_commit_in_flight_is_that_of_its_change() {
    let bench = bench();
    let mut client = client(&bench, 0);
    let rest = begin_with_commit_sent(&mut client);
    assert_eq!(finish(&mut client, KEY, put(b"1"), rest).outcome, Outcome::Inserted);
    assert!(client.client.has_committed(), "its commit was posted");
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"1"[..]));
    bench.audit().unwrap();
}

#[test]
fn a_commit_of_another_client_is_no_commit() {
    let bench = bench();
    let (mut client, mut other) = (client(&bench, 0), client(&bench, 1));
    let key = key_elsewhere(&bench);
    let rest = begin_with_commit_sent(&mut client);
    assert_eq!(finish(&mut other, &key, put(b"2"), rest).outcome, Outcome::Inserted);
    assert_eq!(other.get(&key).unwrap().as_deref(), Some(&b"2"[..]));
    // The one that was begun takes effect all the same.
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"1"[..]));
    bench.audit().unwrap();
}

#[test]
fn a_commit_of_another_key_is_no_commit() {
    let bench = bench();
    let mut client = client(&bench, 0);
    let rest = begin_with_commit_sent(&mut client);
    assert_eq!(finish(&mut client, b"another key", put(b"1"), rest).outcome, Outcome::Inserted);
    assert_eq!(client.get(b"another key").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"1"[..]));
    bench.audit().unwrap();
}

#[test]
fn a_commit_of_another_change_is_no_commit() {
    for (change, outcome, left) in [
        (put(b"2"), Outcome::Replaced, Some(&b"2"[..])),
        (Change::Update(NewValue::Inline(b"1")), Outcome::Replaced, Some(&b"1"[..])),
        (Change::Remove, Outcome::Removed, None),
    ] {
        let bench = bench();
        let mut client = client(&bench, 0);
        let rest = begin_with_commit_sent(&mut client);
        assert_eq!(finish(&mut client, KEY, change, rest).outcome, outcome);
        assert_eq!(client.get(KEY).unwrap().as_deref(), left);
        bench.audit().unwrap();
    }
}

#[test]
fn samples_of_earlier_locks_are_forgotten() {
    let bench = bench();
    let (mut client, mut other) = (client(&bench, 0), bench.client(1));
    assert_eq!(other.apply(&Op::Put(KEY.to_vec(), vec![1; 500])), Ok(Seen::Outcome(Outcome::Inserted)));
    // Handed over with both rows locked and sampled, because its value is to be compared with one in an extent.
    let swap = Change::Swap(Expected::Value(&[1; 500]), NewValue::Inline(b"2"));
    let rest = begin(&mut client, KEY, swap);
    // A lookup gives the locks back, and another client puts an inline value.
    assert_eq!(client.get(b"another key").unwrap(), None);
    let changed = other.put(KEY, b"3").unwrap();
    assert!(changed.outcome == Outcome::Replaced && changed.freed.is_some());
    // The next change takes the same locks, and its commit is refused.
    client.lane.after = Some((1, Fate::Refused));
    let begun = client.client.begin(&mut client.lane, KEY, &put(b"4"));
    assert!(matches!(begun, Begun::Failed(_)), "{begun:?}");
    let changed = finish(&mut client, KEY, swap, rest);
    assert_eq!(changed, Changed { outcome: Outcome::Different, freed: None });
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"3"[..]));
    bench.audit().unwrap();
}
