//! The steps of `cargo xtask test`: the commands of each, its predecessors and its time limit.
//!
//! Each step belongs to the gate (`cargo xtask test`), which decides whether a change is right, or to the release check
//! (`cargo xtask release`), which measures this machine or asks what changes without the sources.
//!
//! Limits are many times what two slow cores need with nothing compiled: they end hangs and measure nothing. The
//! expected time of a step is its budget ([`super::budget`]).

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use super::process::Shell;
use super::suites::{self, Part, Programs};
use super::{Outcome, Scope, needs, porcupine, ship};
use crate::{check, fuzz, mutants, rdma};

/// Limit for installing over a slow network: package lists have tens of megabytes.
const INSTALL_LIMIT_S: u64 = 1_800;
/// Limit for reading the sources, which takes seconds.
const READ_LIMIT_S: u64 = 600;
/// Limit for checking the whole workspace, or building its documentation.
const LINT_LIMIT_S: u64 = 4_800;
/// Limit for compiling the whole workspace optimised, across crates.
const BUILD_LIMIT_S: u64 = 4_800;
/// Limit for compiling and running every test; the longest suites fill tables and kill processes for minutes.
const TEST_LIMIT_S: u64 = 5_400;
/// Limit for exploring every interleaving of the word-copy kernel, which takes minutes with its bound on preemptions.
const LOOM_LIMIT_S: u64 = 1_200;
/// Limit for interpreting the unit tests, which is hundreds of times slower than running them.
const MIRI_LIMIT_S: u64 = 1_800;
/// Seconds of each fuzz target by default, enough for its corpus and some thousands of mutated inputs.
const FUZZ_SECONDS: u64 = 5;
/// Seconds of each fuzz target with `--long`.
const LONG_FUZZ_SECONDS: u64 = 60;
/// Limit for building every fuzz target and running one after the other, with room for twice as many targets.
const FUZZ_LIMIT_S: u64 = fuzz::limit_s(24, LONG_FUZZ_SECONDS);
/// Limit of the tests with `--long`: an hour of killed processes, several times ten minutes, and 100,000 seeds.
const LONG_TEST_LIMIT_S: u64 = 6 * 3_600;

const _: () = assert!(READ_LIMIT_S < INSTALL_LIMIT_S && BUILD_LIMIT_S < TEST_LIMIT_S);

/// The name of a step in `--skip` and `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum StepName {
    Needs,
    Components,
    Format,
    Check,
    TestBuild,
    Deny,
    Clippy,
    Build,
    Suites,
    Processes,
    Mutants,
    Fuzz,
    Doc,
    Instructions,
    DocTests,
    Porcupine,
    Rdma,
    Loom,
    Miri,
    Msrv,
    Package,
    Advisories,
}

impl StepName {
    /// The index in [`STEPS`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Whether it is a step of `cargo xtask release` rather than of `cargo xtask test`.
    pub fn is_of_release(self) -> bool {
        match self {
            Self::Needs | Self::Components | Self::Format | Self::Check | Self::TestBuild | Self::Deny => false,
            Self::Clippy | Self::Suites | Self::Processes | Self::Doc | Self::DocTests => false,
            Self::Build | Self::Mutants | Self::Fuzz | Self::Instructions | Self::Porcupine | Self::Rdma => true,
            Self::Loom | Self::Miri | Self::Msrv | Self::Package | Self::Advisories => true,
        }
    }

    /// Whether its successors need what it builds.
    pub fn is_build(self) -> bool {
        matches!(self, Self::Build | Self::TestBuild)
    }
}

impl Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// A directory below the target directory, whose lock only one build can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildDirectory {
    Debug,
    Release,
}

/// One step: its name, a description in one line, its limit, and its ordering.
#[derive(Debug, Serialize)]
pub struct Step {
    pub name: StepName,
    pub title: &'static str,
    pub limit_s: u64,
    /// Steps that must end before it starts.
    pub after: &'static [StepName],
    /// The directory that it builds into, if other steps do, too.
    pub builds_in: Option<BuildDirectory>,
}

const NEEDS: &[StepName] = &[StepName::Needs, StepName::Components];
const TEST_BUILD: &[StepName] = &[StepName::TestBuild];
const DEBUG: Option<BuildDirectory> = Some(BuildDirectory::Debug);
const RELEASE: Option<BuildDirectory> = Some(BuildDirectory::Release);

