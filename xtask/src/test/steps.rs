//! The steps of `cargo xtask test`: what each runs, what it comes after, and how long it may take.
//!
//! Limits are several times what two slow cores need with nothing compiled: they end a hang, they measure nothing. What
//! a step is expected to take is its budget ([`super::budget`]).

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
use crate::{check, fuzz, mutants};

/// Installing over a slow network: package lists are tens of megabytes.
const INSTALL_LIMIT_S: u64 = 600;
/// Reading sources takes seconds.
const READ_LIMIT_S: u64 = 120;
/// Compiling the whole workspace without its code, or its documents.
const LINT_LIMIT_S: u64 = 1_200;
/// Compiling the whole workspace optimised, across crates.
const BUILD_LIMIT_S: u64 = 1_800;
/// Compiling and running every test: the longest suites fill tables and kill processes for minutes.
const TEST_LIMIT_S: u64 = 3_600;
/// Exploring every interleaving of the kernel: bounded by its own preemption limit, minutes at most.
const LOOM_LIMIT_S: u64 = 1_200;
/// Interpreting the unit tests: hundreds of times slower than running them.
const MIRI_LIMIT_S: u64 = 1_800;
/// Each fuzz target by default: its corpus is tried, and some thousands of changed copies.
const FUZZ_SECONDS: u64 = 5;
/// Each fuzz target with `--long`.
const LONG_FUZZ_SECONDS: u64 = 60;
/// Building every fuzz target and running one after the other, with room for as many targets again.
const FUZZ_LIMIT_S: u64 = fuzz::limit_s(24, LONG_FUZZ_SECONDS);
/// With `--long`, an hour of killed processes, several times ten minutes, and 100,000 seeds.
const LONG_TEST_LIMIT_S: u64 = 6 * 3_600;

const _: () = assert!(READ_LIMIT_S < INSTALL_LIMIT_S && BUILD_LIMIT_S < TEST_LIMIT_S);

/// The name of a step, as `--skip` and `--only` take it.
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
    Loom,
    Miri,
    Msrv,
    Package,
}

impl StepName {
    /// Its place in [`STEPS`].
    pub fn place(self) -> usize {
        self as usize
    }

    /// Whether what comes after it needs what it builds.
    pub fn is_build(self) -> bool {
        matches!(self, Self::Build | Self::TestBuild)
    }
}

impl Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// A directory below the target directory for whose lock builds would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildDirectory {
    Debug,
    Release,
}

/// One step: its name, what it does in a line, its limit, and what it may run beside.
#[derive(Debug, Serialize)]
pub struct Step {
    pub name: StepName,
    pub title: &'static str,
    pub limit_s: u64,
    /// Steps that have ended before it starts.
    pub after: &'static [StepName],
    /// The directory that it builds into, if others do as well.
    pub builds_in: Option<BuildDirectory>,
}

const NEEDS: &[StepName] = &[StepName::Needs, StepName::Components];
const TEST_BUILD: &[StepName] = &[StepName::TestBuild];
const DEBUG: Option<BuildDirectory> = Some(BuildDirectory::Debug);
const RELEASE: Option<BuildDirectory> = Some(BuildDirectory::Release);

/// Every step. Of those that can start, the first one does: what takes longest stands first.
pub const STEPS: [Step; 20] = [
    step(StepName::Needs, "the system's tools and data that tests use", INSTALL_LIMIT_S, &[], None),
    step(
        StepName::Components,
        "rustup component add rustfmt clippy, where they are missing",
        INSTALL_LIMIT_S,
        &[],
        None,
    ),
    step(StepName::Format, "cargo fmt --all --check", READ_LIMIT_S, NEEDS, None),
    step(StepName::Check, "cargo xtask check", READ_LIMIT_S, NEEDS, None),
    step(
        StepName::TestBuild,
        "cargo test --workspace --features guira-cli/peers --lib --bins --tests --no-run, and the examples",
        BUILD_LIMIT_S,
        NEEDS,
        DEBUG,
    ),
    step(StepName::Deny, "cargo deny check", ship::DENY_LIMIT_S, NEEDS, None),
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
        "the test programs that compute, the modules of a suite each by itself",
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
        "the linearizability checker against Porcupine, a Go program",
        porcupine::LIMIT_S,
        TEST_BUILD,
        DEBUG,
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
        "cargo +MSRV check --locked, of what is published, with the rust-version of Cargo.toml",
        ship::MSRV_LIMIT_S,
        NEEDS,
        None,
    ),
    step(
        StepName::Package,
        "cargo package --no-verify, and cargo check -p of each archive, of what is published",
        ship::PACKAGE_LIMIT_S,
        NEEDS,
        None,
    ),
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
            StepName::Loom => {
                let mut command = cargo(shell, "test -p guira-fabric --test loom --release --target-dir");
                command.arg(target_directory(shell, "loom"));
                // One small crate is explored: what releases are optimised by costs more than it saves.
                command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
                run(command.env("RUSTFLAGS", with_inherited("RUSTFLAGS", "--cfg loom")))
            }
            StepName::Miri => miri(shell, &budget),
            StepName::Msrv => ship::msrv(shell, &budget),
            StepName::Package => ship::package(shell, &budget),
        }
    }
}

