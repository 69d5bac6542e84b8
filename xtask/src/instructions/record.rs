//! The record: instructions of each case with the reason for the last change, and the setting they were counted with;
//! and its comparison with new counts.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use toml::Value;

/// Most percent by which a count may differ from the record. Unrelated changes move counts that far by inlining.
const TOLERANCE_PERCENT: f64 = 5.0;
/// Most that redo records may add to YCSB-A, in percent of its cost without them.
const RECORDS_COST_MAX_PERCENT: f64 = 5.0;
/// The end of the name of a case of YCSB-A with records.
const YCSB_A: &str = "YCSB-A";
/// The text that follows it in the name of the same case without records.
const WITHOUT_RECORDS: &str = ", without records";

const HEADING: &str = "\
# Instructions of one operation, by case: in the program itself, and in the C library on its behalf. Written by
# `cargo xtask instructions --update --because \"REASON\"`; `cargo xtask instructions` compares. A change beyond the
# tolerance is recorded with its reason, which is also in the commit that makes it: docs/testing.md.
";

/// Everything that counts depend on besides the sources, by name: the compiler, the target and its features, the C
/// library, valgrind.
pub type Setting = BTreeMap<String, String>;

/// Instructions of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Count {
    /// In the program's own code, which Guira and the standard library are linked into.
    pub program: f64,
    /// In the C library: copies of memory and, where an operation returns a vector, its allocation.
    pub library: f64,
}

impl Count {
    fn total(self) -> f64 {
        self.program + self.library
    }
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
    pub cases: BTreeMap<String, Count>,
}

impl Record {
    pub fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Formats the record as a file, with one line per case, so that changing one count changes one line.
    pub fn to_text(&self) -> String {
        // A key is quoted like a string without line breaks.
        let quoted = |text: &str| Value::String(text.replace('\n', " ")).to_string();
        let setting = self.taken_with.iter().map(|(name, value)| format!("{name} = {}\n", quoted(value)));
        let case = |(case, Recorded { count: Count { program, library }, because }): (&String, &Recorded)| {
            let (case, because) = (quoted(case), quoted(because));
            format!("{case} = {{ program = {program:.1}, library = {library:.1}, because = {because} }}\n")
        };
        let cases = self.cases.iter().map(case);
        format!("{HEADING}\n[taken_with]\n{}\n[cases]\n{}", setting.collect::<String>(), cases.collect::<String>())
    }
}

impl Counted {
    /// The record that follows `before`. A count within the tolerance keeps its recorded value, so that small changes
    /// add up and become visible. If the setting differs, every count that differs is replaced.
    pub fn recorded(&self, before: Option<&Record>, reason: &str) -> Record {
        let same_setting = before.is_some_and(|record| record.taken_with == self.taken_with);
        let recorded = |(case, count): (&String, &Count)| {
            let old = before.and_then(|record| record.cases.get(case));
            let keeps = |old: &&Recorded| {
                old.count == *count || same_setting && is_within(percent(old.count.total(), count.total()))
            };
            let fresh = || Recorded { count: *count, because: reason.to_owned() };
            (case.clone(), old.filter(keeps).cloned().unwrap_or_else(fresh))
        };
        Record { taken_with: self.taken_with.clone(), cases: self.cases.iter().map(recorded).collect() }
    }

    /// The percentage that redo records add to each workload that was counted both with and without them.
    fn cost_of_records(&self) -> Vec<(String, f64)> {
        let workload = |(name, without): (&String, &Count)| {
            let case = name.strip_suffix(WITHOUT_RECORDS).filter(|case| case.ends_with(YCSB_A))?;
            Some((case.to_owned(), percent(without.total(), self.cases.get(case)?.total())))
        };
        self.cases.iter().filter_map(workload).collect()
    }
}

/// The change from `before` to `now`, in percent of `before`.
fn percent(before: f64, now: f64) -> f64 {
    if before == now { 0.0 } else { (now - before) / before * 100.0 }
}

