//! Experiments of setting `as-run`: the messages that the paper's authors' code posted.

use guira_fabric_sim::Cluster;

use super::cell::{self, Outcome, failed};
use super::configure::{cluster_of, times};
use crate::as_run::client::{ClientRules, UpdateReads};
use crate::as_run::hash::{Distance, Placement, Program};
use crate::as_run::locks::LockRules;
use crate::as_run::run::{Keys, Measured, OPERATION_COMPUTE_NS, Run, RunError, run};
use crate::as_run::search::ENTRIES;
use crate::as_run::table::{Layout, RowSums, Table};
use crate::experiment::{Experiment, Hashing, LabError, Mix, RunOptions};
use crate::workload::Zipfian;

/// The locality factor of the authors' runs.
const FACTOR: f64 = 2.3;
const ROWS_PER_LOCK: u64 = 16;
const LOCKS_PER_MESSAGE: u32 = 64;
/// The bound of covering READs of lookups that the authors configured, in bytes.
const COVERING_BYTES: u64 = 256;
/// Sentence on what is not modelled.
const NOTE: &str = "As run: the authors' clients compute longer for a change than for a lookup, by their own figures; \
    only one constant for every operation is modelled, fitted to 10 clients of figure 6(a).";

/// An experiment of the setting, ready to run.
#[derive(Clone, Debug)]
pub(super) struct AsRun {
    pub(super) table: TablePlan,
    cluster: Cluster,
    run: Run,
    covering_bytes: u64,
}

/// The parameters of its table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TablePlan {
    rows: u64,
    keys: u32,
    distance: Distance,
    locks: LockRules,
}

impl TablePlan {
    /// Returns the bytes of memory that the table takes.
    pub(super) fn needed_bytes(&self) -> u64 {
        self.rows * RowSums::None.row_words() * 8 + self.locks.table_bytes(self.rows)
    }

    /// Creates the table with its keys.
    pub(super) fn filled(&self) -> Table {
        let placement = Placement::new(self.rows, Program::Store, self.distance);
        let layout = Layout { placement, locks: self.locks, sums: RowSums::None };
        Table::filled(layout, self.keys)
    }
}

/// Prepares an experiment.
///
/// # Errors
/// The setting has no such workload, or the parameters do not go together.
pub(super) fn configure(experiment: &Experiment, options: &RunOptions, least_us: f64) -> Result<AsRun, LabError> {
    experiment.check()?;
    let conflict = |message: &str| LabError::Conflict(message.to_owned());
    let read_percent = match experiment.workload {
        Mix::A => 50,
        Mix::B => 95,
        Mix::C => 100,
        Mix::W | Mix::AInsert | Mix::BInsert => {
            return Err(conflict("setting as-run has workloads a, b and c only"));
        }
    };
    let rows = (experiment.entries / ENTRIES as u64).next_multiple_of(2).max(2);
    let keys = (rows * ENTRIES as u64) as f64 * experiment.fill / 100.0;
    let keys = u32::try_from(keys as u64).map_err(|_| conflict("setting as-run has keys of 32 bits"))?;
    let distribution = match experiment.workload {
        Mix::C => Keys::OneEach,
        _ => match Zipfian::new(keys.into(), experiment.theta) {
            Ok(zipfian) => Keys::Zipf(zipfian),
            Err(error) => return Err(conflict(&format!("setting as-run: {error}"))),
        },
    };
    let (span, warm_ns) = times(experiment, options, least_us);
    let run = Run {
        clients: experiment.clients,
        read_percent,
        keys: distribution,
        operation_compute_ns: OPERATION_COMPUTE_NS,
        change_compute_ns: 0,
        warm_ns,
        span,
        seed: options.seed,
    };
    let distance = match experiment.hashing {
        Some(Hashing::Independent) => Distance::Independent,
        Some(Hashing::Dependent) | None => Distance::Dependent { factor: experiment.factor.unwrap_or(FACTOR) },
    };
    let locks = LockRules {
        rows_per_lock: experiment.rows_per_lock.map_or(ROWS_PER_LOCK, u64::from),
        locks_per_message: experiment.locks_per_message.map_or(LOCKS_PER_MESSAGE, u32::from),
    };
    let covering_bytes = experiment.covering_bytes.map_or(COVERING_BYTES, u64::from);
    let table = TablePlan { rows, keys, distance, locks };
    Ok(AsRun { table, cluster: cluster_of(experiment), run, covering_bytes })
}

/// Carries out an experiment on a copy of `table`.
pub(super) fn measure(
    experiment: &Experiment,
    configured: &AsRun,
    table: &Table,
    options: &RunOptions,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Outcome, LabError> {
    let layout = table.layout.clone();
    let copy = Table { layout: layout.clone(), region: table.region.copied(), keys: table.keys };
    let rules = ClientRules { layout, covering_bytes: configured.covering_bytes, update_reads: UpdateReads::Covering };
    let mut progress = cell::progress(is_stopped);
    let measured = run(&copy, &rules, configured.cluster, &configured.run, &mut progress);
    let measured = measured.map_err(|error| match error {
        RunError::Stopped => LabError::Stopped,
        error => failed("an experiment as run", &error),
    })?;
    let Measured { counts, steadiness, usage, .. } = &measured;
    Ok(cell::outcome(experiment, options, counts, *steadiness, usage, vec![NOTE.to_owned()]))
}
