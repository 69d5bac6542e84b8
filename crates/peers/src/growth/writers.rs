//! Clients that insert at the same time, the windows in which their inserts are counted, and kills.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::inserter::{GROUP, Inserter, first_of, read_report};
use super::report::{Times, Window};
use super::{GrowthOptions, WINDOW};
use crate::error::PeersError;
use crate::load::ProgressFn;

/// The inserts of all clients of a run.
pub struct Inserted {
    /// The windows in which all clients inserted.
    pub windows: Vec<Window>,
    /// The time from the start to the end of the last client.
    pub total: Duration,
    /// The times of some inserts.
    pub times: Times,
    /// Clients that were killed.
    pub kills: u64,
}

/// State that clients and the counting thread share.
struct Progress {
    inserted: AtomicU64,
    /// Clients that have inserted their share.
    finished: AtomicU64,
    is_stopped: AtomicBool,
    start: Barrier,
}

/// Lets `clients` threads insert, each with the inserter that `open` makes for it.
pub fn in_threads(
    options: &GrowthOptions,
    what: &str,
    watch: &mut ProgressFn<'_>,
    open: impl Fn() -> Result<Box<dyn Inserter>, PeersError> + Sync,
) -> Result<Inserted, PeersError> {
    let progress = Progress::new(options.clients);
    let share = options.share();
    std::thread::scope(|scope| {
        let spawn = |client: usize| {
            let (progress, open) = (&progress, &open);
            scope.spawn(move || {
                let opened = open();
                progress.start.wait();
                let inserted =
                    opened.and_then(|mut inserter| insert(inserter.as_mut(), first_of(client, share), share, progress));
                progress.end(inserted)
            })
        };
        let threads: Vec<_> = (0..options.clients).map(spawn).collect();
        watched(&progress, options, what, watch, None, threads)
    })
}

fn insert(inserter: &mut dyn Inserter, first: u64, share: u64, progress: &Progress) -> Result<Times, PeersError> {
    let (mut all, mut times) = (Times::default(), Vec::new());
    for first in (first..first + share).step_by(GROUP as usize) {
        if progress.is_stopped.load(Ordering::Relaxed) {
            return Err(PeersError::Interrupted);
        }
        times.clear();
        inserter.insert(first, &mut times)?;
        progress.note(&times, &mut all);
    }
    Ok(all)
}

/// Lets processes insert into the table in `file`, one for each client, and kills one of them each time that `kill_every`
/// has passed: another one goes on from what it had acknowledged.
pub fn in_processes(
    options: &GrowthOptions,
    what: &str,
    watch: &mut ProgressFn<'_>,
    file: &Path,
    kill_every: Option<Duration>,
) -> Result<Inserted, PeersError> {
    let progress = Progress::new(options.clients);
    let share = options.share();
    let processes: Vec<Process> = (0..options.clients)
        .map(|client| Process::new(&options.inserter, file, first_of(client, share), share))
        .collect();
    std::thread::scope(|scope| {
        let spawn = |process| follow_in(scope, process, &progress);
        let threads: Vec<_> = processes.iter().map(spawn).collect();
        let killer = Killer { every: kill_every, processes: &processes, kills: 0 };
        watched(&progress, options, what, watch, Some(killer), threads)
    })
}

fn follow_in<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    process: &'env Process<'env>,
    progress: &'env Progress,
) -> ScopedJoinHandle<'scope, Result<Times, PeersError>> {
    scope.spawn(move || {
        let started = process.start(0);
        progress.start.wait();
        progress.end(started.and_then(|out| process.follow(out, progress)))
    })
}

impl Progress {
    fn new(clients: usize) -> Progress {
        Progress {
            inserted: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            start: Barrier::new(clients + 1),
        }
    }

    /// Notes a group.
    fn note(&self, times: &[u32], all: &mut Times) {
        self.inserted.fetch_add(GROUP, Ordering::Relaxed);
        times.iter().for_each(|time| all.add(*time));
    }

