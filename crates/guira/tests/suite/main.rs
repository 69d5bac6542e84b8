//! The tests of the public API: one program, because each program compiles every `async fn` that it awaits anew.
//!
//! Each module says at its head what it proves; docs/testing.md lists them. `cargo test -p guira --test suite
//! mistakes::` runs one of them. Apart stands `tests/allocations.rs`: it counts with an allocator of its own, which
//! would replace everybody's here.
#![forbid(unsafe_code)]

mod common;
mod counters;
mod examples;
mod executors;
mod histories;
mod list;
mod mistakes;
mod names;
mod node;
mod open_or_create;
mod pools;
mod processes;
mod recovery;
mod regressions;
mod repair;
mod reuse;
mod served;
mod store;
mod typed;
