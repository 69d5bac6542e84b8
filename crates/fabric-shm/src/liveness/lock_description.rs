//! Open file descriptions on which many bytes are locked and unlocked. Each is kept open by a mapping and a descriptor.
//!
//! The mapping keeps the locks if other code in the process closes descriptors that it does not own. The descriptor is
//! needed for the calls, and is checked before each: a descriptor that leads to another file by now is neither used nor
//! closed.
//!
//! Invariants: every such descriptor is in [`TABLE`] before a fork can copy it, so that fork handlers close the child's
//! copy; a [`LockDescription`] that is dropped in its own process releases all of its locks first, so that a child in
//! which no fork handler ran (a bare `clone`) does not keep them. Such a child keeps locks only if its parent dies with
//! them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use guira_fabric::process::Process;
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::liveness::fork::{MAX_WINDOWS, Window};
use crate::mapping::{Anchor, AnchorPages, Forking};
use crate::sys;

/// The maximum number of such descriptors in a process: one for each open region, and one for each session of a memory
/// node, for more of which there are not enough client slots.
const MAX_DESCRIPTIONS: usize = 16_384;

/// The descriptors that must not be inherited by a child.
static TABLE: [Entry; MAX_DESCRIPTIONS] = [const { Entry::empty() }; MAX_DESCRIPTIONS];
/// The number of entries at the beginning of the table that were ever in use.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The number in a claimed entry whose descriptor is not open yet.
const CLAIMED: i32 = -1;

struct Entry {
    /// A descriptor's number plus 1, [`CLAIMED`], or 0 for none.
    number: AtomicI32,
    /// The inode of the descriptor's file.
    inode: AtomicU64,
}

impl Entry {
    const fn empty() -> Entry {
        Entry { number: AtomicI32::new(0), inode: AtomicU64::new(0) }
    }
}

/// An open file description on which this process locks bytes. Its locks are released on drop, but only in the process
/// that opened it.
pub(crate) struct LockDescription {
    process: Process,
    /// The descriptor, present until drop. Closed on drop in the process that opened it, if it still leads to the file.
    file: Option<OwnedFd>,
    anchor: Option<Anchor>,
    /// Device and inode.
    identity: (u64, u64),
    entry: usize,
}

