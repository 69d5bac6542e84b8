//! Stores, clients, readers and pools whose operations are futures, for any executor. Those of [`crate`] that have the
//! same names do the same in place.
//!
//! Futures are `Send`, need no feature and no runtime of their own, and never block the thread that polls them: on
//! shared memory nothing waits but for a lock, and then the task yields; behind a memory node, batches are answered
//! while the task sleeps. What has to block (to resolve a name, to connect, to map a file) is done by a thread.
//!
//! **Threads** that the library starts, each when it is first needed:
//! - `guira-tcp`: one for each connection to a memory node, until that is closed;
//! - `guira-reconnect`: connects to a memory node that is new or lost, for all tasks of a store, until it has;
//! - `guira-store`: one for each call of [`Store::open`], [`Store::create`], [`Store::open_or_create`],
//!   [`Store::destroy`] and [`Store::run_blocking`], until that is done;
//! - `guira-pool`: one a pool, wakes tasks at their timeouts, while any wait;
//! - `guira-settle`: settles what a dropped operation of a pool's client left behind a memory node.

mod client;
mod pool;
mod reader;
mod scan;

use std::ops::ControlFlow;
use std::time::Instant;

use guira_fabric::FabricError;

pub use self::client::Client;
pub(crate) use self::client::{Request, Taken};
pub use self::pool::{Pool, PooledClient};
pub use self::reader::Reader;
pub use self::scan::Scan;
use crate::fabric::Waiting;
use crate::session_binding::without_effect;
use crate::sessions::deadline_after;
pub use crate::typed::tasks::{Typed, TypedClient, TypedReader};
use crate::wait::on_a_thread;
use crate::{CreateOptions, Error, OpenOptions, Url};

/// A table this process has opened, for tasks. Clones share it; each task takes a client, or one of a pool, or a reader
/// of its own. In place: [`crate::Store`], which it can be made of and into.
///
/// ```
/// use guira::{CreateOptions, Url, aio};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://guira-doc-aio-store-{}", std::process::id()).parse()?;
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
    /// As [`crate::Store::open`].
    ///
    /// # Errors
    /// As there.
    pub async fn open<U>(url: U) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::open_with(url, &OpenOptions::new()).await
    }

    /// As [`crate::Store::open_with`].
    ///
    /// # Errors
    /// As there.
    pub async fn open_with<U>(url: U, options: &OpenOptions) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        let (url, options) = (url.try_into()?, options.clone());
        on_store_thread(url, move |url| crate::Store::open_url(url, &options).map(Store)).await?
    }

    /// As [`crate::Store::create`].
    ///
    /// # Errors
    /// As there.
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

    /// As [`crate::Store::open_or_create`].
    ///
    /// # Errors
    /// As there.
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

    /// As [`crate::Store::destroy`].
    ///
    /// # Errors
    /// As there.
    pub async fn destroy<U>(url: U) -> Result<(), Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        on_store_thread(url.try_into()?, crate::Store::destroy_url).await?
    }

    /// A client whose operations are futures. Round trips and source: as [`crate::Store::client`]; behind a memory
    /// node, all of this store's clients and readers share a connection, which the first of them makes, and with it
    /// their fate.
    ///
    /// A future that is dropped takes no slot.
    ///
    /// # Errors
    /// As [`crate::Store::client`].
    pub async fn client(&self) -> Result<Client, Error> {
        let inner = &self.0.inner;
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
            // A slot that was taken through a session that is lost is that of a dead client.
            let until = match until {
                None => *until.insert(deadline_after(timeout)),
                Some(until) if Instant::now() < until => until,
                Some(_) => return Err(without_effect(error)),
            };
            session = sessions.after(session.number, until).await?;
        }
    }

    /// A reader whose lookups are futures: one a task. No slot, no round trip, and no error: behind a memory node, its
    /// first lookup connects, if no client or reader of this store has.
    pub fn reader(&self) -> Reader {
        Reader::new(&self.0.inner, &self.0.inner.cooperative, Waiting::Cooperative)
    }

    /// A pool of at most `max` clients, for any number of tasks; 0 counts as 1. Each client has one of the table's
    /// slots while it is open, so of all processes' pools and clients there can be as many as
    /// [`CreateOptions::max_clients`] says. Opens none, and cannot fail; no round trip. Source: R-SLOT-1.
    pub fn pool(&self, max: u16) -> Pool {
        Pool::new(&self.0, max)
    }

    /// Runs `call` with the store, on a thread that is started for it: for what only [`crate::Store`] has, such as
    /// [`crate::Store::stat`], [`crate::Store::check`], [`crate::Store::scan`]. If this future is dropped, the thread
    /// goes on to its end.
    ///
    /// # Errors
    /// `Fabric` if no thread can be started; `call` was not run. What `call` returns is returned, errors included.
    ///
    /// ```
    /// # use guira::{CreateOptions, Url, aio};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-aio-run-{}", std::process::id()).parse()?;
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

    /// Where the table is, as it was opened. No round trip.
    pub fn url(&self) -> &Url {
        self.0.url()
    }
}

/// The result of `call` with `url`, which a thread runs.
async fn on_store_thread<T: Send + 'static>(
    url: Url,
    call: impl FnOnce(&Url) -> T + Send + 'static,
) -> Result<T, Error> {
    let its = url.clone();
    on_a_thread("guira-store", move || call(&its)).await.map_err(|error| {
        let source = FabricError::Backend(format!("cannot start a thread: {error}"));
        Error::Fabric { doing: "cannot work with", url, source }
    })
}
