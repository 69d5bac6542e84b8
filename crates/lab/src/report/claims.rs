//! Statements of the papers' texts about their figures, each held against what was measured.
//!
//! A statement is a quotient of two points of one series, or of two series. Invariant: a statement about a chart that
//! lacks one of the points has no result instead of a good one.

use serde::Serialize;

use super::{Chart, Origin, Verdict};

/// A statement of the text, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// The statement.
    pub text: &'static str,
    /// What is measured, in words.
    pub quotient: &'static str,
    /// The value by the text, in words: `at most 2`.
    pub claimed: String,
    /// The measured value.
    pub measured: f64,
    /// Whether they agree.
    pub verdict: Verdict,
    /// Why they do not agree, if they do not, or an empty text.
    pub why: &'static str,
}

/// What the text says of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Claimed {
    About(f64),
    AtMost(f64),
    AtLeast(f64),
}

/// A point of a series: its name and its x.
type At = (&'static str, f64);

/// A statement of the text about a figure.
struct Statement {
    figure: &'static str,
    text: &'static str,
    quotient: &'static str,
    above: At,
    below: At,
    claimed: Claimed,
    why: &'static str,
}

/// Limits of the ratio between the measured and the claimed value.
const AGREES_RATIO: f64 = 1.25;
const NEAR_RATIO: f64 = 1.6;

const STATEMENTS: [Statement; 24] = [
    Statement {
        figure: "7a",
        text: "Inserts drop from 11.5 million a second in a nearly empty table to 4.5 million at 90 %.",
        quotient: "W as run, 85 % full, to 5 %",
        above: ("W, as run", 85.0),
        below: ("W, as run", 5.0),
        claimed: Claimed::About(4.5 / 11.5),
        why: "",
    },
    Statement {
        figure: "7b",
        text: "Inserts at maximum fill take roughly twice as long as in an empty table.",
        quotient: "as run, 85 % full, to 5 %",
        above: ("as run", 85.0),
        below: ("as run", 5.0),
        claimed: Claimed::About(2.0),
        why: "A median insert has two round trips at any fill, and a search takes no time on the model.",
    },
    Statement {
        figure: "7b",
        text: "Inserts at maximum fill take roughly twice as long as in an empty table.",
        quotient: "as run, 85 % full, to 5 %, if a search takes 3 µs a row",
        above: ("as run, a search takes 3 µs a row", 85.0),
        below: ("as run, a search takes 3 µs a row", 5.0),
        claimed: Claimed::About(2.0),
        why: "The published points rise 1.84 times.",
    },
    Statement {
        figure: "7c",
        text: "The bytes of an insert rise by at most a factor of 2.",
        quotient: "as run, 85 % full, to 5 %",
        above: ("as run", 85.0),
        below: ("as run", 5.0),
        claimed: Claimed::AtMost(2.0),
        why: "The published points rise 2.4 times.",
    },
    Statement {
        figure: "7d",
        text: "The messages of an insert rise by at most a factor of 1.5.",
        quotient: "as run, 85 % full, to 5 %",
        above: ("as run", 85.0),
        below: ("as run", 5.0),
        claimed: Claimed::AtMost(1.5),
        why: "Not explained: up to 65 % full the messages are those published.",
    },
    Statement {
        figure: "8a",
        text: "Throughput remains high until about 500 deaths a second (published: 17 % less with one row per lock).",
        quotient: "as run, one row per lock, 500 deaths, to none",
        above: ("as run, 1 row per lock", 500.0),
        below: ("as run, 1 row per lock", 0.0),
        claimed: Claimed::About(0.83),
        why: "",
    },
    Statement {
        figure: "8a",
        text: "Then the granularity of locks begins to matter (published: 49 % less with 16 rows per lock).",
        quotient: "as run, 16 rows per lock, 500 deaths, to none",
        above: ("as run, 16 rows per lock", 500.0),
        below: ("as run, 16 rows per lock", 0.0),
        claimed: Claimed::About(0.51),
        why: "Not explained.",
    },
    Statement {
        figure: "8b",
        text: "The 99th percentile takes an order of magnitude fewer round trips with dependent hashing and breadth-first \
               search.",
        quotient: "as run, independent and depth-first, to the other, 64 locks a message",
        above: ("as run, independent and depth-first", 64.0),
        below: ("as run, dependent and breadth-first", 64.0),
        claimed: Claimed::AtLeast(10.0),
        why: "",
    },
    Statement {
        figure: "8d",
        text: "Values of 8 bytes in the row gain 37 % in YCSB-A over those in extents.",
        quotient: "A as printed, 24 bytes in an extent, to 8 bytes in the row",
        above: ("A, as printed", 24.0),
        below: ("A, as printed", 8.0),
        claimed: Claimed::About(1.0 - 0.37),
        why: "By the authors' script, their point in the row is the mean of runs that were not alike: 15.9, 9.6 and 4.2.",
    },
    Statement {
        figure: "linear-6",
        text: "The throughput of 4-way set-associative tables is only 3 % lower.",
        quotient: "4 records a slot, to 1, parallel, 65 % full",
        above: ("parallel, 4 records a slot", 65.0),
        below: ("parallel, 1 record a slot", 65.0),
        claimed: Claimed::About(0.97),
        why: "A READ of one word takes 10.2 ns on the model of the card, fitted to figure 1(b) of RCuckoo, and one of four \
              words 18.6.",
    },
    Statement {
        figure: "linear-6",
        text: "Parallel and sequential lookups do not differ.",
        quotient: "parallel, to sequential, 4 records a slot, 65 % full",
        above: ("parallel, 4 records a slot", 65.0),
        below: ("sequential, 4 records a slot", 65.0),
        claimed: Claimed::About(1.0),
        why: "",
    },
    Statement {
        figure: "linear-7",
        text: "Linear probing with variable READs has up to 2.8 times the throughput of cuckoo hashing.",
        quotient: "variable, to cuckoo, 25 % full",
        above: ("variable", 25.0),
        below: ("cuckoo", 25.0),
        claimed: Claimed::About(2.8),
        why: "",
    },
    Statement {
        figure: "linear-7",
        text: "It has up to 1.7 times that of READs of a fixed size.",
        quotient: "variable, to fixed, 25 % full",
        above: ("variable", 25.0),
        below: ("fixed", 25.0),
        claimed: Claimed::About(1.7),
        why: "",
    },
    Statement {
        figure: "linear-7",
        text: "Variable READs never perform worse than READs of a fixed size.",
        quotient: "variable, to fixed, 90 % full",
        above: ("variable", 90.0),
        below: ("fixed", 90.0),
        claimed: Claimed::AtLeast(1.0),
        why: "By the READs of the paper's own table 1, those of a fixed size are faster from 85 % on.",
    },
    Statement {
        figure: "linear-7",
        text: "Without the bound, throughput falls by up to a half of that with READs of a fixed size.",
        quotient: "unbounded, to fixed, 85 % full",
        above: ("unbounded", 85.0),
        below: ("fixed", 85.0),
        claimed: Claimed::About(0.5),
        why: "",
    },
    Statement {
        figure: "linear-7",
        text: "Cuckoo hashing is ahead from 90 % on, and only there.",
        quotient: "variable, to cuckoo, 85 % full",
        above: ("variable", 85.0),
        below: ("cuckoo", 85.0),
        claimed: Claimed::AtLeast(1.0),
        why: "",
    },
    Statement {
        figure: "linear-7",
        text: "Cuckoo hashing is ahead from 90 % on, and only there.",
        quotient: "variable, to cuckoo, 90 % full",
        above: ("variable", 90.0),
        below: ("cuckoo", 90.0),
        claimed: Claimed::AtMost(1.0),
        why: "",
    },
    Statement {
        figure: "linear-12",
        text: "Tracking clusters finds up to 1.7 times as many records where keys are highly skewed.",
        quotient: "with clusters, to without, exponent 0.99",
        above: ("with the 1,000 largest clusters", 0.99),
        below: ("without clusters", 0.99),
        claimed: Claimed::About(1.7),
        why: "",
    },
    Statement {
        figure: "linear-12",
        text: "It costs nothing where keys are drawn evenly.",
        quotient: "with clusters, to without, exponent 0",
        above: ("with the 1,000 largest clusters", 0.0),
        below: ("without clusters", 0.0),
        claimed: Claimed::AtLeast(0.98),
        why: "",
    },
    Statement {
        figure: "clover-mix",
        text: "Throughput drops by more than a factor of four when moving from a read-only to a 50 % write workload.",
        quotient: "64 clients, c, to a",
        above: ("64 clients", 0.0),
        below: ("64 clients", 2.0),
        claimed: Claimed::AtLeast(4.0),
        why: "",
    },
    Statement {
        figure: "clover-2",
        text: "An element that resolves conflicts of changes has 1.42 times the throughput at 64 clients.",
        quotient: "changes steered, to Clover, 64 clients",
        above: ("changes steered", 64.0),
        below: ("Clover", 64.0),
        claimed: Claimed::About(1.42),
        why: "",
    },
    Statement {
        figure: "clover-4",
        text: "All keys bring 1.42 times the throughput, and the 8 most popular ones alone 1.34 times.",
        quotient: "changes steered, all keys, to 8",
        above: ("changes steered", 1024.0),
        below: ("changes steered", 8.0),
        claimed: Claimed::About(1.06),
        why: "Here a client that knows little of a key pays the same for every key, because shortcuts are written at once",
    },
    Statement {
        figure: "clover-2",
        text: "An element that resolves conflicts of changes has 1.42 times the throughput at 64 clients.",
        quotient: "changes steered, to Clover, 64 clients, where shortcuts lag",
        above: ("lagging, changes steered", 64.0),
        below: ("lagging, Clover", 64.0),
        claimed: Claimed::About(1.42),
        why: "",
    },
    Statement {
        figure: "clover-4",
        text: "All keys bring 1.42 times the throughput, and the 8 most popular ones alone 1.34 times.",
        quotient: "changes steered, all keys, to 8, where shortcuts lag",
        above: ("lagging, changes steered", 1024.0),
        below: ("lagging, changes steered", 8.0),
        claimed: Claimed::About(1.06),
        why: "",
    },
];

impl Statement {
    fn held_against(&self, chart: &Chart) -> Option<Claim> {
        let value = |(name, x): At| {
            let series = chart.series.iter().find(|series| series.origin == Origin::Measured && series.name == name)?;
            Some(series.points.iter().find(|point| point.x == x)?.y)
        };
        let measured = value(self.above)? / value(self.below)?;
        let (claimed, ratio) = match self.claimed {
            Claimed::About(value) => (format!("{value:.2}"), (measured / value).max(value / measured)),
            Claimed::AtMost(value) => (format!("at most {value}"), measured / value),
            Claimed::AtLeast(value) => (format!("at least {value}"), value / measured),
        };
        let exact = !matches!(self.claimed, Claimed::About(_));
        let verdict = match ratio {
            _ if ratio <= if exact { 1.0 } else { AGREES_RATIO } => Verdict::Agrees,
            _ if ratio <= NEAR_RATIO => Verdict::Near,
            _ => Verdict::Differs,
        };
        let why = if verdict == Verdict::Agrees { "" } else { self.why };
        measured.is_finite().then_some(Claim {
            text: self.text,
            quotient: self.quotient,
            claimed,
            measured,
            verdict,
            why,
        })
    }
}

impl Claim {
    /// Returns the result in words.
    pub fn result(&self) -> String {
        let Claim { quotient, claimed, measured, verdict, why, .. } = self;
        let why = if why.is_empty() { String::new() } else { format!(". {why}") };
        format!("claimed {claimed}, measured {measured:.2} ({quotient}): {}{why}", verdict.text())
    }
}

/// Returns the statements of the paper about a chart, with what was measured.
pub fn claims(chart: &Chart) -> Vec<Claim> {
    let about = STATEMENTS.iter().filter(|statement| statement.figure == chart.id);
    about.filter_map(|statement| statement.held_against(chart)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Scale, Shape, samples};
    use super::*;
    use crate::experiment::built_in_plans;

    fn of(figure: &str, name: &str, points: &[(f64, f64)]) -> Vec<Claim> {
        let series = vec![samples::series(name, Origin::Measured, None, points)];
        let chart = samples::chart(Shape::Lines, Axis::new("fill", "%", Scale::Linear), series);
        claims(&Chart { id: figure.to_owned(), ..chart })
    }

    #[test]
    fn every_statement_is_about_points_that_are_measured() {
        for statement in &STATEMENTS {
            let built_in = built_in_plans().iter().find(|built_in| built_in.id == statement.figure).expect("a plan");
            for is_quick in [false, true] {
                for (name, x) in [statement.above, statement.below] {
                    let series = built_in.plan.series(is_quick).iter().find(|series| series.name == name);
                    let cells = &series.unwrap_or_else(|| panic!("{}: {name}", statement.figure)).cells;
                    assert!(cells.iter().any(|cell| cell.x == x), "{}: {name} at {x}", statement.figure);
                }
            }
        }
    }

    #[test]
    fn a_statement_is_held_against_two_points() {
        let result = |at_end: f64| of("7b", "as run", &[(5.0, 10.0), (85.0, at_end)]).remove(0);
        assert_eq!(result(19.0).verdict, Verdict::Agrees);
        assert_eq!(result(19.0).result(), "claimed 2.00, measured 1.90 (as run, 85 % full, to 5 %): agrees");
        assert_eq!(result(15.0).verdict, Verdict::Near);
        let differs = result(10.0);
        assert_eq!(differs.verdict, Verdict::Differs);
        assert!(differs.result().contains("measured 1.00 (as run, 85 % full, to 5 %): differs. A median"));
        let at_most = |at_end: f64| of("7d", "as run", &[(5.0, 4.0), (85.0, at_end)])[0].verdict;
        assert_eq!([at_most(6.0), at_most(6.1), at_most(12.0)], [Verdict::Agrees, Verdict::Near, Verdict::Differs]);
    }

    #[test]
    fn a_chart_without_the_points_says_nothing() {
        assert_eq!(of("7b", "as run", &[(5.0, 10.0)]), []);
        assert_eq!(of("6a", "as run", &[(5.0, 10.0), (85.0, 20.0)]), []);
    }
}
