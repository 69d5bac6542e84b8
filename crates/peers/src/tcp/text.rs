//! A run over TCP as text: aligned for a terminal, or as Markdown for the documentation. Both show the same tables.

use super::plan::Mix;
use super::report::{Spread, TcpCell, TcpReport};
use super::targets::TcpTarget;
use crate::plan::System;
use crate::targets::Bound;
use crate::text::{Table, document, for_terminal, grouped, machine_text, ratio, time};

/// Formats the report for a terminal.
#[must_use]
pub fn tcp_human(report: &TcpReport) -> String {
    for_terminal(&facts(report), &tables(report))
}

/// Formats the report as a Markdown document with the plot `plot` and the command that repeats the run.
#[must_use]
pub fn tcp_markdown(report: &TcpReport, plot: &str, command: &str) -> String {
    let plot = format!("![Operations per second of the server's core]({plot})");
    document("Guira and its peers over TCP", &plot, command, &facts(report), &tables(report))
}

/// The conditions of the run.
fn facts(report: &TcpReport) -> Vec<(&'static str, String)> {
    let programs = report.peers.iter().filter(|peer| peer.name != System::Raw);
    let versions = programs.filter_map(|peer| Some((peer.name.title(), peer.version.as_ref()?)));
    let versions: Vec<String> = versions.map(|(title, version)| format!("{title} {version}")).collect();
    let clients: Vec<String> = report.cores.clients.iter().map(usize::to_string).collect();
    let mut facts = vec![
        ("machine", machine_text(&report.machine)),
        ("cores", format!("servers on processor {}, clients on {}", report.cores.server, clients.join(", "))),
        ("peers", versions.join("; ")),
        (
            "records",
            format!(
                "{} in each, keys of {} bytes, values of {}, {}",
                grouped(report.records),
                report.key_bytes,
                report.value_bytes,
                report.popularity.title()
            ),
        ),
        (
            "method",
            format!(
                "each server has one thread, over TCP on the loopback interface; all series in turn, {} rounds; the \
                 median round, and min..max; a ratio divides figures of the same round; every answer to a client of \
                 ours is checked",
                report.rounds
            ),
        ),
    ];
    facts.extend(report.peers.iter().filter_map(|peer| Some(("missing", peer.missing.clone()?))));
    facts
}

fn tables(report: &TcpReport) -> Vec<Table> {
    let mut tables = vec![targets_table(&report.targets)];
    let mut points: Vec<(Mix, usize, usize)> = Vec::new();
    for cell in &report.cells {
        let point = (cell.mix, cell.depth, cell.connections);
        if !points.contains(&point) {
            points.push(point);
        }
    }
    for (mix, depth, connections) in points {
        let is_here = |cell: &&TcpCell| (cell.mix, cell.depth, cell.connections) == (mix, depth, connections);
        let title = format!("{}, {} on {} each", mix.title(), in_flight(depth), counted(connections));
        tables.push(cells_table(title, report.cells.iter().filter(is_here)));
    }
    tables
}

pub(super) fn in_flight(depth: usize) -> String {
    if depth == 1 { "one operation".to_owned() } else { format!("{depth} operations") }
}

/// The label of a cell: the system and its access mode.
pub(super) fn system_label(cell: &TcpCell) -> String {
    let name = if cell.name == System::Raw { "bare exchange" } else { cell.name.title() };
    format!("{name}, {}", cell.way.title())
}

pub(super) fn counted(connections: usize) -> String {
    if connections == 1 { "1 connection".to_owned() } else { format!("{connections} connections") }
}

fn targets_table(targets: &[TcpTarget]) -> Table {
    let row = |target: &TcpTarget| {
        let bound = if target.bound == Bound::AtLeast { "at least" } else { "at most" };
        let spread =
            |spread: Spread| format!("{} ({}..{})", ratio(spread.median), ratio(spread.min), ratio(spread.max));
        vec![
            target.title.to_owned(),
            target.connections.to_string(),
            target.depth.to_string(),
            format!("{} : {}", target.way.title(), target.peer_way.title()),
            spread(target.measured),
            target.bare.map_or_else(String::new, spread),
            format!("{bound} {}", ratio(target.target)),
            if target.is_met { "met" } else { "missed" }.to_owned(),
        ]
    };
    Table {
        title: "Targets, each side in its best access mode".to_owned(),
        heads: vec![
            "ratio",
            "connections",
            "depth",
            "access mode",
            "measured",
            "a server that does nothing",
            "target",
            "",
        ],
        rows: targets.iter().map(row).collect(),
    }
}

/// Formats the figures of a point, the cheapest for the server first.
fn cells_table<'c>(title: String, cells: impl Iterator<Item = &'c TcpCell>) -> Table {
    let mut cells: Vec<&TcpCell> = cells.collect();
    cells.sort_by(|one, other| other.per_server_second.median.total_cmp(&one.per_server_second.median));
    let row = |cell: &&TcpCell| {
        let number = |number: f64| grouped(number.round() as u64);
        let micros = |ns: f64| format!("{:.1}", ns / 1e3);
        let server = format!("{}..{}", time(cell.server_ns.min), time(cell.server_ns.max));
        vec![
            system_label(cell),
            number(cell.per_server_second.median),
            time(cell.server_ns.median),
            server,
            format!("{:.0} %", 100.0 * cell.server_kernel_share),
            format!("{:.2}", cell.server_sleeps.median),
            number(cell.per_second.median),
            cell.client_ns.map_or_else(String::new, |ns| time(ns.median)),
            micros(cell.p50_ns.median),
            micros(cell.p99_ns.median),
            cell.round_trips.map_or_else(String::new, |trips| format!("{trips:.3}")),
        ]
    };
    Table {
        title,
        heads: vec![
            "system",
            "ops/server core s",
            "server ns/op",
            "min..max",
            "in kernel",
            "sleeps/op",
            "ops/s",
            "client ns/op",
            "p50 us",
            "p99 us",
            "round trips/op",
        ],
        rows: cells.iter().map(row).collect(),
    }
}
