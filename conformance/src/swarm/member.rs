//! Clients of a swarm: random operations on random keys, recorded in a history, until their share is done or they stop.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use guira_check::history::{Answer, Call, History, PendingOperation};
use guira_extents::ExtentError;
use guira_fabric::{Effect, FabricError, Lane, Region, SplitMix64, pause_until};
use guira_fabric_sim::{SimLane, SimRegion};
use guira_lab::simulated::{Claim, Failure, SimClient};
use guira_layout::{LockId, Preset, SuperblockError};
use guira_rcuckoo::{
    Change, ClientConfig, Counters, Error, ErrorKind, Expected, InsertRow, Operation, Outcome, RowGuess, RowPredictor,
    Table, TableError, open_table,
};

use super::setup::{Setup, round_trip_ns};
use super::tally::Tally;
use super::values::{key_bytes, key_number, value_bytes, value_number, value_of};

/// The number of the client that puts keys before the run.
pub const FILLER: u32 = u32::MAX >> 1;
/// Tries to get a slot before a client gives up.
const CLAIM_TRIES: u32 = 50;
/// Most sweeps of a scan.
const SWEEPS: u32 = 3;
/// Most keys of one lookup of many: a few, or more than one batch takes.
const MANY_KEYS: [u64; 2] = [4, 40];
/// Bytes of the predictor of rows that every other client has.
const PREDICTOR_BYTES: usize = 16;
/// The last client's deadline for a lock, in nanoseconds: only dead clients can hold one then.
const LAST_DEADLINE_NS: u64 = 1_000_000_000;

/// State that the clients of one run share.
#[derive(Clone)]
pub struct Shared {
    pub setup: Rc<Setup>,
    pub table: Arc<Table>,
    pub history: Rc<RefCell<History>>,
    pub tally: Rc<RefCell<Tally>>,
    /// Violations.
    pub wrong: Rc<RefCell<Vec<String>>>,
    /// The clients that stopped before their share was done, other than by dying.
    pub cut_off: Rc<RefCell<Vec<u32>>>,
    /// Whether no client has a reason to reach its deadline.
    pub is_patient: bool,
    pub can_flip: bool,
    pub can_restart: bool,
    /// Whether something in the plan costs a client its connection.
    pub can_disconnect: bool,
    /// The time until which the memory node may lack memory, if it does in this run.
    pub shortage_ns: Option<u64>,
}

/// The signal that a client cannot continue.
pub struct Stop;

/// A client of a run.
pub struct Member {
    pub number: u32,
    pub shared: Shared,
    rng: SplitMix64,
    serial: u32,
    /// The counters that are already in the tally.
    seen: Counters,
}

impl Member {
    pub fn new(number: u32, shared: &Shared) -> Member {
        let rng = SplitMix64(shared.setup.seed ^ u64::from(number) << 32);
        Member { number, shared: shared.clone(), rng, serial: 0, seen: Counters::default() }
    }

    /// Does the client's share of operations, and closes.
    pub async fn run(mut self, region: SimRegion) {
        let deadline_ns = self.shared.setup.deadline_ns;
        if self.work(&region, deadline_ns).await.is_err() {
            self.shared.tally.borrow_mut().cut_off += 1;
            self.shared.cut_off.borrow_mut().push(self.number);
        }
    }

    async fn work(&mut self, region: &SimRegion, deadline_ns: u64) -> Result<(), Stop> {
        let mut client = self.open(region, deadline_ns).await?;
        for _ in 0..self.shared.setup.operations {
            self.act(&mut client, region).await?;
            self.count(&client);
        }
        client.close().await.or_else(|failure| self.survive(failure))
    }

    /// Puts the first keys while no other client works.
    pub async fn fill(mut self, region: SimRegion) {
        let Ok(mut client) = self.open(&region, LAST_DEADLINE_NS).await else { return };
        for key in 0..self.shared.setup.filled_keys {
            let value = self.next_value();
            if self.put(&mut client, &region, key, value).await.is_err() {
                return;
            }
        }
        if client.close().await.is_err() {
            self.wrong("the first client cannot close".to_owned());
        }
    }

