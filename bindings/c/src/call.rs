//! The frame of every function: results, errors, and panics.

use std::ffi::{c_char, c_int};
use std::fmt::{self, Display, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use guira::{Blame, Effect};

use crate::memory;

/// The memory node, or the connection to it, failed. The next operation connects again.
pub const GUIRA_FABRIC: c_int = -1;
/// The memory is damaged, or is not a table.
pub const GUIRA_CORRUPT: c_int = -2;
/// The table was made by another version of this library.
pub const GUIRA_VERSION: c_int = -3;
/// The table has no room. Other keys can still be read, updated and removed.
pub const GUIRA_FULL: c_int = -4;
/// Other clients held what was needed, such as a lock, until the deadline. Repeating can help.
pub const GUIRA_BUSY: c_int = -5;
/// This client was fenced by another one. The next operation begins a new session.
pub const GUIRA_FENCED: c_int = -6;
/// An argument, a permission, or the use of a handle was wrong.
pub const GUIRA_MISUSE: c_int = -7;
/// This library has a bug. After a panic, the handle of the call refuses further calls, also that to close it; if the
/// call was to close it, the handle is gone.
pub const GUIRA_BUG: c_int = -8;
/// There is no table of this name.
pub const GUIRA_NOT_FOUND: c_int = -9;
/// There is a table of this name already.
pub const GUIRA_ALREADY_EXISTS: c_int = -10;
/// The table that was opened is gone: it was destroyed or its memory node lost it, with all that was stored in it, or
/// its file was renamed.
pub const GUIRA_GONE: c_int = -11;
/// The caller's buffer is shorter than the value. The length of the value was stored.
pub const GUIRA_TOO_SMALL: c_int = -12;

/// A failed call changed nothing.
pub const GUIRA_EFFECT_NONE: c_int = 0;
/// A failed call made its change; a batch made at least one of its changes.
pub const GUIRA_EFFECT_DONE: c_int = 1;
/// A failed call made its change, or did not; of a batch, that is so for at least one change.
pub const GUIRA_EFFECT_UNKNOWN: c_int = 2;

/// Bytes of a message, with the terminating zero.
pub const GUIRA_MESSAGE_BYTES: usize = 1016;

/// The error of a call, in memory of the caller. It is written if the call fails, and left alone otherwise.
#[repr(C)]
pub struct Error {
    /// The code that the call returned.
    pub code: c_int,
    /// The effect of the call on the table: GUIRA_EFFECT_NONE, GUIRA_EFFECT_DONE or GUIRA_EFFECT_UNKNOWN.
    pub effect: c_int,
    /// The message: what was attempted, on what, and why it failed. One sentence in UTF-8, ended by a zero, and cut off if
    /// it is too long.
    pub message: [c_char; GUIRA_MESSAGE_BYTES],
}

/// The reason why a call failed.
pub enum Failure {
    Guira(guira::Error),
    /// An argument that this library refuses before it looks at the table.
    Misuse(String),
    /// Puts of a batch failed.
    Batch {
        code: c_int,
        effect: c_int,
        message: String,
    },
    /// A value of so many bytes does not fit in the caller's buffer.
    TooSmall(usize, usize),
}

pub type Outcome<T = c_int> = Result<T, Failure>;

impl From<guira::Error> for Failure {
    fn from(error: guira::Error) -> Failure {
        Failure::Guira(error)
    }
}

impl Failure {
    pub fn misuse(message: impl Into<String>) -> Failure {
        Failure::Misuse(message.into())
    }

    pub fn code(&self) -> c_int {
        match self {
            Failure::Guira(error) => code(error),
            Failure::Misuse(_) => GUIRA_MISUSE,
            Failure::Batch { code, .. } => *code,
            Failure::TooSmall(..) => GUIRA_TOO_SMALL,
        }
    }

    pub fn effect(&self) -> c_int {
        match self {
            Failure::Guira(error) => match error.effect() {
                Effect::None => GUIRA_EFFECT_NONE,
                Effect::Done => GUIRA_EFFECT_DONE,
                Effect::Unknown => GUIRA_EFFECT_UNKNOWN,
            },
            Failure::Batch { effect, .. } => *effect,
            _ => GUIRA_EFFECT_NONE,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Guira(error) => error.fmt(f),
            Failure::Misuse(message) => write!(f, "{message}; nothing was changed"),
            Failure::Batch { message, .. } => f.write_str(message),
            Failure::TooSmall(bytes, capacity) => {
                write!(f, "the value has {bytes} bytes, and the buffer {capacity}")
            }
        }
    }
}

/// Returns the code of an error: its family, or the case that programs ask for most.
fn code(error: &guira::Error) -> c_int {
    match error.blame() {
        _ if error.is_not_found() => GUIRA_NOT_FOUND,
        _ if error.is_already_exists() => GUIRA_ALREADY_EXISTS,
        _ if error.is_gone() => GUIRA_GONE,
        Blame::Fabric => GUIRA_FABRIC,
        Blame::Corrupt => GUIRA_CORRUPT,
        Blame::Version => GUIRA_VERSION,
        Blame::Full => GUIRA_FULL,
        Blame::Busy => GUIRA_BUSY,
        Blame::Fenced => GUIRA_FENCED,
        Blame::Misuse => GUIRA_MISUSE,
        _ => GUIRA_BUG,
    }
}

/// Runs the body of a function and returns its result, or the code of its failure, which is described in `error`.
#[inline(always)]
pub fn run(error: *mut Error, body: impl FnOnce() -> Outcome) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(result)) => result,
        Ok(Err(failure)) => report(error, failure.code(), failure.effect(), &failure),
        Err(_) => report(error, GUIRA_BUG, GUIRA_EFFECT_UNKNOWN, &"a call panicked; its message is on standard error"),
    }
}

