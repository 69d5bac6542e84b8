//! Open tables. Lookups take readers and changes take clients, from stocks that all threads share.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, SendError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guira::errors::FabricError;
use guira::{Client, Error, Expected, OpenError, Put, Reader, Result, Store, Swap, Versioned};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyGenericAlias, PyType};

use crate::buffer::Buffer;
use crate::bulk::{self, Failed, Lengths, Lookup, Puts, Values};
use crate::convert::{BytesLike, Codec, IN_PLACE_BYTES, decode, encode, exception, raised};
use crate::scan::{Part, Scan};

/// An open table: a mapping from bytes to values, shared with other processes, from open, create or open_or_create.
///
/// Keys are bytes-like (bytes, bytearray, memoryview, ...). Values are, too, and lookups return bytes, unless the table
/// was opened with a codec. table[key] and del table[key] raise KeyError if there is no such key. A value of 4 KiB or more
/// that is not bytes is stored from the memory of its object, without a copy: if another thread writes it meanwhile, a
/// mixture of old and new bytes is stored. put_many copies each value when it draws it, so an iterator may use one
/// buffer for all.
///
/// The interpreter's lock is released during every operation, and any number of threads may use one table object. A
/// forked process has to open the table again: operations on an inherited object raise Misuse.
///
/// There is no len(), because no exact number exists while others change the table: see len_estimate.
///
/// A thread that changes the table while others do takes a client slot of its own. If none is free, it waits until another
/// thread of this object has ended its change, until the deadline at most. It raises Busy at once if no other thread of
/// this object changes the table.
///
/// Every operation can raise Busy (others hold a lock for longer than the deadline, for which KeyboardInterrupt waits,
/// too, or all client slots), Corrupt, Gone (the table was destroyed), Closed, Misuse (a key or value that is too long
/// for the table), and Fabric (the memory node cannot be reached). Error.effect says whether the operation had an effect.
#[pyclass(frozen, module = "guira")]
pub struct Table {
    url: String,
    was_created: bool,
    codec: Option<Codec>,
    /// The number of [`forks`] of the process that opened it.
    forks: u64,
    /// The time that a change waits for a client.
    deadline: Duration,
    /// Locked for moments, while attached to the interpreter.
    opened: Mutex<Option<Opened>>,
}

/// The parts of a table that is not closed.
struct Opened {
    store: Store,
    /// Clients that no thread is using.
    clients: Vec<Box<Client>>,
    /// The number of threads that use a client, or are opening one.
    users: usize,
    /// The threads that found no client slot free, in the order in which they get clients that are given back.
    waiting: VecDeque<Sender<Box<Client>>>,
    /// Readers that no thread is using.
    #[expect(clippy::vec_box, reason = "a reader has 1 KiB, and is moved several times for each lookup of 120 ns")]
    readers: Vec<Box<Lookups>>,
}

impl Opened {
    /// Gives a client to the thread that waits longest, or keeps it.
    fn give_back(&mut self, mut client: Box<Client>) {
        while let Some(waiting) = self.waiting.pop_front() {
            match waiting.send(client) {
                // It uses the client instead of the thread that gave it back.
                Ok(()) => return,
                // It did not wait so long.
                Err(SendError(refused)) => client = refused,
            }
        }
        self.users -= 1;
        self.clients.push(client);
    }

    /// Ends the attempt of a thread to open a client. Returns one that was given back meanwhile, or lets the thread wait,
    /// unless there is nobody who could give it one.
    fn wait(&mut self, waiting: Option<Sender<Box<Client>>>) -> Option<Box<Client>> {
        let idle = waiting.as_ref().and_then(|_| self.clients.pop());
        if idle.is_none() {
            self.users -= 1;
            self.waiting.extend(waiting);
        }
        if self.users == 0 {
            self.waiting.clear();
        }
        idle
    }
}

/// A reader, and space for a value.
struct Lookups {
    reader: Reader,
    value: Vec<u8>,
}

/// The bytes of a value whose space a reader keeps for the next one.
pub const KEPT_BYTES: usize = 64 << 10;

/// The state that a key was in when it was read, for compare_and_swap: from Table.get_versioned. It belongs to one table.
#[pyclass(frozen, eq, hash, module = "guira")]
#[derive(PartialEq, Eq, Hash)]
pub struct Token(pub guira::Token);

/// A value that a key must have, or the state that it must be in.
pub enum Condition {
    Value(BytesLike),
    Unchanged(guira::Token),
}

