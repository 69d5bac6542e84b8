//! The plan of a run over TCP: systems, access modes, numbers of connections, and operations in flight.

use serde::Serialize;

use crate::draws::Popularity;
use crate::error::PeersError;
use crate::plan::{Needs, System};
use crate::record::WORD_BYTES;

/// Maximum number of connections: their client slots, one for each operation in flight, must fit into a table.
const CONNECTIONS_MAX: usize = 256;
/// Maximum number of operations in flight on one connection.
const DEPTH_MAX: usize = 64;
/// Pipelined operations of one measurement, as a multiple of unpipelined ones, so that both take about as long.
const PIPELINED_FACTOR: usize = 8;
/// Maximum number of operations of one measurement: their draws take 2 GiB.
const OPERATIONS_MAX: usize = 1 << 26;
/// Maximum number of rounds.
const ROUNDS_MAX: u32 = 1000;
/// Bytes of the key and the step that are drawn for an operation.
const DRAWN_BYTES: u64 = 8 + 24;

/// The mix of operations that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    /// Reads only.
    YcsbC,
    /// Half reads, half updates.
    YcsbA,
}

impl Mix {
    /// Every mix, in the order of reports.
    pub const ALL: [Mix; 2] = [Mix::YcsbC, Mix::YcsbA];

    /// The name in texts for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Mix::YcsbC => "YCSB-C: reads",
            Mix::YcsbA => "YCSB-A: half reads, half updates",
        }
    }
}

/// The access mode of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Way {
    /// One operation after the other.
    #[serde(rename = "one at a time")]
    Single,
    /// Several commands in one write, then their answers.
    #[serde(rename = "pipeline")]
    Pipeline,
    /// One `get_many` after the other (Guira).
    #[serde(rename = "get_many")]
    Many,
    /// Tasks that share the connection, each with one operation in flight (Guira).
    #[serde(rename = "tasks")]
    Tasks,
    /// redis-benchmark as the client.
    #[serde(rename = "redis-benchmark")]
    RedisBenchmark,
}

impl Way {
    /// The name in texts for people and in JSON.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Way::Single => "one at a time",
            Way::Pipeline => "pipeline",
            Way::Many => "get_many",
            Way::Tasks => "tasks",
            Way::RedisBenchmark => "redis-benchmark",
        }
    }
}

/// Options of a run over TCP.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Number of records.
    pub records: u64,
    /// Operations of one unpipelined measurement, all connections together.
    pub operations: usize,
    /// Number of times that everything is measured.
    pub rounds: u32,
    /// Seed of keys and draws.
    pub seed: u64,
    /// Popularity of keys: Zipf 0.99 as in YCSB, or uniform, so that clients hardly ever want the same row.
    pub popularity: Popularity,
    /// Numbers of connections, one point each.
    pub connections: Vec<usize>,
    /// Numbers of operations in flight on each connection, one point each.
    pub depths: Vec<usize>,
    /// The systems that take part; empty for all.
    pub only: Vec<System>,
    /// The systems that do not take part.
    pub skip: Vec<System>,
    /// The program `guira`, which is started as the memory node.
    pub program: std::path::PathBuf,
}

/// The systems that are compared over TCP.
pub(super) const NAMES: [System; 4] = [System::Guira, System::Redis, System::Memcached, System::Raw];

impl TcpOptions {
    /// Whether the system takes part.
    #[must_use]
    pub fn wants(&self, name: System) -> bool {
        NAMES.contains(&name) && (self.only.is_empty() || self.only.contains(&name)) && !self.skip.contains(&name)
    }

    /// Checks the bounds of all numbers.
    ///
    /// # Errors
    /// [`PeersError::Options`] with the first number out of bounds.
    pub(super) fn check(&self) -> Result<(), PeersError> {
        let bounds = [
            ("rounds", u64::from(self.rounds), u64::from(ROUNDS_MAX)),
            ("operations", self.operations as u64, (OPERATIONS_MAX / PIPELINED_FACTOR) as u64),
            ("records", self.records, 1 << 32),
        ];
        let lists = [("connections", &self.connections, CONNECTIONS_MAX), ("depths", &self.depths, DEPTH_MAX)];
        let all = lists.iter().flat_map(|(name, list, max)| list.iter().map(|n| (*name, *n as u64, *max as u64)));
        for (name, found, max) in bounds.into_iter().chain(all) {
            if !(1..=max).contains(&found) {
                return Err(PeersError::Options(format!("{found} {name} are out of range: at least 1, at most {max}")));
            }
        }
        if let Some((name, ..)) = lists.iter().find(|(_, list, _)| list.is_empty()) {
            return Err(PeersError::Options(format!("the list of {name} is empty")));
        }
        if !NAMES.into_iter().any(|name| self.wants(name)) {
            return Err(PeersError::Options("--only and --skip leave no system".to_owned()));
        }
        Ok(())
    }

    /// Maximum number of operations of one measurement.
    pub(super) fn most_operations(&self) -> usize {
        self.points().map(|point| self.operations_at(point)).max().unwrap_or(0)
    }

