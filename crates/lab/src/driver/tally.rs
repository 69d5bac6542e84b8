//! Costs of operations: tallies that merge across workers and processes, and the figures computed from them.
//!
//! Invariant: a tally holds raw counts only, so that merging loses nothing; figures are computed once, at the end.

use std::time::Duration;

use crate::baselines::Cost;
use guira::Counters;
use serde::{Deserialize, Serialize};

use super::distribution::{Distribution, mean};
use crate::workload::Operation;

/// Maximum number of descriptions of failures that are kept: enough to see the cause, few enough to read.
const FAILURES_MAX: usize = 8;

/// One `T` for each kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerOperation<T> {
    /// Reads of a value.
    pub read: T,
    /// Replacements of a value.
    pub update: T,
    /// Additions of a record.
    pub insert: T,
    /// A read, then a replacement; both count as one operation.
    pub read_modify_write: T,
}

impl<T> PerOperation<T> {
    /// The value for this kind of operation.
    #[inline]
    pub fn of_mut(&mut self, operation: Operation) -> &mut T {
        match operation {
            Operation::Read => &mut self.read,
            Operation::Update => &mut self.update,
            Operation::Insert => &mut self.insert,
            Operation::ReadModifyWrite => &mut self.read_modify_write,
        }
    }

    /// The values with their names in JSON.
    pub fn named(&self) -> [(&'static str, &T); 4] {
        [
            ("read", &self.read),
            ("update", &self.update),
            ("insert", &self.insert),
            ("read_modify_write", &self.read_modify_write),
        ]
    }

    fn map<U>(&self, figure: impl Fn(&T) -> U) -> PerOperation<U> {
        PerOperation {
            read: figure(&self.read),
            update: figure(&self.update),
            insert: figure(&self.insert),
            read_modify_write: figure(&self.read_modify_write),
        }
    }
}

impl PerOperation<OperationTally> {
    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &PerOperation<OperationTally>) {
        self.read.merge(&other.read);
        self.update.merge(&other.update);
        self.insert.merge(&other.insert);
        self.read_modify_write.merge(&other.read_modify_write);
    }
}

/// Raw counts of one kind of operation. Distributions and sums are of the operations that succeeded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OperationTally {
    /// Operations carried out, failed ones included.
    pub count: u64,
    /// Operations that failed: the store's error, a record missing that must exist, or a value that does not verify.
    pub errors: u64,
    /// Batches posted per operation.
    pub round_trips: Distribution,
    /// Number of verbs.
    pub messages: u64,
    /// Bytes on the wire, headers included.
    pub wire_bytes: u64,
    /// Batches posted again because another client held a lock or a row did not verify.
    pub retries: u64,
    /// Time from call to return, of the operations that were timed.
    pub latency_ns: Distribution,
}

impl OperationTally {
    /// Counts an operation that succeeded.
    #[inline]
    pub fn success(&mut self, cost: impl Into<Cost>, latency: Option<Duration>) {
        let cost = cost.into();
        self.count += 1;
        self.round_trips.record(cost.round_trips);
        self.messages += cost.messages;
        self.wire_bytes += cost.wire_bytes;
        self.retries += cost.retries;
        if let Some(latency) = latency {
            self.latency_ns.record(nanoseconds(latency));
        }
    }

    /// Counts an operation that failed.
    pub fn failure(&mut self) {
        self.count += 1;
        self.errors += 1;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &OperationTally) {
        self.count += other.count;
        self.errors += other.errors;
        self.round_trips.merge(&other.round_trips);
        self.messages += other.messages;
        self.wire_bytes += other.wire_bytes;
        self.retries += other.retries;
        self.latency_ns.merge(&other.latency_ns);
    }

    /// The figures of these counts.
    #[must_use]
    pub fn figures(&self) -> OperationFigures {
        let (trips, latency) = (&self.round_trips, &self.latency_ns);
        let succeeded = trips.count();
        OperationFigures {
            count: self.count,
            errors: self.errors,
            round_trips: RoundTripFigures {
                mean: trips.mean(),
                p50: trips.quantile(0.5),
                p99: trips.quantile(0.99),
                max: trips.max(),
            },
            messages_mean: mean(self.messages, succeeded),
            bytes_mean: mean(self.wire_bytes, succeeded),
            retries_mean: mean(self.retries, succeeded),
            latency_ns: LatencyFigures {
                p50: latency.quantile(0.5),
                p90: latency.quantile(0.9),
                p99: latency.quantile(0.99),
                p999: latency.quantile(0.999),
                max: latency.max(),
            },
        }
    }
}

/// Raw counts of a phase: of one worker, one process, or all of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PhaseTally {
    /// From the common start to the end of the last worker.
    pub elapsed_ns: u64,
    /// By kind of operation.
    pub operations: PerOperation<OperationTally>,
    /// Totals of the clients' counters.
    #[serde(rename = "met", with = "by_name")]
    pub counters: Counters,
    /// Descriptions of the first failures.
    pub failures: Vec<String>,
}

