//! Ctrl-C: a command ends between two operations instead of in the middle of one, and leaves nothing it made for
//! itself.
//!
//! Invariants: the first Ctrl-C is noted, or destroys the table that the command made for itself, whichever was asked
//! for when it came; the second ends the process at once. Whoever holds the lock of [`MADE`] decides what becomes of
//! that table, so a command that ends by itself never meets its own handler.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use guira::{Store, Url};

use crate::failure::Failure;
use crate::output::Output;

/// The exit code of a command that was interrupted: 128 and the number of SIGINT, as shells have it.
pub const EXIT_INTERRUPTED: u8 = 130;

static PRESSED: AtomicBool = AtomicBool::new(false);
static ORPHANED: AtomicBool = AtomicBool::new(false);
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
        self.output.error(&failure.text());
        std::process::exit(EXIT_INTERRUPTED.into());
    }
}

/// From now on the first Ctrl-C is only noted: see [`requested`]. Where no handler can be installed, Ctrl-C ends the
/// process as it always does.
pub fn note() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let _ = ctrlc::set_handler(pressed);
    });
}

/// Whether Ctrl-C was pressed since [`note`], or nobody wants this process any more.
pub fn requested() -> bool {
    PRESSED.load(Ordering::Relaxed) || ORPHANED.load(Ordering::Relaxed)
}

/// Whoever gave this process its orders is gone. A Ctrl-C after that is still the first.
pub fn request() {
    ORPHANED.store(true, Ordering::Relaxed);
}

/// From now on the first Ctrl-C destroys the table at `url`, which this command made for itself, and ends the process.
/// If it was pressed before, now.
pub fn arm(url: &Url, output: &Output) {
    note();
    let mut guard = made();
    let made = Made { url: url.clone(), output: *output };
    if requested() {
        made.abandon();
    }
    *guard = Some(made);
}

/// From now on Ctrl-C is only noted. Does not return if it is destroying the table.
pub fn disarm() {
    *made() = None;
}

/// Does what a Ctrl-C does that reached this process's workers, and perhaps not yet this process. Does not return if
/// there is a table to destroy.
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
    let mut guard = made();
    if PRESSED.swap(true, Ordering::Relaxed) {
        std::process::exit(EXIT_INTERRUPTED.into());
    }
    if let Some(made) = guard.take() {
        made.abandon();
    }
}
