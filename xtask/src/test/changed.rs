//! The effect of a change: the packages whose files it changes, the packages that depend on them, and the steps that
//! examine any of these.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::process::Shell;
use super::steps::StepName;

/// Files and folders that affect every package.
const GLOBAL: [&str; 8] = [
    "Cargo.toml",
    "Cargo.lock",
    "clippy.toml",
    "rustfmt.toml",
    ".cargo/",
    ".ci/",
    "xtask/src/test/",
    "xtask/Cargo.toml",
];

/// The effect of a change.
#[derive(Debug, PartialEq, Eq)]
pub struct Changed {
    /// Paths that differ, from the root of the workspace.
    paths: BTreeSet<String>,
    /// Packages whose files differ, and those that depend on them, also in tests; `None` for all.
    packages: Option<BTreeSet<String>>,
}

/// A package of the workspace in cargo's metadata.
#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

#[derive(Deserialize)]
struct Metadata {
    workspace_root: String,
    packages: Vec<Package>,
}

impl Changed {
    /// The change since the commit `base`, committed or not.
    pub fn since(base: &str, shell: &Shell) -> Result<Changed> {
        let differ = output(shell.command("git", ["diff", "--name-only", "--no-renames", "-z", base, "--"]))?;
        let unknown = output(shell.command("git", ["ls-files", "--others", "--exclude-standard", "-z"]))?;
        let paths = differ.split('\0').chain(unknown.split('\0')).filter(|path| !path.is_empty());
        let metadata = output(shell.command("cargo", ["metadata", "--no-deps", "--format-version", "1"]))?;
        let metadata: Metadata = serde_json::from_str(&metadata).context("cargo metadata")?;
        Ok(Changed::of(paths.map(str::to_owned).collect(), &metadata))
    }

    fn of(paths: BTreeSet<String>, metadata: &Metadata) -> Changed {
        if paths.iter().any(|path| GLOBAL.iter().any(|own| path.starts_with(own))) {
            return Changed { paths, packages: None };
        }
        let directory = |package: &Package| {
            let directory = package.manifest_path.strip_prefix(&metadata.workspace_root)?.strip_suffix("Cargo.toml")?;
            Some(directory.trim_start_matches('/').to_owned())
        };
        let is_changed = |package: &&Package| {
            directory(package).is_some_and(|directory| paths.iter().any(|path| path.starts_with(&directory)))
        };
        let mut packages: BTreeSet<String> =
            metadata.packages.iter().filter(is_changed).map(|package| package.name.clone()).collect();
        // Each round adds the packages that depend on one in the set; as many rounds as there are packages are enough.
        for _ in &metadata.packages {
            let depends = |package: &&Package| package.dependencies.iter().any(|on| packages.contains(&on.name));
            let more: Vec<String> = metadata.packages.iter().filter(depends).map(|it| it.name.clone()).collect();
            packages.extend(more);
        }
        Changed { paths, packages: Some(packages) }
    }

    /// Whether the package, or one of its dependencies, is changed.
    pub fn touches(&self, package: &str) -> bool {
        self.packages.as_ref().is_none_or(|packages| packages.contains(package))
    }

    fn is_any(&self, packages: &[&str]) -> bool {
        packages.iter().any(|package| self.touches(package))
    }

    fn lies_in(&self, places: &[&str]) -> bool {
        self.packages.is_none() || self.paths.iter().any(|path| places.iter().any(|place| path.starts_with(place)))
    }

    /// Whether the change can affect the result of the step.
    pub fn concerns(&self, step: StepName) -> bool {
        let has_code = self.packages.as_ref().is_none_or(|packages| !packages.is_empty());
        match step {
            StepName::Needs | StepName::Components | StepName::Format | StepName::Check => !self.paths.is_empty(),
            StepName::TestBuild
            | StepName::Clippy
            | StepName::Doc
            | StepName::Suites
            | StepName::Processes
            | StepName::DocTests => has_code,
            StepName::Build => self.is_any(&["guira-cli", "guira-instructions"]),
            StepName::Instructions => self.touches("guira-instructions"),
            StepName::Mutants => {
                self.touches("guira-conformance") || self.lies_in(&["conformance/", "xtask/src/mutants/"])
            }
            StepName::Fuzz => self.touches("guira-conformance") || self.lies_in(&["fuzz/", "xtask/src/fuzz"]),
            StepName::Porcupine => self.touches("guira-check") || self.lies_in(&["conformance/porcupine/"]),
            StepName::Rdma => self.touches("guira") || self.lies_in(&["xtask/src/rdma/"]),
            StepName::Loom | StepName::Miri => self.touches("guira-fabric"),
            StepName::Deny | StepName::Advisories => {
                self.lies_in(&["deny.toml"]) || self.paths.iter().any(|path| path.ends_with("Cargo.toml"))
            }
            StepName::Msrv | StepName::Package => self.is_any(&["guira", "guira-cli"]),
        }
    }
}

fn output(mut command: Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context(program.clone())?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(paths: &[&str]) -> Changed {
        let package = |name: &str, folder: &str, on: &[&str]| Package {
            name: name.to_owned(),
            manifest_path: format!("/w/{folder}/Cargo.toml"),
            dependencies: on.iter().map(|name| Dependency { name: (*name).to_owned() }).collect(),
        };
        let packages = vec![
            package("guira-cli", "crates/cli", &["guira", "clap"]),
            package("guira", "crates/guira", &["guira-layout"]),
            package("guira-instructions", "benches/instructions", &["guira"]),
            package("guira-layout", "crates/layout", &[]),
            package("guira-layouts", "crates/layouts", &[]),
        ];
        let metadata = Metadata { workspace_root: "/w".to_owned(), packages };
        Changed::of(paths.iter().map(|path| (*path).to_owned()).collect(), &metadata)
    }

    #[test]
    fn a_changed_package_affects_exactly_its_dependents() {
        let touched = |path: &str| changed(&[path]).packages.map(Vec::from_iter);
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            touched("crates/layout/src/row.rs"),
            names(&["guira", "guira-cli", "guira-instructions", "guira-layout"])
        );
        assert_eq!(touched("crates/cli/tests/suite/serve.rs"), names(&["guira-cli"]));
        assert_eq!(touched("docs/space.md"), names(&[]));
        assert_eq!(touched("Cargo.lock"), None);
    }

    #[test]
    fn steps_that_a_change_cannot_affect_are_left_out() {
        let steps = |path: &str| {
            let changed = changed(&[path]);
            crate::test::steps::STEPS.iter().filter(|step| changed.concerns(step.name)).count()
        };
        assert_eq!(steps("docs/space.md"), 4, "the steps that read sources and documents");
        assert_eq!(steps("Cargo.lock"), crate::test::steps::STEPS.len());
        assert!(!changed(&["crates/layouts/a.rs"]).concerns(StepName::Build));
        assert!(changed(&["crates/layout/a.rs"]).concerns(StepName::Build));
        assert!(changed(&["fuzz/corpus/row/a"]).concerns(StepName::Fuzz));
        assert!(!changed(&[]).concerns(StepName::Check));
    }
}
