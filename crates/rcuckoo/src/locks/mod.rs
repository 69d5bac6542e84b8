//! Locks: how a client takes those of many rows at once, waits for their holders, and releases every lock it took,
//! however the operation that took it ended. Only clients that recover, repair or destroy write other clients' lock
//! words.

mod acquire;
pub(crate) mod batch;
pub(crate) mod journal;
mod messages;
mod overwritten;
pub(crate) mod unowned;

pub(crate) use self::acquire::{Before, Conflict, LockSet, Reads, Tried};
pub(crate) use self::batch::{ExtentWrite, LockBatch, WRITE_WORDS, lock_set};
pub(crate) use self::messages::{count_messages, divide_among_messages};
pub(crate) use self::overwritten::SeenKey;
