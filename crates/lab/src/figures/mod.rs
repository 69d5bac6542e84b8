//! Figures of the paper that are no grids of experiments: 4, of placement and search alone, and 5, of a small table that
//! a few clients fill.
//!
//! Each of them measures what the paper's authors' programs do ([`crate::as_run`]), and what the real tables and clients
//! do. Invariants: the same seed gives the same charts, whatever the number of threads, and no published point is read.

pub mod fig4;
mod heap_table;
mod parallel;