    /// Returns what a run with these systems needs: the records, in a second server for redis-benchmark, too, and the
    /// draws. The time is not estimated.
    pub(super) fn needs(&self, names: &[System], has_redis_benchmark: bool) -> Needs {
        let second = names.iter().find(|name| has_redis_benchmark && **name == System::Redis);
        let servers = names.iter().chain(second);
        let each: u64 = servers.map(|name| name.overhead_bytes() + 2 * WORD_BYTES as u64).sum();
        let draws = DRAWN_BYTES * self.most_operations() as u64;
        Needs { memory_bytes: self.records.saturating_mul(each) + draws, ..Needs::default() }
    }

    /// Maximum number of clients of a table at one time: those of one measurement, and the one that loads.
    pub(super) fn most_clients(&self) -> usize {
        self.points().map(|point| point.connections * point.depth).max().unwrap_or(0) + 1
    }

    fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let depths = |mix| self.depths.iter().map(move |depth| (mix, *depth));
        Mix::ALL.into_iter().flat_map(depths).flat_map(|(mix, depth)| {
            self.connections.iter().map(move |connections| Point { mix, connections: *connections, depth })
        })
    }

    /// Operations of one measurement: a whole number of exchanges for every connection.
    fn operations_at(&self, point: Point) -> usize {
        let factor = if point.depth > 1 { PIPELINED_FACTOR } else { 1 };
        (self.operations * factor).next_multiple_of(point.connections * point.depth)
    }

    /// Every series in the order of measuring: series that are compared with each other are adjacent.
    pub(super) fn series(&self, names: &[System]) -> Vec<Series> {
        let series = |point: Point| {
            let operations = self.operations_at(point);
            let ways = move |name: System| {
                point.ways(name).iter().map(move |way| Series { point, name, way: *way, operations })
            };
            names.iter().flat_map(move |name| ways(*name))
        };
        self.points().flat_map(series).collect()
    }
}

/// A mix and the concurrency at which it is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// The mix.
    pub mix: Mix,
    /// Number of connections.
    pub connections: usize,
    /// Operations in flight on each connection.
    pub depth: usize,
}

impl Point {
    /// The access modes of a system at this point.
    const fn ways(self, name: System) -> &'static [Way] {
        match (name, self.mix, self.depth) {
            (System::Guira, _, 1) | (System::Memcached, _, 1) | (System::Redis, Mix::YcsbA, 1) => &[Way::Single],
            (System::Guira, Mix::YcsbC, _) => &[Way::Many, Way::Tasks],
            (System::Guira, Mix::YcsbA, _) => &[Way::Tasks],
            (System::Redis, Mix::YcsbC, 1) => &[Way::Single, Way::RedisBenchmark],
            (System::Redis, Mix::YcsbC, _) => &[Way::Pipeline, Way::RedisBenchmark],
            (System::Redis | System::Memcached, ..) | (System::Raw, Mix::YcsbC, 2..) => &[Way::Pipeline],
            (System::Raw, Mix::YcsbC, _) => &[Way::Single],
            _ => &[],
        }
    }
}

/// A series of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Series {
    /// The mix and the concurrency.
    pub point: Point,
    /// The system.
    pub name: System,
    /// The access mode.
    pub way: Way,
    /// Operations per round, all connections together.
    pub operations: usize,
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use super::*;

    pub fn options() -> TcpOptions {
        TcpOptions {
            records: 1000,
            operations: 1000,
            rounds: 2,
            seed: 1,
            popularity: Popularity::Zipf,
            connections: vec![1, 3],
            depths: vec![1, 16],
            only: Vec::new(),
            skip: Vec::new(),
            program: "guira".into(),
        }
    }

    #[test]
    fn every_server_needs_memory_for_the_records() {
        let options = TcpOptions { records: 1 << 30, ..options() };
        let gib = |names: &[System], is_there| options.needs(names, is_there).memory_bytes >> 30;
        assert_eq!([gib(&[System::Guira], true), gib(&[System::Redis], false), gib(&NAMES, true)], [40, 128, 440]);
    }

    #[test]
    fn every_system_is_timed_at_every_point_in_whole_exchanges() {
        let options = options();
        let series = options.series(&NAMES);
        assert_eq!(series.iter().collect::<HashSet<_>>().len(), series.len());
        for point in options.points() {
            // A server that does nothing has no updates.
            for name in NAMES.into_iter().filter(|name| *name != System::Raw || point.mix == Mix::YcsbC) {
                assert!(series.iter().any(|series| series.point == point && series.name == name), "{point:?} {name}");
            }
        }
        let whole = |series: &Series| series.operations.is_multiple_of(series.point.connections * series.point.depth);
        assert!(series.iter().all(whole));
        assert_eq!(options.most_operations(), 8016);
        assert_eq!(options.most_clients(), 49);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        assert!(options().check().is_ok());
        for wrong in [
            TcpOptions { rounds: 0, ..options() },
            TcpOptions { connections: vec![1, 0], ..options() },
            TcpOptions { depths: vec![65], ..options() },
            TcpOptions { depths: Vec::new(), ..options() },
            TcpOptions { only: vec![System::Lmdb], ..options() },
        ] {
            assert!(matches!(wrong.check(), Err(PeersError::Options(_))), "{wrong:?}");
        }
    }
}
