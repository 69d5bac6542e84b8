//! Failure timers: which clients are suspected, and when.

use guira_conformance::{Actors, Bench, KeyFinder, NextStep, Observed, Op, block_on};
use guira_fabric::{Caps, Profile, Region, WORD_BYTES};
use guira_layout::{Preset, RowId};
use guira_rcuckoo::{ClientConfig, Error, ErrorKind, Outcome, Reader};

use crate::repair::fixture::{Fixture, SEED, config};

const TIMEOUT_NS: u64 = 100_000_000;
/// The time that a repair, and the last wait before it, add.
const SLACK_NS: u64 = 15_000_000;

/// Creates a table whose client in slot 0 died with `key`'s lock, before it wrote anything.
fn stranded(fixture: &Fixture, key: &[u8], stop: impl Fn(&NextStep, &Bench) -> bool) -> Bench {
    let bench = fixture.bench.fork();
    let mut actors = Actors::new(&bench, WORD_BYTES);
    let dead = actors.start(0, config(&bench), vec![Op::Update(key.to_vec(), vec![9; 8])]);
    assert!(actors.run_until(dead, |step| stop(step, &bench)));
    actors.kill(dead);
    assert!(!bench.lock_words().is_empty());
    bench
}

fn existing(fixture: &Fixture) -> Vec<u8> {
    fixture.model.0.keys().next().expect("a filled table").clone()
}

fn first_row(bench: &Bench, key: &[u8]) -> RowId {
    bench.table.placement().rows(bench.table.placement().digest(key)).first
}

/// [R-REPAIR-1] A lock is reclaimed after the printed 100 ms, and its waiter samples the rows with every try.
#[test]
fn a_dead_holder_is_suspected_after_the_printed_timeout() {
    let fixture = Fixture::new();
    let key = existing(&fixture);
    let bench = stranded(&fixture, &key, |step, bench| step.writes_row(bench));
    assert_eq!(ClientConfig::for_table(&bench.table).failure_timeout_ns, TIMEOUT_NS);
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let waiter = actors.start(1, config(&bench), vec![Op::Update(key, vec![1; 8])]);
    let (answers, counters) = actors.finish(waiter);
    assert_eq!(answers, [Ok(Observed::Outcome(Outcome::Replaced))]);
    assert!((TIMEOUT_NS..TIMEOUT_NS + SLACK_NS).contains(&actors.now_ns()), "{}", actors.now_ns());
    assert_eq!((counters.suspicions, counters.false_suspicions, counters.leases), (1, 0, 1));
    assert_eq!(counters.repair_state_4, 1, "it had written nothing");
}

/// [R-REPAIR-1] A row that changes restarts the timer; a deadline that comes first ends the wait, and nothing is
/// repaired.
#[test]
fn a_change_under_the_lock_starts_the_timer_again() {
    let fixture = Fixture::new();
    let key = existing(&fixture);
    let bench = stranded(&fixture, &key, |step, bench| step.writes_row(bench));
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let waiter = actors.start(1, config(&bench), vec![Op::Update(key.clone(), vec![1; 8])]);
    while actors.now_ns() < 60_000_000 {
        actors.step(waiter);
    }
    // A live holder would write the next version like this.
    bench.fill_row(first_row(&bench, &key), &[]);
    let (answers, counters) = actors.finish(waiter);
    assert!(answers[0].is_ok() && counters.suspicions == 1, "{answers:?}");
    assert!((160_000_000..170_000_000 + SLACK_NS).contains(&actors.now_ns()), "{}", actors.now_ns());

    let bench = stranded(&fixture, &key, |step, bench| step.writes_row(bench));
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let config = ClientConfig { deadline_ns: TIMEOUT_NS / 2, ..config(&bench) };
    let waiter = actors.start(1, config, vec![Op::Update(key, vec![1; 8])]);
    let (answers, counters) = actors.finish(waiter);
    assert!(matches!(answers[0], Err(Error { kind: ErrorKind::Busy { owner: None, .. }, .. })), "{answers:?}");
    assert_eq!(counters.suspicions, 0);
}

/// [R-REPAIR-2] A client's lookup that finds a row half written for the whole timeout repairs it; a reader without a
/// client cannot, and returns `Busy`.
#[test]
fn a_client_that_reads_a_torn_row_repairs_it() {
    let fixture = Fixture::new();
    let key = existing(&fixture);
    let bench = stranded(&fixture, &key, |step, bench| step.tears_row(bench) && !is_whole(bench));
    let mut actors = Actors::new(&bench, WORD_BYTES);
    let reader = actors.start(1, config(&bench), vec![Op::Get(key.clone())]);
    let (answers, counters) = actors.finish(reader);
    assert!(matches!(answers[0], Ok(Observed::Value(Some(_)))), "{answers:?}");
    assert_eq!((counters.suspicions, counters.repair_state_3, counters.repair_state_4), (1, 1, 1));
    assert!(actors.now_ns() >= TIMEOUT_NS && bench.audit().is_ok(), "{:?}", bench.audit());

    let bench = stranded(&fixture, &key, |step, bench| step.tears_row(bench) && !is_whole(bench));
    let config = ClientConfig { deadline_ns: 2_000_000, failure_timeout_ns: 0, ..config(&bench) };
    let mut reader = Reader::new(std::sync::Arc::clone(&bench.table), config);
    let mut lane = bench.region.lane();
    let answer = block_on(reader.get(&mut lane, &key, &mut Vec::new()));
    assert!(matches!(answer, Err(Error { kind: ErrorKind::Busy { .. }, .. })), "{answer:?}");
}

fn is_whole(bench: &Bench) -> bool {
    bench.contents().is_ok()
}

/// [R-REPAIR-1] A client that has taken one lock word and waits for another releases the first before it repairs.
#[test]
fn a_repairer_holds_no_lock() {
    let bench = Bench::of_rows(Preset::Paper, "fixed:8:8", 2048, Profile::Tcp, SEED);
    let locks = *bench.table.locks();
    let words = |first, second| [first, second].map(|row| locks.mask(locks.lock_of(row)));
    let mut keys = KeyFinder::new(&bench.table, 1_000_000);
    let in_two = |first, second| words(first, second).map(|locks| locks.word) == [0, 1];
    let (key, first, second) = keys.take_any(in_two).expect("a key under two lock words");
    let stranded = words(first, second)[1];
    bench.store(locks.addr(stranded.word), &[stranded.mask]);
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let waiter = actors.start(0, config(&bench), vec![Op::Remove(key.to_vec())]);
    assert!(actors.run_until(waiter, |_| bench.lock_words().len() == 2), "it holds one while it waits for the other");
    assert!(actors.run_until(waiter, |step| step.is_lease(&bench)));
    assert_eq!(bench.lock_words(), [(stranded.word, stranded.mask)]);
    assert_eq!(actors.finish(waiter).0, [Ok(Observed::Outcome(Outcome::Missing))]);
    assert_eq!(bench.lock_words(), []);
}
