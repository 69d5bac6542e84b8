//! Cause: a stable scan took equal trailers as proof that rows had not changed, whatever the width of their versions.
//!
//! Effect: in a table with 8-bit versions (preset `paper`) a row that was changed 256 times, and back, has the trailer
//! it had before: a supposed snapshot combined states that never existed at one moment.
//!
//! Fix: a scan of a table whose versions are narrower than 32 bits is never called a snapshot. [R-SCAN-1]

use std::sync::Arc;

use guira_conformance::{Bench, TestClient, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::{Preset, RowId};
use guira_rcuckoo::{ClientConfig, Reader, Snapshot};

/// Rows whose trailers take two batches.
const ROWS: u64 = 128;
const FIRST_HALF: u64 = ROWS / 2;
/// Changes after which an 8-bit version wraps around.
const ROUND: u64 = 256;

/// Writes `last` under `key`, preceded by other values so that `writes` writes are made in all.
fn write(client: &mut TestClient, key: &[u8], writes: u64, last: u8) {
    for left in (0..writes).rev() {
        let value = if left == 0 { last } else { 0 };
        client.put(key, &[value; 8]).expect("no other client is in the way");
    }
}

/// Scans with one sweep. One key's row is in the first batch of the sweep, the other's in the second; the pair of their
/// values is (1, 2), or has a 0 on one side at least, and is never (1, 1).
fn scan_among_changes(preset: Preset) -> Snapshot {
    let bench = Bench::of_rows(preset, "fixed:8:8", ROWS, Profile::Shm, 7);
    let first_row = |key: &[u8; 8]| bench.table.placement().rows(bench.table.placement().digest(key)).first;
    let keys = || (0..1_000_u64).map(u64::to_le_bytes);
    let early = keys().find(|key| first_row(key) < RowId(FIRST_HALF)).expect("a key of the first half");
    let late = keys().find(|key| first_row(key) >= RowId(FIRST_HALF)).expect("a key of the second half");
    let mut client = bench.client(0);
    write(&mut client, &early, 1, 1);
    write(&mut client, &late, 1, 2);
    let mut reader = Reader::new(Arc::clone(&bench.table), ClientConfig::for_table(&bench.table));
    let mut lane = bench.region.lane();
    let snapshot = block_on(reader.snapshot(&mut lane, 1, |done, _| match done {
        // The early row was read as 1; the late one will be read as 1.
        FIRST_HALF => {
            write(&mut client, &early, 1, 0);
            write(&mut client, &late, 1, 1);
        }
        // The sweep finds the early row as it was read.
        ROWS => {
            write(&mut client, &late, 1, 2);
            write(&mut client, &early, ROUND - 1, 1);
        }
        // The late row follows.
        _ if done == ROWS + FIRST_HALF => {
            write(&mut client, &early, 1, 0);
            write(&mut client, &late, ROUND - 1, 1);
        }
        _ => {}
    }));
    snapshot.expect("nothing is damaged")
}

#[test]
fn restored_rows_are_not_a_snapshot() {
    for preset in [Preset::Paper, Preset::Hardened] {
        let snapshot = scan_among_changes(preset);
        assert_eq!(snapshot.iter().count(), 2);
        assert!(snapshot.iter().all(|(_, value)| value == [1; 8]), "{preset}: it reads (1, 1), which never was");
        assert!(!snapshot.is_stable(), "{preset}");
    }
}
