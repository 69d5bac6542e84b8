//! Who holds locks, most of a worker's time passing outside of them, so that few die there if they die at any moment;
//! and how somebody who lives is shut out.

use std::thread;
use std::time::{Duration, Instant};

use guira::Store;
use guira::admin::Endpoint;
use guira_fabric::{Lane, Region, Verb, post};
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_fabric_tcp::client::{ConnectOptions, TcpRegion};
use guira_fabric_tcp::wire::FenceReply;
use guira_layout::{LockId, LockLayout, OwnerId};

use crate::histories::node::NodeProcess;

/// Longer than locks are held by anybody who runs.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// Reads a table's lock words, without a client.
pub struct Watch {
    locks: LockLayout,
    lane: Box<dyn Lane>,
    /// Who drops sessions, where there are any.
    region: Option<TcpRegion>,
}

impl Watch {
    /// Over the table of `store`, which is mapped, or has `node`.
    pub fn over(store: &Store, node: Option<&NodeProcess>) -> Watch {
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
        Watch { locks: *store.table().locks(), lane, region }
    }

    fn holders(&mut self) -> Vec<(LockId, OwnerId)> {
        let mut words = vec![0; self.locks.words() as usize];
        let read = Verb::Read { addr: self.locks.addr(0), into: &mut words };
        pollster::block_on(post(&mut *self.lane, &mut [read])).unwrap();
        (0..).zip(words).flat_map(|(word, value)| self.locks.all_held(word, value)).collect()
    }

    /// An owner that holds a lock and does not run: it held it at two looks. Nobody, if none was found until `until`.
    pub fn holder(&mut self, until: Instant) -> Option<OwnerId> {
        let mut before = self.holders();
        while Instant::now() < until {
            thread::sleep(BETWEEN_LOOKS);
            let now = self.holders();
            if let Some((_, owner)) = now.iter().find(|held| before.contains(held)) {
                return Some(*owner);
            }
            before = now;
        }
        None
    }

    /// Has the node drop the session of `owner`; whether it had one.
    pub fn fence(&self, owner: OwnerId) -> bool {
        let region = self.region.as_ref().expect("a node");
        region.fence(owner.0 - 1).unwrap() == FenceReply::Dropped
    }
}
