//! What growing costs: the settings of an experiment with growth, and its answer.

use guira_fabric_sim::NodeParameters;
use serde::Serialize;

use super::{Answer, LabError};

/// The settings of an experiment with growth, besides those of an [`super::Experiment`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// The number of times as many keys as the table is made for that it has in the end.
    pub factor: u32,
    /// The time in which the memory node's processor makes 64 KiB of memory, in microseconds.
    pub memory_us: f64,
}

impl Default for Growth {
    fn default() -> Growth {
        Growth { factor: 32, memory_us: NodeParameters::TMPFS.part_ns as f64 / 1e3 }
    }
}

impl Growth {
    /// The largest factor.
    pub const FACTOR_MAX: u32 = 1024;
    /// The longest time for 64 KiB of memory, in microseconds.
    const MEMORY_US_MAX: f64 = 1e6;

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`LabError::Value`].
    pub fn check(&self) -> Result<(), LabError> {
        let wrong = |parameter: &str, value: String, expected: String| {
            Err(LabError::Value { parameter: parameter.to_owned(), value, expected })
        };
        if !(2..=Growth::FACTOR_MAX).contains(&self.factor) {
            let expected = format!("a whole number from 2 to {}", Growth::FACTOR_MAX);
            return wrong("grow", self.factor.to_string(), expected);
        }
        if !(0.0..=Growth::MEMORY_US_MAX).contains(&self.memory_us) {
            let expected = format!("a number from 0 to {}", Growth::MEMORY_US_MAX);
            return wrong("memory-us", self.memory_us.to_string(), expected);
        }
        Ok(())
    }
}

/// The result of an experiment with growth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthAnswer {
    /// Its settings.
    pub growth: Growth,
    /// Keys in both tables before the run. One of them is made for so many, and grows.
    pub first_keys: u64,
    /// The table that grows.
    pub grows: GrowthSide,
    /// The table that was made for all keys.
    pub fixed: GrowthSide,
    /// The figures of the table that grows, divided by those of the other one.
    pub ratio: GrowthRatio,
    /// What splits cost.
    pub splits: SplitAnswer,
}

/// One of the two tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GrowthSide {
    /// The result of its run.
    pub answer: Answer,
    /// Keys in the end.
    pub keys: u64,
    /// Entries in use in the end, in percent.
    pub fill_percent: f64,
    /// Bytes of its rows in the end, divided by the keys.
    pub row_bytes_per_key: f64,
}

/// The figures of a table that grows, divided by those of one that was made for all keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GrowthRatio {
    /// Completed operations a second.
    pub throughput: f64,
    /// Median latency of an insert.
    pub p50: f64,
    /// 99th percentile of the latency of an insert.
    pub p99: f64,
    /// 99.9th percentile of the latency of an insert.
    pub p999: f64,
    /// Mean number of round trips of an insert.
    pub round_trips: f64,
    /// Mean number of messages of an insert.
    pub messages: f64,
    /// Mean number of bytes of an insert.
    pub bytes: f64,
    /// Bytes of rows for each key, in the end.
    pub memory: f64,
}

/// What splits of segments cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SplitAnswer {
    /// Segments that were split.
    pub splits: u64,
    /// Splits that were given up under their locks, because another client had been faster.
    pub in_vain: u64,
    /// Keys inserted for each split.
    pub inserts_per_split: f64,
    /// The time from the request for memory to the reply to the commit, in microseconds.
    pub time: Times,
    /// The time from the first lock that a split took to the last that it released, in microseconds.
    pub locks_held: Times,
    /// Mean number of round trips of a split, without the requests for memory.
    pub round_trips: f64,
    /// Mean number of messages of a split.
    pub messages: f64,
    /// Mean number of bytes of a split in both directions, headers included.
    pub bytes: f64,
    /// Changes that waited for locks of splits, also of those in vain, themselves or in their host's queue; divided by
    /// the splits.
    pub waiting_per_split: f64,
    /// The time for which each of these waited, in microseconds.
    pub waits: Times,
    /// The part of all clients' time that was spent in these waits.
    pub waiting_share: f64,
}

/// A distribution of times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}
