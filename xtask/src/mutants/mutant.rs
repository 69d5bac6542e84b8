//! The files of `conformance/mutants`, and their contents.

use std::fmt::{self, Display};
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::DIRECTORY;

/// The word in a replacement that stands for whether the mutant is enabled.
const IS_ENABLED: &str = "MUTANT";

/// One mutant: a change of the sources that breaks one rule of the protocol.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mutant {
    /// The name of its file, without the extension.
    #[serde(default)]
    pub name: String,
    /// Description of what it breaks, in one line.
    pub breaks: String,
    /// The rule's number.
    pub rule: String,
    /// The path of the source file, from the root of the workspace.
    pub file: String,
    /// A text that occurs exactly once in the source file.
    pub find: String,
    /// The replacement. It behaves like the text unless [`IS_ENABLED`] in it is true.
    pub replace: String,
    /// The tests that must fail.
    pub caught_by: Vec<Check>,
    /// Whether a test that hangs counts as failed.
    #[serde(default)]
    pub may_hang: bool,
}

impl Mutant {
    /// The position of its text in `source`.
    fn range(&self, source: &str) -> Result<Range<usize>> {
        let times = source.matches(&self.find).count();
        let start = source.find(&self.find).filter(|_| times == 1);
        let Some(start) = start else {
            bail!("{}: its text occurs {times} times in {}, not once", self.name, self.file)
        };
        Ok(start..start + self.find.len())
    }

    /// The replacement, with the test for whether the mutant is enabled.
    fn guarded(&self) -> String {
        self.replace.replace(IS_ENABLED, &format!("crate::mutant!({:?})", self.name))
    }

    /// The root file of the library that its source belongs to.
    pub fn library(&self) -> Result<String> {
        let package = self.file.split_once("/src/");
        let (package, _) = package.with_context(|| format!("{}: {} is not part of a library", self.name, self.file))?;
        Ok(format!("{package}/src/lib.rs"))
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.breaks.trim().is_empty(), "{}: say what it breaks", self.name);
        ensure!(!self.caught_by.is_empty(), "{}: name the tests that catch it", self.name);
        ensure!(self.replace.contains(IS_ENABLED), "{}: {IS_ENABLED} is not in its replacement", self.name);
        Ok(())
    }
}

/// Applies all `mutants` of one file to `source`. Each has no effect until it is enabled.
pub fn apply_all<'m>(source: &str, mutants: impl IntoIterator<Item = &'m Mutant>) -> Result<String> {
    let ranges = mutants.into_iter().map(|mutant| Ok((mutant, mutant.range(source)?)));
    let mut ranges: Vec<(&Mutant, Range<usize>)> = ranges.collect::<Result<_>>()?;
    ranges.sort_by_key(|(_, range)| range.start);
    let (mut text, mut from, mut last) = (String::with_capacity(source.len()), 0, "");
    for (mutant, range) in ranges {
        ensure!(from <= range.start, "{} and {last}: their texts overlap in {}", mutant.name, mutant.file);
        text += &source[from..range.start];
        text += &mutant.guarded();
        (from, last) = (range.end, &mutant.name);
    }
    Ok(text + &source[from..])
}

/// A test by name: `module::test` of the conformance suite, or `package::module::test` of a library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Check {
    pub program: Program,
    pub test: String,
}

/// A test program that cargo builds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The conformance suite.
    Conformance,
    /// The unit tests of a package's library.
    Library(String),
}

impl Program {
    /// The package under test.
    pub fn package(&self) -> &str {
        match self {
            Program::Conformance => "guira-conformance",
            Program::Library(package) => package,
        }
    }

