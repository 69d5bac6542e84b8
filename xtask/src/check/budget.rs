//! The record of the times of tests: every step has a budget, no recorded time exceeds its budget by more than half,
//! and the whole takes at most half an hour.

use std::collections::BTreeMap;

use crate::report::{Report, Violation};
use crate::test::budget::{Line, OVER, PATH, Times, WHOLE_MAX_S};

/// Checks the record, if the file exists, against the names of all `steps`.
pub fn check(text: Option<&str>, steps: &[String]) -> Report {
    let violation = |line: usize, reason: String| Violation::new(PATH, line, reason);
    let (times, mut violations) = match text.map(Times::parse) {
        Some(Ok(times)) => (times, Vec::new()),
        Some(Err(reason)) => (Times::default(), vec![violation(1, format!("does not parse: {reason}"))]),
        None => (Times::default(), vec![violation(1, "missing: cargo xtask test --record writes it".to_owned())]),
    };
    let text = text.unwrap_or_default();
    if violations.is_empty() {
        let missing = steps.iter().filter(|step| !times.steps.contains_key(*step));
        violations.extend(missing.map(|step| violation(1, format!("step {step} has no entry"))));
        let unknown = times.steps.keys().filter(|name| !steps.contains(name));
        violations.extend(unknown.map(|name| violation(line_of(text, name), format!("there is no step {name}"))));
        for (name, line) in times.steps.iter().chain(&times.suites).chain([(&"whole".to_owned(), &times.whole)]) {
            violations.extend(wrong(line).map(|reason| violation(line_of(text, name), format!("{name}: {reason}"))));
        }
        let whole_s = times.whole.budget_s.unwrap_or_default();
        if whole_s > WHOLE_MAX_S {
            violations
                .push(violation(line_of(text, "whole"), format!("the budget of the whole is over {WHOLE_MAX_S} s")));
        }
    }
    let looked_at = format!("{} steps and {} suites in {PATH}", times.steps.len(), times.suites.len());
    Report { name: "budget", looked_at, violations }
}

fn wrong(line: &Line) -> Option<String> {
    match line.budget_s {
        None => Some("budget_s is missing".to_owned()),
        Some(budget_s) if budget_s > 0.0 && line.recorded_s <= budget_s * OVER => None,
        Some(budget_s) => {
            Some(format!("it took {} s, more than half over its budget of {budget_s} s", line.recorded_s))
        }
    }
}

/// The line of the table `name`, from 1.
fn line_of(text: &str, name: &str) -> usize {
    let heads: BTreeMap<String, usize> =
        text.lines().enumerate().map(|(at, line)| (line.replace('"', ""), at)).collect();
    let tables = [format!("[{name}]"), format!("[steps.{name}]"), format!("[suites.{name}]")];
    tables.iter().find_map(|table| heads.get(table)).map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "[whole]\nbudget_s = 1200\nrecorded_s = 1000\n[steps.a]\nbudget_s = 10\nrecorded_s = 15\n\
                         [suites.\"b::c\"]\nbudget_s = 4\nrecorded_s = 4\n";

    fn reasons(text: &str) -> Vec<String> {
        check(Some(text), &["a".to_owned()]).violations.iter().map(Violation::to_string).collect()
    }

    #[test]
    fn a_record_within_its_budgets_passes() {
        assert_eq!(reasons(WHOLE), [""; 0]);
    }

    #[test]
    fn times_more_than_half_over_their_budget_fail() {
        let over = |from: &str, to: &str| reasons(&WHOLE.replace(from, to));
        assert_eq!(
            over("= 15", "= 16"),
            [format!("{PATH}:4: a: it took 16 s, more than half over its budget of 10 s")]
        );
        assert_eq!(over("recorded_s = 4", "recorded_s = 7").len(), 1);
        assert_eq!(over("= 1200", "= 1801"), [format!("{PATH}:1: the budget of the whole is over 1800 s")]);
        assert_eq!(over("= 1000", "= 1900").len(), 1);
    }

    #[test]
    fn every_step_and_every_long_suite_has_a_budget() {
        assert_eq!(reasons(&WHOLE.replace("budget_s = 4\n", "")), [format!("{PATH}:7: b::c: budget_s is missing")]);
        assert_eq!(reasons(&WHOLE.replace("steps.a", "steps.b")).len(), 2);
        assert!(reasons("nonsense")[0].contains("does not parse"));
        assert_eq!(check(None, &[]).violations.len(), 1);
    }
}
