//! The worker processes of a round, and the faults injected into them.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guira::Url;
use guira_fabric::SplitMix64;
use guira_layout::OwnerId;
use guira_testing::{patience, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::histories::fixture::{Fabric, Fixture, RoundGoals};
use crate::histories::lock_monitor::LockMonitor;
use crate::histories::log::{SharedLog, now_ns};
use crate::histories::node::NodeProcess;
use crate::histories::worker::Task;
use crate::histories::{Case, PROCESSES};

/// Shortest and longest pause of a stopped process. Pauses are log-uniform in between.
const SHORTEST_STOP_US: f64 = 1_000.0;
const LONGEST_STOP_US: f64 = 1_000_000.0;
/// Longest time from one stop to the next.
const LONGEST_STOP_INTERVAL_US: u64 = 60_000;
/// Most processes that are stopped at the same time: the others go on.
const MAX_STOPPED: usize = 3;
/// Time spent looking for a holder of a lock before a kill.
const HOLDER_SEARCH_TIMEOUT: Duration = Duration::from_millis(10);
/// Answered operations from one kill of the node to the next: clients have found the new node.
const ANSWERED_BETWEEN_RESTARTS: u64 = 20;
/// Time between two looks at what is due.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Longest time between the end of a node and the start of the next one.
const LONGEST_OUTAGE_US: u64 = 100_000;

/// Counts of the faults that were injected.
#[derive(Clone, Debug, Default)]
pub struct FaultCounts {
    pub kills: u64,
    /// Kills of processes that held a lock.
    pub kills_of_holders: u64,
    /// Kills of processes that were stopped.
    pub kills_of_stopped: u64,
    /// Kills before the keys were inserted that a round is to insert.
    pub kills_in_growth: u64,
    pub stops: u64,
    /// Clients that were fenced while they lived.
    pub fences: u64,
    pub fences_of_holders: u64,
    /// The times at which the node was killed, by [`now_ns`].
    pub restarts_ns: Vec<u64>,
}

impl FaultCounts {
    /// Whether as many faults were injected as a round needs.
    fn reach(&self, goals: &RoundGoals) -> bool {
        let restarts = self.restarts_ns.len() as u64;
        self.kills >= goals.kills
            && self.stops >= goals.stops
            && self.fences >= goals.fences
            && restarts >= goals.restarts
    }

    pub fn add(&mut self, other: &FaultCounts) {
        self.kills += other.kills;
        self.kills_of_holders += other.kills_of_holders;
        self.kills_of_stopped += other.kills_of_stopped;
        self.kills_in_growth += other.kills_in_growth;
        self.stops += other.stops;
        self.fences += other.fences;
        self.fences_of_holders += other.fences_of_holders;
        self.restarts_ns.extend(&other.restarts_ns);
    }
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultCounts { kills, kills_of_holders, kills_of_stopped, stops, fences, fences_of_holders, .. } = self;
        write!(
            f,
            "{kills} kills ({kills_of_holders} of processes that held a lock, {kills_of_stopped} of stopped ones), \
             {stops} stops, {fences} fences ({fences_of_holders} of clients that held a lock), {} kills of the node",
            self.restarts_ns.len()
        )
    }
}

/// A worker process. It is killed when this is dropped, so that none outlives the test.
struct WorkerProcess {
    process: u64,
    /// Its place among the workers that run, whose share of the inserts it has.
    place: u64,
    child: Child,
    stopped_until: Option<Instant>,
}

