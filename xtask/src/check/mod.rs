//! `cargo xtask check`: the numbered rules of the protocol, its holes and its mutants are cited by code and by tests that
//! exist. Everything else is left to the compiler, clippy and cargo-deny.
//!
//! Every check is a pure function from text to a [`Report`], so that its tests can show that it fails on a bad sample.
//! This module reads the files, prints the reports and decides the exit code.

mod holes;
mod mutants;
mod rules;
mod test_names;

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::report::{Format, Report, Verdict};
use crate::rust::RustFile;
use crate::shell::{Outcome, Shell};
use crate::tree::{self, Tree};

/// The reports of all checks.
#[derive(Debug, Serialize)]
pub struct Reports {
    ok: bool,
    checks: Vec<Report>,
}

impl Reports {
    pub fn violations(&self) -> usize {
        self.checks.iter().map(|report| report.violations.len()).sum()
    }

    /// Formats every report, and a last line with the result.
    pub fn human(&self) -> String {
        let mut lines: Vec<String> = self.checks.iter().map(Report::to_string).collect();
        let count = self.violations();
        lines.push(match count {
            0 => "check: ok".to_owned(),
            _ => format!("check: violations: {count}"),
        });
        lines.join("\n")
    }
}

/// Runs `cargo xtask check`.
pub fn command(format: Format) -> Result<Verdict> {
    let reports = run(&tree::workspace_root()?)?;
    match format {
        Format::Human => println!("{}", reports.human()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&reports)?),
    }
    Ok(if reports.ok { Verdict::Passed } else { Verdict::Failed })
}

/// Runs every check, as a step of `cargo xtask test`.
pub fn step(shell: &Shell) -> Outcome {
    match run(shell.root()) {
        Ok(reports) => {
            shell.say(&reports.human());
            match reports.violations() {
                0 => Outcome::Passed,
                count => Outcome::Failed(format!("violations: {count}")),
            }
        }
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Runs every check over the repository at `root`.
pub fn run(root: &Path) -> Result<Reports> {
    let tree = Tree::load(root)?;
    let rust: Vec<RustFile> = tree.with_extension("rs").map(RustFile::of).collect();
    let markdown: Vec<_> = tree.with_extension("md").collect();
    let mut checks = vec![
        rules::check(tree.text(rules::PROTOCOL), &rust, &markdown),
        holes::check(tree.text(holes::HOLES), &rust),
        mutants::check(tree.with_extension("toml"), &rust),
    ];
    checks.iter_mut().for_each(|report| report.violations.sort());
    Ok(Reports { ok: checks.iter().all(|report| report.violations.is_empty()), checks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Violation;

    #[test]
    fn a_violation_fails_the_run() {
        let violations = vec![Violation::new("a.rs", 2, "is wrong")];
        let report = Report { name: "rules", looked_at: "1 file".to_owned(), violations };
        let reports = Reports { ok: report.violations.is_empty(), checks: vec![report] };
        assert!(!reports.ok);
        assert!(reports.human().contains("a.rs:2: is wrong"));
        assert!(reports.human().ends_with("check: violations: 1"));
    }
}
