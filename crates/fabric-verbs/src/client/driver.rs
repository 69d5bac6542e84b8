//! The thread of a connection with lanes that sleep: it waits on the completion channel, takes completions, and ends
//! pauses.
//!
//! Invariant: the thread asks for an event before it takes completions, so that one that arrives later makes the
//! channel readable.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use guira_fabric::clock_ns;
use guira_fabric::signals::without_signals;
use libc::{c_int, c_short};

use super::connection::{Inner, STALL_NS};
use crate::VerbsError;
use crate::resources::CompletionChannel;

/// The state of a connection's thread.
pub(super) struct Driver {
    is_started: Mutex<bool>,
    is_stopped: AtomicBool,
    /// An event counter that wakes the thread.
    wakeup: File,
}

impl Driver {
    pub(super) fn new() -> Result<Driver, VerbsError> {
        // SAFETY: a new descriptor.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            let error = io::Error::last_os_error();
            return Err(VerbsError::System { call: "eventfd", device: "-".to_owned(), error });
        }
        // SAFETY: the descriptor is open and has no other owner.
        let wakeup = unsafe { File::from_raw_fd(descriptor) };
        Ok(Driver { is_started: Mutex::new(false), is_stopped: AtomicBool::new(false), wakeup })
    }

    /// Wakes the thread, if there is one.
    pub(super) fn wake(&self) {
        // It fails only if the counter is at its maximum, and then the thread is awake.
        let _ = (&self.wakeup).write(&1_u64.to_ne_bytes());
    }

    /// Whether the thread was started.
    pub(super) fn is_started(&self) -> bool {
        *self.is_started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.wake();
    }
}

/// Starts the thread of a connection, unless it runs; returns whether it does.
pub(super) fn start(inner: &Arc<Inner>) -> bool {
    let mut is_started = inner.driver.is_started.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_started {
        let inner = Arc::clone(inner);
        let builder = thread::Builder::new().name("guira-verbs".to_owned());
        let spawned = without_signals(|| builder.spawn(move || run(&inner)));
        *is_started = spawned.is_ok();
    }
    *is_started
}

fn run(inner: &Inner) {
    while !inner.driver.is_stopped.load(Ordering::Acquire) {
        if inner.completions().request_event().is_err() {
            inner.lose_completions(&mut inner.queue());
        }
        inner.drain();
        let until_ns = {
            let mut queue = inner.queue();
            queue.end_pauses(clock_ns());
            // A batch that is posted later wakes this thread when it completes; a device that never completes it is
            // noticed at the next of these times.
            let since_ns = queue.busy_since_ns().unwrap_or_else(clock_ns);
            queue.next_wake_ns.min(since_ns.saturating_add(STALL_NS + 1))
        };
        inner.lose_if_stalled();
        inner.wake();
        sleep(inner, until_ns);
    }
}

/// Sleeps until a completion, a wake-up or the time `until_ns` on the lanes' clock.
fn sleep(inner: &Inner, until_ns: u64) {
    // A lost connection has no completions that a lane waits for.
    let is_lost = inner.queue().lost().is_some();
    let channel = inner.completions().channel().filter(|_| !is_lost);
    let left_ns = (until_ns != u64::MAX).then(|| until_ns.saturating_sub(clock_ns()));
    let returned = wait(channel, Some(&inner.driver.wakeup), left_ns);
    if returned & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
        // The device was removed; the next round wakes the lanes.
        inner.lose_completions(&mut inner.queue());
    }
    // Without a wake-up there is nothing to read.
    let _ = (&inner.driver.wakeup).read(&mut [0; 8]);
}

/// Waits until the channel or the counter is readable, or for `left_ns`, and takes the events of the channel. Returns
/// what the kernel said about the channel.
pub(super) fn wait(channel: Option<&Arc<CompletionChannel>>, counter: Option<&File>, left_ns: Option<u64>) -> c_short {
    // A descriptor of -1 is ignored by the kernel.
    let descriptor = |fd: Option<c_int>| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    let mut descriptors =
        [descriptor(channel.map(|channel| channel.descriptor())), descriptor(counter.map(File::as_raw_fd))];
    let timeout = left_ns.map(|left_ns| libc::timespec {
        tv_sec: (left_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (left_ns % 1_000_000_000) as libc::c_long,
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the descriptors and the timeout outlive the call; no signal mask is given.
    unsafe { libc::ppoll(descriptors.as_mut_ptr(), 2, timeout, std::ptr::null()) };
    if let Some(channel) = channel {
        channel.take_events();
    }
    descriptors[0].revents
}
