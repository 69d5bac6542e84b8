//! The calls of the C library that have no safe wrapper.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Tries to lock the byte at `offset` for the open file description behind `file`, for writing. Never waits.
///
/// # Errors
/// `EAGAIN` or `EACCES` if another description holds it.
pub(crate) fn try_lock_byte(file: BorrowedFd<'_>, offset: i64) -> Result<(), Errno> {
    set_lock(file, libc::F_WRLCK as libc::c_short, offset, 1)
}

/// Gives up the lock of the open file description behind `file` on the byte at `offset`, if it has one.
pub(crate) fn unlock_byte(file: BorrowedFd<'_>, offset: i64) -> Result<(), Errno> {
    set_lock(file, libc::F_UNLCK as libc::c_short, offset, 1)
}

/// A lock that somebody has on bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundLock {
    pub(crate) kind: LockKind,
    /// The first byte behind it; `None` if it goes as far as files go.
    pub(crate) end: Option<i64>,
    pub(crate) start: i64,
    /// The process, for a lock that belongs to one and not to an open file description.
    pub(crate) process: Option<u32>,
}

/// Whom a lock keeps out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Writers. Whoever may read the file may have it.
    Read,
    /// Everybody.
    Write,
}

/// A lock on any of `bytes` bytes at `offset` that another open file description than the one behind `file` has, or a
/// process; of several it may be any. Never waits; a description for reading will do.
///
/// # Errors
/// The kernel's refusal.
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
    // Open file descriptions have -1 there; 0 is a process of another namespace.
    let process = u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0);
    Ok(Some(FoundLock { kind, end, start: lock.l_start, process }))
}

/// Gives up every lock of the open file description behind `file`, for all who share it.
pub(crate) fn unlock(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // A length of 0 means as far as files go.
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

/// While it lives no signal handler runs on this thread, as far as signals can be held up.
pub(crate) struct BlockedSignals {
    before: libc::sigset_t,
    /// Of one thread.
    _thread: PhantomData<*mut ()>,
}

impl BlockedSignals {
    pub(crate) fn begin() -> BlockedSignals {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first call fills `all` and the second `before`, which cannot fail for valid pointers and a valid
        // way to change the mask.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        BlockedSignals { before, _thread: PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is this thread's mask of before, and outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// In a forked child: closes descriptor `number`, a copy of its parent's, if it leads to a file of this inode. A system
/// call or two, as a fork handler may make.
pub(crate) fn close_inherited(number: i32, inode: u64) {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is written by the kernel, or not looked at.
    let is_same = unsafe { libc::fstat(number, stat.as_mut_ptr()) == 0 && stat.assume_init().st_ino == inode };
    if is_same {
        // SAFETY: the child's copy of a descriptor that its parent keeps for itself: nobody in the child uses it, or
        // closes it, because whoever has it finds that this is another process.
        unsafe { libc::close(number) };
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Forks a child that has everything a fork gives it, and sleeps until it is killed, by the end of this thread at the
/// latest.
#[cfg(test)]
pub(crate) fn fork_sleeping_child() -> libc::pid_t {
    // SAFETY: the child makes system calls only, none of which has an effect on memory.
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