impl PhaseTally {
    /// Keeps the description of a failure, unless enough are kept already.
    pub fn note(&mut self, failure: impl FnOnce() -> String) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure());
        }
    }

    /// Adds the counts of a worker or process that ran at the same time.
    pub fn merge(&mut self, other: PhaseTally) {
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.operations.merge(&other.operations);
        self.counters = self.counters.plus(&other.counters);
        other.failures.into_iter().for_each(|failure| self.note(|| failure));
    }

    /// Operations of every kind, failed ones included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.operations.named().iter().map(|(_, tally)| tally.count).sum()
    }

    /// Operations of every kind that failed.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.operations.named().iter().map(|(_, tally)| tally.errors).sum()
    }

    /// The figures of these counts.
    #[must_use]
    pub fn figures(&self) -> PhaseFigures {
        let succeeded = self.count() - self.errors();
        let seconds = self.elapsed_ns as f64 / 1e9;
        PhaseFigures {
            throughput_ops_per_s: if seconds > 0.0 { succeeded as f64 / seconds } else { 0.0 },
            operations: self.operations.map(OperationTally::figures),
        }
    }
}

/// Serialization of counters by name: the programs of one run may have different versions.
mod by_name {
    use std::collections::BTreeMap;

    use guira::Counters;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(counters.named())
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Counters, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
        Ok(Counters::from_words(Counters::NAMES.map(|name| counts.get(name).copied().unwrap_or(0))))
    }
}

/// The figures of a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseFigures {
    /// Successful operations of all workers, divided by the time of the slowest worker.
    pub throughput_ops_per_s: f64,
    /// By kind of operation; all zero for a kind that did not occur.
    pub operations: PerOperation<OperationFigures>,
}

/// The figures of one kind of operation. Means and quantiles are of the operations that succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationFigures {
    /// Operations carried out, failed ones included.
    pub count: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Batches posted per operation.
    pub round_trips: RoundTripFigures,
    /// Verbs per operation.
    pub messages_mean: f64,
    /// Bytes on the wire per operation, headers included.
    pub bytes_mean: f64,
    /// Batches per operation that were posted again.
    pub retries_mean: f64,
    /// Time from call to return.
    pub latency_ns: LatencyFigures,
}

/// Distribution of round trips per operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTripFigures {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

/// Distribution of nanoseconds per operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyFigures {
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
}

/// A duration in nanoseconds; `u64::MAX` after five centuries.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(round_trips: u64) -> Cost {
        Cost { round_trips, retries: round_trips - 1, wire_bytes: 128 * round_trips, ..Cost::default() }
    }

    fn phase(trips: impl IntoIterator<Item = u64>, elapsed_ns: u64) -> PhaseTally {
        let mut phase = PhaseTally { elapsed_ns, ..PhaseTally::default() };
        for round_trips in trips {
            let latency = Some(Duration::from_nanos(100 * round_trips));
            phase.operations.read.success(cost(round_trips), latency);
        }
        phase
    }

    #[test]
    fn figures_are_of_successful_operations() {
        let mut phase = phase([1, 1, 1, 3], 2_000_000_000);
        phase.operations.read.failure();
        phase.note(|| "record 9 is missing".to_owned());
        let figures = phase.figures();
        assert_eq!(figures.throughput_ops_per_s, 2.0);
        let read = &figures.operations.read;
        assert_eq!((read.count, read.errors), (5, 1));
        assert_eq!(read.round_trips, RoundTripFigures { mean: 1.5, p50: 1, p99: 3, max: 3 });
        assert_eq!((read.bytes_mean, read.retries_mean), (192.0, 0.5));
        assert_eq!(read.latency_ns, LatencyFigures { p50: 100, p90: 300, p99: 300, p999: 300, max: 300 });
        assert_eq!(figures.operations.update.count, 0);
    }

    #[test]
    fn an_empty_tally_has_zero_figures() {
        let figures = PhaseTally::default().figures();
        assert_eq!(figures.throughput_ops_per_s, 0.0);
        assert_eq!(figures.operations.insert.round_trips.mean, 0.0);
    }

    #[test]
    fn processes_merge_through_json() {
        let (mut merged, mut other) = (phase(1..=50, 7), phase(51..=100, 9));
        merged.counters.moves = 3;
        other.counters = Counters { moves: 4, swept_extents: 5, ..Counters::default() };
        let text = serde_json::to_string(&other).unwrap();
        merged.merge(serde_json::from_str(&text).unwrap());
        assert_eq!(merged.figures(), phase(1..=100, 9).figures());
        assert_eq!(merged.counters, Counters { moves: 7, swept_extents: 5, ..Counters::default() });
    }

    #[test]
    fn failures_are_bounded() {
        let mut phase = PhaseTally::default();
        (0..100).for_each(|n| phase.note(|| n.to_string()));
        let other = phase.clone();
        phase.merge(other);
        assert_eq!(phase.failures, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    }

    #[test]
    fn names_are_those_of_the_fields() {
        let kinds = PerOperation { read: 1, update: 2, insert: 3, read_modify_write: 4 };
        let object = serde_json::to_value(&kinds).unwrap();
        for (name, value) in kinds.named() {
            assert_eq!(object[name], *value);
        }
    }
}
