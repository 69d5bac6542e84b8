//! The clients of a run: what they do, how they die and are replaced, and what is counted.
//!
//! Invariants: virtual time alone decides what happens; nothing here is ordered by addresses or hashes of a map. An
//! operation counts if it ends in the measured time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use guira_fabric::memory::Ordering;
use guira_fabric::{Region, SplitMix64};
use guira_fabric_sim::{ClientId, Fault, Sim, SimRegion, Stopped};
use guira_lock_queue::SharedLockQueue;
use guira_rcuckoo::{ClientConfig, Counters, Error, ErrorKind, Outcome};

use super::audit::audit;
use super::client::{Claim, Failure, SimClient};
use super::filled::FilledTable;
use super::predictors::Predictors;
use super::run::{Deaths, Queues, Run, RunError, RunStats, Testbed, Victims};
use super::splits::SplitWatch;
use super::watch::{Watch, WriteKind};
use crate::steady::{Counts, Measurement, Next, PROGRESS_NS, Progress, Span, Steadiness};
use crate::workload::{Operation, Rng, Zipf};

/// Interval at which dead clients are replaced, in nanoseconds of virtual time.
const REPLACED_NS: u64 = 10_000;
/// Interval at which a run that ends with an insert is looked at: until then nobody sees that it has ended.
const INSERTS_NS: u64 = 50_000;
/// Bound of the number of verbs, drawn from 0, that a victim still executes before it dies. Batches are short, and a
/// chosen client is nearly always waiting: if it died at its next verb, it would nearly always die before all of its
/// batch.
const DEATH_VERBS: u64 = 8;
/// Bound of the number of units, drawn from 0, that are still executed of the WRITE in which a client dies: rows have
/// few units.
const DEATH_UNITS: u64 = 2;
/// Draws of a record that the table holds, of which nearly every one succeeds.
const DRAWS: usize = 64;
/// The slot that the last client tries first.
const FIRST_SLOT: u16 = 0;
/// Mixed into the seed of deaths.
const DEATH_SALT: u64 = 0x5374_6f72_6d21;

/// State that the clients of a run share.
pub(super) struct Shared {
    pub(super) run: Run,
    pub(super) filled: FilledTable,
    popularity: Option<Zipf>,
    queues: Vec<Arc<SharedLockQueue>>,
    predictors: Predictors,
    pub(super) stats: RefCell<RunStats>,
    pub(super) watch: RefCell<Watch>,
    /// Records that clients began to insert.
    inserts: Cell<u64>,
    /// The last client to take each slot.
    clients: RefCell<BTreeMap<u16, u32>>,
    /// Whether operations that end are counted.
    is_measured: Cell<bool>,
    /// Whether clients stop after their current operation.
    is_over: Cell<bool>,
    /// The time at which the last insert had begun, if the run ended with it.
    ended_ns: Cell<Option<u64>>,
    /// The watch on splits, in a table that grows.
    splits: Option<Rc<RefCell<SplitWatch>>>,
}

/// A place in the run, which one client after the other occupies.
#[derive(Clone, Copy)]
struct Seat {
    /// The place, from 0.
    place: u32,
    /// The client's number; a client that replaces another has a new one.
    number: u32,
}

