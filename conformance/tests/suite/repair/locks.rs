//! Locks without owner ids: how they are released, and what happens to the slots of dead clients.

use guira_conformance::{Actors, Observed, Op, block_on};
use guira_fabric::{Caps, FenceProof, Region};
use guira_layout::{LockId, SlotState, SlotWord};
use guira_rcuckoo::{Error, ErrorKind, Outcome, Recovered, SlotClient, destroy_table, read_slot, recover};

use crate::repair::fixture::{Fixture, config, missing_under, taken};

/// [R-REPAIR-8] [R-LOCK-2] A client that releases a lock that was reclaimed in the meantime changes no other lock of
/// the word, and learns that it was presumed dead.
#[test]
fn releasing_a_reclaimed_lock_leaves_its_neighbours_alone() {
    let fixture = Fixture::new();
    let bench = fixture.bench.fork();
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let existing = fixture.model.0.keys().next().expect("a filled table").clone();
    let slow = actors.start(0, config(&bench), vec![Op::Update(existing, vec![7; 8])]);
    assert!(actors.run_until(slow, |step| step.writes_row(&bench)));
    assert!(actors.run_until(slow, |step| step.is_lock()), "its release is next");
    let held = taken(&bench);
    for (slot, lock) in (1..).zip(&held) {
        let other = actors.start(slot, config(&bench), vec![Op::Remove(missing_under(&bench, *lock))]);
        assert_eq!(actors.finish(other).0, [Ok(Observed::Outcome(Outcome::Missing))]);
    }
    assert_eq!(taken(&bench), []);
    // Other clients hold every other lock of the word.
    let (locks, count) = (bench.table.locks(), bench.table.locks().locks());
    let others: Vec<LockId> = (0..count).map(LockId).filter(|lock| !held.contains(lock)).collect();
    let word = others.iter().fold(0, |word, lock| word | locks.mask(*lock).mask);
    bench.store(locks.addr(0), &[word]);
    let (answers, counters) = actors.finish(slow);
    assert_eq!(answers, [Ok(Observed::Outcome(Outcome::Replaced))]);
    assert_eq!(taken(&bench), others);
    assert_eq!(counters.reclaimed_locks, held.len() as u64);
}

/// [R-RECOVER-3] [R-REPAIR-1] The slot of a dead client can be reused, by proof of its death; its locks, which name no
/// owner, are left to repair.
#[test]
fn dead_clients_slots_are_used_again() {
    let fixture = Fixture::new();
    let bench = fixture.bench.fork();
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let dead = actors.start(0, config(&bench), vec![fixture.ops[0].clone()]);
    assert!(actors.run_until(dead, |step| step.writes_row(&bench)));
    actors.kill(dead);
    let held = taken(&bench);
    let mut lane = bench.region.lane();
    let word = block_on(read_slot(&mut lane, &bench.table, 0)).expect("the heap reads").word;
    let Some(SlotWord { state: SlotState::Live, generation }) = word else { panic!("{word:?}") };
    let hold = bench.region.hold(0).expect("the heap holds").expect("its client is dead");
    let recovered =
        block_on(recover(&mut lane, &bench.table, &FenceProof::new(0, generation, hold), &SlotClient::default()));
    assert_eq!(recovered, Ok(Some(Recovered::default())));
    assert!(!held.is_empty() && taken(&bench) == held);
    assert!(bench.client(0).get(fixture.ops[0].key()).expect("the heap reads").is_some());
}

/// [R-REPAIR-5] [R-DESTROY-1] The locks of a destroyed table stay taken: a client that suspects their holders gets
/// `Destroyed`.
#[test]
fn a_destroyed_table_is_not_repaired() {
    let fixture = Fixture::new();
    let bench = fixture.bench.fork();
    block_on(destroy_table(&mut bench.region.lane(), &bench.table)).expect("the heap takes every batch");
    let poisoned = bench.lock_words();
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let late = actors.start(0, config(&bench), vec![fixture.ops[0].clone()]);
    let (answers, counters) = actors.finish(late);
    assert!(matches!(answers[..], [Err(Error { kind: ErrorKind::Destroyed, .. })]), "{answers:?}");
    assert_eq!((counters.suspicions, counters.leases), (1, 0));
    assert_eq!(bench.lock_words(), poisoned);
}
