//! The tests of the public API: one program, because each program compiles every `async fn` that it awaits anew.
//!
//! Each module says at its head what it proves; docs/testing.md lists them. `cargo test -p guira --test suite
//! mistakes::` runs one of them.
#![forbid(unsafe_code)]

mod allocations;
mod common;
mod examples;
mod executors;
mod histories;
mod mistakes;
mod names;
mod node;
mod open_or_create;
mod processes;
mod recovery;
mod reuse;
mod served;
mod store;
mod visible;