/// Carries out a run on `filled`, which is changed: fork it for each run that starts from it.
///
/// # Errors
/// The run is impossible, or `progress` ended it. What clients did wrong is no error: see [`RunStats::violations`].
pub fn run(
    run: &Run,
    filled: FilledTable,
    testbed: &dyn Testbed,
    progress: Progress<'_>,
) -> Result<RunStats, RunError> {
    run.check(filled.table().config().max_clients.into(), filled.count())?;
    let queues = match run.queues {
        Queues::None => 0,
        Queues::PerHost => run.hosts,
    };
    let stats = RunStats { counts: Counts::of_clients(run.clients), ..RunStats::default() };
    let mut sim = testbed.simulation(filled.region().clone(), run.seed);
    let popularity = (filled.count() > 0).then(|| Zipf::new(filled.count(), run.theta));
    let predictors = Predictors::new(run, &filled, popularity.as_ref(), progress)?;
    let shared = Rc::new(Shared {
        run: run.clone(),
        popularity,
        queues: (0..queues).map(|_| Arc::new(SharedLockQueue::new())).collect(),
        predictors,
        stats: RefCell::new(stats),
        watch: RefCell::new(Watch::new(filled.count())),
        inserts: Cell::new(0),
        clients: RefCell::default(),
        is_measured: Cell::new(false),
        is_over: Cell::new(false),
        ended_ns: Cell::new(None),
        splits: watch_splits(&mut sim, &filled),
        filled,
    });
    run_clients(&mut sim, &shared, testbed, progress)?;
    shared.stats.borrow_mut().verbs = sim.verbs();
    let table = shared.filled.table();
    if table.is_recoverable() || table.is_repairable() {
        let last = Rc::clone(&shared);
        testbed.spawn(&mut sim, 0, Box::new(move |region| Box::pin(recover_the_dead(region, last))));
        if sim.run() != Stopped::Ended {
            shared.stats.borrow_mut().violation(|| "the last client never ends".to_owned());
        }
    }
    drop(sim);
    if let Some(splits) = &shared.splits {
        shared.stats.borrow_mut().splits = splits.borrow_mut().take();
    }
    audit(&shared);
    Ok(shared.stats.take())
}

/// Has the splits of a table that grows watched.
fn watch_splits(sim: &mut Sim, filled: &FilledTable) -> Option<Rc<RefCell<SplitWatch>>> {
    let watch = Rc::new(RefCell::new(SplitWatch::new(filled.table(), filled.region())?));
    let (events, batches) = (Rc::clone(&watch), Rc::clone(&watch));
    sim.watch(move |event| events.borrow_mut().see(event));
    sim.watch_batches(move |client, batch| batches.borrow_mut().see_batch(client.0, batch));
    Some(watch)
}

/// The clients of a run on a simulation that goes on, from one window of the measurement to the next.
struct Load<'r> {
    sim: &'r mut Sim,
    shared: &'r Rc<Shared>,
    testbed: &'r dyn Testbed,
    living: Vec<ClientId>,
    spawned: u32,
    deaths: SplitMix64,
}

/// Runs clients, and kills some at equal intervals.
fn run_clients(
    sim: &mut Sim,
    shared: &Rc<Shared>,
    testbed: &dyn Testbed,
    progress: Progress<'_>,
) -> Result<(), RunError> {
    let run = &shared.run;
    let deaths = SplitMix64(run.seed ^ DEATH_SALT);
    let mut load = Load { sim, shared, testbed, living: Vec::new(), spawned: 0, deaths };
    for place in 0..run.clients {
        let client = load.spawn(place);
        load.living.push(client);
    }
    load.sim.run_until(run.warm_ns);
    shared.is_measured.set(true);
    let (mut measurement, mut before, mut end_ns) = (Measurement::new(run.span), load.sim.usage(), run.warm_ns);
    loop {
        let begin_ns = end_ns;
        end_ns += measurement.window_ns();
        load.run_window(begin_ns, end_ns, progress)?;
        let inserts_left = run.most_inserts.saturating_sub(shared.inserts.get());
        match measurement.end_window(&mut shared.stats.borrow_mut().counts, inserts_left) {
            Next::Longer => {}
            Next::Anew => before = load.sim.usage(),
            Next::End => break,
        }
    }
    shared.is_measured.set(false);
    shared.is_over.set(true);
    let mut stats = shared.stats.borrow_mut();
    stats.steadiness = Steadiness {
        span_ns: shared.ended_ns.get().map_or(measurement.steadiness().span_ns, |ended_ns| ended_ns - run.warm_ns),
        ..measurement.steadiness()
    };
    stats.usage = load.sim.usage().since(&before);
    stats.inserts = shared.inserts.get() - stats.full;
    drop(stats);
    if load.sim.run() != Stopped::Ended {
        shared.stats.borrow_mut().violation(|| "some clients never end".to_owned());
    }
    Ok(())
}

