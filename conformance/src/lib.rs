//! One suite, run over every fabric profile: what it needs to make tables and act on them.
//!
//! The tests live in `tests/`; each file states what it proves. `regressions/` holds one file a fixed bug.
#![forbid(unsafe_code)]

mod bench;
mod rng;

pub use bench::{Bench, TestClient, block_on};
pub use rng::Rng;
