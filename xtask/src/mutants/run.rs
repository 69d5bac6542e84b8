//! A copy of the sources with every mutant in it, compiled once, whose tests are run once for each mutant.
//!
//! An environment variable enables one mutant when a program runs; without it, none is enabled. The copy and its build
//! stay beside the other builds for the next run. They share no target directory with them, because cargo cannot tell
//! apart two equal workspaces in one target directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::mutant::{Check, Mutant, Program, apply_all};
use crate::artifact::Artifact;
use crate::shell::{Budget, Outcome, Shell};
use crate::steps::tail;
use crate::test::patience;
use crate::tree::Tree;

/// The root file of the conformance suite.
const SUITE: &str = "conformance/tests/suite/main.rs";
/// The environment variable that enables a mutant by its name.
const CHOICE: &str = "GUIRA_MUTANT";
/// Limit for the tests of one mutant: longer than the patience of any test, which then fails by itself.
const TESTS_LIMIT_S: u64 = 900;
/// Mutants that are tried concurrently, each in a process of its own.
const TRIED_AT_ONCE: usize = 2;

/// The compiled copy.
pub struct Copy<'s> {
    shell: &'s Shell,
    budget: &'s Budget,
    directory: PathBuf,
    executables: BTreeMap<Program, Executable>,
}

/// A test program, and the directory that its tests run in.
struct Executable {
    path: PathBuf,
    package: PathBuf,
}

/// The outcome of a named test.
pub struct Checked {
    pub check: Check,
    pub passed: bool,
    /// The outcome in words.
    pub why: &'static str,
    pub hangs: bool,
    /// Whether the test itself ended, and not only its program.
    has_ended: bool,
}

/// The outcome of one mutant.
#[derive(Debug, Serialize)]
pub struct Tried {
    pub name: String,
    pub rule: String,
    pub seconds: f64,
    /// Tests that caught it.
    pub caught_by: Vec<String>,
    /// Tests that did not catch it, or hung although the mutant may not hang.
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

/// Removes `folder` if it has no file in it, at any depth: cargo takes each folder beside a package for another one.
fn remove_if_empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_if_empty(&entry.path())?;
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

impl<'s> Copy<'s> {
    /// Copies every source, with all `mutants` applied, without rewriting files that are equal, and compiles the
    /// programs whose tests catch them.
    pub fn make(shell: &'s Shell, budget: &'s Budget, mutants: &[Mutant]) -> Result<Copy<'s>> {
        let directory = shell.target_directory("mutants");
        let inside = shell.at(directory.join("sources"));
        let sources = Tree::load(shell.root())?.paths;
        let mut broken = broken(shell.root(), mutants)?;
        for path in &sources {
            let original = || fs::read(shell.root().join(path));
            let bytes = broken.remove(path).map_or_else(original, |text| Ok(text.into_bytes()));
            let written = bytes.and_then(|bytes| write(&bytes, &inside.root().join(path)));
            written.with_context(|| path.clone())?;
        }
        for path in Tree::load(inside.root())?.paths.difference(&sources) {
            fs::remove_file(inside.root().join(path)).with_context(|| path.clone())?;
        }
        remove_if_empty(inside.root()).context("removing empty folders")?;
        let mut copy = Copy { shell, budget, directory, executables: BTreeMap::new() };
        let programs: BTreeSet<&Program> =
            mutants.iter().flat_map(|mutant| &mutant.caught_by).map(|check| &check.program).collect();
        let printed = copy.compile(&inside, &programs)?;
        for program in programs {
            copy.executables.insert(program.clone(), executable(program, &printed)?);
        }
        Ok(copy)
    }

    /// Compiles `programs` by one command, so that they share their dependencies. Returns cargo's messages.
    fn compile(&self, inside: &Shell, programs: &BTreeSet<&Program>) -> Result<String> {
        let log = self.directory.join("build.log");
        let arguments = ["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"];
        let mut command = inside.command("cargo", arguments);
        // The tests that catch mutants use the protocol directly, not this package.
        command.args(["--config", "profile.test.package.guira.opt-level=0"]);
        command.args(programs.iter().flat_map(|program| ["-p", program.package()]));
        command.args(programs.iter().map(|program| program.selection()).collect::<BTreeSet<_>>());
        command.env("CARGO_TARGET_DIR", self.directory.join("target"));
        let (outcome, printed) = inside.run_into(&mut command, self.budget, &log)?;
        match outcome {
            Outcome::Passed => Ok(printed),
            other => {
                let lines: Vec<&str> = printed.lines().filter(|line| !line.starts_with('{')).collect();
                self.shell.say(&tail(&lines.join("\n")));
                bail!("the copy does not compile: {} {}", other.word(), other.detail());
            }
        }
    }