    /// Notes the end of a client. If it failed, the others need not go on.
    fn end(&self, result: Result<Times, PeersError>) -> Result<Times, PeersError> {
        if result.is_err() {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
        self.finished.fetch_add(1, Ordering::Relaxed);
        result
    }
}

/// Starts the clients, counts what they insert until all have ended, and returns it.
fn watched(
    progress: &Progress,
    options: &GrowthOptions,
    what: &str,
    watch: &mut ProgressFn<'_>,
    mut killer: Option<Killer<'_>>,
    threads: Vec<ScopedJoinHandle<'_, Result<Times, PeersError>>>,
) -> Result<Inserted, PeersError> {
    progress.start.wait();
    let (start, all) = (Instant::now(), options.share() * options.clients as u64);
    let (mut windows, mut before, mut watched) = (Vec::new(), (start, 0), Ok(()));
    let mut due = VecDeque::from([(start + WINDOW, true)]);
    due.extend(killer.as_ref().and_then(|killer| Some((start + killer.every?, false))));
    while progress.finished.load(Ordering::Relaxed) < threads.len() as u64 {
        let Some((at, is_window)) = due.pop_front() else { break };
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let later = if is_window {
            let now = (Instant::now(), progress.inserted.load(Ordering::Relaxed));
            if progress.finished.load(Ordering::Relaxed) == 0 {
                windows.push(Window::between(before.1, now.1, now.0.duration_since(before.0)));
            }
            before = now;
            watched = watched.and_then(|()| watch(what, now.1, all));
            if watched.is_err() {
                progress.is_stopped.store(true, Ordering::Relaxed);
            }
            if progress.is_stopped.load(Ordering::Relaxed) {
                killer.iter().for_each(Killer::kill_all);
            }
            WINDOW
        } else {
            killer.as_mut().and_then(Killer::kill_next).unwrap_or(WINDOW)
        };
        let place = due.iter().position(|(other, _)| *other > at + later).unwrap_or(due.len());
        due.insert(place, (at + later, is_window));
    }
    let total = start.elapsed();
    let mut times = Times::default();
    for thread in threads {
        let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // An interruption of the others is no news if one has failed.
        match (ended, &watched) {
            (Ok(of_client), _) => times.add_all(&of_client),
            (Err(PeersError::Interrupted), Err(_)) => {}
            (Err(error), Ok(()) | Err(PeersError::Interrupted)) => watched = Err(error),
            (Err(_), Err(_)) => {}
        }
    }
    watched?;
    Ok(Inserted { windows, total, times, kills: killer.map_or(0, |killer| killer.kills) })
}

/// A client that is a process, and those that replace it.
struct Process<'r> {
    command: &'r [OsString],
    file: &'r Path,
    first: u64,
    share: u64,
    child: Mutex<Option<Child>>,
    was_killed: AtomicBool,
}

impl<'r> Process<'r> {
    fn new(command: &'r [OsString], file: &'r Path, first: u64, share: u64) -> Process<'r> {
        Process { command, file, first, share, child: Mutex::new(None), was_killed: AtomicBool::new(false) }
    }

    /// Starts a process that goes on after `done` keys, and waits until it is ready.
    fn start(&self, done: u64) -> Result<ChildStdout, PeersError> {
        let attempt = "start a process that inserts";
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| PeersError::Options("there is no command line for processes that insert".to_owned()))?;
        let mut command = crate::server::killed_with_parent(Path::new(program));
        command.args(arguments).arg(self.file).current_dir(self.file.parent().unwrap_or(self.file));
        command.args([self.first + done, self.first + self.share].map(|number| number.to_string()));
        self.spawn(command).map_err(PeersError::host(attempt)).and_then(|mut out| {
            if read_report(&mut Vec::new(), &mut out)? || self.was_killed.load(Ordering::Acquire) {
                Ok(out)
            } else {
                Err(PeersError::peer(attempt, "it has ended; its complaint is above"))
            }
        })
    }

    fn spawn(&self, mut command: Command) -> std::io::Result<ChildStdout> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or_else(|| std::io::Error::other("its output is no pipe"))?;
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(out)
    }

    /// Lets the process begin, and reads its reports, and those of its successors.
    fn follow(&self, mut out: ChildStdout, progress: &Progress) -> Result<Times, PeersError> {
        let (mut all, mut times, mut done) = (Times::default(), Vec::new(), 0);
        loop {
            // The end of its input is the sign to begin.
            self.with_child(|child| drop(child.stdin.take()));
            while read_report(&mut times, &mut out)? {
                done += GROUP;
                progress.note(&times, &mut all);
            }
            self.with_child(|child| drop(child.wait()));
            if done == self.share {
                return Ok(all);
            }
            if !self.was_killed.swap(false, Ordering::AcqRel) {
                return Err(PeersError::peer("insert", "a process has ended early; its complaint is above"));
            }
            if progress.is_stopped.load(Ordering::Relaxed) {
                return Err(PeersError::Interrupted);
            }
            out = self.start(done)?;
        }
    }

    fn kill(&self) {
        self.was_killed.store(true, Ordering::Release);
        self.with_child(|child| drop(child.kill()));
    }

    fn with_child(&self, act: impl FnMut(&mut Child)) {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).as_mut().into_iter().for_each(act);
    }
}

impl Drop for Process<'_> {
    fn drop(&mut self) {
        self.with_child(|child| {
            drop(child.kill());
            drop(child.wait());
        });
    }
}

/// Kills processes, if they are to be killed: one after the other.
struct Killer<'r> {
    every: Option<Duration>,
    processes: &'r [Process<'r>],
    kills: u64,
}

impl Killer<'_> {
    /// Kills the next process. Returns the time until the next kill.
    fn kill_next(&mut self) -> Option<Duration> {
        self.processes[self.kills as usize % self.processes.len()].kill();
        self.kills += 1;
        self.every
    }

    fn kill_all(&self) {
        self.processes.iter().for_each(Process::kill);
    }
}
