//! The test programs: built by one cargo command and run one after the other, each module of a suite in a process of
//! its own.
//!
//! A module in its own process has its own time and budget, and shares no descriptors, memory or signals with another.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use super::process::Shell;
use super::steps::{Budget, target_directory};
use super::{Outcome, Scope, budget};
use crate::artifact::Artifact;
use crate::rdma::TestProgram;

/// Packages and features for building the tests, the doc tests and the examples. Another selection would compile their
/// dependencies again.
const SELECTION: [&str; 4] = ["--locked", "--workspace", "--features", "guira-cli/peers"];
/// Examples that tests run.
const EXAMPLES: [&str; 6] = ["shared_cache", "word_count", "live_config", "memo_cache", "config_store", "web_service"];
/// The name of test programs whose modules run in separate processes.
const SUITE: &str = "suite";
/// The environment variable with the folder of the examples.
const EXAMPLES_VARIABLE: &str = "GUIRA_TEST_EXAMPLES";
const LONG_VARIABLE: &str = "GUIRA_LONG";

/// Packages whose tests mostly wait for processes, sockets and timers. They run beside the tests that compute.
const WAITING: [&str; 6] =
    ["guira", "guira-cli", "guira-fabric-shm", "guira-fabric-tcp", "guira-peers", "guira-session"];

/// One half of the test programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Programs that keep a core busy.
    Computing,
    /// Programs that mostly wait.
    Waiting,
}

impl Part {
    fn has(self, package: &str) -> bool {
        WAITING.contains(&package) == (self == Part::Waiting)
    }
}

/// One test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    package: String,
    /// The name of its target: the library, the binary or the test program.
    target: String,
    kind: Kind,
    executable: PathBuf,
    /// The package's directory, in which cargo runs tests.
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Unit tests of a library or a binary.
    Unit,
    /// A file or folder of `tests`.
    Program,
}

/// Every test program, and the folder of the examples.
#[derive(Debug)]
pub struct Programs {
    programs: Vec<Program>,
    examples: Option<PathBuf>,
}

/// Tests that run in one process.
#[derive(Debug)]
struct Suite<'p> {
    name: String,
    program: &'p Program,
    /// Names of its tests; empty for the whole program.
    tests: Vec<String>,
}

impl Programs {
    /// Builds every test program and the examples that tests run.
    pub fn build(shell: &Shell, budget: &Budget) -> Result<Programs, Outcome> {
        let json = "--message-format=json-render-diagnostics";
        let mut tests = shell.command("cargo", ["test", "--no-run", json, "--lib", "--bins", "--tests"]);
        let printed = read(shell, tests.args(SELECTION), budget, "test-programs.json")?;
        let mut examples = shell.command("cargo", ["build", "--profile", "test", json]);
        examples.args(SELECTION).args(EXAMPLES.iter().flat_map(|name| ["--example", name]));
        let built = read(shell, &mut examples, budget, "examples.json")?;
        let example = Artifact::program(&built, EXAMPLES[0]);
        let examples = example.and_then(|example| Some(example.parent()?.to_owned()));
        Ok(Programs { programs: Artifact::all(&printed).filter_map(Program::of).collect(), examples })
    }

    /// A command that runs the suite of a package; the caller adds arguments.
    pub fn suite(&self, shell: &Shell, package: &str) -> Result<Command, Outcome> {
        let is_it = |program: &&Program| program.package == package && program.target == SUITE;
        let found = self.programs.iter().find(is_it).map(|program| program.command(shell));
        found.ok_or_else(|| Outcome::Failed(format!("cargo built no suite of {package}")))
    }

    /// All test programs, for the step `rdma`.
    pub fn for_rdma(&self) -> Vec<TestProgram> {
        let of = |Program { package, target, executable, .. }: &Program| {
            let (package, target) = (package.clone(), target.clone());
            TestProgram { package, target, executable: executable.clone() }
        };
        self.programs.iter().map(of).collect()
    }

    /// The tests of each process: whole programs, and modules of suites.
    fn suites(&self, shell: &Shell, budget: &Budget) -> Result<Vec<Suite<'_>>, Outcome> {
        let mut suites = Vec::new();
        for program in &self.programs {
            if program.target != SUITE {
                suites.push(Suite { name: program.name(), program, tests: Vec::new() });
                continue;
            }
            let mut list = program.command(shell);
            let printed = read(
                shell,
                list.args(["--list", "--format", "terse"]),
                budget,
                &format!("tests-{}.txt", program.package),
            )?;
            let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
            for test in printed.lines().filter_map(|line| line.strip_suffix(": test")) {
                modules.entry(test.split("::").next().unwrap_or_default()).or_default().push(test.to_owned());
            }
            let module = |(module, tests)| Suite { name: format!("{}::{module}", program.package), program, tests };
            suites.extend(modules.into_iter().map(module));
        }
        Ok(suites)
    }
}

