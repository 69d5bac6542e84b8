//! Blocking readers, and the lookups they share with blocking clients.
//!
//! [`lookups`] defines each lookup once, for [`Reader`] and for [`crate::Client`].

use std::ops::RangeBounds;

use guira_fabric::Traffic;
use guira_rcuckoo::{Counters, TryGet};

use crate::aio::part_of;
use crate::wait::block_on;
use crate::{Error, Token, Versioned};

/// Implements the blocking lookups for `$face`, which wraps its async counterpart. In the examples, `$open` gets one
/// from a store. The module of `$face` imports the names that the lookups use.
macro_rules! lookups {
    ($face:ident, $open:literal) => {
        impl $face {
            /// Returns the value of `key`, or `None` if there is no such key.
            ///
            /// Round trips: an inline hit 1, an extent hit 2, a miss 1 or 2; on shared memory, where nothing crosses a
            /// network, 1 more for a hit in the key's second row; more while other clients write its rows. Source:
            /// R-READ-1 to R-READ-7; paper 3.2.1.
            ///
            /// # Errors
            /// `KeyLength` if the table cannot have such a key; `Corrupt` if a row or the extent is damaged; `Busy` if
            /// one stays half written until the deadline; `Destroyed`; for clients, `Lost`; `Fabric`. Nothing is
            /// changed.
            pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
                let mut value = Vec::new();
                Ok(self.get_into(key, &mut value)?.then_some(value))
            }

            /// Replaces the content of `into` with the value of `key` and returns true; if there is no such key, leaves
            /// it empty and returns false. Allocates nothing if the value fits in `into`'s capacity. Otherwise the same
            /// as [`Self::get`].
            ///
            /// # Errors
            /// Same as [`Self::get`]; `into` is empty then.
            ///
            /// ```
            /// # use guira::{CreateOptions, Store, Url};
            /// # fn main() -> Result<(), guira::Error> {
            /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
            /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
            /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
            #[doc = concat!("let mut birds = store.", $open, ";")]
            /// let mut value = Vec::with_capacity(64);
            /// assert!(birds.get_into(b"cuckoo", &mut value)?);
            /// assert_eq!(value, b"Guira guira");
            /// assert!(!birds.get_into(b"condor", &mut value)?);
            /// # drop(birds);
            /// # Store::destroy(&url)
            /// # }
            /// ```
            #[inline]
            pub fn get_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
                match self.0.try_get(key, into) {
                    TryGet::Done(found) => Ok(found.is_some()),
                    TryGet::MustWait => self.get_slow(key, into),
                }
            }

            #[cold]
            #[inline(never)]
            fn get_slow(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
                block_on(self.0.get_slow(key, into))
            }

            /// Passes the bytes of the value of `key` that are in `range` to `see`, and returns what that returns, or
            /// `None` if there is no such key. What of the range lies behind the value's end is left out. The bytes were
            /// verified, and are a copy: `see` may take its time. They lie in a buffer that is kept for the next call,
            /// as large as the largest value so far. Otherwise the same as [`Self::get`], whose round trips it takes.
            ///
            /// # Errors
            /// Same as [`Self::get`]; `see` is not called then.
            ///
            /// ```
            /// # use guira::{CreateOptions, Store, Url};
            /// # fn main() -> Result<(), guira::Error> {
            /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
            /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
            /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
            #[doc = concat!("let mut birds = store.", $open, ";")]
            /// let genus = birds.get_with(b"cuckoo", ..5, |bytes| bytes == b"Guira")?;
            /// assert_eq!(genus, Some(true));
            /// # drop(birds);
            /// # Store::destroy(&url)
            /// # }
            /// ```
            pub fn get_with<T>(
                &mut self,
                key: &[u8],
                range: impl RangeBounds<usize>,
                see: impl FnOnce(&[u8]) -> T,
            ) -> Result<Option<T>, Error> {
                Ok(self.contains(key)?.then(|| see(part_of(&self.0.value, range))))
            }

            /// Returns the value of `key` and the state it was read in, for a change that depends on it, or `None` if
            /// there is no such key. Round trips: as [`Self::get`]. Source: R-CAS-2.
            ///
            /// # Errors
            /// Same as [`Self::get`]; `NarrowVersions` if the table's row versions are too narrow to distinguish states
            /// (preset `paper`).
            pub fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
                block_on(self.0.get_versioned(key))
            }

            /// Replaces the content of `into` with the value of `key` and returns the state it was read in; if there is
            /// no such key, leaves it empty and returns `None`. Otherwise the same as [`Self::get_versioned`].
            ///
            /// # Errors
            /// Same as [`Self::get_versioned`]; `into` is empty then.
            pub fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
                block_on(self.0.get_versioned_into(key, into))
            }

            /// Looks up many keys at once, so that their memory accesses overlap, and returns one result for each, in
            /// order. Allocates for each value; [`Self::get_many_with`] does not, and gives the round trips and source.
            ///
            /// # Errors
            /// Each key has a result of its own, with the errors of [`Self::get`].
            ///
            /// ```
            /// # use guira::{CreateOptions, Store, Url};
            /// # fn main() -> Result<(), guira::Error> {
            /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
            /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
            /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
            #[doc = concat!("let mut birds = store.", $open, ";")]
            /// let values = birds.get_many(&["cuckoo", "condor"]);
            /// assert!(matches!(&values[0], Ok(Some(value)) if value == b"Guira guira"));
            /// assert!(matches!(values[1], Ok(None)));
            /// # drop(birds);
            /// # Store::destroy(&url)
            /// # }
            /// ```
            pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
                block_on(self.0.get_many(keys))
            }

            /// Looks up many keys at once, so that their memory accesses overlap, and calls `visit` with the index of
            /// each in `keys` and its result, in order. This is not a snapshot of several keys: each result is that of
            /// a separate lookup. Allocates nothing for each key.
            ///
            /// Round trips: 1 for 32 keys, 2 with extents among them; where a single miss takes 2, 2 more for each
            /// miss. On shared memory, where nothing crosses a network and accesses overlap by prefetching, 1 for a key
            /// in its first row, 2 for others, and 1 for all extents of 32 keys. Source: R-READ-8.
            ///
            /// # Errors
            /// Each key has a result of its own, with the errors of [`Self::get`].
            ///
            /// ```
            /// # use guira::{CreateOptions, Store, Url};
            /// # fn main() -> Result<(), guira::Error> {
            /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
            /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
            /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
            #[doc = concat!("let mut birds = store.", $open, ";")]
            /// let mut bytes = 0;
            /// birds.get_many_with(&["cuckoo", "condor"], |_index, value| match value {
            ///     Ok(value) => bytes += value.map_or(0, <[u8]>::len),
            ///     Err(error) => eprintln!("{error}"),
            /// });
            /// assert_eq!(bytes, 11);
            /// # drop(birds);
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

            /// Whether the key exists. Round trips: as [`Self::get`]: its value is read, too, into the buffer of
            /// [`Self::get_with`].
            ///
            /// # Errors
            /// Same as [`Self::get`].
            pub fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
                block_on(self.0.contains(key))
            }

            /// Returns what was sent and received since this was opened, opening excluded: round trips, messages by
            /// verb, payload bytes. They only grow. No round trip.
            pub fn traffic(&self) -> Traffic {
                self.0.traffic()
            }
        }
    };
}