impl Condition {
    pub fn new(codec: Option<&Codec>, expected: &Bound<'_, PyAny>) -> PyResult<Condition> {
        match expected.cast::<Token>() {
            Ok(token) => Ok(Condition::Unchanged(token.get().0)),
            // Its bytes decide, so they must not change meanwhile.
            Err(_) => encode(codec, expected)?.settled(expected.py()).map(Condition::Value),
        }
    }

    pub fn get(&self) -> Expected<'_> {
        match self {
            Condition::Value(value) => Expected::Value(value.get()),
            Condition::Unchanged(token) => Expected::Unchanged(*token),
        }
    }
}

/// The estimated number of a table's entries, from Table.len_estimate.
#[pyclass(frozen, get_all, module = "guira")]
pub struct LenEstimate {
    /// Entries: exact if every row was counted and no client changed the table meanwhile.
    entries: u64,
    /// Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
    error: u64,
    /// Entries that the table has room for: now, if it grows.
    capacity: u64,
}

#[pymethods]
impl LenEstimate {
    fn __repr__(&self) -> String {
        let LenEstimate { entries, error, capacity } = self;
        format!("LenEstimate(entries={entries}, error={error}, capacity={capacity})")
    }
}

impl Table {
    /// Opens a table by `open`, which can wait.
    pub fn new(
        py: Python<'_>,
        codec: Option<Codec>,
        deadline: Duration,
        open: impl FnOnce() -> Result<Store> + Send,
    ) -> PyResult<Table> {
        let store = py.detach(open).map_err(|error| raised(py, &error))?;
        let (url, was_created) = (store.url().to_string(), store.was_created());
        let (clients, waiting, readers) = (Vec::new(), VecDeque::new(), Vec::new());
        let opened = Mutex::new(Some(Opened { store, clients, users: 0, waiting, readers }));
        Ok(Table { url, was_created, codec, forks: forks(), deadline, opened })
    }

