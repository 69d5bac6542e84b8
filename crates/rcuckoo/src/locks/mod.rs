//! Locks: how a client takes those of many rows at once, waits for who holds one, and gives back every one it took,
//! whatever became of the operation that took it. Nobody else writes lock words, but for who recovers, repairs or
//! destroys.

mod acquire;
pub(crate) mod batch;
pub(crate) mod journal;
pub(crate) mod unowned;

pub(crate) use self::acquire::{Conflict, LockSet};
pub(crate) use self::batch::{ExtentWrite, LockBatch, WRITE_WORDS, lock_set};
