//! Figure 5: the round trips of inserts, by the rows that share a lock and the locks that a message takes.
//!
//! Eight clients fill a table of 512 rows, each until it finds no path. A cell is the 99th percentile of the round
//! trips of all inserts.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use guira_fabric::{Profile, Region};
use guira_fabric_sim::{Card, Cluster, Sim, SimOptions, SimRegion, Stopped};
use guira_layout::{Preset, TableConfig};
use guira_rcuckoo::{ClientConfig, ErrorKind, Table as RealTable};

use super::chart_of;
use super::heap_table::config;
use super::parallel::measure;
use crate::as_run::client::ClientRules;
use crate::as_run::hash::{Distance, Placement, Program};
use crate::as_run::locks::LockRules;
use crate::as_run::run::fill;
use crate::as_run::table::{Layout, RowSums, Table};
use crate::experiment::{LabError, RunOptions, Watch};
use crate::report::{Chart, Origin, Point, Series, Shape};
use crate::simulated::{Claim, Failure, FillPlan, FilledTable, SimClient};

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

/// The heading of the charts.
const TITLE: &str = "Figure 5: 99th percentile of round trips of an insert";

/// Measures figure 5 with the authors' messages.
///
/// # Errors
/// [`LabError::Stopped`], or an error of a simulation.
pub fn grid_of_locks(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let (cells, tables) = (cells(&LOCKS_PER_MESSAGE), tables(run));
    let points = measure("figure 5, as-run", &cells, run, watch, |cell| as_run_cell(*cell, tables, run.seed))?;
    let atomics = "Where few rows share a lock, the measured cells are higher, for two reasons. The authors' simulator \
                   lets a masked CAS begin at any byte of the lock table; no card does, and here it begins at a \
                   multiple of 8 bytes, so that a path across such a border takes one more message. And here the table \
                   is filled to the last entry, which the published runs of these cells did not reach.";
    Ok(chart_of("5", "5", &format!("{TITLE}, as-run"), Shape::Grid, grid(&cells, points), &[&note(tables), atomics]))
}

/// Measures figure 5 with the clients of preset `paper`.
///
/// # Errors
/// Same as [`grid_of_locks`].
pub fn grid_as_printed(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let (cells, tables) = (cells(&LOCKS_PER_MESSAGE), tables(run));
    let cell = |cell: &Cell| real_cell(Preset::Paper, *cell, tables, run.seed);
    let points = measure("figure 5, as-printed", &cells, run, watch, cell)?;
    let title = format!("{TITLE}, as-printed");
    Ok(chart_of("5-as-printed", "5", &title, Shape::Grid, grid(&cells, points), &[&note(tables)]))
}

/// Measures figure 5 with the clients that users run.
///
/// # Errors
/// Same as [`grid_of_locks`].
pub fn grid_of_guira(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let (cells, tables) = (cells(&LOCKS_PER_MESSAGE[..GUIRA_WIDTHS]), tables(run));
    let cell = |cell: &Cell| real_cell(Preset::Hardened, *cell, tables, run.seed);
    let points = measure("figure 5, Guira", &cells, run, watch, cell)?;
    let locks = "A lock has 16 bits, which name its holder, so that a message takes 4 locks at most.";
    let title = format!("{TITLE}, Guira");
    Ok(chart_of("5-guira", "5", &title, Shape::Grid, grid(&cells, points), &[&note(tables), locks]))
}

/// The rows of Guira's grid: a message takes 1, 2 or 4 of its locks.
const GUIRA_WIDTHS: usize = 3;

fn cells(locks_per_message: &[u32]) -> Vec<Cell> {
    let of_row = |locks_per_message: &u32| {
        let locks_per_message = *locks_per_message;
        ROWS_PER_LOCK.map(|rows_per_lock| Cell { rows_per_lock, locks_per_message })
    };
    locks_per_message.iter().flat_map(of_row).collect()
}

/// Returns the number of tables that are filled for a cell.
fn tables(run: &RunOptions) -> u64 {
    if run.quick { 1 } else { 5 }
}

fn note(tables: u64) -> String {
    let tables = if tables == 1 { "one table".to_owned() } else { format!("{tables} tables") };
    format!("The inserts of {tables} of {ROWS} rows, filled by {CLIENTS} clients.")
}

/// Measures a cell with real clients.
fn real_cell(preset: Preset, cell: Cell, tables: u64, seed: u64) -> Result<Point, LabError> {
    let (mut round_trips, mut filled) = (Vec::new(), 0.0);
    for table in 0..tables {
        let seed = seed.wrapping_add(table);
        let inserts =
            fill_by_clients(preset, cell, seed).map_err(|reason| failed(&preset.to_string(), cell, &reason))?;
        filled += inserts.fill / tables as f64;
        round_trips.extend(inserts.round_trips);
    }
    Ok(point(cell, round_trips, filled))
}

