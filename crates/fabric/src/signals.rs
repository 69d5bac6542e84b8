//! Signals on the library's own threads: they belong to the program, which may keep them off its threads to wait for them.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// The signals that a thread causes itself, which end the process if they are blocked, and the one of profilers.
const OF_THREADS: [libc::c_int; 7] =
    [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGPROF, libc::SIGSEGV, libc::SIGTRAP];

/// A guard that blocks signals on this thread until it is dropped, as far as signals can be blocked.
pub struct BlockedSignals {
    before: libc::sigset_t,
    /// Makes the type `!Send`: the mask belongs to one thread.
    _thread: PhantomData<*mut ()>,
}

impl BlockedSignals {
    /// Blocks all signals.
    #[must_use]
    pub fn all() -> BlockedSignals {
        BlockedSignals::but(&[])
    }

    fn but(others: &[libc::c_int]) -> BlockedSignals {
        let (mut blocked, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first call initialises `blocked`, and the last one `before`. None can fail for valid pointers,
        // signals that exist, and a valid operation on the mask.
        let before = unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            others.iter().for_each(|signal| _ = libc::sigdelset(blocked.as_mut_ptr(), *signal));
            libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        BlockedSignals { before, _thread: PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is the earlier mask of this thread, and outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// Calls `spawn`, which starts threads of the library: they inherit a mask that leaves the process's signals to the threads of
/// the program. A program that blocks a signal on all of its threads, to wait for it, would otherwise be ended by it.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    // Miri has no signals.
    let _blocked = (!cfg!(miri)).then(|| BlockedSignals::but(&OF_THREADS));
    spawn()
}

#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests {
    use super::*;

    /// The signals that this thread blocks, as a set of bits.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("every thread has one");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("it has a mask");
        u64::from_str_radix(mask.trim(), 16).expect("a number")
    }

    fn has(mask: u64, signal: libc::c_int) -> bool {
        mask >> (signal - 1) & 1 == 1
    }

    #[test]
    fn threads_of_the_library_block_signals_of_the_process() {
        let before = blocked();
        let of_thread = without_signals(|| std::thread::spawn(blocked)).join().expect("no panic");
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGCHLD, libc::SIGALRM] {
            assert!(has(of_thread, signal), "signal {signal}");
        }
        assert!(!OF_THREADS.iter().any(|signal| has(of_thread, *signal)), "{of_thread:x}");
        assert_eq!(blocked(), before);
        let all = BlockedSignals::all();
        assert!(has(blocked(), libc::SIGSEGV));
        drop(all);
        assert_eq!(blocked(), before);
    }
}
