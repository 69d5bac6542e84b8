//! Tables whose keys and values have Rust types.
//!
//! [`crate::Store::typed`] gives a typed view of a table through serde: keys and values are stored in the postcard
//! format, compactly and without a schema. [`crate::Store::plain`] gives one through zerocopy: the bytes of a value are
//! stored as they are. A table does not record types: all programs that share one have to agree on them.
//!
//! ```
//! use std::time::Duration;
//!
//! use guira::{CreateOptions, Store, Url};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
//! struct Settings {
//!     timeout: Duration,
//!     servers: Vec<String>,
//! }
//!
//! # fn main() -> Result<(), guira::Error> {
//! # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
//! let store = Store::create(&url, &CreateOptions::new(1_000))?;
//! let settings = store.typed::<str, Settings>();
//! let mut client = settings.client()?;
//! let mail = Settings { timeout: Duration::from_secs(3), servers: vec!["mx1".to_owned()] };
//! client.put("mail", &mail)?;
//! assert_eq!(settings.reader().get("mail")?, Some(mail));
//! client.update_with("mail", |found| {
//!     let mut settings = found?;
//!     settings.servers.push("mx2".to_owned());
//!     Some(settings)
//! })?;
//! assert_eq!(client.get("mail")?.map(|found| found.servers.len()), Some(2));
//! # drop(client);
//! # Store::destroy(&url)
//! # }
//! ```

mod client;
mod codec;
pub(crate) mod tasks;

use std::fmt;
use std::marker::PhantomData;

use guira_rcuckoo::Operation;

pub use self::client::{TypedClient, TypedReader, TypedScan};
pub use self::codec::{Codec, Decode, Plain, Postcard};
use crate::{Error, OperationErrorKind, Store};

/// A table whose keys are `K`s and whose values are `V`s, in the format `C`: from [`Store::typed`] and
/// [`Store::plain`]. Clones share the store. The async counterpart is [`crate::aio::Typed`].
pub struct Typed<K: ?Sized, V, C> {
    store: Store,
    types: Types<K, V, C>,
}

/// The types of a table, which are not stored anywhere.
struct Types<K: ?Sized, V, C>(PhantomData<fn(&K, C) -> V>);

#[cfg(any(feature = "serde", feature = "zerocopy"))]
impl<K: ?Sized, V, C> Types<K, V, C> {
    fn new() -> Self {
        Types(PhantomData)
    }
}

impl<K: ?Sized, V, C> Clone for Types<K, V, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized, V, C> Copy for Types<K, V, C> {}

impl<K: ?Sized, V, C> fmt::Debug for Types<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", std::any::type_name::<K>(), std::any::type_name::<V>())
    }
}

impl<K: ?Sized, V, C> Clone for Typed<K, V, C> {
    fn clone(&self) -> Self {
        Typed { store: self.store.clone(), types: self.types }
    }
}

impl<K: ?Sized, V, C> fmt::Debug for Typed<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed").field("store", &self.store).field("types", &self.types).finish()
    }
}

impl Store {
    /// Returns a typed view of the table, with keys of type `K` and values of type `V` in the postcard format. No round
    /// trip. `K` may be `str` or a slice; then a scan has to return another key type ([`Typed::scan_as`]).
    ///
    /// Numbers take as many bytes as they need, so one `u64` may fit in a row and another not. For tables of format
    /// `fixed:K:V` use [`Store::plain`].
    #[cfg(feature = "serde")]
    pub fn typed<K: ?Sized, V>(&self) -> Typed<K, V, Postcard> {
        Typed { store: self.clone(), types: Types::new() }
    }

    /// Returns a typed view of the table, with keys of type `K` and values of type `V` stored byte for byte: `u64`,
    /// arrays of bytes, structures of them that derive zerocopy's `FromBytes`, `IntoBytes` and `Immutable`. No round
    /// trip. To share numbers with machines of another byte order, use zerocopy's types, such as `little_endian::U64`.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// let options = CreateOptions::new(1_000).format("fixed:8:16".parse()?);
    /// let store = Store::create(&url, &options)?;
    /// let mut positions = store.plain::<u64, [f64; 2]>().client()?;
    /// positions.put(&7, &[48.2, 16.37])?;
    /// assert_eq!(positions.get(&7)?, Some([48.2, 16.37]));
    /// # drop(positions);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    #[cfg(feature = "zerocopy")]
    pub fn plain<K: ?Sized, V>(&self) -> Typed<K, V, Plain> {
        Typed { store: self.clone(), types: Types::new() }
    }
}