impl LockDescription {
    /// Opens a description with `open`, and keeps it open by a mapping of `pages`. Opens another if a fork may have
    /// copied it to a child.
    ///
    /// # Errors
    /// The errors of `open` and of the mapping; `EMFILE` if the process has the maximum number of descriptions; `EBUSY`
    /// if forks keep overlapping.
    pub(crate) fn open(
        process: Process,
        pages: AnchorPages,
        mut open: impl FnMut() -> Result<OwnedFd, Errno>,
    ) -> Result<LockDescription, Errno> {
        let entry = claim()?;
        for _ in 0..MAX_WINDOWS {
            match LockDescription::open_once(process, pages, entry, &mut open) {
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
        pages: AnchorPages,
        entry: usize,
        open: &mut impl FnMut() -> Result<OwnedFd, Errno>,
    ) -> Result<Option<LockDescription>, Errno> {
        let window = Window::begin()?;
        let file = open()?;
        let stat = fstat(&file)?;
        let anchor = Anchor::new(file.as_fd(), pages)?;
        if window.is_overrun() {
            anchor.release();
            return Ok(None);
        }
        TABLE[entry].inode.store(stat.st_ino, Ordering::SeqCst);
        TABLE[entry].number.store(file.as_raw_fd() + 1, Ordering::SeqCst);
        // A child that was forked just before has the descriptor, and no handler closed it.
        if window.is_overrun() {
            TABLE[entry].number.store(CLAIMED, Ordering::SeqCst);
            anchor.release();
            return Ok(None);
        }
        let identity = (stat.st_dev, stat.st_ino);
        Ok(Some(LockDescription { process, file: Some(file), anchor: Some(anchor), identity, entry }))
    }

    /// Locks the byte at `offset`. Returns `false` if another description has it locked.
    ///
    /// # Errors
    /// `EBADF` if the descriptor was closed; other errors of the kernel.
    pub(crate) fn try_lock(&self, offset: i64) -> Result<bool, Errno> {
        is_locked(sys::try_lock_byte(self.own()?, offset))
    }

    /// Locks the byte at `offset` for reading; a lock for writing becomes one for reading. Returns `false` if another
    /// description has it locked for writing.
    ///
    /// # Errors
    /// Same as [`LockDescription::try_lock`]; the byte then stays as it was.
    pub(crate) fn try_lock_for_reading(&self, offset: i64) -> Result<bool, Errno> {
        is_locked(sys::try_lock_byte_for_reading(self.own()?, offset))
    }

    /// Unlocks the byte at `offset`.
    ///
    /// # Errors
    /// Same as [`LockDescription::try_lock`]; the byte then stays locked.
    pub(crate) fn unlock(&self, offset: i64) -> Result<(), Errno> {
        sys::unlock_byte(self.own()?, offset)
    }

    /// Sets whether children that are forked from now on keep the description open, with its locks.
    ///
    /// # Errors
    /// `EBADF` in a forked child; the kernel's error. The treatment then stays as it was.
    pub(crate) fn set_forking(&self, forking: Forking) -> Result<(), Errno> {
        let anchor = self.anchor.as_ref().filter(|_| self.process.is_this());
        anchor.ok_or(Errno::BADF)?.set_forking(forking)
    }

    /// Returns the descriptor, if it still leads to the file, and this is the process that opened it: a child in which
    /// no fork handler ran would change its parent's locks.
    fn own(&self) -> Result<BorrowedFd<'_>, Errno> {
        if !self.process.is_this() {
            return Err(Errno::BADF);
        }
        let file = self.file.as_ref().ok_or(Errno::BADF)?.as_fd();
        let stat = fstat(file)?;
        if (stat.st_dev, stat.st_ino) == self.identity { Ok(file) } else { Err(Errno::BADF) }
    }
}

impl Drop for LockDescription {
    fn drop(&mut self) {
        // Unlocks explicitly, for a child in which no fork handler ran. If the kernel refuses, closing the description
        // unlocks as well.
        let is_own = self.own().map(sys::unlock).is_ok();
        if self.process.is_this() {
            // From here on fork handlers must not close the number: it may be reused once this descriptor is closed.
            TABLE[self.entry].number.store(CLAIMED, Ordering::SeqCst);
        }
        let file = self.file.take();
        if !is_own {
            // The number may belong to another file.
            std::mem::forget(file);
        }
        if !self.process.is_this() {
            // A child does not have the mapping, and its entry may be used by another description.
            return;
        }
        if let Some(anchor) = self.anchor.take() {
            anchor.release();
        }
        TABLE[self.entry].number.store(0, Ordering::SeqCst);
    }
}

/// Interprets the kernel's answer to an attempt to lock a byte.
fn is_locked(answer: Result<(), Errno>) -> Result<bool, Errno> {
    match answer {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Claims an empty entry.
fn claim() -> Result<usize, Errno> {
    let empty = |entry: &Entry| entry.number.compare_exchange(0, CLAIMED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let index = TABLE.iter().position(empty).ok_or(Errno::MFILE)?;
    USED.fetch_max(index + 1, Ordering::SeqCst);
    Ok(index)
}

/// Closes the copies of the parent's descriptors. Called in a forked child, by its fork handler.
pub(crate) fn close_in_child() {
    for entry in &TABLE[..USED.load(Ordering::SeqCst).min(MAX_DESCRIPTIONS)] {
        let number = entry.number.swap(0, Ordering::SeqCst);
        if number > 0 {
            sys::close_inherited(number - 1, entry.inode.load(Ordering::SeqCst));
        }
    }
}
