//! Other key/value stores for remote memory, to which RCuckoo is compared.
//!
//! Each store is a module. It has a [`Store`], the memory of its nodes with the records in it, and a [`Client`], which
//! posts verbs on a lane of any fabric, or calls a service of the node, which only the simulator has. They are for
//! measurements: no program stores anything in them. Invariants: a store has no clock and no thread, and draws from
//! seeds only, so that equal records give equal bytes; a client reads nothing but what its verbs bring; what a client
//! costs is counted by its lane.
//!
//! To add a store: write its layout and its builder from the paper, implement both traits, add it to the lab's settings
//! (`Setting` and `experiment/engine/stores.rs`), and state in docs/baselines.md what it promises and where it differs
//! from its paper.

pub mod clover;
pub mod cuckoo;
pub mod dummy;
pub mod linear;
mod record;

use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Effect, FabricError, Lane, Region, Traffic};
use guira_fabric_sim::{Calls, Element, Service, SimLane, SimRegion};

pub use record::{BuildError, Layout, Places, ReadCounts};

/// The memory nodes of a store, with its records.
pub trait Store {
    /// The client of the store.
    type Client: Client;
    /// State that the clients of one host share, such as a cache.
    type Host;
    /// State that the operations at once of one thread share.
    type Thread;

    /// Returns the memory of each node.
    fn nodes(&self) -> &[HeapRegion];

    /// Returns the store with bytes of its own where clients change them.
    #[must_use]
    fn fork(&self) -> Self;

    /// Creates the state that the clients of a host share.
    fn host(&self) -> Self::Host;

    /// Creates the state that the operations at once of a thread share.
    fn thread(&self) -> Self::Thread;

    /// Returns the service of the first node, and its threads; `None` if clients need none.
    fn service(&self) -> Option<(u32, Box<dyn Service>)> {
        None
    }

    /// Returns the element in front of the first node; `None` if there is none.
    fn element(&self) -> Option<Box<dyn Element>> {
        None
    }

    /// Opens client `number`, from 0. A thread with several operations at once has a client for each.
    fn client(&self, ports: Ports, number: u32, host: &Rc<Self::Host>, thread: &Rc<Self::Thread>) -> Self::Client;
}

/// The lanes of a client to the first node.
pub struct Ports {
    /// For verbs.
    pub verbs: Box<dyn Lane>,
    /// For calls of the node's service; `None` outside of the simulator.
    pub calls: Option<SimLane>,
    /// The region of the simulator, for further lanes.
    pub region: Option<SimRegion>,
}

impl Ports {
    /// Returns the lanes of a client that calls no service.
    pub fn of_verbs(lane: impl Lane + 'static) -> Ports {
        Ports { verbs: Box::new(lane), calls: None, region: None }
    }

    /// Opens the lanes of a client in the simulator.
    pub fn simulated(region: &SimRegion) -> Ports {
        Ports { verbs: Box::new(region.lane()), calls: Some(region.lane()), region: Some(region.clone()) }
    }
}

/// A client of a store. It carries out one operation at a time.
pub trait Client {
    /// Appends the values of all records with `key` to `values`. Returns whether there is any.
    ///
    /// # Errors
    /// Any [`ErrorKind`] but `Full`. `values` may have some of the values then.
    fn get(&mut self, key: u64, values: &mut Vec<u8>) -> impl Future<Output = Result<bool, Error>>;

    /// Carries out a change.
    ///
    /// # Errors
    /// Any [`ErrorKind`].
    fn change(&mut self, key: u64, change: Change<'_>) -> impl Future<Output = Result<Outcome, Error>>;

    /// Returns what all operations so far have cost.
    fn cost(&self) -> Cost;
}

/// A change of the record of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'v> {
    /// Stores a value for a key that does not exist.
    Insert(&'v [u8]),
    /// Replaces the value of a key that exists.
    Update(&'v [u8]),
    /// Stores a value, whether the key exists or not.
    Put(&'v [u8]),
    /// Removes a key.
    Remove,
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key is new.
    Inserted,
    /// The key had another value before.
    Replaced,
    /// The key was removed.
    Removed,
    /// Nothing changed: the key exists.
    Exists,
    /// Nothing changed: there is no such key.
    Missing,
}

/// The cost of operations, counted by lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Batches and calls that operations have waited for: network round trips.
    pub round_trips: u64,
    /// Verbs posted, calls and notices.
    pub messages: u64,
    /// Bytes on the wire in both directions, headers included.
    pub wire_bytes: u64,
    /// Batches that were posted again, because another client held a lock or what was read did not verify.
    pub retries: u64,
}

impl Cost {
    /// Returns the difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Cost) -> Cost {
        Cost {
            round_trips: self.round_trips - earlier.round_trips,
            messages: self.messages - earlier.messages,
            wire_bytes: self.wire_bytes - earlier.wire_bytes,
            retries: self.retries - earlier.retries,
        }
    }
}

impl From<&Traffic> for Cost {
    fn from(traffic: &Traffic) -> Cost {
        Cost {
            round_trips: traffic.round_trips,
            messages: traffic.messages(),
            wire_bytes: traffic.wire_bytes(),
            retries: traffic.retries,
        }
    }
}

impl From<&Calls> for Cost {
    fn from(calls: &Calls) -> Cost {
        let messages = calls.calls + calls.notices;
        Cost { round_trips: calls.calls, messages, wire_bytes: calls.wire_bytes(), retries: 0 }
    }
}

/// An error of an operation, with the effect on its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} ({effect})")]
pub struct Error {
    /// The reason.
    pub kind: ErrorKind,
    /// The effect on the key.
    pub effect: Effect,
}

/// The reasons why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// Other clients were in the way until the operation's deadline.
    #[error("other clients were in the way until the deadline")]
    Busy,
    /// The store has no room.
    #[error("the store has no room")]
    Full,
    /// The fabric refused or lost a batch.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The store has no such operation, or not with these arguments.
    #[error("{0}")]
    Refused(String),
}

impl From<FabricError> for Error {
    fn from(source: FabricError) -> Error {
        Error { effect: source.effect(), kind: source.into() }
    }
}

impl Error {
    /// Creates the error of an operation that was refused, without effect.
    pub fn refused(why: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Refused(why.into()), effect: Effect::None }
    }
}
