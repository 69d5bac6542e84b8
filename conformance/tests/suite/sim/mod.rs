//! The protocol in simulated networks: many clients in virtual time, whose batches interleave between verbs.
//!
//! Each key has one client that changes it, and every client reads it, so every answer can be compared with what a
//! linearizable key may answer ([`history::History`]), while clients move each other's entries and contend for locks. A
//! run prints its seed, and the seed alone reproduces it: equal seeds must give equal hashes of the event log.
//!
//! Proves:
//!
//! - twelve clients in virtual time, whose verbs interleave as the seed determines, on each kind of network, get
//!   linearizable answers and leave a sound table;
//! - with random faults no answer is wrong, and dead clients leave nothing but their locks and the rows under them.
//!   Faults are deaths at any verb and inside a WRITE, stalls, late and torn batches, the liberties of a queue pair
//!   (see swarms), lost connections, a memory node that restarts empty, and flipped bits;
//! - equal seeds give equal event logs;
//! - the model of network cards meets the published points that docs/network-model.md lists, and cases computed by hand
//!   to the nanosecond: verbs of one batch, full links, a release behind retries of the lock.
//!
//! `GUIRA_LONG=1` draws eighty times as many fault plans.
//!
//! Cannot show: recovery, which swarms test; flipped bits in lock words, which cannot be told from an owner.

mod deaths;
mod fault_free;
mod faults;
mod history;
mod scenario;
