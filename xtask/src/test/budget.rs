//! Budgets of steps and suites, with the times that were last recorded.
//!
//! `xtask/budget.toml` is the record: `cargo xtask test --record` writes the times, people write the budgets. A time
//! over its budget does not fail a run, because machines differ. A *record* with a time more than half over its budget
//! fails `cargo xtask check`, so the author of a new suite must state its cost and stay within it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Done;

/// The path of the record, from the root of the workspace.
pub const PATH: &str = "xtask/budget.toml";
/// Most seconds of the whole on two cores, with nothing compiled.
pub const WHOLE_MAX_S: f64 = 1_800.0;
/// A recorded time of more than this multiple of its budget is a violation.
pub const OVER: f64 = 1.5;
/// Suites that take less are not recorded: they are many and cheap.
const LEAST_SUITE_S: f64 = 5.0;

const HEAD: &str = "\
# Seconds that `cargo xtask test` may take, and those it took, on two cores, from a fresh clone, with an empty cargo
# home: docs/testing.md. `cargo xtask test --record` writes `recorded_s`; a new line needs a `budget_s`, and
# `cargo xtask check` says when a recorded time is more than half over its budget, or the whole over 30 minutes.
";

/// The record.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    pub whole: Line,
    pub steps: BTreeMap<String, Line>,
    pub suites: BTreeMap<String, Line>,
}

/// One line of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_s: Option<f64>,
    #[serde(default)]
    pub recorded_s: f64,
}

impl Times {
    pub fn parse(text: &str) -> Result<Times, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    /// The recorded time of a step or a suite.
    pub fn recorded_s(&self, name: &str) -> Option<f64> {
        self.steps.get(name).or_else(|| self.suites.get(name)).map(|line| line.recorded_s)
    }

    /// The budget of a step.
    pub fn budget_s(&self, step: &str) -> Option<f64> {
        self.steps.get(step).and_then(|line| line.budget_s)
    }

    /// This record with the times of a run. A step that did not run keeps its time.
    fn recorded(mut self, whole_s: f64, steps: &[Done], suites: &[(String, f64)]) -> Times {
        let round = |seconds: f64| seconds.round();
        self.whole.recorded_s = round(whole_s);
        for done in steps.iter().filter(|done| done.outcome.ran()) {
            self.steps.entry(done.name.clone()).or_default().recorded_s = round(done.seconds);
        }
        let before = std::mem::take(&mut self.suites);
        for (name, seconds) in suites.iter().filter(|(_, seconds)| *seconds >= LEAST_SUITE_S) {
            let budget_s = before.get(name).and_then(|line| line.budget_s);
            self.suites.insert(name.clone(), Line { budget_s, recorded_s: round(*seconds) });
        }
        self
    }

    fn to_text(&self) -> Result<String> {
        Ok(format!("{HEAD}\n{}", toml::to_string(self).context("the record of times")?))
    }
}

/// Reads the record of the workspace at `root`, if it exists and parses.
pub fn read(root: &Path) -> Option<Times> {
    Times::parse(&fs::read_to_string(root.join(PATH)).ok()?).ok()
}

/// Records the times of a run.
pub fn record(root: &Path, whole_s: f64, steps: &[Done], suites: &[(String, f64)]) -> Result<()> {
    let times = read(root).unwrap_or_default().recorded(whole_s, steps, suites);
    fs::write(root.join(PATH), times.to_text()?).context(PATH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Outcome;
    use crate::test::steps::{STEPS, StepName};

    #[test]
    fn a_run_keeps_budgets_and_replaces_times() {
        let before = "[whole]\nbudget_s = 1200\n[steps.clippy]\nbudget_s = 60\nrecorded_s = 50\n[steps.miri]\n\
                      budget_s = 30\nrecorded_s = 9\n[suites.old]\nbudget_s = 9\nrecorded_s = 8\n[suites.a]\n\
                      budget_s = 7\nrecorded_s = 6\n";
        let done = |name: StepName, outcome| Done::new(&STEPS[name.index()], 70.4, outcome);
        let steps = [
            done(StepName::Clippy, Outcome::Passed),
            done(StepName::Doc, Outcome::Passed),
            done(StepName::Miri, Outcome::NotAvailable(String::new())),
        ];
        let suites = [("a".to_owned(), 5.6), ("b".to_owned(), 9.0), ("short".to_owned(), 1.0)];
        let times = Times::parse(before).expect("it parses").recorded(1_000.2, &steps, &suites);
        assert_eq!(times.whole, Line { budget_s: Some(1_200.0), recorded_s: 1_000.0 });
        assert_eq!(times.steps["clippy"], Line { budget_s: Some(60.0), recorded_s: 70.0 });
        assert_eq!(times.steps["doc"], Line { budget_s: None, recorded_s: 70.0 });
        assert_eq!(times.steps["miri"].recorded_s, 9.0);
        assert_eq!(times.suites.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(times.suites["a"], Line { budget_s: Some(7.0), recorded_s: 6.0 });
        let again = Times::parse(&times.to_text().expect("it is plain")).expect("it parses");
        assert_eq!((again.steps.len(), again.recorded_s("b")), (3, Some(9.0)));
    }
}
