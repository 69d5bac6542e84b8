//! Two concurrent operations under thousands of drawn schedules that may switch before every word either of them
//! touches: their answers and the table they leave must be those of one of the two sequential orders, with no row, lock
//! or record in disorder. The two last tests open known holes and require that the same harness finds them.
//!
//! Schedules are shuttle's (random, and PCT of depth 3); `shuttle::replay` repeats the schedule a failure prints. Lanes
//! have clocks of their own, so that nothing but the schedule decides.
//!
//! Cannot show: schedules that were not drawn; relaxed memory.

use std::sync::{Arc, Mutex};

use guira_conformance::{Bench, KeyFinder, Model, Observed, Op, Sampling, StepPoint, SteppedLane, TestClient};
use guira_fabric::Profile;
use guira_layout::{Preset, PresetOptions, RowId, Rules, TableConfig};
use guira_rcuckoo::{ClientConfig, Error};
use guira_testing::is_long;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicUsize, Ordering};

const SEED: u64 = 0x6775_6972_6131;
const ROWS: u64 = 64;
/// The row whose entries are moved.
const HOME: RowId = RowId(20);
/// Schedules of one fixture, by scheduler: with four profiles and two homes, 960 for each pair of operations, and 4,800
/// in the long form.
const RANDOM_SCHEDULES: usize = 80;
const PCT_SCHEDULES: usize = 40;
const LONG: usize = 5;
const PCT_DEPTH: usize = 3;

/// The row, primary or secondary, of the key that an insert moves away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Primary,
    Secondary,
}

/// A table that is full but for two entries, and keys chosen by their rows. `moved` and `moved_next` are in the full
/// row `HOME`; the row each of them would move to has room for two entries and holds `resident`.
#[derive(Clone)]
struct Fixture {
    bench: Bench,
    /// A key in `HOME`; an insert into `HOME` moves this one first.
    moved: [u8; 8],
    moved_next: [u8; 8],
    /// A key in the row they move to.
    resident: [u8; 8],
    /// A missing key with the rows of `moved`.
    missing: [u8; 8],
    missing_next: [u8; 8],
    /// A missing key with full rows: putting it moves another entry.
    crowded: [u8; 8],
    crowded_next: [u8; 8],
}

fn config(format: &str, rules: Option<Rules>) -> TableConfig {
    let options = PresetOptions {
        capacity: 1,
        format: format.parse().expect("a valid format"),
        extent_bytes: Some(64 << 10),
        max_clients: Some(4),
        hash_seed: SEED,
        device_bytes: u64::MAX,
    };
    let mut config = Preset::Tiny.config_of_rows(ROWS, &options).expect("valid parameters");
    config.rules = rules.unwrap_or(config.rules);
    config
}

fn value_of(key: &[u8; 8], writer: u8) -> Vec<u8> {
    let mut value = *key;
    value[7] = writer;
    value.to_vec()
}

impl Fixture {
    fn new(home: Home, rules: Option<Rules>) -> Fixture {
        let bench = Bench::of_config(config("fixed:8:8", rules), Profile::Shm, SEED);
        let mut keys = KeyFinder::new(&bench.table, 200_000);
        let (away, pair) = match home {
            Home::Primary => (RowId(HOME.0 + 5), (HOME, RowId(HOME.0 + 5))),
            Home::Secondary => (RowId(HOME.0 - 5), (RowId(HOME.0 - 5), HOME)),
        };
        let mut of_pair = || keys.take(pair.0, pair.1).expect("a key of this pair");
        let [moved, moved_next, missing, missing_next] = std::array::from_fn(|_| of_pair());
        let mut any = |first: RowId, not: RowId| {
            let found = keys.take_any(|a, b| a == first && b != not && b != HOME);
            found.expect("a key of this row").0
        };
        let resident = any(away, HOME);
        let [crowded, crowded_next] = std::array::from_fn(|_| any(HOME, away));
        for row in (0..ROWS).map(RowId) {
            let mut entries = match row {
                HOME => vec![moved, moved_next],
                row if row == away => vec![resident],
                _ => vec![],
            };
            while row != away && entries.len() < bench.table.rows().entries() {
                entries.push(any(row, away));
            }
            let values: Vec<Vec<u8>> = entries.iter().map(|key| value_of(key, 0)).collect();
            let entries: Vec<(&[u8], &[u8])> = entries.iter().zip(&values).map(|(k, v)| (&k[..], &v[..])).collect();
            bench.fill_row(row, &entries);
        }
        Fixture { bench, moved, moved_next, resident, missing, missing_next, crowded, crowded_next }
    }

