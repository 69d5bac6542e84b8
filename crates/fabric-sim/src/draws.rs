//! Seeded numbers: equal seeds, equal runs.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// The next 64 bits.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_draw_equal_numbers_within_their_bound() {
        let (mut one, mut other) = (Draws::new(7), Draws::new(7));
        let drawn: Vec<u64> = (0..1000).map(|_| one.below(10)).collect();
        assert!(drawn.iter().all(|number| *number == other.below(10)));
        assert!((0..10).all(|number| drawn.contains(&number)));
        assert!(drawn.iter().all(|number| *number < 10));
        assert_eq!(one.below(0), 0);
    }
}
