//! One process's share of a workload: a thread for each worker, started together.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use guira::Store;

use super::worker::Worker;
use super::{DriverError, PhaseTally, RecordShape};
use crate::workload::{Generator, WorkloadSpec};

/// What reads verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verification {
    /// Nothing: the table's own checksums have the last word.
    #[default]
    Off,
    /// Every value read must be one that some worker wrote for this very record.
    EveryRead,
}

/// All that a run depends on. Every process of a run has the same one.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The workload.
    pub spec: WorkloadSpec,
    /// Operations of the run phase, of all workers together.
    pub operations: u64,
    /// Workers of all processes.
    pub workers: u32,
    /// How records look in the table.
    pub shape: RecordShape,
    /// What reads verify.
    pub verification: Verification,
    /// Every how manyth operation is timed; at least 1. Timing costs two clock readings, which count in the throughput.
    pub latency_every: u32,
}

impl Plan {
    /// Operations of this worker: an equal share, the remainder going to the first ones.
    fn operations_of(&self, worker: u32) -> u64 {
        let workers = u64::from(self.workers);
        self.operations / workers + u64::from(u64::from(worker) < self.operations % workers)
    }
}

/// Some of a plan's workers, and the store they use.
pub struct Driver {
    store: Store,
    plan: Plan,
    share: Range<u32>,
    generators: Vec<Generator>,
    stop: fn() -> bool,
}

impl Driver {
    /// The workers `share` of `plan`, against `store`. Computes what the popularity of records needs, in time linear in
    /// the records, so that a phase starts without delay.
    ///
    /// # Errors
    /// A plan or a share that cannot be.
    pub fn new(store: Store, plan: Plan, share: Range<u32>) -> Result<Driver, DriverError> {
        if share.is_empty() || share.end > plan.workers || plan.latency_every == 0 {
            return Err(DriverError::Share { first: share.start, end: share.end, workers: plan.workers });
        }
        let (records, records_max) = (plan.spec.records, plan.shape.records_max());
        // Inserts number their records worker by worker, so the last number may run ahead by one round of workers.
        let used = records.saturating_add(plan.operations).saturating_add(plan.workers.into());
        if used > records_max {
            return Err(DriverError::TooFewKeys { records: used, records_max, key_bytes: plan.shape.key_bytes() });
        }
        let mut generators = Generator::for_all(&plan.spec, plan.workers)?;
        generators.truncate(share.end as usize);
        generators.drain(..share.start as usize);
        Ok(Driver { store, plan, share, generators, stop: || false })
    }

    /// The same workers, which end a phase with [`DriverError::Stopped`] once `stop` says so: between two operations,
    /// each within 64 of them, or behind the first that fails.
    #[must_use]
    pub fn stopping_when(mut self, stop: fn() -> bool) -> Driver {
        self.stop = stop;
        self
    }

    /// Loads this share of the records, each at version 0. A record that exists already is replaced.
    ///
    /// # Errors
    /// The first record that could not be stored: without it, a run would measure misses.
    pub fn load(&self) -> Result<PhaseTally, DriverError> {
        self.load_with_progress(&|_| ())
    }

    /// As [`Driver::load`]; every few thousand records, some worker calls `progress` with how many this share has
    /// loaded so far.
    ///
    /// # Errors
    /// As [`Driver::load`].
    pub fn load_with_progress(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<PhaseTally, DriverError> {
        let loaded = AtomicU64::new(0);
        let add = |records| progress(loaded.fetch_add(records, Ordering::Relaxed) + records);
        self.phase(&mut self.generators.clone(), |worker, _| worker.load(&add))
    }

    /// Records that this share loads.
    #[must_use]
    pub fn records(&self) -> u64 {
        let (records, workers) = (self.plan.spec.records, u64::from(self.plan.workers));
        self.share.clone().map(|worker| records.saturating_sub(worker.into()).div_ceil(workers)).sum()
    }

    /// Runs this share of the operations. A second run goes on where the first ended.
    ///
    /// # Errors
    /// The store refused a client, or the run was stopped. An operation that fails is counted and noted in the tally; a
    /// worker all of whose operations fail stops early.
    pub fn run(&mut self) -> Result<PhaseTally, DriverError> {
        let mut generators = std::mem::take(&mut self.generators);
        let ran = self.phase(&mut generators, |worker, generator| worker.run(generator));
        self.generators = generators;
        ran
    }

    /// Lets one thread for each generator `work`, all from the same instant.
    fn phase(
        &self,
        generators: &mut [Generator],
        work: impl Fn(&mut Worker<'_>, &mut Generator) -> Result<(), DriverError> + Sync,
    ) -> Result<PhaseTally, DriverError> {
        let barrier = Barrier::new(generators.len());
        let (barrier, work) = (&barrier, &work);
        let tallies: Vec<Result<PhaseTally, DriverError>> = thread::scope(|scope| {
            let numbered = self.share.clone().zip(generators);
            let threads: Vec<_> = numbered
                .map(|(number, generator)| scope.spawn(move || self.worker(number, generator, barrier, work)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(DriverError::Panicked))).collect()
        });
        let mut total = PhaseTally::default();
        for tally in tallies {
            total.merge(tally?);
        }
        Ok(total)
    }

    fn worker(
        &self,
        number: u32,
        generator: &mut Generator,
        barrier: &Barrier,
        work: impl Fn(&mut Worker<'_>, &mut Generator) -> Result<(), DriverError>,
    ) -> Result<PhaseTally, DriverError> {
        let client = self.store.client();
        // Every thread arrives here, whether it has a client or not: nobody waits for one that gave up.
        barrier.wait();
        let mut client = client.map_err(|source| DriverError::Store { attempt: format!("worker {number}"), source })?;
        let mut worker = Worker::new(&self.plan, number, self.plan.operations_of(number), &mut client, self.stop);
        work(&mut worker, generator)?;
        Ok(worker.finish())
    }
}