/// Whether a change is within the tolerance. A change from or to zero instructions is not.
fn is_within(change_percent: f64) -> bool {
    change_percent.abs() <= TOLERANCE_PERCENT
}

/// The comparison of one case.
#[derive(Debug, Serialize)]
struct Row {
    case: String,
    recorded: Option<Recorded>,
    now: Option<Count>,
    /// Change of program and library together; of the program alone if the C library differs.
    change_percent: Option<f64>,
    /// Why it fails: empty if it does not.
    wrong: &'static str,
}

/// The comparison of new counts with the record.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub ok: bool,
    cases: Vec<Row>,
    /// Workloads, and the percentage that redo records add to each.
    records: Vec<(String, f64)>,
    /// Differences between the setting of the record and the current one.
    differences: Vec<String>,
}

impl Comparison {
    pub fn new(record: &Record, now: &Counted) -> Self {
        // Another C library copies memory with other instructions, which is not a change of this code.
        let same_library = record.taken_with.get("libc") == now.taken_with.get("libc");
        let cost = |count: Count| if same_library { count.total() } else { count.program };
        let row = |case: &String| {
            let (recorded, now) = (record.cases.get(case).cloned(), now.cases.get(case).copied());
            let change_percent = recorded.as_ref().zip(now).map(|(old, now)| percent(cost(old.count), cost(now)));
            let wrong = match (&recorded, change_percent) {
                (None, _) => "NOT RECORDED",
                (_, None) => "NOT COUNTED",
                (_, Some(change)) if is_within(change) => "",
                _ => "CHANGED",
            };
            Row { case: case.clone(), recorded, now, change_percent, wrong }
        };
        let names: BTreeSet<&String> = record.cases.keys().chain(now.cases.keys()).collect();
        let cases: Vec<Row> = names.into_iter().map(row).collect();
        let difference = |(name, here): (&String, &String)| {
            let there = record.taken_with.get(name).map_or("nothing", String::as_str);
            (there != here).then(|| format!("{name} differs: {there} recorded, {here} here"))
        };
        let records = now.cost_of_records();
        let is_cheap = records.iter().all(|(_, percent)| *percent <= RECORDS_COST_MAX_PERCENT);
        Comparison {
            ok: is_cheap && !cases.is_empty() && cases.iter().all(|row| row.wrong.is_empty()),
            cases,
            records,
            differences: now.taken_with.iter().filter_map(difference).collect(),
        }
    }

