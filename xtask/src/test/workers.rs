//! Runs steps on two workers, each step as soon as its predecessors have ended.
//!
//! Compilers and tests leave cores idle (the last crate of a chain, a link, a timer), which a second worker uses. Steps
//! that build into the same directory would wait for cargo's lock, so only one of them runs at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::steps::{STEPS, Step, StepName};
use super::{Done, Outcome};

/// Most concurrent steps: each keeps about one core busy.
const WORKERS_MAX: usize = 2;

/// The state of each step, in the order of [`STEPS`].
struct Schedule {
    steps: [Progress; STEPS.len()],
}

enum Progress {
    Waiting,
    Running,
    Ended(Done),
}

/// The next action of a worker.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Run(usize),
    /// Every remaining step must wait for a running one, or for its build directory.
    Wait,
    Stop,
}

/// The number of workers on this machine.
pub fn count() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX)
}

/// Runs every step that `selects` accepts by calling `run`, on this many `workers`, and calls `ended` for each.
pub fn run_all(
    workers: usize,
    selects: impl Fn(StepName) -> bool,
    run: impl Fn(&Step) -> Outcome + Sync,
    ended: impl Fn(&Step, &Done) + Sync,
) -> Vec<Done> {
    let begin = |step: &Step| match selects(step.name) {
        true => Progress::Waiting,
        false => Progress::Ended(Done::new(step, 0.0, Outcome::Skipped)),
    };
    let schedule = Mutex::new(Schedule { steps: STEPS.each_ref().map(begin) });
    let changed = Condvar::new();
    let worker = || {
        loop {
            let mut now = lock(&schedule);
            let place = match now.next() {
                Next::Run(place) => place,
                Next::Stop => return,
                Next::Wait => {
                    drop(changed.wait(now).unwrap_or_else(PoisonError::into_inner));
                    continue;
                }
            };
            let (step, started) = (&STEPS[place], Instant::now());
            now.steps[place] = Progress::Running;
            drop(now);
            // Without this, the other worker would wait forever for a step whose thread panicked.
            let outcome = catch_unwind(AssertUnwindSafe(|| run(step)));
            let outcome = outcome.unwrap_or_else(|_| Outcome::Failed("the step panicked".to_owned()));
            let done = Done::new(step, started.elapsed().as_secs_f64(), outcome);
            ended(step, &done);
            lock(&schedule).steps[place] = Progress::Ended(done);
            changed.notify_all();
        }
    };
    thread::scope(|scope| (0..workers.max(1)).for_each(|_| drop(scope.spawn(worker))));
    let schedule = schedule.into_inner().unwrap_or_else(PoisonError::into_inner);
    let ended = |(progress, step): (Progress, &Step)| match progress {
        Progress::Ended(done) => done,
        Progress::Waiting | Progress::Running => Done::new(step, 0.0, Outcome::NotRun),
    };
    schedule.steps.into_iter().zip(&STEPS).map(ended).collect()
}

