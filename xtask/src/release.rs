//! `cargo xtask release`, the release check: what takes long, measures the machine, or asks what changes without the
//! sources. A change runs the steps that concern it, and a release runs all of them.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::shell::{Outcome, Shell};
use crate::steps::Step;
use crate::test::patience;
use crate::tools::{self, cargo_tool};
use crate::{c, fuzz, instructions, mutants, porcupine, python, rdma};

pub const STEPS: [Step; 17] = [
    Step { name: "mutants", title: "cargo xtask mutants", run: mutants::step },
    Step { name: "fuzz", title: "cargo xtask fuzz --seconds 10", run: |shell| fuzz::run(shell, FUZZ_SECONDS, &[]) },
    Step { name: "instructions", title: "cargo xtask instructions", run: instructions::step },
    Step { name: "loom", title: "every interleaving of the kernel that copies words", run: loom },
    Step { name: "miri", title: "the unit tests of guira-fabric, interpreted", run: miri },
    Step { name: "porcupine", title: "our checker of histories compared with Porcupine", run: porcupine::step },
    Step { name: "rdma", title: "cargo xtask test-rdma", run: rdma::step },
    Step { name: "pyright", title: "the types of the wheel for Python, by a second checker", run: python::pyright },
    Step {
        name: "python-bench",
        title: "the benchmark of the wheel for Python, for seconds",
        run: python::quick_bench,
    },
    Step {
        name: "c-sanitizers",
        title: "the tests and examples in C and C++ under ASan and UBSan",
        run: c::sanitizers,
    },
    Step { name: "msrv", title: "cargo check with the oldest compiler", run: msrv },
    Step { name: "packages", title: "cargo package of what is published", run: packages },
    Step { name: "advisories", title: "cargo deny check advisories", run: advisories },
    Step { name: "measured", title: "tests that measure the machine: fairness, overload", run: measured },
    Step { name: "long", title: "the long forms of tests, with GUIRA_LONG=1", run: long },
    Step {
        name: "soak",
        title: "cargo xtask soak --seeds 20000, 4000 with --growth or --element, and 10000 with --store clover",
        run: |shell| {
            let growing = ["soak", "--growth", "--seeds", "4000"];
            let element = ["soak", "--element", "--seeds", "4000"];
            let clover = ["soak", "--store", "clover", "--seeds", "10000"];
            let table = xtask(shell, &["soak", "--seeds", "20000"]);
            table.then(|| xtask(shell, &growing)).then(|| xtask(shell, &element)).then(|| xtask(shell, &clover))
        },
    },
    Step {
        name: "storm",
        title: "cargo xtask storm --seconds 0.1",
        run: |shell| xtask(shell, &["storm", "--seconds", "0.1"]),
    },
];

/// Seconds of each fuzz target: its corpus and some thousands of mutated inputs.
const FUZZ_SECONDS: u64 = 10;
/// Packages whose dependencies are compiled by the oldest compiler: all that users install.
const INSTALLED: [&str; 4] = ["-p", "guira", "-p", "guira-cli"];
/// Packages that are not published.
const KEPT: [&str; 7] =
    ["guira-c", "guira-conformance", "guira-harness", "guira-instructions", "guira-python", "guira-testing", "xtask"];

/// Runs another command of this program.
fn xtask(shell: &Shell, arguments: &[&str]) -> Outcome {
    shell.cargo(&[&["xtask"], arguments].concat(), &[])
}

fn loom(shell: &Shell) -> Outcome {
    let target = shell.target_directory("loom").to_string_lossy().into_owned();
    let arguments = ["test", "-p", "guira-fabric", "--test", "loom", "--release", "--target-dir", &target];
    // Only one small crate is explored, so the optimisations of releases would cost more than they save.
    let profile = [("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_DEBUG", "0")];
    shell.cargo(&arguments, &[("RUSTFLAGS", "--cfg loom"), profile[0], profile[1]])
}

