//! Axes: the range of values, the positions on the canvas, and ticks on round numbers.

use super::super::style::GRID;
use super::super::text::{Zeros, number, with_digits};
use super::super::{Axis, Chart, Scale, Shape};
use super::canvas::{Anchor, Canvas, Label, MARGIN, SMALL_SIZE, TEXT_SIZE, WIDTH, width_of};

/// Height of the plot.
const HEIGHT: f64 = 264.0;
/// Length of a turned label that stays below the plot.
const TURNED_DEGREES: f64 = -35.0;
/// Space between labels of an axis.
const LABEL_GAP: f64 = 8.0;
/// Steps on a linear axis, at most.
const STEPS: f64 = 7.0;
/// A ceiling up to this many times above the data is drawn; one that is higher would flatten the data.
const CEILING_REACH: f64 = 2.0;
/// Decades of a logarithmic axis up to which 2 and 5 have labels as well as 1.
const DECADES_WITH_FIVES: f64 = 2.3;

/// A rectangle for data, and the mapping of values to it.
pub(super) struct Plot {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    pub(super) x: Range,
    pub(super) y: Range,
}

/// The values along an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Range {
    /// From the first to the second, with a tick at each multiple of the third.
    Linear(f64, f64, f64),
    /// From the first to the second, both positive.
    Logarithmic(f64, f64),
    /// These values, equally far from each other.
    Category(Vec<f64>),
}

impl Range {
    /// A horizontal axis. Between values that are close to each other it does not start at 0. Bars stand side by side,
    /// whatever their values.
    fn across(axis: &Axis, shape: Shape, values: &[f64]) -> Range {
        match axis.scale {
            _ if shape == Shape::Bars => Range::of_categories(values),
            Scale::Category => Range::of_categories(values),
            Scale::Logarithmic => Range::logarithmic(values),
            Scale::Linear => {
                let (low, high) = bounds(values).unwrap_or((0.0, 1.0));
                let low = if low > high / 2.0 { low } else { low.min(0.0) };
                Range::linear(low, high)
            }
        }
    }

    /// A vertical axis: a linear one starts at 0.
    fn upwards(axis: &Axis, values: &[f64]) -> Range {
        match axis.scale {
            Scale::Logarithmic => Range::logarithmic(values),
            Scale::Linear | Scale::Category => {
                let (low, high) = bounds(values).unwrap_or((0.0, 1.0));
                Range::linear(low.min(0.0), high)
            }
        }
    }

    fn of_categories(values: &[f64]) -> Range {
        let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        Range::Category(values)
    }

    fn linear(low: f64, high: f64) -> Range {
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let power = 10_f64.powf((span / STEPS).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power);
        let step = step.into_iter().find(|step| span / step <= STEPS).unwrap_or(10.0 * power);
        let end = (high.max(low + span) / step - 1e-9).ceil() * step;
        Range::Linear((low / step + 1e-9).floor() * step, end, step)
    }

    fn logarithmic(values: &[f64]) -> Range {
        /// Space beyond the first and the last point, as a factor.
        const BEYOND: f64 = 1.12;
        let positive: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
        let (low, high) = bounds(&positive).unwrap_or((1.0, 10.0));
        Range::Logarithmic(low / BEYOND, high * BEYOND)
    }

    /// The position of a value, from 0 to 1; `None` if it has none.
    fn at(&self, value: f64) -> Option<f64> {
        let part = match self {
            Range::Linear(low, high, _) => (value - low) / (high - low),
            Range::Logarithmic(..) if value <= 0.0 => return None,
            Range::Logarithmic(low, high) => (value / low).ln() / (high / low).ln(),
            Range::Category(values) => {
                (values.iter().position(|known| *known == value)? as f64 + 0.5) / values.len() as f64
            }
        };
        part.is_finite().then(|| part.clamp(0.0, 1.0))
    }