pub(super) use lookups;

/// A blocking reader, which looks up keys: from [`crate::Store::reader`], one for each thread. It needs no client slot
/// and no write permission; any number of readers may use a table. The async counterpart is [`crate::aio::Reader`].
///
/// ```
/// use guira::{CreateOptions, OpenOptions, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// # Store::create(&url, &CreateOptions::new(1_000))?.client()?.put(b"cuckoo", b"Guira guira")?;
/// let store = Store::open_with(&url, &OpenOptions::default().read_only())?;
/// let found = std::thread::scope(|scope| {
///     let lookups = [&b"cuckoo"[..], b"condor"].map(|key| {
///         let mut reader = store.reader();
///         scope.spawn(move || reader.get(key))
///     });
///     lookups.map(|lookup| lookup.join().expect("lookups do not panic"))
/// });
/// let [cuckoo, condor] = found;
/// assert_eq!((cuckoo?.as_deref(), condor?), (Some(&b"Guira guira"[..]), None));
/// # Store::destroy(&url)
/// # }
/// ```
#[derive(Debug)]
pub struct Reader(pub(crate) crate::aio::Reader);

lookups!(Reader, "reader()");

impl Reader {
    /// Frees the buffers of this reader that are larger than `bytes`: for readers that are kept for later. A reader
    /// keeps buffers as large as the largest value that it has read, for the next one. No round trip.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000).extent_bytes(8 << 20))?;
    /// store.client()?.put(b"song", &vec![7; 1 << 20])?;
    /// let mut reader = store.reader();
    /// assert!(reader.contains(b"song")?);
    /// reader.shrink_to(64 << 10);
    /// # drop(reader);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn shrink_to(&mut self, bytes: usize) {
        self.0.shrink_to(bytes);
    }

    /// Returns the counters of this reader since it was opened: rows that were read again, stopped writers that were
    /// read through, lookups that gave up. They only grow. No round trip.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }
}
