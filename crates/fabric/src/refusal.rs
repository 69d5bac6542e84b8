//! Refused memory and threads: the limits of a process that cause a refusal, and an allocator that survives one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::io;

use crate::ByteCount;

/// The system's allocator, which asks a function what to do when memory is refused. Without it, Rust ends the process
/// by SIGABRT.
///
/// ```
/// use guira_fabric::refusal::Allocator;
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::new(refused);
///
/// extern "C" fn refused(bytes: usize) {
///     std::process::exit(3);
/// }
/// ```
#[derive(Debug)]
pub struct Allocator {
    refused: extern "C" fn(usize),
}

impl Allocator {
    /// Creates an allocator that calls `refused` with the number of bytes that the system refused, and tries again when
    /// it returns. That function should not allocate, or it is called again; it must bound the number of its returns.
    #[must_use]
    pub const fn new(refused: extern "C" fn(usize)) -> Allocator {
        Allocator { refused }
    }

    /// Calls `allocate` until it returns memory.
    #[inline(always)]
    fn insist(&self, bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
        loop {
            let memory = allocate();
            if !memory.is_null() {
                return memory;
            }
            (self.refused)(bytes);
        }
    }
}

// SAFETY: each method returns what the same method of the system's allocator does, under the contract that its caller
// keeps. None unwinds: `refused` has the ABI of C, so a panic in it ends the process.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is that of the method called.
        self.insist(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.insist(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: as above; a refused call leaves `memory` as it was, so it may be repeated.
        self.insist(new_bytes, || unsafe { System.realloc(memory, layout, new_bytes) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// The limits of this process on its memory and its user's threads. [`Display`](fmt::Display) says how a user sees them,
/// without allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of its address space (`ulimit -v`); `None` without a limit.
    pub address_space_bytes: Option<u64>,
    /// Bytes of its heap and its other private memory (`ulimit -d`); `None` without a limit.
    pub data_bytes: Option<u64>,
    /// Threads and processes of its user (`ulimit -u`); `None` without a limit.
    pub threads: Option<u64>,
}

impl Limits {
    /// Returns the limits that apply now.
    #[must_use]
    pub fn current() -> Limits {
        let limits = [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_NPROC].map(|resource| {
            let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the C library writes to `limit`, which outlives the call. If it fails, there is no limit.
            unsafe { libc::getrlimit(resource, &mut limit) };
            (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
        });
        let [address_space_bytes, data_bytes, threads] = limits;
        Limits { address_space_bytes, data_bytes, threads }
    }

    /// Whether the memory of this process is limited.
    #[must_use]
    pub fn is_memory_limited(&self) -> bool {
        self.address_space_bytes.is_some() || self.data_bytes.is_some()
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address_space_bytes, self.data_bytes) {
            (None, None) => f.write_str("this machine has no more, as ulimit -v and ulimit -d set no limit"),
            (Some(bytes), None) => write!(f, "ulimit -v limits this process to {} of addresses", ByteCount(bytes)),
            (None, Some(bytes)) => write!(f, "ulimit -d limits this process to {} of data", ByteCount(bytes)),
            (Some(space), Some(data)) => {
                let (space, data) = (ByteCount(space), ByteCount(data));
                write!(f, "ulimit -v limits this process to {space} of addresses, and ulimit -d to {data} of data")
            }
        }
    }
}

/// Adds to the error of starting a thread the limits that can cause it. The system names none of them.
#[must_use]
pub fn thread_refused(error: &io::Error) -> io::Error {
    let limits = Limits::current();
    let memory = [(limits.address_space_bytes, 'v'), (limits.data_bytes, 'd')];
    let memory = memory.into_iter().filter_map(|(bytes, option)| Some((ByteCount(bytes?), option)));
    let memory: String = memory.map(|(bytes, option)| format!("{bytes} of memory (ulimit -{option}), ")).collect();
    let threads = limits.threads.map(|threads| format!("{threads} threads of this user (ulimit -u), "));
    let threads = threads.unwrap_or_default();
    io::Error::new(error.kind(), format!("{error}; the limits are {memory}{threads}and pids.max of its control group"))
}

/// Makes all threads of this process share one heap. Otherwise the C library gives each thread a heap that takes 64 MiB
/// of addresses, most of which are never used.
pub fn share_one_heap() {
    // SAFETY: the call changes a parameter of the allocator, and accesses no memory of this program.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_refused_allocation_is_tried_again() {
        static REFUSED: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn refused(bytes: usize) {
            REFUSED.fetch_add(bytes, Ordering::Relaxed);
        }
        let refusals = AtomicUsize::new(2);
        let allocate = || match refusals.fetch_sub(1, Ordering::Relaxed) {
            0 => std::ptr::dangling_mut(),
            _ => std::ptr::null_mut(),
        };
        assert!(!Allocator::new(refused).insist(100, allocate).is_null());
        assert_eq!(REFUSED.load(Ordering::Relaxed), 200);
    }

    #[test]
    fn a_refusal_names_the_limits() {
        let limits = |address_space_bytes, data_bytes| Limits { address_space_bytes, data_bytes, threads: None };
        for (limits, words) in [
            (limits(None, None), "this machine has no more"),
            (limits(Some(1 << 20), None), "ulimit -v limits this process to 1.0 MiB"),
            (limits(None, Some(1 << 20)), "ulimit -d limits this process to 1.0 MiB"),
            (limits(Some(2 << 20), Some(1 << 20)), "2.0 MiB of addresses, and ulimit -d to 1.0 MiB"),
        ] {
            assert!(limits.to_string().contains(words), "{limits}");
        }
        let error = thread_refused(&io::ErrorKind::WouldBlock.into());
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains("pids.max"), "{error}");
    }
}
