//! The table of a round, and the fabrics through which its workers reach it.

use std::time::Duration;

use guira::{Store, Url};
use guira_conformance::{FaultyProxy, ProxyFaults, RdmaDevices};

use crate::common::Table;
use crate::common::fabric::url_of;
use crate::histories::node::NodeProcess;
use crate::histories::{Case, SEED};

/// The fabric through which the workers of a round reach its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// All workers map the table.
    Shm,
    /// Same as [`Fabric::Shm`], with a table that grows to many times the size that it is made for.
    Growing,
    /// The table is in a memory node's own memory, and all workers are connected to the node.
    Tcp,
    /// Every other worker maps the table, and the others are connected to a node that serves it.
    Mixed,
    /// The table has a name, and the node that all workers are connected to is killed and restarted repeatedly.
    Restarted,
    /// Same as [`Fabric::Tcp`], through a proxy that delays, splits and cuts.
    Faulty,
    /// The table is in a memory node's own memory, whose device executes what all workers post.
    Rdma,
}

/// The faults of the proxy. Connections last for some tens of operations, and long enough to adopt a chunk.
const PROXY_FAULTS: ProxyFaults =
    ProxyFaults { longest_delay: Duration::from_millis(2), cut_after_bytes: Some(200_000) };

/// The fewest events of a round, which ends when all of them have happened.
#[derive(Clone, Copy, Debug)]
pub struct RoundGoals {
    pub kills: u64,
    pub stops: u64,
    pub fences: u64,
    /// Kills of the node.
    pub restarts: u64,
    /// Operations that were answered.
    pub answered: u64,
}

impl Fabric {
    /// Returns what happens in a round at least.
    pub fn goals(self) -> RoundGoals {
        let goals = RoundGoals { kills: 70, stops: 10, fences: 0, restarts: 0, answered: 400 };
        match self {
            Fabric::Shm | Fabric::Growing => RoundGoals { answered: 4_000, ..goals },
            Fabric::Tcp => RoundGoals { fences: 10, ..goals },
            Fabric::Mixed => RoundGoals { fences: 4, ..goals },
            // Fewer kills, so that many live to see the node come back, or lose a connection.
            Fabric::Restarted => RoundGoals { kills: 20, restarts: 4, ..goals },
            Fabric::Faulty => RoundGoals { kills: 20, answered: 120, ..goals },
            Fabric::Rdma => RoundGoals { kills: 5, stops: 3, fences: 1, restarts: 0, answered: 15 },
        }
    }

    /// Whether a round has a table that grows.
    pub fn grows(self) -> bool {
        matches!(self, Fabric::Shm | Fabric::Growing | Fabric::Mixed | Fabric::Restarted)
    }

    /// Returns the shortest time from one kill of a worker to the next.
    pub fn between_kills(self) -> Duration {
        Duration::from_millis(match self {
            Fabric::Shm | Fabric::Growing | Fabric::Tcp | Fabric::Mixed => 20,
            Fabric::Restarted | Fabric::Faulty => 100,
            // An emulated machine starts a few processes a second.
            Fabric::Rdma => 500,
        })
    }

    /// Returns the shortest time from one kill of the node to the next.
    pub fn between_restarts(self) -> Option<Duration> {
        (self == Fabric::Restarted).then_some(Duration::from_millis(250))
    }

    /// Returns the shortest time from one fenced client to the next.
    pub fn between_fences(self) -> Option<Duration> {
        match self {
            Fabric::Tcp | Fabric::Mixed | Fabric::Faulty => Some(Duration::from_millis(50)),
            Fabric::Rdma => Some(Duration::from_millis(300)),
            Fabric::Shm | Fabric::Growing | Fabric::Restarted => None,
        }
    }
}

/// A table, and what serves it.
pub struct Fixture {
    pub fabric: Fabric,
    pub store: Store,
    pub node: Option<NodeProcess>,
    /// The URLs of the table, which the workers use in turn.
    pub urls: Vec<Url>,
    pub proxy: Option<FaultyProxy>,
    _table: Option<Table>,
}

impl Fixture {
    pub fn of(fabric: Fabric, round: u64) -> Fixture {
        let options = Case::of(fabric, round).options(round);
        let named = || Table::create(&options);
        let (table, node) = match fabric {
            Fabric::Shm | Fabric::Growing => (Some(named()), None),
            Fabric::Tcp | Fabric::Faulty => (None, Some(NodeProcess::start(None, round, None))),
            Fabric::Rdma => {
                let devices = RdmaDevices::find("histories").expect("it was there before");
                (None, Some(NodeProcess::start(None, round, Some(devices))))
            }
            Fabric::Mixed | Fabric::Restarted => {
                let (table, store) = named();
                let node = NodeProcess::start(Some(&table.url), round, None);
                (Some((table, store)), Some(node))
            }
        };
        let (table, store) = match (table, &node) {
            (Some((table, store)), _) => (Some(table), store),
            (None, node) => (None, Store::open(node.as_ref().expect("a node").url()).unwrap()),
        };
        let proxy = (fabric == Fabric::Faulty)
            .then(|| FaultyProxy::start(node.as_ref().expect("a node").addr, SEED ^ round, PROXY_FAULTS));
        let mapped = table.as_ref().map(|table| table.url.clone());
        let remote = proxy.as_ref().map(|proxy| url_of(proxy.addr, None)).or(node.as_ref().map(NodeProcess::url));
        let urls = match fabric {
            Fabric::Restarted => vec![remote.expect("a node")],
            _ => remote.into_iter().chain(mapped).collect(),
        };
        Fixture { fabric, store, node, urls, proxy, _table: table }
    }
}
