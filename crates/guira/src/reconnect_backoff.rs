//! How long to wait between attempts to get a session.
//!
//! Invariant: waits grow as those of [`Backoff`], and none ends later than the deadline.

use std::time::Duration;

use guira_fabric::Backoff;

/// The first wait: a node that was started anew listens within some of these.
const FIRST: Duration = Duration::from_millis(10);
/// The longest: what a node that is back may go unnoticed for, and how often each client knocks at one that is not.
const LONGEST: Duration = Duration::from_secs(1);

/// The waits of one search for a session: jittered, so that clients which lost the same node do not come back all at
/// once.
#[derive(Debug)]
pub(crate) struct ReconnectBackoff {
    backoff: Backoff,
    failures: u32,
}

impl ReconnectBackoff {
    pub(crate) fn new(seed: u64) -> ReconnectBackoff {
        let backoff = Backoff::new(seed, FIRST.as_nanos() as u64, LONGEST.as_nanos() as u64);
        ReconnectBackoff { backoff, failures: 0 }
    }

    /// How long to wait before the next attempt, if `left` is the time until the deadline; `None` if there is none.
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
        assert!(span > FIRST / 2 * 9 / 10, "they lie within {span:?}");
    }

    #[test]
    fn no_wait_ends_after_the_deadline() {
        let mut backoff = ReconnectBackoff::new(1);
        assert_eq!(backoff.next(Duration::ZERO), None);
        assert_eq!(backoff.next(Duration::from_millis(3)), Some(Duration::from_millis(3)));
        assert!(backoff.next(LONG).unwrap() >= FIRST, "the second wait is the longer one");
    }
}
