//! Async clients. Each has one lane, runs one operation at a time, and holds one client slot of the table.
//!
//! Invariants: an extent is written before the row that points to it, and is `pending` while it is unknown whether a
//! row does; the slot is given back after everything else, and never by a forked child.

mod derived;
mod pooled;
mod reported;

use std::cmp::Ordering;
use std::fmt;
use std::ops::{ControlFlow, RangeBounds};
use std::sync::Arc;

use guira_extents::{ExtentError, Extents};
use guira_fabric::{Effect, FabricError, Lane, SlotHold, Traffic, Waiting};
use guira_layout::{EntryKind, ExtentRef, OwnerId};
use guira_lock_queue::{self as lock_queue, BlindWrite, SharedLockQueue, TableName, Wait, WaitMode, WaitResult};
use guira_rcuckoo::{
    Begun, Change, Changed, Counters, Grown, Key, NewValue, Operation, Outcome, SlotClient, Table, TryGet,
    is_destroyed, read_slot, release_slot,
};

use self::reported::{ReportedCounters, counters, report};
use super::reader::{check_versions, lookups, part_of};
use crate::errors::NoSpace;
use crate::events::Events;
use crate::fabric::{FabricLane, FabricRegion};
use crate::sessions::binding::{Holds, ReconnectDeadline, SessionBinding, is_session_lost, without_effect};
use crate::sessions::{Session, Sessions};
use crate::store::Inner;
use crate::wait::block_on;
use crate::{Error, Expected, OpenError, OperationError, OperationErrorKind, Put, Swap, Token, Versioned};

/// The number of keys whose rows are prefetched ahead of the one that is being changed.
const AHEAD_KEYS: usize = 4;

/// An async client, which reads and changes a table, one operation at a time: from [`super::Store::client`], one for
/// each task. It holds a client slot while it lives. The blocking counterpart is [`crate::Client`].
///
/// Dropping an operation's future before it is ready is safe: the operation takes effect completely or not at all, and
/// the next one first gives back what it had acquired (R-DROP-1).
///
/// [`Client::close`] gives back the client's chunks and its slot, and reports failures. Dropping the client never
/// waits: on shared memory it gives them back and ignores failures; behind a memory node it leaves its slot as that of
/// a dead client, and the next client that needs the slot, or what it holds, recovers it.
///
/// ```
/// use guira::{CreateOptions, Put, Url, aio};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// # pollster::block_on(async {
/// let store = aio::Store::create(&url, &CreateOptions::new(1_000)).await?;
/// let mut client = store.client().await?;
/// assert_eq!(client.put(b"cuckoo", b"Guira guira").await?, Put::Inserted);
/// assert_eq!(client.get(b"cuckoo").await?.as_deref(), Some(&b"Guira guira"[..]));
/// client.close().await?;
/// # guira::Store::destroy(&url)
/// # })
/// # }
/// ```
pub struct Client {
    client: guira_rcuckoo::Client,
    pub(crate) lane: FabricLane,
    extents: Option<Extents>,
    pending: Option<ExtentRef>,
    encoded: Vec<u64>,
    /// The last value of [`Client::get_with`].
    pub(crate) value: Vec<u8>,
    hold: Option<SlotHold>,
    owner: OwnerId,
    /// The generation of the slot in which it was claimed.
    generation: u64,
    /// The number of redo records that had been made when the last change was acknowledged, all of which were written.
    acknowledged_records: u64,
    events: Events,
    /// The counts that are already included in the table's totals.
    reported: ReportedCounters,
    /// The counts of sessions that were lost.
    pub(crate) earlier: Counters,
    pub(crate) waiting: Waiting,
    /// The local queue in front of the locks, if the table is behind a memory node.
    lock_queue: Option<Arc<SharedLockQueue>>,
    pub(crate) binding: SessionBinding,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = &self.binding.store.url;
        f.debug_struct("Client").field("url", url).field("slot", &self.slot()).finish_non_exhaustive()
    }
}

