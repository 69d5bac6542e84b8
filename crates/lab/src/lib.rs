//! What drives and measures the Guira key/value store: workloads, and what is built on them.
//!
//! This crate owns how load is made and measured; it owns no protocol. [`workload`] knows of no store at all: it says
//! which operation comes next on which record, and what keys and values look like. [`driver`] runs a workload against a
//! store, from as many threads and processes as asked, and says what each kind of operation cost.

#![forbid(unsafe_code)]

pub mod driver;
pub mod workload;
