//! Cause: a client that waited for a lock for 0.05 ms probed whether its owner lives. If the probe failed, because the
//! process had no descriptor left or had given up its rights to the file, the change failed.
//!
//! Effect: wherever two clients met, changes of such a process failed at once with the kernel's error, although the
//! owner was alive and about to release the lock.
//!
//! Fix: a failed probe is repeated until the deadline, where its error explains why it is unknown whether the owner is
//! dead. [R-RECOVER-1]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use guira_conformance::{Bench, block_on};
use guira_fabric::{FabricError, FenceProof, Liveness, Profile, Region};
use guira_layout::{LockId, OwnerId, Preset};
use guira_rcuckoo::{Change, Client, ClientConfig, Error, ErrorKind, NewValue};

const OWNER: OwnerId = OwnerId(2);
const KEY: [u8; 8] = [7; 8];

/// A liveness whose probes all fail; the probe with number `patience` coincides with the release of all locks by their
/// owner.
struct Mute {
    bench: Bench,
    asked: Arc<AtomicU32>,
    patience: u32,
}

impl Liveness for Mute {
    fn poll_fence(
        &mut self,
        slot: u16,
        _generation: u64,
        _cx: &mut Context<'_>,
    ) -> Poll<Result<Option<FenceProof>, FabricError>> {
        assert_eq!(Some(slot), OWNER.slot());
        if self.asked.fetch_add(1, Ordering::Relaxed) + 1 == self.patience {
            let table = &self.bench.table;
            add(&self.bench, |mask| table.locks().release_addend(OWNER, mask));
        }
        Poll::Ready(Err(FabricError::Backend("no descriptor is left".to_owned())))
    }
}

/// Takes or releases all locks on behalf of another client.
fn add(bench: &Bench, addend: impl Fn(u64) -> u64) {
    for lock in 0..bench.table.locks().locks() {
        let mask = bench.table.locks().mask(LockId(lock));
        let word = &bench.region.memory().device[mask.word as usize];
        word.fetch_add(addend(mask.mask), guira_fabric::memory::Ordering::AcqRel);
    }
}

/// Puts a key whose locks a live client holds; returns how many probes failed.
fn put(patience: u32, deadline_ns: u64) -> (Result<(), Error>, u32) {
    let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, Profile::Shm, 1);
    let _owner = bench.client(OWNER.0 - 1);
    add(&bench, |mask| bench.table.locks().held(OWNER, mask));
    let asked = Arc::new(AtomicU32::new(0));
    let mute = Mute { bench: bench.clone(), asked: Arc::clone(&asked), patience };
    let config = ClientConfig { deadline_ns, ..ClientConfig::for_table(&bench.table) };
    let mut client = Client::new(Arc::clone(&bench.table), OwnerId(1), config).with_liveness(Box::new(mute));
    let change = Change::Put(NewValue::Inline(&KEY));
    let result = block_on(client.change(&mut bench.region.lane(), &KEY, change)).map(drop);
    (result, asked.load(Ordering::Relaxed))
}

#[test]
fn a_client_that_cannot_probe_waits_for_a_live_owner() {
    // There are ten pauses between two probes, and on a busy machine each takes a few milliseconds.
    let (result, asked) = put(3, 60_000_000_000);
    result.expect("the lock came free in time");
    assert_eq!(asked, 3);
    let (result, asked) = put(u32::MAX, 500_000_000);
    let Err(Error { kind: ErrorKind::Fabric { source: FabricError::Backend(reason) }, .. }) = &result else {
        panic!("{result:?}")
    };
    assert_eq!(reason, "no descriptor is left");
    assert!(asked > 3, "it asked {asked} times");
}
