//! A key/value store in memory nobody serves.
//!
//! Every process maps the same table and reads and changes it by itself, with one-sided operations: there is no server
//! to start, to overload, or to lose. The table is RCuckoo (ATC'25), made safe against clients that die at any instant.
//!
//! ```
//! use guira::{CreateOptions, Store, Url};
//!
//! # fn main() -> Result<(), guira::Error> {
//! let url: Url = format!("shm://guira-doc-{}", std::process::id()).parse()?;
//! let store = Store::create(&url, &CreateOptions::new(10_000))?;
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
//! Another process opens the same table with [`Store::open`]. A [`Store`] is shared by threads; each thread takes a
//! [`blocking::Client`] of its own, or a [`Client`] whose operations are `async` and run on any executor.
//!
//! A miss is `None`, never an error. An [`Error`] says what was attempted and whether it had an effect
//! ([`Error::effect`]), and whose fault it is ([`Error::blame`]).
#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod error;
mod extents;
mod options;
mod scan;
mod stat;
mod state;
mod store;
mod url;

pub use client::{Client, Put, Reader};
pub use error::{Blame, Error, Shortage};
pub use extents::ExtentError;
pub use guira_check::{
    CheckReport, ChunkCounts, ClassStats, OwnerChunks, Problem, ProblemKind, SpaceStats, TableStats,
};
pub use guira_fabric::{Effect, Traffic};
pub use guira_layout::{EntryFormat, Preset};
pub use guira_rcuckoo::{Counters, Operation};
pub use options::{CreateOptions, OpenOptions};
pub use scan::{DamageVisitor, Len, ScanSummary, StableScan, Unread, Visitor};
pub use stat::{ClientStat, ClientState, RegionStat, Stat};
pub use state::{Expected, Swap, Token, Versioned};
pub use store::Store;
pub use url::{Url, UrlError};

/// The example of the README is run with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
