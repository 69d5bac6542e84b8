//! One process's share of a workload: a thread for each worker, started together.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder};

use guira::Store;
use guira_fabric::refusal::thread_refused;
use serde::{Deserialize, Serialize};

use super::removal::WorkerState;
use super::start_line::StartLine;
use super::worker::Worker;
use super::{DriverError, PhaseTally, RecordFormat, Removal};
use crate::workload::{Generator, WorkloadSpec};

/// Verification of the values that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verification {
    /// None beyond the table's own checksums.
    #[default]
    Off,
    /// Every value read must be one that a worker wrote for that record.
    EveryRead,
}

/// The mode of loading records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadMode {
    /// A record that exists is replaced: the table belongs to this run.
    #[default]
    Replace,
    /// A record that exists is not changed, and ends the phase: the table is in use by others.
    InsertOnly,
}

/// The parameters of a run. Every process of a run has the same plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The workload.
    pub spec: WorkloadSpec,
    /// Operations of the run phase, all workers together.
    pub operations: u64,
    /// Number of workers in all processes.
    pub workers: u32,
    /// The format of records in the table.
    pub format: RecordFormat,
    /// Verification of the values that are read.
    pub verification: Verification,
    /// Interval of timed operations; at least 1. Timing costs two clock readings, which lower the throughput.
    pub latency_every: u32,
}

impl Plan {
    /// Operations of this worker: an equal share, the remainder going to the first ones.
    fn operations_of(&self, worker: u32) -> u64 {
        let workers = u64::from(self.workers);
        self.operations / workers + u64::from(u64::from(worker) < self.operations % workers)
    }
}

/// A share of a plan's workers, and the store they use.
pub struct Driver {
    store: Store,
    plan: Plan,
    share: Range<u32>,
    /// The states of the workers in the share, one for each.
    states: Vec<WorkerState>,
    mode: LoadMode,
    stop: fn() -> bool,
}

impl Driver {
    /// Creates a driver that runs the workers `share` of `plan` on `store`. Computes what the popularity of records
    /// needs, in time linear in the number of records, so that a phase starts without delay.
    ///
    /// # Errors
    /// The plan or the share is impossible.
    pub fn new(store: Store, plan: Plan, share: Range<u32>) -> Result<Driver, DriverError> {
        if share.is_empty() || share.end > plan.workers || plan.latency_every == 0 {
            return Err(DriverError::Share { first: share.start, end: share.end, workers: plan.workers });
        }
        let (records, records_max) = (plan.spec.records, plan.format.records_max());
        // Workers number their inserts independently, so the last number may be ahead by one round of workers.
        let inserts = if plan.spec.name.inserts() { plan.operations.saturating_add(plan.workers.into()) } else { 0 };
        let used = records.saturating_add(inserts);
        if used > records_max {
            return Err(DriverError::TooFewKeys { records: used, records_max, key_bytes: plan.format.key_bytes() });
        }
        let mut generators = Generator::for_all(&plan.spec, plan.workers)?;
        generators.truncate(share.end as usize);
        generators.drain(..share.start as usize);
        let states = generators.into_iter().map(WorkerState::new).collect();
        Ok(Driver { store, plan, share, states, mode: LoadMode::default(), stop: || false })
    }

    /// Sets the mode of loading records.
    #[must_use]
    pub fn loading(mut self, mode: LoadMode) -> Driver {
        self.mode = mode;
        self
    }

    /// Sets a function that is asked whether to end a phase with [`DriverError::Stopped`]. Each worker calls it between
    /// two operations, at least every 64, and after each operation that fails.
    #[must_use]
    pub fn stopping_when(mut self, stop: fn() -> bool) -> Driver {
        self.stop = stop;
        self
    }

    /// Loads this share of the records, each at version 0, in the mode of [`Driver::loading`]; by default a record that
    /// exists is replaced.
    ///
    /// # Errors
    /// The first record that could not be stored: without it, a run would measure misses.
    pub fn load(&mut self) -> Result<PhaseTally, DriverError> {
        self.load_with_progress(&|_| ())
    }

    /// Same as [`Driver::load`], with progress: every few thousand records, a worker calls `progress` with the number
    /// of records that this share has loaded so far.
    ///
    /// # Errors
    /// Same as [`Driver::load`].
    pub fn load_with_progress(&mut self, progress: &(dyn Fn(u64) + Sync)) -> Result<PhaseTally, DriverError> {
        let loaded = AtomicU64::new(0);
        let add = |records| progress(loaded.fetch_add(records, Ordering::Relaxed) + records);
        let mode = self.mode;
        self.phase(|worker, state| worker.load(mode, state, &add))
    }

