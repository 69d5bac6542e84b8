//! The queues of this process by the tables that they are for: clients of several stores share them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, TryLockError, Weak};

use crate::SharedLockQueue;

/// Attempts to lock the list of tables, each followed by a yield. The lock is only ever held briefly.
const MAX_YIELDS: usize = 1_000;

/// The identity of a table, as this process reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableName {
    /// The random numbers drawn at its creation: of the table, and of its incarnation.
    pub drawn: [u64; 2],
    /// The node's name for the memory: it may be a copy.
    pub memory: [u64; 2],
    /// The node's address: another node may serve a copy.
    pub peer: SocketAddr,
}

/// The queue of a table, as long as a client uses it.
struct RegisteredQueue {
    table: TableName,
    queue: Weak<SharedLockQueue>,
}

impl SharedLockQueue {
    /// Returns the queue of a table, which all clients of this process share, whichever store they come from. A forked
    /// child has queues of its own: the threads that waited in its parent's do not exist in it.
    pub fn of(table: TableName) -> Arc<SharedLockQueue> {
        static TABLES: Mutex<Vec<RegisteredQueue>> = Mutex::new(Vec::new());
        let queue = Arc::new(SharedLockQueue::of_this_process());
        // In a process that was forked while a thread had it locked, the list stays locked: it does without.
        for _ in 0..MAX_YIELDS {
            match TABLES.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                Err(TryLockError::Poisoned(_)) => break,
                Ok(mut tables) => {
                    tables.retain(|known| known.queue.upgrade().is_some_and(|queue| queue.is_own()));
                    let known = tables.iter().find(|known| known.table == table);
                    if let Some(queue) = known.and_then(|known| known.queue.upgrade()) {
                        return queue;
                    }
                    tables.push(RegisteredQueue { table, queue: Arc::downgrade(&queue) });
                    break;
                }
            }
        }
        queue
    }
}
