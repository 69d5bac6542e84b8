//! A client of LMDB, whose file is in a memory file system and never flushed. Two clients are two processes.

use std::path::Path;
use std::sync::Arc;

use lmdb::{Database, DatabaseFlags, Environment, EnvironmentFlags, RoTransaction, Transaction, WriteFlags};
use serde::{Deserialize, Serialize};

use crate::draws::Draws;
use crate::error::PeersError;
use crate::load::Loader;
use crate::measure::{Client, Job, Runner, run_client, verify_client};
use crate::record::{Key, Records, ValueEnds, WORD_BYTES};

/// Bytes of address space, far more than any run stores. The file grows as pages are used.
const MAP_BYTES: usize = 64 << 30;
/// Records per transaction while loading: few commits, and the dirty pages fit in the cache.
const LOAD_RECORDS: u64 = 1 << 20;
/// Lookups per read transaction where transactions are long: its cost vanishes, and pages are still freed in time.
const LONG_READS: u32 = 1024;

/// An open environment and its one database.
pub type Shared = Arc<(Environment, Database)>;

/// Lookups per read transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reads {
    /// 1,024; then the transaction is renewed.
    Long,
    /// One.
    Each,
}

/// Whether the environment exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It exists.
    Existing,
    /// It does not exist yet.
    New,
}

/// Opens the environment in `directory`. A process may do so once.
///
/// # Errors
/// Errors of LMDB.
pub fn open(directory: &Path, opening: Opening) -> Result<Shared, PeersError> {
    let flags = EnvironmentFlags::NO_SYNC | EnvironmentFlags::NO_META_SYNC | EnvironmentFlags::WRITE_MAP;
    let mut builder = Environment::new();
    let environment =
        builder.set_flags(flags).set_map_size(MAP_BYTES).open(directory).map_err(refused("open the environment"))?;
    let database = match opening {
        Opening::Existing => environment.open_db(None),
        Opening::New => environment.create_db(None, DatabaseFlags::empty()),
    };
    let database = database.map_err(refused("open the database"))?;
    Ok(Arc::new((environment, database)))
}

/// Loads an empty environment in the order of the keys, which fills its pages completely and is best for reading.
///
/// # Errors
/// Errors of LMDB; an interruption.
pub fn load(shared: &Shared, records: &Records, loader: &mut Loader<'_>) -> Result<(), PeersError> {
    let (environment, database) = &**shared;
    let begin = || environment.begin_rw_txn().map_err(refused("begin a write transaction"));
    let (mut transaction, mut stored) = (Some(begin()?), 0);
    loader.each_sorted(records, |key, value| {
        if let Some(open) = &mut transaction {
            open.put(*database, key, &value, WriteFlags::APPEND).map_err(refused("store"))?;
        }
        stored += 1;
        if stored % LOAD_RECORDS == 0
            && let Some(full) = transaction.take()
        {
            full.commit().map_err(refused("commit"))?;
            transaction = Some(begin()?);
        }
        Ok(())
    })?;
    transaction.map_or(Ok(()), |last| last.commit().map_err(refused("commit")))
}

/// A client of an environment.
pub struct Lmdb {
    shared: Shared,
    reads: Reads,
    buffer: Vec<u8>,
    value_bytes: usize,
}

impl Lmdb {
    /// A client of this environment.
    pub fn new(shared: Shared, reads: Reads, value_bytes: usize) -> Lmdb {
        Lmdb { shared, reads, buffer: Vec::with_capacity(value_bytes), value_bytes }
    }

    fn session(&mut self) -> Session<'_> {
        let (environment, database) = &*self.shared;
        Session {
            environment,
            database: *database,
            reads_max: if self.reads == Reads::Long { LONG_READS } else { 1 },
            reads: 0,
            transaction: None,
            buffer: &mut self.buffer,
            value_bytes: self.value_bytes,
        }
    }
}

impl Runner for Lmdb {
    fn run(&mut self, job: &Job, draws: &Draws) -> Result<u64, PeersError> {
        run_client(&mut self.session(), job, draws)
    }

    fn verify(&mut self, keys: &[Key], records: &Records) -> Result<(), PeersError> {
        verify_client(&mut self.session(), keys, records)
    }
}

/// An environment, and its open read transaction, if there is one.
struct Session<'e> {
    environment: &'e Environment,
    database: Database,
    reads_max: u32,
    reads: u32,
    transaction: Option<RoTransaction<'e>>,
    buffer: &'e mut Vec<u8>,
    value_bytes: usize,
}

impl Session<'_> {
    /// Opens the read transaction, or renews it after enough reads.
    #[inline(always)]
    fn prepare_read(&mut self) -> Result<(), PeersError> {
        if self.transaction.is_some() && self.reads < self.reads_max {
            self.reads += 1;
            return Ok(());
        }
        self.reads = 1;
        let begun = match self.transaction.take() {
            Some(used) => used.reset().renew(),
            None => self.environment.begin_ro_txn(),
        };
        self.transaction = Some(begun.map_err(refused("begin a read transaction"))?);
        Ok(())
    }
}

/// The value of `key`, in LMDB's page.
#[inline(always)]
fn value<'t>(
    transaction: &'t Option<RoTransaction<'_>>,
    database: Database,
    key: &Key,
) -> Result<&'t [u8], PeersError> {
    match transaction.as_ref().map(|transaction| transaction.get(database, key)) {
        Some(Ok(value)) => Ok(value),
        Some(Err(lmdb::Error::NotFound)) | None => Err(PeersError::missing(key)),
        Some(Err(error)) => Err(refused("read")(error)),
    }
}

impl Client for Session<'_> {
    #[inline(always)]
    fn get(&mut self, key: &Key) -> Result<ValueEnds, PeersError> {
        self.prepare_read()?;
        let value = value(&self.transaction, self.database, key)?;
        if value.len() == WORD_BYTES {
            return Ok(ValueEnds::of(value, self.value_bytes));
        }
        self.buffer.clear();
        self.buffer.extend_from_slice(value);
        Ok(ValueEnds::of(self.buffer, self.value_bytes))
    }

    #[inline(always)]
    fn update(&mut self, key: &Key, value: &[u8]) -> Result<(), PeersError> {
        // A thread can have only one transaction at a time.
        self.transaction = None;
        let mut transaction = self.environment.begin_rw_txn().map_err(refused("begin a write transaction"))?;
        let put = transaction.put(self.database, key, &value, WriteFlags::empty());
        put.map_err(refused("store"))?;
        transaction.commit().map_err(refused("commit"))
    }

    fn fetch(&mut self, key: &Key, into: &mut Vec<u8>) -> Result<(), PeersError> {
        self.prepare_read()?;
        into.clear();
        into.extend_from_slice(value(&self.transaction, self.database, key)?);
        Ok(())
    }
}

fn refused(attempt: &'static str) -> impl Fn(lmdb::Error) -> PeersError {
    move |error| PeersError::peer(attempt, error.to_string())
}
