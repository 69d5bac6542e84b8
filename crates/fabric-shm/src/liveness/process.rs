//! Identities of processes that do not depend on the process id alone, and killing a process that blocks others.
//!
//! Invariant: a process is killed through a process file descriptor, and only if the identity recorded in the client
//! slot (process id, start time, namespaces, boot) is that of the process behind the descriptor, and if that process is
//! found, after this check, to hold the slot.
//!
//! Limit: a process that releases the slot in the microseconds between the last check and the signal is killed anyway.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::region::boot_id;

/// The time between two checks of a process that was sent a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The field of /proc/PID/stat with the start time, counted from the end of the program's name, which may contain any
/// character.
const START_FIELD: usize = 19;

/// Reasons why a process is not proven to be the one to kill.
const NOT_IDENTIFIED: &str = "it runs in another container, or its slot does not identify it well enough";
const HIDDEN: &str = "/proc does not show it to this user (hidepid)";
const NOT_HOLDER: &str = "it does not hold the slot now";

/// The identity of a process, unique among all past and present processes of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The process id, in its own pid namespace.
    pub pid: u64,
    /// The start time in clock ticks since boot; 0 if the kernel does not report it.
    pub start_ticks: u64,
    /// The pid namespace, and in the upper half the time namespace, by whose clock the start time is: the inodes of
    /// /proc/PID/ns/pid and /proc/PID/ns/time; 0 if the kernel does not report them.
    pub namespaces: u64,
    /// The boot id, whose halves are combined by XOR; 0 if the kernel does not report it.
    pub boot: u64,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// The process runs, or waits for something.
    Running,
    /// The process is stopped by a signal or by a tracer.
    Stopped,
    /// The process has ended.
    Ended,
    /// The state cannot be known: the process belongs to another pid or time namespace, or the kernel does not report
    /// it to this user (/proc is mounted with `hidepid`).
    Unknown,
}

/// An error of killing a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KillError {
    /// The process is not proven to be the right one: it is not identified well enough, its process id means another
    /// process here, or it does not hold the slot.
    #[error(
        "process {pid} may be the wrong one: {doubt}; if you are sure that it is the right one, run kill -9 {pid} \
         where it runs"
    )]
    Unproven {
        /// The process id, in the namespace where the process runs.
        pid: u64,
        /// The reason for the doubt.
        doubt: &'static str,
    },
    /// The process has ended already.
    #[error("process {pid} has ended")]
    Ended {
        /// The process id.
        pid: u64,
    },
    /// This user may not kill the process, or it is the calling process.
    #[error("process {pid} {reason}")]
    Denied {
        /// The process id.
        pid: u64,
        /// The reason.
        reason: &'static str,
    },
    /// The process was sent SIGKILL, but did not end in time: it will end as soon as it can.
    #[error(
        "process {pid} was sent SIGKILL, but has not ended yet: it waits for a device, or its control group is frozen \
         (thaw it)"
    )]
    Lingering {
        /// The process id.
        pid: u64,
    },
    /// The kernel refused for another reason.
    #[error("process {pid} could not be killed: {reason}")]
    Kernel {
        /// The process id.
        pid: u64,
        /// The kernel's error.
        reason: String,
    },
}

impl ProcessIdentity {
    /// Returns the identity of this process. Costs a few reads in /proc.
    #[must_use]
    pub fn current() -> ProcessIdentity {
        let boot = u128::from_le_bytes(boot_id());
        ProcessIdentity {
            pid: u64::from(std::process::id()),
            start_ticks: read_stat("/proc/self/stat").map_or(0, |(_, start_ticks)| start_ticks),
            namespaces: own_namespaces(),
            boot: boot as u64 ^ (boot >> 64) as u64,
        }
    }

