//! What tells whether a table is sound: the table scanner, which `guira check` runs, and the linearizability checker
//! ([`history`]), which tests put their clients' answers to.
//!
//! The scanner reads every byte of a table that means something, and says what cannot be. It only reads: no lock, no
//! slot, no repair. It may run while clients change the table. What looks wrong then is usually a change under way (a
//! row torn while it is written, a key in two rows while it moves, an extent just replaced), so it is looked at again
//! under growing pauses, a bounded number of times, and reported only if it stays.
//!
//! - [`check_table`]: every check, and the counts. Memory: 16 bytes and a hash table's overhead an extent; 64
//!   rows and at most one more for each of their entries; nothing that grows with the number of inline entries.
//! - [`check_rows`]: some rows, for whoever looks after every change.
//! - [`table_stats`]: the counts only.
//!
//! What it cannot see: that something is *missing*, and damage to single words whose damaged value is possible too (a
//! lock word that names another living owner): they carry no checksum.
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
