//! `cargo xtask python`: builds the wheel of bindings/python, installs it in an empty virtual environment, and runs its
//! tests there. mypy checks the tests, the examples of the READMEs, and the stubs against the module.
//!
//! Everything it writes is in the target directory. Its tools come from PyPI in fixed versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::report::{Format, Verdict};
use crate::shell::{Budget, Outcome, Shell};
use crate::tree;

/// The folder of the package.
const SOURCE: &str = "bindings/python";
/// The tools of the gate: the builder, and the type checker.
const TOOLS: [&str; 2] = ["maturin==1.16.0", "mypy==2.4.1"];
/// The type checker of the release check; it brings the interpreter that it needs.
const PYRIGHT: [&str; 1] = ["basedpyright==1.40.2"];
/// Tests need no debug information, which takes time to compile.
const NO_DEBUG: [(&str, &str); 1] = [("CARGO_PROFILE_DEV_DEBUG", "0")];
/// The systems of the benchmark, and what it needs besides. redis-server is a package of the system.
const PEERS: [&str; 6] =
    ["numpy==2.4.6", "matplotlib==3.11.2", "lmdb==3.0.0", "redis==8.1.0", "hiredis==3.5.0", "diskcache==5.6.3"];

#[derive(Args)]
pub struct Options {
    /// Compare the module with other systems instead, for some ten minutes on an idle machine, and write docs/bench.
    #[arg(long)]
    bench: bool,
}

/// Runs `cargo xtask python`, with a program that it compiles. A machine without Python is a failure here.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let shell = Shell::new(tree::workspace_root()?, format);
    if options.bench {
        return shell.conclude("python", &bench(&shell, &["--publish", "docs/bench"]));
    }
    let program = shell.cargo(&["build", "--locked", "-p", "guira-cli"], &NO_DEBUG);
    shell.conclude("python", &program.then(|| run(&shell, &[])))
}

/// Builds, installs and tests the wheel. The program `guira` was built before: the tests share tables with it.
pub fn run(shell: &Shell, environment: &[(&str, &str)]) -> Outcome {
    let tested = built(shell).map(|built| built.test(environment).then(|| built.check_types()));
    tested.unwrap_or_else(|outcome| outcome)
}

/// Checks the types with a second checker.
pub fn pyright(shell: &Shell) -> Outcome {
    let checked = || -> Result<Outcome, Outcome> {
        let tools = environment(shell, &PYRIGHT)?;
        let built = built(shell)?;
        let python = built.tools.join("bin/python");
        let mut check = shell.command(&tools.join("bin/basedpyright").to_string_lossy(), ["--level", "error"]);
        check.arg("--pythonpath").arg(&python).arg("python").args(built.checked()?);
        // Its settings are in the package's pyproject.toml.
        check.current_dir(shell.root().join(SOURCE));
        Ok(shell.run(&mut check, &Budget::unlimited()))
    };
    checked().unwrap_or_else(|outcome| outcome)
}

/// Runs the benchmark for some seconds: that all systems take part, and answer right.
pub fn quick_bench(shell: &Shell) -> Outcome {
    bench(shell, &["--quick", "--publish", &shell.target_directory("python").join("bench").to_string_lossy()])
}

/// Runs the benchmark with a wheel that is built with optimisations.
fn bench(shell: &Shell, arguments: &[&str]) -> Outcome {
    let run = || -> Result<Outcome, Outcome> {
        let (tools, peers) = (environment(shell, &TOOLS)?, environment(shell, &PEERS)?);
        let wheel = wheel(shell, &tools, "release")?;
        passed(shell, pip(shell, &peers).args(["--no-index", "--force-reinstall"]).arg(&wheel))?;
        let mut run = shell.command(&peers.join("bin/python").to_string_lossy(), ["-B"]);
        run.arg(shell.root().join(SOURCE).join("bench/bench.py")).args(arguments);
        Ok(shell.run(&mut run, &Budget::unlimited()))
    };
    run().unwrap_or_else(|outcome| outcome)
}

/// Builds the wheel with a profile of cargo, and returns its path.
fn wheel(shell: &Shell, tools: &Path, profile: &str) -> Result<PathBuf, Outcome> {
    let wheels = shell.target_directory("python").join("wheels");
    // Wheels of other versions would be installed, too.
    let _ = fs::remove_dir_all(&wheels);
    let mut build = shell.command(&tools.join("bin/maturin").to_string_lossy(), ["build", "--locked"]);
    build.args(["--profile", profile, "--manifest-path", "bindings/python/Cargo.toml", "--out"]).arg(&wheels);
    passed(shell, build.envs(NO_DEBUG))?;
    let failed = |error| Outcome::Failed(format!("{}: {error}", wheels.display()));
    let wheel = fs::read_dir(&wheels).map_err(failed)?.next().transpose().map_err(failed)?;
    Ok(wheel.ok_or_else(|| Outcome::Failed("maturin built no wheel".to_owned()))?.path())
}

/// A wheel that is installed.
struct Built<'s> {
    shell: &'s Shell,
    /// The environment of the tools, which has the wheel, too: mypy imports it.
    tools: PathBuf,
    /// The environment that has nothing but the wheel.
    empty: PathBuf,
}

