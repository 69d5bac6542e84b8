//! Runs: many clients with one workload over a cluster, and the same for inserts into an empty table.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use guira_fabric::{FabricError, Lane, Region, Space, SplitMix64};
use guira_fabric_sim::{Cluster, Sim, SimOptions, SimRegion, Stopped, Usage};

use super::client::{Client, ClientRules, Outcome};
use super::mirror::{Mirror, Mirrors};
use super::recovery::Faults;
use super::search::ENTRIES;
use super::table::Table;
use crate::simulated::{Compute, Mix};
use crate::steady::{Counts, Measurement, Next, PROGRESS_NS, Progress, Span, Steadiness, steps};
use crate::workload::{Operation, Rng, Zipfian};

/// The time that the client of the authors' public code computes. For a lookup it is fitted to the first point of figure
/// 6(a), 10 clients. For an insert it is the time of a change by which the first points of figures 6(b) and 6(c), 8
/// clients, are met if an update reads what an insert does.
pub const COMPUTE: Compute = Compute { lookup_ns: 475, change_ns: 6_875 };

/// The same for the later code, which has updates and checksums: fitted to the first points of figures 6(b) and 6(c), which
/// give 3.6 µs a lookup and 13.5 µs an update.
pub const COMPUTE_LATER: Compute = Compute { lookup_ns: 475, change_ns: 8_300 };

/// The keys that clients use.
#[derive(Clone, Debug, PartialEq)]
pub enum Keys {
    /// Each client uses one key of its own, as in the authors' run of figure 6(a).
    OneEach,
    /// All clients draw from the keys of the table by Zipf's law; key 1 is the most popular.
    Zipf(Zipfian),
    /// Each client uses the key that it has inserted last, as in the authors' runs of figure 7.
    LastInserted,
}

/// A run of lookups, updates and inserts.
#[derive(Clone, Debug)]
pub struct Run {
    /// The number of clients, spread evenly over the hosts of the cluster. Clients that insert are those that have
    /// filled the table.
    pub clients: u32,
    /// The mix of operations.
    pub mix: Mix,
    /// The keys of lookups and updates.
    pub keys: Keys,
    /// Inserts after which a run is over that lasts until the table is full; no longer measurement begins with so many.
    pub most_inserts: u64,
    /// The time that a client computes for an operation, before it posts anything.
    pub compute: Compute,
    /// Updates a second that the first client ends early, with its locks held; 0 for none.
    pub faults_per_second: u64,
    /// Virtual time before the measurement, in nanoseconds.
    pub warm_ns: u64,
    /// The virtual time that is measured.
    pub span: Span,
    /// The seed of everything drawn at random.
    pub seed: u64,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Operations that ended within the measured time.
    pub counts: Counts,
    /// The measured time, and whether the run was steady.
    pub steadiness: Steadiness,
    /// Updates that did not find their key.
    pub not_found: u64,
    /// Keys that were inserted, before the measurement, too.
    pub inserts: u64,
    /// Clients that found no path for a key. The authors' clients end then.
    pub ended: u64,
    /// Updates that ended early, with their locks held, before the measurement, too.
    pub faults: u64,
    /// Locks that were taken from clients that seemed to be dead, before the measurement, too.
    pub reclaimed: u64,
    /// The use of the cluster's resources within the measured time.
    pub usage: Usage,
}

/// An error of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A client's batch was refused.
    #[error("a client failed: {0}")]
    Fabric(FabricError),
    /// Clients wait, but nothing is on its way.
    #[error("clients wait for nothing")]
    Stuck,
    /// Every client found no path for a key.
    #[error("the table is full: every client has ended")]
    Full,
    /// The progress function ended it.
    #[error("stopped on request")]
    Stopped,
}

impl From<FabricError> for RunError {
    fn from(error: FabricError) -> RunError {
        RunError::Fabric(error)
    }
}

/// The counts of all clients of a run.
#[derive(Default)]
struct Totals {
    counts: Counts,
    is_measured: bool,
    not_found: u64,
    inserts: u64,
    ended: u64,
    faults: u64,
    reclaimed: u64,
    error: Option<FabricError>,
}

