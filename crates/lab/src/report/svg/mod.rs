//! Charts as SVG, for any page, a phone and print.
//!
//! A drawing is 480 wide and scales by its viewBox. It has a background of its own, and classes by which a page can
//! give it the colours of a dark one. Invariants: y starts at 0 unless it is logarithmic, the legend is below the data,
//! and series differ in marks and dashes, not only in hue.

mod axes;
mod bars;
mod canvas;
mod grid;
mod legend;
mod lines;
mod palette;
#[cfg(test)]
mod tests;

use super::{Chart, Shape};
use axes::Plot;
use canvas::Canvas;

/// Draws a chart with its title.
#[must_use]
pub fn svg(chart: &Chart) -> String {
    draw(Canvas::with_heading(&chart.title), chart)
}

/// Draws a chart without its title, which the page around it has.
#[must_use]
pub(super) fn svg_without_heading(chart: &Chart) -> String {
    draw(Canvas::new(), chart)
}

fn draw(mut canvas: Canvas, chart: &Chart) -> String {
    if chart.shape == Shape::Grid {
        grid::draw(&mut canvas, chart);
        return canvas.finish(&chart.title);
    }
    let looks = palette::looks(chart);
    let plot = Plot::draw(&mut canvas, chart);
    lines::draw_ceilings(&mut canvas, chart, &plot);
    match chart.shape {
        _ if chart.series.iter().all(|series| series.points.is_empty()) => lines::draw_nothing(&mut canvas, &plot),
        Shape::Bars => bars::draw(&mut canvas, chart, &plot, &looks),
        Shape::Lines | Shape::Curve | Shape::Grid => lines::draw(&mut canvas, chart, &plot, &looks),
    }
    legend::draw(&mut canvas, chart, &looks);
    canvas.finish(&chart.title)
}