    /// The ticks: values, with a label or without.
    fn ticks(&self, axis: &Axis) -> Vec<(f64, Option<String>)> {
        match self {
            Range::Linear(low, high, step) => {
                let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
                let count = ((high - low) / step).round() as usize;
                let values = (0..=count).map(|index| low + step * index as f64);
                values.map(|value| (value, Some(with_digits(value, digits, Zeros::Keep)))).collect()
            }
            Range::Logarithmic(low, high) => logarithmic_ticks(*low, *high),
            Range::Category(values) => {
                let label = |value: f64| axis.name_of(value).map_or_else(|| number(value), str::to_owned);
                values.iter().map(|value| (*value, Some(label(*value)))).collect()
            }
        }
    }
}

fn logarithmic_ticks(low: f64, high: f64) -> Vec<(f64, Option<String>)> {
    let decades = (high / low).log10();
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let values = (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|factor| (factor, factor * 10_f64.powi(power))));
    let within = values.filter(|(_, value)| (low..=high).contains(value));
    let label = |(factor, value): (f64, f64)| {
        let is_labelled = factor == 1.0 || decades <= DECADES_WITH_FIVES;
        (value, is_labelled.then(|| number(value)))
    };
    within.map(label).collect()
}

/// The least and the largest finite value.
fn bounds(values: &[f64]) -> Option<(f64, f64)> {
    let finite = values.iter().copied().filter(|value| value.is_finite());
    finite.fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

/// The ceilings of a chart that are within the plot.
pub(super) fn ceilings_within(chart: &Chart) -> impl Iterator<Item = bool> {
    let values: Vec<f64> = chart.series.iter().flat_map(|series| &series.points).map(|point| point.y).collect();
    let reach = bounds(&values).map_or(f64::INFINITY, |(_, high)| high * CEILING_REACH);
    chart.ceilings.iter().map(move |ceiling| ceiling.y <= reach)
}

impl Plot {
    /// Draws the axes of a chart below what the canvas has.
    pub(super) fn draw(canvas: &mut Canvas, chart: &Chart) -> Plot {
        let points = || chart.series.iter().flat_map(|series| &series.points);
        let x = Range::across(&chart.x, chart.shape, &points().map(|point| point.x).collect::<Vec<_>>());
        let drawn = chart.ceilings.iter().zip(ceilings_within(chart)).filter(|(_, is_within)| *is_within);
        let drawn = drawn.map(|(ceiling, _)| ceiling.y);
        let y = Range::upwards(&chart.y, &points().map(|point| point.y).chain(drawn).collect::<Vec<_>>());
        let labels = y.ticks(&chart.y);
        let widest = labels.iter().filter_map(|(_, label)| label.as_deref());
        let widest = widest.map(|label| width_of(label, SMALL_SIZE)).fold(0.0, f64::max);
        let letters = if chart.ceilings.is_empty() { 0.0 } else { SMALL_SIZE };
        canvas.bottom += TEXT_SIZE * 1.5;
        let title = chart.y.title();
        canvas.text(MARGIN, canvas.bottom - TEXT_SIZE * 0.4, &Label::normal(&title, Anchor::Start));
        let top = canvas.bottom + SMALL_SIZE * 0.6;
        let plot = Plot {
            left: MARGIN + widest + LABEL_GAP,
            right: WIDTH - MARGIN - 8.0 - letters,
            top,
            bottom: top + HEIGHT,
            x,
            y,
        };
        plot.draw_y(canvas, &labels);
        plot.draw_x(canvas, &chart.x);
        plot
    }

    /// The position of a value on the x axis.
    pub(super) fn x_at(&self, value: f64) -> Option<f64> {
        self.x.at(value).map(|part| self.left + part * (self.right - self.left))
    }

    /// The position of a value on the y axis.
    pub(super) fn y_at(&self, value: f64) -> Option<f64> {
        self.y.at(value).map(|part| self.bottom - part * (self.bottom - self.top))
    }

    fn draw_y(&self, canvas: &mut Canvas, ticks: &[(f64, Option<String>)]) {
        for (value, label) in ticks {
            let Some(y) = self.y_at(*value) else { continue };
            let (left, right) = (self.left, self.right);
            canvas.raw(&format!("<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"{GRID}\"/>\n"));
            if let Some(label) = label {
                canvas.text(left - LABEL_GAP, y + SMALL_SIZE * 0.35, &Label::small(label, Anchor::End));
            }
        }
    }

    fn draw_x(&self, canvas: &mut Canvas, axis: &Axis) {
        let ticks = self.x.ticks(axis);
        let labels: Vec<(f64, &str)> =
            ticks.iter().filter_map(|(value, label)| Some((self.x_at(*value)?, label.as_deref()?))).collect();
        let is_crowded = labels.windows(2).any(|pair| {
            let widths = (width_of(pair[0].1, SMALL_SIZE) + width_of(pair[1].1, SMALL_SIZE)) / 2.0;
            pair[1].0 - pair[0].0 < widths + LABEL_GAP
        });
        let is_category = matches!(self.x, Range::Category(_));
        for (value, _) in &ticks {
            let Some(x) = self.x_at(*value).filter(|_| !is_category) else { continue };
            let (top, bottom) = (self.top, self.bottom);
            canvas.raw(&format!("<path class=\"grid\" d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"{GRID}\"/>\n"));
        }
        canvas.bottom = self.bottom + SMALL_SIZE * 1.5;
        let mut shown_to = f64::NEG_INFINITY;
        for (x, label) in &labels {
            let half = width_of(label, SMALL_SIZE) / 2.0;
            if is_category && is_crowded {
                let longest = (self.left - MARGIN).max(90.0);
                let label = super::canvas::cut(label, SMALL_SIZE, longest);
                let y = self.bottom + SMALL_SIZE;
                canvas.turned(*x, y, TURNED_DEGREES, &Label::small(&label, Anchor::End));
                let depth = width_of(&label, SMALL_SIZE) * -TURNED_DEGREES.to_radians().sin();
                canvas.bottom = canvas.bottom.max(y + depth + SMALL_SIZE * 0.5);
            } else if x - half > shown_to {
                // The label of a value at the edge stays on the canvas.
                let x = x.min(WIDTH - MARGIN / 2.0 - half).max(MARGIN / 2.0 + half);
                canvas.text(x, self.bottom + SMALL_SIZE * 1.2, &Label::small(label, Anchor::Middle));
                shown_to = x + half + LABEL_GAP / 2.0;
            }
        }
        canvas.bottom += TEXT_SIZE * 1.3;
        let middle = (self.left + self.right) / 2.0;
        canvas.text(middle, canvas.bottom - TEXT_SIZE * 0.3, &Label::normal(&axis.title(), Anchor::Middle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(range: &Range) -> Vec<String> {
        let axis = Axis::new("", "", Scale::Linear);
        range.ticks(&axis).into_iter().filter_map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(labels(&Range::linear(0.0, 46.5)), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(labels(&Range::linear(0.0, 1.0)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&Range::linear(1.7, 2.5)), ["1.6", "1.8", "2.0", "2.2", "2.4", "2.6"]);
        assert_eq!(labels(&Range::linear(0.0, 0.0)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&Range::logarithmic(&[8.0, 320.0])), ["10", "20", "50", "100", "200"]);
        assert_eq!(labels(&Range::logarithmic(&[1.0, 10_000.0])), ["1", "10", "100", "1,000", "10,000"]);
    }

    #[test]
    fn an_upward_axis_starts_at_0_and_values_have_positions() {
        let axis = Axis::new("", "", Scale::Linear);
        assert_eq!(Range::upwards(&axis, &[40.0, 46.0]), Range::Linear(0.0, 50.0, 10.0));
        assert_eq!(Range::across(&axis, Shape::Lines, &[1.7, 2.5]).at(1.7).map(|at| at < 0.2), Some(true));
        assert_eq!(Range::logarithmic(&[1.0]).at(0.0), None);
        assert_eq!(Range::upwards(&axis, &[]).at(0.5), Some(0.5));
        let categories = Range::of_categories(&[2.0, 1.0, 2.0, f64::NAN]);
        assert_eq!((categories.at(1.0), categories.at(2.0), categories.at(3.0)), (Some(0.25), Some(0.75), None));
        assert_eq!(Range::linear(0.0, 1.0).at(f64::NAN), None);
    }
}
