//! Who a process is, beyond its number; and how one is killed that stands in everybody's way.
//!
//! Invariant: a process is killed only after it was stopped by its descriptor, and found, while it stood still, to be
//! the one that was meant. A process that stands still neither ends nor gives anything up, so nobody else is hit.

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
    /// This user may not kill it.
    #[error("process {pid} belongs to somebody else: no permission to kill it")]
    Permission {
        /// Its number.
        pid: u64,
    },
    /// It did not stop, or end, in time: it waits for a device, or its control group is frozen.
    #[error("process {pid} does not react to signals in time: it waits for a device, or is frozen")]
    Deaf {
        /// Its number.
        pid: u64,
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
            Some((state, start_ticks)) if start_ticks == self.start_ticks && is_over(state) => self.thread_states(),
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

    /// Whether its number means the same process to `here`.
    fn is_of(&self, here: &ProcessIdentity) -> bool {
        let is_known = self.pid != 0 && self.start_ticks != 0 && self.pid_namespace != 0 && self.boot != 0;
        is_known && self.pid_namespace == here.pid_namespace && self.boot == here.boot
    }

    /// Kills the process, all of its threads, if `is_guilty` says so once it stands still; otherwise it goes on. Waits
    /// up to `patience` for it to stand still, and again for its end. Memory it shares with others is as it left it.
    ///
    /// # Errors
    /// See [`KillError`]; the process goes on then, unless it ended by itself, or is `Deaf` and ends later.
    pub fn kill(&self, patience: Duration, is_guilty: impl FnOnce() -> bool) -> Result<(), KillError> {
        let pid = self.pid;
        let here = ProcessIdentity::current();
        if !self.is_of(&here) {
            return Err(KillError::Foreign { pid });
        }
        if pid == here.pid {
            return Err(KillError::Oneself { pid });
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(KillError::Foreign { pid })?;
        let failed = |errno: Errno| match errno {
            Errno::SRCH => KillError::Ended { pid },
            Errno::PERM => KillError::Permission { pid },
            other => KillError::Kernel { pid, reason: std::io::Error::from(other).to_string() },
        };
        let descriptor = pidfd_open(number, PidfdFlags::empty()).map_err(failed)?;
        // Behind the descriptor: if the number has passed on to another process since, that one was started later.
        let before = self.state();
        if before == ProcessState::Ended {
            return Err(KillError::Ended { pid });
        }
        let send = |signal| pidfd_send_signal(&descriptor, signal).map_err(failed);
        send(Signal::STOP)?;
        let go_on = |descriptor: &OwnedFd| {
            if before != ProcessState::Stopped {
                // It may have ended; otherwise it was this user's to stop a moment ago.
                let _ = pidfd_send_signal(descriptor, Signal::CONT);
            }
        };
        if !wait_until(patience, || self.stands_still()) {
            go_on(&descriptor);
            return Err(KillError::Deaf { pid });
        }
        if !is_guilty() {
            go_on(&descriptor);
            return Err(KillError::Innocent { pid });
        }
        send(Signal::KILL)?;
        if wait_until(patience, || self.state() == ProcessState::Ended) { Ok(()) } else { Err(KillError::Deaf { pid }) }
    }

    /// Whether no thread of the process executes anything.
    fn stands_still(&self) -> bool {
        self.thread_states().into_iter().all(|state| is_stopped(state) || is_over(state))
    }

    /// What each of its threads does; one that cannot be read has ended.
    fn thread_states(&self) -> Vec<char> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let states = threads.filter_map(|thread| read_stat(&thread.path().join("stat").to_string_lossy()));
        states.map(|(state, _)| state).collect()
    }
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
    fn this_process_runs_and_does_not_kill_itself() {
        let own = ProcessIdentity::current();
        assert!(own.is_of(&own) && own == ProcessIdentity::current());
        assert_eq!(own.state(), ProcessState::Running);
        let pid = own.pid;
        assert_eq!(own.kill(Duration::ZERO, || true), Err(KillError::Oneself { pid }));
    }

    /// Nothing is killed by its number alone.
    #[test]
    fn every_part_of_an_identity_counts() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = u64::from(child.id());
        let (_, start_ticks) = read_stat(&format!("/proc/{pid}/stat")).unwrap();
        let identity = ProcessIdentity { pid, start_ticks, ..ProcessIdentity::current() };
        let kill = |identity: ProcessIdentity, is_guilty| identity.kill(Duration::from_secs(10), || is_guilty);
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
        assert!(wait_until(Duration::from_secs(10), || identity.state() == ProcessState::Running), "it goes on");
        assert_eq!(kill(identity, true), Ok(()));
        assert_eq!(identity.state(), ProcessState::Ended);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
    }
}
