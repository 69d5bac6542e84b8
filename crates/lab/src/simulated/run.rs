//! The parameters and the results of a simulated run.

use std::pin::Pin;

use guira_fabric::heap::HeapRegion;
use guira_fabric_sim::{ClientId, Cluster, Network, Sim, SimOptions, SimRegion, Usage};
use guira_rcuckoo::{ClientConfig, Counters};

use super::filled::FillError;
use super::splits::SplitStats;
use crate::steady::{Counts, Span, Steadiness};
use crate::workload::{Operation, THETA_MAX, WorkloadError};

/// Most violations that are kept in words; all are counted.
pub(super) const VIOLATIONS_MAX: usize = 100;

/// The load of a run: clients that carry out a mix of operations on the records of a filled store.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Seed of every random choice.
    pub seed: u64,
    /// Concurrent clients, each a thread.
    pub clients: u32,
    /// Hosts, over which the clients are spread evenly.
    pub hosts: u32,
    /// Operations that a client carries out at once, each on a lane of its own.
    pub in_flight: u32,
    /// The mix of operations.
    pub mix: Mix,
    /// Zipf exponent of the popularity of the table's records, 0 to 2; 0 is uniform. Record 0 is the most popular one.
    pub theta: f64,
    /// Virtual time of work before the measurement starts, in nanoseconds.
    pub warm_ns: u64,
    /// The measured virtual time.
    pub span: Span,
    /// Inserts after which the run is over with [`Span::UntilFull`]; no longer measurement begins with so many.
    pub most_inserts: u64,
    /// Time that a client computes for an operation, as a part of it.
    pub compute: Compute,
}

/// A run of RCuckoo: a load on a filled table, of which some clients may die.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The load. A client that dies is replaced.
    pub load: Load,
    /// Deaths from the end of the warm-up on.
    pub deaths: Deaths,
    /// Lock queues.
    pub queues: Queues,
    /// Bytes of the row predictor of each client (thread), 0 for none. Clients of a host that share lock queues share one, of as
    /// many bytes as theirs together.
    pub predictor_bytes: usize,
    /// The clients' settings; each client's seed is its own.
    pub client_config: ClientConfig,
    /// Whether there is an element that answers tries of locks that it knows to be taken.
    pub knows_locks: bool,
    /// The part of the table that is checked at the end.
    pub audit: Audit,
}

/// Shares of operations, in percent, which add up to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Lookups of records with which the table was filled.
    pub read_percent: u32,
    /// Updates of such records.
    pub update_percent: u32,
    /// Inserts of new records.
    pub insert_percent: u32,
}

impl Mix {
    /// Half lookups, half updates: YCSB-A.
    pub const YCSB_A: Mix = Mix { read_percent: 50, update_percent: 50, insert_percent: 0 };
    /// Mostly lookups, some updates: YCSB-B.
    pub const YCSB_B: Mix = Mix { read_percent: 95, update_percent: 5, insert_percent: 0 };
    /// Lookups: YCSB-C.
    pub const YCSB_C: Mix = Mix { read_percent: 100, update_percent: 0, insert_percent: 0 };
    /// Half lookups, half inserts: A' of RCuckoo's figure 7.
    pub const A_PRIME: Mix = Mix { read_percent: 50, update_percent: 0, insert_percent: 50 };
    /// Mostly lookups, some inserts: B' of RCuckoo's figure 7.
    pub const B_PRIME: Mix = Mix { read_percent: 95, update_percent: 0, insert_percent: 5 };
    /// Inserts: W of RCuckoo's figure 7.
    pub const W: Mix = Mix { read_percent: 0, update_percent: 0, insert_percent: 100 };
}

/// The time that a client computes for an operation, besides posting its verbs, on a thread near to its card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compute {
    /// For a lookup, in nanoseconds.
    pub lookup_ns: u64,
    /// For a change, in nanoseconds.
    pub change_ns: u64,
}

impl Compute {
    /// Returns the time for an operation, in nanoseconds.
    pub fn of(self, operation: Operation) -> u64 {
        if operation == Operation::Read { self.lookup_ns } else { self.change_ns }
    }
}

/// Deaths of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deaths {
    /// Deaths per second of virtual time, at equal intervals.
    pub per_second: u64,
    /// The clients that may die.
    pub victims: Victims,
}

impl Deaths {
    /// No client dies.
    pub const NONE: Deaths = Deaths { per_second: 0, victims: Victims::Any };
}

/// The clients that may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Any client. Where many wait for few locks, most hold none.
    Any,
    /// A client that holds a lock, if any does.
    LockHolders,
}

/// Lock queues in front of the table's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// Every client asks for its locks by itself.
    None,
    /// The clients of a host share a queue, as those of a process do behind a memory node.
    PerHost,
}

/// The part of the table that is checked at the end. Client slots are always checked, and so are locks, unless clients
/// died in a table that is repaired as printed: their locks stay until another client wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Every row and every record.
    Whole,
    /// The records that were written or whose history was kept: for runs that are shorter than a look at the table.
    Touched,
}

/// The client of a simulation, as a task.
pub type ClientTask = Box<dyn FnOnce(SimRegion) -> Pin<Box<dyn Future<Output = ()>>>>;

/// The machines and the network on which a run takes place.
pub trait Testbed {
    /// Creates a simulation of the memory node whose bytes are those of `region`.
    fn simulation(&self, region: HeapRegion, seed: u64) -> Sim;

    /// Adds a client on host `host`, counted from 0.
    fn spawn(&self, sim: &mut Sim, host: u32, client: ClientTask) -> ClientId;
}

/// A network in which hosts have nothing of their own: every client has a card to itself.
impl Testbed for Network {
    fn simulation(&self, region: HeapRegion, seed: u64) -> Sim {
        Sim::new(region, &SimOptions::new(seed, *self))
    }

