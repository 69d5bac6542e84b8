//! Experiments on other stores than RCuckoo.

use guira_baselines::linear::{Builder, LinearStore, Shape, Table as LinearTable};
use guira_fabric::{Profile, WORD_BYTES};
use guira_fabric_sim::Cluster;
use guira_layout::EntryFormat;

use super::cell::{self, Outcome, failed};
use super::configure::{cluster_of, load};
use crate::experiment::{Experiment, LabError, RunOptions, Setting};
use crate::simulated::{LOADED, Load, Records, run_store};

/// Bytes that a READ of linear probing fetches, unless it is given in slots.
const READ_BYTES: u64 = 256;
/// Records whose homes are loaded ahead of their use.
const AHEAD: u64 = 16;
/// Records between two looks at whether the run is to end.
const STOP_RECORDS: u64 = 1 << 20;

/// An experiment on a store, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Configured {
    pub(super) table: TablePlan,
    cluster: Cluster,
    load: Load,
    read_slots: u64,
}

/// The parameters of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TablePlan {
    setting: Setting,
    shape: Shape,
    records: u64,
    keys: Records,
}

/// A table with its records.
pub(super) enum Filled {
    Linear(LinearTable),
}

impl TablePlan {
    /// Returns the bytes of memory that the table takes.
    pub(super) fn needed_bytes(&self) -> u64 {
        self.shape.bytes()
    }

    /// Creates the table with its records.
    pub(super) fn filled(&self, is_stopped: &dyn Fn() -> bool) -> Result<Filled, LabError> {
        let failed = |error| failed("filling the table", &error);
        let mut builder = Builder::new(self.shape, Profile::Mlx5.caps()).map_err(failed)?;
        let (key, mut value) = (|record| self.keys.key(record) as u32, Vec::new());
        for record in 0..self.records {
            if record % STOP_RECORDS == 0 && is_stopped() {
                return Err(LabError::Stopped);
            }
            builder.prefetch(key((record + AHEAD).min(self.records - 1)));
            self.keys.value_into(record, LOADED, &mut value);
            builder.add(key(record), &value).map_err(failed)?;
        }
        Ok(Filled::Linear(builder.finish()))
    }
}

/// Prepares an experiment.
///
/// # Errors
/// The parameters do not go together.
pub(super) fn configure(experiment: &Experiment, options: &RunOptions, least_us: f64) -> Result<Configured, LabError> {
    experiment.check()?;
    let conflict = |message: String| LabError::Conflict(message);
    let EntryFormat::Fixed { value_bytes, .. } = experiment.format else {
        return Err(conflict("the records of a store have a fixed length".to_owned()));
    };
    let value_bytes = usize::from(value_bytes);
    let keys = Records::scattered(options.seed, value_bytes).map_err(|error| conflict(error.to_string()))?;
    let shape = Shape { slots: experiment.entries, value_bytes };
    let records = (experiment.entries as f64 * experiment.fill / 100.0) as u64;
    if records > keys.max() {
        return Err(conflict(format!("{records} records are more than there are keys of 4 bytes")));
    }
    let slot_bytes = shape.slot_words() * WORD_BYTES;
    let read_slots = experiment.read_slots.map_or((READ_BYTES / slot_bytes).max(1), u64::from);
    let most = Profile::Mlx5.caps().max_verb_words as u64 * WORD_BYTES / slot_bytes;
    if read_slots > most {
        return Err(conflict(format!("a READ brings at most {most} slots of {slot_bytes} bytes: lower read-slots")));
    }
    let table = TablePlan { setting: experiment.setting, shape, records, keys };
    Ok(Configured { table, cluster: cluster_of(experiment), load: load(experiment, options, least_us), read_slots })
}

/// Carries out an experiment, and checks it: anything wrong is an error.
pub(super) fn measure(
    experiment: &Experiment,
    configured: &Configured,
    filled: &Filled,
    options: &RunOptions,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Outcome, LabError> {
    let Configured { table: TablePlan { keys, records, .. }, cluster, load, read_slots } = configured;
    let mut progress = cell::progress(is_stopped);
    let stats = match filled {
        Filled::Linear(table) => {
            let store = LinearStore::new(table.clone(), *read_slots);
            run_store(load, store, *keys, *records, cluster, &mut progress)
        }
    };
    let stats = stats.map_err(cell::run_error)?;
    cell::check(&stats)?;
    Ok(cell::outcome_of(experiment, &stats, options))
}
