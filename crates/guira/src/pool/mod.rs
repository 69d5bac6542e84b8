//! Client pools: many threads or tasks share a few clients, and so a few of the table's client slots.

mod queue;
mod shared;
mod timer;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::shared::Shared;
use crate::wait::block_on;
use crate::{Client, Error, Store};

/// The default timeout of [`Pool::get`].
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of clients of a pool at one moment: [`Pool::status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// The maximum number of clients.
    pub max: usize,
    /// Clients that are open, or being opened or closed.
    pub size: usize,
    /// Clients among them that are idle.
    pub idle: usize,
    /// Calls that wait for a client.
    pub waiting: usize,
}

/// A pool of clients that threads share, from [`Store::pool`]: each thread takes a client for an operation or a few,
/// and then it goes to the thread that has waited longest. The async counterpart is [`crate::aio::Pool`].
///
/// ```
/// # use guira::{CreateOptions, Store, Url};
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
/// let pool = store.pool(2);
/// std::thread::scope(|scope| {
///     let puts: Vec<_> = (0..8_u32)
///         .map(|thread| {
///             let pool = &pool;
///             scope.spawn(move || pool.get()?.put(&thread.to_le_bytes(), b"seen"))
///         })
///         .collect();
///     puts.into_iter().try_for_each(|put| put.join().expect("puts do not panic").map(drop))
/// })?;
/// assert_eq!((store.len_estimate()?.entries, pool.status().waiting), (8, 0));
/// # drop(pool);
/// # Store::destroy(&url)
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    timeout: Duration,
}

/// A client of a [`Pool`]. It goes back to the pool when this is dropped, as described at [`crate::aio::PooledClient`].
pub struct PooledClient {
    /// `Some` until this is dropped.
    client: Option<Client>,
    shared: Arc<Shared>,
}

impl Pool {
    pub(crate) fn new(store: &Store, max: u16) -> Pool {
        Pool { shared: Shared::new(store, max), timeout: DEFAULT_TIMEOUT }
    }

    /// Sets how long [`Pool::get`] waits; default 30 s. Zero never waits.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Pool {
        self.timeout = timeout;
        self
    }

    /// Gets an idle client, the one used last. If all are taken and the pool is full, waits for one; waiting threads
    /// are served in order of arrival. If the pool is not full, but the table has no free slot, waits for a client of
    /// the pool as well, unless none is open; while others wait, one caller a second tries to open another. Round trips:
    /// none for a client that is open; to open one, those of [`Store::client`], which this calls.
    ///
    /// # Errors
    /// `PoolTimeout` if no client came back in time, or `TooManyClients` if this caller had found that the table has no
    /// slot for another one; those of [`Store::client`] if one was to be opened, and then the next waiter tries; `Fabric`
    /// in a forked child. Nothing was changed.
    pub fn get(&self) -> Result<PooledClient, Error> {
        let client = self.shared.client_in_place(self.timeout)?;
        Ok(PooledClient { client: Some(Client(client)), shared: Arc::clone(&self.shared) })
    }

    /// Closes the idle clients: gives back their slots and their chunks. Clients in use stay open, and new ones are
    /// opened when they are needed. Round trips: those of [`Client::close`] for each.
    ///
    /// # Errors
    /// Same as [`Client::close`]: the first error, after all were tried; no idle client is left open. `Fabric` in a
    /// forked child.
    pub fn close_idle(&self) -> Result<(), Error> {
        block_on(self.shared.close_idle())
    }

    /// Returns the number of clients now. All are 0 in a forked child: the clients are its parent's. No round trip.
    pub fn status(&self) -> PoolStatus {
        self.shared.status()
    }

    /// Returns the store of the pool's clients.
    pub fn store(&self) -> &Store {
        self.shared.store()
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
        self.client.take().into_iter().for_each(|client| self.shared.take_back(client.0));
    }
}

pub(crate) fn debug(name: &str, shared: &Shared, timeout: Duration, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let url = shared.store().url().to_string();
    let mut pool = f.debug_struct(name);
    pool.field("url", &url).field("timeout", &timeout).field("status", &shared.status()).finish()
}