impl Load<'_> {
    /// Starts a client at a place, whose last one is dead if it had one.
    fn spawn(&mut self, place: u32) -> ClientId {
        let seat = Seat { place, number: self.spawned };
        self.spawned += 1;
        let (shared, host) = (Rc::clone(self.shared), place % self.shared.run.hosts);
        self.testbed.spawn(self.sim, host, Box::new(move |region| Box::pin(work(region, shared, seat))))
    }

    /// Runs until `end_ns`, and kills clients at equal intervals from `begin_ns` on.
    fn run_window(&mut self, begin_ns: u64, end_ns: u64, progress: Progress<'_>) -> Result<(), RunError> {
        let Run { deaths, warm_ns, .. } = self.shared.run;
        let calm_ns = if self.shared.run.span == Span::UntilFull { INSERTS_NS } else { PROGRESS_NS };
        let step_ns = 1_000_000_000_u64.checked_div(deaths.per_second).unwrap_or(calm_ns).max(1);
        let mut next_ns = begin_ns;
        while next_ns < end_ns && !self.shared.is_over.get() {
            if deaths.per_second > 0 {
                self.kill(deaths);
                // The victim dies at one of its next verbs, which may follow a pause.
                for until_ns in (next_ns + REPLACED_NS..next_ns + step_ns).step_by(REPLACED_NS as usize) {
                    self.sim.run_until(until_ns.min(end_ns));
                    self.replace_the_dead();
                }
            }
            next_ns = (next_ns + step_ns).min(end_ns);
            self.sim.run_until(next_ns);
            if progress(next_ns - warm_ns).is_break() {
                return Err(RunError::Stopped);
            }
        }
        Ok(())
    }

    fn replace_the_dead(&mut self) {
        for place in 0..self.living.len() {
            if self.sim.is_dead(self.living[place]) {
                self.shared.stats.borrow_mut().deaths += 1;
                self.living[place] = self.spawn(place as u32);
            }
        }
    }

    /// Lets a client die at one of its next verbs.
    fn kill(&mut self, deaths: Deaths) {
        let holders = match deaths.victims {
            Victims::LockHolders => holders(self.sim, self.shared),
            Victims::Any => Vec::new(),
        };
        let targets = if holders.is_empty() { &self.living } else { &holders };
        let target = targets[self.deaths.below(targets.len() as u64) as usize];
        let (verbs, units) = (self.deaths.below(DEATH_VERBS), self.deaths.below(DEATH_UNITS));
        self.sim.inject(target, verbs, Fault::Die { units });
    }
}

/// Returns the live clients that hold a lock.
fn holders(sim: &Sim, shared: &Shared) -> Vec<ClientId> {
    let (table, clients) = (shared.filled.table(), shared.clients.borrow());
    let words = (0..).zip(shared.filled.region().memory().device);
    let held = words.flat_map(|(word, value)| {
        let value = value.load(Ordering::Relaxed);
        table.locks().all_held(word, value).collect::<Vec<_>>()
    });
    let numbers = held.filter_map(|(_, owner)| clients.get(&owner.slot()?).copied());
    numbers.map(ClientId).filter(|client| !sim.is_dead(*client)).collect()
}

async fn open(region: &SimRegion, shared: &Shared, number: u32, first: u16) -> Option<SimClient> {
    let config = ClientConfig { seed: shared.run.seed ^ u64::from(number), ..shared.run.client_config };
    match SimClient::claim(region.clone(), region.lane(), shared.filled.table(), config, first).await {
        Ok(Claim::Taken(client, recovered)) => {
            let dead = shared.clients.borrow_mut().insert(client.slot(), number);
            if let Some(dead) = dead {
                shared.watch.borrow_mut().end_write_of(dead, region.now_ns());
            }
            let mut stats = shared.stats.borrow_mut();
            stats.recoveries += u64::from(recovered.is_some());
            stats.replays += u64::from(recovered.is_some_and(|recovered| recovered.replayed_rows > 0));
            Some(*client)
        }
        other => {
            let why =
                other.err().map_or("no slot is free, and no client is dead".to_owned(), |error| error.to_string());
            shared.stats.borrow_mut().violation(|| format!("client {number} cannot open: {why}"));
            None
        }
    }
}

