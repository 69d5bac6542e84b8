//! The common start of threads.

use std::sync::{Condvar, Mutex, PoisonError};

/// A barrier at which threads wait for each other, once, and which opens early if one of them cannot be started.
#[derive(Debug)]
pub struct StartLine {
    /// Threads that are still awaited; `None` if the start was cancelled.
    awaited: Mutex<Option<usize>>,
    changed: Condvar,
}

impl StartLine {
    /// Creates a line for this number of threads.
    #[must_use]
    pub fn new(threads: usize) -> StartLine {
        StartLine { awaited: Mutex::new(Some(threads)), changed: Condvar::new() }
    }

    /// Waits until all threads have called this, and returns true; false if the start is cancelled.
    #[must_use]
    pub fn wait(&self) -> bool {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = &mut *awaited {
            *left = left.saturating_sub(1);
            self.changed.notify_all();
        }
        let is_waiting = |awaited: &mut Option<usize>| awaited.is_some_and(|left| left > 0);
        let awaited = self.changed.wait_while(awaited, is_waiting).unwrap_or_else(PoisonError::into_inner);
        awaited.is_some()
    }

    /// Cancels the start.
    pub fn cancel(&self) {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_start_together_or_not_at_all() {
        for (threads, is_started) in [(3, true), (2, false)] {
            let line = StartLine::new(3);
            std::thread::scope(|scope| {
                let started: Vec<_> = (0..threads).map(|_| scope.spawn(|| line.wait())).collect();
                if !is_started {
                    line.cancel();
                }
                assert!(started.into_iter().all(|thread| thread.join().unwrap() == is_started));
            });
        }
    }
}
