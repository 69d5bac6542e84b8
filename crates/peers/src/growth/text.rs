//! A run as text: aligned for a terminal, or as Markdown for the documentation. Both show the same tables.

use super::afterwards::{AfterGrowth, Costs, TableCosts};
use super::report::{Curve, GrowthRatio, GrowthReport};
use crate::text::{Table, document, for_terminal, grouped, machine_text, time};

/// Formats the report for a terminal.
#[must_use]
pub fn growth_human(report: &GrowthReport) -> String {
    for_terminal(&facts(report), &tables(report))
}

/// Formats the report as a Markdown document with the plot `plot` and the command that repeats the run.
#[must_use]
pub fn growth_markdown(report: &GrowthReport, plot: &str, command: &str) -> String {
    let plot = format!("![Inserts a second, by the number of keys]({plot})");
    document("Guira and its peers while they grow", &plot, command, &facts(report), &tables(report))
}

/// The conditions of the run.
fn facts(report: &GrowthReport) -> Vec<(&'static str, String)> {
    let versions = report.peers.iter().filter_map(|peer| Some((peer.name.title(), peer.version.as_ref()?)));
    let versions: Vec<String> = versions.map(|(title, version)| format!("{title} {version}")).collect();
    let mut facts = vec![
        ("machine", machine_text(&report.machine)),
        ("peers", versions.join("; ")),
        (
            "keys",
            format!(
                "{} of 8 bytes with values of 8 bytes, into tables that are made for {}; those of fixed size are made \
                 for all, and Redis for none",
                grouped(report.keys),
                grouped(report.first)
            ),
        ),
        (
            "method",
            format!(
                "{} clients at the same time: processes of Guira, threads of dashmap, connections to Redis; windows \
                 of 100 ms in which all of them insert; one insert in 8 is timed; where clients are killed, one every \
                 {} ms, which another one replaces; every key that was acknowledged is looked up in the end, of Redis \
                 one in 61; then up to 4 million gets of one client are timed; for the last table, operations of one \
                 client on both tables in turn, the median of 5 rounds",
                report.clients, report.kill_every_ms
            ),
        ),
    ];
    facts.extend(report.peers.iter().filter_map(|peer| Some(("missing", peer.missing.clone()?))));
    facts
}

fn tables(report: &GrowthReport) -> Vec<Table> {
    let ratios = Table {
        title: "A table that grows, as a part or a multiple of one of fixed size".to_owned(),
        heads: vec![
            "",
            "inserts a second",
            "slowest window : median",
            "at least 0.5",
            "at the same number of keys",
            "the least",
            "p99.9",
            "at most 10",
            "memory",
        ],
        rows: report.ratios.iter().map(ratio_row).collect(),
    };
    let curves = Table {
        title: "Inserts".to_owned(),
        heads: vec![
            "system",
            "million/s",
            "median window",
            "slowest window",
            "p50, ns",
            "p99.9, ns",
            "most, ns",
            "get, ns",
            "bytes a key",
            "killed",
            "problems",
        ],
        rows: report.curves.iter().map(curve_row).collect(),
    };
    let compared = report.curves.iter().find_map(|curve| curve.after_growth.as_ref());
    let after_growth = Table {
        title: "The table that has grown, beside one that was created for all keys and can grow".to_owned(),
        heads: vec!["table", "capacity", "full", "get, ns", "get of 32, ns a key", "put, ns"],
        rows: compared.map_or_else(Vec::new, after_growth_rows),
    };
    [ratios, curves, after_growth].into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn ratio_row(ratio: &GrowthRatio) -> Vec<String> {
    let met = |is_met: bool| if is_met { "met" } else { "missed" }.to_owned();
    vec![
        ratio.series.title().to_owned(),
        format!("{:.2}", ratio.per_second),
        format!("{:.2}", ratio.slowest_window),
        met(ratio.slowest_window_is_met),
        format!("{:.2}", ratio.at_same_keys),
        format!("{:.2}", ratio.least_at_same_keys),
        format!("{:.1}", ratio.p999),
        met(ratio.p999_is_met),
        format!("{:.2}", ratio.bytes),
    ]
}

fn after_growth_rows(compared: &AfterGrowth) -> Vec<Vec<String>> {
    let row = |title: &str, table: &TableCosts| {
        let Costs { get_ns, get_many_ns, put_ns } = table.costs;
        let [get, get_many, put] = [get_ns, get_many_ns, put_ns].map(time);
        vec![title.to_owned(), grouped(table.capacity), format!("{:.0} %", table.fill * 100.0), get, get_many, put]
    };
    let Costs { get_ns, get_many_ns, put_ns } = compared.ratios;
    let [get, get_many, put] = [get_ns, get_many_ns, put_ns].map(|ratio| format!("{ratio:.2}"));
    let room = compared.grown.capacity as f64 / compared.created.capacity as f64;
    let ratios = vec!["grown : created".to_owned(), format!("{room:.2}"), String::new(), get, get_many, put];
    vec![row("grown", &compared.grown), row("created", &compared.created), ratios]
}

fn curve_row(curve: &Curve) -> Vec<String> {
    let millions = |per_second: f64| format!("{:.2}", per_second / 1e6);
    vec![
        curve.series.title().to_owned(),
        millions(curve.per_second),
        millions(curve.median_per_second),
        millions(curve.slowest_per_second),
        time(curve.p50_ns),
        time(curve.p999_ns),
        time(curve.most_ns),
        time(curve.get_ns),
        format!("{:.0}", curve.bytes_per_key),
        curve.kills.to_string(),
        curve.problems.map_or_else(|| "-".to_owned(), |problems| problems.to_string()),
    ]
}
