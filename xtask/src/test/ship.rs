//! Checks before publishing: licences and sources of dependencies, the oldest supported compiler, and complete
//! packages.
//!
//! Missing tools (cargo-deny, an older toolchain) are installed by cargo and rustup; if that fails, the step is
//! reported as not available. cargo-deny is built without optimisation into the target directory: some 80 seconds of
//! processor time, once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::Outcome;
use super::process::Shell;
use super::steps::{Budget, target_directory};
use crate::tree::{SourceFile, Tree};

/// Limit for compiling cargo-deny on one slow core, and running it.
pub const DENY_LIMIT_S: u64 = 4_800;
/// Limit for installing a toolchain and compiling the published packages with it.
pub const MSRV_LIMIT_S: u64 = 4_800;
/// Limit for checking every package from its archive.
pub const PACKAGE_LIMIT_S: u64 = 4_800;
/// Limit for cloning the advisory database, short because it may be unreachable.
const FETCH_LIMIT_S: u64 = 120;

const _: () = assert!(FETCH_LIMIT_S < DENY_LIMIT_S);

/// The version of cargo-deny that is installed if there is none. It supports the keys in deny.toml.
const DENY_VERSION: &str = "0.20.2";

/// The file, in the target directory, with the digest of the inputs of the packages that last passed.
const PASSED: &str = "packages-passed";

/// Disables debug information, which nothing here needs.
const WITHOUT_DEBUG: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "0");

/// Files that each package must contain: its description and its licences.
const REQUIRED_FILES: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Keys that the manifest of each package must have.
const REQUIRED_KEYS: [&str; 8] =
    ["description", "license", "repository", "readme", "keywords", "categories", "rust-version", "edition"];

/// Checks what depends on the sources alone: banned crates, licences and sources of dependencies.
pub fn deny(shell: &Shell, budget: &Budget) -> Outcome {
    match cargo_deny(shell, budget) {
        Ok(program) => {
            let arguments = ["--locked", "check", "bans", "licenses", "sources"];
            shell.run(&mut shell.command(&program, arguments), budget)
        }
        Err(not_available) => not_available,
    }
}

/// Compares the dependencies with the advisory database, if it can be reached. It changes without the sources.
pub fn advisories(shell: &Shell, budget: &Budget) -> Outcome {
    let program = match cargo_deny(shell, budget) {
        Ok(program) => program,
        Err(not_available) => return not_available,
    };
    let fetching = Budget { until: budget.until.min(Instant::now() + Duration::from_secs(FETCH_LIMIT_S)), ..*budget };
    if !shell.succeeds(&program, ["fetch", "db"], &fetching) {
        return Outcome::NotAvailable("the advisory database cannot be reached".to_owned());
    }
    shell.run(&mut shell.command(&program, ["--locked", "check", "advisories"]), budget)
}

/// The program cargo-deny: the one of this machine, or one built into the target directory.
fn cargo_deny(shell: &Shell, budget: &Budget) -> Result<String, Outcome> {
    let tools = target_directory(shell, "tools");
    let own = tools.join("bin").join("cargo-deny").to_string_lossy().into_owned();
    for program in ["cargo-deny", &own] {
        if shell.succeeds(program, ["--version"], budget) {
            return Ok(program.to_owned());
        }
    }
    shell.say(&format!("installing cargo-deny {DENY_VERSION} to {}", tools.display()));
    let mut install =
        shell.command("cargo", ["install", "cargo-deny", "--version", DENY_VERSION, "--locked", "--debug"]);
    // Without CARGO_TARGET_DIR cargo builds in a temporary directory and removes it.
    install.arg("--root").arg(&tools).env_remove("CARGO_TARGET_DIR").env(WITHOUT_DEBUG.0, WITHOUT_DEBUG.1);
    match shell.run(&mut install, budget) {
        Outcome::Passed => Ok(own),
        _ => Err(Outcome::NotAvailable(format!("cargo-deny {DENY_VERSION} cannot be installed"))),
    }
}

/// Compiles the published packages with the oldest compiler that the workspace supports.
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
        return Outcome::NotAvailable(format!("Rust {toolchain} is not installed, and rustup cannot install it"));
    }
    let mut command = shell.command("cargo", [&format!("+{toolchain}"), "check", "--locked"]);
    command.args(packages.selected()).arg("--target-dir").arg(target_directory(shell, "msrv"));
    shell.run(&mut command, budget)
}

/// Packages every published crate, and checks each from its archive with its own default features, like a user who
/// installs it, but with the archives of the others instead of a registry.
pub fn package(shell: &Shell, budget: &Budget) -> Outcome {
    let packages = match Packages::read(shell.root()) {
        Ok(packages) if packages.missing_keys.is_empty() => packages,
        Ok(packages) => return Outcome::Failed(packages.missing_keys.join("; ")),
        Err(reason) => return Outcome::Failed(reason),
    };
    let inputs = match digest_of_inputs(shell.root()) {
        Ok(digest) => digest,
        Err(error) => return Outcome::Failed(format!("cannot read the inputs of the packages: {error:#}")),
    };
    let passed = target_directory(shell, PASSED);
    if fs::read_to_string(&passed).is_ok_and(|digest| digest == inputs) {
        shell.say("the inputs of the packages have not changed since they last passed");
        return Outcome::Passed;
    }
    let target = target_directory(shell, "packages");
    let (archives, unpacked) = (target.join("package"), target.join("unpacked"));
    if let Err(error) = remove(&archives).and_then(|()| remove(&unpacked)) {
        return Outcome::Failed(format!("cannot remove the packages of an earlier run: {error}"));
    }
    let mut command = shell.command("cargo", ["package", "--no-verify", "--locked", "--allow-dirty"]);
    command.args(packages.selected()).arg("--target-dir").arg(&target);
    let mut outcome = shell.run(&mut command, budget);
    if outcome == Outcome::Passed {
        outcome = unpack(shell, budget, &packages, &archives, &unpacked);
    }
    // One at a time: together, each would get the features that any of them enables.
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
        shell.say(&format!("cannot write {}, so the next run checks them again: {error}", passed.display()));
    }
    outcome
}

