//! Scenarios: simulated clients that each change keys of their own, and read all keys.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use guira_check::{CheckOptions, CheckReport, Concurrency, check_table};
use guira_conformance::{Bench, block_on};
use guira_fabric::{Effect, Lane, Profile, Region, SplitMix64};
use guira_fabric_sim::{FaultPlan, Hazard, Network, Sim, SimOptions, SimRegion, Stopped, Swarm};
use guira_layout::{Preset, RowId};
use guira_rcuckoo::{
    Change, Client, ClientConfig, Error, ErrorKind, NewValue, Outcome, Reader, SlotClient, Table, claim_slot,
    release_slot,
};

use crate::sim::history::History;

/// The generation of a slot that is taken for the first time, as every slot here is.
const FIRST_GENERATION: u64 = 1;

/// The parameters of a run, which follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub preset: Preset,
    pub profile: Profile,
    pub rows: u64,
    pub clients: u64,
    /// Operations of each client.
    pub operations: u64,
    /// An operation's deadline for a lock, in nanoseconds of virtual time.
    pub deadline_ns: u64,
    /// Faults that may happen.
    pub hazards: Vec<Hazard>,
    /// Where bits may flip.
    pub flips: Flips,
    /// See [`guira_fabric_sim::Relaxations::main_lag_ns`].
    pub main_lag_ns: u64,
}

/// Where bits flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flips {
    /// In rows, whose checksums detect it.
    Rows,
    /// In lock words, where a flip looks like an owner.
    Locks,
}

/// Counts of what the clients did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub lookups: u64,
    pub changes: u64,
    pub moves: u64,
    pub conflicts: u64,
    pub row_retries: u64,
    /// Operations that were refused because the table was full.
    pub full: u64,
    /// Operations that gave up waiting for a lock.
    pub busy: u64,
    /// Operations that found a damaged row.
    pub corrupt: u64,
    /// Lookups with an answer that no linearizable key could have given.
    pub wrong: u64,
    /// Wrong lookups whose value was never given to the key.
    pub invented: u64,
    /// Clients that stopped because the fabric failed.
    pub cut_off: u64,
}

/// The result of a run.
pub struct Run {
    pub bench: Bench,
    pub history: History,
    pub tally: Tally,
    pub stopped: Stopped,
    pub plan: FaultPlan,
    /// The slots of clients that died.
    pub dead: Vec<u16>,
    pub log_hash: u64,
    pub verbs: u64,
}

/// State that the clients of one run share.
#[derive(Clone)]
struct Shared {
    table: Arc<Table>,
    history: Rc<RefCell<History>>,
    tally: Rc<RefCell<Tally>>,
}

impl Scenario {
    /// Creates a scenario on a table of 64 rows, which its keys would overfill if none were removed.
    pub fn new(preset: Preset, profile: Profile, seed: u64) -> Scenario {
        Scenario {
            seed,
            preset,
            profile,
            rows: 64,
            clients: 12,
            operations: 150,
            deadline_ns: 10_000_000_000,
            hazards: Vec::new(),
            flips: Flips::Rows,
            main_lag_ns: 0,
        }
    }

    /// Adds `hazards`, and lets clients give up waiting for a lock after about 200 round trips.
    #[must_use]
    pub fn with(self, hazards: &[Hazard]) -> Scenario {
        let network = Network::of(self.profile);
        let round_trip_ns = network.to_node_ns + network.to_client_ns + network.jitter_ns;
        Scenario { hazards: hazards.to_vec(), deadline_ns: 200 * round_trip_ns, ..self }
    }

    /// Runs the scenario to its end.
    pub fn run(&self) -> Run {
        println!("{self:?}");
        let bench = Bench::of_rows(self.preset, "fixed:8:8", self.rows, self.profile, self.seed);
        let keys = bench.table.config().max_entries() * FILL_PERCENT / 100;
        let mut plan = self.swarm(&bench.table).draw(self.seed);
        plan.relaxations.main_lag_ns = self.main_lag_ns;
        println!("{plan:?}");
        let options = SimOptions { faults: plan.clone(), ..SimOptions::new(self.seed, Network::of(self.profile)) };
        let mut sim = Sim::new(bench.region.clone(), &options);
        let shared = Shared {
            table: Arc::clone(&bench.table),
            history: Rc::new(RefCell::new(filled(&bench, keys as usize))),
            tally: Rc::default(),
        };
        let mut clients = Vec::new();
        for number in 0..self.clients {
            let (scenario, shared, rng) = (self.clone(), shared.clone(), SplitMix64(self.seed ^ number << 32));
            let member = Member { scenario, number, keys, shared, rng };
            clients.push(sim.spawn(|region| member.live(region)));
        }
        let stopped = sim.run();
        let (log_hash, verbs) = (sim.log_hash(), sim.verbs());
        let dead = clients.iter().zip(0..).filter(|(client, _)| sim.is_dead(**client)).map(|(_, slot)| slot).collect();
        drop(sim);
        let history = Rc::try_unwrap(shared.history).expect("every client has ended").into_inner();
        let tally = *shared.tally.borrow();
        Run { bench, history, tally, stopped, plan, dead, log_hash, verbs }
    }

