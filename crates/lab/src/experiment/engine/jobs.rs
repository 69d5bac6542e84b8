//! Experiments on threads: those that start from one table share it, and each thread takes the next one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};

use super::as_run::{self, AsRun};
use super::cell::{self, Outcome, failed};
use super::configure::{self, Configured, fill_error, least_span_us};
use super::stores;
use crate::as_run::table::Table as AsRunTable;
use crate::experiment::{Experiment, LabError, RunOptions, Setting, Watch};
use crate::simulated::{FilledTable, available_bytes};

/// An experiment with one seed, and what it means.
struct Job {
    experiment: Experiment,
    options: RunOptions,
    prepared: Prepared,
}

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

/// Carries out the experiments that have no outcome yet, with each seed, and returns those of all, seed by seed, in the
/// same order.
pub(super) fn run(
    experiments: &[Experiment],
    options: &RunOptions,
    outcomes: &mut Outcomes,
    watch: &dyn Watch,
) -> Result<Vec<Vec<Ended>>, LabError> {
    let least_us = experiments.iter().map(|experiment| least_span_us(experiment, options)).fold(0.0, f64::max);
    let quick = options.quick;
    let seeds: Vec<u64> = (0..options.seeds).map(|nth| options.seed.wrapping_add(nth.into())).collect();
    let with = |seed| experiments.iter().map(move |&experiment| Determinants { experiment, seed, quick, least_us });
    let is_known = |of: &Determinants| outcomes.get(of).is_some();
    let (known, new): (Vec<_>, Vec<_>) = seeds.iter().flat_map(|seed| with(*seed)).partition(is_known);
    known.iter().for_each(|_| watch.cell_done());
    let ended = carry_out(&new, options, watch)?;
    outcomes.0.extend(new.into_iter().zip(ended));
    let missing = || failed("an experiment", &"it has no outcome");
    let outcome = |of: Determinants| outcomes.get(&of).cloned().ok_or_else(missing);
    seeds.iter().map(|seed| with(*seed).map(outcome).collect()).collect()
}

/// Carries out experiments, and returns their outcomes in the same order.
fn carry_out(wanted: &[Determinants], options: &RunOptions, watch: &dyn Watch) -> Result<Vec<Ended>, LabError> {
    let job = |of: &Determinants| {
        let options = RunOptions { seed: of.seed, ..*options };
        Ok(Job { experiment: of.experiment, prepared: Prepared::new(&of.experiment, &options, of.least_us)?, options })
    };
    let jobs: Vec<Job> = wanted.iter().map(job).collect::<Result<_, LabError>>()?;
    let groups = groups(&jobs);
    let threads = options.jobs.clamp(1, jobs.len().max(1));
    let overlap = groups.iter().try_fold(true, |overlap, group| {
        let of_group = group.iter().map(|index| &jobs[*index].prepared);
        Ok(require_memory(of_group, threads.min(group.len()), threads)? && overlap)
    })?;
    let schedule = Schedule::new(&jobs, groups, overlap, watch);
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system refuses a thread, fewer measure.
            let _ = Builder::new().spawn_scoped(scope, || schedule.work());
        }
        schedule.work();
    });
    schedule.into_outcomes()
}