/// Makes a workspace of the archives, in which packages depend on each other, with the versions of Cargo.lock.
fn unpack(shell: &Shell, budget: &Budget, packages: &Packages, archives: &Path, workspace: &Path) -> Outcome {
    if let Err(error) = fs::create_dir_all(workspace) {
        return Outcome::Failed(format!("{}: {error}", workspace.display()));
    }
    let found = match folder_names(archives, ".crate") {
        Ok(found) if found.len() == packages.published.len() => found,
        Ok(found) => {
            return Outcome::Failed(format!("{} packages gave the archives {found:?}", packages.published.len()));
        }
        Err(error) => return Outcome::Failed(format!("{}: {error}", archives.display())),
    };
    let mut missing = Vec::new();
    for folder in &found {
        // Unpacked files get the current time, because cargo compares times, and all files in archives have the same.
        let mut command = shell.command("tar", ["--extract", "--gzip", "--touch", "--directory"]);
        command.arg(workspace).arg("--file").arg(archives.join(format!("{folder}.crate")));
        let outcome = shell.run(&mut command, budget);
        if outcome != Outcome::Passed {
            return outcome;
        }
        missing.extend(missing_files(&workspace.join(folder)));
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

/// The digest of all inputs of the packages: the compiler, the files of all crates, and those of the workspace.
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

/// Removes a folder, if it exists.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Files that an unpacked package lacks.
fn missing_files(package: &Path) -> Vec<String> {
    let lacks = |file: &&&str| !package.join(file).is_file();
    REQUIRED_FILES.iter().filter(lacks).map(|file| format!("{} does not contain {file}", package.display())).collect()
}

/// The packages of the workspace that are published.
#[derive(Debug, Default, PartialEq, Eq)]
struct Packages {
    /// Their names.
    published: Vec<String>,
    /// Keys that their manifests lack.
    missing_keys: Vec<String>,
    /// The oldest compiler that the workspace supports.
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
            let missing_keys = REQUIRED_KEYS.iter().filter(|key| package.get(**key).is_none());
            packages.missing_keys.extend(missing_keys.map(|key| format!("{name}: the manifest has no {key}")));
            packages.published.push(name.to_owned());
        }
        if packages.published.is_empty() || packages.rust_version.is_empty() {
            return Err("the workspace has no published package, or no rust-version".to_owned());
        }
        Ok(packages)
    }

    /// The manifest of a workspace of the packages, each in its folder, in which they depend on each other.
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

    /// The arguments that select the packages.
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
    fn packages_depend_on_each_other_in_their_workspace() {
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
    fn the_digest_changes_with_any_input_of_packages() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
            digest_of_inputs(root.path()).expect("files that can be read")
        };
        let first = write("crates/a/src/lib.rs", "//! A.");
        assert_eq!(write("crates/a/src/lib.rs", "//! A."), first);
        assert_eq!(write("docs/a.md", "A."), first, "it is in no package");
        let changes =
            [write("crates/a/src/lib.rs", "//! B."), write("crates/a/README.md", "A."), write("Cargo.lock", "")];
        assert!(changes.iter().collect::<std::collections::BTreeSet<_>>().len() == 3 && !changes.contains(&first));
    }

    #[test]
    fn only_published_packages_are_selected() {
        let found = packages(&[WORKSPACE, WHOLE, KEPT]).expect("they are manifests");
        assert_eq!((found.rust_version.as_str(), found.missing_keys.len()), ("1.70", 0));
        assert_eq!(found.selected().collect::<Vec<_>>(), ["-p", "whole"]);
    }

    #[test]
    fn missing_keys_of_a_manifest_are_named() {
        let bare = "[package]\nname = \"bare\"\nlicense = \"MIT\"\n";
        let found = packages(&[WORKSPACE, WHOLE, bare]).expect("they are manifests");
        assert_eq!(found.missing_keys.len(), REQUIRED_KEYS.len() - 1);
        assert_eq!(found.missing_keys[0], "bare: the manifest has no description");
    }

    #[test]
    fn a_workspace_without_packages_or_rust_version_is_a_failure() {
        assert!(packages(&[WORKSPACE, KEPT]).is_err());
        assert!(packages(&[WHOLE]).is_err());
        assert!(packages(&[WORKSPACE, "[package"]).is_err());
    }

    #[test]
    fn files_that_a_package_lacks_are_named() {
        let package = tempfile::tempdir().expect("a folder");
        for file in REQUIRED_FILES {
            fs::write(package.path().join(file), "").expect("a file");
        }
        assert_eq!(missing_files(package.path()), [""; 0]);
        fs::remove_file(package.path().join("README.md")).expect("it is there");
        assert_eq!(missing_files(package.path()), [format!("{} does not contain README.md", package.path().display())]);
    }

    #[test]
    fn this_workspace_publishes_complete_packages() {
        let root = crate::tree::workspace_root().expect("the tests run inside the workspace");
        let found = Packages::read(&root).expect("the manifests parse");
        assert_eq!(found.missing_keys, [""; 0]);
        assert!(
            found.published.iter().any(|name| name == "guira") && !found.published.iter().any(|name| name == "xtask")
        );
    }
}
