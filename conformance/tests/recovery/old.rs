//! Clients that die at any step are recovered by those they left behind, and so are recoverers that die at any step.
//!
//! A client that dies leaves the memory as it is at that step, and nothing follows. So an operation is run once, the
//! memory is kept at every step at which its client could die (before each verb and, inside a WRITE, before each word
//! that the fabric can tear off, and after the last), and every such memory gets survivors: a second client changes the
//! same key, which makes it recover the first if that one left a lock, and the memory at each of *its* steps gets a
//! third client. Whatever is recovered: no key is lost, duplicated or mixed, every row verifies, every lock is free, no
//! commit is half done, and each unacknowledged operation took effect once or not at all.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use guira_check::{CheckOptions, Quiet, check_table};
use guira_conformance::{Bench, Model, Op, Seen, block_on};
use guira_fabric::heap::{HeapLane, Next, Pace, Step};
use guira_fabric::{Addr, FenceProof, Profile, Region, WORD_BYTES};
use guira_layout::{OwnerId, Preset, PresetOptions, Record, SlotState, SlotWord};
use guira_rcuckoo::{ClientConfig, Counters, Error, Outcome, Reader, Recovered, read_slot, recover};

const SEED: u64 = 11;
/// More polls than a change takes that recovers somebody.
const MOST_POLLS: usize = 160;
/// Slots of the client that dies first, of the second, of the third.
const SLOTS: [u16; 3] = [0, 1, 2];

/// A nearly full table, what it holds, and operations of every shape on it.
struct Scene {
    bench: Bench,
    model: Model,
    ops: Vec<Op>,
    /// Bytes of the values with which survivors overwrite.
    value_bytes: usize,
}

fn key(i: u64) -> Vec<u8> {
    i.to_le_bytes().to_vec()
}

fn bench(format: &str, profile: Profile) -> Bench {
    let options = PresetOptions {
        capacity: 1,
        format: format.parse().expect("a format"),
        extent_bytes: Some(48 << 10),
        max_clients: Some(4),
        hash_seed: SEED,
        device_bytes: profile.caps().device_bytes,
    };
    Bench::of_config(Preset::Tiny.config_of_rows(64, &options).expect("possible options"), profile, SEED)
}

impl Scene {
    /// Keys in rows: updates, removes, and puts of new keys that move up to 3 others.
    fn inline(profile: Profile) -> Scene {
        let bench = bench("fixed:8:8", profile);
        let mut model = Model::default();
        let mut client = bench.client(3);
        for i in 0..bench.table.config().slots() * 7 / 8 {
            let op = Op::Put(key(i), key(i));
            if client.apply(&op).is_ok() {
                model.apply(&op);
            }
        }
        drop(client);
        recover_slot(&bench, 3);
        let exists = model.0.keys().next().expect("a filled table").clone();
        let mut ops = vec![
            Op::Update(exists.clone(), key(91)),
            Op::Swap(exists.clone(), exists.clone(), key(92)),
            Op::Remove(exists),
        ];
        let put = |moves| Some(Op::Put(put_with_moves(&bench, moves)?, vec![moves as u8; 8]));
        ops.extend((0..4).filter_map(put));
        assert!(ops.len() >= 6, "puts that move none, one and more others");
        Scene { bench, model, ops, value_bytes: 8 }
    }

    /// Keys in extents: each way to put or free one.
    fn extents(profile: Profile) -> Scene {
        let bench = bench("bytes:24", profile);
        let (mut client, mut model) = (bench.client(3), Model::default());
        for i in 0..bench.table.config().slots() / 4 {
            let op = Op::Put(key(i), vec![i as u8; if i % 2 == 0 { 80 } else { 9 }]);
            assert_eq!(client.apply(&op), Ok(model.apply(&op)));
        }
        drop(client);
        recover_slot(&bench, 3);
        let ops = vec![
            Op::Put(key(2), vec![1; 90]),
            Op::Put(key(2), vec![2; 3]),
            Op::Put(key(3), vec![3; 90]),
            Op::Insert(key(1 << 40), vec![4; 80]),
            Op::Remove(key(4)),
        ];
        Scene { bench, model, ops, value_bytes: 70 }
    }
}

