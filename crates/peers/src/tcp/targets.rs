//! Performance targets over TCP, each with the measured ratio. A missed target is reported; it is not a failure.

use serde::Serialize;

use super::plan::{Mix, Way};
use super::report::{Figure, Ratio, Spread};
use crate::plan::System;
use crate::targets::Bound;

/// One target at one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TcpTarget {
    /// The target's name in JSON.
    pub name: &'static str,
    /// The target, in words.
    pub title: &'static str,
    /// Number of connections.
    pub connections: usize,
    /// Operations in flight on each connection.
    pub depth: usize,
    /// The access mode of Guira: the best one.
    pub way: Way,
    /// The access mode of the peer: the best one.
    pub peer_way: Way,
    /// The measured ratio.
    pub measured: Spread,
    /// The ratio of a server that does nothing, if it was measured: the most that the kernel allows.
    pub bare: Option<Spread>,
    /// The target ratio.
    #[serde(rename = "aimed")]
    pub target: f64,
    /// Whether the target is a lower or an upper bound.
    pub bound: Bound,
    /// Whether the median meets the target.
    pub is_met: bool,
}

/// The definition of a target: the ratios that it applies to.
struct Rule {
    name: &'static str,
    title: &'static str,
    mix: Mix,
    figure: Figure,
    peer: System,
    target: f64,
    bound: Bound,
    points: Points,
}

/// The points at which a target applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Points {
    Everywhere,
    /// One connection with one operation in flight.
    OneByOne,
}

const RULES: [Rule; 5] = [
    Rule {
        name: "reads_per_server_core_redis",
        title: "reads per second of the server's core: as a multiple of Redis's",
        mix: Mix::YcsbC,
        figure: Figure::PerServerSecond,
        peer: System::Redis,
        target: 3.0,
        bound: Bound::AtLeast,
        points: Points::Everywhere,
    },
    Rule {
        name: "reads_per_server_core_memcached",
        title: "reads per second of the server's core: as a multiple of memcached's",
        mix: Mix::YcsbC,
        figure: Figure::PerServerSecond,
        peer: System::Memcached,
        target: 1.5,
        bound: Bound::AtLeast,
        points: Points::Everywhere,
    },
    Rule {
        name: "read_latency_redis",
        title: "one client's median read latency: as a multiple of Redis's",
        mix: Mix::YcsbC,
        figure: Figure::P50,
        peer: System::Redis,
        target: 1.0,
        bound: Bound::AtMost,
        points: Points::OneByOne,
    },
    Rule {
        name: "ycsb_a_redis",
        title: "YCSB-A, operations per second of elapsed time: as a multiple of Redis's",
        mix: Mix::YcsbA,
        figure: Figure::PerSecond,
        peer: System::Redis,
        target: 1.0,
        bound: Bound::AtLeast,
        points: Points::Everywhere,
    },
    Rule {
        name: "ycsb_a_per_server_core_redis",
        title: "YCSB-A, operations per second of the server's core: as a multiple of Redis's",
        mix: Mix::YcsbA,
        figure: Figure::PerServerSecond,
        peer: System::Redis,
        target: 1.0,
        bound: Bound::AtLeast,
        points: Points::Everywhere,
    },
];

/// Computes every target that `ratios` has values for.
pub(super) fn targets(ratios: &[Ratio]) -> Vec<TcpTarget> {
    let mut targets = Vec::new();
    for rule in &RULES {
        let mut points: Vec<(usize, usize)> = Vec::new();
        for ratio in ratios.iter().filter(|ratio| rule.is_about(ratio)) {
            if !points.contains(&(ratio.connections, ratio.depth)) {
                points.push((ratio.connections, ratio.depth));
            }
        }
        targets.extend(points.into_iter().filter_map(|point| rule.target_at(point, ratios)));
    }
    targets
}

impl Rule {
    fn is_about(&self, ratio: &Ratio) -> bool {
        let is_there = self.points == Points::Everywhere || (ratio.connections, ratio.depth) == (1, 1);
        is_there && self.compares(ratio) && ratio.name == System::Guira
    }

