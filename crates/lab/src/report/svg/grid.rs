//! Grids: a row of cells for each series, with the value in each cell; measured rows above published ones.
//!
//! Both parts share one scale of colours. The lowest cells are outlined.

use super::super::text::{Zeros, number, with_digits};
use super::super::{BEST_WITHIN, Chart, Origin, Series};
use super::canvas::{Anchor, Canvas, Label, MARGIN, SMALL_SIZE, TEXT_SIZE, WIDTH, cut, width_of, wrapped};

/// Size of the text of a cell.
const CELL_SIZE: f64 = 13.0;
/// Height of a cell.
const CELL: f64 = 30.0;
/// Maximum width of the names of rows.
const NAMES_MAX: f64 = 130.0;
/// Colours of the lowest and of the highest value, as red, green and blue.
const LOW: [f64; 3] = [236.0, 243.0, 250.0];
const HIGH: [f64; 3] = [8.0, 64.0, 112.0];
/// The share of the scale above which a cell is so dark that its text is white.
const DARK_FROM: f64 = 0.5;

/// The columns of a grid, and the range of its values.
struct Frame {
    columns: Vec<f64>,
    left: f64,
    cell_width: f64,
    low: f64,
    high: f64,
}

/// Draws the cells of every series, and the x axis.
pub(super) fn draw(canvas: &mut Canvas, chart: &Chart) {
    let frame = Frame::of(chart);
    canvas.bottom += TEXT_SIZE * 1.5;
    canvas.text(MARGIN, canvas.bottom - TEXT_SIZE * 0.4, &Label::normal(&chart.y.title(), Anchor::Start));
    for (origin, head) in [(Origin::Measured, "Measured"), (Origin::Published, "Published")] {
        let rows: Vec<&Series> = chart.series.iter().filter(|series| series.origin == origin).collect();
        if rows.is_empty() {
            continue;
        }
        let best = lowest(&rows) * BEST_WITHIN;
        canvas.bottom += TEXT_SIZE * 1.6;
        canvas.text(MARGIN, canvas.bottom - TEXT_SIZE * 0.45, &Label::small(head, Anchor::Start));
        for series in rows {
            frame.row(canvas, series, best);
        }
        frame.names_of_columns(canvas, chart);
    }
    canvas.bottom += TEXT_SIZE * 1.3;
    let middle = (frame.left + WIDTH - MARGIN) / 2.0;
    canvas.text(middle, canvas.bottom - TEXT_SIZE * 0.3, &Label::normal(&chart.x.title(), Anchor::Middle));
}

fn lowest(rows: &[&Series]) -> f64 {
    rows.iter().flat_map(|series| &series.points).map(|point| point.y).fold(f64::INFINITY, f64::min)
}

impl Frame {
    fn of(chart: &Chart) -> Frame {
        let points = || chart.series.iter().flat_map(|series| &series.points);
        let mut columns: Vec<f64> = points().map(|point| point.x).collect();
        columns.sort_by(f64::total_cmp);
        columns.dedup();
        let names = chart.series.iter().map(|series| width_of(&series.name, SMALL_SIZE)).fold(0.0, f64::max);
        let left = MARGIN + names.min(NAMES_MAX) + 6.0;
        let positive = || points().map(|point| point.y).filter(|y| *y > 0.0);
        let (low, high) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
        let cell_width = (WIDTH - MARGIN - left) / columns.len().max(1) as f64;
        Frame { columns, left, cell_width, low, high }
    }

    fn row(&self, canvas: &mut Canvas, series: &Series, best: f64) {
        let top = canvas.bottom;
        let mut lines = wrapped(&series.name, SMALL_SIZE, self.left - MARGIN - 6.0);
        lines.truncate(2);
        for (index, line) in lines.iter().enumerate() {
            let middle = (index as f64 - (lines.len() - 1) as f64 / 2.0) * SMALL_SIZE;
            let y = top + CELL / 2.0 + middle + SMALL_SIZE * 0.35;
            canvas.text(self.left - 6.0, y, &Label::small(line, Anchor::End));
        }
        for (column, x) in self.columns.iter().enumerate() {
            if let Some(point) = series.points.iter().find(|point| point.x == *x && point.y.is_finite()) {
                self.cell(canvas, (column, top), point.y, best);
            }
        }
        canvas.bottom += CELL;
    }

    fn cell(&self, canvas: &mut Canvas, (column, top): (usize, f64), value: f64, best: f64) {
        let left = self.left + column as f64 * self.cell_width;
        let share = self.share(value);
        let [red, green, blue] =
            std::array::from_fn(|part| (LOW[part] + share * (HIGH[part] - LOW[part])).round() as u8);
        let (width, height) = (self.cell_width - 2.0, CELL - 2.0);
        let outline = if value <= best { " stroke=\"#d55e00\" stroke-width=\"2\"" } else { "" };
        canvas.raw(&format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" \
             fill=\"#{red:02x}{green:02x}{blue:02x}\"{outline}/>\n",
            left + 1.0,
            top + 1.0
        ));
        let colour = if share > DARK_FROM { "#ffffff" } else { "#1f2328" };
        let digits = usize::from(value < 10.0);
        let text = cut(&with_digits(value, digits, Zeros::Cut), CELL_SIZE, self.cell_width + 2.0);
        canvas.raw(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{CELL_SIZE}\" fill=\"{colour}\" text-anchor=\"middle\">{text}\
             </text>\n",
            left + self.cell_width / 2.0,
            top + CELL / 2.0 + CELL_SIZE * 0.35
        ));
    }

    /// The place of a value between the lowest and the highest, by ratio.
    fn share(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn names_of_columns(&self, canvas: &mut Canvas, chart: &Chart) {
        canvas.bottom += SMALL_SIZE * 1.3;
        for (column, x) in self.columns.iter().enumerate() {
            let name = chart.x.name_of(*x).map_or_else(|| number(*x), str::to_owned);
            let middle = self.left + (column as f64 + 0.5) * self.cell_width;
            let name = cut(&name, CELL_SIZE, self.cell_width + 2.0);
            canvas.text(
                middle,
                canvas.bottom - SMALL_SIZE * 0.25,
                &Label { size: CELL_SIZE, ..Label::small(&name, Anchor::Middle) },
            );
        }
    }
}
