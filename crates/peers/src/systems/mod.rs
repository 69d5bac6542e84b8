//! Clients of the compared systems: each is opened, loaded and called in the way that suits it best.

pub mod guira;
pub mod lmdb;
pub mod maps;
pub mod memcached;
pub mod raw;
pub mod redis;
mod wire;

pub use wire::{Address, Connection, Pipelined, Protocol, load as load_server};

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use self::memcached::Memcached;
use self::redis::Redis;
use crate::error::PeersError;
use crate::measure::Runner;
use crate::record::Records;

/// The address of a system that several processes can share, and how it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// A table of Guira.
    Guira {
        /// The table's file.
        file: PathBuf,
    },
    /// The memory of Guira's table, read without any protocol.
    Raw {
        /// The table's file.
        file: PathBuf,
    },
    /// An LMDB environment.
    Lmdb {
        /// The environment's directory.
        directory: PathBuf,
        /// Lookups per read transaction.
        reads: lmdb::Reads,
    },
    /// A Redis server.
    Redis {
        /// The server's address.
        address: Address,
        /// Commands sent before an answer is awaited.
        depth: usize,
    },
    /// A memcached server.
    Memcached {
        /// The server's address.
        address: Address,
        /// Commands sent before an answer is awaited.
        depth: usize,
    },
}

/// The connections of one process. An LMDB environment may be opened only once in a process, so it is shared.
#[derive(Default)]
pub struct Connections {
    lmdb: Option<(PathBuf, lmdb::Shared)>,
}

impl Connections {
    /// A client of the system at `endpoint`.
    ///
    /// # Errors
    /// The reason for which it refuses the client.
    pub fn connect(&mut self, endpoint: &Endpoint, records: &Records) -> Result<Box<dyn Runner>, PeersError> {
        let value_bytes = records.value_bytes();
        Ok(match endpoint {
            Endpoint::Guira { file } => Box::new(guira::Guira::open(file, value_bytes)?),
            Endpoint::Raw { file } => Box::new(raw::Raw::open(file, value_bytes)?),
            Endpoint::Lmdb { directory, reads } => {
                let shared = self.environment(directory)?;
                Box::new(lmdb::Lmdb::new(shared, *reads, value_bytes))
            }
            Endpoint::Redis { address, depth } => {
                Box::new(Pipelined::new(Connection::<Redis>::open(address, value_bytes)?, *depth))
            }
            Endpoint::Memcached { address, depth } => {
                Box::new(Pipelined::new(Connection::<Memcached>::open(address, value_bytes)?, *depth))
            }
        })
    }

    /// The environment in `directory`.
    ///
    /// # Errors
    /// Errors of LMDB.
    pub fn environment(&mut self, directory: &PathBuf) -> Result<lmdb::Shared, PeersError> {
        if let Some((open, shared)) = &self.lmdb
            && open == directory
        {
            return Ok(shared.clone());
        }
        let shared = lmdb::open(directory, lmdb::Opening::Existing)?;
        self.lmdb = Some((directory.clone(), shared.clone()));
        Ok(shared)
    }

    /// Adds an environment that this process has already opened.
    pub fn keep(&mut self, directory: PathBuf, shared: lmdb::Shared) {
        self.lmdb = Some((directory, shared));
    }
}
