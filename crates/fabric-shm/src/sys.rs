//! Calls of the C library that have no safe wrapper.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Tries to lock the byte at `offset` for the open file description behind `file`, for writing. Never waits. A lock of
/// this description for reading becomes one for writing in the same step, and stays as it is after an error.
///
/// # Errors
/// `EAGAIN` or `EACCES` if another description holds it.
pub(crate) fn try_lock_byte(file: BorrowedFd<'_>, offset: i64) -> Result<(), Errno> {
    set_lock(file, libc::F_WRLCK as libc::c_short, offset, 1)
}

/// Same as [`try_lock_byte`], for reading. The file may be open for reading only. A lock of this description for
/// writing becomes one for reading.
///
/// # Errors
/// `EAGAIN` or `EACCES` if another description has it locked for writing.
pub(crate) fn try_lock_byte_for_reading(file: BorrowedFd<'_>, offset: i64) -> Result<(), Errno> {
    set_lock(file, libc::F_RDLCK as libc::c_short, offset, 1)
}

/// Unlocks the byte at `offset` for the open file description behind `file`, if that has it locked.
pub(crate) fn unlock_byte(file: BorrowedFd<'_>, offset: i64) -> Result<(), Errno> {
    set_lock(file, libc::F_UNLCK as libc::c_short, offset, 1)
}

/// An existing lock on bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundLock {
    pub(crate) kind: LockKind,
    /// The first byte behind the lock; `None` if it extends to the largest offset.
    pub(crate) end: Option<i64>,
    pub(crate) start: i64,
    /// The id of the process that has the lock; `None` if it belongs to an open file description.
    pub(crate) process: Option<u32>,
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// A lock that excludes write locks. Users who may read the file can take it.
    Read,
    /// A lock that excludes all locks.
    Write,
}

/// Returns a lock on any of the `bytes` bytes at `offset` that belongs to a process, or to another open file
/// description than the one behind `file`; if there are several, any of them. Never waits. The file may be open for
/// reading only.
///
/// # Errors
/// The kernel's error.
pub(crate) fn any_lock(file: BorrowedFd<'_>, offset: i64, bytes: i64) -> Result<Option<FoundLock>, Errno> {
    let mut lock = lock_of(libc::F_WRLCK as libc::c_short, offset, bytes);
    // SAFETY: the descriptor is borrowed, hence open, and F_OFD_GETLK reads and writes one `flock`, which outlives the
    // call.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    if answer != 0 {
        return Err(last_errno());
    }
    let kind = match libc::c_int::from(lock.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Read,
        _ => LockKind::Write,
    };
    let end = (lock.l_len > 0).then(|| lock.l_start.saturating_add(lock.l_len));
    // The kernel reports -1 for an open file description, and 0 for a process of another pid namespace.
    let process = u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0);
    Ok(Some(FoundLock { kind, end, start: lock.l_start, process }))
}

/// Releases all locks of the open file description behind `file`, for all processes that share it.
pub(crate) fn unlock(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // A length of 0 means up to the largest offset.
    set_lock(file, libc::F_UNLCK as libc::c_short, 0, 0)
}

fn lock_of(kind: libc::c_short, offset: i64, bytes: i64) -> libc::flock {
    // SAFETY: `flock` is plain integers, for which zero is valid; l_pid must be zero for open-file-description locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset;
    lock.l_len = bytes;
    lock
}

fn set_lock(file: BorrowedFd<'_>, kind: libc::c_short, offset: i64, bytes: i64) -> Result<(), Errno> {
    let lock = lock_of(kind, offset, bytes);
    // SAFETY: the descriptor is borrowed, hence open, and F_OFD_SETLK reads one `flock`, which outlives the call.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if answer == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Closes, in a forked child, descriptor `number`, a copy of its parent's, if it leads to a file with this inode. Makes
/// one or two system calls, which are allowed in a fork handler.
pub(crate) fn close_inherited(number: i32, inode: u64) {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel initialises `stat` before it is read: it is read only if the call succeeded.
    let is_same = unsafe { libc::fstat(number, stat.as_mut_ptr()) == 0 && stat.assume_init().st_ino == inode };
    if is_same {
        // SAFETY: the descriptor is the child's copy of one that its parent owns. No code in the child uses or closes
        // it, because its owner checks first whether it is still in the same process.
        unsafe { libc::close(number) };
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Forks a child that inherits all that a fork copies, and sleeps until it is killed, at the latest by the end of this
/// thread.
#[cfg(test)]
pub(crate) fn fork_sleeping_child() -> libc::pid_t {
    // SAFETY: the child only makes system calls that do not change memory.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
        pid
    }
}
