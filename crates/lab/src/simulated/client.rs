//! A client of a simulated table, like `guira::Client`: it takes a slot, cuts extents from chunks with the store's own
//! allocator, recovers clients that it finds dead, and waits in the lock queue of its host, if that has one.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use guira_extents::{ExtentError, Extents};
use guira_fabric::{Effect, FabricError, FenceProof, Lane, Region, SlotHold, Traffic, pause_until};
use guira_fabric_sim::{SimLane, SimRegion};
use guira_layout::{EntryKind, ExtentRef, OwnerId, SlotWord, encode_extent};
use guira_lock_queue::{BlindWrite, Permit, Request, SharedLockQueue, Wait, WaitMode, WaitResult};
use guira_rcuckoo::{
    Change, Changed, Client, ClientConfig, Counters, Error, ErrorKind, NewValue, Operation, Outcome, Reader, Recovered,
    RowPredictor, SlotClient, Snapshot, Table, Token, claim_slot, read_slot, recover, release_slot,
};

/// The reason why an operation failed.
#[derive(Clone, Debug)]
pub enum Failure {
    /// An error of the protocol.
    Operation(Error),
    /// No space for the value, or a fabric error while searching for it.
    Extent(ExtentError),
    /// The operation was dropped, and its batch in flight has been executed.
    Dropped {
        /// Whether it was a change that took effect nevertheless.
        committed: bool,
    },
}

impl Failure {
    /// Returns the operation's effect on its key.
    pub fn effect(&self) -> Effect {
        match self {
            Failure::Operation(error) => error.effect(),
            // The index has not been touched yet.
            Failure::Extent(_) | Failure::Dropped { committed: false } => Effect::None,
            Failure::Dropped { committed: true } => Effect::Done,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Operation(error)
    }
}

impl From<ExtentError> for Failure {
    fn from(error: ExtentError) -> Failure {
        Failure::Extent(error)
    }
}

/// A client and its slot.
pub struct SimClient {
    region: SimRegion,
    lane: SimLane,
    /// A lane used as a clock only.
    timer: SimLane,
    client: Client,
    extents: Option<Extents>,
    encoded: Vec<u64>,
    owner: OwnerId,
    hold: SlotHold,
    /// The queue of its host in front of the table's locks.
    lock_queue: Option<Arc<SharedLockQueue>>,
    /// The longest wait for locks, in the queue and behind it.
    deadline_ns: u64,
    /// The wait after which the next operation is dropped, in nanoseconds.
    drop_after_ns: Option<u64>,
}

/// The result of claiming a slot.
pub enum Claim {
    /// A slot was taken, possibly after its last client was recovered.
    Taken(Box<SimClient>, Option<Recovered>),
    /// No slot is free, and no client is provably dead.
    NoSlot,
}

impl SimClient {
    /// Takes a free slot; without one, recovers a dead client and takes its slot. Slots are tried from `first` on.
    /// [R-SLOT-1] [R-SLOT-2]
    ///
    /// # Errors
    /// Errors of the fabric. `Corrupt` slots are skipped.
    pub async fn claim(
        region: SimRegion,
        mut lane: SimLane,
        table: &Arc<Table>,
        config: ClientConfig,
        first: u16,
    ) -> Result<Claim, Error> {
        let slots = table.config().max_clients;
        for takes_dead in [false, true] {
            for slot in (0..slots).map(|slot| (first + slot) % slots) {
                let Some(mut hold) = region.hold(slot).map_err(session)? else { continue };
                let mut recovered = None;
                if takes_dead {
                    (hold, recovered) = match recover_slot(&mut lane, table, slot, hold).await? {
                        Some(taken) => taken,
                        None => continue,
                    };
                }
                let claimed = claim_slot(&mut lane, table, slot, &SlotClient::default()).await.map_err(session)?;
                let Some(owner) = claimed else { continue };
                let client = Client::new(Arc::clone(table), owner, config).with_liveness(Box::new(region.clone()));
                let has_extents = table.config().format.has_extents();
                let extents = has_extents.then(|| Extents::new(Arc::clone(table), owner));
                let client = SimClient {
                    timer: region.lane(),
                    region,
                    lane,
                    client,
                    extents,
                    encoded: Vec::new(),
                    owner,
                    hold,
                    lock_queue: None,
                    deadline_ns: config.deadline_ns,
                    drop_after_ns: None,
                };
                return Ok(Claim::Taken(Box::new(client), recovered));
            }
        }
        Ok(Claim::NoSlot)
    }

