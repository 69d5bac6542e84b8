//! Workloads for the Guira key/value store, and a driver that runs and measures them.
//!
//! This crate owns the generation and measurement of load; it owns no protocol. [`workload`] does not depend on a
//! store: it generates operations, records, keys and values. [`driver`] runs a workload against a store from any number
//! of threads and processes, and reports the cost of each kind of operation. [`simulated`] runs clients of the protocol
//! in a simulation, where they wait for virtual time only; [`as_run`] posts what the paper's authors' own code posted;
//! [`baselines`] has other stores.
//! [`experiment`] has the settings of measurements on modelled networks, [`figures`] measures figures of the paper that
//! are no grids of experiments, and [`report`] has the results as charts.

#![forbid(unsafe_code)]

pub mod as_run;
pub mod baselines;
pub mod driver;
pub mod experiment;
pub mod figures;
pub mod published;
pub mod report;
pub mod simulated;
pub mod steady;
pub mod workload;
