//! Client slots: who is alive is who holds the lock on his byte of the file.
//!
//! Invariants: each hold has an open file description of its own, never duplicated, and kept by a mapping, not by a
//! descriptor ([`crate::fork`]); its lock is asked for but never asked about, and never given back: the description is
//! given up instead, by drop or by the kernel when the process ends or runs another program. Only the very file that
//! the region maps is ever locked, whatever became of the region's descriptor.
//!
//! A [`Set`] has one description for all slots of one owner, kept by a mapping and a descriptor ([`crate::kept`]). Its
//! bytes are locked and unlocked one by one, and all of them by giving up the description: one call, however many there
//! are. Locks on one description do not exclude each other, so a set knows which slots it has.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use guira_fabric::{FabricError, HoldSet, SlotHold};
use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;

use crate::file;
use crate::fork;
use crate::kept::Kept;
use crate::region::{Access, Shared};
use crate::sys;

/// Where the slots' bytes are: beyond every file's end, so that no lock on data meets them.
pub(crate) const FIRST_SLOT_BYTE: i64 = 1 << 62;

/// Takes the liveness of `slot`, or finds its owner alive.
pub(crate) fn hold(region: &Shared, slot: u16) -> Result<Option<SlotHold>, FabricError> {
    require_writer(region)?;
    // Made here, because no fork waits for an allocation.
    let proc_path = file::proc_path(region.file.as_fd());
    let mut is_taken = false;
    let lock = |file: &OwnedFd| {
        let answer = sys::try_lock_byte(file.as_fd(), byte_of(slot));
        is_taken = matches!(answer, Err(Errno::AGAIN | Errno::ACCESS));
        answer
    };
    match fork::open_guarded(region.process, region.page_bytes, || reopen(region, &proc_path), lock) {
        Ok(guard) => Ok(Some(SlotHold::new(guard))),
        // No other call's failure says that somebody lives: a mapping is refused by the same number where all memory is
        // to be locked (mlockall) and no more may be.
        Err(_) if is_taken => Ok(None),
        Err(errno) => Err(refused(region, slot, errno)),
    }
}

fn require_writer(region: &Shared) -> Result<(), FabricError> {
    if !region.process.is_this() {
        return Err(FabricError::Forked);
    }
    if region.access == Access::ReadOnly {
        return Err(FabricError::ReadOnly { verb: "a hold" });
    }
    Ok(())
}

fn refused(region: &Shared, slot: u16, errno: Errno) -> FabricError {
    let (path, cause) = (region.path.display(), std::io::Error::from(errno));
    FabricError::Backend(format!("could not take slot {slot} of {path}: {cause}; nothing was changed"))
}

fn byte_of(slot: u16) -> i64 {
    FIRST_SLOT_BYTE + i64::from(slot)
}

/// The slots of one owner, on one open file description, which is opened for the first of them.
pub(crate) struct Set {
    region: Arc<Shared>,
    kept: Option<Kept>,
    slots: BTreeSet<u16>,
}

impl Set {
    pub(crate) fn new(region: Arc<Shared>) -> Set {
        Set { region, kept: None, slots: BTreeSet::new() }
    }

    fn kept(&mut self) -> Result<&Kept, Errno> {
        if self.kept.is_none() {
            let region = &self.region;
            // Made here, because no fork waits for an allocation.
            let proc_path = file::proc_path(region.file.as_fd());
            self.kept = Some(Kept::open(region.process, region.page_bytes, || reopen(region, &proc_path))?);
        }
        self.kept.as_ref().ok_or(Errno::BADF)
    }
}

impl HoldSet for Set {
    fn hold(&mut self, slot: u16) -> Result<bool, FabricError> {
        require_writer(&self.region)?;
        if self.slots.contains(&slot) {
            return Ok(false);
        }
        match self.kept().and_then(|kept| kept.try_lock(byte_of(slot))) {
            Ok(true) => Ok(self.slots.insert(slot)),
            Ok(false) => Ok(false),
            Err(errno) => Err(refused(&self.region, slot, errno)),
        }
    }

    fn release(&mut self, slot: u16) -> bool {
        let is_freed = self.slots.contains(&slot) && self.kept().is_ok_and(|kept| kept.unlock(byte_of(slot)).is_ok());
        is_freed && self.slots.remove(&slot)
    }

    fn slots(&self) -> Vec<u16> {
        self.slots.iter().copied().collect()
    }

    fn count(&self) -> usize {
        self.slots.len()
    }
}

/// A new open file description of the region's file, which may have lost its name; `proc_path` leads to it, unless
/// somebody closed the region's descriptor.
fn reopen(region: &Shared, proc_path: &str) -> Result<OwnedFd, Errno> {
    let is_mapped = |file: BorrowedFd<'_>| fstat(file).is_ok_and(|stat| file::identity(&stat) == region.identity);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if is_mapped(region.file.as_fd()) {
        match rustix::fs::open(proc_path, flags, Mode::empty()) {
            Ok(file) if is_mapped(file.as_fd()) => return Ok(file),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    // No /proc here, or no descriptor: the path will do, if it still leads to the mapped file.
    let file = rustix::fs::open(&region.path, flags | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
    if is_mapped(file.as_fd()) { Ok(file) } else { Err(Errno::STALE) }
}
