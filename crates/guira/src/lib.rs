//! A key/value store in memory nobody serves.
//!
//! Every process maps the same table and reads and changes it by itself, with one-sided operations: there is no server
//! to start, to overload, or to lose. The table is RCuckoo (ATC'25), made safe against clients that die at any instant.
//!
//! # A shared cache in five minutes
//!
//! A program that shares a table cannot know whether it is the first. [`Store::open_or_create`] does either; of several
//! that start at once one creates the table and all get the same one, and a table that is not as asked is an error:
//!
//! ```
//! use guira::{CreateOptions, Store, Url};
//!
//! # fn main() -> Result<(), guira::Error> {
//! let url: Url = format!("shm://guira-doc-{}", std::process::id()).parse()?;
//! let store = Store::open_or_create(&url, &CreateOptions::new(10_000))?;
//! let mut client = store.client()?;
//! client.put(b"cuckoo", b"Guira guira")?;
//! assert_eq!(client.get(b"cuckoo")?.as_deref(), Some(&b"Guira guira"[..]));
//! assert_eq!(client.get(b"condor")?, None);
//! # drop(client);
//! Store::destroy(&url)?;
//! # Ok(())
//! # }
//! ```
//!
//! It is this loop, with a bound and a comparison, for those who want to do something in between:
//!
//! ```
//! # use guira::{CreateOptions, Error, Store, Url};
//! fn open_or_create(url: &Url) -> Result<Store, Error> {
//!     let options = CreateOptions::new(10_000);
//!     let store = match Store::open(url) {
//!         Err(error) if error.is_not_found() => match Store::create(url, &options) {
//!             Err(error) if error.is_already_exists() => Store::open(url)?, // Somebody was faster.
//!             result => result?,
//!         },
//!         result => result?,
//!     };
//!     store.ensure_fits(&options)?;
//!     Ok(store)
//! }
//! # fn main() -> Result<(), Error> {
//! # let url: Url = format!("shm://guira-doc-loop-{}", std::process::id()).parse()?;
//! # open_or_create(&url)?;
//! # open_or_create(&url)?;
//! # Store::destroy(&url)
//! # }
//! ```
//!
//! **Threads.** A [`Store`] is cheap to clone and shared by threads; each takes a [`Client`] of its own, or a
//! [`Reader`] if it changes nothing.
//!
//! **Processes.** Another process opens the same URL. It may open it for reading only ([`OpenOptions::read_only`]).
//! Nobody has to stay: the table is there until [`Store::destroy`], or the next start of the machine. Who has a table
//! open when it is destroyed gets [`OperationErrorKind::Destroyed`] from every operation that begins afterwards,
//! lookups included.
//!
//! [`admin::list()`] tells which tables this host has in shared memory, whose they are, and whether anybody uses them.
//!
//! **Hosts.** [`Store::serve`] makes this process the memory node of a table, which others open as `tcp://host:port`.
//! Feature `tls` (off by default, as it wants a C compiler) adds `ServeOptions::tls` and `OpenOptions::tls`: both sides
//! show certificates.
//!
//! **Async.** [`aio`] has the same for tasks: [`aio::Store`], [`aio::Client`], [`aio::Reader`] and [`aio::Pool`], whose
//! operations are `Send` futures, for any executor, none of whose threads is ever blocked. A future that is dropped
//! takes effect wholly or not at all.
//!
//! **Pools.** A table has so many client slots ([`CreateOptions::max_clients`]): where there are more threads or tasks,
//! they share the clients of a [`Pool`], from [`Store::pool`], or of an [`aio::Pool`].
//!
//! **Together.** Processes that change one key read it with its state and say what they expect:
//! [`Client::get_versioned`], [`Client::compare_and_swap`]. There are no changes of several keys at
//! once.
//!
//! **Errors.** A miss is `None`, never an error. An [`Error`] says what was attempted and whether it had an effect
//! ([`Error::effect`]), and whose fault it is ([`Error::blame`]):
//!
//! ```
//! use guira::{Blame, Client, Effect, Error};
//!
//! /// Whether the value is in the cache now.
//! fn remember(cache: &mut Client, key: &[u8], value: &[u8]) -> Result<bool, Error> {
//!     match cache.put(key, value) {
//!         Ok(_) => Ok(true),
//!         Err(error) => match (error.blame(), error.effect()) {
//!             (Blame::Full, _) => Ok(false),            // Nothing changed; a cache may go without.
//!             (Blame::Busy, Effect::None) => Ok(false), // Somebody who is alive, but stopped, holds the key's lock.
//!             _ => Err(error),                          // Damage, destruction, mistakes: somebody should know.
//!         },
//!     }
//! }
//! ```
//!
//! The families are [`OpenError`], [`OperationError`] and [`AdminError`]. The causes inside have their names in
//! [`errors`], so that a program that wants to know more can match on them.
//!
//! **Sizing.** [`CreateOptions::new`] takes the number of keys; the memory is reserved at once, and a table does not
//! grow. Short values lie in the rows (`bytes:64`: key and value of 64 bytes together), longer ones in space of their
//! own: [`CreateOptions::extent_bytes`] says how much it takes. [`Store::len_estimate`] and [`Store::stat`] tell how
//! full a table is.
//!
//! **When not to use it.** If the data must survive the machine; if you do not trust the other processes, for whoever
//! may write the table may damage it, which is detected and not prevented; if you need ordered scans, expiry, or
//! changes of several keys at once. A process that is stopped in the middle of a change keeps its locks until it goes
//! on: reads go on, and changes of the same rows get [`Blame::Busy`] at their deadline. One that is killed is recovered
//! by whoever meets its locks.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod aio;
mod client;
mod create;
mod error;
mod events;
mod fabric;
mod list;
mod lock_queue;
mod mismatch;
mod options;
mod owners;
mod pool;
mod reader;
mod reconnect_backoff;
mod repair;
mod scan;
mod serve;
mod session_binding;
mod sessions;
mod slot_locks;
mod stat;
mod state;
mod store;
mod tls_file;
mod token_file;
pub mod typed;
mod wait;

