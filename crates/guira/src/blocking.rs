//! The same operations, carried out in place: for threads without an executor.
//!
//! On shared memory an operation never waits except for a lock, so this is what most programs want.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use guira_fabric::Traffic;
use guira_rcuckoo::{Counters, Now, Sampled};

use crate::{Error, Expected, Put, Swap, Token, Versioned};

/// Polls `future` in place until it is ready. Ends because lanes wait in place: a pause is over when its future is
/// polled.
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

/// Looks keys up; see [`crate::Reader`].
pub struct Reader(pub(crate) crate::Reader);

impl Reader {
    /// See [`crate::Reader::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// See [`crate::Reader::get_into`].
    ///
    /// # Errors
    /// As there.
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

    /// See [`crate::Reader::get_versioned`].
    ///
    /// # Errors
    /// As there.
    pub fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        block_on(self.0.get_versioned(key))
    }

    /// See [`crate::Reader::get_versioned_into`].
    ///
    /// # Errors
    /// As there.
    pub fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
        block_on(self.0.get_versioned_into(key, into))
    }

    /// See [`crate::Reader::get_many`].
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        block_on(self.0.get_many(keys))
    }

    /// See [`crate::Reader::get_many_with`].
    pub fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        block_on(self.0.get_many_with(keys, visit));
    }

    /// See [`crate::Reader::contains`].
    ///
    /// # Errors
    /// As there.
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
        block_on(self.0.contains(key))
    }

    /// What this reader sent and received.
    pub fn traffic(&self) -> Traffic {
        self.0.traffic()
    }
}

/// Reads and changes the table; see [`crate::Client`].
pub struct Client(pub(crate) crate::Client);

impl Client {
    /// See [`crate::Client::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// See [`crate::Client::get_into`].
    ///
    /// # Errors
    /// As there.
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

    /// See [`crate::Client::get_versioned`].
    ///
    /// # Errors
    /// As there.
    pub fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        block_on(self.0.get_versioned(key))
    }

    /// See [`crate::Client::get_versioned_into`].
    ///
    /// # Errors
    /// As there.
    pub fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
        block_on(self.0.get_versioned_into(key, into))
    }

    /// See [`crate::Client::get_many`].
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        block_on(self.0.get_many(keys))
    }

    /// See [`crate::Client::get_many_with`].
    pub fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        block_on(self.0.get_many_with(keys, visit));
    }

    /// See [`crate::Client::contains`].
    ///
    /// # Errors
    /// As there.
    pub fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
        block_on(self.0.contains(key))
    }

    /// See [`crate::Client::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Put, Error> {
        block_on(self.0.put(key, value))
    }

    /// See [`crate::Client::insert`].
    ///
    /// # Errors
    /// As there.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        block_on(self.0.insert(key, value))
    }

    /// See [`crate::Client::update`].
    ///
    /// # Errors
    /// As there.
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        block_on(self.0.update(key, value))
    }

    /// See [`crate::Client::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        block_on(self.0.remove(key))
    }

    /// See [`crate::Client::compare_and_swap`].
    ///
    /// # Errors
    /// As there.
    pub fn compare_and_swap<'e>(
        &mut self,
        key: &[u8],
        expected: impl Into<Expected<'e>>,
        value: &[u8],
    ) -> Result<Swap, Error> {
        block_on(self.0.compare_and_swap(key, expected, value))
    }

    /// See [`crate::Client::compare_and_remove`].
    ///
    /// # Errors
    /// As there.
    pub fn compare_and_remove<'e>(&mut self, key: &[u8], expected: impl Into<Expected<'e>>) -> Result<Swap, Error> {
        block_on(self.0.compare_and_remove(key, expected))
    }

    /// See [`crate::Client::put_many`].
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(&mut self, items: &[(K, V)]) -> Vec<Result<Put, Error>> {
        block_on(self.0.put_many(items))
    }

    /// See [`crate::Client::remove_many`].
    pub fn remove_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<bool, Error>> {
        block_on(self.0.remove_many(keys))
    }

    /// See [`crate::Client::release_memory`].
    ///
    /// # Errors
    /// As there.
    pub fn release_memory(&mut self) -> Result<(), Error> {
        block_on(self.0.release_memory())
    }

    /// What this client sent and received.
    pub fn traffic(&self) -> Traffic {
        self.0.traffic()
    }

    /// What this client met.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// The number of this client's slot.
    pub fn slot(&self) -> u16 {
        self.0.slot()
    }
}
