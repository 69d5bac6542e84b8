//! `guira check`.

use clap::Args;
use guira::{CheckReport, OpenOptions, Store, Url};
use serde::Serialize;

use super::{Verdict, open};
use crate::failure::Failure;
use crate::output::Output;
use crate::units::{self, count, counted};

/// Verify every row, checksum, entry, lock, client slot and extent.
///
/// Others may go on working.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
}

#[derive(Serialize)]
struct Answer<'r> {
    url: String,
    clean: bool,
    /// Whether locks and commits of dead clients were looked for: not without write permission.
    knows_the_dead: bool,
    #[serde(flatten)]
    report: &'r CheckReport,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    // Only who may write can ask the kernel which clients are dead, and so which locks wait for a recovery.
    let (store, knows_the_dead) = match Store::open(&arguments.url) {
        Ok(store) => (store, true),
        Err(_) => (open(&arguments.url, &OpenOptions::default().read_only())?, false),
    };
    let report = store.check()?;
    let url = arguments.url.to_string();
    let answer = Answer { url, clean: report.is_clean(), knows_the_dead, report: &report };
    output.answer(&answer, || {
        let unknown = "opened for reading only: whether clients that hold locks are dead cannot be asked";
        let note = if knows_the_dead { "" } else { unknown };
        format!("{}\n{}\n{note}", problems(&report), summary(&answer.url, &report)).trim().to_owned()
    })?;
    Ok(if report.is_clean() { Verdict::Fine } else { Verdict::Negative })
}

/// A line for each problem.
pub fn problems(report: &CheckReport) -> String {
    let mut lines: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    let unshown = report.problems_total - report.problems.len() as u64;
    if unshown > 0 {
        lines.push(format!("and {} more", count(unshown)));
    }
    lines.join("\n")
}

/// The verdict in one line.
pub fn summary(url: &str, report: &CheckReport) -> String {
    let stats = &report.counts;
    let verdict = match report.problems_total {
        0 => "sound".to_owned(),
        problems => format!("DAMAGED, {}", counted(problems, "problem")),
    };
    format!(
        "{url} is {verdict}: {}, {} ({} in extents, {}), {} held, {} taken{}",
        counted(stats.rows, "row"),
        if stats.entries == 1 { "1 entry".to_owned() } else { format!("{} entries", count(stats.entries)) },
        count(stats.extent_entries),
        units::bytes(stats.extent_bytes),
        counted(report.held_locks, "lock"),
        counted(report.used_slots, "client slot"),
        match report.unreferenced_extents {
            0 => String::new(),
            extents => format!(", {} to be swept", counted(extents, "extent")),
        }
    )
}
