//! Compound operations: a lookup, and a change that depends on its result.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;

use guira_fabric::Lane;
use guira_layout::EntryKind;
use guira_rcuckoo::{Operation, Outcome};

use super::{Client, Request};
use crate::aio::reader::check_versions;
use crate::{Error, Expected, OperationErrorKind, Token};

/// The attempts of one operation, each of which lost a race with another client.
struct Attempts {
    operation: Operation,
    failed: u32,
    since_ns: u64,
}

#[cold]
fn not_a_number() -> Error {
    OperationErrorKind::NotANumber.during(Operation::Increment).into()
}

impl Client {
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
    pub async fn increment(&mut self, key: &[u8], by: u64) -> Result<u64, Error> {
        self.follow_if_gone().await?;
        if !self.is_number_in_row(key) {
            // Boxed: it is rare, and larger than the rest of the future.
            return Box::pin(self.increment_in_extent(key, by)).await;
        }
        let outcome = self.change(key, Request::Add(&by.to_le_bytes())).await?;
        self.sum_after(outcome, by)
    }

    /// Whether a number is stored in the row of `key`; also true where the table refuses one.
    #[inline(always)]
    pub(crate) fn is_number_in_row(&self, key: &[u8]) -> bool {
        let table = self.client.table();
        table.key(key).and_then(|key| table.place(&key, size_of::<u64>())) != Ok(EntryKind::Extent)
    }

    /// Returns the sum after an addition of `by`.
    #[inline(always)]
    pub(crate) fn sum_after(&self, outcome: Outcome, by: u64) -> Result<u64, Error> {
        match outcome {
            Outcome::Inserted => Ok(by),
            Outcome::Replaced => Ok(self.client.sum()),
            _ => Err(not_a_number()),
        }
    }

    pub(crate) async fn increment_in_extent(&mut self, key: &[u8], by: u64) -> Result<u64, Error> {
        let mut sum = None;
        let mut add = |found: Option<&[u8]>| {
            let number = found.map_or(Ok([0; 8]), TryInto::try_into).map(u64::from_le_bytes);
            sum = number.ok().map(|number| number.wrapping_add(by));
            // A value that is not a number stays what it is.
            sum.map(|sum| sum.to_le_bytes().to_vec()).or_else(|| found.map(<[u8]>::to_vec))
        };
        self.update_by(Operation::Increment, key, &mut add).await?;
        sum.ok_or_else(not_a_number)
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
    pub async fn update_with(
        &mut self,
        key: &[u8],
        mut update: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.update_by(Operation::UpdateWith, key, &mut update).await
    }

    pub(crate) async fn update_by<U: FnMut(Option<&[u8]>) -> Option<Vec<u8>> + ?Sized>(
        &mut self,
        operation: Operation,
        key: &[u8],
        update: &mut U,
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut found = Vec::new();
        let mut attempts = self.attempts(operation);
        loop {
            let state = self.find_state(key, &mut found).await?;
            let new = update(state.is_some().then_some(&found[..]));
            let is_done = match (state, &new) {
                (None, None) => true,
                (None, Some(new)) => self.try_insert(key, new).await?,
                (Some(_), Some(new)) if *new == found => true,
                (Some(token), new) => {
                    let expected = token.map_or(Expected::Value(&found), Expected::Unchanged);
                    match new {
                        Some(new) => self.compare_and_swap(key, expected, new).await?.is_done(),
                        None => self.compare_and_remove(key, expected).await?.is_done(),
                    }
                }
            };
            if is_done {
                return Ok(new);
            }
            self.next_attempt(&mut attempts).await?;
        }
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
    pub async fn get_or_insert_with<M: Future<Output = Vec<u8>>>(
        &mut self,
        key: &[u8],
        make: impl FnOnce() -> M,
    ) -> Result<Vec<u8>, Error> {
        let make = pin!(async move { make().await });
        self.get_or_insert(key, make).await
    }

    pub(crate) async fn get_or_insert<M: Future<Output = Vec<u8>> + ?Sized>(
        &mut self,
        key: &[u8],
        mut make: Pin<&mut M>,
    ) -> Result<Vec<u8>, Error> {
        let mut attempts = self.attempts(Operation::GetOrInsertWith);
        let mut made = None;
        loop {
            if let Some(found) = self.get(key).await? {
                return Ok(found);
            }
            let value = match made.take() {
                Some(value) => value,
                None => make.as_mut().await,
            };
            if self.try_insert(key, &value).await? {
                return Ok(value);
            }
            made = Some(value);
            self.next_attempt(&mut attempts).await?;
        }
    }

    /// Replaces the content of `into` with the value of `key`; `None` if there is no such key. Includes a token, if
    /// comparing it takes fewer round trips than comparing the value.
    async fn find_state(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Option<Token>>, Error> {
        self.follow_if_gone().await?;
        if check_versions(self.client.table()).is_err() {
            return Ok(self.get_into(key, into).await?.then_some(None));
        }
        let Some(token) = self.get_versioned_into(key, into).await? else { return Ok(None) };
        let table = self.client.table();
        let place = table.key(key).and_then(|key| table.place(&key, into.len()));
        // A token of a row changes with its neighbours.
        Ok(Some(Some(token).filter(|_| place == Ok(EntryKind::Extent))))
    }

    fn attempts(&mut self, operation: Operation) -> Attempts {
        Attempts { operation, failed: 0, since_ns: self.lane.now_ns() }
    }

    /// Yields once after a failed attempt.
    ///
    /// # Errors
    /// `Contended` if the deadline has passed.
    async fn next_attempt(&mut self, attempts: &mut Attempts) -> Result<(), Error> {
        attempts.failed += 1;
        let waited_ns = self.lane.now_ns().saturating_sub(attempts.since_ns);
        if u128::from(waited_ns) >= self.binding.store.options.deadline.as_nanos() {
            let Attempts { operation, failed: attempts, .. } = *attempts;
            let waited_ms = waited_ns / 1_000_000;
            return Err(OperationErrorKind::Contended { attempts, waited_ms }.during(operation).into());
        }
        let mut has_yielded = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        Ok(())
    }
}
