//! Cargo's messages about the programs that it compiled, with `--message-format=json-render-diagnostics`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A message about one program.
#[derive(Debug, Deserialize)]
pub struct Artifact {
    pub package_id: String,
    pub manifest_path: PathBuf,
    pub target: Target,
    pub profile: Profile,
    pub executable: PathBuf,
}

#[derive(Debug, Deserialize)]
pub struct Target {
    /// `lib`, `bin`, `example` or `test`; usually one of them.
    pub kind: Vec<String>,
    pub name: String,
}

#[derive(Debug, Deserialize)]
pub struct Profile {
    /// Whether the program runs the target's tests.
    pub test: bool,
}

impl Artifact {
    /// Parses the messages in `output` about programs, in order. Other lines are skipped.
    pub fn all(output: &str) -> impl Iterator<Item = Artifact> {
        output.lines().filter_map(|line| serde_json::from_str(line).ok())
    }

    /// The first program in `output` of the target `name` that does not run tests.
    pub fn program(output: &str, name: &str) -> Option<PathBuf> {
        Artifact::all(output).find(|it| !it.profile.test && it.target.name == name).map(|it| it.executable)
    }

    /// The package's name.
    pub fn package(&self) -> Option<&str> {
        // `path+file:///a/b#name@1.0.0`, or `path+file:///a/name#1.0.0` where the folder has the package's name.
        let (path, version) = self.package_id.rsplit_once('#')?;
        version.split_once('@').map_or_else(|| path.rsplit('/').next(), |(name, _)| Some(name))
    }

    /// The package's directory, in which cargo runs its tests.
    pub fn directory(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A message of cargo.
    pub fn message(id: &str, folder: &str, kind: &str, name: &str, is_test: bool) -> String {
        let profile = serde_json::json!({ "test": is_test });
        let target = serde_json::json!({ "kind": [kind], "name": name });
        serde_json::json!({
            "reason": "compiler-artifact", "package_id": format!("path+file:///w/{id}"), "target": target,
            "manifest_path": format!("/w/{folder}/Cargo.toml"), "profile": profile, "executable": format!("/t/{name}"),
        })
        .to_string()
    }

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let library = message("crates/layout#guira-layout@0.1.0", "crates/layout", "lib", "guira_layout", false);
        let output = [
            "not a message".to_owned(),
            library.replace("\"/t/guira_layout\"", "null"),
            message("conformance#guira-conformance@0.1.0", "conformance", "example", "swarm", true),
            message("crates/guira#0.1.0", "crates/guira", "example", "swarm", false).replace("/t/", "/u/"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ]
        .join("\n");
        let found: Vec<Artifact> = Artifact::all(&output).collect();
        assert_eq!(found.iter().filter_map(Artifact::package).collect::<Vec<_>>(), ["guira-conformance", "guira"]);
        assert_eq!(found[1].directory(), Path::new("/w/crates/guira"));
        assert_eq!(Artifact::program(&output, "swarm"), Some(PathBuf::from("/u/swarm")));
        assert_eq!(Artifact::program(&output, "swarms"), None);
    }
}
