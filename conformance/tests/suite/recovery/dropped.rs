//! Recoveries that are dropped in the middle, and proofs of death.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use guira_conformance::{Observed, Op, block_on};
use guira_fabric::heap::{Next, Pace, Step};
use guira_fabric::{FenceProof, Profile, Region};
use guira_layout::OwnerId;
use guira_rcuckoo::{Change, ClientConfig, Error, ErrorKind, NewValue, Outcome, Recovered, SlotClient, recover};

use crate::recovery::audit::{State, Universe, check_recovered, recover_all};
use crate::recovery::deaths::memories;
use crate::recovery::fixture::{self, SEED, SLOTS, key};

/// More polls than a change with a recovery takes.
const MOST_POLLS: usize = 160;

/// [R-RECOVER-4] Of two clients that want to recover a third one gets the proof; and a proof of an earlier client of
/// the slot recovers no client.
#[test]
fn one_client_at_a_time_recovers_and_only_the_dead() {
    let bench = fixture::insert(Profile::Shm, 1).filled.bench.fork();
    drop(bench.client(SLOTS[0]));
    let hold = bench.region.hold(SLOTS[0]).expect("the heap holds").expect("its client is dead");
    assert!(bench.region.hold(SLOTS[0]).expect("the heap holds").is_none(), "one recovers at a time");
    let mut lane = bench.region.lane();
    let stale = FenceProof::new(SLOTS[0], 0, hold);
    assert_eq!(block_on(recover(&mut lane, &bench.table, &stale, &SlotClient::default())), Ok(None));
    let proof = FenceProof::new(SLOTS[0], 1, stale.into_hold());
    assert_eq!(
        block_on(recover(&mut lane, &bench.table, &proof, &SlotClient::default())),
        Ok(Some(Recovered::default()))
    );
    drop(proof);
    assert_eq!(bench.client(SLOTS[0]).apply(&Op::Remove(key(1 << 50))), Ok(Observed::Outcome(Outcome::Missing)));
}

/// [R-RECOVER-4] [R-DROP-1] An operation is dropped after any number of polls, also in the middle of a recovery: until
/// its client has drained its batch in flight, no other client can recover the dead one, and afterwards the next one
/// does.
#[test]
fn a_dropped_recovery_blocks_others_until_it_is_drained() {
    println!("seed {SEED}");
    let case = fixture::insert(Profile::Tcp, 3);
    let op = &case.scripts[0].ops[0];
    let overwrites = |seed| Op::Put(op.key().to_vec(), key(seed));
    let (second, third) = (overwrites(101), overwrites(102));
    let (mut kept_away, mut cases) = (0, 0);
    let bench = case.filled.bench.fork();
    for (memory, polls) in memories(&case).iter().flat_map(|memory| (0..MOST_POLLS).map(move |polls| (memory, polls))) {
        memory.load(&bench);
        let config = ClientConfig { backoff_ns: 2, longest_backoff_ns: 2, ..ClientConfig::for_table(&bench.table) };
        let lane = bench.region.lane().paced(Pace::Deferred(1));
        let mut dropper = bench.client_with(SLOTS[1], lane, config).recovering(&bench);
        let change = Change::Put(NewValue::Inline(second.value().unwrap_or_default()));
        poll_some(dropper.client.change(&mut dropper.lane, op.key(), change), polls);
        let hasty = ClientConfig { deadline_ns: 0, ..config };
        let mut other = bench.client_with(SLOTS[2], bench.region.lane(), hasty).recovering(&bench);
        let answer = other.apply(&third);
        kept_away +=
            u64::from(matches!(answer, Err(Error { kind: ErrorKind::Busy { owner: Some(OwnerId(1)), .. }, .. })));
        cases += 1;
        block_on(dropper.client.settle(&mut dropper.lane)).expect("the heap loses nothing");
        let context = format!("{op:x?}, its recoverer dropped after {polls} polls, then {answer:?}");
        assert!(answer.is_ok() || matches!(answer, Err(Error { kind: ErrorKind::Busy { .. }, .. })), "{context}");
        // The dead client is recovered by now, or by the next one.
        let mut last = bench.client_with(SLOTS[3], bench.region.lane(), config).recovering(&bench);
        let seen = last.apply(&third).unwrap_or_else(|error| panic!("{context}: {error}"));
        drop((dropper, other, last));
        let mut universe = Universe::new(&case.filled.model);
        let mut states = vec![State::default().with_pending(op).with_pending(&second)];
        if let Ok(answer) = &answer {
            states = universe.answered(&states, &third, answer);
            // The dropped change was posted before, or is drained after, the other client's.
            states = states.into_iter().flat_map(|state| [state.clone(), state.with_pending(&second)]).collect();
        }
        let states = universe.answered(&states, &third, &seen);
        let check = |wrong: String| -> () { panic!("{context}: {wrong}") };
        universe.check_contents(&bench, &states).unwrap_or_else(check);
        recover_all(&bench);
        universe.check_contents(&bench, &states).and_then(|()| check_recovered(&bench)).unwrap_or_else(check);
    }
    println!("{cases} drops, {kept_away} of them kept another recoverer away");
    assert!(kept_away > 20);
}

/// Polls `future` up to `polls` times, unless it is ready before, and drops it.
fn poll_some<F: Future>(future: F, polls: usize) {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let _ = (0..polls).any(|_| matches!(future.as_mut().poll(&mut cx), Poll::Ready(_)));
}

/// [R-DROP-1] A commit that was in flight when its operation was dropped, and that turns out to have had no effect,
/// does not count as posted: an extent that came with it is not in use.
#[test]
fn a_commit_without_effect_changes_nothing() {
    let case = fixture::insert(Profile::Tcp, 0);
    let mut told = Vec::new();
    for polls in 0..MOST_POLLS {
        for dies in [false, true] {
            let bench = case.filled.bench.fork();
            // The operation has two batches: the locks and rows, and the commit.
            let mut batches = 0;
            let hook = move |step| {
                batches += u64::from(step == Step::Completion);
                if dies && batches == 1 && step == (Step::Verb { index: 0 }) { Next::Die } else { Next::Continue }
            };
            let mut client = bench.client(SLOTS[0]);
            let lane = bench.region.lane().paced(Pace::Deferred(1)).hooked(Box::new(hook));
            client.lane = lane;
            let op = &case.scripts[0].ops[0];
            let change = Change::Put(NewValue::Inline(op.value().unwrap_or_default()));
            poll_some(client.client.change(&mut client.lane, op.key(), change), polls);
            let settled = block_on(client.client.settle(&mut client.lane));
            assert_eq!(settled.is_err(), client.lane.is_dead());
            let is_there = bench.contents().expect("a sound table").contains_key(op.key());
            assert_eq!(client.client.has_committed(), is_there, "{polls} polls, dies: {dies}");
            told.push((client.lane.is_dead(), is_there));
        }
    }
    assert!(told.contains(&(true, false)) && told.contains(&(false, true)) && told.contains(&(false, false)));
}
