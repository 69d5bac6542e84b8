//! What a fork does to this process's regions: the child has no part in the holds, and knows that it is a child.
//!
//! A hold's lock lives as long as anybody has its open file description. What keeps that is a mapping, which a forked
//! child does not get, and no descriptor: so whoever closes descriptors that are not his own, as programs do that go
//! into the background, takes nobody's life.
//!
//! Invariants: a description that is locked has a mapping, and no descriptor. The short window in which it has one
//! (from opening it to closing the descriptor) does not overlap with a fork: a window waits until no fork is under way,
//! and a fork waits until no window is open. No signal handler runs in a window, so that none forks there. Both waits
//! are bounded, because handlers of others run at a fork, and may wait for whoever waits here. A window that finds no
//! end of forks is refused. A fork that finds no end of windows goes on, and says so: a window that it overran gives
//! its lock up for all who share the description, its child included, and begins again with another one. So a child
//! never has a part in a lock that counts.
//!
//! A process is told from its children by a number in a page that the kernel zeroes in each of them, which no way to
//! fork gets past, a bare `clone` system call included. Where there is no such page (Linux before 4.14, pages of
//! another size than 4 KiB) the fork handlers alone change the number.
//!
//! A process that starts another program shares its memory with it until the kernel has the program loaded. Until then,
//! for a moment, a hold that its owner gives up, or leaves by dying, still looks taken: a prober asks again later, as
//! it does for any living owner.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::mapping::Anchor;
use crate::sys::{self, Undisturbed};

/// How long a fork waits for windows to close: each is four system calls.
const FORK_PATIENCE: Duration = Duration::from_secs(1);
/// How long a window waits for forks to end: far longer than the copy of a large process takes.
const WINDOW_PATIENCE: Duration = Duration::from_secs(10);
/// How often a window that was overrun begins again.
const MAX_WINDOWS: usize = 3;
/// Between two looks at the other side. Slept, not yielded: whoever is waited for may have a lower priority.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// How often the other side gets the processor before that.
const MAX_YIELDS: u32 = 100;
const OWN_WORDS: usize = 1024;

/// What a process knows of itself, and no child inherits.
#[repr(align(4096))]
struct Own([AtomicU32; OWN_WORDS]);

const _: () = assert!(size_of::<Own>() == size_of::<AtomicU32>() * OWN_WORDS && size_of::<Own>() == align_of::<Own>());

static OWN: Own = Own([const { AtomicU32::new(0) }; OWN_WORDS]);
/// Numbers that this process and those it descends from have had.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

impl Own {
    /// The process's number, from 1; 0 if it has none yet.
    #[inline(always)]
    fn number(&self) -> &AtomicU32 {
        &self.0[0]
    }

    /// Forks under way.
    fn forks(&self) -> &AtomicU32 {
        &self.0[1]
    }

    /// Threads inside a window.
    fn windows(&self) -> &AtomicU32 {
        &self.0[2]
    }

    /// Forks that did not wait any longer for windows to close.
    fn overruns(&self) -> &AtomicU32 {
        &self.0[3]
    }
}

/// Which process this is, among those that descend from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// Registers the fork handlers, once, and says which process this is.
    pub(crate) fn current() -> Result<Process, Errno> {
        static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
        (*REGISTERED.get_or_init(|| {
            // Without it the handlers have to do.
            let _ = sys::zero_in_children(&OWN.0);
            sys::at_fork(before_fork, after_fork_in_parent, after_fork_in_child)
        }))?;
        let known = OWN.number().load(Ordering::Relaxed);
        if known != 0 {
            return Ok(Process(known));
        }
        // The first of its kind, or a child that no handler has met.
        let next = next_number();
        match OWN.number().compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(Process(next)),
            Err(others) => Ok(Process(others)),
        }
    }

    /// Whether this is the process that called [`Process::current`]. One relaxed load: a forked child begins with one
    /// thread, and with another number, or none.
    #[inline(always)]
    pub(crate) fn is_this(self) -> bool {
        OWN.number().load(Ordering::Relaxed) == self.0
    }
}

fn next_number() -> u32 {
    NUMBERS.fetch_add(1, Ordering::Relaxed) + 1
}

/// An open file description without a descriptor; given up on drop, unless this is a forked child, which has no part in
/// it.
pub(crate) struct Guarded {
    anchor: Option<Anchor>,
    process: Process,
}