    /// Acts as the last client, when all others have ended or died and no more faults happen: reads every key, changes
    /// the hot ones, and recovers all dead clients.
    pub async fn run_last(mut self, region: SimRegion) {
        if let Some(until_ns) = self.shared.shortage_ns {
            pause_until(&mut region.lane(), until_ns).await;
        }
        let Ok(mut client) = self.open(&region, LAST_DEADLINE_NS).await else { return };
        self.shared.tally.borrow_mut().settled += 1;
        for key in 0..self.shared.setup.keys {
            if self.get(&mut client, &region, key).await.is_err() {
                return;
            }
            if key < self.shared.setup.hot_keys || key % 8 == 0 {
                let value = self.next_value();
                if self.put(&mut client, &region, key, value).await.is_err() {
                    return;
                }
            }
        }
        if self.shared.table.is_repairable() {
            self.reclaim_locks(&mut client).await;
        }
        self.count(&client);
        let own = client.slot();
        for slot in (0..self.shared.setup.slots).filter(|slot| *slot != own) {
            self.recover_surely(&mut client, &region, slot).await;
        }
        if let Err(failure) = client.close().await {
            self.wrong(format!("the last client cannot close: {failure:?}"));
        }
    }

    /// Does an operation under every lock, so that locks of dead clients are reclaimed. [R-REPAIR-1]
    async fn reclaim_locks(&self, client: &mut SimClient) {
        let table = &self.shared.table;
        for lock in (0..table.locks().locks()).map(LockId) {
            let rows = |key: &[u8; 8]| table.placement().rows(table.placement().digest(key));
            let is_under = |key: &[u8; 8]| table.locks().lock_of(rows(key).first) == lock;
            let missing = (self.shared.setup.keys..).map(key_bytes).find(is_under).expect("a key of every row");
            match client.change(&missing, Change::Remove).await {
                Ok(Outcome::Missing) => {}
                other => self.wrong(format!("{lock} is not released: {other:?}")),
            }
        }
    }

    async fn recover_surely(&mut self, client: &mut SimClient, region: &SimRegion, slot: u16) {
        let mut lane = region.lane();
        for try_number in 1..=CLAIM_TRIES {
            match client.recover(slot).await {
                Ok(Some(recovered)) => {
                    let mut tally = self.shared.tally.borrow_mut();
                    tally.count_recovery(recovered.as_ref());
                    return;
                }
                // Verbs of its client may still be in flight.
                Ok(None) => pause(&mut lane, self.shared.setup.replace_interval_ns() * u64::from(try_number)).await,
                Err(failure) => return self.wrong(format!("slot {slot} cannot be recovered: {failure:?}")),
            }
        }
        self.wrong(format!("slot {slot} cannot be held, although no client lives"));
    }

    /// Opens the table and takes a slot.
    async fn open(&mut self, region: &SimRegion, deadline_ns: u64) -> Result<SimClient, Stop> {
        let shared = self.shared.clone();
        for try_number in 1..=CLAIM_TRIES {
            let mut lane = region.lane();
            match open_table(&mut lane, region.main_bytes()).await {
                Ok(_) => {}
                Err(TableError::Superblock(SuperblockError::Empty)) if shared.can_restart => return Err(Stop),
                Err(TableError::Fabric(source)) => {
                    self.survive(Error { operation: Operation::Session, kind: ErrorKind::Fabric { source } }.into())?;
                }
                Err(error) => {
                    self.wrong(format!("the table cannot be opened: {error}"));
                    return Err(Stop);
                }
            }
            let config = self.config(deadline_ns);
            let first = self.rng.below(shared.setup.slots.into()) as u16;
            match SimClient::claim(region.clone(), lane, &shared.table, config, first).await {
                Ok(Claim::Taken(client, recovered)) => {
                    let mut tally = shared.tally.borrow_mut();
                    tally.opened += 1;
                    tally.count_recovery(recovered.as_ref());
                    self.seen = Counters::default();
                    // Printed clients predict nothing. So small that keys share its places.
                    let predicts = self.number % 2 == 1 && shared.setup.preset != Preset::Paper;
                    let predictor = predicts.then(|| Arc::new(RowPredictor::new(PREDICTOR_BYTES)));
                    let client = match predictor {
                        Some(predictor) => client.with_predictor(predictor),
                        None => *client,
                    };
                    // In tables with segments: as one that opened the table before any of them was split.
                    return Ok(if self.number.is_multiple_of(3) { client.forgetting_splits() } else { client });
                }
                Ok(Claim::NoSlot) => {
                    pause(&mut region.lane(), shared.setup.replace_interval_ns() * u64::from(try_number)).await;
                }
                Err(error) => self.survive(error.into())?,
            }
        }
        shared.tally.borrow_mut().without_slot += 1;
        Err(Stop)
    }

