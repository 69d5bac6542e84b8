//! Cause: a commit wrote the mark of the extent it freed before it retired its record.
//!
//! Effect: had the client died in between, the extent's owner could have reused the chunk for something else, and
//! replaying the sealed record would have written the mark into another client's value.
//!
//! Fix: rows, retire, mark, release: a sealed record implies that the extent it frees is still allocated.
//! [R-COMMIT-1]

use guira_conformance::Bench;
use guira_fabric::heap::{Next, Step};
use guira_fabric::{Addr, Profile, Region};
use guira_layout::{Preset, Record, Seal};
use guira_rcuckoo::Change;

const KEY: &[u8] = b"some key";

/// Removes a key whose value is in an extent, and dies before verb `verbs` of the commit. Returns whether it survived.
fn remove_and_die(bench: &Bench, verbs: usize) -> bool {
    let (mut batches, mut seen) = (0, 0);
    let hook = move |step| {
        match step {
            Step::Completion => batches += 1,
            // The batches are: locks and rows; the extent's key; the commit.
            Step::Verb { .. } if batches == 2 => seen += 1,
            _ => {}
        }
        if seen > verbs { Next::Die } else { Next::Continue }
    };
    let mut client = bench.client(0).through(bench.region.lane().hooked(Box::new(hook)));
    client.change(KEY, Change::Remove).is_ok()
}

#[test]
fn a_sealed_record_frees_an_extent_that_is_still_allocated() {
    let mut sealed = 0;
    for verbs in 0..20 {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 64, Profile::Shm, 7);
        let mut owner = bench.client(1);
        let prepared = owner.extents.prepare(&mut bench.region.lane(), KEY, &[5; 300]).unwrap();
        owner.change(KEY, Change::Put(prepared.value())).unwrap();
        if remove_and_die(&bench, verbs) {
            assert!(sealed >= 2, "the client died under a sealed record at least before its row and after it");
            return;
        }
        let slot = bench.words_at(bench.table.geometry().slot(0), bench.table.geometry().slot_words());
        if Seal(slot[Seal::word(bench.table.rows())]).is_sealed() {
            sealed += 1;
            let table = &bench.table;
            let decoded = Record::decode(&slot, table.rows(), table.config(), table.geometry());
            let record = decoded.unwrap().unwrap();
            let (mark, generation) = record.freed_extent().unwrap();
            assert_ne!(bench.words_at(Addr::main(mark), 1)[0], generation.0, "died before verb {verbs}");
        }
    }
    panic!("the commit has more than 20 verbs");
}
