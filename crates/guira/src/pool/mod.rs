//! Pools of clients: many tasks or threads share a few clients, and so a few of the table's client slots.

mod queue;
mod shared;
mod timer;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use shared::Shared;

use crate::fabric::Waiting;
use crate::{Client, Error, Store, blocking};

/// How long [`Pool::get`] waits unless told otherwise.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Clients that tasks share, from [`Store::pool`]: each task takes one for an operation or a few, and the next one in
/// line gets it afterwards. In place: [`blocking::Pool`].
///
/// Clients are opened when they are needed, up to the size of the pool, and are kept until the last clone of the pool,
/// and of what was got from it, is dropped; the pool keeps its store's table open as long. An idle client keeps its
/// slot and its chunks ([`Client::release_memory`]). Clones share the clients, and each has a timeout of its own. It
/// needs no executor: any will do. For lookups alone a pool is not needed: [`Store::async_reader`] takes no slot, and
/// there may be any number.
///
/// ```
/// # use guira::{CreateOptions, Store, Url};
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://guira-doc-pool-{}", std::process::id()).parse()?;
/// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
/// let pool = store.pool(4);
/// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
/// runtime.block_on(async {
///     let tasks: Vec<_> = (0..100_u32).map(|task| {
///         let pool = pool.clone();
///         tokio::spawn(async move { pool.get().await?.put(&task.to_le_bytes(), b"seen").await })
///     }).collect();
///     for task in tasks {
///         task.await.expect("no panic")?;
///     }
///     Ok::<(), guira::Error>(())
/// })?;
/// assert_eq!(store.len()?.entries, 100);
/// assert!(pool.status().size <= 4);
/// # drop(pool);
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

/// How many clients a pool has, at one moment: [`Pool::status`], [`blocking::Pool::status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Clients it may have.
    pub max: usize,
    /// Clients it has, or is opening or closing.
    pub size: usize,
    /// Clients among them that nobody has.
    pub idle: usize,
    /// Calls that wait for one.
    pub waiting: usize,
}

impl Store {
    /// A pool of at most `max` clients whose operations are futures, for any number of tasks; 0 counts as 1. Each
    /// client has one of the table's slots while it is open, so of all processes' pools and clients there can be as
    /// many as [`crate::CreateOptions::max_clients`] says. Opens none, and cannot fail; no round trip. Source:
    /// R-SLOT-1.
    pub fn pool(&self, max: u16) -> Pool {
        Pool { shared: Shared::new(self, Waiting::Cooperative, max), timeout: DEFAULT_TIMEOUT }
    }

    /// A pool of at most `max` clients whose operations block in place, for any number of threads; 0 counts as 1. As
    /// [`Store::pool`]; each client of a memory node has a connection of its own.
    pub fn blocking_pool(&self, max: u16) -> blocking::Pool {
        blocking::Pool::new(Shared::new(self, Waiting::InPlace, max))
    }
}

impl Pool {
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
    /// Round trips: none for a client that is open; to open one, those of [`Store::async_client`], which this calls: it
    /// does not wait for other clients, but those round trips, and the first connection to a memory node, are made in
    /// place, by the executor's thread. A thread of the pool wakes tasks at their timeouts, while any wait.
    ///
    /// # Errors
    /// `PoolTimeout` if no client came back in time; as [`Store::async_client`] if one was to be opened, and then the
    /// next who waits tries; `Fabric` in a forked child. Nothing was changed.
    pub async fn get(&self) -> Result<PooledClient, Error> {
        let client = self.shared.client(self.timeout).await?;
        Ok(PooledClient { client: Some(client), shared: Arc::clone(&self.shared) })
    }

    /// How many clients there are now. All 0 in a forked child, whose parent's they are. No round trip.
    pub fn status(&self) -> PoolStatus {
        self.shared.status()
    }

    /// The store whose clients they are.
    pub fn store(&self) -> &Store {
        self.shared.store()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Pool", &self.shared, self.timeout, f)
    }
}

pub(crate) fn debug(name: &str, shared: &Shared, timeout: Duration, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let url = shared.store().url().to_string();
    let mut pool = f.debug_struct(name);
    pool.field("url", &url).field("timeout", &timeout).field("status", &shared.status()).finish()
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
