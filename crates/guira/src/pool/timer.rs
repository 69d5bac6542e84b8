//! Alarms for tasks on any executor, from one thread that runs while there are any.
//!
//! Invariants: no waker is cloned, woken or dropped while the alarms are locked, because that may end a task that
//! itself waits here; a waker that panics does not keep others from being woken.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use guira_fabric::signals::without_signals;

/// The time that the thread stays without an alarm, so that the next task that waits need not start one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time at which a task is woken, and a number that distinguishes alarms of the same time.
pub(super) type Alarm = (Instant, u64);

/// A set of alarms, and the thread that serves it.
#[derive(Debug, Default)]
pub(super) struct Timer {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alarms: BTreeMap<Alarm, Waker>,
    next: u64,
    is_running: bool,
}

/// Records that the thread has ended, however it ends.
struct Running<'t>(&'t Timer);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state().is_running = false;
    }
}

impl Timer {
    /// Sets an alarm that wakes `waker` at this time, unless [`Timer::cancel`] is called before.
    ///
    /// # Errors
    /// If the thread could not be started. No alarm is set then.
    pub(super) fn set(self: &Arc<Self>, at: Instant, waker: Waker) -> io::Result<Alarm> {
        let mut state = self.state();
        if !state.is_running {
            let timer = Arc::clone(self);
            without_signals(|| thread::Builder::new().name("guira-pool".to_owned()).spawn(move || timer.run()))?;
            state.is_running = true;
        }
        let alarm = (at, state.next);
        state.next += 1;
        let is_first = state.alarms.first_key_value().is_none_or(|(first, _)| alarm < *first);
        state.alarms.insert(alarm, waker);
        drop(state);
        if is_first {
            self.changed.notify_one();
        }
        Ok(alarm)
    }

    /// Exchanges the waker of an alarm with `waker`.
    pub(super) fn update(&self, alarm: &Alarm, waker: &mut Waker) {
        if let Some(known) = self.state().alarms.get_mut(alarm) {
            std::mem::swap(known, waker);
        }
    }

    /// Cancels an alarm, and returns its waker.
    #[must_use]
    pub(super) fn cancel(&self, alarm: &Alarm) -> Option<Waker> {
        self.state().alarms.remove(alarm)
    }

    fn run(&self) {
        let running = Running(self);
        let mut state = self.state();
        // Ends when there was no alarm for a while; each alarm goes off once.
        loop {
            let now = Instant::now();
            let rest = state.alarms.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut state.alarms, rest);
            if !due.is_empty() {
                drop(state);
                for waker in due.into_values() {
                    // The panic hook has reported it; the waker belongs to its executor.
                    drop(catch_unwind(AssertUnwindSafe(|| waker.wake())));
                }
                state = self.state();
                continue;
            }
            let first = state.alarms.first_key_value().map(|((at, _), _)| at.saturating_duration_since(now));
            let (woken, wait) =
                self.changed.wait_timeout(state, first.unwrap_or(IDLE_TIMEOUT)).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if first.is_none() && wait.timed_out() && state.alarms.is_empty() {
                // Under the lock, so that the next alarm starts another thread.
                state.is_running = false;
                drop(state);
                std::mem::forget(running);
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;

    use super::*;

    struct Notify(Sender<u32>, u32);

    impl Wake for Notify {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(self.1);
        }
    }

    #[test]
    fn alarms_go_off_in_order_unless_they_are_cancelled() {
        let (sender, receiver) = channel();
        let timer = Arc::new(Timer::default());
        let waker = |number| Waker::from(Arc::new(Notify(sender.clone(), number)));
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        timer.set(at(60), waker(3)).unwrap();
        let cancelled = timer.set(at(20), waker(0)).unwrap();
        let updated = timer.set(at(40), waker(0)).unwrap();
        timer.set(at(10), waker(1)).unwrap();
        assert!(timer.cancel(&cancelled).is_some());
        timer.update(&updated, &mut waker(2));
        let order: Vec<u32> = receiver.iter().take(3).collect();
        assert_eq!(order, [1, 2, 3]);
        assert!(now.elapsed() >= Duration::from_millis(60) && receiver.try_recv().is_err());
        assert!(timer.state().alarms.is_empty());
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("this is part of the test");
        }
    }

    #[test]
    fn a_waker_that_panics_does_not_keep_others_from_being_woken() {
        let (sender, receiver) = channel();
        let timer = Arc::new(Timer::default());
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        // Two alarms at one time, and a later one. The first is set last, so that all are set when it goes off.
        timer.set(at(400), Waker::from(Arc::new(Notify(sender.clone(), 2)))).unwrap();
        timer.set(at(200), Waker::from(Arc::new(Panics))).unwrap();
        timer.set(at(200), Waker::from(Arc::new(Notify(sender, 1)))).unwrap();
        let order = [(); 2].map(|()| receiver.recv_timeout(Duration::from_secs(60)));
        assert_eq!(order, [Ok(1), Ok(2)]);
    }
}
