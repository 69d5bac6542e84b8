//! An open file description that is kept to lock and unlock many bytes: by a mapping, and by a descriptor.
//!
//! The mapping keeps the locks if somebody closes descriptors that are not his own; the descriptor is for the calls,
//! and is looked at before each: a number that leads elsewhere by now is not used, and not closed.
//!
//! Invariants: every descriptor of this kind is in [`TABLE`] before a fork can copy it, so that fork handlers close the
//! child's copy; a [`LockDescription`] that is dropped in its own process gives up all of its locks first, also for a child
//! that no handler has met. Such a child (a bare `clone`) keeps locks only if its parent dies with them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use guira_fabric::process::Process;
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::fork::{MAX_WINDOWS, Window};
use crate::mapping::Anchor;
use crate::sys;

/// Descriptors of this kind that a process has, at most: more than there are client slots to share among sessions.
const MAX_DESCRIPTIONS: usize = 16_384;

/// Descriptors that no child shall have.
static TABLE: [Entry; MAX_DESCRIPTIONS] = [const { Entry::empty() }; MAX_DESCRIPTIONS];
/// Entries that were ever in use: those at the beginning.
static USED: AtomicUsize = AtomicUsize::new(0);
/// An entry whose descriptor is not open yet.
const CLAIMED: i32 = -1;

struct Entry {
    /// A descriptor's number plus 1, [`CLAIMED`], or 0 for none.
    number: AtomicI32,
    /// The inode it leads to.
    inode: AtomicU64,
}

impl Entry {
    const fn empty() -> Entry {
        Entry { number: AtomicI32::new(0), inode: AtomicU64::new(0) }
    }
}

/// A description of a file whose bytes this process locks; its locks are given up on drop, in the process that has
/// opened it.
pub(crate) struct LockDescription {
    process: Process,
    /// Closed on drop, in the process that has opened it, if the number still leads to the file. Always there before.
    file: Option<OwnedFd>,
    anchor: Option<Anchor>,
    /// Device and inode.
    identity: (u64, u64),
    entry: usize,
}

impl LockDescription {
    /// Keeps the description that `open` opens, by a mapping of `bytes` bytes, its file system's unit. Opens another if
    /// a fork may have given it to a child.
    ///
    /// # Errors
    /// Those of `open` and of the mapping; `EMFILE` if the process has as many of them as it may; `EBUSY` if forks do
    /// not end.
    pub(crate) fn open(
        process: Process,
        bytes: u64,
        mut open: impl FnMut() -> Result<OwnedFd, Errno>,
    ) -> Result<LockDescription, Errno> {
        let entry = claim()?;
        for _ in 0..MAX_WINDOWS {
            match LockDescription::open_once(process, bytes, entry, &mut open) {
                Ok(Some(description)) => return Ok(description),
                Ok(None) => {}
                Err(errno) => {
                    TABLE[entry].number.store(0, Ordering::SeqCst);
                    return Err(errno);
                }
            }
        }
        TABLE[entry].number.store(0, Ordering::SeqCst);
        Err(Errno::BUSY)
    }

    fn open_once(
        process: Process,
        bytes: u64,
        entry: usize,
        open: &mut impl FnMut() -> Result<OwnedFd, Errno>,
    ) -> Result<Option<LockDescription>, Errno> {
        let window = Window::begin()?;
        let file = open()?;
        let stat = fstat(&file)?;
        let anchor = Anchor::new(file.as_fd(), bytes)?;
        if window.is_overrun() {
            anchor.release();
            return Ok(None);
        }
        TABLE[entry].inode.store(stat.st_ino, Ordering::SeqCst);
        TABLE[entry].number.store(file.as_raw_fd() + 1, Ordering::SeqCst);
        let identity = (stat.st_dev, stat.st_ino);
        Ok(Some(LockDescription { process, file: Some(file), anchor: Some(anchor), identity, entry }))
    }

    /// Locks the byte at `offset`. `false`: another description has it.
    ///
    /// # Errors
    /// `EBADF` if somebody has closed the descriptor; the kernel's.
    pub(crate) fn try_lock(&self, offset: i64) -> Result<bool, Errno> {
        match sys::try_lock_byte(self.own()?, offset) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Gives up the lock on the byte at `offset`.
    ///
    /// # Errors
    /// As [`LockDescription::try_lock`]; then it is locked as before.
    pub(crate) fn unlock(&self, offset: i64) -> Result<(), Errno> {
        sys::unlock_byte(self.own()?, offset)
    }

    /// The descriptor, if it is what it was.
    fn own(&self) -> Result<BorrowedFd<'_>, Errno> {
        let file = self.file.as_ref().ok_or(Errno::BADF)?.as_fd();
        let stat = fstat(file)?;
        if (stat.st_dev, stat.st_ino) == self.identity { Ok(file) } else { Err(Errno::BADF) }
    }
}

impl Drop for LockDescription {
    fn drop(&mut self) {
        // For a child that no handler has met. Should the kernel refuse, the description's end does the same.
        let is_own = self.process.is_this() && self.own().map(sys::unlock).is_ok();
        if self.process.is_this() {
            // From here on the number is no fork handler's: it may be another file's as soon as this one is closed.
            TABLE[self.entry].number.store(CLAIMED, Ordering::SeqCst);
        }
        let file = self.file.take();
        if !is_own {
            // The number may be somebody else's.
            std::mem::forget(file);
        }
        if !self.process.is_this() {
            // In a child there is no such mapping, and the entry is another's.
            return;
        }
        if let Some(anchor) = self.anchor.take() {
            anchor.release();
        }
        TABLE[self.entry].number.store(0, Ordering::SeqCst);
    }
}

/// Claims an entry that is empty.
fn claim() -> Result<usize, Errno> {
    let empty = |entry: &Entry| entry.number.compare_exchange(0, CLAIMED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let index = TABLE.iter().position(empty).ok_or(Errno::MFILE)?;
    USED.fetch_max(index + 1, Ordering::SeqCst);
    Ok(index)
}

/// In a forked child, by its fork handler: closes the copies of its parent's descriptors.
pub(crate) fn close_in_child() {
    for entry in &TABLE[..USED.load(Ordering::SeqCst).min(MAX_DESCRIPTIONS)] {
        let number = entry.number.swap(0, Ordering::SeqCst);
        if number > 0 {
            sys::close_inherited(number - 1, entry.inode.load(Ordering::SeqCst));
        }
    }
}