    fn compares(&self, ratio: &Ratio) -> bool {
        (ratio.mix, ratio.figure, ratio.peer) == (self.mix, self.figure, self.peer)
    }

    /// Compares the best access mode of Guira with the best one of the peer.
    fn target_at(&self, point: (usize, usize), ratios: &[Ratio]) -> Option<TcpTarget> {
        let here = || ratios.iter().filter(|ratio| self.is_about(ratio) && (ratio.connections, ratio.depth) == point);
        let sign = if self.bound == Bound::AtLeast { 1.0 } else { -1.0 };
        let goodness = |ratio: &&Ratio| sign * ratio.ratio.median;
        let worst_of = |way: Way| {
            here().filter(|ratio| ratio.way == way).min_by(|one, other| goodness(one).total_cmp(&goodness(other)))
        };
        let best = here().filter_map(|ratio| worst_of(ratio.way));
        let ratio = best.max_by(|one, other| goodness(one).total_cmp(&goodness(other)))?;
        let Rule { name, title, target, bound, .. } = *self;
        let is_met = match bound {
            Bound::AtLeast => ratio.ratio.median >= target,
            Bound::AtMost => ratio.ratio.median <= target,
        };
        let (connections, depth) = point;
        let (way, peer_way, measured) = (ratio.way, ratio.peer_way, ratio.ratio);
        let is_bare = |bare: &&Ratio| {
            let is_here = (bare.connections, bare.depth, bare.peer_way) == (connections, depth, peer_way);
            bare.name == System::Raw && self.compares(bare) && is_here
        };
        let bare = ratios.iter().find(is_bare).map(|bare| bare.ratio);
        Some(TcpTarget { name, title, connections, depth, way, peer_way, measured, bare, target, bound, is_met })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(figure: Figure, depth: usize, way: Way, peer_way: Way, median: f64) -> Ratio {
        let ratio = Spread { median, min: median, max: median };
        let (name, mix, peer) = (System::Guira, Mix::YcsbC, System::Redis);
        Ratio { name, figure, mix, connections: 1, depth, way, peer, peer_way, ratio }
    }

    #[test]
    fn the_better_way_of_each_side_counts() {
        use Figure::{P50, PerServerSecond};
        let ratios = [
            ratio(PerServerSecond, 16, Way::Many, Way::Pipeline, 4.0),
            ratio(PerServerSecond, 16, Way::Many, Way::RedisBenchmark, 3.5),
            ratio(PerServerSecond, 16, Way::Tasks, Way::Pipeline, 3.9),
            ratio(PerServerSecond, 16, Way::Tasks, Way::RedisBenchmark, 1.2),
            ratio(PerServerSecond, 1, Way::Single, Way::Single, 2.0),
            ratio(P50, 1, Way::Single, Way::Single, 0.9),
            ratio(P50, 1, Way::Single, Way::RedisBenchmark, 1.1),
            ratio(P50, 16, Way::Many, Way::RedisBenchmark, 9.9),
            Ratio { name: System::Raw, ..ratio(PerServerSecond, 1, Way::Single, Way::Single, 2.5) },
            Ratio { name: System::Raw, ..ratio(PerServerSecond, 16, Way::Pipeline, Way::Pipeline, 7.0) },
            Ratio { name: System::Raw, ..ratio(PerServerSecond, 16, Way::Pipeline, Way::RedisBenchmark, 6.0) },
        ];
        let targets = targets(&ratios);
        let found: Vec<_> =
            targets.iter().map(|target| (target.depth, target.way, target.peer_way, target.measured.median)).collect();
        let expected = [
            (16, Way::Many, Way::RedisBenchmark, 3.5),
            (1, Way::Single, Way::Single, 2.0),
            (1, Way::Single, Way::RedisBenchmark, 1.1),
        ];
        assert_eq!(found, expected);
        let bare: Vec<_> = targets.iter().map(|target| target.bare.map(|bare| bare.median)).collect();
        assert_eq!(bare, [Some(6.0), Some(2.5), None], "against the peer's same way");
        assert_eq!(targets.iter().map(|target| target.is_met).collect::<Vec<_>>(), [true, false, false]);
    }
}
