//! Documents: every relative link leads to a file of the repository, every test that a document names exists, and every
//! regression file has a description.
//!
//! Links of the forms `[text](target)` and `[label]: target` are checked outside code. A regression file opens with a
//! doc comment whose parts `Cause:`, `Effect:` and `Fix:` are not empty.

use std::collections::BTreeSet;

use crate::report::{Report, Violation};
use crate::rust::RustFile;
use crate::tree::SourceFile;

/// The parts of a regression's description.
const PARTS: [&str; 3] = ["Cause", "Effect", "Fix"];

/// The folders with regressions: those of the protocol, and those of whole stores.
const SUITES: [&str; 2] = ["conformance/", "crates/guira/tests/"];
/// Files that only declare regressions.
const LISTS: [&str; 3] = ["lib.rs", "main.rs", "mod.rs"];

/// The heading of a table's last column if it names tests, as code.
const TESTS_COLUMN: &str = "shown by";

/// Checks the links of every document against `paths`, the tests that it names against `rust`, and the description of
/// every regression.
pub fn check(markdown: &[&SourceFile], rust: &[RustFile], paths: &BTreeSet<String>) -> Report {
    let mut violations = Vec::new();
    let mut links = 0;
    for file in markdown {
        let found = relative_links(&file.text);
        links += found.len();
        violations.extend(found.iter().filter_map(|link| broken(&file.path, link, paths)));
    }
    let mut tests = 0;
    for file in markdown {
        let named = tests_named(&file.text);
        tests += named.len();
        let is_there = |name: &str| rust.iter().any(|file| file.text.contains(&format!("fn {name}()")));
        let reason = |name: &str| format!("there is no test {name}");
        let missing = named.iter().filter(|(_, name)| !is_there(name));
        violations.extend(missing.map(|(line, name)| Violation::new(&file.path, *line, reason(name))));
    }
    let regressions: Vec<&RustFile> = rust.iter().filter(|file| is_regression(&file.path)).collect();
    violations.extend(regressions.iter().flat_map(|file| missing_parts(file)));
    let (documents, regressions) = (markdown.len(), regressions.len());
    let looked_at =
        format!("{links} relative links and {tests} tests in {documents} documents, {regressions} regression files");
    Report { name: "docs", looked_at, violations }
}

/// Names of tests in tables with a last column for them, with their lines.
fn tests_named(text: &str) -> Vec<(usize, &str)> {
    let mut named = Vec::new();
    let mut names_tests = false;
    let mut before = "";
    for (index, line) in text.lines().enumerate() {
        let last = line.trim_end().strip_suffix('|').and_then(|row| row.rsplit('|').next()).map(str::trim);
        match last {
            Some(head) if !before.starts_with('|') => names_tests = head == TESTS_COLUMN,
            Some(cell) if names_tests => {
                named.extend(cell.split('`').skip(1).step_by(2).map(|name| (index + 1, name)));
            }
            _ => {}
        }
        before = line;
    }
    named
}

#[derive(Debug, PartialEq, Eq)]
struct Link {
    line: usize,
    target: String,
}

/// The links of a document to files, without their fragments.
fn relative_links(text: &str) -> Vec<Link> {
    let links = lines_outside_fences(text).flat_map(|(line, text)| {
        let prose = without_code(text);
        let files = targets(&prose).filter_map(|target| file_of(&target));
        files.map(move |target| Link { line, target }).collect::<Vec<_>>()
    });
    links.collect()
}

/// The lines of a document that are not in a fenced block of code, with their numbers from 1.
pub fn lines_outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let start = line.trim_start();
        let marker = ["```", "~~~"].into_iter().find(|marker| start.starts_with(marker));
        match (fence, marker) {
            (None, Some(_)) => fence = marker,
            (Some(open), Some(close)) if open == close => fence = None,
            (Some(_), _) => {}
            (None, None) => return Some((index + 1, line)),
        }
        None
    })
}

/// Removes code between backticks from a line; an unpaired backtick is text.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let unpaired = parts.len().is_multiple_of(2);
    let last = parts.len() - 1;
    let is_text = |index: usize| index.is_multiple_of(2) || (unpaired && index == last);
    parts.iter().enumerate().filter(|(index, _)| is_text(*index)).map(|(_, part)| *part).collect()
}

/// Every link target of a line: of inline links, images and definitions of references.
fn targets(line: &str) -> impl Iterator<Item = String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let definition = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    // A footnote's definition is prose.
    let reference = definition.filter(|(label, _)| !label.starts_with('^')).map(|(_, target)| target);
    let all: Vec<String> = inline.chain(reference).map(str::to_owned).collect();
    all.into_iter()
}

/// The file of a target, without title, angle brackets and fragment; `None` for a web address or a fragment alone.
fn file_of(target: &str) -> Option<String> {
    let bare = target.split_whitespace().next()?.trim_start_matches('<').trim_end_matches('>');
    let file = bare.split(['#', '?']).next().unwrap_or_default();
    let is_elsewhere = file.contains("://") || file.starts_with("mailto:") || file.is_empty();
    (!is_elsewhere).then(|| file.to_owned())
}

fn broken(document: &str, link: &Link, paths: &BTreeSet<String>) -> Option<Violation> {
    let violation = |reason: String| Some(Violation::new(document, link.line, reason));
    if link.target.starts_with('/') {
        return violation(format!("the link to {} is not relative", link.target));
    }
    let Some(path) = resolve(document, &link.target) else {
        return violation(format!("the link to {} leaves the repository", link.target));
    };
    let is_directory = paths.iter().any(|known| path.is_empty() || known.starts_with(&format!("{path}/")));
    if paths.contains(&path) || is_directory {
        None
    } else {
        violation(format!("the link to {} leads to no file ({path})", link.target))
    }
}