/// A client slot that was taken, and the lane for it.
pub(crate) struct Taken {
    pub(crate) lane: FabricLane,
    pub(crate) owner: OwnerId,
    pub(crate) generation: u64,
    pub(crate) hold: SlotHold,
    /// The content of its slot.
    pub(crate) own: SlotClient,
}

/// A requested change.
#[derive(Clone, Copy)]
pub(crate) enum Request<'r> {
    Put(&'r [u8]),
    Insert(&'r [u8]),
    Update(&'r [u8]),
    Swap(guira_rcuckoo::Expected<'r>, &'r [u8]),
    Add(&'r [u8; 8]),
    Remove,
    RemoveIf(guira_rcuckoo::Expected<'r>),
}

impl<'r> Request<'r> {
    /// Returns the value to store, if there is one.
    #[inline(always)]
    fn value(self) -> Option<&'r [u8]> {
        match self {
            Request::Put(value) | Request::Insert(value) | Request::Update(value) | Request::Swap(_, value) => {
                Some(value)
            }
            Request::Add(addend) => Some(addend),
            Request::Remove | Request::RemoveIf(_) => None,
        }
    }

    /// Returns the change, with its value stored as `value`.
    #[inline(always)]
    fn with<'v>(self, value: NewValue<'v>) -> Change<'v>
    where
        'r: 'v,
    {
        match self {
            Request::Put(_) => Change::Put(value),
            Request::Insert(_) => Change::Insert(value),
            Request::Update(_) => Change::Update(value),
            Request::Swap(expected, _) => Change::Swap(expected, value),
            Request::Add(addend) => Change::Add(addend),
            Request::Remove => Change::Remove,
            Request::RemoveIf(expected) => Change::RemoveIf(expected),
        }
    }

    /// Returns the operation. Not inlined: only a change that fails or waits needs it.
    #[inline(never)]
    fn operation(self) -> Operation {
        self.with(NewValue::Inline(&[])).operation()
    }

    /// Returns the kind of blind write, if the request is one.
    fn blind_write(self) -> Option<BlindWrite> {
        match self {
            Request::Put(_) => Some(BlindWrite::Put),
            Request::Update(_) => Some(BlindWrite::Update),
            Request::Insert(_) | Request::Swap(..) | Request::Add(_) | Request::Remove | Request::RemoveIf(_) => None,
        }
    }
}

/// A request whose key and value the table can store, and where the value goes.
struct Accepted<'a> {
    key: Key<'a>,
    place: EntryKind,
    request: Request<'a>,
}

impl<'a> Accepted<'a> {
    fn of(
        client: &guira_rcuckoo::Client,
        key: &'a [u8],
        request: Request<'a>,
    ) -> Result<Accepted<'a>, OperationErrorKind> {
        let key = client.key(key)?;
        let place = request.value().map_or(Ok(EntryKind::Inline), |value| client.table().place(&key, value.len()))?;
        Ok(Accepted { key, place, request })
    }

    /// Same as [`Accepted::of`], without the error: `None`.
    #[inline(always)]
    fn try_of(client: &guira_rcuckoo::Client, key: &'a [u8], request: Request<'a>) -> Option<Accepted<'a>> {
        let key = client.try_key(key)?;
        let place =
            request.value().map_or(Some(EntryKind::Inline), |value| client.table().try_place(&key, value.len()));
        Some(Accepted { key, place: place?, request })
    }
}

/// Converts the error of an allocation into that of an operation.
#[cold]
fn extent_error(error: ExtentError, operation: Operation) -> Error {
    let kind = match error {
        ExtentError::Full(full) => OperationErrorKind::NoSpace(Box::new(full)),
        ExtentError::Fabric(source) => OperationErrorKind::Fabric { source },
    };
    kind.during(operation).into()
}

