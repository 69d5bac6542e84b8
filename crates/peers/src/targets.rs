//! Performance targets of the project, each with the measured ratio. A missed target is reported; it is not a failure.

use serde::Serialize;

use crate::draws::Popularity;
use crate::measure::Task;
use crate::plan::{Placement, System};
use crate::record::WORD_BYTES;
use crate::run::Cell;

/// One target under one popularity, with one client and values of one word.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    /// The target's name in JSON.
    pub name: &'static str,
    /// The target, in words.
    pub title: &'static str,
    /// Popularity of the keys.
    pub popularity: Popularity,
    /// The measured ratio.
    pub measured: f64,
    /// The target ratio.
    #[serde(rename = "aimed")]
    pub target: f64,
    /// Whether the target is a lower or an upper bound.
    pub bound: Bound,
    /// Whether the target is met.
    pub is_met: bool,
}

/// The kind of bound that a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A lower bound: more is better.
    AtLeast,
    /// An upper bound: less is better.
    AtMost,
}

/// The definition of a target: a ratio of two times.
struct Rule {
    name: &'static str,
    title: &'static str,
    target: f64,
    bound: Bound,
    /// The dividend and the divisor: the fastest time of each selection.
    of: (Selection, Selection),
}

/// A selection of times for a task, of which the fastest counts.
struct Selection {
    task: Task,
    names: &'static [System],
    variants: &'static [&'static str],
    placements: &'static [Placement],
}

const ANYWHERE: &[Placement] = &[Placement::Anywhere, Placement::OneCore, Placement::TwoCores];
/// The server has a core of its own. A machine with one core has no such time, and therefore not this target.
const OWN_CORE: &[Placement] = &[Placement::TwoCores];
const MAPS: &[System] = &[System::Dashmap, System::Papaya];

