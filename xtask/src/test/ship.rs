//! What must hold before anything is published: licences and sources of what is linked, the oldest compiler that is
//! promised, and packages that are whole.
//!
//! What a machine may lack (cargo-deny, an older toolchain) is installed where cargo and rustup can; where they cannot,
//! the step is not available, and says so. cargo-deny is built without optimisation into the target directory: some 80
//! seconds of processor time, once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::Outcome;
use super::process::Shell;
use super::steps::{Budget, target_directory};
use crate::tree::{SourceFile, Tree};

/// Compiling cargo-deny on one slow core, and then some.
pub const DENY_LIMIT_S: u64 = 1_200;
/// Installing a toolchain and compiling what is published with it.
pub const MSRV_LIMIT_S: u64 = 1_200;
/// Looking through every package once more, from its archive, as the compiler does.
pub const PACKAGE_LIMIT_S: u64 = 1_200;
/// Cloning the advisory database: where it cannot be reached, nothing may wait for it long.
const FETCH_LIMIT_S: u64 = 120;

const _: () = assert!(FETCH_LIMIT_S < DENY_LIMIT_S);

/// The cargo-deny that is installed where there is none. It knows the keys that deny.toml uses.
const DENY_VERSION: &str = "0.20.2";

/// The file, in the target directory, with the digest of what the packages were made of that compiled last.
const PASSED: &str = "packages-passed";

/// Leaves debug information out: nobody debugs what is compiled here.
const WITHOUT_DEBUG: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "0");

/// Files that each package carries, whoever builds it: what it is, and under which terms.
const CARRIED: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// What the manifest of each package says, in the words of cargo.
const STATED: [&str; 8] =
    ["description", "license", "repository", "readme", "keywords", "categories", "rust-version", "edition"];

/// Runs cargo-deny, with the advisories if their database can be reached.
pub fn deny(shell: &Shell, budget: &Budget) -> Outcome {
    let Some(program) = cargo_deny(shell, budget) else {
        return Outcome::NotAvailable(format!("cargo-deny {DENY_VERSION} is not here and cannot be installed"));
    };
    let fetching = Budget { until: budget.until.min(Instant::now() + Duration::from_secs(FETCH_LIMIT_S)), ..*budget };
    let mut arguments = vec!["--locked", "check"];
    if !shell.succeeds(&program, ["fetch", "db"], &fetching) {
        shell.say("the advisory database cannot be reached: advisories are NOT checked, the rest is");
        arguments.extend(["bans", "licenses", "sources"]);
    }
    shell.run(&mut shell.command(&program, arguments), budget)
}

/// The program cargo-deny: that of this machine, or one built for this target directory.
fn cargo_deny(shell: &Shell, budget: &Budget) -> Option<String> {
    let tools = target_directory(shell, "tools");
    let own = tools.join("bin").join("cargo-deny").to_str()?.to_owned();
    for program in ["cargo-deny", &own] {
        if shell.succeeds(program, ["--version"], budget) {
            return Some(program.to_owned());
        }
    }
    shell.say(&format!("installing cargo-deny {DENY_VERSION} to {}", tools.display()));
    let mut install =
        shell.command("cargo", ["install", "cargo-deny", "--version", DENY_VERSION, "--locked", "--debug"]);
    // What it is built from is of no use afterwards: cargo removes it, if it is told of no other place.
    install.arg("--root").arg(&tools).env_remove("CARGO_TARGET_DIR").env(WITHOUT_DEBUG.0, WITHOUT_DEBUG.1);
    (shell.run(&mut install, budget) == Outcome::Passed).then_some(own)
}