/// A new key whose put moves exactly `moves` entries.
fn put_with_moves(bench: &Bench, moves: u64) -> Option<Vec<u8>> {
    let moves_so_many = |key: &Vec<u8>| {
        let mut client = bench.fork().client(0);
        client.put(key, key).is_ok() && client.client.counters().moves == moves
    };
    (0..2_000).map(|i| key(1 << 32 | i)).find(moves_so_many)
}

/// The memory at each step at which a client could die, without repetitions, and how many steps these were.
#[derive(Default)]
struct Deaths {
    steps: u64,
    memories: Vec<Vec<u64>>,
}

/// Carries out `op` in slot `slot`, as a client that recovers others; keeps the memory at each step.
fn run(bench: &Bench, slot: u16, op: &Op) -> (Result<Seen, Error>, Counters, Deaths) {
    // Waits here are for the dead.
    let config = ClientConfig { backoff_ns: 2, longest_backoff_ns: 2, ..ClientConfig::for_table(&bench.table) };
    let mut client = bench.client_with(slot, bench.region.lane(), config).recovering(bench);
    let value = op.value().unwrap_or_default();
    let prepared = client.extents.prepare(&mut bench.under(Profile::Shm).region.lane(), op.key(), value);
    let deaths = Arc::new(Mutex::new(Deaths::default()));
    let mut client = client.through(watched(bench, &deaths));
    let answer = match prepared {
        None => client.apply(op),
        Some(prepared) => client.change(op.key(), change_of(op, prepared.value())).map(|it| Seen::Outcome(it.outcome)),
    };
    let counters = client.client.counters();
    let deaths = std::mem::take(&mut *deaths.lock().expect("nobody panics with it"));
    (answer, counters, deaths)
}

fn change_of<'v>(op: &'v Op, value: guira_rcuckoo::NewValue<'v>) -> guira_rcuckoo::Change<'v> {
    match op {
        Op::Insert(..) => guira_rcuckoo::Change::Insert(value),
        Op::Update(..) => guira_rcuckoo::Change::Update(value),
        _ => guira_rcuckoo::Change::Put(value),
    }
}

/// A lane that keeps the memory in `deaths` at each step at which its client could die.
fn watched(bench: &Bench, deaths: &Arc<Mutex<Deaths>>) -> HeapLane {
    let (unit, watched, deaths) = (bench.caps().atomic_write_unit, bench.clone(), Arc::clone(deaths));
    let hook = move |step| {
        let can_die = match step {
            Step::Word { word, .. } => (word as u64 * WORD_BYTES).is_multiple_of(unit),
            Step::Verb { .. } | Step::Completion => true,
        };
        if can_die {
            let (mut deaths, memory) = (deaths.lock().expect("nobody panics with it"), watched.words());
            deaths.steps += 1;
            if deaths.memories.last() != Some(&memory) {
                deaths.memories.push(memory);
            }
        }
        Next::Continue
    };
    bench.region.lane().hooked(Box::new(hook))
}

/// Recovers the dead client of `slot`, as whoever takes the slot does.
fn recover_slot(bench: &Bench, slot: u16) -> Option<Recovered> {
    let mut lane = bench.region.lane();
    let info = block_on(read_slot(&mut lane, &bench.table, slot)).expect("the heap reads");
    let Some(SlotWord { state: SlotState::Live | SlotState::Recovering, generation }) = info.word else { return None };
    let hold = bench.region.hold(slot).expect("the heap holds").expect("its client is dead");
    let proof = FenceProof::new(slot, generation, hold);
    block_on(recover(&mut lane, &bench.table, &proof)).expect("the heap loses nothing")
}

