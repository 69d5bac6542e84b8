//! Clients and readers: one lane each, one operation at a time.

use std::sync::Arc;

use guira_fabric::{Effect, Lane, SlotHold, Traffic};
use guira_fabric_shm::ShmLane;
use guira_layout::{ExtentRef, OwnerId, Placement};
use guira_rcuckoo::{
    Begun, Change, Changed, ClientConfig, Counters, NewValue, Now, Operation, Outcome, Sampled, Table, release_slot,
};

use crate::blocking::block_on;
use crate::extents::Extents;
use crate::{Error, Expected, ExtentError, Swap, Token, Versioned};

/// Keys whose rows are loaded ahead of the one that is being changed.
const AHEAD_KEYS: usize = 4;
/// Row versions of fewer bits come round while somebody thinks about what to do with a token.
const TOKEN_VERSION_BITS: u8 = 32;

fn check_versions(table: &Table) -> Result<(), Error> {
    let version_bits = table.config().version_bits;
    if version_bits >= TOKEN_VERSION_BITS { Ok(()) } else { Err(Error::NarrowVersions { version_bits }) }
}

/// What a [`Client::put`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The key is new.
    Inserted,
    /// The key had another value before.
    Replaced,
}

/// Looks keys up. Needs no client slot; any number of readers may use a table.
///
/// Every operation's round trips are counted in [`Reader::traffic`].
pub struct Reader {
    reader: guira_rcuckoo::Reader,
    lane: ShmLane,
}

impl Reader {
    pub(crate) fn new(table: Arc<Table>, lane: ShmLane, config: ClientConfig) -> Reader {
        Reader { reader: guira_rcuckoo::Reader::new(table, config), lane }
    }

    /// The value of `key`, or `None` if there is no such key. An inline hit is 1 round trip, an extent hit 2, a miss at
    /// most
    /// 2. Source: R-READ-1 to R-READ-7.
    ///
    /// # Errors
    /// `KeyLength`, `Corrupt`, `Busy`, or the fabric's.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value).await?.then_some(value))
    }

    /// Replaces the content of `into` by the value of `key` and returns true; leaves it empty and returns false if
    /// there is no such key. Allocates nothing if the value fits in `into`'s capacity.
    ///
    /// # Errors
    /// As [`Reader::get`].
    #[inline(always)]
    pub async fn get_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        into.clear();
        match self.reader.get_now(&mut self.lane, key, into) {
            Now::Done(token) => Ok(token.is_some()),
            Now::Wait(sampled) => self.get_waiting(key, into, sampled).await,
        }
    }

    /// The first part of [`Reader::get_into`]: all of it, unless it has to wait.
    #[inline(always)]
    pub(crate) fn get_now(&mut self, key: &[u8], into: &mut Vec<u8>) -> Now {
        into.clear();
        self.reader.get_now(&mut self.lane, key, into)
    }

    /// The second part.
    pub(crate) async fn get_waiting(
        &mut self,
        key: &[u8],
        into: &mut Vec<u8>,
        sampled: Sampled,
    ) -> Result<bool, Error> {
        Ok(self.reader.get_waiting(&mut self.lane, key, into, sampled).await?.is_some())
    }

    /// The value of `key` and the state it was read in, or `None` if there is no such key. Costs as much as
    /// [`Reader::get`]. Source: R-CAS-2.
    ///
    /// # Errors
    /// As [`Reader::get`]; `NarrowVersions` if the table's row versions are too narrow to tell states apart (preset
    /// `paper`).
    pub async fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        let mut value = Vec::new();
        let token = self.get_versioned_into(key, &mut value).await?;
        Ok(token.map(|token| Versioned { value, token }))
    }

    /// Replaces the content of `into` by the value of `key` and returns the state it was read in; leaves it empty and
    /// returns `None` if there is no such key.
    ///
    /// # Errors
    /// As [`Reader::get_versioned`].
    pub async fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
        into.clear();
        check_versions(self.reader.table())?;
        let found = self.reader.get(&mut self.lane, key, into).await?;
        Ok(found.map(|state| Token::new(self.reader.table(), state)))
    }

    /// Looks up many keys at once: their memory accesses overlap. One result for each key, in order; see
    /// [`Reader::get_many_with`] for the cost.
    pub async fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let mut values = Vec::with_capacity(keys.len());
        self.get_many_with(keys, |_, result| values.push(result.map(|value| value.map(<[u8]>::to_vec)))).await;
        values
    }

    /// Looks up many keys at once and hands the place of each in `keys`, and its result, to `visit`, in order. There is
    /// no snapshot of several keys: each result is that of a lookup of its own. No allocation for each key.
    ///
    /// On shared memory the rows of 32 keys at a time are prefetched; where batches travel, 32 keys are 1 round trip, 2
    /// with extents among them. Errors are per key, as those of [`Reader::get`]. Source: R-READ-8.
    pub async fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        let visit =
            |i: usize, result: Result<Option<&[u8]>, guira_rcuckoo::Error>| visit(i, result.map_err(Error::from));
        self.reader.get_many(&mut self.lane, keys, visit).await;
    }

    /// Whether there is such a key. Costs as much as [`Reader::get`].
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub async fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
        let mut value = Vec::new();
        self.get_into(key, &mut value).await
    }

    /// What this reader sent and received.
    pub fn traffic(&self) -> Traffic {
        *self.lane.traffic()
    }
}

