//! Memory nodes in this process, over memory that outlives the nodes.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guira::raw::layout::{Geometry, Preset, PresetOptions, Secret, Superblock};
use guira::{EntryFormat, Url};
use guira_conformance::RdmaDevices;
use guira_fabric::heap::HeapRegion;
use guira_fabric::{Profile, Region, Space};
use guira_fabric_verbs::{Device, DeviceOptions, Target, VerbsAgent};
use guira_network::node::{Node, NodeError, NodeHandle, NodeOptions, Service};
use guira_network::tcp::BatchExecutor;
use guira_rcuckoo::{Table, format_table};
use guira_testing::ReservedPort;

use crate::common::fabric::{selected_devices, url_of};

/// A node that serves a table. It can be stopped and started again over the same memory.
pub struct TestNode {
    pub addr: SocketAddr,
    region: HeapRegion,
    handle: Option<NodeHandle>,
    options: fn(NodeOptions) -> NodeOptions,
    /// The devices of the node and its clients; `None` over TCP.
    devices: Option<RdmaDevices>,
    _port: ReservedPort,
}

/// Returns memory with a new table for 8,000 keys.
fn table() -> HeapRegion {
    static INCARNATION: AtomicU64 = AtomicU64::new(1);
    let incarnation = INCARNATION.fetch_add(1, Ordering::Relaxed);
    let options = PresetOptions {
        capacity: 8_000,
        format: EntryFormat::Bytes { inline_bytes: 64 },
        extent_bytes: Some(16 << 20),
        max_clients: Some(64),
        hash_seed: 1,
        device_bytes: u64::MAX,
    };
    let config = Preset::Hardened.config(&options).expect("a possible table");
    let geometry = Geometry::new(&config).expect("a possible table");
    let region = HeapRegion::new(geometry.main_bytes(), geometry.device_bytes(), Profile::Shm.caps());
    let table: Arc<Table> =
        Table::new(Superblock { incarnation, table: 7, secret: Secret([3; 4]), config }).expect("a possible table");
    pollster::block_on(format_table(&mut region.lane(), &table, |_| ControlFlow::Continue(())))
        .expect("the heap refuses nothing");
    region
}

impl TestNode {
    pub fn start() -> TestNode {
        TestNode::start_with(|options| options)
    }

    pub fn start_with(options: fn(NodeOptions) -> NodeOptions) -> TestNode {
        TestNode::start_over(selected_devices(), options)
    }

    /// Starts a node over the given devices, or over TCP.
    pub fn start_over(devices: Option<RdmaDevices>, options: fn(NodeOptions) -> NodeOptions) -> TestNode {
        let port = ReservedPort::new();
        let addr = (Ipv4Addr::LOCALHOST, port.port).into();
        let mut served = TestNode { addr, region: table(), handle: None, options, devices, _port: port };
        served.run();
        served
    }

    pub fn url(&self) -> Url {
        self.url_at(self.addr)
    }

    /// Returns the URL of the node behind a proxy at `addr`.
    pub fn url_at(&self, addr: SocketAddr) -> Url {
        url_of(addr, self.devices.as_ref())
    }

    pub fn is_over_rdma(&self) -> bool {
        self.devices.is_some()
    }

    /// Returns the node's memory.
    pub fn region(&self) -> &HeapRegion {
        &self.region
    }

    /// Stops the node; its memory is kept.
    pub fn stop(&mut self) {
        self.handle.take().expect("a node").stop().expect("a node that works");
    }

    /// Starts another node over the same memory, at the same address.
    pub fn run(&mut self) {
        let options = (self.options)(NodeOptions::new(self.addr, [1, 1]).threads(1));
        let node = match &self.devices {
            None => spawn(BatchExecutor::new(self.region.clone()), options),
            Some(devices) => spawn(self.registered(devices), options),
        };
        self.handle = Some(node.expect("a free address and a thread"));
    }

    /// Registers the memory with the node's device.
    fn registered(&self, devices: &RdmaDevices) -> VerbsAgent<HeapRegion> {
        let options = DeviceOptions { device: Some(devices.node.clone()), ..DeviceOptions::default() };
        let target = Target::new(&Device::open(&options).expect("an active port")).expect("the device has atomics");
        for space in [Space::Main, Space::Device] {
            target.register(space, self.region.words(space)).expect("the memory can be locked");
        }
        VerbsAgent::new(self.region.clone(), target)
    }

    /// Replaces the memory by one with another table.
    pub fn lose_table(&mut self) {
        self.region = table();
    }

    /// Replaces the memory by an empty one.
    pub fn lose_memory(&mut self) {
        self.region = HeapRegion::new(self.region.main_bytes(), self.region.device_bytes(), Profile::Shm.caps());
    }
}

fn spawn<S: Service + Clone>(service: S, options: NodeOptions) -> Result<NodeHandle, NodeError> {
    Node::bind(service, options)?.spawn()
}
