//! Cause: a change that stores its value in the row did no maintenance of extents, although it frees the extent of the
//! value that it replaces.
//!
//! Effect: a client that replaced large values by small ones released no space, and its list of freed runs grew without
//! bound. Other clients could not use the space until one of them found no room, or the client did something else.
//!
//! Fix: such a change does the maintenance too, when it is due. [R-EXTENT-5] [R-EXTENT-6]

use guira::{CreateOptions, Store, Url};
use guira_testing::unique_name;

struct Table(Url);

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

/// Bytes of a value: a run of eleven chunks of 256 KiB.
const RUN_BYTES: usize = 5 << 19;
const RUNS: u64 = 12;
/// Chunks that the client that frees the runs may keep: fewer than 16 of unsettled runs, and 8 empty ones.
const KEPT_CHUNKS: u64 = 16 + 8;

#[test]
fn replacing_large_values_by_small_ones_gives_their_space_back() {
    let url = Url::shm(&unique_name()).unwrap();
    let store = Store::create(&url, &CreateOptions::new(1_000).extent_bytes(256 << 20)).unwrap();
    let _table = Table(url);
    let mut writer = store.client().unwrap();
    let mut other = store.client().unwrap();
    for key in (0..RUNS).map(u64::to_le_bytes) {
        writer.put(&key, &vec![1; RUN_BYTES]).unwrap();
    }
    drop(writer);
    let before = store.check().unwrap().counts.chunks;
    assert!(before.in_use() > 2 * KEPT_CHUNKS, "{before:?}");
    for key in (0..RUNS).map(u64::to_le_bytes) {
        other.put(&key, b"small").unwrap();
    }
    other.put(b"one more", b"small").unwrap();
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let after = report.counts.chunks;
    assert!(after.in_use() <= KEPT_CHUNKS, "{after:?}");
}
