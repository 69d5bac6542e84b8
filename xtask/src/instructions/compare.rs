//! What was counted now against what is on record.

use serde::Serialize;

use super::record::{Count, Counted, Record};
use crate::report::plural;

/// How far a count may be from the record, in percent: what unrelated changes of the code move by inlining.
pub const TOLERANCE_PERCENT: f64 = 5.0;

/// What redo records may cost of YCSB-A, in percent of what it takes without them.
pub const MOST_FOR_RECORDS_PERCENT: f64 = 5.0;
/// The shapes that say what they cost: the one with records is called the same without the second text.
const YCSB_A: &str = "YCSB-A";
const WITHOUT_RECORDS: &str = ", without records";

/// What to do about a change that is meant.
pub const HOW_TO_UPDATE: &str = "if that is meant, put it on record in the same commit, which says why too: \
                                 cargo xtask instructions --update --because \"REASON\"";

/// How a shape stands to the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    Within,
    Changed,
    /// It was counted, but is not on record.
    NotRecorded,
    /// It is on record, but was not counted.
    NotCounted,
}

impl Standing {
    fn word(self) -> &'static str {
        match self {
            Standing::Within => "",
            Standing::Changed => "CHANGED",
            Standing::NotRecorded => "NOT RECORDED",
            Standing::NotCounted => "NOT COUNTED",
        }
    }
}

/// One shape's line.
#[derive(Debug, Serialize)]
struct Row {
    shape: String,
    recorded: Option<Count>,
    now: Option<Count>,
    /// Of program and library together; of the program alone if the library is another.
    change_percent: Option<f64>,
    standing: Standing,
    /// The reason on record.
    because: Option<String>,
}

/// What redo records cost of a workload.
#[derive(Debug, Serialize)]
struct Records {
    shape: String,
    /// In percent of what it takes without them.
    cost_percent: f64,
}

impl Records {
    /// Of each workload that was counted both with and without them.
    fn of(counts: &[(String, Count)]) -> Vec<Records> {
        let total = |shape: &str| {
            let found = counts.iter().find(|(counted, _)| counted == shape);
            found.map(|(_, count)| count.program + count.library)
        };
        let without = counts.iter().filter_map(|(shape, _)| shape.strip_suffix(WITHOUT_RECORDS));
        let workloads = without.filter(|shape| shape.ends_with(YCSB_A));
        let cost = |shape: &str| Some(relative(total(&format!("{shape}{WITHOUT_RECORDS}"))?, total(shape)?));
        workloads.filter_map(|shape| Some(Records { shape: shape.to_owned(), cost_percent: cost(shape)? })).collect()
    }

    fn are_cheap(&self) -> bool {
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
    shapes: Vec<Row>,
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
        let mut shapes: Vec<Row> = now
            .shapes
            .iter()
            .map(|(shape, count)| {
                let recorded = record.shapes.get(shape);
                let change = recorded.map(|recorded| match same_library {
                    true => change_percent(&recorded.count, count),
                    // Another library copies memory with other instructions: that is no change of ours.
                    false => relative(recorded.count.program, count.program),
                });
                let standing = match change {
                    None => Standing::NotRecorded,
                    Some(change) if is_within(change) => Standing::Within,
                    Some(_) => Standing::Changed,
                };
                Row {
                    shape: shape.clone(),
                    recorded: recorded.map(|recorded| recorded.count),
                    now: Some(*count),
                    change_percent: change,
                    standing,
                    because: recorded.map(|recorded| recorded.because.clone()),
                }
            })
            .collect();
        let is_counted = |shape: &String| now.shapes.iter().any(|(counted, _)| counted == shape);
        let gone = record.shapes.iter().filter(|(shape, _)| !is_counted(shape));
        shapes.extend(gone.map(|(shape, recorded)| Row {
            shape: shape.clone(),
            recorded: Some(recorded.count),
            now: None,
            change_percent: None,
            standing: Standing::NotCounted,
            because: Some(recorded.because.clone()),
        }));
        let differences = now.taken_with.differences(&record.taken_with).into_iter();
        let records = Records::of(&now.shapes);
        let is_within = !shapes.is_empty() && shapes.iter().all(|row| row.standing == Standing::Within);
        Comparison {
            ok: is_within && records.iter().all(Records::are_cheap),
            tolerance_percent: TOLERANCE_PERCENT,
            most_for_records_percent: MOST_FOR_RECORDS_PERCENT,
            records,
            differences: differences
                .map(|(name, there, here)| format!("{name} differs: {there} on record, {here} here"))
                .collect(),
            shapes,
        }
    }

    /// The table, and below it what it comes to.
    pub fn human(&self) -> String {
        let width = self.shapes.iter().map(|row| row.shape.chars().count()).max().unwrap_or(0).max(5);
        let number = |count: Option<Count>| count.map_or("-".to_owned(), |c| format!("{:.1}", c.program + c.library));
        let mut lines = vec![format!("{:<width$}  {:>10}  {:>10}  {:>9}", "shape", "recorded", "now", "change")];
        lines.extend(self.shapes.iter().map(|row| {
            let change = row.change_percent.map_or("-".to_owned(), |change| format!("{change:+.2} %"));
            let (recorded, now) = (number(row.recorded), number(row.now));
            let line =
                format!("{:<width$}  {recorded:>10}  {now:>10}  {change:>9}  {}", row.shape, row.standing.word());
            line.trim_end().to_owned()
        }));
        lines.extend(self.records.iter().map(|records| {
            let (shape, cost) = (&records.shape, records.cost_percent);
            let verdict = if records.are_cheap() { "" } else { "  TOO MUCH" };
            format!("redo records cost {cost:.2} % of {shape}; at most {MOST_FOR_RECORDS_PERCENT} %{verdict}")
        }));
        lines.extend(self.differences.iter().map(|difference| format!("note: {difference}")));
        let dear = self.records.iter().filter(|records| !records.are_cheap()).count();
        let failed = self.shapes.iter().filter(|row| row.standing != Standing::Within).count();
        let shapes = format!("{} shape{}", self.shapes.len(), plural(self.shapes.len()));
        lines.push(match self.ok {
            true => format!("instructions: ok: {shapes} within {TOLERANCE_PERCENT} % of the record"),
            false if failed == 0 => format!("instructions: FAILED: redo records cost too much of {dear} of them"),
            false => format!(
                "instructions: FAILED: {failed} of {shapes} not within {TOLERANCE_PERCENT} % of the record; \
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
    fn shapes_that_are_not_on_both_sides_fail() {
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
        for shape in ["update", "YCSB-A"] {
            let counts = [(shape, 200.0), ("update, without records", 100.0)];
            assert!(compare(&counts, &counts).ok, "{shape}");
        }
    }

    #[test]
    fn another_library_is_not_held_against_the_program() {
        let record = counted(&[("a", 90.0)]).recorded(None, "first");
        let mut now = counted(&[("a", 90.0)]);
        now.shapes[0].1.library = 50.0;
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