    /// Makes the client wait in `queue` before it asks for locks, as clients of one process do behind a memory node.
    #[must_use]
    pub fn with_lock_queue(mut self, queue: Arc<SharedLockQueue>) -> SimClient {
        self.lock_queue = Some(queue);
        self
    }

    /// Makes the client's lookups ask `predictor` which row has their key. [R-READ-10]
    #[must_use]
    pub fn with_predictor(mut self, predictor: Arc<RowPredictor>) -> SimClient {
        self.client = self.client.with_predictor(predictor);
        self
    }

    /// Makes the client look for keys where they were before any segment was split. [R-GROW-4]
    #[must_use]
    pub fn forgetting_splits(mut self) -> SimClient {
        self.client.forget_splits();
        self
    }

    /// Drops the next operation when it has waited `drop_after_ns` nanoseconds. The search for space for a value is
    /// never dropped, because no existing fabric makes it wait; nor is a wait in the lock queue.
    pub fn drop_next_after(&mut self, drop_after_ns: u64) {
        self.drop_after_ns = Some(drop_after_ns);
    }

    /// Waits until the batch of a dropped operation has been executed. [R-DROP-1]
    async fn settle(&mut self) -> Result<(), Failure> {
        Ok(self.client.settle(&mut self.lane).await.map_err(session)?)
    }

    /// Returns the client's slot.
    pub fn slot(&self) -> u16 {
        self.owner.0 - 1
    }

    /// Returns the client's counters.
    pub fn counters(&self) -> Counters {
        let swept_extents = self.extents.as_ref().map_or(0, Extents::swept);
        Counters { swept_extents, ..self.client.counters() }
    }

    /// Returns the exact counts of what the client's lane has sent and received.
    pub fn traffic(&self) -> &Traffic {
        self.lane.traffic()
    }

    /// Returns the virtual time, in nanoseconds.
    pub fn now_ns(&mut self) -> u64 {
        self.timer.now_ns()
    }

    /// Waits for `pause_ns` nanoseconds of virtual time, as a client that computes.
    pub async fn pause(&mut self, pause_ns: u64) {
        let until_ns = self.timer.now_ns().saturating_add(pause_ns);
        pause_until(&mut self.timer, until_ns).await;
    }

