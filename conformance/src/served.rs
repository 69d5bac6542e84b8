//! A bench behind a memory node: the same bytes through a real connection, or a rough one.

use std::net::{Ipv4Addr, SocketAddr};

use guira_fabric::{Lane, Profile, Region};
use guira_fabric_tcp::client::{ConnectOptions, Endpoint, TcpLane, TcpRegion};
use guira_fabric_tcp::node::{Node, NodeCounters, NodeHandle, NodeOptions};

use crate::Bench;
use crate::rough::{Rough, Roughness};

/// A node of one thread that serves a bench's bytes, in this process. It stops when this is dropped.
pub struct BenchNode {
    handle: NodeHandle,
    proxy: Option<Rough>,
}

impl BenchNode {
    /// A node over the bytes of `bench`.
    ///
    /// # Panics
    /// If there is no port or no thread for it.
    pub fn over(bench: &Bench) -> BenchNode {
        let options = NodeOptions::new((Ipv4Addr::LOCALHOST, 0).into(), [1, 1]).threads(1);
        // To the node the bytes are its own.
        let region = bench.region.with_caps(Profile::Shm.caps());
        let handle = Node::bind(region, options).expect("a free port").spawn().expect("a thread");
        BenchNode { handle, proxy: None }
    }

    /// The same node, reached through a proxy that does what `roughness` says, as `seed` draws it.
    #[must_use]
    pub fn roughly(mut self, seed: u64, roughness: Roughness) -> BenchNode {
        self.proxy = Some(Rough::before(self.handle.local_addrs()[0], seed, roughness));
        self
    }

    /// A lane through a connection of its own.
    ///
    /// # Panics
    /// If there is none.
    pub fn lane(&self) -> TcpLane {
        let addr: SocketAddr = self.proxy.as_ref().map_or(self.handle.local_addrs()[0], |proxy| proxy.addr);
        let options = ConnectOptions::new(Endpoint::new(&addr.ip().to_string(), addr.port()));
        TcpRegion::connect(&options).expect("the node lets everybody in").lane()
    }

    /// What it has counted.
    pub fn counters(&self) -> NodeCounters {
        self.handle.counters()
    }

    /// Pieces, delays and cuts of its proxy.
    pub fn roughness(&self) -> [u64; 3] {
        self.proxy.as_ref().map_or([0; 3], Rough::done)
    }
}

/// A lane of any kind: one in this process's memory, or of a node.
pub struct AnyLane(Box<dyn Lane>);

impl AnyLane {
    /// `lane`, whatever its kind.
    pub fn of(lane: impl Lane + 'static) -> AnyLane {
        AnyLane(Box::new(lane))
    }
}

impl Lane for AnyLane {
    crate::delegate!(0: caps, traffic, traffic_mut, submit, poll, forget, poll_drain, prefetch, poll_pause, now_ns);
}
