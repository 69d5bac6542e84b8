//! Swarms in preset `paper`, in which one client dies, and some of the clients that repair after it.
//!
//! The printed repair promises nothing if a live client is presumed dead, or if two clients repair at the same time;
//! and nothing keeps clients from either (holes H5 to H7, H9, H11). Whether it happened is therefore not assumed but
//! observed: [`RepairLog`] knows who holds each lock and each lease, and who is dead. WRITEs happen wholly or not at
//! all here.
//!
//! A client that is to die in a repair is chosen by an earlier run of the same seed, which is identical up to that
//! point.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Space, SplitMix64};
use guira_fabric_sim::{ClientFault, ClientId, Event, EventKind, Fault, Part, Sim};
use guira_layout::{LeaseWord, LockId};

use super::run::{Run, examine, run_seen};
use super::setup::Setup;
use crate::{BatchForms, Bench};

/// Most repairers of one run that die.
const DEAD_REPAIRERS: u64 = 2;
/// Approximate number of verbs per operation.
const VERBS_OF_OPERATION: u64 = 10;

/// A run of a swarm in preset `paper`, and its repairs.
pub struct PrintedRun {
    /// The run.
    pub run: Run,
    /// The repairs that were observed.
    pub repairs: RepairLog,
}

/// A repair: the client, and how many verbs it had executed when it got the lease and when it returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The client.
    pub client: u32,
    /// The client's verbs when it got the lease.
    pub from: u64,
    /// The client's verbs when it returned the lease; `None` if it never did.
    pub until: Option<u64>,
    region: u8,
}

/// The holders of locks and leases, and the repairs, as observed.
#[derive(Clone, Debug, Default)]
pub struct RepairLog {
    /// The client that holds each lock, by word and bit.
    holders: BTreeMap<(u64, u32), u32>,
    dead: BTreeSet<u32>,
    /// Verbs that each client executed.
    verbs: BTreeMap<u32, u64>,
    /// Repairs in the order in which they began.
    pub leases: Vec<Lease>,
    /// Repairs of locks whose holder was alive, or that were not held any more.
    pub of_live_holders: u64,
    /// Repairs that began while another live client was repairing.
    pub overlapping: u64,
}

impl RepairLog {
    /// Whether no live client was presumed dead, and one client repaired at a time; then all invariants must hold.
    pub fn meets_conditions(&self) -> bool {
        self.of_live_holders == 0 && self.overlapping == 0
    }

    /// Returns how many repairers died with a lease.
    pub fn dead_repairers(&self) -> u64 {
        self.leases.iter().filter(|lease| lease.until.is_none() && self.dead.contains(&lease.client)).count() as u64
    }

    fn see(&mut self, bench: &Bench, event: &Event) {
        match &event.kind {
            EventKind::Read(_) | EventKind::Write(_) => *self.verbs.entry(event.client).or_default() += 1,
            EventKind::Swap(part) | EventKind::Add(part) => {
                *self.verbs.entry(event.client).or_default() += 1;
                let memory = bench.region.memory();
                let now = memory.space(part.addr.space())[part.addr.word() as usize].load(Ordering::Relaxed);
                match part.addr.space() {
                    Space::Device => self.see_locks(event.client, part, now),
                    Space::Main => self.see_lease(bench, event.client, part, now),
                }
            }
            EventKind::Died => {
                self.dead.insert(event.client);
            }
            _ => {}
        }
    }

    /// Records changes of 1-bit locks: `part` is the word as it was found, `now` as it was left.
    fn see_locks(&mut self, client: u32, part: &Part, now: u64) {
        for bit in (0..64).filter(|bit| (part.word ^ now) >> bit & 1 != 0) {
            let lock = (part.addr.word(), bit);
            if now >> bit & 1 != 0 {
                self.holders.insert(lock, client);
            } else {
                self.holders.remove(&lock);
            }
        }
    }

