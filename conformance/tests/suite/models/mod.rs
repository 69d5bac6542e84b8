//! Small models of the protocol, explored exhaustively: every order of steps of all clients, and every death at every
//! step.
//!
//! Each module is one model and states first which code each of its steps stands for. Here they are run: the protocol
//! as it is must hold in every reachable state, and each rule that is left out must be missed, by a counterexample to
//! the property it is there for. States are distinguished by 64-bit fingerprints.

mod moves;
mod recovery;

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
    /// `GUIRA_LONG=1` lets one more of four clients die.
    #[test]
    fn recovery_holds_when_recoverers_die() {
        holds(SOUND);
        holds(Recovery { deaths: 3, clients: NO_SECOND, ..SOUND });
        if std::env::var_os("GUIRA_LONG").is_some() {
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
        holds(Recovery { deaths: 2, clients: FIRST_AND_NEWCOMER, lookups: 2, ..SOUND });
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
    use super::moves::{Moves, Order, RIGHT, Without};
    use super::{breaks, holds};

    const ORDERS: [Order; 4] = [Order::InPlace, Order::Ordered, Order::Covering, Order::Unordered];

    /// [R-READ-1] [R-READ-2] [R-READ-3] [R-READ-7] A key that moves, also twice and back, is removed, inserted and
    /// changed: four changes during one lookup, in every order, for each way of sampling.
    #[test]
    fn no_key_is_missed() {
        for order in ORDERS {
            holds(Moves { order, without: Without::Nothing, changes: 4 });
        }
        // The READ that the printed protocol relies on would suffice, if it existed.
        holds(Moves { order: Order::Snapshot, without: Without::Validation, changes: 4 });
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
