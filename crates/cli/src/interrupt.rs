//! Ctrl-C: a command ends between two operations instead of in the middle of one, and leaves nothing it made for
//! itself.
//!
//! A second Ctrl-C ends the process at once, as if there were no handler.

use std::sync::atomic::{AtomicBool, Ordering};

use guira::{Store, Url};

/// The exit code of a command that was interrupted: 128 and the number of SIGINT, as shells have it.
pub const EXIT_INTERRUPTED: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on the first Ctrl-C is only noted: see [`requested`].
pub fn note() {
    set(|| ());
}

/// Whether Ctrl-C was pressed since [`note`].
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// From now on the first Ctrl-C destroys the table at `url`, which this command made for itself, and ends the process.
/// Its workers, which the terminal interrupts as well, may die in the middle of a change: nobody needs the table any
/// more.
pub fn destroy(url: &Url) {
    let url = url.clone();
    set(move || {
        let end = match Store::destroy(&url) {
            Ok(()) => format!("interrupted: {url} was made for this run and is destroyed"),
            Err(error) => format!("interrupted: {error}"),
        };
        eprintln!("guira: {end}");
        std::process::exit(EXIT_INTERRUPTED.into());
    });
}

/// Where no handler can be installed, Ctrl-C ends the process as it always does.
fn set(action: impl Fn() + Send + 'static) {
    let _ = ctrlc::set_handler(move || {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(EXIT_INTERRUPTED.into());
        }
        action();
    });
}
