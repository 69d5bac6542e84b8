//! Inserts whose rows are full, and that look for room with their locks held, by the map of full rows or without it, and
//! then elsewhere: their round trips, what stops them, deaths at every step, and two of them at once. [R-INSERT-6]
//! [R-INSERT-7]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use guira_conformance::{
    Bench, Flaw, Granularity, KeyFinder, Model, Op, Orders, Sampling, ScheduledLane, Scheduler, StepPoint, SteppedLane,
    Task, TestClient, explore,
};
use guira_fabric::heap::Next;
use guira_fabric::memory::Ordering;
use guira_fabric::{Lane, Profile, Region, Traffic};
use guira_layout::{LockMask, OwnerId, Preset, PresetOptions, RowId, Rules, TableConfig};
use guira_rcuckoo::{Change, ClientConfig, Error, ErrorKind, NewValue, Outcome};

use guira_conformance::crowded::{operate, value_of};

const SEED: u64 = 0x7769_6465;
const ROWS: u64 = 256;
/// The primary row of the keys that are inserted, under the last lock of a lock word.
const HOME: RowId = RowId(52);
/// A row under the lock of `HOME`.
const NEAR: RowId = RowId(57);
/// A row under the next lock, in another lock word.
const FAR: RowId = RowId(71);
/// The owner of the last client slot.
const STRANGER: OwnerId = OwnerId(4);
/// Profiles where locks are taken by masked CAS and verbs cross a network: where inserts look under their locks.
const SAMPLING: [Profile; 2] = [Profile::Tcp, Profile::Mlx5];

/// Profiles where an insert goes on with its locks: by a map of full rows also where verbs execute in place.
fn searching(map_full_rows: bool) -> impl Iterator<Item = Profile> {
    SAMPLING.into_iter().chain(map_full_rows.then_some(Profile::Shm))
}

/// A table that is full but for the row `away`, to which two entries of `HOME` can move, and perhaps another row.
struct Fixture {
    bench: Bench,
    away: RowId,
    /// Keys in `HOME`; an insert into `HOME` moves the first of them to `away`.
    moved: [[u8; 8]; 2],
    /// Missing keys with the same rows: `HOME` and another full one, mostly under the same lock.
    crowded: [[u8; 8]; 2],
    /// Missing keys that fill `away`.
    fillers: Vec<[u8; 8]>,
}

impl Fixture {
    /// Creates the table, with a map of full rows or without; with `spare`, an entry of `HOME` can move to that row as
    /// well.
    fn new(away: RowId, spare: Option<RowId>, map_full_rows: bool) -> Fixture {
        Fixture::whose_second(away, spare, map_full_rows, |own_lock, _| own_lock)
    }

    /// Creates a table whose row with room lies between the rows of the missing keys, under neither's lock.
    fn around(away: RowId, map_full_rows: bool) -> Fixture {
        Fixture::whose_second(away, None, map_full_rows, |own_lock, row| !own_lock && row.0 > away.0 + 16)
    }

    /// Creates the table. `suits_second` is told whether a row is under the lock of `HOME`, and the row.
    fn whose_second(
        away: RowId,
        spare: Option<RowId>,
        map_full_rows: bool,
        suits_second: impl Fn(bool, RowId) -> bool,
    ) -> Fixture {
        let options = PresetOptions {
            capacity: 1,
            format: "fixed:8:8".parse().expect("a valid format"),
            extent_bytes: Some(64 << 10),
            max_clients: Some(4),
            hash_seed: SEED,
            device_bytes: u64::MAX,
        };
        let config = Preset::Hardened.config_of_rows(ROWS, &options).expect("valid parameters");
        let config = TableConfig { rules: Rules { map_full_rows, ..config.rules }, ..config };
        let bench = Bench::of_config(config, Profile::Tcp, SEED);
        let (locks, mut keys) = (bench.table.locks(), KeyFinder::new(&bench.table, 400_000));
        let is_other_lock = |row: RowId| locks.lock_of(row) != locks.lock_of(HOME);
        let has_room = |row: RowId| row == away || Some(row) == spare;
        let (first, _, second) = keys
            .take_any(|a, b| a == HOME && b.0 > HOME.0 + 1 && suits_second(!is_other_lock(b), b) && !has_room(b))
            .expect("a key of two such rows");
        let crowded = [first, keys.take(HOME, second).expect("another key of the same rows")];
        let moved = [0, 1].map(|_| keys.take(HOME, away).expect("a key of this pair"));
        let spared = spare.map(|spare| keys.take(HOME, spare).expect("a key of this pair"));
        for row in (0..ROWS).map(RowId) {
            let mut entries = if row == HOME { moved.to_vec() } else { Vec::new() };
            entries.extend(spared.filter(|_| row == HOME));
            // No other entry of the full rows can move to a row with room; all could under the same lock, or none.
            let is_root = [HOME, second].contains(&row);
            let suits_root = |b: RowId| b > row && is_other_lock(b) == is_other_lock(away);
            let suits = |a: RowId, b: RowId| a == row && !has_room(b) && (!is_root || suits_root(b));
            while !has_room(row) && entries.len() < bench.table.rows().entries() {
                entries.push(keys.take_any(suits).expect("a key of this row").0);
            }
            let values: Vec<[u8; 8]> = entries.iter().map(|key| value_of(key, 0)).collect();
            let entries: Vec<(&[u8], &[u8])> = entries.iter().zip(&values).map(|(k, v)| (&k[..], &v[..])).collect();
            bench.fill_row(row, &entries);
        }
        let entries = bench.table.rows().entries();
        let fillers = (0..entries).map(|_| keys.take_any(|a, _| a == away).expect("a key of this row").0).collect();
        Fixture { bench, away, moved, crowded, fillers }
    }

