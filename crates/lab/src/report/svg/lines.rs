//! Lines, curves and ceilings.

use super::super::style::{FAINT, GRID};
use super::super::{Chart, Origin, Point, Shape};
use super::axes::{Plot, ceilings_within};
use super::canvas::{Anchor, Canvas, Label, SMALL_SIZE};
use super::legend::letter;
use super::palette::Look;

/// Distance between two marks of a curve: marks tell curves apart in print.
const CURVE_MARKS: f64 = 70.0;
/// Radius of the ring around the mark of a value that was not steady.
const RING: f64 = 8.0;
/// The stroke of what is drawn around marks.
const THIN: &str = "fill=\"none\" stroke-width=\"1.2\"";

/// Draws every series: published ones first, so that measured ones are on top of them.
pub(super) fn draw(canvas: &mut Canvas, chart: &Chart, plot: &Plot, looks: &[Look]) {
    for origin in [Origin::Published, Origin::Measured] {
        let drawn = chart.series.iter().zip(looks).filter(|(series, _)| series.origin == origin);
        for (index, (series, look)) in drawn.enumerate() {
            let places = series.points.iter().map(|point| Some((plot.x_at(point.x)?, plot.y_at(point.y)?)));
            let places: Vec<Option<(f64, f64)>> = places.collect();
            let mut group = look.open();
            group += &format!("<path d=\"{}\" {}/>\n", path(&places, chart.shape), look.line());
            for point in &series.points {
                group += &spread(plot, point);
            }
            let mut marked_at = plot.left - CURVE_MARKS * (1.0 - index as f64 / 4.0);
            for place in places.into_iter().flatten() {
                if chart.shape != Shape::Curve || place.0 >= marked_at + CURVE_MARKS {
                    group += &look.mark(place);
                    marked_at = place.0;
                }
            }
            canvas.raw(&(group + "</g>\n"));
        }
    }
}

/// The values of all seeds as a line, and a ring around a value that was not steady.
fn spread(plot: &Plot, point: &Point) -> String {
    let Some(x) = plot.x_at(point.x) else { return String::new() };
    let mut out = String::new();
    let ends = point.spread.and_then(|(lowest, highest)| Some((plot.y_at(lowest)?, plot.y_at(highest)?)));
    if let Some((lowest, highest)) = ends.filter(|(lowest, highest)| lowest != highest) {
        out += &format!("<path class=\"spread\" d=\"M{x:.1} {lowest:.1}V{highest:.1}\" {THIN}/>\n");
    }
    if let Some(y) = plot.y_at(point.y).filter(|_| point.is_unsteady) {
        out += &format!("<circle class=\"unsteady\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RING}\" {THIN}/>\n");
    }
    out
}

/// The path through points; it is interrupted where there is none. A curve is a distribution, which goes up in steps.
fn path(places: &[Option<(f64, f64)>], shape: Shape) -> String {
    let mut out = String::new();
    let mut is_drawing = false;
    for place in places {
        let Some((x, y)) = place else {
            is_drawing = false;
            continue;
        };
        out += &match (is_drawing, shape) {
            (false, _) => format!("M{x:.1} {y:.1}"),
            (true, Shape::Curve) => format!("H{x:.1}V{y:.1}"),
            (true, _) => format!("L{x:.1} {y:.1}"),
        };
        is_drawing = true;
    }
    if out.is_empty() { "M0 0".to_owned() } else { out }
}

/// Draws the ceilings within the plot, each with its letter at the right end.
pub(super) fn draw_ceilings(canvas: &mut Canvas, chart: &Chart, plot: &Plot) {
    let mut letters_at: Vec<f64> = Vec::new();
    for (index, (ceiling, is_within)) in chart.ceilings.iter().zip(ceilings_within(chart)).enumerate() {
        let Some(y) = plot.y_at(ceiling.y).filter(|_| is_within) else { continue };
        let (left, right) = (plot.left, plot.right);
        canvas.raw(&format!(
            "<path class=\"ceiling\" d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"{FAINT}\" stroke-width=\"1.2\" \
             stroke-dasharray=\"1 3\"/>\n"
        ));
        // Ceilings close to each other: their letters stand above each other.
        let mut letter_y = y + SMALL_SIZE * 0.35;
        while letters_at.iter().any(|other| (other - letter_y).abs() < SMALL_SIZE * 0.9) {
            letter_y += SMALL_SIZE * 0.9;
        }
        letters_at.push(letter_y);
        canvas.text(right + 4.0, letter_y, &Label::small(&letter(index).to_string(), Anchor::Start));
    }
}

/// Draws the frame of a plot without points.
pub(super) fn draw_nothing(canvas: &mut Canvas, plot: &Plot) {
    let (x, y) = ((plot.left + plot.right) / 2.0, (plot.top + plot.bottom) / 2.0);
    canvas.raw(&format!(
        "<rect class=\"grid\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"none\" \
         stroke=\"{GRID}\"/>\n",
        plot.left,
        plot.top,
        plot.right - plot.left,
        plot.bottom - plot.top
    ));
    canvas.text(x, y, &Label::normal("no points", Anchor::Middle));
}
