//! `cargo xtask test`, the gate: what decides whether a change is right, and nothing that measures the machine or
//! changes without the sources.

use std::process::Command;

use crate::c;
use crate::check;
use crate::python;
use crate::shell::{Budget, Outcome, Shell};
use crate::steps::Step;
use crate::tools;

/// Packages and features of every step that compiles: another selection would compile dependencies again.
const ALL: [&str; 3] = ["--locked", "--workspace", "--all-features"];
/// The compiler for which the sources have no warnings. What another one warns of is shown, and is no failure.
const COMPILER: &str = "rustc 1.95.";

/// The steps, those that fail soonest first.
pub const STEPS: [Step; 11] = [
    Step { name: "needs", title: "packages of the system, and components of the toolchain", run: tools::install },
    Step {
        name: "format",
        title: "cargo fmt --all --check",
        run: |shell| shell.cargo(&["fmt", "--all", "--check"], &[]),
    },
    Step { name: "check", title: "rules, holes and mutants are cited", run: check::step },
    Step { name: "deny", title: "cargo deny check bans licenses sources", run: deny },
    Step { name: "clippy", title: "cargo clippy with all targets and features, without warnings", run: clippy },
    Step { name: "doc", title: "cargo doc without warnings", run: doc },
    Step { name: "tests", title: "cargo nextest run with all features", run: tests },
    Step { name: "doc-tests", title: "cargo test --doc with all features", run: doc_tests },
    Step {
        name: "quickstart",
        title: "the program's first command, with the program that the tests used",
        run: quickstart,
    },
    Step { name: "python", title: "the wheel for Python in an empty environment, its tests and types", run: python },
    Step { name: "c", title: "the library for C and C++, installed: its tests, examples and symbols", run: c },
];

/// Runs cargo with [`ALL`] packages and features between `before` and `after`.
fn cargo_all(shell: &Shell, before: &[&str], after: &[&str]) -> Outcome {
    shell.cargo(&[before, &ALL, after].concat(), &[])
}

/// Checks what depends on the sources alone: banned crates, arrows between crates, licences and sources.
fn deny(shell: &Shell) -> Outcome {
    tools::cargo_tool(shell, &tools::DENY, &["deny", "--locked", "check", "bans", "licenses", "sources"], &[])
}

fn clippy(shell: &Shell) -> Outcome {
    cargo_all(shell, &["clippy"], &["--all-targets", "--", level_of_warnings(), "warnings"])
}

/// Returns the option that makes warnings errors, or leaves them warnings where the compiler is not [`COMPILER`].
fn level_of_warnings() -> &'static str {
    let version = Command::new("rustc").arg("--version").output();
    if version.is_ok_and(|output| output.stdout.starts_with(COMPILER.as_bytes())) { "-D" } else { "-W" }
}

fn doc(shell: &Shell) -> Outcome {
    let inherited = std::env::var("RUSTDOCFLAGS").unwrap_or_default();
    let flags = format!("{inherited} {} warnings", level_of_warnings()).trim_start().to_owned();
    shell.cargo(&[&["doc", "--no-deps"][..], &ALL].concat(), &[("RUSTDOCFLAGS", &flags)])
}

/// Multiple of the usual time after which a test calls a wait a hang: tests also pass on slow and busy machines.
const PATIENCE: (&str, &str) = ("GUIRA_PATIENCE", "5");

/// Returns [`PATIENCE`], unless the user has set another.
pub fn patience() -> &'static [(&'static str, &'static str)] {
    if std::env::var_os(PATIENCE.0).is_some() { &[] } else { &[PATIENCE] }
}

fn tests(shell: &Shell) -> Outcome {
    // Half of the tests wait for processes and timers, so that two fit on a core.
    let at_once = (std::thread::available_parallelism().map_or(1, usize::from) * 2).to_string();
    let arguments = [&["nextest", "run", "--no-fail-fast", "--test-threads", &at_once][..], &ALL].concat();
    tools::cargo_tool(shell, &tools::NEXTEST, &arguments, patience())
}

fn doc_tests(shell: &Shell) -> Outcome {
    shell.cargo(&[&["test", "--doc"][..], &ALL].concat(), patience())
}

/// Runs the README's first command, with the program that the tests built.
fn quickstart(shell: &Shell) -> Outcome {
    cargo_all(shell, &["test", "--no-run"], &[]).then(|| {
        let program = shell.target_directory("debug").join("guira");
        shell.run(&mut shell.command(&program.to_string_lossy(), ["quickstart"]), &Budget::unlimited())
    })
}

/// Tests the wheel for Python, beside the program that the tests built.
fn python(shell: &Shell) -> Outcome {
    cargo_all(shell, &["test", "--no-run"], &[]).then(|| python::run(shell, patience()))
}

/// Tests the library for C and C++ that the tests of Rust built, beside their program.
fn c(shell: &Shell) -> Outcome {
    c::run(shell, &ALL, patience())
}
