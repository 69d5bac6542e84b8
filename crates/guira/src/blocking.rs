//! The same operations, carried out in place: for threads without an executor.
//!
//! On shared memory an operation never waits except for a lock, so this is what most programs want.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use guira_fabric::Traffic;
use guira_rcuckoo::{Counters, Now, Sampled};

use crate::{Error, Expected, Put, Swap, Token, Versioned};

/// Polls `future` in place until it is ready. Ends because lanes wait in place: a pause is over when its future is
/// polled. Inlined: the future is then made where it is polled, and not copied there.
#[inline(always)]
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::yield_now();
    }
}

/// Looks keys up, in place: one a thread, from [`crate::Store::reader`]. Needs no client slot and no write permission;
/// any number of readers may use a table. The operations are those of [`crate::Reader`].
pub struct Reader(pub(crate) crate::Reader);

impl Reader {
    /// The value of `key`, or `None` if there is no such key. An inline hit is 1 round trip, an extent hit 2, a miss at
    /// most 2. Source: R-READ-1 to R-READ-7. Async:
    /// [`crate::Reader::get`].
    ///
    /// # Errors
    /// `KeyLength`, `Corrupt`, `Busy`, or the fabric's.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces the content of `into` by the value of `key` and returns true; leaves it empty and returns false if
    /// there is no such key. Allocates nothing if the value fits in `into`'s capacity. Round trips: as `get`. Async:
    /// [`crate::Reader::get_into`].
    ///
    /// # Errors
    /// As `get`.
    #[inline]
    pub fn get_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        match self.0.get_now(key, into) {
            Now::Done(token) => Ok(token.is_some()),
            Now::Wait(sampled) => self.get_waiting(key, into, sampled),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_waiting(&mut self, key: &[u8], into: &mut Vec<u8>, sampled: Sampled) -> Result<bool, Error> {
        block_on(self.0.get_waiting(key, into, sampled))
    }

    /// The value of `key` and the state it was read in, for `compare_and_swap`. Round trips: as `get`. Source:
    /// R-CAS-2. Async:
    /// [`crate::Reader::get_versioned`].
    ///
    /// # Errors
    /// As `get`; `NarrowVersions` in tables of preset `paper`.
    pub fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        block_on(self.0.get_versioned(key))
    }

    /// As `get_versioned`, into a buffer: empty if there is no such key. Async:
    /// [`crate::Reader::get_versioned_into`].
    ///
    /// # Errors
    /// As `get_versioned`.
    pub fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
        block_on(self.0.get_versioned_into(key, into))
    }

    /// Looks up many keys at once: one result for each, in order. Errors are per key, as those of `get`.
    /// Source: R-READ-8. Async:
    /// [`crate::Reader::get_many`].
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        block_on(self.0.get_many(keys))
    }

    /// Looks up many keys at once and hands the place of each in `keys`, and its result, to `visit`, in order; no
    /// snapshot of several keys, and no allocation for each. Source: R-READ-8. Async:
    /// [`crate::Reader::get_many_with`].
    pub fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        block_on(self.0.get_many_with(keys, visit));
    }

    /// Whether there is such a key. Round trips: as `get`. Async:
    /// [`crate::Reader::contains`].
    ///
    /// # Errors
    /// As `get`.
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
        block_on(self.0.contains(key))
    }

    /// What this reader sent and received: round trips, messages, bytes. No round trip.
    pub fn traffic(&self) -> Traffic {
        self.0.traffic()
    }
}

/// Reads and changes the table, in place: one a thread, from [`crate::Store::client`]. Holds a client slot while it
/// lives, and gives it back when it is dropped. The operations are those of [`crate::Client`].
pub struct Client(pub(crate) crate::Client);

