//! The numbered rules of the protocol: defined once in docs/protocol.md, cited by the code that obeys them, named by a
//! test.
//!
//! A definition is a bold id at the start of a heading or list item: `- **R-AREA-n** ..`. A citation is an id in square
//! brackets; in code it stands in a comment, in a test it may also stand in an assertion's message. An id is `R`, one
//! or more upper-case words, and a number, joined by `-`. A rule marked `(planned: reason)` needs no citation yet. This
//! tool is not part of the protocol, so citations in its files do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::{Report, Violation};
use crate::rust::RustFile;
use crate::tree::SourceFile;

/// The document that defines the rules.
pub const PROTOCOL: &str = "docs/protocol.md";

/// Checks every definition against every citation. `protocol` is the text of [`PROTOCOL`] if the file exists.
pub fn check(protocol: Option<&str>, rust: &[RustFile], markdown: &[&SourceFile]) -> Report {
    let mut violations = Vec::new();
    let rules = match protocol {
        Some(text) => definitions(text, &mut violations),
        None => {
            violations.push(Violation::new(PROTOCOL, 1, "missing: this file defines the numbered rules"));
            BTreeMap::new()
        }
    };
    let mut cited = Cited::default();
    let files: Vec<&RustFile> = rust.iter().filter(|file| is_protocol_file(&file.path)).collect();
    for file in &files {
        cited.collect(file, &mut violations);
    }
    violations.extend(cited.unknown(&rules));
    violations.extend(markdown.iter().flat_map(|file| unknown_in_prose(file, &rules)));
    violations.extend(rules.iter().filter_map(|(id, rule)| missing_citation(id, rule, &cited)));
    let planned = rules.values().filter(|rule| rule.is_planned).count();
    let looked_at = format!(
        "{} rules ({planned} planned) in {PROTOCOL}; {} citations in {} Rust files",
        rules.len(),
        cited.places.len(),
        files.len()
    );
    Report { name: "rules", looked_at, violations }
}

/// The line of a rule's definition, and whether it is marked as planned.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    line: usize,
    is_planned: bool,
}

fn definitions(text: &str, violations: &mut Vec<Violation>) -> BTreeMap<String, Rule> {
    let mut rules = BTreeMap::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let Some(id) = defined_id(line) else { continue };
        let number = index + 1;
        if !is_rule_id(id) {
            violations.push(Violation::new(PROTOCOL, number, format!("{id} is not a rule id (R-AREA-number)")));
            continue;
        }
        let is_planned = match planned_reason(&lines[index..]) {
            Some("") => {
                violations.push(Violation::new(PROTOCOL, number, format!("{id} is planned without a reason")));
                true
            }
            reason => reason.is_some(),
        };
        if let Some(earlier) = rules.insert(id.to_owned(), Rule { line: number, is_planned }) {
            let reason = format!("{id} is defined twice, first on line {}", earlier.line);
            violations.push(Violation::new(PROTOCOL, number, reason));
        }
    }
    rules
}

/// The bold id at the start of a heading or list item.
fn defined_id(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let marker = line.find(|c: char| !matches!(c, '#' | '-' | '*' | '+' | '.' | ')') && !c.is_ascii_digit())?;
    // A space follows the marker; bold text without a marker has none.
    let item = line[marker..].strip_prefix(' ')?.trim_start();
    let bold = item.strip_prefix("**").filter(|bold| marker > 0 && bold.starts_with("R-"))?;
    Some(&bold[..bold.find(|c: char| !is_id_char(c)).unwrap_or(bold.len())])
}

/// The reason in `(planned: reason)`, from the definition's line to the end of its item.
fn planned_reason<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let ends_item = |line: &&&str| line.trim().is_empty() || defined_id(line).is_some() || line.starts_with('#');
    let rest = lines.iter().skip(1).take_while(|line| !ends_item(line));
    let marked = lines.iter().take(1).chain(rest).find_map(|line| line.split_once("(planned"))?.1;
    let reason = marked.strip_prefix(':').unwrap_or_default();
    Some(reason.split(')').next().unwrap_or_default().trim())
}

/// All citations, by kind, with the place of each.
#[derive(Default)]
struct Cited {
    by_code: BTreeSet<String>,
    by_test: BTreeSet<String>,
    places: Vec<(String, String, usize)>,
}

