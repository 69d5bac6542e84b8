//! Swarms of the stores to which RCuckoo is compared: options, clients, keys and faults follow from one seed.
//!
//! A run has two phases. In the first, clients carry out drawn operations on few keys, under a drawn fault plan; one
//! that loses its connection comes back with new lanes, while what it sent before may still arrive. In the second, when
//! everything has arrived, a last client reads every key.
//!
//! Invariants: every client ends; no operation fails without a reason in the plan; every value that is read was written
//! as a whole; the history of each key is linearizable.
//!
//! A plan has only hazards that the promise of the store covers ([`Baseline::hazards`]). docs/baselines.md states the
//! promises.

mod run;

use std::fmt;
use std::rc::Rc;

use guira_fabric::{Caps, Profile, SplitMix64};
use guira_fabric_sim::{Card, Cluster, FaultPlan, Hazard, Model, Network, SimOptions, Swarm};
use guira_lab::baselines::Layout;
use guira_lab::baselines::clover::{CloverStore, Reuse, Shape as CloverShape, Steering, Table as CloverTable, Trust};
use guira_lab::baselines::cuckoo::{CuckooStore, Probing, Shape as CuckooShape, Table as CuckooTable};
use guira_lab::baselines::dummy::{DummyStore, Shape as DummyShape, Table as DummyTable};
use guira_lab::baselines::linear::{LinearStore, Shape as LinearShape, Table as LinearTable};

use self::run::drive;
use super::setup::{PACKET_BYTES, packet_caps, round_trip_ns};
use super::values::{value_bytes, value_number};

pub use run::StoreRun;

/// Approximate number of verbs and round trips per operation.
const VERBS_OF_OPERATION: u64 = 4;
const TRIPS_OF_OPERATION: u64 = 3;
/// Most tables of cuckoo hashing that are tried for a run: few small ones have a place for each key.
const MOST_TABLES: u64 = 1_000;

/// A store to which RCuckoo is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Chains of values, of which clients cache the ends.
    Clover,
    /// Linear probing.
    Linear,
    /// Cuckoo hashing.
    Cuckoo,
    /// RPC-dummy: records at known places, read by calls.
    Dummy,
}

impl Baseline {
    /// All stores.
    pub const ALL: [Baseline; 4] = [Baseline::Clover, Baseline::Linear, Baseline::Cuckoo, Baseline::Dummy];

    /// Returns the name, as in the settings of the lab.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::Clover => "clover",
            Baseline::Linear => "linear",
            Baseline::Cuckoo => "cuckoo",
            Baseline::Dummy => "dummy",
        }
    }

    /// Returns the hazards that the promise of the store covers: whatever happens to clients and to the service, and
    /// every liberty of the fabric. No store has more than one copy, so none survives a restart or a flipped bit of its
    /// node.
    pub fn hazards(self) -> Vec<Hazard> {
        let hazards = Hazard::ALL.into_iter();
        hazards.filter(|hazard| !matches!(hazard, Hazard::Restart | Hazard::Flip)).collect()
    }

    /// Runs `seed`, and keeps the last `keep_events` events.
    pub fn run(self, seed: u64, keep_events: usize) -> StoreRun {
        StoreSetup::draw(self, seed).run(keep_events)
    }
}

/// Times after a change at which its shortcut is written: at once in half of the runs.
const SHORTCUT_LAGS_NS: [u64; 4] = [0, 0, 5_000, 100_000];

/// The options of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOptions {
    /// Options of Clover.
    Clover {
        /// Keys that a client caches.
        cache_keys: u64,
        /// Entries of all chains.
        entries: u64,
        /// The reuse of superseded entries.
        reuse: Reuse,
        /// Threads of the metadata server.
        threads: u32,
        /// Time after a change at which its shortcut is written.
        shortcut_lag_ns: u64,
        /// The options of the element in front of the node, if there is one.
        steering: Option<Steering>,
    },
    /// Options of linear probing.
    Linear {
        /// Where records are.
        layout: Layout,
        /// Slots of the table.
        slots: u64,
        /// Slots of a READ.
        read_slots: u64,
    },
    /// Options of cuckoo hashing.
    Cuckoo {
        /// Where records are.
        layout: Layout,
        /// Slots of the table.
        slots: u64,
        /// Records of a slot.
        associativity: u64,
        /// The order of READs.
        probing: Probing,
    },
    /// Options of RPC-dummy.
    Dummy {
        /// Threads of the service.
        threads: u32,
    },
}

