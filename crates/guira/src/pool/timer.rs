//! Alarms for tasks, whichever executor they run on: one thread, while there are any.
//!
//! Invariants: no waker is cloned, woken or dropped while the alarms are locked, because that may end a task, and with
//! it one that waits here; a waker that panics keeps no other one from being woken.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// How long the thread stays without an alarm: the next task that waits then need not start one.
const LINGER: Duration = Duration::from_secs(1);

/// When a task is woken. Alarms of one moment are told apart by a number.
pub(super) type Alarm = (Instant, u64);

/// Alarms that were set.
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

/// Notes that the thread has ended, however it ends.
struct Running<'t>(&'t Timer);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state().is_running = false;
    }
}

impl Timer {
    /// Has `waker` woken at this moment, unless [`Timer::cancel`] is called before.
    ///
    /// # Errors
    /// The thread could not be started. No alarm is set.
    pub(super) fn set(self: &Arc<Self>, at: Instant, waker: Waker) -> io::Result<Alarm> {
        let mut state = self.state();
        if !state.is_running {
            let timer = Arc::clone(self);
            thread::Builder::new().name("guira-pool".to_owned()).spawn(move || timer.run())?;
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

    /// Has this waker woken in place of the one before, and gives that one back.
    pub(super) fn update(&self, alarm: &Alarm, waker: &mut Waker) {
        if let Some(known) = self.state().alarms.get_mut(alarm) {
            std::mem::swap(known, waker);
        }
    }

    /// Nobody waits for this alarm any more. Gives its waker back.
    #[must_use]
    pub(super) fn cancel(&self, alarm: &Alarm) -> Option<Waker> {
        self.state().alarms.remove(alarm)
    }

    fn run(&self) {
        let running = Running(self);
        let mut state = self.state();
        // Ends: when there was no alarm for a while; and each is set once.
        loop {
            let now = Instant::now();
            let rest = state.alarms.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut state.alarms, rest);
            if !due.is_empty() {
                drop(state);
                for waker in due.into_values() {
                    // The panic hook has told of it; the waker is its executor's.
                    drop(catch_unwind(AssertUnwindSafe(|| waker.wake())));
                }
                state = self.state();
                continue;
            }
            let first = state.alarms.first_key_value().map(|((at, _), _)| at.saturating_duration_since(now));
            let (woken, wait) =
                self.changed.wait_timeout(state, first.unwrap_or(LINGER)).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if first.is_none() && wait.timed_out() && state.alarms.is_empty() {
                // Under the lock: who sets the next alarm finds that none runs.
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

    struct Told(Sender<u32>, u32);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(self.1);
        }
    }

    #[test]
    fn alarms_go_off_in_order_unless_they_are_cancelled() {
        let (sender, told) = channel();
        let timer = Arc::new(Timer::default());
        let waker = |number| Waker::from(Arc::new(Told(sender.clone(), number)));
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        timer.set(at(60), waker(3)).unwrap();
        let cancelled = timer.set(at(20), waker(0)).unwrap();
        let updated = timer.set(at(40), waker(0)).unwrap();
        timer.set(at(10), waker(1)).unwrap();
        assert!(timer.cancel(&cancelled).is_some());
        timer.update(&updated, &mut waker(2));
        let order: Vec<u32> = told.iter().take(3).collect();
        assert_eq!(order, [1, 2, 3]);
        assert!(now.elapsed() >= Duration::from_millis(60) && told.try_recv().is_err());
        assert!(timer.state().alarms.is_empty());
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("it is meant to");
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_from_being_woken() {
        let (sender, told) = channel();
        let timer = Arc::new(Timer::default());
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        // Two of one moment, and a later one; the first is set last, so that all are there when it goes off.
        timer.set(at(400), Waker::from(Arc::new(Told(sender.clone(), 2)))).unwrap();
        timer.set(at(200), Waker::from(Arc::new(Panics))).unwrap();
        timer.set(at(200), Waker::from(Arc::new(Told(sender, 1)))).unwrap();
        let order = [(); 2].map(|()| told.recv_timeout(Duration::from_secs(60)));
        assert_eq!(order, [Ok(1), Ok(2)]);
    }
}
