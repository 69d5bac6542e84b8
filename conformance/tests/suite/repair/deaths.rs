//! Deaths: a client dies at every step of an operation, the client that repairs after it dies at every step, too, and
//! others continue.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use guira_conformance::{Bench, Model, Op};
use guira_fabric::{Caps, WORD_BYTES};
use guira_layout::RowId;
use guira_rcuckoo::Counters;

use crate::repair::fixture::{Fixture, SEED, add, key, reclaim_all, run, taken};

/// Tables whose operations are enumerated.
const TABLES: u64 = 4;

/// Counts of the enumeration.
#[derive(Debug, Default)]
struct Cases {
    deaths: u64,
    deaths_in_repair: u64,
    /// Tables that hold values that were never written, or lack acknowledged ones: where WRITEs tear.
    mixed: u64,
    met: Counters,
}

fn possible(before: &Model, ops: &[&Op]) -> Vec<Model> {
    ops.iter().fold(vec![before.clone()], |models, op| [&models[..], &after(&models, op)].concat())
}

fn after(models: &[Model], op: &Op) -> Vec<Model> {
    let apply = |mut model: Model| {
        model.apply(op);
        model
    };
    models.iter().cloned().map(apply).collect()
}

/// Reclaims locks that are still taken, and checks everything: locks are free, every row verifies, every key is stored
/// once and in one of its rows, and the table is one of `possible`, except that it is only counted if it is not where
/// WRITEs tear.
fn audit(bench: &Bench, unit: u64, possible: &[Model], cases: &mut Cases, context: &str) {
    add(&mut cases.met, &reclaim_all(bench, 3, unit));
    assert_eq!(taken(bench), [], "{context}");
    for row in (0..bench.table.config().rows).map(RowId) {
        assert!(bench.table.rows().verify(row, &bench.row_words(row)).is_ok(), "{context}: {row} is torn");
    }
    match bench.audit() {
        Ok(contents) if possible.iter().any(|model| model.0 == contents) => {}
        _ if unit == WORD_BYTES => cases.mixed += 1,
        found => panic!("{context}: an operation took effect in part, or something is lost: {:?}", found.err()),
    }
}

fn die_everywhere(fixture: &Fixture, op: &Op, unit: u64, cases: &mut Cases) {
    let (second, third) = (Op::Put(op.key().to_vec(), key(101)), Op::Put(op.key().to_vec(), key(102)));
    let first = run(&fixture.bench.fork(), 0, unit, op);
    assert_eq!(first.answer, Ok(fixture.model.clone().apply(op)), "{op:x?}");
    assert_eq!(first.counters.suspicions, 0);
    let before = possible(&fixture.model, &[op]);
    let mut seen = HashSet::new();
    for (i, memory) in first.memories.iter().enumerate() {
        let context = format!("{op:x?} died in memory {i}");
        let bench = fixture.bench.with_words(memory);
        let survivor = run(&bench, 1, unit, &second);
        assert!(survivor.answer.is_ok(), "{context}: {:?}", survivor.answer);
        cases.deaths += 1;
        add(&mut cases.met, &survivor.counters);
        audit(&bench, unit, &after(&before, &second), cases, &context);
        let twice = after(&possible(&fixture.model, &[op, &second]), &third);
        for (j, memory) in survivor.memories.iter().enumerate() {
            let mut hasher = DefaultHasher::new();
            memory.hash(&mut hasher);
            if !seen.insert(hasher.finish()) {
                continue;
            }
            let context = format!("{context}, who repaired it in memory {j}");
            let bench = fixture.bench.with_words(memory);
            let last = run(&bench, 2, unit, &third);
            assert!(last.answer.is_ok(), "{context}: {:?}", last.answer);
            cases.deaths_in_repair += 1;
            add(&mut cases.met, &last.counters);
            audit(&bench, unit, &twice, cases, &context);
        }
    }
}