async fn work(region: SimRegion, shared: Rc<Shared>, seat: Seat) {
    let first = seat.number % u32::from(shared.filled.table().config().max_clients);
    let Some(client) = open(&region, &shared, seat.number, first as u16).await else { return };
    let client = match shared.queues.get((seat.place % shared.run.hosts) as usize) {
        Some(queue) => client.with_lock_queue(Arc::clone(queue)),
        None => client,
    };
    let client = match shared.predictors.of_client(seat.place % shared.run.hosts) {
        Some(predictor) => client.with_predictor(predictor),
        None => client,
    };
    let rng = Rng::stream(shared.run.seed, seat.number.into());
    let mut worker = Worker { client, rng, seat, key: Vec::new(), value: Vec::new(), shared: Rc::clone(&shared) };
    let mut counted = Counters::default();
    while !shared.is_over.get() {
        worker.step(&region).await;
        // What a client has not counted when it dies is lost.
        if shared.run.deaths.per_second > 0 {
            shared.count(&worker.client, &mut counted);
        }
    }
    shared.count(&worker.client, &mut counted);
    if let Err(failure) = worker.client.close().await {
        shared.stats.borrow_mut().violation(|| format!("client {} cannot close: {failure:?}", seat.number));
    }
}

/// A client at work.
struct Worker {
    client: SimClient,
    rng: Rng,
    seat: Seat,
    key: Vec<u8>,
    value: Vec<u8>,
    shared: Rc<Shared>,
}

impl Worker {
    /// Carries out one operation, and counts it.
    async fn step(&mut self, region: &SimRegion) {
        let shared = Rc::clone(&self.shared);
        let Some((operation, record)) = self.draw(region) else { return };
        shared.filled.records().key_into(record, &mut self.key);
        let (before, waits, began_ns) = (*self.client.traffic(), self.waits(), region.now_ns());
        let compute_ns = shared.run.compute.of(operation);
        if compute_ns > 0 {
            self.client.compute(compute_ns).await;
        }
        let has_succeeded = match operation {
            Operation::Insert => self.write(region, record, WriteKind::Insert).await,
            Operation::Update | Operation::ReadModifyWrite => self.write(region, record, WriteKind::Update).await,
            Operation::Read => self.read(region, record).await,
        };
        let now_ns = region.now_ns();
        let latency_ns = now_ns - began_ns;
        if let Some(splits) = &shared.splits {
            let mut splits = splits.borrow_mut();
            splits.end_operation(self.seat.number);
            if operation != Operation::Read && self.waits() > waits {
                splits.note_wait(&self.key, began_ns..now_ns);
            }
        }
        let mut stats = shared.stats.borrow_mut();
        stats.longest_ns = stats.longest_ns.max(latency_ns);
        if !shared.is_measured.get() {
            return;
        }
        let tally = stats.counts.operations.of_mut(operation);
        if has_succeeded {
            tally.success(&self.client.traffic().since(&before), Some(Duration::from_nanos(latency_ns)));
            stats.counts.by_client[self.seat.place as usize] += 1;
        } else {
            tally.failure();
        }
    }

    /// Returns how often the client has waited for a lock, or for a permit to ask for one.
    fn waits(&self) -> u64 {
        let counters = self.client.counters();
        counters.lock_conflicts + counters.queue_waits
    }

    /// Draws an operation and its record; `None` if the run ends, because all of its inserts were begun.
    fn draw(&mut self, region: &SimRegion) -> Option<(Operation, u64)> {
        let (mix, percent) = (self.shared.run.mix, self.rng.below(100) as u32);
        let operation = match percent {
            percent if percent < mix.read_percent => Operation::Read,
            percent if percent < mix.read_percent + mix.update_percent => Operation::Update,
            _ => Operation::Insert,
        };
        match &self.shared.popularity {
            Some(popularity) if operation != Operation::Insert => {
                let absent = self.shared.filled.absent();
                let is_present = |record: &u64| absent.binary_search(record).is_err();
                // At least 999 of 1,000 records are there, the most popular ones among them.
                let drawn = (0..DRAWS).map(|_| popularity.sample(&mut self.rng)).find(is_present);
                Some((operation, drawn.unwrap_or(0)))
            }
            _ => {
                let inserts = self.shared.inserts.get();
                if self.shared.run.span == Span::UntilFull && inserts >= self.shared.run.most_inserts {
                    self.shared.end_at(region.now_ns());
                    return None;
                }
                self.shared.inserts.set(inserts + 1);
                Some((operation, self.shared.filled.count() + inserts))
            }
        }
    }

