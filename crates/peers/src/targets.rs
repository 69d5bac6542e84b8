//! Performance targets of the project, each with the measured ratio. A missed target is reported; it is not a failure.

use serde::Serialize;

use crate::draws::Popularity;
use crate::measure::Task;
use crate::plan::{Placement, System};
use crate::record::WORD_BYTES;
use crate::run::Cell;

/// One target under one popularity, with one client.
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
    /// Bytes of the values.
    value_bytes: usize,
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
const LMDB_READS: &[&str] = &["long transaction", "transaction each"];
const MAPS: &[System] = &[System::Dashmap, System::Papaya];

const fn of(names: &'static [System], variants: &'static [&'static str], task: Task) -> Selection {
    Selection { task, names, variants, placements: ANYWHERE }
}

const fn guira(task: Task) -> Selection {
    of(&[System::Guira], &[""], task)
}

/// Bytes of longer values with targets of their own.
const KIB: usize = 1024;
const KIB_64: usize = 64 * KIB;

const RULES: [Rule; 13] = [
    Rule {
        name: "get_redis",
        title: "get: times as fast as Redis, one command at a time",
        value_bytes: WORD_BYTES,
        target: 100.0,
        bound: Bound::AtLeast,
        of: (of(&[System::Redis], &["depth 1"], Task::Get), guira(Task::Get)),
    },
    Rule {
        name: "get_memcached",
        title: "get: times as fast as memcached, one command at a time",
        value_bytes: WORD_BYTES,
        target: 60.0,
        bound: Bound::AtLeast,
        of: (of(&[System::Memcached], &["depth 1"], Task::Get), guira(Task::Get)),
    },
    Rule {
        name: "get_lmdb",
        title: "get: times as fast as LMDB",
        value_bytes: WORD_BYTES,
        target: 5.0,
        bound: Bound::AtLeast,
        of: (of(&[System::Lmdb], LMDB_READS, Task::Get), guira(Task::Get)),
    },
    Rule {
        name: "get_map",
        title: "get: time, as a multiple of the fastest in-process map's",
        value_bytes: WORD_BYTES,
        target: 1.6,
        bound: Bound::AtMost,
        of: (guira(Task::Get), of(MAPS, &[""], Task::Get)),
    },
    Rule {
        name: "dependent_get_map",
        title: "dependent get: time, as a multiple of the fastest in-process map's",
        value_bytes: WORD_BYTES,
        target: 1.0,
        bound: Bound::AtMost,
        of: (guira(Task::DependentGet), of(MAPS, &[""], Task::DependentGet)),
    },
    Rule {
        name: "get_many_get",
        title: "get_many of 32: times as fast as single gets",
        value_bytes: WORD_BYTES,
        target: 4.0,
        bound: Bound::AtLeast,
        of: (guira(Task::Get), guira(Task::GetMany)),
    },
    Rule {
        name: "get_many_raw",
        title: "get_many of 32: speed, as a share of prefetched unchecked reads of the same rows",
        value_bytes: WORD_BYTES,
        target: 0.85,
        bound: Bound::AtLeast,
        of: (of(&[System::Raw], &[""], Task::GetMany), guira(Task::GetMany)),
    },
    Rule {
        name: "ycsb_a_redis",
        title: "YCSB-A: times as fast as Redis with 16 commands in flight and a core of its own",
        value_bytes: WORD_BYTES,
        target: 10.0,
        bound: Bound::AtLeast,
        of: (
            Selection { task: Task::YcsbA, names: &[System::Redis], variants: &["pipeline 16"], placements: OWN_CORE },
            guira(Task::YcsbA),
        ),
    },
    Rule {
        name: "get_raw_1_kib",
        title: "get of 1 KiB: time, as a multiple of a bare copy's",
        value_bytes: KIB,
        target: 1.5,
        bound: Bound::AtMost,
        of: (guira(Task::Get), of(&[System::Raw], &[""], Task::Get)),
    },
    Rule {
        name: "get_raw_64_kib",
        title: "get of 64 KiB: time, as a multiple of a bare copy's",
        value_bytes: KIB_64,
        target: 1.15,
        bound: Bound::AtMost,
        of: (guira(Task::Get), of(&[System::Raw], &[""], Task::Get)),
    },
    Rule {
        name: "get_lmdb_64_kib",
        title: "get of 64 KiB: times as fast as LMDB",
        value_bytes: KIB_64,
        target: 1.1,
        bound: Bound::AtLeast,
        of: (of(&[System::Lmdb], LMDB_READS, Task::Get), guira(Task::Get)),
    },
    Rule {
        name: "update_lmdb_1_kib",
        title: "update of 1 KiB: times as fast as LMDB",
        value_bytes: KIB,
        target: 3.0,
        bound: Bound::AtLeast,
        of: (of(&[System::Lmdb], LMDB_READS, Task::Update), guira(Task::Update)),
    },
    Rule {
        name: "update_lmdb_64_kib",
        title: "update of 64 KiB: times as fast as LMDB",
        value_bytes: KIB_64,
        target: 1.0,
        bound: Bound::AtLeast,
        of: (of(&[System::Lmdb], LMDB_READS, Task::Update), guira(Task::Update)),
    },
];

/// Computes every target for which `cells` has the times.
#[must_use]
pub fn targets(cells: &[Cell]) -> Vec<Target> {
    let mut targets = Vec::new();
    for rule in &RULES {
        for popularity in [Popularity::Uniform, Popularity::Zipf] {
            let (divided, divisor) = &rule.of;
            let fastest_ns = |of: &Selection| of.fastest_ns(cells, rule.value_bytes, popularity);
            let times = (fastest_ns(divided), fastest_ns(divisor));
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
    fn fastest_ns(&self, cells: &[Cell], value_bytes: usize, popularity: Popularity) -> Option<f64> {
        let fits = |cell: &&Cell| {
            let is_plain = cell.clients == 1 && cell.value_bytes == value_bytes && cell.popularity == popularity;
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
        let mut cells = Vec::new();
        for stage in Stage::all(&crate::plan::tests::options()) {
            let uniform = stage.series(&Way::ALL, 2).into_iter().filter(|s| s.popularity == Popularity::Uniform);
            let one = uniform.filter(|s| s.clients == 1).map(|s| cell(s.way, s.placement, s.task, 100.0));
            cells.extend(one.map(|cell| Cell { value_bytes: stage.value_bytes, ..cell }));
        }
        let names: HashSet<&str> = targets(&cells).iter().map(|target| target.name).collect();
        assert_eq!(names.len(), RULES.len());
    }
}
