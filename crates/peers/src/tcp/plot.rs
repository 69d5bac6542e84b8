//! A run over TCP as a plot: bars of operations per second of the server's core, reads on the left, YCSB-A on the
//! right. Each group has a linear scale of its own, because groups differ in the number of operations in flight.

use super::plan::Mix;
use super::report::{TcpCell, TcpReport};
use super::text::{counted, in_flight, system_label};
use crate::plan::System;
use crate::plot::{BAR, COLUMN_GAP, COLUMN_WIDTH, FOOT, MARGIN, ROW, TOP, colour, escaped, framed, heading};
use crate::text::grouped;

/// Width of the column of names, behind which the bars begin.
const NAMES_WIDTH: f64 = 210.0;
/// Width reserved for the figure after the longest bar.
const FIGURE_WIDTH: f64 = 150.0;
const BARS_WIDTH: f64 = COLUMN_WIDTH - NAMES_WIDTH - FIGURE_WIDTH;
const GROUP_HEAD: f64 = 30.0;
const GROUP_FOOT: f64 = 18.0;

/// Draws the plot as SVG.
#[must_use]
pub fn tcp_svg(report: &TcpReport) -> String {
    let columns = Mix::ALL.map(|mix| groups(report, mix));
    let column_height = |groups: &Vec<Vec<&TcpCell>>| groups.iter().map(|group| group_height(group)).sum::<f64>();
    let height = TOP + columns.iter().map(column_height).fold(0.0, f64::max) + FOOT;
    let mut out = framed("Operations per second of the server's core: Guira and its peers over TCP", height);
    head(&mut out, report);
    let mut x = MARGIN;
    for groups in &columns {
        let mut y = TOP;
        for group in groups {
            draw(&mut out, group, (x, y));
            y += group_height(group);
        }
        x += COLUMN_WIDTH + COLUMN_GAP;
    }
    out + "</svg>\n"
}

fn head(out: &mut String, report: &TcpReport) {
    let what = format!(
        "{} records, keys of {} bytes, values of {}, {}; median of {} interleaved rounds",
        grouped(report.records),
        report.key_bytes,
        report.value_bytes,
        report.popularity.title(),
        report.rounds
    );
    heading(out, "Operations per second of the server's core, over TCP (longer is better)", &what, &report.machine);
}

/// The cells of a mix, grouped by point, the best first.
fn groups(report: &TcpReport, mix: Mix) -> Vec<Vec<&TcpCell>> {
    let mut groups: Vec<Vec<&TcpCell>> = Vec::new();
    for cell in report.cells.iter().filter(|cell| cell.mix == mix) {
        let is_here = |group: &&mut Vec<&TcpCell>| {
            group.first().is_some_and(|first| (first.connections, first.depth) == (cell.connections, cell.depth))
        };
        match groups.iter_mut().find(is_here) {
            Some(group) => group.push(cell),
            None => groups.push(vec![cell]),
        }
    }
    for group in &mut groups {
        group.sort_by(|one, other| other.per_server_second.median.total_cmp(&one.per_server_second.median));
    }
    groups
}

fn group_height(group: &[&TcpCell]) -> f64 {
    GROUP_HEAD + ROW * group.len() as f64 + GROUP_FOOT
}

fn draw(out: &mut String, group: &[&TcpCell], (x, y): (f64, f64)) {
    let Some(first) = group.first() else { return };
    // The full title would be wider than its column.
    let mix = if first.mix == Mix::YcsbA { "YCSB-A" } else { first.mix.title() };
    let depth = in_flight(first.depth);
    let title = escaped(&format!("{mix}; {depth} on {} each", counted(first.connections)));
    *out += &format!("<text x=\"{x}\" y=\"{}\" font-size=\"15\" font-weight=\"600\">{title}</text>\n", y + 16.0);
    let (bars_x, bars_y) = (x + NAMES_WIDTH, y + GROUP_HEAD - 4.0);
    let most = first.per_server_second.median.max(1.0);
    for (row, cell) in group.iter().enumerate() {
        let middle = bars_y + ROW * (row as f64 + 0.5);
        let weight = if cell.name == System::Guira { "700" } else { "400" };
        let length = (cell.per_server_second.median / most * BARS_WIDTH).max(2.0);
        let name = escaped(&system_label(cell));
        let figure = format!("{} k", grouped((cell.per_server_second.median / 1e3).round() as u64));
        *out += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" font-weight=\"{weight}\" text-anchor=\"end\">{name}</text>\n\
             <rect x=\"{bars_x:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" font-weight=\"{weight}\">{figure}</text>\n",
            bars_x - 8.0,
            middle + 5.0,
            middle - BAR / 2.0,
            colour(cell.name),
            bars_x + length + 6.0,
            middle + 4.5
        );
    }
}