    pub fn codec(&self) -> Option<&Codec> {
        self.codec.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a parent of this process opened the table. Its other threads may have held locks of the store at the fork,
    /// which nobody releases here.
    fn is_inherited(&self) -> bool {
        self.forks != forks()
    }

    /// Drops a part of the store, which can wait, unless that might wait for a lock that nobody releases: of a table
    /// that was inherited, only shared memory is given back.
    pub fn discard<T: Send>(&self, py: Python<'_>, part: T) {
        let has_session = !self.url.starts_with("shm:") && !self.url.starts_with("file:");
        if self.is_inherited() && has_session { mem::forget(part) } else { py.detach(move || drop(part)) }
    }

    /// Drops what a table had opened, but not its queue if it was inherited: its threads are the parent's.
    fn discard_all(&self, py: Python<'_>, mut opened: Option<Opened>) {
        if let Some(opened) = opened.as_mut().filter(|_| self.is_inherited()) {
            mem::forget(mem::take(&mut opened.waiting));
        }
        self.discard(py, opened);
    }

    /// Returns what `part` takes of the open table, or fails if it was closed or inherited.
    fn take<T>(&self, py: Python<'_>, part: impl FnOnce(&mut Opened) -> T) -> PyResult<T> {
        if self.is_inherited() {
            return Err(inherited(py, &self.url));
        }
        // The lock is released before the exception is made: that runs code of Python, which lets other threads run.
        let taken = self.lock().as_mut().map(part);
        taken.ok_or_else(|| closed(py, &self.url))
    }

    pub fn store(&self, py: Python<'_>) -> PyResult<Store> {
        self.take(py, |opened| opened.store.clone())
    }

    fn lookup<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Reader) -> Result<T> + Send) -> PyResult<T> {
        let looked_up = self.with_reader(py, |lookups| call(&mut lookups.reader), |_, result| result);
        looked_up?.map_err(|error| raised(py, &error))
    }

    /// Looks up a key, and makes the result of its value, which is copied once before that.
    fn look_up<R>(&self, py: Python<'_>, key: &[u8], result: impl FnOnce(Option<&[u8]>) -> R) -> PyResult<R> {
        let found = self.with_reader(
            py,
            |lookups| lookups.reader.get_into(key, &mut lookups.value),
            |lookups, found| {
                let result = found.map(|found| result(found.then_some(&lookups.value)));
                if lookups.value.capacity() > KEPT_BYTES {
                    lookups.value = Vec::new();
                }
                result
            },
        );
        found?.map_err(|error| raised(py, &error))
    }

    fn with_reader<T: Send, R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Lookups) -> T + Send,
        finish: impl FnOnce(&mut Lookups, T) -> R,
    ) -> PyResult<R> {
        let idle = self.take(py, |opened| opened.readers.pop().ok_or_else(|| opened.store.clone()))?;
        let (mut reader, result) = py.detach(move || {
            let mut reader =
                idle.unwrap_or_else(|store| Box::new(Lookups { reader: store.reader(), value: Vec::new() }));
            let result = call(&mut reader);
            reader.reader.shrink_to(KEPT_BYTES);
            (reader, result)
        });
        let result = finish(&mut reader, result);
        let unwanted = match &mut *self.lock() {
            Some(opened) => {
                opened.readers.push(reader);
                None
            }
            None => Some(reader),
        };
        // Another thread may have closed the table meanwhile.
        unwanted.into_iter().for_each(|reader| self.discard(py, reader));
        Ok(result)
    }

    fn change<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Client) -> Result<T> + Send) -> PyResult<T> {
        self.with_client(py, call)?.map_err(|error| raised(py, &error))
    }

    fn change_many(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Client) -> std::result::Result<usize, Box<Failed>> + Send,
    ) -> PyResult<usize> {
        self.with_client(py, call)?.map_err(|failed| failed.raised(py))
    }

    fn with_client<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&mut Client) -> T + Send) -> PyResult<T> {
        let mut client = self.client(py)?;
        let (client, result) = py.detach(move || {
            let result = call(&mut client);
            (client, result)
        });
        let unwanted = match &mut *self.lock() {
            Some(opened) if !self.is_inherited() => {
                opened.give_back(client);
                None
            }
            _ => Some(client),
        };
        // Another thread closed the table meanwhile, or a signal's handler forked. Closing a client can wait.
        unwanted.into_iter().for_each(|client| self.discard(py, client));
        Ok(result)
    }

    /// Returns an idle client or a new one. If no client slot is free, it is the next one that a thread of this object
    /// gives back before the deadline.
    fn client(&self, py: Python<'_>) -> PyResult<Box<Client>> {
        let idle = self.take(py, |opened| {
            opened.users += 1;
            opened.clients.pop().ok_or_else(|| opened.store.clone())
        })?;
        let store = match idle {
            Ok(client) => return Ok(client),
            Err(store) => store,
        };
        let begun = Instant::now();
        let error = match py.detach(move || store.client()) {
            Ok(client) => return Ok(Box::new(client)),
            Err(error) => error,
        };
        let (sender, receiver) = mpsc::channel();
        let is_waiting = matches!(error, Error::Open(OpenError::TooManyClients { .. }));
        let idle = self.take(py, |opened| opened.wait(is_waiting.then_some(sender)))?;
        if let Some(client) = idle {
            return Ok(client);
        }
        let left = self.deadline.saturating_sub(begun.elapsed());
        let (receiver, received) = py.detach(move || {
            let received = receiver.recv_timeout(left);
            (receiver, received)
        });
        let received = match received {
            Ok(client) => Some(client),
            // Clients are given while the lock is held: after this look none comes.
            Err(_) => self.take(py, move |_| receiver.try_recv().ok())?,
        };
        received.ok_or_else(|| raised(py, &error))
    }

    fn scan(slf: &Bound<'_, Self>, part: Part) -> PyResult<Scan> {
        let (py, store) = (slf.py(), slf.get().store(slf.py())?);
        let scan = py.detach(move || store.scan()).map_err(|error| raised(py, &error))?;
        Ok(Scan::new(slf.clone().unbind(), part, scan))
    }
}

#[pymethods]
impl Table {
    /// The table's URL.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Whether this object created the table.
    #[getter]
    fn was_created(&self) -> bool {
        self.was_created
    }

    /// Whether close was called.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }

    fn __repr__(&self) -> String {
        format!("<guira.Table {}{}>", self.url, if self.closed() { ", closed" } else { "" })
    }