fn built(shell: &Shell) -> Result<Built<'_>, Outcome> {
    let (tools, empty) = (environment(shell, &TOOLS)?, shell.target_directory("python").join("venv"));
    let wheel = wheel(shell, &tools, "dev")?;
    passed(shell, shell.command("python3", ["-m", "venv", "--clear"]).arg(&empty))?;
    for environment in [&tools, &empty] {
        // Without an index, it has no dependencies.
        passed(shell, pip(shell, environment).args(["--no-index", "--force-reinstall"]).arg(&wheel))?;
    }
    Ok(Built { shell, tools, empty })
}

impl Built<'_> {
    /// Runs the tests in the empty environment, beside the program `guira` of the target directory.
    fn test(&self, environment: &[(&str, &str)]) -> Outcome {
        let mut tests = self.shell.command(&self.empty.join("bin/python").to_string_lossy(), ["-B", "-m", "unittest"]);
        tests.args(["discover", "-s", "bindings/python/tests"]);
        tests.env("GUIRA_PROGRAM", self.shell.target_directory("debug").join("guira"));
        self.shell.run(tests.envs(environment.iter().copied()), &Budget::unlimited())
    }

    /// Checks the types of the package, of its tests and of the examples, and compares the stubs with the module.
    fn check_types(&self) -> Outcome {
        let checked = match self.checked() {
            Ok(checked) => checked,
            Err(outcome) => return outcome,
        };
        let mypy = |arguments: &[&str]| self.tool("mypy", &[&["--strict"], arguments].concat());
        let checked: Vec<&str> = checked.iter().filter_map(|path| path.to_str()).collect();
        let run = |mut command: Command| self.shell.run(&mut command, &Budget::unlimited());
        run(mypy(&["bindings/python/python"]))
            .then(|| run(mypy(&checked)))
            .then(|| run(self.tool("stubtest", &["guira"])))
    }

    /// The files that use the module: the tests, and the examples of the READMEs.
    fn checked(&self) -> Result<Vec<PathBuf>, Outcome> {
        let examples = self.shell.target_directory("python").join("readme");
        let _ = fs::remove_dir_all(&examples);
        let mut write = self.shell.command(&self.empty.join("bin/python").to_string_lossy(), ["-B"]);
        passed(self.shell, write.arg("bindings/python/tests/readme.py").arg(&examples))?;
        let failed = |error| Outcome::Failed(format!("{}: {error}", examples.display()));
        let examples = fs::read_dir(&examples).map_err(failed)?.map(|entry| entry.map(|entry| entry.path()));
        let mut checked = examples.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
        checked.push(self.shell.root().join(SOURCE).join("tests"));
        Ok(checked)
    }

    fn tool(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.shell.command(&self.tools.join("bin").join(name).to_string_lossy(), arguments);
        command.env("MYPY_CACHE_DIR", self.shell.target_directory("python").join("mypy"));
        command
    }
}

/// Returns a virtual environment with these packages of PyPI, which it makes if necessary.
fn environment(shell: &Shell, packages: &[&str]) -> Result<PathBuf, Outcome> {
    let folder = shell.target_directory("tools").join(packages.join("-").replace("==", "-"));
    if !shell.succeeds("python3", ["-m", "ensurepip", "--version"]) {
        let why = "python3 or its module venv is missing; run: sudo apt-get install python3-venv";
        return Err(Outcome::NotAvailable(why.to_owned()));
    }
    let is_complete = folder.join("complete");
    if is_complete.exists() {
        return Ok(folder);
    }
    passed(shell, shell.command("python3", ["-m", "venv", "--clear"]).arg(&folder))?;
    let log = folder.join("install.log");
    let installed = shell.run_into(pip(shell, &folder).args(packages), &Budget::unlimited(), &log);
    match installed.map_err(|error| Outcome::Failed(format!("{}: {error}", log.display())))? {
        (Outcome::Passed, _) => {}
        (_, printed) => {
            shell.say(printed.trim_end());
            return Err(not_installed(&packages.join(" and "), &printed));
        }
    }
    fs::write(&is_complete, "").map_err(|error| Outcome::Failed(format!("{}: {error}", is_complete.display())))?;
    Ok(folder)
}

/// The outcome if pip printed this and did not install `packages`: a failure if the index has other versions only, or if
/// the versions exclude each other. Anything else is taken for an index out of reach, which makes the step unavailable.
fn not_installed(packages: &str, printed: &str) -> Outcome {
    let has_others = printed.split("(from versions: ").skip(1).any(|versions| !versions.starts_with("none"));
    match has_others || printed.contains("ResolutionImpossible") {
        true => Outcome::Failed(format!("{packages}: PyPI has no such versions; the output above says why")),
        false => Outcome::NotAvailable(format!("{packages} cannot be installed from PyPI")),
    }
}

fn pip(shell: &Shell, environment: &Path) -> Command {
    let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    shell.command(&environment.join("bin/python").to_string_lossy(), arguments)
}

fn passed(shell: &Shell, command: &mut Command) -> Result<(), Outcome> {
    match shell.run(command, &Budget::unlimited()) {
        Outcome::Passed => Ok(()),
        outcome => Err(outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_cannot_be_are_a_failure() {
        let missing = "ERROR: Could not find a version that satisfies the requirement mypy==2.4.1 (from versions: ";
        let unreachable = format!("{missing}none)\nERROR: No matching distribution found for mypy==2.4.1\n");
        assert!(matches!(not_installed("mypy", &unreachable), Outcome::NotAvailable(_)));
        for printed in [&format!("{missing}1.0, 2.0)\n"), "ERROR: ResolutionImpossible: for help visit\n"] {
            assert!(not_installed("mypy", printed).is_failure(), "{printed}");
        }
    }
}
