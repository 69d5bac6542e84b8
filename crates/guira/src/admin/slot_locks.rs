//! Locks on client slots that belong to no client, and keep clients from taking them.

use std::fmt;
use std::ops::Range;

use guira_fabric::shell_word;
use guira_fabric_shm::{ForeignLock, ShmRegion};

use crate::fabric::FabricRegion;
use crate::store::Inner;
use crate::{Error, Store};

/// A lock on client slots of a table's file that belongs to no client: a process that may read the file locked it for
/// reading. While it is held, no client can take these slots, and their clients cannot be proved dead. A table that was
/// created with a mode that lets some users read and not write keeps its slots in a lock file that these users cannot
/// open: so either the mode was changed later, or the process may write the table. Serialized with these names.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SlotLock {
    /// The path of the file: the table's own, or its lock file's.
    pub path: String,
    /// The first client slot it covers, from 0.
    pub first_slot: u16,
    /// The last client slot it covers.
    pub last_slot: u16,
    /// The id of the process, if the kernel reports it.
    pub process: Option<u32>,
}

impl Store {
    /// Returns a lock on client slots that belongs to no client, if there is one: it explains slots that look taken,
    /// and clients that look alive, but are not. `None` for tables of memory nodes, whose files only the node can
    /// inspect. No round trip.
    ///
    /// # Errors
    /// `Region` if the kernel does not answer. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// let _client = store.client()?;
    /// assert_eq!(store.slot_lock()?, None);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn slot_lock(&self) -> Result<Option<SlotLock>, Error> {
        self.inner.slot_lock(&self.inner.latest_region())
    }
}

impl Inner {
    /// Same as [`Store::slot_lock`].
    pub(crate) fn slot_lock(&self, region: &FabricRegion) -> Result<Option<SlotLock>, Error> {
        self.slot_lock_on(region, 0..self.table.config().max_clients)
    }

    /// Returns a lock on any of these slots that belongs to no client.
    pub(crate) fn slot_lock_on(&self, region: &FabricRegion, slots: Range<u16>) -> Result<Option<SlotLock>, Error> {
        let FabricRegion::Shm(region) = region else { return Ok(None) };
        let found = region.foreign_lock(slots)?;
        Ok(found.map(|lock| SlotLock::new(region, lock)))
    }

    /// Whether `slot`, which could not be held, is locked by a process that is not its client.
    pub(crate) fn is_locked_by_no_client(&self, region: &FabricRegion, slot: u16) -> bool {
        matches!(self.slot_lock_on(region, slot..slot.saturating_add(1)), Ok(Some(_)))
    }
}

impl SlotLock {
    fn new(region: &ShmRegion, lock: ForeignLock) -> SlotLock {
        let ForeignLock { first_slot, last_slot, process } = lock;
        SlotLock { path: region.slot_path().display().to_string(), first_slot, last_slot, process }
    }
}

impl fmt::Display for SlotLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlotLock { path, first_slot, last_slot, process } = self;
        match process {
            Some(process) => write!(f, "process {process}")?,
            None => f.write_str("another process")?,
        }
        write!(
            f,
            " has locked client slots {first_slot} to {last_slot} of {path} for reading, which no client does: end \
             that process (fuser -v {} lists the processes that have the file open), and take its user's \
             permission to read the file (chmod); a table that is created with a mode for readers, instead of changed \
             to it later, prevents such locks: guira copy can make one from this",
            shell_word(path)
        )
    }
}
