//! `guira copy`: copies a table that may be in use, and verifies the copy.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::Instant;

use clap::Args;
use guira::admin::{CopyEvent, CopyOptions, CopyStage, Stat};
use guira::{AdminError, Store, Url};
use serde::Serialize;

use super::owner::{self, Owner};
use super::{Verdict, WaitOptions, dump, open, tls};
use crate::advice::{self, Advised};
use crate::capacity::{self, ExistingRecords, Keys, Need, Precision, Shortfall, Target};
use crate::failure::{Failure, copied_text};
use crate::interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::units::{bytes, counted, per_second, rate, time};

/// Copy all records of a table into another table, and verify the copy.
///
/// The target must exist and be empty; its capacity, entry format and fabric may differ. The source may be in use: the
/// command compares the two tables repeatedly until a whole pass finds no difference. Keys that were removed from the
/// source are removed from the copy, and so are keys that others put into the copy, unless --merge is given.
///
/// If the source keeps changing, each record of the copy is as it was at one moment of the last pass, which stores what
/// differs and reads it back. A pass may miss a key that an insert moves while it is read, so there are at least two
/// then. To move to another table, stop the writers and copy once more with --merge: a pass without a difference shows
/// that the tables are equal. If others change the copy meanwhile, it is not verified, and the exit code is 1.
///
/// A damaged row, or an entry with a damaged value, is reported on standard error; everything else is copied, and the
/// exit code is 3.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The source table.
    pub from: Url,
    /// The target table.
    pub to: Url,
    /// Threads that store records.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Maximum number of comparing passes after the copying pass.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub passes: u16,
    /// Copy into a table that already has records. Records with the same keys are replaced, all others stay; keys that
    /// are removed from the source during the copy may stay, too.
    #[arg(long)]
    pub merge: bool,
    #[command(flatten)]
    pub wait: WaitOptions,
    #[command(flatten)]
    pub owner: Owner,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

#[derive(Serialize)]
struct Answer {
    from: String,
    to: String,
    /// Number of records that the last pass saw.
    records: u64,
    /// Their size in bytes.
    bytes: u64,
    /// Number of records stored in all passes.
    stored: u64,
    /// Number of keys removed from the copy because they were removed from the source.
    removed: u64,
    /// Number of comparing passes.
    passes: u16,
    /// Number of records that had changed since the pass before the last one.
    changed: u64,
    /// Number of records that had another value in the copy right after the last pass stored them.
    overwritten: u64,
    /// Number of source rows that the last pass could not read completely.
    unreadable_rows: u64,
    /// Whether all that the last pass read is in the copy, and no row was unreadable.
    verified: bool,
    elapsed_ns: u64,
    records_per_s: f64,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    interrupt::catch();
    // The named owner is the owner of the target.
    let from = open(&arguments.from, &arguments.wait.options()?.read_only())?;
    let to = arguments.wait.open(&arguments.to)?;
    let before = to.stat()?;
    refuse(arguments, (&from, &to), &before)?;
    let shortfall = warn_if_too_small(arguments, &from.stat()?, &to, &before, output);
    let started = Instant::now();
    let mut view = View::new(output, from.len_estimate()?.entries);
    let copied = from.copy_to(&to, &arguments.options(), &mut |event| view.show(event));
    view.progress = None;
    let report = copied.map_err(|error| arguments.failure(error).advised(shortfall))?;
    let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let answer = Answer {
        from: arguments.from.to_string(),
        to: arguments.to.to_string(),
        records: report.records,
        bytes: report.bytes,
        stored: report.stored,
        removed: report.removed,
        passes: report.passes,
        changed: report.changed,
        overwritten: report.overwritten,
        unreadable_rows: report.unreadable_rows,
        verified: report.is_verified(),
        elapsed_ns,
        records_per_s: per_second(report.stored, elapsed_ns),
    };
    let said = output.answer(&answer, || human(&answer));
    said.map_err(Failure::after(copied_text(answer.stored)))?;
    match answer.unreadable_rows {
        0 if answer.verified => Ok(Verdict::Fine),
        0 => Ok(Verdict::Negative),
        rows => Err(Failure::Unreadable { rows }),
    }
}

/// Refuses a copy of a table into itself, or into one that has records.
fn refuse(arguments: &Arguments, (from, to): (&Store, &Store), before: &Stat) -> Result<(), Failure> {
    let Arguments { from: from_url, to: to_url, merge, .. } = arguments;
    let id = |store: &Store| (store.table().superblock().table, store.table().superblock().incarnation);
    if id(from) == id(to) {
        return Err(Failure::Misuse(format!("{from_url} and {to_url} are the same table; nothing was changed")));
    }
    let entries = before.table.entries;
    if entries > 0 && !merge {
        let records = counted(entries, "record");
        return Err(Failure::Misuse(format!(
            "{to_url} already has {records}: name an empty table, or add to them with --merge; nothing was changed"
        )));
    }
    Ok(())
}