impl WorkerProcess {
    /// Returns its owner id, if it is a client yet.
    fn owner(&self, log: &SharedLog) -> Option<OwnerId> {
        log.owner(self.process, self.place)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The worker processes of a round.
pub struct Workers<'t> {
    fabric: Fabric,
    urls: &'t [Url],
    node: Option<&'t mut NodeProcess>,
    log: &'t SharedLog,
    lock_monitor: LockMonitor,
    case: Case,
    running: Vec<WorkerProcess>,
    /// Processes that were killed, and may not have ended yet.
    killed: Vec<WorkerProcess>,
    /// Number of processes started so far.
    started: u64,
    rng: SplitMix64,
}

impl<'t> Workers<'t> {
    /// Starts the workers, which work until [`SharedLog::end_round`].
    pub fn start(fixture: &'t mut Fixture, log: &'t SharedLog, case: Case, seed: u64) -> Workers<'t> {
        let Fixture { fabric, store, node, urls, .. } = fixture;
        let is_lasting = fabric.between_restarts().is_none();
        let lock_monitor = LockMonitor::new(store, node.as_ref().filter(|_| is_lasting));
        let (fabric, node, running, killed) = (*fabric, node.as_mut(), Vec::new(), Vec::new());
        let (started, rng) = (0, SplitMix64(seed));
        let mut workers = Workers { fabric, urls, node, log, lock_monitor, case, running, killed, started, rng };
        for place in 0..PROCESSES {
            let worker = workers.spawn(place);
            workers.running.push(worker);
        }
        workers
    }

