//! The model of network cards: a memory node's card, the link in both directions, PCIe, and client hosts whose clients
//! share a card.
//!
//! [`cluster`] and [`parameters`] hold the constants; docs/network-model.md gives the source and the uncertainty of
//! each. [`host`] carries a batch from a client's thread to the link, [`node`] serves its verbs, [`serve`] is the order
//! of events, and [`usage`] tells how busy each resource was.
//!
//! Invariants: a verb takes effect when it is served. Every queue is first come, first served, and is entered at the
//! time of the event that posts, admits or serves a verb; delays that are constant only shift what comes out. So no
//! queue is entered for a future time, and none is idle while work waits for it.

mod cluster;
mod host;
mod messages;
mod node;
mod parameters;
mod serve;
mod server;
mod usage;
mod words;

pub use cluster::{Cluster, HostParameters, NodeParameters};
pub use parameters::{Card, CardParameters, UnknownCard};
pub use usage::{Resource, Usage};

pub(crate) use messages::{MESSAGE_BYTES, WRITE_REPLY_BYTES};
pub(crate) use serve::{Cards, Passage};

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;
