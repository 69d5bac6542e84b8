//! `guira check`: verifies a table, and recovers dead clients.

use clap::Args;
use guira::admin::{Cause, CheckReport, LivingClient, RecoveredClient, RecoveryReport};
use guira::errors::{LockFileProblem, ShmError, SlotLock};
use guira::{Store, Url};
use serde::Serialize;

use super::{Verdict, open, open_options, tls};
use crate::advice::{self, Advised};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::units::{self, count, counted};

/// Verify every row, checksum, entry, lock, client slot and extent.
///
/// The table may be in use. What a dead client left behind is not damage: the next client that needs it recovers it.
/// Nor is a row that a stopped client has half written while it holds the row's lock.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// First recover every dead client: complete the changes it had begun, release its locks, and free its chunks and
    /// its client slot. This is optional, because other clients recover it when they need what it held. Space of values
    /// that it was storing is reclaimed when a client needs space. A stopped client is alive: see guira kick. Then free
    /// the locks that name a client slot the table does not have, which is damage, unless a client is alive.
    #[arg(long)]
    pub repair: bool,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

#[derive(Serialize)]
struct Answer<'r> {
    url: String,
    clean: bool,
    /// Whether locks and commits of dead clients were searched for, which needs write permission.
    knows_the_dead: bool,
    /// The result of `--repair`.
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<RecoveryReport>,
    /// A file lock on client slots that is held by a process without a client, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_lock: Option<SlotLock>,
    /// The reason why the table cannot be opened for changing, if its lock file is missing, damaged or another table's.
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_file: Option<String>,
    #[serde(flatten)]
    report: &'r CheckReport,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    // Only with write permission can the kernel be asked which clients are dead, and so which locks need a recovery.
    // Any owner will do, because the command puts no data into the table.
    let options = open_options()?.any_owner();
    let (store, knows_the_dead, lock_file) = match Store::open_with(&arguments.url, &options) {
        Ok(store) => {
            let may_write = !store.is_read_only();
            (store, may_write, None)
        }
        Err(error) if arguments.repair => return Err(Failure::of_table(&arguments.url)(error)),
        Err(error) => (open(&arguments.url, &options.read_only())?, false, lost_lock_file(&error)),
    };
    let repair = if arguments.repair { Some(recover(&store, output)?) } else { None };
    let is_repaired = repair.as_ref().is_none_or(|repair| repair.failed.is_empty() && repair.damaged_locks.is_empty());
    let report = store.check()?;
    let url = arguments.url.to_string();
    let slot_lock = store.slot_lock()?;
    let is_open = slot_lock.is_none() && lock_file.is_none();
    let answer =
        Answer { url, clean: report.is_clean(), knows_the_dead, repair, slot_lock, lock_file, report: &report };
    output.answer(&answer, || {
        let unknown = "opened for reading only: cannot tell whether clients that hold locks are dead";
        let note = if knows_the_dead { "" } else { unknown };
        let repaired = answer.repair.as_ref().map_or(String::new(), |repair| repairs(&arguments.url, repair));
        let reason = answer.slot_lock.as_ref().map(ToString::to_string).or_else(|| answer.lock_file.clone());
        let blocked = reason.map_or(String::new(), |reason| format!("BLOCKED: {reason}"));
        let lines = [repaired, problems(&report), summary(&answer.url, &report), blocked, note.to_owned()];
        lines.iter().filter(|lines| !lines.is_empty()).map(String::as_str).collect::<Vec<_>>().join("\n")
    })?;
    Ok(if report.is_clean() && is_repaired && is_open { Verdict::Fine } else { Verdict::Negative })
}

/// Returns why a table cannot be opened for changing, if the cause is its lock file and not this user's permissions.
fn lost_lock_file(error: &guira::Error) -> Option<String> {
    match error {
        guira::Error::Open(guira::OpenError::Region(ShmError::LockFile {
            problem: LockFileProblem::Forbidden { .. },
            ..
        })) => None,
        guira::Error::Open(guira::OpenError::Region(ShmError::LockFile { .. })) => {
            Some(error.to_string().replace("; nothing was changed", ""))
        }
        _ => None,
    }
}

fn recover(store: &Store, output: &Output) -> Result<RecoveryReport, Failure> {
    let mut progress = Progress::new(output, "recovering", None);
    let repair = store.recover(&mut |done, total| {
        progress.set_total(total);
        progress.tick(done, || format!("{} of {}", count(done), counted(total, "client slot")));
    });
    progress.finish();
    Ok(repair?)
}

