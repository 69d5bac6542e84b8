//! A nearly full table of preset `paper`, and the cases of operations on it.

use guira_conformance::{Actors, Bench, Model, NextStep, Op, VerbKind};
use guira_fabric::Profile;
use guira_layout::{LockId, Preset};
use guira_rcuckoo::{ClientConfig, Counters, Error};

pub const SEED: u64 = 23;
const ROWS: u64 = 128;
/// Keys above this one are unused.
const NEW_KEYS: u64 = 1 << 40;

pub fn key(i: u64) -> Vec<u8> {
    i.to_le_bytes().to_vec()
}

/// Returns a configuration with the printed timeouts, and few tries until they pass.
pub fn config(bench: &Bench) -> ClientConfig {
    let config = ClientConfig::for_table(&bench.table);
    ClientConfig { backoff_ns: 10_000_000, longest_backoff_ns: 10_000_000, ..config }
}

pub struct Fixture {
    pub bench: Bench,
    pub model: Model,
    /// An update, a remove, and inserts that move 0, 1, 2 and 3 others.
    pub ops: Vec<Op>,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::of_seed(SEED)
    }

    /// Creates a fixture with the rows for its keys that `seed` gives.
    pub fn of_seed(seed: u64) -> Fixture {
        let bench = Bench::of_rows(Preset::Paper, "fixed:8:8", ROWS, Profile::Tcp, seed);
        let mut model = Model::default();
        let mut client = bench.client(63);
        for i in 0..bench.table.config().max_entries() * 9 / 10 {
            let op = Op::Insert(key(i), key(i | 1 << 32));
            if client.apply(&op).is_ok() {
                model.apply(&op);
            }
        }
        let exists = model.0.keys().nth(9).expect("a filled table").clone();
        let mut ops = vec![Op::Update(exists.clone(), key(91)), Op::Remove(exists)];
        ops.extend((0..4).map(|moves| Op::Insert(insert_with_moves(&bench, moves), key(moves))));
        Fixture { bench, model, ops }
    }
}

fn insert_with_moves(bench: &Bench, moves: u64) -> Vec<u8> {
    let moves_so_many = |key: &Vec<u8>| {
        let mut client = bench.fork().client(0);
        client.apply(&Op::Insert(key.clone(), key.clone())).is_ok() && client.client.counters().moves == moves
    };
    (NEW_KEYS..NEW_KEYS + 4_000).map(key).find(moves_so_many).expect("a key whose insert moves so many")
}

/// The result of an operation that one client carried out.
pub struct Run {
    pub answer: Result<guira_conformance::Observed, Error>,
    pub counters: Counters,
    /// The memory at each step at which the client could have died, without repetitions.
    pub memories: Vec<Vec<u64>>,
}

/// Carries out `op` on `bench` in slot `slot`, where WRITEs tear at `atomic_write_unit`.
pub fn run(bench: &Bench, slot: u16, atomic_write_unit: u64, op: &Op) -> Run {
    let mut actors = Actors::new(bench, atomic_write_unit);
    let who = actors.start(slot, config(bench), vec![op.clone()]);
    let mut memories: Vec<Vec<u64>> = Vec::new();
    loop {
        let step = actors.next_step(who);
        if matches!(step, NextStep::Verb { kind: VerbKind::Write | VerbKind::Atomic, .. } | NextStep::Nothing) {
            let words = bench.words();
            if memories.last() != Some(&words) {
                memories.push(words);
            }
        }
        if step == NextStep::Nothing {
            break;
        }
        actors.step(who);
    }
    let (mut answers, counters) = actors.finish(who);
    Run { answer: answers.remove(0), counters, memories }
}

/// Returns every lock that is taken.
pub fn taken(bench: &Bench) -> Vec<LockId> {
    let words = bench.lock_words();
    words
        .into_iter()
        .flat_map(|(word, value)| bench.table.locks().all_held(word, value))
        .map(|(lock, _)| lock)
        .collect()
}

/// Returns a missing key with a row under `lock`.
pub fn missing_under(bench: &Bench, lock: LockId) -> Vec<u8> {
    let placement = bench.table.placement();
    let is_under = |key: &Vec<u8>| bench.table.locks().lock_of(placement.rows(placement.digest(key)).first) == lock;
    (2 * NEW_KEYS..).map(key).find(is_under).expect("a key of every row")
}

/// Reclaims every lock that is still taken, by clients in slots from `slot` on that need a lock.
pub fn reclaim_all(bench: &Bench, slot: u16, atomic_write_unit: u64) -> Counters {
    let mut sum = Counters::default();
    for slot in slot.. {
        let Some(lock) = taken(bench).first().copied() else { return sum };
        let run = run(bench, slot, atomic_write_unit, &Op::Remove(missing_under(bench, lock)));
        assert!(run.answer.is_ok(), "{lock} is reclaimed: {:?}", run.answer);
        add(&mut sum, &run.counters);
    }
    sum
}

/// Adds the counts of repairs.
pub fn add(sum: &mut Counters, counters: &Counters) {
    sum.suspicions += counters.suspicions;
    sum.false_suspicions += counters.false_suspicions;
    sum.leases += counters.leases;
    sum.revocations += counters.revocations;
    sum.repair_state_1 += counters.repair_state_1;
    sum.repair_state_2 += counters.repair_state_2;
    sum.repair_state_3 += counters.repair_state_3;
    sum.repair_state_4 += counters.repair_state_4;
}
