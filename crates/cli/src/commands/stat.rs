//! `guira stat`: shows statistics of a table.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use guira::admin::{ClassStats, ClientState, Fabric, FileStat, NodeCounters, NodeStat, SpaceStats, Stat};
use guira::{Store, Url};
use serde::Serialize;

use super::{Verdict, open_options, tls};
use crate::failure::Failure;
use crate::output::{Output, counter_table, fields, table};
use crate::units::{bytes, count, counted, percent, share};
use crate::users;

/// Length of the longest bar in the histogram, in characters.
const BAR_CHARS: u64 = 40;
/// Length of a bar for all places of a class, in characters.
const SHARE_CHARS: u64 = 20;
/// Maximum number of clients listed; JSON has them all.
const CLIENTS_MAX: usize = 20;

/// Show what a table holds and who uses it.
///
/// Reads every row.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

/// The answer in JSON.
#[derive(Serialize)]
struct Answer<'s> {
    #[serde(flatten)]
    stat: &'s Stat,
    /// The counters of the table's memory node since it was started, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_counters: Option<BTreeMap<&'static str, u64>>,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let store = open(&arguments.url)?;
    let (stat, node) = (store.stat()?, store.node_counters()?);
    let node_counters = node.as_ref().map(|node| node.named().into_iter().collect());
    output.answer(&Answer { stat: &stat, node_counters }, || human(&stat, node.as_ref()))?;
    Ok(Verdict::Fine)
}

/// Opens a table for statistics: for changing if permitted, because only then can it be found out which clients are
/// alive, and otherwise for reading. Fails at once if its node is unreachable.
pub fn open(url: &Url) -> Result<Store, Failure> {
    let options = open_options()?.any_owner().reconnect_timeout(Duration::ZERO);
    let opened = Store::open_with(url, &options);
    let opened = opened.or_else(|error| Store::open_with(url, &options.read_only()).map_err(|_| error));
    opened.map_err(Failure::of_table(url))
}

fn human(stat: &Stat, node: Option<&NodeCounters>) -> String {
    let mut parts = vec![overview(stat), histogram(&stat.table.rows_by_occupancy)];
    if !stat.table.space.classes.is_empty() {
        parts.push(places(&stat.table.space));
    }
    if !stat.clients.is_empty() {
        parts.push(clients(stat));
    }
    parts.extend(counter_table("reported by clients", stat.totals.named()));
    parts.extend(node.and_then(|node| counter_table("counted by the memory node since it was started", node.named())));
    parts.join("\n\n")
}

fn overview(stat: &Stat) -> String {
    let held = &stat.table;
    let mut lines = vec![
        ("table", guira::admin::printable(&stat.url)),
        ("format", format!("{}, checksum {}", stat.format, stat.checksum)),
        ("entries", format!("{} of {}: fill {}", count(held.entries), count(held.capacity), percent(held.fill))),
        ("rows", format!("{} of {} entries in {} bytes", count(held.rows), stat.entries_per_row, stat.row_bytes)),
        ("placement", format!("{} in the primary row", percent(share(held.primary_entries, held.entries)))),
    ];
    if held.rows < held.most_rows {
        let (most, each) = (count(held.most_rows), held.rows / held.segments.max(1));
        lines.push(("segments", format!("{} of {} rows; it grows to {most} rows", count(held.segments), count(each))));
    }
    if stat.chunk_bytes > 0 {
        lines.push(("values", values(stat)));
        lines.push(("chunks", chunks(stat)));
        lines.push(("space", space(&stat.table.space)));
    }
    if held.unverified_rows > 0 {
        let rows = counted(held.unverified_rows, "row");
        lines.push(("unread", format!("{rows}, half written or damaged: guira check lists them")));
    }
    lines.push(("clients", clients_in_short(stat)));
    let locks =
        format!("{} of {} bits, each for {} rows", count(stat.physical_locks), stat.lock_bits, stat.rows_per_lock);
    lines.push(("locks", locks));
    lines.extend(stat.region.file().map(|region| ("file", file(region, held.rows < held.most_rows))));
    lines.extend(stat.region.node().map(|region| ("node", memory_node(region))));
    fields(&lines)
}

