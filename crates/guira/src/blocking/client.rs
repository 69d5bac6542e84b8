//! Clients in place.

use guira_fabric::Traffic;
use guira_rcuckoo::{Counters, Now, Sampled};

use super::block_on;
use super::reader::lookups;
use crate::{Error, Expected, Put, Swap, Token, Versioned};

/// Reads and changes the table, in place: one a thread, from [`crate::Store::client`]. Holds a client slot while it
/// lives, and gives it back when it is dropped. The operations are those of [`crate::Client`].
pub struct Client(pub(crate) crate::Client);

lookups!(Client, "client()?");

impl Client {
    /// Inserts `key`, or replaces its value. 2 round trips without contention; 3 for an extent, and for most inserts
    /// that have to move others. Source: R-INSERT-1 to R-UPDATE-2.
    ///
    /// # Errors
    /// `KeyLength`, `ValueLength`, `Full`, `Busy`, `Corrupt`, `Destroyed`, `Extent`, or the fabric's.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Put, Error> {
        block_on(self.0.put(key, value))
    }

    /// Inserts `key` and returns true; changes nothing and returns false if it exists. Round trips: as `put`.
    ///
    /// # Errors
    /// As `put`.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        block_on(self.0.insert(key, value))
    }

    /// Replaces the value of `key` and returns true; changes nothing and returns false if there is no such key.
    /// 2 round trips, 3 for an extent. Source: R-UPDATE-1, R-UPDATE-2.
    ///
    /// # Errors
    /// As `put`, `Full` excepted.
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        block_on(self.0.update(key, value))
    }

    /// Removes `key` and returns true; returns false if there is no such key. 2 round trips, 3 for an extent.
    /// Source: R-UPDATE-1.
    ///
    /// # Errors
    /// `KeyLength`, `Busy`, `Corrupt`, `Destroyed`, or the fabric's.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        block_on(self.0.remove(key))
    }

    /// Replaces the value of `key` if it has the expected value, or was not changed since it was read. 2 round trips,
    /// 3 or 4 for an extent. Source: R-CAS-1, R-CAS-2.
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

    /// Removes `key` if it is as expected. Round trips: as `compare_and_swap`. Source: R-CAS-1, R-CAS-2.
    ///
    /// # Errors
    /// As `remove`, and `ForeignToken` for a token of another table.
    pub fn compare_and_remove<'e>(&mut self, key: &[u8], expected: impl Into<Expected<'e>>) -> Result<Swap, Error> {
        block_on(self.0.compare_and_remove(key, expected))
    }

    /// Puts many keys, one after the other, in order: one result for each. Round trips: as many as single puts.
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
    /// removes.
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
    /// again for giving them up. Source: R-EXTENT-5.
    ///
    /// # Errors
    /// The fabric's. Values are not touched.
    pub fn release_memory(&mut self) -> Result<(), Error> {
        block_on(self.0.release_memory())
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
