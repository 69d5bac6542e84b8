//! The client's side: one connection is one session of a memory node.
//!
//! A fabric's region has a [`NodeSession`], for what does not touch the memory: holds of client slots, fences,
//! counters. A fabric whose lanes send their batches on the connection uses its [`Link`].
//!
//! The two ways of [waiting](guira_fabric::Waiting) differ only in the thread that reads the replies: with `InPlace` it
//! is a thread that waits for one, with `Cooperative` a thread of the connection, which wakes the tasks of any executor.
//! Either way any number of lanes shares a connection, and each lane has one batch in flight.
//!
//! Invariants: every request has one request slot, which its reply names; a lost connection stays lost, and nothing
//! more is sent on it; a forked child does not touch its parent's connection.

mod connect;
mod control;
mod driver;
mod link;
mod loss;
mod options;
mod outbox;
mod receive;
mod request_slots;
mod reserving;
mod session;
#[cfg(feature = "tls")]
mod tls;
mod transport;

pub use connect::ConnectError;
pub use driver::start as start_driver;
pub use link::{Failure, Link, Request, State, Take, Unanswered};
pub use loss::Loss;
pub use options::{ConnectOptions, DEFAULT_PORT, Endpoint, EndpointError};
pub use outbox::MAX_COALESCED_BYTES;
pub use receive::Receiver;
pub use request_slots::{Expected, MAX_REQUEST_SLOTS, RequestSlots, frame_id};
pub use reserving::Reserving;
pub use session::{Connection, NodeSession};
pub use transport::{ReceiveMode, SLICE, Transport};
