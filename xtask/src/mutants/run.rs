//! A copy of the sources, in which mutants are built and tried.
//!
//! The copy and its build stay beside the other builds, for the next time: a mutant costs what depends on the one file
//! that it changes. They share nothing: cargo takes two workspaces of one shape in one target directory for the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::mutant::{Check, Mutant, Program};
use crate::test::{Budget, Outcome, Shell, target_directory};
use crate::tree::Tree;

/// Named tests of one program: several times what the slowest of them takes.
const TESTS_LIMIT_S: u64 = 300;
/// Lines of the compiler's output that are shown when a mutant does not compile.
const TAIL_LINES: usize = 30;

/// The copy.
pub struct Copy<'s> {
    shell: &'s Shell,
    /// The same, at the root of the copy.
    inside: Shell,
    budget: &'s Budget,
    directory: PathBuf,
}

/// How a named test ended.
pub struct Checked {
    pub check: Check,
    pub passed: bool,
    /// How, if it did not pass.
    pub why: &'static str,
    pub hangs: bool,
}

/// How a mutant fared.
#[derive(Debug, Serialize)]
pub struct Tried {
    pub name: String,
    pub rule: String,
    pub seconds: f64,
    /// Tests that noticed it.
    pub caught_by: Vec<String>,
    /// Tests that did not, or not in a way that counts.
    pub missed: Vec<String>,
}

impl Tried {
    pub fn is_caught(&self) -> bool {
        self.missed.is_empty() && !self.caught_by.is_empty()
    }

    pub fn verdict(&self) -> String {
        match self.is_caught() {
            true => self.caught_by.join(", "),
            false => format!("NOT caught: {}", self.missed.join(", ")),
        }
    }
}

