//! The order that the protocol's batches need: none needs more than one queue pair gives, in any of the places where
//! they are built, and docs/rdma.md lists all of their forms.
//!
//! [R-COMMIT-1] [R-COMMIT-2] [R-LOCK-3] [R-EXTENT-1] [R-RECOVER-3] [R-SLOT-1]
//!
//! Proves:
//!
//! - the table of docs/rdma.md is that of the code, and the simulator executes a pair of verbs out of order if and only
//!   if the table leaves its order open;
//! - no batch relies on an order that one queue pair does not give, nor on a WRITE of several packets being whole. The
//!   batches are those of 250 swarms over all fabrics, of 40 of preset `paper`, of every operation and of its recovery
//!   after a death at each of its steps, and of creating, checking, repairing and destroying tables;
//! - docs/rdma.md lists the forms of all batches: one that is not listed fails, and so does one that is never posted;
//! - batches that do rely on such orders are reported, and two small protocols that rely on them, for a lock and for a
//!   miss, fail in the simulator.
//!
//! Cannot show: that READs of different words are relied on to sample in order, which no batch shows. The simulator
//! samples them in any order instead, in swarms.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use guira_check::{CheckOptions, Concurrency, check_table, table_stats};
use guira_conformance::swarm::{Setup, run_examined, run_printed_examined};
use guira_conformance::{BatchForms, Bench, Examiner, Op, block_on, growing};
use guira_fabric::{Caps, FenceProof, PairOrder, Profile, Region, Verb, VerbClass};
use guira_layout::{LockId, Preset, RowId};
use guira_rcuckoo::{
    ClientConfig, Counters, Reader, SlotClient, add_totals, destroy_table, format_table, free_unowned_locks,
    open_table, read_totals, recover, slots, unowned_locks,
};

use crate::recovery::examine_deaths;

const SPECIFICATION: &str = include_str!("../../../docs/rdma.md");
const SEED: u64 = 3;
/// Swarms, over all fabrics, and swarms of preset `paper`.
const SWARMS: u64 = 250;
const PRINTED_SWARMS: u64 = 40;

/// Runs everything that posts batches.
fn all_forms() -> BatchForms {
    let forms = BatchForms::default();
    for seed in 0..SWARMS {
        run_examined(Setup::of_seed(seed), &forms);
    }
    for seed in 0..PRINTED_SWARMS {
        run_printed_examined(seed, &forms);
    }
    for profile in Profile::ALL {
        examine_deaths(profile, &forms);
        for preset in Preset::ALL {
            let bench = Bench::of_rows(preset, "bytes:24", 64, profile, SEED);
            if preset == Preset::Hardened {
                let config = growing(bench.table.config().clone(), 1, 4);
                examine_administration(Bench::of_config(config, profile, SEED), &forms);
            }
            examine_administration(bench, &forms);
        }
    }
    forms
}

/// Creates, opens, scans, checks, repairs and destroys a table.
fn examine_administration(bench: Bench, forms: &BatchForms) {
    let examiner = Examiner::new(&bench, forms);
    let lane = || examiner.lane(bench.region.lane());
    let mut client = bench.client_with(0, lane(), ClientConfig::for_table(&bench.table));
    for i in 0..40u64 {
        let value = vec![i as u8; if i % 4 == 0 { 80 } else { 9 }];
        client.apply(&Op::Put(i.to_le_bytes().to_vec(), value)).expect("there is room");
    }
    client.apply(&Op::Put(0u64.to_le_bytes().to_vec(), vec![1; 80])).expect("there is room");
    client.apply(&Op::Remove(4u64.to_le_bytes().to_vec())).expect("the key is there");
    let lost = bench.client_with(1, lane(), ClientConfig::for_table(&bench.table));
    drop(lost);
    let hold = bench.region.hold(1).expect("the heap holds").expect("its client is gone");
    let proof = FenceProof::new(1, 1, hold);
    block_on(recover(&mut lane(), &bench.table, &proof, &SlotClient::default())).expect("the heap reads");
    drop(proof);
    let mut admin = lane();
    block_on(open_table(&mut admin, bench.region.main_bytes())).expect("a table");
    block_on(slots(&mut admin, &bench.table)).expect("the heap reads");
    block_on(table_stats(&mut admin, &bench.table)).expect("a sound table");
    for concurrency in [Concurrency::Exclusive, Concurrency::Shared] {
        let options = CheckOptions { concurrency, ..CheckOptions::default() };
        block_on(check_table(&mut admin, &bench.table, &options, &mut |_| ())).expect("the heap reads");
    }
    let counted = Counters { timeouts: 1, ..Counters::default() };
    block_on(add_totals(&mut admin, &bench.table, &counted)).expect("the heap adds");
    block_on(read_totals(&mut admin, &bench.table)).expect("the heap reads");
    let mut reader = Reader::new(Arc::clone(&bench.table), ClientConfig::for_table(&bench.table));
    block_on(reader.len(&mut admin, SEED)).expect("a sound table");
    block_on(reader.snapshot(&mut admin, 2, |_, _| ())).expect("a sound table");
    let damaged = LockId(1);
    let mask = bench.table.locks().mask(damaged);
    bench.store(bench.table.locks().addr(mask.word), &[mask.mask]);
    let found = block_on(unowned_locks(&mut admin, &bench.table)).expect("the heap reads");
    block_on(free_unowned_locks(&mut admin, &bench.table, &found)).expect("the heap reads");
    bench.store(bench.table.locks().addr(mask.word), &[0]);
    block_on(destroy_table(&mut admin, &bench.table)).expect("the heap writes");
    block_on(unowned_locks(&mut admin, &bench.table)).expect("the heap reads");
    client.get(&[0; 8]).expect_err("a destroyed table");
    let empty = bench.with_words(&vec![0; bench.words().len()]);
    let mut lane = Examiner::new(&empty, forms).lane(empty.region.lane());
    block_on(format_table(&mut lane, &empty.table, |_| ControlFlow::Continue(()))).expect("the heap writes");
}

