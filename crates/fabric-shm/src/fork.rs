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
//! Sets of holds ([`crate::lock_description`]) keep a descriptor, too; fork handlers close it in the child.
//!
//! A process that starts another program shares its memory with it until the kernel has the program loaded. Until then,
//! for a moment, a hold that its owner gives up, or leaves by dying, still looks taken: a prober asks again later, as
//! it does for any living owner.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use guira_fabric::process::{Process, WipeOnForkPage, at_fork};
use rustix::io::Errno;

use crate::lock_description;
use crate::mapping::Anchor;
use crate::sys::{self, BlockedSignals};

/// How long a fork waits for windows to close: each is four system calls.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a window waits for forks to end: far longer than the copy of a large process takes.
const WINDOW_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a window that was overrun begins again.
pub(crate) const MAX_WINDOWS: usize = 3;
/// Between two looks at the other side. Slept, not yielded: whoever is waited for may have a lower priority.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// How often the other side gets the processor before that.
const MAX_YIELDS: u32 = 100;

/// What the process knows of its forks, and no child inherits.
static OWN: WipeOnForkPage = WipeOnForkPage::zeroed();

/// Forks under way.
fn forks() -> &'static AtomicU32 {
    OWN.word(0)
}

/// Threads inside a window.
fn windows() -> &'static AtomicU32 {
    OWN.word(1)
}

/// Forks that did not wait any longer for windows to close.
fn overruns() -> &'static AtomicU32 {
    OWN.word(2)
}

/// Has forks wait for windows, and says which process this is.
///
/// # Errors
/// The fork handlers could not be registered: `ENOMEM`.
pub(crate) fn current_process() -> Result<Process, Errno> {
    static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
    (*REGISTERED.get_or_init(|| {
        // Without it the handlers have to do.
        let _ = OWN.zero_in_children();
        at_fork(before_fork, after_fork_in_parent, after_fork_in_child).map_err(errno_of)
    }))?;
    Process::current().map_err(errno_of)
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::NOMEM)
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
        let window = Window::begin()?;
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
pub(crate) struct Window {
    process: Process,
    overruns: u32,
    _blocked_signals: BlockedSignals,
}

impl Window {
    /// Begins one, when no fork is under way.
    ///
    /// # Errors
    /// `EBUSY` if forks do not end.
    pub(crate) fn begin() -> Result<Window, Errno> {
        Window::enter(WINDOW_TIMEOUT)
    }

    fn enter(timeout: Duration) -> Result<Window, Errno> {
        let process = current_process()?;
        let blocked_signals = BlockedSignals::begin();
        let is_entered = wait_until(timeout, || {
            // Announce first, look second; a fork does the same, so that one of the two sees the other (sequential
            // consistency).
            windows().fetch_add(1, Ordering::SeqCst);
            if forks().load(Ordering::SeqCst) == 0 {
                return true;
            }
            windows().fetch_sub(1, Ordering::SeqCst);
            false
        });
        if !is_entered {
            return Err(Errno::BUSY);
        }
        let overruns = overruns().load(Ordering::SeqCst);
        Ok(Window { process, overruns, _blocked_signals: blocked_signals })
    }

    /// Whether a fork did not wait for its end, or this is the child of one.
    pub(crate) fn is_overrun(&self) -> bool {
        !self.process.is_this() || overruns().load(Ordering::SeqCst) != self.overruns
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A child that was forked inside the window starts with no windows.
        if self.process.is_this() {
            windows().fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Asks until the answer is yes, for as long as `timeout`.
fn wait_until(timeout: Duration, mut is_reached: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut yields = 0;
    while !is_reached() {
        if yields < MAX_YIELDS {
            yields += 1;
            std::thread::yield_now();
        } else if start.elapsed() < timeout {
            std::thread::sleep(POLL_INTERVAL);
        } else {
            return false;
        }
    }
    true
}

extern "C" fn before_fork() {
    forks().fetch_add(1, Ordering::SeqCst);
    if !wait_until(FORK_TIMEOUT, || windows().load(Ordering::SeqCst) == 0) {
        overruns().fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs after a failed fork, too.
extern "C" fn after_fork_in_parent() {
    forks().fetch_sub(1, Ordering::SeqCst);
}

/// All of this is zero already, where the kernel sees to it.
extern "C" fn after_fork_in_child() {
    forks().store(0, Ordering::SeqCst);
    windows().store(0, Ordering::SeqCst);
    lock_description::close_in_child();
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
    fn a_fork_that_overruns_a_window_does_not_share_its_lock() {
        let process = current_process().unwrap();
        let mut children = Vec::new();
        let start = Instant::now();
        let fork_at_first = |file: &OwnedFd| {
            lock(file)?;
            if children.is_empty() {
                children.push(Pid::from_raw(sys::fork_sleeping_child()).expect("a child"));
            }
            Ok(())
        };
        let guarded = open_guarded(process, 4096, open, fork_at_first).unwrap();
        assert!(start.elapsed() >= FORK_TIMEOUT, "the fork waited for the window");
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
    fn no_signal_handler_runs_in_a_window() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned();
            u64::from_str_radix(&mask, 16).unwrap()
        };
        let before = blocked();
        let window = Window::enter(WINDOW_TIMEOUT).unwrap();
        let child_signals = 1 << (libc::SIGCHLD - 1) | 1 << (libc::SIGALRM - 1);
        assert_eq!(blocked() & child_signals, child_signals);
        drop(window);
        assert_eq!(blocked(), before);
    }
}