/// Whether `now` is what the table may hold.
fn is_one_of(possible: &[Model], now: Result<BTreeMap<Vec<u8>, Vec<u8>>, String>) -> Result<(), String> {
    let partly = || "an operation took effect in part, twice, or not although it was acknowledged".to_owned();
    if possible.contains(&Model(now?)) { Ok(()) } else { Err(partly()) }
}

/// Everything that must hold once all the dead are recovered.
fn audit(bench: &Bench, possible: &[Model]) -> Result<(), String> {
    is_one_of(possible, bench.audit())?;
    let options = CheckOptions { quiet: Quiet::NobodyWorks, ..CheckOptions::default() };
    let mut lane = bench.under(Profile::Shm).region.lane();
    let report = block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ())).map_err(|it| it.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(format!("{:?}", report.problems)) }
}

/// What the table may hold, after a survivor changed the key; then the same, and everything else, after everybody who
/// died is recovered, as whoever takes their slots does: nobody may have needed the last of what they left.
fn audit_all(bench: &Bench, possible: &[Model], dead: &[u16], context: &str) {
    is_one_of(possible, bench.contents()).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
    for slot in dead {
        recover_slot(bench, *slot);
    }
    audit(bench, possible).unwrap_or_else(|wrong| panic!("{context}, all recovered: {wrong}"));
    for slot in dead {
        assert_eq!(recover_slot(bench, *slot), None, "{context}: slot {slot} is free");
    }
}

/// A sealed record implies that the extent it frees is allocated still: once its mark is written, others may use its
/// place, and a mark that is written again would free theirs. // [R-EXTENT-4]
fn check_marks(bench: &Bench, context: &str) {
    let (table, geometry) = (&bench.table, bench.table.geometry());
    for slot in 0..table.config().max_clients {
        let words = bench.words_at(geometry.slot(slot), geometry.slot_words());
        let record = Record::decode(&words, table.rows(), table.config(), geometry).expect("an intact record");
        if let Some((mark, generation)) = record.and_then(|record| record.freed_extent()) {
            let marked = bench.words_at(Addr::main(mark), 1)[0];
            assert_ne!(marked, generation.0, "{context}: the record in slot {slot} frees what is free");
        }
    }
}

/// While the first client is being recovered, the second one holds no lock. // [R-RECOVER-5]
fn check_recoverer(bench: &Bench, context: &str) {
    let word = bench.words_at(bench.table.geometry().slot(SLOTS[0]), 1)[0];
    if SlotWord::decode(word).is_some_and(|word| word.state == SlotState::Recovering) {
        let (locks, recoverer) = (bench.table.locks(), OwnerId::of_slot(SLOTS[1]));
        let held = bench.lock_words().into_iter().flat_map(|(word, value)| locks.all_held(word, value));
        let its_own = held.filter(|(_, owner)| *owner == recoverer).count();
        assert_eq!(its_own, 0, "{context}: a recoverer holds locks");
    }
}

/// What a table may hold if each of `ops`, which nobody acknowledged, took effect in this order or not at all.
fn possible(before: &Model, ops: &[&Op]) -> Vec<Model> {
    ops.iter().fold(vec![before.clone()], |models, op| [&models[..], &after(&models, op)].concat())
}

/// What it may hold after `op` was acknowledged.
fn after(models: &[Model], op: &Op) -> Vec<Model> {
    let apply = |mut model: Model| {
        model.apply(op);
        model
    };
    models.iter().cloned().map(apply).collect()
}

/// What was enumerated.
#[derive(Debug, Default)]
struct Cases {
    first_deaths: u64,
    second_deaths: u64,
    memories: u64,
    recoveries: u64,
    replays: u64,
}

impl Cases {
    fn add(&mut self, counters: &Counters) {
        self.memories += 1;
        self.recoveries += counters.recoveries;
        self.replays += counters.replays;
    }
}

