//! Small models of the protocol, explored exhaustively: every order of steps of all clients, and every death at every
//! step.
//!
//! Each module is one model and states first which code each of its steps stands for. Here they are run: the protocol
//! as it is must hold in every reachable state, and each rule that is left out must be missed, by a counterexample to
//! the property it is there for. States are distinguished by 64-bit fingerprints.

mod moves;
mod recovery;
mod split;

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Explores every state of `model`, none of which may break a property, and prints how many there are.
fn holds<M>(model: M)
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let started = Instant::now();
    let checker = model.clone().checker().spawn_bfs().join();
    println!(
        "{model:?}: {} states, {} steps, at most {} in a row, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64()
    );
    // Every property holds, and every required state is reached; so no state was left out.
    checker.assert_properties();
    assert!(checker.is_done());
}

/// Explores `model` until each property in `broken` is broken, and prints the shortest way to it.
fn breaks<M>(model: M, broken: &[&'static str])
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let until = HasDiscoveries::AllOf(broken.iter().copied().collect());
    let checker = model.clone().checker().finish_when(until).spawn_bfs().join();
    println!("{model:?}: {} states until it broke", checker.unique_state_count());
    for name in broken {
        let path = checker.discovery(name).unwrap_or_else(|| panic!("{model:?} keeps {name:?}"));
        println!("  not {name:?}: {:?}", path.into_actions());
    }
    let always = model.properties().into_iter().filter(|property| matches!(property.expectation, Expectation::Always));
    let known: Vec<_> = always.map(|property| property.name).collect();
    assert!(broken.iter().all(|name| known.contains(name)), "{broken:?} are counterexamples");
}

/// Whether `model` has no cycle of steps: then every run ends, and a property of all final states holds eventually.
fn ends<M>(model: &M)
where
    M: Model,
    M::State: Clone + Eq + Hash,
{
    let mut numbers: HashMap<M::State, usize> = HashMap::new();
    let mut states: Vec<M::State> = model.init_states();
    let mut next: Vec<Vec<usize>> = Vec::new();
    let mut comes_from: Vec<usize> = vec![0; states.len()];
    numbers.extend(states.iter().cloned().enumerate().map(|(number, state)| (state, number)));
    while let Some(state) = states.get(next.len()).cloned() {
        let mut follow = Vec::new();
        for state in model.next_states(&state) {
            let number = *numbers.entry(state.clone()).or_insert(states.len());
            if number == states.len() {
                states.push(state);
                comes_from.push(0);
            }
            comes_from[number] += 1;
            follow.push(number);
        }
        next.push(follow);
    }
    // States that are only reached from removed states are removed, until none is left, or only those of a cycle.
    let mut free: Vec<usize> = (0..states.len()).filter(|number| comes_from[*number] == 0).collect();
    let mut taken = 0;
    while let Some(number) = free.pop() {
        taken += 1;
        for follows in &next[number] {
            comes_from[*follows] -= 1;
            if comes_from[*follows] == 0 {
                free.push(*follows);
            }
        }
    }
    assert_eq!(taken, states.len(), "some states lead back to themselves");
}

mod recoveries {
    use guira_testing::is_long;

    use super::recovery::{DONE, LOCKED, MARKED, READ, Recovery, TORN, WHOLE, Without};
    use super::{breaks, ends, holds};

    /// All clients: the one that dies first, another that may die, the last one, and the one that takes a free slot.
    const ALL: [bool; 4] = [true; 4];
    const NO_SECOND: [bool; 4] = [true, false, true, true];
    const NO_NEWCOMER: [bool; 4] = [true, true, true, false];
    const FIRST_AND_LAST: [bool; 4] = [true, false, true, false];
    const FIRST_AND_NEWCOMER: [bool; 4] = [true, false, false, true];

    /// The unmodified protocol.
    const SOUND: Recovery = Recovery { without: Without::Nothing, deaths: 2, stops: 0, clients: ALL, lookups: 0 };

    /// [R-RECOVER-2] [R-RECOVER-3] [R-RECOVER-4] Clients and recoverers die, two or more, and ids are reused.
    /// `GUIRA_LONG=1` has all four clients at once, of which three die.
    #[test]
    fn recovery_holds_when_recoverers_die() {
        holds(Recovery { clients: NO_NEWCOMER, ..SOUND });
        holds(Recovery { deaths: 3, clients: NO_SECOND, ..SOUND });
        if is_long() {
            holds(SOUND);
            holds(Recovery { deaths: 3, ..SOUND });
        }
    }

    /// [R-RECOVER-1] [R-RECOVER-5] A client that is stopped, in a commit or in a recovery, keeps what it holds and
    /// nothing else.
    #[test]
    fn recovery_holds_when_recoverers_stop() {
        holds(Recovery { deaths: 1, stops: 1, clients: NO_NEWCOMER, ..SOUND });
        holds(Recovery { deaths: 2, stops: 1, clients: NO_SECOND, ..SOUND });
    }

    /// [R-READ-9] A reader that reads through the records of dead, stopped and recovered clients gets an answer, and
    /// the right one.
    #[test]
    fn readers_read_through_records_in_every_state() {
        holds(Recovery { deaths: 1, clients: FIRST_AND_LAST, lookups: 2, ..SOUND });
        holds(Recovery { deaths: if is_long() { 2 } else { 1 }, clients: FIRST_AND_NEWCOMER, lookups: 2, ..SOUND });
        holds(Recovery { deaths: 0, stops: 1, clients: FIRST_AND_LAST, lookups: 2, ..SOUND });
        // Sealing before and after the sample need not be checked here: the checksum of the completed row shows the
        // same.
        holds(Recovery { without: Without::SecondHead, deaths: 1, clients: FIRST_AND_LAST, lookups: 2, ..SOUND });
    }

    /// There are no cycles, so "no client is stuck" means that every client ends.
    #[test]
    fn recoveries_terminate() {
        ends(&Recovery { clients: NO_NEWCOMER, ..SOUND });
        ends(&Recovery { clients: NO_SECOND, ..SOUND });
        ends(&Recovery { deaths: 0, stops: 1, clients: FIRST_AND_LAST, lookups: 2, ..SOUND });
    }

    /// Each rule that is left out is missed.
    #[test]
    fn every_rule_of_recovery_is_needed() {
        let two_die: [(Without, &[&str]); 11] = [
            (Without::LocksBeforeSlot, &[DONE]),
            (Without::Proof, &[LOCKED, WHOLE]),
            (Without::ProofToTheEnd, &[LOCKED, WHOLE]),
            (Without::ReplayBeforeLocks, &[WHOLE, TORN]),
            (Without::RetirementByRecoverer, &[LOCKED, WHOLE]),
            (Without::RetirementBeforeRelease, &[LOCKED, WHOLE]),
            (Without::RowsBeforeRetirement, &[WHOLE, TORN]),
            (Without::SealBeforeRows, &[WHOLE, TORN]),
            (Without::RetirementBeforeMark, &[MARKED]),
            (Without::DeadNameOnLocks, &[LOCKED, WHOLE, TORN]),
            (Without::WritersChecksum, &[WHOLE]),
        ];
        for (without, broken) in two_die {
            breaks(Recovery { without, ..SOUND }, broken);
        }
        let stops = Recovery { deaths: 1, stops: 1, clients: NO_NEWCOMER, ..SOUND };
        breaks(Recovery { without: Without::OwnLocksFirst, ..stops }, &[DONE]);
        let reads = Recovery { deaths: 1, clients: FIRST_AND_LAST, lookups: 2, ..SOUND };
        breaks(Recovery { without: Without::SecondSample, ..reads }, &[READ]);
    }
}

mod lookups {
    use guira_testing::is_long;

    use super::moves::{Moves, Order, RIGHT, Without};
    use super::{breaks, holds};

    const ORDERS: [Order; 4] = [Order::InPlace, Order::Ordered, Order::Covering, Order::Unordered];

    /// [R-READ-1] [R-READ-2] [R-READ-3] [R-READ-7] A key that moves, also twice and back, is removed, inserted and
    /// changed: three changes during one lookup, or four with `GUIRA_LONG=1`, in every order, for each way of sampling.
    #[test]
    fn no_key_is_missed() {
        let changes = if is_long() { 4 } else { 3 };
        for order in ORDERS {
            holds(Moves { order, without: Without::Nothing, changes });
        }
        // The READ that the printed protocol relies on would suffice, if it existed.
        holds(Moves { order: Order::Snapshot, without: Without::Validation, changes });
    }

    /// Each rule that is left out is missed.
    #[test]
    fn every_rule_of_lookups_is_needed() {
        let find = |order, without| breaks(Moves { order, without, changes: 3 }, &[RIGHT]);
        for order in ORDERS {
            find(order, Without::Validation);
            find(order, Without::WideVersions);
            find(order, Without::Checksums);
            find(order, Without::EmptyEndFirst);
        }
        for order in [Order::InPlace, Order::Ordered] {
            find(order, Without::LateTrailer);
            find(order, Without::BothRowsAgain);
        }
        for order in [Order::Covering, Order::Unordered] {
            find(order, Without::SecondTrailer);
        }
        // This is hole H2 alone: samples of one moment each, of which a retry keeps a half.
        find(Order::Snapshot, Without::BothRowsAgain);
    }
}

mod splits {
    use guira_testing::is_long;

    use super::split::{A, ALONE, B, DEEP, LEFT, ONCE, RIGHT, SPLIT, STARTS, Split, Without};
    use super::{breaks, holds};

    /// A lookup that must end also if everybody else has stopped.
    const ALONE_READER: Split = Split { any_order: true, is_unordered: true, alone: true, ..SPLIT };
    const TWO_SPLITTERS: Split = Split { starts: START, splits: [ONCE, ONCE], ..SPLIT };
    const WRITER: Split = Split { starts: START, changes: &[Some(1)], ..SPLIT };
    /// Key A and key B in different rows.
    const START: &[[[u8; 2]; 2]] = &[STARTS[1]];

    /// [R-GROW-4] [R-GROW-9] [R-GROW-11] Readers of a key that moves and of one that stays, beside a splitter that dies
    /// or stops anywhere: no answer is wrong, and each lookup ends by itself.
    #[test]
    fn lookups_hold_while_a_segment_is_split() {
        holds(Split { lookups: &[A], ..ALONE_READER });
        holds(Split { lookups: &[B], ..ALONE_READER });
        holds(Split { lookups: &[A, A], ..WRITER });
        if is_long() {
            holds(Split { lookups: &[A, A], alone: false, ..ALONE_READER });
            holds(Split { moves: 1, lookups: &[A], is_unordered: true, ..SPLIT });
            holds(Split { moves: 1, lookups: &[B], ..SPLIT });
        }
    }

    /// [R-GROW-5] [R-GROW-8] [R-GROW-10] [R-GROW-13] Changes and moves beside a split are neither lost nor done twice,
    /// also where segments share their locks, and nothing is left of a splitter or of its recoverer that died.
    #[test]
    fn changes_hold_while_a_segment_is_split() {
        holds(Split { changes: &[Some(1)], ..TWO_SPLITTERS });
        holds(Split { changes: &[Some(1), None], shares_locks: true, ..TWO_SPLITTERS });
        holds(Split { lookups: &[A], ..TWO_SPLITTERS });
        if is_long() {
            holds(Split { changes: &[Some(1), None], lookups: &[A], any_order: true, ..WRITER });
            let shared = Split { starts: &STARTS, changes: &[Some(1), None, Some(3)], shares_locks: true, ..WRITER };
            holds(Split { lookups: &[A], ..shared });
            holds(Split { moves: 1, lookups: &[A], ..WRITER });
        }
    }

    /// [R-GROW-2] [R-GROW-3] [R-GROW-14] Segments that are split again and again, and scans of them.
    #[test]
    fn deep_splits_hold() {
        holds(Split { starts: START, splits: [DEEP, &[]], scans: true, ..SPLIT });
        if is_long() {
            holds(Split { splits: [DEEP, &[]], scans: true, ..SPLIT });
            holds(Split { moves: 1, scans: true, ..SPLIT });
            for position in 1..4 {
                holds(Split { position, splits: [DEEP, &[]], lookups: &[A], ..WRITER });
            }
        }
    }

    /// Each rule that is left out is missed.
    #[test]
    fn every_rule_of_splits_is_needed() {
        let reader = Split { lookups: &[A], ..SPLIT };
        let deep_reader = Split { splits: [DEEP, &[]], ..reader };
        let both = Split { changes: &[Some(1)], ..reader };
        let scan = Split { scans: true, ..SPLIT };
        for (without, model, broken) in [
            (Without::ChildLocks, WRITER, RIGHT),
            (Without::ChildLocksToTheEnd, both, RIGHT),
            (Without::ChildFirst, reader, RIGHT),
            (Without::ChildBeforeSeal, reader, RIGHT),
            (Without::RowsBeforeMap, reader, RIGHT),
            (Without::CheckWhereTheMapLeads, deep_reader, RIGHT),
            (Without::StepByStep, deep_reader, RIGHT),
            (Without::CheckUnderTheLock, Split { changes: &[Some(1)], ..SPLIT }, LEFT),
            (Without::CheckOnAMiss, reader, RIGHT),
            (Without::CheckBySplitter, Split { changes: &[Some(1)], ..TWO_SPLITTERS }, RIGHT),
            (Without::Removal, both, RIGHT),
            (Without::Record, reader, LEFT),
            (Without::RowsBeforeRetirement, reader, LEFT),
            (Without::Completion, reader, LEFT),
            (Without::ChildOfTheSplitter, reader, RIGHT),
            (Without::LevelsInScans, scan, RIGHT),
            (Without::Validation, Split { moves: 1, ..reader }, RIGHT),
            (Without::ReadsThroughRecord, Split { alone: true, ..reader }, ALONE),
        ] {
            breaks(Split { without, ..model }, &[broken]);
        }
    }
}
