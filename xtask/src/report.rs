//! Output of commands: violations by path and line, the report of one check, and the two output formats.
//!
//! A report always names what was examined, so that a check that examined nothing cannot pass for a clean one.

use std::fmt::{self, Display};

use clap::ValueEnum;
use serde::Serialize;

/// The output format of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines of text.
    Human,
    /// One JSON object on standard output.
    Json,
}

/// The conclusion of a command. An error of the command itself is not a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
}

/// The report of one check: its name, what it examined, and every violation found.
#[derive(Debug, Serialize)]
pub struct Report {
    pub name: &'static str,
    pub looked_at: String,
    pub violations: Vec<Violation>,
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match self.violations.len() {
            0 => "ok".to_owned(),
            count => format!("violations: {count}"),
        };
        write!(f, "{:<8} {found}: {}", self.name, self.looked_at)?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}

/// A broken rule, with its path and line. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Violation {
    pub path: String,
    pub line: usize,
    pub reason: String,
}

impl Violation {
    pub fn new(path: &str, line: usize, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, reason: reason.into() }
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.reason)
    }
}
