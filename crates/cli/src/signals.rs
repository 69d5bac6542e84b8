//! SIGINT and SIGTERM: the first asks for an orderly end, the second of either ends the process at once.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::failure::Failure;

/// Signals that end a server, and their names.
const SIGNALS: [(i32, &str); 2] = [(SIGINT, "SIGINT"), (SIGTERM, "SIGTERM")];
/// Shells give a process that a signal ended this code, and the signal's number on top.
const EXIT_SIGNALLED: i32 = 128;

/// The signals, caught from now on.
pub struct Signals {
    /// Readable once a signal has come.
    woken: UnixStream,
    came: [Arc<AtomicBool>; 2],
}

impl Signals {
    /// Catches them.
    pub fn catch() -> Result<Signals, Failure> {
        Signals::install().map_err(Failure::host("catch signals"))
    }

    fn install() -> io::Result<Signals> {
        let (woken, wakes) = UnixStream::pair()?;
        let is_second = Arc::new(AtomicBool::new(false));
        let came = [Arc::default(), Arc::default()];
        for ((signal, _), came) in SIGNALS.into_iter().zip(&came) {
            // In this order: the first signal finds the flag unset, and sets it.
            flag::register_conditional_shutdown(signal, EXIT_SIGNALLED + signal, Arc::clone(&is_second))?;
            flag::register(signal, Arc::clone(&is_second))?;
            flag::register(signal, Arc::clone(came))?;
            low_level::pipe::register(signal, wakes.try_clone()?)?;
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

    /// The name of the first signal, if one has come.
    pub fn came(&self) -> Option<&'static str> {
        let came = SIGNALS.iter().zip(&self.came).find(|(_, came)| came.load(Ordering::SeqCst));
        came.map(|((_, name), _)| *name)
    }
}
