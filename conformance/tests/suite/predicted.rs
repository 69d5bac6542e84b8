//! Lookups with a predictor of the row that has a key: answers are those without one, most take one READ, and hardly
//! any takes a second round trip. [R-READ-10]

use std::sync::Arc;

use guira_conformance::{Bench, TestClient, block_on};
use guira_fabric::heap::{Next, Step};
use guira_fabric::{Profile, Region};
use guira_layout::{Preset, RowId};
use guira_rcuckoo::{Change, ClientConfig, NewValue, RowGuess, RowPair, RowPredictor};

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
    guessing(bench, slot, predictor, RowGuess::Rationed)
}

fn guessing(bench: &Bench, slot: u16, predictor: &Arc<RowPredictor>, row_guess: RowGuess) -> TestClient {
    let config = ClientConfig { row_guess, ..ClientConfig::for_table(&bench.table) };
    bench.client_with(slot, bench.region.lane(), config).predicting(Arc::clone(predictor))
}

/// Whether a row has a key.
fn has(bench: &Bench, row: RowId, number: u64) -> bool {
    let (rows, digest) = (bench.table.rows(), bench.table.placement().digest(&key(number)));
    rows.find(&bench.row_words(row), &rows.probe(&key(number), digest), 0).is_some()
}

/// The rows of a key.
fn pair_of(bench: &Bench, number: u64) -> RowPair {
    bench.table.placement().rows(bench.table.placement().digest(&key(number)))
}

/// [R-READ-10] Every key is found, in whichever row it is, and every missing key is missed.
#[test]
fn every_key_is_found_wherever_it_is() {
    for profile in Profile::ALL {
        let bench = filled(profile);
        // A predictor so small that keys share its places, and tags that are often wrong.
        let guesses = [RowGuess::Rationed, RowGuess::Always];
        for (bytes, guess) in [1, 64, 1 << 16].into_iter().flat_map(|bytes| guesses.map(|guess| (bytes, guess))) {
            let mut client = guessing(&bench, 0, &Arc::new(RowPredictor::new(bytes)), guess);
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

/// [R-READ-10] A client that always guesses reads one row, and the other one alone if that does not have the key: a hit
/// takes at most two round trips, each with one READ, and a miss two more than without a predictor.
#[test]
fn a_client_that_always_guesses_reads_one_row_at_a_time() {
    for profile in Profile::REMOTE {
        let bench = filled(profile);
        let mut client = guessing(&bench, 0, &Arc::new(RowPredictor::new(1 << 16)), RowGuess::Always);
        let mut round_trips = [0; 2];
        for (round, number) in (0..2).flat_map(|round| (0..KEYS).map(move |number| (round, number))) {
            let (found, traffic) = client.traffic_of(|client| client.get(&key(number)).unwrap());
            assert!(found.is_some() && traffic.round_trips <= 2, "{profile}, key {number}: {traffic:?}");
            assert_eq!((traffic.messages(), traffic.verbs.reads), (traffic.round_trips, traffic.round_trips));
            round_trips[round] += traffic.round_trips;
        }
        // At first the keys in their secondary rows are not known, and in the end nearly all of them are.
        assert!((KEYS + KEYS / 10..KEYS + KEYS / 3).contains(&round_trips[0]), "{profile}: {round_trips:?}");
        assert!(round_trips[1] < KEYS + KEYS / 20, "{profile}: {round_trips:?}");
        let (_, without) = bench.client(1).traffic_of(|client| client.get(&key(KEYS)).unwrap());
        let (missing, traffic) = client.traffic_of(|client| client.get(&key(KEYS)).unwrap());
        assert_eq!((missing, traffic.round_trips), (None, without.round_trips + 2), "{profile}");
    }
}

/// [R-READ-10] A key moves from its second row to its first one between the READs of a client that always guesses:
/// neither sample has it, and it is found all the same.
#[test]
fn a_key_that_moves_between_two_lone_rows_is_found() {
    let mut moved = 0;
    for profile in Profile::REMOTE {
        let bench = filled(profile);
        let in_second = (0..KEYS).filter(|number| has(&bench, pair_of(&bench, *number).second, *number));
        for number in in_second.collect::<Vec<_>>().into_iter().step_by(40).take(20) {
            let bench = bench.fork();
            let pair = pair_of(&bench, number);
            // Room in the first row, and keys whose insertion moves entries of the second row.
            let removed = (0..KEYS).find(|other| has(&bench, pair.first, *other));
            let new = (KEYS..100 * KEYS).filter(|other| {
                let other = pair_of(&bench, *other);
                other.first == pair.second || other.second == pair.second
            });
            let new: Vec<u64> = new.take(40).collect();
            let watched = Bench { region: bench.region.clone(), table: Arc::clone(&bench.table) };
            let (mut writer, mut batches) = (bench.client(1), 0);
            let hook = move |step: Step| {
                batches += u32::from(step == Step::Verb { index: 0 });
                if batches == 2 && step == (Step::Verb { index: 0 }) {
                    removed.iter().for_each(|other| drop(writer.change(&key(*other), Change::Remove)));
                    for other in &new {
                        if has(&watched, pair_of(&watched, number).first, number) {
                            break;
                        }
                        // Some find no room.
                        drop(writer.put(&key(*other), &key(*other)));
                    }
                }
                Next::Continue
            };
            let predictor = Arc::new(RowPredictor::new(1 << 16));
            let lane = bench.region.lane().hooked(Box::new(hook));
            let mut client = guessing(&bench, 0, &predictor, RowGuess::Always).through(lane);
            let found = client.get(&key(number)).unwrap();
            assert_eq!(found.as_deref(), Some(&key(number)[..]), "{profile}: key {number}");
            moved += u32::from(has(&bench, pair.first, number));
        }
    }
    assert!(moved >= 5, "only {moved} keys moved");
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
    let number = (0..KEYS).find(|number| has(&bench, pair_of(&bench, *number).second, *number));
    let number = number.expect("a key in its secondary row");
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
