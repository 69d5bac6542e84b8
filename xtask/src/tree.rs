//! The files of the repository, with those that are not committed, but without what cargo and git write.
//!
//! Paths are relative to the root and use `/`, whatever the host. Only text that a check reads is loaded; all paths are
//! listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Extensions of the files whose text is loaded.
const TEXT_EXTENSIONS: [&str; 3] = ["rs", "md", "toml"];

/// Directories that are skipped: cargo and git write there, not people.
const UNWALKED: [&str; 2] = [".git", "target"];

/// Directory depth at which the walk stops, in case a link leads back to its parent.
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
        let paths = walked_paths(root)?;
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

/// The root of the workspace, which contains this package.
pub fn workspace_root() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).context("this package is in a workspace")
}

/// Whether the last component of `path` ends in `.extension`.
pub fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
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
    TEXT_EXTENSIONS.iter().any(|extension| has_extension(path, extension))
}

fn read(root: &Path, path: &str) -> Result<SourceFile> {
    let bytes = fs::read(root.join(path)).with_context(|| format!("reading {path}"))?;
    Ok(SourceFile { path: path.to_owned(), text: String::from_utf8_lossy(&bytes).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_tree_has_the_text_of_its_sources_and_no_build_output() {
        let tree = Tree::load(&workspace_root().expect("it is in a workspace")).expect("it can be read");
        assert!(tree.text("xtask/src/tree.rs").is_some_and(|text| text.contains("fn a_loaded_tree")));
        assert!(tree.with_extension("toml").any(|file| file.path == "Cargo.toml"));
        assert!(!tree.paths.iter().any(|path| path.starts_with("target/") || path.starts_with(".git/")));
    }
}