/// Every step. Of the steps that can start, the first one does, so longer steps come first.
pub const STEPS: [Step; 22] = [
    step(StepName::Needs, "system packages and data that tests use", INSTALL_LIMIT_S, &[], None),
    step(StepName::Components, "rustup component add rustfmt clippy, if they are missing", INSTALL_LIMIT_S, &[], None),
    step(StepName::Format, "cargo fmt --all --check", READ_LIMIT_S, NEEDS, None),
    step(StepName::Check, "cargo xtask check", READ_LIMIT_S, NEEDS, None),
    step(
        StepName::TestBuild,
        "cargo test --workspace --features guira-cli/peers --lib --bins --tests --no-run, and the examples",
        BUILD_LIMIT_S,
        NEEDS,
        DEBUG,
    ),
    step(StepName::Deny, "cargo deny check bans licenses sources", ship::DENY_LIMIT_S, NEEDS, None),
    step(
        StepName::Clippy,
        "cargo clippy --workspace --all-targets -- -D warnings, without and with guira-cli/peers",
        LINT_LIMIT_S,
        NEEDS,
        DEBUG,
    ),
    step(
        StepName::Build,
        "cargo build --release -p guira-instructions -p guira-cli --bin guira-instructions",
        BUILD_LIMIT_S,
        NEEDS,
        RELEASE,
    ),
    step(
        StepName::Suites,
        "the test programs that compute, each module of a suite in its own process",
        TEST_LIMIT_S,
        TEST_BUILD,
        None,
    ),
    step(
        StepName::Processes,
        "the test programs with processes, sockets and timers, likewise",
        TEST_LIMIT_S,
        TEST_BUILD,
        None,
    ),
    step(StepName::Mutants, "cargo xtask mutants", mutants::LIMIT_S, NEEDS, None),
    step(StepName::Fuzz, "cargo xtask fuzz --seconds 5", FUZZ_LIMIT_S, NEEDS, None),
    step(
        StepName::Doc,
        "RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace --no-deps",
        LINT_LIMIT_S,
        &[StepName::Clippy],
        DEBUG,
    ),
    step(StepName::Instructions, "cargo xtask instructions", BUILD_LIMIT_S, &[StepName::Build], RELEASE),
    step(
        StepName::DocTests,
        "cargo test --workspace --features guira-cli/peers --doc",
        TEST_LIMIT_S,
        TEST_BUILD,
        DEBUG,
    ),
    step(
        StepName::Porcupine,
        "the linearizability checker, compared with the Go program Porcupine",
        porcupine::LIMIT_S,
        TEST_BUILD,
        DEBUG,
    ),
    step(
        StepName::Rdma,
        "cargo xtask test-rdma, with the test programs of the step test-build",
        rdma::LIMIT_S,
        TEST_BUILD,
        None,
    ),
    step(
        StepName::Loom,
        "RUSTFLAGS=\"--cfg loom\" cargo test -p guira-fabric --test loom --release --target-dir target/loom",
        LOOM_LIMIT_S,
        NEEDS,
        None,
    ),
    step(
        StepName::Miri,
        "MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p guira-fabric --lib --target-dir target/miri",
        MIRI_LIMIT_S,
        NEEDS,
        None,
    ),
    step(
        StepName::Msrv,
        "cargo +MSRV check --locked of the published packages, with the rust-version of Cargo.toml",
        ship::MSRV_LIMIT_S,
        NEEDS,
        None,
    ),
    step(
        StepName::Package,
        "cargo package --no-verify of the published packages, and cargo check -p of each archive",
        ship::PACKAGE_LIMIT_S,
        NEEDS,
        None,
    ),
    step(StepName::Advisories, "cargo deny check advisories", ship::DENY_LIMIT_S, NEEDS, None),
];

const fn step(
    name: StepName,
    title: &'static str,
    limit_s: u64,
    after: &'static [StepName],
    builds_in: Option<BuildDirectory>,
) -> Step {
    Step { name, title, limit_s, after, builds_in }
}

