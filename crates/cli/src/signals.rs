//! SIGINT, SIGTERM, SIGXCPU and SIGHUP: the first of them requests an orderly end of the command, and a second one, but
//! for SIGHUP, ends the process at once. One that was ignored when the process started is not caught.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXCPU, SIGXFSZ};
use signal_hook::{flag, low_level};

use crate::failure::Failure;
use crate::memory;

/// The signals that end a command, and their names. The kernel sends SIGXCPU once a second beyond `ulimit -t`.
pub const TERMINATING: [(i32, &str); 3] = [(SIGINT, "SIGINT"), (SIGTERM, "SIGTERM"), (SIGXCPU, "SIGXCPU")];
/// The signal that a process gets when its terminal is closed; it also ends a command.
pub const HANGUP: (i32, &str) = (SIGHUP, "SIGHUP");
/// The exit code of a process ended by a signal, less the number of the signal, as in shells.
const EXIT_SIGNALLED: i32 = 128;

/// Yields those of `signals` that were not ignored when this process started, as SIGHUP is under nohup, and SIGINT in
/// the background of a script. Ignored ones stay ignored.
pub fn heeded<const N: usize>(signals: [(i32, &'static str); N]) -> impl Iterator<Item = (i32, &'static str)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    signals.into_iter().filter(move |(signal, _)| !ignores(&status, *signal))
}

/// Makes a write beyond the limit on file sizes (`ulimit -f`) an error, which says what was attempted, instead of a
/// signal that ends the process.
pub fn survive_file_limits() {
    // If no handler can be installed, the process ends as before.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Whether a process with this status ignores `signal`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Handlers that record signals.
pub struct Signals {
    /// Readable once a signal has come.
    wake_reader: UnixStream,
    received: Vec<(&'static str, Arc<AtomicBool>)>,
}

impl Signals {
    /// Installs the handlers.
    pub fn catch() -> Result<Signals, Failure> {
        Signals::install().map_err(Failure::host("catch signals"))
    }

    fn install() -> io::Result<Signals> {
        let (wake_reader, wake_writer) = UnixStream::pair()?;
        let is_second = Arc::new(AtomicBool::new(false));
        for (signal, _) in heeded(TERMINATING) {
            // The order matters: the first signal finds the flag unset and then sets it.
            flag::register_conditional_shutdown(signal, EXIT_SIGNALLED + signal, Arc::clone(&is_second))?;
            flag::register(signal, Arc::clone(&is_second))?;
        }
        let mut received = Vec::new();
        // A terminal that closes sends SIGHUP several times, so a second one must not end the process.
        for (signal, name) in heeded(TERMINATING).chain(heeded([HANGUP])) {
            let flag = Arc::default();
            flag::register(signal, Arc::clone(&flag))?;
            low_level::pipe::register(signal, wake_writer.try_clone()?)?;
            memory::signal_caught(signal);
            received.push((name, flag));
        }
        Ok(Signals { wake_reader, received })
    }

    /// Waits up to `timeout`, which must not be zero, for a signal, and returns the name of the first one.
    pub fn wait(&self, timeout: Duration) -> Result<Option<&'static str>, Failure> {
        let read = self.wake_reader.set_read_timeout(Some(timeout)).and_then(|()| (&self.wake_reader).read(&mut [0]));
        match read {
            Ok(_) => {}
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {}
            Err(error) => return Err(Failure::host("wait for signals")(error)),
        }
        Ok(self.received())
    }

    /// Forgets a received SIGHUP. One that arrives at the same time is either kept or counts as the same.
    pub fn forget_hangup(&self) {
        let hangup = self.received.iter().filter(|(name, _)| *name == HANGUP.1);
        hangup.for_each(|(_, received)| received.store(false, Ordering::SeqCst));
    }

    /// Returns the name of the first signal received, if any.
    pub fn received(&self) -> Option<&'static str> {
        self.received.iter().find(|(_, received)| received.load(Ordering::SeqCst)).map(|(name, _)| *name)
    }
}

/// The terminal from which this process was started, if any.
pub struct Terminal {
    existed: bool,
}

impl Terminal {
    /// Detects whether there is a terminal.
    pub fn detect() -> Terminal {
        Terminal { existed: has_terminal() }
    }

    /// Whether there was a terminal that has been closed since.
    pub fn is_closed(&self) -> bool {
        self.existed && !has_terminal()
    }
}

/// Whether this process has a terminal that is not closed.
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
