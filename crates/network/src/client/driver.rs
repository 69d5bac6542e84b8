//! The driver: the thread of a connection that many tasks share. It reads the replies and wakes the tasks that wait for
//! them, sends the backlog, ends pauses, and notices overdue requests.
//!
//! When replies to several tasks arrive together, a flush window opens: the tasks' next batches are coalesced, until
//! the last task has taken its reply. The window closes earlier when a batch has waited for [`FLUSH_WINDOW_NS`]; while
//! none waits, because the tasks' thread has not been scheduled yet, an open window delays no batch.
//!
//! Invariant: the driver ends with the last handle of its connection, and not before, because pauses go on after a
//! loss.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use guira_fabric::clock_ns;
use guira_fabric::signals::without_signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::time::Timespec;

use super::link::{Link, Received};
use super::loss::Loss;
use super::outbox::Flushed;
use super::receive::Receiver;
use super::request_slots::Delivered;
use super::transport::ReceiveMode;

/// The ticks of a batch's timeout: an overdue batch is noticed at most one tick late.
const TICKS: u32 = 4;

/// The time until the first check of a flush window: about a round trip. If a batch waits then, it no longer waits for
/// tasks that have not taken their reply, because they are busy or not polled. If no batch waits, the next check is
/// after twice the time.
const FLUSH_WINDOW_NS: u64 = 50_000;
/// A flush window closes at the check that follows an interval this long.
const LONGEST_INTERVAL_NS: u64 = 16 * FLUSH_WINDOW_NS;

/// Starts a driver for `link`, unless it has one.
pub fn start(link: &Arc<Link>) -> io::Result<()> {
    let driven = Arc::clone(link);
    link.drive(|| {
        without_signals(|| std::thread::Builder::new().name("guira-tcp".to_owned()).spawn(|| drive(driven)))?;
        Ok(())
    })
}

fn drive(link: Arc<Link>) {
    let tick_ns = u64::try_from((link.timeout / TICKS).as_nanos()).unwrap_or(u64::MAX).max(1);
    let receiver = link.take_receiver();
    let next_tick_ns = clock_ns().saturating_add(tick_ns);
    Driver { link, receiver, tick_ns, next_tick_ns, window: None, wakers: Vec::new() }.run();
}

struct Driver {
    link: Arc<Link>,
    receiver: Receiver,
    tick_ns: u64,
    next_tick_ns: u64,
    /// The flush window, if one is open.
    window: Option<FlushWindow>,
    wakers: Vec<Waker>,
}

/// The schedule of the checks of a flush window.
#[derive(Clone, Copy)]
struct FlushWindow {
    next_check_ns: u64,
    /// The time from the last check, or the opening, to the next check.
    interval_ns: u64,
}

impl FlushWindow {
    fn opened_at(now_ns: u64) -> FlushWindow {
        FlushWindow { next_check_ns: now_ns.saturating_add(FLUSH_WINDOW_NS), interval_ns: FLUSH_WINDOW_NS }
    }

    /// Returns the window after a check, unless it closes.
    fn after_check(self, now_ns: u64, is_batch_waiting: bool) -> Option<FlushWindow> {
        let interval_ns = 2 * self.interval_ns;
        let goes_on = !is_batch_waiting && interval_ns <= LONGEST_INTERVAL_NS;
        goes_on.then(|| FlushWindow { next_check_ns: now_ns.saturating_add(interval_ns), interval_ns })
    }
}

impl Driver {
    fn run(mut self) {
        while !self.link.is_closing.load(Ordering::Acquire) {
            if self.link.lost().is_none()
                && let Err(loss) = self.exchange()
            {
                self.link.lose(loss);
            }
            self.expire_timers();
            self.wakers.drain(..).for_each(Waker::wake);
            self.wait();
        }
    }

    /// Sends the backlog and receives what has arrived.
    fn exchange(&mut self) -> Result<(), Loss> {
        let flushed = if self.link.has_backlog() { self.link.flush() } else { Flushed::All };
        loop {
            let received = self.link.receive(&mut self.receiver, ReceiveMode::NonBlocking)?;
            match (received, flushed) {
                // Replies that the node sent before it closed are read first.
                (Received::Nothing, Flushed::Failed(kind)) => return Err(Loss::Failed(kind)),
                (Received::Nothing, _) => return Ok(()),
                (Received::Bytes, _) => {}
            }
            let was_full = self.receiver.is_full();
            self.dispatch()?;
            if !was_full && !matches!(flushed, Flushed::Failed(_)) {
                return Ok(());
            }
        }
    }

