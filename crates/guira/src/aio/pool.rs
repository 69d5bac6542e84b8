//! Pools of clients for tasks.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::{Client, Store};
use crate::Error;
use crate::pool::{DEFAULT_TIMEOUT, PoolStatus, Shared, debug};

/// Clients that tasks share, from [`Store::pool`]: each task takes one for an operation or a few, and the next one in
/// line gets it afterwards. In place: [`crate::Pool`].
///
/// Clients are opened when they are needed, up to the size of the pool, and are kept until [`Pool::close_idle`], or
/// until the last clone of the pool, and of what was got from it, is dropped, as a [`Client`] is then; the pool keeps
/// its store's table open as long. An idle client keeps its
/// slot and its chunks ([`Client::release_memory`]). Clones share the clients, and each has a timeout of its own. It
/// needs no executor: any will do. For lookups alone a pool is not needed: [`Store::reader`] takes no slot, and
/// there may be any number.
///
/// ```
/// # use guira::{CreateOptions, Store, Url, aio};
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://guira-doc-pool-{}", std::process::id()).parse()?;
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

/// A client of a [`Pool`], which goes back when this is dropped.
///
/// An operation that was dropped before it was ready is settled before anybody else gets the client: on shared memory
/// in place, behind a memory node by a thread that ends with it (R-DROP-1). A client whose holder panics is closed, and
/// another one is opened when it is needed. One that lost its connection to a memory node goes on in another session,
/// with another slot, in the next operation (R-SESSION-1), which is not told what became of the one before.
pub struct PooledClient {
    /// There until this is dropped.
    client: Option<Client>,
    shared: Arc<Shared>,
}

impl Pool {
    pub(super) fn new(store: &crate::Store, max: u16) -> Pool {
        Pool { shared: Shared::new(store, max), timeout: DEFAULT_TIMEOUT }
    }

    /// The same pool, with another bound on how long [`Pool::get`] waits; default 30 s. Zero waits for nobody.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Pool {
        self.timeout = timeout;
        self
    }

    /// A client that nobody else has, the one that was used last. If all are taken and the pool may have no more, waits
    /// for one; those who wait get theirs in the order of coming. Dropping the future gives up its place, and what it
    /// was given meanwhile goes to the next.
    ///
    /// Round trips: none for a client that is open; to open one, those of [`Store::client`], which this calls: the
    /// timeout is for the time before. A thread of the pool wakes tasks at their timeouts, while any wait.
    ///
    /// # Errors
    /// `PoolTimeout` if no client came back in time; as [`Store::client`] if one was to be opened, and then the
    /// next who waits tries; `Fabric` in a forked child. Nothing was changed.
    pub async fn get(&self) -> Result<PooledClient, Error> {
        let client = self.shared.client(self.timeout).await?;
        Ok(PooledClient { client: Some(client), shared: Arc::clone(&self.shared) })
    }

    /// Closes the clients that nobody has now: gives back their slots and their chunks. Those that are lent stay, and
    /// new ones are opened when they are needed. Round trips: those of [`Client::close`] for each.
    ///
    /// # Errors
    /// As [`Client::close`], the first after all were tried: no client is left open; `Fabric` in a forked child.
    pub async fn close_idle(&self) -> Result<(), Error> {
        self.shared.close_idle().await
    }

    /// How many clients there are now. All 0 in a forked child, whose parent's they are. No round trip.
    pub fn status(&self) -> PoolStatus {
        self.shared.status()
    }

    /// The store whose clients they are.
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
/// Never: the client is there until this is dropped.
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
