//! Helpers of the tests: a small region, options for runs, and a list in which clients record what they saw.

use std::cell::RefCell;
use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, FabricError, Lane, Profile, Verb, post};
use guira_fabric_sim::{FaultPlan, Network, SimOptions};

pub const MAIN_BYTES: u64 = 1024;
pub const DEVICE_BYTES: u64 = 64;

pub fn region(profile: Profile) -> HeapRegion {
    HeapRegion::new(MAIN_BYTES, DEVICE_BYTES, profile.caps())
}

pub fn options(profile: Profile, seed: u64, faults: FaultPlan) -> SimOptions {
    SimOptions { faults, ..SimOptions::new(seed, Network::of(profile)) }
}

/// Values recorded by clients, in order.
pub struct Seen<T>(Rc<RefCell<Vec<T>>>);

impl<T> Seen<T> {
    pub fn new() -> Seen<T> {
        Seen(Rc::default())
    }

    pub fn push(&self, item: T) {
        self.0.borrow_mut().push(item);
    }

    pub fn take(&self) -> Vec<T> {
        self.0.take()
    }
}

impl<T> Clone for Seen<T> {
    fn clone(&self) -> Seen<T> {
        Seen(Rc::clone(&self.0))
    }
}

pub async fn read<L: Lane>(lane: &mut L, addr: Addr) -> Result<u64, FabricError> {
    let mut into = [0];
    post(lane, [Verb::Read { addr, into: &mut into }]).await?;
    Ok(into[0])
}

pub async fn add<L: Lane>(lane: &mut L, addr: Addr, add: u64) -> Result<u64, FabricError> {
    let mut found = 0;
    post(lane, [Verb::FetchAdd { addr, add, found: &mut found }]).await?;
    Ok(found)
}
