//! Refused memory: a command to which the system refuses memory, as under `ulimit -v`, ends in order with an error that
//! says so, and not by SIGABRT.
//!
//! Invariants: the first refusal gives up a reserve and has the effect of SIGTERM, where that is caught, so that the
//! command removes what it made for itself. If even the reserve is used up, or SIGTERM is not caught, the process ends
//! at once, as if it were killed, but with a message and [`EXIT_FAILURE`], and without allocating.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use guira_fabric::ByteCount;
use guira_fabric::refusal::{Allocator, Limits, share_one_heap};
use signal_hook::consts::{SIGABRT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::failure::EXIT_FAILURE;
use crate::output::Format;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::new(on_refusal);

/// Bytes of the reserve: enough for a command to end in order.
const RESERVE_BYTES: usize = 1 << 20;
/// Maximum number of refusals, over all threads, after which the memory is asked for again.
const MAX_REPEATS: u32 = 64;
/// Time until it is asked for again: other threads may return some.
const REPEAT_AFTER: Duration = Duration::from_millis(1);
/// Maximum number of bytes of the message of a process that ends at once.
const LINE_BYTES: usize = 512;
/// The starts of the panics by which the standard library ends a thread that gets no stack for its signal handlers.
const NO_SIGNAL_STACK: [&str; 2] = ["failed to allocate an alternative stack", "failed to set up alternative stack"];

static RESERVE: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static REFUSALS: AtomicU32 = AtomicU32::new(0);
/// The number of bytes that were refused first.
static REFUSED_BYTES: AtomicUsize = AtomicUsize::new(0);
static IS_SIGTERM_CAUGHT: AtomicBool = AtomicBool::new(false);
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Takes the reserve, and makes refusals rarer.
pub fn prepare() {
    if Limits::current().is_memory_limited() {
        share_one_heap();
        // The C library aborts when its own allocations are refused, and says so.
        let _ = flag::register_conditional_shutdown(SIGABRT, EXIT_FAILURE.into(), Arc::new(AtomicBool::new(true)));
    }
    *RESERVE.lock().unwrap_or_else(PoisonError::into_inner) = vec![0; RESERVE_BYTES];
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        if text.is_some_and(|text| NO_SIGNAL_STACK.iter().any(|start| text.starts_with(start))) {
            end_at_once(Refusal::OfStack);
        }
        report(panic);
    }));
}

/// Sets the format of the message of a process that ends at once.
pub fn report_in(format: Format) {
    IS_JSON.store(format == Format::Json, Ordering::Relaxed);
}

/// Records that `signal` is caught: if it is SIGTERM, that makes the command end in order from now on.
pub fn signal_caught(signal: i32) {
    IS_SIGTERM_CAUGHT.fetch_or(signal == SIGTERM, Ordering::Relaxed);
}

/// Returns the first refusal, which is why the command ends.
pub fn refusal() -> Option<Refusal> {
    match REFUSED_BYTES.load(Ordering::Relaxed) {
        0 => None,
        bytes => Some(Refusal::Of(bytes)),
    }
}

/// A request for memory that the system refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// For this number of bytes.
    Of(usize),
    /// For the stack of a thread's signal handlers.
    OfStack,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not enough memory: the system refused ")?;
        match self {
            Refusal::Of(bytes) => write!(f, "{} more", ByteCount(*bytes as u64))?,
            Refusal::OfStack => f.write_str("the stack of a new thread")?,
        }
        write!(f, "; {}", Limits::current())
    }
}

/// Returns if the allocation is worth another attempt.
extern "C" fn on_refusal(bytes: usize) {
    let refusals = REFUSALS.fetch_add(1, Ordering::Relaxed);
    if refusals > 0 {
        if refusals >= MAX_REPEATS {
            end_at_once(Refusal::Of(bytes));
        }
        return thread::sleep(REPEAT_AFTER);
    }
    REFUSED_BYTES.store(bytes, Ordering::Relaxed);
    let reserve = RESERVE.try_lock().map(|mut reserve| std::mem::take(&mut *reserve)).unwrap_or_default();
    let is_ending = IS_SIGTERM_CAUGHT.load(Ordering::Relaxed) && low_level::raise(SIGTERM).is_ok();
    if reserve.is_empty() || !is_ending {
        end_at_once(Refusal::Of(bytes));
    }
}

/// Ends the process without any clean-up, which might need memory.
fn end_at_once(refusal: Refusal) -> ! {
    let mut line = Line { bytes: [0; LINE_BYTES], length: 0 };
    let _ = match IS_JSON.load(Ordering::Relaxed) {
        // The message has nothing that JSON would escape.
        true => writeln!(line, "{{\"error\":{{\"blame\":\"host\",\"effect\":\"unknown\",\"message\":\"{refusal}\"}}}}"),
        false => writeln!(line, "guira: {refusal}"),
    };
    // A closed standard error is ignored.
    let _ = rustix::io::write(rustix::stdio::stderr(), &line.bytes[..line.length]);
    low_level::exit(EXIT_FAILURE.into())
}

/// Text that is written without allocating, and cut off at its maximum length.
struct Line {
    bytes: [u8; LINE_BYTES],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = &mut self.bytes[self.length..];
        let fitting = text.len().min(free.len());
        free[..fitting].copy_from_slice(&text.as_bytes()[..fitting]);
        self.length += fitting;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_message_fits_and_needs_no_escapes() {
        let refusal = Refusal::Of(usize::MAX).to_string();
        assert!(refusal.len() < LINE_BYTES - 100 && !refusal.contains(['"', '\\', '\n']), "{refusal}");
    }

    #[test]
    fn a_line_is_cut_off() {
        let mut line = Line { bytes: [0; LINE_BYTES], length: 0 };
        for _ in 0..LINE_BYTES {
            line.write_str("abc").unwrap();
        }
        assert_eq!(
            (line.length, &line.bytes[..5], &line.bytes[LINE_BYTES - 2..]),
            (LINE_BYTES, &b"abcab"[..], &b"ab"[..])
        );
    }
}