/// Builds the parts of a client that act as `owner`.
fn parts(
    store: &Inner,
    region: &FabricRegion,
    owner: OwnerId,
    own: &SlotClient,
) -> (guira_rcuckoo::Client, Option<Extents>) {
    let table = &store.table;
    let extents = table.config().format.has_extents().then(|| Extents::new(Arc::clone(table), owner));
    let client = guira_rcuckoo::Client::new(Arc::clone(table), owner, store.client_config(own.since_unix_ns));
    let client =
        client.with_process(own).with_liveness(Box::new(region.clone())).with_observer(Box::new(store.events.clone()));
    let client = match &store.predictor {
        Some(predictor) => client.with_predictor(Arc::clone(predictor)),
        None => client,
    };
    (client, extents)
}

/// Returns the queue in front of the locks of a table behind a memory node; `None` for other tables.
fn lock_queue_of(table: &Table, region: &FabricRegion) -> Option<Arc<SharedLockQueue>> {
    let superblock = table.superblock();
    let drawn = [superblock.table, superblock.incarnation];
    region.node().map(|(peer, memory)| SharedLockQueue::of(TableName { drawn, memory, peer }))
}

lookups!(Client, client);

impl Client {
    pub(crate) fn new(
        store: &Arc<Inner>,
        sessions: &Arc<Sessions>,
        session: &Session,
        waiting: Waiting,
        taken: Taken,
    ) -> Client {
        let Taken { lane, owner, generation, hold, own } = taken;
        let (client, extents) = parts(store, &session.region, owner, &own);
        let lock_queue = lock_queue_of(&store.table, &session.region);
        Client {
            client,
            lane,
            lock_queue,
            extents,
            pending: None,
            encoded: Vec::new(),
            value: Vec::new(),
            hold: Some(hold),
            owner,
            generation,
            acknowledged_records: 0,
            events: store.events.clone(),
            reported: ReportedCounters::default(),
            earlier: Counters::default(),
            waiting,
            binding: SessionBinding::new(Arc::clone(store), Arc::clone(sessions), session.number, Holds::Slot),
        }
    }

    /// Prepares another attempt after one that failed with `error`, or returns the error to report. [R-SESSION-1]
    #[cold]
    async fn prepare_retry(
        &mut self,
        error: Error,
        operation: Operation,
        deadline: &mut ReconnectDeadline,
    ) -> Result<(), Error> {
        // Boxed: it is rare, and larger than the rest of a change's future.
        Box::pin(self.change_session(error, operation, deadline)).await
    }

    /// Moves to another session after `error`, with another slot: the last slot is that of a dead client, and what it
    /// holds is left to recovery. [R-SESSION-1] [R-SLOT-1]
    async fn change_session(
        &mut self,
        mut error: Error,
        operation: Operation,
        deadline: &mut ReconnectDeadline,
    ) -> Result<(), Error> {
        loop {
            let session = self.binding.next(error, deadline).await?;
            let mut lane = session.region.lane_waiting(self.waiting);
            *lane.traffic_mut() = *self.lane.traffic();
            let claimed = match self.verify_progress(&mut lane).await {
                Ok(()) => self.binding.store.claim(lane, &session.region).await,
                Err(error) => Err(error),
            };
            match claimed {
                Ok(mut taken) => {
                    let delta = self.reported.delta(&self.client, self.extents.as_ref());
                    report(Arc::clone(self.client.table()), taken.lane.any(), delta).await;
                    // No await lies between these: a future that is dropped there would hide a fence. // [R-SESSION-2]
                    self.move_to(&session.region, taken);
                    return self.binding.bind(&session, operation);
                }
                // Taking a slot changes no key.
                Err(failed) => error = without_effect(failed),
            }
            if session.region.is_lost() {
                self.binding.skip(&session);
            }
        }
    }

