//! What a command says: violations by path and line, the report of one check, and the two output formats.
//!
//! A report always names what was looked at, so that a check that looked at nothing cannot pass for a clean one.

use std::fmt::{self, Display};

use clap::ValueEnum;
use serde::Serialize;

/// How a command prints its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for a reader.
    Human,
    /// One JSON object on standard output.
    Json,
}

/// What a command concluded; an error of the command itself is not a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
}

/// The report of one check: its name, what it looked at, and every violation found.
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
            count => format!("{count} violation{}", plural(count)),
        };
        write!(f, "{:<8} {found}: {}", self.name, self.looked_at)?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}

/// One broken rule at one place. Lines count from 1.
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

/// The ending of a counted noun.
pub fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
