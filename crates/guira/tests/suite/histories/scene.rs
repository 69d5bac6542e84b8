//! The table of a round, and the ways of its workers to it.

use std::time::Duration;

use guira::{Store, Url};

use crate::common::Table;
use crate::common::rough::{Rough, Roughness};
use crate::histories::node::{NodeProcess, url_of};
use crate::histories::{KILLS_PER_S, SEED, Shape};

/// How the workers of a round reach its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// All of them map it.
    Shm,
    /// It is a memory node's own, which all of them are connected to.
    Tcp,
    /// Every other one maps it, and the others are connected to a node that serves it.
    Mixed,
    /// It has a name, and the node that all of them are connected to is killed and started again, all the while.
    Restarted,
    /// As [`Fabric::Tcp`], through a proxy that delays, splits and cuts.
    Rough,
}

/// What a rough way does. Connections last for some tens of operations, and long enough to adopt a chunk in one.
const ROUGHNESS: Roughness = Roughness { longest_delay: Duration::from_millis(2), cut_after_bytes: Some(200_000) };

impl Fabric {
    /// Kills of workers a second.
    pub fn kills_per_s(self) -> u64 {
        match self {
            Fabric::Shm | Fabric::Tcp | Fabric::Mixed => KILLS_PER_S,
            // So that many live to see the node come back, or lose a connection.
            Fabric::Restarted | Fabric::Rough => KILLS_PER_S / 5,
        }
    }

    /// From one end of the node to the next.
    pub fn between_restarts(self) -> Option<Duration> {
        (self == Fabric::Restarted).then_some(Duration::from_millis(250))
    }

    /// From one client that is shut out to the next.
    pub fn between_fences(self) -> Option<Duration> {
        matches!(self, Fabric::Tcp | Fabric::Mixed | Fabric::Rough).then_some(Duration::from_millis(50))
    }
}

/// A table, and the ways to it.
pub struct Scene {
    pub fabric: Fabric,
    pub store: Store,
    pub node: Option<NodeProcess>,
    /// The workers', by turns.
    pub urls: Vec<Url>,
    pub proxy: Option<Rough>,
    _table: Option<Table>,
}

impl Scene {
    pub fn of(fabric: Fabric, round: u64) -> Scene {
        let options = Shape::of(round).options(round);
        let named = || Table::create(&options);
        let (table, node) = match fabric {
            Fabric::Shm => (Some(named()), None),
            Fabric::Tcp | Fabric::Rough => (None, Some(NodeProcess::start(None, round))),
            Fabric::Mixed | Fabric::Restarted => {
                let (table, store) = named();
                let node = NodeProcess::start(Some(&table.url), round);
                (Some((table, store)), Some(node))
            }
        };
        let (table, store) = match (table, &node) {
            (Some((table, store)), _) => (Some(table), store),
            (None, node) => (None, Store::open(node.as_ref().expect("a node").url()).unwrap()),
        };
        let proxy = (fabric == Fabric::Rough)
            .then(|| Rough::before(node.as_ref().expect("a node").addr, SEED ^ round, ROUGHNESS));
        let mapped = table.as_ref().map(|table| table.url.clone());
        let remote = proxy.as_ref().map(|proxy| url_of(proxy.addr)).or(node.as_ref().map(NodeProcess::url));
        let urls = match fabric {
            Fabric::Restarted => vec![remote.expect("a node")],
            _ => remote.into_iter().chain(mapped).collect(),
        };
        Scene { fabric, store, node, urls, proxy, _table: table }
    }
}
