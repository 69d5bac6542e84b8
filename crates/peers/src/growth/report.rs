//! The results of a run: curves, and the ratios of a table that grows to one of fixed size.

use std::time::Duration;

use serde::Serialize;

use super::afterwards::AfterGrowth;
use super::writers::Inserted;
use super::{GrowthOptions, Series};
use crate::machine::Machine;
use crate::run::Peer;

/// The version of the report's form.
pub const GROWTH_SCHEMA: u32 = 3;
/// Buckets of [`Times`] for each power of two.
const BUCKETS: u32 = 16;

/// Inserts that were acknowledged in a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Keys in the table when it began.
    pub keys: u64,
    /// Inserts for each second of it.
    pub per_second: f64,
}

impl Window {
    /// Returns the window in which the number of keys grew from one to another.
    pub(super) fn between(keys: u64, until: u64, took: Duration) -> Window {
        Window { keys, per_second: (until - keys) as f64 / took.as_secs_f64().max(1e-9) }
    }
}

/// A distribution of times in nanoseconds, exact to a part in 16.
#[derive(Clone, Debug)]
pub struct Times(Vec<u64>);

impl Default for Times {
    fn default() -> Times {
        Times(vec![0; (BUCKETS * (u32::BITS + 1)) as usize])
    }
}

impl Times {
    /// Adds a time.
    pub fn add(&mut self, time_ns: u32) {
        let time_ns = time_ns.max(BUCKETS);
        let power = time_ns.ilog2();
        let within = (time_ns >> (power - BUCKETS.ilog2())) % BUCKETS;
        self.0[(power * BUCKETS + within) as usize] += 1;
    }

    /// Adds all times of another distribution.
    pub fn add_all(&mut self, other: &Times) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    /// Returns the time that this part of all does not exceed, in nanoseconds; 0 if there is none.
    #[must_use]
    pub fn quantile(&self, part: f64) -> f64 {
        let all: u64 = self.0.iter().sum();
        let mut left = ((all as f64 * part) as u64).min(all.saturating_sub(1));
        let found = (0..).zip(&self.0).find(|(_, count)| {
            let is_here = **count > left;
            left = left.saturating_sub(**count);
            is_here
        });
        found.map_or(0.0, |(bucket, _)| {
            let (power, within): (u32, u32) = (bucket / BUCKETS, bucket % BUCKETS);
            f64::from(BUCKETS + within + 1) * 2f64.powi(power as i32 - BUCKETS.ilog2() as i32)
        })
    }
}

/// How a system took the keys.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The system.
    pub series: Series,
    /// The windows in which all clients inserted, in order.
    pub windows: Vec<Window>,
    /// Keys in the end.
    pub keys: u64,
    /// Inserts for each second of the whole run.
    pub per_second: f64,
    /// Inserts for each second of the median window.
    pub median_per_second: f64,
    /// Inserts for each second of the slowest window.
    pub slowest_per_second: f64,
    /// The median time of an insert, in nanoseconds; of 16 inserts in flight at once for Redis.
    pub p50_ns: f64,
    /// The time that 99.9 % of inserts do not exceed.
    pub p999_ns: f64,
    /// The time that no insert exceeds.
    pub most_ns: f64,
    /// Nanoseconds of a get afterwards, by one client that does nothing else. Redis gets 16 at once: a 16th of their time.
    pub get_ns: f64,
    /// Bytes of memory for each key.
    pub bytes_per_key: f64,
    /// Clients that were killed.
    pub kills: u64,
    /// Problems that a check of the table found; `null` for systems that have none.
    pub problems: Option<u64>,
    /// What operations cost in the table that has grown; `null` for all others, and where clients were killed.
    pub after_growth: Option<AfterGrowth>,
}

/// What a system is like when it has all keys.
pub(super) struct Afterwards {
    pub get_ns: f64,
    pub bytes: u64,
    pub problems: Option<u64>,
}

impl Curve {
    pub(super) fn new(series: Series, keys: u64, inserted: Inserted, afterwards: &Afterwards) -> Curve {
        let Inserted { windows, total, times, kills } = inserted;
        let mut rates: Vec<f64> = windows.iter().map(|window| window.per_second).collect();
        rates.sort_by(f64::total_cmp);
        let per_second = keys as f64 / total.as_secs_f64().max(1e-9);
        // A run that is shorter than a window is one.
        let rate = |at: usize| rates.get(at).copied().unwrap_or(per_second);
        Curve {
            series,
            keys,
            per_second,
            median_per_second: rate(rates.len() / 2),
            slowest_per_second: rate(0),
            p50_ns: times.quantile(0.5),
            p999_ns: times.quantile(0.999),
            most_ns: times.quantile(1.0),
            get_ns: afterwards.get_ns,
            bytes_per_key: afterwards.bytes as f64 / keys as f64,
            windows,
            kills,
            problems: afterwards.problems,
            after_growth: None,
        }
    }
}

impl Curve {
    /// Returns the median rate of the windows that began with about so many keys, within a part in 20 of all.
    fn rate_near(&self, keys: u64) -> Option<f64> {
        let is_near = |window: &&Window| window.keys.abs_diff(keys) <= self.keys / 20;
        let mut rates: Vec<f64> = self.windows.iter().filter(is_near).map(|window| window.per_second).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }
}

