//! The distance of measured series from the published series that they predict.
//!
//! Invariants: points are compared at the published x, between two measured points linearly, and never outside the
//! measured range; a comparison without a common x has no result instead of a good one.

use serde::Serialize;

use super::text::number;
use super::{Axis, Chart, Origin, Point, Series, Shape};

/// The distance of one measured series, or of all cells of a grid, from its published counterpart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distance {
    /// The measured series, or the grid.
    pub measured: String,
    /// The published series, or the grid.
    pub published: String,
    /// Number of published points that were compared.
    pub compared: usize,
    /// Number of published points outside the measured range, and of those to which the model was fitted.
    pub left_out: usize,
    /// Whether the model was fitted to all published points: then the distance says how well it could be fitted.
    pub is_calibration: bool,
    /// The size of the distance.
    pub size: Size,
}

/// The size of a distance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Size {
    /// Of values: differences relative to the published value.
    Relative {
        /// The mean of their magnitudes.
        mean: f64,
        /// The difference of the largest magnitude, with its sign: −0.2 is 20 % below.
        worst: f64,
        /// Its x.
        worst_x: f64,
    },
    /// Of distributions: the largest difference of shares, in points of a hundred.
    Points {
        /// The difference of the largest magnitude, with its sign.
        largest: f64,
        /// Its x.
        at: f64,
    },
    /// Of grids.
    Grid {
        /// The median of measured divided by published cells.
        median_ratio: f64,
        /// Number of cells within a factor of 1.25.
        alike: usize,
        /// Number of cells beyond a factor of 2.
        far: usize,
        /// Number of published best cells that are measured best cells, too.
        common_best: usize,
        /// Number of published best cells.
        published_best: usize,
        /// Number of measured best cells.
        measured_best: usize,
    },
}

/// A judgement of a distance in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The model predicts the published points.
    Agrees,
    /// The curves are alike, the values differ.
    Near,
    /// The model does not predict the published points.
    Differs,
}

/// Limits of relative differences: the mean, then the worst.
const AGREES_RELATIVE: (f64, f64) = (0.15, 0.25);
const NEAR_RELATIVE: (f64, f64) = (0.30, 0.60);
/// Limits of differences of shares, in points.
const AGREES_POINTS: f64 = 3.0;
const NEAR_POINTS: f64 = 10.0;
/// Limits of the ratio of cells.
const AGREES_RATIO: f64 = 1.25;
const NEAR_RATIO: f64 = 2.0;
/// The part of a grid's cells that must be within such a limit, in percent.
const CELLS_PERCENT: usize = 90;
/// A cell is one of the best if it is at most this much above the best: percentiles of a few thousand inserts differ by
/// as much from seed to seed.
pub(super) const BEST_WITHIN: f64 = 1.2;

impl Distance {
    /// Returns the judgement.
    pub fn verdict(&self) -> Verdict {
        let judged = |agrees: bool, near: bool| match (agrees, near) {
            (true, _) => Verdict::Agrees,
            (false, true) => Verdict::Near,
            (false, false) => Verdict::Differs,
        };
        match self.size {
            Size::Relative { mean, worst, .. } => {
                let within = |limit: (f64, f64)| mean <= limit.0 && worst.abs() <= limit.1;
                judged(within(AGREES_RELATIVE), within(NEAR_RELATIVE))
            }
            Size::Points { largest, .. } => judged(largest.abs() <= AGREES_POINTS, largest.abs() <= NEAR_POINTS),
            Size::Grid { alike, far, .. } => {
                let enough = |cells: usize| cells * 100 >= self.compared * CELLS_PERCENT;
                judged(enough(alike) && far == 0, enough(self.compared - far))
            }
        }
    }