/// Compiles what is published with the oldest compiler that the workspace promises.
pub fn msrv(shell: &Shell, budget: &Budget) -> Outcome {
    let packages = match Packages::read(shell.root()) {
        Ok(packages) => packages,
        Err(reason) => return Outcome::Failed(reason),
    };
    let toolchain = packages.rust_version.as_str();
    let is_there = || shell.succeeds("rustup", ["run", toolchain, "rustc", "--version"], budget);
    let install = ["toolchain", "install", toolchain, "--profile", "minimal", "--no-self-update"];
    let can_install = || shell.succeeds("rustup", install, budget);
    let is_available = is_there() || (can_install() && is_there());
    if !is_available {
        return Outcome::NotAvailable(format!("there is no Rust {toolchain}, and rustup cannot install it"));
    }
    let mut command = shell.command("cargo", [&format!("+{toolchain}"), "check", "--locked"]);
    command.args(packages.selected()).arg("--target-dir").arg(target_directory(shell, "msrv"));
    shell.run(&mut command, budget)
}

/// Makes every package that is published, and compiles each from its archive, with its own default features: as who
/// installs it would, but against the archives of the others instead of a registry.
pub fn package(shell: &Shell, budget: &Budget) -> Outcome {
    let packages = match Packages::read(shell.root()) {
        Ok(packages) if packages.unstated.is_empty() => packages,
        Ok(packages) => return Outcome::Failed(packages.unstated.join("; ")),
        Err(reason) => return Outcome::Failed(reason),
    };
    let inputs = match digest_of_inputs(shell.root()) {
        Ok(digest) => digest,
        Err(error) => return Outcome::Failed(format!("what goes into packages cannot be read: {error:#}")),
    };
    let passed = target_directory(shell, PASSED);
    if fs::read_to_string(&passed).is_ok_and(|digest| digest == inputs) {
        shell.say("nothing that goes into a package has changed since all of them compiled from their archives");
        return Outcome::Passed;
    }
    let target = target_directory(shell, "packages");
    let (archives, unpacked) = (target.join("package"), target.join("unpacked"));
    if let Err(error) = remove(&archives).and_then(|()| remove(&unpacked)) {
        return Outcome::Failed(format!("packages of an earlier run cannot be removed: {error}"));
    }
    let mut command = shell.command("cargo", ["package", "--no-verify", "--locked", "--allow-dirty"]);
    command.args(packages.selected()).arg("--target-dir").arg(&target);
    let mut outcome = shell.run(&mut command, budget);
    if outcome == Outcome::Passed {
        outcome = unpack(shell, budget, &packages, &archives, &unpacked);
    }
    // Each by itself: together, each would have the features that any of them asks for.
    for name in &packages.published {
        if outcome == Outcome::Passed {
            let mut command = shell.at(unpacked.clone()).command("cargo", ["check", "--quiet", "-p", name]);
            command.arg("--target-dir").arg(&target).env(WITHOUT_DEBUG.0, WITHOUT_DEBUG.1);
            outcome = shell.run(&mut command, budget);
        }
    }
    if outcome == Outcome::Passed
        && let Err(error) = fs::write(&passed, inputs)
    {
        shell.say(&format!("{} cannot be written, so the next run compiles them again: {error}", passed.display()));
    }
    outcome
}

/// Makes a workspace of the archives, in which packages find each other, with the versions of Cargo.lock.
fn unpack(shell: &Shell, budget: &Budget, packages: &Packages, archives: &Path, workspace: &Path) -> Outcome {
    if let Err(error) = fs::create_dir_all(workspace) {
        return Outcome::Failed(format!("{}: {error}", workspace.display()));
    }
    let found = match folder_names(archives, ".crate") {
        Ok(found) if found.len() == packages.published.len() => found,
        Ok(found) => return Outcome::Failed(format!("{} packages made {found:?}", packages.published.len())),
        Err(error) => return Outcome::Failed(format!("{}: {error}", archives.display())),
    };
    let mut missing = Vec::new();
    for folder in &found {
        // What is unpacked is as new as the run: cargo compares times, and all archives state the same.
        let mut command = shell.command("tar", ["--extract", "--gzip", "--touch", "--directory"]);
        command.arg(workspace).arg("--file").arg(archives.join(format!("{folder}.crate")));
        let outcome = shell.run(&mut command, budget);
        if outcome != Outcome::Passed {
            return outcome;
        }
        missing.extend(not_carried(&workspace.join(folder)));
    }
    if !missing.is_empty() {
        return Outcome::Failed(missing.join("; "));
    }
    let made = fs::write(workspace.join("Cargo.toml"), packages.workspace(&found))
        .and_then(|()| fs::copy(shell.root().join("Cargo.lock"), workspace.join("Cargo.lock")));
    made.err().map_or(Outcome::Passed, |error| Outcome::Failed(format!("{}: {error}", workspace.display())))
}