/// A table that grows, beside one of fixed size under the same clients.
#[derive(Clone, Debug, Serialize)]
pub struct GrowthRatio {
    /// The table that grows.
    pub series: Series,
    /// Its inserts a second, as a part of those of the table of fixed size.
    pub per_second: f64,
    /// Its slowest window, as a part of the other's median window.
    pub slowest_window: f64,
    /// Whether that is at least half.
    pub slowest_window_is_met: bool,
    /// Its median window, as a part of the other's rate at the same number of keys: one that will be full is still
    /// nearly empty then.
    pub at_same_keys: f64,
    /// The least of its windows in the same comparison.
    pub least_at_same_keys: f64,
    /// Its p99.9 of inserts, as a multiple of the other's.
    pub p999: f64,
    /// Whether that is at most ten.
    pub p999_is_met: bool,
    /// Its memory, as a multiple of the other's.
    pub bytes: f64,
}

impl GrowthRatio {
    fn of(grows: &Curve, fixed: &Curve) -> GrowthRatio {
        let slowest_window = grows.slowest_per_second / fixed.median_per_second;
        let p999 = grows.p999_ns / fixed.p999_ns;
        let windows = grows.windows.iter();
        let mut same: Vec<f64> = windows.filter_map(|at| Some(at.per_second / fixed.rate_near(at.keys)?)).collect();
        same.sort_by(f64::total_cmp);
        let middle = same.len() / 2;
        let same = |at: usize| same.get(at).copied().unwrap_or(grows.per_second / fixed.per_second);
        GrowthRatio {
            series: grows.series,
            per_second: grows.per_second / fixed.per_second,
            slowest_window,
            slowest_window_is_met: slowest_window >= 0.5,
            at_same_keys: same(middle),
            least_at_same_keys: same(0),
            p999,
            p999_is_met: p999 <= 10.0,
            bytes: grows.bytes_per_key / fixed.bytes_per_key,
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct GrowthReport {
    /// The version of this form.
    pub schema: u32,
    /// The version of Guira.
    pub version: &'static str,
    /// The machine.
    pub machine: Machine,
    /// The systems, and why one did not take part.
    pub peers: Vec<Peer>,
    /// Keys that the tables that grow are made for.
    pub first: u64,
    /// Keys in the end.
    pub keys: u64,
    /// Clients that insert at the same time.
    pub clients: usize,
    /// The time between two kills, in milliseconds.
    pub kill_every_ms: u64,
    /// The results of each system.
    pub curves: Vec<Curve>,
    /// The ratios.
    pub ratios: Vec<GrowthRatio>,
}

impl GrowthReport {
    pub(super) fn new(options: &GrowthOptions, machine: Machine, peers: Vec<Peer>, curves: Vec<Curve>) -> GrowthReport {
        let curve = |series: Series| curves.iter().find(|curve| curve.series == series);
        let pairs = [(Series::Grows, Series::Fixed), (Series::GrowsKilled, Series::FixedKilled)];
        let ratios = pairs.into_iter().filter_map(|(grows, fixed)| Some(GrowthRatio::of(curve(grows)?, curve(fixed)?)));
        GrowthReport {
            schema: GROWTH_SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            machine,
            peers,
            first: options.first,
            keys: options.share() * options.clients as u64,
            clients: options.clients,
            kill_every_ms: options.kill_every.as_millis() as u64,
            ratios: ratios.collect(),
            curves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(series: Series, rates: &[f64]) -> Curve {
        let windows = rates.iter().enumerate().map(|(at, rate)| Window { keys: 100 * at as u64, per_second: *rate });
        let inserted =
            Inserted { windows: windows.collect(), total: Duration::from_secs(1), times: Times::default(), kills: 0 };
        let afterwards = Afterwards { get_ns: 1.0, bytes: 1, problems: None };
        Curve::new(series, 100 * rates.len() as u64, inserted, &afterwards)
    }

    #[test]
    fn windows_are_compared_with_the_median_and_with_the_same_number_of_keys() {
        let fixed = curve(Series::Fixed, &[8.0, 8.0, 6.0, 2.0]);
        let grows = curve(Series::Grows, &[4.0, 8.0, 5.0, 4.0]);
        let ratio = GrowthRatio::of(&grows, &fixed);
        assert_eq!((ratio.slowest_window, ratio.slowest_window_is_met), (0.5, true));
        // 0.5, 1, 5/6 and 2.
        assert_eq!((ratio.at_same_keys, ratio.least_at_same_keys), (1.0, 0.5));
        let none = curve(Series::Grows, &[]);
        assert!(GrowthRatio::of(&none, &fixed).slowest_window.is_finite());
    }

    #[test]
    fn quantiles_are_exact_to_a_sixteenth() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), 0.0);
        (1..=100_000).for_each(|time| times.add(time));
        times.add(u32::MAX);
        for (part, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.999, 99_900.0), (1.0, f64::from(u32::MAX))] {
            let found = times.quantile(part);
            assert!((1.0..=1.0 + 1.0 / 8.0).contains(&(found / exact)), "{part}: {found}");
        }
        let mut twice = times.clone();
        twice.add_all(&times);
        assert_eq!(twice.quantile(0.5), times.quantile(0.5));
    }
}
