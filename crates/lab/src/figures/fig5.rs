//! Figure 5: the round trips of inserts, by the rows that share a lock and the locks that a message takes.
//!
//! Eight clients fill a table of 512 rows, each until it finds no path. A cell is the 99th percentile of the round trips
//! of all inserts.

use guira_fabric_sim::{Card, Cluster};

use super::chart;
use super::parallel::measure;
use crate::as_run::client::{ClientRules, UpdateReads};
use crate::as_run::hash::{Distance, Placement, Program};
use crate::as_run::locks::LockRules;
use crate::as_run::run::fill;
use crate::as_run::table::{Layout, RowSums, Table};
use crate::experiment::{LabError, RunOptions, Watch};
use crate::report::{Chart, Origin, Point, Series, Shape};

/// Rows of the table.
const ROWS: u64 = 512;
/// Clients that fill it.
const CLIENTS: u32 = 8;
/// The paper's factor.
const FACTOR: f64 = 2.3;
/// Rows that share a lock.
const ROWS_PER_LOCK: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
/// Locks that a message takes at most.
const LOCKS_PER_MESSAGE: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A cell of the grid.
#[derive(Clone, Copy, Debug)]
struct Cell {
    rows_per_lock: u32,
    locks_per_message: u32,
}

/// Measures figure 5.
///
/// # Errors
/// [`LabError::Stopped`], or an error of a simulation.
pub fn grid_of_locks(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let tables = if run.quick { 1 } else { 5 };
    let cells: Vec<Cell> = LOCKS_PER_MESSAGE
        .into_iter()
        .flat_map(|locks_per_message| ROWS_PER_LOCK.map(|rows_per_lock| Cell { rows_per_lock, locks_per_message }))
        .collect();
    let points = measure("figure 5, as-run", &cells, run, watch, |cell| as_run_cell(*cell, tables, run.seed))?;
    let of_tables = format!("The inserts of {tables} tables of {ROWS} rows, filled by {CLIENTS} clients.");
    let atomics = "The authors' simulator lets a masked CAS begin at any byte of the lock table. No card does, and here it \
                   begins at a multiple of 8 bytes: paths that cross such a border take one message more. That matters \
                   where few rows share a lock.";
    let title = "99th percentile of round trips of an insert";
    Ok(chart("5", title, Shape::Grid, grid(&cells, points), &[&of_tables, atomics]))
}

/// Measures a cell with the authors' messages.
fn as_run_cell(cell: Cell, tables: u64, seed: u64) -> Result<Point, LabError> {
    let (mut round_trips, mut filled) = (Vec::new(), 0.0);
    for table in 0..tables {
        let placement = Placement::new(ROWS, Program::Simulator, Distance::Dependent { factor: FACTOR });
        let rows_per_lock = u64::from(cell.rows_per_lock);
        let locks = LockRules { rows_per_lock, locks_per_message: cell.locks_per_message };
        let layout = Layout { placement, locks, sums: RowSums::None };
        let empty = Table::filled(layout.clone(), 0);
        let rules = ClientRules { layout, covering_bytes: 0, update_reads: UpdateReads::Covering };
        let cluster = Cluster::new(Card::ConnectX5);
        let result = fill(&empty, &rules, cluster, CLIENTS, seed.wrapping_add(table));
        let result = result.map_err(|error| failed("as-run", cell, &error.to_string()))?;
        round_trips.extend(result.round_trips);
        filled += result.fill / tables as f64;
    }
    Ok(point(cell, round_trips, filled))
}

fn failed(setting: &str, cell: Cell, reason: &str) -> LabError {
    let Cell { rows_per_lock, locks_per_message } = cell;
    let what = format!("{setting} with {rows_per_lock} rows per lock and {locks_per_message} locks per message");
    LabError::Failed { what, reason: reason.to_owned() }
}

/// Returns the point of a cell in which inserts took these round trips.
fn point(cell: Cell, mut round_trips: Vec<u64>, fill: f64) -> Point {
    round_trips.sort_unstable();
    let quantile = |share: f64| {
        let index = ((round_trips.len() as f64 * share).ceil() as usize).saturating_sub(1);
        round_trips.get(index).copied().unwrap_or(0) as f64
    };
    let inserts = round_trips.len() as f64;
    let mean = round_trips.iter().sum::<u64>() as f64 / inserts.max(1.0);
    let trips = "round trips";
    let more = [("p50", trips, quantile(0.5)), ("p90", trips, quantile(0.9)), ("mean", trips, mean)];
    let rest = [("maximum", trips, quantile(1.0)), ("inserts", "", inserts), ("fill at the end", "", fill)];
    let more =
        more.into_iter().chain(rest).map(|(name, unit, value)| (name.to_owned(), unit.to_owned(), value)).collect();
    Point { more, ..Point::new(f64::from(cell.rows_per_lock), quantile(0.99)) }
}

/// Returns the rows of the grid: a series for each number of locks per message.
fn grid(cells: &[Cell], points: Vec<Point>) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for (cell, point) in cells.iter().zip(points) {
        let plural = if cell.locks_per_message == 1 { "" } else { "s" };
        let name = format!("{} lock{plural} per message", cell.locks_per_message);
        match series.last_mut() {
            Some(last) if last.name == name => last.points.push(point),
            _ => {
                let predicts = Some(name.clone());
                series.push(Series { name, origin: Origin::Measured, predicts, points: vec![point] });
            }
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_inserts() {
        let cell = Cell { rows_per_lock: 16, locks_per_message: 64 };
        let point = point(cell, (1..=200).rev().collect(), 0.5);
        let more: Vec<f64> = point.more.iter().map(|(_, _, value)| *value).collect();
        assert_eq!((point.x, point.y, more), (16.0, 198.0, vec![100.0, 180.0, 100.5, 200.0, 200.0, 0.5]));
    }

    /// One lock for the table serializes inserts, and locks of one row that are taken one by one cost a trip each.
    #[test]
    fn both_ends_cost_more_than_the_middle() {
        let cell = |rows_per_lock, locks_per_message| {
            as_run_cell(Cell { rows_per_lock, locks_per_message }, 1, 1).expect("a cell").y
        };
        let (middle, coarse, fine) = (cell(8, 64), cell(512, 64), cell(1, 1));
        assert!(middle < 10.0 && coarse > 4.0 * middle && fine > 4.0 * middle, "{middle} {coarse} {fine}");
        assert_eq!(cell(8, 64), middle, "runs repeat");
    }
}
