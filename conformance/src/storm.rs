//! Storms: simulated clients that die by the hundreds per second of virtual time and are replaced at once while the
//! others work, and the same workload without deaths as a baseline.
//!
//! The workload is YCSB-A: lookups and updates of existing keys in equal parts, keys drawn from a Zipf distribution.
//! Checked: every lookup finds a value that was written for its key; at the end every key exists, with a value that no
//! acknowledged update had replaced; the histories of some keys are linearizable; and once all dead clients are
//! recovered, the table is sound and no lock is held.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use guira_check::history::{Answer, Call, History, PendingOperation, SEARCH_STEPS};
use guira_check::{CheckOptions, Concurrency, check_table};
use guira_fabric::{Profile, Region, SplitMix64};
use guira_fabric_sim::{ClientId, Fault, Network, Sim, SimOptions, SimRegion, Stopped};
use guira_lab::simulated::{Claim, SimClient};
use guira_layout::{Preset, PresetOptions};
use guira_rcuckoo::{Change, ClientConfig, Operation, Outcome, Table};

use crate::{Bench, block_on};

/// Concurrent clients: as many as the paper's figures end with.
pub const CLIENTS: u32 = 320;
/// Additional slots, because dead clients that are not recovered yet occupy one, too.
const SPARE_SLOTS: u16 = 80;
/// The first slot tried by the client that fills the table and by the last client.
const FIRST_SLOT: u16 = 0;
/// YCSB's skew.
const ZIPF: f64 = 0.99;
/// Ranks of the keys whose whole histories are kept: the multiples of this number below [`WATCHED_RANKS`]. The hottest
/// keys, with thousands of operations per millisecond, are left to the other checks.
const WATCHED_EVERY: u64 = 500;
const WATCHED_RANKS: u64 = 20_000;
/// Interval at which dead clients are replaced, in nanoseconds of virtual time.
const REPLACED_NS: u64 = 10_000;
/// Virtual time of work before the measurement starts, in nanoseconds.
const WARM_NS: u64 = 1_000_000;
/// Bound of the number of verbs, drawn from 0, that a victim still executes before it dies. Batches are short, and a
/// chosen client is nearly always waiting: if it died at its next verb, it would nearly always die before all of its
/// batch.
const DEATH_VERBS: u64 = 8;
/// Bound of the number of units, drawn from 0, that are still executed of the WRITE in which a client dies: rows have
/// 16 words, and no WRITE of this network is torn.
const DEATH_UNITS: u64 = 2;

/// The parameters of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    /// The seed; the run follows from it.
    pub seed: u64,
    /// The number of keys.
    pub keys: u64,
    /// Measured virtual time, in nanoseconds.
    pub span_ns: u64,
    /// Deaths per second of virtual time; 0 for the baseline.
    pub deaths_per_second: u64,
    /// The clients that may die.
    pub victims: Victims,
}

/// The clients of a storm that may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Any client. Where many wait for few locks, most hold none.
    Any,
    /// A client that holds a lock, if any does.
    LockHolders,
}

/// The results of a storm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StormStats {
    /// Operations acknowledged in the measured time.
    pub operations: u64,
    /// Clients that died.
    pub deaths: u64,
    /// Dead clients that were recovered while others worked.
    pub recoveries: u64,
    /// Recovered clients whose commit was completed.
    pub replays: u64,
    /// Operations that reached their deadline while waiting for a lock.
    pub busy: u64,
    /// Duration of the longest operation, in nanoseconds of virtual time.
    pub longest_ns: u64,
    /// Operations on the keys whose whole histories were checked.
    pub watched: u64,
    /// Verbs that were executed.
    pub verbs: u64,
    /// Violations.
    pub wrong: Vec<String>,
}

/// A progress callback, which gets the nanoseconds of virtual time that have passed.
pub type Progress<'p> = &'p mut dyn FnMut(u64);

/// A value that may be the last one of a key.
#[derive(Clone, Copy, Debug)]
struct Write {
    serial: u32,
    ended_ns: u64,
}

/// An update: its key, and the serial number of the value.
#[derive(Clone, Copy, Debug)]
struct Latest {
    key: u64,
    serial: u32,
}

