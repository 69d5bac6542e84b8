//! Memory nodes, the sessions of their clients, and the TCP fabric.
//!
//! A client connects over TCP, authenticates by a token or by TLS, and has a session: access to the node's memory,
//! client slots that it holds, and the right to ask for the end of a session that has a slot. How a session uses the
//! memory is the subject of a fabric, which adds a [`node::Service`] on the node's side and lanes on the client's: by
//! batches of verbs on the same connection ([`tcp`]), or by a queue pair of an RDMA device (crate
//! `guira-fabric-verbs`), which needs the connection only to start and to end.
//!
//! The protocol is [`wire`], described byte by byte in docs/wire.md; the host that has the memory runs a
//! [`node::Node`].
#![forbid(unsafe_code)]

use std::time::Duration;

/// The maximum timeout, 14 days: a longer one is rounded down to it. Its end is a time that clocks have, and the kernel
/// takes up to 2^31 ms.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(14 * 24 * 3_600);

pub mod client;
pub mod node;
pub mod tcp;
pub mod tls;
pub mod wire;
