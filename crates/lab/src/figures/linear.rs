//! What the model of linear probing computes, for tables as large as those of its paper: the size of READs, and the cost of a
//! lookup. No network is involved.

use guira_baselines::linear::model::{Costs, Distances, bound};

use super::chart;
use super::parallel::measure;
use crate::experiment::{LabError, RunOptions, Watch};
use crate::report::{Axis, Chart, Origin, Point, Scale, Series, Shape};

/// Records of the paper's tables.
const RECORDS: u64 = 120 << 20;
/// Bytes of a record.
const RECORD_BYTES: u64 = 8;
/// The fill of its tables, in percent.
const FILLS: [u64; 7] = [25, 50, 65, 80, 85, 90, 95];
/// The fill of those of its figure 10.
const COMPARED_FILLS: [u64; 2] = [50, 85];
/// The longest READ of that figure, in slots.
const COMPARED_SLOTS: usize = 48;

fn distances(fill: u64) -> Distances {
    Distances::of(RECORDS * 100 / fill, RECORDS)
}

/// Computes the size of READs by the fill: part of table 1.
///
/// # Errors
/// [`LabError::Stopped`].
pub fn read_sizes(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let points = measure("linear-table-1-slots", &FILLS, run, watch, |fill| {
        let distances = distances(*fill);
        let (best, printed) = (distances.cheapest(RECORD_BYTES, &Costs::PRINTED), printed_slots(*fill));
        let cost = |slots| distances.cost_ns(slots, RECORD_BYTES, &Costs::PRINTED);
        Ok((*fill as f64, best, cost(printed) / cost(best)))
    })?;
    let bound = bound(RECORD_BYTES, &Costs::PRINTED);
    let of = |most: usize| points.iter().map(|(fill, best, _)| Point::new(*fill, (*best).min(most) as f64)).collect();
    let series = vec![
        series("variable", Some("Variable Linear"), of(bound)),
        series("unbounded", Some("Var. Linear (uncons.)"), of(usize::MAX)),
    ];
    let worst = points.iter().map(|(_, _, ratio)| *ratio).fold(1.0, f64::max);
    let note = format!(
        "The formula has other minima than the paper, on a flat curve: by the formula, lookups with the paper's sizes cost at \
         most {:.1} % more.",
        100.0 * (worst - 1.0)
    );
    Ok(chart("linear-table-1-slots", "Linear probing, table 1: slots of a READ", Shape::Lines, series, &[&note]))
}

/// Returns the size that table 1 prints for a fill, without a bound.
fn printed_slots(fill: u64) -> usize {
    let printed =
        crate::published::series("linear-table-1-slots").into_iter().find(|series| series.name.contains("uncons"));
    let point = printed.and_then(|series| series.points.into_iter().find(|point| point.x == fill as f64));
    point.map_or(1, |point| point.y as usize)
}

/// Computes the cost of a lookup by the size of READs: figure 10(b).
///
/// # Errors
/// [`LabError::Stopped`].
pub fn computed_costs(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let curves = measure("linear-10-computed", &COMPARED_FILLS, run, watch, |fill| {
        let distances = distances(*fill);
        let cost_us = |slots| distances.cost_ns(slots, RECORD_BYTES, &Costs::PRINTED) / 1e3;
        let points = (1..=COMPARED_SLOTS).map(|slots| Point::new(slots as f64, cost_us(slots))).collect();
        Ok(series(&format!("{fill} % full"), None, points))
    })?;
    let bound = bound(RECORD_BYTES, &Costs::PRINTED);
    let note = format!("READs of more than {bound} slots would fill the link at the highest rate of READs.");
    Ok(Chart {
        x: Axis::new("slots of a READ", "", Scale::Linear),
        y: Axis::new("computed cost of a lookup", "µs", Scale::Linear),
        ..chart("linear-10-computed", "Linear probing, figure 10(b): computed cost", Shape::Lines, curves, &[&note])
    })
}

fn series(name: &str, predicts: Option<&str>, points: Vec<Point>) -> Series {
    Series { name: name.to_owned(), origin: Origin::Measured, predicts: predicts.map(str::to_owned), points }
}