/// Lets `op`'s client die at every step, and a second client change the same key; with `recoverers`, lets that one die
/// at every step, too, and a third client change the key.
fn die_everywhere(scene: &Scene, op: &Op, recoverers: bool, cases: &mut Cases) {
    let survives = |seed| Op::Put(op.key().to_vec(), vec![seed; scene.value_bytes]);
    let (second, third) = (survives(101), survives(102));
    let bench = scene.bench.fork();
    let (answer, _, first_deaths) = run(&bench, SLOTS[0], op);
    assert_eq!(answer, Ok(scene.model.clone().apply(op)), "{op:x?}");
    cases.first_deaths += first_deaths.steps;
    let before = possible(&scene.model, &[op]);
    let mut seen = HashSet::new();
    for (i, memory) in first_deaths.memories.iter().enumerate() {
        let context = format!("{op:x?} died in memory {i}");
        let bench = bench.with_words(memory);
        check_marks(&bench, &context);
        let (answer, counters, second_deaths) = run(&bench, SLOTS[1], &second);
        assert!(answer.is_ok(), "{context}: {answer:?}");
        cases.add(&counters);
        cases.second_deaths += second_deaths.steps;
        audit_all(&bench, &after(&before, &second), &SLOTS[..2], &context);
        let twice = possible(&scene.model, &[op, &second]);
        for (j, memory) in second_deaths.memories.iter().enumerate().filter(|_| recoverers) {
            let mut hasher = DefaultHasher::new();
            memory.hash(&mut hasher);
            if !seen.insert(hasher.finish()) {
                continue;
            }
            let context = format!("{context}, its recoverer in memory {j}");
            let bench = bench.with_words(memory);
            check_marks(&bench, &context);
            check_recoverer(&bench, &context);
            let (answer, counters, _) = run(&bench, SLOTS[2], &third);
            assert!(answer.is_ok(), "{context}: {answer:?}");
            cases.add(&counters);
            audit_all(&bench, &after(&twice, &third), &SLOTS, &context);
        }
    }
}

fn die_in(scene: &Scene, name: &str, recoverers: bool) {
    let mut cases = Cases::default();
    for op in &scene.ops {
        die_everywhere(scene, op, recoverers, &mut cases);
    }
    println!("{name}: {} operations, {cases:?}", scene.ops.len());
    assert!(cases.recoveries > 10 && cases.first_deaths > 50, "{cases:?}");
    // Elsewhere a WRITE happens or does not, and only a change of several rows leaves a record. // [R-COMMIT-2]
    let tears = scene.bench.caps().atomic_write_unit == WORD_BYTES;
    let has_moves = scene.value_bytes == 8;
    assert!(cases.replays > if tears { 100 } else { 0 } || !tears && !has_moves, "{cases:?}");
}

/// [R-RECOVER-2] [R-RECOVER-3] [R-RECOVER-5] [R-RECOVER-6] [R-COMMIT-3] A death at any step of a change in rows, and of
/// whoever recovers it.
#[test]
fn deaths_at_any_step_lose_nothing() {
    println!("seed {SEED}");
    die_in(&Scene::inline(Profile::Shm), "shm, rows", true);
}

/// [R-RECOVER-2] [R-EXTENT-4] The same with values in extents: none that is in use is marked, or left unreadable.
#[test]
fn deaths_at_any_step_lose_no_extent() {
    println!("seed {SEED}");
    die_in(&Scene::extents(Profile::Shm), "shm, extents", true);
}

/// [R-RECOVER-3] [R-COMMIT-2] The same where WRITEs are not torn, and where lock words are taken by plain CAS.
#[test]
fn deaths_over_networks_lose_nothing() {
    println!("seed {SEED}");
    for profile in Profile::REMOTE {
        die_in(&Scene::inline(profile), &format!("{profile}, rows"), true);
        die_in(&Scene::extents(profile), &format!("{profile}, extents"), false);
    }
}

