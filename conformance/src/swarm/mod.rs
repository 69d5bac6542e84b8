//! Swarms: simulated runs that follow from one seed each, with drawn faults of every kind and checks of every
//! invariant.
//!
//! A run has two phases. In the first, clients do random operations on keys that all of them write, under a drawn fault
//! plan; they recover clients they find dead; and new clients replace those that died or lost their connection, so that
//! slots and owner ids are reused by clients that may die while they recover the previous owner. In the second, no more
//! faults happen: a last client must be able to read every key, change some, and recover all dead clients.
//!
//! One run in ten, and all of them with `--growth`, has a table that grows throughout: most operations put new keys, and
//! the plan has faults in the middle of splits, stalls during which others split many segments, and in one of three runs
//! a time in which the memory node has no memory for further segments and chunks.
//!
//! With `--element`, all clients are behind an element that answers for locks ([`guira_lab::simulated::LockElement`]),
//! and loses what it knows at drawn times.
//!
//! Invariants: every client ends, and no operation fails without a reason in the plan; no segment is written before it
//! has memory; every value that is read was written as a whole; each key's history is linearizable, with the table's
//! final contents as its end; after each step that leaves no lock held the table is sound ([`Monitor`]); and in the end
//! it is sound, with no lock held, no slot in use, and no commit half done.
//!
//! A [`Baseline`] is another store, to which RCuckoo is compared; its swarms are those of `stores`, and [`command`]
//! runs both.

mod command;
mod describe;
mod member;
mod monitor;
mod printed;
mod run;
mod setup;
mod stores;
mod tally;
mod values;

pub use command::{caught, command};
pub use describe::describe;
pub use monitor::{Monitor, MonitorStats};
pub use printed::{Lease, PrintedRun, RepairLog, run_printed, run_printed_examined};
pub use run::{Run, run, run_behind, run_changed, run_examined, run_setup};
pub use setup::{ROWS, Setup, round_trip_ns};
pub use stores::{Baseline, StoreOptions, StoreRun, StoreSetup};
pub use tally::{Counts, Tally};
