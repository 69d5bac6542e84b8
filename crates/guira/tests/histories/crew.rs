//! The processes of a round, and what is done to them.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guira::{Store, Url};
use rustix::process::{Pid, Signal, kill_process};

use crate::log::{Shared, now_ns};
use crate::rng::Rng;
use crate::watch::Watch;
use crate::worker::Task;
use crate::{KILLS_PER_S, PROCESSES, ROUND};

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

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deeds {
    pub kills: u64,
    /// Of processes that held a lock.
    pub kills_of_holders: u64,
    /// Of processes that were stopped.
    pub kills_of_stopped: u64,
    pub stops: u64,
}

impl Deeds {
    pub fn add(&mut self, other: Deeds) {
        self.kills += other.kills;
        self.kills_of_holders += other.kills_of_holders;
        self.kills_of_stopped += other.kills_of_stopped;
        self.stops += other.stops;
    }
}

impl fmt::Display for Deeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deeds { kills, kills_of_holders, kills_of_stopped, stops } = self;
        write!(
            f,
            "{kills} kills ({kills_of_holders} of processes that held a lock, {kills_of_stopped} of stopped ones), \
             {stops} stops"
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
    url: &'t Url,
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
    rng: Rng,
}

impl<'t> Crew<'t> {
    /// Starts them; they work for a round.
    pub fn start(url: &'t Url, store: &Store, log: &'t Shared, longest_value: u64, seed: u64) -> Crew<'t> {
        let (end, end_ns) = (Instant::now() + ROUND, now_ns() + ROUND.as_nanos() as u64);
        let (watch, members, killed, rng) = (Watch::over(store), Vec::new(), Vec::new(), Rng(seed));
        let mut crew = Crew { url, log, watch, longest_value, end, end_ns, members, killed, started: 0, rng };
        for _ in 0..PROCESSES {
            let member = crew.recruit();
            crew.members.push(member);
        }
        crew
    }

    fn recruit(&mut self) -> Member {
        self.started += 1;
        let task = Task {
            url: self.url,
            log: self.log.path(),
            process: self.started,
            seed: self.rng.draw(),
            longest_value: self.longest_value,
            end_ns: self.end_ns,
        };
        let (name, told) = task.variable();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::worker", "--nocapture", "--quiet"])
            .env(name, told)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Member { process: self.started, child, stopped_until: None }
    }

    /// Kills and stops them until it is time, and waits for their end.
    pub fn run(&mut self) -> Deeds {
        let mut deeds = Deeds::default();
        let between_kills = Duration::from_micros(1_000_000 / KILLS_PER_S);
        let (mut next_kill, mut next_stop) = (Instant::now() + between_kills, Instant::now());
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
        let unit = (self.rng.draw() >> 11) as f64 / (1u64 << 53) as f64;
        let pause_us = SHORTEST_STOP_US * (LONGEST_STOP_US / SHORTEST_STOP_US).powf(unit);
        self.members[victim].signal(Signal::STOP);
        self.members[victim].stopped_until = Some(now + Duration::from_micros(pause_us as u64));
        1
    }

    /// Kills one and puts another in its place at once, every other time one that holds a lock.
    fn kill(&mut self, deeds: &mut Deeds) {
        let owner = match self.rng.below(2) {
            0 => None,
            _ => self.watch.holder(Instant::now() + SEEKS_FOR),
        };
        let log = self.log;
        let holder = owner.and_then(|owner| self.members.iter().position(|it| log.owner(it.process) == Some(owner)));
        let victim = holder.unwrap_or_else(|| self.rng.below(PROCESSES) as usize);
        self.members[victim].child.kill().unwrap();
        deeds.kills += 1;
        deeds.kills_of_holders += u64::from(holder.is_some());
        deeds.kills_of_stopped += u64::from(self.members[victim].stopped_until.is_some());
        let recruit = self.recruit();
        self.killed.push(std::mem::replace(&mut self.members[victim], recruit));
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
