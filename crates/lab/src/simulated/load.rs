//! The clients of a run of RCuckoo: how they open the table, die and are replaced.
//!
//! A client is a thread, which carries out several operations at once if its load says so: then it has a slot of the
//! table and a lane for each. Invariant: virtual time alone decides what happens.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::baselines::{Change, Client, Cost, Error, ErrorKind, Outcome};
use guira_fabric::memory::Ordering;
use guira_fabric::{Region, SplitMix64};
use guira_fabric_sim::{ClientId, Fault, Sim, SimRegion, Stopped};
use guira_lock_queue::SharedLockQueue;
use guira_rcuckoo::{self as rcuckoo, ClientConfig, Counters, RowPredictor};

use super::audit::audit;
use super::client::{Claim, Failure, SimClient};
use super::filled::FilledTable;
use super::in_flight::all_of;
use super::lock_element::LockElement;
use super::predictors::Predictors;
use super::records::Records;
use super::run::{Deaths, Load, Queues, Run, RunError, RunStats, Testbed, Victims};
use super::splits::SplitWatch;
use super::worker::{Work, Worker};
use crate::steady::{PROGRESS_NS, Progress, Span};

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
/// The slot that the last client tries first.
const FIRST_SLOT: u16 = 0;
/// Mixed into the seed of deaths.
const DEATH_SALT: u64 = 0x5374_6f72_6d21;

/// State that the clients of a run share.
pub(super) struct Shared {
    pub(super) run: Run,
    pub(super) work: Rc<Work>,
    pub(super) filled: FilledTable,
    queues: Vec<Arc<SharedLockQueue>>,
    predictors: Predictors,
    /// The number of the last client to take each slot.
    clients: RefCell<BTreeMap<u16, u32>>,
    /// The watch on splits, in a table that grows.
    splits: Option<Rc<RefCell<SplitWatch>>>,
}

/// A place in the run, which one client after the other occupies.
#[derive(Clone, Copy)]
struct Seat {
    /// The thread, from 0.
    place: u32,
    /// The number of the client; one that replaces another has a new one. It is the number of the simulated client,
    /// times the operations at once of each, plus the index of this one among them.
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
        Queues::PerHost => run.load.hosts,
    };
    let mut sim = testbed.simulation(filled.region().clone(), run.load.seed);
    if run.knows_locks {
        sim.pass_through(LockElement::new(*filled.table().locks()));
    }
    let work = Work::new(run.load.clone(), *filled.records(), filled.count(), filled.absent().to_vec());
    let predictors = Predictors::new(run, &filled, work.popularity.as_ref(), progress)?;
    let shared = Rc::new(Shared {
        run: run.clone(),
        work: Rc::new(work),
        queues: (0..queues).map(|_| Arc::new(SharedLockQueue::new())).collect(),
        predictors,
        clients: RefCell::default(),
        splits: watch_splits(&mut sim, &filled),
        filled,
    });
    run_clients(&mut sim, &shared, testbed, progress)?;
    shared.work.stats.borrow_mut().verbs = sim.verbs();
    let table = shared.filled.table();
    if table.is_recoverable() || table.is_repairable() {
        let last = Rc::clone(&shared);
        testbed.spawn(&mut sim, 0, Box::new(move |region| Box::pin(recover_the_dead(region, last))));
        if sim.run() != Stopped::Ended {
            shared.work.stats.borrow_mut().violation(|| "the last client never ends".to_owned());
        }
    }
    drop(sim);
    if let Some(splits) = &shared.splits {
        shared.work.stats.borrow_mut().splits = splits.borrow_mut().take();
    }
    audit(&shared);
    Ok(shared.work.stats.take())
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
struct Clients<'r> {
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
    let deaths = SplitMix64(shared.run.load.seed ^ DEATH_SALT);
    let mut clients = Clients { shared, testbed, living: Vec::new(), spawned: 0, deaths };
    for place in 0..shared.run.load.clients {
        let client = clients.spawn(sim, place);
        clients.living.push(client);
    }
    shared.work.measure(sim, |sim, window| clients.run_window(sim, window, progress))
}

