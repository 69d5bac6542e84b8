//! The files of the repository: listed by git if there is a git repository, by walking otherwise, and read once.
//!
//! Paths are relative to the root and use `/`, whatever the host. Untracked files count unless git ignores them, so a
//! new file is checked before it is committed. Only text that a check reads is loaded; all paths are listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Extensions of the files whose text is loaded.
const TEXT_EXTENSIONS: [&str; 5] = ["rs", "md", "sh", "toml", "txt"];

/// Directories that the walk without git skips: cargo and git write there, not people.
const UNWALKED: [&str; 2] = [".git", "target"];

/// Directory depth at which the walk without git stops, in case a link leads back to its parent.
const WALK_DEPTH: usize = 32;

/// One text file.
#[derive(Clone, Debug)]
pub struct SourceFile {
    pub path: String,
    pub text: String,
}

/// Every path of the repository, and the text of the files that checks read.
#[derive(Debug, Default)]
pub struct Tree {
    pub paths: BTreeSet<String>,
    pub files: Vec<SourceFile>,
}

impl Tree {
    /// Reads the repository at `root`.
    pub fn load(root: &Path) -> Result<Self> {
        let mut paths = match git_paths(root) {
            Some(paths) => paths,
            None => walked_paths(root)?,
        };
        // git still lists a file that was deleted but not yet committed as such.
        paths.retain(|path| root.join(path).is_file());
        let files = paths.iter().filter(|path| is_text(path)).map(|path| read(root, path)).collect::<Result<_>>()?;
        Ok(Self { paths, files })
    }

    /// The loaded files whose name ends in `.extension`.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a SourceFile> {
        self.files.iter().filter(move |file| has_extension(&file.path, extension))
    }

    /// The text of the file at `path`, if it was loaded.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }
}

/// Finds the root of the workspace: the nearest directory at or above the current one whose manifest has `[workspace]`.
pub fn workspace_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("reading the current directory")?;
    for directory in here.ancestors() {
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap_or_default();
        if manifest.lines().any(|line| line.trim() == "[workspace]") {
            return Ok(directory.to_owned());
        }
    }
    bail!("no Cargo.toml with [workspace] at or above {}", here.display())
}

/// Whether the last component of `path` ends in `.extension`.
pub fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

fn git_paths(root: &Path) -> Option<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let listed = String::from_utf8(output.stdout).ok()?;
    let paths: BTreeSet<String> = listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walked_paths(root: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((directory, depth)) = open.pop() {
        let entries = fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("listing {}", directory.display()))?;
            let path = entry.path();
            if path.is_file() {
                found.extend(relative(root, &path));
            } else if depth < WALK_DEPTH && !UNWALKED.iter().any(|name| entry.file_name() == *name) && path.is_dir() {
                open.push((path, depth + 1));
            }
        }
    }
    Ok(found)
}

fn relative(root: &Path, path: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> = path.strip_prefix(root).ok()?.iter().map(|part| part.to_str()).collect();
    Some(parts?.join("/"))
}

fn is_text(path: &str) -> bool {
    path.starts_with(".ci/") || TEXT_EXTENSIONS.iter().any(|extension| has_extension(path, extension))
}

fn read(root: &Path, path: &str) -> Result<SourceFile> {
    let bytes = fs::read(root.join(path)).with_context(|| format!("reading {path}"))?;
    Ok(SourceFile { path: path.to_owned(), text: String::from_utf8_lossy(&bytes).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_finds_this_file_and_leaves_build_output_out() {
        let root = workspace_root().expect("the tests run inside the workspace");
        let paths = walked_paths(&root).expect("the workspace can be listed");
        assert!(paths.contains("xtask/src/tree.rs"));
        assert!(!paths.iter().any(|path| path.starts_with("target/") || path.starts_with(".git/")));
    }

    #[test]
    fn a_loaded_tree_has_the_text_of_its_sources() {
        let root = workspace_root().expect("the tests run inside the workspace");
        let tree = Tree::load(&root).expect("the workspace can be read");
        assert!(tree.text("xtask/src/tree.rs").is_some_and(|text| text.contains("fn a_loaded_tree")));
        assert!(tree.text("no/such/file.rs").is_none());
        assert!(tree.with_extension("toml").any(|file| file.path == "Cargo.toml"));
    }

    #[test]
    fn extensions_are_those_of_the_last_component() {
        assert!(has_extension("a.d/b.rs", "rs"));
        assert!(!has_extension("a.rs/b", "rs"));
        assert!(is_text(".ci/run"));
        assert!(!is_text("LICENSE-MIT"));
    }
}
