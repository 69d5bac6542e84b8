//! What a fork does to this process's regions: the child closes its copies of the holds, and knows that it is a child.
//!
//! A hold's lock lives as long as any process has its open file description, so a child that kept a copy would keep a
//! dead parent's slot alive. Every hold's descriptor therefore stands in a table of this process, and a fork handler
//! closes them in the child. The handler may only do what is safe in a child of a process with threads, so the table is
//! an array of atomics, and no lock is taken in the child.
//!
//! Invariants: a descriptor that is open and locked stands in the table. The two short windows in which it does not
//! (between opening and entering it, and between taking it out and closing it) do not overlap with a fork: a window
//! waits until no fork is under way, and a fork waits until no window is open. Both waits are bounded, because a signal
//! handler may fork inside its own thread's window; then the child may keep one description until it runs another
//! program.
//!
//! A child's copies are closed when it first runs, or while the kernel starts another program in it (they are
//! close-on-exec). Until then, for a moment, a hold that its owner gives up, or leaves by dying, still looks taken: a
//! prober asks again later, as it does for any living owner.

use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::io::Errno;

use crate::sys;

/// Holds of one process, at most: four times the default number of clients a region has.
pub(crate) const MAX_HOLDS: usize = 4096;
/// How often a fork, or a window, yields to the other side before it goes on: far longer than either lasts.
const MAX_YIELDS: u32 = 1_000_000;
const EMPTY: RawFd = -1;

static HOLDS: [AtomicI32; MAX_HOLDS] = [const { AtomicI32::new(EMPTY) }; MAX_HOLDS];
/// How many forks lie between this process and the one that started the program.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Forks under way.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Threads inside a window.
static WINDOWS: AtomicU32 = AtomicU32::new(0);

/// Which process this is, among the program's forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// Registers the fork handlers, once, and says which process this is.
    pub(crate) fn current() -> Result<Process, Errno> {
        static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
        (*REGISTERED.get_or_init(|| sys::at_fork(before_fork, after_fork_in_parent, after_fork_in_child)))?;
        Ok(Process(GENERATION.load(Ordering::Relaxed)))
    }

    /// Whether this is the process that called [`Process::current`]. One relaxed load: a forked child begins with one
    /// thread, whose own fork handler stored the value.
    #[inline(always)]
    pub(crate) fn is_this(self) -> bool {
        GENERATION.load(Ordering::Relaxed) == self.0
    }
}

/// A descriptor in the table; closed on drop, unless a fork handler closed it in this child.
pub(crate) struct Guarded {
    entry: usize,
    process: Process,
}

/// Why [`open_guarded`] failed.
pub(crate) enum GuardError {
    /// All [`MAX_HOLDS`] entries are taken.
    TableFull,
    /// The file could not be opened or locked.
    Os(Errno),
}

/// Opens a description with `open`, enters it into the table and then calls `lock` on it.
pub(crate) fn open_guarded(
    process: Process,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
    lock: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
) -> Result<Guarded, GuardError> {
    let _window = Window::enter();
    let file = open().map_err(GuardError::Os)?;
    // Locked inside the window too: whatever fails, `file` closes itself before the window ends.
    lock(&file).map_err(GuardError::Os)?;
    let free = |entry: &AtomicI32| entry.load(Ordering::Relaxed) == EMPTY;
    let descriptor = file.into_raw_fd();
    for (entry, cell) in HOLDS.iter().enumerate() {
        if free(cell) && cell.compare_exchange(EMPTY, descriptor, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return Ok(Guarded { entry, process });
        }
    }
    sys::close(descriptor);
    Err(GuardError::TableFull)
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // In a child the descriptor is closed, and its number and entry may be somebody else's by now.
        if !self.process.is_this() {
            return;
        }
        let _window = Window::enter();
        let descriptor = HOLDS[self.entry].swap(EMPTY, Ordering::SeqCst);
        assert_ne!(descriptor, EMPTY, "a hold's entry is emptied by its owner only");
        sys::close(descriptor);
    }
}

/// A stretch of time in which no fork happens.
struct Window {
    generation: u32,
}

impl Window {
    fn enter() -> Window {
        for _ in 0..MAX_YIELDS {
            // Announce first, look second; a fork does the same, so that one of the two sees the other (sequential
            // consistency).
            WINDOWS.fetch_add(1, Ordering::SeqCst);
            if FORKS.load(Ordering::SeqCst) == 0 {
                return Window { generation: GENERATION.load(Ordering::Relaxed) };
            }
            WINDOWS.fetch_sub(1, Ordering::SeqCst);
            std::thread::yield_now();
        }
        WINDOWS.fetch_add(1, Ordering::SeqCst);
        Window { generation: GENERATION.load(Ordering::Relaxed) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A child that was forked inside the window (by a signal handler) starts with no windows.
        if GENERATION.load(Ordering::Relaxed) == self.generation {
            WINDOWS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    for _ in 0..MAX_YIELDS {
        if WINDOWS.load(Ordering::SeqCst) == 0 {
            return;
        }
        std::thread::yield_now();
    }
}

/// Runs after a failed fork, too.
extern "C" fn after_fork_in_parent() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
    FORKS.store(0, Ordering::SeqCst);
    WINDOWS.store(0, Ordering::SeqCst);
    for entry in &HOLDS {
        let descriptor = entry.swap(EMPTY, Ordering::SeqCst);
        if descriptor != EMPTY {
            sys::close(descriptor);
        }
    }
}