    fn config(&self, deadline_ns: u64) -> ClientConfig {
        let seed = self.shared.setup.seed ^ u64::from(self.number);
        let timeout_ns = self.shared.setup.repair_timeout_ns();
        // Both kinds of clients in one table.
        let insert_row = if self.number % 4 < 2 { InsertRow::Emptier } else { InsertRow::Primary };
        // Of those that predict, which have odd numbers, every other one.
        let row_guess = if self.number % 4 == 3 { RowGuess::Always } else { RowGuess::Rationed };
        ClientConfig {
            row_guess,
            seed,
            deadline_ns,
            insert_row,
            failure_timeout_ns: timeout_ns,
            lease_timeout_ns: timeout_ns,
            ..ClientConfig::for_table(&self.shared.table)
        }
    }

    /// One operation.
    async fn act(&mut self, client: &mut SimClient, region: &SimRegion) -> Result<(), Stop> {
        let growth_percent = self.shared.setup.growth_percent;
        if growth_percent > 0 && self.rng.below(100) < growth_percent {
            return self.put_new(client, region).await;
        }
        let key = self.key();
        if self.rng.below(100) < self.shared.setup.drops_percent {
            let longest_ns = 20 * round_trip_ns(self.shared.setup.profile);
            client.drop_next_after(self.rng.below(longest_ns));
        }
        match self.rng.below(200) {
            0..60 => self.get(client, region, key).await.map(drop),
            60..76 => self.get_many(client, region).await,
            76..78 => self.scan(client, region).await,
            78..118 => {
                let value = self.next_value();
                self.put(client, region, key, value).await
            }
            118..136 => {
                let value = self.next_value();
                let change = self.change(client, region, key, Call::Insert(value), Some(value));
                change.await
            }
            136..160 => {
                let value = self.next_value();
                self.change(client, region, key, Call::Update(value), Some(value)).await
            }
            160..180 => self.change(client, region, key, Call::Remove, None).await,
            180..190 => self.swap(client, region, key).await,
            190..196 => self.swap_by_token(client, region, key).await,
            _ => self.remove_if(client, region, key).await,
        }
    }

    /// Puts or inserts one of the keys that were not put first.
    async fn put_new(&mut self, client: &mut SimClient, region: &SimRegion) -> Result<(), Stop> {
        let Setup { keys, filled_keys, .. } = *self.shared.setup;
        let (key, value) = (filled_keys + self.rng.below(keys - filled_keys), self.next_value());
        match self.rng.below(2) {
            0 => self.put(client, region, key, value).await,
            _ => self.change(client, region, key, Call::Insert(value), Some(value)).await,
        }
    }

    fn key(&mut self) -> u64 {
        let setup = &self.shared.setup;
        let of = if setup.hot_keys > 0 && self.rng.below(2) == 0 { setup.hot_keys } else { setup.keys };
        self.rng.below(of)
    }