    /// Verifies that the memory has not gone back to an earlier state, as that of a copy which was put back: its slot is
    /// not older than the client, and has all changes that were acknowledged to the client. 1 round trip. [R-OPEN-2]
    async fn verify_progress(&mut self, lane: &mut FabricLane) -> Result<(), Error> {
        let (store, table) = (Arc::clone(&self.binding.store), Arc::clone(self.client.table()));
        let found = read_slot(lane.any(), &table, self.slot()).await;
        let found = found.map_err(store.fabric("cannot open a client of"))?;
        let (first, last) = (self.acknowledged_records, self.client.records());
        let is_behind = match found.word.map(|word| word.generation.cmp(&self.generation)) {
            Some(Ordering::Less) => true,
            // Before the first record, the seal is that of another client.
            Some(Ordering::Equal) => first > 0 && !found.seal.is_of(first, last),
            // Another client has taken the slot since; a damaged slot is reported by those who need it.
            _ => false,
        };
        let reason = "its memory node has an earlier state of it";
        if is_behind { Err(Error::Open(OpenError::Gone { url: store.url.clone(), reason })) } else { Ok(()) }
    }

    /// Leaves what the client held, and goes on as the owner of the slot that was taken.
    fn move_to(&mut self, region: &FabricRegion, taken: Taken) {
        self.earlier = self.counters();
        let (client, extents) = parts(&self.binding.store, region, taken.owner, &taken.own);
        (self.client, self.extents, self.pending) = (client, extents, None);
        (self.lane, self.owner, self.hold) = (taken.lane, taken.owner, Some(taken.hold));
        (self.generation, self.acknowledged_records) = (taken.generation, 0);
        self.lock_queue = lock_queue_of(self.client.table(), region);
        self.reported = ReportedCounters::default();
    }

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
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Put, Error> {
        let outcome = self.change(key, Request::Put(value)).await?;
        Ok(if outcome == Outcome::Inserted { Put::Inserted } else { Put::Replaced })
    }

