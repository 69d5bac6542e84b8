//! A key/value store in shared or remote memory, without a server.
//!
//! Processes on one host map the same table (`shm://NAME`) and read and change it directly. Other hosts reach it
//! through a memory node, which executes reads and writes of bytes and knows nothing of keys (`tcp://HOST:PORT`), or
//! leaves them to its network card (`rdma://HOST:PORT`). The table is the cuckoo hash table of RCuckoo (ATC'25), made
//! safe against clients that are killed at any instant.
//!
//! Use it to share data between processes (caches, configuration, counters, job tables) where a server such as Redis
//! is too slow or one more thing to run. Lookups take no lock; a lookup in shared memory takes well under a
//! microsecond. Do not use it for data that must survive the machine: see [limits and guarantees](guide::limits).
//!
//! # Five-minute tour
//!
//! ## Open, put, get
//!
//! [`Store::open_or_create`] opens the table, or creates one that grows with what is stored in it; with
//! [`CreateOptions::new`] one of fixed size, for the number of keys given. Of several processes that start at the same
//! time, one creates it and all get the same table.
//!
//! ```
//! use guira::{CreateOptions, Put, Store};
//!
//! # fn main() -> guira::Result<()> {
//! # let name = format!("shm://{}", guira_testing::unique_name());
//! # let name = name.as_str();
//! // `name` is such as "shm://birds".
//! let store = Store::open_or_create(name, &CreateOptions::default())?;
//! let mut client = store.client()?; // one for each thread
//!
//! assert_eq!(client.put(b"cuckoo", b"Guira guira")?, Put::Inserted);
//! assert_eq!(client.put(b"cuckoo", b"Guira Guira")?, Put::Replaced);
//! assert_eq!(client.get(b"cuckoo")?.as_deref(), Some(&b"Guira Guira"[..]));
//! assert_eq!(client.get(b"condor")?, None); // a miss is not an error
//! assert!(client.remove(b"cuckoo")?);
//! # drop(client);
//! # Store::destroy(name)
//! # }
//! ```
//!
//! Keys and values are bytes; [`Store::typed`] and [`Store::plain`] give them Rust types. [`Client`] has the other
//! operations: [`try_insert`](Client::try_insert), [`update`](Client::update), [`increment`](Client::increment),
//! [`update_with`](Client::update_with), [`compare_and_swap`](Client::compare_and_swap),
//! [`get_or_insert_with`](Client::get_or_insert_with). [Which API when](guide::which_api) helps to choose.
//!
//! ## Batches
//!
//! [`Client::get_many`] looks many keys up together: their memory accesses overlap, and over a network 32 keys share a
//! round trip. Each key has a result of its own.
//!
//! ```
//! # use guira::{CreateOptions, Store};
//! # fn main() -> guira::Result<()> {
//! # let store = Store::create_unnamed(&CreateOptions::new(1_000))?;
//! # let mut client = store.client()?;
//! let birds = [("heron", "Ardea cinerea"), ("ibis", "Plegadis falcinellus")];
//! for result in client.put_many(&birds) {
//!     result?;
//! }
//! let values = client.get_many(&["heron", "condor"]);
//! assert!(matches!(&values[0], Ok(Some(value)) if value == b"Ardea cinerea"));
//! assert!(matches!(values[1], Ok(None)));
//! # Ok(())
//! # }
//! ```
//!
//! ## Two processes
//!
//! Another process opens the same name. A table outlives the processes that use it: it stays until
//! [`Store::destroy`], or until the machine is restarted. A process that only reads can open it so, and then needs no
//! write permission.
//!
//! ```
//! use guira::{CreateOptions, OpenOptions, Store};
//!
//! # fn main() -> guira::Result<()> {
//! # let name = format!("shm://{}", guira_testing::unique_name());
//! # let name = name.as_str();
//! // One process, such as a service:
//! let store = Store::create(name, &CreateOptions::new(10_000))?;
//! store.client()?.put(b"state", b"ready")?;
//!
//! // Another, such as a monitor:
//! let monitor = Store::open_with(name, &OpenOptions::new().read_only())?;
//! assert_eq!(monitor.reader().get(b"state")?.as_deref(), Some(&b"ready"[..]));
//! # Store::destroy(name)
//! # }
//! ```
//!
//! Any of them may be killed at any moment: what it had acknowledged stays, and the next client that meets a lock it
//! held completes or discards its change. The program `guira` looks into tables from a shell: `guira stat shm://birds`.
//!
//! ## Tasks
//!
//! [`aio`] has the same types with `async` methods, for any executor: [`aio::Store`], [`aio::Client`],
//! [`aio::Reader`], [`aio::Pool`]. Their futures are `Send` and never block the executor's threads.
//!
//! ```
//! use guira::{CreateOptions, aio};
//!
//! # fn main() -> guira::Result<()> {
//! # let name = format!("shm://{}", guira_testing::unique_name());
//! # let name = name.as_str();
//! # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
//! # runtime.block_on(async {
//! let store = aio::Store::create(name, &CreateOptions::new(10_000)).await?;
//! let pool = store.pool(4); // four clients, shared by all tasks
//! let tasks: Vec<_> = (0..100_u32)
//!     .map(|id| {
//!         let pool = pool.clone();
//!         tokio::spawn(async move {
//!             pool.get().await?.put(&id.to_le_bytes(), b"done").await
//!         })
//!     })
//!     .collect();
//! for task in tasks {
//!     task.await.expect("the task does not panic")?;
//! }
//! let estimate = store.run_blocking(|store| store.len_estimate()).await??;
//! assert_eq!(estimate.entries, 100);
//! # guira::Store::destroy(name)
//! # })
//! # }
//! ```
//!
//! ## Errors
//!
//! An [`Error`] says what was attempted, on what, and whether it had an effect. Decide by its
//! [`blame`](Error::blame) and [`effect`](Error::effect); match on the cause inside only if you need to know more.
//!
//! ```
//! use guira::{Blame, Client, Effect, Error};
//!
//! /// Stores a value in a cache and returns whether it is there now.
//! fn remember(cache: &mut Client, key: &[u8], value: &[u8]) -> Result<bool, Error> {
//!     match cache.put(key, value) {
//!         Ok(_) => Ok(true),
//!         Err(error) => match (error.blame(), error.effect()) {
//!             // The table is full; a cache can go without.
//!             (Blame::Full, _) => Ok(false),
//!             // A stopped process holds the key's lock.
//!             (Blame::Busy, Effect::None) => Ok(false),
//!             // Damage, a lost connection, a mistake of the caller.
//!             _ => Err(error),
//!         },
//!     }
//! }
//! ```
//!
//! The families are [`OpenError`], [`OperationError`] and [`AdminError`]; the causes inside are in [`errors`].
//!
//! ## Other hosts
//!
//! [`Store::serve`], or the program's `guira serve`, makes a process the memory node of a table. Clients on other hosts
//! open `tcp://HOST:PORT` and use the same API, with the same guarantees. Local processes use the table at the same
//! time. With [`ServeOptions::rdma`] a network card serves the table, to `rdma://HOST:PORT` and to nobody else.
//!
//! ```
//! use guira::{CreateOptions, ServeOptions, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // On the host that has the memory. Port 0 takes a free port.
//! // To let other hosts in, set a token: `ServeOptions::token`.
//! let table = Store::create_unnamed(&CreateOptions::new(10_000))?;
//! let node = table.serve(&ServeOptions::new("127.0.0.1:0".parse()?))?;
//! let url = format!("tcp://{}", node.local_addrs()[0]);
//!
//! // On any other host:
//! let store = Store::open(url.as_str())?;
//! store.client()?.put(b"cuckoo", b"Guira guira")?;
//! # assert_eq!(table.reader().get(b"cuckoo")?.as_deref(), Some(&b"Guira guira"[..]));
//! # drop(store);
//! node.stop()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to go next
//!
//! | to | read |
//! |---|---|
//! | share results between processes | [a shared cache](guide::shared_cache) |
//! | follow settings | [configuration](guide::configuration) |
//! | count | [counters](guide::counters) |
//! | hand out work | [a job table](guide::job_table) |
//! | share results between hosts | [a remote cache](guide::remote_cache) |
//! | choose a function | [which API when](guide::which_api) |
//! | know what holds and what does not | [limits and guarantees](guide::limits) |
//! | translate what you know | [coming from Redis, LMDB, `HashMap` or Chronicle Map](guide::coming_from) |
//!
//! The examples of this crate are programs to start from: `shared_cache`, `memo_cache`, `word_count`, `live_config`,
//! `config_store` and `web_service`.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `serde` | yes | [`Store::typed`]: keys and values that implement serde's traits |
//! | `zerocopy` | yes | [`Store::plain`]: keys and values stored byte for byte |
//! | `tls` | no | `ServeOptions::tls` and `OpenOptions::tls`: mutual TLS 1.3 with memory nodes; needs a C compiler |
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod admin;
pub mod aio;
mod client;
mod create;
mod error;
mod events;
mod fabric;
pub mod guide;
mod mismatch;
mod options;
mod owners;
mod pool;
mod reader;
mod scan;
mod serve;
mod sessions;
mod state;
mod store;
pub mod typed;
mod url;
mod wait;

