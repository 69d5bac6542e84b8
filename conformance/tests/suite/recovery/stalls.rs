//! Clients that are stopped and continue: they are alive, and no other client takes what they hold.
//!
//! An operation is stopped once before each of its steps; others look up and change its key, and every key of the rows
//! it changes; then it continues. All answers, and the table's contents at the end, must be those of one order of the
//! operations.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use guira_conformance::{Bench, Model, Observed, Op, block_on};
use guira_fabric::{Profile, WORD_BYTES};
use guira_layout::{OwnerId, RowId};
use guira_rcuckoo::{ClientConfig, Error, ErrorKind, Reader};
use guira_testing::is_long;

use crate::recovery::audit::{check_recovered, recover_all};
use crate::recovery::fixture::{self, Case, SLOTS};
use crate::recovery::lane::LoggedLane;
use crate::recovery::lifecycle::{Actor, End, Script, SlotSource, config, run_script};

/// The deadline of other clients: longer than the time after which a client asks whether another one is alive.
const DEADLINE_NS: u64 = 4_000_000;

/// The operations of others while a client was stopped, with the answers.
#[derive(Default)]
struct Meanwhile {
    answered: Vec<(Op, Observed)>,
    refused: u64,
}

#[derive(Debug, Default)]
struct Counts {
    stops: u64,
    refused: u64,
    changed: u64,
}

/// [R-RECOVER-1] [R-READ-9] [R-LOCK-4] A client that meets a stopped one waits until its deadline, and its error names
/// the owner; readers read through the record; and the stopped client completes its operation when it continues.
#[test]
fn a_stopped_client_is_alive_and_continues() {
    println!("seed {}", fixture::SEED);
    for profile in [Profile::Shm, Profile::Mlx5] {
        let mut all = Counts::default();
        let mut cases = fixture::inline(profile);
        cases.append(&mut fixture::extents(profile));
        cases.retain(|case| case.name.ends_with("newcomers") && case.scripts[0].end == End::Killed);
        for case in &cases {
            let counts = stop_everywhere(case);
            println!("{profile}, {}: {counts:?}", case.name);
            all.stops += counts.stops;
            all.refused += counts.refused;
            all.changed += counts.changed;
        }
        println!("{profile}: {} cases, {all:?}", cases.len());
        assert!(all.stops > 2_000 && all.refused > 1_000 && all.changed > 700, "{all:?}");
    }
}

/// [R-GROW-8] [R-GROW-11] The same for an insert that splits its segment: others, who change a few of the segment's keys
/// meanwhile, are refused or change them before or after the split, and no change is lost.
#[test]
fn a_client_that_is_stopped_in_a_split_continues() {
    for profile in [Profile::Shm, Profile::Mlx5] {
        for case in fixture::splits(profile).iter().filter(|case| case.name.ends_with("newcomers")) {
            let (steps, neighbours) = go_through(case);
            let few = neighbours.into_iter().step_by(40).chain([case.scripts[0].ops[0].key().to_vec()]);
            let stride = if is_long() || profile != Profile::Shm { 1 } else { 5 };
            let counts = stop_at(case, few, (0..steps).step_by(stride));
            println!("{profile}, {}: {steps} steps, {counts:?}", case.name);
            assert!(counts.stops > 100 && counts.refused > 20 && counts.changed > 20, "{counts:?}");
        }
    }
}

fn stop_everywhere(case: &Case) -> Counts {
    let (steps, neighbours) = go_through(case);
    stop_at(case, neighbours.into_iter(), 0..steps)
}

/// Stops the first client before each of these steps, while others change each of `targets`.
fn stop_at(case: &Case, targets: impl Iterator<Item = Vec<u8>>, steps: impl Iterator<Item = u64> + Clone) -> Counts {
    let (bench, op) = (&case.filled.bench, &case.scripts[0].ops[0]);
    let mut counts = Counts::default();
    for target in targets {
        for step in steps.clone() {
            let bench = bench.fork();
            let meanwhile = Arc::new(Mutex::new(Meanwhile::default()));
            let lane = LoggedLane::new(&bench.region);
            let mut actor = Actor::open(&bench, SlotSource::Free(SLOTS[0]), config(&bench), lane).expect("a free slot");
            actor.lane.take_log();
            let (others, told, wanted) = (bench.clone(), Arc::clone(&meanwhile), target.clone());
            actor.lane.on_step(Box::new(move |at| {
                if at == step {
                    *told.lock().expect("no thread panics while it holds the lock") = act_meanwhile(&others, &wanted);
                }
            }));
            let context = format!("{}, stopped before step {step}, others change {target:x?}", case.name);
            let answer = block_on(actor.apply(op)).unwrap_or_else(|error| panic!("{context}: {error}"));
            drop(actor);
            let meanwhile = std::mem::take(&mut *meanwhile.lock().expect("no thread panics while it holds the lock"));
            check_order(&bench, &case.filled.model, (op, &answer), &meanwhile.answered)
                .unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
            counts.stops += 1;
            counts.refused += meanwhile.refused;
            counts.changed += 1 - meanwhile.refused;
        }
    }
    counts
}