    /// Returns the parameters from which fault plans are drawn.
    fn swarm(&self, table: &Table) -> Swarm {
        let flips = match self.flips {
            Flips::Rows => (table.geometry().row(RowId(0)), table.rows().row_words() as u64 * table.config().rows),
            Flips::Locks => (table.locks().addr(0), table.locks().words()),
        };
        let round_trips = 4 * self.operations;
        let network = Network::of(self.profile);
        Swarm {
            caps: self.profile.caps(),
            clients: self.clients as u32,
            newcomers_from: self.clients as u32,
            verbs_each: 10 * self.operations,
            span_ns: round_trips * (network.to_node_ns + network.to_client_ns + network.jitter_ns),
            clients_per_fault: 4,
            hazards: self.hazards.clone(),
            flips: vec![flips],
        }
    }
}

/// Keys per hundred entries.
const FILL_PERCENT: u64 = 108;
/// The slot of the client that fills the table, after those of the scenario.
const FILLER_SLOT: u16 = 63;

/// Returns the history of `keys` keys after a client has put all of them that fit.
fn filled(bench: &Bench, keys: usize) -> History {
    let mut filler = bench.client(FILLER_SLOT);
    let mut history = History::new(keys);
    for key in 0..keys {
        let value = (key as u64) << 32 | 0xffff_ffff;
        let begun = history.begin_change(key, Some(value));
        match filler.put(&key_bytes(key), &value.to_le_bytes()) {
            Ok(_) => history.changed(begun),
            Err(Error { kind: ErrorKind::Full { .. }, .. }) => history.unchanged(begun),
            Err(error) => panic!("{error}"),
        }
    }
    block_on(release_slot(&mut filler.lane, &bench.table, filler.client.owner())).expect("the heap takes every batch");
    history
}

/// Returns the key with number `key`.
pub fn key_bytes(key: usize) -> [u8; 8] {
    (key as u64).to_le_bytes()
}

struct Member {
    scenario: Scenario,
    number: u64,
    /// The number of keys.
    keys: u64,
    shared: Shared,
    rng: SplitMix64,
}

impl Member {
    async fn live(mut self, region: SimRegion) {
        let mut lane = region.lane();
        let slot = self.number as u16;
        let _hold = region.hold(slot).expect("the model holds").expect("a free slot");
        let Ok(owner) = claim_slot(&mut lane, &self.shared.table, slot, &SlotClient::default()).await else { return };
        let owner = owner.expect("a slot without a dead client");
        let table = Arc::clone(&self.shared.table);
        let (seed, deadline_ns) = (self.scenario.seed, self.scenario.deadline_ns);
        let config = ClientConfig { seed, deadline_ns, ..ClientConfig::for_table(&table) };
        let mut client = Client::new(table, owner, config);
        for serial in 0..self.scenario.operations {
            let went_on = match self.rng.below(2) {
                0 => self.look_up(&mut client, &mut lane).await,
                _ => self.change(&mut client, &mut lane, serial).await,
            };
            if went_on.is_err() {
                break;
            }
        }
        let counters = client.counters();
        let mut tally = self.shared.tally.borrow_mut();
        tally.moves += counters.moves;
        tally.conflicts += counters.lock_conflicts;
        tally.row_retries += counters.row_retries;
    }

    async fn look_up(&mut self, client: &mut Client, lane: &mut dyn Lane) -> Result<(), Error> {
        let key = self.rng.below(self.keys) as usize;
        let lookup = self.shared.history.borrow().begin_lookup(key);
        let mut value = Vec::new();
        let found = client.get(lane, &key_bytes(key), &mut value).await;
        self.shared.tally.borrow_mut().lookups += 1;
        match found {
            Ok(found) => {
                let value = found.is_some().then(|| u64::from_le_bytes(value.try_into().expect("values of 8 bytes")));
                let found = self.shared.history.borrow_mut().found(lookup, value);
                if let Err(wrong) = found {
                    let mut tally = self.shared.tally.borrow_mut();
                    tally.wrong += 1;
                    tally.invented += u64::from(!self.shared.history.borrow().was_given(lookup, value));
                    println!("seed {}, client {}: {wrong}", self.scenario.seed, self.number);
                }
                Ok(())
            }
            Err(error) => self.survive(error),
        }
    }

