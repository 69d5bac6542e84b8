//! The protocol in simulated networks: many clients in virtual time, whose batches interleave between verbs.
//!
//! Each key has one client that changes it, and every client reads it, so every answer can be compared with what a
//! linearizable key may answer ([`history::History`]), while clients move each other's entries and contend for locks. A
//! run prints its seed, and the seed alone reproduces it: equal seeds must give equal hashes of the event log.

mod deaths;
mod fault_free;
mod faults;
mod history;
mod scenario;
