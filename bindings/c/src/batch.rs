//! Lookups and puts of many keys.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use crate::call::{Error, Failure, GUIRA_EFFECT_DONE, GUIRA_EFFECT_NONE, GUIRA_EFFECT_UNKNOWN, Outcome, run};
use crate::client::Client;
use crate::handle;
use crate::memory::{self, Buffer, check_array};
use crate::reader::Reader;

/// One lookup of guira_get_many.
#[repr(C)]
pub struct GetItem {
    /// The key; null only if it has no bytes.
    pub key: *const c_void,
    /// The length of the key.
    pub key_length: usize,
    /// A buffer for the value; null only if capacity is 0. It must not overlap any key of the batch.
    pub value: *mut c_void,
    /// The length of the buffer.
    pub capacity: usize,
    /// Gets the length of the value, 0 for a miss.
    pub length: usize,
    /// Gets the result: what guira_get would return.
    pub result: c_int,
}

/// One put of guira_put_many.
#[repr(C)]
pub struct PutItem {
    /// The key; null only if it has no bytes.
    pub key: *const c_void,
    /// The length of the key.
    pub key_length: usize,
    /// The value; null only if it has no bytes.
    pub value: *const c_void,
    /// The length of the value.
    pub value_length: usize,
    /// Gets the result: what guira_put would return.
    pub result: c_int,
    /// Gets the effect of this put: GUIRA_EFFECT_DONE if it did not fail, otherwise what guira_put would say.
    pub effect: c_int,
}

/// A lookup of the caller's array while its key is read and its results are written.
#[repr(transparent)]
struct Lookup(UnsafeCell<GetItem>);

impl AsRef<[u8]> for Lookup {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: no reference to the item exists, and only its results are written meanwhile.
        let (key, length) = unsafe { ((*self.0.get()).key, (*self.0.get()).key_length) };
        // All keys were checked before the batch began.
        memory::key(key, length).unwrap_or_default()
    }
}

/// The failures of the items of a batch, of which the first is reported.
#[derive(Default)]
struct First(Option<Failure>);

impl First {
    /// Returns the result of an item.
    fn note(&mut self, outcome: Outcome) -> c_int {
        outcome.unwrap_or_else(|failure| {
            let code = failure.code();
            self.0.get_or_insert(failure);
            code
        })
    }

    fn outcome(self) -> Outcome {
        self.0.map_or(Ok(0), Err)
    }
}

/// The results of the puts of a batch, added up.
#[derive(Default)]
struct Tally {
    /// The first failure, and the index of its item.
    first: Option<(usize, Failure)>,
    done: usize,
    unknown: usize,
}

impl Tally {
    /// Returns the result and the effect of an item.
    fn note(&mut self, index: usize, put: Outcome<guira::Put>) -> (c_int, c_int) {
        let (result, effect) = match &put {
            Ok(put) => (c_int::from(*put == guira::Put::Inserted), GUIRA_EFFECT_DONE),
            Err(failure) => (failure.code(), failure.effect()),
        };
        self.done += usize::from(effect == GUIRA_EFFECT_DONE);
        self.unknown += usize::from(effect == GUIRA_EFFECT_UNKNOWN);
        if let Err(failure) = put {
            self.first.get_or_insert((index, failure));
        }
        (result, effect)
    }

    /// Returns the outcome of a batch of `count` items.
    fn outcome(self, count: usize) -> Outcome {
        let Some((index, failure)) = self.first else { return Ok(0) };
        let Tally { done, unknown, .. } = self;
        let effect = match (unknown, done) {
            (1.., _) => GUIRA_EFFECT_UNKNOWN,
            (0, 1..) => GUIRA_EFFECT_DONE,
            (0, 0) => GUIRA_EFFECT_NONE,
        };
        let reason = failure.to_string().replace("; nothing was changed", "").replace(" (nothing was changed)", "");
        let message = match unknown {
            0 => format!("{done} of {count} items were put; item {index} was the first to fail: {reason}"),
            _ => format!(
                "{done} of {count} items were put, and {unknown} more may have been; item {index} was the first to \
                 fail: {reason}"
            ),
        };
        Err(Failure::Batch { code: failure.code(), effect, message })
    }
}

/// Checks a batch of lookups and returns it.
fn lookups<'a>(items: *mut GetItem, count: usize) -> Outcome<&'a [Lookup]> {
    if count == 0 {
        return Ok(&[]);
    }
    check_array("items", items, count)?;
    // SAFETY: the caller promises `count` items, which only this call uses, and all access is through the cells.
    let lookups = unsafe { std::slice::from_raw_parts(items.cast::<Lookup>(), count) };
    for lookup in lookups {
        // SAFETY: as above.
        let item = unsafe { &*lookup.0.get() };
        memory::key(item.key, item.key_length)?;
        Buffer::new(item.value, item.capacity)?;
    }
    Ok(lookups)
}