/// The result of an operation that can fail with [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub use client::Client;
pub use error::{AdminError, Blame, Error, OpenError};
pub use guira_fabric::{Effect, Traffic};
pub use guira_layout::{EntryFormat, Preset};
pub use guira_rcuckoo::{
    Counters, Error as OperationError, ErrorKind as OperationErrorKind, Grown, Operation, RowGuess,
};
pub use options::{CreateOptions, CreateProgress, OnMismatch, OpenOptions, Reopen};
pub use pool::{Pool, PoolStatus, PooledClient};
pub use reader::Reader;
pub use scan::{LenEstimate, Scan, ScanSummary, Snapshot};
pub use serve::{AccessToken, LockTable, ServeOptions, ServerHandle};
#[cfg(feature = "tls")]
pub use serve::{ClientTls, NodeTls};
pub use state::{Expected, Put, Swap, Token, Versioned};
pub use store::Store;
pub use url::{RdmaDevice, RdmaNode, Url};

/// The causes inside an [`enum@Error`], for programs that match on them.
pub mod errors {
    pub use guira_check::CheckError;
    pub use guira_fabric::FabricError;
    pub use guira_fabric_shm::{Attempt, FileKind, KillError, LockFileProblem, NameLoss, ShmError};
    pub use guira_fabric_verbs::{AttachError, VerbsError};
    pub use guira_layout::{ConfigError, SuperblockError};
    pub use guira_network::client::ConnectError;
    pub use guira_network::node::NodeError;
    pub use guira_network::tls::TlsError;
    pub use guira_network::wire::{CloseReason, WireError};
    pub use guira_rcuckoo::{DamagedItem, NoSpace, TableError};

    pub use crate::admin::slot_locks::SlotLock;
    pub use crate::error::InsufficientSpace;
    pub use crate::mismatch::Mismatch;
    pub use crate::serve::{TlsFileError, TokenFileError};
    pub use crate::url::UrlError;
}

/// Rows, locks and slots in memory, for programs that inspect a table directly: [`Store::table`].
pub mod raw {
    pub use guira_fabric::{Addr, Space, VerbCounts};
    #[doc(inline)]
    pub use guira_layout as layout;
    pub use guira_layout::{Generation, LockId, OwnerId, RowId};
    pub use guira_rcuckoo::{Placement, RowPair, Table};
}

/// Runs the example of the README as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
