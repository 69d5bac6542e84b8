//! Experiments on other stores than RCuckoo.

use std::rc::Rc;
use std::sync::Arc;

use crate::baselines::clover::{CloverStore, Reuse, Shape as CloverShape, Steering, Table as CloverTable, Trust};
use crate::baselines::cuckoo::{CuckooStore, Probing, Shape as CuckooShape, Table as CuckooTable};
use crate::baselines::dummy::{DummyStore, Shape as DummyShape, Table as DummyTable};
use crate::baselines::linear::clusters::Clusters;
use crate::baselines::linear::model::{Costs, Distances, bound};
use crate::baselines::linear::{LinearStore, Shape as LinearShape, Table as LinearTable};
use crate::baselines::{BuildError, Layout, Places, Store};
use guira_fabric::{Profile, WORD_BYTES};
use guira_fabric_sim::Cluster;
use guira_layout::EntryFormat;

use super::cell::{self, Outcome, failed};
use super::configure::{cluster_of, inserts_at_most, load};
use crate::experiment::{Experiment, LabError, Lookup, ReadCosts, RecordLayout, RunOptions, Setting, Steered};
use crate::simulated::{Compute, LOADED, Load, Records, Repeats, RunError, RunStats, run_store};
use crate::steady::Span;

/// Bytes that a READ of linear probing fetches, unless it is given in slots.
const READ_BYTES: u64 = 256;
/// Records of a slot of cuckoo hashing, unless given.
const ASSOCIATIVITY: u64 = 4;
/// The table in which the costs of READs are measured, whose slots have a word, and the virtual time that it takes.
const MEASURED_SLOTS: u64 = 1024;
const MEASURED_VALUE_BYTES: usize = 4;
const MEASURED_NS: u64 = 1_000_000;
/// Entries of Clover's chains for changes, at most, unless the measured time is given: 512 MiB of the smallest ones.
const CHANGES_MAX: u64 = 4 << 20;
/// Entries that a client of Clover has in reserve, at most: those that it has asked for, and those that it got before.
const RESERVED: u64 = 32;
/// Entries that an element knows to have a next pointer, if it steers READs: 12 MiB of them.
const STEERED_ENTRIES: u64 = 1 << 20;
/// All windows of a measurement, in times of its longest window.
const WINDOWS: u64 = 4;

/// An experiment on a store, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Configured {
    pub(super) table: TablePlan,
    cluster: Cluster,
    load: Load,
    lookup: Reading,
}

/// The way in which lookups read a table.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reading {
    /// Linear probing by READs of so many slots.
    Slots(u64),
    /// Linear probing by READs of as many slots as the model finds cheapest for a table that is so full, in percent.
    Cheapest { fill: f64, costs: ReadCosts, is_bounded: bool, clusters: usize },
    /// Cuckoo hashing.
    Candidates(Probing),
    /// Calls of a service with so many threads.
    Calls(u32),
    /// Clover's chains, the ends of so many of which a client caches, with so many threads of the metadata server, and
    /// perhaps with an element.
    Chains { cache_keys: u64, threads: u32, shortcut_lag_ns: u64, steering: Option<Steering> },
}

/// The parameters of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TablePlan {
    shape: Shape,
    records: u64,
    keys: Records,
    /// The Zipf exponent by which keys repeat, and its seed.
    repeats: Option<(f64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Linear(LinearShape),
    Cuckoo(CuckooShape),
    Dummy(DummyShape),
    Clover(CloverShape),
}

/// A table with its records.
pub(super) enum Filled {
    Linear(LinearTable, Option<Arc<Repeats>>),
    Cuckoo(CuckooTable),
    Dummy(DummyTable),
    Clover(CloverTable),
}

impl TablePlan {
    /// Returns the bytes of memory that the table takes while it is built.
    pub(super) fn needed_bytes(&self) -> u64 {
        match &self.shape {
            // Of each record, the first with its key, and of each first record, how many there are.
            Shape::Linear(shape) if self.repeats.is_some() => {
                shape.bytes(self.records).saturating_add(self.records * 8)
            }
            Shape::Linear(shape) => shape.bytes(self.records),
            Shape::Cuckoo(shape) => shape.bytes().saturating_add(shape.building_bytes()),
            Shape::Dummy(shape) => shape.bytes(),
            Shape::Clover(shape) => shape.bytes(),
        }
    }

