//! The client's side: one connection is one session of a memory node.
//!
//! Who reads the replies differs, and nothing else: with [`Waiting::InPlace`] the thread that waits for one, with
//! [`Waiting::Cooperative`] a thread of the connection's own, which wakes the tasks of any executor. Either way any
//! number of lanes shares a connection, and each lane has one batch in flight.
//!
//! Invariants: every request has one slot, which its reply names; a connection that was lost stays lost, and no byte is
//! sent on it any more; a forked child touches nothing of its parent's connection.

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
