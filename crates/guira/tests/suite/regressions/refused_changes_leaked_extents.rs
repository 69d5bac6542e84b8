//! Cause: an extent that was written and never linked (because its key existed, or was missing) was freed only in its
//! client's memory; and a client that found no room kept every orphan that it had adopted and searched.
//!
//! Effect: the space of refused changes was lost when their client closed; after one client failed to store a large
//! value, others found no room for small ones.
//!
//! Fix: a closing client marks such slots free, and a client releases at once orphans that it cannot use.
//! [R-EXTENT-4]

use guira::{CreateOptions, Store, Url};
use guira_testing::unique_name;

struct Table(Url);

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

fn table() -> (Table, Store) {
    let url = Url::shm(&unique_name()).expect("a name");
    let store = Store::create(&url, &CreateOptions::new(1_000).extent_bytes(1 << 20)).expect("a fresh name");
    (Table(url), store)
}

#[test]
fn refused_inserts_cost_no_space() {
    let (_table, store) = table();
    for i in 0..40u32 {
        let mut client = store.client().unwrap();
        client.put(&i.to_le_bytes(), &[7; 1_000]).unwrap();
        for _ in 0..60 {
            assert!(!client.try_insert(&i.to_le_bytes(), &[7; 1_000]).unwrap());
        }
    }
    assert_eq!(store.check().unwrap().unreferenced_extents, 0);
}

#[test]
fn a_failed_large_put_leaves_space_for_small_ones() {
    let (_table, store) = table();
    let mut first = store.client().unwrap();
    for i in 0..10u32 {
        first.put(&i.to_le_bytes(), &[1; 100]).unwrap();
    }
    drop(first);
    let mut second = store.client().unwrap();
    let full = (100..1_000u32).any(|i| second.put(&i.to_le_bytes(), &[2; 50_000]).is_err());
    assert!(full, "the extents are used up");
    // The chunk of the first client's small values has some 470 free slots.
    store.client().unwrap().put(b"small", &[3; 100]).unwrap();
}
