//! Mutants name tests that exist: a check that a mutant names, and that was renamed, would be found out only by trying
//! the mutants, which are compiled for minutes.
//!
//! A test is named as `module::test` of the conformance suite, or as `package::module::test` of a library.
//! Tests that a macro makes have no name that could be read here, so no mutant can name them.

use std::collections::BTreeSet;

use super::test_names;
use crate::manifest::Manifest;
use crate::mutants::{DIRECTORY, Mutant};
use crate::report::{Report, Violation};
use crate::rust::RustFile;
use crate::tree::SourceFile;

/// Checks the tests that each of `files`, those of [`DIRECTORY`] among them, names.
pub fn check<'f>(files: impl Iterator<Item = &'f SourceFile>, rust: &[RustFile], manifests: &[Manifest]) -> Report {
    let conformance = rust.iter().flat_map(test_names::of_conformance);
    let known: BTreeSet<String> =
        conformance.chain(rust.iter().flat_map(|file| test_names::of_libraries(file, manifests))).collect();
    let (mut mutants, mut named, mut violations) = (0, BTreeSet::new(), Vec::new());
    for file in files.filter(|file| file.path.starts_with(DIRECTORY)) {
        mutants += 1;
        match toml::from_str::<Mutant>(&file.text) {
            Err(error) => violations.push(Violation::new(&file.path, 1, format!("no mutant: {}", error.message()))),
            Ok(mutant) => {
                let names: Vec<String> = mutant.caught_by.into_iter().map(String::from).collect();
                let unknown = names.iter().filter(|name| !known.contains(*name));
                violations.extend(unknown.map(|name| {
                    Violation::new(&file.path, line_of(&file.text, name), format!("there is no test {name}"))
                }));
                named.extend(names);
            }
        }
    }
    if mutants == 0 {
        violations.push(Violation::new(DIRECTORY, 1, "missing: the protocol's rules are broken here, one at a time"));
    }
    let looked_at = format!("{mutants} mutants and {} tests in {DIRECTORY}", named.len());
    Report { name: "mutants", looked_at, violations }
}

fn line_of(text: &str, name: &str) -> usize {
    text.lines().position(|line| line.contains(name)).map_or(1, |line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(caught_by: &str) -> Vec<String> {
        let text = format!(
            "breaks = 'b'\nrule = 'R-A-1'\nfile = 'a.rs'\nfind = 'a'\nreplace = 'b'\ncaught-by = [{caught_by}]\n"
        );
        let mutant = SourceFile { path: format!("{DIRECTORY}/a.toml"), text };
        let other = SourceFile { path: "other/a.toml".to_owned(), text: "caught-by = ['a::b']".to_owned() };
        let rust = [
            ("conformance/tests/suite/locks.rs", "#[test]\nfn waits() {}\nfn helps() {}\n"),
            ("conformance/tests/suite/recovery/mod.rs", "mod deaths;\n#[test]\nfn all() {}\n"),
            ("conformance/tests/suite/recovery/deaths.rs", "#[test]\nfn one() {}\n"),
            ("conformance/regressions/a_bug.rs", "#[test]\nfn is_fixed() {}\n"),
            ("crates/rcuckoo/src/hash.rs", "mod tests {\n#[test]\nfn odd() {}\n}\n"),
            ("crates/rcuckoo/src/lib.rs", "#[test]\nfn top() {}\n"),
        ];
        let rust = rust.map(|(path, text)| RustFile::parse(path, text).expect("the sample parses"));
        let manifest = Manifest::parse("crates/rcuckoo/Cargo.toml", "[package]\nname = 'guira-rcuckoo'\n");
        let manifests = [manifest.expect("it parses").expect("a package")];
        let report = check([&mutant, &other].into_iter(), &rust, &manifests);
        report.violations.iter().map(Violation::to_string).collect()
    }

    #[test]
    fn tests_that_are_there_pass() {
        let names = "'locks::waits', 'recovery::all', 'recovery::deaths::one', 'regressions::a_bug::is_fixed', \
                     'guira-rcuckoo::hash::tests::odd', 'guira-rcuckoo::top'";
        assert_eq!(reasons(names), [""; 0]);
    }

    #[test]
    fn tests_that_are_not_there_fail() {
        let names = ["locks::helps", "locks::waits_no_more", "recovery::one", "guira-rcuckoo::hash::odd", "a::b"];
        for name in names {
            let reason = format!("{DIRECTORY}/a.toml:6: there is no test {name}");
            assert_eq!(reasons(&format!("'locks::waits', '{name}'")), [reason]);
        }
    }

    #[test]
    fn no_mutants_and_what_is_none_fail() {
        assert_eq!(check(std::iter::empty(), &[], &[]).violations.len(), 1);
        assert!(reasons("'nonsense'").iter().all(|reason| reason.contains("no mutant: ")));
        assert_eq!(reasons("'nonsense'").len(), 1);
    }
}
