//! Removing the name of a region's file, and never that of another one; then that of its lock file.
//!
//! The kernel removes a name whatever it leads to, and somebody else may destroy the region meanwhile and create
//! another one under its name. So whoever removes the name holds a lock on the region's file from comparing it to
//! removing it, and one on its lock file, if it has one and this user may open it: a reader cannot stand in the way of
//! that. Only who may write the files gets those locks; for others, and where a reader of a region without a lock file
//! stands in its way, there is the comparison alone. The kernel gives up the lock of who dies.
//!
//! The lock file's name goes last, so that whoever misses it can tell a region that was removed from one that was
//! moved; who is killed in between leaves it to the next sweep ([`crate::lock_file`]).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, statat, unlinkat};
use rustix::io::Errno;

use crate::error::{Attempt, ShmError, Task};
use crate::file::{identity, open_regular, read_start};
use crate::header::{self, Header};
use crate::hold::REMOVAL_BYTE;
use crate::location::Location;
use crate::lock_file::{self, LockFile};
use crate::region::Access;
use crate::sys::{self, LockKind};

/// How long another process may take to remove the name: microseconds, unless it is stopped.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// Removes the name of the region file at `location`; if `expected` is given, only of the file with that device and
/// inode. Whoever has it mapped keeps it.
pub(crate) fn destroy(location: &Location, expected: Option<(u64, u64)>) -> Result<(), ShmError> {
    let task = Task::new(Attempt::Destroy, location.path());
    location.split()?;
    let file = match open_regular(location, Access::ReadWrite, task) {
        Err(ShmError::Permission { .. }) => open_regular(location, Access::ReadOnly, task)?,
        file => file?,
    };
    // A damaged region may be destroyed, and one of another version; a file that never was one may not.
    let start = read_start(file.as_fd(), task)?;
    if !header::is_region(&start) {
        return Err(task.foreign());
    }
    let opened = identity(&fstat(&file).map_err(task.failed("read its identity"))?);
    let gone = || task.failed("find it")(Errno::NOENT);
    if expected.is_some_and(|expected| expected != opened) {
        return Err(gone());
    }
    lock(&file, task)?;
    // Not the name of a link, which would leave the file its own.
    let path = location.resolved(task)?;
    // What its header does not tell any more is left to the sweep.
    let lock_name = Header::decode(task, &start, u64::MAX).ok().and_then(|header| header.lock_name);
    let lock_file = lock_name.and_then(|name| LockFile::open_beside(&path, opened.0, name, task).ok());
    if let Some(lock_file) = &lock_file {
        lock(&lock_file.file, task)?;
    }
    // Nobody exchanges the directory between the comparison and the removal.
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

/// Waits for whoever else is removing the name; the lock is given up with `file`.
fn lock(file: &OwnedFd, task: Task<'_>) -> Result<(), ShmError> {
    let deadline = Instant::now() + LONGEST_WAIT;
    loop {
        match sys::try_lock_byte(file.as_fd(), REMOVAL_BYTE) {
            Ok(()) => return Ok(()),
            // It was opened for reading only.
            Err(Errno::BADF) => return Ok(()),
            Err(Errno::AGAIN | Errno::ACCESS) => {}
            Err(errno) => return Err(task.failed("lock it")(errno)),
        }
        let standing = sys::any_lock(file.as_fd(), REMOVAL_BYTE, 1).map_err(task.failed("lock it"))?;
        match standing.map(|lock| lock.kind) {
            // Of somebody who may not write, and removes nothing.
            Some(LockKind::Read) => return Ok(()),
            Some(LockKind::Write) if Instant::now() >= deadline => {
                return Err(task.failed("wait for another process that is destroying it")(Errno::BUSY));
            }
            Some(LockKind::Write) => std::thread::sleep(PAUSE),
            None => {}
        }
    }
}
