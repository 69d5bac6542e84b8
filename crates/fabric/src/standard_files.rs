//! Standard input and output that were closed when the program started.
//!
//! Before `main`, Rust's runtime opens `/dev/null` in place of standard files that are closed, so that later files do
//! not get their descriptors. A program would then read an empty input and lose its output, without an error.

#[cfg(all(target_os = "linux", not(miri)))]
use std::sync::atomic::{AtomicBool, Ordering};

/// A standard file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardFile {
    /// Standard input.
    Input = 0,
    /// Standard output.
    Output = 1,
}

/// Whether each standard file was closed, by its descriptor.
#[cfg(all(target_os = "linux", not(miri)))]
static WAS_CLOSED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// The loader calls this function before `main`, and thus before the runtime opens anything.
// SAFETY: the section holds pointers to functions that the loader calls with the C ABI, as this one is; it may pass
// arguments, which the function ignores. The function needs nothing of the runtime: it makes system calls and stores
// to atomics.
#[cfg(all(target_os = "linux", not(miri)))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn record() {
        for (descriptor, was_closed) in (0..).zip(&WAS_CLOSED) {
            // SAFETY: the call only reads the descriptor's flags, and fails if it is not open.
            let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
            was_closed.store(flags == -1, Ordering::Relaxed);
        }
    }
    record
};

impl StandardFile {
    /// Whether this file was closed when the program started. Only Linux tells; elsewhere this is `false`.
    #[must_use]
    pub fn was_closed(self) -> bool {
        #[cfg(all(target_os = "linux", not(miri)))]
        return WAS_CLOSED[self as usize].load(Ordering::Relaxed);
        #[cfg(not(all(target_os = "linux", not(miri))))]
        false
    }
}