/// State that the clients of a storm share.
struct Shared {
    table: Arc<Table>,
    zipf: Zipf,
    seed: u64,
    stats: RefCell<StormStats>,
    /// For each key, the updates that may be its last: pending, or not followed by an acknowledged one.
    last: RefCell<Vec<Vec<Write>>>,
    /// The last update of each client.
    latest: RefCell<HashMap<u32, Latest>>,
    history: RefCell<History>,
    serial: RefCell<u32>,
    /// The last client to take each slot, except the filler.
    clients: RefCell<HashMap<u16, u32>>,
    /// Whether clients stop after their current operation.
    is_over: RefCell<bool>,
    /// The time from which operations count.
    from_ns: u64,
}

/// Runs a storm.
pub fn storm(storm: &Storm, progress: Progress<'_>) -> StormStats {
    let bench = bench(storm);
    let shared = Rc::new(Shared {
        table: Arc::clone(&bench.table),
        zipf: Zipf::new(storm.keys),
        seed: storm.seed,
        stats: RefCell::default(),
        last: RefCell::new(vec![vec![Write { serial: 0, ended_ns: 0 }]; storm.keys as usize]),
        latest: RefCell::default(),
        history: RefCell::default(),
        serial: RefCell::new(0),
        clients: RefCell::default(),
        is_over: RefCell::new(false),
        from_ns: WARM_NS,
    });
    fill(&bench, &shared, storm.keys);
    let mut sim = Sim::new(bench.region.clone(), &SimOptions::new(storm.seed, Network::of(Profile::Mlx5)));
    run_clients(storm, &bench, &mut sim, &shared, progress);
    let verbs = sim.verbs();
    let last = Rc::clone(&shared);
    sim.spawn(|region| recover_the_dead(region, last));
    if sim.run() != Stopped::Ended {
        shared.stats.borrow_mut().wrong.push("the last client never ends".to_owned());
    }
    drop(sim);
    audit(&bench, &shared, storm.keys);
    let mut stats = shared.stats.take();
    stats.verbs = verbs;
    stats
}

fn bench(storm: &Storm) -> Bench {
    let options = PresetOptions {
        capacity: storm.keys,
        format: "fixed:8:8".parse().expect("a valid format"),
        extent_bytes: None,
        max_clients: Some(CLIENTS as u16 + SPARE_SLOTS),
        hash_seed: storm.seed,
        device_bytes: Profile::Mlx5.caps().device_bytes,
    };
    let config = Preset::Hardened.config(&options).expect("possible options");
    Bench::of_config(config, Profile::Mlx5, storm.seed)
}

/// Puts every key, outside the simulation.
fn fill(bench: &Bench, shared: &Shared, keys: u64) {
    let mut filler = bench.under(Profile::Shm).client(FIRST_SLOT);
    for key in 0..keys {
        if is_watched(key) {
            let begun = shared.history.borrow_mut().begin(0, key, Call::Put(value(key, 0)), 0);
            shared.history.borrow_mut().complete(begun, Answer::Done, 0);
        }
        filler.put(&key.to_le_bytes(), &value(key, 0).to_le_bytes()).expect("room for every key");
    }
    let owner = filler.client.owner();
    block_on(guira_rcuckoo::release_slot(&mut filler.lane, &bench.table, owner)).expect("the heap loses nothing");
}

