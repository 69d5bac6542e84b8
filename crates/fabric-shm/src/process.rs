//! Who a process is, beyond its number; and how one is killed that stands in everybody's way.
//!
//! Invariants: a process is killed only after it was stopped by its descriptor, and found, while it stood still, to be
//! the one that was meant. A process that stands still neither ends nor gives anything up, so nobody else is hit.
//! Others may let it go on at any moment, who wanted to kill it too, or a shell: so it is looked at again after it was
//! judged, and what was found counts only if none of its threads has executed anything in between. Whoever stopped a
//! process that is not to be killed lets it go on, so that it stays stopped only for somebody who stopped it before all
//! of those.
//!
//! What is left: a process that others let go on between that last look and the signal, some microseconds later, may
//! give up what it held, and is killed all the same.

use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::region::boot_id;

/// Between two looks at a process that was sent a signal.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The field of /proc/PID/stat with the process's start time, counted from behind its name: the name may hold anything.
const START_FIELD: usize = 19;

/// A process, told from every other one of this machine's past and present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Its number, in its own namespace of process numbers.
    pub pid: u64,
    /// When it was started, in clock ticks since the machine was; 0 if the kernel does not say.
    pub start_ticks: u64,
    /// Its namespace of process numbers, as the inode of its /proc/PID/ns/pid; 0 if the kernel does not say.
    pub pid_namespace: u64,
    /// The machine's start, the halves of its boot id combined by XOR; 0 if the kernel does not say.
    pub boot: u64,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs, or waits for something.
    Running,
    /// It is stopped by a signal, or by a tracer.
    Stopped,
    /// It has ended.
    Ended,
    /// Nobody knows: it belongs to another namespace, or the kernel does not say.
    Unknown,
}

/// A process was not killed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KillError {
    /// The process is not identified well enough, or its number means another process here.
    #[error("process {pid} belongs to another namespace of process numbers, or cannot be told from others")]
    Foreign {
        /// Its number, there.
        pid: u64,
    },
    /// It is the process that asks.
    #[error("process {pid} is this process")]
    Oneself {
        /// Its number.
        pid: u64,
    },
    /// There is no such process any more.
    #[error("process {pid} has ended")]
    Ended {
        /// Its number.
        pid: u64,
    },
    /// It gave up meanwhile what it was to be killed for.
    #[error("process {pid} lives, and has given up what it held")]
    Innocent {
        /// Its number.
        pid: u64,
    },
    /// Others let it go on, again and again, while it was looked at.
    #[error("process {pid} does not stand still: others let it go on whenever it is stopped")]
    Resumed {
        /// Its number.
        pid: u64,
    },
    /// This user may not kill it.
    #[error("process {pid} belongs to somebody else: no permission to kill it")]
    Permission {
        /// Its number.
        pid: u64,
    },
    /// It did not stop in time, and goes on when it can: it waits for a device, or its control group is frozen.
    #[error(
        "process {pid} does not react to signals in time: it waits for a device, or its control group is frozen (thaw \
         it, or kill it by kill -9)"
    )]
    Deaf {
        /// Its number.
        pid: u64,
    },
    /// It was found to be the one and was sent SIGKILL, but did not end in time: it will as soon as it can.
    #[error("SIGKILL was sent to process {pid}; it has not ended yet (if its control group is frozen: thaw it)")]
    Lingering {
        /// Its number.
        pid: u64,
    },
    /// It was stopped when it was looked at first, had to be stopped once more, and was not killed.
    #[error("{why}; it was stopped before, and goes on now")]
    LetGoOn {
        /// Why it was not killed.
        why: Box<KillError>,
    },
    /// The kernel failed otherwise.
    #[error("process {pid} could not be killed: {reason}")]
    Kernel {
        /// Its number.
        pid: u64,
        /// Its answer.
        reason: String,
    },
}

impl ProcessIdentity {
    /// This process. A few reads of /proc.
    #[must_use]
    pub fn current() -> ProcessIdentity {
        let boot = u128::from_le_bytes(boot_id());
        ProcessIdentity {
            pid: u64::from(std::process::id()),
            start_ticks: read_stat("/proc/self/stat").map_or(0, |(_, start_ticks)| start_ticks),
            pid_namespace: own_namespace(),
            boot: boot as u64 ^ (boot >> 64) as u64,
        }
    }