impl Step {
    /// Runs the step within its limit.
    pub fn run(&self, shell: &Shell, scope: &Scope) -> Outcome {
        let limit_s = match (self.name, scope.is_long) {
            (StepName::Suites | StepName::Processes, true) => LONG_TEST_LIMIT_S,
            _ => self.limit_s,
        };
        let budget = Budget { until: Instant::now() + Duration::from_secs(limit_s), limit_s };
        let run = |command: &mut Command| shell.run(command, &budget);
        match self.name {
            StepName::Needs => needs::install(shell, &budget),
            StepName::Components => components(shell, &budget),
            StepName::Format => run(&mut cargo(shell, "fmt --all --check")),
            StepName::Check => own_check(shell, &budget),
            StepName::TestBuild => scope.programs(|| Programs::build(shell, &budget)).err().unwrap_or(Outcome::Passed),
            StepName::Deny => ship::deny(shell, &budget),
            StepName::Clippy => clippy(shell, &budget),
            StepName::Build => {
                run(&mut cargo(shell, "build --release -p guira-instructions -p guira-cli --bin guira-instructions"))
            }
            StepName::Suites => suites::run(shell, &budget, scope, Part::Computing),
            StepName::Processes => suites::run(shell, &budget, scope, Part::Waiting),
            StepName::Mutants => mutants::step(shell, &budget),
            StepName::Fuzz => fuzz::run(shell, &budget, fuzz_seconds(scope), &[]),
            StepName::Doc => {
                let mut command = cargo(shell, "doc --workspace --no-deps");
                run(command.env("RUSTDOCFLAGS", with_inherited("RUSTDOCFLAGS", "-D warnings")))
            }
            StepName::Instructions => instructions(shell, &budget),
            StepName::DocTests => run(&mut cargo(shell, "test --workspace --features guira-cli/peers --doc")),
            StepName::Porcupine => porcupine::compare(shell, &budget, scope),
            StepName::Rdma => match scope.programs(|| Programs::build(shell, &budget)) {
                Ok(programs) => {
                    let selection = if scope.is_long { rdma::Selection::Long } else { rdma::Selection::Default };
                    rdma::run(shell, &budget, &programs.for_rdma(), selection)
                }
                Err(outcome) => outcome,
            },
            StepName::Loom => {
                let mut command = cargo(shell, "test -p guira-fabric --test loom --release --target-dir");
                command.arg(target_directory(shell, "loom"));
                // Only one small crate is explored, so the optimisations of releases would cost more than they save.
                command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
                run(command.env("RUSTFLAGS", with_inherited("RUSTFLAGS", "--cfg loom")))
            }
            StepName::Miri => miri(shell, &budget),
            StepName::Msrv => ship::msrv(shell, &budget),
            StepName::Package => ship::package(shell, &budget),
            StepName::Advisories => ship::advisories(shell, &budget),
        }
    }
}

fn fuzz_seconds(scope: &Scope) -> u64 {
    if scope.is_long { LONG_FUZZ_SECONDS } else { FUZZ_SECONDS }
}

/// A command of cargo with the words of `line` as arguments.
fn cargo(shell: &Shell, line: &str) -> Command {
    shell.command("cargo", line.split_whitespace())
}

/// Lints the default features, and then also feature `peers`.
fn clippy(shell: &Shell, budget: &Budget) -> Outcome {
    ["", "--features guira-cli/peers"]
        .into_iter()
        .map(|features| {
            let line = format!("clippy --workspace --all-targets {features} -- -D warnings");
            shell.run(&mut cargo(shell, &line), budget)
        })
        .find(|outcome| *outcome != Outcome::Passed)
        .unwrap_or(Outcome::Passed)
}

/// The time of a step, which all its commands share.
pub struct Budget {
    pub until: Instant,
    pub limit_s: u64,
}

impl Budget {
    /// The outcome when the time is exceeded.
    pub fn exceeded(&self) -> Outcome {
        Outcome::TimedOut(format!("killed after {} s", self.limit_s))
    }
}

fn components(shell: &Shell, budget: &Budget) -> Outcome {
    let is_there = |tool: &str| shell.succeeds("cargo", [tool, "--version"], budget);
    if is_there("fmt") && is_there("clippy") {
        return Outcome::Passed;
    }
    shell.run(&mut shell.command("rustup", ["component", "add", "rustfmt", "clippy"]), budget)
}

/// Runs the checks in this process.
fn own_check(shell: &Shell, budget: &Budget) -> Outcome {
    let root = shell.root().to_owned();
    let reports = match within(budget, move || check::run(&root)) {
        Ok(Ok(reports)) => reports,
        Ok(Err(error)) => return Outcome::Failed(format!("{error:#}")),
        Err(outcome) => return outcome,
    };
    shell.say(&reports.human());
    match reports.violations() {
        0 => Outcome::Passed,
        count => Outcome::Failed(format!("violations: {count}")),
    }
}

