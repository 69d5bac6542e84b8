//! The SIGBUS handler that lets this process survive the truncation of a mapped file.
//!
//! Touching a page of a mapping for which its file has no bytes raises SIGBUS, which ends the process. The handler
//! checks whether the address lies in a guarded mapping. If so, it marks the mapping as lost and replaces it by zeroed
//! anonymous memory, so that the thread can continue. It replaces the whole mapping, because a mapping of huge pages
//! cannot be replaced in part at an arbitrary address, and the rest of the file is useless anyway. Any other SIGBUS has
//! the effect that it had before the handler was installed.
//!
//! # Invariants
//! - A mapping is marked before it is replaced. So a thread that read zeros from the replacement, or wrote to it, sees
//!   the mark afterwards: checking the mark between a batch and its answer never returns zeros in place of the file's
//!   content.
//! - The range of a guard is mapped for as long as the guard exists: the mapping drops its guard before it is unmapped.
//!   So the handler replaces nothing but the mapping itself.
//! - The handler only makes system calls and loads and stores atomics, because it may run wherever a mapping is
//!   touched. It takes no lock. It may see a partially changed entry, but only of another mapping than the one that was
//!   touched, and detects that by the entry's version.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::sys::last_errno;

/// Maximum number of guarded mappings, which is more than any process serves.
const MAX_GUARDED: usize = 64;
/// The signal code for an address without bytes. Signals sent by a process, and memory failures, have other codes.
const BUS_ADRERR: libc::c_int = 2;

static ENTRIES: [Entry; MAX_GUARDED] = [const { Entry::free() }; MAX_GUARDED];
/// Held while entries are changed or the handler is installed.
static ENTRIES_LOCK: Mutex<()> = Mutex::new(());
/// The action for SIGBUS before the handler was installed.
static PREVIOUS_ACTION: OnceLock<libc::sigaction> = OnceLock::new();

/// A guarded mapping, as the handler sees it.
struct Entry {
    /// Odd while the other fields are being changed.
    version: AtomicUsize,
    base: AtomicUsize,
    /// 0 if the entry is free.
    bytes: AtomicUsize,
    is_lost: AtomicBool,
}

impl Entry {
    const fn free() -> Entry {
        Entry {
            version: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Changes the range. The caller must hold [`ENTRIES_LOCK`].
    fn set(&self, base: usize, bytes: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns the range, if `address` lies in it. The range of a mapping in use does not change, so an entry that is
    /// being changed is not a match.
    fn range_around(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let (base, bytes) = (self.base.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (is_whole && address.wrapping_sub(base) < bytes).then_some((base, bytes))
    }
}

/// A guard, which protects one mapping while it exists.
pub(crate) struct Guard(&'static Entry);

impl Guard {
    /// Guards the `bytes` bytes at `base`, which are a mapping of this process.
    ///
    /// # Errors
    /// `EAGAIN` if too many mappings are guarded; the kernel's error if the handler cannot be installed.
    ///
    /// # Safety
    /// The range must stay one mapping for as long as the guard exists, and its memory must only be accessed as
    /// atomics.
    pub(crate) unsafe fn new(base: usize, bytes: usize) -> Result<Guard, Errno> {
        let _changes = ENTRIES_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        install()?;
        let is_free = |entry: &&Entry| entry.bytes.load(Ordering::Relaxed) == 0;
        let entry = ENTRIES.iter().find(is_free).ok_or(Errno::AGAIN)?;
        entry.set(base, bytes);
        Ok(Guard(entry))
    }

    /// Whether the mapping was replaced.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _changes = ENTRIES_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.set(0, 0);
    }
}

/// Installs the handler, once. The caller must hold [`ENTRIES_LOCK`].
fn install() -> Result<(), Errno> {
    if PREVIOUS_ACTION.get().is_some() {
        return Ok(());
    }
    // SAFETY: `sigaction` is plain integers and a pointer that may be null, for which zero is valid; the call fills it.
    let before = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) != 0 {
            return Err(last_errno());
        }
        before
    };
    // Stored before the handler is installed, because the handler reads it.
    let _ = PREVIOUS_ACTION.set(before);
    // SAFETY: as above; the handler has the signature that SA_SIGINFO requires, lives as long as the process, and only
    // does what a signal handler may do (the module's invariant).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the C library has one error number for each thread; the pointer is valid as long as this thread lives.
    let errno = unsafe { &mut *libc::__errno_location() };
    let saved_errno = *errno;
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO, and a SIGBUS for memory has an
    // address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code != BUS_ADRERR || !replace(address) {
        restore_previous_action(signal, code);
    }
    *errno = saved_errno;
}

/// Replaces the guarded mapping that contains `address`. Returns false if there is none, or the kernel refuses.
fn replace(address: usize) -> bool {
    let mut found = None;
    // Marks all matching entries: two threads may have guarded one mapping, and one of the guards is then dropped.
    for entry in &ENTRIES {
        if let Some(range) = entry.range_around(address) {
            entry.is_lost.store(true, Ordering::SeqCst);
            found = Some(range);
        }
    }
    let Some((base, bytes)) = found else { return false };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let base = std::ptr::with_exposed_provenance_mut(base);
    // SAFETY: this is exactly the range of a mapping that is in use, because it was just touched, so it stays mapped
    // (the contract of `Guard::new`). Its memory is only accessed as atomics, whose values may change at any time: they
    // are zero from now on. Several threads may do this one after the other.
    unsafe { mmap_anonymous(base, bytes, protection, flags) }.is_ok()
}

/// Restores the previous action, so that a signal that this module does not handle has its previous effect.
fn restore_previous_action(signal: libc::c_int, code: libc::c_int) {
    let Some(before) = PREVIOUS_ACTION.get() else { return };
    // SAFETY: the action was returned by the kernel. When the handler returns, the faulting instruction is retried and
    // faults again. A signal that was sent by a process is raised again, and is delivered after this handler returns.
    unsafe {
        libc::sigaction(signal, before, std::ptr::null_mut());
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_matches_only_addresses_in_its_range() {
        let entry = Entry::free();
        assert!([0, 1, 4096, usize::MAX].iter().all(|address| entry.range_around(*address).is_none()));
        entry.set(8192, 4096);
        assert!([0, 4096, 8191, 12_288, usize::MAX].iter().all(|address| entry.range_around(*address).is_none()));
        assert!([8192, 9000, 12_287].iter().all(|address| entry.range_around(*address) == Some((8192, 4096))));
        entry.is_lost.store(true, Ordering::Relaxed);
        entry.set(0, 0);
        assert!(entry.range_around(8192).is_none() && !entry.is_lost.load(Ordering::Relaxed));
        entry.version.fetch_add(1, Ordering::Relaxed);
        entry.bytes.store(1 << 20, Ordering::Relaxed);
        assert!(entry.range_around(8192).is_none(), "it is being changed");
    }
}
