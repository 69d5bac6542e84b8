//! Client slots: who is alive is who holds the lock on his byte of the file.
//!
//! Invariants: each hold has an open file description of its own, never duplicated; its lock is asked for but never
//! asked about, and never given back: the description is closed instead, by drop or by the kernel when the process
//! ends.

use std::os::fd::{AsFd, OwnedFd};

use guira_fabric::{FabricError, SlotHold};
use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;

use crate::file;
use crate::fork::{self, GuardError, MAX_HOLDS, Process};
use crate::region::{Access, Shared};
use crate::sys;

/// Where the slots' bytes are: beyond every file's end, so that no lock on data meets them.
const FIRST_SLOT_BYTE: i64 = 1 << 62;

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
    let lock = |file: &OwnedFd| sys::try_lock_byte(file.as_fd(), FIRST_SLOT_BYTE + i64::from(slot));
    match take(region.process, || reopen(region, &proc_path), lock) {
        Ok(guard) => Ok(Some(SlotHold::new(guard))),
        Err(Refusal::Held) => Ok(None),
        Err(Refusal::Other(cause)) => {
            let path = region.path.display();
            Err(FabricError::Backend(format!("could not take slot {slot} of {path}: {cause}; nothing was changed")))
        }
    }
}

enum Refusal {
    Held,
    Other(String),
}

fn take(
    process: Process,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
    lock: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
) -> Result<fork::Guarded, Refusal> {
    let mut locking = false;
    let lock = |file: &OwnedFd| {
        locking = true;
        lock(file)
    };
    fork::open_guarded(process, open, lock).map_err(|error| match error {
        GuardError::Os(Errno::AGAIN | Errno::ACCESS) if locking => Refusal::Held,
        GuardError::Os(errno) => Refusal::Other(std::io::Error::from(errno).to_string()),
        GuardError::TableFull => Refusal::Other(format!("this process holds {MAX_HOLDS} slots already")),
    })
}

/// A new open file description of the region's file, which may have lost its name; `proc_path` leads to it.
fn reopen(region: &Shared, proc_path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(proc_path, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        answer => return answer,
    }
    // No /proc here: the path will do, if it still leads to the mapped file.
    let file = rustix::fs::open(&region.path, flags, Mode::empty())?;
    let (named, mapped) = (fstat(&file)?, fstat(&region.file)?);
    let same = (named.st_dev, named.st_ino) == (mapped.st_dev, mapped.st_ino);
    if same { Ok(file) } else { Err(Errno::STALE) }
}
