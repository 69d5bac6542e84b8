//! Readers, which look keys up.

use std::ffi::{c_int, c_void};

use crate::call::Error;
use crate::client::lookup;
use crate::handle::{self, Handle};
use crate::memory::{self, Buffer};

/// A reader of a table. One thread at a time may use it.
pub struct Reader(pub(crate) Handle<(guira::Reader, Vec<u8>)>);

impl AsRef<Handle<(guira::Reader, Vec<u8>)>> for Reader {
    fn as_ref(&self) -> &Handle<(guira::Reader, Vec<u8>)> {
        &self.0
    }
}

/// Same as guira_get, by a reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_reader_get(
    reader: *mut Reader,
    key: *const c_void,
    key_length: usize,
    value: *mut c_void,
    capacity: usize,
    length: *mut usize,
    error: *mut Error,
) -> c_int {
    lookup!(reader, "reader", error, |open, buffer| {
        let (key, into) = (memory::key(key, key_length)?, Buffer::new(value, capacity)?);
        let found = open.get_into(key, buffer)?;
        into.fill(buffer, length)?;
        Ok(found.into())
    })
}

/// Same as guira_contains, by a reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_reader_contains(
    reader: *mut Reader,
    key: *const c_void,
    key_length: usize,
    error: *mut Error,
) -> c_int {
    lookup!(reader, "reader", error, |open, _buffer| Ok(open.contains(memory::key(key, key_length)?)?.into()))
}

/// Closes a reader. A null pointer is ignored.
///
/// Returns 0, or GUIRA_MISUSE if a call uses the reader, which remains open then. No round trip.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_reader_close(reader: *mut Reader, error: *mut Error) -> c_int {
    handle::close("reader", reader, error, |_| Ok(()))
}
