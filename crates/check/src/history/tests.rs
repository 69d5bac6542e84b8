//! Histories with known verdicts, and the messages for those that are refused.

use super::{Answer, Call, Checked, History, HistoryError, Operation, Outcome, SEARCH_STEPS};

/// An operation of process `process` on key 5.
fn operation(process: u64, call: Call, called_ns: u64, outcome: Outcome) -> Operation {
    Operation { process, key: 5, call, called_ns, outcome }
}

fn answered(process: u64, call: Call, times_ns: (u64, u64), answer: Answer) -> Operation {
    operation(process, call, times_ns.0, Outcome::Answered { answer, at_ns: times_ns.1 })
}

fn check(operations: &[Operation]) -> Result<Checked, HistoryError> {
    operations.iter().copied().collect::<History>().check(SEARCH_STEPS)
}

fn is_accepted(operations: &[Operation]) -> bool {
    match check(operations) {
        Ok(_) => true,
        Err(HistoryError::NotLinearizable(_)) => false,
        Err(undecided) => panic!("{undecided}"),
    }
}

const PUT_1: Call = Call::Put(1);
const SWAP_1_2: Call = Call::CompareAndSwap { expected: 1, new: 2 };

#[test]
fn only_the_answers_of_a_map_are_accepted() {
    let script = [
        (Call::Get, Answer::Absent),
        (Call::Update(9), Answer::Missing),
        (Call::Remove, Answer::Missing),
        (SWAP_1_2, Answer::Missing),
        (Call::CompareAndRemove(1), Answer::Missing),
        (Call::Insert(1), Answer::Done),
        (Call::Insert(2), Answer::Exists),
        (Call::Get, Answer::Found(1)),
        (SWAP_1_2, Answer::Done),
        (SWAP_1_2, Answer::Mismatch),
        (Call::Get, Answer::Found(2)),
        (Call::CompareAndRemove(1), Answer::Mismatch),
        (Call::CompareAndRemove(2), Answer::Done),
        (Call::Put(3), Answer::Inserted),
        (Call::Put(4), Answer::Replaced),
        (Call::Update(5), Answer::Done),
        (Call::Get, Answer::Found(5)),
        (Call::Remove, Answer::Done),
        (Call::Get, Answer::Absent),
    ];
    let in_turn = |(place, (call, answer)): (usize, &(Call, Answer))| {
        let at_ns = 10 * place as u64;
        answered(place as u64 % 3, *call, (at_ns, at_ns + 5), *answer)
    };
    let operations: Vec<Operation> = script.iter().enumerate().map(in_turn).collect();
    let checked = check(&operations).expect("a map answers so");
    assert_eq!(checked, Checked { keys: 1, answered: 19, pending: 0, steps: 19 });
    // With any other answer to one operation it is refused, because there are lookups between all changes.
    let answers = [Answer::Found(9), Answer::Absent, Answer::Done, Answer::Missing, Answer::Exists, Answer::Mismatch];
    let mut tried = 0;
    for (place, (call, answer)) in script.iter().enumerate() {
        for other in answers.into_iter().chain([Answer::Inserted, Answer::Replaced]) {
            if call.may_answer(other) && other != *answer && !(matches!(call, Call::Put(_)) && other == Answer::Done) {
                let mut changed = operations.clone();
                let times_ns = (changed[place].called_ns, changed[place].called_ns + 5);
                changed[place] = answered(7, *call, times_ns, other);
                assert!(!is_accepted(&changed), "{call} answered {other}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 28);
}

#[test]
fn concurrent_operations_have_one_order_for_all_readers() {
    let puts = [answered(1, Call::Put(1), (0, 100), Answer::Done), answered(2, Call::Put(2), (0, 100), Answer::Done)];
    let reads = |first: [u64; 2], second: [u64; 2]| {
        let get = |process, at_ns, value| answered(process, Call::Get, (at_ns, at_ns + 5), Answer::Found(value));
        let [a, b, c, d] = [get(3, 10, first[0]), get(3, 20, first[1]), get(4, 30, second[0]), get(4, 40, second[1])];
        is_accepted(&[puts[0], puts[1], a, b, c, d])
    };
    assert!(reads([1, 1], [1, 2]) && reads([2, 1], [1, 1]) && reads([1, 2], [2, 2]));
    assert!(!reads([1, 2], [2, 1]), "back and forth");
    assert!(!reads([1, 2], [1, 2]), "back");
}

#[test]
fn a_lookup_must_see_writes_acknowledged_before_it_began() {
    let put = answered(1, PUT_1, (0, 10), Answer::Inserted);
    for (called_ns, accepted) in [(9, true), (10, true), (11, false)] {
        let get = answered(2, Call::Get, (called_ns, 20), Answer::Absent);
        assert_eq!(is_accepted(&[put, get]), accepted, "{called_ns}: equal times of a log are concurrent");
    }
}

/// Virtual clocks often show equal times: then the order of the calls to the history counts.
#[test]
fn recorded_operations_are_ordered_at_equal_times() {
    for (seen_early, seen_late, accepted) in [
        (Answer::Absent, Answer::Found(1), true),
        (Answer::Found(1), Answer::Found(1), true),
        (Answer::Absent, Answer::Absent, false),
    ] {
        let mut history = History::new();
        let put = history.begin(1, 5, PUT_1, 10);
        let early = history.begin(2, 5, Call::Get, 10);
        history.complete(put, Answer::Inserted, 10);
        let late = history.begin(3, 5, Call::Get, 10);
        history.complete(early, seen_early, 10);
        history.complete(late, seen_late, 10);
        assert_eq!(history.check(SEARCH_STEPS).is_ok(), accepted, "{seen_early} and {seen_late}");
    }
}

#[test]
fn pending_operations_take_effect_at_most_once_after_their_call() {
    let pending = |call, called_ns| operation(1, call, called_ns, Outcome::Pending);
    let get = |at_ns, answer| answered(2, Call::Get, (at_ns, at_ns + 5), answer);
    let (absent, found) = (Answer::Absent, Answer::Found(1));
    assert!(is_accepted(&[pending(PUT_1, 0), get(10, absent), get(20, absent)]), "never");
    assert!(is_accepted(&[pending(PUT_1, 0), get(10, absent), get(20, found)]), "late");
    assert!(!is_accepted(&[pending(PUT_1, 0), get(10, found), get(20, absent)]), "it does not go away");
    assert!(!is_accepted(&[get(10, found), pending(PUT_1, 20)]), "early");
    let remove = answered(3, Call::Remove, (20, 25), Answer::Done);
    assert!(!is_accepted(&[pending(PUT_1, 0), get(10, found), remove, get(30, found)]), "twice");
    assert!(
        is_accepted(&[pending(PUT_1, 0), pending(PUT_1, 1), get(10, found), remove, get(30, found)]),
        "two of them"
    );
    // The put makes the swap possible.
    let both = [pending(PUT_1, 0), pending(SWAP_1_2, 5), get(10, absent), get(20, Answer::Found(2))];
    assert!(is_accepted(&both));
    assert!(!is_accepted(&both[1..]));
}

#[test]
fn operations_without_effect_explain_nothing() {
    let failed = operation(1, PUT_1, 0, Outcome::WithoutEffect);
    assert_eq!(check(&[failed]), Ok(Checked::default()));
    assert!(!is_accepted(&[failed, answered(2, Call::Get, (10, 20), Answer::Found(1))]));
    let mut history = History::new();
    let put = history.begin(1, 5, PUT_1, 0);
    history.fail(put);
    assert_eq!(history.operations().next(), Some(&failed));
}

/// A put that changes nothing at the first position where it fits may be needed at a later one.
#[test]
fn a_put_of_the_same_value_is_not_taken_at_once() {
    assert!(is_accepted(&[
        answered(1, Call::Put(1), (0, 10), Answer::Done),
        answered(2, Call::Put(1), (20, 90), Answer::Done),
        answered(3, Call::Put(2), (30, 40), Answer::Done),
        answered(3, Call::Get, (50, 60), Answer::Found(1)),
    ]));
}

#[test]
fn keys_are_checked_separately() {
    let put = answered(1, PUT_1, (0, 10), Answer::Inserted);
    let get = Operation { key: 6, ..answered(2, Call::Get, (20, 30), Answer::Absent) };
    let pending = Operation { key: 7, ..operation(3, PUT_1, 0, Outcome::Pending) };
    assert_eq!(check(&[put, get, pending]), Ok(Checked { keys: 3, answered: 2, pending: 1, steps: 2 }));
    let wrong = Operation { key: 6, ..answered(2, Call::Get, (20, 30), Answer::Found(1)) };
    let Err(HistoryError::NotLinearizable(impossible)) = check(&[put, wrong, pending]) else { panic!("nobody put it") };
    assert_eq!((impossible.key, impossible.operations, impossible.unexplained), (6, 1, wrong));
    assert_eq!((impossible.order.len(), impossible.state, impossible.writer), (0, None, None));
}

#[test]
fn errors_show_the_longest_order_and_the_unexplained_operation() {
    let refusal = check(&[
        answered(1, PUT_1, (0, 10), Answer::Inserted),
        answered(2, Call::Put(2), (20, 30), Answer::Replaced),
        operation(4, Call::Remove, 35, Outcome::Pending),
        answered(2, Call::Get, (40, 50), Answer::Found(1)),
        answered(3, Call::Get, (45, 60), Answer::Found(2)),
        answered(3, Call::Get, (65, 70), Answer::Found(2)),
    ]);
    let expected = "\
key 5: no order of its 6 operations explains every answer.
The longest order that explains its answers has length 3 and ends with
    0 to 10 ns: process 1: put(1): inserted
    20 to 30 ns: process 2: put(2): replaced
    45 to 60 ns: process 3: get: found(2)
after which the key's value is 2.
The operation that was answered next does not fit:
    40 to 50 ns: process 2: get: found(1)
The value 1 was written by
    0 to 10 ns: process 1: put(1): inserted";
    assert_eq!(refusal.expect_err("the second put was acknowledged").to_string(), expected);
    let refusal =
        check(&[answered(1, SWAP_1_2, (0, 10), Answer::Done), answered(2, Call::Remove, (5, 15), Answer::Done)]);
    let expected = "\
key 5: no order of its 2 operations explains every answer.
No operation can come first: the key does not exist.
The operation that was answered first does not fit:
    0 to 10 ns: process 1: compare_and_swap(1, 2): done
No operation wrote the value 1.
Also in progress at that time:
    5 to 15 ns: process 2: remove: done";
    assert_eq!(refusal.expect_err("there was nothing").to_string(), expected);
}

#[test]
fn a_search_that_takes_too_long_is_an_error() {
    let gets = (0..20).map(|at_ns| answered(1, Call::Get, (at_ns, at_ns), Answer::Absent));
    let mut history: History = gets.collect();
    assert!(history.check(20).is_ok());
    let undecided = history.check(19).expect_err("20 operations take 20 steps");
    assert_eq!(undecided, HistoryError::Undecided { key: 5, operations: 20, steps: 19 });
    assert_eq!(undecided.to_string(), "key 5: 19 steps did not decide whether its 20 operations are linearizable");
    // A key without an order is reported first, even if another key is undecided.
    history.push(Operation { key: 6, ..answered(1, Call::Get, (0, 1), Answer::Found(1)) });
    assert!(matches!(history.check(19), Err(HistoryError::NotLinearizable(impossible)) if impossible.key == 6));
}

#[test]
#[should_panic(expected = "no such answer")]
fn an_impossible_answer_panics() {
    History::new().push(answered(1, Call::Get, (0, 1), Answer::Done));
}

#[test]
#[should_panic(expected = "answered before it was called")]
fn an_answer_before_its_call_panics() {
    let mut history = History::new();
    let put = history.begin(1, 5, PUT_1, 10);
    history.complete(put, Answer::Done, 9);
}