/// The parameters of a run, as its seed draws them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSetup {
    /// The seed; all other parameters follow from it.
    pub seed: u64,
    /// The store.
    pub store: Baseline,
    /// The fabric's promises and latencies.
    pub profile: Profile,
    /// Bytes of a packet, if the profile is that of a queue pair.
    pub packet_bytes: u64,
    /// Whether network cards are modelled, which execute every verb as a whole.
    pub has_cards: bool,
    /// Number of clients.
    pub clients: u32,
    /// Clients of a thread, which share its cache.
    pub clients_per_thread: u32,
    /// Operations of a client.
    pub operations: u32,
    /// The percentage of operations that are lookups; the others are changes, if the store has any.
    pub read_percent: u64,
    /// Times that a client which lost its connection comes back.
    pub reconnects: u32,
    /// Keys that operations choose from: 1 and up.
    pub keys: u64,
    /// Records with which the store is built: those of the first keys.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The average number of clients per fault, for each kind of fault.
    pub clients_per_fault: u64,
    /// The hazards that may be drawn.
    pub hazards: Vec<Hazard>,
    /// The options of the store.
    pub options: StoreOptions,
}

impl StoreSetup {
    /// Draws the parameters of `seed`.
    pub fn draw(store: Baseline, seed: u64) -> StoreSetup {
        // The run itself draws from another stream.
        let mut draws = SplitMix64(seed ^ 0x5374_6f72_6553_6574);
        let one_of = |draws: &mut SplitMix64, choices: &[u64]| choices[draws.below(choices.len() as u64) as usize];
        let changes = store == Baseline::Clover;
        let (clients, has_cards) = (2 + draws.below(5) as u32, draws.below(3) == 0);
        let keys = if changes { 1 + draws.below(6) } else { 10 + draws.below(150) };
        let records = if changes { draws.below(keys + 1) } else { keys * (50 + draws.below(40)) / 100 };
        let setup = StoreSetup {
            seed,
            store,
            profile: Profile::REMOTE[draws.below(3) as usize],
            packet_bytes: one_of(&mut draws, &PACKET_BYTES),
            has_cards,
            clients,
            clients_per_thread: one_of(&mut draws, &[1, 1, 2]) as u32,
            operations: 40 + draws.below(260) as u32,
            read_percent: if changes { one_of(&mut draws, &[10, 30, 70]) } else { 100 },
            reconnects: draws.below(3) as u32,
            keys,
            records,
            value_bytes: one_of(&mut draws, &[8, 40, 300]) as usize,
            clients_per_fault: one_of(&mut draws, &[1, 2, 4]),
            hazards: store.hazards(),
            options: StoreOptions::Dummy { threads: 1 },
        };
        let options = setup.draw_options(&mut draws);
        StoreSetup { options, ..setup }
    }

    fn draw_options(&self, draws: &mut SplitMix64) -> StoreOptions {
        let layout = |draws: &mut SplitMix64| [Layout::Inline, Layout::Heap][draws.below(2) as usize];
        match self.store {
            Baseline::Clover => {
                let cache_keys = draws.below(self.keys + 1);
                // One run in four has entries for all changes; in the others they are used again, and soon.
                let (reuse, entries) = match draws.below(4) {
                    0 => (Reuse::Never, u64::from(self.clients) * u64::from(self.operations) + 1_000),
                    _ => (Reuse::Checked, u64::from(self.clients) * (6 + draws.below(12)) + draws.below(8)),
                };
                let threads = 1 + draws.below(3) as u32;
                // One run in three has no element; where there is one, it may know few keys or entries.
                let steering = (draws.below(3) > 0).then(|| Steering {
                    keys: if draws.below(3) == 0 { draws.below(self.keys + 1) } else { self.keys },
                    entries: [0, 4, 1_000][draws.below(3) as usize],
                    trust: Trust::Linked,
                });
                let shortcut_lag_ns = SHORTCUT_LAGS_NS[SplitMix64(self.seed ^ 0x6c61_6767_696e_6721).below(4) as usize];
                let entries = self.records + entries;
                StoreOptions::Clover { cache_keys, entries, reuse, threads, shortcut_lag_ns, steering }
            }
            Baseline::Linear => StoreOptions::Linear {
                layout: layout(draws),
                slots: self.records + 2 + draws.below(60),
                read_slots: 1 + draws.below(40),
            },
            Baseline::Cuckoo => {
                let associativity = [1, 4][draws.below(2) as usize];
                StoreOptions::Cuckoo {
                    layout: layout(draws),
                    slots: (self.records * (140 + draws.below(100)) / 100 / associativity).max(4),
                    associativity,
                    probing: [Probing::Parallel, Probing::Sequential, Probing::SequentialAll][draws.below(3) as usize],
                }
            }
            Baseline::Dummy => StoreOptions::Dummy { threads: 1 + draws.below(3) as u32 },
        }
    }

    /// Returns the same run with other checks by Clover's clients, if it has any: for canaries.
    #[must_use]
    pub fn with_reuse(mut self, checks: Reuse) -> StoreSetup {
        if let StoreOptions::Clover { reuse, .. } = &mut self.options
            && *reuse != Reuse::Never
        {
            *reuse = checks;
        }
        self
    }

    /// Returns the same run with an element that relies on something else, if it has one: for canaries.
    #[must_use]
    pub fn with_trust(mut self, relied_on: Trust) -> StoreSetup {
        if let StoreOptions::Clover { steering: Some(Steering { trust, .. }), .. } = &mut self.options {
            *trust = relied_on;
        }
        self
    }

