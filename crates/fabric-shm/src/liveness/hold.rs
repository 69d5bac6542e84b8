//! Holds of client slots. A client is alive while it holds the lock on its slot's byte of the slot file, which is the
//! region's own file, or a lock file next to it if some users may read the region but not write it
//! ([`super::lock_file`]).
//!
//! Invariants: each hold has its own open file description, which is never duplicated, and is kept open by a mapping,
//! not by a descriptor ([`super::fork`]). The lock is never queried and never unlocked through it: instead, the
//! description is closed, by drop, or by the kernel when the process ends or runs another program. Only the slot file
//! that was found when the region was opened is ever locked, even if its descriptor was closed.
//!
//! A [`Set`] has one description for all slots of one owner, kept open by a mapping and a descriptor
//! ([`super::lock_description`]). Its bytes are locked and unlocked one by one; closing the description unlocks all of
//! them in one call. Locks on one description do not exclude each other, so the set records which slots it holds.
//!
//! Holds are locks for writing. A process that may read the slot file may lock the same bytes for reading, which looks
//! like a living client to all others. Only users who may write the region may read the slot file, unless a mode was
//! changed after creation. [`foreign_lock`] finds such locks, so that they can be reported (docs/decisions/0020).

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guira_fabric::{FabricError, HoldSet, SlotHold};
use rustix::io::Errno;

use crate::error::explained;
use crate::file::{self, OpenFile};
use crate::liveness::fork;
use crate::liveness::lock_description::LockDescription;
use crate::mapping::AnchorPages;
use crate::region::{Access, Shared};
use crate::sys::{self, LockKind};

/// The byte of slot 0: beyond the end of every file, so that no lock on data covers it.
pub(crate) const FIRST_SLOT_BYTE: i64 = 1 << 62;
/// The number of slot bytes: one for each possible slot number.
pub(crate) const SLOT_BYTES: i64 = 1 << 16;
/// The byte that is locked by the process that removes the region's name.
pub(crate) const REMOVAL_BYTE: i64 = FIRST_SLOT_BYTE - 1;

/// A read lock on client slots. It does not belong to a client, because clients take write locks. The slots look taken
/// until its process ends or closes the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignLock {
    /// The first slot in the queried range that it covers.
    pub first_slot: u16,
    /// The last slot in the queried range that it covers.
    pub last_slot: u16,
    /// The id of the process that has it, in this process's pid namespace; `None` for a lock of an open file
    /// description, for which the kernel reports no process.
    pub process: Option<u32>,
}

/// Returns a read lock on any of `slots`, if there is one; `None` also if this process has not opened the slot file.
/// Costs two system calls, and up to four more for each of the slots that a client holds: the kernel reports any one of
/// several locks, so the ranges on both sides of a client's lock are queried separately.
pub(crate) fn foreign_lock(region: &Shared, slots: Range<u16>) -> Result<Option<ForeignLock>, Errno> {
    let Some(slot_file) = region.slot_file() else { return Ok(None) };
    let byte = |slot: u16| FIRST_SLOT_BYTE + i64::from(slot);
    let slot = |byte: i64| u16::try_from(byte - FIRST_SLOT_BYTE).unwrap_or(u16::MAX);
    let mut unknown = vec![(byte(slots.start), byte(slots.end))];
    // Terminates: each iteration removes a range, and adds at most two that are shorter in total.
    while let Some((from, until)) = unknown.pop() {
        // A descriptor that was closed, and may lead to another file, is not used.
        if from >= until || !slot_file.is(slot_file.file) {
            continue;
        }
        let Some(lock) = sys::any_lock(slot_file.file, from, until - from)? else { continue };
        let (start, end) = (lock.start.max(from), lock.end.unwrap_or(i64::MAX).min(until));
        match lock.kind {
            LockKind::Write => unknown.extend([(end.max(start + 1), until), (from, start)]),
            LockKind::Read => {
                let (first_slot, last_slot) = (slot(start), slot(end - 1));
                return Ok(Some(ForeignLock { first_slot, last_slot, process: lock.process }));
            }
        }
    }
    Ok(None)
}

