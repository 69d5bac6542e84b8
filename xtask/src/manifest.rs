//! Parsed Cargo manifests for the checks: the package, its directory, its crate roots and its dependencies by line.
//!
//! Dependencies are those of published packages: `[dependencies]`, `[build-dependencies]` and both under `[target.*]`.
//! Dependencies of tests (`[dev-dependencies]`) are left out on purpose.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

use crate::report::Violation;
use crate::tree::SourceFile;

/// One package's manifest.
#[derive(Debug)]
pub struct Manifest {
    pub path: String,
    /// The package's directory, without a slash at its end; empty for a package at the root.
    pub directory: String,
    pub name: String,
    pub dependencies: Vec<Dependency>,
    /// Paths of binaries and of the library, if the manifest gives them.
    declared_roots: Vec<String>,
}

/// One dependency: the package's real name, and the line that names it.
#[derive(Debug, PartialEq, Eq)]
pub struct Dependency {
    pub package: String,
    pub line: usize,
}

impl Manifest {
    /// Parses a manifest; a workspace root without a package is `None`.
    pub fn parse(path: &str, text: &str) -> Result<Option<Self>, Violation> {
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let line = line_at(text, error.span().map_or(0, |span| span.start));
            Violation::new(path, line, format!("does not parse: {}", error.message()))
        })?;
        let Some(package) = raw.package else { return Ok(None) };
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
        let conditional = raw.target.values().flat_map(|tables| [&tables.dependencies, &tables.build_dependencies]);
        let tables = [&raw.dependencies, &raw.build_dependencies].into_iter().chain(conditional);
        let dependencies = tables.flatten().map(|(key, value)| Dependency::new(key, value, text)).collect();
        let targets = raw.lib.iter().chain(&raw.bin);
        let declared_roots = targets.filter_map(|target| target.path.clone()).collect();
        Ok(Some(Self { path: path.to_owned(), directory, name: package.name, dependencies, declared_roots }))
    }

    /// The path in the repository of `inner`, a path in the package.
    pub fn inside(&self, inner: &str) -> String {
        if self.directory.is_empty() { inner.to_owned() } else { format!("{}/{inner}", self.directory) }
    }

    /// Whether `path` is the root file of this package's library or of one of its binaries.
    pub fn is_crate_root(&self, path: &str) -> bool {
        let in_bin = |path: &str| {
            let file = path.strip_prefix(&self.inside("src/bin/")).unwrap_or_default();
            file.ends_with(".rs") && (!file.contains('/') || (file.ends_with("/main.rs")))
        };
        ["src/lib.rs", "src/main.rs"].iter().any(|root| self.inside(root) == path)
            || self.declared_roots.iter().any(|root| self.inside(root) == path)
            || in_bin(path)
    }
}

/// Parses every package manifest among `files` and reports those that do not parse.
pub fn parse_all<'a>(files: impl Iterator<Item = &'a SourceFile>) -> (Vec<Manifest>, Vec<Violation>) {
    let mut parsed = Vec::new();
    let mut unparsed = Vec::new();
    for file in files.filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml")) {
        match Manifest::parse(&file.path, &file.text) {
            Ok(manifest) => parsed.extend(manifest),
            Err(violation) => unparsed.push(violation),
        }
    }
    (parsed, unparsed)
}

#[derive(Deserialize)]
struct Raw {
    package: Option<Package>,
    lib: Option<Target>,
    #[serde(default)]
    bin: Vec<Target>,
    #[serde(default)]
    dependencies: Table,
    #[serde(default, rename = "build-dependencies")]
    build_dependencies: Table,
    #[serde(default)]
    target: BTreeMap<String, Tables>,
}

type Table = BTreeMap<Spanned<String>, Value>;

#[derive(Deserialize)]
struct Package {
    name: String,
}

#[derive(Deserialize)]
struct Target {
    path: Option<String>,
}

#[derive(Deserialize)]
struct Tables {
    #[serde(default)]
    dependencies: Table,
    #[serde(default, rename = "build-dependencies")]
    build_dependencies: Table,
}

impl Dependency {
    fn new(key: &Spanned<String>, value: &Value, text: &str) -> Self {
        let renamed = value.get("package").and_then(Value::as_str);
        Self { package: renamed.unwrap_or(key.get_ref()).to_owned(), line: line_at(text, key.span().start) }
    }
}

fn line_at(text: &str, offset_bytes: usize) -> usize {
    1 + text.bytes().take(offset_bytes).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"[package]
name = "sample"

[[bin]]
name = "other"
path = "tools/other.rs"

[dependencies]
near.workspace = true
alias = { package = "far", version = "1" }

[dependencies.table]
version = "1"

[target.'cfg(unix)'.dependencies]
unix-only = "1"

[build-dependencies]
builder = "1"

[dev-dependencies]
test-only = "1"
"#;

    fn sample() -> Manifest {
        Manifest::parse("crates/sample/Cargo.toml", SAMPLE).expect("the sample parses").expect("it has a package")
    }

    #[test]
    fn dependencies_are_found_with_name_and_line() {
        let mut found: Vec<(String, usize)> =
            sample().dependencies.into_iter().map(|found| (found.package, found.line)).collect();
        found.sort_by_key(|(_, line)| *line);
        let found: Vec<(&str, usize)> = found.iter().map(|(name, line)| (name.as_str(), *line)).collect();
        assert_eq!(found, [("near", 9), ("far", 10), ("table", 12), ("unix-only", 16), ("builder", 19)]);
    }

    #[test]
    fn crate_roots_are_the_library_and_every_binary() {
        let manifest = sample();
        for root in ["src/lib.rs", "src/main.rs", "src/bin/a.rs", "src/bin/b/main.rs", "tools/other.rs"] {
            assert!(manifest.is_crate_root(&manifest.inside(root)), "{root}");
        }
        for other in ["src/row.rs", "src/bin/b/part.rs", "build.rs", "tests/lib.rs"] {
            assert!(!manifest.is_crate_root(&manifest.inside(other)), "{other}");
        }
    }

    #[test]
    fn a_workspace_is_not_a_package_and_errors_are_reported() {
        assert!(Manifest::parse("Cargo.toml", "[workspace]\n").expect("it parses").is_none());
        let violation = Manifest::parse("Cargo.toml", "[package]\nname = \n").expect_err("a value is missing");
        assert_eq!(violation.line, 2);
    }
}