    /// Creates the table with its records.
    pub(super) fn filled(&self, is_stopped: &dyn Fn() -> bool) -> Result<Filled, LabError> {
        let (caps, key) = (Profile::Mlx5.caps(), |record| self.keys.key(record) as u32);
        let mut value = |record, value: &mut Vec<u8>| self.keys.value_into(record, LOADED, value);
        match self.shape {
            Shape::Linear(shape) => {
                let drawn = |(theta, seed)| Arc::new(Repeats::drawn(self.records as u32, theta, seed));
                let repeats = self.repeats.map(drawn);
                let table = self.linear(shape, repeats.as_deref(), is_stopped)?;
                Ok(Filled::Linear(table, repeats))
            }
            Shape::Cuckoo(shape) => {
                let built = CuckooTable::build(shape, caps, self.records, key, &mut value, is_stopped);
                let table = built.map_err(|error| self.unfillable(shape.places(), &error))?;
                table.map(Filled::Cuckoo).ok_or(LabError::Stopped)
            }
            Shape::Dummy(shape) => {
                let built = DummyTable::build(shape, caps, key, &mut value, is_stopped);
                let table = built.map_err(|error| self.unfillable(shape.records, &error))?;
                table.map(Filled::Dummy).ok_or(LabError::Stopped)
            }
            Shape::Clover(shape) => {
                let built = CloverTable::build(shape, caps, self.records, key, &mut value, is_stopped);
                let table = built.map_err(|error| self.unfillable(shape.keys, &error))?;
                table.map(Filled::Clover).ok_or(LabError::Stopped)
            }
        }
    }