    /// Table[bytes] is the type of a table without a codec.
    #[classmethod]
    fn __class_getitem__<'py>(
        cls: &Bound<'py, PyType>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyGenericAlias>> {
        PyGenericAlias::new(cls.py(), cls, item)
    }

    /// Return the value of key; raise KeyError if there is no such key.
    fn __getitem__<'py>(&self, py: Python<'py>, key: BytesLike) -> PyResult<Bound<'py, PyAny>> {
        let value = self.look_up(py, key.get(), |value| value.map(|value| PyBytes::new(py, value)))?;
        value.map_or_else(|| Err(key.missing()), |value| decode(self.codec(), value))
    }

    fn __setitem__(&self, py: Python<'_>, key: BytesLike, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(py, key, value).map(drop)
    }

    fn __delitem__(&self, py: Python<'_>, key: BytesLike) -> PyResult<()> {
        match self.change(py, |client| client.remove(key.get()))? {
            true => Ok(()),
            false => Err(key.missing()),
        }
    }

    fn __contains__(&self, py: Python<'_>, key: BytesLike) -> PyResult<bool> {
        self.lookup(py, |reader| reader.contains(key.get()))
    }

    /// Return the value of key, or default if there is no such key. Takes no lock.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: BytesLike,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.look_up(py, key.get(), |value| value.map(|value| PyBytes::new(py, value)))?;
        value.map_or(Ok(default), |value| decode(self.codec(), value).map(Some))
    }

    /// Return the values of many keys, an iterable, in their order, with default for those that do not exist. Their memory
    /// accesses overlap, and behind a memory node 32 keys take one round trip. Each is a lookup of its own, not part of a
    /// snapshot.
    ///
    /// Raises the first error, if a lookup fails.
    #[pyo3(signature = (keys, default=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let keys = bulk::keys(keys)?;
        self.store(py)?;
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(bulk::LOOKUP_CHUNK) {
            py.check_signals()?;
            let found = self.lookup(py, |reader| Values::look_up(reader, keys))?;
            for value in found.iter() {
                values.push(match value {
                    Some(value) => Some(decode(self.codec(), PyBytes::new(py, value))?),
                    None => default.clone(),
                });
            }
        }
        Ok(values)
    }

    /// Write the bytes of the value of key, whatever the codec, to the start of buffer, and return how many they are;
    /// return None if there is no such key. buffer is a writable contiguous buffer, such as a bytearray, an array or a
    /// NumPy array. Nothing but the value is written to it, and nothing at all if this fails.
    ///
    /// Raises ValueError if the buffer is shorter than the value, TypeError if it cannot be written.
    fn get_into(&self, py: Python<'_>, key: BytesLike, buffer: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let buffer = Buffer::writable("buffer", buffer)?;
        let memory = buffer.memory();
        let write = |value: &[u8]| match value.len() <= memory.len() {
            true => {
                memory.part(0..value.len()).write(value);
                Ok(value.len())
            }
            false => Err(value.len()),
        };
        let found = match memory.len() {
            ..IN_PLACE_BYTES => self.look_up(py, key.get(), |value| value.map(write))?,
            // Without another copy, which is slower for a small value.
            _ => self.lookup(py, |reader| {
                let mut found = Ok(None);
                reader.get_many_with(&[key.get()], |_, value| found = value.map(|value| value.map(write)));
                found
            })?,
        };
        found.transpose().map_err(|bytes| {
            let room = memory.len();
            PyValueError::new_err(format!("buffer has {room} bytes, and the value {bytes}; nothing was written"))
        })
    }

    /// Look up many keys of a table of format "fixed:K:V", and write their values to an array; return how many exist.
    ///
    /// keys: a contiguous buffer with n keys of K bytes, such as an array of NumPy: of bytes, of n numbers of K bytes, or
    /// of n rows that have K bytes. Numbers are keys by their bytes in memory; view NumPy's dates as numbers.
    /// out: a writable contiguous buffer with n rows of V bytes. The rows of keys that do not exist keep their content.
    /// found: a writable buffer of n items of one byte, such as an array of bool; each is set to whether the key exists.
    /// The three share no memory, but out may be keys itself if K = V.
    ///
    /// No object is made for a key, and the codec is not used. Each is a lookup of its own, not part of a snapshot.
    ///
    /// Raises ValueError if the lengths do not fit the table, or memory is shared; TypeError for other objects, such as
    /// arrays of Python objects; the first error, if a lookup fails, or the exception of a signal's handler, such as
    /// KeyboardInterrupt, and then some rows may have been written.
    #[pyo3(signature = (keys, out, found=None))]
    fn get_many_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        found: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let lookup = Lookup::new(Lengths::of(self.store(py)?.format())?, keys, out, found)?;
        let call = lookup.call();
        let looked_up = self.with_reader(py, |lookups| call(&mut lookups.reader), |_, result| result);
        looked_up?.map_err(|stopped| stopped.raised(py))
    }

    /// Return the value of key and a token of the state that the key is in, for compare_and_swap; None if there is no
    /// such key. Raises Misuse for a table with preset "paper".
    fn get_versioned<'py>(&self, py: Python<'py>, key: BytesLike) -> PyResult<Option<(Bound<'py, PyAny>, Token)>> {
        let found = self.lookup(py, |reader| reader.get_versioned(key.get()))?;
        let with_token =
            |found: Versioned| Ok((decode(self.codec(), PyBytes::new(py, &found.value))?, Token(found.token)));
        found.map(with_token).transpose()
    }

    /// Insert key, or replace its value. Return True if it was inserted.
    ///
    /// Raises Full if the table, or its space for large values, has no room; nothing was changed then.
    fn put(&self, py: Python<'_>, key: BytesLike, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let value = encode(self.codec(), value)?;
        let (key, value) = (key.get(), value.get());
        self.change(py, |client| Ok(client.put(key, value)? == Put::Inserted))
    }

    /// Insert many keys, or replace their values: items is a mapping, or an iterable of pairs of a key and a value. They
    /// are put one after the other, in their order; return how many were inserted.
    ///
    /// If a put fails, the exception is that of the first key that failed, or one whose effect is not "none" if there is
    /// one. Its attribute failed has the positions of the keys that failed or were not tried; all others were put. Its
    /// effect is that on the keys that failed. An exception of a signal's handler, such as KeyboardInterrupt, is raised
    /// after some more keys, and has the attribute failed, too. Nothing is put if an item is of a wrong type.
    fn put_many(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<usize> {
        let items = bulk::items(self.codec(), items)?;
        let items: Vec<(&[u8], &[u8])> = items.iter().map(|(key, value)| (key.get(), value.get())).collect();
        self.change_many(py, |client| bulk::put_items(client, &items))
    }

    /// Put many keys of a table of format "fixed:K:V": keys and values are contiguous buffers with n keys of K bytes and
    /// n values of V bytes, such as arrays of NumPy; see get_many_into. Return how many were inserted.
    ///
    /// Raises ValueError if the lengths do not fit the table, TypeError for other objects, and what put_many raises.
    fn put_many_from(&self, py: Python<'_>, keys: &Bound<'_, PyAny>, values: &Bound<'_, PyAny>) -> PyResult<usize> {
        let puts = Puts::new(Lengths::of(self.store(py)?.format())?, keys, values)?;
        self.change_many(py, puts.call())
    }

    /// Insert key and return True; if it exists, change nothing and return False. Raises Full as put does.
    fn try_insert(&self, py: Python<'_>, key: BytesLike, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let value = encode(self.codec(), value)?;
        let (key, value) = (key.get(), value.get());
        self.change(py, |client| client.try_insert(key, value))
    }

    /// Replace the value of key and return True; if there is no such key, change nothing and return False. Unlike
    /// dict.update, this is for one key.
    fn update(&self, py: Python<'_>, key: BytesLike, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let value = encode(self.codec(), value)?;
        let (key, value) = (key.get(), value.get());
        self.change(py, |client| client.update(key, value))
    }

    /// Remove key and return True; return False if there is no such key.
    fn delete(&self, py: Python<'_>, key: BytesLike) -> PyResult<bool> {
        self.change(py, |client| client.remove(key.get()))
    }

    /// Replace the value of key with value, and return True, if the key is as expected: expected is the value that it
    /// must have, or the Token of a state since which no client may have changed it. Otherwise change nothing and return
    /// False, also if there is no such key.
    ///
    /// With a token it may also return False although nobody changed the key: then read and try again. With a codec,
    /// values are compared by their encoded bytes, so prefer tokens.
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: BytesLike,
        expected: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        // It is made first, since a codec may use one buffer for all.
        let condition = Condition::new(self.codec(), expected)?;
        let value = encode(self.codec(), value)?;
        let (key, value) = (key.get(), value.get());
        self.change(py, |client| Ok(client.compare_and_swap(key, condition.get(), value)? == Swap::Done))
    }

    /// Remove key, and return True, if it is as expected, a value or a Token: see compare_and_swap. Otherwise change
    /// nothing and return False, also if there is no such key.
    fn compare_and_delete(&self, py: Python<'_>, key: BytesLike, expected: &Bound<'_, PyAny>) -> PyResult<bool> {
        let condition = Condition::new(self.codec(), expected)?;
        self.change(py, |client| Ok(client.compare_and_remove(key.get(), condition.get())? == Swap::Done))
    }

    /// Add by, from -2**63 to 2**64 - 1, to the number that is the value of key, modulo 2**64, and return the sum. The
    /// value is 8 bytes, little-endian, unsigned, whatever the codec: int.from_bytes(value, "little"). A missing key
    /// counts as 0. Additions of many processes add up exactly.
    ///
    /// Raises Misuse if the value does not have 8 bytes, and Full as put does; nothing was changed then.
    #[pyo3(signature = (key, by=1))]
    fn increment(&self, py: Python<'_>, key: BytesLike, by: i128) -> PyResult<u64> {
        let by = addend(by)?;
        self.change(py, |client| client.increment(key.get(), by))
    }

    /// Estimate the number of entries: exactly up to 4,096 rows (some 25,000 entries), beyond that from a sample.
    fn len_estimate(&self, py: Python<'_>) -> PyResult<LenEstimate> {
        let store = self.store(py)?;
        let found = py.detach(move || store.len_estimate()).map_err(|error| raised(py, &error))?;
        Ok(LenEstimate { entries: found.entries, error: found.error, capacity: found.capacity })
    }

    /// Iterate over the keys: see items.
    fn __iter__(slf: &Bound<'_, Self>) -> PyResult<Scan> {
        Table::scan(slf, Part::Keys)
    }

    /// Iterate over the keys: see items.
    fn keys(slf: &Bound<'_, Self>) -> PyResult<Scan> {
        Table::scan(slf, Part::Keys)
    }

    /// Iterate over the values: see items.
    fn values(slf: &Bound<'_, Self>) -> PyResult<Scan> {
        Table::scan(slf, Part::Values)
    }

    /// Iterate over pairs of keys and values, in the table's order, while others change it. One row is in memory at a
    /// time.
    ///
    /// A key that no insert moves meanwhile is returned at least once; one that is moved may be missed or returned
    /// twice, and in a table that grows one whose part of the table is split may be returned twice. The iterator ends
    /// after an error, also one of the codec. RuntimeError is raised if the codec's loads raises StopIteration.
    fn items(slf: &Bound<'_, Self>) -> PyResult<Scan> {
        Table::scan(slf, Part::Items)
    }

    /// Close this object: give back its client slots. Operations of other threads that have begun end as usual; later
    /// ones raise Closed. Closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let opened = self.lock().take();
        if self.is_inherited() {
            self.discard_all(py, opened);
            return Ok(());
        }
        let closed = py.detach(move || {
            let mut closed = Ok(());
            for client in opened.into_iter().flat_map(|opened| opened.clients) {
                closed = closed.and(close(*client));
            }
            closed
        });
        closed.map_err(|error| raised(py, &error))
    }

    /// The objects of a codec may refer to the table.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        self.codec.iter().try_for_each(|codec| codec.traverse(&visit))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().store(slf.py())?;
        Ok(slf)
    }

    /// Close this object. If the block raised an exception, that one leaves it, and an error of close is dropped.
    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py).or_else(|error| if _type.is_none() { Err(error) } else { Ok(()) })
    }
}