    /// Tries each of `mutants`, some concurrently, and prints each outcome as soon as it is known.
    pub fn try_each(&self, mutants: &[&Mutant]) -> Result<Vec<Tried>> {
        let next = AtomicUsize::new(0);
        let try_next = || -> Result<Option<(usize, Tried)>> {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = mutants.get(place) else { return Ok(None) };
            let tried = self.try_mutant(mutant).with_context(|| mutant.name.clone())?;
            self.shell.say(&format!("{:<38} {:>7.1} s  {}", tried.name, tried.seconds, tried.verdict()));
            Ok(Some((place, tried)))
        };
        let work = || std::iter::from_fn(|| try_next().transpose()).collect::<Vec<_>>();
        let tried = thread::scope(|scope| {
            let workers: Vec<_> = (0..TRIED_AT_ONCE).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics")).collect::<Result<Vec<_>>>()
        });
        let mut tried = tried?;
        tried.sort_by_key(|(place, _)| *place);
        Ok(tried.into_iter().map(|(_, tried)| tried).collect())
    }

    /// Runs the tests of the mutant while it is enabled.
    fn try_mutant(&self, mutant: &Mutant) -> Result<Tried> {
        let started = Instant::now();
        let checked = self.run(&mutant.caught_by.iter().cloned().collect(), Some(&mutant.name))?;
        let counts = |checked: &&Checked| !checked.passed && (mutant.may_hang || !checked.hangs);
        let (caught_by, missed): (Vec<_>, Vec<_>) = checked.iter().partition(counts);
        Ok(Tried {
            name: mutant.name.clone(),
            rule: mutant.rule.clone(),
            seconds: started.elapsed().as_secs_f64(),
            caught_by: caught_by.iter().map(|checked| checked.check.to_string()).collect(),
            missed: missed.iter().map(|checked| format!("{} {}", checked.check, checked.why)).collect(),
        })
    }

    /// Runs `checks` with the mutant of this name enabled, or without a mutant, and returns the outcomes.
    pub fn run(&self, checks: &BTreeSet<Check>, mutant: Option<&str>) -> Result<Vec<Checked>> {
        let mut programs: BTreeMap<&Program, Vec<&Check>> = BTreeMap::new();
        for check in checks {
            programs.entry(&check.program).or_default().push(check);
        }
        let mut checked = Vec::with_capacity(checks.len());
        for (program, checks) in programs {
            checked.extend(self.run_program(program, &checks, mutant)?);
        }
        Ok(checked)
    }

    /// Runs `checks` together, and then each that did not end by itself: if the program crashed or hung in one of them,
    /// it may not have begun the others.
    fn run_program(&self, program: &Program, checks: &[&Check], mutant: Option<&str>) -> Result<Vec<Checked>> {
        let executable = self.executables.get(program).with_context(|| format!("{program} was not compiled"))?;
        let inside = self.shell.at(executable.package.clone());
        let of_one = if let [check] = checks { format!("-{}", check.test.replace("::", "-")) } else { String::new() };
        let log = self.directory.join(format!("{}{of_one}.log", mutant.unwrap_or("tests")));
        let limit_s = if mutant.is_some() { TESTS_LIMIT_S } else { self.budget.limit_s };
        let budget = Budget { until: self.budget.until.min(Instant::now() + Duration::from_secs(limit_s)), limit_s };
        let mut command = inside.command(&executable.path.to_string_lossy(), ["--exact"]);
        command.args(checks.iter().map(|check| &check.test)).env_remove(CHOICE);
        command.envs(mutant.map(|name| (CHOICE, name))).envs(patience().iter().copied());
        let (outcome, printed) = inside.run_into(&mut command, &budget, &log)?;
        let mut checked = Vec::with_capacity(checks.len());
        for check in checks {
            match ended(check, &printed, &outcome)? {
                Checked { has_ended: false, .. } if checks.len() > 1 => {
                    checked.extend(self.run_program(program, &[check], mutant)?);
                }
                known => checked.push(known),
            }
        }
        Ok(checked)
    }
}

