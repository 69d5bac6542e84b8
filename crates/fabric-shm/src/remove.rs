//! Removing the name of a region's file, and never that of another one.
//!
//! The kernel removes a name whatever it leads to, and somebody else may destroy the region meanwhile and create
//! another one under its name. So whoever removes the name holds a lock on the region's file from comparing it to
//! removing it. Only who may write the file gets that lock; for others, and where a reader stands in its way, there is
//! the comparison alone. The kernel gives up the lock of who dies.

use std::fs::canonicalize;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, statat, unlinkat};
use rustix::io::Errno;

use crate::error::{Attempt, ShmError, Task};
use crate::file::{identity, open_regular, read_start};
use crate::header;
use crate::hold::FIRST_SLOT_BYTE;
use crate::location::{Links, Location};
use crate::region::Access;
use crate::sys::{self, LockKind};

/// The byte that is locked.
const REMOVAL_BYTE: i64 = FIRST_SLOT_BYTE - 1;
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
    if !header::is_region(&read_start(file.as_fd(), task)?) {
        return Err(task.foreign());
    }
    let opened = identity(&fstat(&file).map_err(task.failed("learn its identity"))?);
    let gone = || task.failed("find it")(Errno::NOENT);
    if expected.is_some_and(|expected| expected != opened) {
        return Err(gone());
    }
    lock(&file, task)?;
    // Not the name of a link, which would leave the file its own.
    let path = match location.links() {
        Links::Refuse => location.path().to_owned(),
        Links::Follow => canonicalize(location.path())
            .map_err(|error| task.failed("find it")(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?,
    };
    // Nobody exchanges the directory between the comparison and the removal.
    let location = Location::file(path);
    let (directory, name) = location.split()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).map_err(task.failed("open its directory"))?;
    let named = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(task.failed("find it"))?;
    if identity(&named) != opened {
        return Err(gone());
    }
    unlinkat(&directory, name, AtFlags::empty()).map_err(task.failed("remove its name"))
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
                return Err(task.failed("wait for another process, which is destroying it")(Errno::BUSY));
            }
            Some(LockKind::Write) => std::thread::sleep(PAUSE),
            None => {}
        }
    }
}
