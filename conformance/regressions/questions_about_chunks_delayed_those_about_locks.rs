//! Cause: after a client without space had asked about the owners of all chunks, it asked about nobody for as many
//! milliseconds as there were owners.
//!
//! Effect: a lock whose owner died meanwhile was not recovered, and changes that needed it failed with `Busy` at their
//! deadline.
//!
//! Fix: the questions about owners of chunks have an interval of their own. [R-RECOVER-1]

use guira_conformance::{Bench, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::{LockId, OwnerId, Preset};
use guira_rcuckoo::{ClientConfig, Operation};

const DEAD: OwnerId = OwnerId(6);

#[test]
fn a_dead_owner_of_a_lock_is_asked_about_at_the_deadline() {
    let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, Profile::Shm, 1);
    let others: Vec<_> = (10..60).map(|slot| bench.client(slot)).collect();
    drop(bench.client(DEAD.0 - 1));
    for lock in 0..bench.table.locks().locks() {
        let mask = bench.table.locks().mask(LockId(lock));
        let word = &bench.region.memory().device[mask.word as usize];
        word.fetch_add(bench.table.locks().held(DEAD, mask.mask), guira_fabric::memory::Ordering::AcqRel);
    }
    let config = ClientConfig { deadline_ns: 5_000_000, ..ClientConfig::for_table(&bench.table) };
    let mut client = bench.client_with(1, bench.region.lane(), config).recovering(&bench);
    let owners: Vec<OwnerId> = (11..61).map(OwnerId).collect();
    assert_eq!(block_on(client.client.recover_owners(&mut client.lane, &owners, Operation::Put)).unwrap(), 0);
    client.put(&[7; 8], &[7; 8]).expect("its lock is recovered");
    drop(others);
}