/// One logical owner: it may change the table, one operation at a time, and holds a client slot while it lives.
///
/// Dropping an operation's future before it is ready strands nothing: it takes effect wholly or not at all, and the
/// next operation first gives back what it had acquired (R-DROP-1).
pub struct Client {
    client: guira_rcuckoo::Client,
    lane: ShmLane,
    extents: Option<Extents>,
    pending: Option<ExtentRef>,
    encoded: Vec<u64>,
    hold: Option<SlotHold>,
    owner: OwnerId,
}

impl Client {
    pub(crate) fn new(
        table: Arc<Table>,
        lane: ShmLane,
        owner: OwnerId,
        hold: SlotHold,
        config: ClientConfig,
    ) -> Client {
        let extents = table.config().format.has_extents().then(|| Extents::new(Arc::clone(&table), owner));
        Client {
            client: guira_rcuckoo::Client::new(table, owner, config),
            lane,
            extents,
            pending: None,
            encoded: Vec::new(),
            hold: Some(hold),
            owner,
        }
    }

    /// The value of `key`, or `None` if there is no such key. An inline hit is 1 round trip, an extent hit 2, a miss at
    /// most
    /// 2. Source: R-READ-1 to R-READ-7.
    ///
    /// # Errors
    /// `KeyLength`, `Corrupt`, `Busy`, or the fabric's.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value).await?.then_some(value))
    }

    /// Replaces the content of `into` by the value of `key` and returns true; leaves it empty and returns false if
    /// there is no such key. Allocates nothing if the value fits in `into`'s capacity.
    ///
    /// # Errors
    /// As [`Client::get`].
    #[inline(always)]
    pub async fn get_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, Error> {
        into.clear();
        match self.client.get_now(&mut self.lane, key, into) {
            Now::Done(token) => Ok(token.is_some()),
            Now::Wait(sampled) => self.get_waiting(key, into, sampled).await,
        }
    }

    /// The first part of [`Client::get_into`]: all of it, unless it has to wait.
    #[inline(always)]
    pub(crate) fn get_now(&mut self, key: &[u8], into: &mut Vec<u8>) -> Now {
        into.clear();
        self.client.get_now(&mut self.lane, key, into)
    }

    /// The second part.
    pub(crate) async fn get_waiting(
        &mut self,
        key: &[u8],
        into: &mut Vec<u8>,
        sampled: Sampled,
    ) -> Result<bool, Error> {
        Ok(self.client.get_waiting(&mut self.lane, key, into, sampled).await?.is_some())
    }

    /// The value of `key` and the state it was read in, or `None` if there is no such key. Costs as much as
    /// [`Client::get`]. Source: R-CAS-2.
    ///
    /// # Errors
    /// As [`Client::get`]; `NarrowVersions` if the table's row versions are too narrow to tell states apart (preset
    /// `paper`).
    pub async fn get_versioned(&mut self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        let mut value = Vec::new();
        let token = self.get_versioned_into(key, &mut value).await?;
        Ok(token.map(|token| Versioned { value, token }))
    }

    /// Replaces the content of `into` by the value of `key` and returns the state it was read in; leaves it empty and
    /// returns `None` if there is no such key.
    ///
    /// # Errors
    /// As [`Client::get_versioned`].
    pub async fn get_versioned_into(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Token>, Error> {
        into.clear();
        check_versions(self.client.table())?;
        let found = self.client.get(&mut self.lane, key, into).await?;
        Ok(found.map(|state| Token::new(self.client.table(), state)))
    }

    /// Looks up many keys at once: their memory accesses overlap. One result for each key, in order; see
    /// [`Client::get_many_with`] for the cost.
    pub async fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let mut values = Vec::with_capacity(keys.len());
        self.get_many_with(keys, |_, result| values.push(result.map(|value| value.map(<[u8]>::to_vec)))).await;
        values
    }

    /// Looks up many keys at once and hands the place of each in `keys`, and its result, to `visit`, in order. There is
    /// no snapshot of several keys: each result is that of a lookup of its own. No allocation for each key.
    ///
    /// On shared memory the rows of 32 keys at a time are prefetched; where batches travel, 32 keys are 1 round trip, 2
    /// with extents among them. Errors are per key, as those of [`Client::get`]. Source: R-READ-8.
    pub async fn get_many_with<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut visit: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) {
        let visit =
            |i: usize, result: Result<Option<&[u8]>, guira_rcuckoo::Error>| visit(i, result.map_err(Error::from));
        self.client.get_many(&mut self.lane, keys, visit).await;
    }

    /// Whether there is such a key. Costs as much as [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn contains(&mut self, key: &[u8]) -> Result<bool, Error> {
        let mut value = Vec::new();
        self.get_into(key, &mut value).await
    }

    /// Inserts `key`, or replaces its value. 2 round trips for an existing inline key and for an insert whose rows have
    /// room; 3 for an existing extent key, and for most inserts that have to move others. Source: R-INSERT-1 to
    /// R-UPDATE-2.
    ///
    /// # Errors
    /// `KeyLength`, `ValueLength`, `Full`, `Busy`, `Corrupt`, `Destroyed`, `Extent`, or the fabric's.
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Put, Error> {
        let changed = self.change_value(key, value, Operation::Put, Change::Put).await?;
        Ok(if changed.outcome == Outcome::Inserted { Put::Inserted } else { Put::Replaced })
    }

    /// Inserts `key` and returns true; changes nothing and returns false if it exists.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let changed = self.change_value(key, value, Operation::Insert, Change::Insert).await?;
        Ok(changed.outcome == Outcome::Inserted)
    }

    /// Replaces the value of `key` and returns true; changes nothing and returns false if there is no such key.
    ///
    /// # Errors
    /// As [`Client::put`], `Full` excepted.
    pub async fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let changed = self.change_value(key, value, Operation::Update, Change::Update).await?;
        Ok(changed.outcome == Outcome::Replaced)
    }

    /// Removes `key` and returns true; returns false if there is no such key. 2 round trips, 3 for an extent key.
    ///
    /// # Errors
    /// `KeyLength`, `Busy`, `Corrupt`, `Destroyed`, or the fabric's.
    pub async fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.settle_extent(Operation::Remove).await?;
        self.tend_extents().await?;
        let changed = self.client.change(&mut self.lane, key, Change::Remove).await?;
        self.reclaim(&changed);
        Ok(changed.outcome == Outcome::Removed)
    }

    /// Replaces the value of `key` if the key is as expected: has a certain value, or has not been changed since it was
    /// read. 2 round trips for an inline key, 3 for an extent key, 4 for an extent key expected to have a value of the
    /// same length. Source: R-CAS-1, R-CAS-2.
    ///
    /// # Errors
    /// As [`Client::update`], or `ForeignToken`.
    pub async fn compare_and_swap<'e>(
        &mut self,
        key: &[u8],
        expected: impl Into<Expected<'e>>,
        value: &[u8],
    ) -> Result<Swap, Error> {
        let expected = expected.into().of(self.client.table(), Operation::CompareAndSwap)?;
        let changed =
            self.change_value(key, value, Operation::CompareAndSwap, |new| Change::Swap(expected, new)).await?;
        Ok(Swap::of(changed.outcome))
    }

    /// Removes `key` if it is as expected; see [`Client::compare_and_swap`].
    ///
    /// # Errors
    /// As [`Client::remove`], or `ForeignToken`.
    pub async fn compare_and_remove<'e>(
        &mut self,
        key: &[u8],
        expected: impl Into<Expected<'e>>,
    ) -> Result<Swap, Error> {
        self.settle_extent(Operation::CompareAndRemove).await?;
        self.tend_extents().await?;
        let change = Change::RemoveIf(expected.into().of(self.client.table(), Operation::CompareAndRemove)?);
        let changed = self.client.change(&mut self.lane, key, change).await?;
        self.reclaim(&changed);
        Ok(Swap::of(changed.outcome))
    }

    /// Puts many keys, one after the other, in order: one result for each. A key's failure does not keep the next from
    /// being put. On shared memory the rows of keys to come are prefetched. Round trips: as many as single puts.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(&mut self, items: &[(K, V)]) -> Vec<Result<Put, Error>> {
        let mut results = Vec::with_capacity(items.len());
        for (i, (key, value)) in items.iter().enumerate() {
            if let Some((ahead, _)) = items.get(i + AHEAD_KEYS) {
                self.client.prefetch(&self.lane, ahead.as_ref());
            }
            results.push(self.put(key.as_ref(), value.as_ref()).await);
        }
        results
    }

    /// Removes many keys, one after the other, in order: one result for each, true if it existed. As
    /// [`Client::put_many`].
    pub async fn remove_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<bool, Error>> {
        let mut results = Vec::with_capacity(keys.len());
        for (i, key) in keys.iter().enumerate() {
            if let Some(ahead) = keys.get(i + AHEAD_KEYS) {
                self.client.prefetch(&self.lane, ahead.as_ref());
            }
            results.push(self.remove(key.as_ref()).await);
        }
        results
    }

    async fn change_value<'v>(
        &'v mut self,
        key: &[u8],
        value: &'v [u8],
        operation: Operation,
        change: impl Fn(NewValue<'v>) -> Change<'v>,
    ) -> Result<Changed, Error> {
        let extent = if self.is_plain(key, value) {
            None
        } else {
            match self.extent_at_hand(key, value) {
                Some(extent) => Some(extent),
                None => self.reserve(key, value, operation).await?,
            }
        };
        let change = change(match extent {
            None => NewValue::Inline(value),
            Some(extent) => {
                self.pending = Some(extent);
                let seed = self.client.table().superblock().checksum_seed();
                guira_layout::encode_extent(&mut self.encoded, &extent, key, value, seed);
                NewValue::Extent { extent, words: &self.encoded }
            }
        });
        let result = match self.client.begin(&mut self.lane, key, &change) {
            Begun::Done(changed) => Ok(changed),
            begun => self.client.finish(&mut self.lane, key, change, begun).await,
        };
        if let Some(extents) = &mut self.extents {
            match (self.pending.take(), &result) {
                (None, _) => {}
                (Some(extent), Ok(changed)) if changed.took_effect() => extents.link(&extent),
                // Whether an entry refers to it cannot be known: it stays allocated until a sweep finds out.
                (Some(_), Err(error)) if error.effect() == Effect::Unknown => {}
                (Some(extent), _) => extents.cancel(&extent),
            }
            if let Ok(Changed { freed: Some(freed), .. }) = &result {
                extents.give_back(freed);
            }
        }
        Ok(result?)
    }

    /// Whether a value goes in its row, and there is nothing to do before.
    fn is_plain(&self, key: &[u8], value: &[u8]) -> bool {
        let is_due = self.extents.as_ref().is_some_and(Extents::is_due);
        let is_inline = self.client.table().rows().place(key.len(), value.len()) == Placement::Inline;
        self.pending.is_none() && !is_due && is_inline
    }

    /// A place for a value that needs one and can have it without a round trip.
    fn extent_at_hand(&mut self, key: &[u8], value: &[u8]) -> Option<ExtentRef> {
        let rows = self.client.table().rows();
        let is_extent = rows.place(key.len(), value.len()) == Placement::Extent;
        let accepted = rows.accepts_key(key.len()) && rows.accepts_value(value.len());
        if !is_extent || !accepted || self.pending.is_some() {
            return None;
        }
        self.extents.as_mut()?.reserve_now(key, value)
    }

    /// A place for a value that needs one; `None` if it goes in the row. Does what there is to do before.
    async fn reserve(&mut self, key: &[u8], value: &[u8], operation: Operation) -> Result<Option<ExtentRef>, Error> {
        self.settle_extent(operation).await?;
        let rows = self.client.table().rows();
        let (format, placement) = (rows.entry_format(), rows.place(key.len(), value.len()));
        if !rows.accepts_key(key.len()) {
            return Err(guira_rcuckoo::Error::KeyLength { operation, bytes: key.len(), format }.into());
        }
        if !rows.accepts_value(value.len()) {
            return Err(guira_rcuckoo::Error::ValueLength { operation, bytes: value.len(), format }.into());
        }
        if let (Placement::Extent, Some(extents)) = (placement, &mut self.extents) {
            return Ok(Some(extents.reserve(&mut self.lane, key, value).await?));
        }
        self.tend_extents().await?;
        Ok(None)
    }

    fn reclaim(&mut self, changed: &Changed) {
        if let (Some(extents), Some(freed)) = (&mut self.extents, &changed.freed) {
            extents.give_back(freed);
        }
    }

    /// Lets no space gather with a client that removes or replaces and never stores. // [R-EXTENT-5]
    async fn tend_extents(&mut self) -> Result<(), Error> {
        match &mut self.extents {
            Some(extents) => Ok(extents.tend(&mut self.lane).await.map_err(ExtentError::Fabric)?),
            None => Ok(()),
        }
    }

    /// Finds out what became of the extent of an operation that was dropped. // [R-DROP-1]
    async fn settle_extent(&mut self, operation: Operation) -> Result<(), Error> {
        self.client.refuse_if_lost(operation)?;
        self.client
            .settle(&mut self.lane)
            .await
            .map_err(|source| Error::Operation(guira_rcuckoo::Error::Fabric { operation, source }))?;
        if let (Some(extent), Some(extents)) = (self.pending.take(), &mut self.extents) {
            if self.client.has_committed() {
                extents.link(&extent);
            } else {
                extents.cancel(&extent);
            }
        }
        Ok(())
    }

    /// Gives up the chunks this client cuts its extents from, as closing it would, but keeps its slot: for a client
    /// that will store no large value for a while. As long as it owns them, nobody else can use what is free in them,
    /// or becomes free. 1 round trip for 64 chunks, and again for giving them up. Source: R-EXTENT-5.
    ///
    /// # Errors
    /// The fabric's. Values are not touched.
    pub async fn release_memory(&mut self) -> Result<(), Error> {
        self.settle_extent(Operation::Session).await?;
        if let Some(extents) = &mut self.extents {
            extents.close(&mut self.lane).await.map_err(ExtentError::Fabric)?;
        }
        Ok(())
    }

    /// What this client sent and received.
    pub fn traffic(&self) -> Traffic {
        *self.lane.traffic()
    }

    /// What this client met: taken locks, stale paths, moved entries.
    pub fn counters(&self) -> Counters {
        self.client.counters()
    }

    /// The number of this client's slot.
    pub fn slot(&self) -> u16 {
        self.owner.0 - 1
    }
}

impl Drop for Client {
    /// Gives back locks, extents and the slot. In a forked child it touches nothing: the slot is the parent's.
    fn drop(&mut self) {
        if self.lane.is_stale() {
            return;
        }
        let closing = async {
            self.release_memory().await?;
            let released = release_slot(&mut self.lane, self.client.table(), self.owner).await;
            released.map_err(|error| Error::Extent(ExtentError::Fabric(error)))
        };
        // A slot that cannot be given back stays taken by a client that is no longer alive, as if this process had
        // died.
        let _ = block_on(closing);
        self.hold = None;
    }
}
