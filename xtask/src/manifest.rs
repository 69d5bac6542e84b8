//! The names and directories of the packages of the workspace, by their manifests.

use serde::Deserialize;

use crate::report::Violation;
use crate::tree::SourceFile;

/// One package.
#[derive(Debug)]
pub struct Manifest {
    /// The package's directory, without a slash at its end; empty for a package at the root.
    directory: String,
    pub name: String,
}

#[derive(Deserialize)]
struct Raw {
    package: Option<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

impl Manifest {
    /// Parses a manifest; a workspace root without a package is `None`.
    pub fn parse(path: &str, text: &str) -> Result<Option<Self>, Violation> {
        let raw: Raw = toml::from_str(text)
            .map_err(|error| Violation::new(path, 1, format!("does not parse: {}", error.message())))?;
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
        Ok(raw.package.map(|package| Self { directory, name: package.name }))
    }

    /// The path in the repository of `inner`, a path in the package.
    pub fn inside(&self, inner: &str) -> String {
        if self.directory.is_empty() { inner.to_owned() } else { format!("{}/{inner}", self.directory) }
    }
}

/// Parses every package manifest among `files` and reports those that do not parse.
pub fn parse_all<'a>(files: impl Iterator<Item = &'a SourceFile>) -> (Vec<Manifest>, Vec<Violation>) {
    let (mut parsed, mut unparsed) = (Vec::new(), Vec::new());
    for file in files.filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml")) {
        match Manifest::parse(&file.path, &file.text) {
            Ok(manifest) => parsed.extend(manifest),
            Err(violation) => unparsed.push(violation),
        }
    }
    (parsed, unparsed)
}