/// Runs clients, and kills some at equal intervals.
fn run_clients(storm: &Storm, bench: &Bench, sim: &mut Sim, shared: &Rc<Shared>, progress: Progress<'_>) {
    let mut rng = SplitMix64(storm.seed ^ 0x5374_6f72_6d21);
    let mut living: Vec<ClientId> = (0..CLIENTS).map(|number| spawn(sim, shared, number)).collect();
    let mut spawned = CLIENTS;
    let (end_ns, mut next_ns) = (WARM_NS + storm.span_ns, WARM_NS);
    sim.run_until(next_ns);
    while next_ns < end_ns {
        let step_ns = 1_000_000_000u64.checked_div(storm.deaths_per_second).unwrap_or(1_000_000);
        if storm.deaths_per_second > 0 {
            let holders = if storm.victims == Victims::LockHolders { holders(bench, sim, shared) } else { Vec::new() };
            let targets = if holders.is_empty() { &living } else { &holders };
            let target = targets[rng.below(targets.len() as u64) as usize];
            let (verbs, units) = (rng.below(DEATH_VERBS), rng.below(DEATH_UNITS));
            sim.inject(target, verbs, Fault::Die { units });
        }
        // The victim dies at one of its next verbs, which may follow a pause.
        for until_ns in (next_ns..next_ns + step_ns).step_by(REPLACED_NS as usize).skip(1).chain([next_ns + step_ns]) {
            sim.run_until(until_ns.min(end_ns));
            for client in &mut living {
                if sim.is_dead(*client) {
                    shared.stats.borrow_mut().deaths += 1;
                    *client = spawn(sim, shared, spawned);
                    spawned += 1;
                }
            }
            if storm.deaths_per_second == 0 {
                break;
            }
        }
        next_ns = (next_ns + step_ns).min(end_ns);
        sim.run_until(next_ns);
        progress(next_ns - WARM_NS);
    }
    *shared.is_over.borrow_mut() = true;
    if sim.run() != Stopped::Ended {
        shared.stats.borrow_mut().wrong.push("some clients never end".to_owned());
    }
}

/// Returns the live clients that hold a lock.
fn holders(bench: &Bench, sim: &Sim, shared: &Shared) -> Vec<ClientId> {
    let (locks, clients) = (bench.table.locks(), shared.clients.borrow());
    let held = bench.lock_words().into_iter().flat_map(|(word, value)| locks.all_held(word, value));
    let numbers = held.filter_map(|(_, owner)| clients.get(&owner.slot()?).copied());
    numbers.map(ClientId).filter(|client| !sim.is_dead(*client)).collect()
}

fn spawn(sim: &mut Sim, shared: &Rc<Shared>, number: u32) -> ClientId {
    let shared = Rc::clone(shared);
    sim.spawn(move |region| work(region, shared, number))
}

async fn open(region: &SimRegion, shared: &Shared, number: u32) -> Option<SimClient> {
    let config = ClientConfig { seed: shared.seed ^ u64::from(number), ..ClientConfig::for_table(&shared.table) };
    let slots = shared.table.config().max_clients;
    let first = number.wrapping_mul(0x9e37_79b9) % u32::from(slots);
    match SimClient::claim(region.clone(), region.lane(), &shared.table, config, first as u16).await {
        Ok(Claim::Taken(client, recovered)) => {
            let dead = shared.clients.borrow_mut().insert(client.slot(), number);
            shared.end_update_of(dead, region.now_ns());
            let mut stats = shared.stats.borrow_mut();
            stats.recoveries += u64::from(recovered.is_some());
            stats.replays += u64::from(recovered.is_some_and(|recovered| recovered.replayed_rows > 0));
            Some(*client)
        }
        other => {
            let why =
                other.err().map_or("no slot is free, and no client is dead".to_owned(), |error| error.to_string());
            shared.stats.borrow_mut().wrong.push(format!("client {number} cannot open: {why}"));
            None
        }
    }
}

async fn work(region: SimRegion, shared: Rc<Shared>, number: u32) {
    let Some(mut client) = open(&region, &shared, number).await else { return };
    let mut rng = SplitMix64(shared.seed ^ u64::from(number) << 32);
    let mut counted = client.counters();
    while !*shared.is_over.borrow() {
        let (key, began_ns) = (shared.zipf.draw(&mut rng), region.now_ns());
        let acknowledged = match rng.below(2) {
            0 => look_up(&region, &mut client, &shared, number, key).await,
            _ => update(&region, &mut client, &shared, number, key).await,
        };
        let (now, now_ns) = (client.counters(), region.now_ns());
        let mut stats = shared.stats.borrow_mut();
        stats.operations += u64::from(acknowledged && now_ns >= shared.from_ns && !*shared.is_over.borrow());
        stats.longest_ns = stats.longest_ns.max(now_ns - began_ns);
        stats.recoveries += now.recoveries - counted.recoveries;
        stats.replays += now.replays - counted.replays;
        counted = now;
    }
    if let Err(failure) = client.close().await {
        shared.stats.borrow_mut().wrong.push(format!("client {number} cannot close: {failure:?}"));
    }
}