impl Cited {
    fn collect(&mut self, file: &RustFile, violations: &mut Vec<Violation>) {
        for (index, text) in file.text.lines().enumerate() {
            let line = index + 1;
            let comment = text.find("//").unwrap_or(text.len());
            for (column, id) in citations(text) {
                if !is_rule_id(id) {
                    violations.push(Violation::new(
                        &file.path,
                        line,
                        format!("[{id}] is not a rule id (R-AREA-number)"),
                    ));
                    continue;
                }
                self.places.push((id.to_owned(), file.path.clone(), line));
                if file.is_test_line(line) {
                    self.by_test.insert(id.to_owned());
                } else if column > comment {
                    self.by_code.insert(id.to_owned());
                }
            }
        }
    }

    fn unknown(&self, rules: &BTreeMap<String, Rule>) -> Vec<Violation> {
        let unknown = self.places.iter().filter(|(id, ..)| !rules.contains_key(id));
        unknown.map(|(id, path, line)| not_defined(path, *line, id)).collect()
    }
}

/// Ids cited on a line, with the column of each: the contents of brackets that start with `R-` and a capital letter,
/// split at commas.
fn citations(line: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (start, _) in line.match_indices("[R-") {
        let inner = &line[start + 1..];
        let Some(end) = inner.find(']') else { continue };
        if inner[2..].starts_with(|c: char| c.is_ascii_uppercase()) {
            found.extend(inner[..end].split(',').map(|id| (start, id.trim())));
        }
    }
    found
}

/// Ids in the documents that are not defined: prose becomes outdated as silently as comments.
fn unknown_in_prose(file: &SourceFile, rules: &BTreeMap<String, Rule>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let words = line.split(|c: char| !is_id_char(c)).map(|word| word.trim_end_matches('-'));
        let unknown = words.filter(|word| is_rule_id(word) && !rules.contains_key(*word));
        violations.extend(unknown.map(|id| not_defined(&file.path, index + 1, id)));
    }
    violations
}

/// The violation of a defined rule without a citation by code and one by a test, or with an outdated mark.
fn missing_citation(id: &str, rule: &Rule, cited: &Cited) -> Option<Violation> {
    let reason = match (rule.is_planned, cited.by_code.contains(id), cited.by_test.contains(id)) {
        (true, true, true) => format!("{id} is marked planned, but code and a test cite it: remove the mark"),
        (true, ..) | (false, true, true) => return None,
        (false, false, true) => format!("{id} is cited by no code"),
        (false, true, false) => format!("{id} is named by no test"),
        (false, false, false) => format!("{id} is cited by no code and named by no test"),
    };
    Some(Violation::new(PROTOCOL, rule.line, reason))
}

fn not_defined(path: &str, line: usize, id: &str) -> Violation {
    Violation::new(path, line, format!("{id} is not defined in {PROTOCOL}"))
}

/// Whether a file has code or tests of the protocol; citations of others are ignored.
fn is_protocol_file(path: &str) -> bool {
    !path.starts_with("xtask/") && !path.contains("/benches/") && !path.contains("/examples/")
}

fn is_rule_id(id: &str) -> bool {
    let parts: Vec<&str> = id.split('-').collect();
    let [first, areas @ .., number] = parts.as_slice() else { return false };
    let is_area = |part: &&str| {
        part.starts_with(|c: char| c.is_ascii_uppercase())
            && part.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
    };
    *first == "R"
        && !areas.is_empty()
        && areas.iter().all(is_area)
        && !number.is_empty()
        && number.chars().all(|c| c.is_ascii_digit())
}

