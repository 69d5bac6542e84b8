//! Waits before a retry: exponential, jittered, bounded. [R-LOCK-4]

use crate::SplitMix64;

/// The number of attempts over which the wait doubles.
const MAX_DOUBLINGS: u32 = 12;

/// Exponential backoff with jitter: waits double up to a maximum, and each is drawn from the upper half of its step, so
/// that clients that failed together do not retry together.
///
/// ```
/// use guira_fabric::Backoff;
///
/// let mut backoff = Backoff::new(7, 500, 200_000);
/// assert!((250..500).contains(&backoff.wait_ns(1)));
/// assert!((500..1_000).contains(&backoff.wait_ns(2)));
/// assert!((100_000..200_000).contains(&backoff.wait_ns(100)));
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    random: SplitMix64,
    base_ns: u64,
    longest_ns: u64,
}

impl Backoff {
    /// Creates a backoff whose waits grow from `base_ns` to `longest_ns`. Equal seeds give equal waits.
    #[must_use]
    pub fn new(seed: u64, base_ns: u64, longest_ns: u64) -> Backoff {
        Backoff { random: SplitMix64(seed), base_ns, longest_ns }
    }

    /// Returns the nanoseconds to wait after failure number `attempt`, counted from 1: half to all of
    /// base x 2^(attempt - 1), at most `longest_ns`. Draws one random number.
    pub fn wait_ns(&mut self, attempt: u32) -> u64 {
        let doubled = self.base_ns.saturating_mul(1 << attempt.saturating_sub(1).min(MAX_DOUBLINGS));
        let longest = doubled.min(self.longest_ns).max(2);
        longest / 2 + self.random.below(longest / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [R-LOCK-4] Waits grow, are jittered, and are bounded.
    #[test]
    fn waits_grow_to_their_bound() {
        let mut backoff = Backoff::new(1, 100, 5_000);
        for attempt in 1..100 {
            let longest = (100u64 << (attempt - 1).min(12)).min(5_000);
            let waits: Vec<u64> = (0..50).map(|_| backoff.wait_ns(attempt as u32)).collect();
            assert!(waits.iter().all(|wait| (longest / 2..longest).contains(wait)), "{attempt}: {waits:?}");
            assert!(waits.iter().any(|wait| wait != &waits[0]));
        }
    }
}
