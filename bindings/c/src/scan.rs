//! Scans, which read all keys and values.

use std::ffi::{c_int, c_void};

use crate::call::{Error, run};
use crate::handle::{self, Handle};
use crate::memory;

/// A scan of a table, from guira_scan_open. One thread at a time may use it.
pub struct Scan(pub(crate) Handle<(guira::Scan, Item)>);

/// The key and the value that were read last.
pub(crate) type Item = (Vec<u8>, Vec<u8>);

impl AsRef<Handle<(guira::Scan, Item)>> for Scan {
    fn as_ref(&self) -> &Handle<(guira::Scan, Item)> {
        &self.0
    }
}

/// Reads the next key and its value.
///
/// key, key_length, value, value_length: get the key and the value, which belong to the scan and are valid until its
/// next call; each may be null. They are written if the call returns 1.
///
/// Returns 1, 0 at the end of the table, or a negative code: GUIRA_CORRUPT, GUIRA_BUSY, GUIRA_GONE, GUIRA_FENCED,
/// GUIRA_FABRIC, GUIRA_MISUSE. Nothing was changed. After an error the scan is at its end. It allocates memory for each
/// key. Round trips: 1 for each row, 1 more for each value in an extent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_scan_next(
    scan: *mut Scan,
    key: *mut *const c_void,
    key_length: *mut usize,
    value: *mut *const c_void,
    value_length: *mut usize,
    error: *mut Error,
) -> c_int {
    run(error, || {
        handle::of("scan", scan)?.0.with(|(scan, current)| {
            let Some(item) = scan.next() else { return Ok(0) };
            *current = item?;
            memory::store(key, current.0.as_ptr().cast());
            memory::store(key_length, current.0.len());
            memory::store(value, current.1.as_ptr().cast());
            memory::store(value_length, current.1.len());
            Ok(1)
        })
    })
}

/// Ends a scan. A null pointer is ignored.
///
/// Returns 0, or GUIRA_MISUSE if a call uses the scan, which remains open then. No round trip.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_scan_close(scan: *mut Scan, error: *mut Error) -> c_int {
    handle::close("scan", scan, error, |_| Ok(()))
}
