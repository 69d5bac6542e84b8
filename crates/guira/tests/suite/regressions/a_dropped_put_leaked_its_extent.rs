//! Cause: a client that was closed after one of its puts had been dropped in mid-flight settled the put's locks, but
//! not its extent.
//!
//! Effect: the extent had been written with the lock batch, and was neither linked nor marked free: its slot was lost
//! to clients that adopted the chunk.
//!
//! Fix: closing settles the extent as the next operation would: if it was never linked, it is marked free. [R-DROP-1]

use std::pin::pin;
use std::task::{Context, Waker};

use guira::aio::Client;
use guira::{CreateOptions, Store, Url};
use guira_conformance::block_on;
use guira_fabric::{Region, Verb, post};
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_layout::OwnerId;
use guira_testing::unique_name;

struct Table(Url);

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

const KEY: &[u8] = b"some key";

/// Takes the lock of the key's first row for a client with id 9 if `sign` is 1, and releases it if `sign` is -1.
fn change_locks(store: &Store, sign: i64) {
    let region = ShmRegion::open(
        &Location::file(store.stat().expect("readable").region.file().expect("a file").path.clone()),
        Access::ReadWrite,
    );
    let (table, mut lane) = (store.table(), region.expect("the table's file").lane());
    let mask = table.locks().mask(table.locks().lock_of(table.placement().rows(table.placement().digest(KEY)).first));
    let (addr, held) = (table.locks().addr(mask.word), table.locks().held(OwnerId(9), mask.mask));
    let (add, mut found) = (held.wrapping_mul(sign as u64), 0);
    block_on(post(&mut lane, [Verb::FetchAdd { addr, add, found: &mut found }])).expect("a verb");
}

fn table() -> (Table, Store) {
    let url = Url::shm(&unique_name()).expect("a valid name");
    let store = Store::create(&url, &CreateOptions::new(1_000).extent_bytes(1 << 20)).expect("a fresh name");
    (Table(url), store)
}

/// Puts an extent, so that its chunk is not empty and will become an orphan; then drops a put that waits for a lock.
fn drop_a_put(store: &Store, client: &mut Client) {
    block_on(client.put(b"another key", &[1; 1_000])).expect("room for a value");
    change_locks(store, 1);
    {
        let mut put = pin!(client.put(KEY, &[2; 1_000]));
        assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the put waits for the lock");
    }
    change_locks(store, -1);
    assert_eq!(
        store.check().expect("the table can be read").unreferenced_extents,
        1,
        "the extent is written, neither linked nor settled"
    );
}

fn close_cleanly(store: &Store, client: Client, what: &str) {
    drop(client);
    let report = store.check().expect("the table can be read");
    assert!(report.is_clean(), "{what}: {:?}", report.problems);
    assert_eq!((report.unreferenced_extents, report.counts.chunks.orphan), (0, 1), "{what}");
}

#[test]
fn closing_frees_the_extent_of_a_dropped_put() {
    let (_table, store) = table();
    let mut client = pollster::block_on(store.to_async().client()).unwrap();
    drop_a_put(&store, &mut client);
    close_cleanly(&store, client, "closed at once");
}

/// The outcome of the next operation, of any kind, is not attributed to the dropped put.
#[test]
fn a_later_outcome_is_not_attributed_to_the_dropped_put() {
    for what in ["an inline put", "a put with an extent", "an update of nothing", "a remove", "a remove of nothing"] {
        let (_table, store) = table();
        let mut client = pollster::block_on(store.to_async().client()).unwrap();
        block_on(client.put(b"small", b"1")).unwrap();
        drop_a_put(&store, &mut client);
        block_on(async {
            match what {
                "an inline put" => client.put(b"small", b"2").await.map(drop),
                "a put with an extent" => client.put(b"large", &[3; 1_000]).await.map(drop),
                "an update of nothing" => client.update(b"nothing", b"4").await.map(drop),
                "a remove" => client.remove(b"small").await.map(drop),
                _ => client.remove(b"nothing").await.map(drop),
            }
        })
        .unwrap();
        assert_eq!(block_on(client.get(KEY)).unwrap(), None, "{what}");
        close_cleanly(&store, client, what);
    }
}
