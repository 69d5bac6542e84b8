//! Storms: simulated clients that die by the hundreds per second of virtual time and are replaced at once while the
//! others work, and the same workload without deaths as a baseline.
//!
//! The workload is YCSB-A: lookups and updates of existing keys in equal parts, keys drawn from a Zipf distribution.
//! The run is the lab's ([`guira_lab::simulated`]), and so is what is checked: every lookup finds a value that was
//! written for its key; at the end every key exists, with a value that no acknowledged update had replaced; the
//! histories of some keys are linearizable; and once all dead clients are recovered, the table is sound and no lock is
//! held. In addition, no operation may fail.

use std::ops::ControlFlow;

use guira_fabric::Profile;
use guira_fabric_sim::Network;
pub use guira_lab::simulated::Victims;
use guira_lab::simulated::{
    self, Audit, Compute, Deaths, FillPlan, FilledTable, Load, Mix, Queues, Run, RunError, RunStats,
};
use guira_lab::steady::Span;
use guira_layout::{Preset, PresetOptions};
use guira_rcuckoo::ClientConfig;

/// Concurrent clients: as many as the paper's figures end with.
pub const CLIENTS: u32 = 320;
/// Additional slots, because dead clients that are not recovered yet occupy one, too.
const SPARE_SLOTS: u16 = 80;
/// Hosts: a client's host makes no difference in a storm.
const HOSTS: u32 = 1;
/// YCSB's skew.
const ZIPF: f64 = 0.99;
/// Virtual time of work before the measurement starts, in nanoseconds.
const WARM_NS: u64 = 1_000_000;

/// The parameters of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    /// The seed; the run follows from it.
    pub seed: u64,
    /// The number of keys.
    pub keys: u64,
    /// Measured virtual time, in nanoseconds.
    pub span_ns: u64,
    /// Deaths per second of virtual time; 0 for the baseline.
    pub deaths_per_second: u64,
    /// The clients that may die.
    pub victims: Victims,
}

/// The results of a storm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StormStats {
    /// Operations acknowledged in the measured time.
    pub operations: u64,
    /// Clients that died.
    pub deaths: u64,
    /// Dead clients that were recovered while others worked.
    pub recoveries: u64,
    /// Recovered clients whose commit was completed.
    pub replays: u64,
    /// Operations that reached their deadline while waiting for a lock.
    pub busy: u64,
    /// Duration of the longest operation, in nanoseconds of virtual time.
    pub longest_ns: u64,
    /// Operations on the keys whose whole histories were checked.
    pub watched: u64,
    /// Verbs that were executed.
    pub verbs: u64,
    /// Violations.
    pub wrong: Vec<String>,
}

/// A progress callback, which gets the nanoseconds of virtual time that have passed.
pub type Progress<'p> = &'p mut dyn FnMut(u64);

/// Runs a storm.
pub fn storm(storm: &Storm, progress: Progress<'_>) -> StormStats {
    match run(storm, progress) {
        Ok(stats) => summary(stats),
        Err(error) => StormStats { wrong: vec![error.to_string()], ..StormStats::default() },
    }
}

fn run(storm: &Storm, progress: Progress<'_>) -> Result<RunStats, RunError> {
    let filled = FilledTable::new(&plan(storm), &mut |_| ControlFlow::Continue(()))?;
    let load = Load {
        seed: storm.seed,
        clients: CLIENTS,
        hosts: HOSTS,
        in_flight: 1,
        mix: Mix::YCSB_A,
        theta: ZIPF,
        warm_ns: WARM_NS,
        span: Span::Exactly(storm.span_ns),
        most_inserts: u64::MAX,
        compute: Compute::default(),
    };
    let run = Run {
        load,
        deaths: Deaths { per_second: storm.deaths_per_second, victims: storm.victims },
        queues: Queues::None,
        predictor_bytes: 0,
        client_config: ClientConfig::for_table(filled.table()),
        knows_locks: false,
        audit: Audit::Whole,
    };
    simulated::run(&run, filled, &Network::of(Profile::Mlx5), &mut |passed_ns| {
        progress(passed_ns);
        ControlFlow::Continue(())
    })
}

fn plan(storm: &Storm) -> FillPlan {
    let caps = Profile::Mlx5.caps();
    let options = PresetOptions {
        capacity: storm.keys,
        format: "fixed:8:8".parse().expect("a valid format"),
        extent_bytes: None,
        max_clients: Some(CLIENTS as u16 + SPARE_SLOTS),
        hash_seed: storm.seed,
        device_bytes: caps.device_bytes,
    };
    let config = Preset::Hardened.config(&options).expect("possible options");
    FillPlan { config, caps, records: storm.keys, value_bytes: None, insert_row: None, seed: storm.seed }
}

fn summary(stats: RunStats) -> StormStats {
    let operations = stats.counts.succeeded();
    let RunStats { deaths, recoveries, replays, busy, longest_ns, watched, verbs, violations: mut wrong, .. } = stats;
    if busy > 0 {
        wrong.push(format!("{busy} operations reached their deadline"));
    }
    StormStats { operations, deaths, recoveries, replays, busy, longest_ns, watched, verbs, wrong }
}
