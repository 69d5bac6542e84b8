//! One experiment: its simulation, and what its results say.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;

use guira_fabric_sim::{Resource, Usage};

use super::configure::{Configured, fill_error};
use crate::driver::OperationTally;
use crate::experiment::{
    Answer, Experiment, Kind, KindAnswer, LabError, Measure, Mix, Quantity, RunOptions, Setting, Statistic,
};
use crate::simulated::{FilledTable, RunError, RunStats, run};
use crate::steady::{Counts, Steadiness};

/// A resource that is busy for more than this part of the time limits throughput.
const SATURATED: f64 = 0.9;
/// Violations that an error quotes.
const QUOTED: usize = 3;

/// The results of one experiment.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) answer: Answer,
    /// Every cost that a chart can show.
    costs: HashMap<(Statistic, Kind, Quantity), f64>,
    steadiness: Steadiness,
}

/// Carries out an experiment on a copy of `filled`, and checks it: anything wrong is an error, but what the printed
/// protocol loses when clients die is a note.
pub(super) fn measure(
    experiment: &Experiment,
    configured: &Configured,
    filled: &FilledTable,
    options: &RunOptions,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Outcome, LabError> {
    let copy = filled.fork().map_err(|error| fill_error(&error))?;
    let stats = carry_out(configured, copy, is_stopped)?;
    let mut outcome = outcome_of(experiment, &stats, options);
    if experiment.setting == Setting::AsPrinted && experiment.deaths_per_second > 0.0 {
        // The printed protocol has holes, and what it loses is a result.
        outcome.answer.notes.extend(lost_as_printed(stats.violation_count));
    } else {
        check(&stats)?;
    }
    let held = filled.count() - filled.absent().len() as u64 + stats.inserts;
    outcome.answer.fill_at_end = held as f64 * 100.0 / filled.table().config().max_entries() as f64;
    let absent = filled.absent().len();
    if absent > 0 {
        let note = format!("{absent} of {} records found no room when the table was filled", filled.count());
        outcome.answer.notes.push(note);
    }
    Ok(outcome)
}

/// Says what clients lost that follow the printed protocol, if they lost anything.
fn lost_as_printed(violations: u64) -> Option<String> {
    let some = (violations > 0).then_some(violations)?;
    Some(format!(
        "as printed, the check at the end found {some} violations: the printed protocol can lose writes when clients die \
         (docs/holes.md)"
    ))
}

/// Carries out an experiment on `filled`, which is changed, and checks it.
pub(super) fn run_checked(
    configured: &Configured,
    filled: FilledTable,
    is_stopped: &dyn Fn() -> bool,
) -> Result<RunStats, LabError> {
    let stats = carry_out(configured, filled, is_stopped)?;
    check(&stats)?;
    Ok(stats)
}

pub(super) fn check(stats: &RunStats) -> Result<(), LabError> {
    if stats.violation_count == 0 {
        return Ok(());
    }
    let quoted = stats.violations.iter().take(QUOTED).cloned().collect::<Vec<_>>().join("; ");
    let reason = format!("{} violations: {quoted}", stats.violation_count);
    Err(LabError::Failed { what: "the check of an experiment".to_owned(), reason })
}

/// Carries out an experiment on `filled`, which is changed. The results have what is wrong with the table in the end.
fn carry_out(
    configured: &Configured,
    filled: FilledTable,
    is_stopped: &dyn Fn() -> bool,
) -> Result<RunStats, LabError> {
    let mut progress = progress(is_stopped);
    run(&configured.run, filled, &configured.cluster, &mut progress).map_err(run_error)
}

/// Converts an error of a run.
pub(super) fn run_error(error: RunError) -> LabError {
    match error {
        RunError::Stopped => LabError::Stopped,
        RunError::Fill(error) => fill_error(&error),
        RunError::Clients { .. } | RunError::Hosts { .. } | RunError::Mix { .. } | RunError::Workload(_) => {
            LabError::Conflict(error.to_string())
        }
    }
}

/// Creates the error of a step that cannot fail unless there is a bug.
pub(super) fn failed(what: &str, error: &dyn fmt::Display) -> LabError {
    LabError::Failed { what: what.to_owned(), reason: error.to_string() }
}

/// Returns the progress function of a run that ends when `is_stopped` says so.
pub(super) fn progress(is_stopped: &dyn Fn() -> bool) -> impl FnMut(u64) -> ControlFlow<()> {
    move |_| if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Returns the outcome of an experiment of the real protocol.
pub(super) fn outcome_of(experiment: &Experiment, stats: &RunStats, options: &RunOptions) -> Outcome {
    let RunStats { counts, steadiness, usage, .. } = stats;
    let mut outcome = outcome(experiment, options, counts, *steadiness, usage, notes(stats));
    outcome.answer.element_bytes = experiment.steering.map(|_| stats.element_bytes);
    outcome
}

/// Returns the outcome of an experiment, of whatever setting.
pub(super) fn outcome(
    experiment: &Experiment,
    options: &RunOptions,
    counts: &Counts,
    steadiness: Steadiness,
    usage: &Usage,
    notes: Vec<String>,
) -> Outcome {
    let mut tallies: Vec<(Kind, OperationTally)> = Vec::new();
    for (name, tally) in counts.operations.named() {
        let kind = match name {
            "read" => Kind::Read,
            "insert" => Kind::Insert,
            _ => Kind::Update,
        };
        if tally.count > 0 {
            tallies.push((kind, tally.clone()));
        }
    }
    let mut all = OperationTally::default();
    tallies.iter().for_each(|(_, tally)| all.merge(tally));
    tallies.push((Kind::Operation, all));
    let mut costs = HashMap::new();
    for (kind, tally) in &tallies {
        for (statistic, _) in Statistic::ALL {
            for (quantity, _) in Quantity::ALL {
                costs.entry((statistic, *kind, quantity)).or_insert_with(|| cost(tally, statistic, quantity));
            }
        }
    }
    let answer = Answer {
        experiment: *experiment,
        seed: options.seed,
        throughput_mops: counts.per_second(steadiness.span_ns) / 1e6,
        throughput_spread: None,
        fairness: counts.fairness(),
        span_us: steadiness.span_ns as f64 / 1e3,
        fill_at_end: experiment.fill,
        is_steady: steadiness.is_steady(),
        read_slots: None,
        matches_mops: None,
        element_bytes: None,
        kinds: tallies.iter().map(|(kind, tally)| kind_answer(*kind, tally)).collect(),
        resources: resources(usage),
        bound_by: bound_by(usage, experiment),
        notes,
    };
    Outcome { answer, costs, steadiness }
}

impl Outcome {
    /// Returns the answer, which says what was not steady.
    pub(super) fn into_answer(self) -> Answer {
        let Outcome { mut answer, steadiness, .. } = self;
        answer.notes.extend(steadiness.complaint());
        answer
    }

    /// Returns the value of a measure, if the experiment has operations of its kind.
    pub(super) fn measured(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Throughput => Some(self.answer.throughput_mops),
            Measure::Fairness => Some(self.answer.fairness),
            Measure::Matches => self.answer.matches_mops,
            Measure::ElementBytes => self.answer.element_bytes.map(|bytes| bytes as f64),
            Measure::Cost(statistic, kind, quantity) => self.costs.get(&(statistic, kind, quantity)).copied(),
        }
    }
}

/// Returns a statistic of the costs of one kind of operation.
fn cost(tally: &OperationTally, statistic: Statistic, quantity: Quantity) -> f64 {
    let (values, scale) = match quantity {
        Quantity::Latency => (&tally.latency_ns, 1e-3),
        Quantity::RoundTrips => (&tally.round_trips, 1.0),
        // Of those that succeeded, like the others.
        Quantity::Messages => return tally.messages as f64 / tally.round_trips.count() as f64,
        Quantity::Bytes => return tally.wire_bytes as f64 / tally.round_trips.count() as f64,
    };
    scale
        * match statistic {
            Statistic::Mean => values.mean(),
            Statistic::P50 => values.quantile(0.5) as f64,
            Statistic::P90 => values.quantile(0.9) as f64,
            Statistic::P99 => values.quantile(0.99) as f64,
            Statistic::P999 => values.quantile(0.999) as f64,
        }
}

fn kind_answer(kind: Kind, tally: &OperationTally) -> KindAnswer {
    let latency = |statistic| cost(tally, statistic, Quantity::Latency);
    KindAnswer {
        kind,
        operations: tally.count,
        p50_us: latency(Statistic::P50),
        p99_us: latency(Statistic::P99),
        p999_us: latency(Statistic::P999),
        round_trips: cost(tally, Statistic::Mean, Quantity::RoundTrips),
        messages: cost(tally, Statistic::Mean, Quantity::Messages),
        bytes: cost(tally, Statistic::Mean, Quantity::Bytes),
    }
}

/// Returns the resources and the part of the time for which each was busy, the busiest first.
fn resources(usage: &Usage) -> Vec<(String, f64)> {
    let mut shares: Vec<(Resource, f64)> =
        Resource::ALL.into_iter().map(|resource| (resource, usage.share(resource).min(1.0))).collect();
    shares.sort_by(|one, other| other.1.total_cmp(&one.1));
    shares.into_iter().map(|(resource, share)| (name_of(resource).to_owned(), share)).collect()
}

/// Returns the name of a resource in a report.
fn name_of(resource: Resource) -> &'static str {
    match resource {
        Resource::NodeLinkIn => "the link to the memory node",
        Resource::NodeLinkOut => "the link from the memory node",
        Resource::NodeMessages => "the message rate of the memory node's card",
        Resource::NodeAtomics => "atomics of the memory node's card",
        Resource::BusiestWord => "atomics on one word",
        Resource::NodeFetch => "PCIe from the memory node's memory",
        Resource::NodeStore => "PCIe to the memory node's memory",
        Resource::NodeProcessor => "the memory node's processor, which makes memory",
        Resource::NodeThreads => "the service of the memory node",
        Resource::HostCard => "the message rate of a client host's card",
        Resource::HostLinkIn => "the link to a client host",
        Resource::HostLinkOut => "the link from a client host",
        Resource::Doorbell => "a doorbell register of a client host",
        Resource::ClientProcessors => "the clients' processors",
    }
}

