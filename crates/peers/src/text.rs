//! The report as text: aligned for a terminal, or as Markdown for the documentation. Both show the same tables.

use crate::draws::Popularity;
use crate::machine::Machine;
use crate::measure::Task;
use crate::plan::{Placement, System};
use crate::record::WORD_BYTES;
use crate::run::{Cell, Report};
use crate::targets::{Bound, Target};

/// A table: a title, column headings, and rows with one cell for each column.
pub struct Table {
    /// The title.
    pub title: String,
    /// Column headings.
    pub heads: Vec<&'static str>,
    /// Rows of cells.
    pub rows: Vec<Vec<String>>,
}

/// Formats the report for a terminal.
#[must_use]
pub fn human(report: &Report) -> String {
    for_terminal(&facts(report), &tables(report))
}

/// Formats the report as a Markdown document with the plot `plot` and the command that repeats the run.
#[must_use]
pub fn markdown(report: &Report, plot: &str, command: &str) -> String {
    let plot = format!("![Nanoseconds per operation]({plot})");
    document("Guira and its peers", &plot, command, &facts(report), &tables(report))
}

/// Formats the conditions of a run and its tables for a terminal.
pub fn for_terminal(facts: &[(&str, String)], tables: &[Table]) -> String {
    let facts: Vec<String> = facts.iter().map(|(name, text)| format!("{name:<9} {text}")).collect();
    let tables = tables.iter().map(|table| format!("{}\n{}", table.title, aligned(table)));
    std::iter::once(facts.join("\n")).chain(tables).collect::<Vec<_>>().join("\n\n")
}

/// Formats the same as a Markdown document with a title, a plot, and the command that repeats the run.
pub fn document(title: &str, plot: &str, command: &str, facts: &[(&str, String)], tables: &[Table]) -> String {
    let mut text =
        format!("# {title}\n\nOne run on one machine, written by the command\n\n```sh\n{command}\n```\n\n{plot}\n\n");
    facts.iter().for_each(|(name, fact)| text += &format!("- {name}: {fact}\n"));
    tables.iter().for_each(|table| text += &in_markdown(table));
    text
}

/// Formats a table with a heading in Markdown.
fn in_markdown(table: &Table) -> String {
    let mut text = format!("\n## {}\n\n", table.title);
    text += &format!("| {} |\n", table.heads.join(" | "));
    text += &format!("|---|{}\n", "---:|".repeat(table.heads.len() - 1));
    for row in &table.rows {
        text += &format!("| {} |\n", row.join(" | "));
    }
    text
}

/// The conditions of the run.
fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let machine = &report.machine;
    let peers: Vec<String> = report
        .peers
        .iter()
        .filter_map(|peer| {
            let version = peer.version.as_ref().filter(|_| !matches!(peer.name, System::Guira | System::Raw))?;
            Some(format!("{} {version}", peer.name.title()))
        })
        .collect();
    let stages: Vec<String> = report
        .stages
        .iter()
        .map(|stage| {
            let fill = stage.fill.map_or(String::new(), |fill| format!(" ({:.1} % full)", 100.0 * fill));
            format!("{} of {} bytes{fill}", grouped(stage.records), grouped(stage.value_bytes as u64))
        })
        .collect();
    let mut facts = vec![
        ("machine", machine_text(machine)),
        ("peers", format!("Guira {}; {}", report.version, peers.join("; "))),
        ("records", format!("keys of {} bytes; values: {}", report.key_bytes, stages.join("; "))),
        (
            "method",
            format!(
                "all series in turn, {} rounds after a warm-up; the median round, and min..max; every answer is \
                 checked; the rate of two clients is their sum",
                report.rounds
            ),
        ),
    ];
    let missing = report.peers.iter().filter_map(|peer| Some(("missing", peer.missing.clone()?)));
    facts.extend(missing);
    facts
}

/// Describes a machine in one line.
pub fn machine_text(machine: &Machine) -> String {
    format!(
        "{}, {} cores, {:.1} GiB, pages of {} KiB, huge pages {} (memory files: {}), {}Linux {}",
        machine.processor,
        machine.cores,
        machine.memory_bytes as f64 / f64::from(1 << 30),
        machine.page_bytes >> 10,
        machine.huge_pages,
        machine.shared_huge_pages,
        if machine.malloc.is_empty() { String::new() } else { format!("{}, ", machine.malloc) },
        machine.kernel
    )
}