/// Runs operations on `table`, which inserts change.
///
/// # Errors
/// [`RunError`]; the table's locks are then released, as at the end of every run.
pub fn run(
    table: &mut Table,
    rules: &ClientRules,
    cluster: Cluster,
    run: &Run,
    progress: Progress<'_>,
) -> Result<Measured, RunError> {
    let mut sim = Sim::new(table.region.clone(), &SimOptions::on_cluster(run.seed, cluster));
    let counts = Counts::of_clients(run.clients);
    let totals = Rc::new(RefCell::new(Totals { counts, ..Totals::default() }));
    let (rules, run, keys) = (Rc::new(rules.clone()), Rc::new(run.clone()), table.keys);
    let mirrors = Rc::new(RefCell::new(std::mem::take(&mut table.mirrors)));
    for client in 0..run.clients {
        let (rules, run, totals) = (Rc::clone(&rules), Rc::clone(&run), Rc::clone(&totals));
        let mirror = Mirror::of(&mirrors, client);
        sim.spawn_on(client % cluster.hosts, move |region| async move {
            if let Err(error) = operate(&region, client, mirror, rules, &run, keys, &totals).await {
                totals.borrow_mut().error = Some(error);
            }
        });
    }
    let measured = measure(&mut sim, &run, &totals, progress);
    drop(sim);
    table.mirrors = mirrors.take();
    release_locks(table);
    measured
}

/// Runs the clients of a simulation until the measurement is over.
fn measure(sim: &mut Sim, run: &Run, totals: &RefCell<Totals>, progress: Progress<'_>) -> Result<Measured, RunError> {
    let mut step = |sim: &mut Sim, until_ns: u64| match (sim.run_until(until_ns), totals.borrow_mut().error.take()) {
        (_, Some(error)) => Err(error.into()),
        (Stopped::Ended, None) => Err(RunError::Full),
        (Stopped::Stuck, None) => Err(RunError::Stuck),
        (Stopped::TimeUp, None) if progress(until_ns).is_break() => Err(RunError::Stopped),
        (Stopped::TimeUp, None) => Ok(()),
    };
    let mut run_over = |sim: &mut Sim, times| steps(times, PROGRESS_NS).try_for_each(|until_ns| step(sim, until_ns));
    run_over(sim, 0..run.warm_ns)?;
    totals.borrow_mut().is_measured = true;
    let (mut measurement, mut before, mut now_ns) = (Measurement::new(run.span), sim.usage(), run.warm_ns);
    loop {
        let begin_ns = now_ns;
        now_ns += measurement.window_ns();
        run_over(sim, begin_ns..now_ns)?;
        let totals = &mut *totals.borrow_mut();
        let inserts_left = run.most_inserts.saturating_sub(totals.inserts);
        match measurement.end_window(&mut totals.counts, inserts_left) {
            Next::Longer => {}
            Next::Anew => before = sim.usage(),
            Next::End => break,
        }
    }
    let (mut totals, usage) = (totals.borrow_mut(), sim.usage().since(&before));
    let counts = std::mem::take(&mut totals.counts);
    let Totals { not_found, inserts, ended, faults, reclaimed, .. } = *totals;
    let steadiness = measurement.steadiness();
    Ok(Measured { counts, steadiness, not_found, inserts, ended, faults, reclaimed, usage })
}