/// Runs `work` on a thread and returns its result. If it does not end in time, the thread is abandoned.
pub fn within<T: Send + 'static>(budget: &Budget, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Outcome> {
    let (sender, receiver) = mpsc::channel();
    // If the receiver has given up, the result is not needed.
    thread::spawn(move || drop(sender.send(work())));
    let left = budget.until.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => budget.exceeded(),
        mpsc::RecvTimeoutError::Disconnected => Outcome::Failed("the check panicked".to_owned()),
    })
}

/// Counts instructions, if this is the target of the recorded counts and valgrind is installed.
fn instructions(shell: &Shell, budget: &Budget) -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        return Outcome::NotAvailable("the recorded instructions are those of x86-64".to_owned());
    }
    if !shell.succeeds("valgrind", ["--version"], budget) {
        return Outcome::NotAvailable("valgrind is not installed; the step needs prints how to install it".to_owned());
    }
    // Not by cargo, which would wait for the build of the tests.
    match std::env::current_exe() {
        Ok(own) => shell.run(&mut shell.command(&own.to_string_lossy(), ["instructions"]), budget),
        Err(error) => Outcome::Failed(format!("this program cannot be found: {error}")),
    }
}

/// Runs Miri, which needs a nightly toolchain: without it the step is not available, which is not an error.
fn miri(shell: &Shell, budget: &Budget) -> Outcome {
    if !shell.succeeds("rustup", ["run", "nightly", "rustc", "--version"], budget) {
        return Outcome::NotAvailable("there is no nightly toolchain".to_owned());
    }
    let is_there = || shell.succeeds("cargo", ["+nightly", "miri", "--version"], budget);
    let add = ["component", "add", "miri", "rust-src", "--toolchain", "nightly"];
    let can_install = || shell.succeeds("rustup", add, budget);
    let is_available = is_there() || (can_install() && is_there());
    if !is_available {
        return Outcome::NotAvailable("the nightly toolchain has no Miri and could not add it".to_owned());
    }
    // Miri first builds a standard library from source; a failure there is one of the machine, not of this code.
    if !shell.succeeds("cargo", ["+nightly", "miri", "setup"], budget) {
        return Outcome::NotAvailable("Miri is there but could not build its standard library".to_owned());
    }
    let arguments = ["+nightly", "miri", "test", "-p", "guira-fabric", "--lib", "--target-dir"];
    let mut command = shell.command("cargo", arguments);
    command.arg(target_directory(shell, "miri")).env("MIRIFLAGS", "-Zmiri-disable-isolation");
    shell.run(&mut command, budget)
}

/// A separate target directory, so that other flags do not rebuild the artifacts that the other steps share.
pub fn target_directory(shell: &Shell, name: &str) -> PathBuf {
    let shared = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| shell.root().join("target"), PathBuf::from);
    shared.join(name)
}

/// `flags` appended to those of the environment in `variable`.
fn with_inherited(variable: &str, flags: &str) -> String {
    let inherited = std::env::var(variable).unwrap_or_default();
    format!("{inherited} {flags}").trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Format;

    #[test]
    fn every_name_is_one_step_in_the_order_of_the_list() {
        let names: Vec<StepName> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names, StepName::value_variants());
        assert!(STEPS.iter().enumerate().all(|(place, step)| step.name.index() == place));
    }

    /// A step after a later one would make the order of running differ from the order of the list.
    #[test]
    fn steps_depend_only_on_earlier_ones() {
        for step in &STEPS {
            assert!(step.after.iter().all(|name| name.index() < step.name.index()), "{}", step.name);
        }
    }

    #[test]
    fn work_in_this_process_has_a_time_limit() {
        let budget = |limit_s| Budget { until: Instant::now() + Duration::from_secs(limit_s), limit_s };
        let (_held, never) = mpsc::channel::<()>();
        assert_eq!(within(&budget(0), move || never.recv().is_ok()), Err(budget(0).exceeded()));
        assert_eq!(within(&budget(60), || 7), Ok(7));
    }

    #[test]
    fn a_step_without_its_tool_is_not_available_and_not_a_failure() {
        let budget = Budget { until: Instant::now() + Duration::from_secs(20), limit_s: 20 };
        let shell = Shell::new(PathBuf::from("."), Format::Json);
        assert!(!shell.succeeds("no-such-tool-anywhere", ["--version"], &budget));
        assert!(!Outcome::NotAvailable(String::new()).is_failure());
    }
}
