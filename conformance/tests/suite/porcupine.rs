//! A comparison of the linearizability checker with Porcupine, an independent one.
//!
//! `cargo xtask release --only porcupine` builds the Go program in `porcupine/`, and runs this with its path; without
//! one the test does nothing.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use guira_check::history::{Answer, Call, History, HistoryError, Operation, Outcome, SEARCH_STEPS};
use guira_conformance::histories::{HistorySpec, MapError, with_coarse_clock};
use guira_fabric::SplitMix64;

/// The environment variable that names the program.
const PROGRAM: &str = "GUIRA_PORCUPINE";
const HISTORIES: u64 = 6_000;

/// Formats a history as a line for the program. Operations without effect are left out, because Porcupine does not know
/// them.
fn line(history: &History) -> String {
    let operations = history.operations().filter(|operation| operation.outcome != Outcome::WithoutEffect).map(object);
    format!("[{}]\n", operations.collect::<Vec<_>>().join(","))
}

fn object(operation: &Operation) -> String {
    let Operation { process, key, call, called_ns, outcome } = operation;
    let (name, value, expected) = match call {
        Call::Get => ("get", 0, 0),
        Call::Put(value) => ("put", *value, 0),
        Call::Insert(value) => ("insert", *value, 0),
        Call::Update(value) => ("update", *value, 0),
        Call::Remove => ("remove", 0, 0),
        Call::CompareAndSwap { expected, new } => ("compare_and_swap", *new, *expected),
        Call::CompareAndRemove(expected) => ("compare_and_remove", 0, *expected),
    };
    let mut object = format!(
        "{{\"process\":{process},\"key\":{key},\"call\":\"{name}\",\"value\":{value},\"expected\":{expected},\
         \"called_ns\":{called_ns}"
    );
    if let Outcome::Answered { answer, at_ns } = outcome {
        let (answer, found) = match answer {
            Answer::Found(value) => ("found".to_owned(), *value),
            other => (other.to_string(), 0),
        };
        write!(object, ",\"answer\":\"{answer}\",\"found\":{found},\"answered_ns\":{at_ns}").unwrap();
    }
    object + "}"
}

fn drawn(seed: u64) -> (HistorySpec, History) {
    let mut rng = SplitMix64(seed);
    let drawn = HistorySpec {
        seed,
        processes: 2 + rng.below(5),
        operations: 8 + rng.below(50),
        keys: 1 + rng.below(3),
        deaths_permille: [0, 50, 200][rng.below(3) as usize],
        value_uses: 1 + rng.below(4),
        error: MapError::drawn(seed),
    };
    let history = drawn.history();
    let history = if rng.below(3) == 0 { with_coarse_clock(&history, 30) } else { history };
    (drawn, history)
}

#[test]
fn porcupine_agrees_on_drawn_histories() {
    let Some(program) = std::env::var_os(PROGRAM) else {
        return println!("{PROGRAM} names no program: nothing to compare with");
    };
    let histories: Vec<(HistorySpec, History)> = (0..HISTORIES).map(drawn).collect();
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: String = histories.iter().map(|(_, history)| line(history)).collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    let verdicts = String::from_utf8(output.stdout).unwrap();
    assert_eq!(verdicts.lines().count() as u64, HISTORIES);
    let (mut accepted, mut operations, mut pending) = (0, 0, 0);
    for ((drawn, history), theirs) in histories.iter().zip(verdicts.lines()) {
        let ours = match history.check(SEARCH_STEPS) {
            Ok(_) => "ok",
            Err(HistoryError::NotLinearizable(_)) => "illegal",
            Err(undecided) => panic!("{drawn:?}: {undecided}"),
        };
        assert_eq!(ours, theirs, "{drawn:?}: {:#?}", history.operations().collect::<Vec<_>>());
        accepted += u64::from(ours == "ok");
        operations += history.len();
        pending += history.operations().filter(|operation| operation.outcome == Outcome::Pending).count();
    }
    println!(
        "Porcupine agrees on {HISTORIES} histories, {accepted} of them linearizable: \
         {operations} operations, {pending} pending"
    );
    assert!(
        accepted >= HISTORIES / 2 && HISTORIES - accepted > HISTORIES / 6 && pending as u64 > HISTORIES,
        "all occur"
    );
}