/// Returns a line for each client that was recovered, could not be recovered, or is stopped, and a total.
fn repairs(url: &Url, repair: &RecoveryReport) -> String {
    let mut lines: Vec<String> = repair
        .recovered
        .iter()
        .map(|client| format!("client slot {} (process {}): {}", client.slot, client.process, left(client)))
        .collect();
    lines.extend(
        repair.failed.iter().map(|client| format!("client slot {}: NOT RECOVERED: {}", client.slot, client.reason)),
    );
    lines.extend(repair.living.iter().filter(|client| client.stopped || client.frozen).map(|client| {
        let (slot, process) = (client.slot, client.process);
        let middle = match client {
            LivingClient { recovering: true, .. } => " while recovering a dead client",
            LivingClient { committing: true, .. } => ", in the middle of a change",
            _ => "",
        };
        let (how, advice) = match client.frozen {
            true => ("frozen with its control group", "thaw it, or kill it with kill -9".to_owned()),
            false => ("stopped", format!("{} kills it", advice::kick(url, slot, process))),
        };
        format!("client slot {slot} (process {process}): {how}{middle}, but alive, so it keeps what it holds; {advice}")
    }));
    let dead = match repair.recovered.len() as u64 {
        0 if repair.failed.is_empty() => "no dead clients".to_owned(),
        recovered => format!("{} recovered", counted(recovered, "dead client")),
    };
    let unseen = match repair.living.iter().filter(|client| client.unseen).count() as u64 {
        0 => String::new(),
        unseen => format!(
            ", {} of them in other containers or hosts, or hidden from this user: unknown whether stopped",
            count(unseen)
        ),
    };
    lines.push(format!("{dead}, {} alive{unseen}", counted(repair.living.len() as u64, "client")));
    lines.extend(damaged_locks(url, repair));
    lines.join("\n")
}

/// Describes the locks that name a nonexistent client slot, if there were any.
fn damaged_locks(url: &Url, repair: &RecoveryReport) -> Option<String> {
    let damaged =
        |locks: &[u64]| format!("{} of client slots that the table does not have", counted(locks.len() as u64, "lock"));
    match (&repair.freed_locks[..], &repair.damaged_locks[..]) {
        ([], []) => None,
        (freed, []) => Some(format!("{} freed", damaged(freed))),
        (_, kept) => Some(format!(
            "{} NOT FREED, because a living client may hold them; close all clients ({} lists them) and repair \
             again",
            damaged(kept),
            advice::guira(Advised::Stat, &[&url.to_string()])
        )),
    }
}

/// Describes what the recovery of a dead client did.
pub fn left(client: &RecoveredClient) -> String {
    let mut parts = Vec::new();
    if client.replayed_rows > 0 {
        let torn = if client.torn_rows > 0 { ", half written".to_owned() } else { String::new() };
        parts.push(format!("a change of {} completed{torn}", counted(client.replayed_rows, "row")));
    }
    if client.locks > 0 {
        parts.push(format!("{} released", counted(client.locks, "lock")));
    }
    if client.chunks > 0 {
        parts.push(format!("{} freed", counted(client.chunks, "chunk")));
    }
    if parts.is_empty() {
        parts.push("it held only its slot".to_owned());
    }
    if client.was_begun {
        parts.push("taken over from a recovering client that died".to_owned());
    }
    parts.join(", ")
}

/// Returns a line for each problem, and for each change that a client left or has not finished.
pub fn problems(report: &CheckReport) -> String {
    let unshown = |what: &str, total: u64, shown: usize| match total - shown as u64 {
        0 => None,
        unshown => Some(format!("and {} more {what}", count(unshown))),
    };
    let mut lines: Vec<String> = report.problems.iter().map(|problem| format!("DAMAGED: {problem}")).collect();
    lines.extend(unshown("problems", report.problems_total, report.problems.len()));
    lines.extend(report.under_way.iter().map(|left| match left.cause {
        Cause::DeadClient => format!("to be recovered: {left}"),
        _ => format!("in the middle of a change: {left}"),
    }));
    lines.extend(unshown("that are not damage", report.under_way_total, report.under_way.len()));
    lines.join("\n")
}

/// Returns the verdict in one line.
pub fn summary(url: &str, report: &CheckReport) -> String {
    let stats = &report.counts;
    let verdict = match (report.problems_total, report.dead_clients, report.under_way_total) {
        (0, 0, 0) => "sound".to_owned(),
        (0, 0, changes) => format!("sound, except for {} that stopped clients have begun", counted(changes, "change")),
        (0, dead, _) => {
            let repair = advice::guira(Advised::CheckRepair, &[url]);
            format!("sound, with {} to recover ({repair})", counted(dead, "dead client"))
        }
        (problems, ..) => format!("DAMAGED, {}", counted(problems, "problem")),
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
            extents => format!(", {} to be reclaimed", counted(extents, "extent")),
        } + &match stats.unverified_rows {
            0 => String::new(),
            rows => format!("; the entries of {} that cannot be read are not counted", counted(rows, "row")),
        }
    )
}