/// The names of the files in `parent` that end in `suffix`, without it, sorted.
fn folder_names(parent: &Path, suffix: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(parent)? {
        names.extend(entry?.file_name().to_string_lossy().strip_suffix(suffix).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The digest of all that goes into packages: the compiler, the files of all crates, and those of the workspace.
fn digest_of_inputs(root: &Path) -> anyhow::Result<String> {
    let compiler = Command::new("rustc").arg("--version").output()?;
    let mut hasher = DefaultHasher::new();
    compiler.stdout.hash(&mut hasher);
    let is_input = |path: &&String| path.starts_with("crates/") || !path.contains('/');
    for path in Tree::load(root)?.paths.iter().filter(is_input) {
        path.hash(&mut hasher);
        fs::read(root.join(path))?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Removes a folder, if it is there.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Files that an unpacked package lacks.
fn not_carried(package: &Path) -> Vec<String> {
    let lacks = |file: &&&str| !package.join(file).is_file();
    CARRIED.iter().filter(lacks).map(|file| format!("{} does not carry {file}", package.display())).collect()
}

/// The packages of the workspace that are published.
#[derive(Debug, Default, PartialEq, Eq)]
struct Packages {
    /// Their names.
    published: Vec<String>,
    /// What their manifests fail to state.
    unstated: Vec<String>,
    /// The oldest compiler that the workspace promises.
    rust_version: String,
}

impl Packages {
    fn read(root: &Path) -> Result<Packages, String> {
        let tree = Tree::load(root).map_err(|error| format!("{error:#}"))?;
        let is_manifest = |file: &&SourceFile| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml");
        Packages::of(tree.files.iter().filter(is_manifest).map(|file| file.text.as_str()))
    }

    fn of<'t>(manifests: impl Iterator<Item = &'t str>) -> Result<Packages, String> {
        let mut packages = Packages::default();
        for text in manifests {
            let manifest: toml::Table = toml::from_str(text).map_err(|error| error.message().to_owned())?;
            let workspace = manifest.get("workspace").and_then(|workspace| workspace.get("package"));
            if let Some(version) = workspace.and_then(|package| package.get("rust-version")?.as_str()) {
                version.clone_into(&mut packages.rust_version);
            }
            let Some(package) = manifest.get("package") else { continue };
            let is_kept_here = package.get("publish").and_then(toml::Value::as_bool) == Some(false);
            let Some(name) = package.get("name").and_then(toml::Value::as_str).filter(|_| !is_kept_here) else {
                continue;
            };
            let unstated = STATED.iter().filter(|key| package.get(**key).is_none());
            packages.unstated.extend(unstated.map(|key| format!("{name} does not state its {key}")));
            packages.published.push(name.to_owned());
        }
        if packages.published.is_empty() || packages.rust_version.is_empty() {
            return Err("the workspace publishes no package, or promises no rust-version".to_owned());
        }
        Ok(packages)
    }

    /// The manifest of a workspace of them, each in its folder, in which they find each other.
    fn workspace(&self, folders: &[String]) -> String {
        let mut manifest = format!("[workspace]\nresolver = \"3\"\nmembers = {folders:?}\n\n[patch.crates-io]\n");
        for name in &self.published {
            let is_it = |folder: &&String| {
                let version = folder.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix('-'));
                version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
            };
            if let Some(folder) = folders.iter().find(is_it) {
                manifest.push_str(&format!("{name} = {{ path = {folder:?} }}\n"));
            }
        }
        manifest
    }

    /// The arguments that select them.
    fn selected(&self) -> impl Iterator<Item = &str> {
        self.published.iter().flat_map(|name| ["-p", name])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "[workspace.package]\nrust-version = \"1.70\"\n";
    const WHOLE: &str = "[package]\nname = \"whole\"\ndescription = \"d\"\nlicense.workspace = true\n\
                         repository.workspace = true\nreadme = \"README.md\"\nkeywords = []\ncategories = []\n\
                         rust-version.workspace = true\nedition = \"2024\"\n";
    const KEPT: &str = "[package]\nname = \"kept\"\npublish = false\n";

    fn packages(manifests: &[&str]) -> Result<Packages, String> {
        Packages::of(manifests.iter().copied())
    }

    #[test]
    fn packages_find_each_other_in_their_workspace() {
        let of = |name: &str| format!("[package]\nname = \"{name}\"\n");
        let found = packages(&[WORKSPACE, &of("guira"), &of("guira-layout")]).expect("they are manifests");
        let folders = ["guira-0.1.0", "guira-layout-0.2.0"].map(str::to_owned);
        let manifest: toml::Table = toml::from_str(&found.workspace(&folders)).expect("a manifest");
        let expected: toml::Table = toml::from_str(
            "[workspace]\nresolver = \"3\"\nmembers = [\"guira-0.1.0\", \"guira-layout-0.2.0\"]\n\
             [patch.crates-io]\nguira = { path = \"guira-0.1.0\" }\nguira-layout = { path = \"guira-layout-0.2.0\" }\n",
        )
        .expect("a manifest");
        assert_eq!(manifest, expected);
    }

    #[test]
    fn packages_are_made_again_when_anything_in_them_changes() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
            digest_of_inputs(root.path()).expect("files that can be read")
        };
        let first = write("crates/a/src/lib.rs", "//! A.");
        assert_eq!(write("crates/a/src/lib.rs", "//! A."), first);
        assert_eq!(write("docs/a.md", "A."), first, "no package carries it");
        let changes =
            [write("crates/a/src/lib.rs", "//! B."), write("crates/a/README.md", "A."), write("Cargo.lock", "")];
        assert!(changes.iter().collect::<std::collections::BTreeSet<_>>().len() == 3 && !changes.contains(&first));
    }

    #[test]
    fn published_packages_are_selected_and_others_are_not() {
        let found = packages(&[WORKSPACE, WHOLE, KEPT]).expect("they are manifests");
        assert_eq!((found.rust_version.as_str(), found.unstated.len()), ("1.70", 0));
        assert_eq!(found.selected().collect::<Vec<_>>(), ["-p", "whole"]);
    }

    #[test]
    fn what_a_manifest_does_not_state_is_named() {
        let bare = "[package]\nname = \"bare\"\nlicense = \"MIT\"\n";
        let found = packages(&[WORKSPACE, WHOLE, bare]).expect("they are manifests");
        assert_eq!(found.unstated.len(), STATED.len() - 1);
        assert_eq!(found.unstated[0], "bare does not state its description");
    }

    #[test]
    fn a_workspace_without_packages_or_promise_is_a_failure() {
        assert!(packages(&[WORKSPACE, KEPT]).is_err());
        assert!(packages(&[WHOLE]).is_err());
        assert!(packages(&[WORKSPACE, "[package"]).is_err());
    }

    #[test]
    fn files_that_a_package_lacks_are_named() {
        let package = tempfile::tempdir().expect("a folder");
        for file in CARRIED {
            fs::write(package.path().join(file), "").expect("a file");
        }
        assert_eq!(not_carried(package.path()), [""; 0]);
        fs::remove_file(package.path().join("README.md")).expect("it is there");
        assert_eq!(not_carried(package.path()), [format!("{} does not carry README.md", package.path().display())]);
    }

    #[test]
    fn this_workspace_publishes_whole_packages() {
        let root = crate::tree::workspace_root().expect("the tests run inside the workspace");
        let found = Packages::read(&root).expect("the manifests parse");
        assert_eq!(found.unstated, [""; 0]);
        assert!(
            found.published.iter().any(|name| name == "guira") && !found.published.iter().any(|name| name == "xtask")
        );
    }
}
