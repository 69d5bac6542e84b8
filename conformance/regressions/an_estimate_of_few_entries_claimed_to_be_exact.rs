//! Cause: the confidence interval of an estimate was computed from the sample's variance alone, which is 0 if no
//! sampled row has an entry, and far too small if a few have.
//!
//! Effect: a table of 65,536 rows with 10 entries was reported to have 0, with an error of 0, as if every row had been
//! counted: a program that relies on it loses keys.
//!
//! Fix: the interval allows for the entries that a sample does not see. [R-SCAN-2]

use guira_conformance::{Bench, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::{ClientConfig, Reader};

#[test]
fn few_entries_are_within_the_error() {
    const KEYS: u64 = 10;
    const SEEDS: u64 = 40;
    let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 1 << 16, Profile::Shm, 7);
    let mut client = bench.client(0);
    for key in 0..KEYS {
        client.put(&key.to_le_bytes(), &[1; 8]).unwrap();
    }
    let mut reader = Reader::new(bench.table.clone(), ClientConfig::for_table(&bench.table));
    let (mut unseen, mut near) = (0, 0);
    for seed in 0..SEEDS {
        let len = block_on(reader.len(&mut bench.region.lane(), seed)).unwrap();
        unseen += u64::from(len.entries == 0);
        near += u64::from(len.error > 0 && len.entries.abs_diff(KEYS) <= len.error);
    }
    assert!(unseen > 0, "some samples see nothing");
    assert!(near >= SEEDS * 9 / 10, "{near} of {SEEDS}");
}