async fn look_up(region: &SimRegion, client: &mut SimClient, shared: &Shared, number: u32, key: u64) -> bool {
    let begun = shared.begin(region, number, key, Call::Get);
    match client.get(&key.to_le_bytes()).await {
        Ok(found) => {
            let found = found.and_then(|(bytes, _)| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
            if found.is_none_or(|found| found >> 32 != key) {
                let what = format!("client {number} found key {key} to have {found:x?}");
                shared.stats.borrow_mut().wrong.push(what);
            }
            shared.end(region, begun, found.map_or(Answer::Absent, Answer::Found));
            true
        }
        Err(failure) => shared.fail(begun, format!("client {number}: {failure:?}")),
    }
}

async fn update(region: &SimRegion, client: &mut SimClient, shared: &Shared, number: u32, key: u64) -> bool {
    let (serial, began_ns) = (shared.next_serial(), region.now_ns());
    let value = value(key, serial);
    let begun = shared.begin(region, number, key, Call::Update(value));
    shared.last.borrow_mut()[key as usize].push(Write { serial, ended_ns: u64::MAX });
    shared.latest.borrow_mut().insert(number, Latest { key, serial });
    let (key_bytes, bytes) = (key.to_le_bytes(), value.to_le_bytes());
    match client.change_value(&key_bytes, &bytes, Operation::Update, Change::Update).await {
        Ok(Outcome::Replaced) => {
            let writes = &mut shared.last.borrow_mut()[key as usize];
            // Updates that had ended when this one began are certainly overwritten.
            writes.retain(|write| write.ended_ns >= began_ns);
            let own = writes.iter_mut().find(|write| write.serial == serial);
            own.expect("this update ends after it began").ended_ns = region.now_ns();
            shared.end(region, begun, Answer::Done);
            true
        }
        Ok(outcome) => shared.fail(begun, format!("client {number} updated key {key}: {outcome:?}")),
        Err(failure) => shared.fail(begun, format!("client {number}: {failure:?}")),
    }
}

impl Shared {
    fn next_serial(&self) -> u32 {
        let mut serial = self.serial.borrow_mut();
        *serial += 1;
        *serial
    }

    /// Ends the pending update of a client, if any: its slot was recovered, and another client has it. Without this the
    /// hottest keys would keep thousands of updates that may be their last.
    fn end_update_of(&self, client: Option<u32>, now_ns: u64) {
        let Some(Latest { key, serial }) = client.and_then(|client| self.latest.borrow_mut().remove(&client)) else {
            return;
        };
        let writes = &mut self.last.borrow_mut()[key as usize];
        if let Some(write) = writes.iter_mut().find(|write| write.serial == serial) {
            write.ended_ns = write.ended_ns.min(now_ns);
        }
    }

    fn begin(&self, region: &SimRegion, number: u32, key: u64, call: Call) -> Option<PendingOperation> {
        let mut history = self.history.borrow_mut();
        is_watched(key).then(|| history.begin(u64::from(number) + 1, key, call, 1 + region.now_ns()))
    }

    fn end(&self, region: &SimRegion, begun: Option<PendingOperation>, answer: Answer) {
        if let Some(begun) = begun {
            self.history.borrow_mut().complete(begun, answer, 1 + region.now_ns());
        }
    }

    /// Records a violation: no operation has a reason to fail here.
    fn fail(&self, begun: Option<PendingOperation>, what: String) -> bool {
        if let Some(begun) = begun {
            self.history.borrow_mut().fail(begun);
        }
        let mut stats = self.stats.borrow_mut();
        stats.busy += u64::from(what.contains("Busy"));
        stats.wrong.push(what);
        false
    }
}

/// Recovers every dead client, once all clients have ended or died.
async fn recover_the_dead(region: SimRegion, shared: Rc<Shared>) {
    let Some(mut client) = open(&region, &shared, FIRST_SLOT.into()).await else { return };
    let own = client.slot();
    for slot in (0..shared.table.config().max_clients).filter(|slot| *slot != own) {
        match client.recover(slot).await {
            Ok(Some(_)) => {}
            other => shared.stats.borrow_mut().wrong.push(format!("slot {slot} cannot be recovered: {other:?}")),
        }
    }
    if let Err(failure) = client.close().await {
        shared.stats.borrow_mut().wrong.push(format!("the last client cannot close: {failure:?}"));
    }
}

/// Checks the table once all dead clients are recovered.
fn audit(bench: &Bench, shared: &Shared, keys: u64) {
    let (bench, mut stats) = (bench.under(Profile::Shm), shared.stats.borrow_mut());
    let options = CheckOptions { concurrency: Concurrency::Exclusive, ..CheckOptions::default() };
    let mut lane = bench.region.lane();
    let report = block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ())).expect("the heap reads");
    stats.wrong.extend(report.problems.iter().map(|problem| format!("at the end: {problem}")));
    if report.used_slots > 0 || !bench.lock_words().is_empty() {
        stats.wrong.push(format!("{} slots are in use, locks are held: {:x?}", report.used_slots, bench.lock_words()));
    }
    let contents = match bench.contents() {
        Ok(contents) => contents,
        Err(what) => return stats.wrong.push(what),
    };
    let (last, mut history) = (shared.last.borrow(), shared.history.borrow_mut());
    let mut lost = HashMap::new();
    for key in 0..keys {
        let found = contents.get(&key.to_le_bytes()[..]).and_then(|value| value[..].try_into().ok());
        let found = found.map(u64::from_le_bytes);
        let is_last = |found: u64| last[key as usize].iter().any(|write| value(key, write.serial) == found);
        if !found.is_some_and(is_last) {
            lost.insert(key, found);
        }
        if is_watched(key) {
            let begun = history.begin(u64::MAX, key, Call::Get, u64::MAX);
            history.complete(begun, found.map_or(Answer::Absent, Answer::Found), u64::MAX);
        }
    }
    if !lost.is_empty() || contents.len() as u64 != keys {
        stats.wrong.push(format!("{} of {keys} keys exist; lost or outdated: {lost:x?}", contents.len()));
    }
    match history.check(SEARCH_STEPS) {
        Ok(checked) => stats.watched = checked.answered + checked.pending,
        Err(refusal) => stats.wrong.push(refusal.to_string()),
    }
}