/// Returns the table that follows `heading`, without its head, as cells.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, section) = SPECIFICATION.split_once(&format!("## {heading}\n")).expect("the section is there");
    let lines = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    lines.skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// The table of pairs is that of the code, and complete.
#[test]
fn the_documented_orders_are_those_of_the_code() {
    let mut documented = Vec::new();
    for cells in table("What one queue pair orders") {
        let class = |cell: &str| match cell {
            "WRITE" => VerbClass::Write,
            "READ" => VerbClass::Read,
            "CAS, FETCH-ADD" => VerbClass::Atomic,
            other => panic!("{other} is no class of verbs"),
        };
        let [first, second, order] = cells[..] else { panic!("{cells:?} has not three cells") };
        let order = match order.split([',', ';']).next() {
            Some("yes") => PairOrder::Kept,
            Some("begun after it") => PairOrder::Resampled,
            Some("only with a fence") => PairOrder::Free,
            other => panic!("{other:?} is no order"),
        };
        documented.push((class(first), class(second), order));
    }
    let pairs = VerbClass::ALL.into_iter().flat_map(|first| VerbClass::ALL.map(|second| (first, second)));
    let of_code: Vec<_> =
        pairs.map(|(first, second)| (first, second, PairOrder::on_queue_pair(first, second))).collect();
    assert_eq!(documented, of_code);
}

/// No batch of any operation on any fabric depends on an order that a queue pair does not give, or on the atomicity of
/// a WRITE of several packets; and the documentation lists exactly the forms that there are.
#[test]
fn batches_need_no_more_order_than_a_queue_pair_gives() {
    let forms = all_forms();
    for (form, count) in forms.counts() {
        println!("{count:>9} {form}");
    }
    assert_eq!(forms.violations(), [""; 0]);
    let documented: BTreeMap<String, bool> = table("What Guira's batches need")
        .iter()
        .map(|cells| (cells[0].trim_matches('`').to_owned(), cells[1].ends_with("; rare")))
        .collect();
    let found: BTreeSet<String> = forms.counts().into_keys().collect();
    // The runs here need not meet a rare one.
    let never: Vec<&String> = documented
        .iter()
        .filter(|(form, is_rare)| !**is_rare && !found.contains(*form))
        .map(|(form, _)| form)
        .collect();
    let undocumented: Vec<&String> = found.iter().filter(|form| !documented.contains_key(*form)).collect();
    assert!(never.is_empty(), "docs/rdma.md lists batches that nothing posts: {never:?}");
    assert!(undocumented.is_empty(), "docs/rdma.md does not list these batches: {undocumented:?}");
}

/// The examiner objects to batches that rely on more, and to no batch that does not.
#[test]
fn batches_that_need_more_are_refused() {
    let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 64, Profile::Rxe, SEED);
    let examiner = |bench: &Bench| Examiner::new(bench, &BatchForms::default());
    let (geometry, locks) = (bench.table.geometry(), bench.table.locks());
    let row_words = bench.table.rows().row_words();
    let (mut found, mut other, mut words, mut trailer) = (0, 0, vec![0; row_words], [0; 2]);
    let row = vec![1; row_words];
    let write = || Verb::Write { addr: geometry.row(RowId(3)), words: &row };
    let lock_at = locks.addr(0);
    let objection = |batch: &[Verb<'_>]| examiner(&bench).violation(batch);
    // A row behind the CAS of its lock, behind a READ, and an extent behind a CAS.
    assert!(objection(&[Verb::Cas { addr: lock_at, compare: 0, swap: 1, found: &mut found }, write()]).is_some());
    let read = Verb::Read { addr: geometry.row(RowId(4)), into: &mut words };
    assert!(objection(&[read, write()]).is_some());
    let extent = Verb::Write { addr: geometry.chunk(0).add_words(100), words: &[1; 8] };
    assert!(objection(&[Verb::FetchAdd { addr: lock_at, add: 1, found: &mut found }, extent]).is_some());
    // A release behind the READ of a row; the right order of both.
    let read = Verb::Read { addr: geometry.row(RowId(4)), into: &mut words };
    assert!(objection(&[read, Verb::FetchAdd { addr: lock_at, add: 1, found: &mut found }]).is_some());
    let read = Verb::Read { addr: geometry.row(RowId(4)), into: &mut words };
    assert_eq!(objection(&[Verb::FetchAdd { addr: lock_at, add: 1, found: &mut found }, read]), None);
    assert_eq!(objection(&[write(), Verb::FetchAdd { addr: lock_at, add: 1, found: &mut other }]), None);
    // A second sample of a trailer, which only READs in order give.
    let bytes = geometry.trailer(RowId(4), bench.table.rows());
    let mut sampled = |bench: &Bench| {
        let read = Verb::Read { addr: geometry.row(RowId(4)), into: &mut words };
        examiner(bench).violation(&[read, Verb::Read { addr: bytes, into: &mut trailer }])
    };
    assert!(sampled(&bench).is_some());
    assert_eq!(sampled(&bench.under(Profile::Tcp)), None);
    // A row of several packets without a record.
    let small = Caps { atomic_write_unit: 8, ..bench.caps() };
    let small = Bench { region: bench.region.with_caps(small), table: Arc::clone(&bench.table) };
    assert!(examiner(&small).violation(&[write()]).is_some());
    assert_eq!(objection(&[write()]), None);
}