    /// Looks `key` up.
    ///
    /// # Errors
    /// Same as [`Reader::get`].
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Token)>, Failure> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value).await?.map(|token| (value, token)))
    }

    /// Looks `key` up, and replaces the content of `value` with its value.
    ///
    /// # Errors
    /// Same as [`Reader::get`].
    pub async fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<Token>, Failure> {
        value.clear();
        match self.drop_after_ns.take() {
            None => Ok(self.client.get(&mut self.lane, key, value).await?),
            // Boxed: only swarms drop operations, and the future would be twice as large.
            Some(drop_after_ns) => Box::pin(self.get_within(drop_after_ns, key, value)).await,
        }
    }

    /// Looks `key` up, and drops the lookup if it waits longer than `drop_after_ns`.
    async fn get_within(
        &mut self,
        drop_after_ns: u64,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<Token>, Failure> {
        let got = self.client.get(&mut self.lane, key, value);
        match within(&mut self.timer, drop_after_ns, got).await {
            Some(token) => Ok(token?),
            None => {
                self.settle().await?;
                Err(Failure::Dropped { committed: false })
            }
        }
    }

    /// Looks `keys` up, and returns one answer for each.
    pub async fn get_many(&mut self, keys: &[[u8; 8]]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let mut answers = Vec::with_capacity(keys.len());
        let visit = |_, answer: Result<Option<&[u8]>, Error>| answers.push(answer.map(|found| found.map(Vec::from)));
        self.client.get_many(&mut self.lane, keys, visit).await;
        answers
    }

    /// Reads the whole table.
    ///
    /// # Errors
    /// Same as [`Reader::snapshot`].
    pub async fn snapshot(&mut self, config: ClientConfig, max_sweeps: u32) -> Result<Snapshot, Failure> {
        let mut reader = Reader::new(Arc::clone(self.client.table()), config);
        Ok(reader.snapshot(&mut self.lane, max_sweeps, |_, _| ()).await?)
    }

    /// Inserts `key`, or replaces its value.
    ///
    /// # Errors
    /// Same as [`SimClient::change_value`].
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Outcome, Failure> {
        self.change_value(key, value, Operation::Put, Change::Put).await
    }

    /// Inserts `key`, if it does not exist.
    ///
    /// # Errors
    /// Same as [`SimClient::change_value`].
    pub async fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<Outcome, Failure> {
        self.change_value(key, value, Operation::Insert, Change::Insert).await
    }

    /// Replaces the value of `key`, if it exists.
    ///
    /// # Errors
    /// Same as [`SimClient::change_value`].
    pub async fn update(&mut self, key: &[u8], value: &[u8]) -> Result<Outcome, Failure> {
        self.change_value(key, value, Operation::Update, Change::Update).await
    }

    /// Removes `key`.
    ///
    /// # Errors
    /// Same as [`SimClient::change`].
    pub async fn remove(&mut self, key: &[u8]) -> Result<Outcome, Failure> {
        self.change(key, Change::Remove).await
    }

    /// Carries out a change with a value.
    ///
    /// # Errors
    /// Same as [`Client::change`], and those of the allocator.
    pub async fn change_value<'v>(
        &'v mut self,
        key: &[u8],
        value: &'v [u8],
        operation: Operation,
        change: impl FnOnce(NewValue<'v>) -> Change<'v>,
    ) -> Result<Outcome, Failure> {
        let permit = match self.permit(key, blind_write(operation), operation).await? {
            WaitResult::Combined(outcome) => return Ok(outcome),
            WaitResult::Permit(permit) => Some(permit),
            WaitResult::NoPermit => None,
        };
        let outcome = self.attempt_value(key, value, operation, change).await?;
        Ok(combined(permit, outcome))
    }

    /// Reserves space for the value, and carries out the change with it.
    async fn attempt_value<'v>(
        &'v mut self,
        key: &[u8],
        value: &'v [u8],
        operation: Operation,
        change: impl FnOnce(NewValue<'v>) -> Change<'v>,
    ) -> Result<Outcome, Failure> {
        let extent = self.reserve(key, value, operation).await?;
        let change = change(match extent {
            None => NewValue::Inline(value),
            Some(extent) => {
                let sums = self.client.table().rows().sums();
                encode_extent(&mut self.encoded, &extent, key, value, sums);
                NewValue::Extent { extent, words: &self.encoded }
            }
        });
        let drop_after_ns = self.drop_after_ns.take();
        let parts = (&mut self.client, &mut self.lane, &mut self.timer);
        let Some(result) = change_within(parts, drop_after_ns, key, change).await else {
            self.client.settle(&mut self.lane).await.map_err(session)?;
            let committed = self.client.has_committed();
            match (extent, &mut self.extents) {
                (Some(extent), Some(extents)) if committed => extents.link(&extent),
                (Some(extent), Some(extents)) => extents.cancel(&extent),
                _ => {}
            }
            return Err(Failure::Dropped { committed });
        };
        if let Some(extents) = &mut self.extents {
            match (extent, &result) {
                (Some(extent), Ok(changed)) if changed.took_effect() => extents.link(&extent),
                (Some(_), Err(error)) if error.effect() == Effect::Unknown => {}
                (Some(extent), _) => extents.cancel(&extent),
                (None, _) => {}
            }
            if let Ok(Changed { freed: Some(freed), .. }) = &result {
                extents.give_back(freed);
            }
        }
        Ok(result?.outcome)
    }

    /// Carries out a change without a value.
    ///
    /// # Errors
    /// Same as [`Client::change`].
    pub async fn change(&mut self, key: &[u8], change: Change<'_>) -> Result<Outcome, Failure> {
        let permit = match self.permit(key, None, change.operation()).await? {
            WaitResult::Combined(outcome) => return Ok(outcome),
            WaitResult::Permit(permit) => Some(permit),
            WaitResult::NoPermit => None,
        };
        let outcome = self.attempt(key, change).await?;
        Ok(combined(permit, outcome))
    }

    async fn attempt(&mut self, key: &[u8], change: Change<'_>) -> Result<Outcome, Failure> {
        self.client.refuse_if_lost().map_err(|kind| kind.during(Operation::Remove))?;
        if let Some(extents) = &mut self.extents {
            extents.maintain(&mut self.lane).await.map_err(ExtentError::Fabric)?;
        }
        let drop_after_ns = self.drop_after_ns.take();
        let parts = (&mut self.client, &mut self.lane, &mut self.timer);
        let Some(changed) = change_within(parts, drop_after_ns, key, change).await else {
            self.settle().await?;
            return Err(Failure::Dropped { committed: self.client.has_committed() });
        };
        let changed = changed?;
        if let (Some(extents), Some(freed)) = (&mut self.extents, &changed.freed) {
            extents.give_back(freed);
        }
        Ok(changed.outcome)
    }

    /// Waits in the queue of the client's host, if that has one, for the permit to take the locks of `key`. [R-LOCK-4]
    async fn permit(
        &mut self,
        key: &[u8],
        blind_write: Option<BlindWrite>,
        operation: Operation,
    ) -> Result<WaitResult, Failure> {
        let Some(queue) = &self.lock_queue else { return Ok(WaitResult::NoPermit) };
        self.client.clear_queue_wait();
        // What a dropped operation left is given back first: other clients must not wait for that behind this one.
        if !self.client.is_settled() || !self.extents.as_ref().is_none_or(Extents::is_settled) {
            return Ok(WaitResult::NoPermit);
        }
        let table = Arc::clone(self.client.table());
        let key = self.client.key(key).map_err(|kind| kind.during(operation))?;
        let request = Request::of(&table, &key, blind_write);
        let wait = Wait::within(self.deadline_ns, WaitMode::Suspend);
        Ok(queue.permit(request, wait, &mut self.client, &mut self.lane).await)
    }

    /// Reserves an extent for a value that needs one; if there is no space, recovers dead clients first, and then lets a
    /// table that grows add chunks. [R-RECOVER-1] [R-GROW-15]
    async fn reserve(&mut self, key: &[u8], value: &[u8], operation: Operation) -> Result<Option<ExtentRef>, Failure> {
        self.client.refuse_if_lost().map_err(|kind| kind.during(operation))?;
        let table = self.client.table();
        let key = table.key(key).map_err(|kind| kind.during(operation))?;
        let placement = table.place(&key, value.len()).map_err(|kind| kind.during(operation))?;
        let Some(extents) = &mut self.extents else { return Ok(None) };
        if placement == EntryKind::Inline {
            extents.maintain(&mut self.lane).await.map_err(ExtentError::Fabric)?;
            return Ok(None);
        }
        let full = match extents.reserve(&mut self.lane, &key, value).await {
            Err(full @ ExtentError::Full { .. }) => full,
            reserved => return Ok(Some(reserved?)),
        };
        let owners = extents.owners(&mut self.lane).await.map_err(ExtentError::Fabric)?;
        let recovered = self.client.recover_owners(&mut self.lane, &owners, operation).await?;
        if recovered == 0 && !extents.allow_chunks() {
            return Err(full.into());
        }
        Ok(Some(extents.reserve_growing(&mut self.lane, &key, value).await?))
    }

    /// Gives back the client's chunks and slot.
    ///
    /// # Errors
    /// Errors of the fabric; the slot is then left as by a dead client.
    pub async fn close(mut self) -> Result<(), Failure> {
        if let Some(extents) = &mut self.extents {
            extents.close(&mut self.lane).await.map_err(ExtentError::Fabric)?;
        }
        release_slot(&mut self.lane, self.client.table(), self.owner).await.map_err(session)?;
        drop(self.hold);
        Ok(())
    }

    /// Recovers the client that died in `slot`, as a client without a slot does. `None` if the slot cannot be held: its
    /// client lives, or verbs of a former one are still in flight.
    ///
    /// # Errors
    /// `Corrupt` if the slot is damaged; errors of the fabric.
    pub async fn recover(&mut self, slot: u16) -> Result<Option<Option<Recovered>>, Failure> {
        let Some(hold) = self.region.hold(slot).map_err(session)? else { return Ok(None) };
        let table = Arc::clone(self.client.table());
        let recovered = recover_slot(&mut self.lane, &table, slot, hold).await?;
        Ok(recovered.map(|(_, recovered)| recovered))
    }
}