/// Carries out operations until an insert finds no path, and counts those that end within the measured time.
async fn operate(
    region: &SimRegion,
    number: u32,
    mirror: Mirror,
    rules: Rc<ClientRules>,
    run: &Run,
    keys: u32,
    totals: &RefCell<Totals>,
) -> Result<(), FabricError> {
    let mut rng = Rng::new(SplitMix64::nth(run.seed, u64::from(number)));
    let interval_ns = 1_000_000_000_u64.checked_div(run.faults_per_second).filter(|_| number == 0);
    let faults = interval_ns.map(|interval_ns| Faults { interval_ns, next_ns: interval_ns, count: 0 });
    let mut client = Client::new(region.lane(), rules, mirror).with_faults(faults);
    let own_key = 1 + (u64::from(keys.saturating_sub(1)) * u64::from(number) / u64::from(run.clients)) as u32;
    let mut new_keys = (keys + 1 + number..=u32::MAX).step_by(run.clients as usize);
    let mut last_key = own_key;
    loop {
        let drawn = rng.below(100) as u32;
        let operation = match drawn.checked_sub(run.mix.read_percent) {
            None => Operation::Read,
            Some(rest) if rest < run.mix.update_percent => Operation::Update,
            Some(_) => Operation::Insert,
        };
        let key = match (operation, &run.keys) {
            (Operation::Insert, _) => new_keys.next().unwrap_or(u32::MAX),
            (_, Keys::OneEach) => own_key,
            (_, Keys::Zipf(zipfian)) => 1 + zipfian.sample(&mut rng) as u32,
            (_, Keys::LastInserted) => last_key,
        };
        let (begin_ns, before) = (client.lane().now_ns(), *client.lane().traffic());
        client.lane().compute(run.compute.of(operation)).await;
        let outcome = match operation {
            Operation::Read => client.read(key).await.map(|()| Outcome::Done)?,
            Operation::Update => client.update(key).await?,
            _ => client.insert(key).await?,
        };
        let end_ns = client.lane().now_ns();
        let mut totals = totals.borrow_mut();
        totals.reclaimed += std::mem::take(&mut client.reclaimed);
        totals.faults = client.faults.map_or(totals.faults, |faults| faults.count);
        match outcome {
            Outcome::NoPath => {
                totals.ended += 1;
                return Ok(());
            }
            Outcome::Done if operation == Operation::Insert => {
                totals.inserts += 1;
                last_key = key;
            }
            Outcome::Done | Outcome::NotFound => {}
        }
        if !totals.is_measured {
            continue;
        }
        totals.not_found += u64::from(outcome == Outcome::NotFound);
        totals.counts.by_client[number as usize] += 1;
        let latency = Some(Duration::from_nanos(end_ns - begin_ns));
        totals.counts.operations.of_mut(operation).success(&client.lane().traffic().since(&before), latency);
    }
}

/// The result of filling a table.
#[derive(Clone, Debug)]
pub struct Filled {
    /// The round trips of each completed insert, in the order of completion.
    pub round_trips: Vec<u64>,
    /// The part of the entries that is occupied at the end.
    pub fill: f64,
}

/// Fills an empty table by `clients` clients, each of which inserts keys of its own until it finds no path.
///
/// # Errors
/// [`RunError`]
pub fn fill(table: &Table, rules: &ClientRules, cluster: Cluster, clients: u32, seed: u64) -> Result<Filled, RunError> {
    let mut sim = Sim::new(table.region.clone(), &SimOptions::on_cluster(seed, cluster));
    let (rules, done) = (Rc::new(rules.clone()), Rc::new(RefCell::new((Vec::new(), None))));
    let rows = rules.layout.placement.rows();
    let mirrors = Rc::new(RefCell::new(Mirrors::new(rows, clients)));
    // Another seed uses other keys.
    let first = (SplitMix64::nth(seed, 0) % u64::from(u32::MAX / 2)) as u32;
    for number in 1..=clients {
        let (rules, done, mirror) = (Rc::clone(&rules), Rc::clone(&done), Mirror::of(&mirrors, number - 1));
        sim.spawn_on((number - 1) % cluster.hosts, move |region| async move {
            let mut client = Client::new(region.lane(), rules, mirror);
            for key in (first + number..).step_by(clients as usize) {
                let before = client.lane().traffic().round_trips;
                let outcome = client.insert(key).await;
                let mut done = done.borrow_mut();
                match outcome {
                    Ok(Outcome::Done) => done.0.push(client.lane().traffic().round_trips - before),
                    Ok(_) => return,
                    Err(error) => {
                        done.1 = Some(error);
                        return;
                    }
                }
            }
        });
    }
    let stopped = sim.run();
    drop(sim);
    let (round_trips, error) = std::mem::take(&mut *done.borrow_mut());
    let fill = round_trips.len() as f64 / (rows * ENTRIES as u64) as f64;
    match (error, stopped) {
        (Some(error), _) => Err(error.into()),
        (None, Stopped::Ended) => Ok(Filled { round_trips, fill }),
        (None, Stopped::Stuck | Stopped::TimeUp) => Err(RunError::Stuck),
    }
}

/// Releases the locks that the clients of an ended run hold.
fn release_locks(table: &Table) {
    let words = table.region.memory().space(Space::Device);
    words.iter().for_each(|word| word.store(0, std::sync::atomic::Ordering::Relaxed));
}