/// Formats `3 of 1,024, 1 of them stopped, 2 to be recovered`.
fn clients_in_short(stat: &Stat) -> String {
    let number = |state| stat.clients.iter().filter(|client| client.state == state).count();
    let (stopped, unknown) = (number(ClientState::Stopped), number(ClientState::Unknown));
    let living = number(ClientState::Live) + stopped;
    let mut text = format!("{} of {}", living + unknown, count(stat.max_clients.into()));
    if unknown > 0 {
        text.push_str("; only users with write permission can tell whether they are alive");
    }
    if stopped > 0 {
        text.push_str(&format!(", {stopped} of them stopped"));
    }
    match stat.clients.len() - living - unknown {
        0 => {}
        others => text.push_str(&format!(", {others} to be recovered")),
    }
    text
}

fn values(stat: &Stat) -> String {
    let held = &stat.table;
    format!("{} in rows, {} in extents", count(held.inline_entries), count(held.extent_entries))
}

/// Formats `256 of 1.0 MiB: 85 free (66 contiguous), 160 owned by clients, 11 unowned`.
fn chunks(stat: &Stat) -> String {
    let (chunks, space) = (&stat.table.chunks, &stat.table.space);
    let owned = space.owners.iter().map(|owner| owner.chunks).sum();
    let unowned = chunks.in_use().saturating_sub(owned + chunks.damaged);
    let mut parts = vec![match chunks.free {
        0 => "0 free".to_owned(),
        free => format!("{} free ({} contiguous)", count(free), count(space.longest_free_run)),
    }];
    parts.push(format!("{} owned by clients", count(owned)));
    parts.push(format!("{} unowned", count(unowned)));
    if chunks.damaged > 0 {
        parts.push(format!("{} DAMAGED", count(chunks.damaged)));
    }
    format!("{} of {}: {}", count(chunks.free + chunks.in_use()), bytes(stat.chunk_bytes), parts.join(", "))
}

/// Formats `49.3 MiB live, in places of 69.5 MiB (x 1.41), in chunks of 171.0 MiB (x 3.47), of 256.0 MiB`.
fn space(space: &SpaceStats) -> String {
    let (used, mut total) = (bytes(space.used_bytes), bytes(space.total_bytes));
    if space.total_bytes < space.most_bytes {
        total.push_str(&format!(", which grow to {}", bytes(space.most_bytes)));
    }
    if space.live_bytes == 0 {
        return format!("nothing live, in chunks of {used}, of {total}");
    }
    format!(
        "{} live, in places of {} (x {:.2}), in chunks of {used} (x {:.2}), of {total}",
        bytes(space.live_bytes),
        bytes(space.place_bytes),
        space.place_factor,
        space.used_factor,
    )
}

/// Lists each size class with its places and a bar for the share in use; runs of chunks take one line.
fn places(space: &SpaceStats) -> String {
    let mut lines: Vec<(String, ClassStats)> = Vec::new();
    for class in &space.classes {
        match lines.last_mut() {
            Some((_, runs)) if runs.run_chunks > 0 => {
                runs.chunks += class.chunks;
                runs.slots += class.slots;
                runs.used += class.used;
                runs.free += class.free;
            }
            _ if class.run_chunks > 0 => lines.push(("whole chunks".to_owned(), *class)),
            _ => lines.push((bytes(class.place_bytes), *class)),
        }
    }
    let head = ["place", "chunks", "places", "used", "free"].map(str::to_owned).to_vec();
    let rows = lines.iter().map(|(place, class)| {
        let mut row = vec![place.clone()];
        row.extend([class.chunks, class.slots, class.used, class.free].map(count));
        row
    });
    let aligned = table(&[head].into_iter().chain(rows).collect::<Vec<_>>());
    let bars = lines.iter().map(|(_, class)| bar(class.used, class.slots, SHARE_CHARS));
    beside(&aligned, std::iter::once(String::new()).chain(bars))
}

fn file(region: &FileStat, grows: bool) -> String {
    let boot = match region.same_boot {
        Some(false) => ", created before the last boot",
        _ => "",
    };
    let age = age(region.created_unix_ns);
    let (path, mode) = (guira::admin::printable(&region.path), region.mode & 0o777);
    let size = match grows {
        true => format!("{} of {} of addresses", bytes(region.stored_bytes), bytes(region.file_bytes)),
        false => bytes(region.file_bytes),
    };
    let locks =
        region.lock_path.as_ref().map_or(String::new(), |path| format!(", locks in {}", guira::admin::printable(path)));
    format!("{path}, {size}, owner {}, mode {mode:o}, {age} old{boot}{locks}", users::name(region.owner_uid))
}

