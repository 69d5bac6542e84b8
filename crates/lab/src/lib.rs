//! What drives and measures the Guira key/value store: workloads, and what is built on them.
//!
//! This crate owns how load is made; it owns no protocol. [`workload`] knows of no store at all: it says which
//! operation comes next on which record, and what keys and values look like.

#![forbid(unsafe_code)]

pub mod workload;
