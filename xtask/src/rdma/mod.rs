//! `cargo xtask test-rdma`: the tests of RDMA on Soft-RoCE, RDMA in software, in a virtual machine that `vm.sh` makes from
//! Debian packages and boots. It has two RDMA devices whose packets cross a link (`init.sh`).
//!
//! A host that cannot do this, because it is no x86-64 or has no apt, makes the step of `cargo xtask release`
//! "not available". In the machine a test without a device fails instead of being skipped.

mod suites;

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

pub use self::suites::Selection;
use self::suites::{Run, Suite};
use crate::artifact::Artifact;
use crate::report::{Format, Verdict};
use crate::shell::{Budget, Outcome, Shell};
use crate::tree;

/// Limit for the machine, which emulates processors and so uses them while it hangs. It is up after 10 seconds on two
/// slow cores and then needs minutes for the default suite.
const MACHINE_LIMIT_S: u64 = 1_800;
/// Limit for the machine if it runs all suites.
const LONG_MACHINE_LIMIT_S: u64 = 5_400;
/// The folder of the scripts, from the root of the workspace.
const SCRIPTS: &str = "xtask/src/rdma";
/// How `vm.sh` ends if this host cannot run the machine.
const UNAVAILABLE: &str = "exit status: 77";

/// The tests to run.
#[derive(Args)]
pub struct Options {
    /// Run one suite: conformance (the conformance tests and those of memory nodes), kills (histories of killed
    /// processes), fence (a write that arrives after its client was fenced) or ycsb (a node and workloads A, B and C).
    /// With another NAME, such as end::, run the tests of the default suite whose names contain it.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Run all suites, one after the other.
    #[arg(long, conflicts_with = "only")]
    long: bool,
}

/// Runs `cargo xtask test-rdma`. A host that cannot run the machine is a failure here.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let selection = match (&options.only, options.long) {
        (Some(name), _) => Selection::of(name),
        (None, true) => Selection::Long,
        (None, false) => Selection::Default,
    };
    let part = selection.part().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
    ensure!(part.chars().all(is_name), "--only {part:?} is neither a suite nor a part of the name of a test");
    let shell = Shell::new(tree::workspace_root()?, format);
    shell.conclude("test-rdma", &run(&shell, selection))
}

/// Runs the default suite, as a step of `cargo xtask release`.
pub fn step(shell: &Shell) -> Outcome {
    run(shell, Selection::Default)
}

/// Runs the selected suites in the virtual machine.
fn run(shell: &Shell, selection: Selection<'_>) -> Outcome {
    attempt(shell, &Budget::unlimited(), selection).unwrap_or_else(|outcome| outcome)
}

fn attempt(shell: &Shell, budget: &Budget, selection: Selection<'_>) -> Result<Outcome, Outcome> {
    let directory = shell.target_directory("rdma");
    let failed = |error: io::Error| Outcome::Failed(format!("{}: {error}", directory.display()));
    fs::create_dir_all(&directory).map_err(failed)?;
    let tests = build(shell, budget, selection)?;
    let (mut lines, mut programs) = (String::new(), Vec::new());
    for suite in selection.suites() {
        for run in suite.runs {
            let starts = Start::of(shell, budget, run, &tests, selection.part().unwrap_or_default())?;
            lines.extend(starts.iter().map(|start| start.line(suite)));
            programs.extend(starts.into_iter().flat_map(|start| start.programs));
        }
    }
    programs.sort();
    programs.dedup();
    fs::write(directory.join("runs"), lines).map_err(failed)?;
    let scripts = shell.root().join(SCRIPTS);
    let mut machine = shell.command("bash", [scripts.join("vm.sh")]);
    machine.arg(&directory).arg(scripts.join("init.sh")).args(programs);
    let limit_s = if matches!(selection, Selection::Long) { LONG_MACHINE_LIMIT_S } else { MACHINE_LIMIT_S };
    let outcome = match shell.run(&mut machine, &Budget::of(limit_s)) {
        Outcome::Failed(status) if status == UNAVAILABLE => {
            return Err(Outcome::NotAvailable("its output says why".to_owned()));
        }
        other => other,
    };
    let results = Results::parse(&fs::read_to_string(directory.join("status")).unwrap_or_default());
    shell.say(results.to_string().trim_end());
    Ok(outcome.then(|| results.outcome()))
}