    /// The argument of `cargo test` that selects it.
    pub fn selection(&self) -> &'static str {
        match self {
            Program::Conformance => "--test=suite",
            Program::Library(_) => "--lib",
        }
    }

    /// Kind and name of the program's target in cargo's messages.
    pub fn target(&self) -> (&'static str, String) {
        match self {
            Program::Conformance => ("test", "suite".to_owned()),
            Program::Library(package) => ("lib", package.replace('-', "_")),
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
            _ => bail!("{name:?} is not of the form module::test"),
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

/// Reads every mutant, sorted by name.
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
    ensure!(!mutants.is_empty(), "there are no mutants in {DIRECTORY}");
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::workspace_root;

    fn mutant(name: &str, find: &str) -> Mutant {
        let text = "breaks = 'b'\nrule = 'R-A-1'\nfile = 'crates/a/src/b.rs'\nfind = '?'\nreplace = 'if MUTANT {'\n\
                    caught-by = ['a::b']";
        Mutant { name: name.to_owned(), ..toml::from_str(&text.replace('?', find)).expect("it parses") }
    }

    #[test]
    fn a_text_that_occurs_once_is_replaced() {
        let apply = |source| apply_all(source, [&mutant("m", "one")]);
        assert_eq!(apply("a one b").expect("it is there"), r#"a if crate::mutant!("m") { b"#);
        let error = |source| apply(source).expect_err("it is not there once").to_string();
        assert_eq!(error("one one"), "m: its text occurs 2 times in crates/a/src/b.rs, not once");
        assert_eq!(error("two"), "m: its text occurs 0 times in crates/a/src/b.rs, not once");
    }

    #[test]
    fn every_mutant_of_a_file_is_applied_under_its_own_name() {
        let (first, second) = (mutant("first", "one"), mutant("second", "two"));
        let applied = r#"if crate::mutant!("first") {if crate::mutant!("second") { three"#;
        for mutants in [[&first, &second], [&second, &first]] {
            assert_eq!(apply_all("onetwo three", mutants).expect("both are there"), applied);
        }
    }

    #[test]
    fn mutants_that_overlap_are_refused() {
        let (first, second) = (mutant("first", "one two"), mutant("second", "two three"));
        let error = apply_all("one two three", [&second, &first]).expect_err("they overlap").to_string();
        assert_eq!(error, "second and first: their texts overlap in crates/a/src/b.rs");
        let inside = mutant("inside", "wo");
        assert!(apply_all("one two three", [&first, &inside]).is_err());
    }

    #[test]
    fn a_mutant_belongs_to_a_library() {
        assert_eq!(mutant("m", "one").library().expect("it has one"), "crates/a/src/lib.rs");
        assert!(Mutant { file: "crates/a/tests/b.rs".to_owned(), ..mutant("m", "one") }.library().is_err());
    }

    #[test]
    fn tests_are_named_by_module_or_package() {
        let check = |name: &str| Check::try_from(name.to_owned());
        let program = |name| check(name).expect("a name").program;
        let selected = |program: &Program| format!("{} {}", program.package(), program.selection());
        assert_eq!(selected(&program("sim::deaths::a")), "guira-conformance --test=suite");
        assert_eq!(selected(&program("guira-rcuckoo::hash::tests::a")), "guira-rcuckoo --lib");
        assert_eq!(check("sim::deaths::a").expect("a name").to_string(), "sim::deaths::a");
        assert!(["sim", "::a", "sim::", ""].iter().all(|name| check(name).is_err()));
    }

    #[test]
    fn incomplete_mutants_are_refused() {
        let good = || mutant("m", "one");
        assert!(good().check().is_ok());
        assert!(Mutant { replace: "x".to_owned(), ..good() }.check().is_err());
        assert!(Mutant { caught_by: vec![], ..good() }.check().is_err());
        assert!(Mutant { breaks: " ".to_owned(), ..good() }.check().is_err());
        assert!(toml::from_str::<Mutant>("breaks = \"b\"\nfnid = \"a\"").is_err());
    }

    /// The text of every mutant is in its source, without overlaps, and its rule is in the specification.
    #[test]
    fn the_mutants_fit_the_sources() {
        let root = workspace_root().expect("the tests run inside the workspace");
        let rules = fs::read_to_string(root.join("docs/protocol.md")).expect("there is a specification");
        let mutants = read_all(&root).expect("the mutants are valid");
        assert!(mutants.len() >= 10, "{}", mutants.len());
        for mutant in &mutants {
            assert!(rules.contains(&format!("**{}**", mutant.rule)), "{}: {}", mutant.name, mutant.rule);
        }
        let broken = super::super::run::broken(&root, &mutants).expect("their texts are there once and apart");
        assert!(mutants.iter().all(|mutant| broken.contains_key(&mutant.file)));
    }
}
