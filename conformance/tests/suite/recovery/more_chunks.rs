//! Extent space that grows: chunks come when values need them and not before, and dead clients keep none. [R-GROW-15]

use guira_check::{TableStats, table_stats};
use guira_conformance::{Bench, Observed, Op, block_on};
use guira_fabric::Region;
use guira_fabric::memory::Ordering;
use guira_layout::CHUNKS_WORD;
use guira_rcuckoo::Outcome;

use crate::recovery::audit::{check_recovered, recover_all};
use crate::recovery::fixture::{SLOTS, growing_extents, key};
use crate::recovery::lane::LoggedLane;
use crate::recovery::lifecycle::{Actor, SlotSource, config};

const CHUNKS: u64 = 64;
/// Values of 80 bytes in a chunk, at most.
const VALUES: u64 = 33;

fn open(bench: &Bench, slot: u16) -> Actor {
    Actor::open(bench, SlotSource::Free(slot), config(bench), LoggedLane::new(&bench.region)).expect("a free slot")
}

fn available(bench: &Bench) -> u64 {
    bench.region.memory().main[CHUNKS_WORD].load(Ordering::Relaxed)
}

fn stats(bench: &Bench) -> TableStats {
    block_on(table_stats(&mut bench.region.lane(), &bench.table)).expect("no fabric error")
}

fn put(actor: &mut Actor, i: u64, byte: u8) -> Outcome {
    match block_on(actor.apply(&Op::Put(key(i), vec![byte; 80]))).expect("room") {
        Observed::Outcome(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

/// [R-GROW-15] Two clients put values until most chunks are in use. There are always hardly more chunks than values
/// need, statistics count those that there are, and every value is there in the end. A value that no chunks could hold
/// adds none.
#[test]
fn chunks_come_as_values_need_them() {
    const KEYS: u64 = CHUNKS * VALUES * 3 / 4;
    let bench = growing_extents(CHUNKS);
    let mut actors = [open(&bench, SLOTS[0]), open(&bench, SLOTS[1])];
    assert_eq!(available(&bench), CHUNKS / 4);
    actors[0].exhaust_space();
    assert_eq!(available(&bench), CHUNKS / 4);
    for i in 0..KEYS {
        assert_eq!(put(&mut actors[(i % 2) as usize], i, i as u8), Outcome::Inserted);
        let (found, needed) = (available(&bench), i / (VALUES - 5) + 4);
        assert!(found <= (needed + needed / 8 + 2).max(CHUNKS / 4), "{found} chunks for {i} values");
        if i % 100 == 0 {
            let stats = stats(&bench);
            let chunk_bytes = bench.table.config().chunk_bytes;
            assert_eq!((stats.chunks.total(), stats.chunks.damaged), (found, 0));
            assert_eq!((stats.space.total_bytes, stats.space.most_bytes), (found * chunk_bytes, CHUNKS * chunk_bytes));
        }
    }
    assert!(available(&bench) > CHUNKS / 2, "{} chunks", available(&bench));
    for i in 0..KEYS {
        let found = block_on(actors[0].apply(&Op::Get(key(i)))).expect("no error");
        assert_eq!(found, Observed::Value(Some(vec![i as u8; 80])), "key {i}");
    }
    actors.into_iter().for_each(|actor| drop(actor.close().expect("the heap loses nothing")));
    check_recovered(&bench).expect("a sound table");
}

/// [R-GROW-15] [R-RECOVER-3] A client dies that had chunks which were added: all of them have no owner afterwards.
#[test]
fn chunks_of_a_dead_client_are_found_wherever_they_are() {
    let bench = growing_extents(CHUNKS);
    let mut dead = open(&bench, SLOTS[0]);
    (0..CHUNKS * VALUES / 2).for_each(|i| assert_eq!(put(&mut dead, i, 1), Outcome::Inserted));
    assert!(available(&bench) > CHUNKS / 3);
    drop(dead);
    recover_all(&bench);
    check_recovered(&bench).expect("a sound table");
    assert_eq!(stats(&bench).chunks.owned, 0);
}

/// [R-GROW-15] [R-EXTENT-5] Space that another client has freed is reclaimed before chunks are added.
#[test]
fn freed_space_is_reclaimed_before_chunks_are_added() {
    const KEYS: u64 = CHUNKS / 4 * (VALUES - 2);
    let bench = growing_extents(CHUNKS);
    let mut actors = [open(&bench, SLOTS[0]), open(&bench, SLOTS[1])];
    (0..KEYS).for_each(|i| assert_eq!(put(&mut actors[0], i, 0), Outcome::Inserted));
    let before = (available(&bench), stats(&bench).chunks.free);
    assert!(before.0 < CHUNKS / 2 && before.1 < 6, "{before:?} chunks, and free ones");
    for i in 0..KEYS {
        let removed = block_on(actors[1].apply(&Op::Remove(key(i)))).expect("no error");
        assert_eq!(removed, Observed::Outcome(Outcome::Removed));
    }
    for i in 0..10 {
        block_on(actors[0].apply(&Op::Put(key(i), vec![1; 3_000]))).expect("room");
    }
    assert_eq!(available(&bench), before.0);
}