    /// Returns the current state of the process. Costs a few reads in /proc.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let here = ProcessIdentity::current();
        if !self.is_of(&here) {
            return ProcessState::Unknown;
        }
        let states = match read_stat(&format!("/proc/{}/stat", self.pid)) {
            // The main thread has ended; the process has ended only if all of its threads have.
            Some((state, start_ticks)) if start_ticks == self.start_ticks && is_over(state) => self.threads(),
            Some((state, start_ticks)) if start_ticks == self.start_ticks => vec![state],
            Some(_) => Vec::new(),
            None if is_hidden(self.pid) => return ProcessState::Unknown,
            None => Vec::new(),
        };
        if states.iter().all(|state| is_over(*state)) {
            ProcessState::Ended
        } else if states.iter().all(|state| is_stopped(*state) || is_over(*state)) {
            ProcessState::Stopped
        } else {
            ProcessState::Running
        }
    }

    /// Whether the process does not run because its control group is frozen; it is still alive. Detected only where
    /// control groups are mounted at /sys/fs/cgroup. Costs a few reads in /proc and /sys.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let Ok(groups) = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid)) else { return false };
        let says = |(path, line): (String, &str)| {
            std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(|found| found == line))
        };
        // The state is read after the group, so that the group is known to be that of this process.
        groups.lines().filter_map(freezer).any(says) && matches!(self.state(), ProcessState::Running)
    }

    /// Whether the process id means the same process to the process `here`.
    fn is_of(&self, here: &ProcessIdentity) -> bool {
        let is_known = self.pid != 0 && self.start_ticks != 0 && self.namespaces != 0 && self.boot != 0;
        is_known && self.namespaces == here.namespaces && self.boot == here.boot
    }

    /// Kills the process, with all of its threads, if it is proven to be the right one: its identity matches, and after
    /// that `holds` confirms that it holds the resource for which it is to be killed. Waits up to `timeout` for its
    /// end. Memory that it shares with other processes is left as it is. Not ruled out: the process releases the
    /// resource within the microseconds between the confirmation and the signal.
    ///
    /// # Errors
    /// See [`KillError`]. The process then continues, unless it ended by itself, or is `Lingering` and ends later.
    pub fn kill(&self, timeout: Duration, holds: impl FnOnce() -> bool) -> Result<(), KillError> {
        let pid = self.pid;
        let here = ProcessIdentity::current();
        let not_identified = KillError::Unproven { pid, doubt: NOT_IDENTIFIED };
        if !self.is_of(&here) {
            return Err(not_identified);
        }
        if pid == here.pid {
            return Err(KillError::Denied { pid, reason: "is this process" });
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| not_identified.clone())?;
        let descriptor = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| self.refused(errno))?;
        let has_ended = || self.state() == ProcessState::Ended;
        // Checked after opening the descriptor: had the process id been reused, the start time would be later.
        match self.state() {
            ProcessState::Ended => return Err(KillError::Ended { pid }),
            // It is of this namespace, so /proc hides it.
            ProcessState::Unknown => return Err(KillError::Unproven { pid, doubt: HIDDEN }),
            ProcessState::Running | ProcessState::Stopped => {}
        }
        if !holds() {
            let gave_up = KillError::Unproven { pid, doubt: NOT_HOLDER };
            return Err(if has_ended() { KillError::Ended { pid } } else { gave_up });
        }
        pidfd_send_signal(&descriptor, Signal::KILL).map_err(|errno| self.refused(errno))?;
        if wait_until(timeout, has_ended) { Ok(()) } else { Err(KillError::Lingering { pid }) }
    }

    fn refused(&self, errno: Errno) -> KillError {
        let pid = self.pid;
        match errno {
            Errno::SRCH => KillError::Ended { pid },
            Errno::PERM => KillError::Denied { pid, reason: "belongs to another user" },
            other => KillError::Kernel { pid, reason: std::io::Error::from(other).to_string() },
        }
    }

    /// Returns the states of its threads. A thread whose state cannot be read has ended.
    fn threads(&self) -> Vec<char> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        threads.filter_map(|thread| Some(read_stat(thread.path().join("stat").to_str()?)?.0)).collect()
    }
}

/// Whether a process exists that /proc does not show to this user.
fn is_hidden(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

fn is_stopped(state: char) -> bool {
    matches!(state, 'T' | 't')
}

/// Whether the state is that of a process or thread that executes nothing any more: a zombie, or a dead one.
fn is_over(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

/// Reads the state and start time of the process or thread whose stat file is at `path`.
fn read_stat(path: &str) -> Option<(char, u64)> {
    parse_stat(&std::fs::read_to_string(path).ok()?)
}

fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(START_FIELD - 1)?.parse().ok()?))
}

/// Returns the file that tells whether a control group, given as a line of /proc/PID/cgroup, is frozen, and the line of
/// the file that says so.
fn freezer(group: &str) -> Option<(String, &'static str)> {
    let (_, group) = group.split_once(':')?;
    match group.split_once(':')? {
        ("", path) => Some((format!("/sys/fs/cgroup{path}/cgroup.events"), "frozen 1")),
        ("freezer", path) => Some((format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN")),
        _ => None,
    }
}

/// Returns the namespaces of this process. Their inodes have 32 bits.
fn own_namespaces() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let inode = |kind: &str| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|namespace| namespace.ino());
    // A kernel without time namespaces has one clock.
    inode("pid").map_or(0, |pid| pid ^ inode("time").unwrap_or(0).rotate_left(32))
}