    fn contents(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.bench.audit().expect("a table in order")
    }

    fn lock(&self, row: RowId) -> LockMask {
        self.bench.table.locks().mask(self.bench.table.locks().lock_of(row))
    }
}

/// A client that waits for 5 ms of its lane's own clock.
fn config(bench: &Bench) -> ClientConfig {
    ClientConfig { deadline_ns: 5_000_000, backoff_ns: 500, ..ClientConfig::for_table(&bench.table) }
}

fn client<L: Lane>(bench: &Bench, slot: u16, lane: L) -> TestClient<L> {
    // Claiming a slot is not under test.
    bench.client_with(slot, bench.region.lane(), config(bench)).through(lane)
}

fn quiet(bench: &Bench) -> SteppedLane {
    SteppedLane::new(&bench.region, Sampling::Descending, Box::new(|_| ()))
}

/// [R-INSERT-6] Without a map of full rows, an insert whose rows are full takes three round trips if an entry can move
/// to a row under the locks that it holds, and six if the first search elsewhere finds room; nothing else of the table
/// changes.
#[test]
fn room_near_the_rows_costs_one_more_round_trip() {
    for away in [NEAR, FAR] {
        let fixture = Fixture::new(away, None, false);
        for profile in Profile::ALL {
            let bench = fixture.bench.fork().under(profile);
            let (traffic, searches) = insert_crowded(&fixture, &bench);
            if SAMPLING.contains(&profile) {
                let (atomics, reads) = ((traffic.verbs.swaps, traffic.verbs.adds), traffic.verbs.reads);
                if away == NEAR {
                    // Both rows, and the rows between them or as far as `away`.
                    assert_eq!((traffic.round_trips, searches, atomics, reads), (3, 0, (1, 1), 3), "{profile}");
                } else {
                    assert_eq!((traffic.round_trips, searches, atomics), (6, 1, (3, 3)), "{profile}");
                }
            }
        }
    }
}

/// [R-INSERT-7] By a map of full rows, an insert whose rows are full takes four round trips, wherever the row with room
/// is, and samples no other row.
#[test]
fn room_by_the_map_costs_two_more_round_trips() {
    for away in [NEAR, FAR] {
        let fixture = Fixture::new(away, None, true);
        for profile in Profile::ALL {
            let bench = fixture.bench.fork().under(profile);
            let (traffic, searches) = insert_crowded(&fixture, &bench);
            if SAMPLING.contains(&profile) {
                let (atomics, reads) = ((traffic.verbs.swaps, traffic.verbs.adds), traffic.verbs.reads);
                // Both rows, the map, and the row with room.
                let locks = if away == NEAR { 1 } else { 2 };
                assert_eq!((traffic.round_trips, searches, atomics, reads), (4, 0, (locks, locks), 4), "{profile}");
            }
        }
    }
}

