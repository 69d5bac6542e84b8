//! The thread of a connection that many tasks share: it reads the answers and wakes who waits for them, sends what had
//! to wait for room, ends pauses, and notices what is overdue.
//!
//! When answers for several tasks arrive together, a round begins: the tasks' next batches wait for each other, until
//! the last task has taken its answer, or [`ROUND_NS`] later.
//!
//! Invariant: it ends when the last handle of its connection does, and not before, because pauses go on after a loss.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::time::Timespec;

use super::lane::clock_ns;
use super::link::{Link, Received};
use super::loss::Loss;
use super::outbox::Flushed;
use super::receive::Receiver;
use super::slots::Delivered;
use super::transport::Patience;

/// Into how many stretches the time is divided that a batch has: it is overdue at most one of them late.
const TICKS: u32 = 4;

/// How long a round lasts at most: about a round trip. A task that has taken its answer then waits no longer for others
/// that have not, because they are busy, or are not polled.
const ROUND_NS: u64 = 50_000;

/// Sees to it that `link` has a driver.
pub(super) fn start(link: &Arc<Link>) -> io::Result<()> {
    let driven = Arc::clone(link);
    link.drive(|| {
        std::thread::Builder::new().name("guira-tcp".to_owned()).spawn(|| drive(driven))?;
        Ok(())
    })
}

fn drive(link: Arc<Link>) {
    let tick_ns = u64::try_from((link.timeout / TICKS).as_nanos()).unwrap_or(u64::MAX).max(1);
    let receiver = link.take_receiver();
    let next_tick_ns = clock_ns().saturating_add(tick_ns);
    Driver { link, receiver, tick_ns, next_tick_ns, round_end_ns: None, wakers: Vec::new() }.run();
}

struct Driver {
    link: Arc<Link>,
    receiver: Receiver,
    tick_ns: u64,
    next_tick_ns: u64,
    /// When the round ends that is under way, if one is.
    round_end_ns: Option<u64>,
    wakers: Vec<Waker>,
}

impl Driver {
    fn run(mut self) {
        while !self.link.is_closing.load(Ordering::Acquire) {
            if self.link.lost().is_none()
                && let Err(loss) = self.carry()
            {
                self.link.lose(loss);
            }
            self.keep_time();
            self.wakers.drain(..).for_each(Waker::wake);
            self.wait();
        }
    }

    /// Sends what had to wait and takes in what has arrived.
    fn carry(&mut self) -> Result<(), Loss> {
        let flushed = if self.link.has_rest() { self.link.flush() } else { Flushed::All };
        loop {
            let received = self.link.receive(&mut self.receiver, Patience::None)?;
            match (received, flushed) {
                // What the node said before it closed is heard first.
                (Received::Nothing, Flushed::Failed(kind)) => return Err(Loss::Failed(kind)),
                (Received::Nothing, _) => return Ok(()),
                (Received::Bytes, _) => {}
            }
            let was_full = self.receiver.is_full();
            self.hand_out()?;
            if !was_full && !matches!(flushed, Flushed::Failed(_)) {
                return Ok(());
            }
        }
    }

    fn hand_out(&mut self) -> Result<(), Loss> {
        let mut releases = Vec::new();
        let mut state = self.link.state();
        let result = loop {
            match self.receiver.next().map_err(Loss::Nonsense) {
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
        // Before the first of them can take its answer.
        if self.wakers.len() > 1 {
            self.link.begin_round(u32::try_from(self.wakers.len()).unwrap_or(u32::MAX));
            // What waits since an earlier round waits no longer for this one.
            if self.round_end_ns.is_none() || !self.link.has_gathered() {
                self.round_end_ns = Some(clock_ns().saturating_add(ROUND_NS));
            }
        }
        self.link.pass_turn(state);
        releases.into_iter().for_each(|delivered| self.link.settle(delivered));
        result
    }

    fn keep_time(&mut self) {
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
        if self.round_end_ns.is_some_and(|end_ns| now_ns >= end_ns) {
            self.round_end_ns = None;
            self.link.end_round();
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self) {
        let pause_ns = self.link.state().slots.next_pause_ns().unwrap_or(u64::MAX);
        let next_ns = pause_ns.min(self.next_tick_ns).min(self.round_end_ns.unwrap_or(u64::MAX));
        let wait = Duration::from_nanos(next_ns.saturating_sub(clock_ns()));
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let bell = self.link.bell();
        let room = if self.link.has_rest() { PollFlags::OUT } else { PollFlags::empty() };
        let socket = PollFd::from_borrowed_fd(self.link.transport.socket(), PollFlags::IN | room);
        let mut watched = [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN), socket];
        // The socket of a lost connection is always ready.
        let watched = if self.link.lost().is_some() { &mut watched[..1] } else { &mut watched[..] };
        // What went wrong with the socket is told by the next attempt to use it.
        let _ = poll(watched, Some(&timeout));
        if !watched[0].revents().is_empty() {
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
        }
    }
}
