//! Operations on many keys: the arguments that name them, and the loops, which run without the interpreter's lock.
//!
//! Keys and values of one length lie in one buffer each, such as an array of NumPy. They are copied in chunks, because
//! other threads may write the buffers meanwhile.

use std::time::{Duration, Instant};

use guira::{Client, Effect, EntryFormat, Error, Put, Reader};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::buffer::{Buffer, Memory};
use crate::convert::{BytesLike, Codec, encode, exception, raised};
use crate::table::forks;

/// Keys that are looked up between two visits to the interpreter; a bound of the memory that their values take twice.
pub const LOOKUP_CHUNK: usize = 1_024;
/// Keys that are put before a failure is noticed.
pub const PUT_CHUNK: usize = 64;
/// The time between two looks for signals, each of which needs the interpreter's lock.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Returns the keys of an iterable.
pub fn keys(keys: &Bound<'_, PyAny>) -> PyResult<Vec<BytesLike>> {
    keys.try_iter()?.map(|key| key?.extract()).collect()
}

/// Returns the pairs of a mapping, or of an iterable of pairs. Each value is copied when it is drawn, unless it is
/// `bytes`: the iterable, or the codec, may use one buffer for all of them.
pub fn items(codec: Option<&Codec>, items: &Bound<'_, PyAny>) -> PyResult<Vec<(BytesLike, BytesLike)>> {
    let pairs = items.getattr_opt("items")?.map(|items| items.call0()).transpose()?;
    let pair = |pair: PyResult<Bound<'_, PyAny>>| {
        let parts: Vec<_> = pair?.try_iter()?.collect::<PyResult<_>>()?;
        let [key, value] = &parts[..] else {
            let count = parts.len();
            return Err(PyValueError::new_err(format!("an item is a pair of a key and a value, not {count} objects")));
        };
        Ok((key.extract()?, encode(codec, value)?.settled(value.py())?))
    };
    pairs.as_ref().unwrap_or(items).try_iter()?.map(pair).collect()
}

/// The reason why an operation on many keys ended early.
pub enum Stopped {
    Failed(Error),
    /// The handler of a signal raised an exception, such as `KeyboardInterrupt`.
    Interrupted(PyErr),
}

impl Stopped {
    pub fn raised(self, py: Python<'_>) -> PyErr {
        match self {
            Stopped::Failed(error) => raised(py, &error),
            Stopped::Interrupted(exception) => exception,
        }
    }
}

/// The looks for signals during an operation that does not hold the interpreter's lock.
struct Signals {
    next: Instant,
    forks: u64,
}

impl Signals {
    fn new() -> Signals {
        Signals { next: Instant::now() + SIGNALS_EVERY, forks: forks() }
    }

    /// Runs the handlers of signals, if it is time to look for them; fails with the exception that one raises.
    fn check(&mut self) -> Result<(), Stopped> {
        if Instant::now() < self.next {
            return Ok(());
        }
        let checked = Python::try_attach(|py| {
            py.check_signals()?;
            // A handler may fork, and the child has to open the table again.
            let forked = || exception(py, "Misuse", "a signal's handler forked; the child does not go on", "none");
            if forks() == self.forks { Ok(()) } else { Err(forked()) }
        });
        self.next = Instant::now() + SIGNALS_EVERY;
        // An interpreter that ends calls no handlers.
        checked.unwrap_or(Ok(())).map_err(Stopped::Interrupted)
    }
}

/// The values of some keys, one after the other.
#[derive(Default)]
pub struct Values {
    bytes: Vec<u8>,
    /// Where each value ends; `None` for a key that does not exist.
    ends: Vec<Option<usize>>,
}

/// The values of some keys while they are looked up, and the first error.
#[derive(Default)]
pub struct Collector {
    values: Values,
    failed: Option<Error>,
}

