//! `guira doctor`: checks what a table, or RDMA, needs of this machine.

use clap::Args;
use guira::Url;
use guira::admin::{CheckState, DoctorCheck, DoctorOptions, DoctorReport, doctor, printable};
use serde::Serialize;

use super::{Verdict, open_options, tls};
use crate::failure::Failure;
use crate::output::{Output, fields};
use crate::units::{counted, parse_bytes};

/// Check what is needed to reach a table, and say what helps.
///
/// With a URL, checks what this table needs of this machine and of the way to it, and opens it. Without one, checks
/// whether this machine can use RDMA, as a client and to serve a table, and shared memory. Every check is a line: fine,
/// missing (it does not exist, or is too small), failed (it exists and does not work), or not needed. The exit code is
/// 1 if anything that is needed is not fine; so it is 1 without a URL on a machine without RDMA. Nothing is changed,
/// and no client slot is taken.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table. Without it, RDMA and shared memory of this machine are checked.
    pub url: Option<Url>,
    /// Also check that this machine can hold a region of this size in shared memory, and serve it over RDMA: 64MiB,
    /// 4GiB.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub serve: Option<u64>,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

#[derive(Serialize)]
struct Answer<'r> {
    url: Option<String>,
    fine: bool,
    #[serde(flatten)]
    report: &'r DoctorReport,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let options = DoctorOptions::new().open_options(open_options()?);
    let options = arguments.url.iter().cloned().fold(options, DoctorOptions::url);
    let report = doctor(&arguments.serve.into_iter().fold(options, DoctorOptions::serve_bytes));
    let url = arguments.url.as_ref().map(Url::to_string);
    output.answer(&Answer { url, fine: report.is_fine(), report: &report }, || human(&report))?;
    Ok(if report.is_fine() { Verdict::Fine } else { Verdict::Negative })
}

fn human(report: &DoctorReport) -> String {
    let named: Vec<(String, &DoctorCheck)> = report.checks.iter().map(|check| (name(check), check)).collect();
    let width = named.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for (name, check) in named {
        lines.push((state(check.state), format!("{name:<width$}  {}", printable(&check.detail))));
        if let Some(help) = &check.help {
            lines.push(("", format!("{:<width$}  -> {}", "", printable(help))));
        }
    }
    format!("{}\n{}", fields(&lines), summary(report))
}

/// Returns the name of a check, with the device that it is about. The table is the one that was asked for.
fn name(check: &DoctorCheck) -> String {
    match &check.subject {
        Some(subject) if !subject.contains("://") => format!("{subject}: {}", check.name),
        _ => check.name.to_owned(),
    }
}

fn state(state: CheckState) -> &'static str {
    match state {
        CheckState::Fine => "fine",
        CheckState::Missing => "missing",
        CheckState::Failed => "failed",
        CheckState::NotNeeded => "not needed",
    }
}

fn summary(report: &DoctorReport) -> String {
    let needed: Vec<&DoctorCheck> = report.checks.iter().filter(|check| check.state != CheckState::NotNeeded).collect();
    let bad = needed.iter().filter(|check| check.state != CheckState::Fine).count() as u64;
    match bad {
        0 => "all that is needed is fine".to_owned(),
        bad => {
            let verb = if bad == 1 { "is" } else { "are" };
            format!("{bad} of {} {verb} not fine", counted(needed.len() as u64, "needed check"))
        }
    }
}
