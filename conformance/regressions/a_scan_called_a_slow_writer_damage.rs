//! Cause: a scan gave up on a row that did not verify after 4,096 samples, without checking its lock.
//!
//! Effect: a writer that was stopped or dead in the middle of a row made `dump` report damage ("nobody is writing it").
//!
//! Fix: scans wait like lookups: a row whose lock is held until the deadline is `Busy`, a torn row with a free lock is
//! `Corrupt`. [R-READ-5]

use guira_conformance::{Bench, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::{OwnerId, Preset, RowId};
use guira_rcuckoo::{ClientConfig, Error, ErrorKind, Reader, RowItems};

#[test]
fn a_row_under_a_held_lock_is_busy_and_under_a_free_one_corrupt() {
    let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, Profile::Shm, 7);
    let row = RowId(5);
    let mut torn = bench.row_words(row);
    torn[0] ^= 1;
    bench.store(bench.table.geometry().row(row), &torn);
    let read = |deadline_ns| {
        let config = ClientConfig { deadline_ns, ..ClientConfig::for_table(&bench.table) };
        let mut reader = Reader::new(bench.table.clone(), config);
        block_on(reader.read_row(&mut bench.region.lane(), row, &mut RowItems::default())).unwrap_err()
    };
    // Damage is found by counting samples, not by the clock: on a busy machine they may take long.
    assert!(matches!(read(u64::MAX), Error { kind: ErrorKind::Corrupt { .. }, .. }));
    let locks = bench.table.locks();
    let mask = locks.mask(locks.lock_of(row));
    bench.store(locks.addr(mask.word), &[locks.held(OwnerId(9), mask.mask)]);
    assert!(matches!(read(20_000_000), Error { kind: ErrorKind::Busy { owner: Some(OwnerId(9)), .. }, .. }));
}
