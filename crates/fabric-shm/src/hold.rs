//! Client slots: who is alive is who holds the lock on his byte of the file.
//!
//! Invariants: each hold has an open file description of its own, never duplicated, and kept by a mapping, not by a
//! descriptor ([`crate::fork`]); its lock is asked for but never asked about, and never given back: the description is
//! given up instead, by drop or by the kernel when the process ends or runs another program. Only the very file that
//! the region maps is ever locked, whatever became of the region's descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use guira_fabric::{FabricError, SlotHold};
use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;

use crate::file;
use crate::fork;
use crate::region::{Access, Shared};
use crate::sys;

/// Where the slots' bytes are: beyond every file's end, so that no lock on data meets them.
pub(crate) const FIRST_SLOT_BYTE: i64 = 1 << 62;

/// Takes the liveness of `slot`, or finds its owner alive.
pub(crate) fn hold(region: &Shared, slot: u16) -> Result<Option<SlotHold>, FabricError> {
    if !region.process.is_this() {
        return Err(FabricError::Forked);
    }
    if region.access == Access::ReadOnly {
        return Err(FabricError::ReadOnly { verb: "a hold" });
    }
    // Made here, because no fork waits for an allocation.
    let proc_path = file::proc_path(region.file.as_fd());
    let mut is_taken = false;
    let lock = |file: &OwnedFd| {
        let answer = sys::try_lock_byte(file.as_fd(), FIRST_SLOT_BYTE + i64::from(slot));
        is_taken = matches!(answer, Err(Errno::AGAIN | Errno::ACCESS));
        answer
    };
    match fork::open_guarded(region.process, region.page_bytes, || reopen(region, &proc_path), lock) {
        Ok(guard) => Ok(Some(SlotHold::new(guard))),
        // No other call's failure says that somebody lives: a mapping is refused by the same number where all memory is
        // to be locked (mlockall) and no more may be.
        Err(_) if is_taken => Ok(None),
        Err(errno) => {
            let (path, cause) = (region.path.display(), std::io::Error::from(errno));
            Err(FabricError::Backend(format!("could not take slot {slot} of {path}: {cause}; nothing was changed")))
        }
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