    /// Returns a value that no other client writes. Short values are the most frequent.
    fn next_value(&mut self) -> u64 {
        self.serial += 1;
        let lengths = self.shared.setup.lengths.len() as u64;
        let length = self.rng.below(lengths).min(self.rng.below(lengths));
        value_number(self.number, self.serial, length as usize)
    }

    /// Returns the history's time. Everything before the run happens at 0.
    fn now_ns(&self, region: &SimRegion) -> u64 {
        if self.number == FILLER { 0 } else { 1 + region.now_ns() }
    }

    fn begin(&self, region: &SimRegion, key: u64, call: Call) -> PendingOperation {
        self.shared.tally.borrow_mut().operations += 1;
        self.shared.history.borrow_mut().begin(u64::from(self.number), key, call, self.now_ns(region))
    }

    fn end(&self, region: &SimRegion, begun: PendingOperation, answer: Answer) {
        self.shared.history.borrow_mut().complete(begun, answer, self.now_ns(region));
    }

    /// Returns the number of the value that a lookup found.
    fn number_of(&self, key: u64, found: &[u8]) -> Option<u64> {
        value_of(found, &self.shared.setup.lengths)
            .inspect_err(|wrong| self.wrong(format!("client {} found key {key} to have {wrong}", self.number)))
            .ok()
    }

    /// Records a lookup that ended, and returns the value's number.
    fn end_lookup(&self, region: &SimRegion, begun: PendingOperation, key: u64, found: Option<&[u8]>) -> Option<u64> {
        let number = found.and_then(|found| self.number_of(key, found));
        match (found, number) {
            (None, _) => self.end(region, begun, Answer::Absent),
            (Some(_), Some(number)) => self.end(region, begun, Answer::Found(number)),
            (Some(_), None) => self.shared.history.borrow_mut().fail(begun),
        }
        number
    }

    async fn get(&mut self, client: &mut SimClient, region: &SimRegion, key: u64) -> Result<Option<u64>, Stop> {
        let begun = self.begin(region, key, Call::Get);
        match client.get(&key_bytes(key)).await {
            Ok(found) => Ok(self.end_lookup(region, begun, key, found.as_ref().map(|(value, _)| &value[..]))),
            Err(failure) => {
                self.shared.history.borrow_mut().fail(begun);
                self.survive(failure).map(|()| None)
            }
        }
    }

    async fn get_many(&mut self, client: &mut SimClient, region: &SimRegion) -> Result<(), Stop> {
        let most = MANY_KEYS[self.rng.below(2) as usize];
        let keys: Vec<u64> = (0..1 + self.rng.below(most)).map(|_| self.key()).collect();
        let begun: Vec<PendingOperation> = keys.iter().map(|key| self.begin(region, *key, Call::Get)).collect();
        let bytes: Vec<[u8; 8]> = keys.iter().map(|key| key_bytes(*key)).collect();
        let answers = client.get_many(&bytes).await;
        let mut ended = Ok(());
        for ((answer, key), begun) in answers.into_iter().zip(keys).zip(begun) {
            match answer {
                Ok(found) => {
                    self.end_lookup(region, begun, key, found.as_deref());
                }
                Err(error) => {
                    self.shared.history.borrow_mut().fail(begun);
                    ended = ended.and(self.survive(error.into()));
                }
            }
        }
        ended
    }