    fn spawn(&self, sim: &mut Sim, host: u32, client: ClientTask) -> ClientId {
        sim.spawn_on(host, client)
    }
}

/// Hosts with cards, which their clients share.
impl Testbed for Cluster {
    fn simulation(&self, region: HeapRegion, seed: u64) -> Sim {
        Sim::new(region, &SimOptions::on_cluster(seed, *self))
    }

    fn spawn(&self, sim: &mut Sim, host: u32, client: ClientTask) -> ClientId {
        sim.spawn_on(host, client)
    }
}

/// A run was not carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There are no operations at once, or more than the table has client slots for.
    #[error("{clients} operations at once are not possible: there may be 1 to {most}")]
    Clients {
        /// Operations at once: clients, times those in flight of each.
        clients: u32,
        /// The table's slots, less those that dead clients occupy until they are recovered.
        most: u32,
    },
    /// There are no hosts, or more hosts than clients.
    #[error("{clients} clients cannot be spread over {hosts} hosts: there are 1 to {clients} hosts")]
    Hosts {
        /// The number asked for.
        hosts: u32,
        /// The number of clients.
        clients: u32,
    },
    /// The shares of operations do not add up to 100 percent.
    #[error("{percent} percent of the operations are reads, updates or inserts, not 100")]
    Mix {
        /// Their sum.
        percent: u32,
    },
    /// The popularity is impossible.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The table could not be copied.
    #[error(transparent)]
    Fill(#[from] FillError),
    /// The progress function ended it.
    #[error("stopped on request")]
    Stopped,
}

impl Load {
    /// Refuses a load that is impossible on a store with `filled` records.
    pub(super) fn check(&self, filled: u64) -> Result<(), RunError> {
        if self.clients == 0 || self.in_flight == 0 {
            return Err(RunError::Clients { clients: 0, most: u32::MAX });
        }
        if !(1..=self.clients).contains(&self.hosts) {
            return Err(RunError::Hosts { hosts: self.hosts, clients: self.clients });
        }
        let Mix { read_percent, update_percent, insert_percent } = self.mix;
        let percent = [read_percent, update_percent, insert_percent].into_iter().fold(0_u32, u32::saturating_add);
        if percent != 100 {
            return Err(RunError::Mix { percent });
        }
        if !(0.0..=THETA_MAX).contains(&self.theta) {
            return Err(WorkloadError::ThetaOutOfRange { theta: self.theta }.into());
        }
        if filled == 0 && insert_percent < 100 {
            return Err(WorkloadError::NoRecords.into());
        }
        Ok(())
    }

    /// Returns the operations that all clients carry out at once.
    pub(super) fn workers(&self) -> u32 {
        self.clients.saturating_mul(self.in_flight)
    }
}

impl Run {
    /// Returns the bytes of a predictor, which the clients of a host share if they share a queue, and how many there
    /// are.
    pub(crate) fn predictors(&self) -> (usize, u64) {
        let Load { clients, hosts, .. } = self.load;
        match self.queues {
            Queues::None => (self.predictor_bytes, clients.into()),
            Queues::PerHost => {
                let sharing = clients.div_ceil(hosts.max(1)) as usize;
                (self.predictor_bytes.saturating_mul(sharing), hosts.into())
            }
        }
    }

    /// Refuses a run that is impossible on a table with `slots` slots and `filled` records.
    pub(super) fn check(&self, slots: u32, filled: u64) -> Result<(), RunError> {
        let workers = self.load.workers();
        let spare = if self.deaths.per_second > 0 { workers.div_ceil(SPARE_SHARE) } else { 0 };
        let most = slots.saturating_sub(spare);
        if !(1..=most).contains(&workers) {
            return Err(RunError::Clients { clients: workers, most });
        }
        self.load.check(filled)
    }
}

/// Where clients die, one slot more for this many clients: dead clients that are not recovered yet occupy one, too.
const SPARE_SHARE: u32 = 5;

/// The results of a run. Equal runs have equal results.
#[derive(Clone, Debug, Default)]
pub struct RunStats {
    /// Operations that ended in the measured time, by kind and by client; the times are virtual.
    pub counts: Counts,
    /// The measured time, and whether the run was steady.
    pub steadiness: Steadiness,
    /// Duration of the longest operation of the whole run, in nanoseconds.
    pub longest_ns: u64,
    /// Sums of the clients' counters over the whole run: conflicts, moves, waits in queues, combined writes and more.
    pub counters: Counters,
    /// Operations that reached their deadline while waiting for a lock.
    pub busy: u64,
    /// Inserts that had begun when the measurement ended.
    pub inserts: u64,
    /// Inserts for which there was no room.
    pub full: u64,
    /// Clients that died.
    pub deaths: u64,
    /// Dead clients that were recovered while others worked.
    pub recoveries: u64,
    /// Recovered clients whose commit was completed.
    pub replays: u64,
    /// Operations on the records whose whole histories were checked.
    pub watched: u64,
    /// Records in the table at the end, if the whole table was checked.
    pub records_at_end: Option<u64>,
    /// What splits cost, in a table that grows.
    pub splits: SplitStats,
    /// Verbs that were executed.
    pub verbs: u64,
    /// Bytes of the state of the element in front of the node, at the end of the measured time.
    pub element_bytes: u64,
    /// The use of the cluster's resources in the measured time.
    pub usage: Usage,
    /// Violations: the first hundred in words.
    pub violations: Vec<String>,
    /// All violations.
    pub violation_count: u64,
}

impl RunStats {
    pub(super) fn violation(&mut self, what: impl FnOnce() -> String) {
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what());
        }
    }
}
