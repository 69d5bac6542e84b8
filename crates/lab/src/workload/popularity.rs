//! Popularity of records: uniform, Zipf, Zipf scattered over the records, or the latest first.
//!
//! A sample costs constant time. Below an exponent of 1 the method is YCSB's, whose sum (zeta) is computed once and
//! extended when records are added; from 1 on it is exact and needs no sum.
//! Invariants: a sample is below the number of items, and the items are never 0 nor more than f64 can count.

use super::zipf::{THETA_MAX, Zipf};
use super::{Rng, WorkloadError};

/// Maximum number of records with which a workload may start: 2³². It bounds the time of [`Zipfian::new`] (about a
/// minute), and leaves sampling with 53 random bits at least 2²¹ steps for each record.
pub const RECORDS_MAX: u64 = 1 << 32;

/// Maximum number of items after growth. With more, f64 could not distinguish neighbouring items.
const GROWN_ITEMS_MAX: u64 = 1 << 53;

const _: () = assert!(RECORDS_MAX < GROWN_ITEMS_MAX && GROWN_ITEMS_MAX <= 1 << f64::MANTISSA_DIGITS);

/// Uniform popularity: every item is equally popular.
#[derive(Clone, Debug)]
pub struct Uniform {
    items: u64,
}

impl Uniform {
    /// Draws from `0..items`.
    ///
    /// # Errors
    /// [`WorkloadError::NoRecords`] or [`WorkloadError::TooManyRecords`].
    pub fn new(items: u64) -> Result<Self, WorkloadError> {
        Ok(Self { items: valid_items(items)? })
    }

    /// Draws one item.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        rng.below(self.items)
    }
}

/// Item `i` drawn with probability proportional to 1 / (i + 1)^theta, by the method of Gray et al., "Quickly Generating
/// Billion-Record Synthetic Databases", SIGMOD'94, as YCSB uses it.
///
/// Items 0 and 1 have their exact probabilities. The rest follow a continuous curve fitted to the true one: for 1000 to
/// 10⁶ items at theta 0.99, item 2 is drawn up to 20 % too often, items from 10 on within 4 %. The method is used
/// unchanged, because results of other systems were measured with it. One sample costs one `pow`. The method ends
/// below theta 1: from there on the distribution is drawn exactly, by rejection-inversion (Hörmann and Derflinger,
/// TOMACS 6(3), 1996).
///
/// ```
/// use guira_lab::workload::{Rng, Zipfian};
///
/// let zipfian = Zipfian::new(1_000_000, 0.99)?;
/// assert!(zipfian.sample(&mut Rng::new(1)) < 1_000_000);
/// # Ok::<(), guira_lab::workload::WorkloadError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    /// Sum of 1 / i^theta for i in 1..=items.
    zeta: f64,
    /// The same sum for two items: below it, a scaled uniform number names item 0 or 1.
    zeta_two: f64,
    /// 1 / (1 − theta).
    alpha: f64,
    /// The parameter that makes the fitted curve start at item 2, where the exact part ends.
    eta: f64,
    /// The method from theta 1 on, which needs none of the sums.
    steep: Option<Zipf>,
}

impl Zipfian {
    /// Draws from `0..items`. `theta` in 0 to 2 is the skew: 0 is uniform, 0.99 is what YCSB and RCuckoo use.
    ///
    /// Takes time linear in `items`, some 10 to 50 ns each, if theta is below 1; constant time otherwise.
    ///
    /// # Errors
    /// [`WorkloadError::NoRecords`], [`WorkloadError::TooManyRecords`] or [`WorkloadError::ThetaOutOfRange`].
    pub fn new(items: u64, theta: f64) -> Result<Self, WorkloadError> {
        let items = valid_items(items)?;
        // Written so that NaN, which compares with nothing, is refused.
        if !(0.0..=THETA_MAX).contains(&theta) {
            return Err(WorkloadError::ThetaOutOfRange { theta });
        }
        let mut zipfian = Self {
            items: 0,
            theta,
            zeta: 0.0,
            zeta_two: 1.0 + 0.5_f64.powf(theta),
            alpha: 1.0 / (1.0 - theta),
            eta: 0.0,
            steep: None,
        };
        zipfian.grow(items);
        Ok(zipfian)
    }