/// [R-RECOVER-1] A client that stopped in any step of its commit is alive: others get `Busy` with its name, and change
/// nothing of what it left.
#[test]
fn who_is_stopped_is_alive() {
    let scene = Scene::inline(Profile::Shm);
    let op = scene.ops.last().expect("a put that moves others");
    let bench = scene.bench.fork();
    let (_, _, stops) = run(&bench, SLOTS[0], op);
    let mut waited = 0;
    for memory in &stops.memories {
        let bench = bench.with_words(memory);
        let _stopped = bench.region.hold(SLOTS[0]).expect("the heap holds").expect("nobody else has it");
        let config = ClientConfig { deadline_ns: 3_000_000, ..ClientConfig::for_table(&bench.table) };
        let mut other = bench.client_with(SLOTS[1], bench.region.lane(), config).recovering(&bench);
        let record_before = bench.words_at(bench.table.geometry().slot(SLOTS[0]), bench.table.geometry().slot_words());
        let answer = other.apply(&Op::Put(op.key().to_vec(), key(101)));
        if let Err(error) = answer {
            assert!(matches!(error, Error::Busy { owner: Some(OwnerId(1)), .. }), "{error:?}");
            waited += 1;
        }
        assert_eq!(other.client.counters().recoveries, 0);
        let record = bench.words_at(bench.table.geometry().slot(SLOTS[0]), bench.table.geometry().slot_words());
        assert_eq!(record, record_before, "[R-RECOVER-1] nobody touches what a living client has");
    }
    println!("{waited} of {} memories had locks", stops.memories.len());
    assert!(waited > 20);
}

/// [R-RECOVER-4] Of two who want to recover a client one gets the proof; and a proof of an earlier client of the slot
/// recovers nobody.
#[test]
fn one_recovers_at_a_time_and_only_the_dead() {
    let scene = Scene::inline(Profile::Shm);
    let bench = scene.bench.fork();
    drop(bench.client(SLOTS[0]));
    let hold = bench.region.hold(SLOTS[0]).expect("the heap holds").expect("its client is dead");
    assert!(bench.region.hold(SLOTS[0]).expect("the heap holds").is_none(), "one recovers at a time");
    let mut lane = bench.region.lane();
    let stale = FenceProof::new(SLOTS[0], 0, hold);
    assert_eq!(block_on(recover(&mut lane, &bench.table, &stale)), Ok(None));
    let proof = FenceProof::new(SLOTS[0], 1, stale.into_hold());
    assert_eq!(block_on(recover(&mut lane, &bench.table, &proof)), Ok(Some(Recovered::default())));
    drop(proof);
    assert_eq!(bench.client(SLOTS[0]).apply(&Op::Remove(key(1 << 50))), Ok(Seen::Outcome(Outcome::Missing)));
}

