//! The calls of the C library that have no safe wrapper.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Tries to lock the byte at `offset` for the open file description behind `file`, for writing. Never waits.
///
/// # Errors
/// `EAGAIN` or `EACCES` if another description holds it.
pub(crate) fn try_lock_byte(file: BorrowedFd<'_>, offset: i64) -> Result<(), Errno> {
    // SAFETY: `flock` is plain integers, for which zero is valid; l_pid must be zero for open-file-description locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset;
    lock.l_len = 1;
    // SAFETY: the descriptor is borrowed, hence open, and F_OFD_SETLK reads one `flock`, which outlives the call.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if answer == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Has the C library call `prepare` before each fork, and `parent` and `child` after it.
pub(crate) fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> Result<(), Errno> {
    let as_unsafe = |handler: extern "C" fn()| Some(handler as unsafe extern "C" fn());
    // SAFETY: the handlers live as long as the code, and do only what is allowed in a child of a process with threads:
    // atomics.
    match unsafe { libc::pthread_atfork(as_unsafe(prepare), as_unsafe(parent), as_unsafe(child)) } {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
