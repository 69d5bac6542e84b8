//! Space that deaths leak, and that is reclaimed. [R-RECOVER-7]

use std::collections::BTreeMap;
use std::sync::Arc;

use guira_check::{CheckOptions, Concurrency, check_table};
use guira_conformance::{Bench, KeyFinder, Op, block_on};
use guira_fabric::heap::{Next, Step};
use guira_fabric::{Addr, Profile, Region};
use guira_layout::{OwnerId, Preset, Record, RowId, Seal};
use guira_rcuckoo::{ExtentUse, NewValue, look_up_extent};

use crate::recovery::audit::{check_marks, check_recovered, recover_all, recover_slot};
use crate::recovery::deaths::memories;
use crate::recovery::fixture::{self, FilledTable, SLOTS, key};
use crate::recovery::image::Image;
use crate::recovery::lane::{LoggedLane, Written};
use crate::recovery::lifecycle::{Actor, Script, SlotSource, config, run_script};

/// Deaths, each of which leaks a place: many times as many as the table has.
const DEATHS: u64 = 1_500;
/// Chunks of a table. 33 values of 80 bytes fit in one.
const CHUNKS: u64 = 6;
const PLACES: u64 = CHUNKS * 33;

/// The point at which a client dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Between the retirement of its record and the mark of the extent it freed.
    Mark,
    /// Between an extent and the first lock.
    Unlinked,
    /// In the middle of an extent.
    Torn,
}

pub const LOSSES: [Loss; 3] = [Loss::Mark, Loss::Unlinked, Loss::Torn];

impl Loss {
    /// Returns the number of changes among `written`, those of a put over an extent in `slot`, after which the client
    /// dies.
    fn cut(self, bench: &Bench, slot: u16, written: &[Written]) -> usize {
        let seal = bench.table.geometry().slot(slot).word() as usize + Seal::word(bench.table.rows());
        let retired = |it: &Written| it.word == seal && !Seal(it.value).is_sealed();
        match self {
            Loss::Mark => written.iter().position(retired).expect("the record was retired") + 1,
            Loss::Unlinked => extent_words(bench, written).1,
            Loss::Torn => extent_words(bench, written).0 + 3,
        }
    }
}

/// Returns where the words of the extent begin and end among `written`: the longest run of consecutive words.
fn extent_words(bench: &Bench, written: &[Written]) -> (usize, usize) {
    let chunks = bench.table.geometry().chunk(0).word() as usize..bench.region.memory().main.len();
    let is_next = |a: &Written, b: &Written| a.word + 1 == b.word && chunks.contains(&a.word);
    let mut at = 0;
    let runs = written.chunk_by(is_next).map(|run| {
        at += run.len();
        (at - run.len(), at)
    });
    runs.max_by_key(|(first, end)| end - first).expect("something was written")
}

/// Puts over an extent, as a client in `slot` that dies at this point.
fn die(bench: &Bench, image: &mut Image, slot: u16, loss: Loss, value: u8) {
    image.load(bench);
    let script = Script::of(slot, &Op::Put(key(2), vec![value; 80]));
    let run = run_script(bench, &script, LoggedLane::new(&bench.region)).expect("a free slot");
    assert!(run.answers[0].is_ok(), "{loss:?}: {:?}", run.answers);
    let cut = loss.cut(bench, slot, &run.log.written);
    run.log.written[..cut].iter().for_each(|written| image.apply(written));
    image.load(bench);
}

/// Returns the number of unreferenced extents that are not marked.
fn unreferenced(bench: &Bench) -> u64 {
    let options = CheckOptions { concurrency: Concurrency::Exclusive, ..CheckOptions::default() };
    let report = block_on(check_table(&mut LoggedLane::new(&bench.region), &bench.table, &options, &mut |_| ()));
    report.expect("the heap reads").unreferenced_extents
}

/// Creates a table in which each kind of death has leaked a place.
pub fn with_leaks(profile: Profile) -> FilledTable {
    let filled = fixture::extents_in(profile, CHUNKS);
    let (bench, mut image) = (filled.bench.under(Profile::Shm), Image::of(&filled.bench));
    for (slot, loss) in SLOTS.into_iter().zip(LOSSES) {
        die(&bench, &mut image, slot, loss, slot as u8);
        recover_all(&bench);
        image = Image::of(&bench);
    }
    let mut model = filled.model;
    model.apply(&Op::Put(key(2), vec![SLOTS[0] as u8; 80]));
    assert_eq!(bench.contents().as_ref(), Ok(&model.0));
    assert_eq!(unreferenced(&bench), LOSSES.len() as u64, "each death has lost a place");
    FilledTable { bench: filled.bench, model }
}

