//! Async client pools.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::{Client, Store};
use crate::Error;
use crate::pool::{DEFAULT_TIMEOUT, PoolStatus, Shared, debug};

/// A pool of clients that tasks share, from [`Store::pool`]: each task takes a client for one or a few operations, and
/// then the client goes to the task that has waited longest. The blocking counterpart is [`crate::Pool`].
///
/// Clients are opened when they are needed, up to the size of the pool. They are kept until [`Pool::close_idle`], or
/// until the last clone of the pool, and the last client got from it, are dropped, which drops them as a [`Client`];
/// until then the pool keeps its store's table open. An idle client keeps its slot and its chunks
/// ([`Client::release_memory`]). Clones share the clients, but each has its own timeout. Any executor will do. For
/// lookups alone no pool is needed: [`Store::reader`] takes no slot, and any number of readers may be open.
///
/// ```
/// # use guira::{CreateOptions, Store, Url, aio};
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
/// runtime.block_on(async {
///     let store = aio::Store::create(&url, &CreateOptions::new(1_000)).await?;
///     let pool = store.pool(4);
///     let tasks: Vec<_> = (0..100_u32).map(|task| {
///         let pool = pool.clone();
///         tokio::spawn(async move { pool.get().await?.put(&task.to_le_bytes(), b"seen").await })
///     }).collect();
///     for task in tasks {
///         task.await.expect("no panic")?;
///     }
///     assert!(pool.status().size <= 4);
///     Ok::<(), guira::Error>(())
/// })?;
/// # Store::destroy(&url)
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    timeout: Duration,
}

/// A client of a [`Pool`]. It goes back to the pool when this is dropped.
///
/// An operation that was dropped before it was ready is settled before another task gets the client: on shared memory
/// in place, behind a memory node on a thread (R-DROP-1). A client whose holder panics is closed, and another one is
/// opened when it is needed. A client that lost its connection to a memory node moves to another session, with another
/// slot, in the next operation (R-SESSION-1); the new holder gets no error about the lost session.
pub struct PooledClient {
    /// `Some` until this is dropped.
    client: Option<Client>,
    shared: Arc<Shared>,
}

impl Pool {
    pub(super) fn new(store: &crate::Store, max: u16) -> Pool {
        Pool { shared: Shared::new(store, max), timeout: DEFAULT_TIMEOUT }
    }

    /// Sets how long [`Pool::get`] waits; default 30 s. Zero never waits.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Pool {
        self.timeout = timeout;
        self
    }

    /// Gets an idle client, the one used last. If all are taken and the pool is full, waits for one; waiting tasks are
    /// served in order of arrival. If the pool is not full, but the table has no free slot, waits for a client of the
    /// pool as well, unless none is open; while others wait, one caller a second tries to open another. Dropping the
    /// future gives up its place, and a client that it was given meanwhile goes to the next.
    ///
    /// Round trips: none for a client that is open; to open one, those of [`Store::client`], which this calls; the
    /// timeout does not cover that call. A thread of the pool wakes tasks at their timeouts, while any wait.
    ///
    /// # Errors
    /// `PoolTimeout` if no client came back in time, or `TooManyClients` if this caller had found that the table has no
    /// slot for another one; those of [`Store::client`] if one was to be opened, and then the next waiter tries; `Fabric`
    /// in a forked child. Nothing was changed.
    pub async fn get(&self) -> Result<PooledClient, Error> {
        let client = self.shared.client(self.timeout).await?;
        Ok(PooledClient { client: Some(client), shared: Arc::clone(&self.shared) })
    }

    /// Closes the idle clients: gives back their slots and their chunks. Clients in use stay open, and new ones are
    /// opened when they are needed. Round trips: those of [`Client::close`] for each.
    ///
    /// # Errors
    /// Same as [`Client::close`]: the first error, after all were tried; no idle client is left open. `Fabric` in a
    /// forked child.
    pub async fn close_idle(&self) -> Result<(), Error> {
        self.shared.close_idle().await
    }

    /// Returns the number of clients now. All are 0 in a forked child: the clients are its parent's. No round trip.
    pub fn status(&self) -> PoolStatus {
        self.shared.status()
    }

    /// Returns the store of the pool's clients.
    pub fn store(&self) -> Store {
        self.shared.store().to_async()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Pool", &self.shared, self.timeout, f)
    }
}

impl fmt::Debug for PooledClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledClient").field("slot", &self.slot()).finish()
    }
}

/// # Panics
/// Never: the client is `Some` until this is dropped.
impl Deref for PooledClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("the client is there until this is dropped")
    }
}

impl DerefMut for PooledClient {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("the client is there until this is dropped")
    }
}

impl Drop for PooledClient {
    fn drop(&mut self) {
        self.client.take().into_iter().for_each(|client| self.shared.take_back(client));
    }
}
