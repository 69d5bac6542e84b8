//! One suite, run over every fabric profile: what it needs to make tables and act on them.
//!
//! The tests live in `tests/suite`; each module states what it proves. `regressions/` holds one file a fixed bug, and
//! `harness/`, a package of its own, what decoders promise.
#![forbid(unsafe_code)]

mod actors;
mod audit;
mod bench;
mod craft;
mod delegate;
mod extents;
pub mod histories;
mod lane;
mod model;
#[path = "../../crates/guira/tests/suite/common/rough.rs"]
mod rough;
mod served;
pub mod storm;
pub mod swarm;
mod turns;
mod watched;

pub use actors::{ActorLane, Actors, Ahead, VerbKind};
pub use bench::{Bench, TestClient, block_on};
pub use craft::KeyFinder;
pub use extents::{Extents, Prepared};
pub use guira_harness as harness;
pub use lane::{Moment, Sampling, SteppedLane};
pub use model::{Model, Op, Seen};
pub use rough::{Rough, Roughness};
pub use served::{AnyLane, BenchNode};
pub use turns::{Explored, Flaw, Grain, Late, Orders, Task, TurnLane, Turns, explore};
pub use watched::{Watch, WatchedLane};