/// Returns the kind of blind write of a change with a value, if it is one.
fn blind_write(operation: Operation) -> Option<BlindWrite> {
    match operation {
        Operation::Put => Some(BlindWrite::Put),
        Operation::Update => Some(BlindWrite::Update),
        _ => None,
    }
}

/// Combines the writes that waited for `permit`, and returns the outcome of the change as the last of them. [R-LOCK-8]
fn combined(permit: Option<Permit>, outcome: Outcome) -> Outcome {
    permit.map_or(outcome, |permit| permit.combine_waiting(outcome))
}

/// Recovers the client that died in `slot`, whose liveness is `hold`, and returns the hold with the result. `None` if
/// its record is damaged: its locks stay held.
async fn recover_slot(
    lane: &mut SimLane,
    table: &Table,
    slot: u16,
    hold: SlotHold,
) -> Result<Option<(SlotHold, Option<Recovered>)>, Error> {
    let info = read_slot(lane, table, slot).await.map_err(session)?;
    let Some(SlotWord { generation, .. }) = info.word else { return Ok(None) };
    let proof = FenceProof::new(slot, generation, hold);
    match recover(lane, table, &proof, &SlotClient::default()).await {
        Ok(recovered) => Ok(Some((proof.into_hold(), recovered))),
        Err(Error { kind: ErrorKind::Corrupt { .. }, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Carries out `change`, or drops it if it waits longer than `drop_after_ns`.
async fn change_within(
    (client, lane, timer): (&mut Client, &mut SimLane, &mut SimLane),
    drop_after_ns: Option<u64>,
    key: &[u8],
    change: Change<'_>,
) -> Option<Result<Changed, Error>> {
    match drop_after_ns {
        None => Some(client.change(lane, key, change).await),
        // Boxed: only swarms drop operations, and the future would be twice as large.
        Some(drop_after_ns) => Box::pin(within(timer, drop_after_ns, client.change(lane, key, change))).await,
    }
}

/// Awaits `future`, or drops it if it waits longer than `drop_after_ns`.
async fn within<T>(timer: &mut SimLane, drop_after_ns: u64, future: impl Future<Output = T>) -> Option<T> {
    let until_ns = timer.now_ns().saturating_add(drop_after_ns);
    let (mut future, mut alarm) = (pin!(future), pin!(pause_until(timer, until_ns)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => alarm.as_mut().poll(cx).map(|()| None),
    })
    .await
}

fn session(source: FabricError) -> Error {
    Error { operation: Operation::Session, kind: ErrorKind::Fabric { source } }
}