/// Opens a description with `open`, calls `lock` on it, and keeps it by a mapping of `bytes` bytes, its file system's
/// unit. Calls both again if a fork may have given the description to a child.
///
/// # Errors
/// Theirs, and the mapping's; `EBUSY` if forks do not end, or overrun everything.
pub(crate) fn open_guarded(
    process: Process,
    bytes: u64,
    mut open: impl FnMut() -> Result<OwnedFd, Errno>,
    mut lock: impl FnMut(&OwnedFd) -> Result<(), Errno>,
) -> Result<Guarded, Errno> {
    for _ in 0..MAX_WINDOWS {
        let window = Window::enter(WINDOW_PATIENCE)?;
        // Dropped inside the window, whatever fails.
        let file = open()?;
        lock(&file)?;
        let anchor = Anchor::new(file.as_fd(), bytes);
        if window.is_overrun() {
            sys::unlock(file.as_fd())?;
        }
        drop(file);
        // Overrun since: then nobody has the lock but perhaps a child, which lives on without this process in any case.
        match anchor? {
            anchor if window.is_overrun() => anchor.release(),
            anchor => return Ok(Guarded { anchor: Some(anchor), process }),
        }
    }
    Err(Errno::BUSY)
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

/// A stretch of time in which no fork happens, or which knows that one did.
struct Window {
    number: u32,
    overruns: u32,
    _undisturbed: Undisturbed,
}

impl Window {
    fn enter(patience: Duration) -> Result<Window, Errno> {
        let undisturbed = Undisturbed::begin();
        let is_entered = wait_until(patience, || {
            // Announce first, look second; a fork does the same, so that one of the two sees the other (sequential
            // consistency).
            OWN.windows().fetch_add(1, Ordering::SeqCst);
            if OWN.forks().load(Ordering::SeqCst) == 0 {
                return true;
            }
            OWN.windows().fetch_sub(1, Ordering::SeqCst);
            false
        });
        if !is_entered {
            return Err(Errno::BUSY);
        }
        let (number, overruns) = (OWN.number().load(Ordering::Relaxed), OWN.overruns().load(Ordering::SeqCst));
        Ok(Window { number, overruns, _undisturbed: undisturbed })
    }

    /// Whether a fork did not wait for its end, or this is the child of one.
    fn is_overrun(&self) -> bool {
        !self.is_of_this_process() || OWN.overruns().load(Ordering::SeqCst) != self.overruns
    }

    fn is_of_this_process(&self) -> bool {
        OWN.number().load(Ordering::Relaxed) == self.number
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A child that was forked inside the window starts with no windows.
        if self.is_of_this_process() {
            OWN.windows().fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Asks until the answer is yes, for as long as `patience`.
fn wait_until(patience: Duration, mut is_reached: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut yields = 0;
    while !is_reached() {
        if yields < MAX_YIELDS {
            yields += 1;
            std::thread::yield_now();
        } else if start.elapsed() < patience {
            std::thread::sleep(LOOK_INTERVAL);
        } else {
            return false;
        }
    }
    true
}

extern "C" fn before_fork() {
    OWN.forks().fetch_add(1, Ordering::SeqCst);
    if !wait_until(FORK_PATIENCE, || OWN.windows().load(Ordering::SeqCst) == 0) {
        OWN.overruns().fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs after a failed fork, too.
extern "C" fn after_fork_in_parent() {
    OWN.forks().fetch_sub(1, Ordering::SeqCst);
}

/// All of this is zero already, where the kernel sees to it.
extern "C" fn after_fork_in_child() {
    OWN.number().store(next_number(), Ordering::SeqCst);
    OWN.forks().store(0, Ordering::SeqCst);
    OWN.windows().store(0, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    const BYTE: i64 = 7;

    fn open() -> Result<OwnedFd, Errno> {
        let path = format!("/dev/shm/guira-test-fork-{}", std::process::id());
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        file.set_len(4096).unwrap();
        Ok(file.into())
    }

    fn lock(file: &OwnedFd) -> Result<(), Errno> {
        sys::try_lock_byte(file.as_fd(), BYTE)
    }

    /// A fork inside a window waits for its end, and then no more. The lock is nobody's but the parent's all the same;
    /// and nobody waits for ever for a fork that does not end.
    #[test]
    fn a_fork_that_overruns_a_window_gets_no_part_in_its_lock() {
        let process = Process::current().unwrap();
        let mut children = Vec::new();
        let start = Instant::now();
        let fork_at_first = |file: &OwnedFd| {
            lock(file)?;
            if children.is_empty() {
                children.push(Pid::from_raw(sys::fork_a_sleeper()).expect("a child"));
            }
            Ok(())
        };
        let guarded = open_guarded(process, 4096, open, fork_at_first).unwrap();
        assert!(start.elapsed() >= FORK_PATIENCE, "the fork waited for the window");
        let child = children[0];
        assert_eq!(lock(&open().unwrap()), Err(Errno::AGAIN), "it is held");
        drop(guarded);
        assert_eq!(lock(&open().unwrap()), Ok(()), "its owner gave it up, whoever lives");
        assert!(waitpid(Some(child), WaitOptions::NOHANG).unwrap().is_none(), "the child does");
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();

        before_fork();
        assert_eq!(Window::enter(Duration::from_millis(20)).map(drop), Err(Errno::BUSY));
        after_fork_in_parent();
        assert_eq!(Window::enter(Duration::from_millis(20)).map(drop), Ok(()));
        std::fs::remove_file(format!("/dev/shm/guira-test-fork-{}", std::process::id())).unwrap();
    }

    /// No signal handler of this thread runs in a window, and all that may run do so afterwards.
    #[test]
    fn windows_are_not_disturbed() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned();
            u64::from_str_radix(&mask, 16).unwrap()
        };
        let before = blocked();
        // The other test of forks lets a fork wait for a window, and windows for that fork.
        let window = Window::enter(10 * FORK_PATIENCE).unwrap();
        let child_signals = 1 << (libc::SIGCHLD - 1) | 1 << (libc::SIGALRM - 1);
        assert_eq!(blocked() & child_signals, child_signals);
        drop(window);
        assert_eq!(blocked(), before);
    }
}