    fn client(
        &self,
        bench: &Bench,
        slot: u16,
        sampling: Sampling,
        step: Box<dyn FnMut(StepPoint) + Send>,
    ) -> TestClient<SteppedLane> {
        let lane = SteppedLane::new(&bench.region, sampling, step);
        // A client that spins would never let the other thread of a schedule continue.
        let config = ClientConfig::for_table(&self.bench.table);
        let config = ClientConfig { cache_bytes: 1 << 10, backoff_ns: 500, ..config };
        bench.client_with(slot, lane, config)
    }

    /// Returns the operations of the first thread on keys that share rows.
    fn first_ops(&self) -> Vec<Op> {
        let (moved, missing, crowded) = (self.moved, self.missing, self.crowded);
        vec![
            Op::Get(moved.to_vec()),
            Op::Get(missing.to_vec()),
            Op::Put(crowded.to_vec(), value_of(&crowded, 1)),
            Op::Put(moved.to_vec(), value_of(&moved, 1)),
            Op::Insert(missing.to_vec(), value_of(&missing, 1)),
            Op::Update(moved.to_vec(), value_of(&moved, 1)),
            Op::Remove(moved.to_vec()),
        ]
    }

    /// Returns the operations of the second thread: the same kinds, on other keys of the same rows.
    fn second_ops(&self) -> Vec<Op> {
        let (moved, missing, crowded) = (self.moved_next, self.missing_next, self.crowded_next);
        vec![
            Op::Get(moved.to_vec()),
            Op::Get(missing.to_vec()),
            Op::Put(crowded.to_vec(), value_of(&crowded, 2)),
            Op::Put(moved.to_vec(), value_of(&moved, 2)),
            Op::Insert(missing.to_vec(), value_of(&missing, 2)),
            Op::Update(self.resident.to_vec(), value_of(&self.resident, 2)),
            Op::Remove(self.resident.to_vec()),
        ]
    }

    /// Returns every operation on one key.
    fn ops_on(key: [u8; 8], writer: u8) -> Vec<Op> {
        let value = value_of(&key, writer);
        let key = key.to_vec();
        vec![
            Op::Get(key.clone()),
            Op::Put(key.clone(), value.clone()),
            Op::Insert(key.clone(), value.clone()),
            Op::Update(key.clone(), value),
            Op::Remove(key),
        ]
    }
}

/// The points where a run may switch between its threads; drawn for each run, by its schedule. Long stretches without a
/// switch find other errors than switches everywhere.
#[derive(Clone, Copy, Debug)]
enum Granularity {
    Words,
    Verbs,
    /// One word in eight, drawn.
    Bursts,
}

impl Granularity {
    fn draw() -> Granularity {
        match thread_rng().gen_range(0..3) {
            0 => Granularity::Words,
            1 => Granularity::Verbs,
            _ => Granularity::Bursts,
        }
    }

    fn switches(self, moment: StepPoint) -> bool {
        match self {
            Granularity::Words => true,
            Granularity::Verbs => moment == StepPoint::Verb,
            Granularity::Bursts => thread_rng().gen_range(0..8) == 0,
        }
    }
}

type Answer = Result<Observed, Error>;

/// Whether some interleaving of both threads' operations explains `answers` and the table's contents.
fn linearizable(before: &Model, ops: &[Vec<Op>; 2], answers: &[Vec<Answer>; 2], bench: &Bench) -> Result<(), String> {
    let after = Model(bench.audit()?);
    if before.explains(&after, [&ops[0], &ops[1]], [&answers[0], &answers[1]]) {
        return Ok(());
    }
    let changed: Vec<_> = after.0.iter().filter(|(key, value)| before.0.get(*key) != Some(*value)).collect();
    Err(format!("{ops:x?} answered {answers:x?} and changed {changed:x?}: no order explains it"))
}

/// Two threads' operations on a fixture, under one profile.
#[derive(Clone)]
struct Case {
    fixture: Fixture,
    profile: Profile,
    sampling: Sampling,
    ops: [Vec<Op>; 2],
}

