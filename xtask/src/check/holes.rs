//! The holes of the published protocol: docs/holes.md has a section for each, and tests of the conformance suite show
//! each open and closed.
//!
//! A section has the heading `## Hn: title`. Its item `- Open:` names tests that show the hole, its item `- Closed:`
//! tests that show that it is closed, as `target::module::test` between backticks. A test of the suite `holes` whose
//! name begins with `hnn_` must be named in the section of its hole.

use std::collections::{BTreeMap, BTreeSet};

use super::test_names;
use crate::report::{Report, Violation};
use crate::rust::RustFile;

/// The document with the sections.
pub const HOLES: &str = "docs/holes.md";

/// Number of holes: H1 to H27.
const COUNT: usize = 27;
/// The module in which every test belongs to a hole.
const SUITE: &str = "holes::";
const TESTS: &str = "conformance/tests/suite/";

/// Checks every section against all tests. `text` is that of [`HOLES`] if the file exists.
pub fn check(text: Option<&str>, rust: &[RustFile]) -> Report {
    let tests: BTreeSet<String> = rust.iter().flat_map(test_names::of_conformance).collect();
    let mut violations = Vec::new();
    if text.is_none() {
        violations.push(Violation::new(HOLES, 1, "missing: this file describes the holes of the published protocol"));
    }
    let mut sections: BTreeMap<usize, Section> = BTreeMap::new();
    for section in sections_of(text.unwrap_or_default()) {
        let (number, line) = (section.number, section.line);
        if sections.insert(number, section).is_some() {
            violations.push(Violation::new(HOLES, line, format!("H{number} has a section already")));
        }
    }
    for number in (1..=COUNT).filter(|number| text.is_some() && !sections.contains_key(number)) {
        violations.push(Violation::new(HOLES, 1, format!("H{number} has no section")));
    }
    violations.extend(sections.values().flat_map(|section| section.wrong(&tests)));
    violations.extend(tests.iter().filter_map(|test| unnamed(test, &sections)));
    let named: BTreeSet<&String> = sections.values().flat_map(|section| section.names()).collect();
    let looked_at = format!("{} holes and {} tests in {HOLES}", sections.len(), named.len());
    Report { name: "holes", looked_at, violations }
}

/// The section of one hole.
#[derive(Debug, Default, PartialEq, Eq)]
struct Section {
    number: usize,
    line: usize,
    /// Tests named in the items `Open` and `Closed`, and elsewhere, with the line of each.
    open: Vec<(usize, String)>,
    closed: Vec<(usize, String)>,
    other: Vec<(usize, String)>,
}

impl Section {
    fn names(&self) -> impl Iterator<Item = &String> {
        self.all().map(|(_, name)| name)
    }

    fn all(&self) -> impl Iterator<Item = &(usize, String)> {
        [&self.open, &self.closed, &self.other].into_iter().flatten()
    }

    fn wrong(&self, tests: &BTreeSet<String>) -> Vec<Violation> {
        let number = self.number;
        let owed = [("Open", &self.open), ("Closed", &self.closed)].into_iter().filter(|(_, named)| named.is_empty());
        let owed = owed.map(|(item, _)| (self.line, format!("H{number} names no test in an item `- {item}:`")));
        let unknown = self.all().filter(|(_, name)| !tests.contains(name));
        let unknown = unknown.map(|(line, name)| (*line, format!("H{number}: there is no test {name}")));
        let is_outside = !(1..=COUNT).contains(&number);
        let unknown_hole = is_outside.then(|| (self.line, format!("H{number} is not a hole; they are H1 to H{COUNT}")));
        owed.chain(unknown).chain(unknown_hole).map(|(line, reason)| Violation::new(HOLES, line, reason)).collect()
    }
}

fn sections_of(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut item = "";
    for (index, line) in text.lines().enumerate() {
        if let Some(heading) = line.strip_prefix("## ") {
            let number = heading.strip_prefix('H').and_then(|rest| rest.split_once(':')?.0.parse().ok());
            sections.push(Section { number: number.unwrap_or(0), line: index + 1, ..Section::default() });
            item = "";
            continue;
        }
        let Some(section) = sections.last_mut() else { continue };
        if line.trim().is_empty() {
            item = "";
        } else if let Some(text) = line.strip_prefix("- ") {
            item = text.split_once(':').map_or("", |(item, _)| item);
        }
        let into = match item {
            "Open" => &mut section.open,
            "Closed" => &mut section.closed,
            _ => &mut section.other,
        };
        let spans = line.split('`').skip(1).step_by(2);
        into.extend(spans.filter(|span| span.contains("::")).map(|span| (index + 1, span.to_owned())));
    }
    sections
}