    /// What the process does now. A few reads of /proc.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let here = ProcessIdentity::current();
        if !self.is_of(&here) {
            return ProcessState::Unknown;
        }
        let states = match read_stat(&format!("/proc/{}/stat", self.pid)) {
            // Its first thread has ended; the process has when all of them have.
            Some((state, start_ticks)) if start_ticks == self.start_ticks && is_over(state) => {
                self.threads().iter().map(|thread| thread.state).collect()
            }
            Some((state, start_ticks)) if start_ticks == self.start_ticks => vec![state],
            _ => Vec::new(),
        };
        if states.iter().all(|state| is_over(*state)) {
            ProcessState::Ended
        } else if states.iter().all(|state| is_stopped(*state) || is_over(*state)) {
            ProcessState::Stopped
        } else {
            ProcessState::Running
        }
    }

    /// Whether the process runs no more because its control group is frozen, as far as this one can tell: where control
    /// groups are mounted at /sys/fs/cgroup. It is alive. A few reads of /proc and /sys.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let Ok(groups) = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid)) else { return false };
        let says = |(path, line): (String, &str)| {
            std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(|found| found == line))
        };
        // Read after its group, so that the group is this process's.
        groups.lines().filter_map(freezer).any(says) && matches!(self.state(), ProcessState::Running)
    }

    /// Whether its number means the same process to `here`.
    fn is_of(&self, here: &ProcessIdentity) -> bool {
        let is_known = self.pid != 0 && self.start_ticks != 0 && self.pid_namespace != 0 && self.boot != 0;
        is_known && self.pid_namespace == here.pid_namespace && self.boot == here.boot
    }

    /// Kills the process, all of its threads, if `is_guilty` says so while it stands still; otherwise it goes on. Waits
    /// up to `patience` for it to stand still, and again for its end. Asks again if others let it go on meanwhile.
    /// Memory it shares with others is as it left it.
    ///
    /// # Errors
    /// See [`KillError`]; the process goes on then, unless it ended by itself, or is `Lingering`, and ends later.
    pub fn kill(&self, patience: Duration, is_guilty: impl FnMut() -> bool) -> Result<(), KillError> {
        let pid = self.pid;
        let here = ProcessIdentity::current();
        if !self.is_of(&here) {
            return Err(KillError::Foreign { pid });
        }
        if pid == here.pid {
            return Err(KillError::Oneself { pid });
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(KillError::Foreign { pid })?;
        let descriptor = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| self.refused(errno))?;
        let was_stopped = self.state() == ProcessState::Stopped;
        let mut is_stopped_here = false;
        let judged = self.judge(&descriptor, patience, is_guilty, &mut is_stopped_here);
        let sent = judged.and_then(|()| self.send(&descriptor, Signal::KILL));
        if let Err(why) = sent {
            // It may have ended; otherwise it was this user's to stop a moment ago.
            let goes_on = is_stopped_here && self.send(&descriptor, Signal::CONT).is_ok();
            let lives = goes_on && !matches!(why, KillError::Ended { .. });
            return Err(if lives && was_stopped { KillError::LetGoOn { why: Box::new(why) } } else { why });
        }
        let has_ended = wait_until(patience, || self.state() == ProcessState::Ended);
        if has_ended { Ok(()) } else { Err(KillError::Lingering { pid }) }
    }

    /// Stops the process, and finds it guilty while it stands still; notes whether it was stopped here.
    fn judge(
        &self,
        descriptor: &OwnedFd,
        patience: Duration,
        mut is_guilty: impl FnMut() -> bool,
        is_stopped_here: &mut bool,
    ) -> Result<(), KillError> {
        let (pid, start) = (self.pid, Instant::now());
        let mut looks = 0;
        loop {
            // Behind the descriptor: if the number has passed on to another process since, that one was started later.
            if self.state() == ProcessState::Ended {
                return Err(KillError::Ended { pid });
            }
            let before = self.threads();
            if stand_still(&before) {
                looks += 1;
                let is_guilty = is_guilty();
                // Compared whole: a thread that ran in between has lost the processor once more since.
                if self.threads() == before {
                    return match is_guilty {
                        true => Ok(()),
                        false if self.state() == ProcessState::Ended => Err(KillError::Ended { pid }),
                        false => Err(KillError::Innocent { pid }),
                    };
                }
            }
            if start.elapsed() >= patience {
                return Err(if looks == 0 { KillError::Deaf { pid } } else { KillError::Resumed { pid } });
            }
            if !stand_still(&self.threads()) {
                // Again each time: others who came to kill it may have let it go on.
                self.send(descriptor, Signal::STOP)?;
                *is_stopped_here = true;
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
    }

    fn send(&self, descriptor: &OwnedFd, signal: Signal) -> Result<(), KillError> {
        pidfd_send_signal(descriptor, signal).map_err(|errno| self.refused(errno))
    }

    fn refused(&self, errno: Errno) -> KillError {
        let pid = self.pid;
        match errno {
            Errno::SRCH => KillError::Ended { pid },
            Errno::PERM => KillError::Permission { pid },
            other => KillError::Kernel { pid, reason: std::io::Error::from(other).to_string() },
        }
    }

    /// What each of its threads does; one that cannot be read has ended.
    fn threads(&self) -> Vec<Thread> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let told = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
        told.filter_map(|text| parse_status(&text)).collect()
    }
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Thread {
    number: u64,
    state: char,
    /// How often it lost the processor, because it waited or because others had to run.
    switches: u64,
}

/// Whether no thread executes anything.
fn stand_still(threads: &[Thread]) -> bool {
    threads.iter().all(|thread| is_stopped(thread.state) || is_over(thread.state))
}

fn is_stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}