/// [R-INSERT-7] An insert finds room if the map of full rows is wrong. It corrects the map where it was misled, and does
/// not search elsewhere for that.
#[test]
fn a_wrong_map_is_corrected() {
    let spare = RowId(FAR.0 + 2);
    let fixture = Fixture::new(FAR, Some(spare), true);
    let fillers = fixture.fillers.iter().map(|key| (&key[..], &key[..])).collect::<Vec<_>>();
    for profile in SAMPLING {
        let bench = fixture.bench.fork().under(profile);
        bench.fill_row(fixture.away, &fillers);
        bench.store_full_rows(0);
        let (traffic, searches) = insert_crowded(&fixture, &bench);
        // The first path leads to the full row, and the second one to the row with room.
        assert_eq!((traffic.round_trips, searches), (5, 0), "{profile}");
        let (word, bit) = bench.full_bit(fixture.away).expect("there is a map");
        assert_eq!(bench.words_at(word, 1), [bit], "{profile}");
    }
}

/// [R-INSERT-7] A row with room of which the map says that it is full is found nevertheless.
#[test]
fn room_that_the_map_denies_is_found() {
    for away in [NEAR, FAR] {
        let fixture = Fixture::new(away, None, true);
        for profile in SAMPLING {
            let bench = fixture.bench.fork().under(profile);
            bench.store_full_rows(!0);
            insert_crowded(&fixture, &bench);
            let (word, bit) = bench.full_bit(away).expect("there is a map");
            assert_eq!(bench.words_at(word, 1)[0] & bit, 0, "{profile} {away}: the map is corrected");
        }
    }
}

/// Inserts a crowded key, which moves one entry. Returns the traffic, and how many searches sampled rows without locks.
fn insert_crowded(fixture: &Fixture, bench: &Bench) -> (Traffic, u64) {
    let mut client = client(bench, 0, quiet(bench));
    let (key, value) = (fixture.crowded[0], value_of(&fixture.crowded[0], 1));
    let mut expected = bench.audit().expect("a table in order");
    expected.insert(key.to_vec(), value.to_vec());
    let (changed, traffic) = client.traffic_of(|client| client.put(&key, &value).expect("room for one key"));
    assert_eq!(changed.outcome, Outcome::Inserted);
    let (profile, away) = (bench.region.caps(), fixture.away);
    assert_eq!(bench.audit(), Ok(expected), "{profile:?} {away}");
    assert_eq!(client.client.counters().moves, 1, "{profile:?} {away}");
    (traffic, client.client.counters().sampled_searches)
}

