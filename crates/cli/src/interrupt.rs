//! Interrupts by SIGINT (Ctrl-C), SIGTERM, SIGXCPU and SIGHUP: a command ends between two operations instead of in the middle of
//! one, and destroys a table that it created for itself.
//!
//! Invariants: the first interrupt sets a flag, or destroys the command's temporary table if one is armed; a second
//! one, but for SIGHUP, ends the process at once. Only the holder of the lock of [`TEMPORARY_TABLE`] destroys that table,
//! so a command that ends by itself never races with its own handler.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use guira::errors::ShmError;
use guira::{OpenError, Store, Url};
use signal_hook::low_level::pipe;

use crate::failure::{EXIT_FAILURE, Failure};
use crate::memory;
use crate::output::Output;
use crate::signals::{HANGUP, TERMINATING, heeded};

/// The exit code of an interrupted command: 128 plus the number of SIGINT, as in shells.
pub const EXIT_INTERRUPTED: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether the command handles SIGHUP itself.
static HANGUPS_IGNORED: AtomicBool = AtomicBool::new(false);
static TEMPORARY_TABLE: Mutex<Option<TemporaryTable>> = Mutex::new(None);

/// A table that a command created for itself.
struct TemporaryTable {
    url: Url,
    output: Output,
}

impl TemporaryTable {
    /// Destroys the table and ends the process. This command's workers may die in the middle of a change, because the
    /// table is no longer needed.
    fn destroy_and_exit(self) -> ! {
        let failure = match discard(&self.url) {
            Ok(()) => Failure::TableDiscarded(self.url),
            Err(error) => error.into(),
        };
        let (failure, code) = match memory::refusal() {
            Some(refusal) => (Failure::OutOfMemory { refusal, ended: Some(Box::new(failure)) }, EXIT_FAILURE),
            None => (failure, EXIT_INTERRUPTED),
        };
        self.output.error_over_bar(&failure.text());
        std::process::exit(code.into());
    }
}

/// Installs the handlers. From now on the first interrupt only sets a flag: see [`requested`]. If no handler can be
/// installed, the signals end the process as usual.
pub fn catch() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let _ = install();
    });
}

fn install() -> io::Result<()> {
    on_signals(heeded(TERMINATING), on_interrupt)?;
    // A terminal that closes sends SIGHUP several times.
    on_signals(heeded([HANGUP]), on_hangup)
}

/// Calls `handler` on a separate thread for each of these signals.
fn on_signals(signals: impl Iterator<Item = (i32, &'static str)>, handler: fn()) -> io::Result<()> {
    let (mut wake_reader, wake_writer) = UnixStream::pair()?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // Ends with the process, or at once if no signal could be registered.
        while wake_reader.read_exact(&mut [0]).is_ok() {
            handler();
        }
    })?;
    for (signal, _) in signals {
        pipe::register(signal, wake_writer.try_clone()?)?;
        memory::signal_caught(signal);
    }
    Ok(())
}

/// Whether an interrupt came since [`catch`], or [`request_stop`] was called.
pub fn requested() -> bool {
    INTERRUPTED.load(Ordering::Relaxed) || STOP_REQUESTED.load(Ordering::Relaxed)
}

/// Requests the end of this process without an interrupt, because its parent is gone or has ordered it to stop. An
/// interrupt after that still counts as the first one.
pub fn request_stop() {
    STOP_REQUESTED.store(true, Ordering::Relaxed);
}

/// Arms the destruction of the table at `url`, which this command created for itself: from now on the first interrupt
/// destroys it and ends the process. If an interrupt came before, this happens now.
pub fn arm(url: &Url, output: &Output) {
    catch();
    let mut guard = temporary_table();
    let table = TemporaryTable { url: url.clone(), output: *output };
    if requested() {
        table.destroy_and_exit();
    }
    *guard = Some(table);
}

/// Destroys the table at `url`, which this command created for itself. If there is not enough memory for that, removes
/// its file.
pub fn discard(url: &Url) -> Result<(), guira::Error> {
    let destroyed = Store::destroy(url);
    let has_no_memory = destroyed.as_ref().is_err_and(|error| {
        matches!(error, guira::Error::Open(OpenError::Region(ShmError::Io { source, .. }))
            if source.kind() == io::ErrorKind::OutOfMemory)
    });
    match url.path() {
        Some(path) if has_no_memory && std::fs::remove_file(&path).is_ok() => Ok(()),
        _ => destroyed,
    }
}

/// Disarms the destruction: from now on an interrupt only sets the flag. Does not return if the table is being
/// destroyed already.
pub fn disarm() {
    *temporary_table() = None;
}

/// Stops treating SIGHUP as an interrupt, because the command handles it itself.
pub fn ignore_hangups() {
    HANGUPS_IGNORED.store(true, Ordering::Relaxed);
}

/// Handles an interrupt that has reached a worker, but perhaps not yet this process. Does not return if there is a
/// table to destroy.
pub fn trigger() -> Failure {
    let mut guard = temporary_table();
    INTERRUPTED.store(true, Ordering::Relaxed);
    match guard.take() {
        Some(table) => table.destroy_and_exit(),
        None => Failure::Stopped,
    }
}

fn temporary_table() -> MutexGuard<'static, Option<TemporaryTable>> {
    TEMPORARY_TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_interrupt() {
    let guard = temporary_table();
    if INTERRUPTED.swap(true, Ordering::Relaxed) {
        std::process::exit(EXIT_INTERRUPTED.into());
    }
    discard_table(guard);
}

fn on_hangup() {
    if HANGUPS_IGNORED.load(Ordering::Relaxed) {
        return;
    }
    let guard = temporary_table();
    INTERRUPTED.store(true, Ordering::Relaxed);
    discard_table(guard);
}

fn discard_table(mut guard: MutexGuard<'static, Option<TemporaryTable>>) {
    if let Some(table) = guard.take() {
        table.destroy_and_exit();
    }
}