/// [R-RECOVER-4] [R-DROP-1] An operation is dropped after any number of polls, also in the middle of a recovery: until
/// its client has drained what was in flight, nobody else recovers that client, and afterwards whoever comes next does.
#[test]
fn a_dropped_recovery_is_nobodys_until_it_is_drained() {
    println!("seed {SEED}");
    let scene = Scene::inline(Profile::Tcp);
    let op = scene.ops.last().expect("a put that moves others");
    let bench = scene.bench.fork();
    let (_, _, deaths) = run(&bench, SLOTS[0], op);
    let overwrites = |seed| Op::Put(op.key().to_vec(), key(seed));
    let (second, third) = (overwrites(101), overwrites(102));
    let (mut kept_away, mut cases) = (0, 0);
    for (memory, polls) in deaths.memories.iter().flat_map(|memory| (0..MOST_POLLS).map(move |polls| (memory, polls))) {
        let bench = bench.with_words(memory);
        let config = ClientConfig { backoff_ns: 2, longest_backoff_ns: 2, ..ClientConfig::for_table(&bench.table) };
        let lane = bench.region.lane().paced(Pace::Deferred(1));
        let mut dropper = bench.client_with(SLOTS[1], lane, config).recovering(&bench);
        let change = guira_rcuckoo::Change::Put(guira_rcuckoo::NewValue::Inline(second.value().unwrap_or_default()));
        poll_some(dropper.client.change(&mut dropper.lane, op.key(), change), polls);
        let hasty = ClientConfig { deadline_ns: 0, ..config };
        let mut other = bench.client_with(SLOTS[2], bench.region.lane(), hasty).recovering(&bench);
        let answer = other.apply(&third);
        kept_away += u64::from(matches!(answer, Err(Error::Busy { owner: Some(OwnerId(1)), .. })));
        cases += 1;
        block_on(dropper.client.settle(&mut dropper.lane)).expect("the heap loses nothing");
        let context = format!("{op:x?}, its recoverer dropped after {polls} polls, then {answer:?}");
        let mut models = possible(&scene.model, &[op, &second]);
        if answer.is_ok() {
            models = after(&models, &third);
        }
        assert!(answer.is_ok() || matches!(answer, Err(Error::Busy { .. })), "{context}");
        // Whoever died is recovered by now, or by the next one.
        let mut last = bench.client_with(3, bench.region.lane(), config).recovering(&bench);
        last.apply(&third).unwrap_or_else(|error| panic!("{context}: {error}"));
        audit_all(&bench, &after(&models, &third), &SLOTS[..1], &context);
    }
    println!("{cases} drops, {kept_away} of them kept another recoverer away");
    assert!(kept_away > 20);
}

/// Polls `future` so many times, unless it is ready before, and drops it.
fn poll_some<F: Future>(future: F, polls: usize) {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let _ = (0..polls).any(|_| matches!(future.as_mut().poll(&mut cx), Poll::Ready(_)));
}

/// [R-READ-9] A client that stopped, or died, at any step of its commit blocks no reader: each key, and a scan, is as
/// before the commit or as after it, and once it was seen as after it, it stays so.
#[test]
fn readers_look_past_those_who_stand_still() {
    println!("seed {SEED}");
    for scene in [Scene::inline(Profile::Shm), Scene::extents(Profile::Shm)] {
        let mut torn = 0;
        for op in &scene.ops {
            let bench = scene.bench.fork();
            let (_, _, stops) = run(&bench, SLOTS[0], op);
            let mut after = scene.model.clone();
            after.apply(op);
            let mut is_after = false;
            for (i, memory) in stops.memories.iter().enumerate() {
                let bench = bench.with_words(memory);
                let context = format!("{op:x?} stopped in memory {i}");
                torn += u64::from(bench.contents().is_err());
                let seen = read_all(&bench, &scene.model, &after, &context);
                assert!(seen == scene.model && !is_after || seen == after, "{context}: neither, or back again");
                is_after = seen == after;
            }
            assert!(is_after, "{op:x?} took effect");
        }
        println!("{torn} memories with a torn row");
        assert!(torn > 20);
    }
}

/// What a reader finds, key by key and in a scan, which must agree.
fn read_all(bench: &Bench, before: &Model, after: &Model, context: &str) -> Model {
    let config = ClientConfig { deadline_ns: 0, ..ClientConfig::for_table(&bench.table) };
    let mut reader = Reader::new(Arc::clone(&bench.table), config);
    let mut lane = bench.region.lane();
    let mut seen = Model::default();
    for key in before.0.keys().chain(after.0.keys()) {
        let mut value = Vec::new();
        let found = block_on(reader.get(&mut lane, key, &mut value)).unwrap_or_else(|it| panic!("{context}: {it}"));
        if found.is_some() {
            seen.0.insert(key.clone(), value);
        }
    }
    let scan = block_on(reader.snapshot(&mut lane, 2, |_, _| ())).unwrap_or_else(|it| panic!("{context}: {it}"));
    let scanned: BTreeMap<Vec<u8>, Vec<u8>> = scan.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(scan.is_stable() && scanned == seen.0, "{context}: a scan finds something else");
    seen
}