/// Builds the test programs, if a selection needs any.
fn build(shell: &Shell, budget: &Budget, selection: Selection<'_>) -> Result<Vec<Artifact>, Outcome> {
    if selection.suites().iter().flat_map(|suite| suite.runs).all(|run| matches!(run, Run::Script { .. })) {
        return Ok(Vec::new());
    }
    let mut command = shell.command("cargo", ["test", "--no-run", JSON, "--lib", "--tests"]);
    // Always the same packages: another selection would compile their dependencies again.
    command.args(suites::PACKAGES.iter().flat_map(|package| ["--package", package]));
    let printed = shell.read(&mut command, budget, &shell.target_directory("rdma").join("programs.json"))?;
    Ok(Artifact::all(&printed).filter(|artifact| artifact.profile.test).collect())
}

const JSON: &str = "--message-format=json-render-diagnostics";

/// A start of a program in the machine.
struct Start {
    environment: String,
    /// The programs that the machine needs for it; the first is started.
    programs: Vec<PathBuf>,
    arguments: String,
}

impl Start {
    /// How a run starts each of its programs that has a test whose name contains `part`.
    fn of(shell: &Shell, budget: &Budget, run: &Run, tests: &[Artifact], part: &str) -> Result<Vec<Start>, Outcome> {
        let (package, wanted, names, environment) = match run {
            Run::Tests { package, program, tests, environment } => (*package, *program, *tests, environment.join(" ")),
            Run::Script { name } => {
                let programs = vec![shell.root().join(SCRIPTS).join(name), guira(shell, budget)?];
                return Ok(vec![Start { environment: String::new(), programs, arguments: String::new() }]);
            }
        };
        let is_wanted =
            |it: &&Artifact| it.package() == Some(package) && wanted.is_none_or(|target| target == it.target.name);
        let (mut starts, mut listed) = (Vec::new(), String::new());
        for it in tests.iter().filter(is_wanted) {
            let mut list = shell.command(&it.executable.to_string_lossy(), ["--list", "--format", "terse"]);
            let into = shell.target_directory("rdma").join("tests.txt");
            let printed = shell.read(list.args(names), budget, &into)?;
            listed.push_str(&printed);
            let found = printed.lines().filter_map(|line| line.strip_suffix(": test"));
            let found: Vec<&str> = found.filter(|name| name.contains(part)).collect();
            if !found.is_empty() {
                let arguments = format!("--test-threads 1 --nocapture --exact {}", found.join(" "));
                let programs = vec![it.executable.clone()];
                starts.push(Start { environment: environment.clone(), programs, arguments });
            }
        }
        match gone(&listed, names) {
            Some(name) => Err(Outcome::Failed(format!("no test of {package} has {name:?} in its name"))),
            None => Ok(starts),
        }
    }

    /// The line of `/tests/runs`.
    fn line(&self, suite: &Suite) -> String {
        let program = self.programs[0].file_name().unwrap_or_default().to_string_lossy();
        format!("{}|{}|/tests/programs/{program}|{}\n", suite.name, self.environment, self.arguments)
    }
}

/// The first of `wanted`, parts of names, that is in the name of no listed test, because the tests were renamed or
/// removed. An empty `wanted` means any test.
fn gone<'n>(listed: &str, wanted: &[&'n str]) -> Option<&'n str> {
    let tests = || listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let is_gone = |part: &&str| !tests().any(|name| name.contains(*part));
    let any = if wanted.is_empty() { &[""] } else { wanted };
    any.iter().copied().find(is_gone)
}

/// Builds the program `guira` and returns its path.
fn guira(shell: &Shell, budget: &Budget) -> Result<PathBuf, Outcome> {
    let words = ["build", "--profile", "test", JSON, "--package", suites::CLI, "--bin", "guira"];
    let into = shell.target_directory("rdma").join("guira.json");
    let printed = shell.read(&mut shell.command("cargo", words), budget, &into)?;
    Artifact::program(&printed, "guira").ok_or_else(|| Outcome::Failed("cargo built no program guira".to_owned()))
}

/// The counts of a suite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SuiteResult {
    name: String,
    /// The exit status of its last program that failed; 0 if none did.
    status: u32,
    passed: u32,
    failed: u32,
}