    /// Returns the distance in words, for one line of a table. Its x is on this axis.
    pub fn text(&self, x: &Axis) -> String {
        let at = |value: f64| {
            let value = x.name_of(value).map_or_else(|| number(value), str::to_owned);
            format!("({}: {value})", x.label)
        };
        // The signs of numbers: a minus, and a space at which no line ends.
        let signed = |value: f64, unit: &str| format!("{value:+.1}\u{a0}{unit}").replace('-', "\u{2212}");
        match self.size {
            Size::Relative { mean, worst, worst_x } => {
                let (mean, worst) = (100.0 * mean, signed(100.0 * worst, "%"));
                format!("mean {mean:.1}\u{a0}%, worst {worst} {}", at(worst_x))
            }
            Size::Points { largest, at: x } => format!("at most {} {}", signed(largest, "points"), at(x)),
            Size::Grid { median_ratio, alike, far, common_best, published_best, measured_best } => {
                let cells = self.compared;
                format!(
                    "{alike} of {cells} cells within a factor of 1.25, {far} beyond 2, the median one {median_ratio:.2} \
                     times; {common_best} of {published_best} best cells among the {measured_best} measured ones"
                )
            }
        }
    }
}

impl Verdict {
    /// Returns the judgement in words.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::Near => "near",
            Verdict::Differs => "differs",
        }
    }
}

/// Returns the distances of a chart: one for each measured series that predicts a published one, or one for a grid.
pub fn distances(chart: &Chart) -> Vec<Distance> {
    let pairs: Vec<(&Series, &Series)> = pairs(chart).collect();
    if chart.shape == Shape::Grid {
        return grid(&pairs).into_iter().collect();
    }
    pairs.into_iter().filter_map(|(measured, published)| of_series(chart.shape, measured, published)).collect()
}

/// The measured series, each with the published one that it predicts.
fn pairs(chart: &Chart) -> impl Iterator<Item = (&Series, &Series)> {
    let published =
        |name: &str| chart.series.iter().find(|series| series.origin == Origin::Published && series.name == name);
    let measured = chart.series.iter().filter(|series| series.origin == Origin::Measured);
    measured.filter_map(move |series| Some((series, published(series.predicts.as_deref()?)?)))
}

fn of_series(shape: Shape, measured: &Series, published: &Series) -> Option<Distance> {
    let at = |point: &Point| match shape {
        Shape::Curve => step(&measured.points, point.x),
        _ => interpolated(&measured.points, point.x),
    };
    let is_calibration = published.points.iter().all(|point| point.is_fitted);
    let judges = published.points.iter().filter(|point| is_calibration || !point.is_fitted);
    let compared: Vec<(&Point, f64)> = judges.filter_map(|point| Some((point, at(point)?))).collect();
    let size = match shape {
        Shape::Curve => {
            let differences = compared.iter().map(|(point, measured)| (100.0 * (measured - point.y), point.x));
            let (largest, at) = largest(differences)?;
            Size::Points { largest, at }
        }
        _ => {
            let relative = compared.iter().filter(|(point, _)| point.y != 0.0);
            let relative: Vec<(f64, f64)> =
                relative.map(|(point, measured)| (measured / point.y - 1.0, point.x)).collect();
            let (worst, worst_x) = largest(relative.iter().copied())?;
            let mean = relative.iter().map(|(difference, _)| difference.abs()).sum::<f64>() / relative.len() as f64;
            Size::Relative { mean, worst, worst_x }
        }
    };
    Some(Distance {
        measured: measured.name.clone(),
        published: published.name.clone(),
        compared: compared.len(),
        left_out: published.points.len() - compared.len(),
        is_calibration,
        size,
    })
}

/// The first value of the largest magnitude, and its x.
fn largest(differences: impl Iterator<Item = (f64, f64)>) -> Option<(f64, f64)> {
    differences.fold(None, |largest: Option<(f64, f64)>, next| match largest {
        Some(largest) if largest.0.abs() >= next.0.abs() => Some(largest),
        _ => Some(next),
    })
}

/// The value at `x`, linearly between the points around it; `None` outside of them.
fn interpolated(points: &[Point], x: f64) -> Option<f64> {
    let after = points.iter().position(|point| point.x >= x)?;
    let end = &points[after];
    if end.x == x {
        return Some(end.y);
    }
    let start = &points[after.checked_sub(1)?];
    Some(start.y + (end.y - start.y) * (x - start.x) / (end.x - start.x))
}

