//! Cause: a client that was closed after one of its puts had been dropped in mid-flight settled its locks, but did not
//! ask what became of the put's extent.
//!
//! Effect: the extent had been written with the lock batch and was neither linked nor marked: its place was lost to
//! whoever adopted the chunk.
//!
//! Fix: closing settles the extent as the next operation would: never linked, it is marked free. [R-DROP-1]

use std::pin::pin;
use std::task::{Context, Waker};

use guira::{CreateOptions, Store, Url};
use guira_conformance::block_on;
use guira_fabric::{Region, Verb, post};
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_layout::OwnerId;

struct Table(Url);

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

const KEY: &[u8] = b"some key";

/// Adds `sign` times the locks of the key's rows, as somebody's with id 9, to the lock table.
fn change_locks(store: &Store, sign: i64) {
    let region = ShmRegion::open(&Location::file(store.stat().expect("readable").region.path), Access::ReadWrite);
    let (table, mut lane) = (store.table(), region.expect("the table's file").lane());
    let mask = table.locks().mask(table.locks().lock_of(table.placement().rows(table.placement().digest(KEY)).first));
    let (addr, held) = (table.locks().addr(mask.word), table.locks().held(OwnerId(9), mask.mask));
    let (add, mut found) = (held.wrapping_mul(sign as u64), 0);
    block_on(post(&mut lane, [Verb::FetchAdd { addr, add, found: &mut found }])).expect("a verb");
}

#[test]
fn closing_frees_the_extent_of_a_dropped_put() {
    let url = Url::shm(&format!("guira-regression-dropped-put-{}", std::process::id())).unwrap();
    let store = Store::create(&url, &CreateOptions::new(1_000).extent_bytes(1 << 20)).unwrap();
    let _table = Table(url);
    let mut client = store.async_client().unwrap();
    // So that the chunk is not empty, and becomes an orphan.
    block_on(client.put(b"another key", &[1; 1_000])).unwrap();
    change_locks(&store, 1);
    {
        let mut put = pin!(client.put(KEY, &[2; 1_000]));
        assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it waits for the lock");
    }
    change_locks(&store, -1);
    assert_eq!(store.check().unwrap().unreferenced_extents, 1, "written, not linked, not settled yet");
    drop(client);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.unreferenced_extents, report.counts.chunks.orphan), (0, 1));
}