impl Client {
    /// The value of `key`, or `None` if there is no such key. An inline hit is 1 round trip, an extent hit 2, a miss at
    /// most 2. Source: R-READ-1 to R-READ-7. Async:
    /// [`crate::Client::get`].
    ///
    /// # Errors
    /// `KeyLength`, `Corrupt`, `Busy`, or the fabric's.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces the content of `into` by the value of `key` and returns true; leaves it empty and returns false if
    /// there is no such key. Allocates nothing if the value fits in `into`'s capacity. Round trips: as `get`. Async:
    /// [`crate::Client::get_into`].
    ///
    /// # Errors
    /// As `get`.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-get-into-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// # client.put(b"cuckoo", b"Guira guira")?;
    /// let mut value = Vec::with_capacity(64);
    /// assert!(client.get_into(b"cuckoo", &mut value)?);
    /// assert_eq!(value, b"Guira guira");
    /// assert!(!client.get_into(b"condor", &mut value)?);
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    #[inline]
    pub fn get_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        match self.0.get_now(key, into) {
            Now::Done(token) => Ok(token.is_some()),
            Now::Wait(sampled) => self.get_waiting(key, into, sampled),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_waiting(&mut self, key: &[u8], into: &mut Vec<u8>, sampled: Sampled) -> Result<bool, Error> {
        block_on(self.0.get_waiting(key, into, sampled))
    }

    /// The value of `key` and the state it was read in, for `compare_and_swap`. Round trips: as `get`. Source:
    /// R-CAS-2. Async:
    /// [`crate::Client::get_versioned`].
    ///
    /// # Errors
    /// As `get`; `NarrowVersions` in tables of preset `paper`.
    pub fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        block_on(self.0.get_versioned(key))
    }