    fn dispatch(&mut self) -> Result<(), Loss> {
        let mut releases = Vec::new();
        let mut state = self.link.state();
        let result = loop {
            match self.receiver.next().map_err(Loss::ProtocolError) {
                Ok(None) => break Ok(()),
                Err(loss) => break Err(loss),
                Ok(Some((header, body))) => match state.slots.deliver(header, body) {
                    Err(loss) => break Err(loss),
                    Ok(Delivered { waker, release }) => {
                        self.wakers.extend(waker);
                        releases.extend(release.map(|slot| Delivered { waker: None, release: Some(slot) }));
                    }
                },
            }
        };
        // Before the first of the tasks can take its reply.
        if self.wakers.len() > 1 || self.window.is_some() && !self.wakers.is_empty() {
            self.link.extend_flush_window(u32::try_from(self.wakers.len()).unwrap_or(u32::MAX));
            // A batch that waits already does not wait longer for later tasks.
            if self.window.is_none() || !self.link.has_coalesced() {
                self.window = Some(FlushWindow::opened_at(clock_ns()));
            }
        }
        self.link.notify_waiters(state);
        releases.into_iter().for_each(|delivered| self.link.complete(delivered));
        result
    }

    fn expire_timers(&mut self) {
        let now_ns = clock_ns();
        let mut state = self.link.state();
        while let Some(waker) = state.slots.pop_pause(now_ns) {
            self.wakers.push(waker);
        }
        let mut is_overdue = false;
        if now_ns >= self.next_tick_ns {
            self.next_tick_ns = now_ns.saturating_add(self.tick_ns);
            is_overdue = state.slots.tick(TICKS);
        }
        drop(state);
        if is_overdue {
            self.link.lose(self.link.timed_out());
        }
        if let Some(window) = self.window.filter(|window| now_ns >= window.next_check_ns) {
            self.window =
                window.after_check(now_ns, self.link.has_coalesced()).filter(|_| self.link.is_flush_window_open());
            if self.window.is_none() {
                self.link.close_flush_window();
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self) {
        let pause_ns = self.link.state().slots.next_pause_ns().unwrap_or(u64::MAX);
        let next_ns = pause_ns.min(self.next_tick_ns).min(self.window.map_or(u64::MAX, |window| window.next_check_ns));
        let wait = Duration::from_nanos(next_ns.saturating_sub(clock_ns()));
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let wakeup = self.link.wakeup();
        let room = if self.link.has_backlog() { PollFlags::OUT } else { PollFlags::empty() };
        let socket = PollFd::from_borrowed_fd(self.link.transport.socket(), PollFlags::IN | room);
        let mut watched = [PollFd::from_borrowed_fd(wakeup.as_fd(), PollFlags::IN), socket];
        // The socket of a lost connection is always ready.
        let watched = if self.link.lost().is_some() { &mut watched[..1] } else { &mut watched[..] };
        // An error of the socket is reported by the next attempt to use it.
        let _ = poll(watched, Some(&timeout));
        if !watched[0].revents().is_empty() {
            let _ = rustix::io::read(wakeup, &mut [0u8; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_window_closes_when_a_batch_waits_or_after_the_longest_interval() {
        let mut window = FlushWindow::opened_at(1_000);
        assert_eq!(window.next_check_ns, 1_000 + FLUSH_WINDOW_NS);
        assert!(window.after_check(window.next_check_ns, true).is_none(), "a batch waits no longer than that");
        let mut checks = 1;
        while let Some(next) = window.after_check(window.next_check_ns, false) {
            assert_eq!(next.next_check_ns - window.next_check_ns, 2 * window.interval_ns);
            (window, checks) = (next, checks + 1);
        }
        assert_eq!((checks, window.interval_ns), (5, LONGEST_INTERVAL_NS));
    }
}