    /// Formats the table and, below it, the result.
    pub fn human(&self) -> String {
        let width = self.cases.iter().map(|row| row.case.chars().count()).max().unwrap_or(0).max(5);
        let number = |count: Option<Count>| count.map_or("-".to_owned(), |count| format!("{:.1}", count.total()));
        let mut lines = vec![format!("{:<width$}  {:>10}  {:>10}  {:>9}", "case", "recorded", "now", "change")];
        lines.extend(self.cases.iter().map(|row| {
            let change = row.change_percent.map_or("-".to_owned(), |change| format!("{change:+.2} %"));
            let (recorded, now) = (number(row.recorded.as_ref().map(|recorded| recorded.count)), number(row.now));
            let line = format!("{:<width$}  {recorded:>10}  {now:>10}  {change:>9}  {}", row.case, row.wrong);
            line.trim_end().to_owned()
        }));
        lines.extend(self.records.iter().map(|(case, percent)| {
            let verdict = if *percent <= RECORDS_COST_MAX_PERCENT { "" } else { "  TOO MUCH" };
            format!("redo records cost {percent:.2} % of {case}; at most {RECORDS_COST_MAX_PERCENT} %{verdict}")
        }));
        lines.extend(self.differences.iter().map(|difference| format!("note: {difference}")));
        let (wrong, all) = (self.cases.iter().filter(|row| !row.wrong.is_empty()).count(), self.cases.len());
        lines.push(match self.ok {
            true => format!("instructions: ok: {all} cases within {TOLERANCE_PERCENT} % of the record"),
            false => format!(
                "instructions: FAILED: {wrong} of {all} cases not within {TOLERANCE_PERCENT} % of the record, or redo \
                 records cost too much; if this is intended, record it in the same commit, with the reason: cargo xtask \
                 instructions --update --because \"REASON\""
            ),
        });
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of the program; the library adds 10.
    fn counted(cases: &[(&str, f64)]) -> Counted {
        let count = |(case, program): &(&str, f64)| ((*case).to_owned(), Count { program: *program, library: 10.0 });
        let setting =
            [("rustc", "1.0"), ("libc", "glibc 2.36")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        Counted { taken_with: setting.into(), cases: cases.iter().map(count).collect() }
    }

    fn compare(before: &[(&str, f64)], now: &[(&str, f64)]) -> Comparison {
        Comparison::new(&counted(before).recorded(None, "first"), &counted(now))
    }

    #[test]
    fn a_record_round_trips_through_text() {
        let record = counted(&[("get, \"quoted\"", 100.5), ("put", 7.0)]).recorded(None, "the \"first\" one");
        assert_eq!(Record::parse(&record.to_text()).expect("it parses"), record);
        assert!(Record::parse("[cases]\n").is_err());
    }

    #[test]
    fn an_update_records_the_reason_for_changes_and_keeps_the_rest() {
        let before = counted(&[("a", 100.0), ("b", 100.0), ("gone", 1.0)]).recorded(None, "first");
        let after = counted(&[("a", 103.0), ("b", 200.0), ("new", 5.0)]).recorded(Some(&before), "second");
        assert_eq!(after.cases["a"], before.cases["a"]);
        assert_eq!((after.cases["b"].count.program, after.cases["b"].because.as_str()), (200.0, "second"));
        assert!(after.cases["new"].because == "second" && !after.cases.contains_key("gone"));
        let mut other = counted(&[("a", 103.0)]);
        other.taken_with.insert("rustc".to_owned(), "1.1".to_owned());
        assert_eq!(other.recorded(Some(&before), "third").cases["a"].because, "third", "the compiler differs");
    }

    #[test]
    fn a_change_fails_beyond_the_tolerance_in_both_directions() {
        for (now, ok) in [(90.0, true), (95.0, true), (85.0, true), (95.1, false), (84.9, false), (0.0, false)] {
            let comparison = compare(&[("a", 90.0)], &[("a", now)]);
            assert_eq!(comparison.ok, ok, "{now}: {}", comparison.human());
            assert_eq!(comparison.human().contains("CHANGED"), !ok);
        }
        assert!(!compare(&[("a", 90.0)], &[("a", 90.0), ("b", 1.0)]).ok, "not recorded");
        assert!(!compare(&[("a", 90.0), ("b", 1.0)], &[("a", 90.0)]).ok, "not counted");
        assert!(!compare(&[], &[]).ok, "no counts at all");
    }

    #[test]
    fn records_that_cost_too_much_fail() {
        for (with, ok) in [(95.0, true), (95.1, false), (80.0, true)] {
            let counts = [("a YCSB-A", with), ("a YCSB-A, without records", 90.0)];
            let comparison = compare(&counts, &counts);
            assert_eq!((comparison.ok, comparison.human().contains("TOO MUCH")), (ok, !ok), "{}", comparison.human());
        }
        // An update is not a workload, and the cost needs both halves of a workload.
        for case in ["update", "YCSB-A"] {
            let counts = [(case, 200.0), ("update, without records", 100.0)];
            assert!(compare(&counts, &counts).ok, "{case}");
        }
    }

    #[test]
    fn another_c_library_does_not_count_as_a_change() {
        let record = counted(&[("a", 90.0)]).recorded(None, "first");
        let mut now = counted(&[("a", 90.0)]);
        now.cases.insert("a".to_owned(), Count { program: 90.0, library: 50.0 });
        assert!(!Comparison::new(&record, &now).ok);
        now.taken_with.insert("libc".to_owned(), "glibc 2.41".to_owned());
        let comparison = Comparison::new(&record, &now);
        assert!(comparison.ok && comparison.human().contains("libc differs: glibc 2.36 recorded, glibc 2.41 here"));
    }
}