/// Whether nothing of it will be executed any more: a zombie, or about to be none.
fn is_over(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

/// State and start time of the process or thread whose stat file lies at `path`.
fn read_stat(path: &str) -> Option<(char, u64)> {
    parse_stat(&std::fs::read_to_string(path).ok()?)
}

fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(START_FIELD - 1)?.parse().ok()?))
}

/// The file that tells whether a control group, a line of /proc/PID/cgroup, is frozen, and the line that says so.
fn freezer(group: &str) -> Option<(String, &'static str)> {
    let (_, group) = group.split_once(':')?;
    match group.split_once(':')? {
        ("", path) => Some((format!("/sys/fs/cgroup{path}/cgroup.events"), "frozen 1")),
        ("freezer", path) => Some((format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN")),
        _ => None,
    }
}

/// The thread whose status file says `text`; without counts where the kernel keeps none.
fn parse_status(text: &str) -> Option<Thread> {
    let mut thread = Thread::default();
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        match (name, value.trim()) {
            ("State", state) => thread.state = state.chars().next()?,
            ("Pid", number) => thread.number = number.parse().ok()?,
            ("voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches", count) => {
                thread.switches += count.parse::<u64>().ok()?;
            }
            _ => {}
        }
    }
    (thread.state != '\0').then_some(thread)
}

fn own_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

fn wait_until(patience: Duration, mut reached: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if reached() {
            return true;
        }
        if start.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn names_of_programs_do_not_confuse() {
        let numbers: Vec<String> = (4..60).map(|field| field.to_string()).collect();
        let stat = format!("12 (a ) S (b) T {}", numbers.join(" "));
        // Field 22 of proc(5), the first being the number.
        assert_eq!(parse_stat(&stat), Some(('T', 22)));
        for bad in ["", "12 (a", "12 (a) ", "12 (a) S 4 5"] {
            assert_eq!(parse_stat(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn threads_are_told_by_what_they_did() {
        let status = "Name:\tState: T\nState:\tS (sleeping)\nPid:\t12\nvoluntary_ctxt_switches:\t3\n\
                      nonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(parse_status(status), Some(Thread { number: 12, state: 'S', switches: 7 }));
        assert_eq!(parse_status("State:\tT (stopped)\n"), Some(Thread { number: 0, state: 'T', switches: 0 }));
        for bad in ["", "Pid:\t12\n", "State:\t\n", "State:\tT\nPid:\tx\n"] {
            assert_eq!(parse_status(bad), None, "{bad:?}");
        }
        let threads = ProcessIdentity::current().threads();
        assert!(!threads.is_empty() && !stand_still(&threads), "{threads:?}");
    }

    #[test]
    fn frozen_groups_are_told_by_both_kinds_of_freezer() {
        let told = [
            ("0::/a/b:c", Some(("/sys/fs/cgroup/a/b:c/cgroup.events", "frozen 1"))),
            ("6:freezer:/a", Some(("/sys/fs/cgroup/freezer/a/freezer.state", "FROZEN"))),
            ("1:cpu:/", None),
            ("", None),
        ];
        for (line, wanted) in told {
            assert_eq!(freezer(line), wanted.map(|(path, says)| (path.to_owned(), says)), "{line:?}");
        }
        assert!(!ProcessIdentity::current().is_frozen());
        // Where this user may freeze somebody.
        let group = format!("/sys/fs/cgroup/freezer/guira-test-{}", std::process::id());
        if std::fs::create_dir(&group).is_err() {
            println!("no process was frozen: this user may not");
            return;
        }
        let (mut child, identity) = sleeper();
        assert!(!identity.is_frozen());
        std::fs::write(format!("{group}/cgroup.procs"), identity.pid.to_string()).unwrap();
        std::fs::write(format!("{group}/freezer.state"), "FROZEN").unwrap();
        let is_frozen = wait_until(PATIENCE, || identity.is_frozen());
        let kicked = identity.kill(Duration::from_millis(50), || true);
        std::fs::write(format!("{group}/freezer.state"), "THAWED").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir(&group).unwrap();
        assert!(is_frozen && !identity.is_frozen());
        assert_eq!(kicked, Err(KillError::Deaf { pid: identity.pid }));
        println!("a process was frozen");
    }

    #[test]
    fn this_process_runs_and_does_not_kill_itself() {
        let own = ProcessIdentity::current();
        assert!(own.is_of(&own) && own == ProcessIdentity::current());
        assert_eq!(own.state(), ProcessState::Running);
        let pid = own.pid;
        assert_eq!(own.kill(Duration::ZERO, || true), Err(KillError::Oneself { pid }));
    }

    /// A process of its own, and who it is.
    fn sleeper() -> (std::process::Child, ProcessIdentity) {
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = u64::from(child.id());
        let (_, start_ticks) = read_stat(&format!("/proc/{pid}/stat")).unwrap();
        (child, ProcessIdentity { pid, start_ticks, ..ProcessIdentity::current() })
    }

    fn signal(child: &std::process::Child, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(child), signal).unwrap();
    }

    fn wait_for(identity: ProcessIdentity, state: ProcessState) {
        assert!(wait_until(PATIENCE, || identity.state() == state), "it is never {state:?}");
    }

    /// What was found of a process does not count if others let it go on meanwhile, stopped again or not.
    #[test]
    fn who_is_let_go_on_is_looked_at_again() {
        let (mut child, identity) = sleeper();
        for is_stopped_again in [false, true] {
            let mut looks = 0;
            let guilty_at_first = || {
                looks += 1;
                if looks == 1 {
                    signal(&child, Signal::CONT);
                    wait_for(identity, ProcessState::Running);
                    if is_stopped_again {
                        signal(&child, Signal::STOP);
                        wait_for(identity, ProcessState::Stopped);
                    }
                }
                looks == 1
            };
            assert_eq!(identity.kill(PATIENCE, guilty_at_first), Err(KillError::Innocent { pid: identity.pid }));
            assert_eq!(looks, 2);
            wait_for(identity, ProcessState::Running);
        }
        let hasty = Duration::from_millis(200);
        let let_go_on = || {
            signal(&child, Signal::CONT);
            wait_for(identity, ProcessState::Running);
            true
        };
        assert_eq!(identity.kill(hasty, let_go_on), Err(KillError::Resumed { pid: identity.pid }));
        wait_for(identity, ProcessState::Running);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// However many want to kill a process at once: if it is not the one, it goes on in the end, unless it was stopped
    /// before they came.
    #[test]
    fn the_innocent_go_on_whoever_looked_at_them() {
        let (mut child, identity) = sleeper();
        for round in 0..50 {
            let innocent = Err(KillError::Innocent { pid: identity.pid });
            let ask = || match identity.kill(PATIENCE, || false) {
                // Stopped by another one of them, as far as this one knows.
                Err(KillError::LetGoOn { why }) => assert_eq!(Err(*why), innocent, "round {round}"),
                answer => assert_eq!(answer, innocent, "round {round}"),
            };
            std::thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(ask)));
            wait_for(identity, ProcessState::Running);
        }
        signal(&child, Signal::STOP);
        wait_for(identity, ProcessState::Stopped);
        assert_eq!(identity.kill(PATIENCE, || false), Err(KillError::Innocent { pid: identity.pid }));
        assert_eq!(identity.state(), ProcessState::Stopped);
        // Killed by somebody else while it was judged.
        let other_was_first = || identity.kill(PATIENCE, || true).is_err();
        assert_eq!(identity.kill(PATIENCE, other_was_first), Err(KillError::Ended { pid: identity.pid }));
        child.wait().unwrap();
    }

    /// Who is not killed is as it was before, or it is said what has changed; so it is of who is about to end.
    #[test]
    fn what_a_kill_has_done_is_told() {
        let (mut child, identity) = sleeper();
        let pid = identity.pid;
        signal(&child, Signal::STOP);
        wait_for(identity, ProcessState::Stopped);
        let mut looks = 0;
        let let_go_on_once = || {
            looks += 1;
            if looks == 1 {
                signal(&child, Signal::CONT);
                wait_for(identity, ProcessState::Running);
            }
            false
        };
        let error = identity.kill(PATIENCE, let_go_on_once).unwrap_err();
        assert_eq!(error, KillError::LetGoOn { why: Box::new(KillError::Innocent { pid }) });
        assert!(error.to_string().ends_with("it was stopped before, and goes on now"), "{error}");
        wait_for(identity, ProcessState::Running);
        child.kill().unwrap();
        child.wait().unwrap();
        // Nobody is so quick each time.
        let mut lingering = 0;
        for _ in 0..20 {
            let (mut child, identity) = sleeper();
            signal(&child, Signal::STOP);
            wait_for(identity, ProcessState::Stopped);
            match identity.kill(Duration::ZERO, || true) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, KillError::Lingering { pid: identity.pid });
                    lingering += 1;
                }
            }
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
        }
        println!("{lingering} of 20 were about to end");
        assert!(lingering > 0);
    }

    /// Nothing is killed by its number alone.
    #[test]
    fn every_part_of_an_identity_counts() {
        let (mut child, identity) = sleeper();
        let (pid, start_ticks) = (identity.pid, identity.start_ticks);
        let kill = |identity: ProcessIdentity, is_guilty| identity.kill(PATIENCE, || is_guilty);
        let foreign = Err(KillError::Foreign { pid });
        for unknown in [
            ProcessIdentity { start_ticks: 0, ..identity },
            ProcessIdentity { pid_namespace: 0, ..identity },
            ProcessIdentity { pid_namespace: identity.pid_namespace + 1, ..identity },
            ProcessIdentity { boot: identity.boot ^ 1, ..identity },
        ] {
            assert_eq!((unknown.state(), kill(unknown, true)), (ProcessState::Unknown, foreign.clone()));
        }
        let earlier = ProcessIdentity { start_ticks: start_ticks - 1, ..identity };
        assert_eq!((earlier.state(), kill(earlier, true)), (ProcessState::Ended, Err(KillError::Ended { pid })));
        assert_eq!(kill(identity, false), Err(KillError::Innocent { pid }));
        wait_for(identity, ProcessState::Running);
        assert_eq!(kill(identity, true), Ok(()));
        assert_eq!(identity.state(), ProcessState::Ended);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
    }
}