    /// Number of items.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// Adds `more` items after the last, at a cost linear in `more` if theta is below 1. The result is bit for bit that
    /// of [`Zipfian::new`] with all items.
    ///
    /// # Panics
    /// If there are more than 2⁵³ items, which takes years of inserts.
    pub fn grow(&mut self, more: u64) {
        let grown = self.items.saturating_add(more);
        assert!(grown <= GROWN_ITEMS_MAX, "{grown} items are more than f64 can count");
        if self.theta >= 1.0 {
            self.items = grown;
            self.steep = (grown > 0).then(|| Zipf::new(grown, self.theta));
            return;
        }
        if self.theta > 0.0 {
            for item in self.items + 1..=grown {
                self.zeta += (item as f64).powf(-self.theta);
            }
        }
        self.items = grown;
        // One or two items have no curve: `zeta_two` covers them, and eta's denominator is 0 or negative.
        if grown > 2 {
            let two_of_all = 2.0 / grown as f64;
            self.eta = (1.0 - two_of_all.powf(1.0 - self.theta)) / (1.0 - self.zeta_two / self.zeta);
        }
    }

    /// Draws one item; 0 is the most popular.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        if self.theta == 0.0 {
            return rng.below(self.items);
        }
        if let Some(steep) = &self.steep {
            return steep.sample(rng);
        }
        let unit = rng.unit_f64();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        // Rounding can carry either limit beyond the last item: hence the two `min`.
        if scaled < self.zeta_two {
            return 1.min(self.items - 1);
        }
        let curve = (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        ((self.items as f64 * curve) as u64).min(self.items - 1)
    }
}

/// [`Zipfian`] with the popular items scattered over all, by FNV-1a's 64-bit hash as in YCSB.
///
/// As in YCSB, the hash is taken modulo the number of items, which makes it no permutation: some items gather several
/// ranks, and about a third (1/e for many items) are never drawn. YCSB always ranks 10¹⁰ items; here there are as many
/// ranks as items. With theta 0 nothing is scattered, and the distribution is uniform.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    ranks: Zipfian,
}

impl ScrambledZipfian {
    /// Draws from `0..items`; see [`Zipfian::new`].
    ///
    /// # Errors
    /// Same as [`Zipfian::new`].
    pub fn new(items: u64, theta: f64) -> Result<Self, WorkloadError> {
        Ok(Self { ranks: Zipfian::new(items, theta)? })
    }

    /// Draws one item.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        let rank = self.ranks.sample(rng);
        if self.ranks.theta == 0.0 { rank } else { scatter(rank, self.ranks.items) }
    }
}

/// The item of a rank in [`ScrambledZipfian`].
#[inline]
fn scatter(rank: u64, items: u64) -> u64 {
    // YCSB computes in signed integers and takes the absolute value.
    fnv64(rank).cast_signed().unsigned_abs() % items
}

/// 64-bit FNV-1a over the eight little-endian bytes of `word` (Fowler, Noll, Vo).
#[inline]
fn fnv64(word: u64) -> u64 {
    word.to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// YCSB's "latest" distribution: the latest item is the most popular, the one before it is next, and so on by Zipf.
#[derive(Clone, Debug)]
pub struct Latest {
    ages: Zipfian,
}

impl Latest {
    /// Draws from `0..items`, of which `items - 1` is the latest; see [`Zipfian::new`].
    ///
    /// # Errors
    /// Same as [`Zipfian::new`].
    pub fn new(items: u64, theta: f64) -> Result<Self, WorkloadError> {
        Ok(Self { ages: Zipfian::new(items, theta)? })
    }

    /// Adds one item, which becomes the latest.
    ///
    /// # Panics
    /// Same as [`Zipfian::grow`].
    pub fn push(&mut self) {
        self.ages.grow(1);
    }

    /// Number of items.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.ages.items
    }

    /// Draws one item.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        self.ages.items - 1 - self.ages.sample(rng)
    }
}

