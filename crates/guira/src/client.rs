//! Clients in place.
//!
//! A method that is generic, or inlined into its callers, holds no future: a program that calls it would compile the
//! protocol again, every `async fn` of it, which took a small example 17 s. It leads to one that is not generic.

use std::pin::{Pin, pin};

use guira_fabric::Traffic;
use guira_rcuckoo::{Begun, Counters, Now, Operation, Outcome};

use crate::aio::{self, Request};
use crate::reader::lookups;
use crate::wait::block_on;
use crate::{Error, Expected, Put, Swap, Token, Versioned};

/// Reads and changes the table, one operation at a time, in place: one a thread, from [`crate::Store::client`]. Holds a
/// client slot while it lives. As futures: [`crate::aio::Client`].
///
/// [`Client::close`] gives back the client's chunks and its slot, and says if that fails. Dropping it does the same, in
/// as many round trips, and cannot say so.
///
/// ```
/// use guira::{CreateOptions, Put, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://guira-doc-client-{}", std::process::id()).parse()?;
/// let store = Store::create(&url, &CreateOptions::new(1_000))?;
/// let mut client = store.client()?;
/// assert_eq!(client.put(b"cuckoo", b"Guira guira")?, Put::Inserted);
/// assert!(!client.try_insert(b"cuckoo", b"Crotophaga")?);
/// assert!(client.update(b"cuckoo", b"Crotophaga")?);
/// assert!(client.remove(b"cuckoo")?);
/// assert_eq!(client.get(b"cuckoo")?, None);
/// # drop(client);
/// # Store::destroy(&url)
/// # }
/// ```
#[derive(Debug)]
pub struct Client(pub(crate) aio::Client);

/// Makes a new value of what is there, or none.
type Update<'u> = dyn FnMut(Option<&[u8]>) -> Option<Vec<u8>> + 'u;

lookups!(Client, "client()?");