    /// Looks a record up. Returns whether it has a value that was written for it.
    async fn read(&mut self, region: &SimRegion, record: u64) -> bool {
        let (shared, number) = (&self.shared, self.seat.number);
        let begun = shared.watch.borrow_mut().begin_read(number, record, region.now_ns());
        let found = match self.client.get_into(&self.key, &mut self.value).await {
            Ok(found) => found,
            Err(failure) => {
                shared.watch.borrow_mut().fail_read(begun);
                shared.fail(number, Operation::Read, record, &failure);
                return false;
            }
        };
        let mut watch = shared.watch.borrow_mut();
        let content = found.and_then(|_| shared.filled.records().serial_of(record, &self.value));
        let is_written = content.is_some_and(|serial| watch.is_known(serial));
        watch.end_read(begun, content, region.now_ns());
        if !is_written {
            let value = found.map(|_| &self.value);
            shared.stats.borrow_mut().violation(|| format!("client {number} found record {record} to have {value:x?}"));
        }
        is_written
    }

    /// Stores a record. Returns whether it was stored.
    async fn write(&mut self, region: &SimRegion, record: u64, kind: WriteKind) -> bool {
        let (shared, number) = (&self.shared, self.seat.number);
        let write = shared.watch.borrow_mut().begin_write(number, record, kind, region.now_ns());
        shared.filled.records().value_into(record, write.serial, &mut self.value);
        let (done, stored, operation) = match kind {
            WriteKind::Update => {
                (self.client.update(&self.key, &self.value).await, Outcome::Replaced, Operation::Update)
            }
            WriteKind::Insert => {
                (self.client.insert(&self.key, &self.value).await, Outcome::Inserted, Operation::Insert)
            }
        };
        let (mut watch, now_ns) = (shared.watch.borrow_mut(), region.now_ns());
        match done {
            Ok(outcome) if outcome == stored => {
                watch.end_write(write, now_ns);
                true
            }
            Ok(outcome) => {
                watch.end_without_effect(write, Some(outcome), now_ns);
                let what = || format!("client {number}: {operation:?} of record {record}: {outcome:?}");
                shared.stats.borrow_mut().violation(what);
                false
            }
            Err(failure) => {
                watch.fail_write(write, failure.effect(), now_ns);
                shared.fail(number, operation, record, &failure);
                false
            }
        }
    }
}

impl Shared {
    /// Ends the run, and the measurement with it.
    fn end_at(&self, now_ns: u64) {
        self.is_measured.set(false);
        if !self.is_over.replace(true) {
            self.ended_ns.set(Some(now_ns.max(self.run.warm_ns)));
        }
    }

    /// Adds the counters of `client` that are not in `counted` yet.
    fn count(&self, client: &SimClient, counted: &mut Counters) {
        let now = client.counters();
        if now != *counted {
            let (new, mut stats) = (now.since(counted), self.stats.borrow_mut());
            stats.recoveries += new.recoveries;
            stats.replays += new.replays;
            stats.counters = stats.counters.plus(&new);
            *counted = now;
        }
    }

    /// Counts a failed operation. Only the deadline and lack of room are reasons to fail here; all others are
    /// violations.
    fn fail(&self, number: u32, operation: Operation, record: u64, failure: &Failure) {
        let mut stats = self.stats.borrow_mut();
        match failure {
            Failure::Operation(Error { kind: ErrorKind::Busy { .. }, .. }) => stats.busy += 1,
            Failure::Operation(Error { kind: ErrorKind::Full { .. }, .. }) if operation == Operation::Insert => {
                stats.full += 1;
            }
            failure => {
                stats.violation(|| format!("client {number}: {operation:?} of record {record}: {failure:?}"));
            }
        }
    }
}

/// Recovers every dead client, once all clients have ended or died.
async fn recover_the_dead(region: SimRegion, shared: Rc<Shared>) {
    let Some(mut client) = open(&region, &shared, u32::MAX, FIRST_SLOT).await else { return };
    let own = client.slot();
    for slot in (0..shared.filled.table().config().max_clients).filter(|slot| *slot != own) {
        match client.recover(slot).await {
            Ok(Some(_)) => {}
            other => {
                shared.stats.borrow_mut().violation(|| format!("slot {slot} cannot be recovered: {other:?}"));
            }
        }
    }
    if let Err(failure) = client.close().await {
        shared.stats.borrow_mut().violation(|| format!("the last client cannot close: {failure:?}"));
    }
}
