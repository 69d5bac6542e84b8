//! Tables for asyncio: operations that Python polls on the thread of its event loop (python/guira/aio.py).
//!
//! A future of the library never blocks the thread that polls it. A wake, from any thread, puts the operation's number
//! into a list and writes a byte to a socket that the event loop watches, so no thread of the library ever needs the
//! interpreter's lock. The lock is released while a future is polled or dropped.
//!
//! Invariant: only the thread of the event loop polls, drops and takes; others only wake.

use std::collections::{BTreeMap, HashSet};
use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use guira::aio::{Client, Pool, Reader, Store};
use guira::{Error, OpenOptions, Put, Swap, Versioned};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyNotImplemented};

use crate::bulk::{self, Collector, Failed, PUT_CHUNK, Tally, Values};
use crate::convert::{BytesLike, exception, raised};
use crate::options::open_options;
use crate::table::{Condition, KEPT_BYTES, Token, addend, closed, forks, inherited};

/// The numbers of the operations that were woken, and a socket that has a byte while there are any.
struct Woken {
    operations: Mutex<Vec<u64>>,
    /// `None` after the table was closed: then nobody waits.
    signal: Mutex<Option<UnixStream>>,
}

struct OperationWaker {
    number: u64,
    woken: Arc<Woken>,
}

impl Wake for OperationWaker {
    fn wake(self: Arc<Self>) {
        let mut operations = lock(&self.woken.operations);
        operations.push(self.number);
        if operations.len() == 1 {
            // It has one byte at most, so there is room; without a reader nobody waits.
            _ = lock(&self.woken.signal).as_ref().map(|mut signal| signal.write(&[0]));
        }
    }
}

/// Maximum number of lookups that run at once. Each has a request slot of the connection to a memory node, which has
/// 65,536, and over RDMA 4 KiB of locked memory: 1 MiB in all.
const LOOKUPS: usize = 256;
/// Maximum number of readers that are kept for the next lookups.
const IDLE_READERS: usize = 64;

/// The lookups that have begun, by their numbers, and the readers for the next ones. A lookup waits only while
/// [`LOOKUPS`] run.
#[derive(Default)]
struct Lookups {
    running: HashSet<u64>,
    /// In order of arrival, since numbers grow.
    waiting: BTreeMap<u64, Waker>,
    idle: Vec<Reader>,
}

/// The right of a lookup to run, or its place among those that wait. Dropping it lets the next one run.
struct Turn {
    shared: Arc<Shared>,
    number: u64,
}

impl Turn {
    fn new(shared: Arc<Shared>) -> Turn {
        let number = shared.next.fetch_add(1, Relaxed);
        Turn { shared, number }
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut lookups = lock(&self.shared.lookups);
        if lookups.running.len() < LOOKUPS || lookups.running.contains(&self.number) {
            lookups.running.insert(self.number);
            return Poll::Ready(());
        }
        lookups.waiting.insert(self.number, waker.clone());
        Poll::Pending
    }

    fn reader(&self, store: &Store) -> Reader {
        let idle = lock(&self.shared.lookups).idle.pop();
        idle.unwrap_or_else(|| store.reader())
    }