impl Clients<'_> {
    /// Starts a client at a place, whose last one is dead if it had one.
    fn spawn(&mut self, sim: &mut Sim, place: u32) -> ClientId {
        let Load { hosts, in_flight, .. } = self.shared.run.load;
        let (host, first) = (place % hosts, self.spawned * in_flight);
        self.spawned += 1;
        let shared = Rc::clone(self.shared);
        let predictor = shared.predictors.of_client(host);
        let task = move |region: SimRegion| {
            all_of(in_flight, move |index| {
                let seat = Seat { place, number: first + index };
                work(region.clone(), Rc::clone(&shared), seat, predictor.clone())
            })
        };
        self.testbed.spawn(sim, host, Box::new(task))
    }

    /// Runs for a time. Behind the warm-up it kills clients at equal intervals from its begin on.
    fn run_window(&mut self, sim: &mut Sim, window: Range<u64>, progress: Progress<'_>) -> Result<(), RunError> {
        let Run { deaths, load: Load { warm_ns, span, .. }, .. } = self.shared.run;
        let deaths_per_second = if window.start < warm_ns { 0 } else { deaths.per_second };
        let calm_ns = if span == Span::UntilFull { INSERTS_NS } else { PROGRESS_NS };
        let step_ns = 1_000_000_000_u64.checked_div(deaths_per_second).unwrap_or(calm_ns).max(1);
        let (mut next_ns, end_ns) = (window.start, window.end);
        // Without a warm-up, what clients do at 0 comes before the measurement.
        sim.run_until(next_ns);
        while next_ns < end_ns && !self.shared.work.is_over() {
            if deaths_per_second > 0 {
                self.kill(sim, deaths);
                // The victim dies at one of its next verbs, which may follow a pause.
                for until_ns in (next_ns + REPLACED_NS..next_ns + step_ns).step_by(REPLACED_NS as usize) {
                    sim.run_until(until_ns.min(end_ns));
                    self.replace_the_dead(sim);
                }
            }
            next_ns = (next_ns + step_ns).min(end_ns);
            sim.run_until(next_ns);
            if progress(next_ns.saturating_sub(warm_ns)).is_break() {
                return Err(RunError::Stopped);
            }
        }
        Ok(())
    }

    fn replace_the_dead(&mut self, sim: &mut Sim) {
        for place in 0..self.living.len() {
            if sim.is_dead(self.living[place]) {
                self.shared.work.stats.borrow_mut().deaths += 1;
                self.living[place] = self.spawn(sim, place as u32);
            }
        }
    }

    /// Lets a client die at one of its next verbs.
    fn kill(&mut self, sim: &mut Sim, deaths: Deaths) {
        let holders = match deaths.victims {
            Victims::LockHolders => holders(sim, self.shared),
            Victims::Any => Vec::new(),
        };
        let targets = if holders.is_empty() { &self.living } else { &holders };
        let target = targets[self.deaths.below(targets.len() as u64) as usize];
        let (verbs, units) = (self.deaths.below(DEATH_VERBS), self.deaths.below(DEATH_UNITS));
        sim.inject(target, verbs, Fault::Die { units });
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
    let simulated = numbers.map(|number| ClientId(number / shared.run.load.in_flight));
    simulated.filter(|client| !sim.is_dead(*client)).collect()
}

async fn open(region: &SimRegion, shared: &Shared, number: u32, first: u16) -> Option<SimClient> {
    let config = ClientConfig { seed: shared.run.load.seed ^ u64::from(number), ..shared.run.client_config };
    match SimClient::claim(region.clone(), region.lane(), shared.filled.table(), config, first).await {
        Ok(Claim::Taken(client, recovered)) => {
            let dead = shared.clients.borrow_mut().insert(client.slot(), number);
            if let Some(dead) = dead {
                shared.work.watch.borrow_mut().end_write_of(dead, region.now_ns());
            }
            let mut stats = shared.work.stats.borrow_mut();
            stats.recoveries += u64::from(recovered.is_some());
            stats.replays += u64::from(recovered.is_some_and(|recovered| recovered.replayed_rows > 0));
            Some(*client)
        }
        other => {
            let why =
                other.err().map_or("no slot is free, and no client is dead".to_owned(), |error| error.to_string());
            shared.work.stats.borrow_mut().violation(|| format!("client {number} cannot open: {why}"));
            None
        }
    }
}