/// Enumerates every operation of several tables.
fn die_in_all(unit: u64) -> Cases {
    let mut cases = Cases::default();
    for seed in SEED..SEED + TABLES {
        let fixture = Fixture::of_seed(seed);
        for op in &fixture.ops {
            die_everywhere(&fixture, op, unit, &mut cases);
        }
    }
    println!("{TABLES} tables from seed {SEED}: {cases:?}");
    cases
}

/// [R-REPAIR-1] [R-REPAIR-3] [R-REPAIR-4] [R-REPAIR-6] [R-REPAIR-7] [R-REPAIR-8] Where a WRITE happens wholly or not at
/// all, no entry is lost, duplicated or mixed by a death at any step, nor by another one at any step of the repair.
#[test]
fn a_death_is_repaired_where_writes_are_atomic() {
    let cases = die_in_all(Caps::WHOLE_WRITE);
    assert!(cases.deaths > 80 && cases.deaths_in_repair > 200, "{cases:?}");
    let met = &cases.met;
    assert!(met.repair_state_2 > 50 && met.repair_state_4 > 200 && met.revocations > 50, "{met:?}");
    assert_eq!((met.repair_state_1, met.repair_state_3, cases.mixed), (0, 0, 0), "rows are never torn");
}

/// [R-REPAIR-6] [R-REPAIR-7] Where a WRITE tears at every word, all four states are found and left as printed: each row
/// verifies afterwards, and each lock is free. But some rows hold values that were never written, or lack acknowledged
/// ones: H10.
#[test]
fn every_state_is_reached_and_left_where_writes_tear() {
    let cases = die_in_all(WORD_BYTES);
    let met = &cases.met;
    for (state, found) in
        [met.repair_state_1, met.repair_state_2, met.repair_state_3, met.repair_state_4].into_iter().enumerate()
    {
        assert!(found > 50, "state {} of the paper's four: {met:?}", state + 1);
    }
    // Each repair ends in state 4, and from each other state it takes one step.
    assert_eq!(met.repair_state_4, met.leases);
    assert!(cases.deaths > 200 && cases.deaths_in_repair > 1_000, "{cases:?}");
    assert!(cases.mixed > 0 && cases.mixed < cases.deaths + cases.deaths_in_repair, "{cases:?}");
}

/// [R-REPAIR-7] If an entry is in both of its rows, the copy in the second one is removed, whichever is older.
#[test]
fn repair_removes_the_copy_in_the_second_row() {
    let fixture = Fixture::new();
    let placement = fixture.bench.table.placement();
    let mut moved_to_second = 0;
    for op in &fixture.ops[3..] {
        let first = run(&fixture.bench.fork(), 0, Caps::WHOLE_WRITE, op);
        for memory in &first.memories {
            let bench = fixture.bench.with_words(memory);
            let Err(twice) = bench.contents() else { continue };
            assert!(twice.contains("is in the table twice"), "{twice}");
            let key_of = |model: &Model| model.0.keys().find(|key| rows_with(&bench, key).len() == 2).cloned();
            let key = key_of(&fixture.model).expect("the key that moves");
            let pair = placement.rows(placement.digest(&key));
            moved_to_second += u64::from(rows_with(&fixture.bench, &key) == [pair.first]);
            reclaim_all(&bench, 1, Caps::WHOLE_WRITE);
            assert_eq!(rows_with(&bench, &key), [pair.first]);
        }
    }
    assert!(moved_to_second > 2, "{moved_to_second}");
}

/// Returns the rows in which `key` is stored.
fn rows_with(bench: &Bench, key: &[u8]) -> Vec<RowId> {
    let (rows, placement) = (bench.table.rows(), bench.table.placement());
    let digest = placement.digest(key);
    let pair = placement.rows(digest);
    let stands_in = |row: &RowId| rows.find(&bench.row_words(*row), &rows.probe(key, digest), 0).is_some();
    let second = (!pair.is_single()).then_some(pair.second);
    [Some(pair.first), second].into_iter().flatten().filter(stands_in).collect()
}