/// The results that the machine wrote.
#[derive(Debug, PartialEq, Eq)]
struct Results {
    suites: Vec<SuiteResult>,
    /// Whether the last run has ended.
    is_complete: bool,
}

impl Results {
    /// Parses lines with a suite, an exit status and two counts, one for each run, and the word `end` behind them.
    fn parse(written: &str) -> Results {
        let mut results = Results { suites: Vec::new(), is_complete: false };
        for line in written.lines().map(str::trim) {
            let words: Vec<&str> = line.split(' ').collect();
            let numbers: Vec<u32> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
            match (words.as_slice(), numbers.as_slice()) {
                (["end"], _) => results.is_complete = true,
                ([name, _, _, _], [status, passed, failed]) => results.add(name, *status, *passed, *failed),
                _ => {}
            }
        }
        results
    }

    fn add(&mut self, name: &str, status: u32, passed: u32, failed: u32) {
        if self.suites.last().is_none_or(|suite| suite.name != name) {
            self.suites.push(SuiteResult { name: name.to_owned(), ..SuiteResult::default() });
        }
        if let Some(suite) = self.suites.last_mut() {
            suite.status = if status == 0 { suite.status } else { status };
            (suite.passed, suite.failed) = (suite.passed + passed, suite.failed + failed);
        }
    }

    fn outcome(&self) -> Outcome {
        let failed = |text: String| Outcome::Failed(text);
        match self.suites.iter().find(|suite| suite.status != 0 || suite.failed > 0) {
            _ if !self.is_complete => failed("the virtual machine ended without a result".to_owned()),
            Some(suite) => failed(format!("exit status {} of suite {}", suite.status, suite.name)),
            None if self.suites.iter().all(|suite| suite.passed == 0) => failed("no test ran".to_owned()),
            None => match self.suites.iter().find(|suite| suite.passed == 0) {
                Some(suite) => failed(format!("no test of suite {} ran", suite.name)),
                None => Outcome::Passed,
            },
        }
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |suite: &SuiteResult| format!("{}: {} passed, {} failed", suite.name, suite.passed, suite.failed);
        f.write_str(&self.suites.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_that_ran_and_passed_are_a_success() {
        let outcome = |text: &str| Results::parse(text).outcome();
        let failed = |text: &str| Outcome::Failed(text.to_owned());
        let incomplete = failed("the virtual machine ended without a result");
        assert_eq!(outcome("default 0 31 0\nend\n"), Outcome::Passed);
        assert_eq!(outcome("default 0 0 0\nend\n"), failed("no test ran"));
        assert_eq!(outcome("end\n"), failed("no test ran"));
        assert_eq!(outcome("default 0 3 0\nfence 0 0 0\nend\n"), failed("no test of suite fence ran"));
        assert_eq!(outcome("default 101 30 1\r\ndefault 0 2 0\r\nend\r\n"), failed("exit status 101 of suite default"));
        assert_eq!(outcome("default 0 31 0\n"), incomplete);
        assert_eq!(outcome(""), incomplete);
    }

    #[test]
    fn every_named_test_must_be_there() {
        let listed = "rdma::fence::a: test\nnode::b: test\nbench: benchmark\n";
        assert_eq!(gone(listed, &["fence::", "node::b"]), None);
        assert_eq!(gone(listed, &["fence::", "node::c"]), Some("node::c"));
        assert_eq!((gone(listed, &[]), gone("", &[])), (None, Some("")));
    }

    #[test]
    fn counts_of_the_runs_of_a_suite_are_summed() {
        let results = Results::parse("default 0 31 0\ndefault 101 2 1\nfence 0 4 0\nend\n");
        assert_eq!(results.to_string(), "default: 33 passed, 1 failed\nfence: 4 passed, 0 failed");
    }

    #[test]
    fn a_name_selects_a_suite_or_tests_of_the_default_one() {
        let names = |selection: Selection<'_>| selection.suites().iter().map(|suite| suite.name).collect::<Vec<_>>();
        assert_eq!(names(Selection::of("fence")), ["fence"]);
        assert_eq!((names(Selection::of("end::")), Selection::of("end::").part()), (vec!["default"], Some("end::")));
        assert_eq!(names(Selection::Long), ["default", "conformance", "kills", "fence", "ycsb"]);
    }
}