/// Runs Miri, which needs a nightly toolchain: without it the step is not available, which is not an error.
fn miri(shell: &Shell) -> Outcome {
    if !shell.succeeds("rustup", ["run", "nightly", "rustc", "--version"]) {
        return Outcome::NotAvailable("there is no nightly toolchain".to_owned());
    }
    let is_there = || shell.succeeds("cargo", ["+nightly", "miri", "--version"]);
    let add = ["component", "add", "miri", "rust-src", "--toolchain", "nightly"];
    let is_available = is_there() || (shell.succeeds("rustup", add) && is_there());
    if !is_available {
        return Outcome::NotAvailable("the nightly toolchain has no Miri and could not add it".to_owned());
    }
    // Miri first builds a standard library from source; a failure there is one of the machine, not of this code.
    if !shell.succeeds("cargo", ["+nightly", "miri", "setup"]) {
        return Outcome::NotAvailable("Miri is there but could not build its standard library".to_owned());
    }
    let target = shell.target_directory("miri").to_string_lossy().into_owned();
    let arguments = ["+nightly", "miri", "test", "-p", "guira-fabric", "--lib", "--target-dir", &target];
    shell.cargo(&arguments, &[("MIRIFLAGS", "-Zmiri-disable-isolation")])
}

/// Compiles what users install with the oldest compiler that the workspace supports.
fn msrv(shell: &Shell) -> Outcome {
    // Every package has the version of the workspace.
    let toolchain = env!("CARGO_PKG_RUST_VERSION");
    let is_there = || shell.succeeds("rustup", ["run", toolchain, "rustc", "--version"]);
    let install = ["toolchain", "install", toolchain, "--profile", "minimal", "--no-self-update"];
    let is_available = is_there() || (shell.succeeds("rustup", install) && is_there());
    if !is_available {
        return Outcome::NotAvailable(format!("Rust {toolchain} is not installed, and rustup cannot install it"));
    }
    let (plus, target) = (format!("+{toolchain}"), shell.target_directory("msrv").to_string_lossy().into_owned());
    shell.cargo(&[&[&plus, "check", "--locked", "--target-dir", &target], &INSTALLED[..]].concat(), &[])
}

/// Packages what is published, and compiles each package from its archive.
fn packages(shell: &Shell) -> Outcome {
    let target = shell.target_directory("packages");
    if let Err(error) = forget_packages(&target) {
        return Outcome::Failed(error.to_string());
    }
    let target = target.to_string_lossy().into_owned();
    let kept = KEPT.iter().flat_map(|name| ["--exclude", name]);
    let arguments: Vec<&str> = ["package", "--workspace", "--locked", "--allow-dirty", "--target-dir", &target]
        .into_iter()
        .chain(kept)
        .collect();
    shell.cargo(&arguments, &[("CARGO_PROFILE_DEV_DEBUG", "0")])
}

/// Removes what an earlier run left below `target`, and what cargo unpacked for it: the versions are the same, so cargo
/// would take the earlier sources for those of the new archives.
fn forget_packages(target: &Path) -> io::Result<()> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    let unpacked = home.map(|home| home.join("registry/src")).filter(|unpacked| unpacked.exists());
    for registry in unpacked.iter().flat_map(fs::read_dir).flatten() {
        for package in fs::read_dir(registry?.path())? {
            let package = package?;
            if package.file_name().to_string_lossy().starts_with("guira-") {
                fs::remove_dir_all(package.path())?;
            }
        }
    }
    if target.exists() { fs::remove_dir_all(target) } else { Ok(()) }
}

fn advisories(shell: &Shell) -> Outcome {
    match cargo_tool(shell, &tools::DENY, &["deny", "fetch", "db"], &[]) {
        Outcome::Passed => cargo_tool(shell, &tools::DENY, &["deny", "--locked", "check", "advisories"], &[]),
        // What else could fail, the configuration, is read by each run of the tests (step deny).
        Outcome::Failed(_) => Outcome::NotAvailable("the advisory database could not be fetched".to_owned()),
        other => other,
    }
}

const NEXTEST: [&str; 6] = ["nextest", "run", "--locked", "--workspace", "--all-features", "--no-fail-fast"];

/// Runs the tests that measure the machine, one at a time.
fn measured(shell: &Shell) -> Outcome {
    cargo_tool(
        shell,
        &tools::NEXTEST,
        &[&NEXTEST[..], &["--run-ignored", "only", "--test-threads", "1"]].concat(),
        patience(),
    )
}

/// The tests that have a long form.
const LONG: &str = "(package(guira) & test(/^(counters|growth|histories|processes|recovery|reuse)::/)) \
                    + (package(guira-network) & kind(test)) \
                    + (package(guira-conformance) & test(/^(clover|contention|drops|fill|interleavings|models|\
                    overwritten_schedules|recovery|sim|swarm)::/))";

/// Runs the tests that have a long form.
fn long(shell: &Shell) -> Outcome {
    let arguments = [&NEXTEST[..], &["--profile", "long", "-E", LONG]].concat();
    cargo_tool(shell, &tools::NEXTEST, &arguments, &[&[("GUIRA_LONG", "1")], patience()].concat())
}
