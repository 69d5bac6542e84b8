//! Swarms: runs of a simulated table that follow from one seed, with everything that can go wrong, and everything that
//! must hold.
//!
//! A run has two phases. In the first, clients do any operation on keys that all of them write, under a drawn plan of
//! faults; they recover whom they meet dead; and new clients follow those that died or lost their connection, so slots
//! and owner ids are used again, by clients that may die while they recover the last one. In the second, nothing goes
//! wrong any more: a last client must be able to read every key and change some, and to recover everybody dead.
//!
//! What must hold: no client ever waits for ever, or meets an error that nothing explains; every value that is read was
//! written, as a whole; each key's history is linearizable, with what a last look at the table finds as its end; after
//! each step that leaves no lock held the table is sound ([`Monitor`]); and in the end it is, without any lock held, slot
//! in use, or commit half done.

mod client;
mod command;
mod describe;
mod member;
mod monitor;
mod printed;
mod run;
mod setup;
mod tally;
mod values;

pub use client::{Claim, Failure, SimClient};
pub use command::command;
pub use describe::describe;
pub use monitor::{Monitor, MonitorStats};
pub use printed::{Lease, PrintedRun, RepairLog, run_printed};
pub use run::{Run, run, run_changed, run_setup};
pub use setup::{ROWS, Setup, round_trip_ns};
pub use tally::Tally;
