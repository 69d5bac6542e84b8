//! Clients, which read and change a table.

use std::ffi::{c_int, c_void};

use guira::{Expected, Put, Swap};

use crate::call::{Error, Failure, Outcome, run};
use crate::handle::{self, Handle};
use crate::memory::{self, Buffer};

/// A client of a table. One thread at a time may use it.
pub struct Client(pub(crate) Handle<(guira::Client, Vec<u8>)>);

impl AsRef<Handle<(guira::Client, Vec<u8>)>> for Client {
    fn as_ref(&self) -> &Handle<(guira::Client, Vec<u8>)> {
        &self.0
    }
}

/// The state that a key was in when it was read. It belongs to one table, and may be copied and kept as long as that
/// exists.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Token {
    /// Without a meaning for callers.
    pub words: [u64; 4],
}

/// compare_and_swap, compare_and_remove: the key was not as expected; nothing was changed.
pub const GUIRA_SWAP_DIFFERENT: c_int = 0;
/// compare_and_swap: the value was replaced; compare_and_remove: the key was removed.
pub const GUIRA_SWAP_DONE: c_int = 1;
/// compare_and_swap, compare_and_remove: there is no such key; nothing was changed.
pub const GUIRA_SWAP_MISSING: c_int = 2;

/// Runs a change of a client.
macro_rules! change {
    ($client:ident, $error:ident, |$open:ident| $body:expr) => {
        run($error, || handle::of("client", $client)?.0.with(|($open, _)| $body))
    };
}

/// Runs a lookup of a client or reader, which copies what it finds to the caller's buffer.
macro_rules! lookup {
    ($handle:ident, $name:literal, $error:ident, |$open:ident, $buffer:ident| $body:expr) => {
        $crate::call::run($error, || $crate::handle::of($name, $handle)?.0.with(|($open, $buffer)| $body))
    };
}

pub(crate) use lookup;

/// Looks up a key, and copies its value to the caller's buffer.
///
/// key: key_length bytes; null only if there are none.
/// value: capacity bytes for the value; null only if capacity is 0.
/// length: gets the length of the value, 0 for a miss; may be null. It is written if the call returns a result, and
/// with GUIRA_TOO_SMALL.
///
/// Returns 1 if the key exists, 0 if not, or a negative code: GUIRA_TOO_SMALL if the value is longer than the buffer,
/// which was not written then (so capacity 0 asks for the length, which reads the whole value, also over a network);
/// GUIRA_MISUSE for a key that is too long for the table; GUIRA_CORRUPT; GUIRA_BUSY if a stopped client leaves the row
/// half written until the deadline; GUIRA_GONE; GUIRA_FENCED; GUIRA_FABRIC. Nothing is changed.
///
/// It takes no lock. It allocates no memory after the client's first call, except that the client's own buffer grows to
/// the longest value in an extent that was read with it. Round trips: 1 for a value in a row, 2 for one in an extent, 1
/// or 2 for a miss.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_get(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    value: *mut c_void,
    capacity: usize,
    length: *mut usize,
    error: *mut Error,
) -> c_int {
    lookup!(client, "client", error, |open, buffer| {
        let (key, into) = (memory::key(key, key_length)?, Buffer::new(value, capacity)?);
        let found = open.get_into(key, buffer)?;
        into.fill(buffer, length)?;
        Ok(found.into())
    })
}

/// Looks up a key as guira_get does, and also returns the state that it is in, for guira_compare_and_swap_token.
///
/// token: gets the state if the key exists.
///
/// Returns what guira_get returns, and GUIRA_MISUSE for a table with preset "paper".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_get_versioned(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    value: *mut c_void,
    capacity: usize,
    length: *mut usize,
    token: *mut Token,
    error: *mut Error,
) -> c_int {
    lookup!(client, "client", error, |open, buffer| {
        let (key, into) = (memory::key(key, key_length)?, Buffer::new(value, capacity)?);
        let found = open.get_versioned_into(key, buffer)?;
        into.fill(buffer, length)?;
        let Some(state) = found else { return Ok(0) };
        memory::store(token, Token { words: state.to_words() });
        Ok(1)
    })
}

/// Returns 1 if the key exists, 0 if not, or a negative code as guira_get does. It reads the value, too,
/// into a buffer of the client. Round trips: as guira_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_contains(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| Ok(open.contains(memory::key(key, key_length)?)?.into()))
}

/// Inserts a key, or replaces its value.
///
/// key, value: key_length and value_length bytes; null only if there are none.
///
/// Returns 1 if the key was inserted, 0 if its value was replaced, or a negative code: GUIRA_MISUSE for lengths that
/// the table cannot store; GUIRA_FULL if the table, or its space for large values, has no room; GUIRA_BUSY if other
/// clients hold a lock until the deadline; GUIRA_CORRUPT; GUIRA_GONE; GUIRA_FENCED; GUIRA_FABRIC. Nothing was changed
/// then, unless the error's effect says otherwise, which only that of GUIRA_FABRIC, GUIRA_FENCED and GUIRA_BUG can.
///
/// For a value in a row it allocates no memory of the process after the client's first call, unless it has to wait or
/// to move entries. Round trips: 2 for a key and value in a row that has room, 3 in an extent, more for an insert that
/// has to move entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_put(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| {
        let (key, value) = (memory::key(key, key_length)?, memory::value(value, value_length)?);
        Ok((open.put(key, value)? == Put::Inserted).into())
    })
}

/// Inserts a key if it does not exist.
///
/// Returns 1 if it was inserted, 0 if it exists and nothing was changed, or a negative code as guira_put does. Round
/// trips: as guira_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_try_insert(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| {
        let (key, value) = (memory::key(key, key_length)?, memory::value(value, value_length)?);
        Ok(open.try_insert(key, value)?.into())
    })
}