    fn keep(&self, mut reader: Reader) {
        reader.shrink_to(KEPT_BYTES);
        let mut lookups = lock(&self.shared.lookups);
        if lookups.idle.len() < IDLE_READERS {
            lookups.idle.push(reader);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lookups = lock(&self.shared.lookups);
        lookups.waiting.remove(&self.number);
        let next = if lookups.running.remove(&self.number) { lookups.waiting.pop_first() } else { None };
        lookups.running.extend(next.as_ref().map(|(number, _)| *number));
        drop(lookups);
        next.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// The parts that operations share.
struct Shared {
    /// `None` before the table was opened, and after it was closed.
    opened: Mutex<Option<(Store, Pool)>>,
    lookups: Mutex<Lookups>,
    woken: Arc<Woken>,
    /// The number of the next operation, or of the next turn.
    next: AtomicU64,
    /// The number of [`forks`] of the process that opened it.
    forks: u64,
}

impl Shared {
    /// Drops `part`, unless this is a forked child: then it belongs to the parent, and may need a lock that was held at
    /// the fork.
    fn discard<T: Send>(&self, py: Python<'_>, part: T) {
        if self.forks == forks() { py.detach(move || drop(part)) } else { mem::forget(part) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody else has them, so no lock is taken: this may be a forked child.
        let opened = self.opened.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let lookups = mem::take(self.lookups.get_mut().unwrap_or_else(PoisonError::into_inner));
        let parts = (opened, lookups.idle);
        _ = Python::try_attach(|py| self.discard(py, parts));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of an operation.
enum Outcome {
    Nothing,
    Flag(bool),
    Number(u64),
    Value(Option<Vec<u8>>),
    Versioned(Option<Versioned>),
    Values(Values),
    Put(Result<usize, Box<Failed>>),
}

impl Outcome {
    fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let bytes = |value: Vec<u8>| PyBytes::new(py, &value);
        match self {
            Outcome::Nothing => Ok(py.None().into_bound(py)),
            Outcome::Flag(flag) => flag.into_bound_py_any(py),
            Outcome::Number(number) => number.into_bound_py_any(py),
            Outcome::Value(value) => value.map(bytes).into_bound_py_any(py),
            Outcome::Versioned(found) => {
                found.map(|found| (bytes(found.value), Token(found.token))).into_bound_py_any(py)
            }
            Outcome::Values(values) => {
                let values: Vec<_> = values.iter().map(|value| value.map(|value| PyBytes::new(py, value))).collect();
                values.into_bound_py_any(py)
            }
            Outcome::Put(put) => put.map_err(|failed| failed.raised(py))?.into_bound_py_any(py),
        }
    }
}

type Call = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

/// An operation that was begun; the module guira.aio polls it.
#[pyclass(frozen, module = "guira.aio")]
pub struct Operation {
    /// The number by which AsyncStore.woken names it.
    #[pyo3(get)]
    number: u64,
    shared: Arc<Shared>,
    call: Mutex<Option<Call>>,
}

#[pymethods]
impl Operation {
    /// Return its result, or NotImplemented if it has to be polled again when it was woken. Raises its error.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let call = if self.shared.forks == forks() { lock(&self.call).take() } else { None };
        let Some(mut call) = call else { return Err(exception(py, "Misuse", "this operation has ended", "none")) };
        let operation = OperationWaker { number: self.number, woken: Arc::clone(&self.shared.woken) };
        let polled = py.detach(|| {
            let waker = Waker::from(Arc::new(operation));
            match call.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => Ok(result),
                Poll::Pending => Err(call),
            }
        });
        match polled {
            Ok(result) => result.map_err(|error| raised(py, &error))?.into_python(py),
            Err(call) => {
                *lock(&self.call) = Some(call);
                Ok(PyNotImplemented::get(py).to_owned().into_any())
            }
        }
    }

    /// Drop it, if it has not ended: a change takes effect completely or not at all.
    fn close(&self, py: Python<'_>) {
        let call = lock(&self.call).take();
        self.shared.discard(py, call);
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        _ = Python::try_attach(|py| self.close(py));
    }
}

/// A lookup, with the keys that it owns.
enum Lookup {
    Value(BytesLike),
    Versioned(BytesLike),
    Values(Vec<BytesLike>),
}

/// A change, with the keys and values that it owns.
enum Change {
    Put(BytesLike, BytesLike),
    TryInsert(BytesLike, BytesLike),
    Update(BytesLike, BytesLike),
    Delete(BytesLike),
    CompareAndSwap(BytesLike, Condition, BytesLike),
    CompareAndDelete(BytesLike, Condition),
    Increment(BytesLike, u64),
    PutMany(Vec<(BytesLike, BytesLike)>),
}

impl Lookup {
    async fn run(self, reader: &mut Reader) -> Result<Outcome, Error> {
        match self {
            Lookup::Value(key) => reader.get(key.get()).await.map(Outcome::Value),
            Lookup::Versioned(key) => reader.get_versioned(key.get()).await.map(Outcome::Versioned),
            Lookup::Values(keys) => {
                let keys: Vec<&[u8]> = keys.iter().map(BytesLike::get).collect();
                let mut values = Collector::default();
                reader.get_many_with(&keys, |_, found| values.add(found)).await;
                values.finish().map(Outcome::Values)
            }
        }
    }
}

impl Change {
    async fn run(self, client: &mut Client) -> Result<Outcome, Error> {
        Ok(match self {
            Change::Put(key, value) => Outcome::Flag(client.put(key.get(), value.get()).await? == Put::Inserted),
            Change::TryInsert(key, value) => Outcome::Flag(client.try_insert(key.get(), value.get()).await?),
            Change::Update(key, value) => Outcome::Flag(client.update(key.get(), value.get()).await?),
            Change::Delete(key) => Outcome::Flag(client.remove(key.get()).await?),
            Change::CompareAndSwap(key, condition, value) => {
                Outcome::Flag(client.compare_and_swap(key.get(), condition.get(), value.get()).await? == Swap::Done)
            }
            Change::CompareAndDelete(key, condition) => {
                Outcome::Flag(client.compare_and_remove(key.get(), condition.get()).await? == Swap::Done)
            }
            Change::Increment(key, by) => Outcome::Number(client.increment(key.get(), by).await?),
            Change::PutMany(items) => {
                let items: Vec<_> = items.iter().map(|(key, value)| (key.get(), value.get())).collect();
                let mut tally = Tally::default();
                for items in items.chunks(PUT_CHUNK) {
                    if !tally.add(client.put_many(items).await) {
                        break;
                    }
                }
                Outcome::Put(tally.result(items.len()))
            }
        })
    }
}

/// A table that operations of one event loop share; the module guira.aio wraps it.
#[pyclass(frozen, module = "guira.aio")]
pub struct AsyncStore {
    url: String,
    options: OpenOptions,
    max_clients: u16,
    /// The receiving end of the socket that is written to wake operations.
    signals: Mutex<Option<UnixStream>>,
    shared: Arc<Shared>,
}

impl AsyncStore {
    fn begin(&self, call: impl Future<Output = Result<Outcome, Error>> + Send + 'static) -> Operation {
        let number = self.shared.next.fetch_add(1, Relaxed);
        Operation { number, shared: Arc::clone(&self.shared), call: Mutex::new(Some(Box::pin(call))) }
    }

    /// Returns the exception for the socket that wakes the event loop.
    fn no_socket(py: Python<'_>, url: &str, error: &io::Error) -> PyErr {
        let message = format!("{url}: the socket that wakes the event loop failed: {error}; nothing was changed");
        exception(py, "Fabric", &message, "none")
    }

    fn opened(&self, py: Python<'_>) -> PyResult<(Store, Pool)> {
        if self.shared.forks != forks() {
            return Err(inherited(py, &self.url));
        }
        let opened = lock(&self.shared.opened).clone();
        opened.ok_or_else(|| closed(py, &self.url))
    }

    fn lookup(&self, py: Python<'_>, lookup: Lookup) -> PyResult<Operation> {
        let ((store, _), shared) = (self.opened(py)?, Arc::clone(&self.shared));
        Ok(self.begin(async move {
            let turn = Turn::new(shared);
            poll_fn(|cx| turn.poll(cx.waker())).await;
            let mut reader = turn.reader(&store);
            let result = lookup.run(&mut reader).await;
            turn.keep(reader);
            result
        }))
    }

    fn change(&self, py: Python<'_>, change: Change) -> PyResult<Operation> {
        let (_, pool) = self.opened(py)?;
        Ok(self.begin(async move { change.run(&mut *pool.get().await?).await }))
    }
}

#[pymethods]
impl AsyncStore {
    #[new]
    #[pyo3(signature = (url, *, read_only, owner, deadline, token_file, connect_timeout, reconnect_timeout, max_clients))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn new(
        py: Python<'_>,
        url: String,
        read_only: bool,
        owner: Option<u32>,
        deadline: f64,
        token_file: Option<PathBuf>,
        connect_timeout: f64,
        reconnect_timeout: f64,
        max_clients: u16,
    ) -> PyResult<AsyncStore> {
        let options = open_options(read_only, owner, deadline, token_file, connect_timeout, reconnect_timeout)?;
        if max_clients == 0 {
            return Err(PyValueError::new_err("max_clients must be from 1 to 65535, not 0"));
        }
        let sockets = UnixStream::pair().and_then(|(signals, signal)| {
            signals.set_nonblocking(true)?;
            signal.set_nonblocking(true)?;
            Ok((signals, signal))
        });
        let (signals, signal) = sockets.map_err(|error| AsyncStore::no_socket(py, &url, &error))?;
        let shared = Arc::new(Shared {
            opened: Mutex::new(None),
            lookups: Mutex::default(),
            woken: Arc::new(Woken { operations: Mutex::new(Vec::new()), signal: Mutex::new(Some(signal)) }),
            next: AtomicU64::new(0),
            forks: forks(),
        });
        Ok(AsyncStore { url, options, max_clients, signals: Mutex::new(Some(signals)), shared })
    }

    /// Return the file descriptor that is readable while operations are woken; -1 after release.
    fn fileno(&self) -> i32 {
        lock(&self.signals).as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Close the file descriptor, which nobody watches any more: operations are not woken from now on.
    fn release(&self) {
        if self.shared.forks == forks() {
            *lock(&self.signals) = None;
            *lock(&self.shared.woken.signal) = None;
        }
    }

    /// Return the numbers of the operations that were woken since the last call.
    fn woken(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        if self.shared.forks != forks() {
            return Err(inherited(py, &self.url));
        }
        let mut operations = lock(&self.shared.woken.operations);
        match lock(&self.signals).as_ref().map(|mut signals| signals.read(&mut [0])) {
            Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => {
                drop(operations);
                Err(AsyncStore::no_socket(py, &self.url, &error))
            }
            _ => Ok(mem::take(&mut *operations)),
        }
    }

    /// Return the number of readers that are kept for the next lookups.
    fn idle_readers(&self) -> usize {
        if self.shared.forks == forks() { lock(&self.shared.lookups).idle.len() } else { 0 }
    }

    /// Open the table.
    fn open(&self) -> Operation {
        let (url, options, max_clients) = (self.url.clone(), self.options.clone(), self.max_clients);
        let shared = Arc::downgrade(&self.shared);
        self.begin(async move {
            let store = Store::open_with(url.as_str(), &options).await?;
            let pool = store.pool(max_clients);
            if let Some(shared) = shared.upgrade() {
                *lock(&shared.opened) = Some((store, pool));
            }
            Ok(Outcome::Nothing)
        })
    }

    /// Return whether a client is in use: when no operation runs, one whose change was dropped is being settled.
    fn is_settling(&self) -> bool {
        if self.shared.forks != forks() {
            return false;
        }
        let status = lock(&self.shared.opened).as_ref().map(|(_, pool)| pool.status());
        status.is_some_and(|status| status.size > status.idle)
    }

    /// Close the table, when no operation runs: give back its clients, its readers and its connection.
    fn close(&self) -> Operation {
        let is_ours = self.shared.forks == forks();
        let idle = || mem::take(&mut lock(&self.shared.lookups).idle);
        let parts = is_ours.then(|| (lock(&self.shared.opened).take(), idle()));
        self.begin(async move {
            match &parts {
                Some((Some((_, pool)), _readers)) => pool.close_idle().await.map(|()| Outcome::Nothing),
                _ => Ok(Outcome::Nothing),
            }
        })
    }

    fn get(&self, py: Python<'_>, key: BytesLike) -> PyResult<Operation> {
        self.lookup(py, Lookup::Value(key))
    }

    fn get_versioned(&self, py: Python<'_>, key: BytesLike) -> PyResult<Operation> {
        self.lookup(py, Lookup::Versioned(key))
    }

    fn get_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Operation> {
        self.lookup(py, Lookup::Values(bulk::keys(keys)?))
    }

    fn put(&self, py: Python<'_>, key: BytesLike, value: BytesLike) -> PyResult<Operation> {
        self.change(py, Change::Put(key, value))
    }

    fn put_many(&self, py: Python<'_>, items: &Bound<'_, PyAny>) -> PyResult<Operation> {
        self.change(py, Change::PutMany(bulk::items(None, items)?))
    }

    fn try_insert(&self, py: Python<'_>, key: BytesLike, value: BytesLike) -> PyResult<Operation> {
        self.change(py, Change::TryInsert(key, value))
    }

    fn update(&self, py: Python<'_>, key: BytesLike, value: BytesLike) -> PyResult<Operation> {
        self.change(py, Change::Update(key, value))
    }

    fn delete(&self, py: Python<'_>, key: BytesLike) -> PyResult<Operation> {
        self.change(py, Change::Delete(key))
    }

    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: BytesLike,
        expected: &Bound<'_, PyAny>,
        value: BytesLike,
    ) -> PyResult<Operation> {
        self.change(py, Change::CompareAndSwap(key, Condition::new(None, expected)?, value))
    }

    fn compare_and_delete(&self, py: Python<'_>, key: BytesLike, expected: &Bound<'_, PyAny>) -> PyResult<Operation> {
        self.change(py, Change::CompareAndDelete(key, Condition::new(None, expected)?))
    }

    fn increment(&self, py: Python<'_>, key: BytesLike, by: i128) -> PyResult<Operation> {
        self.change(py, Change::Increment(key, addend(by)?))
    }
}
