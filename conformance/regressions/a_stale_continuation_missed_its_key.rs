//! Cause: the continuation of a change that was begun in place was carried out from the point it named, whatever the
//! client had done in between, and for whatever key and value it was given.
//!
//! Effect: a client that did something else first had released its locks, and an update of an existing key answered
//! that the key is missing. With the continuation of another key whose locks cover one row, a put inserted a key a
//! second time that stands in the other row; with a value in an extent, it pointed to an extent that was never written.
//!
//! Fix: a change that continues locks and samples its rows again, and starts over if the extent of its value, if it has
//! one, is not the one that was written. [R-LOCK-7] [R-EXTENT-1]

use guira_conformance::{Bench, TestClient};
use guira_fabric::{Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::{Begun, Change, Continuation, NewValue, Outcome, Token};

const INLINE: Change<'_> = Change::Put(NewValue::Inline(b"2"));
const KEYS: u64 = 10_000;

/// Creates a table so full that a put has to move others, and a client that has begun this put; returns its key and
/// continuation.
fn with_continuation() -> (Bench, TestClient, [u8; 8], Continuation) {
    let bench = Bench::of_rows(Preset::Hardened, "bytes:64", 64, Profile::Shm, 3);
    let mut client = bench.client(0);
    for key in (0..KEYS).map(u64::to_le_bytes) {
        match client.begin(&key, &INLINE) {
            Begun::Done(_) => {}
            Begun::Continue(rest) => return (bench, client, key, rest),
            Begun::Failed(error) => panic!("{error}"),
        }
    }
    panic!("no put needs a path");
}

fn finish(client: &mut TestClient, key: &[u8], change: Change<'_>, rest: Continuation) -> Outcome {
    client.finish(key, change, rest).expect("no other client is in the way").outcome
}

#[test]
fn a_stale_continuation_starts_over() {
    let (bench, mut client, key, rest) = with_continuation();
    // The client's next operation releases the locks, and another client inserts the key.
    assert_eq!(client.get(&key).unwrap(), None);
    assert_eq!(bench.client(1).put(&key, b"1").unwrap().outcome, Outcome::Inserted);
    assert_eq!(finish(&mut client, &key, Change::Update(NewValue::Inline(b"3")), rest), Outcome::Replaced);
    assert_eq!(client.get(&key).unwrap().as_deref(), Some(&b"3"[..]));
    bench.audit().unwrap();
}

#[test]
fn a_continuation_of_another_key_starts_over() {
    let (bench, mut client, key, rest) = with_continuation();
    let (table, locks, mut reader) = (&bench.table, bench.table.locks(), bench.client(1));
    let rows = |key: &[u8]| table.placement().rows(table.placement().digest(key));
    let held = [rows(&key).first, rows(&key).second].map(|row| locks.lock_of(row));
    // All keys before it were put.
    let before = u64::from_le_bytes(key) as usize;
    // This key stands in its second row, while the locks of `key` cover its first.
    let stands_elsewhere = |other: &[u8; 8]| {
        let (pair, found) = (rows(other), reader.get_versioned(other).unwrap());
        let is_second = matches!(found, Some((_, Token::Inline { row, .. })) if row == pair.second);
        is_second && held.contains(&locks.lock_of(pair.first)) && !held.contains(&locks.lock_of(pair.second))
    };
    let other = (0..KEYS).map(u64::to_le_bytes).find(stands_elsewhere).expect("a key in its second row");
    assert_eq!(finish(&mut client, &other, INLINE, rest), Outcome::Replaced);
    assert_eq!(bench.audit().unwrap().len(), before);
}

#[test]
fn a_continuation_of_an_inline_value_starts_over_for_an_extent() {
    let (bench, mut client, key, rest) = with_continuation();
    let prepared = client.extents.prepare(&mut bench.region.lane(), &key, &[7; 600]).expect("it needs an extent");
    assert_eq!(finish(&mut client, &key, Change::Put(prepared.value()), rest), Outcome::Inserted);
    assert_eq!(client.get(&key).unwrap(), Some(vec![7; 600]));
    bench.audit().unwrap();
}