/// Returns the experiments that start from the same table together, by their indices, in the order of the first ones.
fn groups(jobs: &[Job]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, next) in jobs.iter().enumerate() {
        match groups.iter_mut().find(|group| jobs[group[0]].prepared.shares_table(&next.prepared)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Refuses experiments with one table if it does not fit in memory with `copies` of it and the predictors of their
/// clients. Returns whether each of so many threads may have a table of its own as well.
fn require_memory<'p>(
    group: impl Iterator<Item = &'p Prepared>,
    copies: usize,
    threads: usize,
) -> Result<bool, LabError> {
    let (mut table_bytes, mut predictor_bytes) = (0, 0);
    for prepared in group {
        table_bytes = prepared.table_bytes()?;
        predictor_bytes = prepared.predictor_bytes().max(predictor_bytes);
    }
    let needed = |copies: usize, tables: usize| {
        let of_copies = table_bytes.saturating_add(predictor_bytes).saturating_mul(copies as u64);
        table_bytes.saturating_mul(tables as u64).saturating_add(of_copies)
    };
    let Some(free_bytes) = available_bytes() else { return Ok(true) };
    match needed(copies, 1) {
        needed_bytes if needed_bytes > free_bytes => Err(LabError::Memory { needed_bytes, free_bytes }),
        // The other half is for what the runs themselves need.
        _ => Ok(needed(threads, threads) <= free_bytes / 2),
    }
}

/// Carries out one experiment on a copy of its table.
fn measure(job: &Job, table: &Table, is_stopped: &dyn Fn() -> bool) -> Result<Outcome, LabError> {
    let Job { experiment, prepared, options } = job;
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

/// The experiments that are left, and what threads do about them: each takes the next one whose table is filled, and
/// fills the next table if there is none, so that no thread waits for the last experiment of a table.
struct Schedule<'j> {
    jobs: &'j [Job],
    /// Whether tables may be filled while experiments with others are carried out.
    overlap: bool,
    watch: &'j dyn Watch,
    has_failed: AtomicBool,
    state: Mutex<State>,
    /// Signalled whenever a thread has done something.
    done: Condvar,
}

struct State {
    groups: Vec<Group>,
    outcomes: Vec<Option<Ended>>,
    /// Failures that end everything, with their experiments.
    failures: Vec<(usize, LabError)>,
    /// Number of threads that fill a table or carry out an experiment.
    busy: usize,
}

/// Experiments with one table.
struct Group {
    /// The first of them.
    first: usize,
    /// The experiments that no thread has taken.
    left: VecDeque<usize>,
    table: GroupTable,
}

enum GroupTable {
    Empty,
    /// A thread fills it, or none needs it any more.
    Away,
    Filled(Arc<Table>),
}

/// The next step of a thread.
enum Next {
    Fill(usize),
    Measure(usize, Arc<Table>),
}

impl<'j> Schedule<'j> {
    fn new(jobs: &'j [Job], groups: Vec<Vec<usize>>, overlap: bool, watch: &'j dyn Watch) -> Schedule<'j> {
        let group = |left: Vec<usize>| Group { first: left[0], left: left.into(), table: GroupTable::Empty };
        let state = State {
            groups: groups.into_iter().map(group).collect(),
            outcomes: jobs.iter().map(|_| None).collect(),
            failures: Vec::new(),
            busy: 0,
        };
        let (has_failed, done) = (AtomicBool::new(false), Condvar::new());
        Schedule { jobs, overlap, watch, has_failed, state: Mutex::new(state), done }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed) || self.watch.is_stopped()
    }

    /// Works until nothing is left.
    fn work(&self) {
        while let Some((next, _busy)) = self.next() {
            match next {
                Next::Fill(group) => self.fill(group),
                Next::Measure(index, table) => {
                    let outcome = measure(&self.jobs[index], &table, &|| self.is_stopped());
                    drop(table);
                    self.end(index, outcome);
                }
            }
        }
    }

    /// Returns what to do next, perhaps after another thread has done something; nothing if all has ended, or the run is
    /// stopped.
    fn next(&self) -> Option<(Next, Busy<'_, 'j>)> {
        let mut state = self.state();
        loop {
            if self.is_stopped() {
                return None;
            }
            let next = state.take_filled().or_else(|| state.take_empty(self.overlap));
            if let Some(next) = next {
                state.busy += 1;
                return Some((next, Busy(self)));
            }
            if state.busy == 0 {
                return None;
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fill(&self, group: usize) {
        let first = self.state().groups[group].first;
        let filled = self.jobs[first].prepared.filled(&|| self.is_stopped());
        match filled {
            Ok(table) => self.state().groups[group].table = GroupTable::Filled(Arc::new(table)),
            Err(error @ LabError::Unfillable { .. }) => {
                let left = std::mem::take(&mut self.state().groups[group].left);
                left.into_iter().for_each(|index| self.record(index, Err(error.clone())));
            }
            Err(error) => self.end(first, Err(error)),
        }
    }

    /// Ends an experiment, or all if it failed.
    fn end(&self, index: usize, outcome: Result<Outcome, LabError>) {
        match outcome {
            Ok(outcome) => self.record(index, Ok(outcome)),
            Err(error) => {
                self.has_failed.store(true, Ordering::Relaxed);
                self.state().failures.push((index, error));
            }
        }
    }

    fn record(&self, index: usize, ended: Ended) {
        self.state().outcomes[index] = Some(ended);
        self.watch.cell_done();
    }

    /// Returns the outcomes in the order of the experiments, or the first failure in this order: none that a failure
    /// caused by stopping the others.
    fn into_outcomes(self) -> Result<Vec<Ended>, LabError> {
        let is_stopped = self.watch.is_stopped();
        let State { outcomes, mut failures, .. } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        failures.sort_by_key(|(index, error)| (matches!(error, LabError::Stopped), *index));
        match failures.into_iter().next() {
            Some((_, error)) => Err(error),
            None => {
                let missing =
                    || if is_stopped { LabError::Stopped } else { failed("an experiment", &"its thread ended early") };
                outcomes.into_iter().map(|ended| ended.ok_or_else(missing)).collect()
            }
        }
    }
}

impl State {
    /// Takes an experiment whose table is filled. The table is freed with its last experiment.
    fn take_filled(&mut self) -> Option<Next> {
        self.groups.iter_mut().find_map(|group| {
            let GroupTable::Filled(table) = &group.table else { return None };
            let (index, table) = (group.left.pop_front()?, Arc::clone(table));
            if group.left.is_empty() {
                group.table = GroupTable::Away;
            }
            Some(Next::Measure(index, table))
        })
    }

    /// Takes a table that must be filled, unless all threads must have ended before.
    fn take_empty(&mut self, overlap: bool) -> Option<Next> {
        if self.busy > 0 && !overlap {
            return None;
        }
        let group = self.groups.iter().position(|group| matches!(group.table, GroupTable::Empty))?;
        self.groups[group].table = GroupTable::Away;
        Some(Next::Fill(group))
    }
}

/// A thread that does something; when it ends, also by a panic, the others look again.
struct Busy<'s, 'j>(&'s Schedule<'j>);

impl Drop for Busy<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.has_failed.store(true, Ordering::Relaxed);
        }
        self.0.state().busy -= 1;
        self.0.done.notify_all();
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
