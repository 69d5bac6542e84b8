//! Cause: a snapshot returned every entry of rows that were all valid at one moment; but at that moment an insert may
//! have written the new row of an entry that it moves, and not yet the old one.
//!
//! Effect: a scan that called itself a snapshot visited a key twice when a writer was stopped, or slow, in its commit.
//!
//! Fix: the second copy of a key that stands in both of its rows is left out. [R-SCAN-1] [R-INSERT-4]

use guira_conformance::{Bench, KeyFinder, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::{ClientConfig, Reader};

#[test]
fn a_key_in_both_of_its_rows_is_visited_once() {
    for profile in Profile::ALL {
        let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, profile, 7);
        let mut keys = KeyFinder::new(&bench.table, 2_000);
        let (key, first, second) = keys.take_any(|a, b| a != b).unwrap();
        let (other, ..) = keys.take_any(|row, _| row == second).unwrap();
        bench.fill_row(second, &[(&key, &[3; 8]), (&other, &[4; 8])]);
        bench.fill_row(first, &[(&key, &[3; 8])]);
        let mut reader = Reader::new(bench.table.clone(), ClientConfig::for_table(&bench.table));
        let snapshot = block_on(reader.snapshot(&mut bench.region.lane(), 2, |_, _| ())).unwrap();
        assert!(snapshot.is_stable());
        let mut found: Vec<_> = snapshot.iter().map(|(key, value)| (key.to_vec(), value[0])).collect();
        found.sort();
        let mut expected = [(key.to_vec(), 3), (other.to_vec(), 4)];
        expected.sort();
        assert_eq!(found, expected, "{profile}");
    }
}
