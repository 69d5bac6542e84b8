//! The caller's memory: arguments are checked, then read or written.
//!
//! Callers promise (head of guira.h) that a pointer that is not null leads to as much memory as the function's
//! description says, which is not changed by others during the call. It may have any alignment, except where an array
//! of structures is expected, which is refused if it is misaligned.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use guira::raw::layout::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use crate::call::{Failure, Outcome};

/// Returns the bytes of a key.
#[inline(always)]
pub fn key<'a>(pointer: *const c_void, length: usize) -> Outcome<&'a [u8]> {
    bytes("key", pointer, length, MAX_KEY_BYTES)
}

/// Returns the bytes of a value.
#[inline(always)]
pub fn value<'a>(pointer: *const c_void, length: usize) -> Outcome<&'a [u8]> {
    bytes("value", pointer, length, MAX_VALUE_BYTES)
}

/// Returns the bytes of the value that a key should have.
pub fn expected<'a>(pointer: *const c_void, length: usize) -> Outcome<&'a [u8]> {
    bytes("expected", pointer, length, MAX_VALUE_BYTES)
}

#[inline(always)]
fn bytes<'a>(name: &str, pointer: *const c_void, length: usize, most: usize) -> Outcome<&'a [u8]> {
    if length > most {
        return Err(too_long(name, length, most));
    }
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: the caller promises `length` bytes that nobody changes during the call, and the slice is not kept longer.
    Ok(unsafe { slice::from_raw_parts(pointer.cast(), length) })
}

#[cold]
fn too_long(name: &str, length: usize, most: usize) -> Failure {
    Failure::misuse(format!("{name} has {length} bytes, and no table stores more than {most}"))
}

#[cold]
pub fn is_null(name: &str) -> Failure {
    Failure::misuse(format!("{name} is a null pointer"))
}

/// Returns a text that ends in a zero.
pub fn text<'a>(name: &str, pointer: *const c_char) -> Outcome<&'a str> {
    optional_text(name, pointer)?.ok_or_else(|| is_null(name))
}

/// Returns a text that ends in a zero, if there is one.
pub fn optional_text<'a>(name: &str, pointer: *const c_char) -> Outcome<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises bytes that end in a zero and that nobody changes during the call.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Failure::misuse(format!("{name} is not UTF-8")))
}

/// Returns a number, if there is one.
pub fn optional<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: the caller promises a number there; it may be misaligned.
    (!pointer.is_null()).then(|| unsafe { pointer.read_unaligned() })
}

/// Writes a result for which the caller has a place.
#[inline(always)]
pub fn store<T>(pointer: *mut T, result: T) {
    if !pointer.is_null() {
        // SAFETY: the caller promises a place of this size; it may be misaligned, and what it has needs no drop.
        unsafe { pointer.write_unaligned(result) };
    }
}

/// The caller's buffer for a value.
pub struct Buffer {
    start: *mut u8,
    capacity: usize,
}

impl Buffer {
    #[inline(always)]
    pub fn new(pointer: *mut c_void, capacity: usize) -> Outcome<Buffer> {
        if pointer.is_null() && capacity > 0 {
            return Err(is_null("the buffer for the value"));
        }
        Ok(Buffer { start: pointer.cast(), capacity })
    }

    /// Stores the length of a value, and the value if there is room for it.
    #[inline(always)]
    pub fn fill(&self, value: &[u8], length: *mut usize) -> Outcome<()> {
        store(length, value.len());
        if value.len() > self.capacity {
            return Err(Failure::TooSmall(value.len(), self.capacity));
        }
        if !value.is_empty() {
            // SAFETY: the caller promises `capacity` bytes, and `value` is in memory of this library.
            unsafe { value.as_ptr().copy_to_nonoverlapping(self.start, value.len()) };
        }
        Ok(())
    }
}

/// Refuses an array of structures that cannot exist.
pub fn check_array<T>(name: &str, pointer: *const T, count: usize) -> Outcome<()> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    if !pointer.is_aligned() {
        return Err(Failure::misuse(format!("{name} is misaligned")));
    }
    match count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok()) {
        true => Ok(()),
        false => Err(Failure::misuse(format!("{name} has {count} elements, more than fit in memory"))),
    }
}
