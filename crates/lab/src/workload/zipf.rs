//! Exact Zipf popularity for every exponent, in constant time and without a sum over the items: rejection-inversion
//! (Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", ACM
//! TOMACS 6(3), 1996).
//!
//! Ranks 1 to n have the weight w(x) = x^-theta. W is an integral of w. A uniform number between W(3/2) - w(1) and
//! W(n + 1/2) is mapped back through the inverse of W to a point, which is rounded to a rank. As w is convex, the part
//! of the interval that is rounded to a rank is at least as long as the rank's weight; a number in the excess is drawn
//! again. Less than one number in ten is.

use super::Rng;

/// Largest Zipf exponent.
pub const THETA_MAX: f64 = 2.0;
/// Below this, the quotients of [`ln_1p_over`] and [`exp_m1_over`] are their first terms, exact in 53 bits.
const TINY: f64 = 1e-8;

/// Items drawn with probability proportional to 1 / (i + 1)^theta, exact but for rounding. A sample costs two or three
/// exponentials and logarithms; there is no table and no sum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Zipf {
    theta: f64,
    items: u64,
    /// The interval of the uniform numbers.
    lowest: f64,
    highest: f64,
    /// Distance from a point up to its rank that is accepted without comparing areas.
    sure: f64,
}

impl Zipf {
    /// Draws from `0..items`, of which there is at least one. `theta` is in 0 to [`THETA_MAX`].
    pub(crate) fn new(items: u64, theta: f64) -> Zipf {
        let lowest = integral(1.5, theta) - 1.0;
        let highest = integral(items as f64 + 0.5, theta);
        let sure = 2.0 - integral_inverse(integral(2.5, theta) - weight(2.0, theta), theta);
        Zipf { theta, items, lowest, highest, sure }
    }

    /// Draws one item; 0 is the most popular.
    #[inline]
    pub(crate) fn sample(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.highest + rng.unit_f64() * (self.lowest - self.highest);
            let point = integral_inverse(area, self.theta);
            // Rounding can carry the point beyond either end.
            let rank = (point + 0.5).clamp(1.0, self.items as f64).trunc();
            let is_sure = rank - point <= self.sure;
            if is_sure || area >= integral(rank + 0.5, self.theta) - weight(rank, self.theta) {
                return rank as u64 - 1;
            }
        }
    }
}

/// The weight of a rank.
#[inline]
fn weight(rank: f64, theta: f64) -> f64 {
    (-theta * rank.ln()).exp()
}

/// The integral of the weight from 1 to `point`: (point^(1 - theta) - 1) / (1 - theta), or ln(point) if theta is 1.
#[inline]
fn integral(point: f64, theta: f64) -> f64 {
    let ln = point.ln();
    exp_m1_over((1.0 - theta) * ln) * ln
}

/// The point at which the integral is `area`.
#[inline]
fn integral_inverse(area: f64, theta: f64) -> f64 {
    // Below -1 only by rounding, where the point is beyond the last rank.
    let scaled = (area * (1.0 - theta)).max(-1.0);
    (ln_1p_over(scaled) * area).exp()
}

/// ln(1 + x) / x, continued to x = 0.
#[inline]
fn ln_1p_over(x: f64) -> f64 {
    if x.abs() > TINY { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

/// (e^x - 1) / x, continued to x = 0.
#[inline]
fn exp_m1_over(x: f64) -> f64 {
    if x.abs() > TINY { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probability with which `sample` draws each item, from the areas that it accepts.
    fn exact(items: u64, theta: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=items).map(|rank| (rank as f64).powf(-theta)).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect()
    }

    #[test]
    fn samples_fit_zipfs_law_exactly() {
        const SAMPLES: u64 = 300_000;
        let cases = [0.0, 0.5, 0.99, 1.0, 1.000_000_1, 1.2, 1.5, 2.0];
        for (items, theta) in [1, 2, 10, 1000].into_iter().flat_map(|items| cases.map(|theta| (items, theta))) {
            let (zipf, mut rng) = (Zipf::new(items, theta), Rng::new(items + (theta * 100.0) as u64));
            let mut counts = vec![0_u64; items as usize];
            (0..SAMPLES).for_each(|_| counts[zipf.sample(&mut rng) as usize] += 1);
            let expected = exact(items, theta).into_iter().map(|p| p * SAMPLES as f64);
            let chi_square: f64 = counts.iter().zip(expected).map(|(&n, e)| (n as f64 - e).powi(2) / e).sum();
            let freedom = (items - 1) as f64;
            let limit = freedom + 5.0 * (2.0 * freedom).sqrt();
            assert!(chi_square <= limit, "{items} items, theta {theta}: {chi_square}, at most {limit}");
        }
    }

    /// Of 2³² items no sum is made, the first has its share, and the last can be drawn.
    #[test]
    fn many_items_take_no_time_and_have_their_shares() {
        const ITEMS: u64 = 1 << 32;
        const SAMPLES: u32 = 200_000;
        // Zeta of 2^32 items: Euler-Maclaurin's sum for theta 1; the rest of the infinite sums is below 10^-4.
        for (theta, zeta) in [(1.0, 22.757_9), (1.5, 2.612_34), (2.0, 1.644_93)] {
            let (zipf, mut rng) = (Zipf::new(ITEMS, theta), Rng::new(7));
            let drawn: Vec<u64> = (0..SAMPLES).map(|_| zipf.sample(&mut rng)).collect();
            assert!(drawn.iter().all(|item| *item < ITEMS));
            let first = drawn.iter().filter(|item| **item == 0).count() as f64 / f64::from(SAMPLES);
            let deviation = (first * (1.0 - first) / f64::from(SAMPLES)).sqrt();
            assert!((first - 1.0 / zeta).abs() < 5.0 * deviation, "theta {theta}: {first}, expected {}", 1.0 / zeta);
        }
    }

    /// At most two numbers are drawn for a sample on average: fewer than one in ten is rejected.
    #[test]
    fn few_numbers_are_rejected() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.5, 2.0] {
            let (zipf, mut rng) = (Zipf::new(1_000_000, theta), Rng::new(3));
            assert!((0..10_000).all(|_| zipf.sample(&mut rng) < 1_000_000));
            let mut same = Rng::new(3);
            let drawn = (1..).find(|_| {
                same.next_u64();
                same == rng
            });
            let drawn: u32 = drawn.expect("the generators meet");
            assert!((10_000..11_000).contains(&drawn), "theta {theta}: {drawn} numbers for 10000 samples");
        }
    }
}
