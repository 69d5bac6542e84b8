//! The processes of a round, and what is done to them.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guira::Url;
use guira_fabric::SplitMix64;
use rustix::process::{Pid, Signal, kill_process};

use crate::histories::log::{Shared, now_ns};
use crate::histories::node::NodeProcess;
use crate::histories::scene::{Fabric, Scene};
use crate::histories::watch::Watch;
use crate::histories::worker::Task;
use crate::histories::{PROCESSES, ROUND};

/// Pauses of stopped processes: log-uniform in between.
const SHORTEST_STOP_US: f64 = 1_000.0;
const LONGEST_STOP_US: f64 = 1_000_000.0;
/// From one stop to the next, at most.
const BETWEEN_STOPS_US: u64 = 60_000;
/// Processes that are stopped at a time, at most: the others go on.
const MOST_STOPPED: usize = 3;
/// How long somebody who holds a lock is looked for, before a kill.
const SEEKS_FOR: Duration = Duration::from_millis(10);
/// How long a worker may take to end by itself: it waits for nobody longer than its patience.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// How long a node is gone, at most, before another is started.
const LONGEST_ABSENCE_US: u64 = 100_000;

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Deeds {
    pub kills: u64,
    /// Of processes that held a lock.
    pub kills_of_holders: u64,
    /// Of processes that were stopped.
    pub kills_of_stopped: u64,
    pub stops: u64,
    /// Clients that were shut out, while they lived.
    pub fences: u64,
    pub fences_of_holders: u64,
    /// When the node was killed, in [`now_ns`].
    pub restarts_ns: Vec<u64>,
}

impl Deeds {
    pub fn add(&mut self, other: &Deeds) {
        self.kills += other.kills;
        self.kills_of_holders += other.kills_of_holders;
        self.kills_of_stopped += other.kills_of_stopped;
        self.stops += other.stops;
        self.fences += other.fences;
        self.fences_of_holders += other.fences_of_holders;
        self.restarts_ns.extend(&other.restarts_ns);
    }
}

impl fmt::Display for Deeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deeds { kills, kills_of_holders, kills_of_stopped, stops, fences, fences_of_holders, .. } = self;
        write!(
            f,
            "{kills} kills ({kills_of_holders} of processes that held a lock, {kills_of_stopped} of stopped ones), \
             {stops} stops, {fences} fences ({fences_of_holders} of clients that held a lock), {} ends of the node",
            self.restarts_ns.len()
        )
    }
}

struct Member {
    process: u64,
    child: Child,
    stopped_until: Option<Instant>,
}

impl Member {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

/// None of them outlives the test.
impl Drop for Member {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The processes of a round.
pub struct Crew<'t> {
    fabric: Fabric,
    urls: &'t [Url],
    node: Option<&'t mut NodeProcess>,
    log: &'t Shared,
    watch: Watch,
    longest_value: u64,
    end: Instant,
    end_ns: u64,
    members: Vec<Member>,
    /// They were killed, and may not have died yet.
    killed: Vec<Member>,
    /// Processes started so far.
    started: u64,
    rng: SplitMix64,
}

impl<'t> Crew<'t> {
    /// Starts them; they work for a round.
    pub fn start(scene: &'t mut Scene, log: &'t Shared, longest_value: u64, seed: u64) -> Crew<'t> {
        let (end, end_ns) = (Instant::now() + ROUND, now_ns() + ROUND.as_nanos() as u64);
        let Scene { fabric, store, node, urls, .. } = scene;
        let is_lasting = fabric.between_restarts().is_none();
        let watch = Watch::over(store, node.as_ref().filter(|_| is_lasting));
        let (fabric, node, members, killed) = (*fabric, node.as_mut(), Vec::new(), Vec::new());
        let (started, rng) = (0, SplitMix64(seed));
        let mut crew =
            Crew { fabric, urls, node, log, watch, longest_value, end, end_ns, members, killed, started, rng };
        for _ in 0..PROCESSES {
            let member = crew.recruit();
            crew.members.push(member);
        }
        crew
    }

