//! Clients and readers: one lane each, one operation at a time.

use std::sync::Arc;

use guira_fabric::{Effect, Lane, SlotHold, Traffic};
use guira_fabric_shm::ShmLane;
use guira_layout::{ExtentRef, OwnerId, Placement};
use guira_rcuckoo::{
    Change, Changed, ClientConfig, Counters, NewValue, Now, Operation, Outcome, Sampled, Table, release_slot,
};

use crate::blocking::block_on;
use crate::extents::Extents;
use crate::{Error, ExtentError};

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
        let changed = self.client.change(&mut self.lane, key, Change::Remove).await?;
        self.reclaim(&changed);
        Ok(changed.outcome == Outcome::Removed)
    }

    async fn change_value<'v>(
        &'v mut self,
        key: &[u8],
        value: &'v [u8],
        operation: Operation,
        change: impl Fn(NewValue<'v>) -> Change<'v>,
    ) -> Result<Changed, Error> {
        self.settle_extent(operation).await?;
        let rows = self.client.table().rows();
        let (format, placement) = (rows.entry_format(), rows.place(key.len(), value.len()));
        if !rows.accepts_key(key.len()) {
            return Err(guira_rcuckoo::Error::KeyLength { operation, bytes: key.len(), format }.into());
        }
        if !rows.accepts_value(value.len()) {
            return Err(guira_rcuckoo::Error::ValueLength { operation, bytes: value.len(), format }.into());
        }
        let (Placement::Extent, Some(extents)) = (placement, &mut self.extents) else {
            let changed = self.client.change(&mut self.lane, key, change(NewValue::Inline(value))).await?;
            self.reclaim(&changed);
            return Ok(changed);
        };
        let extent = extents.reserve(&mut self.lane, key, value).await?;
        self.pending = Some(extent);
        let seed = self.client.table().superblock().checksum_seed();
        guira_layout::encode_extent(&mut self.encoded, &extent, key, value, seed);
        let new = change(NewValue::Extent { extent, words: &self.encoded });
        let result = self.client.change(&mut self.lane, key, new).await;
        self.pending = None;
        if let Some(extents) = &mut self.extents {
            match &result {
                Ok(changed) if changed.took_effect() => {}
                // Whether an entry refers to it cannot be known: it stays allocated until a sweep finds out.
                Err(error) if error.effect() == Effect::Unknown => {}
                _ => extents.cancel(&extent),
            }
            if let Ok(Changed { freed: Some(freed), .. }) = &result {
                extents.give_back(freed);
            }
        }
        Ok(result?)
    }

    fn reclaim(&mut self, changed: &Changed) {
        if let (Some(extents), Some(freed)) = (&mut self.extents, &changed.freed) {
            extents.give_back(freed);
        }
    }

    /// Finds out what became of the extent of an operation that was dropped. // [R-DROP-1]
    async fn settle_extent(&mut self, operation: Operation) -> Result<(), Error> {
        self.client
            .settle(&mut self.lane)
            .await
            .map_err(|source| Error::Operation(guira_rcuckoo::Error::Fabric { operation, source }))?;
        if let (Some(extent), Some(extents)) = (self.pending.take(), &mut self.extents)
            && !self.client.has_committed()
        {
            extents.cancel(&extent);
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
            self.settle_extent(Operation::Session).await?;
            if let Some(extents) = &mut self.extents {
                extents.close(&mut self.lane).await.map_err(ExtentError::Fabric)?;
            }
            let released = release_slot(&mut self.lane, self.client.table(), self.owner).await;
            released.map_err(|error| Error::Extent(ExtentError::Fabric(error)))
        };
        // A slot that cannot be given back stays taken by a client that is no longer alive, as if this process had
        // died.
        let _ = block_on(closing);
        self.hold = None;
    }
}
