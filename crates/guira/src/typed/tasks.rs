//! Async typed tables.

use std::fmt;

use guira_rcuckoo::Operation;

#[cfg(feature = "zerocopy")]
use super::Plain;
#[cfg(feature = "serde")]
use super::Postcard;
use super::{Buffers, Codec, Decode, Types, changed, decode};
use crate::aio::{Client, Reader, Store};
use crate::{Error, Put, Swap};

/// An async table whose keys are `K`s and whose values are `V`s, in the format `C`, from [`Store::typed`] or
/// [`Store::plain`]. The blocking counterpart is [`crate::typed::Typed`].
pub struct Typed<K: ?Sized, V, C> {
    store: Store,
    types: Types<K, V, C>,
}

impl Store {
    /// Returns a typed view of the table, in the format of postcard: see [`crate::Store::typed`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Url, aio};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # pollster::block_on(async {
    /// let store = aio::Store::create(&url, &CreateOptions::new(1_000)).await?;
    /// let mut ages = store.typed::<str, u8>().client().await?;
    /// ages.put("cuckoo", &3).await?;
    /// assert_eq!(ages.get("cuckoo").await?, Some(3));
    /// # guira::Store::destroy(&url)
    /// # })
    /// # }
    /// ```
    #[cfg(feature = "serde")]
    pub fn typed<K: ?Sized, V>(&self) -> Typed<K, V, Postcard> {
        Typed { store: self.clone(), types: Types::new() }
    }

    /// Returns a typed view of the table, stored byte for byte: see [`crate::Store::plain`].
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

    /// Opens a typed client: see [`Store::client`].
    ///
    /// # Errors
    /// Same as [`Store::client`].
    pub async fn client(&self) -> Result<TypedClient<K, V, C>, Error> {
        Ok(TypedClient::new(self.store.client().await?, self.types))
    }

    /// Returns a typed reader: see [`Store::reader`].
    pub fn reader(&self) -> TypedReader<K, V, C> {
        TypedReader::new(self.store.reader(), self.types)
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

/// An async typed client, from [`Typed::client`], one for each task. See [`crate::typed::TypedClient`].
pub struct TypedClient<K: ?Sized, V, C> {
    client: Client,
    buffers: Buffers,
    types: Types<K, V, C>,
}

/// An async typed reader, from [`Typed::reader`]: a [`Reader`] with types.
pub struct TypedReader<K: ?Sized, V, C> {
    reader: Reader,
    buffers: Buffers,
    types: Types<K, V, C>,
}

impl<K: ?Sized, V, C> TypedClient<K, V, C> {
    pub(super) fn new(client: Client, types: Types<K, V, C>) -> Self {
        TypedClient { client, buffers: Buffers::default(), types }
    }

    /// Returns the untyped client. What it stores is not checked against the types.
    pub fn untyped(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Closes the client: see [`Client::close`].
    ///
    /// # Errors
    /// Same as [`Client::close`].
    pub async fn close(self) -> Result<(), Error> {
        self.client.close().await
    }
}

impl<K: ?Sized, V, C> fmt::Debug for TypedClient<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedClient").field("client", &self.client).field("types", &self.types).finish()
    }
}

impl<K: ?Sized, V, C: Codec<K> + Decode<V>> TypedClient<K, V, C> {
    /// Returns the value of `key`, or `None` if there is no such key: see [`Client::get`].
    ///
    /// # Errors
    /// Same as [`Client::get`]; `WrongType`.
    pub async fn get(&mut self, key: &K) -> Result<Option<V>, Error> {
        self.buffers.set_key::<C, K>(key, Operation::Get)?;
        let Buffers { key, value, .. } = &mut self.buffers;
        let is_there = self.client.get_into(key, value).await?;
        is_there.then(|| decode::<C, V>(value, Operation::Get)).transpose()
    }
}

impl<K: ?Sized, V, C: Codec<K>> TypedClient<K, V, C> {
    /// Whether the key exists: see [`Client::contains`].
    ///
    /// # Errors
    /// Same as [`Client::contains`]; `WrongType`.
    pub async fn contains(&mut self, key: &K) -> Result<bool, Error> {
        self.buffers.set_key::<C, K>(key, Operation::Get)?;
        self.client.contains(&self.buffers.key).await
    }

    /// Removes `key` and returns true; returns false if there is no such key: see [`Client::remove`].
    ///
    /// # Errors
    /// Same as [`Client::remove`]; `WrongType`.
    pub async fn remove(&mut self, key: &K) -> Result<bool, Error> {
        self.buffers.set_key::<C, K>(key, Operation::Remove)?;
        self.client.remove(&self.buffers.key).await
    }
}

impl<K: ?Sized, V, C: Codec<K> + Codec<V>> TypedClient<K, V, C> {
    /// Inserts `key`, or replaces its value: see [`Client::put`].
    ///
    /// # Errors
    /// Same as [`Client::put`]; `WrongType`.
    pub async fn put(&mut self, key: &K, value: &V) -> Result<Put, Error> {
        self.buffers.set::<C, K, V>(key, value, Operation::Put)?;
        self.client.put(&self.buffers.key, &self.buffers.value).await
    }

