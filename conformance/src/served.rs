//! A memory node in front of a bench's bytes, reached through a connection or a faulty proxy.

use std::net::{Ipv4Addr, SocketAddr};

use guira_fabric::{Lane, Profile, Region};
use guira_fabric_tcp::{BatchExecutor, TcpLane, TcpRegion};
use guira_session::client::{ConnectOptions, Endpoint};
use guira_session::node::{Node, NodeCounters, NodeHandle, NodeOptions};

use crate::Bench;
use crate::faulty_proxy::{FaultyProxy, ProxyFaults};

/// A memory node of one thread that serves a bench's bytes in this process. It stops when dropped.
pub struct BenchNode {
    handle: NodeHandle,
    proxy: Option<FaultyProxy>,
}

impl BenchNode {
    /// Starts a node over the bytes of `bench`.
    ///
    /// # Panics
    /// If no port or thread is available.
    pub fn over(bench: &Bench) -> BenchNode {
        let options = NodeOptions::new((Ipv4Addr::LOCALHOST, 0).into(), [1, 1]).threads(1);
        // The node sees the bytes as its own.
        let region = bench.region.with_caps(Profile::Shm.caps());
        let handle = Node::bind(BatchExecutor::new(region), options).expect("a free port").spawn().expect("a thread");
        BenchNode { handle, proxy: None }
    }

    /// Puts a proxy in front of the node that misbehaves as `faults` says, drawn from `seed`.
    #[must_use]
    pub fn behind_faulty_proxy(mut self, seed: u64, faults: ProxyFaults) -> BenchNode {
        self.proxy = Some(FaultyProxy::start(self.handle.local_addrs()[0], seed, faults));
        self
    }

    /// Opens a lane through a connection of its own.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn lane(&self) -> TcpLane {
        let addr: SocketAddr = self.proxy.as_ref().map_or(self.handle.local_addrs()[0], |proxy| proxy.addr);
        let options = ConnectOptions::new(Endpoint::new(&addr.ip().to_string(), addr.port()));
        TcpRegion::connect(&options).expect("the node admits every client").lane()
    }

    /// Returns the node's counters.
    pub fn counters(&self) -> NodeCounters {
        self.handle.counters()
    }

    /// Returns how many pieces, delays and cuts the proxy made.
    pub fn proxy_counts(&self) -> [u64; 3] {
        self.proxy.as_ref().map_or([0; 3], FaultyProxy::counts)
    }
}

/// A lane of any kind, in this process's memory or of a memory node.
pub struct AnyLane(Box<dyn Lane>);

impl AnyLane {
    /// Wraps `lane`.
    pub fn of(lane: impl Lane + 'static) -> AnyLane {
        AnyLane(Box::new(lane))
    }
}

impl Lane for AnyLane {
    crate::delegate!(0: caps, traffic, traffic_mut, submit, poll, forget, poll_drain, prefetch, poll_pause, now_ns);
}
