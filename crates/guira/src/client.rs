//! Blocking clients.
//!
//! Public methods that are generic, or inlined into their callers, create no future: they call a function that is not
//! generic. Otherwise each program that calls them would compile every `async fn` of the protocol again, which took
//! 17 s for a small example.

use std::ops::RangeBounds;
use std::pin::{Pin, pin};

use guira_fabric::Traffic;
use guira_rcuckoo::{Begun, Counters, Operation, Outcome, TryGet};

use crate::aio::{self, Request, part_of};
use crate::reader::lookups;
use crate::wait::block_on;
use crate::{Error, Expected, Put, Swap, Token, Versioned};

/// A blocking client, which reads and changes a table, one operation at a time: from [`crate::Store::client`], one for
/// each thread. It holds a client slot while it lives. The async counterpart is [`crate::aio::Client`].
///
/// [`Client::close`] gives back the client's chunks and its slot, and reports failures. Dropping the client does the
/// same, in as many round trips, but ignores failures.
///
/// ```
/// use guira::{CreateOptions, Put, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
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

/// A function that makes a new value, or none, of the current one.
type Update<'u> = dyn FnMut(Option<&[u8]>) -> Option<Vec<u8>> + 'u;

lookups!(Client, "client()?");

impl Client {
    /// Inserts `key`, or replaces its value. The table's format bounds the lengths of both:
    /// [`crate::CreateOptions::format`].
    ///
    /// Round trips: 2 for a key in a row and for an insert whose rows have room; 3 for a key in an extent; on shared
    /// memory 5 or more for an insert that has to move other entries, elsewhere 2 or 3. A few more when extent space
    /// has to be found or other clients hold the locks. None behind a memory node, if the put waits for another put or
    /// update of the key by this process that is then combined with it. Source: R-INSERT-1 to R-UPDATE-2, R-EXTENT-1 to
    /// R-EXTENT-5, R-LOCK-8; paper 3.2.2, 3.2.3.
    ///
    /// # Errors
    /// `KeyLength` and `ValueLength` if the table cannot store them; `Full` if no path leads to a free entry; `NoSpace`
    /// if there is no space for a value that needs an extent; `Busy` if other clients hold a lock until the deadline;
    /// `Corrupt` if a row or extent of the key is damaged; `Destroyed`; `Lost`; `Fabric`. Nothing was changed, unless
    /// [`crate::Error::effect`] of a `Fabric` error says otherwise.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Put, Error> {
        let outcome = self.change(key, Request::Put(value))?;
        Ok(if outcome == Outcome::Inserted { Put::Inserted } else { Put::Replaced })
    }

    /// Inserts `key` and returns true; if the key exists, changes nothing and returns false. Round trips: as
    /// [`Self::put`]; if the key exists, 2 in a row, 3 in an extent. Source: R-INSERT-1 to R-INSERT-5; paper 3.2.3.
    ///
    /// # Errors
    /// Same as [`Self::put`].
    pub fn try_insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Insert(value))? == Outcome::Inserted)
    }

    /// Replaces the value of `key` and returns true; if there is no such key, changes nothing and returns false. Round
    /// trips: 2, 3 for a key in an extent; behind a memory node none, if it is combined with another write, as in
    /// [`Self::put`]. Source: R-UPDATE-1, R-UPDATE-2, R-LOCK-8; paper 3.2.2.
    ///
    /// # Errors
    /// Same as [`Self::put`], except `Full`; `NoSpace` can occur.
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Update(value))? == Outcome::Replaced)
    }

    /// Removes `key` and returns true; returns false if there is no such key. Round trips: 2, 3 for a key in an extent.
    /// Source: R-UPDATE-1, R-UPDATE-2; paper 3.2.2.
    ///
    /// # Errors
    /// `KeyLength`, `Busy`, `Corrupt`, `Destroyed`, `Lost` and `Fabric`, as for [`Self::put`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Remove)? == Outcome::Removed)
    }

    /// Makes a change without creating a future, as long as it need not wait: creating one, and passing the bytes of a
    /// possible error through it, costs 6 % of a change.
    #[inline(always)]
    fn change(&mut self, key: &[u8], request: Request<'_>) -> Result<Outcome, Error> {
        match self.0.try_change(key, request) {
            Ok(outcome) => Ok(outcome),
            Err(begun) => self.change_slow(key, request, begun),
        }
    }

    /// Goes on with the table's successor if the table is known to be gone. [R-OPEN-3]
    #[inline(always)]
    fn follow_if_gone(&mut self) -> Result<(), Error> {
        if self.0.binding.must_follow { self.follow() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn follow(&mut self) -> Result<(), Error> {
        block_on(self.0.follow())
    }

    #[inline(never)]
    fn change_slow(&mut self, key: &[u8], request: Request<'_>, begun: Option<Begun>) -> Result<Outcome, Error> {
        block_on(self.0.change_slow(key, request, begun))
    }

    /// Replaces the value of `key` if the key is as expected: it has a certain value, or was not changed since it was
    /// read with [`Self::get_versioned`]. The expected value may have any length.
    ///
    /// Round trips: 2; 3 for a key in an extent; 4 if the expected value has the same length as the one in the extent.
    /// Source: R-CAS-1, R-CAS-2.
    ///
    /// # Errors
    /// Same as [`Self::update`]; `ForeignToken` for a token of another table, and nothing was changed. A key that is
    /// not as expected is not an error.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// # client.put(b"cuckoo", b"Guira guira")?;
    /// // Appends to the value, even if other clients change it meanwhile.
    /// for _attempt in 0..100 {
    ///     let found = client.get_versioned(b"cuckoo")?.expect("it was put");
    ///     let longer = [&found.value[..], b"!"].concat();
    ///     if client.compare_and_swap(b"cuckoo", found.token, &longer)?.is_done() {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(client.get(b"cuckoo")?.as_deref(), Some(&b"Guira guira!"[..]));
    /// // Or with the value that the key must have.
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
        self.follow_if_gone()?;
        let expected = self.0.expected(expected, Operation::CompareAndSwap)?;
        Ok(Swap::of(self.change(key, Request::Swap(expected, value))?))
    }

    /// Removes `key` if it is as expected. Round trips and source: as [`Self::compare_and_swap`].
    ///
    /// # Errors
    /// Same as [`Self::remove`]; `ForeignToken` for a token of another table, and nothing was changed. A key that is
    /// not as expected is not an error.
    pub fn compare_and_remove<'e>(&mut self, key: &[u8], expected: impl Into<Expected<'e>>) -> Result<Swap, Error> {
        self.remove_if(key, expected.into())
    }

    fn remove_if(&mut self, key: &[u8], expected: Expected<'_>) -> Result<Swap, Error> {
        self.follow_if_gone()?;
        let expected = self.0.expected(expected, Operation::CompareAndRemove)?;
        Ok(Swap::of(self.change(key, Request::RemoveIf(expected))?))
    }

    /// Adds `by` to the value of `key`, an unsigned little-endian number of 8 bytes ([`u64::to_le_bytes`]), modulo
    /// 2^64, and returns the sum. A missing key counts as 0 and is inserted. Concurrent additions of many processes add
    /// up exactly; one that fails with an unknown effect ([`crate::Error::effect`]) may have been added. To subtract,
    /// add `by.wrapping_neg()`. `guira incr` adds to such a counter, too, and begins one with `--binary`.
    ///
    /// Round trips: 2, as [`Self::put`]; 6 or more for a key with which 8 bytes need an extent (`bytes:64`: a key of
    /// more than 56 bytes), where it works as [`Self::update_with`]. Source: R-ADD-1.
    ///
    /// # Errors
    /// Same as [`Self::put`]; `NotANumber` if the value does not have 8 bytes, and nothing was changed; `Contended` as
    /// for [`Self::update_with`]; `ValueLength` if the table cannot store values of 8 bytes.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
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
        self.follow_if_gone()?;
        if !self.0.is_number_in_row(key) {
            return block_on(self.0.increment_in_extent(key, by));
        }
        let outcome = self.change(key, Request::Add(&by.to_le_bytes()))?;
        self.0.sum_after(outcome, by)
    }

    /// Replaces the value of `key` with what `update` makes of it, and returns the new value. `update` gets `None` if
    /// there is no such key; if it returns `None`, the key is removed. To leave the key as it is, return the value
    /// found: nothing is written then. `update` returns no error; a variable of the caller can keep one.
    ///
    /// The update is atomic: if another client changes the key between lookup and change, `update` is called again with
    /// the new value, until the operation's deadline. So it should depend on nothing but the value, and be short. Of
    /// several clients that change one key at the same moment one succeeds, and the others repeat: the more of them,
    /// the more attempts each change takes. To add to a number, [`Self::increment`] does not repeat.
    ///
    /// Round trips, for each attempt: a lookup and a compare-and-swap, 3 for a key in a row, 5 in an extent. Source:
    /// R-CAS-1, R-CAS-2.
    ///
    /// # Errors
    /// Same as [`Self::get`] and [`Self::put`]; `Contended` if other clients changed the key during every attempt until
    /// the deadline, and nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # let mut client = store.client()?;
    /// let append = |found: Option<&[u8]>| Some([found.unwrap_or_default(), b"a line."].concat());
    /// client.update_with(b"log", append)?;
    /// let log = client.update_with(b"log", append)?;
    /// assert_eq!(log.as_deref(), Some(&b"a line.a line."[..]));
    /// // Refuses a change: the value found stays.
    /// let mut is_too_long = false;
    /// client.update_with(b"log", |found| {
    ///     is_too_long = found.is_some_and(|log| log.len() >= 14);
    ///     if is_too_long { found.map(<[u8]>::to_vec) } else { append(found) }
    /// })?;
    /// assert!(is_too_long);
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

    /// Returns the value of `key`; if there is no such key, inserts the value that `make` returns, and returns it. If
    /// another client inserts the key meanwhile, returns that client's value and drops the one made: `make` runs at
    /// most once in this client, but two clients may both run theirs. `make` cannot use this client and returns no
    /// error: a recursive or fallible computation calls [`Self::get`] and [`Self::try_insert`] instead.
    ///
    /// Round trips: those of [`Self::get`]; if there is no such key, also those of [`Self::try_insert`].
    ///
    /// # Errors
    /// Same as [`Self::get`] and [`Self::put`]; `Contended` if other clients inserted and removed the key until the
    /// deadline, and nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
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

    /// Puts many keys, one after the other, and returns one result for each, in order. A failure does not stop the puts
    /// after it. Round trips: those of single puts; on shared memory the rows of the next keys are prefetched.
    ///
    /// # Errors
    /// Each key has a result of its own, with the errors of [`Self::put`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
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

    /// Removes many keys, one after the other, and returns one result for each, in order: true if the key existed. A
    /// failure does not stop the removals after it. Round trips: those of single removals; on shared memory the rows of
    /// the next keys are prefetched.
    ///
    /// # Errors
    /// Each key has a result of its own, with the errors of [`Self::remove`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
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

    /// Gives back the chunks from which this client allocates its extents, as closing it does, but keeps its slot: for
    /// a client that will store no large value for a while. No other client can use the free space of chunks that this
    /// client owns. Round trips: 1 for 64 chunks, and again to give them back; none if it has none. Source: R-EXTENT-5.
    ///
    /// # Errors
    /// `Lost`; `Fabric`: some chunks may have been given back. Values are not touched.
    pub fn release_memory(&mut self) -> Result<(), Error> {
        block_on(self.0.release_memory())
    }

    /// Returns the counters of this client since it was opened: taken locks, stale paths, moved entries, rows that were
    /// read again, clients suspected, dead clients recovered, and more. They only grow. No round trip.
    /// [`crate::admin::Stat::totals`] has the sums over all clients of a table.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// Returns the number of this client's slot, from 0, as used by [`crate::admin::ClientStat::slot`] and errors. It
    /// changes when a lost connection to a memory node is replaced. No round trip.
    pub fn slot(&self) -> u16 {
        self.0.slot()
    }

    /// Closes the client: gives back its chunks and its slot. Round trips: 3, and those of [`Client::release_memory`].
    /// Source: R-SLOT-1.
    ///
    /// # Errors
    /// Same as [`Client::release_memory`]. Then the slot is that of a dead client, and the next client that needs it
    /// recovers it; no value that was put is lost.
    pub fn close(self) -> Result<(), Error> {
        block_on(self.0.close())
    }
}
