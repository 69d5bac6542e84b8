//! The messages to a worker process: its share of the run, and the phase to carry out.

use guira::Store;
use guira_lab::driver::{Driver, DriverError, LoadMode, PhaseTally, Plan, RecordFormat, Verification};
use guira_lab::workload::{WorkloadError, WorkloadSpec};
use serde::{Deserialize, Serialize};

use crate::commands::{open_options, owner};
use crate::failure::Failure;
use crate::interrupt;

/// A process's share of a run, and the whole run's parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The table.
    pub url: String,
    /// The workload's letter.
    pub workload: String,
    /// Records loaded before the run.
    pub records: u64,
    /// Operations of the run, of all workers.
    pub operations: u64,
    /// Zipf exponent.
    pub theta: f64,
    /// Seed of keys and operations.
    pub seed: u64,
    /// Bytes of each value, if given.
    pub value_bytes: Option<usize>,
    /// Number of workers of all processes.
    pub workers: u32,
    /// First worker of this process.
    pub first: u32,
    /// One past the last worker of this process.
    pub end: u32,
    /// The mode of loading records.
    pub load_mode: LoadMode,
    /// The verification of reads.
    pub verify: Verify,
    /// One operation in this many is timed.
    pub latency_every: u32,
}

/// The verification of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// Values are not verified.
    Off,
    /// Every value read is verified.
    EveryRead,
}

/// An order to a worker process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Open the table and get ready. Answered with nothing.
    Prepare(Share),
    /// Load this share's records. Answered with a tally.
    Load,
    /// Carry out this share's operations. Answered with a tally.
    Run,
    /// End the current phase, if there is one. The order itself is not answered.
    Stop,
    /// Remove the records that this share inserted. Answered with the outcome; the last order.
    Remove,
}

impl Share {
    /// Opens the table and returns the driver of this share.
    pub fn driver(&self) -> Result<Driver, Failure> {
        self.driver_of(Store::open_with(&self.url, &owner::required(open_options()?)?)?)
    }

    /// Returns the driver of this share for an open store.
    pub fn driver_of(&self, store: Store) -> Result<Driver, Failure> {
        let name = self.workload.parse().map_err(|error: WorkloadError| DriverError::from(error))?;
        let spec = WorkloadSpec { name, records: self.records, theta: self.theta, seed: self.seed };
        let verification = match self.verify {
            Verify::Off => Verification::Off,
            Verify::EveryRead => Verification::EveryRead,
        };
        let plan = Plan {
            spec,
            operations: self.operations,
            workers: self.workers,
            format: self.shape(&store)?,
            verification,
            latency_every: self.latency_every,
        };
        let driver = Driver::new(store, plan, self.first..self.end)?;
        Ok(driver.loading(self.load_mode).stopping_when(interrupt::requested))
    }

    /// Returns the format of records in this table.
    pub fn shape(&self, store: &Store) -> Result<RecordFormat, Failure> {
        Ok(RecordFormat::new(store.table().config().format, self.value_bytes, self.seed)?)
    }
}

impl Order {
    /// Carries out a phase. While loading, `progress` is called with the records of this share that are loaded.
    pub fn carry_out(&self, driver: &mut Driver, progress: &(dyn Fn(u64) + Sync)) -> Result<PhaseTally, Failure> {
        match self {
            Order::Load => Ok(driver.load_with_progress(progress)?),
            Order::Run => Ok(driver.run()?),
            Order::Prepare(_) | Order::Stop | Order::Remove => {
                Err(Failure::Misuse("this order is not a phase".to_owned()))
            }
        }
    }
}