impl Collector {
    pub fn add(&mut self, found: Result<Option<&[u8]>, Error>) {
        match found {
            Ok(value) => {
                self.values.bytes.extend_from_slice(value.unwrap_or_default());
                self.values.ends.push(value.map(|_| self.values.bytes.len()));
            }
            Err(error) => _ = self.failed.get_or_insert(error),
        }
    }

    pub fn finish(self) -> Result<Values, Error> {
        self.failed.map_or(Ok(self.values), Err)
    }
}

impl Values {
    pub fn look_up(reader: &mut Reader, keys: &[BytesLike]) -> Result<Values, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(BytesLike::get).collect();
        let mut values = Collector::default();
        reader.get_many_with(&keys, |_, found| values.add(found));
        values.finish()
    }

    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.ends.iter().scan(0, |start, end| {
            Some(end.map(|end| {
                let value = &self.bytes[*start..end];
                *start = end;
                value
            }))
        })
    }
}

/// The lengths of a table's keys and values, if all are the same.
#[derive(Clone, Copy)]
pub struct Lengths {
    key_bytes: usize,
    value_bytes: usize,
}

impl Lengths {
    /// # Errors
    /// `ValueError` if the lengths differ.
    pub fn of(format: EntryFormat) -> PyResult<Lengths> {
        match format {
            EntryFormat::Fixed { key_bytes, value_bytes } => {
                Ok(Lengths { key_bytes: key_bytes.into(), value_bytes: value_bytes.into() })
            }
            EntryFormat::Bytes { .. } => Err(PyValueError::new_err(format!(
                "this needs a table whose keys, and whose values, have one length (format=\"fixed:K:V\"), not {format}"
            ))),
        }
    }

    /// Returns the number of keys in a buffer.
    fn keys(self, buffer: &Buffer<'_>) -> PyResult<usize> {
        let (bytes, item, key) = (buffer.memory().len(), buffer.item_bytes(), self.key_bytes);
        // Items that are not keys, such as numbers of another type, are a mistake.
        match buffer.has_parts_of(key) && bytes % key == 0 {
            true => Ok(bytes / key),
            false => Err(PyValueError::new_err(format!(
                "keys has {bytes} bytes in items of {item}, which are not keys of {key} bytes"
            ))),
        }
    }

    /// Fails unless `buffer` has a value for each of `keys`.
    fn check_values(self, name: &str, buffer: &Buffer<'_>, keys: usize) -> PyResult<()> {
        let (bytes, value) = (buffer.memory().len(), self.value_bytes);
        if keys.checked_mul(value) != Some(bytes) {
            return Err(PyValueError::new_err(format!(
                "{name} has {bytes} bytes, not {value} for each of {keys} keys"
            )));
        }
        match buffer.has_parts_of(value) {
            true => Ok(()),
            false => Err(PyValueError::new_err(format!(
                "{name} has items of {} bytes, which are not values of {value} bytes",
                buffer.item_bytes()
            ))),
        }
    }
}

/// The arguments of a lookup of many keys into a buffer.
pub struct Lookup<'py> {
    lengths: Lengths,
    keys: Buffer<'py>,
    count: usize,
    out: Buffer<'py>,
    found: Option<Buffer<'py>>,
}

impl<'py> Lookup<'py> {
    pub fn new(
        lengths: Lengths,
        keys: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
        found: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Lookup<'py>> {
        let (keys, out) = (contiguous("keys", keys)?, Buffer::writable("out", out)?);
        let count = lengths.keys(&keys)?;
        lengths.check_values("out", &out, count)?;
        let found = found.map(|found| Buffer::writable("found", found)).transpose()?;
        if let Some(found) = &found {
            let (bytes, item) = (found.memory().len(), found.item_bytes());
            if bytes != count || item != 1 {
                let message = format!("found has {bytes} bytes in items of {item}, not 1 for each of {count} keys");
                return Err(PyValueError::new_err(message));
            }
        }
        let is_replaced = lengths.key_bytes == lengths.value_bytes && keys.is_same(&out);
        let with_found = found.as_ref().is_some_and(|found| found.overlaps(&keys) || found.overlaps(&out));
        if with_found || (keys.overlaps(&out) && !is_replaced) {
            // A key would be overwritten before it is read.
            return Err(PyValueError::new_err(
                "keys, out and found must not share memory, unless keys and out are the same",
            ));
        }
        Ok(Lookup { lengths, keys, count, out, found })
    }

