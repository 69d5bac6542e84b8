//! YCSB workloads, independent of any store: sequences of operations on records, and the bytes of keys and values.
//!
//! This module owns the mixes and the popularity of records as YCSB defines them (Cooper et al., "Benchmarking Cloud
//! Serving Systems with YCSB", SoCC'10), the keys that stand for record numbers, and values that a reader can verify. A
//! driver loads records `0..records`, gives each worker one [`Generator`], and turns record numbers into keys with
//! [`key_of`].
//!
//! Invariants: everything is a function of the seed and the worker's number, so the seed alone repeats a run (on one
//! platform: popularity uses the system's `pow`, whose last bit may differ elsewhere). Workers share no state, and no
//! two of them ever insert the same record.
//!
//! ```
//! use guira_lab::workload::{Generator, Operation, WorkloadName, WorkloadSpec, key_of};
//!
//! let spec = WorkloadSpec { name: WorkloadName::B, records: 1000, theta: 0.99, seed: 7 };
//! let mut generator = Generator::new(&spec, 0, 4)?;
//! for _ in 0..100 {
//!     let (operation, record) = generator.next();
//!     assert!(matches!(operation, Operation::Read | Operation::Update));
//!     let _key = key_of(record, spec.seed);
//! }
//! # Ok::<(), guira_lab::workload::WorkloadError>(())
//! ```

mod generator;
mod popularity;
mod record;
mod rng;
mod zipf;

pub use generator::{Generator, Operation, WORKERS_MAX, WorkloadName, WorkloadSpec};
pub use popularity::{Latest, RECORDS_MAX, ScrambledZipfian, Uniform, Zipfian};
pub use record::{ValueError, ValueStamp, check_value, fill_value, key_of};
pub use rng::Rng;
pub use zipf::THETA_MAX;
pub(crate) use zipf::Zipf;

/// An error in a workload's parameters. It is always the caller's mistake; nothing was generated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// There are no records to draw from. Only workload W may start from an empty table.
    #[error("cannot draw from 0 records")]
    NoRecords,
    /// There are more records than [`RECORDS_MAX`].
    #[error("{records} records are more than the maximum of {RECORDS_MAX}")]
    TooManyRecords {
        /// The number asked for.
        records: u64,
    },
    /// The Zipf exponent is not in 0 to 2.
    #[error("theta {theta} is not in 0 to 2")]
    ThetaOutOfRange {
        /// The exponent asked for.
        theta: f64,
    },
    /// The worker's number is not below the number of workers.
    #[error("there is no worker {worker}: the {workers} workers are numbered from 0")]
    WorkerOutOfRange {
        /// The worker's number.
        worker: u32,
        /// The number of workers.
        workers: u32,
    },
    /// There are more workers than [`WORKERS_MAX`].
    #[error("{workers} workers are more than the maximum of {WORKERS_MAX}")]
    TooManyWorkers {
        /// The number asked for.
        workers: u32,
    },
    /// There is no workload of this name.
    #[error("unknown workload {name:?}: expected one of A, A', B, B', C, D, F, W")]
    UnknownName {
        /// The name as given.
        name: String,
    },
}