/// Whether the whole history of a key is kept. Keys are numbered by rank.
fn is_watched(key: u64) -> bool {
    key > 0 && key < WATCHED_RANKS && key.is_multiple_of(WATCHED_EVERY)
}

/// Returns the value of write `serial` to `key`.
fn value(key: u64, serial: u32) -> u64 {
    key << 32 | u64::from(serial)
}

/// A generator of ranks by Zipf's law, as in YCSB (Gray et al. 1994, "Quickly generating billion-record synthetic
/// databases").
struct Zipf {
    ranks: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    fn new(ranks: u64) -> Zipf {
        let zeta = (1..=ranks).map(|rank| (rank as f64).powf(-ZIPF)).sum::<f64>();
        let second = 1.0 + 0.5f64.powf(ZIPF);
        let eta = (1.0 - (2.0 / ranks as f64).powf(1.0 - ZIPF)) / (1.0 - second / zeta);
        Zipf { ranks, zeta, alpha: 1.0 / (1.0 - ZIPF), eta, second }
    }

    /// Draws a rank, from 0.
    fn draw(&self, rng: &mut SplitMix64) -> u64 {
        let uniform = rng.unit_f64();
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.second {
            return 1;
        }
        let rank = self.ranks as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.ranks - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_zipfs_law() {
        let (zipf, mut rng) = (Zipf::new(10_000), SplitMix64(1));
        let mut counts = vec![0u32; 10_000];
        (0..1_000_000).for_each(|_| counts[zipf.draw(&mut rng) as usize] += 1);
        for rank in [0u32, 1, 9, 99] {
            let expected = 1e6 / zipf.zeta * f64::from(rank + 1).powf(-ZIPF);
            let found = f64::from(counts[rank as usize]);
            assert!((found / expected - 1.0).abs() < 0.25, "rank {rank}: {found}, expected {expected}");
        }
        assert!(counts[5_000..].iter().sum::<u32>() > 10_000);
    }
}