/// Takes `slot`, or returns `None` if its owner is alive.
pub(crate) fn hold(region: &Shared, slot: u16) -> Result<Option<SlotHold>, FabricError> {
    let slot_file = require_writer(region)?;
    // Allocated outside the window, so that no fork waits for an allocation.
    let proc_path = file::proc_path(slot_file.file);
    let mut is_taken = false;
    let lock = |file: &OwnedFd| {
        let answer = sys::try_lock_byte(file.as_fd(), byte_of(slot));
        is_taken = matches!(answer, Err(Errno::AGAIN | Errno::ACCESS));
        answer
    };
    let pages = AnchorPages::of_hold(region.system.unit_bytes());
    let open = || slot_file.reopen(&proc_path, Access::ReadWrite);
    match fork::open_guarded(region.process, pages, open, lock) {
        Ok(guard) => Ok(Some(SlotHold::new(guard))),
        // Only the lock call can tell that an owner is alive: a mapping fails with the same error number if all memory
        // is to be locked (mlockall) and the limit is reached.
        Err(_) if is_taken => Ok(None),
        Err(errno) => Err(refused(region, slot, errno)),
    }
}

/// Returns the slot file, if this process may take slots of the region.
fn require_writer(region: &Shared) -> Result<OpenFile<'_>, FabricError> {
    if !region.process.is_this() {
        return Err(FabricError::Forked);
    }
    if region.access == Access::ReadOnly {
        return Err(FabricError::ReadOnly { verb: "a hold" });
    }
    region.slot_file().ok_or_else(|| {
        let path = region.path.display();
        FabricError::Backend(format!(
            "{path} was opened for destroying only, without its lock file; nothing was changed"
        ))
    })
}

fn refused(region: &Shared, slot: u16, errno: Errno) -> FabricError {
    let (path, cause) = (region.path.display(), explained(errno));
    FabricError::Backend(format!("could not take slot {slot} of {path}: {cause}; nothing was changed"))
}

fn byte_of(slot: u16) -> i64 {
    FIRST_SLOT_BYTE + i64::from(slot)
}

/// A set of client slots of one owner, on one open file description, which is opened for the first slot.
pub(crate) struct Set {
    region: Arc<Shared>,
    description: Option<LockDescription>,
    slots: BTreeSet<u16>,
}

impl Set {
    pub(crate) fn new(region: Arc<Shared>) -> Set {
        Set { region, description: None, slots: BTreeSet::new() }
    }

    fn description(&mut self) -> Result<&LockDescription, Errno> {
        if self.description.is_none() {
            let region = &self.region;
            let slot_file = region.slot_file().ok_or(Errno::BADF)?;
            // Allocated outside the window, so that no fork waits for an allocation.
            let proc_path = file::proc_path(slot_file.file);
            let pages = AnchorPages::of_hold(region.system.unit_bytes());
            self.description =
                Some(LockDescription::open(region.process, pages, || slot_file.reopen(&proc_path, Access::ReadWrite))?);
        }
        self.description.as_ref().ok_or(Errno::BADF)
    }
}

impl HoldSet for Set {
    fn hold(&mut self, slot: u16) -> Result<bool, FabricError> {
        require_writer(&self.region)?;
        if self.slots.contains(&slot) {
            return Ok(false);
        }
        match self.description().and_then(|description| description.try_lock(byte_of(slot))) {
            Ok(true) => Ok(self.slots.insert(slot)),
            Ok(false) => Ok(false),
            Err(errno) => Err(refused(&self.region, slot, errno)),
        }
    }

    fn release(&mut self, slot: u16) -> bool {
        let is_freed = self.slots.contains(&slot)
            && self.description().is_ok_and(|description| description.unlock(byte_of(slot)).is_ok());
        is_freed && self.slots.remove(&slot)
    }

    fn slots(&self) -> Vec<u16> {
        self.slots.iter().copied().collect()
    }

    fn count(&self) -> usize {
        self.slots.len()
    }
}