/// The inserts of real clients.
#[derive(Default)]
struct Inserts {
    round_trips: Vec<u64>,
    fill: f64,
    error: Option<String>,
}

/// Fills a table by real clients, each of which inserts keys of its own until the table is full for it.
fn fill_by_clients(preset: Preset, cell: Cell, seed: u64) -> Result<Inserts, String> {
    let of_preset = config(preset, ROWS, Some(FACTOR), seed).map_err(|error| error.to_string())?;
    let physical_locks = ROWS / u64::from(cell.rows_per_lock);
    let repair_regions = of_preset.repair_regions.min(u8::try_from(physical_locks).unwrap_or(u8::MAX));
    let rows_per_lock = cell.rows_per_lock;
    let config = TableConfig { rows_per_lock, physical_locks, repair_regions, ..of_preset };
    let entries = config.max_entries();
    let caps = Profile::Mlx5.caps();
    let plan = FillPlan { config, caps, records: 0, value_bytes: None, insert_row: None, seed };
    let empty = FilledTable::new(&plan, &mut |_| ControlFlow::Continue(())).map_err(|error| error.to_string())?;
    let cluster = Cluster::new(Card::ConnectX5);
    let mut sim = Sim::new(empty.region().clone(), &SimOptions::on_cluster(seed, cluster));
    let inserts = Rc::new(RefCell::new(Inserts::default()));
    for client in 0..CLIENTS {
        let (table, inserts) = (Arc::clone(empty.table()), Rc::clone(&inserts));
        let of_table = ClientConfig::for_table(&table).across(&caps);
        let seed = seed ^ u64::from(client);
        let config = ClientConfig { locks_per_message: cell.locks_per_message, seed, ..of_table };
        sim.spawn_on(client % cluster.hosts, move |region| async move {
            if let Err(reason) = insert_until_full(region, &table, config, client, &inserts).await {
                inserts.borrow_mut().error = Some(reason);
            }
        });
    }
    let stopped = sim.run();
    drop(sim);
    let mut inserts = inserts.take();
    if let Some(reason) = inserts.error.take() {
        return Err(reason);
    }
    if stopped != Stopped::Ended {
        return Err("clients wait for nothing".to_owned());
    }
    inserts.fill = inserts.round_trips.len() as f64 / entries as f64;
    Ok(inserts)
}

async fn insert_until_full(
    region: SimRegion,
    table: &Arc<RealTable>,
    config: ClientConfig,
    number: u32,
    inserts: &RefCell<Inserts>,
) -> Result<(), String> {
    let lane = region.lane();
    let claimed = SimClient::claim(region, lane, table, config, number as u16).await;
    let mut client = match claimed.map_err(|error| error.to_string())? {
        Claim::Taken(client, _) => client,
        Claim::NoSlot => return Err("no slot is free".to_owned()),
    };
    for key in (number..).step_by(CLIENTS as usize) {
        let (key, before) = (key.to_le_bytes(), client.traffic().round_trips);
        match client.insert(&key, &key).await {
            Ok(_) => inserts.borrow_mut().round_trips.push(client.traffic().round_trips - before),
            Err(Failure::Operation(error)) if matches!(error.kind, ErrorKind::Full { .. }) => break,
            Err(failure) => return Err(format!("{failure:?}")),
        }
    }
    client.close().await.map_err(|failure| format!("{failure:?}"))
}

/// Measures a cell with the authors' messages.
fn as_run_cell(cell: Cell, tables: u64, seed: u64) -> Result<Point, LabError> {
    let (mut round_trips, mut filled) = (Vec::new(), 0.0);
    for table in 0..tables {
        let placement = Placement::new(ROWS, Program::Simulator, Distance::Dependent { factor: FACTOR });
        let rows_per_lock = u64::from(cell.rows_per_lock);
        let locks = LockRules { rows_per_lock, locks_per_message: cell.locks_per_message };
        let layout = Layout { placement, locks, sums: RowSums::None, entry_words: 1 };
        let empty = Table::filled(layout.clone(), 0);
        let rules = ClientRules::new(layout);
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

    #[test]
    fn real_clients_fill_a_table_with_any_locks() {
        for (preset, widths) in [(Preset::Paper, [1, 64]), (Preset::Hardened, [1, 4])] {
            for (rows_per_lock, locks_per_message) in [(1, widths[1]), (8, widths[0]), (512, widths[1])] {
                let cell = Cell { rows_per_lock, locks_per_message };
                let inserts = fill_by_clients(preset, cell, 1).expect("a fill");
                assert!(inserts.fill > 0.85, "{preset} {cell:?}: {}", inserts.fill);
                assert!(inserts.round_trips.iter().all(|trips| *trips >= 2), "an insert locks, and then writes");
            }
        }
    }
}