impl Case {
    /// Runs the case once under the current schedule.
    fn run(&self, before: &Model) -> Result<(), String> {
        let bench = self.fixture.bench.fork().under(self.profile);
        let point = Arc::new(AtomicUsize::new(0));
        let grain = Granularity::draw();
        let threads: Vec<_> = (0..2)
            .map(|i| {
                let (case, bench, point) = (self.clone(), bench.clone(), Arc::clone(&point));
                shuttle::thread::spawn(move || {
                    let step = move |moment| match moment {
                        StepPoint::Pause => shuttle::thread::yield_now(),
                        moment if grain.switches(moment) => _ = point.load(Ordering::SeqCst),
                        _ => {}
                    };
                    // Claiming a slot is not under test: its steps are not the schedule's.
                    let quiet = case.fixture.client(&bench, i as u16, case.sampling, Box::new(|_| ()));
                    let mut client = quiet.through(SteppedLane::new(&bench.region, case.sampling, Box::new(step)));
                    case.ops[i].iter().map(|op| client.apply(op)).collect()
                })
            })
            .collect();
        let answers: Vec<Vec<Answer>> = threads.into_iter().map(|thread| thread.join().expect("an answer")).collect();
        let answers: [Vec<Answer>; 2] = answers.try_into().expect("two threads");
        linearizable(before, &self.ops, &answers, &bench)
    }

    /// Runs `schedules` of `scheduler`; a violation ends the test, or is recorded in `found`.
    fn explore(&self, scheduler: impl Scheduler + 'static, found: Option<&Arc<Mutex<Vec<String>>>>) {
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 18;
        config.silence_warnings = true;
        let before = Model(self.fixture.bench.audit().expect("a table in order"));
        let (case, found) = (self.clone(), found.cloned());
        let runner = shuttle::Runner::new(scheduler, config);
        runner.run(move || match (case.run(&before), &found) {
            (Ok(()), _) => {}
            (Err(violation), Some(found)) => found.lock().expect("no panic while it is held").push(violation),
            (Err(violation), None) => panic!("{} {:?}: {violation}", case.profile, case.sampling),
        });
    }

    /// Runs random and PCT schedules, none of which may fail.
    fn assert_holds(&self, times: usize) {
        let times = if is_long() { LONG * times } else { times };
        self.explore(RandomScheduler::new_from_seed(SEED, times * RANDOM_SCHEDULES), None);
        self.explore(PctScheduler::new_from_seed(SEED, PCT_DEPTH, times * PCT_SCHEDULES), None);
    }

    /// Returns the violations that random schedules find.
    fn violations(&self, schedules: usize) -> Vec<String> {
        let found = Arc::new(Mutex::new(Vec::new()));
        self.explore(RandomScheduler::new_from_seed(SEED, schedules), Some(&found));
        self.explore(PctScheduler::new_from_seed(SEED, PCT_DEPTH, schedules), Some(&found));
        std::mem::take(&mut *found.lock().expect("no panic while it is held"))
    }
}

fn announce(what: &str, profile: Profile) {
    println!(
        "{what}: seed {SEED:#x}, profile {profile}, {RANDOM_SCHEDULES} random and {PCT_SCHEDULES} PCT schedules each, or {LONG} \
         times as many"
    );
}

/// Runs two operations on one key that is in a row whose entries are moved, or is missing from crowded rows.
fn same_key(profile: Profile) {
    announce("one key", profile);
    for home in [Home::Primary, Home::Secondary] {
        let fixture = Fixture::new(home, None);
        for key in [fixture.moved, fixture.crowded] {
            let (firsts, seconds) = (Fixture::ops_on(key, 1), Fixture::ops_on(key, 2));
            for (i, first) in firsts.iter().enumerate() {
                for second in &seconds[i..] {
                    let ops = [first, second].map(|op| vec![op.clone(), Op::Get(key.to_vec())]);
                    Case { fixture: fixture.clone(), profile, sampling: Sampling::Descending, ops }.assert_holds(1);
                }
            }
        }
    }
}

/// Runs two operations on keys that share rows.
fn shared_rows(profile: Profile) {
    announce("shared rows", profile);
    for home in [Home::Primary, Home::Secondary] {
        let fixture = Fixture::new(home, None);
        for first in fixture.first_ops() {
            for second in fixture.second_ops() {
                let ops = [vec![first.clone()], vec![second]];
                Case { fixture: fixture.clone(), profile, sampling: Sampling::Descending, ops }.assert_holds(1);
            }
        }
    }
}