    fn linear(
        &self,
        shape: LinearShape,
        repeats: Option<&Repeats>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<LinearTable, LabError> {
        let first = |record| repeats.map_or(record, |repeats| repeats.first(record));
        let key = |record| self.keys.key(first(record)) as u32;
        let value = |record, value: &mut Vec<u8>| self.keys.value_into(first(record), LOADED, value);
        let built = LinearTable::build(shape, Profile::Mlx5.caps(), self.records, key, value, is_stopped);
        built.map_err(|error| self.unfillable(shape.slots, &error))?.ok_or(LabError::Stopped)
    }

    fn unfillable(&self, entries: u64, error: &BuildError) -> LabError {
        let percent = (self.records * 100 + entries / 2) / entries.max(1);
        LabError::Unfillable { entries, percent, reason: error.to_string() }
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
    let layout = match experiment.layout {
        None | Some(RecordLayout::Inline) => Layout::Inline,
        Some(RecordLayout::Heap) => Layout::Heap,
    };
    let (cluster, mut load) = (cluster_of(experiment), load(experiment, options, least_us));
    let shape = match experiment.setting {
        Setting::Cuckoo => {
            let associativity = experiment.associativity.map_or(ASSOCIATIVITY, u64::from);
            let (slots, seed) = (experiment.entries / associativity, options.seed);
            Shape::Cuckoo(CuckooShape { slots, associativity, layout, value_bytes, seed })
        }
        Setting::Dummy => Shape::Dummy(DummyShape { records: records_of(experiment), value_bytes }),
        Setting::Clover => Shape::Clover(chains(experiment, value_bytes, &cluster, &mut load)),
        _ => Shape::Linear(LinearShape { slots: experiment.entries, layout, value_bytes }),
    };
    let records = records_of(experiment);
    if records > keys.max() {
        return Err(conflict(format!("{records} records are more than there are keys of 4 bytes")));
    }
    let repeats = experiment.key_theta.map(|theta| (theta, options.seed));
    let table = TablePlan { shape, records, keys, repeats };
    let lookup = reading(experiment, &shape)?;
    Ok(Configured { table, cluster, load, lookup })
}

/// Returns the size of Clover's chains, which have room for all changes of the load. If its time is not given, that is
/// limited to what has room.
fn chains(experiment: &Experiment, value_bytes: usize, cluster: &Cluster, load: &mut Load) -> CloverShape {
    let compute_ns = (experiment.compute_us.unwrap_or(0.0) * 1e3) as u64;
    load.compute = Compute { lookup_ns: compute_ns, change_ns: compute_ns };
    load.most_inserts = inserts_at_most(experiment, experiment.entries, records_of(experiment));
    let workers = u64::from(load.clients) * u64::from(load.in_flight);
    // A change takes two round trips at least.
    let change_ns = 2 * (cluster.to_node_ns + cluster.to_client_ns);
    let measured_ns = match &mut load.span {
        Span::Exactly(span_ns) => *span_ns,
        Span::UntilSteady { least_ns, most_ns } => {
            *most_ns = (*most_ns).min((CHANGES_MAX / workers * change_ns / WINDOWS).max(*least_ns));
            *most_ns * WINDOWS
        }
        // Setting clover has no fill-to.
        Span::UntilFull => 0,
    };
    let changes = match load.mix.read_percent {
        100 => 0,
        _ => workers.saturating_mul((load.warm_ns + measured_ns) / change_ns + 1 + RESERVED),
    };
    let (keys, entries) = (experiment.entries, records_of(experiment).saturating_add(changes));
    CloverShape { keys, entries, value_bytes, reuse: Reuse::Never }
}

fn records_of(experiment: &Experiment) -> u64 {
    (experiment.entries as f64 * experiment.fill / 100.0) as u64
}

/// Returns how the lookups of an experiment read the table.
fn reading(experiment: &Experiment, shape: &Shape) -> Result<Reading, LabError> {
    let threads = experiment.node_threads.unwrap_or(1);
    let shape = match shape {
        Shape::Linear(shape) => shape,
        Shape::Cuckoo(_) => {
            return Ok(Reading::Candidates(match experiment.lookup {
                Some(Lookup::Sequential) => Probing::Sequential,
                Some(Lookup::SequentialAll) => Probing::SequentialAll,
                _ => Probing::Parallel,
            }));
        }
        Shape::Dummy(_) => return Ok(Reading::Calls(threads)),
        Shape::Clover(_) => {
            let cache_keys = experiment.cache_keys.map_or(experiment.entries, u64::from);
            let keys = experiment.element_keys.map_or(experiment.entries, u64::from);
            let steering = experiment.steering.map(|steered| Steering {
                keys,
                entries: if steered == Steered::All { STEERED_ENTRIES } else { 0 },
                trust: if steered == Steered::ChangesAsPrinted { Trust::Sent } else { Trust::Linked },
            });
            let shortcut_lag_ns = (experiment.shortcut_lag_us.unwrap_or(0.0) * 1e3) as u64;
            return Ok(Reading::Chains { cache_keys, threads, shortcut_lag_ns, steering });
        }
    };
    let is_bounded = match experiment.lookup {
        Some(Lookup::Variable) => true,
        Some(Lookup::Unbounded) => false,
        _ => {
            let slot_bytes = shape.slot_bytes();
            let slots = experiment.read_slots.map_or((READ_BYTES / slot_bytes).max(1), u64::from);
            // READs are whole words, of which the first and the last may be parts of other slots.
            let most = (Profile::Mlx5.caps().max_verb_words as u64 - 2) * WORD_BYTES / slot_bytes;
            if slots > most {
                let message = format!("a READ brings at most {most} slots of {slot_bytes} bytes: lower read-slots");
                return Err(LabError::Conflict(message));
            }
            return Ok(Reading::Slots(slots));
        }
    };
    let fill = experiment.assumed_fill.unwrap_or(experiment.fill);
    let costs = experiment.read_costs.unwrap_or(ReadCosts::Printed);
    Ok(Reading::Cheapest { fill, costs, is_bounded, clusters: experiment.clusters.unwrap_or(0) as usize })
}

impl Configured {
    /// Returns the store of linear probing on a table, and the slots of its READs, without hints of clusters.
    fn linear_store(&self, table: &LinearTable) -> Result<(LinearStore, u64), LabError> {
        let shape = table.shape();
        let (fill, costs, is_bounded, clusters) = match self.lookup {
            Reading::Slots(slots) => return Ok((LinearStore::new(table.clone(), slots), slots)),
            Reading::Candidates(_) | Reading::Calls(_) | Reading::Chains { .. } => return Err(other_table()),
            Reading::Cheapest { fill, costs, is_bounded, clusters } => (fill, costs, is_bounded, clusters),
        };
        let costs = match costs {
            ReadCosts::Printed => Costs::PRINTED,
            ReadCosts::Measured => self.measured_costs()?,
        };
        let records = (shape.slots as f64 * fill / 100.0) as u64;
        let (distances, slot_bytes) = (Distances::of(shape.slots, records), shape.slot_bytes());
        let cheapest = distances.cheapest(slot_bytes, &costs);
        let slots = if is_bounded { cheapest.min(bound(slot_bytes, &costs)) } else { cheapest } as u64;
        let store = LinearStore::new(table.clone(), slots);
        if clusters == 0 {
            return Ok((store, slots));
        }
        Ok((store.tracking(Clusters::new(shape.slots, slot_bytes, clusters, distances, costs)), slots))
    }

    /// Measures the costs of READs on the cluster, as section 3.5 of the paper does: the latency of one READ alone, and the
    /// rate at which all clients have them. A READ has a word here, where theirs has none.
    fn measured_costs(&self) -> Result<Costs, LabError> {
        let failed = |error: &dyn std::fmt::Display| failed("measuring the costs of READs", error);
        let keys = Records::scattered(self.load.seed, MEASURED_VALUE_BYTES).map_err(|error| failed(&error))?;
        let shape = LinearShape { slots: MEASURED_SLOTS, layout: Layout::Inline, value_bytes: MEASURED_VALUE_BYTES };
        let plan = TablePlan { shape: Shape::Linear(shape), records: 1, keys, repeats: None };
        let table = plan.linear(shape, None, &|| false)?;
        let measured = |load: Load| -> Result<RunStats, LabError> {
            let (load, store) = (Load { span: Span::Exactly(MEASURED_NS), ..load }, LinearStore::new(table.clone(), 1));
            run_store(&load, store, keys, 1, None, &self.cluster, &mut cell::progress(&|| false))
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

    /// Returns the numbers of records by key. A key that no record has leads behind the last one.
    fn places(&self) -> Places {
        let keys = self.table.keys;
        Rc::new(move |key: u32| keys.record_of(&key.to_le_bytes()).unwrap_or(u64::MAX))
    }

    fn run(
        &self,
        store: impl Store + 'static,
        repeats: Option<&Arc<Repeats>>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<RunStats, RunError> {
        let TablePlan { keys, records, .. } = self.table;
        let repeats = repeats.map(Arc::clone);
        run_store(&self.load, store, keys, records, repeats, &self.cluster, &mut cell::progress(is_stopped))
    }
}

fn other_table() -> LabError {
    failed("an experiment", &"its table is of another setting")
}

/// Carries out an experiment, and checks it: anything wrong is an error.
pub(super) fn measure(
    experiment: &Experiment,
    configured: &Configured,
    filled: &Filled,
    options: &RunOptions,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Outcome, LabError> {
    let mut read_slots = None;
    let stats = match filled {
        Filled::Linear(table, repeats) => {
            let (store, slots) = configured.linear_store(table)?;
            read_slots = Some(slots);
            configured.run(store, repeats.as_ref(), is_stopped)
        }
        Filled::Cuckoo(table) => {
            let Reading::Candidates(probing) = configured.lookup else { return Err(other_table()) };
            configured.run(CuckooStore::new(table.clone(), probing), None, is_stopped)
        }
        Filled::Dummy(table) => {
            let Reading::Calls(threads) = configured.lookup else { return Err(other_table()) };
            configured.run(DummyStore::new(table.clone(), configured.places(), threads), None, is_stopped)
        }
        Filled::Clover(table) => {
            let Reading::Chains { cache_keys, threads, shortcut_lag_ns, steering } = configured.lookup else {
                return Err(other_table());
            };
            let store = CloverStore::new(table.fork(), configured.places(), cache_keys, threads);
            let store = store.lagging(shortcut_lag_ns).behind(steering);
            configured.run(store, None, is_stopped)
        }
    };
    let stats = stats.map_err(cell::run_error)?;
    cell::check(&stats)?;
    let mut outcome = cell::outcome_of(experiment, &stats, options);
    outcome.answer.read_slots = read_slots;
    let matches_per_s = stats.counts.matches as f64 * 1e9 / stats.steadiness.span_ns.max(1) as f64;
    outcome.answer.matches_mops = configured.table.repeats.map(|_| matches_per_s / 1e6);
    Ok(outcome)
}
