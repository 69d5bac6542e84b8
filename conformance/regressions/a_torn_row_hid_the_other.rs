//! Cause: a lookup that found its key in a row that did not verify retried, and never looked at the key's other row.
//!
//! Effect: when a writer stopped in the middle of L1, a key it was moving there from L2 could not be read, although L2
//! still held it and verified.
//!
//! Fix: a row that does not verify is no evidence; the other row is read. [R-READ-1]

use guira_conformance::{Bench, KeyFinder, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::{OwnerId, Preset};
use guira_rcuckoo::{ClientConfig, Reader};

#[test]
fn a_valid_row_answers_beside_a_torn_one() {
    for profile in Profile::ALL {
        let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, profile, 7);
        let (key, first, second) = KeyFinder::new(&bench.table, 2_000).take_any(|a, b| a != b).unwrap();
        bench.fill_row(second, &[(&key, &[3; 8])]);
        let before = bench.row_words(first);
        bench.fill_row(first, &[(&key, &[3; 8])]);
        // All words of the new L1 are written but the last, and its lock is held by a client that is gone.
        let mut torn = bench.row_words(first);
        *torn.last_mut().unwrap() = *before.last().unwrap();
        bench.store(bench.table.geometry().row(first), &torn);
        let locks = bench.table.locks();
        let mask = locks.mask(locks.lock_of(first));
        bench.store(locks.addr(mask.word), &[locks.held(OwnerId(9), mask.mask)]);
        let config = ClientConfig { deadline_ns: 20_000_000, ..ClientConfig::for_table(&bench.table) };
        let (mut reader, mut value) = (Reader::new(bench.table.clone(), config), Vec::new());
        let found = block_on(reader.get(&mut bench.region.lane(), &key, &mut value));
        assert!(found.unwrap().is_some(), "{profile}");
        assert_eq!(value, [3; 8]);
    }
}
