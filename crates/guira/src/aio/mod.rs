//! The async API: stores, clients, readers and pools whose operations are futures, for any executor. The types of
//! [`crate`] with the same names are their blocking counterparts.
//!
//! Futures are `Send`, need no feature and no particular runtime, and never block the thread that polls them: on shared
//! memory a future waits only for locks, and yields then; behind a memory node the task sleeps until its batch is
//! answered. Work that has to block (resolving a name, connecting, mapping a file) is done on a separate thread.
//!
//! The library starts these **threads** when they are first needed:
//! - `guira-tcp`: one for each connection to a memory node, until it is closed;
//! - `guira-reconnect`: connects to a memory node for all tasks of a store, until a session begins;
//! - `guira-store`: one for each call of [`Store::open`], [`Store::create`], [`Store::open_or_create`],
//!   [`Store::destroy`] and [`Store::run_blocking`], until the call returns;
//! - `guira-pool`: one for each pool, wakes tasks at their timeouts, while any wait;
//! - `guira-settle`: settles a dropped operation of a pooled client behind a memory node.

mod client;
mod pool;
mod reader;
mod scan;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use guira_fabric::{FabricError, Waiting};

pub use self::client::Client;
pub(crate) use self::client::{Request, Taken};
pub use self::pool::{Pool, PooledClient};
pub use self::reader::Reader;
pub(crate) use self::reader::part_of;
pub use self::scan::Scan;
use crate::sessions::binding::without_effect;
use crate::sessions::deadline_after;
use crate::store::Inner;
pub use crate::typed::tasks::{Typed, TypedClient, TypedReader};
use crate::wait::on_a_thread;
use crate::{CreateOptions, Error, OpenOptions, Url};

/// A table that this process has opened, for tasks. Clones share it; each task takes a client, a pooled client or a
/// reader of its own. The blocking counterpart is [`crate::Store`], which converts from and into it.
///
/// ```
/// use guira::{CreateOptions, Url, aio};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
/// runtime.block_on(async {
///     let store = aio::Store::open_or_create(&url, &CreateOptions::new(1_000)).await?;
///     let mut client = store.client().await?;
///     client.put(b"cuckoo", b"Guira guira").await?;
///     let mut reader = store.reader();
///     assert_eq!(reader.get(b"cuckoo").await?.as_deref(), Some(&b"Guira guira"[..]));
///     client.close().await
/// })?;
/// # guira::Store::destroy(&url)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Store(crate::Store);

impl From<crate::Store> for Store {
    fn from(store: crate::Store) -> Store {
        Store(store)
    }
}

impl From<Store> for crate::Store {
    fn from(Store(store): Store) -> crate::Store {
        store
    }
}