/// The sources that differ in the copy, by path: those with mutants, the root files of their libraries, and that of the
/// suite.
pub fn broken(root: &Path, mutants: &[Mutant]) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
    for file in mutants.iter().map(|mutant| &mutant.file).collect::<BTreeSet<_>>() {
        let own = mutants.iter().filter(|mutant| mutant.file == *file);
        texts.insert(file.clone(), apply_all(&read(file)?, own)?);
    }
    for library in mutants.iter().map(Mutant::library).collect::<Result<BTreeSet<_>>>()? {
        let text = texts.remove(&library).map_or_else(|| read(&library), Ok)?;
        texts.insert(library, text + &selector_macro());
    }
    texts.insert(SUITE.to_owned(), suite_of(&read(SUITE)?, mutants));
    Ok(texts)
}

/// The root file of the suite, reduced to the modules with tests of `mutants`; the others would take the compiler
/// longest.
fn suite_of(root: &str, mutants: &[Mutant]) -> String {
    let checks = mutants.iter().flat_map(|mutant| &mutant.caught_by);
    let tests: Vec<&str> =
        checks.filter(|check| check.program == Program::Conformance).map(|check| check.test.as_str()).collect();
    let is_wanted = |line: &&str| match line.strip_prefix("mod ").and_then(|name| name.strip_suffix(';')) {
        Some(module) => tests.iter().any(|test| test.split("::").next() == Some(module)),
        None => true,
    };
    root.lines().filter(is_wanted).map(|line| format!("{line}\n")).collect()
}

/// The code appended to a library with mutants: `mutant!("name")` tells whether the mutant of that name is enabled.
/// Each use reads the environment once.
fn selector_macro() -> String {
    format!(
        r#"
macro_rules! mutant {{
    ($name:literal) => {{{{
        static IS_ENABLED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *IS_ENABLED.get_or_init(|| std::env::var_os("{CHOICE}").is_some_and(|name| name == $name))
    }}}};
}}
pub(crate) use mutant;
"#
    )
}

/// Finds the executable of `program` in cargo's messages.
fn executable(program: &Program, printed: &str) -> Result<Executable> {
    let (kind, name) = program.target();
    let is_ours = |it: &Artifact| it.profile.test && it.target.name == name && it.target.kind == [kind];
    let found =
        Artifact::all(printed).find(is_ours).with_context(|| format!("cargo printed no message about {program}"))?;
    Ok(Executable { package: found.directory().to_owned(), path: found.executable })
}

/// The outcome of `check`, from the output of the test program.
fn ended(check: &Check, printed: &str, outcome: &Outcome) -> Result<Checked> {
    let line = printed
        .lines()
        .find_map(|line| line.strip_prefix("test ")?.strip_prefix(check.test.as_str())?.strip_prefix(" ... "));
    let (has_ended, passed, why, hangs) = match (line, outcome) {
        (Some("ok"), _) => (true, true, "passed", false),
        (Some("FAILED"), _) => (true, false, "failed", false),
        (_, Outcome::TimedOut(_)) => (false, false, "hung", true),
        (_, Outcome::Failed(_)) => (false, false, "crashed its program", false),
        (_, other) => bail!("{check} did not run: {} {}", other.word(), other.detail()),
    };
    Ok(Checked { check: check.clone(), passed, why, hangs, has_ended })
}

