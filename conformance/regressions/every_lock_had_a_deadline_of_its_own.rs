//! Cause: each time an operation began to wait for a lock, its deadline started again.
//!
//! Effect: an insert that waited for its own rows, found them full and continued with the rows of a path waited for a
//! whole deadline for each path: up to 1,024 times.
//!
//! Fix: the deadline is the operation's; it starts with its first wait. [R-LOCK-4]

use guira_conformance::{Bench, KeyFinder, Sampling, StepPoint, SteppedLane};
use guira_fabric::memory::Ordering;
use guira_fabric::{Lane, Profile};
use guira_layout::{LockId, OwnerId, Preset, RowId};
use guira_rcuckoo::{ClientConfig, Error, ErrorKind};

const STRANGER: OwnerId = OwnerId(40);
const DEADLINE_NS: u64 = 1_000_000;
/// The longest wait; each is at least half of it.
const BACKOFF_NS: u64 = 1_000;
/// Waits until the key's own lock is released: between 0.45 and 0.9 deadlines.
const WAITS: u32 = 900;

/// Takes or releases a lock on behalf of another client.
fn add(bench: &Bench, lock: LockId, addend: impl Fn(u64) -> u64) {
    let mask = bench.table.locks().mask(lock);
    bench.region.memory().device[mask.word as usize].fetch_add(addend(mask.mask), Ordering::AcqRel);
}

/// Returns a new key whose two rows share a lock and are full, of keys whose other row is elsewhere.
fn crowded_key(bench: &Bench) -> ([u8; 8], LockId) {
    let mut keys = KeyFinder::new(&bench.table, 400_000);
    let lock_of = |row| bench.table.locks().lock_of(row);
    let (key, first, second) = keys.take_any(|a, b| a != b && lock_of(a) == lock_of(b)).expect("a key of one lock");
    for row in [first, second] {
        let elsewhere = |a: RowId, b: RowId| (a == row || b == row) && lock_of(a) != lock_of(b);
        for _ in 0..bench.table.config().entries_per_row {
            let other = keys.take_any(elsewhere).expect("keys of this row").0;
            bench.fill_row(row, &[(&other, &other)]);
        }
    }
    (key, lock_of(first))
}

#[test]
fn all_waits_of_an_operation_share_one_deadline() {
    for profile in Profile::ALL {
        println!("profile {profile}");
        let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 4096, profile, 3);
        let (key, own) = crowded_key(&bench);
        let config = ClientConfig {
            deadline_ns: DEADLINE_NS,
            backoff_ns: BACKOFF_NS,
            longest_backoff_ns: BACKOFF_NS,
            ..ClientConfig::for_table(&bench.table)
        };
        let (fixture, mut waits) = (bench.clone(), 0);
        let step = move |moment| {
            waits += u32::from(moment == StepPoint::Pause);
            if moment == StepPoint::Pause && waits == WAITS {
                add(&fixture, own, |mask| fixture.table.locks().release_addend(STRANGER, mask));
            }
        };
        let mut client =
            bench.client_with(0, SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step)), config);
        for lock in 0..bench.table.locks().locks() {
            add(&bench, LockId(lock), |mask| bench.table.locks().held(STRANGER, mask));
        }
        let error = client.put(&key, &key).unwrap_err();
        let Error { kind: ErrorKind::Busy { lock, owner, .. }, .. } = error else { panic!("{error}") };
        assert_ne!(lock, own, "it waited for a second lock");
        assert_eq!(owner, Some(STRANGER));
        let waited_ns = client.lane.now_ns();
        assert!((DEADLINE_NS..=DEADLINE_NS + BACKOFF_NS).contains(&waited_ns), "it waited {waited_ns} ns");
    }
}
