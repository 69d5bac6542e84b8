//! A monitor that finds the holders of locks, and fences living clients.
//!
//! A worker holds locks for a small part of its time, so few workers that are killed at random hold one.

use std::thread;
use std::time::{Duration, Instant};

use guira::Store;
use guira::admin::Endpoint;
use guira_fabric::{Lane, Region, Verb, post};
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_fabric_verbs::{ConnectionOptions, DeviceOptions, VerbsRegion};
use guira_layout::{LockId, LockLayout, OwnerId};
use guira_network::client::{ConnectOptions, NodeSession};
use guira_network::tcp::TcpRegion;
use guira_network::wire::FenceReply;

use crate::histories::node::NodeProcess;

/// Time between two looks, longer than a running client holds a lock.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Reads a table's lock words without a client.
pub struct LockMonitor {
    locks: LockLayout,
    lane: Box<dyn Lane>,
    /// The session with the node, if there is one; it asks the node to drop other sessions.
    session: Option<NodeSession>,
}

impl LockMonitor {
    /// Monitors the table of `store`, which is mapped or has a `node`.
    pub fn new(store: &Store, node: Option<&NodeProcess>) -> LockMonitor {
        let remote = node.map(connect);
        let (lane, session): (Box<dyn Lane>, _) = match (store.stat().unwrap().region.file(), remote) {
            (Some(file), remote) => {
                let mapped = ShmRegion::open(&Location::file(file.path.clone()), Access::ReadOnly).unwrap();
                (Box::new(mapped.lane()), remote.map(|(_, session)| session))
            }
            (None, remote) => {
                let (lane, session) = remote.expect("it has a node");
                (lane, Some(session))
            }
        };
        LockMonitor { locks: *store.table().locks(), lane, session }
    }

    fn holders(&mut self) -> Vec<(LockId, OwnerId)> {
        let mut words = vec![0; self.locks.words() as usize];
        let read = Verb::Read { addr: self.locks.addr(0), into: &mut words };
        pollster::block_on(post(&mut *self.lane, &mut [read])).unwrap();
        (0..).zip(words).flat_map(|(word, value)| self.locks.all_held(word, value)).collect()
    }

    /// Returns an owner that held the same lock at two looks, so that it probably does not run; `None` if there is none
    /// until `until`.
    pub fn holder(&mut self, until: Instant) -> Option<OwnerId> {
        let mut before = self.holders();
        while Instant::now() < until {
            thread::sleep(POLL_INTERVAL);
            let now = self.holders();
            if let Some((_, owner)) = now.iter().find(|held| before.contains(held)) {
                return Some(*owner);
            }
            before = now;
        }
        None
    }

    /// Asks the node to drop the session of `owner`. Returns whether it had one.
    pub fn fence(&self, owner: OwnerId) -> bool {
        let session = self.session.as_ref().expect("a node");
        session.fence(owner.0 - 1).unwrap() == FenceReply::Dropped
    }
}

/// Opens a session with a node, and a lane.
fn connect(node: &NodeProcess) -> (Box<dyn Lane>, NodeSession) {
    let endpoint = Endpoint::new(&node.addr.ip().to_string(), node.addr.port());
    let options = ConnectOptions::new(endpoint).with_connect_timeout(guira_testing::patience());
    match &node.devices {
        None => {
            let region = TcpRegion::connect(&options).unwrap();
            (Box::new(region.lane()), region.session().clone())
        }
        Some(devices) => {
            let device = DeviceOptions { device: Some(devices.client.clone()), ..DeviceOptions::default() };
            let region = VerbsRegion::connect(&options, &device, &ConnectionOptions::default()).unwrap();
            (Box::new(region.lane()), region.session().clone())
        }
    }
}