const fn of(names: &'static [System], variants: &'static [&'static str], task: Task) -> Selection {
    Selection { task, names, variants, placements: ANYWHERE }
}

const fn guira(task: Task) -> Selection {
    of(&[System::Guira], &[""], task)
}

const RULES: [Rule; 8] = [
    Rule {
        name: "get_redis",
        title: "get: times as fast as Redis, one command at a time",
        target: 100.0,
        bound: Bound::AtLeast,
        of: (of(&[System::Redis], &["depth 1"], Task::Get), guira(Task::Get)),
    },
    Rule {
        name: "get_memcached",
        title: "get: times as fast as memcached, one command at a time",
        target: 60.0,
        bound: Bound::AtLeast,
        of: (of(&[System::Memcached], &["depth 1"], Task::Get), guira(Task::Get)),
    },
    Rule {
        name: "get_lmdb",
        title: "get: times as fast as LMDB",
        target: 5.0,
        bound: Bound::AtLeast,
        of: (of(&[System::Lmdb], &["long transaction", "transaction each"], Task::Get), guira(Task::Get)),
    },
    Rule {
        name: "get_map",
        title: "get: time, as a multiple of the fastest in-process map's",
        target: 1.6,
        bound: Bound::AtMost,
        of: (guira(Task::Get), of(MAPS, &[""], Task::Get)),
    },
    Rule {
        name: "dependent_get_map",
        title: "dependent get: time, as a multiple of the fastest in-process map's",
        target: 1.0,
        bound: Bound::AtMost,
        of: (guira(Task::DependentGet), of(MAPS, &[""], Task::DependentGet)),
    },
    Rule {
        name: "get_many_get",
        title: "get_many of 32: times as fast as single gets",
        target: 4.0,
        bound: Bound::AtLeast,
        of: (guira(Task::Get), guira(Task::GetMany)),
    },
    Rule {
        name: "get_many_raw",
        title: "get_many of 32: speed, as a share of prefetched unchecked reads of the same rows",
        target: 0.85,
        bound: Bound::AtLeast,
        of: (of(&[System::Raw], &[""], Task::GetMany), guira(Task::GetMany)),
    },
    Rule {
        name: "ycsb_a_redis",
        title: "YCSB-A: times as fast as Redis with 16 commands in flight and a core of its own",
        target: 10.0,
        bound: Bound::AtLeast,
        of: (
            Selection { task: Task::YcsbA, names: &[System::Redis], variants: &["pipeline 16"], placements: OWN_CORE },
            guira(Task::YcsbA),
        ),
    },
];

/// Computes every target for which `cells` has the times.
#[must_use]
pub fn targets(cells: &[Cell]) -> Vec<Target> {
    let mut targets = Vec::new();
    for rule in &RULES {
        for popularity in [Popularity::Uniform, Popularity::Zipf] {
            let (divided, divisor) = &rule.of;
            let times = (divided.fastest_ns(cells, popularity), divisor.fastest_ns(cells, popularity));
            if let (Some(divided_ns), Some(divisor_ns)) = times {
                let measured = divided_ns / divisor_ns;
                let is_met = match rule.bound {
                    Bound::AtLeast => measured >= rule.target,
                    Bound::AtMost => measured <= rule.target,
                };
                let Rule { name, title, target, bound, .. } = *rule;
                targets.push(Target { name, title, popularity, measured, target, bound, is_met });
            }
        }
    }
    targets
}

impl Selection {
    fn fastest_ns(&self, cells: &[Cell], popularity: Popularity) -> Option<f64> {
        let fits = |cell: &&Cell| {
            let is_plain = cell.clients == 1 && cell.value_bytes == WORD_BYTES && cell.popularity == popularity;
            let is_asked = cell.task == self.task && self.names.contains(&cell.name);
            is_plain && is_asked && self.variants.contains(&cell.variant) && self.placements.contains(&cell.placement)
        };
        cells.iter().filter(fits).map(|cell| cell.median_ns).min_by(f64::total_cmp)
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::plan::{Stage, Way};

    /// A cell with values of one word and one client, without a spread.
    pub fn cell(way: Way, placement: Placement, task: Task, median_ns: f64) -> Cell {
        Cell {
            name: way.name(),
            variant: way.variant(),
            placement,
            task,
            popularity: Popularity::Uniform,
            clients: 1,
            value_bytes: WORD_BYTES,
            operations: 320,
            median_ns,
            min_ns: median_ns,
            max_ns: median_ns,
        }
    }

    #[test]
    fn the_faster_time_of_a_peer_counts() {
        let redis = Way::Server(System::Redis, 1);
        let cells = [
            cell(Way::Call(System::Guira), Placement::Anywhere, Task::Get, 100.0),
            cell(redis, Placement::OneCore, Task::Get, 9_000.0),
            cell(redis, Placement::TwoCores, Task::Get, 12_000.0),
            cell(Way::Call(System::Papaya), Placement::Anywhere, Task::Get, 50.0),
            cell(Way::Call(System::Dashmap), Placement::Anywhere, Task::Get, 80.0),
        ];
        let targets = targets(&cells);
        let found = |name| targets.iter().find(|target| target.name == name).expect("it has a target");
        assert_eq!((found("get_redis").measured, found("get_redis").is_met), (90.0, false));
        assert_eq!((found("get_map").measured, found("get_map").is_met), (2.0, false));
        assert_eq!(targets.len(), 2, "there is no target without times");
    }

    /// Every target is about something that a full run times.
    #[test]
    fn every_target_is_measured_by_a_full_run() {
        let stage = Stage {
            value_bytes: WORD_BYTES,
            records: 1000,
            operations: 32_000,
            popularities: vec![Popularity::Uniform],
            clients: vec![1],
        };
        let series = stage.series(&Way::ALL, 2);
        let cells: Vec<Cell> = series.iter().map(|s| cell(s.way, s.placement, s.task, 100.0)).collect();
        let names: HashSet<&str> = targets(&cells).iter().map(|target| target.name).collect();
        assert_eq!(names.len(), RULES.len());
    }
}