    /// Scans the table, which counts as a lookup of every key that it returns, and of every other one if it is a
    /// snapshot.
    async fn scan(&mut self, client: &mut SimClient, region: &SimRegion) -> Result<(), Stop> {
        let keys = 0..self.shared.setup.keys;
        let mut begun: Vec<Option<PendingOperation>> =
            keys.map(|key| Some(self.begin(region, key, Call::Get))).collect();
        let scanned = client.snapshot(self.config(self.shared.setup.deadline_ns), SWEEPS).await;
        let ended = match scanned {
            Ok(scanned) => {
                self.shared.tally.borrow_mut().stable_scans += u64::from(scanned.is_stable());
                for (key, value) in scanned.iter() {
                    let number = key_number(key).filter(|key| *key < begun.len() as u64);
                    let Some(key) = number else {
                        self.wrong(format!("a scan found key {key:x?}, which no client put"));
                        continue;
                    };
                    match begun[key as usize].take() {
                        Some(begun) => drop(self.end_lookup(region, begun, key, Some(value))),
                        None if scanned.is_stable() => self.wrong(format!("a snapshot holds key {key} twice")),
                        None => {}
                    }
                }
                for begun in begun.iter_mut().filter(|_| scanned.is_stable()).filter_map(Option::take) {
                    self.end(region, begun, Answer::Absent);
                }
                Ok(())
            }
            Err(failure) => self.survive(failure),
        };
        begun.into_iter().flatten().for_each(|begun| self.shared.history.borrow_mut().fail(begun));
        ended
    }

    async fn put(&mut self, client: &mut SimClient, region: &SimRegion, key: u64, value: u64) -> Result<(), Stop> {
        self.change(client, region, key, Call::Put(value), Some(value)).await
    }

    /// Returns a value to compare with: the one that `key` had a moment ago, or one that it never had.
    async fn expected(&mut self, client: &mut SimClient, region: &SimRegion, key: u64) -> Result<u64, Stop> {
        let found = self.get(client, region, key).await?;
        Ok(found.filter(|_| self.rng.below(4) > 0).unwrap_or_else(|| value_number(self.number, 0, 0)))
    }

    async fn swap(&mut self, client: &mut SimClient, region: &SimRegion, key: u64) -> Result<(), Stop> {
        let (expected, new) = (self.expected(client, region, key).await?, self.next_value());
        self.change(client, region, key, Call::CompareAndSwap { expected, new }, Some(new)).await
    }

    async fn remove_if(&mut self, client: &mut SimClient, region: &SimRegion, key: u64) -> Result<(), Stop> {
        let expected = self.expected(client, region, key).await?;
        self.change(client, region, key, Call::CompareAndRemove(expected), None).await
    }

    /// Swaps if no client has changed the key since it was read.
    async fn swap_by_token(&mut self, client: &mut SimClient, region: &SimRegion, key: u64) -> Result<(), Stop> {
        let begun = self.begin(region, key, Call::Get);
        let (found, token) = match client.get(&key_bytes(key)).await {
            Ok(Some((value, token))) => (self.end_lookup(region, begun, key, Some(&value)), token),
            Ok(None) => {
                self.end(region, begun, Answer::Absent);
                return Ok(());
            }
            Err(failure) => {
                self.shared.history.borrow_mut().fail(begun);
                return self.survive(failure);
            }
        };
        let Some(expected) = found else { return Ok(()) };
        let new = self.next_value();
        let begun = self.begin(region, key, Call::CompareAndSwap { expected, new });
        let bytes = value_bytes(new, &self.shared.setup.lengths);
        let swap = |value| Change::Swap(Expected::Unchanged(token), value);
        match client.change_value(&key_bytes(key), &bytes, Operation::CompareAndSwap, swap).await {
            // A token may fail because of a neighbour's change, which says nothing about the key.
            Ok(Outcome::Different) => self.shared.history.borrow_mut().fail(begun),
            Ok(outcome) => self.end(region, begun, answer_of(begun_swap(expected, new), outcome)),
            Err(failure) => return self.fail(region, begun, failure),
        }
        Ok(())
    }

