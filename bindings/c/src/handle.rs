//! Handles that one thread at a time may use.
//!
//! A flag that is read and then set notices a call that finds the handle in use, unless both begin within some
//! nanoseconds. An exchange would notice that, too, and costs more than the rest of the call
//! (docs/decisions/0043-c-by-an-archive.md); callers promise that it does not happen.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::call::{Error, Failure, Outcome, run};
use crate::memory::{is_null, store};

/// An object of the library that a caller holds. A call that finds it in use fails, and does not touch it.
pub struct Handle<T> {
    /// Whether a call uses it. A call that panicked uses it for ever.
    is_in_use: AtomicBool,
    object: UnsafeCell<T>,
}

/// Returns what a caller's pointer to a handle leads to.
#[inline(always)]
pub fn of<'a, H>(name: &'static str, handle: *const H) -> Outcome<&'a H> {
    if handle.is_null() || !handle.is_aligned() {
        return Err(no_handle(name, handle.is_null()));
    }
    // SAFETY: the caller promises that this library returned the pointer, from a box, and that it is not closed before
    // the call ends.
    Ok(unsafe { &*handle })
}

#[cold]
fn no_handle(name: &str, null: bool) -> Failure {
    if null { is_null(name) } else { Failure::misuse(format!("{name} is no handle of this library")) }
}

impl<T> Handle<T> {
    pub fn new(object: T) -> Handle<T> {
        Handle { is_in_use: AtomicBool::new(false), object: UnsafeCell::new(object) }
    }

    pub fn into_object(self) -> T {
        self.object.into_inner()
    }

    #[inline(always)]
    fn acquire(&self) -> Outcome<()> {
        match self.is_in_use.load(Ordering::Relaxed) {
            false => {
                self.is_in_use.store(true, Ordering::Relaxed);
                Ok(())
            }
            true => Err(in_use()),
        }
    }

    /// Uses the object for one call.
    #[inline(always)]
    pub fn with<R>(&self, call: impl FnOnce(&mut T) -> Outcome<R>) -> Outcome<R> {
        self.acquire()?;
        // SAFETY: the caller promises that no two threads use a handle at once, and no call of this thread does.
        let result = call(unsafe { &mut *self.object.get() });
        // A panic leaves the object in an unknown state, and in use.
        self.is_in_use.store(false, Ordering::Relaxed);
        result
    }
}

#[cold]
fn in_use() -> Failure {
    Failure::misuse("another call is using this handle, or one panicked")
}

/// Writes a new handle, or null after a failure.
pub fn open<H>(into: *mut *mut H, error: *mut Error, open: impl FnOnce() -> Outcome<H>) -> c_int {
    store(into, std::ptr::null_mut());
    run(error, || {
        if into.is_null() {
            return Err(is_null("the place for the handle"));
        }
        let opened = open()?;
        store(into, Box::into_raw(Box::new(opened)));
        Ok(0)
    })
}

/// Closes a handle, unless it is null or in use.
pub fn close<H: AsRef<Handle<T>>, T>(
    name: &'static str,
    handle: *mut H,
    error: *mut Error,
    close: impl FnOnce(H) -> Result<(), guira::Error>,
) -> c_int {
    run(error, || {
        if handle.is_null() {
            return Ok(0);
        }
        of(name, handle)?.as_ref().acquire()?;
        // SAFETY: it is from a box, no other call uses it, and the caller promises not to use it again.
        close(*unsafe { Box::from_raw(handle) })?;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_handle_in_use_is_refused() {
        let handle = Handle::new(1);
        let outcome = handle.with(|_| Ok(handle.with(|_| Ok(2)).is_err()));
        assert!(matches!(outcome, Ok(true)));
        assert!(matches!(handle.with(|number| Ok(*number)), Ok(1)));
    }

    #[test]
    fn a_handle_whose_call_panicked_is_refused_and_not_closed() {
        struct Closed(Handle<i32>);
        impl AsRef<Handle<i32>> for Closed {
            fn as_ref(&self) -> &Handle<i32> {
                &self.0
            }
        }
        let handle = Box::into_raw(Box::new(Closed(Handle::new(1))));
        // SAFETY: the box exists, and is not closed below.
        let open = unsafe { &*handle };
        let panicked =
            catch_unwind(AssertUnwindSafe(|| open.0.with(|_| -> Outcome { panic!("expected by this test") })));
        assert!(panicked.is_err());
        assert!(open.0.with(|_| Ok(())).is_err());
        let closed = close("handle", handle, std::ptr::null_mut(), |_| unreachable!("it is in use"));
        assert_eq!(closed, crate::GUIRA_MISUSE);
        // SAFETY: it was not closed, and nothing refers to it any more.
        drop(unsafe { Box::from_raw(handle) });
    }
}