fn is_id_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust;

    const CODE: &str = "crates/rcuckoo/src/read.rs";
    const TEST: &str = "crates/rcuckoo/tests/read.rs";

    fn reasons(protocol: &str, files: &[(&str, &str)]) -> Vec<String> {
        let rust: Vec<RustFile> = files.iter().map(|(path, text)| rust::tests::file(path, text)).collect();
        let report = check(Some(protocol), &rust, &[]);
        report.violations.iter().map(Violation::to_string).collect()
    }

    #[test]
    fn a_rule_with_code_and_test_passes() {
        let protocol = "# Reads\n- **R-READ-1** Verify.\n## **R-READ-2** Fence\n1. **R-LOCK-1**: Order.\n";
        let code = "// [R-READ-1]\n// See [R-READ-2, R-LOCK-1].\nfn read() {}\n";
        let test = "#[test]\nfn reads() { assert!(true, \"[R-READ-1] [R-READ-2]\") } // [R-LOCK-1]\n";
        assert_eq!(reasons(protocol, &[(CODE, code), (TEST, test)]), [""; 0]);
    }

    #[test]
    fn unknown_and_malformed_citations_fail() {
        let found = reasons("", &[(CODE, "fn a() {}\n// [R-READ-9]\n")]);
        assert_eq!(found, ["crates/rcuckoo/src/read.rs:2: R-READ-9 is not defined in docs/protocol.md"]);
        let found = reasons("", &[(CODE, "// [R-READ-1..3]\n")]);
        assert_eq!(found, ["crates/rcuckoo/src/read.rs:1: [R-READ-1..3] is not a rule id (R-AREA-number)"]);
    }

    #[test]
    fn an_uncited_rule_fails_for_code_for_tests_and_for_both() {
        let protocol = "- **R-A-1** x\n- **R-A-2** x\n- **R-A-3** x\n";
        let code = "// [R-A-2]\nfn a() {}\n#[cfg(test)]\nmod tests {\n    // [R-A-1]\n}\n";
        assert_eq!(
            reasons(protocol, &[(CODE, code)]),
            [
                "docs/protocol.md:1: R-A-1 is cited by no code",
                "docs/protocol.md:2: R-A-2 is named by no test",
                "docs/protocol.md:3: R-A-3 is cited by no code and named by no test",
            ]
        );
    }

    #[test]
    fn a_string_is_a_citation_in_a_test_and_not_in_code() {
        let protocol = "- **R-A-1** x\n";
        let string = "const A: &str = \"[R-A-1]\";\n";
        assert_eq!(
            reasons(protocol, &[(CODE, string), (TEST, string)]),
            ["docs/protocol.md:1: R-A-1 is cited by no code"]
        );
    }

    #[test]
    fn planned_rules_need_no_citation_until_the_mark_is_outdated() {
        let protocol = "- **R-A-1** (planned: needs hardware) x\n- **R-A-2** long text\n  (planned: later) x\n";
        assert_eq!(reasons(protocol, &[(CODE, "// [R-A-1]\n")]), [""; 0]);
        let found = reasons(protocol, &[(CODE, "// [R-A-2]\n"), (TEST, "// [R-A-2]\n")]);
        assert_eq!(
            found,
            ["docs/protocol.md:2: R-A-2 is marked planned, but code and a test cite it: remove the mark"]
        );
    }

    #[test]
    fn a_planned_mark_without_reason_fails_and_covers_its_own_item_only() {
        let found = reasons("- **R-A-1** x (planned)\n", &[]);
        assert_eq!(found, ["docs/protocol.md:1: R-A-1 is planned without a reason"]);
        let found = reasons("- **R-A-1** x\n- **R-A-2** x (planned: y)\n", &[]);
        assert_eq!(found, ["docs/protocol.md:1: R-A-1 is cited by no code and named by no test"]);
    }

    #[test]
    fn double_and_malformed_definitions_fail() {
        let found = reasons("- **R-A-1** x (planned: y)\n- **R-A-1** x (planned: y)\n- **R-READ** x\n", &[]);
        assert_eq!(
            found,
            [
                "docs/protocol.md:2: R-A-1 is defined twice, first on line 1",
                "docs/protocol.md:3: R-READ is not a rule id (R-AREA-number)",
            ]
        );
    }

    #[test]
    fn bold_text_inside_a_sentence_defines_nothing() {
        assert_eq!(defined_id("- see **R-A-1**"), None);
        assert_eq!(defined_id("**R-A-1** at the start of a paragraph"), None);
        assert_eq!(defined_id("  * **R-A-1.** Title"), Some("R-A-1"));
        assert_eq!(defined_id("### **R-A-12**: Title"), Some("R-A-12"));
    }

    #[test]
    fn a_missing_protocol_and_an_outdated_document_fail() {
        assert_eq!(check(None, &[], &[]).violations.len(), 1);
        let document = SourceFile { path: "docs/a.md".to_owned(), text: "x\nby R-OLD-1.\n".to_owned() };
        let report = check(Some(""), &[], &[&document]);
        assert_eq!(report.violations, [not_defined("docs/a.md", 2, "R-OLD-1")]);
    }

    #[test]
    fn citations_of_this_tool_and_of_benches_are_ignored() {
        assert_eq!(
            reasons("", &[("xtask/src/a.rs", "// [R-A-1]\n"), ("crates/a/benches/b.rs", "// [R-A-1]\n")]),
            [""; 0]
        );
    }
}