    fn recruit(&mut self) -> Member {
        self.started += 1;
        let task = Task {
            url: &self.urls[self.started as usize % self.urls.len()],
            log: self.log.path(),
            process: self.started,
            seed: self.rng.next_u64(),
            longest_value: self.longest_value,
            end_ns: self.end_ns,
        };
        let (name, told) = task.variable();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "histories::worker::worker", "--nocapture", "--quiet"])
            .env(name, told)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Member { process: self.started, child, stopped_until: None }
    }

    /// Kills, stops and shuts them out until it is time, and waits for their end.
    pub fn run(&mut self) -> Deeds {
        let mut deeds = Deeds::default();
        let (between_kills, start) = (Duration::from_micros(1_000_000 / self.fabric.kills_per_s()), Instant::now());
        let (between_fences, between_restarts) = (self.fabric.between_fences(), self.fabric.between_restarts());
        let (mut next_kill, mut next_stop) = (start + between_kills, start);
        let (mut next_fence, mut next_restart) =
            (between_fences.map(|time| start + time), between_restarts.map(|time| start + time));
        loop {
            let now = Instant::now();
            if now >= self.end {
                break;
            }
            self.let_go(now);
            self.bury();
            if now >= next_stop {
                deeds.stops += self.stop(now);
                next_stop = now + Duration::from_micros(self.rng.below(BETWEEN_STOPS_US));
            }
            if now >= next_kill {
                self.kill(&mut deeds);
                next_kill += between_kills;
            }
            if next_fence.is_some_and(|next| now >= next) {
                self.fence(&mut deeds);
                next_fence = between_fences.map(|time| now + time);
            }
            if next_restart.is_some_and(|next| now >= next) {
                self.restart(&mut deeds);
                next_restart = between_restarts.map(|time| Instant::now() + time);
            }
            let next = next_kill.min(next_stop).min(self.end).min(now + Duration::from_millis(1));
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self.let_go(self.end + Duration::from_secs(3_600));
        self.wait();
        deeds
    }

    /// Lets those go on whose pause is over.
    fn let_go(&mut self, now: Instant) {
        for member in &mut self.members {
            if member.stopped_until.is_some_and(|until| until <= now) {
                member.signal(Signal::CONT);
                member.stopped_until = None;
            }
        }
    }

    /// Stops one, if not too many are stopped already.
    fn stop(&mut self, now: Instant) -> u64 {
        let victim = self.rng.below(PROCESSES) as usize;
        let stopped = self.members.iter().filter(|member| member.stopped_until.is_some()).count();
        if stopped == MOST_STOPPED || self.members[victim].stopped_until.is_some() {
            return 0;
        }
        let unit = self.rng.unit_f64();
        let pause_us = SHORTEST_STOP_US * (LONGEST_STOP_US / SHORTEST_STOP_US).powf(unit);
        self.members[victim].signal(Signal::STOP);
        self.members[victim].stopped_until = Some(now + Duration::from_micros(pause_us as u64));
        1
    }

    /// Somebody, every other time one that holds a lock, and whether it does.
    fn victim(&mut self) -> (usize, bool) {
        let owner = match self.rng.below(2) {
            0 => None,
            _ => self.watch.holder(Instant::now() + SEEKS_FOR),
        };
        let log = self.log;
        let holder = owner.and_then(|owner| self.members.iter().position(|it| log.owner(it.process) == Some(owner)));
        (holder.unwrap_or_else(|| self.rng.below(PROCESSES) as usize), holder.is_some())
    }

    /// Kills one and puts another in its place at once.
    fn kill(&mut self, deeds: &mut Deeds) {
        let (victim, is_holder) = self.victim();
        self.members[victim].child.kill().unwrap();
        deeds.kills += 1;
        deeds.kills_of_holders += u64::from(is_holder);
        deeds.kills_of_stopped += u64::from(self.members[victim].stopped_until.is_some());
        let recruit = self.recruit();
        self.killed.push(std::mem::replace(&mut self.members[victim], recruit));
    }

    /// Shuts one out that lives, unless it maps the table, or is not a client yet.
    fn fence(&mut self, deeds: &mut Deeds) {
        let (victim, is_holder) = self.victim();
        let Some(owner) = self.log.owner(self.members[victim].process) else { return };
        let is_dropped = self.watch.fence(owner);
        deeds.fences += u64::from(is_dropped);
        deeds.fences_of_holders += u64::from(is_dropped && is_holder);
    }

    /// Kills the node, and starts another in its place after a while.
    fn restart(&mut self, deeds: &mut Deeds) {
        let node = self.node.as_mut().expect("a node");
        deeds.restarts_ns.push(now_ns());
        node.kill();
        std::thread::sleep(Duration::from_micros(self.rng.below(LONGEST_ABSENCE_US)));
        node.start_again();
    }

    /// Collects those who were killed and have died.
    fn bury(&mut self) {
        self.killed.retain_mut(|member| match member.child.try_wait().unwrap() {
            Some(status) => {
                // At the very end of a round it may have ended before.
                let is_killed = status.signal() == Some(Signal::KILL.as_raw());
                assert!(is_killed || status.success(), "a worker failed: see its message above");
                false
            }
            None => true,
        });
    }

    /// Waits until all have ended, by themselves if they were not killed.
    fn wait(&mut self) {
        let until = self.end + ENDS_WITHIN;
        while !self.killed.is_empty() {
            assert!(Instant::now() < until, "a killed worker does not die");
            std::thread::sleep(Duration::from_millis(1));
            self.bury();
        }
        for member in &mut self.members {
            let status = loop {
                if let Some(status) = member.child.try_wait().unwrap() {
                    break status;
                }
                assert!(Instant::now() < until, "a worker does not end");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(status.success(), "a worker failed: see its message above");
        }
    }
}