/// Locks the schedule. It is valid even after a panic, because a worker changes only one entry at a time.
fn lock(schedule: &Mutex<Schedule>) -> MutexGuard<'_, Schedule> {
    schedule.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Schedule {
    /// Returns the first step that can run. Marks steps as not run if they need a build that failed.
    fn next(&mut self) -> Next {
        for step in &STEPS {
            let follows_failure = step.after.iter().any(|name| self.is_broken(*name));
            let progress = &mut self.steps[step.name.index()];
            if matches!(progress, Progress::Waiting) && follows_failure {
                *progress = Progress::Ended(Done::new(step, 0.0, Outcome::NotRun));
            }
        }
        let ready = (0..STEPS.len()).find(|place| self.is_ready(*place));
        let is_waiting = |progress: &Progress| matches!(progress, Progress::Waiting);
        match ready {
            Some(place) => Next::Run(place),
            None if self.steps.iter().any(is_waiting) => Next::Wait,
            None => Next::Stop,
        }
    }

    fn is_ready(&self, place: usize) -> bool {
        let step = &STEPS[place];
        let has_ended = |name: &StepName| matches!(self.steps[name.index()], Progress::Ended(_));
        let is_running = |other: &usize| matches!(self.steps[*other], Progress::Running);
        let mut running = (0..STEPS.len()).filter(is_running);
        let is_free = step.builds_in.is_none_or(|own| running.all(|other| STEPS[other].builds_in != Some(own)));
        matches!(self.steps[place], Progress::Waiting) && step.after.iter().all(has_ended) && is_free
    }

    /// Whether `name` is a build that failed, or that was not run because another build failed.
    fn is_broken(&self, name: StepName) -> bool {
        match &self.steps[name.index()] {
            Progress::Ended(done) => name.is_build() && (done.outcome.is_failure() || done.outcome == Outcome::NotRun),
            Progress::Waiting | Progress::Running => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn schedule() -> Schedule {
        Schedule { steps: STEPS.each_ref().map(|_| Progress::Waiting) }
    }

    fn end(schedule: &mut Schedule, name: StepName, outcome: Outcome) {
        schedule.steps[name.index()] = Progress::Ended(Done::new(&STEPS[name.index()], 1.0, outcome));
    }

    /// Every step runs once, never before its predecessors, and never beside one with the same build directory.
    #[test]
    fn steps_keep_their_order_and_share_no_build_directory() {
        for workers in [1, 2, 5] {
            let (running, ended) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new()));
            let run = |step: &Step| {
                let mut now = running.lock().expect("no thread panicked");
                let beside = now.iter().map(|place: &usize| STEPS[*place].builds_in);
                assert!(beside.flatten().all(|other| step.builds_in != Some(other)), "{}", step.name);
                assert!(now.len() < workers);
                let before = ended.lock().expect("no thread panicked");
                assert!(step.after.iter().all(|name| before.contains(&name.index())), "{}", step.name);
                drop(before);
                now.insert(step.name.index());
                drop(now);
                thread::yield_now();
                running.lock().expect("no thread panicked").remove(&step.name.index());
                assert!(ended.lock().expect("no thread panicked").insert(step.name.index()), "{} again", step.name);
                Outcome::Passed
            };
            let done = run_all(workers, |_| true, run, |_, _| {});
            assert!(done.iter().all(|done| done.outcome == Outcome::Passed));
        }
    }

    #[test]
    fn a_step_waits_for_its_predecessors_until_none_is_left() {
        let mut schedule = schedule();
        assert_eq!(schedule.next(), Next::Run(0));
        for step in &STEPS[1..] {
            end(&mut schedule, step.name, Outcome::Passed);
        }
        schedule.steps[0] = Progress::Running;
        assert_eq!(schedule.next(), Next::Stop, "the other worker runs the last step");
        schedule.steps[StepName::Suites.index()] = Progress::Waiting;
        schedule.steps[StepName::TestBuild.index()] = Progress::Running;
        assert_eq!(schedule.next(), Next::Wait);
    }

    #[test]
    fn a_step_that_panics_fails_and_the_others_run() {
        let run = |step: &Step| match step.name {
            StepName::Check => panic!("on purpose"),
            _ => Outcome::Passed,
        };
        let done = run_all(2, |_| true, run, |_, _| {});
        assert_eq!(done.iter().filter(|done| done.outcome == Outcome::Passed).count(), STEPS.len() - 1);
    }

    #[test]
    fn only_a_failed_build_prevents_other_steps() {
        let mut schedule = schedule();
        end(&mut schedule, StepName::Needs, Outcome::Failed(String::new()));
        end(&mut schedule, StepName::TestBuild, Outcome::TimedOut(String::new()));
        schedule.next();
        let not_run = |schedule: &Schedule, name: StepName| match &schedule.steps[name.index()] {
            Progress::Ended(done) => done.outcome == Outcome::NotRun,
            Progress::Waiting | Progress::Running => false,
        };
        assert!(not_run(&schedule, StepName::Suites) && not_run(&schedule, StepName::Porcupine));
        assert!(!not_run(&schedule, StepName::Clippy) && !not_run(&schedule, StepName::Fuzz));
    }
}
