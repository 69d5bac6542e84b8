//! Holds across forks: a forked child does not share its parent's holds.
//!
//! A hold's lock exists as long as any process has its open file description. The description is kept open by a
//! mapping, which a forked child does not inherit, and not by a descriptor. So code that closes all descriptors, as
//! programs do that go into the background, ends no client's liveness.
//!
//! Invariants: a locked description has a mapping, and no descriptor. The short window in which it has a descriptor
//! (from opening to closing it) does not overlap with a fork: a window waits until no fork is in progress, and a fork
//! waits until no window is open. Signals are blocked in a window, so that no signal handler forks there. Both waits
//! are bounded, because fork handlers of other libraries run at a fork, and may wait for a thread that waits here. If
//! forks do not end, the window is refused. If windows do not end, the fork continues and records that it overran them:
//! an overrun window unlocks its description for all processes that share it, including the child, and begins again
//! with another description. So a child never shares a lock that is in use.
//!
//! Sets of holds ([`crate::liveness::lock_description`]) keep a descriptor, too; fork handlers close it in the child.
//!
//! A process that starts another program shares its memory with the new process until the kernel has loaded the
//! program. During that short time, a hold that its owner drops, or loses by dying, still looks taken: a prober retries
//! later, as it does for any living owner.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use guira_fabric::process::{Process, WipeOnForkPage, at_fork};
use guira_fabric::signals::BlockedSignals;
use rustix::io::Errno;

use crate::liveness::lock_description;
use crate::mapping::{Anchor, AnchorPages};
use crate::sys;

/// The time for which a fork waits for windows to close; each takes four system calls.
const FORK_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which a window waits for forks to end: far longer than forking a large process takes.
const WINDOW_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of windows that are tried, if each is overrun.
pub(crate) const MAX_WINDOWS: usize = 3;
/// The time between two checks of the other side. The thread sleeps instead of yielding, because the thread that it
/// waits for may have a lower priority.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// The number of times that the thread yields before it starts to sleep.
const MAX_YIELDS: u32 = 100;

/// The counters of forks and windows of this process, which no child inherits.
static OWN: WipeOnForkPage = WipeOnForkPage::zeroed();

/// Returns the number of forks in progress.
fn forks() -> &'static AtomicU32 {
    OWN.word(0)
}

/// Returns the number of threads inside a window.
fn windows() -> &'static AtomicU32 {
    OWN.word(1)
}

/// Returns the number of forks that stopped waiting for windows to close.
fn overruns() -> &'static AtomicU32 {
    OWN.word(2)
}

/// Registers the handlers that let forks wait for windows, and returns the identity of this process.
///
/// # Errors
/// The fork handlers could not be registered: `ENOMEM`.
pub(crate) fn current_process() -> Result<Process, Errno> {
    static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
    (*REGISTERED.get_or_init(|| {
        // Without a zeroed page the fork handlers reset the counters.
        let _ = OWN.zero_in_children();
        at_fork(before_fork, after_fork_in_parent, after_fork_in_child).map_err(errno_of)
    }))?;
    Process::current().map_err(errno_of)
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::NOMEM)
}

/// An open file description without a descriptor. Closed on drop, unless this is a forked child, which does not share
/// it.
pub(crate) struct Guarded {
    anchor: Option<Anchor>,
    process: Process,
}

/// Opens a description with `open`, calls `lock` on it, and keeps it open by a mapping of `pages`. Calls both
/// again if a fork may have copied the description to a child.
///
/// # Errors
/// The errors of `open`, `lock` and the mapping; `EBUSY` if forks do not end, or overrun every window.
pub(crate) fn open_guarded(
    process: Process,
    pages: AnchorPages,
    mut open: impl FnMut() -> Result<OwnedFd, Errno>,
    mut lock: impl FnMut(&OwnedFd) -> Result<(), Errno>,
) -> Result<Guarded, Errno> {
    for _ in 0..MAX_WINDOWS {
        let window = Window::begin()?;
        // Dropped inside the window, even after an error.
        let file = open()?;
        lock(&file)?;
        let anchor = Anchor::new(file.as_fd(), pages);
        if window.is_overrun() {
            sys::unlock(file.as_fd())?;
        }
        drop(file);
        // If the window was overrun after the check above, the lock is released here, and at most a child still shares
        // the description.
        match anchor? {
            anchor if window.is_overrun() => anchor.release(),
            anchor => return Ok(Guarded { anchor: Some(anchor), process }),
        }
    }
    Err(Errno::BUSY)
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // A child does not have the mapping, and another mapping may have its address by now.
        if self.process.is_this()
            && let Some(anchor) = self.anchor.take()
        {
            anchor.release();
        }
    }
}

