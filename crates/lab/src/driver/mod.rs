//! Runs a workload against a store and says what each kind of operation cost.
//!
//! A [`Plan`] names the workload and how many workers it has in all; a [`Driver`] is one process's share of them, a
//! thread each. A process that has others beside it merges their [`PhaseTally`]s, which travel as JSON, and computes
//! the figures once, at the end. Round trips, messages and bytes are exact; times are those of
//! [`std::time::Instant`].
//!
//! Invariants: the operations of a run are a function of the plan, however its workers are spread over processes. Every
//! operation is counted once, as a success with its cost or as an error. Every loop is bounded by the plan.
//!
//! ```
//! use guira::{CreateOptions, Store, Url};
//! use guira_lab::driver::{Driver, Plan, RecordFormat, Verification};
//! use guira_lab::workload::{WorkloadName, WorkloadSpec};
//!
//! let url: Url = format!("shm://guira-lab-example-{}", std::process::id()).parse()?;
//! let store = Store::create(&url, &CreateOptions::new(2_000))?;
//! let spec = WorkloadSpec { name: WorkloadName::A, records: 1_000, theta: 0.99, seed: 7 };
//! let format = RecordFormat::new(store.table().config().format, None, spec.seed)?;
//! let verification = Verification::EveryRead;
//! let plan = Plan { spec, operations: 4_000, workers: 2, format, verification, latency_every: 1 };
//! let mut driver = Driver::new(store, plan, 0..2)?;
//! driver.load()?;
//! let tally = driver.run()?;
//! Store::destroy(&url)?;
//! assert_eq!((tally.count(), tally.errors()), (4_000, 0));
//! println!("{:.2} round trips a read", tally.figures().operations.read.round_trips.mean);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod distribution;
mod record_format;
mod removal;
mod run;
mod tally;
mod worker;

pub use distribution::Distribution;
pub use record_format::{DEFAULT_VALUE_BYTES, RecordFormat};
pub use removal::Removal;
pub use run::{Driver, LoadMode, Plan, Verification};
pub use tally::{
    LatencyFigures, OperationFigures, OperationTally, PerOperation, PhaseFigures, PhaseTally, RoundTripFigures,
};

use crate::workload::WorkloadError;

/// A workload could not be run. An operation that fails during a run is no such error: it is counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The workload's parameters.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The store refused a client, or a record could not be loaded.
    #[error("{attempt}: {source}")]
    Store {
        /// What was attempted.
        attempt: String,
        /// The store's answer.
        source: guira::Error,
    },
    /// The table cannot hold values of this length.
    #[error("a table of {format} cannot hold values of {value_bytes} bytes")]
    ValueBytes {
        /// The table's entry format.
        format: String,
        /// The length asked for.
        value_bytes: usize,
    },
    /// The workload may use more records than there are keys.
    #[error("the workload may use {records} records, and there are only {records_max} keys of {key_bytes} bytes")]
    TooFewKeys {
        /// Records, inserts included.
        records: u64,
        /// Keys.
        records_max: u64,
        /// Bytes of a key.
        key_bytes: usize,
    },
    /// This process's share is not part of the plan.
    #[error("workers {first} to {end} are not among the plan's {workers}, or latency is timed every 0 operations")]
    Share {
        /// First worker of the share.
        first: u32,
        /// One past its last.
        end: u32,
        /// Workers of the plan.
        workers: u32,
    },
    /// A record that was to be inserted has the key of one that is there. That one is as it was.
    #[error(
        "record {record} has a key that is in the table already and was left as it is: another seed has other keys"
    )]
    Exists {
        /// The record.
        record: u64,
    },
    /// Whoever runs the workload asked for its end; see [`Driver::stopping_when`].
    #[error("stopped between two operations")]
    Stopped,
    /// A worker's thread panicked: a bug.
    #[error("a worker panicked; this is a bug")]
    Panicked,
}