    /// Inserts `key` and returns true; if the key exists, changes nothing and returns false: see
    /// [`Client::try_insert`].
    ///
    /// # Errors
    /// Same as [`Client::put`]; `WrongType`.
    pub async fn try_insert(&mut self, key: &K, value: &V) -> Result<bool, Error> {
        self.buffers.set::<C, K, V>(key, value, Operation::Insert)?;
        self.client.try_insert(&self.buffers.key, &self.buffers.value).await
    }

    /// Replaces the value of `key` and returns true; if there is no such key, changes nothing and returns false: see
    /// [`Client::update`].
    ///
    /// # Errors
    /// Same as [`Client::put`]; `WrongType`.
    pub async fn update(&mut self, key: &K, value: &V) -> Result<bool, Error> {
        self.buffers.set::<C, K, V>(key, value, Operation::Update)?;
        self.client.update(&self.buffers.key, &self.buffers.value).await
    }

    /// Replaces the value of `key` if its bytes are those of `expected`: see [`Client::compare_and_swap`].
    ///
    /// # Errors
    /// Same as [`Client::compare_and_swap`]; `WrongType`.
    pub async fn compare_and_swap(&mut self, key: &K, expected: &V, value: &V) -> Result<Swap, Error> {
        self.buffers.set::<C, K, V>(key, value, Operation::CompareAndSwap)?;
        self.buffers.set_expected::<C, V>(expected, Operation::CompareAndSwap)?;
        let Buffers { key, value, expected } = &self.buffers;
        self.client.compare_and_swap(key, expected, value).await
    }
}

impl<K: ?Sized, V, C: Codec<K> + Codec<V> + Decode<V>> TypedClient<K, V, C> {
    /// Replaces the value of `key` with what `update` makes of it, and returns the new value: see
    /// [`Client::update_with`]. If `update` returns `None`, the key is removed.
    ///
    /// # Errors
    /// Same as [`Client::compare_and_swap`]; `WrongType`, and nothing was changed.
    pub async fn update_with(
        &mut self,
        key: &K,
        mut update: impl FnMut(Option<V>) -> Option<V>,
    ) -> Result<Option<V>, Error> {
        self.buffers.set_key::<C, K>(key, Operation::UpdateWith)?;
        let mut result = Ok(None);
        let update = |found: Option<&[u8]>| changed::<C, V>(found, &mut update, &mut result);
        self.client.update_with(&self.buffers.key, update).await?;
        result
    }

    /// Returns the value of `key`; if there is no such key, inserts the value that `make` returns, and returns it: see
    /// [`Client::get_or_insert_with`].
    ///
    /// # Errors
    /// Same as [`Client::compare_and_swap`]; `WrongType`.
    pub async fn get_or_insert_with<M: Future<Output = V>>(
        &mut self,
        key: &K,
        make: impl FnOnce() -> M,
    ) -> Result<V, Error> {
        if let Some(found) = self.get(key).await? {
            return Ok(found);
        }
        self.buffers.set::<C, K, V>(key, &make().await, Operation::GetOrInsertWith)?;
        let Buffers { key, value, .. } = &mut self.buffers;
        let found = self.client.get_or_insert_with(key, || std::future::ready(std::mem::take(value))).await?;
        decode::<C, V>(&found, Operation::GetOrInsertWith)
    }
}

impl<K: ?Sized, V, C> TypedReader<K, V, C> {
    pub(super) fn new(reader: Reader, types: Types<K, V, C>) -> Self {
        TypedReader { reader, buffers: Buffers::default(), types }
    }
}

impl<K: ?Sized, V, C> fmt::Debug for TypedReader<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedReader").field("reader", &self.reader).field("types", &self.types).finish()
    }
}

impl<K: ?Sized, V, C: Codec<K> + Decode<V>> TypedReader<K, V, C> {
    /// Returns the value of `key`, or `None` if there is no such key: see [`Reader::get`].
    ///
    /// # Errors
    /// Same as [`Reader::get`]; `WrongType`.
    pub async fn get(&mut self, key: &K) -> Result<Option<V>, Error> {
        self.buffers.set_key::<C, K>(key, Operation::Get)?;
        let Buffers { key, value, .. } = &mut self.buffers;
        let is_there = self.reader.get_into(key, value).await?;
        is_there.then(|| decode::<C, V>(value, Operation::Get)).transpose()
    }
}