    /// Returns the call that looks up all keys, and returns how many exist.
    pub fn call(&self) -> impl FnOnce(&mut Reader) -> Result<usize, Stopped> + Send {
        let Lengths { key_bytes, value_bytes } = self.lengths;
        let (keys, count, out) = (self.keys.memory(), self.count, self.out.memory());
        let found = self.found.as_ref().map(Buffer::memory);
        move |reader| {
            let (mut hits, mut stopped, mut signals) = (0, None, Signals::new());
            chunks(keys, key_bytes, count, LOOKUP_CHUNK, |first, keys| {
                let mut flags = [0; LOOKUP_CHUNK];
                reader.get_many_with(keys, |i, result| match result {
                    Ok(Some(value)) => {
                        let start = (first + i) * value_bytes;
                        out.part(start..start + value_bytes).write(value);
                        flags[i] = 1;
                        hits += 1;
                    }
                    Ok(None) => {}
                    Err(error) => _ = stopped.get_or_insert(Stopped::Failed(error)),
                });
                if let Some(found) = found {
                    found.part(first..first + keys.len()).write(&flags[..keys.len()]);
                }
                stopped = stopped.take().or_else(|| signals.check().err());
                stopped.is_none()
            });
            stopped.map_or(Ok(hits), Err)
        }
    }
}

/// Puts of many keys that did not all succeed.
pub struct Failed {
    cause: Stopped,
    keys: usize,
    /// The positions of the keys that failed or were not tried.
    positions: Vec<usize>,
}

impl Failed {
    /// Returns the exception: that of a key that failed, or of a signal.
    pub fn raised(self, py: Python<'_>) -> PyErr {
        let (failed, keys) = (self.positions.len(), self.keys);
        let message = match &self.cause {
            Stopped::Failed(error) if error.effect() == Effect::None => {
                Some(format!("{failed} of {keys} keys were not put, one because: {error}"))
            }
            Stopped::Failed(error) => {
                Some(format!("{failed} of {keys} keys were not put, or may have been, one because: {error}"))
            }
            Stopped::Interrupted(_) => None,
        };
        let exception = self.cause.raised(py);
        let value = exception.value(py);
        let told = value.setattr("failed", self.positions);
        match message.map(|message| told.and_then(|()| value.setattr("args", (message,)))) {
            Some(Err(error)) => error,
            // The exception of a handler may refuse an attribute.
            _ => exception,
        }
    }
}

/// The outcome of puts: how many keys were inserted, and the failure of others.
#[derive(Default)]
pub struct Tally {
    tried: usize,
    inserted: usize,
    cause: Option<Stopped>,
    positions: Vec<usize>,
}

impl Tally {
    /// Adds the results of the next keys. Returns whether all succeeded.
    pub fn add(&mut self, results: Vec<Result<Put, Error>>) -> bool {
        for result in results {
            match result {
                Ok(put) => self.inserted += usize::from(put == Put::Inserted),
                Err(error) => {
                    self.positions.push(self.tried);
                    // An unknown effect must not hide behind an error that had none.
                    let is_worse = |first: &Stopped| {
                        let Stopped::Failed(first) = first else { return false };
                        first.effect() != Effect::Unknown && error.effect() != Effect::None
                    };
                    if self.cause.as_ref().is_none_or(is_worse) {
                        self.cause = Some(Stopped::Failed(error));
                    }
                }
            }
            self.tried += 1;
        }
        self.cause.is_none()
    }