/// The result of an operation that can fail with [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub use client::Client;
pub use error::{AdminError, Blame, Error, OpenError};
pub use guira_fabric::{Effect, Traffic};
pub use guira_layout::{EntryFormat, Preset};
pub use guira_rcuckoo::{Counters, Error as OperationError, ErrorKind as OperationErrorKind, Operation};
pub use guira_url::Url;
pub use options::{CreateOptions, CreateProgress, OnMismatch, OpenOptions};
pub use pool::{Pool, PoolStatus, PooledClient};
pub use reader::Reader;
pub use scan::{LenEstimate, Scan, ScanSummary, Snapshot};
pub use serve::{ServeOptions, ServerHandle};
pub use state::{Expected, Put, Swap, Token, Versioned};
pub use store::Store;
#[cfg(feature = "tls")]
pub use tls_file::{ClientTls, NodeTls};
pub use token_file::AccessToken;

/// Administration of tables: statistics, checks, repairs, memory nodes, and the list of a host's tables.
pub mod admin {
    pub use guira_check::{
        Cause, CheckReport, ChunkCounts, ClassStats, OwnerChunks, Problem, ProblemKind, SpaceStats, Stage, TableStats,
    };
    pub use guira_fabric::{ByteCount, printable};
    pub use guira_fabric_tcp::client::Endpoint;
    pub use guira_fabric_tcp::node::{NodeCounters, NodeEvent, NodeEventKind, TokenNumber};

    pub use crate::list::{ClientCounts, ListedState, ListedTable, TableSummary, list};
    pub use crate::repair::{FailedRecovery, Killed, LivingClient, RecoveredClient, RecoveryReport};
    pub use crate::scan::{DamageVisitor, Unreadable, Visitor};
    pub use crate::stat::{ClientStat, ClientState, FileStat, NodeStat, RegionStat, Stat};
}

/// The causes inside an [`enum@Error`], for programs that match on them.
pub mod errors {
    pub use guira_check::CheckError;
    pub use guira_fabric::FabricError;
    pub use guira_fabric_shm::{Attempt, FileKind, KillError, LockFileProblem, ShmError};
    pub use guira_fabric_tcp::client::ConnectError;
    pub use guira_fabric_tcp::node::NodeError;
    pub use guira_fabric_tcp::tls::TlsError;
    pub use guira_fabric_tcp::wire::{Bye, WireError};
    pub use guira_layout::{ConfigError, SuperblockError};
    pub use guira_rcuckoo::{NoSpace, Place, TableError};
    pub use guira_url::UrlError;

    pub use crate::error::InsufficientSpace;
    pub use crate::mismatch::Mismatch;
    pub use crate::slot_locks::SlotLock;
    pub use crate::tls_file::TlsFileError;
    pub use crate::token_file::TokenFileError;
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
