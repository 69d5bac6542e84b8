//! SIGINT, SIGTERM and SIGHUP: the first asks for an orderly end, a second SIGINT or SIGTERM ends the process at once.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::failure::Failure;

/// Signals that end a command, and their names.
pub const ENDING: [(i32, &str); 2] = [(SIGINT, "SIGINT"), (SIGTERM, "SIGTERM")];
/// The signal of a terminal that is closed, which ends it as well.
pub const HANGUP: (i32, &str) = (SIGHUP, "SIGHUP");
/// Shells give a process that a signal ended this code, and the signal's number on top.
const EXIT_SIGNALLED: i32 = 128;

/// SIGHUP, unless this process was started to ignore it, as by nohup.
pub fn hangup() -> impl Iterator<Item = (i32, &'static str)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    (!ignores(&status, HANGUP.0)).then_some(HANGUP).into_iter()
}

/// Whether a process of this status ignores `signal`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The signals, caught from now on.
pub struct Signals {
    /// Readable once a signal has come.
    woken: UnixStream,
    came: Vec<(&'static str, Arc<AtomicBool>)>,
}

impl Signals {
    /// Catches them.
    pub fn catch() -> Result<Signals, Failure> {
        Signals::install().map_err(Failure::host("catch signals"))
    }

    fn install() -> io::Result<Signals> {
        let (woken, wakes) = UnixStream::pair()?;
        let is_second = Arc::new(AtomicBool::new(false));
        for (signal, _) in ENDING {
            // In this order: the first signal finds the flag unset, and sets it.
            flag::register_conditional_shutdown(signal, EXIT_SIGNALLED + signal, Arc::clone(&is_second))?;
            flag::register(signal, Arc::clone(&is_second))?;
        }
        let mut came = Vec::new();
        // The end of a terminal sends SIGHUP several times: no second one ends the process at once.
        for (signal, name) in ENDING.into_iter().chain(hangup()) {
            let flag = Arc::default();
            flag::register(signal, Arc::clone(&flag))?;
            low_level::pipe::register(signal, wakes.try_clone()?)?;
            came.push((name, flag));
        }
        Ok(Signals { woken, came })
    }

    /// The name of the first signal, if one comes within `patience`, which is not zero.
    pub fn wait(&self, patience: Duration) -> Result<Option<&'static str>, Failure> {
        let read = self.woken.set_read_timeout(Some(patience)).and_then(|()| (&self.woken).read(&mut [0]));
        match read {
            Ok(_) => {}
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {}
            Err(error) => return Err(Failure::host("wait for signals")(error)),
        }
        Ok(self.came())
    }

    /// Forgets that SIGHUP has come. One that comes meanwhile is not forgotten, or is the same.
    pub fn forget_hangup(&self) {
        let hangup = self.came.iter().filter(|(name, _)| *name == HANGUP.1);
        hangup.for_each(|(_, came)| came.store(false, Ordering::SeqCst));
    }

    /// The name of the first signal, if one has come.
    pub fn came(&self) -> Option<&'static str> {
        self.came.iter().find(|(_, came)| came.load(Ordering::SeqCst)).map(|(name, _)| *name)
    }
}

/// The terminal that this process was started from, if there is one.
pub struct Terminal {
    is_there: bool,
}

impl Terminal {
    /// Notes whether there is one.
    pub fn note() -> Terminal {
        Terminal { is_there: has_terminal() }
    }

    /// Whether there was one, and it was closed since.
    pub fn is_gone(&self) -> bool {
        self.is_there && !has_terminal()
    }
}

/// Whether the kernel knows a terminal of this process that is not closed.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_in_the_status() {
        let status = "Name:\tguira\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert!(ignores(status, SIGHUP) && ignores(status, 13));
        assert!(!ignores(status, SIGINT) && !ignores("", SIGHUP) && !ignores("SigIgn: none", SIGHUP));
    }
}
