//! Interrupts, which are SIGINT (Ctrl-C), SIGTERM and SIGHUP: a command ends between two operations instead of in the
//! middle of one, and leaves nothing it made for itself.
//!
//! Invariants: the first interrupt is noted, or destroys the table that the command made for itself, whichever was
//! asked for when it came; a second SIGINT or SIGTERM ends the process at once. The holder of the lock of [`MADE`]
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
use crate::signals::{self, ENDING};

/// The exit code of a command that was interrupted: 128 and the number of SIGINT, as shells have it.
pub const EXIT_INTERRUPTED: u8 = 130;

static PRESSED: AtomicBool = AtomicBool::new(false);
static ORPHANED: AtomicBool = AtomicBool::new(false);
/// Whether SIGHUP means something else to this command.
static LEFT: AtomicBool = AtomicBool::new(false);
static MADE: Mutex<Option<Made>> = Mutex::new(None);

/// A table that a command made for itself.
struct Made {
    url: Url,
    output: Output,
}

impl Made {
    /// Destroys it and ends the process. This command's workers may die in the middle of a change: nobody needs the
    /// table any more.
    fn abandon(self) -> ! {
        let failure = match Store::destroy(&self.url) {
            Ok(()) => Failure::Abandoned(self.url),
            Err(error) => error.into(),
        };
        self.output.error_over_bar(&failure.text());
        std::process::exit(EXIT_INTERRUPTED.into());
    }
}

/// From now on the first interrupt is only noted: see [`requested`]. Where no handler can be installed, the signals end
/// the process as they always do.
pub fn note() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let _ = install();
    });
}

fn install() -> io::Result<()> {
    catch(ENDING.iter().map(|(signal, _)| *signal), pressed)?;
    // The end of a terminal sends it several times.
    catch(signals::hangup().map(|(signal, _)| signal), hung_up)
}

/// Calls `noted` for each of these signals that comes, in a thread of its own.
fn catch(signals: impl Iterator<Item = i32>, noted: fn()) -> io::Result<()> {
    let (mut woken, wakes) = UnixStream::pair()?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        // Until the process ends, or at once if no signal could be registered.
        while woken.read_exact(&mut [0]).is_ok() {
            noted();
        }
    })?;
    for signal in signals {
        pipe::register(signal, wakes.try_clone()?)?;
    }
    Ok(())
}

/// Whether an interrupt came since [`note`], or nobody wants this process any more.
pub fn requested() -> bool {
    PRESSED.load(Ordering::Relaxed) || ORPHANED.load(Ordering::Relaxed)
}

/// The process that gave this one its orders is gone. An interrupt after that is still the first.
pub fn request() {
    ORPHANED.store(true, Ordering::Relaxed);
}

/// From now on the first interrupt destroys the table at `url`, which this command made for itself, and ends the
/// process. If it came before, now.
pub fn arm(url: &Url, output: &Output) {
    note();
    let mut guard = made();
    let made = Made { url: url.clone(), output: *output };
    if requested() {
        made.abandon();
    }
    *guard = Some(made);
}

/// From now on an interrupt is only noted. Does not return if it is destroying the table.
pub fn disarm() {
    *made() = None;
}

/// From now on SIGHUP is no interrupt: the command looks after it itself.
pub fn leave_hangups() {
    LEFT.store(true, Ordering::Relaxed);
}

/// Does what an interrupt does that reached this process's workers, and perhaps not yet this process. Does not return
/// if there is a table to destroy.
pub fn press() -> Failure {
    let mut guard = made();
    PRESSED.store(true, Ordering::Relaxed);
    match guard.take() {
        Some(made) => made.abandon(),
        None => Failure::Stopped,
    }
}

fn made() -> MutexGuard<'static, Option<Made>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pressed() {
    let guard = made();
    if PRESSED.swap(true, Ordering::Relaxed) {
        std::process::exit(EXIT_INTERRUPTED.into());
    }
    abandon(guard);
}

fn hung_up() {
    if LEFT.load(Ordering::Relaxed) {
        return;
    }
    let guard = made();
    PRESSED.store(true, Ordering::Relaxed);
    abandon(guard);
}

fn abandon(mut guard: MutexGuard<'static, Option<Made>>) {
    if let Some(made) = guard.take() {
        made.abandon();
    }
}