    /// Inserts `key` and returns true; if the key exists, changes nothing and returns false. Round trips: as
    /// [`Self::put`]; if the key exists, 2 in a row, 3 in an extent. Source: R-INSERT-1 to R-INSERT-5; paper 3.2.3.
    ///
    /// # Errors
    /// Same as [`Self::put`].
    pub async fn try_insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Insert(value)).await? == Outcome::Inserted)
    }

    /// Replaces the value of `key` and returns true; if there is no such key, changes nothing and returns false. Round
    /// trips: 2, 3 for a key in an extent; behind a memory node none, if it is combined with another write, as in
    /// [`Self::put`]. Source: R-UPDATE-1, R-UPDATE-2, R-LOCK-8; paper 3.2.2.
    ///
    /// # Errors
    /// Same as [`Self::put`], except `Full`; `NoSpace` can occur.
    pub async fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Update(value)).await? == Outcome::Replaced)
    }

    /// Removes `key` and returns true; returns false if there is no such key. Round trips: 2, 3 for a key in an extent.
    /// Source: R-UPDATE-1, R-UPDATE-2; paper 3.2.2.
    ///
    /// # Errors
    /// `KeyLength`, `Busy`, `Corrupt`, `Destroyed`, `Lost` and `Fabric`, as for [`Self::put`].
    pub async fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.change(key, Request::Remove).await? == Outcome::Removed)
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
    pub async fn compare_and_swap<'e>(
        &mut self,
        key: &[u8],
        expected: impl Into<Expected<'e>>,
        value: &[u8],
    ) -> Result<Swap, Error> {
        self.follow_if_gone().await?;
        let expected = self.expected(expected.into(), Operation::CompareAndSwap)?;
        Ok(Swap::of(self.change(key, Request::Swap(expected, value)).await?))
    }

    /// Removes `key` if it is as expected. Round trips and source: as [`Self::compare_and_swap`].
    ///
    /// # Errors
    /// Same as [`Self::remove`]; `ForeignToken` for a token of another table, and nothing was changed. A key that is
    /// not as expected is not an error.
    pub async fn compare_and_remove<'e>(
        &mut self,
        key: &[u8],
        expected: impl Into<Expected<'e>>,
    ) -> Result<Swap, Error> {
        self.follow_if_gone().await?;
        let expected = self.expected(expected.into(), Operation::CompareAndRemove)?;
        Ok(Swap::of(self.change(key, Request::RemoveIf(expected)).await?))
    }

    /// Puts many keys, one after the other, and returns one result for each, in order. A failure does not stop the puts
    /// after it. Round trips: those of single puts; on shared memory the rows of the next keys are prefetched.
    ///
    /// # Errors
    /// Each key has a result of its own, with the errors of [`Self::put`].
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

    /// Removes many keys, one after the other, and returns one result for each, in order: true if the key existed. A
    /// failure does not stop the removals after it. Round trips: those of single removals; on shared memory the rows of
    /// the next keys are prefetched.
    ///
    /// # Errors
    /// Each key has a result of its own, with the errors of [`Self::remove`].
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

    /// Converts `expected`, whose token must be of this table: after [`Client::follow_if_gone`].
    #[inline]
    pub(crate) fn expected<'e>(
        &self,
        expected: Expected<'e>,
        operation: Operation,
    ) -> Result<guira_rcuckoo::Expected<'e>, Error> {
        expected.of(self.client.table(), operation)
    }

    async fn change(&mut self, key: &[u8], request: Request<'_>) -> Result<Outcome, Error> {
        match self.try_change(key, request) {
            Ok(outcome) => Ok(outcome),
            Err(begun) => self.change_slow(key, request, begun).await,
        }
    }

    /// Makes a change, or the part of it that needs no waiting: [`Client::change_slow`] does the rest. The error is
    /// `None` if nothing was begun; otherwise the extent, if the change has one, is pending.
    #[inline(always)]
    pub(crate) fn try_change(&mut self, key: &[u8], request: Request<'_>) -> Result<Outcome, Option<Begun>> {
        let Some(lane) = self.lane.in_place() else { return Err(None) };
        let Some(accepted) = Accepted::try_of(&self.client, key, request) else { return Err(None) };
        let value = request.value().unwrap_or_default();
        let value = match (accepted.place, &mut self.extents) {
            _ if self.pending.is_some() => return Err(None),
            (EntryKind::Inline, extents) if !extents.as_ref().is_some_and(Extents::is_due) => NewValue::Inline(value),
            (EntryKind::Extent, Some(extents)) => {
                let extent = extents.try_reserve(&accepted.key, value).ok_or(None::<Begun>)?;
                self.pending = Some(extent);
                self.encoded.clear();
                // A lane that refuses this will refuse the change.
                self.client.write_extent(lane, extent, &accepted.key, value).map_err(|_| None::<Begun>)?
            }
            _ => return Err(None),
        };
        match self.client.begin_in_place(lane, &accepted.key, &request.with(value)) {
            Begun::Done(changed) => {
                let outcome = changed.outcome;
                self.settle_allocation(&Ok(changed));
                Ok(outcome)
            }
            begun => Err(Some(begun)),
        }
    }

    /// Completes a change that [`Client::try_change`] began, in the table's successor if it is known to be gone.
    pub(crate) async fn change_slow(
        &mut self,
        key: &[u8],
        request: Request<'_>,
        begun: Option<Begun>,
    ) -> Result<Outcome, Error> {
        if begun.is_none() {
            self.follow_if_gone().await?;
        }
        let outcome = self.change_in_sessions(key, request, begun).await;
        self.binding.note(outcome)
    }

    /// Completes a change: waits for a permit, and moves to another session if this one is lost.
    async fn change_in_sessions(
        &mut self,
        key: &[u8],
        request: Request<'_>,
        mut begun: Option<Begun>,
    ) -> Result<Outcome, Error> {
        // What was begun before the name was lost is completed.
        if begun.is_none() {
            self.binding.store.refuse_nameless(self.lane.name_loss())?;
        }
        let operation = request.operation();
        let accepted = match Accepted::of(&self.client, key, request) {
            Ok(accepted) => accepted,
            Err(refused) => return Err(Box::pin(self.refuse(refused, operation)).await),
        };
        let (mut deadline, blind_write) = (ReconnectDeadline::default(), request.blind_write());
        loop {
            let permit = match self.permit(&accepted.key, blind_write).await {
                WaitResult::Combined(outcome) => return Ok(outcome),
                WaitResult::Permit(permit) => Some(permit),
                WaitResult::NoPermit => None,
            };
            match self.attempt(&accepted, begun.take()).await {
                Err(error) if self.lane.is_remote() => {
                    // Clients of other sessions need not wait meanwhile.
                    drop(permit);
                    self.prepare_retry(error, operation, &mut deadline).await?;
                }
                result => {
                    let outcome = result?;
                    return Ok(permit.map_or(outcome, |permit| permit.combine_waiting(outcome)));
                }
            }
        }
    }

    /// Makes one attempt of [`Client::change_slow`]: allocates space for the value, makes the change, and settles the
    /// allocations of both values.
    async fn attempt(&mut self, accepted: &Accepted<'_>, begun: Option<Begun>) -> Result<Outcome, Error> {
        let Accepted { key, request, .. } = accepted;
        let value = request.value().unwrap_or_default();
        if begun.is_none() {
            self.pending = self.reserve(accepted).await.map_err(without_effect)?;
            if let Some(extent) = &self.pending {
                let sums = self.client.table().rows().sums();
                guira_layout::encode_extent(&mut self.encoded, extent, key.bytes(), value, sums);
            }
        }
        let change = request.with(match self.pending {
            None => NewValue::Inline(value),
            Some(extent) => NewValue::Extent { extent, words: &self.encoded },
        });
        let result = self.client.change_from(self.lane.any(), key, change, begun).await;
        self.settle_allocation(&result);
        self.report_incidents().await;
        if result.is_ok() {
            self.acknowledged_records = self.client.records();
        }
        result.map(|changed| changed.outcome).map_err(|error| self.failed(error))
    }

    /// Requests the permit to take the locks of `key`, and waits for it for a while, if the table is behind a memory
    /// node. A change that was begun in place needs none.
    #[inline(always)]
    async fn permit(&mut self, key: &Key<'_>, blind_write: Option<BlindWrite>) -> WaitResult {
        let Some(queue) = &self.lock_queue else { return WaitResult::NoPermit };
        self.client.clear_queue_wait();
        if !self.holds_nothing() || self.lane.is_lost() {
            // The locks of a dropped operation are released first, and a lost session is replaced first: other clients
            // must not wait for that behind this one.
            return WaitResult::NoPermit;
        }
        let deadline_ns = u64::try_from(self.binding.store.options.deadline.as_nanos()).unwrap_or(u64::MAX);
        let mode = match self.waiting {
            Waiting::InPlace => WaitMode::Park,
            Waiting::Cooperative => WaitMode::Suspend,
        };
        let request = lock_queue::Request::of(self.client.table(), key, blind_write);
        queue.permit(request, Wait::within(deadline_ns, mode), &mut self.client, self.lane.any()).await
    }

    /// Settles the extent that a change brought, and gives back the one that it freed.
    #[inline(always)]
    fn settle_allocation(&mut self, result: &Result<Changed, OperationError>) {
        let Some(extents) = &mut self.extents else { return };
        match (self.pending.take(), result) {
            (None, _) => {}
            (Some(extent), Ok(changed)) if changed.took_effect() => extents.link(&extent),
            // It is unknown whether an entry refers to it: it stays allocated until a sweep finds out.
            (Some(_), Err(error)) if error.effect() == Effect::Unknown => {}
            (Some(extent), _) => extents.cancel(&extent),
        }
        if let Ok(Changed { freed: Some(freed), .. }) = result {
            extents.give_back(freed);
        }
    }

    /// Reports the failure of a change: it had no effect if its commit was not sent.
    #[cold]
    fn failed(&self, error: OperationError) -> Error {
        let error = self.events.failed(error);
        if self.client.has_committed() { error } else { without_effect(error) }
    }

    /// Splits segments ahead of need: see [`crate::Store::grow`].
    pub(crate) async fn grow(
        &mut self,
        keys: u64,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Grown, Error> {
        self.settle_extent(Operation::Grow).await?;
        let grown = self.client.grow(self.lane.any(), keys, progress).await;
        self.report_incidents().await;
        grown.map_err(|error| self.failed(error))
    }

    /// Adds this client's counts to the table's totals, if it has found a client that was dead or stopped. No round
    /// trip otherwise. [R-TOTALS-1]
    async fn report_incidents(&mut self) {
        if let Some(delta) = self.reported.incidents(&self.client, self.extents.as_ref()) {
            // Boxed: see above.
            Box::pin(report(Arc::clone(self.client.table()), self.lane.any(), delta)).await;
        }
    }

    /// Allocates an extent for a value that needs one; `None` if it goes in the row. First settles and maintains the
    /// extents.
    async fn reserve(&mut self, accepted: &Accepted<'_>) -> Result<Option<ExtentRef>, Error> {
        let operation = accepted.request.operation();
        self.settle_extent(operation).await?;
        let (EntryKind::Extent, Some(extents)) = (accepted.place, &mut self.extents) else {
            self.maintain_extents(operation).await?;
            return Ok(None);
        };
        let value = accepted.request.value().unwrap_or_default();
        match extents.reserve(self.lane.any(), &accepted.key, value).await {
            // Boxed: it is rare, and larger than the rest of a change's future.
            Err(ExtentError::Full(full)) => Box::pin(self.reserve_from_the_dead(accepted, full)).await,
            reserved => Ok(Some(reserved.map_err(|error| extent_error(error, operation))?)),
        }
    }

    /// Allocates an extent when no space is free: recovers dead clients, which frees their chunks, and tries again; then
    /// lets a table that grows add chunks. Fails with `full` if neither helps, and with `Destroyed` if the table was
    /// destroyed, which no other step here would notice. [R-RECOVER-1] [R-DESTROY-1] [R-GROW-15]
    async fn reserve_from_the_dead(
        &mut self,
        accepted: &Accepted<'_>,
        full: NoSpace,
    ) -> Result<Option<ExtentRef>, Error> {
        let operation = accepted.request.operation();
        let full = || Err(OperationErrorKind::NoSpace(Box::new(full.clone())).during(operation).into());
        let Some(extents) = &mut self.extents else { return full() };
        let destroyed = is_destroyed(self.lane.any(), self.client.table()).await;
        let fabric = |source| OperationErrorKind::Fabric { source }.during(operation);
        if destroyed.map_err(fabric)? {
            return Err(OperationErrorKind::Destroyed.during(operation).into());
        }
        let owners = extents.owners(self.lane.any()).await.map_err(fabric)?;
        let recovered = self.client.recover_owners(self.lane.any(), &owners, operation).await;
        self.report_incidents().await;
        let Some(extents) = &mut self.extents else { return full() };
        let recovered = recovered.map_err(|error| self.events.failed(error))?;
        if recovered == 0 && !extents.allow_chunks() {
            return full();
        }
        let value = accepted.request.value().unwrap_or_default();
        let reserved = extents.reserve_growing(self.lane.any(), &accepted.key, value).await;
        Ok(Some(reserved.map_err(|error| extent_error(error, operation))?))
    }

    /// Refuses a change that the table cannot store. Like any other operation, it first gives back what a dropped
    /// operation left, or replaces the session in which that was held. [R-DROP-1]
    #[cold]
    async fn refuse(&mut self, refused: OperationErrorKind, operation: Operation) -> Error {
        if let Err(error) = self.settle_extent(operation).await.map_err(without_effect) {
            if !self.lane.is_remote() {
                return error;
            }
            if let Err(error) = self.prepare_retry(error, operation, &mut ReconnectDeadline::default()).await {
                return error;
            }
        }
        refused.during(operation).into()
    }

    /// Gives back freed space, which would pile up in a client that removes or replaces and never stores.
    /// [R-EXTENT-5]
    async fn maintain_extents(&mut self, operation: Operation) -> Result<(), Error> {
        let Some(extents) = &mut self.extents else { return Ok(()) };
        let maintained = extents.maintain(self.lane.any()).await;
        maintained.map_err(|source| OperationErrorKind::Fabric { source }.during(operation).into())
    }

    /// Settles the extent of a dropped operation. [R-DROP-1]
    async fn settle_extent(&mut self, operation: Operation) -> Result<(), Error> {
        self.client.refuse_if_lost().map_err(|kind| kind.during(operation))?;
        self.client
            .settle(self.lane.any())
            .await
            .map_err(|source| Error::Operation(OperationErrorKind::Fabric { source }.during(operation)))?;
        if let (Some(extent), Some(extents)) = (self.pending.take(), &mut self.extents) {
            if self.client.has_committed() {
                extents.link(&extent);
            } else {
                extents.cancel(&extent);
            }
        }
        Ok(())
    }

    /// Gives back the chunks from which this client allocates its extents, as closing it does, but keeps its slot: for
    /// a client that will store no large value for a while. No other client can use the free space of chunks that this
    /// client owns. Round trips: 1 for 64 chunks, and again to give them back; none if it has none. Source: R-EXTENT-5.
    ///
    /// # Errors
    /// `Lost`; `Fabric`: some chunks may have been given back. Values are not touched.
    pub async fn release_memory(&mut self) -> Result<(), Error> {
        self.settle_extent(Operation::Session).await?;
        if let Some(extents) = &mut self.extents {
            let closed = extents.close(self.lane.any()).await;
            closed.map_err(|source| OperationErrorKind::Fabric { source }.during(Operation::Session))?;
        }
        Ok(())
    }

    /// Returns the counters of this client since it was opened: taken locks, stale paths, moved entries, rows that were
    /// read again, clients suspected, dead clients recovered, and more. They only grow. No round trip.
    /// [`crate::admin::Stat::totals`] has the sums over all clients of a table.
    pub fn counters(&self) -> Counters {
        counters(&self.client, self.extents.as_ref()).plus(&self.earlier)
    }

    /// Returns the number of this client's slot, from 0, as used by [`crate::admin::ClientStat::slot`] and errors. It
    /// changes when a lost connection to a memory node is replaced. No round trip.
    pub fn slot(&self) -> u16 {
        self.owner.0 - 1
    }
}

