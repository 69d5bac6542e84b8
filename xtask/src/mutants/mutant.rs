//! The files of `conformance/mutants`, and what they ask for.

use std::fmt::{self, Display};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::DIRECTORY;

/// One rule of the protocol, broken.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mutant {
    /// Of its file, without the ending.
    #[serde(default)]
    pub name: String,
    /// What it does wrong, in a line.
    pub breaks: String,
    /// The rule's number.
    pub rule: String,
    /// The source, from the root of the workspace.
    pub file: String,
    /// A text that is once in it.
    pub find: String,
    /// What is put in its place.
    pub replace: String,
    /// The tests that must fail.
    pub caught_by: Vec<Check>,
    /// Whether a test that does not end counts as one that failed.
    #[serde(default)]
    pub may_hang: bool,
}

impl Mutant {
    /// `source` with the rule broken.
    pub fn apply(&self, source: &str) -> Result<String> {
        let times = source.matches(&self.find).count();
        ensure!(times == 1, "{}: its text is {times} times in {}, not once", self.name, self.file);
        Ok(source.replacen(&self.find, &self.replace, 1))
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.breaks.trim().is_empty(), "{}: say what it breaks", self.name);
        ensure!(!self.caught_by.is_empty(), "{}: name the tests that notice it", self.name);
        ensure!(self.find != self.replace, "{}: it changes nothing", self.name);
        Ok(())
    }
}

impl Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<38} {:<12} {}", self.name, self.rule, self.breaks)?;
        self.caught_by.iter().try_for_each(|check| write!(f, "\n{:<38} caught by {check}", ""))
    }
}

/// A test by name: `module::test` of the conformance suite, or `package::module::test` of a library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Check {
    pub program: Program,
    pub test: String,
}

/// What cargo has to build and run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The conformance suite.
    Conformance,
    /// The unit tests of a package's library.
    Library(String),
}

impl Program {
    /// Arguments of `cargo test`.
    pub fn arguments(&self) -> Vec<&str> {
        match self {
            Program::Conformance => vec!["-p", "guira-conformance", "--test", "suite"],
            Program::Library(package) => vec!["-p", package, "--lib"],
        }
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Program::Conformance => f.write_str("the conformance suite"),
            Program::Library(package) => f.write_str(package),
        }
    }
}

impl TryFrom<String> for Check {
    type Error = anyhow::Error;

    fn try_from(name: String) -> Result<Check> {
        match name.split_once("::") {
            Some((program, test)) if !program.is_empty() && !test.is_empty() => {
                Ok(match program.starts_with("guira") {
                    true => Check { program: Program::Library(program.to_owned()), test: test.to_owned() },
                    false => Check { program: Program::Conformance, test: name },
                })
            }
            _ => bail!("{name:?} is no module::test"),
        }
    }
}

impl From<Check> for String {
    fn from(check: Check) -> String {
        check.to_string()
    }
}

impl Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            Program::Conformance => f.write_str(&self.test),
            Program::Library(package) => write!(f, "{package}::{}", self.test),
        }
    }
}

/// Every mutant, by name.
pub fn read_all(root: &Path) -> Result<Vec<Mutant>> {
    let directory = root.join(DIRECTORY);
    let mut mutants = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| DIRECTORY.to_owned())? {
        let path = entry.with_context(|| DIRECTORY.to_owned())?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".toml")) else { continue };
        let text = fs::read_to_string(&path).with_context(|| format!("{DIRECTORY}/{name}.toml"))?;
        let mutant: Mutant = toml::from_str(&text).with_context(|| format!("{DIRECTORY}/{name}.toml"))?;
        let mutant = Mutant { name: name.to_owned(), ..mutant };
        mutant.check()?;
        mutants.push(mutant);
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    ensure!(!mutants.is_empty(), "there is no mutant in {DIRECTORY}");
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::workspace_root;

    fn mutant(find: &str) -> Mutant {
        let text = "breaks = 'b'\nrule = 'R-A-1'\nfile = 'a.rs'\nfind = '?'\nreplace = 'x'\ncaught-by = ['a::b']";
        toml::from_str(&text.replace('?', find)).expect("it parses")
    }

    #[test]
    fn a_text_is_replaced_that_is_there_once() {
        assert_eq!(mutant("one").apply("a one b").expect("it is there"), "a x b");
        assert!(mutant("one").apply("one one").is_err());
        assert!(mutant("one").apply("two").is_err());
    }

    #[test]
    fn tests_are_named_by_module_or_package() {
        let check = |name: &str| Check::try_from(name.to_owned());
        let arguments = |name| check(name).expect("a name").program.arguments().join(" ");
        assert_eq!(arguments("sim::deaths::a"), "-p guira-conformance --test suite");
        assert_eq!(arguments("guira-rcuckoo::hash::tests::a"), "-p guira-rcuckoo --lib");
        assert_eq!(check("sim::deaths::a").expect("a name").to_string(), "sim::deaths::a");
        assert!(["sim", "::a", "sim::", ""].iter().all(|name| check(name).is_err()));
    }

    #[test]
    fn mutants_that_say_or_change_nothing_are_refused() {
        assert!(mutant("one").check().is_ok());
        assert!(Mutant { find: "x".to_owned(), ..mutant("one") }.check().is_err());
        assert!(Mutant { caught_by: vec![], ..mutant("one") }.check().is_err());
        assert!(Mutant { breaks: " ".to_owned(), ..mutant("one") }.check().is_err());
        assert!(toml::from_str::<Mutant>("breaks = \"b\"\nfnid = \"a\"").is_err());
    }

    /// Every mutant's text is still in its source, its rule in the specification, and its tests in some test file.
    #[test]
    fn the_mutants_fit_the_sources() {
        let root = workspace_root().expect("the tests run inside the workspace");
        let rules = fs::read_to_string(root.join("docs/protocol.md")).expect("there is a specification");
        let mutants = read_all(&root).expect("the mutants are in order");
        assert!(mutants.len() >= 10, "{}", mutants.len());
        for mutant in &mutants {
            let source = fs::read_to_string(root.join(&mutant.file)).expect("its source is there");
            mutant.apply(&source).expect("its text is there once");
            assert!(rules.contains(&format!("**{}**", mutant.rule)), "{}: {}", mutant.name, mutant.rule);
        }
    }
}