fn memory_node(region: &NodeStat) -> String {
    let access = if region.read_only { ", read-only for this client" } else { "" };
    let silence = Duration::from_millis(region.session_timeout_ms).as_secs();
    let held = bytes(region.main_bytes + region.device_bytes);
    let fabric = match region.fabric {
        Fabric::Tcp => "over TCP",
        Fabric::Rdma => "over RDMA, which counts no verbs (its network card does: rdma statistic)",
    };
    format!("{} {fabric}{access}, {held}, drops a session after {silence} s of silence", region.peer)
}

/// Formats how long ago a time was, roughly.
pub fn age(unix_ns: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_nanos(unix_ns);
    match SystemTime::now().duration_since(then).unwrap_or_default().as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Draws how many rows have how many entries, as bars.
fn histogram(rows_by_occupancy: &[u64]) -> String {
    let most = rows_by_occupancy.iter().copied().max().unwrap_or(0);
    let head = ["entries".to_owned(), "rows".to_owned()].to_vec();
    let rows = rows_by_occupancy.iter().enumerate().map(|(occupied, rows)| vec![occupied.to_string(), count(*rows)]);
    let aligned = table(&[head].into_iter().chain(rows).collect::<Vec<_>>());
    let bars = rows_by_occupancy.iter().map(|rows| bar(*rows, most, BAR_CHARS));
    beside(&aligned, std::iter::once(String::new()).chain(bars))
}

/// Returns a bar for `part` on a scale where `whole` has `chars` characters; at least one if `part` is not 0.
fn bar(part: u64, whole: u64, chars: u64) -> String {
    let length = (part * chars).checked_div(whole).unwrap_or(0);
    "█".repeat(usize::try_from(length).unwrap_or(0).max(usize::from(part > 0)))
}

/// Appends a bar to each line of text.
fn beside(text: &str, bars: impl Iterator<Item = String>) -> String {
    let lines = text.lines().zip(bars).map(|(line, bar)| format!("{line}  {bar}").trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn clients(stat: &Stat) -> String {
    let head = ["client slot", "process", "state", "open for", "chunks", ""].map(str::to_owned).to_vec();
    let rows = stat.clients.iter().take(CLIENTS_MAX).map(|client| {
        let state = match client.state {
            ClientState::Live => "live",
            ClientState::Stopped => "stopped",
            ClientState::Unknown => "unknown",
            ClientState::Dead => "dead",
            ClientState::Recovering => "recovering",
            _ => "DAMAGED",
        };
        let committing = if client.committing { "committing" } else { "" };
        let (slot, process) = (client.slot.to_string(), client.process.to_string());
        let (age, chunks) = (age(client.since_unix_ns), count(client.chunks));
        vec![slot, process, state.to_owned(), age, chunks, committing.to_owned()]
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
    fn classes_are_listed_and_runs_summed_up() {
        let slots = ClassStats { place_bytes: 192, chunks: 2, slots: 200, used: 50, free: 150, run_chunks: 0 };
        let run = |run_chunks: u32| ClassStats {
            place_bytes: 1 << 20,
            chunks: run_chunks.into(),
            slots: 1,
            used: 1,
            free: 0,
            run_chunks,
        };
        let text = places(&SpaceStats { classes: vec![slots, run(1), run(3)], ..SpaceStats::default() });
        let cells: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[1], ["192", "B", "2", "200", "50", "150", "█████"]);
        assert_eq!(cells[2], ["whole", "chunks", "4", "2", "2", "0", "████████████████████"]);
        assert_eq!(cells.len(), 3);
    }

    #[test]
    fn space_is_one_line() {
        let mut stats = SpaceStats { total_bytes: 4 << 20, used_bytes: 1 << 20, ..SpaceStats::default() };
        assert_eq!(space(&stats), "nothing live, in chunks of 1.0 MiB, of 4.0 MiB");
        (stats.live_bytes, stats.place_bytes) = (512 << 10, 640 << 10);
        (stats.place_factor, stats.used_factor) = (1.25, 2.0);
        let text = "512.0 KiB live, in places of 640.0 KiB (x 1.25), in chunks of 1.0 MiB (x 2.00), of 4.0 MiB";
        assert_eq!(space(&stats), text);
    }

    #[test]
    fn ages_are_rounded() {
        let ago = |seconds| {
            let then = SystemTime::now() - Duration::from_secs(seconds);
            age(then.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
        };
        assert_eq!([90, 600, 7_300, 200_000].map(ago), ["90 s", "10 min", "2 h", "2 days"]);
        assert_eq!(age(u64::MAX), "0 s");
    }
}
