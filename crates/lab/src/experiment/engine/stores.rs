//! Experiments on other stores than RCuckoo.

use guira_baselines::linear::model::{Costs, Distances, bound};
use guira_baselines::linear::{Builder, LinearStore, Shape, Table as LinearTable};
use guira_fabric::{Profile, WORD_BYTES};
use guira_fabric_sim::Cluster;
use guira_layout::EntryFormat;

use super::cell::{self, Outcome, failed};
use super::configure::{cluster_of, load};
use crate::experiment::{Experiment, LabError, Lookup, ReadCosts, RunOptions, Setting};
use crate::simulated::{LOADED, Load, Records, RunStats, run_store};
use crate::steady::Span;

/// Bytes that a READ of linear probing fetches, unless it is given in slots.
const READ_BYTES: u64 = 256;
/// Records whose homes are loaded ahead of their use.
const AHEAD: u64 = 16;
/// Records between two looks at whether the run is to end.
const STOP_RECORDS: u64 = 1 << 20;
/// The table in which the costs of READs are measured, whose slots have a word, and the virtual time that it takes.
const MEASURED_SLOTS: u64 = 1024;
const MEASURED_VALUE_BYTES: usize = 4;
const MEASURED_NS: u64 = 1_000_000;

/// An experiment on a store, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Configured {
    pub(super) table: TablePlan,
    cluster: Cluster,
    load: Load,
    read_size: ReadSize,
}

/// The size of the READs of linear probing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReadSize {
    /// So many slots.
    Slots(u64),
    /// As many as the model finds cheapest for a table that is so full, in percent.
    Cheapest { fill: f64, costs: ReadCosts, is_bounded: bool },
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
    let table = TablePlan { setting: experiment.setting, shape, records, keys };
    let read_size = read_size(experiment, &shape)?;
    Ok(Configured { table, cluster: cluster_of(experiment), load: load(experiment, options, least_us), read_size })
}

/// Returns the size of the READs of an experiment.
fn read_size(experiment: &Experiment, shape: &Shape) -> Result<ReadSize, LabError> {
    let is_bounded = match experiment.lookup {
        None | Some(Lookup::Fixed) => {
            let slot_bytes = shape.slot_words() * WORD_BYTES;
            let slots = experiment.read_slots.map_or((READ_BYTES / slot_bytes).max(1), u64::from);
            let most = Profile::Mlx5.caps().max_verb_words as u64 * WORD_BYTES / slot_bytes;
            if slots > most {
                let message = format!("a READ brings at most {most} slots of {slot_bytes} bytes: lower read-slots");
                return Err(LabError::Conflict(message));
            }
            return Ok(ReadSize::Slots(slots));
        }
        Some(Lookup::Variable) => true,
        Some(Lookup::Unbounded) => false,
    };
    let fill = experiment.assumed_fill.unwrap_or(experiment.fill);
    Ok(ReadSize::Cheapest { fill, costs: experiment.read_costs.unwrap_or(ReadCosts::Printed), is_bounded })
}

impl Configured {
    /// Returns the slots of a READ.
    fn read_slots(&self) -> Result<u64, LabError> {
        let (fill, costs, is_bounded) = match self.read_size {
            ReadSize::Slots(slots) => return Ok(slots),
            ReadSize::Cheapest { fill, costs, is_bounded } => (fill, costs, is_bounded),
        };
        let costs = match costs {
            ReadCosts::Printed => Costs::PRINTED,
            ReadCosts::Measured => self.measured_costs()?,
        };
        let Shape { slots, .. } = self.table.shape;
        let slot_bytes = self.table.shape.slot_words() * WORD_BYTES;
        let cheapest = Distances::of(slots, (slots as f64 * fill / 100.0) as u64).cheapest(slot_bytes, &costs);
        Ok(if is_bounded { cheapest.min(bound(slot_bytes, &costs)) } else { cheapest } as u64)
    }

    /// Measures the costs of READs on the cluster, as section 3.5 of the paper does: the latency of one READ alone, and the
    /// rate at which all clients have them. A READ has a word here, where theirs has none.
    fn measured_costs(&self) -> Result<Costs, LabError> {
        let keys =
            Records::scattered(self.load.seed, MEASURED_VALUE_BYTES).map_err(|error| failed("a store", &error))?;
        let shape = Shape { slots: MEASURED_SLOTS, value_bytes: MEASURED_VALUE_BYTES };
        let Filled::Linear(table) = TablePlan { shape, records: 1, keys, ..self.table }.filled(&|| false)?;
        let store = LinearStore::new(table, 1);
        let measured = |load: Load| -> Result<RunStats, LabError> {
            let load = Load { span: Span::Exactly(MEASURED_NS), ..load };
            run_store(&load, store.clone(), keys, 1, &self.cluster, &mut cell::progress(&|| false))
                .map_err(cell::run_error)
        };
        let alone = measured(Load { clients: 1, hosts: 1, in_flight: 1, ..self.load.clone() })?;
        let all = measured(self.load.clone())?;
        Ok(Costs {
            read_ns: alone.counts.operations.read.latency_ns.mean(),
            byte_ns: self.cluster.card.link_byte_ps as f64 / 1e3,
            reads_per_s: all.counts.per_second(all.steadiness.span_ns),
        })
    }
}

/// Carries out an experiment, and checks it: anything wrong is an error.
pub(super) fn measure(
    experiment: &Experiment,
    configured: &Configured,
    filled: &Filled,
    options: &RunOptions,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Outcome, LabError> {
    let Configured { table: TablePlan { keys, records, .. }, cluster, load, .. } = configured;
    let (mut progress, read_slots) = (cell::progress(is_stopped), configured.read_slots()?);
    let stats = match filled {
        Filled::Linear(table) => {
            let store = LinearStore::new(table.clone(), read_slots);
            run_store(load, store, *keys, *records, cluster, &mut progress)
        }
    };
    let stats = stats.map_err(cell::run_error)?;
    cell::check(&stats)?;
    let mut outcome = cell::outcome_of(experiment, &stats, options);
    outcome.answer.read_slots = Some(read_slots);
    Ok(outcome)
}
