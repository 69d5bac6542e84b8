//! The conformance suite's tools: tables, clients, lanes and checks that its tests share across all fabric profiles.
//!
//! The tests are in `tests/suite`; each module states what it proves. `regressions/` holds one file for each fixed bug,
//! and the separate package in `harness/` states what decoders promise.
#![forbid(unsafe_code)]

mod actors;
mod audit;
mod bench;
pub mod crowded;
mod delegate;
mod extents;
mod faulty_proxy;
mod forge;
pub mod histories;
mod lane;
mod model;
mod ordering;
mod rdma;
mod schedule;
mod served;
pub mod storm;
pub mod swarm;
mod watched;

pub use actors::{ActorLane, Actors, NextStep, VerbKind};
pub use bench::{Bench, TestClient, block_on, divided, growing};
pub use extents::{Extents, Prepared};
pub use faulty_proxy::{FaultyProxy, ProxyFaults};
pub use forge::KeyFinder;
pub use guira_harness as harness;
pub use lane::{Sampling, StepPoint, SteppedLane};
pub use model::{Model, Observed, Op};
pub use ordering::{BatchForms, Examiner};
pub use rdma::RdmaDevices;
pub use schedule::{DelayedWrites, Exploration, Flaw, Granularity, Orders, ScheduledLane, Scheduler, Task, explore};
pub use served::{AnyLane, BenchNode};
pub use watched::{Watch, WatchedLane};