    fn see_lease(&mut self, bench: &Bench, client: u32, part: &Part, now: u64) {
        let is_lease = |region: &u8| lease_at(bench, *region) == part.addr;
        let Some(region) = (0..bench.table.config().repair_regions).find(is_lease) else { return };
        let verbs = self.verbs.get(&client).copied().unwrap_or(0);
        if part.word == now {
            return;
        }
        if !LeaseWord(now).is_set() {
            let returned = self.leases.iter_mut().rev().find(|lease| lease.client == client && lease.region == region);
            returned.expect("a returned lease was taken before").until = Some(verbs);
            return;
        }
        let is_under_way = |lease: &Lease| lease.until.is_none() && !self.dead.contains(&lease.client);
        self.overlapping += u64::from(self.leases.iter().any(is_under_way));
        // Each region has one lock.
        let mask = bench.table.locks().mask(LockId(region.into()));
        let holder = self.holders.get(&(bench.table.locks().addr(mask.word).word(), mask.mask.trailing_zeros()));
        self.of_live_holders += u64::from(holder.is_none_or(|holder| !self.dead.contains(holder)));
        self.leases.push(Lease { client, from: verbs, until: None, region });
    }
}

fn lease_at(bench: &Bench, region: u8) -> Addr {
    bench.table.geometry().lease(region)
}

/// Runs the swarm of `seed` in preset `paper`, and keeps the last `keep_events` events.
pub fn run_printed(seed: u64, keep_events: usize) -> PrintedRun {
    run_faulty(seed, keep_events, None)
}

/// Same as [`run_printed`], and examines every batch of the clients.
pub fn run_printed_examined(seed: u64, forms: &BatchForms) -> PrintedRun {
    run_faulty(seed, 0, Some(forms))
}

fn run_faulty(seed: u64, keep_events: usize, forms: Option<&BatchForms>) -> PrintedRun {
    let setup = Setup::printed(seed);
    let mut rng = SplitMix64(seed ^ 0x6465_6164_2121_2121);
    let die = |client: u32, after_verbs: u64| ClientFault {
        client: ClientId(client),
        after_verbs,
        fault: Fault::Die { units: 0 },
    };
    let first = rng.below(u64::from(setup.clients)) as u32;
    let mut faults = vec![die(first, rng.below(VERBS_OF_OPERATION * u64::from(setup.operations)))];
    for _ in 0..rng.below(DEAD_REPAIRERS + 1) {
        let repairs = run_with(&setup, 0, &faults, None).repairs.leases;
        // This is the first repair in which no client dies yet, and not one by the last client, which has to survive.
        let lives = |lease: &&Lease| {
            lease.client < setup.clients && faults.iter().all(|fault| fault.client != ClientId(lease.client))
        };
        let Some(Lease { client, from, until: Some(until), .. }) = repairs.iter().find(lives).copied() else { break };
        faults.push(die(client, from + rng.below(until - from)));
    }
    run_with(&setup, keep_events, &faults, forms)
}

fn run_with(setup: &Setup, keep_events: usize, faults: &[ClientFault], forms: Option<&BatchForms>) -> PrintedRun {
    let repairs: Rc<RefCell<RepairLog>> = Rc::default();
    let seen = Rc::clone(&repairs);
    let watch = |bench: &Bench, sim: &mut Sim| -> Box<dyn FnMut(&Event)> {
        if let Some(forms) = forms {
            examine(bench, sim, forms);
        }
        let bench = bench.clone();
        assert_eq!(
            u64::from(bench.table.config().repair_regions),
            bench.table.locks().locks(),
            "a lease for each lock"
        );
        Box::new(move |event| seen.borrow_mut().see(&bench, event))
    };
    let run = run_seen(setup.clone(), keep_events, |plan| plan.clients.extend_from_slice(faults), watch);
    let repairs = repairs.borrow().clone();
    PrintedRun { run, repairs }
}