impl<'s> Copy<'s> {
    /// Copies every source, and leaves alone what is there and equal.
    pub fn make(shell: &'s Shell, budget: &'s Budget) -> Result<Copy<'s>> {
        let directory = target_directory(shell, "mutants");
        let root = directory.join("sources");
        let sources = Tree::load(shell.root())?.paths;
        for path in &sources {
            copy(&shell.root().join(path), &root.join(path)).with_context(|| path.clone())?;
        }
        for path in Tree::load(&root)?.paths.difference(&sources) {
            fs::remove_file(root.join(path)).with_context(|| path.clone())?;
        }
        Ok(Copy { shell, inside: shell.at(root), budget, directory })
    }

    /// Breaks the rule, runs the tests that must notice, and mends it again.
    pub fn try_mutant(&self, mutant: &Mutant) -> Result<Tried> {
        let started = Instant::now();
        let path = self.inside.root().join(&mutant.file);
        let source = fs::read_to_string(&path).with_context(|| mutant.file.clone())?;
        fs::write(&path, mutant.apply(&source)?).with_context(|| mutant.file.clone())?;
        let checked = self.run(&mutant.caught_by.iter().cloned().collect());
        fs::write(&path, source).with_context(|| mutant.file.clone())?;
        let counts = |checked: &&Checked| !checked.passed && (mutant.may_hang || !checked.hangs);
        let checked = checked.with_context(|| mutant.name.clone())?;
        let (caught_by, missed): (Vec<_>, Vec<_>) = checked.iter().partition(counts);
        Ok(Tried {
            name: mutant.name.clone(),
            rule: mutant.rule.clone(),
            seconds: started.elapsed().as_secs_f64(),
            caught_by: caught_by.iter().map(|checked| checked.check.to_string()).collect(),
            missed: missed.iter().map(|checked| format!("{} {}", checked.check, checked.why)).collect(),
        })
    }

    /// Builds and runs `checks`, and says of each how it ended.
    pub fn run(&self, checks: &BTreeSet<Check>) -> Result<Vec<Checked>> {
        let mut programs: BTreeMap<&Program, Vec<&Check>> = BTreeMap::new();
        for check in checks {
            programs.entry(&check.program).or_default().push(check);
        }
        let mut checked = Vec::with_capacity(checks.len());
        for (program, checks) in programs {
            self.build(program)?;
            checked.extend(self.run_program(program, &checks)?);
        }
        Ok(checked)
    }

    fn build(&self, program: &Program) -> Result<()> {
        let log = self.directory.join("build.log");
        let mut command = self.cargo(program);
        command.arg("--no-run");
        match self.inside.run_into(&mut command, self.budget, &log)? {
            Outcome::Passed => Ok(()),
            other => {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = said.lines().collect();
                self.shell.say(&lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"));
                bail!("{program} does not compile: {} {}", other.word(), other.detail());
            }
        }
    }

    fn run_program(&self, program: &Program, checks: &[&Check]) -> Result<Vec<Checked>> {
        let log = self.directory.join("tests.log");
        let limit_s = TESTS_LIMIT_S;
        let budget = Budget { until: self.budget.until.min(Instant::now() + Duration::from_secs(limit_s)), limit_s };
        let mut command = self.cargo(program);
        command.args(["--", "--exact"]).args(checks.iter().map(|check| &check.test));
        let outcome = self.inside.run_into(&mut command, &budget, &log)?;
        let said = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
        checks.iter().map(|check| ended(check, &said, &outcome)).collect()
    }

    /// `cargo test` of a program in the copy, without what only a debugger needs. Incremental, in many units: a program
    /// is compiled once as a whole, and then again and again for changes of one function.
    fn cargo(&self, program: &Program) -> Command {
        let mut command = self.inside.command("cargo", ["test", "--locked"]);
        command.env("CARGO_PROFILE_TEST_INCREMENTAL", "true").env("CARGO_PROFILE_TEST_CODEGEN_UNITS", "256");
        command.args(program.arguments()).env("CARGO_TARGET_DIR", self.directory.join("target"));
        command.env("CARGO_PROFILE_TEST_DEBUG", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }
}

/// How `check` ended, by what the test program `said`.
fn ended(check: &Check, said: &str, outcome: &Outcome) -> Result<Checked> {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("test ")?.strip_prefix(check.test.as_str())?.strip_prefix(" ... "));
    let (passed, why, hangs) = match (line, outcome) {
        (Some("ok"), _) => (true, "passed", false),
        (Some("FAILED"), _) => (false, "failed", false),
        (_, Outcome::TimedOut(_)) => (false, "did not end", true),
        (_, Outcome::Failed(_)) => (false, "ended its program", false),
        (_, other) => bail!("{check} did not run: {} {}", other.word(), other.detail()),
    };
    Ok(Checked { check: check.clone(), passed, why, hangs })
}

/// Copies a file, unless its copy is equal: then its time stays, and cargo does not compile it again.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from)?;
    if fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(fs::write(to, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> Check {
        Check::try_from("sim::deaths::a_put".to_owned()).expect("a name")
    }

    #[test]
    fn a_test_ended_as_its_program_says() {
        let failed = Outcome::Failed("exit status: 101".to_owned());
        let said = "test deaths::a_put_more ... ok\ntest deaths::a_put ... FAILED\n";
        let ended = |said, outcome: &Outcome| ended(&check(), said, outcome).map(|it| (it.passed, it.hangs));
        assert_eq!(ended(said, &failed).expect("it ran"), (false, false));
        assert_eq!(ended("test deaths::a_put ... ok\n", &failed).expect("it ran"), (true, false));
        assert_eq!(ended("test deaths::a_put ... ", &failed).expect("it died"), (false, false));
        assert_eq!(ended("", &Outcome::TimedOut(String::new())).expect("it hung"), (false, true));
        assert!(ended("running 0 tests", &Outcome::Passed).is_err(), "a test that is not there notices nothing");
    }

    #[test]
    fn who_is_missed_by_one_test_is_not_caught() {
        let tried = |caught: &[&str], missed: &[&str]| Tried {
            name: "x".to_owned(),
            rule: "R-A-1".to_owned(),
            seconds: 0.0,
            caught_by: caught.iter().map(|name| (*name).to_owned()).collect(),
            missed: missed.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(tried(&["a"], &[]).is_caught());
        assert!(!tried(&["a"], &["b"]).is_caught() && !tried(&[], &[]).is_caught());
    }
}
