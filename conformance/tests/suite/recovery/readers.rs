//! Readers that read through the records of stopped clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use guira_conformance::{Bench, Model, block_on};
use guira_fabric::{Profile, Region};
use guira_rcuckoo::{ClientConfig, Reader};

use crate::recovery::deaths::memories;
use crate::recovery::fixture::{self, SEED};

/// [R-READ-9] [R-GROW-11] A client that stopped, or died, at any step of its commit blocks no reader: each key, and a scan, is as
/// before the commit or as after it, and once it was seen as after it, it stays so.
#[test]
fn readers_read_through_records_of_stopped_clients() {
    println!("seed {SEED}");
    for (cases, changes) in
        [(fixture::inline(Profile::Shm), 6), (fixture::extents(Profile::Shm), 6), (fixture::splits(Profile::Shm), 2)]
    {
        let (mut torn, mut seen_after) = (0, 0);
        // One kind of successors is enough, because only the first client matters.
        for case in cases.iter().filter(|case| case.name.ends_with("newcomers")) {
            let bench = case.filled.bench.fork();
            let before = &case.filled.model;
            let mut after = before.clone();
            case.scripts[0].ops.iter().for_each(|op| drop(after.apply(op)));
            let mut is_after = false;
            for (i, memory) in memories(case).iter().enumerate() {
                memory.load(&bench);
                let context = format!("{}, stopped in memory {i}", case.name);
                torn += u64::from(bench.contents().is_err());
                let seen = read_all(&bench, before, &after, &context);
                assert!(seen == *before && !is_after || seen == after, "{context}: neither, or back again");
                is_after = seen == after;
            }
            assert!(is_after, "{} took effect", case.name);
            seen_after += u64::from(after != *before);
        }
        println!("{torn} memories with a torn row; {seen_after} operations changed something");
        assert!(torn > 20 && seen_after >= changes);
    }
}

/// Returns what a reader finds, key by key and in a scan, which must agree.
fn read_all(bench: &Bench, before: &Model, after: &Model, context: &str) -> Model {
    let config = ClientConfig { deadline_ns: 0, ..ClientConfig::for_table(&bench.table) };
    let mut reader = Reader::new(Arc::clone(&bench.table), config);
    let mut lane = bench.region.lane();
    let mut seen = Model::default();
    for key in before.0.keys().chain(after.0.keys()) {
        let mut value = Vec::new();
        let found = block_on(reader.get(&mut lane, key, &mut value)).unwrap_or_else(|it| panic!("{context}: {it}"));
        if found.is_some() {
            seen.0.insert(key.clone(), value);
        }
    }
    let scan = block_on(reader.snapshot(&mut lane, 2, |_, _| ())).unwrap_or_else(|it| panic!("{context}: {it}"));
    let scanned: BTreeMap<Vec<u8>, Vec<u8>> = scan.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(scan.is_stable() && scanned == seen.0, "{context}: a scan finds something else");
    assert_eq!(scan.len(), seen.0.len(), "{context}: a scan finds a key twice");
    seen
}
