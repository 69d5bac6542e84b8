//! Lookups with a predictor of the row that has a key: answers are those without one, most take one READ, and hardly
//! any takes a second round trip. [R-READ-10]

use std::sync::Arc;

use guira_conformance::{Bench, TestClient, block_on};
use guira_fabric::Profile;
use guira_layout::Preset;
use guira_rcuckoo::{Change, NewValue, RowPredictor};

const SEED: u64 = 11;
/// Keys in a table of 1,024 rows: nine in ten of its entries are full, so many keys are in their secondary row.
const ROWS: u64 = 1_024;
const KEYS: u64 = 6_000;
const ROUNDS: u64 = 10;

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

fn filled(profile: Profile) -> Bench {
    println!("predicted: profile {profile}, seed {SEED}");
    let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", ROWS, profile, SEED);
    let mut client = bench.client(9);
    for number in 0..KEYS {
        client.put(&key(number), &key(number)).expect("room for every key");
    }
    bench
}

fn predicting(bench: &Bench, slot: u16, predictor: &Arc<RowPredictor>) -> TestClient {
    bench.client(slot).predicting(Arc::clone(predictor))
}

/// [R-READ-10] Every key is found, in whichever row it is, and every missing key is missed.
#[test]
fn every_key_is_found_wherever_it_is() {
    for profile in Profile::ALL {
        let bench = filled(profile);
        // A predictor so small that keys share its places, and tags that are often wrong.
        for bytes in [1, 64, 1 << 16] {
            let mut client = predicting(&bench, 0, &Arc::new(RowPredictor::new(bytes)));
            for round in 0..3 {
                for number in 0..KEYS {
                    let found = client.get(&key(number)).unwrap();
                    assert_eq!(found.as_deref(), Some(&key(number)[..]), "{bytes} bytes, round {round}, key {number}");
                }
                for number in KEYS..KEYS + 100 {
                    assert_eq!(client.get(&key(number)).unwrap(), None);
                }
            }
            let owner = client.client.owner();
            block_on(guira_rcuckoo::release_slot(&mut client.lane, &bench.table, owner)).expect("the heap swaps");
        }
    }
}

/// [R-READ-10] Once it has seen the keys, a client reads one row for nearly all of them, and at most 2 % of lookups
/// need a second round trip; where verbs execute in place, nothing changes.
#[test]
fn most_lookups_read_one_row() {
    for profile in Profile::ALL {
        let bench = filled(profile);
        let predictor = Arc::new(RowPredictor::new(1 << 16));
        let (mut client, mut without) = (predicting(&bench, 0, &predictor), bench.client(1));
        let look_up = |client: &mut TestClient| {
            let (_, traffic) = client.traffic_of(|client| {
                for number in 0..ROUNDS * KEYS {
                    assert!(client.get(&key(number % KEYS)).unwrap().is_some());
                }
            });
            traffic
        };
        let (with, without) = (look_up(&mut client), look_up(&mut without));
        let lookups = ROUNDS * KEYS;
        if profile == Profile::Shm {
            assert_eq!((with.round_trips, with.verbs.reads), (without.round_trips, without.verbs.reads));
            continue;
        }
        assert_eq!(without.round_trips, lookups, "{profile}");
        assert!((lookups..=lookups + lookups / 49).contains(&with.round_trips), "{profile}: {}", with.round_trips);
        assert!(with.verbs.reads * 10 < lookups * 14, "{profile}: {} READs", with.verbs.reads);
        assert!(without.verbs.reads * 10 > lookups * 18, "{profile}: {} READs", without.verbs.reads);
    }
}

/// [R-READ-10] A key that moves, is removed or is inserted while a client predicts is found where it is now.
#[test]
fn predictions_are_hints() {
    for profile in Profile::REMOTE {
        let bench = filled(profile);
        let predictor = Arc::new(RowPredictor::new(1 << 16));
        let (mut client, mut writer) = (predicting(&bench, 0, &predictor), bench.client(1));
        for number in 0..KEYS {
            client.get(&key(number)).unwrap();
        }
        for number in 0..KEYS {
            // Each removal makes room in a row, and each insertion may move others.
            let removed = (number * 7_919) % KEYS;
            assert!(writer.change(&key(removed), Change::Remove).unwrap().took_effect());
            assert_eq!(client.get(&key(removed)).unwrap(), None);
            let value = (number + 1_000_000).to_le_bytes();
            writer.change(&key(removed), Change::Put(NewValue::Inline(&value))).unwrap();
            assert_eq!(client.get(&key(removed)).unwrap().as_deref(), Some(&value[..]));
        }
        bench.audit().unwrap();
    }
}

/// [R-READ-10] A key that is removed from its secondary row, and looked up again and again, costs the second round trip
/// of a wrong prediction a few times only.
#[test]
fn a_removed_key_is_soon_not_predicted() {
    const LOOKUPS: u64 = 500;
    /// Wrong guesses that a client with the largest credit may make, and the tag's.
    const IN_VAIN: u64 = 9;
    let bench = filled(Profile::Tcp);
    let (mut client, mut writer) = (predicting(&bench, 0, &Arc::new(RowPredictor::new(1 << 16))), bench.client(1));
    let table = &bench.table;
    let is_in_second = |number: &u64| {
        let pair = table.placement().rows(table.placement().digest(&key(*number)));
        let words = bench.row_words(pair.second);
        table
            .rows()
            .find(&words, &table.rows().probe(&key(*number), table.placement().digest(&key(*number))), 0)
            .is_some()
    };
    let number = (0..KEYS).find(is_in_second).expect("a key in its secondary row");
    for _ in 0..LOOKUPS {
        assert!(client.get(&key(number)).unwrap().is_some());
    }
    assert!(writer.change(&key(number), Change::Remove).unwrap().took_effect());
    let (_, traffic) = client.traffic_of(|client| {
        for _ in 0..LOOKUPS {
            assert_eq!(client.get(&key(number)).unwrap(), None);
        }
    });
    assert!(traffic.round_trips <= LOOKUPS + IN_VAIN, "{} round trips", traffic.round_trips);
}