impl Client {
    /// Gives back locks, extents and the slot.
    async fn give_back(&mut self) -> Result<(), Error> {
        self.release_memory().await?;
        let delta = self.reported.delta(&self.client, self.extents.as_ref());
        report(Arc::clone(self.client.table()), self.lane.any(), delta).await;
        let released = release_slot(self.lane.any(), self.client.table(), self.owner).await;
        released.map_err(|source| OperationErrorKind::Fabric { source }.during(Operation::Session).into())
    }

    /// Closes the client: gives back its chunks and its slot. Round trips: 3, and those of [`Client::release_memory`].
    /// Source: R-SLOT-1.
    ///
    /// # Errors
    /// Same as [`Client::release_memory`]. Then the slot is that of a dead client, and the next client that needs it
    /// recovers it; no value that was put is lost.
    pub async fn close(mut self) -> Result<(), Error> {
        if self.lane.is_stale() {
            return Err(self.binding.store.fabric("cannot close a client of")(FabricError::Forked));
        }
        let closed = self.give_back().await;
        self.hold = None;
        closed
    }
}

impl Drop for Client {
    /// Gives back locks, extents and the slot, unless the client is closed, or would have to wait. In a forked child it
    /// does nothing: the slot is the parent's.
    fn drop(&mut self) {
        let would_wait = self.lane.is_remote() && self.waiting == Waiting::Cooperative;
        if self.hold.is_none() || would_wait || self.lane.is_stale() {
            return;
        }
        // On failure the slot stays taken by a client that is no longer alive, as if this process had died.
        let _ = block_on(self.give_back());
        self.hold = None;
    }
}