/// [R-CAS-1] Changes that depend on a value, against each other, against other changes of the key, and against an
/// insert that moves it.
#[test]
fn conditional_changes_are_linearizable() {
    for profile in Profile::ALL {
        announce("compare-and-swap", profile);
        for home in [Home::Primary, Home::Secondary] {
            let fixture = Fixture::new(home, None);
            let key = fixture.moved.to_vec();
            let value = |writer| value_of(&fixture.moved, writer);
            let swap = |from, to| Op::Swap(key.clone(), value(from), value(to));
            let remove_if = |writer| Op::RemoveIf(key.clone(), value(writer));
            let firsts = [vec![swap(0, 1), swap(2, 3)], vec![remove_if(0), Op::Insert(key.clone(), value(4))]];
            let seconds = [
                vec![swap(0, 2), swap(3, 4)],
                vec![remove_if(0), Op::Get(key.clone())],
                vec![Op::Remove(key.clone()), Op::Insert(key.clone(), value(0))],
                vec![Op::Update(key.clone(), value(2)), Op::Get(key.clone())],
                vec![Op::Put(fixture.crowded.to_vec(), value_of(&fixture.crowded, 2)), Op::Get(key.clone())],
            ];
            for (first, second) in firsts.iter().flat_map(|first| seconds.iter().map(move |second| (first, second))) {
                let ops = [first.clone(), second.clone()];
                Case { fixture: fixture.clone(), profile, sampling: Sampling::Descending, ops }.assert_holds(1);
            }
        }
    }
}

/// The fixtures do what they are made for: every pair of operations succeeds in both orders as the model says, and
/// putting a crowded key moves another one.
#[test]
fn fixtures_are_as_described() {
    for home in [Home::Primary, Home::Secondary] {
        let fixture = Fixture::new(home, None);
        let before = Model(fixture.bench.audit().unwrap());
        let mut pairs = Vec::new();
        for first in fixture.first_ops() {
            for second in fixture.second_ops() {
                pairs.push([vec![first.clone()], vec![second.clone()]]);
                pairs.push([vec![second], vec![first.clone()]]);
            }
        }
        for profile in Profile::ALL {
            for ops in &pairs {
                let bench = fixture.bench.fork().under(profile);
                let mut client = fixture.client(&bench, 0, Sampling::Ascending, Box::new(|_| ()));
                let answers = [0, 1].map(|i| vec![client.apply(&ops[i][0])]);
                let mut model = before.clone();
                let expected = [0, 1].map(|i| vec![Ok(model.apply(&ops[i][0]))]);
                assert_eq!(answers, expected, "{home:?} {profile} {ops:x?}");
                linearizable(&before, ops, &answers, &bench).unwrap();
                let all = ops.iter().flatten();
                let crowded = all.clone().filter(|op| matches!(op, Op::Put(key, _) if !before.0.contains_key(key)));
                let removed = all.filter(|op| matches!(op, Op::Remove(_)));
                let least = crowded.count().saturating_sub(removed.count());
                assert!(client.client.counters().moves >= least as u64, "{ops:x?}");
            }
        }
    }
}

/// [R-LOCK-7] [R-UPDATE-1] [R-COMMIT-1] [R-READ-1] Operations on one key are linearizable.
#[test]
fn same_key_shm() {
    same_key(Profile::Shm);
}

/// [R-LOCK-7] [R-READ-2] [R-READ-3] The same where READs of a batch sample in order.
#[test]
fn same_key_tcp() {
    same_key(Profile::Tcp);
}

/// [R-LOCK-7] [R-READ-3] [R-READ-4] The same where READs of a batch sample in any order.
#[test]
fn same_key_mlx5() {
    same_key(Profile::Mlx5);
}

/// [R-LOCK-6] [R-LOCK-7] The same without masked CAS.
#[test]
fn same_key_rxe() {
    same_key(Profile::Rxe);
}

/// [R-INSERT-3] [R-INSERT-4] [R-READ-7] Operations on keys that share rows are linearizable while entries move.
#[test]
fn shared_rows_shm() {
    shared_rows(Profile::Shm);
}

/// [R-INSERT-3] [R-INSERT-4] [R-READ-3] The same where READs of a batch sample in order.
#[test]
fn shared_rows_tcp() {
    shared_rows(Profile::Tcp);
}

/// [R-INSERT-3] [R-INSERT-4] [R-READ-3] The same where READs of a batch sample in any order.
#[test]
fn shared_rows_mlx5() {
    shared_rows(Profile::Mlx5);
}

/// [R-INSERT-3] [R-LOCK-6] The same without masked CAS.
#[test]
fn shared_rows_rxe() {
    shared_rows(Profile::Rxe);
}

/// Lookups of the moving key: enough that some are in progress when it moves.
const GETS: usize = 8;

