//! Comparison of new counts with the recorded ones.

use serde::Serialize;

use super::record::{Count, Counted, Record};
use crate::report::plural;

/// Most percent by which a count may differ from the record. Unrelated changes move counts that far by inlining.
pub const TOLERANCE_PERCENT: f64 = 5.0;

/// Most that redo records may add to YCSB-A, in percent of its cost without them.
pub const RECORDS_COST_MAX_PERCENT: f64 = 5.0;
/// The end of the name of a case of YCSB-A with records.
const YCSB_A: &str = "YCSB-A";
/// The text that follows it in the name of the same case without records.
const WITHOUT_RECORDS: &str = ", without records";

/// The instructions for recording an intended change.
pub const HOW_TO_UPDATE: &str = "if this is intended, record it in the same commit, with the reason: \
                                 cargo xtask instructions --update --because \"REASON\"";

/// The result of comparing one case with the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Within,
    Changed,
    /// The case was counted, but is not recorded.
    NotRecorded,
    /// The case is recorded, but was not counted.
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

/// The comparison of one case.
#[derive(Debug, Serialize)]
struct Row {
    case: String,
    recorded: Option<Count>,
    now: Option<Count>,
    /// Change of program and library together; of the program alone if the C library differs.
    change_percent: Option<f64>,
    status: Status,
    /// The recorded reason.
    because: Option<String>,
}

/// The cost of redo records in a workload.
#[derive(Debug, Serialize)]
struct Records {
    case: String,
    /// Percent of the cost without records.
    cost_percent: f64,
}

impl Records {
    /// Computes the cost for each workload that was counted both with and without records.
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
        self.cost_percent <= RECORDS_COST_MAX_PERCENT
    }
}

/// The whole comparison.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub ok: bool,
    tolerance_percent: f64,
    most_for_records_percent: f64,
    records: Vec<Records>,
    /// Differences between the settings of the record and the current ones.
    differences: Vec<String>,
    cases: Vec<Row>,
}

/// The change from `before` to `now`, in percent of `before`.
pub fn change_percent(before: &Count, now: &Count) -> f64 {
    relative(before.program + before.library, now.program + now.library)
}

fn relative(before: f64, now: f64) -> f64 {
    if before == now { 0.0 } else { (now - before) / before * 100.0 }
}

/// Whether a change is within the tolerance. A change from or to zero instructions is not.
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
                    // Another C library copies memory with other instructions, which is not a change of this code.
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
            most_for_records_percent: RECORDS_COST_MAX_PERCENT,
            records,
            differences: differences
                .map(|(name, there, here)| format!("{name} differs: {there} recorded, {here} here"))
                .collect(),
            cases,
        }
    }

    /// Formats the table and, below it, the result.
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
            format!("redo records cost {cost:.2} % of {case}; at most {RECORDS_COST_MAX_PERCENT} %{verdict}")
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
            lines.push("the compiler differs from the recorded one, which may be the cause".to_owned());
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
    fn cases_missing_on_one_side_fail() {
        assert!(compare(&[("a", 90.0)], &[("a", 90.0)]).ok);
        assert!(!compare(&[("a", 90.0)], &[("a", 90.0), ("b", 1.0)]).ok);
        assert!(!compare(&[("a", 90.0), ("b", 1.0)], &[("a", 90.0)]).ok);
        assert!(!compare(&[], &[]).ok, "no counts at all are a failure");
    }

    #[test]
    fn records_that_cost_too_much_fail() {
        // These are counts of the program; the library adds 10.
        for (with, ok) in [(95.0, true), (95.1, false), (80.0, true)] {
            let counts = [("a YCSB-A", with), ("a YCSB-A, without records", 90.0)];
            let comparison = compare(&counts, &counts);
            assert_eq!(comparison.ok, ok, "{with}: {}", comparison.human());
            assert_eq!(comparison.human().contains("TOO MUCH"), !ok, "{}", comparison.human());
            assert!(comparison.human().contains("% of a YCSB-A; at most 5 %"), "{}", comparison.human());
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
        assert!(text.contains("the compiler differs: rustc 1.0 recorded, rustc 1.1 here"), "{text}");
        assert!(text.contains("+100.00 %  CHANGED"), "{text}");
    }
}
