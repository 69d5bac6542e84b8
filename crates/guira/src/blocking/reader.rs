//! Readers in place, and the lookups they share with clients in place.
//!
//! [`lookups`] writes each lookup once, for [`Reader`] and for [`super::Client`].

use guira_fabric::Traffic;
use guira_rcuckoo::{Now, Sampled};

use super::block_on;
use crate::{Error, Token, Versioned};

/// Gives `$face`, which wraps its future face, the lookups in place. `$open` is what gets one from a store, in the
/// examples. The module of `$face` imports what the lookups name.
macro_rules! lookups {
    ($face:ident, $open:literal) => {
        impl $face {
            /// The value of `key`, or `None` if there is no such key. An inline hit is 1 round trip, an extent hit 2, a
            /// miss at most 2. Source: R-READ-1 to R-READ-7.
            ///
            /// # Errors
            /// `KeyLength`, `Corrupt`, `Busy`, or the fabric's.
            pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
                let mut value = Vec::new();
                Ok(self.get_into(key, &mut value)?.then_some(value))
            }

            /// Replaces the content of `into` by the value of `key` and returns true; leaves it empty and returns false
            /// if there is no such key. Allocates nothing if the value fits in `into`'s capacity. Round trips: as
            /// [`Self::get`].
            ///
            /// # Errors
            /// As [`Self::get`].
            ///
            /// ```
            /// # use guira::{CreateOptions, Store, Url};
            /// # fn main() -> Result<(), guira::Error> {
            /// # let url: Url = format!("shm://guira-doc-get-into-{}", std::process::id()).parse()?;
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

            /// The value of `key` and the state it was read in, for [`super::Client::compare_and_swap`], or `None` if
            /// there is no such key. Round trips: as [`Self::get`]. Source: R-CAS-2.
            ///
            /// # Errors
            /// As [`Self::get`]; `NarrowVersions` in tables of preset `paper`.
            pub fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
                block_on(self.0.get_versioned(key))
            }

            /// Replaces the content of `into` by the value of `key` and returns the state it was read in; leaves it
            /// empty and returns `None` if there is no such key. Otherwise as [`Self::get_versioned`].
            ///
            /// # Errors
            /// As [`Self::get_versioned`].
            pub fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
                block_on(self.0.get_versioned_into(key, into))
            }

            /// Looks up many keys at once: one result for each, in order. Round trips: as [`Self::get_many_with`].
            ///
            /// # Errors
            /// Each key has its own, as [`Self::get`].
            ///
            /// ```
            /// # use guira::{CreateOptions, Store, Url};
            /// # fn main() -> Result<(), guira::Error> {
            /// # let url: Url = format!("shm://guira-doc-get-many-{}", std::process::id()).parse()?;
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

            /// Looks up many keys at once and hands the place of each in `keys`, and its result, to `visit`, in order;
            /// no snapshot of several keys, and no allocation for each. Source: R-READ-8.
            ///
            /// ```
            /// # use guira::{CreateOptions, Store, Url};
            /// # fn main() -> Result<(), guira::Error> {
            /// # let url: Url = format!("shm://guira-doc-get-many-with-{}", std::process::id()).parse()?;
            /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
            /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
            #[doc = concat!("let mut birds = store.", $open, ";")]
            /// let mut bytes = 0;
            /// birds.get_many_with(&["cuckoo", "condor"], |_place, value| match value {
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

            /// Whether there is such a key. Round trips: as [`Self::get`].
            ///
            /// # Errors
            /// As [`Self::get`].
            pub fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
                block_on(self.0.contains(key))
            }

            /// What was sent and received through this lane: round trips, messages, bytes. No round trip.
            pub fn traffic(&self) -> Traffic {
                self.0.traffic()
            }
        }
    };
}

pub(super) use lookups;

/// Looks keys up, in place: one a thread, from [`crate::Store::reader`]. Needs no client slot and no write permission;
/// any number of readers may use a table. The operations are those of [`crate::Reader`].
pub struct Reader(pub(crate) crate::Reader);

lookups!(Reader, "reader()");
