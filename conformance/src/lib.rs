//! One suite, run over every fabric profile: what it needs to make tables and act on them.
//!
//! The tests live in `tests/suite`; each module states what it proves. `regressions/` holds one file a fixed bug, and
//! `harness/`, a package of its own, what decoders promise.
#![forbid(unsafe_code)]

mod actors;
mod audit;
mod bench;
mod delegate;
mod extents;
mod forge;
pub mod histories;
mod lane;
mod model;
#[path = "../../crates/guira/tests/suite/common/rough.rs"]
mod rough;
mod schedule;
mod served;
pub mod storm;
pub mod swarm;
mod watched;

pub use actors::{ActorLane, Actors, NextStep, VerbKind};
pub use bench::{Bench, TestClient, block_on};
pub use extents::{Extents, Prepared};
pub use forge::KeyFinder;
pub use guira_harness as harness;
pub use lane::{Sampling, StepPoint, SteppedLane};
pub use model::{Model, Observed, Op};
pub use rough::{Rough, Roughness};
pub use schedule::{DelayedWrites, Exploration, Flaw, Granularity, Orders, ScheduledLane, Scheduler, Task, explore};
pub use served::{AnyLane, BenchNode};
pub use watched::{Watch, WatchedLane};