/// Replaces the value of a key.
///
/// Returns 1 if it was replaced, 0 if there is no such key and nothing was changed, or a negative code as guira_put
/// does. Round trips: 2, 3 for a key in an extent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_update(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| {
        let (key, value) = (memory::key(key, key_length)?, memory::value(value, value_length)?);
        Ok(open.update(key, value)?.into())
    })
}

/// Removes a key.
///
/// Returns 1 if it was removed, 0 if there is no such key, or a negative code as guira_put does, but not GUIRA_FULL.
/// Round trips: 2, 3 for a key in an extent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_remove(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| Ok(open.remove(memory::key(key, key_length)?)?.into()))
}

/// Replaces the value of a key if it has the expected value. It does not notice a value that changed and changed back.
///
/// expected: expected_length bytes, at most 64 MiB, of any length that the table can store or not; null only if there
/// are none.
///
/// Returns GUIRA_SWAP_DONE, GUIRA_SWAP_DIFFERENT, GUIRA_SWAP_MISSING, or a negative code as guira_put does. Round
/// trips: 2, up to 4 for a key in an extent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_compare_and_swap(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    expected: *const c_void,
    expected_length: usize,
    value: *const c_void,
    value_length: usize,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| {
        let (key, value) = (memory::key(key, key_length)?, memory::value(value, value_length)?);
        let expected = Expected::Value(memory::expected(expected, expected_length)?);
        Ok(swapped(open.compare_and_swap(key, expected, value)?))
    })
}

/// Replaces the value of a key if no client has changed it since it was read with guira_get_versioned, not even to
/// another value and back. It may also find a difference although nobody changed the key: then read and try again.
///
/// expected: a token of this table.
///
/// Returns what guira_compare_and_swap returns, and GUIRA_MISUSE for a token of another table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_compare_and_swap_token(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    expected: *const Token,
    value: *const c_void,
    value_length: usize,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| {
        let (key, value) = (memory::key(key, key_length)?, memory::value(value, value_length)?);
        Ok(swapped(open.compare_and_swap(key, token(expected)?, value)?))
    })
}

/// Removes a key if it has the expected value. It does not notice a value that changed and changed back.
///
/// expected: as for guira_compare_and_swap.
///
/// Returns GUIRA_SWAP_DONE, GUIRA_SWAP_DIFFERENT, GUIRA_SWAP_MISSING, or a negative code as guira_remove does. Round
/// trips: 2, up to 4 for a key in an extent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_compare_and_remove(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    expected: *const c_void,
    expected_length: usize,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| {
        let expected = Expected::Value(memory::expected(expected, expected_length)?);
        Ok(swapped(open.compare_and_remove(memory::key(key, key_length)?, expected)?))
    })
}

/// Removes a key if no client has changed it since it was read with guira_get_versioned, not even to another value and
/// back. It may also find a difference although nobody changed the key: then read and try again.
///
/// expected: a token of this table.
///
/// Returns what guira_compare_and_remove returns, and GUIRA_MISUSE for a token of another table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_compare_and_remove_token(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    expected: *const Token,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| {
        Ok(swapped(open.compare_and_remove(memory::key(key, key_length)?, token(expected)?)?))
    })
}

fn token(expected: *const Token) -> Outcome<guira::Token> {
    let expected = memory::optional(expected).ok_or_else(|| memory::is_null("expected"))?;
    let expected = guira::Token::from_words(expected.words);
    expected.ok_or_else(|| Failure::misuse("expected is not a token of guira_get_versioned"))
}

fn swapped(swap: Swap) -> c_int {
    match swap {
        Swap::Done => GUIRA_SWAP_DONE,
        Swap::Different => GUIRA_SWAP_DIFFERENT,
        Swap::Missing => GUIRA_SWAP_MISSING,
    }
}

/// Adds to the number that is the value of a key: 8 bytes, little-endian, unsigned, modulo 2^64. A missing key counts
/// as 0. Additions of many processes add up exactly. To subtract, add the negative number converted to uint64_t.
///
/// sum: gets the sum; may be null.
///
/// Returns 0, or a negative code as guira_put does, and GUIRA_MISUSE if the value does not have 8 bytes. Round trips:
/// 2; 6 or more for a key with which 8 bytes need an extent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_increment(
    client: *mut Client,
    key: *const c_void,
    key_length: usize,
    by: u64,
    sum: *mut u64,
    error: *mut Error,
) -> c_int {
    change!(client, error, |open| {
        memory::store(sum, open.increment(memory::key(key, key_length)?, by)?);
        Ok(0)
    })
}

/// Closes a client: gives back its slot. A null pointer is ignored.
///
/// Returns 0, or a negative code: GUIRA_MISUSE if a call uses the client, which remains open then; otherwise
/// GUIRA_GONE, GUIRA_FENCED or GUIRA_FABRIC, and the client is closed, too: the next one that needs its slot recovers
/// it, and nothing that was stored is lost. In a forked process, it frees the inherited handle and touches nothing else;
/// a client that another thread used when the process forked remains in use there, and cannot be closed. A few round
/// trips.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_client_close(client: *mut Client, error: *mut Error) -> c_int {
    handle::close("client", client, error, |client| match client.0.into_object().0.close() {
        Err(error) if is_forked(&error) => Ok(()),
        closed => closed,
    })
}

/// Whether the client of the parent of a forked child cannot be closed.
fn is_forked(error: &guira::Error) -> bool {
    matches!(error, guira::Error::Fabric { source: guira::errors::FabricError::Forked, .. })
}
