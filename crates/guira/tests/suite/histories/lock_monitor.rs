//! A monitor that finds the holders of locks, and fences living clients.
//!
//! A worker holds locks for a small part of its time, so few workers that are killed at random hold one.

use std::thread;
use std::time::{Duration, Instant};

use guira::Store;
use guira::admin::Endpoint;
use guira_fabric::{Lane, Region, Verb, post};
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_fabric_tcp::TcpRegion;
use guira_layout::{LockId, LockLayout, OwnerId};
use guira_session::client::ConnectOptions;
use guira_session::wire::FenceReply;

use crate::histories::node::NodeProcess;

/// Time between two looks, longer than a running client holds a lock.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Reads a table's lock words without a client.
pub struct LockMonitor {
    locks: LockLayout,
    lane: Box<dyn Lane>,
    /// The connection to the node, if there is one; it asks the node to drop sessions.
    region: Option<TcpRegion>,
}

impl LockMonitor {
    /// Monitors the table of `store`, which is mapped or has a `node`.
    pub fn new(store: &Store, node: Option<&NodeProcess>) -> LockMonitor {
        let region = node.map(|node| {
            let endpoint = Endpoint::new(&node.addr.ip().to_string(), node.addr.port());
            TcpRegion::connect(&ConnectOptions::new(endpoint)).unwrap()
        });
        let lane: Box<dyn Lane> = match (store.stat().unwrap().region.file(), &region) {
            (Some(file), _) => {
                let mapped = ShmRegion::open(&Location::file(file.path.clone()), Access::ReadOnly).unwrap();
                Box::new(mapped.lane())
            }
            (None, region) => Box::new(region.as_ref().expect("it has a node").lane()),
        };
        LockMonitor { locks: *store.table().locks(), lane, region }
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
        let region = self.region.as_ref().expect("a node");
        region.session().fence(owner.0 - 1).unwrap() == FenceReply::Dropped
    }
}