/// A period in which no fork happens, or which detects that one did.
pub(crate) struct Window {
    process: Process,
    overruns: u32,
    _blocked_signals: BlockedSignals,
}

impl Window {
    /// Opens a window as soon as no fork is in progress.
    ///
    /// # Errors
    /// `EBUSY` if forks do not end in time.
    pub(crate) fn begin() -> Result<Window, Errno> {
        Window::enter(WINDOW_TIMEOUT)
    }

    fn enter(timeout: Duration) -> Result<Window, Errno> {
        let process = current_process()?;
        let blocked_signals = BlockedSignals::all();
        // Read before the window is announced: a fork that overruns it may stop waiting at once.
        let mut known_overruns = 0;
        let is_entered = wait_until(timeout, || {
            known_overruns = overruns().load(Ordering::SeqCst);
            // Announces first and checks second. A fork does the same, so that at least one of the two sees the other
            // (sequential consistency).
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
        Ok(Window { process, overruns: known_overruns, _blocked_signals: blocked_signals })
    }

    /// Whether a fork did not wait for the end of this window, or this process is the child of such a fork.
    pub(crate) fn is_overrun(&self) -> bool {
        !self.process.is_this() || overruns().load(Ordering::SeqCst) != self.overruns
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A child that was forked inside the window starts without windows.
        if self.process.is_this() {
            windows().fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Polls `is_reached` until it returns true; false after `timeout`.
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

/// Ends a fork in the parent. Also called after a failed fork.
extern "C" fn after_fork_in_parent() {
    forks().fetch_sub(1, Ordering::SeqCst);
}

/// Resets the counters in the child. They are zero already if the kernel zeroes the page.
extern "C" fn after_fork_in_child() {
    forks().store(0, Ordering::SeqCst);
    windows().store(0, Ordering::SeqCst);
    lock_description::close_in_child();
}

#[cfg(test)]
mod tests {
    use guira_testing::process_name;
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    const BYTE: i64 = 7;

    fn path() -> String {
        format!("/dev/shm/{}-fork", process_name())
    }

    fn open() -> Result<OwnedFd, Errno> {
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path());
        let file = file.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        file.set_len(4096).unwrap();
        Ok(file.into())
    }

    fn lock(file: &OwnedFd) -> Result<(), Errno> {
        sys::try_lock_byte(file.as_fd(), BYTE)
    }

    /// A fork inside a window waits for the window's end, but not for ever. The lock belongs to the parent only, and a
    /// window does not wait for ever for a fork that does not end.
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
        let guarded = open_guarded(process, AnchorPages::of_hold(4096), open, fork_at_first).unwrap();
        assert!(start.elapsed() >= FORK_TIMEOUT, "the fork waited for the window");
        let child = children[0];
        assert_eq!(lock(&open().unwrap()), Err(Errno::AGAIN), "it is held");
        drop(guarded);
        assert_eq!(lock(&open().unwrap()), Ok(()), "its owner released it, although the child is alive");
        assert!(waitpid(Some(child), WaitOptions::NOHANG).unwrap().is_none(), "the child is alive");
        kill_process(child, Signal::KILL).unwrap();
        waitpid(Some(child), WaitOptions::empty()).unwrap();

        before_fork();
        assert_eq!(Window::enter(Duration::from_millis(20)).map(drop), Err(Errno::BUSY));
        after_fork_in_parent();
        assert_eq!(Window::enter(Duration::from_millis(20)).map(drop), Ok(()));
        std::fs::remove_file(path()).unwrap();
    }

    /// Signals are blocked for this thread in a window, and unblocked afterwards.
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