impl Arguments {
    /// Returns the tables that the advice names if the records do not fit.
    pub fn target(&self) -> Target<'_> {
        Target {
            url: &self.to,
            from: Some(&self.from),
            existing: if self.merge { ExistingRecords::Keep } else { ExistingRecords::AlreadyInSource },
        }
    }
}

/// Warns if the records do not fit in the target.
fn warn_if_too_small(
    arguments: &Arguments,
    from: &Stat,
    to: &Store,
    before: &Stat,
    output: &Output,
) -> Option<Shortfall> {
    // Which records another format stores inline is unknown before the copy.
    let extent_bytes = if from.format == before.format { from.table.space.place_bytes } else { 0 };
    let (records, precision) = (from.table.entries, Precision::Exact);
    let need = Need { records, extent_bytes, precision, keys: Keys::Distinct };
    let shortfall =
        capacity::shortfall(&arguments.from.to_string(), need, arguments.target(), to.table().config(), before);
    shortfall.iter().for_each(|shortfall| output.warn(&format!("{}; {}", shortfall.reason, shortfall.remedy)));
    shortfall
}

/// Shows the events of a copy.
struct View<'o> {
    output: &'o Output,
    /// Number of records of the source, about.
    entries: u64,
    stage: Option<CopyStage>,
    progress: Option<Progress>,
    started: Instant,
    /// Unreadable rows that have been reported.
    named: HashSet<u64>,
}

impl<'o> View<'o> {
    fn new(output: &'o Output, entries: u64) -> View<'o> {
        View { output, entries, stage: None, progress: None, started: Instant::now(), named: HashSet::new() }
    }

    /// Shows one event; returns whether the copy goes on.
    fn show(&mut self, event: CopyEvent<'_>) -> ControlFlow<()> {
        match event {
            CopyEvent::Read { stage, records } => self.tick(stage, records),
            CopyEvent::Unreadable { row, part, error }
                if (self.named.len() as u64) < dump::UNREADABLE_SHOWN && self.named.insert(row) =>
            {
                self.output.error(&dump::unreadable("copied", row, part, error));
            }
            _ => {}
        }
        if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn tick(&mut self, stage: CopyStage, records: u64) {
        // Passes begin with the first record.
        if self.stage != Some(stage) || records == 1 {
            let what = match stage {
                CopyStage::Copying => "copying",
                CopyStage::Comparing => "comparing",
                _ => "looking for removed keys",
            };
            self.progress.iter_mut().for_each(Progress::finish);
            self.progress = Some(Progress::new(self.output, what, Some(self.entries)));
            (self.stage, self.started) = (Some(stage), Instant::now());
        }
        let elapsed_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let text = || format!("{}, {}", counted(records, "record"), rate(per_second(records, elapsed_ns)));
        self.progress.iter_mut().for_each(|progress| progress.tick(records, text));
    }
}

impl Arguments {
    fn options(&self) -> CopyOptions {
        let options = CopyOptions::new().threads(self.threads).passes(self.passes);
        if self.merge { options.merge() } else { options }
    }

    fn failure(&self, error: guira::Error) -> Failure {
        match error {
            guira::Error::Admin(AdminError::Copy { doing, copied, source }) => {
                Failure::Copied { doing, source, copied }
            }
            guira::Error::Admin(AdminError::CopyStopped { copied: 0, .. }) => Failure::CopyInterrupted(0),
            guira::Error::Admin(AdminError::CopyStopped { copied, .. }) => {
                let words: Vec<String> =
                    [&self.from, &self.to].map(Url::to_string).into_iter().chain(owner::words()).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let advice = format!("{} continues", advice::guira(Advised::CopyMerge, &words));
                Failure::Advised { source: Box::new(Failure::CopyInterrupted(copied)), advice }
            }
            error => error.into(),
        }
    }
}

fn human(answer: &Answer) -> String {
    let Answer { from, to, records, changed, .. } = answer;
    let copied = format!(
        "copied {} ({} of keys and values) from {from} to {to}\n{}, {}",
        counted(*records, "record"),
        bytes(answer.bytes),
        time(answer.elapsed_ns),
        rate(answer.records_per_s)
    );
    let verdict = match (answer.verified, changed) {
        (true, 0) => "verified: the last pass found no difference".to_owned(),
        (true, changed) => format!(
            "verified: all that the last pass read is in the copy; {} had changed since the pass before, because {from} \
             is in use",
            counted(*changed, "record")
        ),
        (false, _) if answer.overwritten > 0 => format!(
            "not verified: {} in {to} had another value at once: others change it, too",
            counted(answer.overwritten, "record")
        ),
        (false, _) => format!("not verified: {} could not be read", counted(answer.unreadable_rows, "row")),
    };
    format!("{copied}\n{verdict}")
}
