//! Experiments on threads: those that start from one table share it, and each thread takes the next one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};

use super::as_run::{self, AsRun};
use super::cell::{self, Outcome, failed};
use super::configure::{self, Configured, fill_error, least_span_us};
use super::stores;
use crate::as_run::table::Table as AsRunTable;
use crate::experiment::{Experiment, LabError, RunOptions, Setting, Watch};
use crate::simulated::{FilledTable, available_bytes};

/// An experiment and what it means.
type Job<'e> = (&'e Experiment, Prepared);

/// An experiment, ready to run.
enum Prepared {
    /// Of the real protocol.
    Protocol(Box<Configured>),
    /// Of the authors' messages.
    AsRun(Box<AsRun>),
    /// Of another store.
    Store(Box<stores::Configured>),
}

/// A table that experiments start from.
enum Table {
    Protocol(Box<FilledTable>),
    AsRun(Box<AsRunTable>),
    Store(Box<stores::Filled>),
}

impl Prepared {
    fn new(experiment: &Experiment, options: &RunOptions, least_us: f64) -> Result<Prepared, LabError> {
        Ok(match experiment.setting {
            Setting::Guira | Setting::AsPrinted => {
                Prepared::Protocol(Box::new(configure::configure(experiment, options, least_us)?))
            }
            Setting::AsRun => Prepared::AsRun(Box::new(as_run::configure(experiment, options, least_us)?)),
            Setting::Linear | Setting::Cuckoo | Setting::Dummy | Setting::Clover => {
                Prepared::Store(Box::new(stores::configure(experiment, options, least_us)?))
            }
        })
    }

    /// Whether both start from the same table.
    fn shares_table(&self, other: &Prepared) -> bool {
        match (self, other) {
            (Prepared::Protocol(one), Prepared::Protocol(other)) => one.fill == other.fill,
            (Prepared::AsRun(one), Prepared::AsRun(other)) => one.table == other.table,
            (Prepared::Store(one), Prepared::Store(other)) => one.table == other.table,
            _ => false,
        }
    }

    fn table_bytes(&self) -> Result<u64, LabError> {
        match self {
            Prepared::Protocol(configured) => configured.fill.needed_bytes().map_err(|error| fill_error(&error)),
            Prepared::AsRun(as_run) => Ok(as_run.table.needed_bytes()),
            Prepared::Store(store) => Ok(store.table.needed_bytes()),
        }
    }

    /// Returns the bytes of the predictors of all clients.
    fn predictor_bytes(&self) -> u64 {
        match self {
            Prepared::Protocol(configured) => {
                let (bytes, copies) = configured.run.predictors();
                (bytes as u64).saturating_mul(copies)
            }
            Prepared::AsRun(_) | Prepared::Store(_) => 0,
        }
    }

    fn filled(&self, is_stopped: &dyn Fn() -> bool) -> Result<Table, LabError> {
        Ok(match self {
            Prepared::Protocol(configured) => {
                Table::Protocol(Box::new(configure::filled(&configured.fill, is_stopped)?))
            }
            Prepared::AsRun(as_run) => Table::AsRun(Box::new(as_run.table.filled(is_stopped)?)),
            Prepared::Store(store) => Table::Store(Box::new(store.table.filled(is_stopped)?)),
        })
    }
}

/// The outcome of an experiment; [`LabError::Unfillable`] if its table cannot be filled.
type Ended = Result<Outcome, LabError>;

/// The experiments that were carried out, with their outcomes: those that several charts have in common are carried out
/// once.
#[derive(Debug, Default)]
pub struct Outcomes(Vec<(Determinants, Ended)>);

/// Everything that determines the outcome of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Determinants {
    experiment: Experiment,
    seed: u64,
    quick: bool,
    /// The least time that the experiments of its chart measure.
    least_us: f64,
}

impl Outcomes {
    fn get(&self, of: &Determinants) -> Option<&Ended> {
        self.0.iter().find(|(known, _)| known == of).map(|(_, ended)| ended)
    }
}

