//! Bars: a group for each x, a bar for each series.

use super::super::Chart;
use super::super::text::number;
use super::axes::{Plot, Range};
use super::canvas::{Anchor, Canvas, Label, SMALL_SIZE, width_of};
use super::palette::Look;

/// Part of a group's width that its bars take.
const FILLED: f64 = 0.84;
/// Part of a bar's share that it takes.
const BAR: f64 = 0.88;

/// Draws every bar, with its value above it if there is space.
pub(super) fn draw(canvas: &mut Canvas, chart: &Chart, plot: &Plot, looks: &[Look]) {
    let groups = match &plot.x {
        Range::Category(values) => values.len().max(1),
        Range::Linear(..) | Range::Logarithmic(..) => 1,
    };
    let group_width = (plot.right - plot.left) / groups as f64 * FILLED;
    let share = group_width / chart.series.len().max(1) as f64;
    for (index, (series, look)) in chart.series.iter().zip(looks).enumerate() {
        let mut group = look.open();
        let mut labels = Vec::new();
        for point in &series.points {
            let (Some(middle), Some(y)) = (plot.x_at(point.x), plot.y_at(point.y)) else { continue };
            let left = middle - group_width / 2.0 + share * (index as f64 + (1.0 - BAR) / 2.0);
            let (width, height) = (share * BAR, plot.bottom - y);
            let area = look.area();
            group +=
                &format!("<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {area}/>\n");
            labels.push((left + width / 2.0, y - 5.0, number(point.y)));
        }
        canvas.raw(&(group + "</g>\n"));
        for (x, y, label) in labels.iter().filter(|(_, _, label)| width_of(label, SMALL_SIZE) <= share * 1.1) {
            canvas.text(*x, *y, &Label::small(label, Anchor::Middle));
        }
    }
}