fn read(shell: &Shell, command: &mut Command, budget: &Budget, into: &str) -> Result<String, Outcome> {
    let folder = target_directory(shell, "xtask");
    std::fs::create_dir_all(&folder).map_err(|error| Outcome::Failed(format!("{}: {error}", folder.display())))?;
    shell.read(command, budget, &folder.join(into))
}

impl Program {
    /// The test program of an artifact, if it is one.
    fn of(artifact: Artifact) -> Option<Program> {
        if !artifact.profile.test {
            return None;
        }
        let kind = if artifact.target.kind == ["test"] { Kind::Program } else { Kind::Unit };
        let (package, directory) = (artifact.package()?.to_owned(), artifact.directory().to_owned());
        Some(Program { package, target: artifact.target.name, kind, executable: artifact.executable, directory })
    }

    fn name(&self) -> String {
        match self.kind {
            Kind::Unit => self.package.clone(),
            Kind::Program => format!("{}::{}", self.package, self.target),
        }
    }

    /// A command that runs the program like cargo does.
    fn command(&self, shell: &Shell) -> Command {
        let mut command = shell.command(&self.executable.to_string_lossy(), [""; 0]);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

/// Runs every suite of `part` that `scope` selects, the longest first. A suite that fails does not stop the next one.
pub fn run(shell: &Shell, budget: &Budget, scope: &Scope, part: Part) -> Outcome {
    let programs = match scope.programs(|| Programs::build(shell, budget)) {
        Ok(programs) => programs,
        Err(outcome) => return outcome,
    };
    let mut suites = match programs.suites(shell, budget) {
        Ok(suites) => suites,
        Err(outcome) => return outcome,
    };
    suites.retain(|suite| part.has(&suite.program.package) && scope.touches(&suite.program.package));
    let times = budget::read(shell.root()).unwrap_or_default();
    suites.sort_by(|a, b| {
        let seconds = |suite: &Suite<'_>| times.recorded_s(&suite.name).unwrap_or(0.0);
        seconds(b).total_cmp(&seconds(a)).then_with(|| a.name.cmp(&b.name))
    });
    let mut failed = Vec::new();
    for suite in &suites {
        let (started, mut command) = (Instant::now(), suite.program.command(shell));
        if let Some(examples) = &programs.examples {
            command.env(EXAMPLES_VARIABLE, examples);
        }
        if scope.is_long {
            command.env(LONG_VARIABLE, "1");
        }
        if !suite.tests.is_empty() {
            command.arg("--exact").args(&suite.tests);
        }
        shell.say(&format!("\nsuite {}", suite.name));
        let outcome = shell.run(&mut command, budget);
        let seconds = started.elapsed().as_secs_f64();
        shell.say(&format!("suite {} {} in {seconds:.1} s", suite.name, outcome.word()));
        scope.note(&suite.name, seconds);
        if outcome.is_failure() {
            failed.push(suite.name.as_str());
        }
        if matches!(outcome, Outcome::TimedOut(_)) {
            return Outcome::TimedOut(format!("killed in {}", suite.name));
        }
    }
    match (suites.is_empty() && scope.is_whole(), failed.is_empty()) {
        (true, _) => Outcome::Failed("cargo built no test program".to_owned()),
        (false, true) => Outcome::Passed,
        (false, false) => Outcome::Failed(failed.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::tests::message;

    #[test]
    fn only_tests_built_by_cargo_are_programs() {
        let printed = [
            message("crates/guira#0.1.0", "crates/guira", "lib", "guira", true),
            message("conformance#guira-conformance@0.1.0", "conformance", "test", "suite", true),
            message("crates/cli#guira-cli@0.1.0", "crates/cli", "bin", "guira", false),
        ];
        let programs: Vec<Program> = Artifact::all(&printed.join("\n")).filter_map(Program::of).collect();
        assert_eq!(programs.iter().map(Program::name).collect::<Vec<_>>(), ["guira", "guira-conformance::suite"]);
        assert_eq!(programs[1].directory, PathBuf::from("/w/conformance"));
    }
}
