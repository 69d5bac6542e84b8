//! Every decoder keeps its promises on the corpora in `fuzz/corpus` and on mutated copies of them: the harnesses of the
//! fuzz targets, on every toolchain.
//!
//! A case is identified by its harness and its number, which is its seed. An input that breaks a promise is printed in
//! full; kept as a file of the corpus, it is tried by every later run.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use guira_conformance::harness::{Answer, HARNESSES, Harness, mutate};
use guira_fabric::SplitMix64;

/// Mutated inputs of each harness.
const CASES: u64 = 10_000;

/// Runs a harness on an input, and names the input if a promise is broken.
fn run(harness: &Harness, origin: &str, input: &[u8]) -> Answer {
    let answer = panic::catch_unwind(AssertUnwindSafe(|| (harness.run)(input)));
    answer.unwrap_or_else(|_| {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("harness {}, {origin}, input of {} bytes: {hex}", harness.name, input.len())
    })
}

/// Returns the directory of the corpora.
fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
}

/// Returns the names in a directory.
fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("the directory can be read").path();
        path.file_name().expect("a name").to_str().expect("UTF-8").to_owned()
    };
    entries.map(name).collect()
}

/// Returns the corpus of a harness, by name.
fn inputs(harness: &Harness) -> Vec<(String, Vec<u8>)> {
    let directory = corpus().join(harness.name);
    let read = |name: String| {
        let bytes = fs::read(directory.join(&name)).expect("a file of the corpus can be read");
        (name, bytes)
    };
    names_in(&directory).into_iter().map(read).collect()
}

#[test]
fn every_file_of_the_corpus_keeps_every_promise() {
    for harness in &HARNESSES {
        for (name, input) in inputs(harness) {
            run(harness, &name, &input);
        }
        run(harness, "nothing", &[]);
    }
}

#[test]
fn changed_inputs_keep_every_promise() {
    for harness in &HARNESSES {
        let inputs = inputs(harness);
        let mut answers = [0; 2];
        for seed in 0..CASES {
            let mut rng = SplitMix64(seed);
            let pick = |rng: &mut SplitMix64| &inputs[rng.below(inputs.len() as u64) as usize].1;
            let mut input = pick(&mut rng).clone();
            let other = pick(&mut rng);
            mutate(&mut input, other, &mut rng);
            answers[run(harness, &format!("case {seed}"), &input) as usize] += 1;
        }
        println!("{}: {} accepted, {} refused", harness.name, answers[0], answers[1]);
        let least = CASES / 1_000;
        assert!(answers.iter().all(|count| *count >= least), "{}: {answers:?} tries one side only", harness.name);
    }
}

/// The corpora hold at least the seeds: `cargo run -p guira-conformance --example fuzz_corpus` writes them.
#[test]
fn the_corpora_hold_the_seeds() {
    for harness in &HARNESSES {
        let inputs = inputs(harness);
        for (name, seed) in (harness.seeds)() {
            let found = inputs.iter().find(|(found, _)| *found == name);
            assert!(found.is_some_and(|(_, bytes)| *bytes == seed), "{}/{name} is not as it is written", harness.name);
        }
    }
}

/// Each harness has one target and one corpus, and there are no others.
#[test]
fn targets_and_corpora_are_those_of_the_harnesses() {
    let names: BTreeSet<String> = HARNESSES.iter().map(|harness| harness.name.to_owned()).collect();
    assert_eq!(names.len(), HARNESSES.len());
    assert_eq!(names_in(&corpus()), names);
    let sources: BTreeSet<String> = names.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names_in(&corpus().join("../fuzz_targets")), sources);
}

/// The canary: a decoder that trusts a length is caught by the same runner with the same mutations.
#[test]
fn a_broken_promise_is_found() {
    fn trusting(data: &[u8]) -> Answer {
        let Some((length, rest)) = data.split_first() else { return Answer::Refused };
        assert!(usize::from(*length) <= rest.len(), "beyond the end");
        Answer::Accepted
    }
    let harness = Harness { name: "canary", run: trusting, seeds: Vec::new };
    let find = || {
        for seed in 0..CASES {
            let mut input = b"\x03abc".to_vec();
            mutate(&mut input, b"\x01a", &mut SplitMix64(seed));
            run(&harness, &format!("case {seed}"), &input);
        }
    };
    let message = *panic::catch_unwind(find).unwrap_err().downcast::<String>().unwrap();
    assert!(message.starts_with("harness canary, case ") && message.contains("bytes: "), "{message}");
}
