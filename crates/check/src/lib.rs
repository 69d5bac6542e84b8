//! Two checkers: the table scanner, which `guira check` runs, and the linearizability checker ([`history`]), with which
//! tests check the histories of their clients.
//!
//! The scanner reads every byte of a table that has a meaning, and reports everything that a sound table cannot
//! contain. It only reads: it takes no lock and no client slot, and repairs nothing. It may run while clients change
//! the table. Anything that looks wrong then is usually a change in progress (a row torn while it is written, a key in
//! two rows while it moves, an extent just replaced), so it is checked again after growing pauses, a bounded number of
//! times, and reported only if it persists.
//!
//! - [`check_table`]: every check, and the counts. Memory: 16 bytes and a hash table's overhead an extent; 64
//!   rows and at most one more for each of their entries; nothing that grows with the number of inline entries.
//! - [`check_rows`]: some rows, for tests that check after every change.
//! - [`table_stats`]: the counts only.
//!
//! The scanner detects neither *missing* entries nor damage that turns a word without a checksum into another possible
//! word, such as a lock word with the id of another living owner.
#![forbid(unsafe_code)]

mod chunks;
mod entries;
mod extents;
mod findings;
pub mod history;
mod locks;
mod report;
mod rows;
mod sample;
mod scan;
mod slots;
mod space;
mod stats;

pub use report::{Cause, CheckError, CheckReport, Problem, ProblemKind, Progress, Stage};
pub use scan::{CheckOptions, Concurrency, check_rows, check_table};
pub use space::{ClassStats, OwnerChunks, SpaceStats};
pub use stats::{ChunkCounts, TableStats, table_stats};
