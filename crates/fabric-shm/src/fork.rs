//! What a fork does to this process's regions: the child has no part in the holds, and knows that it is a child.
//!
//! A hold's lock lives as long as anybody has its open file description. What keeps that is a mapping, which a forked
//! child does not get, and no descriptor: so whoever closes descriptors that are not his own, as programs do that go
//! into the background, takes nobody's life.
//!
//! Invariants: a description that is locked has a mapping, and no descriptor. The short window in which it has one
//! (from opening it to closing the descriptor) does not overlap with a fork: a window waits until no fork is under way,
//! and a fork waits until no window is open. Both waits are bounded, because a signal handler may fork inside its own
//! thread's window; then the child may keep one description until it runs another program.
//!
//! A process that starts another program shares its memory with it until the kernel has the program loaded. Until then,
//! for a moment, a hold that its owner gives up, or leaves by dying, still looks taken: a prober asks again later, as
//! it does for any living owner.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::mapping::Anchor;
use crate::sys;

/// How often a fork, or a window, yields to the other side before it goes on: far longer than either lasts.
const MAX_YIELDS: u32 = 1_000_000;

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

/// An open file description without a descriptor; given up on drop, unless this is a forked child, which has no part in
/// it.
pub(crate) struct Guarded {
    anchor: Option<Anchor>,
    process: Process,
}

/// Opens a description with `open`, calls `lock` on it, and keeps it by a mapping of `bytes` bytes, its file system's
/// unit.
pub(crate) fn open_guarded(
    process: Process,
    bytes: u64,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
    lock: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
) -> Result<Guarded, Errno> {
    let _window = Window::enter();
    // Dropped inside the window, whatever fails.
    let file = open()?;
    lock(&file)?;
    let anchor = Anchor::new(file.as_fd(), bytes)?;
    Ok(Guarded { anchor: Some(anchor), process })
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // In a child there is no such mapping, and its address may be somebody else's by now.
        if self.process.is_this()
            && let Some(anchor) = self.anchor.take()
        {
            anchor.release();
        }
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
}
