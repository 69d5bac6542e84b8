//! A histogram with its exact sum and maximum, which can be serialized, deserialized and merged.
//!
//! Invariants: quantiles are within 0.1 % of an observed value and exact below 2,048; sum, count and maximum are exact
//! (the sum saturates). Merging is commutative, so the result does not depend on how observations were distributed over
//! workers.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Largest distinct value: an hour in nanoseconds. Larger values count as this one; the maximum stays exact.
const VALUE_MAX: u64 = 3_600_000_000_000;
/// Decimal digits of precision, so quantiles are within 0.1 %.
const DIGITS: u8 = 3;

/// The distribution of observed values.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Encoded", try_from = "Encoded")]
pub struct Distribution {
    histogram: Histogram<u64>,
    sum: u64,
    max: u64,
}

/// The serialized form: each value that occurred (the largest of its class), and its count.
#[derive(Serialize, Deserialize)]
struct Encoded {
    counts: Vec<(u64, u64)>,
    sum: u64,
    max: u64,
}

impl Default for Distribution {
    fn default() -> Distribution {
        let histogram = Histogram::new_with_bounds(1, VALUE_MAX, DIGITS);
        // Bounds and digits are constants within the histogram's own limits; every test in this module makes one.
        Distribution { histogram: histogram.expect("the bounds are valid"), sum: 0, max: 0 }
    }
}

impl Distribution {
    /// Adds one observation.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.histogram.saturating_record(value);
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// Adds the observations of `other`.
    pub fn merge(&mut self, other: &Distribution) {
        for step in other.histogram.iter_recorded() {
            self.histogram.saturating_record_n(step.value_iterated_to(), step.count_at_value());
        }
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Number of observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The mean; 0 without observations.
    #[must_use]
    pub fn mean(&self) -> f64 {
        mean(self.sum, self.count())
    }

    /// The smallest value that this share of the observations does not exceed; 0 without observations.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        if self.count() == 0 { 0 } else { self.histogram.value_at_quantile(share).min(self.max) }
    }

    /// The largest observation; 0 without observations.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }
}

/// `sum / count`, and 0 if `count` is 0.
pub(super) fn mean(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

impl From<Distribution> for Encoded {
    fn from(from: Distribution) -> Encoded {
        let steps = from.histogram.iter_recorded();
        let counts = steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        Encoded { counts, sum: from.sum, max: from.max }
    }
}

impl TryFrom<Encoded> for Distribution {
    type Error = String;

    fn try_from(encoded: Encoded) -> Result<Distribution, String> {
        let mut read = Distribution { sum: encoded.sum, max: encoded.max, ..Distribution::default() };
        for (value, count) in encoded.counts {
            let recorded = read.histogram.record_n(value, count);
            recorded.map_err(|error| format!("a distribution cannot hold {value}: {error}"))?;
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Distribution {
        let mut distribution = Distribution::default();
        values.into_iter().for_each(|value| distribution.record(value));
        distribution
    }

    fn figures(of: &Distribution) -> (u64, f64, u64, u64, u64) {
        (of.count(), of.mean(), of.quantile(0.5), of.quantile(0.99), of.max())
    }

    #[test]
    fn small_values_are_exact() {
        assert_eq!(figures(&of(0..=100)), (101, 50.0, 50, 99, 100));
        assert_eq!(figures(&of([2])), (1, 2.0, 2, 2, 2));
        assert_eq!(figures(&of([])), (0, 0.0, 0, 0, 0));
    }

    #[test]
    fn large_values_are_within_a_thousandth_and_the_maximum_is_exact() {
        let large = of((1..=1000).map(|n| n * 1_000_003));
        let middle = large.quantile(0.5) as f64 / 500_001_500.0;
        assert!((0.999..1.001).contains(&middle), "{middle}");
        assert_eq!(large.max(), 1_000_003_000);
        assert_eq!(of([u64::MAX]).max(), u64::MAX);
        assert_eq!(of([u64::MAX]).quantile(0.5), of([VALUE_MAX]).quantile(0.5).max(of([u64::MAX]).quantile(0.5)));
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let values = || (0..5000_u64).map(|n| n * n * n);
        let whole = of(values());
        let mut merged = of(values().filter(|value| value % 3 == 0));
        merged.merge(&of(values().filter(|value| value % 3 != 0)));
        assert_eq!(figures(&merged), figures(&whole));
    }

    #[test]
    fn serialization_keeps_every_figure() {
        let whole = of((0..5000_u64).map(|n| n * n * n));
        let text = serde_json::to_string(&whole).unwrap();
        let back: Distribution = serde_json::from_str(&text).unwrap();
        assert_eq!(figures(&back), figures(&whole));
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        assert!(
            serde_json::from_str::<Distribution>(r#"{"counts":[[18446744073709551615,1]],"sum":0,"max":0}"#).is_err()
        );
    }
}