/// [R-RECOVER-7] Each death leaks a place, and there are many more deaths than places: clients still find space,
/// because a client that adopts a chunk, or finds no space, sweeps up what was leaked.
#[test]
fn deaths_leak_no_space() {
    for loss in LOSSES {
        let filled = fixture::extents_in(Profile::Shm, CHUNKS);
        let (bench, mut image) = (&filled.bench, Image::of(&filled.bench));
        let mut most = 0;
        for death in 0..DEATHS {
            die(bench, &mut image, SLOTS[0], loss, death as u8);
            recover_all(bench);
            image = Image::of(bench);
            most = most.max(if death % 50 == 0 { unreferenced(bench) } else { 0 });
        }
        println!("{loss:?}: {DEATHS} deaths lost a place each, of {PLACES}; at most {most} were seen lost at a time");
        assert!(DEATHS > 5 * PLACES && most > 0);
        check_recovered(bench).unwrap_or_else(|wrong| panic!("{loss:?}: {wrong}"));
        assert_eq!(unreferenced(bench), 0, "{loss:?}");
    }
}

/// [R-RECOVER-7] A live client finds by itself what other clients leaked in its chunks, when it needs space.
#[test]
fn lost_marks_in_chunks_of_live_clients_are_found() {
    let filled = fixture::extents_in(Profile::Shm, CHUNKS);
    let bench = &filled.bench;
    let mut owner =
        Actor::open(bench, SlotSource::Free(SLOTS[3]), config(bench), LoggedLane::new(&bench.region)).expect("free");
    // This continues until there is no space for one more, which the last try finds out by itself.
    let keys: Vec<u64> = (1 << 20..(1 << 20) + 60).collect();
    for i in &keys {
        block_on(owner.apply(&Op::Put(key(*i), vec![1; 80]))).expect("room");
    }
    let lost_by = |owner: &mut Actor, i: u64| {
        // A client removes the key, and dies before it marks the place. The owner continues to live beside it.
        let script = Script::of(SLOTS[0], &Op::Remove(key(i)));
        let before = Image::of(bench);
        let run = run_script(bench, &script, LoggedLane::new(&bench.region)).expect("a free slot");
        let cut = Loss::Mark.cut(bench, SLOTS[0], &run.log.written);
        let mut image = before;
        run.log.written[..cut].iter().for_each(|written| image.apply(written));
        image.load(bench);
        let next = Op::Put(key(i), vec![2; 3]);
        block_on(owner.apply(&next)).expect("a client meets the dead client's lock, and recovers it");
    };
    keys.iter().for_each(|i| lost_by(&mut owner, *i));
    assert_eq!(unreferenced(bench), keys.len() as u64);
    owner.exhaust_space();
    assert_eq!(owner.extents.as_ref().map(guira_extents::Extents::swept), Some(keys.len() as u64));
    owner.close().expect("the heap loses nothing");
    check_recovered(bench).expect("a sound table");
    assert_eq!(unreferenced(bench), 0);
}

/// [R-RECOVER-7] An extent that a dead client was freeing is not leaked as long as the client holds its locks: no entry
/// refers to it any more, but its record is sealed, and the client that recovers it marks the extent, which must not be
/// late.
#[test]
fn extents_a_dead_client_was_freeing_are_left_to_its_recovery() {
    let filled = fixture::extents_in(Profile::Shm, CHUNKS);
    let bench = &filled.bench;
    let mut owner =
        Actor::open(bench, SlotSource::Free(SLOTS[3]), config(bench), LoggedLane::new(&bench.region)).expect("free");
    let keys: Vec<u64> = (1 << 20..(1 << 20) + 20).collect();
    for i in &keys {
        block_on(owner.apply(&Op::Put(key(*i), vec![1; 80]))).expect("room");
    }
    let swept = |owner: &Actor| owner.extents.as_ref().map(guira_extents::Extents::swept);
    for i in &keys {
        // A client removes the key, and dies when no row refers to its extent any more, and before its record is
        // retired.
        let script = Script::of(SLOTS[0], &Op::Remove(key(*i)));
        let mut image = Image::of(bench);
        let run = run_script(bench, &script, LoggedLane::new(&bench.region)).expect("a free slot");
        let cut = Loss::Mark.cut(bench, SLOTS[0], &run.log.written) - 1;
        run.log.written[..cut].iter().for_each(|written| image.apply(written));
        image.load(bench);
        // From the second key on a client was recovered, so all of its chunks are scanned.
        owner.exhaust_space();
        assert_eq!(swept(&owner), Some(0), "key {i}: only the dead client's recovery may free the extent");
        let recovered = recover_slot(bench, SLOTS[0]).expect("it is dead");
        assert!(recovered.replayed_rows == 1 && recovered.locks > 0, "key {i}: {recovered:?}");
    }
    println!("{} extents that dead clients were freeing", keys.len());
    assert_eq!(unreferenced(bench), 0, "they are marked");
    owner.exhaust_space();
    assert_eq!(swept(&owner), Some(0));
    owner.close().expect("the heap loses nothing");
    check_recovered(bench).expect("a sound table");
}

