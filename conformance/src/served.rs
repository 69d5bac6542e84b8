//! A memory node in front of a bench's bytes, reached through connections, a faulty proxy or RDMA.

use std::net::{Ipv4Addr, SocketAddr};

use guira_fabric::{Lane, Profile, Region, Space};
use guira_fabric_verbs::{ConnectionOptions, Device, DeviceOptions, Target, VerbsAgent, VerbsRegion};
use guira_network::client::{ConnectOptions, Endpoint};
use guira_network::node::{Node, NodeCounters, NodeHandle, NodeOptions};
use guira_network::tcp::{BatchExecutor, TcpRegion};

use crate::faulty_proxy::{FaultyProxy, ProxyFaults};
use crate::{Bench, RdmaDevices};

/// A memory node of one thread that serves a bench's bytes in this process. It stops when dropped.
pub struct BenchNode {
    handle: NodeHandle,
    proxy: Option<FaultyProxy>,
    /// The device of its clients, if it is reached over RDMA.
    client_device: Option<DeviceOptions>,
}

impl BenchNode {
    /// Starts a node over the bytes of `bench`.
    ///
    /// # Panics
    /// If no port or thread is available.
    pub fn over(bench: &Bench) -> BenchNode {
        // The node sees the bytes as its own.
        let region = bench.region.with_caps(Profile::Shm.caps());
        let node = Node::bind(BatchExecutor::new(region), BenchNode::options()).expect("a free port");
        BenchNode { handle: node.spawn().expect("a thread"), proxy: None, client_device: None }
    }

    /// Starts a node that registers the bytes of `bench` with a device. No lane of the bench may change them while a
    /// client of the node does.
    ///
    /// # Panics
    /// If no port or thread is available, or the device cannot be used.
    pub fn over_rdma(bench: &Bench, devices: &RdmaDevices) -> BenchNode {
        let of = |name: &String| DeviceOptions { device: Some(name.clone()), ..DeviceOptions::default() };
        let device = Device::open(&of(&devices.node)).expect("a device with an active port");
        let target = Target::new(&device).expect("the device has atomics");
        for space in [Space::Main, Space::Device] {
            target.register(space, bench.region.words(space)).expect("the memory can be locked");
        }
        let agent = VerbsAgent::new(bench.region.with_caps(Profile::Shm.caps()), target);
        let node = Node::bind(agent, BenchNode::options()).expect("a free port");
        BenchNode { handle: node.spawn().expect("a thread"), proxy: None, client_device: Some(of(&devices.client)) }
    }

    fn options() -> NodeOptions {
        NodeOptions::new((Ipv4Addr::LOCALHOST, 0).into(), [1, 1]).threads(1)
    }

    /// Puts a proxy in front of the node that misbehaves as `faults` says, drawn from `seed`.
    #[must_use]
    pub fn behind_faulty_proxy(mut self, seed: u64, faults: ProxyFaults) -> BenchNode {
        self.proxy = Some(FaultyProxy::start(self.handle.local_addrs()[0], seed, faults));
        self
    }

    /// Opens a lane through a connection of its own, and a queue pair of its own over RDMA.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn lane(&self) -> AnyLane {
        let addr: SocketAddr = self.proxy.as_ref().map_or(self.handle.local_addrs()[0], |proxy| proxy.addr);
        let options = ConnectOptions::new(Endpoint::new(&addr.ip().to_string(), addr.port()));
        match &self.client_device {
            None => AnyLane::of(TcpRegion::connect(&options).expect("the node admits every client").lane()),
            Some(device) => {
                let region = VerbsRegion::connect(&options, device, &ConnectionOptions::default());
                AnyLane::of(region.expect("the node admits every client").lane())
            }
        }
    }

    /// Returns the node's counters. Over RDMA it counts no verbs, because a device executes them.
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