    async fn change(&mut self, client: &mut Client, lane: &mut dyn Lane, serial: u64) -> Result<(), Error> {
        let owned = self.rng.below(self.keys / self.scenario.clients);
        let key = (owned * self.scenario.clients + self.number) as usize;
        let value = (self.rng.below(8) > 0).then_some((key as u64) << 32 | serial);
        let bytes = value.unwrap_or(0).to_le_bytes();
        let change = if value.is_some() { Change::Put(NewValue::Inline(&bytes)) } else { Change::Remove };
        let begun = self.shared.history.borrow_mut().begin_change(key, value);
        let changed = client.change(lane, &key_bytes(key), change).await;
        self.shared.tally.borrow_mut().changes += 1;
        match changed {
            // A missing key is an answer like any other: the key is removed now.
            Ok(changed) => {
                assert!(!matches!(changed.outcome, Outcome::Exists | Outcome::Different));
                self.shared.history.borrow_mut().changed(begun);
                Ok(())
            }
            Err(error) => {
                if error.effect() == Effect::None {
                    self.shared.history.borrow_mut().unchanged(begun);
                }
                self.survive(error)
            }
        }
    }

    /// Counts an error; one after which the client cannot continue ends it.
    fn survive(&mut self, error: Error) -> Result<(), Error> {
        let mut tally = self.shared.tally.borrow_mut();
        let hazards = &self.scenario.hazards;
        let fabric = hazards.contains(&Hazard::Disconnection) || hazards.contains(&Hazard::Restart);
        let waits = [Hazard::Death, Hazard::Stall, Hazard::Flip].iter().any(|hazard| hazards.contains(hazard));
        match error {
            Error { kind: ErrorKind::Full { .. }, .. } => tally.full += 1,
            Error { kind: ErrorKind::Busy { .. }, .. } if waits || fabric => tally.busy += 1,
            Error { kind: ErrorKind::Corrupt { .. }, .. } if hazards.contains(&Hazard::Flip) => tally.corrupt += 1,
            Error { kind: ErrorKind::Fabric { .. }, .. } | Error { kind: ErrorKind::Lost { .. }, .. } if fabric => {
                tally.cut_off += 1;
                return Err(error);
            }
            error => panic!("seed {}, client {}: {error}", self.scenario.seed, self.number),
        }
        Ok(())
    }
}

impl Tally {
    /// Adds two tallies.
    #[must_use]
    pub fn plus(self, other: Tally) -> Tally {
        Tally {
            lookups: self.lookups + other.lookups,
            changes: self.changes + other.changes,
            moves: self.moves + other.moves,
            conflicts: self.conflicts + other.conflicts,
            row_retries: self.row_retries + other.row_retries,
            full: self.full + other.full,
            busy: self.busy + other.busy,
            corrupt: self.corrupt + other.corrupt,
            wrong: self.wrong + other.wrong,
            invented: self.invented + other.invented,
            cut_off: self.cut_off + other.cut_off,
        }
    }
}

impl Run {
    /// Checks that the table is in order and its contents are those that its history allows.
    pub fn assert_sound(&mut self) {
        let contents = self.bench.audit().unwrap_or_else(|wrong| panic!("{wrong}"));
        let report = self.check();
        assert!(report.is_clean(), "{:#?}", report.problems);
        for key in 0..self.history.keys() {
            let value = contents.get(&key_bytes(key)[..]);
            let value = value.map(|value| u64::from_le_bytes(value[..].try_into().expect("values of 8 bytes")));
            let lookup = self.history.begin_lookup(key);
            self.history.found(lookup, value).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }

    /// Checks every key by a lookup with a short deadline: its answer is one that the history allows. Returns how many
    /// lookups gave up, or found a damaged row.
    pub fn assert_answers(&mut self) -> (u64, u64) {
        let config = ClientConfig { deadline_ns: 1_000, ..ClientConfig::for_table(&self.bench.table) };
        let mut reader = Reader::new(Arc::clone(&self.bench.table), config);
        let (mut lane, mut busy, mut corrupt) = (self.bench.region.lane(), 0, 0);
        for key in 0..self.history.keys() {
            let lookup = self.history.begin_lookup(key);
            let mut value = Vec::new();
            match block_on(reader.get(&mut lane, &key_bytes(key), &mut value)) {
                Ok(found) => {
                    let value = found.map(|_| u64::from_le_bytes(value[..].try_into().expect("values of 8 bytes")));
                    self.history.found(lookup, value).unwrap_or_else(|wrong| panic!("{wrong}"));
                }
                Err(Error { kind: ErrorKind::Busy { .. }, .. }) => busy += 1,
                Err(Error { kind: ErrorKind::Corrupt { .. }, .. }) => corrupt += 1,
                Err(error) => panic!("{error}"),
            }
        }
        (busy, corrupt)
    }

    /// Returns the checker's report of the table, which no client uses any more.
    pub fn check(&self) -> CheckReport {
        let dead = self.dead.iter().map(|slot| (*slot, FIRST_GENERATION)).collect();
        let options = CheckOptions { concurrency: Concurrency::Exclusive, problem_limit: 1000, dead };
        let mut lane = self.bench.region.lane();
        block_on(check_table(&mut lane, &self.bench.table, &options, &mut |_| ())).expect("the heap reads")
    }
}
