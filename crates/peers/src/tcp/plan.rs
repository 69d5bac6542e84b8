//! What a run over TCP will do: who is asked, in which way, from how many connections, with how much on its way.

use serde::Serialize;

use crate::draws::Popularity;
use crate::error::PeersError;
use crate::plan::System;

/// Connections at once, at most: as many client slots, times what is on its way, fit into a table.
const CONNECTIONS_MAX: usize = 256;
/// Operations on their way on one connection, at most.
const DEPTH_MAX: usize = 64;
/// Pipelined operations of one measurement, as a multiple of those that go one at a time: about as long.
const PIPELINED_FACTOR: usize = 8;
/// Operations of one measurement, at most: what is drawn for them takes 2 GiB.
const OPERATIONS_MAX: usize = 1 << 26;
/// Rounds, at most.
const ROUNDS_MAX: u32 = 1000;

/// What is timed.
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

    /// As people call it.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Mix::YcsbC => "YCSB-C: reads",
            Mix::YcsbA => "YCSB-A: half reads, half updates",
        }
    }
}

/// In which way a contender is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Way {
    /// One operation after the other.
    #[serde(rename = "one at a time")]
    Single,
    /// Commands in one write, then their answers.
    #[serde(rename = "pipeline")]
    Pipeline,
    /// One `get_many` after the other (Guira).
    #[serde(rename = "get_many")]
    Many,
    /// As many tasks, which share the connection and have one operation each on its way (Guira).
    #[serde(rename = "tasks")]
    Tasks,
    /// By the server's own benchmark client.
    #[serde(rename = "redis-benchmark")]
    RedisBenchmark,
}

impl Way {
    /// As people call it, and in JSON.
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

/// What a run over TCP is asked for.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Records.
    pub records: u64,
    /// Operations of one measurement that go one at a time, all connections together.
    pub operations: usize,
    /// Times everything is measured.
    pub rounds: u32,
    /// Seed of keys and draws.
    pub seed: u64,
    /// How popular keys are: Zipf 0.99, as YCSB has it, or all alike, so that clients meet on no row.
    pub popularity: Popularity,
    /// How many connections at once, one point each.
    pub connections: Vec<usize>,
    /// How many operations on their way on each, one point each.
    pub depths: Vec<usize>,
    /// Only these contenders; all, if there are none.
    pub only: Vec<System>,
    /// All but these.
    pub skip: Vec<System>,
    /// This program, which serves as the memory node.
    pub program: std::path::PathBuf,
}

/// The contenders there are over TCP.
pub(super) const NAMES: [System; 4] = [System::Guira, System::Redis, System::Memcached, System::Raw];

impl TcpOptions {
    /// Whether this contender takes part.
    #[must_use]
    pub fn wants(&self, name: System) -> bool {
        NAMES.contains(&name) && (self.only.is_empty() || self.only.contains(&name)) && !self.skip.contains(&name)
    }

    /// # Errors
    /// Numbers that cannot be.
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
                return Err(PeersError::Options(format!("{found} {name}; at least 1, at most {max}")));
            }
        }
        if let Some((name, ..)) = lists.iter().find(|(_, list, _)| list.is_empty()) {
            return Err(PeersError::Options(format!("no {name}")));
        }
        if !NAMES.into_iter().any(|name| self.wants(name)) {
            return Err(PeersError::Options("no contender is left".to_owned()));
        }
        Ok(())
    }

    /// The most operations of one measurement.
    pub(super) fn most_operations(&self) -> usize {
        self.points().map(|point| self.operations_at(point)).max().unwrap_or(0)
    }

    /// Clients of a table that may be open at once: those of one measurement, and the one that loads.
    pub(super) fn most_clients(&self) -> usize {
        self.points().map(|point| point.connections * point.depth).max().unwrap_or(0) + 1
    }

    fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let depths = |mix| self.depths.iter().map(move |depth| (mix, *depth));
        Mix::ALL.into_iter().flat_map(depths).flat_map(|(mix, depth)| {
            self.connections.iter().map(move |connections| Point { mix, connections: *connections, depth })
        })
    }

    /// Operations of one measurement, in whole exchanges of every connection.
    fn operations_at(&self, point: Point) -> usize {
        let factor = if point.depth > 1 { PIPELINED_FACTOR } else { 1 };
        (self.operations * factor).next_multiple_of(point.connections * point.depth)
    }

    /// Everything that is timed, in order: what is compared stands together.
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

/// At which concurrency something is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// What is timed.
    pub mix: Mix,
    /// Connections at once.
    pub connections: usize,
    /// Operations on their way on each.
    pub depth: usize,
}

impl Point {
    /// The ways in which a contender is asked here.
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

/// Something that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Series {
    /// At which concurrency.
    pub point: Point,
    /// Who.
    pub name: System,
    /// How it is asked.
    pub way: Way,
    /// Operations of all connections together.
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
    fn every_contender_is_asked_at_every_point_and_in_whole_exchanges() {
        let options = options();
        let series = options.series(&NAMES);
        assert_eq!(series.iter().collect::<HashSet<_>>().len(), series.len());
        for point in options.points() {
            // A server that does nothing changes nothing.
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
