//! Interrupts, which are SIGINT (Ctrl-C), SIGTERM and SIGHUP: a command ends between two operations instead of in the
//! middle of one, and leaves nothing it made for itself.
//!
//! Invariants: the first interrupt is noted, or destroys the table that the command made for itself, whichever was
//! asked for when it came; a second SIGINT or SIGTERM ends the process at once. The holder of the lock of [`TEMPORARY_TABLE`]
//! decides what becomes of that table, so a command that ends by itself never meets its own handler.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use guira::{Store, Url};
use signal_hook::low_level::pipe;

use crate::failure::Failure;
use crate::output::Output;
use crate::signals::{self, TERMINATING};

/// The exit code of a command that was interrupted: 128 and the number of SIGINT, as shells have it.
pub const EXIT_INTERRUPTED: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether SIGHUP means something else to this command.
static HANGUPS_IGNORED: AtomicBool = AtomicBool::new(false);
static TEMPORARY_TABLE: Mutex<Option<TemporaryTable>> = Mutex::new(None);

/// A table that a command made for itself.
struct TemporaryTable {
    url: Url,
    output: Output,
}

impl TemporaryTable {
    /// Destroys it and ends the process. This command's workers may die in the middle of a change: nobody needs the
    /// table any more.
    fn destroy_and_exit(self) -> ! {
        let failure = match Store::destroy(&self.url) {
            Ok(()) => Failure::TableDiscarded(self.url),
            Err(error) => error.into(),
        };
        self.output.error_over_bar(&failure.text());
        std::process::exit(EXIT_INTERRUPTED.into());
    }
}

/// From now on the first interrupt is only noted: see [`requested`]. Where no handler can be installed, the signals end
/// the process as they always do.
pub fn catch() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let _ = install();
    });
}

fn install() -> io::Result<()> {
    on_signals(TERMINATING.iter().map(|(signal, _)| *signal), on_interrupt)?;
    // The end of a terminal sends it several times.
    on_signals(signals::hangup().map(|(signal, _)| signal), on_hangup)
}

/// Calls `noted` for each of these signals that comes, in a thread of its own.
fn on_signals(signals: impl Iterator<Item = i32>, noted: fn()) -> io::Result<()> {
    let (mut wake_reader, wake_writer) = UnixStream::pair()?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // Until the process ends, or at once if no signal could be registered.
        while wake_reader.read_exact(&mut [0]).is_ok() {
            noted();
        }
    })?;
    for signal in signals {
        pipe::register(signal, wake_writer.try_clone()?)?;
    }
    Ok(())
}

/// Whether an interrupt came since [`catch`], or nobody wants this process any more.
pub fn requested() -> bool {
    INTERRUPTED.load(Ordering::Relaxed) || STOP_REQUESTED.load(Ordering::Relaxed)
}

/// The process that gave this one its orders is gone. An interrupt after that is still the first.
pub fn request_stop() {
    STOP_REQUESTED.store(true, Ordering::Relaxed);
}

/// From now on the first interrupt destroys the table at `url`, which this command made for itself, and ends the
/// process. If it came before, now.
pub fn arm(url: &Url, output: &Output) {
    catch();
    let mut guard = temporary_table();
    let table = TemporaryTable { url: url.clone(), output: *output };
    if requested() {
        table.destroy_and_exit();
    }
    *guard = Some(table);
}

/// From now on an interrupt is only noted. Does not return if it is destroying the table.
pub fn disarm() {
    *temporary_table() = None;
}

/// From now on SIGHUP is no interrupt: the command looks after it itself.
pub fn ignore_hangups() {
    HANGUPS_IGNORED.store(true, Ordering::Relaxed);
}

/// Does what an interrupt does that reached this process's workers, and perhaps not yet this process. Does not return
/// if there is a table to destroy.
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
