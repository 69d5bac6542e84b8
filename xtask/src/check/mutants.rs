//! The tests named by mutants exist. Without this check a renamed test would be noticed only when the mutants are
//! tried, which takes minutes to compile.
//!
//! A test is named as `module::test` of the conformance suite, or as `package::module::test` of a library. Tests that a
//! macro generates have no name that can be read here, so no mutant can name them.
//!
//! Some rules are about many concurrent clients, and about the death of one. Each of these rules has a mutant, and each
//! of these mutants names a swarm, or an enumeration of deaths, in shared memory, where a client can die after every
//! word of a WRITE.

use std::collections::BTreeSet;

use super::test_names;
use crate::mutants::{DIRECTORY, Mutant};
use crate::report::{Report, Violation};
use crate::rust::RustFile;
use crate::tree::SourceFile;

/// Rules whose mutants must be caught by a swarm, or an enumeration of deaths, in shared memory.
const CAUGHT_IN_SHARED_MEMORY: [&str; 7] =
    ["R-LOCK-7", "R-READ-3", "R-COMMIT-1", "R-COMMIT-2", "R-COMMIT-3", "R-DROP-1", "R-RECOVER-2"];
/// Modules of the conformance suite with swarms and enumerations of deaths.
const MODULES: [&str; 2] = ["swarm::", "recovery::"];
/// The part of a test's name that says that it runs in shared memory.
const IN_SHARED_MEMORY: &str = "in_shared_memory";

/// Checks the tests that each mutant names. The mutants are those of `files` that are in [`DIRECTORY`].
pub fn check<'f>(files: impl Iterator<Item = &'f SourceFile>, rust: &[RustFile]) -> Report {
    let conformance = rust.iter().flat_map(test_names::of_conformance);
    let known: BTreeSet<String> = conformance.chain(rust.iter().flat_map(test_names::of_libraries)).collect();
    let (mut mutants, mut named, mut broken, mut violations) = (0, BTreeSet::new(), BTreeSet::new(), Vec::new());
    for file in files.filter(|file| file.path.starts_with(DIRECTORY)) {
        mutants += 1;
        match toml::from_str::<Mutant>(&file.text) {
            Err(error) => violations.push(Violation::new(&file.path, 1, format!("not a mutant: {}", error.message()))),
            Ok(mutant) => {
                let names: Vec<String> = mutant.caught_by.into_iter().map(String::from).collect();
                let unknown = names.iter().filter(|name| !known.contains(*name));
                violations.extend(unknown.map(|name| {
                    Violation::new(&file.path, line_of(&file.text, name), format!("there is no test {name}"))
                }));
                let is_listed = CAUGHT_IN_SHARED_MEMORY.contains(&mutant.rule.as_str());
                if is_listed && !names.iter().any(|name| is_in_shared_memory(name)) {
                    let reason = format!("{}: names no swarm or enumeration of deaths in shared memory", mutant.rule);
                    violations.push(Violation::new(&file.path, line_of(&file.text, "caught-by"), reason));
                }
                named.extend(names);
                broken.insert(mutant.rule);
            }
        }
    }
    if mutants == 0 {
        violations.push(Violation::new(DIRECTORY, 1, "missing: this folder holds the mutants"));
    }
    let unbroken = CAUGHT_IN_SHARED_MEMORY.iter().filter(|rule| mutants > 0 && !broken.contains(**rule));
    violations.extend(unbroken.map(|rule| Violation::new(DIRECTORY, 1, format!("no mutant breaks {rule}"))));
    let looked_at = format!("{mutants} mutants and {} tests in {DIRECTORY}", named.len());
    Report { name: "mutants", looked_at, violations }
}

/// Whether a test is a swarm, or an enumeration of deaths, in shared memory, by its name.
fn is_in_shared_memory(test: &str) -> bool {
    MODULES.iter().any(|module| test.starts_with(module)) && test.contains(IN_SHARED_MEMORY)
}

