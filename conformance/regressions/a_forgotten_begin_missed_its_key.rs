//! Cause: the rest of a change that was begun in place was carried out from where it said it stood, whatever the client
//! had done in between, and for whatever key and value it was given.
//!
//! Effect: a client that did something else first had given its locks back: an update of a key that exists answered
//! that there is none. With the rest of another key whose locks cover one row, a put inserted a key that stands in the
//! other row a second time; with a value in an extent, it pointed to an extent that was never written.
//!
//! Fix: a change goes on from its stage only if both of the key's rows are locked and at hand, and the extent of its
//! value, if it has one, is the one that was written; otherwise it begins anew. // [R-LOCK-7] [R-EXTENT-1]

use guira_conformance::{Bench, Op, Seen, TestClient, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::{Begun, Change, Expected, NewValue, Outcome, Rest};

const INLINE: Change<'_> = Change::Put(NewValue::Inline(b"2"));
const KEY: &[u8] = b"a key with an extent";
const KEYS: u64 = 10_000;

/// A table so full that some put has to move others, and a client that has begun it: key and rest.
fn with_rest() -> (Bench, TestClient, [u8; 8], Rest) {
    let bench = Bench::of_rows(Preset::Hardened, "bytes:64", 64, Profile::Shm, 3);
    let mut client = bench.client(0);
    for key in (0..KEYS).map(u64::to_le_bytes) {
        match client.client.begin_in_place(&mut client.lane, &key, &INLINE) {
            Begun::Done(_) => {}
            Begun::Rest(rest) => return (bench, client, key, rest),
            Begun::Failed(error) => panic!("{error}"),
        }
    }
    panic!("no put needs a path");
}

fn finish(client: &mut TestClient, key: &[u8], change: Change<'_>, rest: Rest) -> Outcome {
    let changed = block_on(client.client.finish(&mut client.lane, key, change, Begun::Rest(rest)));
    changed.expect("nobody is in the way").outcome
}

#[test]
fn a_rest_that_was_forgotten_begins_anew() {
    let (bench, mut client, key, rest) = with_rest();
    // What the client does in between gives the locks back, and another client inserts the key.
    assert_eq!(client.get(&key).unwrap(), None);
    assert_eq!(bench.client(1).put(&key, b"1").unwrap().outcome, Outcome::Inserted);
    assert_eq!(finish(&mut client, &key, Change::Update(NewValue::Inline(b"3")), rest), Outcome::Replaced);
    assert_eq!(client.get(&key).unwrap().as_deref(), Some(&b"3"[..]));
    bench.audit().unwrap();
}

/// A table where `KEY` has an extent: a change that expects its value has to be handed over, with its locks held.
fn with_extent() -> (Bench, TestClient) {
    let bench = Bench::of_rows(Preset::Hardened, "bytes:64", 64, Profile::Shm, 3);
    let mut client = bench.client(0);
    assert_eq!(client.apply(&Op::Put(KEY.to_vec(), vec![1; 500])), Ok(Seen::Outcome(Outcome::Inserted)));
    (bench, client)
}

fn hand_over(client: &mut TestClient) -> Rest {
    let change = Change::Swap(Expected::Value(&[1; 500]), NewValue::Inline(b"2"));
    match client.client.begin_in_place(&mut client.lane, KEY, &change) {
        Begun::Rest(rest) => rest,
        begun => panic!("the value of an extent is not compared in place: {begun:?}"),
    }
}

#[test]
fn a_rest_of_another_key_begins_anew() {
    let (bench, mut client) = with_extent();
    let (table, locks) = (&bench.table, bench.table.locks());
    let rows = |key: &[u8]| table.placement().rows(table.placement().digest(key));
    let held = [rows(KEY).first, rows(KEY).second].map(|row| locks.lock_of(row));
    let shares_first =
        |key: &[u8; 8]| rows(key).first == rows(KEY).first && !held.contains(&locks.lock_of(rows(key).second));
    let other = (0..KEYS).map(u64::to_le_bytes).find(shares_first).expect("a key whose second row is elsewhere");
    bench.fill_row(rows(&other).second, &[(&other, b"1")]);
    let rest = hand_over(&mut client);
    assert_eq!(finish(&mut client, &other, INLINE, rest), Outcome::Replaced);
    assert_eq!(bench.audit().unwrap().len(), 2);
}

#[test]
fn a_rest_of_an_inline_value_begins_anew_for_an_extent() {
    let (bench, mut client) = with_extent();
    let rest = hand_over(&mut client);
    let prepared = client.extents.prepare(&mut bench.region.lane(), KEY, &[7; 600]).expect("it needs an extent");
    assert_eq!(finish(&mut client, KEY, Change::Put(prepared.value()), rest), Outcome::Replaced);
    assert_eq!(client.get(KEY).unwrap(), Some(vec![7; 600]));
    bench.audit().unwrap();
}
