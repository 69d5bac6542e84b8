//! Cause: a lookup first drained its lane. If a change had been dropped with its batch in flight, this drained the
//! change's batch and discarded the words its atomics found; the client then took the batch for refused.
//!
//! Effect: locks the dropped batch had won were never released; or, if it was the commit, they were released twice, and
//! the second FETCH-ADD borrowed from the neighbouring locks.
//!
//! Fix: a client settles before a lookup too; only a reader without a client drains. [R-DROP-1]

use std::pin::pin;
use std::task::{Context, Waker};

use guira_conformance::{Bench, TestClient, block_on};
use guira_fabric::heap::Pace;
use guira_fabric::memory::Ordering;
use guira_fabric::{Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::{Change, ClientConfig, NewValue};

fn drop_a_put(client: &mut TestClient, polls: usize) {
    let value = NewValue::Inline(&[2; 8]);
    let mut put = pin!(client.client.change(&mut client.lane, &[1; 8], Change::Put(value)));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if put.as_mut().poll(&mut cx).is_ready() {
            return;
        }
    }
}

#[test]
fn every_lock_is_released() {
    for polls in 0..12 {
        println!("dropped after {polls} polls");
        let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, Profile::Mlx5, 7);
        let lane = bench.region.lane().paced(Pace::Deferred(2));
        let mut client = bench.client_with(0, lane, ClientConfig::for_table(&bench.table));
        drop_a_put(&mut client, polls);
        assert_eq!(client.get(&[9; 8]).unwrap(), None);
        block_on(client.client.settle(&mut client.lane)).unwrap();
        let device = bench.region.memory().device;
        assert!(device.iter().all(|word| word.load(Ordering::Relaxed) == 0), "a lock is left");
    }
}
