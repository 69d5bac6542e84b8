//! Backoff between attempts to reconnect.
//!
//! Invariant: waits grow as those of [`Backoff`], and none ends after the deadline.

use std::time::Duration;

use guira_fabric::Backoff;

/// The first wait: a restarted node listens within a few of these.
const MIN_WAIT: Duration = Duration::from_millis(10);
/// The longest wait: how long a node that is back may go unnoticed, and how often each client tries one that is down.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The waits of one reconnection: jittered, so that clients that lost the same node do not come back all at once.
#[derive(Debug)]
pub(crate) struct ReconnectBackoff {
    backoff: Backoff,
    failures: u32,
}

impl ReconnectBackoff {
    pub(crate) fn new(seed: u64) -> ReconnectBackoff {
        let backoff = Backoff::new(seed, MIN_WAIT.as_nanos() as u64, MAX_WAIT.as_nanos() as u64);
        ReconnectBackoff { backoff, failures: 0 }
    }

    /// Returns how long to wait before the next attempt, with `left` until the deadline; `None` if no time is left.
    pub(crate) fn next(&mut self, left: Duration) -> Option<Duration> {
        if left.is_zero() {
            return None;
        }
        self.failures = self.failures.saturating_add(1);
        let wait = Duration::from_nanos(self.backoff.wait_ns(self.failures));
        Some(wait.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn waits_double_with_jitter_up_to_the_longest() {
        for seed in 0..64 {
            let mut backoff = ReconnectBackoff::new(seed);
            let steps_ms = [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000];
            for step in steps_ms.map(Duration::from_millis) {
                let wait = backoff.next(LONG).unwrap();
                assert!(wait >= step / 2 && wait <= step, "seed {seed}: {wait:?} of {step:?}");
            }
        }
    }

    #[test]
    fn clients_do_not_come_back_together() {
        let first: std::collections::BTreeSet<Duration> =
            (0..512).map(|seed| ReconnectBackoff::new(seed).next(LONG).unwrap()).collect();
        assert!(first.len() > 500, "{} of 512 first waits differ", first.len());
        let span = *first.last().unwrap() - *first.first().unwrap();
        assert!(span > MIN_WAIT / 2 * 9 / 10, "they lie within {span:?}");
    }

    #[test]
    fn no_wait_ends_after_the_deadline() {
        let mut backoff = ReconnectBackoff::new(1);
        assert_eq!(backoff.next(Duration::ZERO), None);
        assert_eq!(backoff.next(Duration::from_millis(3)), Some(Duration::from_millis(3)));
        assert!(backoff.next(LONG).unwrap() >= MIN_WAIT, "the second wait is the longer one");
    }
}
