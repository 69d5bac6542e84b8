//! The linearizability checker (`guira_check::history`) compared with a brute-force search that tries every order.
//!
//! The histories are: all of three operations, and of four of fewer kinds; and drawn ones of an atomic map, and of one
//! that errs once, with operations that are pending or failed without effect. `cargo xtask release --only porcupine`
//! gives the same drawn histories to Porcupine.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

use std::time::Instant;

use guira_check::history::{Answer, Call, History, HistoryError, Operation, Outcome, SEARCH_STEPS};
use guira_conformance::histories::{HistorySpec, MapError, with_coarse_clock};
use guira_fabric::SplitMix64;

/// Whether some order of the operations of one key explains every answer, found by trying all of them.
fn has_order(operations: &[Operation]) -> bool {
    fn goes_on(left: &mut Vec<Operation>, state: Option<u64>) -> bool {
        let is_answered = |operation: &Operation| matches!(operation.outcome, Outcome::Answered { .. });
        if !left.iter().any(is_answered) {
            return true;
        }
        (0..left.len()).any(|index| {
            let operation = left[index];
            let must_wait = left
                .iter()
                .any(|other| matches!(other.outcome, Outcome::Answered { at_ns, .. } if at_ns < operation.called_ns));
            let after = match operation.outcome {
                Outcome::Answered { answer, .. } => operation.call.step(state, answer),
                Outcome::Pending => Some(operation.call.apply(state).0),
                Outcome::WithoutEffect => None,
            };
            let Some(after) = after.filter(|_| !must_wait) else { return false };
            left.remove(index);
            let found = goes_on(left, after);
            left.insert(index, operation);
            found
        })
    }
    goes_on(&mut operations.to_vec(), None)
}

/// Same as [`has_order`], for all keys.
fn has_orders(history: &History, keys: u64) -> bool {
    (0..keys).all(|key| {
        let of_key: Vec<Operation> = history.operations().filter(|operation| operation.key == key).copied().collect();
        has_order(&of_key)
    })
}

fn is_accepted(history: &History) -> bool {
    match history.check(SEARCH_STEPS) {
        Ok(_) => true,
        Err(HistoryError::NotLinearizable(_)) => false,
        Err(undecided) => panic!("{undecided}"),
    }
}

/// An operation's call and its answer; `None` if it is pending.
type Kind = (Call, Option<Answer>);

/// Returns every operation on values 1 and 2, with every possible answer, and pending.
fn all_kinds() -> Vec<Kind> {
    let mut calls = vec![Call::Get, Call::Remove];
    for value in [1, 2] {
        calls.extend([Call::Put(value), Call::Insert(value), Call::Update(value), Call::CompareAndRemove(value)]);
        calls.push(Call::CompareAndSwap { expected: value, new: 3 - value });
    }
    let answers = [Answer::Found(1), Answer::Found(2), Answer::Absent, Answer::Done, Answer::Inserted];
    let answers = answers.into_iter().chain([Answer::Replaced, Answer::Missing, Answer::Exists, Answer::Mismatch]);
    let answers = answers.map(Some).chain([None]);
    let kinds = |call: Call| answers.clone().map(move |answer| (call, answer));
    calls.into_iter().flat_map(kinds).filter(|(call, answer)| answer.is_none_or(|it| call.may_answer(it))).collect()
}

/// Returns every interleaving of the calls of `operations`, in this order, and their answers: for each event, the
/// operation it belongs to, first for its call, then for its answer.
fn all_interleavings(operations: usize) -> Vec<Vec<usize>> {
    fn extend(events: &mut Vec<usize>, called: usize, operations: usize, all: &mut Vec<Vec<usize>>) {
        if events.len() == 2 * operations {
            return all.push(events.clone());
        }
        let open = |operation: usize| events.iter().filter(|event| **event == operation).count() == 1;
        let mut next: Vec<usize> = (0..called).filter(|operation| open(*operation)).collect();
        next.extend((called < operations).then_some(called));
        for operation in next {
            events.push(operation);
            extend(events, called.max(operation + 1), operations, all);
            events.pop();
        }
    }
    let mut all = Vec::new();
    extend(&mut Vec::new(), 0, operations, &mut all);
    all
}

/// Asserts that every history of `N` operations of these kinds is decided as by the brute-force search.
fn check_all<const N: usize>(kinds: &[Kind]) {
    let interleavings = all_interleavings(N);
    let (mut good, mut bad) = (0, 0);
    for number in 0..kinds.len().pow(N as u32) {
        let chosen: [Kind; N] =
            std::array::from_fn(|index| kinds[number / kinds.len().pow(index as u32) % kinds.len()]);
        for events in &interleavings {
            let at = |operation: usize, nth: usize| {
                events.iter().enumerate().filter(|(_, it)| **it == operation).nth(nth).unwrap().0 as u64
            };
            let operations: [Operation; N] = std::array::from_fn(|index| {
                let (call, answer) = chosen[index];
                let outcome =
                    answer.map_or(Outcome::Pending, |answer| Outcome::Answered { answer, at_ns: at(index, 1) });
                Operation { process: index as u64, key: 0, call, called_ns: at(index, 0), outcome }
            });
            let is_good = has_order(&operations);
            let accepted = is_accepted(&operations.iter().copied().collect());
            assert_eq!(accepted, is_good, "{operations:#?}");
            *(if is_good { &mut good } else { &mut bad }) += 1;
        }
    }
    println!("{N} operations of {} kinds: {good} histories have an order, {bad} have none", kinds.len());
    assert!(good > bad / 20 && bad > 0, "both occur");
}

