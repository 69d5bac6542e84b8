//! Cause: a client that needed a chunk adopted every orphan of the class, full ones included, before it took a free
//! chunk, and read the headers of all their slots, 64 in a round trip. A fresh chunk was zeroed 32 KiB at a time and
//! then read as well.
//!
//! Effect: after a table was loaded, the first extent of another client took up to 1,975 round trips, as in a `guira
//! put` of 2,000 bytes.
//!
//! Fix: a chunk's word says how many slots were free when it became an orphan; full orphans are adopted last; a chunk
//! that was just zeroed is known to be free. [R-EXTENT-2]

use guira::{CreateOptions, Store, Url};
use guira_testing::unique_name;

struct Table(Url);

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

#[test]
fn the_first_extent_of_a_client_takes_few_round_trips() {
    let url = Url::shm(&unique_name()).unwrap();
    let store = Store::create(&url, &CreateOptions::new(20_000).extent_bytes(64 << 20)).unwrap();
    let _table = Table(url);
    let mut loader = store.client().unwrap();
    for i in 0..20_000u64 {
        loader.put(&i.to_le_bytes(), &[i as u8; 2_000]).unwrap();
    }
    drop(loader);
    assert!(store.stat().unwrap().table.chunks.orphan > 100, "many full orphans");
    for i in 0..20u64 {
        let mut client = store.client().unwrap();
        let before = client.traffic();
        client.put(&i.to_le_bytes(), &[7; 2_000]).unwrap();
        let trips = client.traffic().since(&before).round_trips;
        assert!(trips <= 16, "{trips} round trips");
    }
}