/// The value of a distribution at `x`: that of the last point up to it; 0 before the first point.
fn step(points: &[Point], x: f64) -> Option<f64> {
    points.last()?;
    Some(points.iter().take_while(|point| point.x <= x).last().map_or(0.0, |point| point.y))
}

fn grid(pairs: &[(&Series, &Series)]) -> Option<Distance> {
    let mut cells = Vec::new();
    let mut left_out = 0;
    for (row, (measured, published)) in pairs.iter().enumerate() {
        for point in &published.points {
            match measured.points.iter().find(|cell| cell.x == point.x) {
                Some(cell) => cells.push((row, cell.y, point.y)),
                None => left_out += 1,
            }
        }
    }
    let best_of = |value: fn(&(usize, f64, f64)) -> f64| cells.iter().map(value).fold(f64::INFINITY, f64::min);
    let (best_measured, best_published) = (best_of(|cell| cell.1), best_of(|cell| cell.2));
    let is_best = |value: f64, best: f64| value <= best * BEST_WITHIN;
    let measured_best = cells.iter().filter(|cell| is_best(cell.1, best_measured)).count();
    let published_best: Vec<_> = cells.iter().filter(|cell| is_best(cell.2, best_published)).collect();
    let common_best = published_best.iter().filter(|cell| is_best(cell.1, best_measured)).count();
    let mut ratios: Vec<f64> = cells.iter().filter(|cell| cell.2 > 0.0).map(|cell| cell.1 / cell.2).collect();
    ratios.sort_by(f64::total_cmp);
    let median_ratio = *ratios.get(ratios.len() / 2)?;
    let within = |limit: f64| ratios.iter().filter(|ratio| ratio.max(1.0 / **ratio) <= limit).count();
    let (alike, far) = (within(AGREES_RATIO), ratios.len() - within(NEAR_RATIO));
    Some(Distance {
        measured: "the grid".to_owned(),
        published: "grid".to_owned(),
        compared: cells.len(),
        left_out,
        is_calibration: false,
        size: Size::Grid { median_ratio, alike, far, common_best, published_best: published_best.len(), measured_best },
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Scale, samples};
    use super::*;

    fn of(shape: Shape, measured: &[(f64, f64)], published: &[(f64, f64)]) -> Vec<Distance> {
        let series = vec![
            samples::series("model", Origin::Measured, Some("paper"), measured),
            samples::series("other", Origin::Measured, None, measured),
            samples::series("paper", Origin::Published, None, published),
        ];
        distances(&samples::chart(shape, Axis::new("clients", "", Scale::Linear), series))
    }

    #[test]
    fn values_are_compared_at_the_published_x_and_never_beyond() {
        let found =
            of(Shape::Lines, &[(10.0, 10.0), (20.0, 20.0)], &[(5.0, 9.0), (10.0, 8.0), (15.0, 20.0), (40.0, 1.0)]);
        let [distance] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((distance.compared, distance.left_out), (2, 2));
        assert_eq!(distance.size, Size::Relative { mean: 0.25, worst: 0.25, worst_x: 10.0 });
        assert_eq!(distance.verdict(), Verdict::Near);
        let axis = Axis::new("clients", "", Scale::Linear);
        assert_eq!(distance.text(&axis), "mean 25.0\u{a0}%, worst +25.0\u{a0}% (clients: 10)");
    }

    #[test]
    fn the_verdict_follows_from_the_mean_and_the_worst() {
        let verdict = |measured: &[(f64, f64)]| of(Shape::Lines, measured, &[(1.0, 100.0), (2.0, 100.0)])[0].verdict();
        assert_eq!(verdict(&[(1.0, 90.0), (2.0, 80.0)]), Verdict::Agrees);
        assert_eq!(verdict(&[(1.0, 100.0), (2.0, 70.0)]), Verdict::Near);
        assert_eq!(verdict(&[(1.0, 100.0), (2.0, 30.0)]), Verdict::Differs);
    }

    #[test]
    fn nothing_in_common_is_no_distance() {
        assert_eq!(of(Shape::Lines, &[(1.0, 1.0)], &[(2.0, 1.0)]), []);
        assert_eq!(of(Shape::Lines, &[], &[(2.0, 1.0)]), []);
        assert_eq!(of(Shape::Lines, &[(2.0, 1.0)], &[(2.0, 0.0)]), []);
        assert_eq!(of(Shape::Curve, &[], &[(2.0, 1.0)]), []);
        assert_eq!(of(Shape::Grid, &[(1.0, 1.0)], &[(2.0, 1.0)]), []);
    }

    #[test]
    fn distributions_are_compared_in_points_as_steps() {
        let published = [(1.0, 0.5), (2.0, 0.6), (9.0, 1.0)];
        let found = of(Shape::Curve, &[(1.0, 0.5), (3.0, 1.0)], &published);
        let Size::Points { largest, at } = found[0].size else { panic!("{found:?}") };
        assert!((largest + 10.0).abs() < 1e-9 && at == 2.0, "{found:?}");
        assert_eq!(found[0].left_out, 0);
        // Before its first point, a distribution is 0.
        let found = of(Shape::Curve, &[(2.0, 0.6), (9.0, 1.0)], &published);
        assert_eq!(found[0].size, Size::Points { largest: -50.0, at: 1.0 });
        assert_eq!(found[0].verdict(), Verdict::Differs);
    }

    #[test]
    fn grids_are_compared_by_their_best_cells_and_their_median() {
        let published = [(1.0, 10.0), (2.0, 5.0), (4.0, 5.5), (8.0, 20.0)];
        let found = of(Shape::Grid, &[(1.0, 11.0), (2.0, 5.5), (4.0, 11.0), (8.0, 22.0), (16.0, 1.0)], &published);
        let [distance] = found.as_slice() else { panic!("{found:?}") };
        let Size::Grid { median_ratio, .. } = distance.size else { panic!("{found:?}") };
        assert!((median_ratio - 1.1).abs() < 1e-9, "{median_ratio}");
        // One of four cells is twice the published one: the grid is like the other, but not everywhere.
        assert_eq!((distance.compared, distance.verdict()), (4, Verdict::Near));
        let axis = Axis::new("rows", "", Scale::Category);
        assert_eq!(
            distance.text(&axis),
            "3 of 4 cells within a factor of 1.25, 0 beyond 2, the median one 1.10 times; 1 of 2 best cells among the 1 \
             measured ones"
        );
        let verdict = |third: f64| {
            let measured = [(1.0, 11.0), (2.0, 5.5), (4.0, third), (8.0, 22.0)];
            of(Shape::Grid, &measured, &published)[0].verdict()
        };
        assert_eq!([verdict(5.5), verdict(11.1)], [Verdict::Agrees, Verdict::Differs]);
    }

    #[test]
    fn points_that_were_fitted_judge_nothing() {
        let mut published = samples::series("paper", Origin::Published, None, &[(1.0, 100.0), (2.0, 100.0)]);
        let measured = samples::series("model", Origin::Measured, Some("paper"), &[(1.0, 100.0), (2.0, 80.0)]);
        let distance = |published: &Series| of_series(Shape::Lines, &measured, published).unwrap();
        let mean = |distance: &Distance| match distance.size {
            Size::Relative { mean, .. } => (100.0 * mean).round(),
            _ => panic!("{distance:?}"),
        };
        published.points[0].is_fitted = true;
        let first = distance(&published);
        assert_eq!((mean(&first), first.left_out, first.is_calibration), (20.0, 1, false));
        published.points[1].is_fitted = true;
        let all = distance(&published);
        assert_eq!((mean(&all), all.left_out, all.is_calibration), (10.0, 0, true));
    }
}
