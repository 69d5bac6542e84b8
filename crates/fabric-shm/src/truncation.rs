//! Mappings whose file may be truncated without the end of this process: its SIGBUS handler.
//!
//! To touch a page of a mapping that its file has no bytes for is SIGBUS, which ends the process. The handler looks
//! whether the address lies in a mapping that is guarded. Then it marks the mapping as lost, and puts zeros of no file
//! in its place, so that the thread goes on. It replaces the whole mapping: part of one of huge pages cannot be
//! replaced at any address, and what is left of the file is of no use to anybody. Every other SIGBUS does what it did
//! before.
//!
//! # Invariants
//! - A mapping is marked before it is replaced. So who has found zeros of no file, or written to them, finds the mark
//!   afterwards: whoever looks at it between a batch and its answer never gives zeros for what was in the file.
//! - A guard's range is mapped for as long as the guard lives: the mapping drops its guard before it is unmapped. So
//!   the handler replaces nothing but what the mapping has.
//! - The handler makes system calls and loads and stores atomics, nothing else: it may run wherever a mapping is
//!   touched. It takes no lock; what it may see half changed is the entry of another mapping than the one that was
//!   touched, which is told by the entry's version.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::sys::last_errno;

/// Mappings of this process that can be guarded at a time: more than one process serves.
const MAX_GUARDED: usize = 64;
/// The kernel's number for an address that has no bytes. A sender of signals has others, and so has memory that fails.
const BUS_ADRERR: libc::c_int = 2;

static ENTRIES: [Entry; MAX_GUARDED] = [const { Entry::free() }; MAX_GUARDED];
/// Held by who changes entries, or installs the handler.
static ENTRIES_LOCK: Mutex<()> = Mutex::new(());
/// What was done about SIGBUS before the handler was installed.
static PREVIOUS_ACTION: OnceLock<libc::sigaction> = OnceLock::new();

/// A guarded mapping, as the handler finds it.
struct Entry {
    /// Odd while the others change.
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

    /// Changes the range. Only with [`ENTRIES_LOCK`].
    fn set(&self, base: usize, bytes: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The range, if `address` lies in it. That of a mapping in use does not change, so an entry that is being changed
    /// is not the one that is looked for.
    fn range_around(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let (base, bytes) = (self.base.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (is_whole && address.wrapping_sub(base) < bytes).then_some((base, bytes))
    }
}

/// Protects one mapping while it lives.
pub(crate) struct Guard(&'static Entry);

impl Guard {
    /// Guards the `bytes` bytes at `base`, which are a mapping of this process.
    ///
    /// # Errors
    /// `EAGAIN` if too many are guarded; the kernel's refusal of the handler.
    ///
    /// # Safety
    /// The range stays one mapping for as long as the guard lives, and nothing but atomics is ever made of it.
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

/// Installs the handler, once. Only with [`ENTRIES_LOCK`].
fn install() -> Result<(), Errno> {
    if PREVIOUS_ACTION.get().is_some() {
        return Ok(());
    }
    // SAFETY: `sigaction` is plain integers and a pointer that may be null, for which zero is valid; the call writes
    // it.
    let before = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) != 0 {
            return Err(last_errno());
        }
        before
    };
    // Before the handler, which looks at it.
    let _ = PREVIOUS_ACTION.set(before);
    // SAFETY: as above; the handler has the signature that SA_SIGINFO promises, lives as long as the process, and keeps
    // to what a handler may do (the module's invariant).
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
    // SAFETY: the C library has one error number for each thread, which is this one's for as long as it lives.
    let errno = unsafe { &mut *libc::__errno_location() };
    let saved_errno = *errno;
    // SAFETY: the kernel gives a handler with SA_SIGINFO a whole `siginfo_t`, and a SIGBUS for memory has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code != BUS_ADRERR || !replace(address) {
        restore_previous_action(signal, code);
    }
    *errno = saved_errno;
}

/// Replaces the guarded mapping that `address` lies in. False if there is none, or the kernel refuses.
fn replace(address: usize) -> bool {
    let mut found = None;
    // All of them: two threads may have guarded one mapping, and one of both gives up.
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
    // SAFETY: exactly the range of a mapping that is in use, because it was touched just now, and so does not go
    // (the promise of `Guard::new`). Only atomics are made of its memory, whose words may change at any time: they are
    // zero from now on. Several threads may do so one after the other.
    unsafe { mmap_anonymous(base, bytes, protection, flags) }.is_ok()
}

/// Has a signal that is none of this module's do what it did before.
fn restore_previous_action(signal: libc::c_int, code: libc::c_int) {
    let Some(before) = PREVIOUS_ACTION.get() else { return };
    // SAFETY: an action that the kernel had given. The instruction that was refused is tried again when this returns,
    // and is refused again. A signal that was sent is sent again; it waits until this handler returns.
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
