//! `guira stat`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use guira::{ClientState, OpenOptions, Stat, Store, Url};

use super::Verdict;
use crate::failure::Failure;
use crate::output::{Output, fields, table};
use crate::units::{bytes, count, percent, share};

/// Characters of the longest bar in the histogram.
const BAR_CHARS: u64 = 40;
/// Clients that are listed; JSON has them all.
const CLIENTS_MAX: usize = 20;

/// Say what a table holds and who uses it.
///
/// Reads every row.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let stat = open(&arguments.url)?.stat()?;
    output.answer(&stat, || human(&stat))?;
    Ok(Verdict::Fine)
}

/// Only a store that may write can ask whether a client lives; a table that may only be read still has a stat.
fn open(url: &Url) -> Result<Store, Failure> {
    let opened = Store::open(url);
    let opened = opened.or_else(|error| Store::open_with(url, &OpenOptions::default().read_only()).map_err(|_| error));
    opened.map_err(Failure::of_table(url))
}

fn human(stat: &Stat) -> String {
    let mut parts = vec![overview(stat), histogram(&stat.table.rows_by_occupancy)];
    if !stat.clients.is_empty() {
        parts.push(clients(stat));
    }
    parts.join("\n\n")
}

fn overview(stat: &Stat) -> String {
    let held = &stat.table;
    let mut lines = vec![
        ("table", stat.url.clone()),
        ("format", format!("{}, checksum {}", stat.format, stat.checksum)),
        ("entries", format!("{} of {}: fill {}", count(held.entries), count(held.capacity), percent(held.fill))),
        ("rows", format!("{} of {} entries in {} bytes", count(held.rows), stat.entries_per_row, stat.row_bytes)),
        ("placement", format!("{} in the primary row", percent(share(held.primary_entries, held.entries)))),
    ];
    if stat.chunk_bytes > 0 {
        lines.push(("values", values(stat)));
        lines.push(("extents", extents(stat)));
    }
    if held.unverified_rows > 0 {
        lines.push(("DAMAGED", format!("{} rows do not verify: see guira check", count(held.unverified_rows))));
    }
    let live = stat.clients.iter().filter(|client| client.state == ClientState::Live).count();
    let others = stat.clients.len() - live;
    let others = if others == 0 { String::new() } else { format!(", {others} to be cleaned up") };
    lines.push(("clients", format!("{live} of {}{others}", count(stat.max_clients.into()))));
    let locks =
        format!("{} of {} bits, each for {} rows", count(stat.physical_locks), stat.lock_bits, stat.rows_per_lock);
    lines.push(("locks", locks));
    lines.push(("file", file(stat)));
    fields(&lines)
}

fn values(stat: &Stat) -> String {
    let held = &stat.table;
    format!(
        "{} in rows, {} in extents ({})",
        count(held.inline_entries),
        count(held.extent_entries),
        bytes(held.extent_bytes)
    )
}

fn extents(stat: &Stat) -> String {
    let chunks = &stat.table.chunks;
    let used = chunks.owned + chunks.orphan + chunks.tail;
    let damaged = if chunks.damaged == 0 { String::new() } else { format!(", {} DAMAGED", count(chunks.damaged)) };
    format!(
        "{} chunks of {}: {} free, {} in use{damaged}",
        count(chunks.free + used + chunks.damaged),
        bytes(stat.chunk_bytes),
        count(chunks.free),
        count(used)
    )
}

fn file(stat: &Stat) -> String {
    let region = &stat.region;
    let boot = match region.same_boot {
        Some(false) => ", made before the machine was started",
        _ => "",
    };
    let age = age(region.created_unix_ns);
    format!("{}, {}, mode {:o}, {age} old{boot}", region.path, bytes(region.file_bytes), region.mode & 0o777)
}

/// How long ago that was, roughly.
fn age(unix_ns: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_nanos(unix_ns);
    match SystemTime::now().duration_since(then).unwrap_or_default().as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// How many rows have how many entries, as bars.
fn histogram(rows_by_occupancy: &[u64]) -> String {
    let most = rows_by_occupancy.iter().copied().max().unwrap_or(0);
    let bar = |rows: u64| {
        let length = (rows * BAR_CHARS).checked_div(most).unwrap_or(0);
        "█".repeat(usize::try_from(length).unwrap_or(0).max(usize::from(rows > 0)))
    };
    let head = ["entries".to_owned(), "rows".to_owned()].to_vec();
    let rows = rows_by_occupancy.iter().enumerate().map(|(occupied, rows)| vec![occupied.to_string(), count(*rows)]);
    let aligned = table(&[head].into_iter().chain(rows).collect::<Vec<_>>());
    let bars = std::iter::once(String::new()).chain(rows_by_occupancy.iter().map(|rows| bar(*rows)));
    let lines = aligned.lines().zip(bars).map(|(line, bar)| format!("{line}  {bar}").trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn clients(stat: &Stat) -> String {
    let head = ["client slot", "process", "state", "open for", ""].map(str::to_owned).to_vec();
    let rows = stat.clients.iter().take(CLIENTS_MAX).map(|client| {
        let state = match client.state {
            ClientState::Live => "live",
            ClientState::Dead => "dead",
            ClientState::Recovering => "recovering",
            _ => "DAMAGED",
        };
        let committing = if client.committing { "committing" } else { "" };
        let (slot, process) = (client.slot.to_string(), client.process.to_string());
        vec![slot, process, state.to_owned(), age(client.since_unix_ns), committing.to_owned()]
    });
    let mut text = table(&[head].into_iter().chain(rows).collect::<Vec<_>>());
    if stat.clients.len() > CLIENTS_MAX {
        text.push_str(&format!("\nand {} more", stat.clients.len() - CLIENTS_MAX));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion() {
        let text = histogram(&[100, 0, 1, 50]);
        let bars: Vec<usize> = text.lines().skip(1).map(|line| line.matches('█').count()).collect();
        assert_eq!(bars, [40, 0, 1, 20]);
        assert_eq!(histogram(&[]), "entries  rows");
        assert_eq!(histogram(&[0]).lines().count(), 2);
    }

    #[test]
    fn ages_are_rough() {
        let ago = |seconds| {
            let then = SystemTime::now() - Duration::from_secs(seconds);
            age(then.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
        };
        assert_eq!([90, 600, 7_300, 200_000].map(ago), ["90 s", "10 min", "2 h", "2 days"]);
        assert_eq!(age(u64::MAX), "0 s");
    }
}