impl Client {
    /// Inserts `key`, or replaces its value. How long both may be is up to the table's format:
    /// [`crate::CreateOptions::format`].
    ///
    /// Round trips: 2 for a key in a row and for an insert whose rows have room; 3 for a key in an extent; on shared
    /// memory 5 or more for an insert that has to move others, elsewhere 2 or 3. Now and then some more, to find room
    /// for extents or when others hold the locks; behind a memory node none, if it waits for another put or update of
    /// the key by this process, which overwrites it. Source: R-INSERT-1 to R-UPDATE-2, R-EXTENT-1 to R-EXTENT-5,
    /// R-LOCK-8; paper 3.2.2, 3.2.3.
    ///
    /// # Errors
    /// `KeyLength` and `ValueLength` if the table cannot store them; `Full` if no path leads to a free entry, `Extent`
    /// if there is no space for a value that needs an extent; `Busy` if others hold a lock until the deadline;
    /// `Corrupt` if a row or extent of the key is damaged; `Destroyed`; `Lost`; the fabric's. Nothing was changed,
    /// unless [`crate::Error::effect`] of the fabric's says otherwise.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Put, Error> {
        let outcome = self.change(key, Request::Put(value))?;
        Ok(if outcome == Outcome::Inserted { Put::Inserted } else { Put::Replaced })
    }

    /// Inserts `key` and returns true; changes nothing and returns false if it exists. Round trips: as [`Self::put`]; 2
    /// if the key exists in a row, 3 in an extent. Source: R-INSERT-1 to R-INSERT-5; paper 3.2.3.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn try_insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Insert(value))? == Outcome::Inserted)
    }

    /// Replaces the value of `key` and returns true; changes nothing and returns false if there is no such key. Round
    /// trips: 2, 3 for a key in an extent; behind a memory node none, if it is overwritten, as in [`Self::put`].
    /// Source: R-UPDATE-1, R-UPDATE-2, R-LOCK-8; paper 3.2.2.
    ///
    /// # Errors
    /// As [`Self::put`], `Full` excepted; `Extent` may come.
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Update(value))? == Outcome::Replaced)
    }

    /// Removes `key` and returns true; returns false if there is no such key. Round trips: 2, 3 for a key in an extent.
    /// Source: R-UPDATE-1, R-UPDATE-2; paper 3.2.2.
    ///
    /// # Errors
    /// `KeyLength`, `Busy`, `Corrupt`, `Destroyed`, `Lost` and the fabric's, as those of [`Self::put`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Remove)? == Outcome::Removed)
    }

    /// Without a future, as long as it need not wait: to make one, and to carry the bytes that an error would take
    /// through it, costs 6 % of a change.
    #[inline(always)]
    fn change(&mut self, key: &[u8], request: Request<'_>) -> Result<Outcome, Error> {
        match self.0.try_change(key, request) {
            Ok(outcome) => Ok(outcome),
            Err(begun) => self.change_slow(key, request, begun),
        }
    }

    #[inline(never)]
    fn change_slow(&mut self, key: &[u8], request: Request<'_>, begun: Option<Begun>) -> Result<Outcome, Error> {
        block_on(self.0.change_slow(key, request, begun))
    }

    /// Replaces the value of `key` if the key is as expected: has a certain value, or was not changed since it was read
    /// with [`Self::get_versioned`]. Any length of expected value will do.
    ///
    /// Round trips: 2, 3 for a key in an extent, 4 for one in an extent that is expected to have a value of the length
    /// it has. Source: R-CAS-1, R-CAS-2.
    ///
    /// # Errors
    /// As [`Self::update`]; `ForeignToken` for a token of another table, and nothing was changed. A key that is not as
    /// expected is no error.
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
        self.swap(key, expected.into(), value)
    }

    fn swap(&mut self, key: &[u8], expected: Expected<'_>, value: &[u8]) -> Result<Swap, Error> {
        let expected = self.0.expected(expected, Operation::CompareAndSwap)?;
        Ok(Swap::of(self.change(key, Request::Swap(expected, value))?))
    }

    /// Removes `key` if it is as expected. Round trips and source: as [`Self::compare_and_swap`].
    ///
    /// # Errors
    /// As [`Self::remove`]; `ForeignToken` for a token of another table, and nothing was changed. A key that is not as
    /// expected is no error.
    pub fn compare_and_remove<'e>(&mut self, key: &[u8], expected: impl Into<Expected<'e>>) -> Result<Swap, Error> {
        self.remove_if(key, expected.into())
    }

    fn remove_if(&mut self, key: &[u8], expected: Expected<'_>) -> Result<Swap, Error> {
        let expected = self.0.expected(expected, Operation::CompareAndRemove)?;
        Ok(Swap::of(self.change(key, Request::RemoveIf(expected))?))
    }

    /// Adds `by` to the number that the value of `key` is, modulo 2^64, and returns the sum: an unsigned little-endian
    /// number of 8 bytes, as [`u64::to_le_bytes`] makes it. A key that is missing counts as 0 and is inserted. What
    /// many processes add together is exact; an operation that fails with an unknown effect
    /// ([`crate::Error::effect`]) may have added. `by.wrapping_neg()` subtracts.
    ///
    /// Round trips: 2, as [`Self::put`]; 6 or more for a key with which 8 bytes need an extent (`bytes:64`: a key of
    /// more than 56 bytes), where it is [`Self::update_with`]. Source: R-ADD-1.
    ///
    /// # Errors
    /// As [`Self::put`]; `NotANumber` if the value does not have 8 bytes, and nothing was changed; `Contended` as for
    /// [`Self::update_with`]. `ValueLength` if the table's values never have 8 bytes.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-increment-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// assert_eq!(client.increment(b"visits", 1)?, 1);
    /// assert_eq!(client.increment(b"visits", 41)?, 42);
    /// assert_eq!(client.get(b"visits")?.as_deref(), Some(&42_u64.to_le_bytes()[..]));
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn increment(&mut self, key: &[u8], by: u64) -> Result<u64, Error> {
        if !self.0.is_number_in_row(key) {
            return block_on(self.0.increment_in_extent(key, by));
        }
        let outcome = self.change(key, Request::Add(&by.to_le_bytes()))?;
        self.0.sum_after(outcome, by)
    }

    /// Replaces the value of `key` by what `update` makes of it, and returns the new value. `update` gets `None` if
    /// there is no such key; if it returns `None`, the key is removed. Nothing is written if the value stays the same.
    ///
    /// Lookup and change are one step: nobody changes the key in between, or `update` is called again with what is
    /// there now, until the operation's deadline. So it should depend on nothing but the value, and be short.
    ///
    /// Round trips: a lookup and a compare-and-swap, 3 for a key in a row, 5 in an extent, for each attempt. Source:
    /// R-CAS-1, R-CAS-2.
    ///
    /// # Errors
    /// As [`Self::get`] and [`Self::put`]; `Contended` if others changed the key before each attempt until the
    /// deadline, and nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-update-with-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// let append = |found: Option<&[u8]>| Some([found.unwrap_or_default(), b"a line."].concat());
    /// client.update_with(b"log", append)?;
    /// let log = client.update_with(b"log", append)?;
    /// assert_eq!(log.as_deref(), Some(&b"a line.a line."[..]));
    /// // Removes the key.
    /// assert_eq!(client.update_with(b"log", |_| None)?, None);
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn update_with(
        &mut self,
        key: &[u8],
        mut update: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.update_by(key, &mut update)
    }

    fn update_by(&mut self, key: &[u8], update: &mut Update<'_>) -> Result<Option<Vec<u8>>, Error> {
        block_on(self.0.update_by(Operation::UpdateWith, key, update))
    }

    /// The value of `key`; if there is no such key, the value that `make` makes, which is inserted. If somebody else
    /// inserts the key meanwhile, it is that one's value, and the one made is dropped: `make` runs once at most in
    /// this client, but two clients may both run theirs.
    ///
    /// Round trips: those of [`Self::get`] if there is such a key, and those of [`Self::try_insert`] on top if not.
    ///
    /// # Errors
    /// As [`Self::get`] and [`Self::put`]; `Contended` if others inserted and removed the key until the deadline, and
    /// nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-get-or-insert-with-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// assert_eq!(client.get_or_insert_with(b"answer", || b"42".to_vec())?, b"42");
    /// assert_eq!(client.get_or_insert_with(b"answer", || unreachable!("it is there"))?, b"42");
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn get_or_insert_with(&mut self, key: &[u8], make: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, Error> {
        self.get_or_insert(key, pin!(async { make() }))
    }

    fn get_or_insert(&mut self, key: &[u8], make: Pin<&mut dyn Future<Output = Vec<u8>>>) -> Result<Vec<u8>, Error> {
        block_on(self.0.get_or_insert(key, make))
    }

    /// Puts many keys, one after the other, in order: one result for each. A key's failure does not keep the next from
    /// being put. Round trips: those of single puts; on shared memory the rows of keys to come are prefetched.
    ///
    /// # Errors
    /// Each key has its own, as those of [`Self::put`].
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
        let items: Vec<(&[u8], &[u8])> = items.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
        self.put_each(&items)
    }

    fn put_each(&mut self, items: &[(&[u8], &[u8])]) -> Vec<Result<Put, Error>> {
        block_on(self.0.put_many(items))
    }

    /// Removes many keys, one after the other, in order: one result for each, true if it existed. A key's failure does
    /// not keep the next from being removed. Round trips: those of single removes; on shared memory the rows of keys to
    /// come are prefetched.
    ///
    /// # Errors
    /// Each key has its own, as those of [`Self::remove`].
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
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.remove_each(&keys)
    }

    fn remove_each(&mut self, keys: &[&[u8]]) -> Vec<Result<bool, Error>> {
        block_on(self.0.remove_many(keys))
    }

    /// Gives up the chunks this client cuts its extents from, as closing it would, but keeps its slot: for a client
    /// that will store no large value for a while. As long as it owns them, nobody else can use what is free in them,
    /// or becomes free. Round trips: 1 for 64 chunks, and again for giving them up; none if it has none. Source:
    /// R-EXTENT-5.
    ///
    /// # Errors
    /// `Lost`; the fabric's: the client may have given up some of them. Values are not touched.
    pub fn release_memory(&mut self) -> Result<(), Error> {
        block_on(self.0.release_memory())
    }

    /// What this client met since it was opened: taken locks, stale paths, moved entries, rows that were read again,
    /// clients that it suspected, dead ones that it recovered, and more. Only grows. No round trip. What all clients of
    /// a table met: [`crate::admin::Stat::totals`].
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// The number of this client's slot, from 0, as [`crate::admin::ClientStat::slot`] and errors name it. Another one
    /// after its connection to a memory node was lost. No round trip.
    pub fn slot(&self) -> u16 {
        self.0.slot()
    }

    /// Closes the client: gives back its chunks and its slot. Round trips: 3, and those of [`Client::release_memory`].
    /// Source: R-SLOT-1.
    ///
    /// # Errors
    /// As [`Client::release_memory`]. The slot is that of a dead client then, which whoever needs it recovers; nothing
    /// that was put is lost.
    pub fn close(self) -> Result<(), Error> {
        block_on(self.0.close())
    }
}