#[test]
fn every_history_of_three_operations_is_decided_correctly() {
    assert_eq!(all_interleavings(3).len(), 15);
    let kinds = all_kinds();
    assert_eq!(kinds.len(), 43);
    check_all::<2>(&kinds);
    check_all::<3>(&kinds);
}

#[test]
fn every_history_of_four_operations_of_some_kinds_is_decided_correctly() {
    let swap = Call::CompareAndSwap { expected: 1, new: 2 };
    check_all::<4>(&[
        (Call::Get, Some(Answer::Found(1))),
        (Call::Get, Some(Answer::Found(2))),
        (Call::Get, Some(Answer::Absent)),
        (Call::Put(1), Some(Answer::Done)),
        (Call::Put(2), None),
        (Call::Insert(1), None),
        (Call::Update(2), Some(Answer::Done)),
        (Call::Remove, Some(Answer::Done)),
        (Call::Remove, None),
        (swap, Some(Answer::Done)),
        (swap, None),
    ]);
}

#[test]
fn drawn_histories_are_decided_correctly() {
    const HISTORIES: u64 = 40_000;
    let (mut accepted, mut wrong, mut found, mut pending) = (0, 0, 0, 0);
    for seed in 0..HISTORIES {
        let mut rng = SplitMix64(seed);
        let drawn = HistorySpec {
            seed,
            processes: 2 + rng.below(4),
            operations: 4 + rng.below(6),
            keys: 1 + rng.below(2),
            deaths_permille: [0, 100, 400][rng.below(3) as usize],
            value_uses: 1 + rng.below(3),
            error: MapError::drawn(seed),
        };
        let mut history = drawn.history();
        if rng.below(3) == 0 {
            history = with_coarse_clock(&history, 40);
        }
        pending += history.operations().filter(|operation| operation.outcome == Outcome::Pending).count();
        let is_good = has_orders(&history, drawn.keys);
        assert_eq!(is_accepted(&history), is_good, "{drawn:?}\n{:#?}", history.operations().collect::<Vec<_>>());
        accepted += u64::from(is_good);
        if drawn.error == MapError::None {
            assert!(is_good, "{drawn:?}: the map is atomic");
        } else {
            wrong += 1;
            found += u64::from(!is_good);
        }
    }
    println!("{HISTORIES} histories: {accepted} have an order; {found} of {wrong} errors show; {pending} pending");
    assert!(found > wrong / 4 && pending as u64 > HISTORIES / 2, "the cases of interest come up");
}

/// Long histories take few steps beyond one for each operation, and their errors are still found.
#[test]
fn long_histories_take_few_steps() {
    const HISTORIES: u64 = 16;
    let mut all_found = 0;
    for (processes, operations, keys, deaths_permille, most_steps) in [
        (12, 1_800, 100, 5, 1_800),
        (12, 1_800, 1, 0, 6_300),
        (8, 20_000, 1, 2, 100_000),
        (8, 20_000, 10, 20, 22_000),
        (64, 5_000, 4, 20, 200_000),
    ] {
        let (mut steps, mut found, mut undecided, mut check_us) = (0, 0, 0, 0);
        for seed in 0..HISTORIES {
            let error = MapError::drawn(seed);
            let drawn = HistorySpec { seed, processes, operations, keys, deaths_permille, value_uses: 1, error };
            let (history, start) = (drawn.history(), Instant::now());
            let verdict = history.check(SEARCH_STEPS);
            check_us += start.elapsed().as_micros();
            match verdict {
                Ok(checked) => steps = steps.max(checked.steps),
                Err(refusal) => {
                    assert_ne!(error, MapError::None, "{drawn:?}: {refusal}");
                    found += u64::from(matches!(refusal, HistoryError::NotLinearizable(_)));
                    undecided += u64::from(matches!(refusal, HistoryError::Undecided { .. }));
                }
            }
        }
        println!(
            "{processes} processes, {operations} operations, {keys} keys, {deaths_permille} of 1,000 die: \
             {steps} steps at most, {found} of {} errors found, {undecided} undecided, {} us each",
            HISTORIES / 2,
            check_us / u128::from(HISTORIES)
        );
        assert!(steps <= most_steps && undecided <= 1, "{most_steps} steps are enough");
        all_found += found;
    }
    assert!(all_found >= 10, "{all_found} errors found: most are overwritten before any lookup sees them");
}
