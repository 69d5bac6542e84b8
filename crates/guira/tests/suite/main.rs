//! The tests of the public API: one program, because each program compiles every `async fn` that it awaits again.
//!
//! The head of each module says what it proves; docs/testing.md lists them. `cargo test -p guira --test suite
//! mistakes::` runs one of them. `tests/allocations.rs` is a program of its own: it has a global allocator that counts,
//! which would count for all tests here.
#![forbid(unsafe_code)]

mod common;
mod copies;
mod counters;
mod examples;
mod executors;
mod growth;
mod histories;
mod list;
mod mistakes;
mod name_loss;
mod names;
mod node;
mod open_or_create;
mod pools;
mod processes;
mod rdma;
mod recovery;
mod regressions;
mod repair;
mod reuse;
mod served;
mod store;
mod typed;