impl<K: ?Sized, V, C> Typed<K, V, C> {
    /// Returns the store. What it stores is not checked against the types.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Opens a typed client. Round trips and source: as [`Store::client`].
    ///
    /// # Errors
    /// Same as [`Store::client`].
    pub fn client(&self) -> Result<TypedClient<K, V, C>, Error> {
        Ok(TypedClient::new(self.store.client()?, self.types))
    }

    /// Returns a typed reader: see [`Store::reader`].
    pub fn reader(&self) -> TypedReader<K, V, C> {
        TypedReader::new(self.store.reader(), self.types)
    }

    /// Iterates over the keys and values of the table. Round trips and guarantees: as [`Store::scan`].
    ///
    /// # Errors
    /// Same as [`Store::scan`]; items may also be `WrongType`, and then the scan continues.
    pub fn scan(&self) -> Result<TypedScan<K, V, C>, Error>
    where
        K: Sized,
    {
        self.scan_as()
    }

    /// Same as [`Typed::scan`], with keys of another type than lookups take: `String` for `str`.
    ///
    /// # Errors
    /// Same as [`Typed::scan`].
    pub fn scan_as<O>(&self) -> Result<TypedScan<O, V, C>, Error> {
        Ok(TypedScan::new(self.store.scan()?))
    }
}

/// Buffers for the bytes of keys and values, which are reused.
#[derive(Default)]
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
    expected: Vec<u8>,
}

impl Buffers {
    fn set_key<C: Codec<K>, K: ?Sized>(&mut self, key: &K, operation: Operation) -> Result<(), Error> {
        encode::<C, K>(key, &mut self.key, operation)
    }

    fn set<C: Codec<K> + Codec<V>, K: ?Sized, V>(
        &mut self,
        key: &K,
        value: &V,
        operation: Operation,
    ) -> Result<(), Error> {
        encode::<C, K>(key, &mut self.key, operation)?;
        encode::<C, V>(value, &mut self.value, operation)
    }

    fn set_expected<C: Codec<V>, V>(&mut self, expected: &V, operation: Operation) -> Result<(), Error> {
        encode::<C, V>(expected, &mut self.expected, operation)
    }
}

/// Returns the bytes of the value that `update` makes of the one in `found`; sets `result` to the value, or to the
/// reason why there is none. A value that cannot be decoded or encoded is not changed.
fn changed<C: Codec<V> + Decode<V>, V>(
    found: Option<&[u8]>,
    update: &mut impl FnMut(Option<V>) -> Option<V>,
    result: &mut Result<Option<V>, Error>,
) -> Option<Vec<u8>> {
    let decoded = found.map(|bytes| decode::<C, V>(bytes, Operation::UpdateWith)).transpose();
    let mut bytes = Vec::new();
    let new = decoded.map(&mut *update).and_then(|new| {
        new.as_ref().map_or(Ok(()), |new| encode::<C, V>(new, &mut bytes, Operation::UpdateWith))?;
        Ok(new)
    });
    let kept = match &new {
        Ok(new) => new.is_some().then_some(bytes),
        Err(_) => found.map(<[u8]>::to_vec),
    };
    *result = new;
    kept
}

/// Replaces the content of `into` with the bytes of `value`.
fn encode<C: Codec<T>, T: ?Sized>(value: &T, into: &mut Vec<u8>, operation: Operation) -> Result<(), Error> {
    into.clear();
    C::encode(value, into).map_err(|reason| wrong_type::<T>(reason, operation))
}

/// Decodes a `T` from `bytes`.
fn decode<C: Decode<T>, T>(bytes: &[u8], operation: Operation) -> Result<T, Error> {
    C::decode(bytes).map_err(|reason| wrong_type::<T>(reason, operation))
}

#[cold]
fn wrong_type<T: ?Sized>(reason: String, operation: Operation) -> Error {
    OperationErrorKind::WrongType { name: std::any::type_name::<T>(), reason: reason.into() }.during(operation).into()
}
