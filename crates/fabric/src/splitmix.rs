//! Seeded random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA'14). Not for secrets.
//!
//! Invariant: the numbers are a function of the seed only, on every platform; recorded seeds depend on it.

/// The increment of the state: the odd integer nearest to 2⁶⁴ divided by the golden ratio.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator of uniform 64-bit words; `SplitMix64(seed)` starts it from a seed. 8 bytes of state, period 2⁶⁴.
///
/// ```
/// use guira_fabric::SplitMix64;
///
/// let (mut one, mut two) = (SplitMix64(7), SplitMix64(7));
/// assert_eq!(one.next_u64(), two.next_u64());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Returns the next 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        SplitMix64::mix(self.0)
    }

    /// Returns the next word modulo `bound`: an integer in `0..bound`, with a bias of at most `bound` in 2⁶⁴.
    ///
    /// # Panics
    /// If `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns the next uniform number in [0, 1), a multiple of 2⁻⁵³.
    #[inline]
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns word number `index`, counted from 0, of the generator of this seed. A bijection in `index`, and in
    /// `seed`.
    #[inline]
    #[must_use]
    pub const fn nth(seed: u64, index: u64) -> u64 {
        SplitMix64::mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
    }

    /// Mixes a word: a bijection in which every input bit flips about half of the output bits; 0 stays 0.
    #[inline]
    #[must_use]
    pub const fn mix(word: u64) -> u64 {
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the outputs that other implementations publish.
    #[test]
    fn known_answers() {
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        let mut random = SplitMix64(1_234_567);
        assert_eq!(std::array::from_fn(|_| random.next_u64()), expected);
        assert_eq!(std::array::from_fn(|i| SplitMix64::nth(1_234_567, i as u64)), expected);
    }

    #[test]
    fn numbers_lie_within_their_bounds_and_fill_them() {
        let mut random = SplitMix64(7);
        let drawn: Vec<u64> = (0..1_000).map(|_| random.below(10)).collect();
        assert!(drawn.iter().all(|number| *number < 10));
        assert!((0..10).all(|number| drawn.contains(&number)));
        let mean =
            (0..100_000).map(|_| random.unit_f64()).inspect(|u| assert!((0.0..1.0).contains(u))).sum::<f64>() / 1e5;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
    }
}
