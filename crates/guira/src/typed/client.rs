//! Blocking typed clients and readers.

use std::fmt;
use std::marker::PhantomData;

use guira_rcuckoo::Operation;

use super::{Buffers, Codec, Decode, Types, changed, decode};
use crate::{Client, Error, Put, Reader, Scan, Swap};

/// A blocking typed client, from [`super::Typed::client`], one for each thread. Its operations are those of [`Client`]
/// with the same names, with their round trips and errors, and `WrongType` for a key or value that cannot be encoded or
/// decoded: then nothing was changed. The other operations of [`Client`], such as batches, tokens and
/// [`Client::increment`], work on the bytes that the format makes of keys and values: [`TypedClient::untyped`].
pub struct TypedClient<K: ?Sized, V, C> {
    client: Client,
    buffers: Buffers,
    types: Types<K, V, C>,
}

/// A blocking typed reader, from [`super::Typed::reader`], one for each thread. It looks up one key at a time; batches
/// need a [`Reader`], from [`Store::reader`](crate::Store::reader).
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
    pub fn close(self) -> Result<(), Error> {
        self.client.close()
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
    pub fn get(&mut self, key: &K) -> Result<Option<V>, Error> {
        self.buffers.set_key::<C, K>(key, Operation::Get)?;
        let Buffers { key, value, .. } = &mut self.buffers;
        let is_there = self.client.get_into(key, value)?;
        is_there.then(|| decode::<C, V>(value, Operation::Get)).transpose()
    }
}

impl<K: ?Sized, V, C: Codec<K>> TypedClient<K, V, C> {
    /// Whether the key exists: see [`Client::contains`].
    ///
    /// # Errors
    /// Same as [`Client::contains`]; `WrongType`.
    pub fn contains(&mut self, key: &K) -> Result<bool, Error> {
        self.buffers.set_key::<C, K>(key, Operation::Get)?;
        self.client.contains(&self.buffers.key)
    }

    /// Removes `key` and returns true; returns false if there is no such key: see [`Client::remove`].
    ///
    /// # Errors
    /// Same as [`Client::remove`]; `WrongType`.
    pub fn remove(&mut self, key: &K) -> Result<bool, Error> {
        self.buffers.set_key::<C, K>(key, Operation::Remove)?;
        self.client.remove(&self.buffers.key)
    }
}

impl<K: ?Sized, V, C: Codec<K> + Codec<V>> TypedClient<K, V, C> {
    /// Inserts `key`, or replaces its value: see [`Client::put`].
    ///
    /// # Errors
    /// Same as [`Client::put`]; `WrongType`.
    pub fn put(&mut self, key: &K, value: &V) -> Result<Put, Error> {
        self.buffers.set::<C, K, V>(key, value, Operation::Put)?;
        self.client.put(&self.buffers.key, &self.buffers.value)
    }

    /// Inserts `key` and returns true; if the key exists, changes nothing and returns false: see
    /// [`Client::try_insert`].
    ///
    /// # Errors
    /// Same as [`Client::put`]; `WrongType`.
    pub fn try_insert(&mut self, key: &K, value: &V) -> Result<bool, Error> {
        self.buffers.set::<C, K, V>(key, value, Operation::Insert)?;
        self.client.try_insert(&self.buffers.key, &self.buffers.value)
    }

    /// Replaces the value of `key` and returns true; if there is no such key, changes nothing and returns false: see
    /// [`Client::update`].
    ///
    /// # Errors
    /// Same as [`Client::put`]; `WrongType`.
    pub fn update(&mut self, key: &K, value: &V) -> Result<bool, Error> {
        self.buffers.set::<C, K, V>(key, value, Operation::Update)?;
        self.client.update(&self.buffers.key, &self.buffers.value)
    }

    /// Replaces the value of `key` if its bytes are those of `expected`: see [`Client::compare_and_swap`].
    ///
    /// # Errors
    /// Same as [`Client::compare_and_swap`]; `WrongType`.
    pub fn compare_and_swap(&mut self, key: &K, expected: &V, value: &V) -> Result<Swap, Error> {
        self.buffers.set::<C, K, V>(key, value, Operation::CompareAndSwap)?;
        self.buffers.set_expected::<C, V>(expected, Operation::CompareAndSwap)?;
        let Buffers { key, value, expected } = &self.buffers;
        self.client.compare_and_swap(key, expected, value)
    }
}

impl<K: ?Sized, V, C: Codec<K> + Codec<V> + Decode<V>> TypedClient<K, V, C> {
    /// Replaces the value of `key` with what `update` makes of it, and returns the new value: see
    /// [`Client::update_with`]. If `update` returns `None`, the key is removed; if it returns the value found, nothing
    /// is written.
    ///
    /// # Errors
    /// Same as [`Client::compare_and_swap`]; `WrongType`, and nothing was changed.
    pub fn update_with(&mut self, key: &K, mut update: impl FnMut(Option<V>) -> Option<V>) -> Result<Option<V>, Error> {
        self.buffers.set_key::<C, K>(key, Operation::UpdateWith)?;
        let mut result = Ok(None);
        let update = |found: Option<&[u8]>| changed::<C, V>(found, &mut update, &mut result);
        self.client.update_with(&self.buffers.key, update)?;
        result
    }

    /// Returns the value of `key`; if there is no such key, inserts the value that `make` returns, and returns it: see
    /// [`Client::get_or_insert_with`].
    ///
    /// # Errors
    /// Same as [`Client::compare_and_swap`]; `WrongType`.
    pub fn get_or_insert_with(&mut self, key: &K, make: impl FnOnce() -> V) -> Result<V, Error> {
        if let Some(found) = self.get(key)? {
            return Ok(found);
        }
        self.buffers.set::<C, K, V>(key, &make(), Operation::GetOrInsertWith)?;
        let Buffers { key, value, .. } = &mut self.buffers;
        let found = self.client.get_or_insert_with(key, || std::mem::take(value))?;
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
    pub fn get(&mut self, key: &K) -> Result<Option<V>, Error> {
        self.buffers.set_key::<C, K>(key, Operation::Get)?;
        let Buffers { key, value, .. } = &mut self.buffers;
        let is_there = self.reader.get_into(key, value)?;
        is_there.then(|| decode::<C, V>(value, Operation::Get)).transpose()
    }
}

/// An iterator over the keys and values of a typed table, from [`super::Typed::scan`].
pub struct TypedScan<K, V, C> {
    scan: Scan,
    types: PhantomData<fn(C) -> (K, V)>,
}

impl<K, V, C> TypedScan<K, V, C> {
    pub(super) fn new(scan: Scan) -> Self {
        TypedScan { scan, types: PhantomData }
    }
}

impl<K, V, C> fmt::Debug for TypedScan<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedScan").field("scan", &self.scan).finish_non_exhaustive()
    }
}

impl<K, V, C: Decode<K> + Decode<V>> Iterator for TypedScan<K, V, C> {
    type Item = Result<(K, V), Error>;

    fn next(&mut self) -> Option<Result<(K, V), Error>> {
        let item = self.scan.next()?;
        Some(item.and_then(|(key, value)| {
            Ok((decode::<C, K>(&key, Operation::Scan)?, decode::<C, V>(&value, Operation::Scan)?))
        }))
    }
}