    async fn change(
        &mut self,
        client: &mut SimClient,
        region: &SimRegion,
        key: u64,
        call: Call,
        value: Option<u64>,
    ) -> Result<(), Stop> {
        let lengths = self.shared.setup.lengths.clone();
        let bytes = value.map(|value| value_bytes(value, &lengths)).unwrap_or_default();
        let begun = self.begin(region, key, call);
        let key = key_bytes(key);
        let changed = match call {
            Call::Get | Call::Put(_) => client.change_value(&key, &bytes, Operation::Put, Change::Put).await,
            Call::Insert(_) => client.change_value(&key, &bytes, Operation::Insert, Change::Insert).await,
            Call::Update(_) => client.change_value(&key, &bytes, Operation::Update, Change::Update).await,
            Call::Remove => client.change(&key, Change::Remove).await,
            Call::CompareAndSwap { expected, .. } => {
                let expected = value_bytes(expected, &lengths);
                let swap = |value| Change::Swap(Expected::Value(&expected), value);
                client.change_value(&key, &bytes, Operation::CompareAndSwap, swap).await
            }
            Call::CompareAndRemove(expected) => {
                let expected = value_bytes(expected, &lengths);
                client.change(&key, Change::RemoveIf(Expected::Value(&expected))).await
            }
        };
        match changed {
            Ok(outcome) => {
                self.end(region, begun, answer_of(call, outcome));
                Ok(())
            }
            Err(failure) => self.fail(region, begun, failure),
        }
    }

    /// Records a change that failed: as pending if it may have had an effect.
    fn fail(&mut self, region: &SimRegion, begun: PendingOperation, failure: Failure) -> Result<(), Stop> {
        match failure.effect() {
            Effect::None => self.shared.history.borrow_mut().fail(begun),
            Effect::Done => self.end(region, begun, Answer::Done),
            Effect::Unknown => {}
        }
        self.survive(failure)
    }

    /// Counts a failure. One after which the client cannot continue stops it, and one without an explanation is a
    /// violation.
    fn survive(&self, failure: Failure) -> Result<(), Stop> {
        let (shared, mut tally) = (&self.shared, self.shared.tally.borrow_mut());
        match failure {
            Failure::Operation(Error { kind: ErrorKind::Full { .. }, .. })
            | Failure::Extent(ExtentError::Full { .. }) => tally.full += 1,
            Failure::Operation(Error { kind: ErrorKind::NoMemory(_), .. }) if shared.shortage_ns.is_some() => {
                tally.without_memory += 1;
            }
            Failure::Dropped { .. } => tally.dropped += 1,
            Failure::Operation(Error { kind: ErrorKind::Busy { .. }, .. }) if !shared.is_patient => tally.busy += 1,
            Failure::Operation(Error { kind: ErrorKind::Corrupt { .. }, .. }) if shared.can_flip => tally.corrupt += 1,
            Failure::Operation(Error {
                kind: ErrorKind::Fabric { source: FabricError::Disconnected { .. } } | ErrorKind::Lost { .. },
                ..
            })
            | Failure::Extent(ExtentError::Fabric(FabricError::Disconnected { .. }))
                if shared.can_disconnect =>
            {
                return Err(Stop);
            }
            failure => {
                drop(tally);
                self.wrong(format!("client {} met {failure:?}", self.number));
                return Err(Stop);
            }
        }
        Ok(())
    }

    fn wrong(&self, what: String) {
        self.shared.wrong.borrow_mut().push(what);
    }

    /// Adds to the tally the counters since the last call.
    fn count(&mut self, client: &SimClient) {
        let now = client.counters();
        self.shared.tally.borrow_mut().count(&self.seen, &now);
        self.seen = now;
    }
}

fn begun_swap(expected: u64, new: u64) -> Call {
    Call::CompareAndSwap { expected, new }
}

/// Returns the answer to `call` that `outcome` is.
fn answer_of(call: Call, outcome: Outcome) -> Answer {
    match (call, outcome) {
        (Call::Put(_), Outcome::Inserted) => Answer::Inserted,
        (Call::Put(_), Outcome::Replaced) => Answer::Replaced,
        (_, Outcome::Inserted | Outcome::Replaced | Outcome::Removed) => Answer::Done,
        (_, Outcome::Exists) => Answer::Exists,
        (_, Outcome::Missing) => Answer::Missing,
        (_, Outcome::Different) => Answer::Mismatch,
    }
}

async fn pause(lane: &mut SimLane, for_ns: u64) {
    let until_ns = lane.now_ns().saturating_add(for_ns);
    pause_until(lane, until_ns).await;
}
