//! The legend: below the plot, so that it never covers data.

use super::super::text::number;
use super::super::{Chart, Origin, Shape};
use super::axes::ceilings_within;
use super::canvas::{Anchor, Canvas, Label, MARGIN, TEXT_SIZE, WIDTH, width_of, wrapped};
use super::palette::Look;

/// Width of a sample of a line.
const SAMPLE: f64 = 38.0;
/// Space between a sample and its name, and between entries.
const GAP: f64 = 8.0;
const ENTRY_GAP: f64 = 20.0;
/// Height of a line.
const LINE: f64 = TEXT_SIZE * 1.45;

/// Draws the names of the series and of the ceilings.
pub(super) fn draw(canvas: &mut Canvas, chart: &Chart, looks: &[Look]) {
    canvas.bottom += TEXT_SIZE * 0.6;
    let mut x = MARGIN;
    let mut y = canvas.bottom + LINE * 0.6;
    for (series, look) in chart.series.iter().zip(looks) {
        let name = match series.origin {
            Origin::Published => format!("{} (published)", series.name),
            Origin::Measured => series.name.clone(),
        };
        let lines = wrapped(&name, TEXT_SIZE, WIDTH - 2.0 * MARGIN - SAMPLE - GAP);
        let width = SAMPLE + GAP + lines.iter().map(|line| width_of(line, TEXT_SIZE)).fold(0.0, f64::max);
        if x > MARGIN && x + width > WIDTH - MARGIN {
            x = MARGIN;
            y += LINE;
        }
        canvas.raw(&sample(chart.shape, look, x, y));
        for (index, line) in lines.iter().enumerate() {
            // A name of two lines is alone on them.
            y += if index > 0 { TEXT_SIZE * 1.15 } else { 0.0 };
            canvas.text(x + SAMPLE + GAP, y + TEXT_SIZE * 0.35, &Label::normal(line, Anchor::Start));
        }
        x += width + ENTRY_GAP;
    }
    if !chart.series.is_empty() {
        canvas.bottom = y + LINE * 0.5;
    }
    for (index, (ceiling, is_within)) in chart.ceilings.iter().zip(ceilings_within(chart)).enumerate() {
        let place = if is_within { "" } else { ", above the plot" };
        let text = format!("{}  {}: {}{place}", letter(index), ceiling.name, number(ceiling.y));
        for line in wrapped(&text, TEXT_SIZE, WIDTH - 2.0 * MARGIN) {
            canvas.bottom += LINE;
            canvas.text(MARGIN, canvas.bottom - LINE * 0.3, &Label::normal(&line, Anchor::Start));
        }
    }
}

/// The letter of a ceiling.
pub(super) fn letter(index: usize) -> char {
    (b'A' + (index % 26) as u8) as char
}

fn sample(shape: Shape, look: &Look, x: f64, y: f64) -> String {
    let inside = match shape {
        Shape::Bars => {
            format!("<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{SAMPLE}\" height=\"12\" {}/>\n", y - 6.0, look.area())
        }
        Shape::Lines | Shape::Curve | Shape::Grid => {
            let line = format!("<path d=\"M{x:.1} {y:.1}h{SAMPLE}\" {}/>\n", look.line());
            line + &look.mark((x + SAMPLE / 2.0, y))
        }
    };
    look.open() + &inside + "</g>\n"
}
