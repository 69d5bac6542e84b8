//! The report as a plot: bars of nanoseconds per operation, on a logarithmic scale that all groups share.
//!
//! The SVG is written without measuring a font, and has a background of its own, so that it is readable on light and
//! dark pages.

use guira_lab::report::{BACKGROUND, BORDER, FONT};
pub use guira_lab::report::{FAINT, GRID, TEXT, escaped};

use crate::draws::Popularity;
use crate::machine::Machine;
use crate::measure::Task;
use crate::plan::System;
use crate::record::WORD_BYTES;
use crate::run::{Cell, Report};

/// Width of a plot.
pub const WIDTH: f64 = 1240.0;
/// Margin beside the columns.
pub const MARGIN: f64 = 28.0;
/// Gap between the columns.
pub const COLUMN_GAP: f64 = 36.0;
/// Width of each of the two columns.
pub const COLUMN_WIDTH: f64 = (WIDTH - 2.0 * MARGIN - COLUMN_GAP) / 2.0;
/// Width of the column of names, behind which the bars begin.
const NAMES_WIDTH: f64 = 186.0;
/// Width reserved for the figure after the longest bar.
const FIGURE_WIDTH: f64 = 128.0;
const BARS_WIDTH: f64 = COLUMN_WIDTH - NAMES_WIDTH - FIGURE_WIDTH;
/// Top of the columns, below the heading.
pub const TOP: f64 = 104.0;
const GROUP_HEAD: f64 = 40.0;
const GROUP_FOOT: f64 = 20.0;
/// Distance between bars.
pub const ROW: f64 = 23.0;
/// Height of a bar.
pub const BAR: f64 = 15.0;
/// Space below the columns.
pub const FOOT: f64 = 22.0;

/// A heading and its bars.
struct Group<'r> {
    title: String,
    bars: Vec<&'r Cell>,
}

/// Draws the plot as SVG.
#[must_use]
pub fn svg(report: &Report) -> String {
    let columns = [task_groups(report), value_groups(report)];
    let cells = columns.iter().flatten().flat_map(|group| &group.bars);
    let scale = Scale::of(cells.map(|cell| cell.median_ns));
    let height = columns.iter().map(|groups| groups.iter().map(Group::height).sum::<f64>()).fold(0.0, f64::max);
    let height = TOP + height + FOOT;
    let mut out = framed("Nanoseconds per operation: Guira and its peers", height);
    head(&mut out, report);
    let mut x = MARGIN;
    for groups in &columns {
        let mut y = TOP;
        for group in groups {
            group.draw(&mut out, &scale, (x, y));
            y += group.height();
        }
        x += COLUMN_WIDTH + COLUMN_GAP;
    }
    out + "</svg>\n"
}

/// Begins a plot of this height: its title for readers of the text, and its background.
pub fn framed(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"{FONT}\" font-size=\"14\" fill=\"{TEXT}\" role=\"img\">\n\
         <title>{title}</title>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\" fill=\"{BACKGROUND}\" stroke=\"{BORDER}\"/>\n",
        WIDTH - 1.0,
        height - 1.0
    )
}

/// Writes the heading: the title, what was measured, and the machine.
pub fn heading(out: &mut String, title: &str, what: &str, machine: &Machine) {
    let machine = format!("{}, {} cores, Linux {}", machine.processor, machine.cores, machine.kernel);
    for (y, size, colour, line) in [(38, 22, TEXT, title), (62, 14, FAINT, what), (82, 14, FAINT, &machine)] {
        let line = escaped(line);
        *out += &format!("<text x=\"{MARGIN}\" y=\"{y}\" font-size=\"{size}\" fill=\"{colour}\">{line}</text>\n");
    }
}

fn head(out: &mut String, report: &Report) {
    let records = report.stages.first().map_or(0, |stage| stage.records);
    let what = format!(
        "{} records, keys of {} bytes, uniform; median of {} interleaved rounds, and its ratio to Guira's",
        text(records),
        report.key_bytes,
        report.rounds
    );
    heading(out, "Nanoseconds per operation, one client (logarithmic; shorter is faster)", &what, &report.machine);
}

/// The groups of the tasks with values of one word.
fn task_groups(report: &Report) -> Vec<Group<'_>> {
    let groups = Task::ALL.map(|task| {
        let is_in = |cell: &&Cell| cell.value_bytes == WORD_BYTES && cell.task == task;
        Group { title: format!("{}, values of 8 bytes", task.title()), bars: bars(report, is_in) }
    });
    groups.into_iter().filter(|group| !group.bars.is_empty()).collect()
}

/// The groups of lookups of longer values.
fn value_groups(report: &Report) -> Vec<Group<'_>> {
    let longer = report.stages.iter().filter(|stage| stage.value_bytes != WORD_BYTES);
    let groups = longer.map(|stage| {
        let is_in = |cell: &&Cell| cell.value_bytes == stage.value_bytes && cell.task == Task::Get;
        let title = format!("{}, values of {} bytes", Task::Get.title(), text(stage.value_bytes as u64));
        Group { title, bars: bars(report, is_in) }
    });
    groups.filter(|group| !group.bars.is_empty()).collect()
}

/// The best time of each bar, fastest first.
fn bars(report: &Report, is_in: impl Fn(&&Cell) -> bool) -> Vec<&Cell> {
    let mut best: Vec<&Cell> = Vec::new();
    let plain = |cell: &&Cell| cell.clients == 1 && cell.popularity == Popularity::Uniform;
    for cell in report.cells.iter().filter(plain).filter(is_in) {
        match best.iter_mut().find(|found| bar_name(found) == bar_name(cell)) {
            Some(found) if cell.median_ns < found.median_ns => *found = cell,
            Some(_) => {}
            None => best.push(cell),
        }
    }
    best.sort_by(|one, other| one.median_ns.total_cmp(&other.median_ns));
    best
}