fn fuzz_seconds(scope: &Scope) -> u64 {
    if scope.is_long { LONG_FUZZ_SECONDS } else { FUZZ_SECONDS }
}

/// Cargo with the words of `line`.
fn cargo(shell: &Shell, line: &str) -> Command {
    shell.command("cargo", line.split_whitespace())
}

/// Lints what users build, and what only feature `peers` compiles.
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

/// The time a step has: all its commands share it.
pub struct Budget {
    pub until: Instant,
    pub limit_s: u64,
}

impl Budget {
    /// What to say when it ran out.
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

/// The result of `work`, which runs on a thread that is left behind if it does not end in time.
pub fn within<T: Send + 'static>(budget: &Budget, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Outcome> {
    let (sender, receiver) = mpsc::channel();
    // When the receiver has given up, nobody needs the result.
    thread::spawn(move || drop(sender.send(work())));
    let left = budget.until.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => budget.exceeded(),
        mpsc::RecvTimeoutError::Disconnected => Outcome::Failed("it panicked".to_owned()),
    })
}

/// Counts are of one kind of processor, and taken by valgrind, which no machine must have.
fn instructions(shell: &Shell, budget: &Budget) -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        return Outcome::NotAvailable("the instructions on record are those of x86-64".to_owned());
    }
    if !shell.succeeds("valgrind", ["--version"], budget) {
        return Outcome::NotAvailable("there is no valgrind; the step needs says how to install it".to_owned());
    }
    // Not through cargo, which would wait for the build of the tests.
    match std::env::current_exe() {
        Ok(own) => shell.run(&mut shell.command(&own.to_string_lossy(), ["instructions"]), budget),
        Err(error) => Outcome::Failed(format!("this program cannot be found: {error}")),
    }
}

/// Miri needs a nightly toolchain, which no machine must have: without it the step is not available, which is no error.
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
    // Miri interprets a standard library that it builds from source first: a fact of the machine, not of this code.
    if !shell.succeeds("cargo", ["+nightly", "miri", "setup"], budget) {
        return Outcome::NotAvailable("Miri is there but could not build its standard library".to_owned());
    }
    let arguments = ["+nightly", "miri", "test", "-p", "guira-fabric", "--lib", "--target-dir"];
    let mut command = shell.command("cargo", arguments);
    command.arg(target_directory(shell, "miri")).env("MIRIFLAGS", "-Zmiri-disable-isolation");
    shell.run(&mut command, budget)
}

/// A target directory of its own, so that other flags do not rebuild what the other steps share.
pub fn target_directory(shell: &Shell, name: &str) -> PathBuf {
    let shared = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| shell.root().join("target"), PathBuf::from);
    shared.join(name)
}

/// `flags` after those that the environment already gives in `variable`.
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
        assert!(STEPS.iter().enumerate().all(|(place, step)| step.name.place() == place));
    }

    /// A step that came after a later one would let the lanes start in an order that the list does not show.
    #[test]
    fn steps_come_after_earlier_ones() {
        for step in &STEPS {
            assert!(step.after.iter().all(|name| name.place() < step.name.place()), "{}", step.name);
        }
    }

    #[test]
    fn work_in_this_process_is_bounded_too() {
        let budget = |limit_s| Budget { until: Instant::now() + Duration::from_secs(limit_s), limit_s };
        let (_held, never) = mpsc::channel::<()>();
        assert_eq!(within(&budget(0), move || never.recv().is_ok()), Err(budget(0).exceeded()));
        assert_eq!(within(&budget(60), || 7), Ok(7));
    }

    #[test]
    fn a_step_without_its_tool_is_not_available_and_no_failure() {
        let budget = Budget { until: Instant::now() + Duration::from_secs(20), limit_s: 20 };
        let shell = Shell::new(PathBuf::from("."), Format::Json);
        assert!(!shell.succeeds("no-such-tool-anywhere", ["--version"], &budget));
        assert!(!Outcome::NotAvailable(String::new()).is_failure());
    }
}