/// Carries out one operation after the other until the run is over.
async fn work(region: SimRegion, shared: Rc<Shared>, seat: Seat, predictor: Option<Arc<RowPredictor>>) {
    let first = seat.number % u32::from(shared.filled.table().config().max_clients);
    let Some(client) = open(&region, &shared, seat.number, first as u16).await else { return };
    let client = match shared.queues.get((seat.place % shared.run.load.hosts) as usize) {
        Some(queue) => client.with_lock_queue(Arc::clone(queue)),
        None => client,
    };
    let client = match predictor {
        Some(predictor) => client.with_predictor(predictor),
        None => client,
    };
    let client = RcuckooClient {
        client,
        region: region.clone(),
        number: seat.number,
        records: *shared.filled.records(),
        key: Vec::new(),
        splits: shared.splits.clone(),
    };
    let mut worker = Worker::new(client, seat.number, seat.place, &region, &shared.work);
    let mut counted = Counters::default();
    while !shared.work.is_over() {
        worker.step(&region).await;
        // What a client has not counted when it dies is lost.
        if shared.run.deaths.per_second > 0 {
            shared.count(&worker.client.client, &mut counted);
        }
    }
    shared.count(&worker.client.client, &mut counted);
    if let Err(failure) = worker.client.client.close().await {
        shared.work.stats.borrow_mut().violation(|| format!("client {} cannot close: {failure:?}", seat.number));
    }
}

/// A client of a table, with keys as numbers.
struct RcuckooClient {
    client: SimClient,
    region: SimRegion,
    number: u32,
    records: Records,
    key: Vec<u8>,
    splits: Option<Rc<RefCell<SplitWatch>>>,
}

impl RcuckooClient {
    /// Returns how often the client has waited for a lock, or for a permit to ask for one.
    fn waits(&self) -> u64 {
        let counters = self.client.counters();
        counters.lock_conflicts + counters.queue_waits
    }
}

impl Client for RcuckooClient {
    async fn get(&mut self, key: u64, values: &mut Vec<u8>) -> Result<bool, Error> {
        self.records.bytes_into(key, &mut self.key);
        let found = self.client.get_into(&self.key, values).await;
        if let Some(splits) = &self.splits {
            splits.borrow_mut().end_operation(self.number);
        }
        Ok(found.map_err(error_of)?.is_some())
    }

    async fn change(&mut self, key: u64, change: Change<'_>) -> Result<Outcome, Error> {
        self.records.bytes_into(key, &mut self.key);
        let (waits, began_ns) = (self.splits.as_ref().map(|_| self.waits()), self.region.now_ns());
        let changed = match change {
            Change::Insert(value) => self.client.insert(&self.key, value).await,
            Change::Update(value) => self.client.update(&self.key, value).await,
            Change::Put(value) => self.client.put(&self.key, value).await,
            Change::Remove => self.client.remove(&self.key).await,
        };
        if let Some(splits) = &self.splits {
            let mut splits = splits.borrow_mut();
            splits.end_operation(self.number);
            if waits.is_some_and(|waits| self.waits() > waits) {
                splits.note_wait(&self.key, began_ns..self.region.now_ns());
            }
        }
        match changed.map_err(error_of)? {
            rcuckoo::Outcome::Inserted => Ok(Outcome::Inserted),
            rcuckoo::Outcome::Replaced => Ok(Outcome::Replaced),
            rcuckoo::Outcome::Removed => Ok(Outcome::Removed),
            rcuckoo::Outcome::Exists => Ok(Outcome::Exists),
            rcuckoo::Outcome::Missing => Ok(Outcome::Missing),
            rcuckoo::Outcome::Different => Err(Error::refused("a change without a condition cannot be refused by one")),
        }
    }

    fn cost(&self) -> Cost {
        self.client.traffic().into()
    }
}

fn error_of(failure: Failure) -> Error {
    let effect = failure.effect();
    let kind = match failure {
        Failure::Operation(rcuckoo::Error { kind: rcuckoo::ErrorKind::Busy { .. }, .. }) => ErrorKind::Busy,
        Failure::Operation(rcuckoo::Error { kind: rcuckoo::ErrorKind::Full { .. }, .. }) => ErrorKind::Full,
        failure => ErrorKind::Refused(format!("{failure:?}")),
    };
    Error { kind, effect }
}

impl Shared {
    /// Adds the counters of `client` that are not in `counted` yet.
    fn count(&self, client: &SimClient, counted: &mut Counters) {
        let now = client.counters();
        if now != *counted {
            let (new, mut stats) = (now.since(counted), self.work.stats.borrow_mut());
            stats.recoveries += new.recoveries;
            stats.replays += new.replays;
            stats.counters = stats.counters.plus(&new);
            *counted = now;
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
                shared.work.stats.borrow_mut().violation(|| format!("slot {slot} cannot be recovered: {other:?}"));
            }
        }
    }
    if let Err(failure) = client.close().await {
        shared.work.stats.borrow_mut().violation(|| format!("the last client cannot close: {failure:?}"));
    }
}