/// The violation if `test` belongs to a hole whose section does not name it.
fn unnamed(test: &str, sections: &BTreeMap<usize, Section>) -> Option<Violation> {
    let (module, name) = test.rsplit_once("::")?;
    let number = name.strip_prefix('h').filter(|_| test.starts_with(SUITE))?.split('_').next()?.parse().ok()?;
    let is_named = sections.get(&number).is_some_and(|section| section.names().any(|named| named == test));
    let path = format!("{TESTS}{}.rs", module.replace("::", "/"));
    (!is_named).then(|| Violation::new(&path, 1, format!("{name} is not named in the section of H{number} in {HOLES}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust;

    const SUITE_FILE: &str = "conformance/tests/suite/holes/reads.rs";

    fn reasons(text: &str, files: &[(&str, &str)]) -> Vec<String> {
        let parse = |(path, text): &(&str, &str)| rust::tests::file(path, text);
        let rust: Vec<RustFile> = files.iter().map(parse).collect();
        check(Some(text), &rust).violations.iter().map(Violation::to_string).collect()
    }

    /// Sections of all holes, each of which names `test`.
    fn all(test: &str) -> String {
        let section = |number| format!("## H{number}: what\n\nStory.\n\n- Open: `{test}`\n- Closed:\n  `{test}`\n\n");
        (1..=COUNT).map(section).collect()
    }

    #[test]
    fn sections_with_tests_pass() {
        let files =
            [(SUITE_FILE, "#[test]\nfn helps() {}\n"), ("conformance/tests/suite/a.rs", "#[test]\nfn b() {}\n")];
        assert_eq!(reasons(&all("holes::reads::helps"), &files), [""; 0]);
        assert_eq!(reasons(&all("a::b"), &files), [""; 0]);
    }

    #[test]
    fn a_missing_section_and_an_unknown_one_fail() {
        let files = [("conformance/tests/suite/a.rs", "#[test]\nfn b() {}\n")];
        let text = all("a::b").replace("## H7:", "## H70:");
        assert_eq!(
            reasons(&text, &files),
            ["docs/holes.md:1: H7 has no section", "docs/holes.md:49: H70 is not a hole; they are H1 to H27"]
        );
        assert!(
            reasons(&all("a::b").replace("## H7:", "## H8:"), &files)
                .contains(&format!("{HOLES}:57: H8 has a section already"))
        );
    }

    #[test]
    fn a_test_that_does_not_exist_fails() {
        let text = all("a::b").replacen("a::b", "a::c", 1);
        let files = [("conformance/tests/suite/a.rs", "#[test]\nfn b() {}\nfn c() {}\n")];
        assert_eq!(reasons(&text, &files), ["docs/holes.md:5: H1: there is no test a::c"]);
    }

    #[test]
    fn a_hole_without_a_test_that_shows_it_fails() {
        let files = [("conformance/tests/suite/a.rs", "#[test]\nfn b() {}\n")];
        let open = all("a::b").replacen("Open: `a::b`", "Open: later", 1);
        assert_eq!(reasons(&open, &files), ["docs/holes.md:1: H1 names no test in an item `- Open:`"]);
        let closed = all("a::b").replacen("Closed:\n  `a::b`", "Closed:\n  later", 1);
        assert_eq!(reasons(&closed, &files), ["docs/holes.md:1: H1 names no test in an item `- Closed:`"]);
    }

    #[test]
    fn a_test_of_a_hole_that_no_section_names_fails() {
        let files =
            [(SUITE_FILE, "#[test]\nfn h02_x() {}\n"), ("conformance/tests/suite/a.rs", "#[test]\nfn b() {}\n")];
        let reason = "h02_x is not named in the section of H2 in docs/holes.md";
        assert_eq!(reasons(&all("a::b"), &files), [format!("{SUITE_FILE}:1: {reason}")]);
    }

    #[test]
    fn a_missing_document_fails() {
        let report = check(None, &[]);
        assert_eq!(report.violations.len(), 1);
    }
}
