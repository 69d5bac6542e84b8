//! Runs a workload against a store and reports the cost of each kind of operation.
//!
//! A [`Plan`] names the workload and the total number of workers; a [`Driver`] runs one process's share of them, with a
//! thread for each. The [`PhaseTally`]s of several processes are passed on as JSON and merged, and the figures are
//! computed once, at the end. Round trips, messages and bytes are exact; times are those of [`std::time::Instant`].
//!
//! Invariants: the operations of a run are a function of the plan, however its workers are distributed over processes.
//! Every operation is counted once, as a success with its cost or as an error. Every loop is bounded by the plan.
//!
//! ```
//! use guira::{CreateOptions, Store, Url};
//! use guira_lab::driver::{Driver, Plan, RecordFormat, Verification};
//! use guira_lab::workload::{WorkloadName, WorkloadSpec};
//!
//! # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
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
mod start_line;
mod tally;
mod worker;

pub use distribution::Distribution;
pub use record_format::{DEFAULT_VALUE_BYTES, RecordFormat};
pub use removal::Removal;
pub use run::{Driver, LoadMode, Plan, Verification};
pub use start_line::StartLine;
pub use tally::{
    LatencyFigures, OperationFigures, OperationTally, PerOperation, PhaseFigures, PhaseTally, RoundTripFigures,
};

use crate::workload::WorkloadError;

/// A workload could not be run. An operation that fails during a run is not such an error: it is counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The workload's parameters are invalid.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The store refused a client, or a record could not be loaded.
    #[error("{attempt}: {source}")]
    Store {
        /// The action that failed.
        attempt: String,
        /// The store's error.
        r#source: guira::Error,
    },
    /// The system refused a thread for a worker. No operation was begun.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// The system's error.
        r#source: std::io::Error,
    },
    /// The table cannot hold values of this length.
    #[error("a table of format {format} cannot hold values of {value_bytes} bytes")]
    ValueBytes {
        /// The table's entry format.
        format: String,
        /// The length asked for.
        value_bytes: usize,
    },
    /// The workload may use more records than there are keys.
    #[error("the workload may use {records} records, but there are only {records_max} keys of {key_bytes} bytes")]
    TooFewKeys {
        /// Number of records, inserts included.
        records: u64,
        /// Number of keys.
        records_max: u64,
        /// Bytes of a key.
        key_bytes: usize,
    },
    /// This process's share is not part of the plan, or the plan times no operation.
    #[error("workers {first}..{end} are not a share of the plan's {workers} workers, or its latency interval is 0")]
    Share {
        /// The first worker of the share.
        first: u32,
        /// One past the last worker of the share.
        end: u32,
        /// The number of workers of the plan.
        workers: u32,
    },
    /// A record that was to be inserted has a key that is already in the table. The existing entry was not changed.
    #[error("the key of record {record} is already in the table and was left unchanged; another seed gives other keys")]
    Exists {
        /// The record.
        record: u64,
    },
    /// The caller stopped the run; see [`Driver::stopping_when`].
    #[error("stopped between two operations")]
    Stopped,
    /// A worker's thread panicked: a bug.
    #[error("a worker panicked; this is a bug")]
    Panicked,
}
