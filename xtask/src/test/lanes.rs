//! Runs steps in lanes: two at a time, each as soon as what it comes after has ended.
//!
//! Compilers and tests leave cores idle (the last crate of a chain, a link, a timer): a second lane fills them. Steps
//! that build into one directory would wait for cargo's lock there, so only one of them runs at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::steps::{STEPS, Step, StepName};
use super::{Done, Outcome};

/// Steps that run at a time, at most: each keeps about one core busy.
const LANES_MAX: usize = 2;

/// The progress of each step, in the order of [`STEPS`].
struct Board {
    steps: [Progress; STEPS.len()],
}

enum Progress {
    Waiting,
    Running,
    Ended(Done),
}

/// The next thing for a lane to do.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Run(usize),
    /// Every step that is left comes after one that runs, or builds where one builds.
    Wait,
    Stop,
}

/// How many lanes this machine has.
pub fn count() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(LANES_MAX)
}

/// Carries out every step that `selects` names by `run`, in so many `lanes`, and tells `ended` of each.
pub fn run_all(
    lanes: usize,
    selects: impl Fn(StepName) -> bool,
    run: impl Fn(&Step) -> Outcome + Sync,
    ended: impl Fn(&Step, &Done) + Sync,
) -> Vec<Done> {
    let begin = |step: &Step| match selects(step.name) {
        true => Progress::Waiting,
        false => Progress::Ended(Done::new(step, 0.0, Outcome::Skipped)),
    };
    let board = Mutex::new(Board { steps: STEPS.each_ref().map(begin) });
    let changed = Condvar::new();
    let lane = || {
        loop {
            let mut now = lock(&board);
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
            // The other lane would wait for ever for a step that ends with its thread.
            let outcome = catch_unwind(AssertUnwindSafe(|| run(step)));
            let outcome = outcome.unwrap_or_else(|_| Outcome::Failed("it panicked".to_owned()));
            let done = Done::new(step, started.elapsed().as_secs_f64(), outcome);
            ended(step, &done);
            lock(&board).steps[place] = Progress::Ended(done);
            changed.notify_all();
        }
    };
    thread::scope(|scope| (0..lanes.max(1)).for_each(|_| drop(scope.spawn(lane))));
    let board = board.into_inner().unwrap_or_else(PoisonError::into_inner);
    let ended = |(progress, step): (Progress, &Step)| match progress {
        Progress::Ended(done) => done,
        Progress::Waiting | Progress::Running => Done::new(step, 0.0, Outcome::NotRun),
    };
    board.steps.into_iter().zip(&STEPS).map(ended).collect()
}

/// The board is whole at every moment: a lane changes one place of it at a time.
fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    /// The first step that can run. Steps that can run no more, because a build failed, end here.
    fn next(&mut self) -> Next {
        for step in &STEPS {
            let follows_failure = step.after.iter().any(|name| self.is_broken(*name));
            let progress = &mut self.steps[step.name.place()];
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
        let has_ended = |name: &StepName| matches!(self.steps[name.place()], Progress::Ended(_));
        let is_running = |other: &usize| matches!(self.steps[*other], Progress::Running);
        let mut running = (0..STEPS.len()).filter(is_running);
        let is_free = step.builds_in.is_none_or(|own| running.all(|other| STEPS[other].builds_in != Some(own)));
        matches!(self.steps[place], Progress::Waiting) && step.after.iter().all(has_ended) && is_free
    }

    /// Whether `name` is a build that failed, or that did not run because another one had failed.
    fn is_broken(&self, name: StepName) -> bool {
        match &self.steps[name.place()] {
            Progress::Ended(done) => name.is_build() && (done.outcome.is_failure() || done.outcome == Outcome::NotRun),
            Progress::Waiting | Progress::Running => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn board() -> Board {
        Board { steps: STEPS.each_ref().map(|_| Progress::Waiting) }
    }

    fn end(board: &mut Board, name: StepName, outcome: Outcome) {
        board.steps[name.place()] = Progress::Ended(Done::new(&STEPS[name.place()], 1.0, outcome));
    }

    /// Every step runs once, never before what it comes after, and never beside one that builds in the same place.
    #[test]
    fn steps_keep_their_order_and_share_no_build_directory() {
        for lanes in [1, 2, 5] {
            let (running, ended) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new()));
            let run = |step: &Step| {
                let mut now = running.lock().expect("nobody panicked");
                let beside = now.iter().map(|place: &usize| STEPS[*place].builds_in);
                assert!(beside.flatten().all(|other| step.builds_in != Some(other)), "{}", step.name);
                assert!(now.len() < lanes);
                let before = ended.lock().expect("nobody panicked");
                assert!(step.after.iter().all(|name| before.contains(&name.place())), "{}", step.name);
                drop(before);
                now.insert(step.name.place());
                drop(now);
                thread::yield_now();
                running.lock().expect("nobody panicked").remove(&step.name.place());
                assert!(ended.lock().expect("nobody panicked").insert(step.name.place()), "{} again", step.name);
                Outcome::Passed
            };
            let done = run_all(lanes, |_| true, run, |_, _| {});
            assert!(done.iter().all(|done| done.outcome == Outcome::Passed));
        }
    }

    #[test]
    fn what_waits_for_another_is_not_run_and_nothing_is_left() {
        let mut board = board();
        assert_eq!(board.next(), Next::Run(0));
        for step in &STEPS[1..] {
            end(&mut board, step.name, Outcome::Passed);
        }
        board.steps[0] = Progress::Running;
        assert_eq!(board.next(), Next::Stop, "the other lane has the last one");
        board.steps[StepName::Suites.place()] = Progress::Waiting;
        board.steps[StepName::TestBuild.place()] = Progress::Running;
        assert_eq!(board.next(), Next::Wait);
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
    fn only_a_failed_build_keeps_others_from_running() {
        let mut board = board();
        end(&mut board, StepName::Needs, Outcome::Failed(String::new()));
        end(&mut board, StepName::TestBuild, Outcome::TimedOut(String::new()));
        board.next();
        let not_run = |board: &Board, name: StepName| match &board.steps[name.place()] {
            Progress::Ended(done) => done.outcome == Outcome::NotRun,
            Progress::Waiting | Progress::Running => false,
        };
        assert!(not_run(&board, StepName::Suites) && not_run(&board, StepName::Porcupine));
        assert!(!not_run(&board, StepName::Clippy) && !not_run(&board, StepName::Fuzz));
    }
}
