//! What was counted now against what is on record.

use serde::Serialize;

use super::record::{Count, Counted, Record};
use crate::report::plural;

/// How far a count may be from the record, in percent: what unrelated changes of the code move by inlining.
pub const TOLERANCE_PERCENT: f64 = 5.0;

/// What redo records may cost of YCSB-A, in percent of what it takes without them.
pub const MOST_FOR_RECORDS_PERCENT: f64 = 5.0;
/// The cases that say what they cost: the one with records is called the same without the second text.
const YCSB_A: &str = "YCSB-A";
const WITHOUT_RECORDS: &str = ", without records";

/// What to do about a change that is meant.
pub const HOW_TO_UPDATE: &str = "if that is meant, put it on record in the same commit, which says why too: \
                                 cargo xtask instructions --update --because \"REASON\"";

/// How a case stands to the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Within,
    Changed,
    /// It was counted, but is not on record.
    NotRecorded,
    /// It is on record, but was not counted.
    NotCounted,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Within => "",
            Status::Changed => "CHANGED",
            Status::NotRecorded => "NOT RECORDED",
            Status::NotCounted => "NOT COUNTED",
        }
    }
}

/// One case's line.
#[derive(Debug, Serialize)]
struct Row {
    case: String,
    recorded: Option<Count>,
    now: Option<Count>,
    /// Of program and library together; of the program alone if the library is another.
    change_percent: Option<f64>,
    status: Status,
    /// The reason on record.
    because: Option<String>,
}

/// What redo records cost of a workload.
#[derive(Debug, Serialize)]
struct Records {
    case: String,
    /// In percent of what it takes without them.
    cost_percent: f64,
}

impl Records {
    /// Of each workload that was counted both with and without them.
    fn of(counts: &[(String, Count)]) -> Vec<Records> {
        let total = |case: &str| {
            let found = counts.iter().find(|(counted, _)| counted == case);
            found.map(|(_, count)| count.program + count.library)
        };
        let without = counts.iter().filter_map(|(case, _)| case.strip_suffix(WITHOUT_RECORDS));
        let workloads = without.filter(|case| case.ends_with(YCSB_A));
        let cost = |case: &str| Some(relative(total(&format!("{case}{WITHOUT_RECORDS}"))?, total(case)?));
        workloads.filter_map(|case| Some(Records { case: case.to_owned(), cost_percent: cost(case)? })).collect()
    }

    fn are_within_limit(&self) -> bool {
        self.cost_percent <= MOST_FOR_RECORDS_PERCENT
    }
}

/// The whole comparison.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub ok: bool,
    tolerance_percent: f64,
    most_for_records_percent: f64,
    records: Vec<Records>,
    /// What the record was not taken with.
    differences: Vec<String>,
    cases: Vec<Row>,
}

/// How far `now` is from `before`, in percent of it.
pub fn change_percent(before: &Count, now: &Count) -> f64 {
    relative(before.program + before.library, now.program + now.library)
}

fn relative(before: f64, now: f64) -> f64 {
    if before == now { 0.0 } else { (now - before) / before * 100.0 }
}

/// Whether a change is within the tolerance. One from or to nothing is not.
pub fn is_within(change_percent: f64) -> bool {
    change_percent.abs() <= TOLERANCE_PERCENT
}

impl Comparison {
    pub fn new(record: &Record, now: &Counted) -> Self {
        let same_library = record.taken_with.libc == now.taken_with.libc;
        let mut cases: Vec<Row> = now
            .cases
            .iter()
            .map(|(case, count)| {
                let recorded = record.cases.get(case);
                let change = recorded.map(|recorded| match same_library {
                    true => change_percent(&recorded.count, count),
                    // Another library copies memory with other instructions: that is no change of ours.
                    false => relative(recorded.count.program, count.program),
                });
                let status = match change {
                    None => Status::NotRecorded,
                    Some(change) if is_within(change) => Status::Within,
                    Some(_) => Status::Changed,
                };
                Row {
                    case: case.clone(),
                    recorded: recorded.map(|recorded| recorded.count),
                    now: Some(*count),
                    change_percent: change,
                    status,
                    because: recorded.map(|recorded| recorded.because.clone()),
                }
            })
            .collect();
        let is_counted = |case: &String| now.cases.iter().any(|(counted, _)| counted == case);
        let gone = record.cases.iter().filter(|(case, _)| !is_counted(case));
        cases.extend(gone.map(|(case, recorded)| Row {
            case: case.clone(),
            recorded: Some(recorded.count),
            now: None,
            change_percent: None,
            status: Status::NotCounted,
            because: Some(recorded.because.clone()),
        }));
        let differences = now.taken_with.differences(&record.taken_with).into_iter();
        let records = Records::of(&now.cases);
        let is_within = !cases.is_empty() && cases.iter().all(|row| row.status == Status::Within);
        Comparison {
            ok: is_within && records.iter().all(Records::are_within_limit),
            tolerance_percent: TOLERANCE_PERCENT,
            most_for_records_percent: MOST_FOR_RECORDS_PERCENT,
            records,
            differences: differences
                .map(|(name, there, here)| format!("{name} differs: {there} on record, {here} here"))
                .collect(),
            cases,
        }
    }