/// [R-RECOVER-7] [R-READ-3] [R-INSERT-4] An extent whose entry moves from one of its rows to the other while it is
/// looked up is never treated as leaked, wherever the two WRITEs of the move fall among the verbs of the lookup.
#[test]
fn a_moving_extent_is_not_swept() {
    /// Verbs of a lookup: the extent's header, the extent, two rows, their trailers, their locks.
    const VERBS: usize = 8;
    let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 64, Profile::Shm, fixture::SEED);
    let (key, first, second) = KeyFinder::new(&bench.table, 1_000).take_any(|_, _| true).expect("some key");
    let prepared = bench.client(0).extents.prepare(&mut bench.region.lane(), &key, &[1; 80]).expect("an extent");
    let NewValue::Extent { extent, words } = prepared.value() else { panic!("it is in an extent") };
    let place_words = words.len() as u64;
    let (prepared, mut found) = (Arc::new(prepared), BTreeMap::new());
    for (from, to) in [(first, second), (second, first)] {
        let filled = bench.fork();
        filled.plant(from, &prepared);
        for (begin, end) in (0..=VERBS).flat_map(|begin| (begin..=VERBS).map(move |end| (begin, end))) {
            let bench = filled.fork();
            let (moved, entry, mut verb) = (bench.clone(), Arc::clone(&prepared), 0);
            let hook = move |step| {
                if let Step::Verb { .. } = step {
                    if verb == begin {
                        hold_locks(&moved, [from, to], 1);
                        moved.plant_entry(to, &entry);
                    }
                    if verb == end {
                        moved.empty_row(from);
                        hold_locks(&moved, [from, to], 0);
                    }
                    verb += 1;
                }
                Next::Continue
            };
            let mut lane = bench.region.lane().hooked(Box::new(hook));
            let lookup = look_up_extent(&mut lane, &bench.table, extent.offset, extent.generation, place_words);
            let standing = block_on(lookup).expect("the heap reads");
            assert_ne!(standing, ExtentUse::Leaked, "from {from} to {to} before verbs {begin} and {end}");
            *found.entry(format!("{standing:?}")).or_insert(0) += 1;
        }
    }
    println!("an extent that moves: {found:?}");
    // It is in neither sample only if it moves between the two.
    assert!(found["Linked"] >= 80 && found["Unsettled"] >= 1, "{found:?}");
}

/// Stores `owner`'s id, or 0, in the locks of `rows`.
fn hold_locks(bench: &Bench, rows: [RowId; 2], owner: u16) {
    let locks = bench.table.locks();
    let masks = rows.map(|row| locks.mask(locks.lock_of(row)));
    for word in masks.map(|mask| mask.word) {
        let of_word = masks.iter().filter(|mask| mask.word == word).fold(0, |all, mask| all | mask.mask);
        let held = if owner == 0 { 0 } else { locks.held(OwnerId(owner), of_word) };
        bench.store(locks.addr(word), &[held]);
    }
}

/// [R-COMMIT-1] [R-EXTENT-4] Wherever a client dies, the extent that a sealed record frees is still allocated.
#[test]
fn a_death_in_shared_memory_leaves_no_sealed_record_of_what_is_free() {
    let mut memories_seen = 0;
    for case in fixture::extents(Profile::Shm).iter().filter(|case| case.name.ends_with("reusers")) {
        for memory in memories(case) {
            check_marks(&case.filled.bench, &memory).unwrap_or_else(|wrong| panic!("{}: {wrong}", case.name));
            memories_seen += 1;
        }
    }
    println!("{memories_seen} memories");
    assert!(memories_seen > 200);
}

/// [R-RECOVER-2] [R-EXTENT-4] A replay marks the extent that its record frees: the sweep is only for extents that no
/// record names.
#[test]
fn a_replay_in_shared_memory_marks_what_its_record_frees() {
    let mut marked = 0;
    for case in fixture::extents(Profile::Shm).iter().filter(|case| case.name.ends_with("reusers")) {
        let bench = case.filled.bench.fork();
        let (table, geometry) = (&bench.table, bench.table.geometry());
        for memory in memories(case) {
            memory.load(&bench);
            let words = bench.words_at(geometry.slot(SLOTS[0]), geometry.slot_words());
            let record = Record::decode(&words, table.rows(), table.config(), geometry).expect("an intact record");
            let freed = record.and_then(|record| record.freed_extent());
            recover_all(&bench);
            if let Some((mark, generation)) = freed {
                assert_eq!(bench.words_at(Addr::main(mark), 1), [generation.0], "{}", case.name);
                marked += 1;
            }
        }
    }
    println!("{marked} memories with a sealed record that frees an extent");
    assert!(marked > 20);
}
