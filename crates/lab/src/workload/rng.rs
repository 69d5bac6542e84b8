//! The random numbers of workloads: xoshiro256++, seeded through SplitMix64 (Blackman and Vigna, TOMS 2021).
//!
//! Invariant: the sequence is a function of the seed and the stream number only, on every platform. Not for secrets.

use guira_fabric::SplitMix64;

/// A seeded generator of uniform 64-bit words. 32 bytes of state, period 2²⁵⁶ − 1.
///
/// ```
/// use guira_lab::workload::Rng;
///
/// let (mut one, mut two) = (Rng::new(7), Rng::new(7));
/// assert_eq!(one.next_u64(), two.next_u64());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Four consecutive outputs of a bijection are four different words, so the state is not all zero: the one
        // state that xoshiro never leaves.
        Self { state: std::array::from_fn(|i| SplitMix64::nth(seed, i as u64)) }
    }

    /// Generator number `stream` of this seed, for one of many workers; unrelated to the others and to [`Rng::new`].
    #[must_use]
    pub fn stream(seed: u64, stream: u64) -> Self {
        // Mixed before and after, so that neither seeds nor streams that follow each other share outputs.
        Self::new(SplitMix64::nth(SplitMix64::mix(seed), stream))
    }

    /// The next 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A uniform integer in `0..bound`, without bias (Lemire, "Fast Random Integer Generation in an Interval").
    ///
    /// # Panics
    /// If `bound` is 0: there is nothing to return.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below 0 was asked for");
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let low = product as u64;
            // Products whose lower half is below 2^64 mod `bound` are one too many for some results. The first test
            // only spares the division. A draw is rejected with probability below 1/2.
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }

    /// A uniform number in [0, 1), a multiple of 2⁻⁵³.
    #[inline]
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outputs that other implementations publish.
    #[test]
    fn known_answers() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let expected =
            [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386, 9_228_616_714_210_784_205];
        assert_eq!(std::array::from_fn(|_| rng.next_u64()), expected);
    }

    #[test]
    fn streams_are_repeatable_and_different() {
        let first = |mut rng: Rng| -> [u64; 4] { std::array::from_fn(|_| rng.next_u64()) };
        assert_eq!(first(Rng::stream(5, 1)), first(Rng::stream(5, 1)));
        let mut starts: Vec<_> = (0..100).flat_map(|seed| (0..100).map(move |i| first(Rng::stream(seed, i)))).collect();
        starts.extend((0..100).map(|seed| first(Rng::new(seed))));
        let total = starts.len();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), total);
    }

    #[test]
    fn below_is_uniform() {
        // 13 does not divide 2^64; the largest bounds reject nearly half of the draws.
        let mut rng = Rng::new(1);
        let mut counts = [0_u32; 13];
        (0..130_000).for_each(|_| counts[rng.below(13) as usize] += 1);
        // Five standard deviations of a binomial count around 10 000.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 480), "{counts:?}");

        let bound = (1 << 63) + 1;
        let low_half = (0..10_000).filter(|_| rng.below(bound) < bound / 2).count();
        assert!(low_half.abs_diff(5_000) < 250, "{low_half}");
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn unit_is_below_one() {
        let mut rng = Rng::new(2);
        let mean = (0..100_000).map(|_| rng.unit_f64()).inspect(|u| assert!((0.0..1.0).contains(u))).sum::<f64>() / 1e5;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        assert!(((u64::MAX >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)) < 1.0);
    }

    #[test]
    #[should_panic(expected = "below 0")]
    fn below_zero_panics() {
        Rng::new(0).below(0);
    }
}
