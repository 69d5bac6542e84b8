//! Tables in segments: what a client pays that has slept through splits, and that it is never wrong.
//!
//! A client that has forgotten all splits stands for one that opened the table before them: it looks for each key in the
//! segment that had it then, and learns from the rows where it has gone.

use std::collections::BTreeSet;

use guira_conformance::{Bench, Model, Observed, Op, TestClient, divided};
use guira_fabric::Profile;
use guira_layout::{Preset, Segments};
use guira_rcuckoo::{Change, NewValue, Outcome};

/// Segments of the tables: the first three of four are split.
const SEGMENTS: u64 = 7;
const FIRST: u64 = 4;
/// Keys of each table, which fill it to a third.
const KEYS: u64 = 800;

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// Creates a table with every key, and a client that knows all segments.
fn filled(profile: Profile, format: &str) -> (Bench, TestClient) {
    let whole = Bench::of_rows(Preset::Hardened, format, 64, profile, 7);
    let bench = Bench::of_config(divided(whole.table.config().clone(), SEGMENTS), profile, 7);
    let mut client = bench.client(0);
    for i in 0..KEYS {
        assert_eq!(client.put(&key(i), &key(i)).expect("room").outcome, Outcome::Inserted);
    }
    assert_eq!(client.client.counters().segment_steps, 0, "a client knows the segments of a new table");
    (bench, client)
}

/// Returns the segment of key `i`.
fn segment_of(bench: &Bench, i: u64) -> u64 {
    let segments = Segments::of(bench.table.config()).expect("a table in segments");
    segments.of_position(Segments::position(bench.table.placement().digest(&key(i))))
}

/// Returns the round trips of a lookup of key `i`, which must find `expected`.
fn trips_of_get(client: &mut TestClient, i: u64, expected: Option<u64>) -> u64 {
    let (found, traffic) = client.traffic_of(|client| client.get(&key(i)));
    assert_eq!(found, Ok(expected.map(|value| key(value).to_vec())), "key {i}");
    traffic.round_trips
}

/// [R-GROW-3] [R-GROW-4] [R-GROW-12] With an old map, the first hit in each segment that was split off takes one lookup
/// more, and a client that has learned of the segment pays nothing more; misses are exact.
#[test]
fn an_old_map_costs_one_lookup_for_each_split() {
    for profile in Profile::ALL {
        let (bench, mut known) = filled(profile, "fixed:8:8");
        let mut old = bench.client(1);
        old.client.forget_splits();
        let mut learned = BTreeSet::new();
        for i in 0..KEYS {
            let (usual, trips) = (trips_of_get(&mut known, i, Some(i)), trips_of_get(&mut old, i, Some(i)));
            let is_new = segment_of(&bench, i) >= FIRST && learned.insert(segment_of(&bench, i));
            // In place, a segment that lacks the key costs two posts.
            let step = if profile.caps().local { 2 } else { 1 };
            assert_eq!(trips, usual + if is_new { step } else { 0 }, "{profile}: key {i}");
        }
        assert_eq!(learned.len() as u64, SEGMENTS - FIRST);
        assert_eq!(old.client.counters().segment_steps, SEGMENTS - FIRST, "{profile}");
        for i in KEYS..2 * KEYS {
            assert_eq!(
                trips_of_get(&mut old, i, None),
                trips_of_get(&mut known, i, None),
                "{profile}: missing key {i}"
            );
        }
    }
}

/// [R-GROW-4] A miss in a segment that does not have the key any more is no miss, and one in the segment that has it is:
/// a client that forgets all splits before each lookup is right about every key, also of those that it looks up
/// together.
#[test]
fn every_answer_of_an_old_map_is_right() {
    for profile in Profile::ALL {
        for format in ["fixed:8:8", "bytes:24"] {
            let (bench, mut client) = filled(profile, format);
            for i in 0..2 * KEYS {
                client.client.forget_splits();
                trips_of_get(&mut client, i, (i < KEYS).then_some(i));
            }
            let keys: Vec<[u8; 8]> = (0..2 * KEYS).map(key).collect();
            let mut found = Vec::new();
            for group in keys.chunks(45) {
                client.client.forget_splits();
                found.extend(client.get_many(group));
            }
            for (i, found) in (0..).zip(found) {
                assert_eq!(found, Ok((i < KEYS).then(|| key(i).to_vec())), "{profile}: key {i}");
            }
            assert!(bench.audit().is_ok());
        }
    }
}