fn line_of(text: &str, name: &str) -> usize {
    text.lines().position(|line| line.contains(name)).map_or(1, |line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust;

    fn mutant(name: &str, rule: &str, caught_by: &str) -> SourceFile {
        let text = format!(
            "breaks = 'b'\nrule = '{rule}'\nfile = 'a.rs'\nfind = 'a'\nreplace = 'b'\ncaught-by = [{caught_by}]\n"
        );
        SourceFile { path: format!("{DIRECTORY}/{name}.toml"), text }
    }

    /// The violations of `mutants` together with a valid mutant for each of `rules`.
    fn reasons_of(mutants: &[SourceFile], rules: &[&str]) -> Vec<String> {
        let good = rules.iter().map(|rule| mutant(rule, rule, "'recovery::deaths_in_shared_memory'"));
        let files: Vec<SourceFile> = mutants.iter().cloned().chain(good).collect();
        let other = SourceFile { path: "other/a.toml".to_owned(), text: "caught-by = ['a::b']".to_owned() };
        let rust = [
            ("conformance/tests/suite/locks.rs", "#[test]\nfn waits_in_shared_memory() {}\nfn helps() {}\n"),
            ("conformance/tests/suite/swarm.rs", "#[test]\nfn all_in_shared_memory() {}\n#[test]\nfn all() {}\n"),
            ("conformance/tests/suite/recovery/mod.rs", "mod deaths;\n#[test]\nfn deaths_in_shared_memory() {}\n"),
            ("conformance/tests/suite/recovery/deaths.rs", "#[test]\nfn one() {}\n"),
            ("conformance/regressions/a_bug.rs", "#[test]\nfn is_fixed() {}\n"),
            ("crates/rcuckoo/src/hash.rs", "mod tests {\n#[test]\nfn odd() {}\n}\n"),
            ("crates/rcuckoo/src/lib.rs", "#[test]\nfn top() {}\n"),
        ];
        let rust = rust.map(|(path, text)| rust::tests::file(path, text));
        let report = check(files.iter().chain([&other]), &rust);
        report.violations.iter().map(Violation::to_string).collect()
    }

    fn reasons(caught_by: &str) -> Vec<String> {
        reasons_of(&[mutant("a", "R-A-1", caught_by)], &CAUGHT_IN_SHARED_MEMORY)
    }

    #[test]
    fn tests_that_exist_pass() {
        let names = "'locks::waits_in_shared_memory', 'swarm::all', 'recovery::deaths::one', \
                     'regressions::a_bug::is_fixed', 'guira-rcuckoo::hash::tests::odd', 'guira-rcuckoo::top'";
        assert_eq!(reasons(names), [""; 0]);
    }

    #[test]
    fn tests_that_do_not_exist_fail() {
        let names = ["locks::helps", "locks::waits", "recovery::one", "guira-rcuckoo::hash::odd", "a::b"];
        for name in names {
            let reason = format!("{DIRECTORY}/a.toml:6: there is no test {name}");
            assert_eq!(reasons(&format!("'swarm::all', '{name}'")), [reason]);
        }
    }

    #[test]
    fn some_rules_have_mutants_caught_in_shared_memory() {
        let caught = |by: &str| reasons_of(&[mutant("a", "R-LOCK-7", by)], &CAUGHT_IN_SHARED_MEMORY);
        assert_eq!(caught("'swarm::all', 'recovery::deaths::one', 'swarm::all_in_shared_memory'"), [""; 0]);
        assert_eq!(caught("'recovery::deaths_in_shared_memory'"), [""; 0]);
        for other in ["swarm::all", "recovery::deaths::one", "locks::waits_in_shared_memory"] {
            let reason = "R-LOCK-7: names no swarm or enumeration of deaths in shared memory";
            assert_eq!(caught(&format!("'{other}'")), [format!("{DIRECTORY}/a.toml:6: {reason}")]);
        }
        let unbroken = reasons_of(&[], &CAUGHT_IN_SHARED_MEMORY[1..]);
        assert_eq!(unbroken, [format!("{DIRECTORY}:1: no mutant breaks R-LOCK-7")]);
    }

    #[test]
    fn a_missing_folder_and_invalid_mutants_fail() {
        assert_eq!(check(std::iter::empty(), &[]).violations.len(), 1);
        assert!(reasons("'nonsense'").iter().all(|reason| reason.contains("not a mutant: ")));
        assert_eq!(reasons("'nonsense'").len(), 1);
    }
}
