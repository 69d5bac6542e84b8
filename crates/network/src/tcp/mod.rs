//! The TCP fabric: a memory node that executes one-sided verbs on bytes, and the lanes of its clients.
//!
//! One ordered batch of verbs is one request and one reply on the connection of a session: [`BatchExecutor`] is the
//! service of a node, [`TcpRegion`] and [`TcpLane`] are the client's side, and [`batch`] has the bytes.

mod backed;
pub mod batch;
mod executor;
mod lane;
mod plan;
mod region;
#[cfg(test)]
mod tests;

pub use executor::BatchExecutor;
pub use lane::TcpLane;
pub use region::TcpRegion;
