//! The client side: a queue pair to a memory side, and the lanes that share it.
//!
//! A lane has one batch in flight. `submit` checks it, copies its data into registered memory and posts it, or puts it
//! into the connection's queue if the send queue or the pool of large buffers is full. The lane that
//! polls takes the completions of all lanes, posts the batches of the queue that fit now, and wakes the lanes that are
//! done.
//!
//! Invariants: the work requests posted and not completed never exceed the send queue's depth, nor their completions
//! the completion queue's; a batch is posted once; the buffer of a posted batch is not touched until it has completed.

mod buffers;
mod connection;
mod driver;
mod lane;
mod options;
mod parts;
mod plan;
mod queue;

pub use connection::{Connecting, Connection, LostConnection};
pub use lane::VerbsLane;
pub use options::ConnectionOptions;
pub use queue::Drained;