impl Drop for Table {
    /// Closes the clients, which can wait.
    fn drop(&mut self) {
        let opened = self.opened.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Without an interpreter, the closure is dropped, with what it owns.
        _ = Python::try_attach(move |py| self.discard_all(py, opened));
    }
}

/// Returns the number whose addition modulo 2^64 adds `by`.
pub fn addend(by: i128) -> PyResult<u64> {
    let by = u64::try_from(by).or_else(|_| i64::try_from(by).map(|by| by as u64));
    by.map_err(|_| PyOverflowError::new_err("by must be from -2**63 to 2**64 - 1"))
}

/// Returns the exception for a table that was closed.
pub fn closed(py: Python<'_>, url: &str) -> PyErr {
    let message = format!("{url}: this table object was closed; nothing was changed; open it again");
    exception(py, "Closed", &message, "none")
}

/// Returns the exception for a table that a parent of this process opened.
pub fn inherited(py: Python<'_>, url: &str) -> PyErr {
    let message = format!(
        "{url}: this process was forked from the one that opened the table; nothing was changed; open it again"
    );
    exception(py, "Misuse", &message, "none")
}

/// How many forks lead to this process from the one that imported the module.
static FORKS: AtomicU64 = AtomicU64::new(0);

pub fn forks() -> u64 {
    FORKS.load(Relaxed)
}

/// Called by the interpreter in a forked child, before any other code.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Relaxed);
}

/// Closes a client, unless it is that of the parent of a forked child.
fn close(client: Client) -> Result<()> {
    match client.close() {
        Err(Error::Fabric { source: FabricError::Forked, .. }) => Ok(()),
        closed => closed,
    }
}
