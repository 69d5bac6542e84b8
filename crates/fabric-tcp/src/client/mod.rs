//! The client's side: one connection is one session of a memory node.
//!
//! The two ways of waiting differ only in the thread that reads the replies: with [`Waiting::InPlace`] it is a thread
//! that waits for one, with [`Waiting::Cooperative`] a thread of the connection, which wakes the tasks of any executor.
//! Either way any number of lanes shares a connection, and each lane has one batch in flight.
//!
//! Invariants: every request has one request slot, which its reply names; a lost connection stays lost, and nothing
//! more is sent on it; a forked child does not touch its parent's connection.

mod connect;
mod control;
mod driver;
mod lane;
mod link;
mod loss;
mod options;
mod outbox;
mod plan;
mod receive;
mod region;
mod request_slots;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod transport;

pub use connect::ConnectError;
pub use lane::TcpLane;
pub use loss::Loss;
pub use options::{ConnectOptions, DEFAULT_PORT, Endpoint, EndpointError, Waiting};
pub use region::TcpRegion;
