//! The program, run as people and scripts run it: one test program, because linking each costs as much as compiling it.
//!
//! Each module says at its head what it proves; docs/testing.md lists them. `cargo test -p guira-cli --test suite
//! serve::` runs one of them.
#![forbid(unsafe_code)]

mod advice;
mod atomic_domain;
mod commands;
mod common;
mod copy;
mod counters;
mod doctor;
mod dump;
mod interrupts;
mod lab;
mod limits;
mod list;
mod load;
mod mistakes;
#[cfg(feature = "peers")]
mod peers;
mod permissions;
mod repair;
mod runs;
mod scarcity;
mod serve;
mod shells;
mod top;
mod truncated;
mod wire;