/// Writes a file unless its content is equal: then its time stays, and cargo does not compile it again.
fn write(bytes: &[u8], to: &Path) -> io::Result<()> {
    if fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(to, bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::artifact::tests::message;
    use crate::report::Format;

    fn check() -> Check {
        Check::try_from("sim::deaths::a_put".to_owned()).expect("a name")
    }

    #[test]
    fn a_package_that_is_gone_leaves_no_folder() {
        let root = tempfile::tempdir().expect("a folder");
        let (gone, other) = (root.path().join("crates/gone"), root.path().join("crates/other"));
        fs::create_dir_all(gone.join("tests/suite")).expect("a folder");
        for path in [gone.join("src/lib.rs"), gone.join("Cargo.toml"), other.join("Cargo.toml")] {
            write(b"", &path).expect("a file");
        }
        fs::remove_file(gone.join("src/lib.rs")).expect("a file");
        remove_if_empty(root.path()).expect("folders");
        assert!(gone.join("Cargo.toml").exists() && !gone.join("src").exists() && !gone.join("tests").exists());
        fs::remove_file(gone.join("Cargo.toml")).expect("a file");
        remove_if_empty(root.path()).expect("folders");
        assert!(!gone.exists() && other.join("Cargo.toml").exists());
    }

    #[test]
    fn the_outcome_of_a_test_is_read_from_its_program() {
        let failed = Outcome::Failed("exit status: 101".to_owned());
        let printed = "test sim::deaths::a_put_more ... ok\ntest sim::deaths::a_put ... FAILED\n";
        let ended = |printed, outcome: &Outcome| ended(&check(), printed, outcome).map(|it| (it.passed, it.hangs));
        assert_eq!(ended(printed, &failed).expect("it ran"), (false, false));
        assert_eq!(ended("test sim::deaths::a_put ... ok\n", &failed).expect("it ran"), (true, false));
        assert_eq!(ended("test sim::deaths::a_put ... ", &failed).expect("it died"), (false, false));
        assert_eq!(ended("", &Outcome::TimedOut(String::new())).expect("it hung"), (false, true));
        assert!(ended("running 0 tests", &Outcome::Passed).is_err(), "a test that does not exist has no outcome");
    }

    #[test]
    fn a_test_that_a_crash_kept_from_running_runs_by_itself() {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("program");
        // The first of two tests crashes the program; alone, the second passes.
        let script = "#!/bin/sh\ncase $* in *a::first*) kill -9 $$;; *) echo 'test a::second ... ok';; esac\n";
        fs::write(&path, script).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
        let shell = Shell::new(directory.path().to_owned(), Format::Json);
        let executable = Executable { path, package: directory.path().to_owned() };
        let budget = Budget::unlimited();
        let copy = Copy {
            shell: &shell,
            budget: &budget,
            directory: directory.path().to_owned(),
            executables: [(Program::Conformance, executable)].into(),
        };
        let checks = ["a::first", "a::second"].map(|name| Check::try_from(name.to_owned()).expect("a name"));
        let checked = copy.run(&checks.into(), Some("a_mutant")).expect("both ran");
        let outcomes: Vec<_> = checked.iter().map(|it| (it.check.test.as_str(), it.passed, it.why)).collect();
        assert_eq!(outcomes, [("a::first", false, "crashed its program"), ("a::second", true, "passed")]);
    }

    #[test]
    fn the_suite_keeps_the_modules_that_mutants_name() {
        let mutant = Mutant {
            caught_by: vec![check(), Check::try_from("guira-layout::locks::a".to_owned()).expect("a name")],
            ..Mutant::default()
        };
        let root = "//! Tests.\n\nmod locks;\nmod sim;\nmod simulated;\n";
        assert_eq!(suite_of(root, &[mutant]), "//! Tests.\n\nmod sim;\n");
    }

    #[test]
    fn a_program_is_found_in_cargos_messages() {
        let line = |kind: &str, name: &str, is_test: bool| message("w#w@0.1.0", name, kind, name, is_test);
        let printed = [line("lib", "guira_a", false), line("test", "suite", true), line("lib", "guira_a", true)];
        let found = |program: &Program| executable(program, &printed.join("\n")).map(|it| (it.path, it.package));
        let paths = |path: &str, package: &str| (PathBuf::from(path), PathBuf::from(package));
        assert_eq!(found(&Program::Conformance).expect("it is there"), paths("/t/suite", "/w/suite"));
        let library = |name: &str| Program::Library(name.to_owned());
        assert_eq!(found(&library("guira-a")).expect("it is there"), paths("/t/guira_a", "/w/guira_a"));
        assert!(found(&library("guira-b")).is_err());
    }
}
