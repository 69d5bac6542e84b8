//! `cargo xtask mutants`: breaks one rule of the protocol at a time, and checks that named tests fail.
//!
//! A mutant is a file of `conformance/mutants`: a text of one source file, replacement code that breaks a rule when the
//! mutant is enabled, and the tests that must then fail. The sources are copied beside the build, with all mutants in
//! them, and compiled once. The tests are run without a mutant, when they must pass, and then with one mutant enabled
//! at a time, when each test that the mutant names must fail. A mutant that passes a test shows that the test is too
//! weak; a mutant that does not compile, or whose text is no longer in the source, proves nothing. All three are
//! failures. The ordinary build has no mutants.

mod mutant;
mod run;

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use crate::report::{Format, Verdict};
use crate::shell::{Budget, Outcome, Shell};
use crate::tree;
pub use mutant::Mutant;
use run::{Copy, Tried};

/// The folder of the mutants, from the root of the workspace.
pub const DIRECTORY: &str = "conformance/mutants";

/// The mutants to try.
#[derive(Args)]
pub struct Options {
    /// Mutants to try; default: all.
    #[arg(value_name = "MUTANT")]
    mutants: Vec<String>,
}

/// Runs `cargo xtask mutants`.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let shell = Shell::new(tree::workspace_root()?, format);
    let all = mutant::read_all(shell.root())?;
    let wanted = wanted(&all, &options.mutants)?;
    let summary = try_all(&shell, &Budget::unlimited(), &all, &wanted)?;
    match format {
        Format::Human => println!("\n{}", summary.human()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&summary)?),
    }
    Ok(if summary.ok { Verdict::Passed } else { Verdict::Failed })
}

/// Tries every mutant, as a step of `cargo xtask release`.
pub fn step(shell: &Shell) -> Outcome {
    let budget = Budget::unlimited();
    let summary =
        mutant::read_all(shell.root()).and_then(|all| try_all(shell, &budget, &all, &all.iter().collect::<Vec<_>>()));
    match summary {
        Ok(summary) => {
            shell.say(&summary.human());
            match summary.ok {
                true => Outcome::Passed,
                false => Outcome::Failed(summary.verdict()),
            }
        }
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn wanted<'m>(all: &'m [Mutant], names: &[String]) -> Result<Vec<&'m Mutant>> {
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|mutant| mutant.name == **name)) {
        bail!("unknown mutant {unknown:?}; the mutants are the files of {DIRECTORY}");
    }
    Ok(all.iter().filter(|mutant| names.is_empty() || names.contains(&mutant.name)).collect())
}

/// Compiles the tests with `all` mutants, runs the tests that the `wanted` mutants name without any mutant, and then
/// runs the tests of each with that mutant enabled.
fn try_all(shell: &Shell, budget: &Budget, all: &[Mutant], wanted: &[&Mutant]) -> Result<Summary> {
    let started = Instant::now();
    let since = |started: Instant| started.elapsed().as_secs_f64();
    let copy = Copy::make(shell, budget, all)?;
    shell.say(&format!("{} mutants compiled in {:.1} s", all.len(), since(started)));
    let checks = wanted.iter().flat_map(|mutant| mutant.caught_by.iter().cloned()).collect();
    let compiled = Instant::now();
    let sound = copy.run(&checks, None)?;
    if let Some(wrong) = sound.iter().find(|check| !check.passed) {
        bail!("{} fails without a mutant: {}", wrong.check, wrong.why);
    }
    shell.say(&format!("{} tests passed without a mutant in {:.1} s", sound.len(), since(compiled)));
    let tried = copy.try_each(wanted)?;
    let ok = tried.iter().all(Tried::is_caught);
    Ok(Summary { ok, seconds: since(started), tests: sound.len(), mutants: tried })
}

#[derive(Debug, Serialize)]
struct Summary {
    ok: bool,
    seconds: f64,
    /// Number of named tests that passed without a mutant.
    tests: usize,
    mutants: Vec<Tried>,
}

impl Summary {
    fn human(&self) -> String {
        let mut lines = vec![format!("{:<38} {:<12} {:>7}  caught by", "mutant", "rule", "seconds")];
        for tried in &self.mutants {
            lines.push(format!("{:<38} {:<12} {:>7.1}  {}", tried.name, tried.rule, tried.seconds, tried.verdict()));
        }
        lines.push(self.verdict());
        lines.join("\n")
    }

    fn verdict(&self) -> String {
        let caught = self.mutants.iter().filter(|tried| tried.is_caught()).count();
        let (all, word) = (self.mutants.len(), if self.ok { "passed" } else { "FAILED" });
        format!("mutants: {word}; {caught} of {all} caught by {} tests in {:.1} s", self.tests, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(name: &str, missed: &[&str]) -> Tried {
        let missed = missed.iter().map(|name| (*name).to_owned()).collect();
        Tried {
            name: name.to_owned(),
            rule: "R-A-1".to_owned(),
            seconds: 1.0,
            caught_by: vec!["a::b".to_owned()],
            missed,
        }
    }

    #[test]
    fn one_mutant_that_is_not_caught_fails_the_run() {
        let summary =
            |mutants: Vec<Tried>| Summary { ok: mutants.iter().all(Tried::is_caught), seconds: 1.0, tests: 1, mutants };
        let good = summary(vec![tried("x", &[])]);
        assert!(good.ok && good.human().ends_with("passed; 1 of 1 caught by 1 tests in 1.0 s"), "{}", good.human());
        let bad = summary(vec![tried("x", &[]), tried("y", &["c::d passed"])]);
        assert!(!bad.ok && bad.human().contains("NOT caught: c::d passed"), "{}", bad.human());
        assert!(bad.human().ends_with("FAILED; 1 of 2 caught by 1 tests in 1.0 s"), "{}", bad.human());
    }

    #[test]
    fn an_unknown_mutant_is_an_error() {
        let root = tree::workspace_root().expect("the tests run inside the workspace");
        let all = mutant::read_all(&root).expect("the mutants are valid");
        let name = all[0].name.clone();
        assert_eq!(wanted(&all, std::slice::from_ref(&name)).expect("the mutant exists").len(), 1);
        assert_eq!(wanted(&all, &[]).expect("all").len(), all.len());
        assert!(wanted(&all, &[name + "-not"]).is_err());
    }
}