    /// Number of records that this share has inserted so far, and that [`Driver::remove_with_progress`] removes.
    #[must_use]
    pub fn inserted(&self) -> u64 {
        let numbered = self.share.clone().zip(&self.states);
        numbered.map(|(number, state)| state.inserted(number, &self.plan).count() as u64).sum()
    }

    /// Removes every record that this share inserted: in a run, and in loading with [`LoadMode::InsertOnly`]. Other
    /// records are not touched. From time to time a worker calls `progress` with the number of removed records. Removal
    /// cannot be stopped, but it soon ends if the table cannot be reached.
    pub fn remove_with_progress(&mut self, progress: &(dyn Fn(u64) + Sync)) -> Removal {
        let removed = AtomicU64::new(0);
        let add = |records| progress(removed.fetch_add(records, Ordering::Relaxed) + records);
        let (store, plan, add) = (&self.store, &self.plan, &add);
        thread::scope(|scope| {
            for (number, state) in self.share.clone().zip(&mut self.states) {
                let state = Arc::new(Mutex::new(state));
                let remove = move || {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    match store.client() {
                        Ok(mut client) => state.remove(number, plan, &mut client, add),
                        Err(error) => state.give_up(number, plan, &error),
                    }
                };
                // Without a thread of its own, a share is removed here.
                if Builder::new().spawn_scoped(scope, remove.clone()).is_err() {
                    remove();
                }
            }
        });
        let mut total = Removal::default();
        self.states.iter_mut().for_each(|state| total.merge(state.take_removal()));
        total
    }

    /// Number of records that this share loads.
    #[must_use]
    pub fn records(&self) -> u64 {
        let (records, workers) = (self.plan.spec.records, u64::from(self.plan.workers));
        self.share.clone().map(|worker| records.saturating_sub(worker.into()).div_ceil(workers)).sum()
    }

    /// Runs this share of the operations. A second run continues where the first ended.
    ///
    /// # Errors
    /// The store refused a client, or the run was stopped. An operation that fails is counted and noted in the tally; a
    /// worker whose operations all fail stops early.
    pub fn run(&mut self) -> Result<PhaseTally, DriverError> {
        self.phase(|worker, state| worker.run(state))
    }

    /// Runs `work` on one thread for each state. All threads start at the same instant.
    fn phase(
        &mut self,
        work: impl Fn(&mut Worker<'_>, &mut WorkerState) -> Result<(), DriverError> + Sync,
    ) -> Result<PhaseTally, DriverError> {
        let mut states = std::mem::take(&mut self.states);
        let ended = self.phase_of(&mut states, work);
        self.states = states;
        ended
    }

    fn phase_of(
        &self,
        states: &mut [WorkerState],
        work: impl Fn(&mut Worker<'_>, &mut WorkerState) -> Result<(), DriverError> + Sync,
    ) -> Result<PhaseTally, DriverError> {
        let line = StartLine::new(states.len());
        let (line, work) = (&line, &work);
        let tallies: Vec<Result<PhaseTally, DriverError>> = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, state) in self.share.clone().zip(states) {
                let worker = move || self.worker(number, state, line, work);
                match Builder::new().spawn_scoped(scope, worker) {
                    Ok(thread) => threads.push(thread),
                    Err(source) => {
                        line.cancel();
                        return Err(DriverError::Thread { source: thread_refused(&source) });
                    }
                }
            }
            Ok(threads.into_iter().map(|thread| thread.join().unwrap_or(Err(DriverError::Panicked))).collect())
        })?;
        let mut total = PhaseTally::default();
        for tally in tallies {
            total.merge(tally?);
        }
        Ok(total)
    }

    fn worker(
        &self,
        number: u32,
        state: &mut WorkerState,
        line: &StartLine,
        work: impl Fn(&mut Worker<'_>, &mut WorkerState) -> Result<(), DriverError>,
    ) -> Result<PhaseTally, DriverError> {
        let client = self.store.client();
        // Every thread gets here, with or without a client, so none waits for a thread that gave up.
        if !line.wait() {
            return Err(DriverError::Stopped);
        }
        let mut client = client.map_err(|source| DriverError::Store { attempt: format!("worker {number}"), source })?;
        let mut worker = Worker::new(&self.plan, number, self.plan.operations_of(number), &mut client, self.stop);
        work(&mut worker, state)?;
        Ok(worker.finish())
    }
}