    /// As `get_versioned`, into a buffer: empty if there is no such key. Async:
    /// [`crate::Client::get_versioned_into`].
    ///
    /// # Errors
    /// As `get_versioned`.
    pub fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
        block_on(self.0.get_versioned_into(key, into))
    }

    /// Looks up many keys at once: one result for each, in order. Errors are per key, as those of `get`.
    /// Source: R-READ-8. Async:
    /// [`crate::Client::get_many`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-get-many-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// # client.put(b"cuckoo", b"Guira guira")?;
    /// let values = client.get_many(&["cuckoo", "condor"]);
    /// assert!(matches!(&values[0], Ok(Some(value)) if value == b"Guira guira"));
    /// assert!(matches!(values[1], Ok(None)));
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        block_on(self.0.get_many(keys))
    }

    /// Looks up many keys at once and hands the place of each in `keys`, and its result, to `visit`, in order; no
    /// snapshot of several keys, and no allocation for each. Source: R-READ-8. Async:
    /// [`crate::Client::get_many_with`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-get-many-with-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// # client.put(b"cuckoo", b"Guira guira")?;
    /// let mut bytes = 0;
    /// client.get_many_with(&["cuckoo", "condor"], |_place, value| match value {
    ///     Ok(value) => bytes += value.map_or(0, <[u8]>::len),
    ///     Err(error) => eprintln!("{error}"),
    /// });
    /// assert_eq!(bytes, 11);
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        block_on(self.0.get_many_with(keys, visit));
    }

    /// Whether there is such a key. Round trips: as `get`. Async:
    /// [`crate::Client::contains`].
    ///
    /// # Errors
    /// As `get`.
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
        block_on(self.0.contains(key))
    }

    /// Inserts `key`, or replaces its value. 2 round trips without contention; 3 for an extent, and for most inserts
    /// that have to move others. Source: R-INSERT-1 to R-UPDATE-2. Async:
    /// [`crate::Client::put`].
    ///
    /// # Errors
    /// `KeyLength`, `ValueLength`, `Full`, `Busy`, `Corrupt`, `Destroyed`, `Extent`, or the fabric's.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Put, Error> {
        block_on(self.0.put(key, value))
    }

    /// Inserts `key` and returns true; changes nothing and returns false if it exists. Round trips: as `put`. Async:
    /// [`crate::Client::insert`].
    ///
    /// # Errors
    /// As `put`.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        block_on(self.0.insert(key, value))
    }

    /// Replaces the value of `key` and returns true; changes nothing and returns false if there is no such key.
    /// 2 round trips, 3 for an extent. Source: R-UPDATE-1, R-UPDATE-2. Async:
    /// [`crate::Client::update`].
    ///
    /// # Errors
    /// As `put`, `Full` excepted.
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        block_on(self.0.update(key, value))
    }

    /// Removes `key` and returns true; returns false if there is no such key. 2 round trips, 3 for an extent.
    /// Source: R-UPDATE-1. Async:
    /// [`crate::Client::remove`].
    ///
    /// # Errors
    /// `KeyLength`, `Busy`, `Corrupt`, `Destroyed`, or the fabric's.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        block_on(self.0.remove(key))
    }

    /// Replaces the value of `key` if it has the expected value, or was not changed since it was read. 2 round trips,
    /// 3 or 4 for an extent. Source: R-CAS-1, R-CAS-2. Async:
    /// [`crate::Client::compare_and_swap`].
    ///
    /// # Errors
    /// As `update`, and `ForeignToken` for a token of another table.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-compare-and-swap-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// # client.put(b"cuckoo", b"Guira guira")?;
    /// // Adds to the value, whatever others do to it meanwhile.
    /// for _attempt in 0..100 {
    ///     let found = client.get_versioned(b"cuckoo")?.expect("it was put");
    ///     let longer = [&found.value[..], b"!"].concat();
    ///     if client.compare_and_swap(b"cuckoo", found.token, &longer)?.is_done() {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(client.get(b"cuckoo")?.as_deref(), Some(&b"Guira guira!"[..]));
    /// // Or with the value it must have.
    /// let swap = client.compare_and_swap(b"cuckoo", b"another", b"third")?;
    /// assert_eq!(swap, guira::Swap::Different);
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn compare_and_swap<'e>(
        &mut self,
        key: &[u8],
        expected: impl Into<Expected<'e>>,
        value: &[u8],
    ) -> Result<Swap, Error> {
        block_on(self.0.compare_and_swap(key, expected, value))
    }

    /// Removes `key` if it is as expected. Round trips: as `compare_and_swap`. Source: R-CAS-1, R-CAS-2. Async:
    /// [`crate::Client::compare_and_remove`].
    ///
    /// # Errors
    /// As `remove`, and `ForeignToken` for a token of another table.
    pub fn compare_and_remove<'e>(&mut self, key: &[u8], expected: impl Into<Expected<'e>>) -> Result<Swap, Error> {
        block_on(self.0.compare_and_remove(key, expected))
    }

    /// Puts many keys, one after the other, in order: one result for each. Round trips: as many as single puts. Async:
    /// [`crate::Client::put_many`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-put-many-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// # client.put(b"cuckoo", b"Guira guira")?;
    /// for result in client.put_many(&[("heron", "Garza"), ("ibis", "Curaca")]) {
    ///     assert_eq!(result?, guira::Put::Inserted);
    /// }
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(&mut self, items: &[(K, V)]) -> Vec<Result<Put, Error>> {
        block_on(self.0.put_many(items))
    }

    /// Removes many keys, one after the other, in order: one result for each. Round trips: as many as single
    /// removes. Async: [`crate::Client::remove_many`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-remove-many-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// # client.put(b"cuckoo", b"Guira guira")?;
    /// let results = client.remove_many(&["cuckoo", "condor"]);
    /// assert!(matches!(results[..], [Ok(true), Ok(false)]));
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn remove_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<bool, Error>> {
        block_on(self.0.remove_many(keys))
    }

    /// Gives up the space this client holds for values to come, but keeps its slot. 1 round trip for 64 chunks, and
    /// again for giving them up. Source: R-EXTENT-5. Async:
    /// [`crate::Client::release_memory`].
    ///
    /// # Errors
    /// The fabric's. Values are not touched.
    pub fn release_memory(&mut self) -> Result<(), Error> {
        block_on(self.0.release_memory())
    }

    /// What this client sent and received: round trips, messages, bytes. No round trip.
    pub fn traffic(&self) -> Traffic {
        self.0.traffic()
    }

    /// What this client met: taken locks, stale paths, moved entries. No round trip.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// The number of this client's slot, from 0, as `stat` and errors name it. No round trip.
    pub fn slot(&self) -> u16 {
        self.0.slot()
    }
}