#[cold]
#[inline(never)]
fn report(error: *mut Error, code: c_int, effect: c_int, text: &dyn Display) -> c_int {
    if !error.is_null() {
        let mut message = Message { bytes: [0; GUIRA_MESSAGE_BYTES], length: 0 };
        // It never fails: what does not fit is left out.
        _ = write!(message, "{text}");
        memory::store(error, Error { code, effect, message: message.bytes });
    }
    code
}

/// A text that is written without an allocation, and ends in a zero.
struct Message {
    bytes: [c_char; GUIRA_MESSAGE_BYTES],
    length: usize,
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars().filter(|character| *character != '\0') {
            let mut utf8 = [0; 4];
            let utf8 = character.encode_utf8(&mut utf8).as_bytes();
            if self.length + utf8.len() >= GUIRA_MESSAGE_BYTES {
                // Nothing shorter follows, either.
                self.length = GUIRA_MESSAGE_BYTES;
                break;
            }
            for byte in utf8 {
                self.bytes[self.length] = *byte as c_char;
                self.length += 1;
            }
        }
        Ok(())
    }
}

/// Returns a short lower-case text for a code, such as "busy" for GUIRA_BUSY: "ok" for results that are not negative,
/// "unknown" for codes that this version of the library does not have. The text lives for ever. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn guira_code_name(code: c_int) -> *const c_char {
    let name = match code {
        0.. => c"ok",
        GUIRA_FABRIC => c"fabric",
        GUIRA_CORRUPT => c"corrupt",
        GUIRA_VERSION => c"version",
        GUIRA_FULL => c"full",
        GUIRA_BUSY => c"busy",
        GUIRA_FENCED => c"fenced",
        GUIRA_MISUSE => c"misuse",
        GUIRA_BUG => c"bug",
        GUIRA_NOT_FOUND => c"not found",
        GUIRA_ALREADY_EXISTS => c"already exists",
        GUIRA_GONE => c"gone",
        GUIRA_TOO_SMALL => c"too small",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// Returns the version of this library, such as "0.1.0". The text lives for ever. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn guira_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn reported(body: impl FnOnce() -> Outcome) -> (c_int, Error) {
        let mut error = Error { code: 0, effect: 0, message: [1; GUIRA_MESSAGE_BYTES] };
        let result = run(&mut error, body);
        (result, error)
    }

    fn text(error: &Error) -> &str {
        // SAFETY: the message ends in a zero.
        unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().expect("it is UTF-8")
    }

    #[test]
    fn a_panic_becomes_a_code() {
        let (result, error) = reported(|| panic!("expected by this test"));
        assert_eq!((result, error.code, error.effect), (GUIRA_BUG, GUIRA_BUG, GUIRA_EFFECT_UNKNOWN));
        assert!(text(&error).contains("panicked"));
    }

    #[test]
    fn a_long_message_ends_at_a_character() {
        for length in GUIRA_MESSAGE_BYTES - 4..GUIRA_MESSAGE_BYTES + 4 {
            let (_, error) = reported(|| Err(Failure::misuse(format!("{}\0éé", "x".repeat(length)))));
            let text = text(&error);
            assert!(text.len() < GUIRA_MESSAGE_BYTES && text.starts_with("xxx") && !text.contains('\0'), "{text}");
            assert!(text.len() >= GUIRA_MESSAGE_BYTES - 2, "{}", text.len());
        }
    }
}
