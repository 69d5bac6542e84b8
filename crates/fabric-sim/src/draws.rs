//! The simulator's seeded random numbers.

use guira_fabric::SplitMix64;

/// A generator of numbers below a bound, which may be 0. It scales by multiplication.
#[derive(Clone, Debug)]
pub(crate) struct Draws(SplitMix64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Draws {
        Draws(SplitMix64(seed))
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Puts `items` into a random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
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