    /// Returns the promises of the run's fabric.
    pub fn caps(&self) -> Caps {
        packet_caps(self.profile, self.packet_bytes)
    }

    /// Returns the approximate duration of the run in virtual time.
    pub(super) fn span_ns(&self) -> u64 {
        TRIPS_OF_OPERATION * u64::from(self.operations) * round_trip_ns(self.profile)
    }

    /// Draws the fault plan.
    pub fn plan(&self) -> FaultPlan {
        let in_parts = |hazard: &Hazard| matches!(hazard, Hazard::Split | Hazard::Resample | Hazard::Scatter);
        let swarm = Swarm {
            caps: self.caps(),
            clients: self.clients,
            newcomers_from: self.clients,
            verbs_each: VERBS_OF_OPERATION * u64::from(self.operations),
            span_ns: self.span_ns(),
            clients_per_fault: self.clients_per_fault,
            hazards: self.hazards.iter().copied().filter(|hazard| !(self.has_cards && in_parts(hazard))).collect(),
            flips: Vec::new(),
        };
        swarm.draw(self.seed)
    }

    /// Returns the options of the simulation.
    fn sim_options(&self, faults: &FaultPlan, keep_events: usize) -> SimOptions {
        let model = match self.has_cards {
            true => Model::Cluster(Cluster::new(Card::ConnectX5)),
            false => Model::Network(Network::of(self.profile)),
        };
        SimOptions { seed: self.seed, model, faults: faults.clone(), keep_events }
    }

    /// Returns the number of the value of a record.
    pub(super) fn value_of_record(record: u64) -> u64 {
        value_number(0, record as u32, 0)
    }

    /// Runs it, and keeps the last `keep_events` events.
    ///
    /// # Panics
    /// If no store can have these parameters, which no seed draws.
    pub fn run(self, keep_events: usize) -> StoreRun {
        let (caps, records, length) = (self.caps(), self.records, self.value_bytes);
        let key = |record: u64| record as u32 + 1;
        let value = move |record: u64, value: &mut Vec<u8>| {
            *value = value_bytes(StoreSetup::value_of_record(record), &[length]);
        };
        let places = Rc::new(|key: u32| u64::from(key) - 1);
        let shape_fits = "seeds draw shapes that have room";
        match self.options {
            StoreOptions::Clover { cache_keys, entries, reuse, threads, shortcut_lag_ns, steering } => {
                let shape = CloverShape { keys: self.keys, entries, value_bytes: length, reuse };
                let table = CloverTable::build(shape, caps, records, key, value, &|| false).expect(shape_fits);
                let table = table.expect("nobody stops it").fork();
                let store = CloverStore::new(table, places, cache_keys, threads);
                let store = store.lagging(shortcut_lag_ns).behind(steering);
                drive(self, &store, keep_events, |client| {
                    let counts = client.counts();
                    vec![
                        ("stale", counts.stale),
                        ("overtaken", counts.overtaken),
                        ("passed", counts.passed),
                        ("misses", counts.misses),
                        ("reused", counts.reused),
                    ]
                })
            }
            StoreOptions::Linear { layout, slots, read_slots } => {
                let shape = LinearShape { slots, layout, value_bytes: length };
                let table = LinearTable::build(shape, caps, records, key, value, &|| false).expect(shape_fits);
                let table = table.expect("nobody stops it");
                drive(self, &LinearStore::new(table, read_slots), keep_events, |client| {
                    vec![("reads", client.reads().table)]
                })
            }
            StoreOptions::Cuckoo { layout, slots, associativity, probing } => {
                let table = (0..MOST_TABLES).find_map(|seed| {
                    let shape = CuckooShape { slots, associativity, layout, value_bytes: length, seed };
                    CuckooTable::build(shape, caps, records, key, value, &|| false).ok().flatten()
                });
                drive(self, &CuckooStore::new(table.expect(shape_fits), probing), keep_events, |client| {
                    vec![("reads", client.reads().table)]
                })
            }
            StoreOptions::Dummy { threads } => {
                let shape = DummyShape { records, value_bytes: length };
                let table = DummyTable::build(shape, caps, key, value, &|| false).expect(shape_fits);
                let store = DummyStore::new(table.expect("nobody stops it"), places, threads);
                drive(self, &store, keep_events, |_| Vec::new())
            }
        }
    }
}

impl fmt::Display for StoreSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {:?}, profile {} (packets of {} bytes over a queue pair), {} network cards; {} clients, {} a \
             thread, {} operations each, {} % of them lookups, {} reconnections each; {} keys, {} stored first; \
             values of {} bytes; one in {} clients meets each kind of fault; hazards {:?}",
            self.seed,
            self.options,
            self.profile,
            self.packet_bytes,
            if self.has_cards { "with" } else { "without" },
            self.clients,
            self.clients_per_thread,
            self.operations,
            self.read_percent,
            self.reconnects,
            self.keys,
            self.records,
            self.value_bytes,
            self.clients_per_fault,
            self.hazards
        )
    }
}