/// Carries out the experiments that have no outcome yet, and returns those of all, in the same order.
pub(super) fn run(
    experiments: &[Experiment],
    options: &RunOptions,
    outcomes: &mut Outcomes,
    watch: &dyn Watch,
) -> Result<Vec<Ended>, LabError> {
    let least_us = experiments.iter().map(|experiment| least_span_us(experiment, options)).fold(0.0, f64::max);
    let (seed, quick) = (options.seed, options.quick);
    let all = experiments.iter().map(|&experiment| Determinants { experiment, seed, quick, least_us });
    let all: Vec<Determinants> = all.collect();
    let (known, new): (Vec<_>, Vec<_>) = all.iter().copied().partition(|of| outcomes.get(of).is_some());
    known.iter().for_each(|_| watch.cell_done());
    let of_new: Vec<Experiment> = new.iter().map(|of| of.experiment).collect();
    let ended = carry_out(&of_new, least_us, options, watch)?;
    outcomes.0.extend(new.into_iter().zip(ended));
    let missing = || failed("an experiment", &"it has no outcome");
    all.iter().map(|of| outcomes.get(of).cloned().ok_or_else(missing)).collect()
}

/// Carries out `experiments`, and returns their outcomes in the same order.
fn carry_out(
    experiments: &[Experiment],
    least_us: f64,
    options: &RunOptions,
    watch: &dyn Watch,
) -> Result<Vec<Ended>, LabError> {
    let prepared = experiments.iter().map(|experiment| Ok((experiment, Prepared::new(experiment, options, least_us)?)));
    let jobs: Vec<Job<'_>> = prepared.collect::<Result<_, LabError>>()?;
    let groups = groups(&jobs);
    for group in &groups {
        let of_group = group.iter().map(|index| &jobs[*index].1);
        require_memory(of_group, options.jobs.clamp(1, group.len()))?;
    }
    let mut outcomes: Vec<Option<Ended>> = jobs.iter().map(|_| None).collect();
    for group in groups {
        let table = match jobs[group[0]].1.filled(&|| watch.is_stopped()) {
            Ok(table) => table,
            Err(error @ LabError::Unfillable { .. }) => {
                for index in group {
                    outcomes[index] = Some(Err(error.clone()));
                    watch.cell_done();
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        let of_group: Vec<&Job<'_>> = group.iter().map(|index| &jobs[*index]).collect();
        for (index, outcome) in group.iter().zip(run_group(&of_group, &table, options, watch)?) {
            outcomes[*index] = Some(Ok(outcome));
        }
    }
    Ok(outcomes.into_iter().flatten().collect())
}

/// Returns the experiments that start from the same table together, by their indices, in the order of the first ones.
fn groups(jobs: &[Job<'_>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, (_, next)) in jobs.iter().enumerate() {
        match groups.iter_mut().find(|group| jobs[group[0]].1.shares_table(next)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Refuses experiments with one table if it does not fit in memory with its copies and the predictors of their clients.
fn require_memory<'p>(group: impl Iterator<Item = &'p Prepared>, copies: usize) -> Result<(), LabError> {
    let (mut table_bytes, mut predictor_bytes) = (0, 0);
    for prepared in group {
        table_bytes = prepared.table_bytes()?;
        predictor_bytes = prepared.predictor_bytes().max(predictor_bytes);
    }
    let of_copy = table_bytes.saturating_add(predictor_bytes);
    let needed_bytes = of_copy.saturating_mul(copies as u64).saturating_add(table_bytes);
    match available_bytes() {
        Some(free_bytes) if free_bytes < needed_bytes => Err(LabError::Memory { needed_bytes, free_bytes }),
        _ => Ok(()),
    }
}

/// Carries out one experiment on a copy of its table.
fn measure(
    (experiment, prepared): &Job<'_>,
    table: &Table,
    options: &RunOptions,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Outcome, LabError> {
    match (prepared, table) {
        (Prepared::Protocol(configured), Table::Protocol(filled)) => {
            cell::measure(experiment, configured, filled, options, is_stopped)
        }
        (Prepared::AsRun(configured), Table::AsRun(table)) => {
            as_run::measure(experiment, configured, table, options, is_stopped)
        }
        (Prepared::Store(configured), Table::Store(filled)) => {
            stores::measure(experiment, configured, filled, options, is_stopped)
        }
        _ => Err(failed("an experiment", &"its table is of another setting")),
    }
}

/// Carries out experiments on copies of one table, and returns their outcomes in the same order.
fn run_group(
    group: &[&Job<'_>],
    table: &Table,
    options: &RunOptions,
    watch: &dyn Watch,
) -> Result<Vec<Outcome>, LabError> {
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<(usize, Result<Outcome, LabError>)>> = Mutex::new(Vec::new());
    let is_stopped = || has_failed.load(Ordering::Relaxed) || watch.is_stopped();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = group.get(index) else { return };
            let result = measure(job, table, options, &is_stopped);
            has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            watch.cell_done();
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..options.jobs.clamp(1, group.len()) {
            // Where the system refuses a thread, fewer measure.
            let _ = Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    // The first failure in the order of the experiments, but a failure before the stop that it caused.
    let (mut outcomes, mut error) = (Vec::new(), None);
    for (_, result) in results {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(LabError::Stopped) => error = error.or(Some(LabError::Stopped)),
            Err(failure) => match error {
                None | Some(LabError::Stopped) => error = Some(failure),
                Some(_) => {}
            },
        }
    }
    match error {
        Some(error) => Err(error),
        None if outcomes.len() == group.len() => Ok(outcomes),
        None => Err(failed("an experiment", &"its thread ended early")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Plan, run_plan};

    /// Goes on, or stops every experiment that begins.
    struct Watching {
        is_stopped: bool,
    }

    impl Watch for Watching {
        fn begin(&self, _: &str, _: u64) {}

        fn cell_done(&self) {}

        fn is_stopped(&self) -> bool {
            self.is_stopped
        }
    }

    #[test]
    fn experiments_of_several_charts_are_carried_out_once() {
        let plan = |measure: &str, values: &str| {
            let text = format!(
                "title = \"reads\"\nmeasure = \"{measure}\"\nx = {{ parameter = \"clients\", values = {values} }}\n\
                 series = [{{ name = \"dummy\" }}]\n[base]\nsetting = \"dummy\"\nworkload = \"c\"\nentries = 1138\n\
                 span-us = 200\nwarm-us = 20\n"
            );
            Plan::parse("plan", &text).unwrap()
        };
        let options = RunOptions { quick: true, seed: 1, seeds: 2, jobs: 1 };
        let mut outcomes = Outcomes::default();
        let mut run = |plan: &Plan, options: &RunOptions, is_stopped| {
            run_plan("chart", plan, options, &mut outcomes, &Watching { is_stopped })
        };
        let rates = run(&plan("throughput", "[1, 2]"), &options, false).unwrap();
        // Nothing is carried out for these, so nothing is stopped.
        assert_eq!(run(&plan("throughput", "[1, 2]"), &options, true).unwrap(), rates);
        let latencies = run(&plan("p99-read", "[1, 2]"), &options, true).unwrap();
        assert_ne!(latencies.series[0].points[0].y, rates.series[0].points[0].y);
        // Other experiments, other seeds and full runs are.
        let others = [
            (plan("throughput", "[1, 3]"), options),
            (plan("throughput", "[1, 2]"), RunOptions { seed: 2, ..options }),
            (plan("throughput", "[1, 2]"), RunOptions { quick: false, ..options }),
        ];
        for (plan, options) in others {
            assert!(matches!(run(&plan, &options, true), Err(LabError::Stopped)));
        }
    }
}