impl Store {
    /// Opens a table of this user or of root for reading and writing; see [`crate::Store::open`].
    ///
    /// # Errors
    /// Same as [`crate::Store::open`].
    pub async fn open<U>(url: U) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::open_with(url, &OpenOptions::new()).await
    }

    /// Opens a table with `options`; see [`crate::Store::open_with`].
    ///
    /// # Errors
    /// Same as [`crate::Store::open_with`].
    pub async fn open_with<U>(url: U, options: &OpenOptions) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        let (url, options) = (url.try_into()?, options.clone());
        on_store_thread(url, move |url| crate::Store::open_url(url, &options).map(Store)).await?
    }

    /// Creates a table and opens it; see [`crate::Store::create`].
    ///
    /// # Errors
    /// Same as [`crate::Store::create`].
    pub async fn create<U>(url: U, options: &CreateOptions) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        let (url, options) = (url.try_into()?, options.clone());
        on_store_thread(url, move |url| {
            crate::Store::create_url(url, &options, &mut |_| ControlFlow::Continue(())).map(Store)
        })
        .await?
    }

    /// Opens a table, or creates it if there is none; see [`crate::Store::open_or_create`].
    ///
    /// # Errors
    /// Same as [`crate::Store::open_or_create`].
    pub async fn open_or_create<U>(url: U, options: &CreateOptions) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        let (url, options) = (url.try_into()?, options.clone());
        on_store_thread(url, move |url| {
            crate::Store::open_or_create_url(url, &options, &mut |_| ControlFlow::Continue(())).map(Store)
        })
        .await?
    }

    /// Destroys a table; see [`crate::Store::destroy`].
    ///
    /// # Errors
    /// Same as [`crate::Store::destroy`].
    pub async fn destroy<U>(url: U) -> Result<(), Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        on_store_thread(url.try_into()?, crate::Store::destroy_url).await?
    }

    /// Opens a client. Round trips and source: as [`crate::Store::client`]. Behind a memory node, all clients and
    /// readers of this store share one connection, made for the first of them; if it is lost, all of them lose their
    /// session.
    ///
    /// A future that is dropped takes no slot.
    ///
    /// # Errors
    /// Same as [`crate::Store::client`].
    pub async fn client(&self) -> Result<Client, Error> {
        let store = self.0.current_async().await?;
        let client = Store::client_of(&store.inner).await;
        store.inner.noted(client)
    }

    async fn client_of(inner: &Arc<Inner>) -> Result<Client, Error> {
        inner.refuse_read_only()?;
        let (sessions, timeout) = (&inner.cooperative, inner.options.reconnect_timeout);
        let mut session = sessions.current_async(deadline_after(timeout)).await?;
        let mut until = None;
        loop {
            let error = match inner.claim_in(&session, Waiting::Cooperative).await {
                Ok(taken) => return Ok(Client::new(inner, sessions, &session, Waiting::Cooperative, taken)),
                Err(error) if session.region.is_lost() => error,
                Err(error) => return Err(without_effect(error)),
            };
            // A slot taken through a lost session is that of a dead client.
            let until = match until {
                None => *until.insert(deadline_after(timeout)),
                Some(until) if Instant::now() < until => until,
                Some(_) => return Err(without_effect(error)),
            };
            session = sessions.after(session.number, until).await?;
        }
    }

    /// Returns a reader, one for each task. It takes no slot, needs no round trip, and cannot fail: behind a memory
    /// node, its first lookup connects, if no client or reader of this store has.
    pub fn reader(&self) -> Reader {
        Reader::new(&self.0.inner, &self.0.inner.cooperative, Waiting::Cooperative)
    }

    /// Returns a pool of at most `max` clients, for any number of tasks; 0 counts as 1. Each open client has one of the
    /// table's slots, so [`CreateOptions::max_clients`] bounds the clients of all processes, pooled or not. Opens no
    /// client, and cannot fail; no round trip. Source: R-SLOT-1.
    pub fn pool(&self, max: u16) -> Pool {
        Pool::new(&self.0, max)
    }

    /// Runs `call` with the blocking store, on a thread of its own: for functions that only
    /// [`crate::Store`] has, such as [`crate::Store::stat`], [`crate::Store::check`] and [`crate::Store::scan`]. If
    /// this future is dropped, the thread still runs to its end.
    ///
    /// # Errors
    /// `Fabric` if no thread can be started; `call` was not run. The result of `call` is returned as it is, errors
    /// included.
    ///
    /// ```
    /// # use guira::{CreateOptions, Url, aio};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # pollster::block_on(async {
    /// let store = aio::Store::create(&url, &CreateOptions::new(1_000)).await?;
    /// let report = store.run_blocking(|store| store.check()).await??;
    /// assert!(report.is_clean());
    /// # guira::Store::destroy(&url)
    /// # })
    /// # }
    /// ```
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&crate::Store) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let store = self.0.clone();
        on_store_thread(self.url().clone(), move |_| call(&store)).await
    }

    /// Returns the URL that the table was opened with. No round trip.
    pub fn url(&self) -> &Url {
        self.0.url()
    }
}

/// Runs `call` with `url` on a thread, and returns its result.
pub(crate) async fn on_store_thread<T: Send + 'static>(
    url: Url,
    call: impl FnOnce(&Url) -> T + Send + 'static,
) -> Result<T, Error> {
    let owned = url.clone();
    on_a_thread("guira-store", move || call(&owned)).await.map_err(|error| {
        let source = FabricError::no_thread(&error);
        Error::Fabric { doing: "cannot work with", url, source }
    })
}