/// [R-GROW-5] Changes with an old map change the key where it is: none inserts it a second time, none finds it missing,
/// and each step costs the locks of one pair.
#[test]
fn changes_with_an_old_map_go_where_the_key_is() {
    for profile in Profile::ALL {
        for format in ["fixed:8:8", "bytes:24"] {
            let (bench, mut client) = filled(profile, format);
            let mut model = Model((0..KEYS).map(|i| (key(i).to_vec(), key(i).to_vec())).collect());
            for i in 0..2 * KEYS {
                client.client.forget_splits();
                let (key, value) = (key(i).to_vec(), key(i + 7).to_vec());
                let op = match i % 5 {
                    0 => Op::Put(key, value),
                    1 => Op::Insert(key, value),
                    2 => Op::Update(key, value),
                    _ => Op::Remove(key),
                };
                assert_eq!(client.apply(&op), Ok(model.apply(&op)), "{profile} {format}: {op:x?}");
            }
            assert_eq!(bench.audit(), Ok(model.0), "{profile} {format}");
        }
    }
}

/// [R-GROW-5] A change that is led on releases the locks of the segment without the key: two round trips, once for each
/// segment that was split off.
#[test]
fn a_change_that_is_led_on_costs_two_round_trips() {
    for profile in Profile::ALL {
        let (bench, mut client) = filled(profile, "fixed:8:8");
        let moved = (0..KEYS).find(|i| segment_of(&bench, *i) >= FIRST).expect("a key of a segment that was split off");
        let update = |client: &mut TestClient| {
            let (changed, traffic) =
                client.traffic_of(|client| client.change(&key(moved), Change::Update(NewValue::Inline(&key(moved)))));
            assert_eq!(changed.expect("an update").outcome, Outcome::Replaced);
            traffic.round_trips
        };
        let usual = update(&mut client);
        client.client.forget_splits();
        assert_eq!([update(&mut client), update(&mut client)], [usual + 2, usual], "{profile}");
        assert_eq!(client.client.counters().segment_steps, 1);
    }
}

/// [R-GROW-3] A trailer that leads to a segment that the table does not have is damage, for lookups and for changes; the
/// rest of the table is as before.
#[test]
fn a_level_that_is_too_high_is_damage() {
    let (bench, mut client) = filled(Profile::Tcp, "fixed:8:8");
    // The last of the first segments is not split: a level of 1 says that it was, into a segment beyond the last.
    let segments = Segments::of(bench.table.config()).expect("a table in segments");
    let right = |i: &u64| {
        let position = Segments::position(bench.table.placement().digest(&key(*i)));
        segments.of_position(position) == FIRST - 1 && segments.next(FIRST - 1, 1, position).is_some()
    };
    let missing = (KEYS..).find(right).expect("a key");
    let pair = bench.table.placement().rows(bench.table.placement().digest(&key(missing)));
    for row in [pair.first, pair.second] {
        let mut words = bench.row_words(row);
        words[bench.table.rows().trailer_word()] |= 1 << 32;
        bench.table.rows().rewrite_checksum(row, &mut words);
        bench.store(bench.table.geometry().row(row), &words);
    }
    let before = bench.words();
    let says_so = |text: String| assert!(text.contains(&pair.first.to_string()), "{text}");
    says_so(client.get(&key(missing)).expect_err("a damaged row").to_string());
    says_so(client.put(&key(missing), &key(0)).expect_err("a damaged row").to_string());
    assert!(before == bench.words(), "nothing was changed, and no lock is left");
    let other = (0..KEYS).find(|i| segment_of(&bench, *i) == 0).expect("a key");
    assert_eq!(client.apply(&Op::Get(key(other).to_vec())), Ok(Observed::Value(Some(key(other).to_vec()))));
}