/// Returns the number of steps of the first operation of `case`, and the keys of its rows.
fn go_through(case: &Case) -> (u64, BTreeSet<Vec<u8>>) {
    let bench = case.filled.bench.fork();
    let (geometry, rows) = (bench.table.geometry(), bench.table.rows());
    let op = &case.scripts[0].ops[0];
    let other = bench.fork();
    let entered =
        run_script(&other, &Script { ops: Vec::new(), ..case.scripts[0].clone() }, LoggedLane::new(&other.region));
    let run = run_script(&bench, &case.scripts[0], LoggedLane::new(&bench.region)).expect("a free slot");
    let mut keys = BTreeSet::from([op.key().to_vec()]);
    let first = (geometry.row(RowId(0)).offset() / WORD_BYTES) as usize;
    let changed: BTreeSet<usize> = run
        .log
        .written
        .iter()
        .filter_map(|written| Some(written.word.checked_sub(first)? / rows.row_words()))
        .collect();
    for key in case.filled.model.0.keys() {
        let pair = bench.table.placement().rows(bench.table.placement().digest(key));
        if [pair.first, pair.second].iter().any(|row| changed.contains(&(row.0 as usize))) {
            keys.insert(key.clone());
        }
    }
    (run.log.steps - entered.expect("a free slot").log.steps, keys)
}

/// Looks `key` up, puts it, and looks it up again.
fn act_meanwhile(bench: &Bench, key: &[u8]) -> Meanwhile {
    let mut meanwhile = Meanwhile::default();
    let config = ClientConfig { deadline_ns: DEADLINE_NS, ..config(bench) };
    let mut reader = Reader::new(Arc::clone(&bench.table), config);
    let mut lane = LoggedLane::new(&bench.region);
    let mut look = |meanwhile: &mut Meanwhile| {
        let mut value = Vec::new();
        let found = block_on(reader.get(&mut lane, key, &mut value)).expect("readers do not wait");
        meanwhile.answered.push((Op::Get(key.to_vec()), Observed::Value(found.is_some().then_some(value))));
    };
    look(&mut meanwhile);
    let mut other =
        Actor::open(bench, SlotSource::Free(SLOTS[1]), config, LoggedLane::new(&bench.region)).expect("a slot");
    let slot = || bench.words_at(bench.table.geometry().slot(SLOTS[0]), bench.table.geometry().slot_words());
    let (put, before) = (Op::Put(key.to_vec(), vec![111; 8]), slot());
    match block_on(other.apply(&put)) {
        Ok(answer) => meanwhile.answered.push((put, answer)),
        Err(Error { kind: ErrorKind::Busy { owner: Some(OwnerId(1)), .. }, .. }) => meanwhile.refused += 1,
        Err(error) => panic!("refused by {error:?}"),
    }
    assert_eq!(other.client.counters().recoveries, 0, "no client recovers a live one");
    assert_eq!(slot(), before, "no client touches what a live client holds");
    look(&mut meanwhile);
    meanwhile
}

/// Checks that there is a moment among `others` at which the operation `own` may have taken effect, so that all answers
/// and the table are right.
fn check_order(bench: &Bench, model: &Model, own: (&Op, &Observed), others: &[(Op, Observed)]) -> Result<(), String> {
    recover_all(bench);
    let contents = Model(bench.contents()?);
    check_recovered(bench)?;
    let fits = |at: usize| {
        let mut model = model.clone();
        let (before, after) = others.split_at(at);
        let order = before.iter().map(|(op, seen)| (op, seen)).chain([own]);
        let order = order.chain(after.iter().map(|(op, seen)| (op, seen)));
        order.into_iter().all(|(op, seen)| model.apply(op) == *seen) && model == contents
    };
    if (0..=others.len()).any(fits) { Ok(()) } else { Err(format!("no order explains {own:x?} and {others:x?}")) }
}
