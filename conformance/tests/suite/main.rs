//! The conformance suite: one program, so that code that is generic over lanes and tables is compiled once for all of
//! it.
//!
//! Each module is one kind of proof and states first what it proves; docs/testing.md lists them. `cargo test -p
//! guira-conformance --test suite locks::` runs one of them.
#![forbid(unsafe_code)]

mod baselines;
mod check;
mod clover;
mod conditional;
mod contention;
mod counts;
mod deaths_by_verb;
mod decoders;
mod destroyed;
mod drops;
mod fill;
mod geometry;
mod histories;
mod holes;
mod in_place;
mod interleavings;
mod locks;
mod many;
mod models;
mod ordering;
mod overwritten;
mod overwritten_schedules;
mod porcupine;
mod predicted;
mod properties;
mod recovery;
mod refusals;
mod regressions;
mod repair;
mod scans;
mod segments;
mod settings;
mod sim;
mod splits;
mod swarm;
mod under_locks;