/// Checks a number of items against its bounds.
fn valid_items(items: u64) -> Result<u64, WorkloadError> {
    match items {
        0 => Err(WorkloadError::NoRecords),
        1..=RECORDS_MAX => Ok(items),
        _ => Err(WorkloadError::TooManyRecords { records: items }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exact Zipf probabilities.
    fn zipf_probabilities(items: u64, theta: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=items).map(|i| (i as f64).powf(-theta)).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// Exact probabilities of Gray's method: items 0 and 1 as Zipf, the rest by inverting its curve.
    fn gray_probabilities(zipfian: &Zipfian) -> Vec<f64> {
        let items = zipfian.items as f64;
        let below = |k: u64| match k {
            0 => 0.0,
            1 => 1.0 / zipfian.zeta,
            _ => 1.0 - (1.0 - (k as f64 / items).powf(1.0 - zipfian.theta)) / zipfian.eta,
        };
        (0..zipfian.items).map(|k| below(k + 1) - below(k)).collect()
    }

    fn counts(items: u64, samples: u64, mut sample: impl FnMut() -> u64) -> Vec<u64> {
        let mut counts = vec![0; usize::try_from(items).unwrap()];
        (0..samples).for_each(|_| counts[usize::try_from(sample()).unwrap()] += 1);
        counts
    }

    /// Chi-square statistic in standard deviations above its mean.
    fn chi_square_sigmas(counts: &[u64], probabilities: &[f64]) -> f64 {
        let samples = counts.iter().sum::<u64>() as f64;
        let terms = counts.iter().zip(probabilities);
        let chi_square: f64 = terms.map(|(&n, p)| (n as f64 - p * samples).powi(2) / (p * samples)).sum();
        let freedom = (counts.len() - 1) as f64;
        (chi_square - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn samples_fit_gray_exactly() {
        for (items, theta) in [(1000, 0.99), (100_000, 0.99), (1_000_000, 0.99), (100_000, 0.5)] {
            let zipfian = Zipfian::new(items, theta).unwrap();
            let expected =
                if theta > 0.0 && items > 2 { gray_probabilities(&zipfian) } else { zipf_probabilities(items, theta) };
            let mut rng = Rng::new(items);
            let counts = counts(items, 1_000_000, || zipfian.sample(&mut rng));
            let sigmas = chi_square_sigmas(&counts, &expected);
            assert!(sigmas < 5.0, "{items} items, theta {theta}: {sigmas} standard deviations off");
        }
    }

    /// The chi-square test detects a theta that is off by 0.01.
    #[test]
    fn chi_square_detects_another_theta() {
        let (zipfian, other) = (Zipfian::new(1000, 0.99).unwrap(), Zipfian::new(1000, 0.98).unwrap());
        let mut rng = Rng::new(1000);
        let counts = counts(1000, 1_000_000, || other.sample(&mut rng));
        assert!(chi_square_sigmas(&counts, &gray_probabilities(&zipfian)) > 10.0);
    }

    /// Gray's method differs from Zipf as much as documented.
    #[test]
    fn gray_is_close_to_zipf() {
        for (items, theta) in [(1000, 0.99), (100_000, 0.99), (1_000_000, 0.99), (100_000, 0.5)] {
            let zipfian = Zipfian::new(items, theta).unwrap();
            let (gray, zipf) = (gray_probabilities(&zipfian), zipf_probabilities(items, theta));
            let ratios: Vec<f64> = gray.iter().zip(&zipf).map(|(gray, zipf)| gray / zipf).collect();
            assert!(ratios[..2].iter().all(|ratio| (ratio - 1.0).abs() < 1e-9), "{items} {theta}: {:?}", &ratios[..2]);
            assert!(ratios[2..10].iter().all(|r| (1.0..1.2).contains(r)), "{items} {theta}: {:?}", &ratios[2..10]);
            let worst = ratios[10..].iter().map(|ratio| (ratio - 1.0).abs()).fold(0.0, f64::max);
            assert!(worst < 0.04, "{items} {theta}: {worst} {:?}", &ratios[2..20]);
        }
    }

    #[test]
    fn growing_equals_starting_larger() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.5] {
            let mut grown = Zipfian::new(1, theta).unwrap();
            for items in 2..200 {
                grown.grow(1);
                assert_eq!(grown, Zipfian::new(items, theta).unwrap());
            }
            grown.grow(0);
            grown.grow(801);
            assert_eq!(grown, Zipfian::new(1000, theta).unwrap());
        }
    }

    /// FNV's constants in the decimal form its authors give, and the hash of eight zero bytes.
    #[test]
    fn fnv_known_answers() {
        let by_definition = |bytes: [u8; 8]| {
            bytes.iter().fold(14_695_981_039_346_656_037_u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
            })
        };
        assert_eq!(fnv64(0), 0xa8c7_f832_281a_39c5);
        assert_eq!(fnv64(u64::from_le_bytes(*b"zipfian!")), by_definition(*b"zipfian!"));
    }

    #[test]
    fn scrambled_sums_the_ranks() {
        const ITEMS: u64 = 1000;
        let scrambled = ScrambledZipfian::new(ITEMS, 0.99).unwrap();
        let mut expected = vec![0.0; ITEMS as usize];
        for (rank, probability) in (0..).zip(gray_probabilities(&scrambled.ranks)) {
            expected[scatter(rank, ITEMS) as usize] += probability;
        }
        let mut rng = Rng::new(3);
        let counts = counts(ITEMS, 1_000_000, || scrambled.sample(&mut rng));
        assert!(counts.iter().zip(&expected).all(|(&count, &p)| (count == 0) == (p == 0.0)));
        let never = expected.iter().filter(|&&p| p == 0.0).count();
        assert!((300..430).contains(&never), "{never} items are never drawn");
        let (counts, expected): (Vec<u64>, Vec<f64>) = counts.iter().zip(&expected).filter(|(_, p)| **p > 0.0).unzip();
        assert!(chi_square_sigmas(&counts, &expected) < 5.0);
    }

    #[test]
    fn theta_zero_is_uniform() {
        let expected = zipf_probabilities(100, 0.0);
        let (uniform, scrambled) = (Uniform::new(100).unwrap(), ScrambledZipfian::new(100, 0.0).unwrap());
        let mut rng = Rng::new(4);
        assert!(chi_square_sigmas(&counts(100, 100_000, || uniform.sample(&mut rng)), &expected) < 5.0);
        assert!(chi_square_sigmas(&counts(100, 100_000, || scrambled.sample(&mut rng)), &expected) < 5.0);
    }

    #[test]
    fn latest_counts_from_the_end() {
        let mut latest = Latest::new(100, 0.99).unwrap();
        latest.push();
        assert_eq!(latest.items(), 101);
        let mut rng = Rng::new(5);
        let mut counts = counts(101, 1_000_000, || latest.sample(&mut rng));
        counts.reverse();
        assert!(chi_square_sigmas(&counts, &gray_probabilities(&latest.ages)) < 5.0);
    }

    #[test]
    fn few_items_and_steep_curves_stay_in_range() {
        let mut rng = Rng::new(6);
        for theta in [0.0, f64::MIN_POSITIVE, 0.5, 0.99, 0.999_999, 1.0 - f64::EPSILON / 2.0, 1.0, 1.5, 2.0] {
            for items in 1..20 {
                let zipfian = Zipfian::new(items, theta).unwrap();
                (0..2000).for_each(|_| assert!(zipfian.sample(&mut rng) < items, "{items} items, theta {theta}"));
            }
        }
    }

    /// From theta 1 on the distribution is Zipf's, also after growth, for the latest items and scattered ones.
    #[test]
    fn steep_samples_fit_zipf_exactly() {
        for theta in [1.0, 1.3, 2.0] {
            let mut latest = Latest::new(99, theta).unwrap();
            latest.push();
            let mut rng = Rng::new(8);
            let mut counts = counts(100, 1_000_000, || latest.sample(&mut rng));
            counts.reverse();
            assert!(chi_square_sigmas(&counts, &zipf_probabilities(100, theta)) < 5.0, "theta {theta}");
        }
        let scrambled = ScrambledZipfian::new(1000, 1.5).unwrap();
        let mut rng = Rng::new(9);
        let counts = counts(1000, 100_000, || scrambled.sample(&mut rng));
        let first = counts[scatter(0, 1000) as usize];
        assert!(first.abs_diff(39_000) < 2_000, "{first} of 100000 draws of the first rank");
    }

    #[test]
    fn bad_parameters_are_refused() {
        for theta in [2.000_001, -0.1, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Zipfian::new(10, theta), Err(WorkloadError::ThetaOutOfRange { theta }));
        }
        assert!(matches!(Zipfian::new(10, f64::NAN), Err(WorkloadError::ThetaOutOfRange { .. })));
        assert!(matches!(Latest::new(10, 2.1), Err(WorkloadError::ThetaOutOfRange { .. })));
        assert_eq!(Zipfian::new(0, 0.5), Err(WorkloadError::NoRecords));
        assert_eq!(Uniform::new(0).err(), Some(WorkloadError::NoRecords));
        assert_eq!(ScrambledZipfian::new(0, 0.5).err(), Some(WorkloadError::NoRecords));
        let records = RECORDS_MAX + 1;
        assert_eq!(Uniform::new(records).err(), Some(WorkloadError::TooManyRecords { records }));
        assert!(Uniform::new(RECORDS_MAX).is_ok());
    }

    #[test]
    #[should_panic(expected = "more than f64 can count")]
    fn growth_is_bounded() {
        Zipfian::new(1, 0.0).unwrap().grow(u64::MAX);
    }
}
