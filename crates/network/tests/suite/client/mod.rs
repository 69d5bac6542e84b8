//! The client's side of the TCP fabric, against a mock node in the test, and against hostile ones.
//!
//! Proves, for both ways of waiting, against a small mock node in the test:
//!
//! - every verb and every refusal is the same as on the heap fabric;
//! - batches of several frames work, and so do 64 lanes of one connection, used by threads, by tasks, and by both at
//!   once;
//! - batches and control requests can be dropped at every await, and are drained;
//! - batches of 16 tasks that were answered together leave in one system call. A task that is not polled delays the
//!   others for at most 50 µs, and the batch of a dropped task leaves at once;
//! - when frames are split, connections are cut at every byte, and answers are late or lost, each error reports the
//!   effect correctly;
//! - invalid answers are refused;
//! - a batch allocates nothing.
//!
//! `GUIRA_LONG=1` splits at every byte for both ways of waiting. A forked child is refused every operation and can open
//! clients of its own (`processes` of guira-fabric-shm).
//!
//! Cannot show: the node itself.

mod drops;
mod faults;
mod hostile;
mod mock_node;
mod shared;
mod verbs;
