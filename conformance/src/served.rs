//! A bench behind a memory node: the same bytes through a real connection, or a rough one.

use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};

use guira_fabric::heap::HeapLane;
use guira_fabric::{Addr, Caps, FabricError, Lane, Profile, Region, Submitted, Traffic, Verb};
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

/// A lane in this process's memory, or of a node.
pub enum AnyLane {
    /// Verbs are executed in place.
    Heap(HeapLane),
    /// Batches are sent.
    Tcp(TcpLane),
}

impl AnyLane {
    fn lane(&self) -> &dyn Lane {
        match self {
            AnyLane::Heap(lane) => lane,
            AnyLane::Tcp(lane) => lane,
        }
    }

    fn lane_mut(&mut self) -> &mut dyn Lane {
        match self {
            AnyLane::Heap(lane) => lane,
            AnyLane::Tcp(lane) => lane,
        }
    }
}

impl Lane for AnyLane {
    fn caps(&self) -> &Caps {
        self.lane().caps()
    }

    fn traffic(&self) -> &Traffic {
        self.lane().traffic()
    }

    fn traffic_mut(&mut self) -> &mut Traffic {
        self.lane_mut().traffic_mut()
    }

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        self.lane_mut().submit(batch)
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        self.lane_mut().poll(batch, cx)
    }

    fn forget(&mut self) {
        self.lane_mut().forget();
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        self.lane_mut().poll_drain(found, cx)
    }

    fn prefetch(&self, addr: Addr, words: usize) {
        self.lane().prefetch(addr, words);
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        self.lane_mut().poll_pause(until_ns, cx)
    }

    fn now_ns(&mut self) -> u64 {
        self.lane_mut().now_ns()
    }
}