/// Writes the result of one lookup.
fn finish(lookup: &Lookup, found: Result<Option<&[u8]>, guira::Error>, first: &mut First) {
    let item = lookup.0.get();
    let fill = || {
        let found = found?;
        // SAFETY: the item is the caller's, and no reference to it exists; its buffer was checked.
        let (buffer, length) = unsafe { (Buffer::new((*item).value, (*item).capacity)?, &raw mut (*item).length) };
        buffer.fill(found.unwrap_or_default(), length)?;
        Ok(found.is_some().into())
    };
    let result = first.note(fill());
    // SAFETY: as above.
    unsafe { (*item).result = result };
}

/// Looks up many keys at once, so that their memory accesses overlap, and over a network 32 keys share a round trip.
/// This is no snapshot: each lookup is one of its own.
///
/// items: count lookups with keys and buffers, which get their lengths and results; null only if count is 0.
///
/// Returns 0 if no lookup failed. Otherwise the code of the first one that did, which error describes; all others have
/// their results nevertheless. GUIRA_MISUSE, before anything was looked up, if the array or one of its arguments is
/// impossible. It allocates no memory for each key. Nothing is changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_get_many(
    client: *mut Client,
    items: *mut GetItem,
    count: usize,
    error: *mut Error,
) -> c_int {
    run(error, || {
        let lookups = lookups(items, count)?;
        handle::of("client", client)?.0.with(|(client, _)| {
            let mut first = First::default();
            client.get_many_with(lookups, |index, found| finish(&lookups[index], found, &mut first));
            first.outcome()
        })
    })
}

/// Same as guira_get_many, by a reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_reader_get_many(
    reader: *mut Reader,
    items: *mut GetItem,
    count: usize,
    error: *mut Error,
) -> c_int {
    run(error, || {
        let lookups = lookups(items, count)?;
        handle::of("reader", reader)?.0.with(|(reader, _)| {
            let mut first = First::default();
            reader.get_many_with(lookups, |index, found| finish(&lookups[index], found, &mut first));
            first.outcome()
        })
    })
}

/// Puts many keys, one after the other. In shared memory the rows of the next keys are prefetched.
///
/// items: count puts with keys and values, which get their results; null only if count is 0.
///
/// Returns 0 if no put failed. Otherwise the code of the first one that did, whose index (the first item has 0) and
/// reason are in the message; all others have their results nevertheless. The error's effect is that of the batch:
/// GUIRA_EFFECT_UNKNOWN if that of an item is, otherwise GUIRA_EFFECT_DONE if an item was put, otherwise
/// GUIRA_EFFECT_NONE. GUIRA_MISUSE, before anything was put or written, if the array or one of its arguments is
/// impossible. It allocates memory for the batch. Round trips: those of single puts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guira_put_many(
    client: *mut Client,
    items: *mut PutItem,
    count: usize,
    error: *mut Error,
) -> c_int {
    run(error, || {
        if count > 0 {
            check_array("items", items, count)?;
        }
        let mut puts = Vec::new();
        for index in 0..count {
            // SAFETY: the caller promises `count` items, which only this call uses.
            let item = unsafe { &*items.add(index) };
            puts.push((memory::key(item.key, item.key_length)?, memory::value(item.value, item.value_length)?));
        }
        handle::of("client", client)?.0.with(|(client, _)| {
            let mut tally = Tally::default();
            for (index, put) in client.put_many(&puts).into_iter().enumerate() {
                let (result, effect) = tally.note(index, put.map_err(Failure::from));
                // SAFETY: as above.
                unsafe { ((*items.add(index)).result, (*items.add(index)).effect) = (result, effect) };
            }
            tally.outcome(count)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Failure {
        Failure::misuse("it is too long")
    }

    fn interrupted() -> Failure {
        Failure::Batch { code: crate::GUIRA_FABRIC, effect: GUIRA_EFFECT_UNKNOWN, message: "it is away".to_owned() }
    }

    fn tallied(puts: Vec<Outcome<guira::Put>>) -> (c_int, c_int, String) {
        let (mut tally, count) = (Tally::default(), puts.len());
        for (index, put) in puts.into_iter().enumerate() {
            tally.note(index, put);
        }
        let failure = tally.outcome(count).expect_err("a put failed");
        (failure.code(), failure.effect(), failure.to_string())
    }

    #[test]
    fn the_effect_of_a_batch_is_that_of_all_its_puts() {
        let (code, effect, message) = tallied(vec![Err(refused()), Err(refused())]);
        assert_eq!((code, effect), (crate::GUIRA_MISUSE, GUIRA_EFFECT_NONE));
        assert_eq!(message, "0 of 2 items were put; item 0 was the first to fail: it is too long");
        let (code, effect, message) = tallied(vec![Ok(guira::Put::Inserted), Err(refused())]);
        assert_eq!((code, effect), (crate::GUIRA_MISUSE, GUIRA_EFFECT_DONE));
        assert_eq!(message, "1 of 2 items were put; item 1 was the first to fail: it is too long");
        let (code, effect, message) = tallied(vec![Err(refused()), Ok(guira::Put::Replaced), Err(interrupted())]);
        assert_eq!((code, effect), (crate::GUIRA_MISUSE, GUIRA_EFFECT_UNKNOWN));
        assert!(message.starts_with("1 of 3 items were put, and 1 more may have been; item 0 was"), "{message}");
    }
}