    /// The table, and below it what it comes to.
    pub fn human(&self) -> String {
        let width = self.cases.iter().map(|row| row.case.chars().count()).max().unwrap_or(0).max(5);
        let number = |count: Option<Count>| count.map_or("-".to_owned(), |c| format!("{:.1}", c.program + c.library));
        let mut lines = vec![format!("{:<width$}  {:>10}  {:>10}  {:>9}", "case", "recorded", "now", "change")];
        lines.extend(self.cases.iter().map(|row| {
            let change = row.change_percent.map_or("-".to_owned(), |change| format!("{change:+.2} %"));
            let (recorded, now) = (number(row.recorded), number(row.now));
            let line = format!("{:<width$}  {recorded:>10}  {now:>10}  {change:>9}  {}", row.case, row.status.word());
            line.trim_end().to_owned()
        }));
        lines.extend(self.records.iter().map(|records| {
            let (case, cost) = (&records.case, records.cost_percent);
            let verdict = if records.are_within_limit() { "" } else { "  TOO MUCH" };
            format!("redo records cost {cost:.2} % of {case}; at most {MOST_FOR_RECORDS_PERCENT} %{verdict}")
        }));
        lines.extend(self.differences.iter().map(|difference| format!("note: {difference}")));
        let expensive = self.records.iter().filter(|records| !records.are_within_limit()).count();
        let failed = self.cases.iter().filter(|row| row.status != Status::Within).count();
        let cases = format!("{} case{}", self.cases.len(), plural(self.cases.len()));
        lines.push(match self.ok {
            true => format!("instructions: ok: {cases} within {TOLERANCE_PERCENT} % of the record"),
            false if failed == 0 => format!("instructions: FAILED: redo records cost too much of {expensive} of them"),
            false => format!(
                "instructions: FAILED: {failed} of {cases} not within {TOLERANCE_PERCENT} % of the record; \
                 {HOW_TO_UPDATE}"
            ),
        });
        if !self.ok && self.differences.iter().any(|difference| difference.starts_with("the compiler")) {
            lines.push("the compiler is not the one on record: the change may be the compiler's".to_owned());
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::counted;
    use super::*;

    fn compare(before: &[(&str, f64)], now: &[(&str, f64)]) -> Comparison {
        Comparison::new(&counted(before).recorded(None, "first"), &counted(now))
    }

    #[test]
    fn a_change_fails_beyond_the_tolerance_in_both_directions() {
        for (now, ok) in [(90.0, true), (95.0, true), (85.0, true), (95.1, false), (84.9, false), (0.0, false)] {
            let comparison = compare(&[("a", 90.0)], &[("a", now)]);
            assert_eq!(comparison.ok, ok, "{now}: {}", comparison.human());
        }
    }

    #[test]
    fn cases_that_are_not_on_both_sides_fail() {
        assert!(compare(&[("a", 90.0)], &[("a", 90.0)]).ok);
        assert!(!compare(&[("a", 90.0)], &[("a", 90.0), ("b", 1.0)]).ok);
        assert!(!compare(&[("a", 90.0), ("b", 1.0)], &[("a", 90.0)]).ok);
        assert!(!compare(&[], &[]).ok, "a count of nothing is no count");
    }

    #[test]
    fn records_that_cost_too_much_fail() {
        // Of the program; the library takes 10 more.
        for (with, ok) in [(95.0, true), (95.1, false), (80.0, true)] {
            let counts = [("a YCSB-A", with), ("a YCSB-A, without records", 90.0)];
            let comparison = compare(&counts, &counts);
            assert_eq!(comparison.ok, ok, "{with}: {}", comparison.human());
            assert_eq!(comparison.human().contains("TOO MUCH"), !ok, "{}", comparison.human());
            assert!(comparison.human().contains("% of a YCSB-A; at most 5 %"), "{}", comparison.human());
        }
        // An update alone is no workload, and a workload without the other half has no price.
        for case in ["update", "YCSB-A"] {
            let counts = [(case, 200.0), ("update, without records", 100.0)];
            assert!(compare(&counts, &counts).ok, "{case}");
        }
    }

    #[test]
    fn another_library_is_not_held_against_the_program() {
        let record = counted(&[("a", 90.0)]).recorded(None, "first");
        let mut now = counted(&[("a", 90.0)]);
        now.cases[0].1.library = 50.0;
        assert!(!Comparison::new(&record, &now).ok);
        now.taken_with.libc = "glibc 2.41".to_owned();
        assert!(Comparison::new(&record, &now).ok);
    }

    #[test]
    fn a_failure_says_how_to_update_and_that_the_compiler_differs() {
        let record = counted(&[("a", 90.0)]).recorded(None, "first");
        let mut now = counted(&[("a", 190.0)]);
        assert!(!Comparison::new(&record, &now).human().contains("compiler"));
        now.taken_with.rustc = "rustc 1.1".to_owned();
        let text = Comparison::new(&record, &now).human();
        assert!(text.contains("--update --because"), "{text}");
        assert!(text.contains("the compiler differs: rustc 1.0 on record, rustc 1.1 here"), "{text}");
        assert!(text.contains("+100.00 %  CHANGED"), "{text}");
    }
}