/// Says in one sentence what limits throughput.
fn bound_by(usage: &Usage, experiment: &Experiment) -> String {
    let (resource, share) = usage.busiest();
    let percent = 100.0 * share.min(1.0);
    if share >= SATURATED {
        return format!("{} is busy for {percent:.0} % of the time", name_of(resource));
    }
    let busiest = name_of(resource);
    let others = match (experiment.workload, experiment.setting) {
        (Mix::C, _) => "",
        (_, Setting::Clover) => ", more of them where others have changed a key",
        _ => " and each other's locks",
    };
    format!("the clients' waits, for round trips{others}; the busiest resource is {busiest}, {percent:.0} %")
}

/// Sentences about what happened besides the workload.
fn notes(stats: &RunStats) -> Vec<String> {
    let mut notes = Vec::new();
    let by_client = &stats.counts.by_client;
    let idle = by_client.iter().filter(|operations| **operations == 0).count();
    if idle > 0 {
        let all = by_client.len();
        notes.push(format!("{idle} of {all} clients completed nothing: latencies are those of the others' operations"));
    }
    if stats.deaths > 0 {
        notes.push(format!("{} clients died, {} were recovered", stats.deaths, stats.recoveries));
    }
    if stats.busy > 0 {
        notes.push(format!("{} operations reached their deadline", stats.busy));
    }
    if stats.full > 0 {
        notes.push(format!("{} inserts found no room", stats.full));
    }
    notes
}
