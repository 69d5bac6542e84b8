//! Removal of the name of a region's file, but never that of another file, and then of its lock file's name.
//!
//! The kernel removes a name whatever file it leads to, and another process may destroy the region concurrently and
//! create another one under its name. So the remover locks the region's file from comparing it to removing its name. It
//! also locks the region's lock file, if there is one and this user may open it, because users who may only read cannot
//! block that lock. Only users who may write the files get these locks; for other users, and if a read lock on a region
//! without a lock file is in the way, there is only the comparison. If the remover dies, the kernel releases its locks.
//!
//! The lock file's name is removed last, so that a process that does not find it can distinguish a removed region from
//! a moved one; if the remover is killed in between, the next sweep removes it ([`crate::liveness::lock_file`]).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, statat, unlinkat};
use rustix::io::Errno;

use crate::domain;
use crate::error::{Attempt, ShmError, Task};
use crate::file::header::{self, Header};
use crate::file::location::Location;
use crate::file::{identity, open_regular, read_start};
use crate::liveness::hold::REMOVAL_BYTE;
use crate::liveness::lock_file::{self, LockFile};
use crate::region::Access;
use crate::sys::{self, LockKind};

/// The time that another process may take to remove the name. It takes microseconds, unless it is stopped.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// The region whose name is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Any region that is not claimed for a device.
    AnyRegion,
    /// The one with this device and inode, which the caller has open, claimed for a device or not.
    Region((u64, u64)),
}

/// Removes the name of the region file at `location`. Processes that have it mapped keep it.
pub(crate) fn destroy(location: &Location, removal: Removal) -> Result<(), ShmError> {
    let task = Task::new(Attempt::Destroy, location.path());
    location.split()?;
    let file = match open_regular(location, Access::ReadWrite, task) {
        Err(ShmError::Permission { .. } | ShmError::ReadOnlyFileSystem { .. }) => {
            open_regular(location, Access::ReadOnly, task)?
        }
        file => file?,
    };
    // A damaged region, or one of another version, may be destroyed; a file that never was a region may not.
    let start = read_start(file.as_fd(), task)?;
    if !header::is_region(&start) {
        return Err(task.foreign());
    }
    let opened = identity(&fstat(&file).map_err(task.failed("read its identity"))?);
    let gone = || task.failed("find it")(Errno::NOENT);
    match removal {
        Removal::AnyRegion => domain::refuse_claimed(file.as_fd(), task)?,
        Removal::Region(expected) if expected != opened => return Err(gone()),
        Removal::Region(_) => {}
    }
    lock(&file, task)?;
    // Resolves links: removing the name of a link would leave the file.
    let path = location.resolved(task)?;
    // If the header is damaged, the lock file is left to the sweep.
    let lock_name = Header::decode(task, &start, u64::MAX).ok().and_then(|header| header.lock_name);
    let lock_file = lock_name.and_then(|name| LockFile::open_beside(&path, opened.0, name, task).ok());
    if let Some(lock_file) = &lock_file {
        lock(&lock_file.file, task)?;
    }
    // Opens the directory, so that it cannot be replaced between the comparison and the removal.
    let location = Location::itself(path);
    let (directory, name) = location.split()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).map_err(task.failed("open its directory"))?;
    let named = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(task.failed("find it"))?;
    if identity(&named) != opened {
        return Err(gone());
    }
    unlinkat(&directory, name, AtFlags::empty()).map_err(task.failed("remove its name"))?;
    if let Some(lock_name) = lock_name {
        lock_file::remove(directory.as_fd(), name, opened.0, lock_name);
    }
    lock_file::sweep(directory.as_fd(), name, task);
    Ok(())
}

/// Takes the removal lock, after waiting for another process that is removing the name. It is released with `file`.
fn lock(file: &OwnedFd, task: Task<'_>) -> Result<(), ShmError> {
    let deadline = Instant::now() + LONGEST_WAIT;
    loop {
        match sys::try_lock_byte(file.as_fd(), REMOVAL_BYTE) {
            Ok(()) => return Ok(()),
            // The file was opened for reading only.
            Err(Errno::BADF) => return Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS) => {}
            Err(errno) => return Err(task.failed("lock it")(errno)),
        }
        let existing = sys::any_lock(file.as_fd(), REMOVAL_BYTE, 1).map_err(task.failed("lock it"))?;
        match existing.map(|lock| lock.kind) {
            // A read lock of a process that does not remove names.
            Some(LockKind::Read) => return Ok(()),
            Some(LockKind::Write) if Instant::now() >= deadline => {
                return Err(task.failed("wait for another process that is destroying it")(Errno::BUSY));
            }
            Some(LockKind::Write) => std::thread::sleep(PAUSE),
            None => {}
        }
    }
}