    fn spawn(&mut self, place: u64) -> WorkerProcess {
        self.started += 1;
        let task = Task {
            url: &self.urls[self.started as usize % self.urls.len()],
            log: self.log.path(),
            process: self.started,
            seed: self.rng.next_u64(),
            longest_value: self.case.longest_value,
            share: self.case.share(place),
        };
        let (name, value) = task.variable();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "histories::worker::worker", "--nocapture", "--quiet"])
            .env(name, value)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        WorkerProcess { process: self.started, place, child, stopped_until: None }
    }

    /// Kills, stops and fences workers until the goals of the round are reached, then waits for them to end.
    pub fn run(&mut self) -> FaultCounts {
        let mut faults = FaultCounts::default();
        let (goals, between_kills, mut start) = (self.fabric.goals(), self.fabric.between_kills(), Instant::now());
        let (least_inserts, mut inserts, mut answered_at_restart) = (self.case.least_inserts(), 0, 0);
        let (between_fences, between_restarts) = (self.fabric.between_fences(), self.fabric.between_restarts());
        let (mut next_kill, mut next_stop) = (start + between_kills, start);
        let (mut next_fence, mut next_restart) =
            (between_fences.map(|time| start + time), between_restarts.map(|time| start + time));
        loop {
            let (now, answered) = (Instant::now(), self.log.answered());
            if inserts < least_inserts {
                let inserted = self.log.acknowledged().iter().sum();
                start = if inserted > inserts { now } else { start };
                inserts = inserted;
            } else if faults.reach(&goals) && answered >= goals.answered {
                break;
            }
            assert!(
                start.elapsed() < patience(),
                "{goals:?}: {answered} operations answered, {inserts} inserts, {faults}"
            );
            self.resume(now);
            self.reap_killed();
            if now >= next_stop {
                faults.stops += self.stop(now);
                next_stop = now + Duration::from_micros(self.rng.below(LONGEST_STOP_INTERVAL_US));
            }
            if now >= next_kill && (faults.kills < goals.kills || inserts < least_inserts) && self.are_at_work() {
                self.kill(&mut faults);
                faults.kills_in_growth += u64::from(inserts < least_inserts);
                next_kill = now + between_kills;
            }
            if next_fence.is_some_and(|next| now >= next) {
                self.fence(&mut faults);
                next_fence = between_fences.map(|time| now + time);
            }
            let is_served = answered >= answered_at_restart + ANSWERED_BETWEEN_RESTARTS || self.log.is_full();
            if next_restart.is_some_and(|next| now >= next) && is_served {
                self.restart(&mut faults);
                answered_at_restart = self.log.answered();
                next_restart = between_restarts.map(|time| Instant::now() + time);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.log.end_round();
        self.resume_all();
        self.wait();
        faults
    }

    /// Whether half of the workers are clients: on a slow machine the next kill waits for the start of those that took
    /// the places of killed ones.
    fn are_at_work(&self) -> bool {
        let clients = self.running.iter().filter(|worker| worker.owner(self.log).is_some());
        2 * clients.count() as u64 >= PROCESSES
    }

    fn resume_all(&mut self) {
        for worker in &mut self.running {
            if worker.stopped_until.take().is_some() {
                worker.signal(Signal::CONT);
            }
        }
    }

    /// Resumes the workers whose pause is over.
    fn resume(&mut self, now: Instant) {
        for worker in &mut self.running {
            if worker.stopped_until.is_some_and(|until| until <= now) {
                worker.signal(Signal::CONT);
                worker.stopped_until = None;
            }
        }
    }

    /// Stops a worker, unless too many are stopped already. Returns the number of stops.
    fn stop(&mut self, now: Instant) -> u64 {
        let victim = self.rng.below(PROCESSES) as usize;
        let stopped = self.running.iter().filter(|worker| worker.stopped_until.is_some()).count();
        if stopped == MAX_STOPPED || self.running[victim].stopped_until.is_some() {
            return 0;
        }
        let unit = self.rng.unit_f64();
        let pause_us = SHORTEST_STOP_US * (LONGEST_STOP_US / SHORTEST_STOP_US).powf(unit);
        self.running[victim].signal(Signal::STOP);
        self.running[victim].stopped_until = Some(now + Duration::from_micros(pause_us as u64));
        1
    }

    /// Chooses a worker, in every other call one that holds a lock. Returns its index and whether it holds one.
    fn victim(&mut self) -> (usize, bool) {
        let owner = match self.rng.below(2) {
            0 => None,
            _ => self.lock_monitor.holder(Instant::now() + HOLDER_SEARCH_TIMEOUT),
        };
        let log = self.log;
        let holder = owner.and_then(|owner| self.running.iter().position(|it| it.owner(log) == Some(owner)));
        (holder.unwrap_or_else(|| self.rng.below(PROCESSES) as usize), holder.is_some())
    }

    /// Kills a worker and replaces it at once.
    fn kill(&mut self, faults: &mut FaultCounts) {
        let (victim, is_holder) = self.victim();
        self.running[victim].child.kill().unwrap();
        faults.kills += 1;
        faults.kills_of_holders += u64::from(is_holder);
        faults.kills_of_stopped += u64::from(self.running[victim].stopped_until.is_some());
        let replacement = self.spawn(self.running[victim].place);
        self.killed.push(std::mem::replace(&mut self.running[victim], replacement));
    }

    /// Fences a living worker, unless it maps the table or is not a client yet.
    fn fence(&mut self, faults: &mut FaultCounts) {
        let (victim, is_holder) = self.victim();
        let Some(owner) = self.running[victim].owner(self.log) else { return };
        let is_dropped = self.lock_monitor.fence(owner);
        faults.fences += u64::from(is_dropped);
        faults.fences_of_holders += u64::from(is_dropped && is_holder);
    }

    /// Kills the node, and starts another one in its place after a while.
    fn restart(&mut self, faults: &mut FaultCounts) {
        let node = self.node.as_mut().expect("a node");
        faults.restarts_ns.push(now_ns());
        node.kill();
        std::thread::sleep(Duration::from_micros(self.rng.below(LONGEST_OUTAGE_US)));
        node.start_again();
    }

    /// Reaps the killed workers that have ended.
    fn reap_killed(&mut self) {
        self.killed.retain_mut(|worker| match worker.child.try_wait().unwrap() {
            Some(status) => {
                // At the very end of a round it may have ended before it was killed.
                let is_killed = status.signal() == Some(Signal::KILL.as_raw());
                assert!(is_killed || status.success(), "a worker failed: see its message above");
                false
            }
            None => true,
        });
    }

    /// Waits until all workers have ended, by themselves if they were not killed.
    fn wait(&mut self) {
        wait_until("all killed workers have ended", || {
            self.reap_killed();
            self.killed.is_empty()
        });
        for worker in &mut self.running {
            wait_until("a worker has ended", || worker.child.try_wait().unwrap().is_some());
            assert!(worker.child.wait().unwrap().success(), "a worker failed: see its message above");
        }
    }
}