/// The name of a cell's bar: a server has one bar for each depth, every other system one.
fn bar_name(cell: &Cell) -> String {
    match cell.name {
        System::Redis | System::Memcached => match (cell.task, cell.variant) {
            (Task::GetMany, _) => format!("{}, 32 at once", cell.name.title()),
            (_, variant) => format!("{}, {variant}", cell.name.title()),
        },
        name => name.title().to_owned(),
    }
}

/// The color of a system.
pub fn colour(name: System) -> &'static str {
    match name {
        System::Guira => "#0b7a4b",
        System::Raw => "#8c959f",
        System::Dashmap => "#3b73c4",
        System::Papaya => "#5b9bd5",
        System::Lmdb => "#7d56b3",
        System::Redis => "#c8372d",
        System::Memcached => "#d9822b",
    }
}

impl Group<'_> {
    fn height(&self) -> f64 {
        GROUP_HEAD + ROW * self.bars.len() as f64 + GROUP_FOOT
    }

    fn draw(&self, out: &mut String, scale: &Scale, (x, y): (f64, f64)) {
        let title = escaped(&self.title);
        *out += &format!("<text x=\"{x}\" y=\"{}\" font-size=\"16\" font-weight=\"600\">{title}</text>\n", y + 16.0);
        let (bars_x, bars_y) = (x + NAMES_WIDTH, y + GROUP_HEAD - 12.0);
        let bottom = bars_y + ROW * self.bars.len() as f64;
        for (at, name) in scale.ticks() {
            let tick_x = bars_x + at * BARS_WIDTH;
            let name_y = bottom + 13.0;
            *out += &format!("<path d=\"M{tick_x:.1} {bars_y:.1}V{bottom:.1}\" stroke=\"{GRID}\"/>\n");
            *out += &format!("<text x=\"{tick_x:.1}\" y=\"{name_y:.1}\" font-size=\"11\" fill=\"{FAINT}\" ");
            *out += &format!("text-anchor=\"middle\">{name}</text>\n");
        }
        let guira_ns = self.bars.iter().find(|cell| cell.name == System::Guira).map(|cell| cell.median_ns);
        for (row, cell) in self.bars.iter().enumerate() {
            let middle = bars_y + ROW * (row as f64 + 0.5);
            let weight = if cell.name == System::Guira { "700" } else { "400" };
            let length = (scale.at(cell.median_ns) * BARS_WIDTH).max(2.0);
            let figure = figure(cell, guira_ns);
            *out += &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" font-weight=\"{weight}\" text-anchor=\"end\">{}</text>\n\
                 <rect x=\"{bars_x:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" font-weight=\"{weight}\">{figure}</text>\n",
                bars_x - 8.0,
                middle + 5.0,
                escaped(&bar_name(cell)),
                middle - BAR / 2.0,
                colour(cell.name),
                bars_x + length + 6.0,
                middle + 4.5
            );
        }
    }
}

/// The text of a bar: the time, and its ratio to Guira's.
fn figure(cell: &Cell, guira_ns: Option<f64>) -> String {
    let time = match cell.median_ns {
        ns if ns < 100.0 => format!("{ns:.1} ns"),
        ns if ns < 10_000.0 => format!("{} ns", text(ns.round() as u64)),
        ns => format!("{:.1} µs", ns / 1e3),
    };
    match guira_ns {
        Some(guira_ns) if cell.name != System::Guira => {
            let ratio = cell.median_ns / guira_ns;
            let digits = match ratio {
                _ if ratio < 1.0 => 2,
                _ if ratio < 10.0 => 1,
                _ => 0,
            };
            format!("{time} · {ratio:.digits$}×")
        }
        _ => time,
    }
}

/// A logarithmic scale over whole powers of ten.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(times_ns: impl Iterator<Item = f64>) -> Scale {
        let (low, high) = times_ns.fold((f64::INFINITY, 1.0), |(low, high), ns| (ns.min(low), ns.max(high)));
        let low = if low.is_finite() { low.max(0.1).log10().floor() } else { 0.0 };
        Scale { low, high: high.max(0.1).log10().ceil().max(low + 1.0) }
    }

    /// The position of a time, from 0 to 1.
    fn at(&self, ns: f64) -> f64 {
        ((ns.log10() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Positions and names of the powers of ten.
    fn ticks(&self) -> Vec<(f64, &'static str)> {
        const NAMES: [&str; 8] = ["0.1 ns", "1 ns", "10 ns", "100 ns", "1 µs", "10 µs", "100 µs", "1 ms"];
        let name = |power: i32| NAMES.get((power + 1) as usize).copied().unwrap_or("");
        (self.low as i32..=self.high as i32).map(|power| (self.at(10_f64.powi(power)), name(power))).collect()
    }
}

fn text(number: u64) -> String {
    crate::text::grouped(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_spans_whole_powers_of_ten() {
        let scale = Scale::of([7.0, 12_000.0].into_iter());
        assert_eq!((scale.at(1.0), scale.at(1e5)), (0.0, 1.0));
        assert_eq!(scale.ticks().len(), 6);
        assert_eq!(scale.ticks()[5].1, "100 µs");
        assert_eq!(Scale::of(std::iter::empty()).ticks().len(), 2);
    }
}