/// Resolves `target`, relative to `document`, to a path from the root.
fn resolve(document: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn is_regression(path: &str) -> bool {
    let mut parts: Vec<&str> = path.split('/').collect();
    let name = parts.pop().unwrap_or_default();
    let is_inside = SUITES.iter().any(|suite| path.starts_with(suite));
    is_inside && parts.contains(&"regressions") && !LISTS.contains(&name)
}

fn missing_parts(file: &RustFile) -> Vec<Violation> {
    let doc: Vec<&str> = file.text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let missing = PARTS.iter().filter(|part| !has_part(&doc, part));
    let reason = |part: &str| format!("the leading doc comment has no text after `//! {part}:`");
    missing.map(|part| Violation::new(&file.path, 1, reason(part))).collect()
}

/// Whether a line starts with `part:`, and text follows there or on the next line.
fn has_part(doc: &[&str], part: &str) -> bool {
    let is_label = |text: &str| PARTS.iter().any(|part| text.starts_with(&format!("{part}:")));
    doc.iter().enumerate().any(|(index, line)| {
        let Some(printed) = line.strip_prefix(part).and_then(|rest| rest.strip_prefix(':')) else { return false };
        let next = doc.get(index + 1).copied().unwrap_or_default();
        !printed.trim().is_empty() || (!next.is_empty() && !is_label(next))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_links(text: &str) -> Vec<(usize, String)> {
        let document = SourceFile { path: "docs/a.md".to_owned(), text: text.to_owned() };
        let paths = ["README.md", "docs/a.md", "docs/decisions/0001.md"].map(str::to_owned).into();
        let violations = check(&[&document], &[], &paths).violations;
        violations.into_iter().map(|violation| (violation.line, violation.reason)).collect()
    }

    #[test]
    fn broken_links_fail() {
        for (text, reason) in [
            ("[a](b.md)", "the link to b.md leads to no file (docs/b.md)"),
            ("[a](../b.md#part \"title\")", "the link to ../b.md leads to no file (b.md)"),
            ("![a](b.png) and [c](a.md)", "the link to b.png leads to no file (docs/b.png)"),
            ("[label]: b.md", "the link to b.md leads to no file (docs/b.md)"),
            ("[a](/README.md)", "the link to /README.md is not relative"),
            ("[a](../../b.md)", "the link to ../../b.md leaves the repository"),
            ("`a` [a](b.md) `b`", "the link to b.md leads to no file (docs/b.md)"),
        ] {
            assert_eq!(broken_links(&format!("x\n{text}\n")), [(2, reason.to_owned())], "{text}");
        }
    }

    #[test]
    fn valid_links_other_addresses_and_code_pass() {
        let text = "[a](a.md) [b](../README.md#part) [c](decisions/) [d](decisions/0001.md) [e](#part)\n\
                    [f](https://example.org/b.md) [g](mailto:a@example.org) `[h](b.md)`\n[^1]: words\n\
                    ```text\n[i](b.md)\n~~~\n[j](b.md)\n```\n[k](./a.md) [l](..)\n";
        assert_eq!(broken_links(text), []);
    }

    #[test]
    fn links_after_a_closed_fence_are_checked_again() {
        assert_eq!(broken_links("```\n```\n[a](b.md)\n").len(), 1);
    }

    #[test]
    fn a_named_test_that_does_not_exist_fails() {
        let text = "x\n| fault | shown by |\n|---|---|\n| `a` | `is_there`, `is_not` |\n| b | |\n\n\
                    | fault | promised |\n|---|---|\n| a | `nowhere` |\n";
        let document = SourceFile { path: "docs/a.md".to_owned(), text: text.to_owned() };
        let tests = RustFile::parse("a.rs", "#[test]\nfn is_there() {}\n").expect("the sample parses");
        let violations = check(&[&document], &[tests], &BTreeSet::new()).violations;
        let found: Vec<_> = violations.iter().map(|violation| (violation.line, violation.reason.as_str())).collect();
        assert_eq!(found, [(4, "there is no test is_not")]);
    }

    fn description_violations(path: &str, text: &str) -> Vec<String> {
        let file = RustFile::parse(path, text).expect("the sample parses");
        check(&[], &[file], &BTreeSet::new()).violations.into_iter().map(|violation| violation.reason).collect()
    }

    #[test]
    fn a_regression_without_a_description_fails() {
        let path = "conformance/regressions/torn_row.rs";
        let lacks = |part: &str| format!("the leading doc comment has no text after `//! {part}:`");
        assert_eq!(
            description_violations(path, "//! Torn row.\n//!\n//! Cause: x\n//! Effect:\n//! y\n//! Fix: z\n"),
            [""; 0]
        );
        assert_eq!(description_violations(path, "//! Torn row.\n//! Cause: x\n//! Effect: y\n"), [lacks("Fix")]);
        assert_eq!(
            description_violations(path, "//! Cause:\n//! Effect: y\n//! Fix:\n"),
            [lacks("Cause"), lacks("Fix")]
        );
    }

    #[test]
    fn only_regression_files_need_a_description() {
        assert_eq!(description_violations("conformance/tests/suite/regressions/torn_row.rs", "fn a() {}").len(), 3);
        assert_eq!(description_violations("conformance/regressions/mod.rs", "mod torn_row;"), [""; 0]);
        assert_eq!(description_violations("conformance/src/lib.rs", "fn a() {}"), [""; 0]);
        assert_eq!(description_violations("crates/a/tests/regressions/b.rs", "fn a() {}"), [""; 0]);
    }
}