/// Returns a case of lookups of a key that always exists, while an insert moves it.
fn hit_while_moved(fixture: &Fixture, profile: Profile, sampling: Sampling) -> Case {
    let put = Op::Put(fixture.crowded.to_vec(), value_of(&fixture.crowded, 2));
    Case { fixture: fixture.clone(), profile, sampling, ops: [vec![Op::Get(fixture.moved.to_vec()); GETS], vec![put]] }
}

/// [R-READ-3] [R-READ-4] A key that always exists is never missed while it moves, in either direction, whatever the
/// order of the samples: H1 and H2 are closed.
#[test]
fn a_moving_key_is_never_missed() {
    for profile in Profile::ALL {
        announce("moving key, six times as many", profile);
        for home in [Home::Primary, Home::Secondary] {
            let fixture = Fixture::new(home, None);
            for sampling in [Sampling::Ascending, Sampling::Descending] {
                hit_while_moved(&fixture, profile, sampling).assert_holds(6);
            }
        }
    }
}

/// Creates a table with one key, in an extent; returns it with the key.
fn extent_fixture() -> (Bench, Vec<u8>) {
    let bench = Bench::of_config(config("bytes:24", None), Profile::Shm, SEED);
    let key = b"a key".to_vec();
    bench.client(3).apply(&Op::Put(key.clone(), large(0))).expect("an empty table");
    (bench, key)
}

/// Returns a value that no row holds, all of whose extents have one size.
fn large(writer: u8) -> Vec<u8> {
    vec![writer; 60]
}

/// [R-READ-6] [R-EXTENT-1] [R-EXTENT-3] [R-EXTENT-4] [R-UPDATE-2] Values in extents are read whole while their places
/// are freed and reused at once, and stay linearizable: H15, H16 and H17 are closed.
#[test]
fn extents_are_linearizable_while_their_places_are_reused() {
    let (bench, key) = extent_fixture();
    let put = |writer| Op::Put(key.clone(), large(writer));
    let (get, remove) = (Op::Get(key.clone()), Op::Remove(key.clone()));
    let inline = Op::Update(key.clone(), b"small".to_vec());
    let writers = vec![put(1), put(2), put(3), put(4)];
    let others = [
        vec![get.clone(); 4],
        vec![put(11), put(12), get.clone(), put(13)],
        vec![remove, get.clone(), put(14), get.clone()],
        vec![inline, get.clone(), Op::Insert(key.clone(), large(15)), get],
    ];
    for profile in Profile::ALL {
        announce("one key in extents", profile);
        for other in &others {
            let ops = [writers.clone(), other.clone()];
            let fixture = Fixture { bench: bench.clone(), ..Fixture::new(Home::Primary, None) };
            Case { fixture, profile, sampling: Sampling::Descending, ops }.assert_holds(4);
        }
    }
}

/// [R-READ-3] The canary: without the second sample the same schedules miss the moving key (H1), on every profile.
#[test]
fn without_validation_the_harness_finds_the_missed_key() {
    let rules = Rules { validate_misses: false, ..config("fixed:8:8", None).rules };
    let fixture = Fixture::new(Home::Secondary, Some(rules));
    for profile in Profile::ALL {
        announce("unvalidated misses", profile);
        let found = hit_while_moved(&fixture, profile, Sampling::Ascending).violations(1_000);
        let missed = found.iter().filter(|violation| violation.contains("Value(None)")).count();
        println!("{profile}: {missed} of 2000 schedules miss a key that always exists");
        assert!(missed > 0, "{profile}: a harness that finds nothing proves nothing");
        assert_eq!(missed, found.len(), "{found:?}");
    }
}

/// [R-LOCK-7] The canary: an insert that locks only its path duplicates a key that moves in the meantime (H12).
#[test]
fn without_both_locks_the_harness_finds_the_doubled_key() {
    let rules = Rules { lock_both_rows: false, ..config("fixed:8:8", None).rules };
    let fixture = Fixture::new(Home::Secondary, Some(rules));
    for profile in Profile::ALL {
        announce("inserts lock their path only", profile);
        let put = Op::Put(fixture.crowded.to_vec(), value_of(&fixture.crowded, 2));
        let ops = [vec![Op::Insert(fixture.moved.to_vec(), value_of(&fixture.moved, 1))], vec![put]];
        let case = Case { fixture: fixture.clone(), profile, sampling: Sampling::Ascending, ops };
        let found = case.violations(500);
        let doubled = found.iter().filter(|violation| violation.contains("is in the table twice")).count();
        println!("{profile}: {doubled} of 1000 schedules double a key");
        assert!(doubled > 0, "{profile}: a harness that finds nothing proves nothing: {found:?}");
    }
}