/// [R-INSERT-5] [R-INSERT-6] A table is found full by sampling no row twice but those of the key: what was sampled
/// under the locks is not sampled again, where verbs travel and where they execute in place.
#[test]
fn a_search_goes_on_from_the_rows_under_the_locks() {
    let all_rows = 64;
    let full = Bench::of_rows(Preset::Hardened, "fixed:8:8", all_rows, Profile::Tcp, SEED);
    let mut filler = full.client(1);
    let mut keys = (0_u64..).map(u64::to_be_bytes);
    while full.occupied().0 < full.table.config().max_entries() {
        let key = keys.next().expect("there are more keys than entries");
        // The last free entries are within reach of few keys.
        match filler.put(&key, &[1; 8]).map_err(|error| error.kind) {
            Ok(_) | Err(ErrorKind::Full { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    let has_two_rows = |key: &[u8; 8]| full.table.key(key).is_ok_and(|key| key.rows().first != key.rows().second);
    let key = keys.find(has_two_rows).expect("most keys have two rows");
    // Both rows of the key are read under their locks, where verbs travel once more with the rows near them, and once
    // more at the end.
    for (profile, again) in [(Profile::Shm, 2), (Profile::Tcp, 4), (Profile::Mlx5, 4)] {
        let bench = full.fork().under(profile);
        let mut client = client(&bench, 0, quiet(&bench));
        let (failed, traffic) = client.traffic_of(|client| client.put(&key, &[1; 8]));
        let is_full = matches!(failed, Err(Error { kind: ErrorKind::Full { .. }, .. }));
        assert!(is_full, "{profile}: {failed:?}");
        let row_bytes = bench.table.rows().row_words() as u64 * 8;
        let atomics = traffic.verbs.swaps + traffic.verbs.adds;
        let rows_read = (traffic.bytes_in - 8 * atomics) / row_bytes;
        assert!(rows_read <= all_rows + again, "{profile}: {rows_read} rows, {traffic:?}");
        assert_eq!(bench.lock_words(), [], "{profile}");
    }
}

/// [R-INSERT-6] A damaged row among those that are sampled does not make the insert fail, and nothing is moved to it.
#[test]
fn a_damaged_row_is_in_nobodys_way() {
    let spare = RowId(HOME.0 + 9);
    for (profile, map_full_rows) in [(Profile::Tcp, false), (Profile::Mlx5, false), (Profile::Tcp, true)] {
        let fixture = Fixture::new(NEAR, Some(spare), map_full_rows);
        let bench = fixture.bench.fork().under(profile);
        let mut damaged = bench.row_words(NEAR);
        damaged[0] ^= 1 << 40;
        bench.store(bench.table.geometry().row(NEAR), &damaged);
        let mut client = client(&bench, 0, quiet(&bench));
        let key = fixture.crowded[0];
        let changed = client.put(&key, &value_of(&key, 1));
        assert_eq!(changed.map(|changed| changed.outcome), Ok(Outcome::Inserted), "{profile}");
        assert_eq!(bench.row_words(NEAR), damaged, "{profile}: the damage is still noticed");
        assert_eq!(bench.table.rows().occupied(&bench.row_words(spare)), 1, "{profile}");
        assert_eq!(bench.lock_words(), [], "{profile}");
    }
}

/// [R-INSERT-6] [R-INSERT-3] [R-LOCK-3] An insert writes no row whose lock another client holds, and holds nothing
/// while it waits for that lock.
#[test]
fn a_lock_of_the_path_that_is_taken_is_waited_for_without_others() {
    for (profile, map_full_rows) in [(Profile::Tcp, false), (Profile::Mlx5, false), (Profile::Mlx5, true)] {
        let fixture = Fixture::new(FAR, None, map_full_rows);
        let bench = fixture.bench.fork().under(profile);
        let lock = fixture.lock(fixture.away);
        let held = bench.table.locks().held(STRANGER, lock.mask);
        bench.region.memory().device[lock.word as usize].fetch_add(held, Ordering::AcqRel);
        let waits = Arc::new(Mutex::new(Vec::new()));
        let (watched, seen) = (bench.clone(), Arc::clone(&waits));
        let step = move |point| {
            if point == StepPoint::Pause {
                seen.lock().unwrap().push(watched.lock_words());
            }
        };
        let lane = SteppedLane::new(&bench.region, Sampling::Descending, Box::new(step));
        let mut client = client(&bench, 0, lane);
        let applied = client.apply(&Op::Put(fixture.crowded[0].to_vec(), vec![1; 8]));
        let busy = matches!(applied, Err(Error { kind: ErrorKind::Busy { owner: Some(STRANGER), .. }, .. }));
        assert!(busy, "{profile}: {applied:?}");
        assert_eq!(bench.lock_words(), [(lock.word, held)], "{profile}");
        assert_eq!(bench.contents(), Ok(fixture.contents()), "{profile}");
        assert_eq!(waits.lock().unwrap().first(), Some(&vec![(lock.word, held)]), "{profile}");
    }
}

/// [R-INSERT-3] A covering READ fetches rows whose locks the client does not hold. It moves no entry there.
#[test]
fn a_row_in_a_gap_is_used_only_under_its_lock() {
    let fixtures = [false, true].map(|map_full_rows| Fixture::around(FAR, map_full_rows));
    for (fixture, profile) in fixtures.iter().flat_map(|fixture| Profile::ALL.map(|profile| (fixture, profile))) {
        let bench = fixture.bench.fork().under(profile);
        let lock = fixture.lock(fixture.away);
        let held = bench.table.locks().held(STRANGER, lock.mask);
        bench.region.memory().device[lock.word as usize].fetch_add(held, Ordering::AcqRel);
        let config = ClientConfig { covering_gap_rows: ROWS, ..config(&bench) };
        let mut client = bench.client_with(0, bench.region.lane(), config).through(quiet(&bench));
        let applied = client.apply(&Op::Put(fixture.crowded[0].to_vec(), vec![1; 8]));
        let busy = matches!(applied, Err(Error { kind: ErrorKind::Busy { owner: Some(STRANGER), .. }, .. }));
        assert!(busy, "{profile}: {applied:?}");
        assert_eq!(bench.lock_words(), [(lock.word, held)], "{profile}");
        assert_eq!(bench.contents(), Ok(fixture.contents()), "{profile}");
    }
}

/// [R-INSERT-6] [R-RECOVER-2] [R-RECOVER-3] A client may die before any word that such an insert touches: the next
/// client that needs its locks recovers it, and the key was inserted or not.
#[test]
fn deaths_at_every_step_are_recovered() {
    for (away, map_full_rows) in [(NEAR, false), (FAR, false), (NEAR, true), (FAR, true)] {
        let fixture = Fixture::new(away, None, map_full_rows);
        for profile in searching(map_full_rows) {
            let memories = memories_of_insert(&fixture, profile);
            assert!(memories.len() > 20, "{profile}: {} steps", memories.len());
            let mut replays = 0;
            for memory in memories {
                let bench = fixture.bench.with_words(&memory).under(profile);
                let config = ClientConfig::for_table(&bench.table);
                let config = ClientConfig { backoff_ns: 2, longest_backoff_ns: 2, ..config };
                let mut next = bench.client_with(1, bench.region.lane(), config).recovering(&bench);
                let (moved, value) = (fixture.moved[0], value_of(&fixture.moved[0], 2));
                let updated = next.change(&moved, Change::Update(NewValue::Inline(&value)));
                assert_eq!(updated.map(|changed| changed.outcome), Ok(Outcome::Replaced), "{profile} {away}");
                replays += next.client.counters().replays;
                let mut without = fixture.contents();
                without.insert(moved.to_vec(), value.to_vec());
                let mut with = without.clone();
                with.insert(fixture.crowded[0].to_vec(), value_of(&fixture.crowded[0], 1).to_vec());
                let found = bench.audit().expect("a table in order");
                assert!(found == without || found == with, "{profile} {away}");
            }
            assert!(replays > 0, "{profile} {away}: some deaths left a sealed record");
        }
    }
}

/// Returns the memory before each step of inserting a crowded key.
fn memories_of_insert(fixture: &Fixture, profile: Profile) -> Vec<Vec<u64>> {
    let bench = fixture.bench.fork().under(profile);
    let memories = Arc::new(Mutex::new(Vec::new()));
    let (watched, kept) = (bench.clone(), Arc::clone(&memories));
    let hook = move |_| {
        let words = watched.words();
        let mut kept = kept.lock().expect("no thread panics while it holds the lock");
        if kept.last() != Some(&words) {
            kept.push(words);
        }
        Next::Continue
    };
    let mut client = bench.client(0).through(bench.region.lane().hooked(Box::new(hook)));
    let key = fixture.crowded[0];
    client.put(&key, &value_of(&key, 1)).expect("room for one key");
    let searches = if fixture.away == NEAR || bench.table.config().rules.map_full_rows { 0 } else { 1 };
    assert_eq!(client.client.counters().sampled_searches, searches, "{profile}");
    std::mem::take(&mut *memories.lock().expect("no thread panics while it holds the lock"))
}

/// [R-INSERT-6] [R-LOCK-3] Two such inserts at once, and an insert and an update of what it moves, end in every order,
/// and as one after the other.
#[test]
fn two_inserts_move_entries_at_once() {
    let cases = [(NEAR, false), (FAR, false), (NEAR, true), (FAR, true)].map(|case| (case, Profile::Mlx5));
    for ((away, map_full_rows), profile) in cases.into_iter().chain([((FAR, true), Profile::Shm)]) {
        let fixture = Fixture::new(away, None, map_full_rows);
        let before = Model(fixture.contents());
        let put = |key: &[u8; 8], writer| Op::Put(key.to_vec(), value_of(key, writer).to_vec());
        let [first, second] = fixture.crowded;
        let pairs = [
            [vec![put(&first, 1)], vec![put(&second, 2)]],
            [vec![put(&first, 1)], vec![put(&fixture.moved[0], 2), Op::Get(fixture.moved[0].to_vec())]],
            [vec![put(&first, 1), Op::Get(first.to_vec())], vec![put(&first, 2)]],
        ];
        for ops in pairs {
            let make = |scheduler: &Scheduler| {
                let bench = fixture.bench.fork().under(profile);
                let lane = || ScheduledLane::new(&bench.region, scheduler, Granularity::Verbs, Flaw::None);
                let runs = (0..2).map(|i| operate(client(&bench, i as u16, lane()), ops[i].clone()));
                let (tasks, answers): (Vec<Task>, Vec<_>) = runs.unzip();
                ((bench, answers), tasks)
            };
            let explored = explore(Orders::Switches(2), make, |(bench, answers)| {
                let answers: Vec<Vec<_>> = answers.into_iter().map(|answers| answers.take()).collect();
                let after = Model(bench.audit().map_err(|wrong| format!("{wrong}; answers {answers:x?}"))?);
                let explained = before.explains(&after, [&ops[0], &ops[1]], [&answers[0], &answers[1]]);
                if explained { Ok(()) } else { Err(format!("no order explains the answers {answers:x?}")) }
            });
            explored.assert_holds(&format!("moving to {away}"), 100);
        }
    }
}