fn tables(report: &Report) -> Vec<Table> {
    let mut tables = vec![targets_table(&report.targets)];
    for popularity in [Popularity::Uniform, Popularity::Zipf] {
        for clients in [1, 2] {
            for task in Task::ALL {
                let title = format!("{}, {}, {}", task.title(), popularity.title(), clients_title(clients));
                let is_in = |cell: &&Cell| {
                    cell.value_bytes == WORD_BYTES
                        && (cell.popularity, cell.clients, cell.task) == (popularity, clients, task)
                };
                tables.push(times_table(title, report.cells.iter().filter(is_in)));
            }
        }
    }
    for stage in report.stages.iter().filter(|stage| stage.value_bytes != WORD_BYTES) {
        for (task, name) in [(Task::Get, "get"), (Task::Update, "update")] {
            let title = format!("{name} of {} bytes, uniform, one client", grouped(stage.value_bytes as u64));
            let is_in = |cell: &&Cell| (cell.value_bytes, cell.task) == (stage.value_bytes, task);
            tables.push(times_table(title, report.cells.iter().filter(is_in)));
        }
    }
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn clients_title(clients: u8) -> &'static str {
    if clients == 1 { "one client" } else { "two at once" }
}

fn targets_table(targets: &[Target]) -> Table {
    let row = |target: &Target| {
        let bound = match target.bound {
            Bound::AtLeast => "at least",
            Bound::AtMost => "at most",
        };
        let met = if target.is_met { "met" } else { "not met" };
        let (measured, limit) = (ratio(target.measured), ratio(target.target));
        vec![
            target.title.to_owned(),
            target.popularity.title().to_owned(),
            measured,
            format!("{bound} {limit}"),
            met.to_owned(),
        ]
    };
    Table {
        title: "Targets, with one client, and values of 8 bytes unless said otherwise".to_owned(),
        heads: vec!["ratio", "keys", "measured", "target", ""],
        rows: targets.iter().map(row).collect(),
    }
}

/// Formats times, fastest first, each with its ratio to Guira's.
fn times_table<'c>(title: String, cells: impl Iterator<Item = &'c Cell>) -> Table {
    let mut cells: Vec<&Cell> = cells.collect();
    cells.sort_by(|one, other| one.median_ns.total_cmp(&other.median_ns));
    let guira = cells.iter().find(|cell| cell.name == System::Guira).map(|cell| cell.median_ns);
    let row = |cell: &&Cell| {
        let against = guira.map_or(String::new(), |guira| ratio(cell.median_ns / guira));
        let spread = format!("{}..{}", time(cell.min_ns), time(cell.max_ns));
        vec![label(cell), time(cell.median_ns), spread, grouped((1e9 / cell.median_ns) as u64), against]
    };
    Table {
        title,
        heads: vec!["system", "ns/operation", "min..max", "operations/s", "Guira = 1"],
        rows: cells.iter().map(row).collect(),
    }
}

/// The label of a cell: the system, its access mode and its placement.
pub fn label(cell: &Cell) -> String {
    let mut text = cell.name.title().to_owned();
    if !cell.variant.is_empty() {
        text += &format!(", {}", cell.variant);
    }
    if cell.placement != Placement::Anywhere {
        text += &format!(", {}", cell.placement.title());
    }
    text
}

/// Formats a table for a terminal.
fn aligned(table: &Table) -> String {
    let heads = table.heads.iter().map(|head| (*head).to_owned()).collect();
    let rows: Vec<&Vec<String>> = std::iter::once(&heads).chain(&table.rows).collect();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..table.heads.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("  {cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats nanoseconds with at least three significant digits.
pub fn time(ns: f64) -> String {
    match ns {
        _ if ns < 100.0 => format!("{ns:.1}"),
        _ => grouped(ns.round() as u64),
    }
}

/// Formats a ratio with two or three significant digits.
pub fn ratio(ratio: f64) -> String {
    match ratio {
        _ if ratio < 10.0 => format!("{ratio:.2}"),
        _ if ratio < 100.0 => format!("{ratio:.1}"),
        _ => grouped(ratio.round() as u64),
    }
}

/// Formats a number with groups of digits: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_significant_digits() {
        assert_eq!([7.25, 99.94, 123.4, 12_345.6].map(time), ["7.2", "99.9", "123", "12,346"]);
        assert_eq!([0.854, 9.99, 12.34, 123.4, 1234.4].map(ratio), ["0.85", "9.99", "12.3", "123", "1,234"]);
    }
}
