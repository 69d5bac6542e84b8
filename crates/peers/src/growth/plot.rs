//! A run as a plot: inserts a second in each window, on a logarithmic scale, by the number of keys that are there.

use super::Series;
use super::report::{Curve, GrowthReport};
use crate::plot::{FAINT, GRID, MARGIN, TOP, WIDTH, colour, escaped, framed, heading};
use crate::text::grouped;

const HEIGHT: f64 = 620.0;
/// The left edge of the scale of rates.
const LEFT: f64 = MARGIN + 56.0;
/// Width reserved for the names at the ends of the curves.
const NAMES_WIDTH: f64 = 250.0;
const RIGHT: f64 = WIDTH - MARGIN - NAMES_WIDTH;
const BOTTOM: f64 = HEIGHT - 54.0;
/// The least distance between two names.
const NAME_ROW: f64 = 18.0;
/// Divisions of the scale of keys.
const KEY_TICKS: u64 = 8;

/// The scales of a plot.
struct Scales {
    keys: f64,
    /// Powers of ten.
    low: f64,
    high: f64,
}

impl Scales {
    fn of(report: &GrowthReport) -> Scales {
        let rates = report.curves.iter().flat_map(|curve| [curve.slowest_per_second, curve.median_per_second]);
        let (low, high) = rates
            .filter(|rate| *rate > 0.0)
            .fold((f64::INFINITY, 1.0), |(low, high), rate| (rate.min(low), rate.max(high)));
        let low = if low.is_finite() { low.log10().floor() } else { 0.0 };
        Scales { keys: report.keys as f64, low, high: high.log10().ceil().max(low + 1.0) }
    }

    fn x(&self, keys: f64) -> f64 {
        LEFT + (keys / self.keys.max(1.0)).min(1.0) * (RIGHT - LEFT)
    }

    /// A window without inserts is at the bottom.
    fn y(&self, per_second: f64) -> f64 {
        let at = (per_second.max(1.0).log10() - self.low) / (self.high - self.low);
        BOTTOM - at.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }
}

/// Draws the plot as SVG.
#[must_use]
pub fn growth_svg(report: &GrowthReport) -> String {
    let scales = Scales::of(report);
    let mut out = framed("Inserts a second while tables grow: Guira and its peers", HEIGHT);
    head(&mut out, report);
    grid(&mut out, report, &scales);
    for curve in &report.curves {
        line(&mut out, curve, &scales);
    }
    names(&mut out, report, &scales);
    out + "</svg>\n"
}

fn head(out: &mut String, report: &GrowthReport) {
    let what = format!(
        "{} keys of 8 bytes with values of 8 bytes, into tables made for {}; {} clients; windows of 100 ms",
        grouped(report.keys),
        grouped(report.first),
        report.clients
    );
    heading(out, "Inserts a second while tables grow (logarithmic; higher is faster)", &what, &report.machine);
}

fn grid(out: &mut String, report: &GrowthReport, scales: &Scales) {
    for power in scales.low as i32..=scales.high as i32 {
        let y = scales.y(10f64.powi(power));
        *out += &format!("<path d=\"M{LEFT:.1} {y:.1}H{RIGHT:.1}\" stroke=\"{GRID}\"/>\n");
        let (x, y, name) = (LEFT - 8.0, y + 4.5, rate_name(power));
        *out += &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"12\" fill=\"{FAINT}\" ");
        *out += &format!("text-anchor=\"end\">{name}</text>\n");
    }
    for tick in 0..=KEY_TICKS {
        let keys = report.keys as f64 * tick as f64 / KEY_TICKS as f64;
        let (x, y) = (scales.x(keys), BOTTOM + 18.0);
        *out += &format!("<path d=\"M{x:.1} {TOP}V{BOTTOM}\" stroke=\"{GRID}\"/>\n");
        let name =
            if report.keys >= 1_000_000 { format!("{:.0} M", keys / 1e6) } else { format!("{:.0} k", keys / 1e3) };
        *out += &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"12\" fill=\"{FAINT}\" ");
        *out += &format!("text-anchor=\"middle\">{name}</text>\n");
    }
    let (x, y) = ((LEFT + RIGHT) / 2.0, BOTTOM + 38.0);
    *out +=
        &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"13\" text-anchor=\"middle\">keys in the table</text>\n");
}

fn rate_name(power: i32) -> String {
    match power {
        ..3 => format!("{}", 10u64.pow(power.max(0) as u32)),
        3..6 => format!("{} k", 10u64.pow(power as u32 - 3)),
        _ => format!("{} M", 10u64.pow(power as u32 - 6)),
    }
}

/// The colour, width and dashes of a curve.
fn style(series: Series) -> (&'static str, f64, &'static str) {
    match series {
        Series::Grows => (colour(series.system()), 2.5, "none"),
        Series::Fixed => ("#8c959f", 1.5, "none"),
        Series::GrowsKilled => ("#5fb88f", 1.5, "5 3"),
        Series::FixedKilled => ("#b6bdc5", 1.2, "5 3"),
        Series::Dashmap | Series::Redis => (colour(series.system()), 1.5, "none"),
    }
}

fn line(out: &mut String, curve: &Curve, scales: &Scales) {
    let (colour, width, dashes) = style(curve.series);
    let points: Vec<String> = curve
        .windows
        .iter()
        .map(|window| format!("{:.1},{:.1}", scales.x(window.keys as f64), scales.y(window.per_second)))
        .collect();
    *out += &format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
         stroke-dasharray=\"{dashes}\" stroke-linejoin=\"round\"/>\n",
        points.join(" ")
    );
}

/// Writes the names beside the ends of the curves, none over another, each with its median rate.
fn names(out: &mut String, report: &GrowthReport, scales: &Scales) {
    let mut curves: Vec<&Curve> = report.curves.iter().collect();
    curves.sort_by(|one, other| other.median_per_second.total_cmp(&one.median_per_second));
    let mut free = TOP;
    for (left, curve) in (0..curves.len()).rev().zip(&curves) {
        let lowest = BOTTOM - left as f64 * NAME_ROW;
        let y = (scales.y(curve.median_per_second) + 4.5).max(free).min(lowest);
        free = y + NAME_ROW;
        let (colour, ..) = style(curve.series);
        let weight = if curve.series == Series::Grows { "700" } else { "400" };
        let name = escaped(&format!("{}: {:.2} M", short(curve.series), curve.median_per_second / 1e6));
        let x = RIGHT + 10.0;
        *out += &format!("<path d=\"M{x:.1} {:.1}h14\" stroke=\"{colour}\" stroke-width=\"3\"/>\n", y - 4.5);
        *out += &format!(
            "<text x=\"{:.1}\" y=\"{y:.1}\" font-size=\"13\" font-weight=\"{weight}\">{name}</text>\n",
            x + 20.0
        );
    }
}

fn short(series: Series) -> &'static str {
    match series {
        Series::GrowsKilled => "Guira, grows, kills",
        Series::FixedKilled => "Guira, fixed size, kills",
        Series::Fixed => "Guira, fixed size",
        series => series.title(),
    }
}