fn wait_until(timeout: Duration, mut reached: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if reached() {
            return true;
        }
        if start.elapsed() >= timeout {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use guira_testing::patience;

    use super::*;

    #[test]
    fn program_names_do_not_confuse_the_stat_parser() {
        let numbers: Vec<String> = (4..60).map(|field| field.to_string()).collect();
        let stat = format!("12 (a ) S (b) T {}", numbers.join(" "));
        // Field 22 of proc(5), the first being the number.
        assert_eq!(parse_stat(&stat), Some(('T', 22)));
        for bad in ["", "12 (a", "12 (a) ", "12 (a) S 4 5"] {
            assert_eq!(parse_stat(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn frozen_groups_are_recognised_in_both_cgroup_versions() {
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
        // Only where this user may freeze processes.
        let group = format!("/sys/fs/cgroup/freezer/{}", guira_testing::unique_name());
        if std::fs::create_dir(&group).is_err() {
            println!("not tested: this user may not freeze processes");
            return;
        }
        let (mut child, identity) = sleeper();
        assert!(!identity.is_frozen());
        std::fs::write(format!("{group}/cgroup.procs"), identity.pid.to_string()).unwrap();
        std::fs::write(format!("{group}/freezer.state"), "FROZEN").unwrap();
        let is_frozen = wait_until(patience(), || identity.is_frozen());
        let killed = identity.kill(Duration::from_millis(50), || true);
        std::fs::write(format!("{group}/freezer.state"), "THAWED").unwrap();
        child.wait().unwrap();
        std::fs::remove_dir(&group).unwrap();
        assert!(is_frozen && !identity.is_frozen());
        assert_eq!(killed, Err(KillError::Lingering { pid: identity.pid }), "it ended when it was thawed");
        println!("a process was frozen");
    }

    #[test]
    fn this_process_runs_and_does_not_kill_itself() {
        let own = ProcessIdentity::current();
        assert!(own.is_of(&own) && own == ProcessIdentity::current());
        assert_eq!(own.state(), ProcessState::Running);
        let pid = own.pid;
        assert_eq!(own.kill(Duration::ZERO, || true), Err(KillError::Denied { pid, reason: "is this process" }));
    }

    /// A process that ends leaves no id; one that exists is never taken for ended because /proc does not show it.
    #[test]
    fn hidden_processes_exist() {
        let (mut child, identity) = sleeper();
        assert!(is_hidden(identity.pid) && is_hidden(1), "also one of another user");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_hidden(identity.pid) && !is_hidden(0) && !is_hidden(u64::MAX));
    }

    /// Starts a sleeping process, and returns it with its identity.
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
        assert!(wait_until(patience(), || identity.state() == state), "it is never {state:?}");
    }

    /// Only a process that holds the resource is killed, whether it runs or is stopped; other processes are left alone.
    #[test]
    fn only_the_identified_process_is_killed() {
        for is_stopped in [false, true] {
            let (mut child, identity) = sleeper();
            let (pid, state) = (identity.pid, [ProcessState::Running, ProcessState::Stopped][usize::from(is_stopped)]);
            if is_stopped {
                signal(&child, Signal::STOP);
            }
            wait_for(identity, state);
            let not_holder = Err(KillError::Unproven { pid, doubt: NOT_HOLDER });
            assert_eq!(identity.kill(patience(), || false), not_holder);
            let earlier = ProcessIdentity { start_ticks: identity.start_ticks - 1, ..identity };
            assert_eq!(earlier.kill(patience(), || true), Err(KillError::Ended { pid }));
            assert_eq!(identity.state(), state);
            // Killed by another caller meanwhile.
            let other_was_first = || identity.kill(patience(), || true).is_err();
            assert_eq!(identity.kill(patience(), other_was_first), Err(KillError::Ended { pid }));
            child.wait().unwrap();
        }
    }

    /// A process that was sent SIGKILL and has not ended yet is distinguished from one that has ended.
    #[test]
    fn a_process_that_has_not_ended_yet_is_reported() {
        // Processes do not end within the zero timeout each time.
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
        println!("{lingering} of 20 had not ended yet");
        assert!(lingering > 0);
    }

    /// No process is killed by its process id alone.
    #[test]
    fn every_part_of_an_identity_counts() {
        let (mut child, identity) = sleeper();
        let (pid, start_ticks) = (identity.pid, identity.start_ticks);
        let kill = |identity: ProcessIdentity, is_holder| identity.kill(patience(), || is_holder);
        let foreign = Err(KillError::Unproven { pid, doubt: NOT_IDENTIFIED });
        for unknown in [
            ProcessIdentity { start_ticks: 0, ..identity },
            ProcessIdentity { namespaces: 0, ..identity },
            ProcessIdentity { namespaces: identity.namespaces + 1, ..identity },
            ProcessIdentity { namespaces: identity.namespaces ^ 1 << 32, ..identity },
            // The clock of another time namespace is another one.
            ProcessIdentity { namespaces: identity.namespaces ^ 1 << 32, start_ticks: start_ticks + 9, ..identity },
            ProcessIdentity { boot: identity.boot ^ 1, ..identity },
        ] {
            assert_eq!((unknown.state(), kill(unknown, true)), (ProcessState::Unknown, foreign.clone()));
        }
        let earlier = ProcessIdentity { start_ticks: start_ticks - 1, ..identity };
        assert_eq!((earlier.state(), kill(earlier, true)), (ProcessState::Ended, Err(KillError::Ended { pid })));
        assert_eq!(kill(identity, false), Err(KillError::Unproven { pid, doubt: NOT_HOLDER }));
        wait_for(identity, ProcessState::Running);
        assert_eq!(kill(identity, true), Ok(()));
        assert_eq!(identity.state(), ProcessState::Ended);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
    }
}
