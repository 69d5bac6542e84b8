//! The record: instructions of each case with the reason for the last change, and the setting they were counted with.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use toml::Value;

use super::compare;

const HEADING: &str = "\
# Instructions of one operation, by case: in the program itself, and in the C library on its behalf. Written by
# `cargo xtask instructions --update --because \"REASON\"`; `cargo xtask instructions` compares. A change beyond the
# tolerance is recorded with its reason, which is also in the commit that makes it: docs/testing.md.
";

/// Everything that counts depend on besides the sources.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    pub rustc: String,
    pub target: String,
    pub target_features: String,
    pub libc: String,
    pub valgrind: String,
}

impl Setting {
    /// The differences from `other`: name, value there, value here.
    pub fn differences<'s>(&'s self, other: &'s Setting) -> Vec<(&'static str, &'s str, &'s str)> {
        let pairs = [
            ("the compiler", &other.rustc, &self.rustc),
            ("the target", &other.target, &self.target),
            ("the set of target features", &other.target_features, &self.target_features),
            ("the C library", &other.libc, &self.libc),
            ("valgrind", &other.valgrind, &self.valgrind),
        ];
        let differing = pairs.into_iter().filter(|(_, there, here)| there != here);
        differing.map(|(name, there, here)| (name, there.as_str(), here.as_str())).collect()
    }
}

/// Instructions of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Count {
    /// In the program's own code, which Guira and the standard library are linked into.
    pub program: f64,
    /// In the C library: copies of memory and, where an operation returns a vector, its allocation.
    pub library: f64,
}

/// A recorded count.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Recorded {
    #[serde(flatten)]
    pub count: Count,
    /// The reason for the last change.
    pub because: String,
}

/// The whole record.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    pub taken_with: Setting,
    pub cases: BTreeMap<String, Recorded>,
}

/// New counts.
#[derive(Clone, Debug)]
pub struct Counted {
    pub taken_with: Setting,
    pub cases: Vec<(String, Count)>,
}

impl Record {
    pub fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Formats the record as a file, with one line per case, so that changing one count changes one line.
    pub fn to_text(&self) -> String {
        let quoted = |text: &str| Value::String(text.to_owned()).to_string();
        let setting = &self.taken_with;
        let mut text = format!("{HEADING}\n[taken_with]\n");
        for (name, value) in [
            ("rustc", &setting.rustc),
            ("target", &setting.target),
            ("target_features", &setting.target_features),
            ("libc", &setting.libc),
            ("valgrind", &setting.valgrind),
        ] {
            text += &format!("{name} = {}\n", quoted(value));
        }
        text += "\n[cases]\n";
        for (case, Recorded { count: Count { program, library }, because }) in &self.cases {
            // A key is quoted like a string without line breaks.
            let (case, because) = (quoted(case), quoted(&because.replace('\n', " ")));
            text += &format!("{case} = {{ program = {program:.1}, library = {library:.1}, because = {because} }}\n");
        }
        text
    }
}

impl Record {
    /// The changes since `before`, one line each.
    pub fn changes(&self, before: Option<&Record>) -> Vec<String> {
        let total = |record: Option<&Record>, case: &String| {
            let recorded = record.and_then(|record| record.cases.get(case));
            recorded
                .map_or("-".to_owned(), |recorded| format!("{:.1}", recorded.count.program + recorded.count.library))
        };
        let known = before.into_iter().flat_map(|record| record.cases.keys());
        let mut cases: Vec<&String> = known.chain(self.cases.keys()).collect();
        cases.sort_unstable();
        cases.dedup();
        let is_changed = |case: &&String| before.and_then(|record| record.cases.get(*case)) != self.cases.get(*case);
        let changed = cases.into_iter().filter(is_changed);
        changed.map(|case| format!("{case}: {} -> {}", total(before, case), total(Some(self), case))).collect()
    }
}

impl Counted {
    /// The record that follows `before`. A count within the tolerance keeps its recorded value, so that small changes
    /// add up and become visible. If the setting differs, every count that differs is replaced.
    pub fn recorded(&self, before: Option<&Record>, reason: &str) -> Record {
        let mut cases = BTreeMap::new();
        for (case, count) in &self.cases {
            let old = before.and_then(|record| record.cases.get(case));
            let same_setting = before.is_some_and(|record| record.taken_with == self.taken_with);
            let kept = old.filter(|old| {
                old.count == *count || same_setting && compare::is_within(compare::change_percent(&old.count, count))
            });
            let fresh = || Recorded { count: *count, because: reason.to_owned() };
            cases.insert(case.clone(), kept.cloned().unwrap_or_else(fresh));
        }
        Record { taken_with: self.taken_with.clone(), cases }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn setting() -> Setting {
        let text = str::to_owned;
        Setting {
            rustc: text("rustc 1.0"),
            target: text("x86_64"),
            target_features: text("sse2"),
            libc: text("glibc 2.36"),
            valgrind: text("valgrind-3.19.0"),
        }
    }

    pub fn counted(cases: &[(&str, f64)]) -> Counted {
        let count = |program| Count { program, library: 10.0 };
        Counted {
            taken_with: setting(),
            cases: cases.iter().map(|(case, program)| ((*case).to_owned(), count(*program))).collect(),
        }
    }

    #[test]
    fn a_record_round_trips_through_text() {
        let record =
            counted(&[("fixed:8:8 get, \"quoted\"", 100.5), ("put", 7.0)]).recorded(None, "the \"first\"\none");
        let parsed = Record::parse(&record.to_text()).expect("it parses");
        assert_eq!(parsed.cases["put"].because, "the \"first\" one");
        assert_eq!(parsed.cases["fixed:8:8 get, \"quoted\""].count.program, 100.5);
        assert_eq!(parsed.taken_with, record.taken_with);
        assert!(Record::parse("[cases]\n").is_err());
    }

    #[test]
    fn an_update_records_the_reason_for_changes_and_keeps_the_rest() {
        let before = counted(&[("a", 100.0), ("b", 100.0), ("gone", 1.0)]).recorded(None, "first");
        let after = counted(&[("a", 103.0), ("b", 200.0), ("new", 5.0)]).recorded(Some(&before), "second");
        assert_eq!(after.cases["a"], before.cases["a"]);
        assert_eq!((after.cases["b"].count.program, after.cases["b"].because.as_str()), (200.0, "second"));
        assert_eq!(after.cases["new"].because, "second");
        assert!(!after.cases.contains_key("gone"));
        let changes = after.changes(Some(&before));
        assert_eq!(changes, ["b: 110.0 -> 210.0", "gone: 11.0 -> -", "new: - -> 15.0"]);
    }

    #[test]
    fn an_update_with_another_compiler_replaces_every_count_that_differs() {
        let before = counted(&[("a", 100.0), ("b", 100.0)]).recorded(None, "first");
        let mut now = counted(&[("a", 101.0), ("b", 100.0)]);
        now.taken_with.rustc = "rustc 1.1".to_owned();
        let after = now.recorded(Some(&before), "second");
        assert_eq!((after.cases["a"].count.program, after.cases["a"].because.as_str()), (101.0, "second"));
        assert_eq!(after.cases["b"].because, "first");
        assert_eq!(after.taken_with.rustc, "rustc 1.1");
    }
}
