//! Cause: a client remembered runs with linked values by their chunk only. When the value was removed and the run
//! released before its chunk word was written, the client took the next contents of the chunk for that run.
//!
//! Effect: a chunk of slots was made an orphan as if it were a run. If another client had freed the first of its
//! extents, the chunk was then adopted as a run of one slot and released: values in its other slots were lost to the
//! next client that claimed the chunk.
//!
//! Fix: a run is remembered with the generation of its extent, which no other extent has. [R-EXTENT-3] [R-EXTENT-6]

use guira::{CreateOptions, Preset, Store, Url};
use guira_testing::unique_name;

struct Table(Url);

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

/// A value that fills a chunk of 4 KiB, and one of which many fit in one.
const LARGE: [u8; 3_000] = [1; 3_000];
const SMALL: [u8; 200] = [2; 200];

#[test]
fn slots_that_follow_a_run_in_its_chunk_are_kept() {
    let url = Url::shm(&unique_name()).unwrap();
    let store = Store::create(&url, &CreateOptions::new(1_000).preset(Preset::Tiny).extent_bytes(8 << 10)).unwrap();
    let _table = Table(url);
    assert_eq!(store.table().config().chunks, 2, "the slots get a chunk that held a run");
    let (mut client, mut other) = (store.client().unwrap(), store.client().unwrap());
    for key in [b"large 0", b"large 1"] {
        client.put(key, &LARGE).unwrap();
    }
    for key in [b"large 0", b"large 1"] {
        client.remove(key).unwrap();
    }
    for key in [b"small 0", b"small 1"] {
        client.put(key, &SMALL).unwrap();
    }
    other.remove(b"small 0").unwrap();
    for _ in 0..2 {
        client.release_memory().unwrap();
        let report = store.check().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
    other.put(b"large 2", &LARGE).unwrap();
    drop(other.put(b"large 3", &LARGE));
    assert_eq!(client.get(b"small 1").unwrap().as_deref(), Some(&SMALL[..]));
}
