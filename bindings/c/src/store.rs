//! Stores: open tables.

use std::ffi::{c_char, c_int};

use guira::raw::layout::EntryFormat;

use crate::call::{Error, run};
use crate::client::Client;
use crate::handle::{self, Handle};
use crate::memory;
use crate::options::{CreateOptions, OpenOptions, create_options, open_options};
use crate::reader::Reader;
use crate::scan::Scan;

/// A table that this process has opened. Any number of threads may use it.
pub struct Store(guira::Store);

/// The estimated number of a table's entries.
#[repr(C)]
pub struct LengthEstimate {
    /// Entries: exact if every row was counted and no client changed the table meanwhile.
    pub entries: u64,
    /// Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
    pub error: u64,
    /// Entries that the table has room for: now, if it grows.
    pub capacity: u64,
}

/// Opens an existing table.
///
/// url: such as "shm://birds", "file:///PATH", "tcp://HOST:PORT" or "rdma://HOST:PORT".
/// options: null for the defaults.
/// store: gets the handle, for guira_store_close; null if the call fails.
///
/// Returns 0, or a negative code: GUIRA_NOT_FOUND, GUIRA_MISUSE (a bad URL, no permission, another owner),
/// GUIRA_CORRUPT, GUIRA_VERSION, GUIRA_GONE, GUIRA_FABRIC, GUIRA_BUSY. Nothing was changed then. Any thread may call
/// it. 1 round trip; behind a memory node also those of the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_open(
    url: *const c_char,
    options: *const OpenOptions,
    store: *mut *mut Store,
    error: *mut Error,
) -> c_int {
    handle::open(store, error, || {
        let (url, options) = (memory::text("url", url)?, open_options(options)?);
        Ok(Store(guira::Store::open_with(url, &options)?))
    })
}

/// Creates a table and opens it.
///
/// url: "shm://NAME" or "file:///PATH".
/// options: null for the defaults: a table that grows while it is used.
/// store: gets the handle, for guira_store_close; null if the call fails.
///
/// Returns 0, or a negative code: GUIRA_ALREADY_EXISTS, GUIRA_MISUSE (impossible options, no permission), GUIRA_FULL
/// (no memory), GUIRA_FABRIC. Nothing is left behind then. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_create(
    url: *const c_char,
    options: *const CreateOptions,
    store: *mut *mut Store,
    error: *mut Error,
) -> c_int {
    handle::open(store, error, || {
        let (url, options) = (memory::text("url", url)?, create_options(options)?);
        Ok(Store(guira::Store::create(url, &options)?))
    })
}

/// Opens a table, or creates it if it does not exist: of several processes that start at the same time, one creates it
/// and all get the same table. guira_store_was_created says which.
///
/// Arguments: as for guira_create.
///
/// Returns 0, or a negative code: GUIRA_MISUSE if the table exists and does not match the options, and those of
/// guira_open and guira_create. Nothing was changed then. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_open_or_create(
    url: *const c_char,
    options: *const CreateOptions,
    store: *mut *mut Store,
    error: *mut Error,
) -> c_int {
    handle::open(store, error, || {
        let (url, options) = (memory::text("url", url)?, create_options(options)?);
        Ok(Store(guira::Store::open_or_create(url, &options)?))
    })
}

/// Destroys a table: its name is removed, and its memory is freed when the last process closes it. In processes that
/// have it open, every operation returns GUIRA_GONE from then on.
///
/// Returns 0, or a negative code: GUIRA_NOT_FOUND, GUIRA_MISUSE (not a table, no permission, the table of a memory
/// node), GUIRA_FABRIC. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_destroy(url: *const c_char, error: *mut Error) -> c_int {
    run(error, || {
        guira::Store::destroy(memory::text("url", url)?)?;
        Ok(0)
    })
}

/// Returns 1 if this handle created the table, 0 if it existed before, or GUIRA_MISUSE for a null pointer. Any thread
/// may call it. No round trip.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_store_was_created(store: *const Store) -> c_int {
    run(std::ptr::null_mut(), || Ok(handle::of("store", store)?.0.was_created().into()))
}

/// Closes the handle of a table; a null pointer is ignored. Its clients, readers and scans remain usable, and the table
/// stays until guira_destroy, or until the machine is restarted. No other call may use the handle meanwhile or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_store_close(store: *mut Store) {
    run(std::ptr::null_mut(), || {
        handle::of("store", store)?;
        // SAFETY: it is from a box, and the caller promises not to use it any more.
        drop(unsafe { Box::from_raw(store) });
        Ok(0)
    });
}

/// Estimates the number of entries: exactly up to 4,096 rows (some 25,000 entries), beyond that from a sample.
///
/// estimate: gets the result.
///
/// Returns 0, or a negative code: GUIRA_GONE, GUIRA_FENCED, GUIRA_FABRIC, GUIRA_MISUSE. Nothing was changed then. Any
/// thread may call it. Round trips: 1 for 64 rows, at most 64.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_len_estimate(
    store: *const Store,
    estimate: *mut LengthEstimate,
    error: *mut Error,
) -> c_int {
    run(error, || {
        let found = handle::of("store", store)?.0.len_estimate()?;
        let found = LengthEstimate { entries: found.entries, error: found.error, capacity: found.capacity };
        memory::store(estimate, found);
        Ok(0)
    })
}

/// Opens a client, which reads and changes the table: one for each thread that does. It takes one of the table's client
/// slots until guira_client_close.
///
/// client: gets the handle; null if the call fails.
///
/// Returns 0, or a negative code: GUIRA_MISUSE (the table was opened for reading), GUIRA_BUSY (all slots are taken),
/// GUIRA_GONE, GUIRA_FABRIC. Nothing was changed then. Any thread may call it. A few round trips.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_client_open(store: *const Store, client: *mut *mut Client, error: *mut Error) -> c_int {
    handle::open(client, error, || {
        let store = &handle::of("store", store)?.0;
        Ok(Client(Handle::new((store.client()?, buffer(store)))))
    })
}

/// Opens a reader, which looks keys up: one for each thread that does. It needs no client slot and no write permission.
///
/// reader: gets the handle, for guira_reader_close; null if the call fails.
///
/// Returns 0, or GUIRA_MISUSE. Any thread may call it. No round trip.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_reader_open(store: *const Store, reader: *mut *mut Reader, error: *mut Error) -> c_int {
    handle::open(reader, error, || {
        let store = &handle::of("store", store)?.0;
        Ok(Reader(Handle::new((store.reader(), buffer(store)))))
    })
}

/// Begins to read all keys and values, in the table's order, while other clients change it.
///
/// A key that no insert moves meanwhile is returned at least once; one that is moved may be missed or returned twice,
/// and in a table that grows one whose part of the table is split may be returned twice.
///
/// scan: gets the handle, for guira_scan_next and guira_scan_close; null if the call fails.
///
/// Returns 0, or a negative code: GUIRA_GONE, GUIRA_FABRIC, GUIRA_MISUSE. Any thread may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_scan_open(store: *const Store, scan: *mut *mut Scan, error: *mut Error) -> c_int {
    handle::open(scan, error, || {
        let scan = handle::of("store", store)?.0.scan()?;
        Ok(Scan(Handle::new((scan, (Vec::new(), Vec::new())))))
    })
}

/// Returns a buffer that has room for every value that is stored in a row of the table.
fn buffer(store: &guira::Store) -> Vec<u8> {
    Vec::with_capacity(match store.table().config().format {
        EntryFormat::Fixed { value_bytes, .. } => value_bytes.into(),
        EntryFormat::Bytes { inline_bytes } => inline_bytes.into(),
    })
}