    /// Adds the results of the next keys, and looks for signals. Returns whether to go on.
    fn add_unless_interrupted(&mut self, results: Vec<Result<Put, Error>>, signals: &mut Signals) -> bool {
        if self.add(results) {
            self.cause = signals.check().err();
        }
        self.cause.is_none()
    }

    /// Returns the number of inserted keys, of `keys` in all.
    pub fn result(mut self, keys: usize) -> Result<usize, Box<Failed>> {
        match self.cause {
            None => Ok(self.inserted),
            Some(cause) => {
                self.positions.extend(self.tried..keys);
                Err(Box::new(Failed { cause, keys, positions: self.positions }))
            }
        }
    }
}

/// Puts all items, and returns how many were inserted.
pub fn put_items(client: &mut Client, items: &[(&[u8], &[u8])]) -> Result<usize, Box<Failed>> {
    let (mut tally, mut signals) = (Tally::default(), Signals::new());
    for items in items.chunks(PUT_CHUNK) {
        if !tally.add_unless_interrupted(client.put_many(items), &mut signals) {
            break;
        }
    }
    tally.result(items.len())
}

/// The arguments of puts of many keys from buffers.
pub struct Puts<'py> {
    lengths: Lengths,
    keys: Buffer<'py>,
    count: usize,
    values: Buffer<'py>,
}

impl<'py> Puts<'py> {
    pub fn new(lengths: Lengths, keys: &Bound<'py, PyAny>, values: &Bound<'py, PyAny>) -> PyResult<Puts<'py>> {
        let (keys, values) = (contiguous("keys", keys)?, contiguous("values", values)?);
        let count = lengths.keys(&keys)?;
        lengths.check_values("values", &values, count)?;
        Ok(Puts { lengths, keys, count, values })
    }

    /// Returns the call that puts all keys, and returns how many were inserted.
    pub fn call(&self) -> impl FnOnce(&mut Client) -> Result<usize, Box<Failed>> + Send {
        let Lengths { key_bytes, value_bytes } = self.lengths;
        let (keys, count, values) = (self.keys.memory(), self.count, self.values.memory());
        move |client| {
            let (mut tally, mut signals) = (Tally::default(), Signals::new());
            let mut copied = vec![0; PUT_CHUNK * value_bytes];
            chunks(keys, key_bytes, count, PUT_CHUNK, |first, keys| {
                let copied = &mut copied[..keys.len() * value_bytes];
                values.part(first * value_bytes..(first + keys.len()) * value_bytes).read(copied);
                let value = |i: usize| &copied[i * value_bytes..(i + 1) * value_bytes];
                let items: Vec<_> = keys.iter().enumerate().map(|(i, key)| (*key, value(i))).collect();
                tally.add_unless_interrupted(client.put_many(&items), &mut signals)
            });
            tally.result(count)
        }
    }
}

/// Returns the buffer of the argument `name` for reading.
fn contiguous<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Buffer<'py>> {
    Buffer::readable(object).map_err(|error| {
        let (kind, reason) = (object.get_type(), error.value(object.py()));
        PyTypeError::new_err(format!("{name} must be a contiguous buffer, not {kind}: {reason}"))
    })
}

/// Calls `each` with copies of the next keys, at most `size` of them, and the position of the first, until it returns
/// false.
fn chunks(
    keys: Memory<'_>,
    key_bytes: usize,
    count: usize,
    size: usize,
    mut each: impl FnMut(usize, &[&[u8]]) -> bool,
) {
    let mut copied = vec![0; size.min(count) * key_bytes];
    for first in (0..count).step_by(size) {
        let end = count.min(first + size);
        let copied = &mut copied[..(end - first) * key_bytes];
        keys.part(first * key_bytes..end * key_bytes).read(copied);
        let keys: Vec<&[u8]> = copied.chunks_exact(key_bytes).collect();
        if !each(first, &keys) {
            return;
        }
    }
}
