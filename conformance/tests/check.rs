//! The table scanner: sound tables are clean, every kind of damage is reported as what it is, and a table that others
//! work on has no problems that are not there.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use guira_check::{
    CheckOptions, CheckReport, ProblemKind, Progress, Quiet, Stage, TableStats, check_table, table_stats,
};
use guira_conformance::{Bench, Extents, Rng, TestClient, block_on};
use guira_fabric::heap::Next;
use guira_fabric::{Addr, Profile, Region};
use guira_layout::{
    ChunkState, ChunkWord, ExtentClass, ExtentRef, GENERATION_WORD, LockId, OwnerId, Placement, Preset, Record,
    RowFormat, RowId, STATE_WORD, Seal, SlotState, SlotWord, Superblock, TableConfig, TableState, Version,
    encode_extent,
};
use guira_rcuckoo::{Change, Error, NewValue, Outcome, RowPair};

const FORMATS: [&str; 5] = ["fixed:4:4", "fixed:8:8", "fixed:5:3", "bytes:24", "bytes:64"];

fn word(bench: &Bench, addr: Addr) -> &AtomicU64 {
    &bench.region.memory().space(addr.space())[addr.word() as usize]
}

fn load(bench: &Bench, addr: Addr) -> u64 {
    word(bench, addr).load(Ordering::Relaxed)
}

fn store(bench: &Bench, addr: Addr, words: &[u64]) {
    for (i, value) in words.iter().enumerate() {
        word(bench, addr.add_words(i as u64)).store(*value, Ordering::Relaxed);
    }
}

fn row_words(bench: &Bench, row: RowId) -> Vec<u64> {
    let addr = bench.table.geometry().row(row);
    (0..bench.table.rows().row_words() as u64).map(|i| load(bench, addr.add_words(i))).collect()
}

/// Changes a row as a client with wrong ideas would: it verifies afterwards.
fn craft(bench: &Bench, row: RowId, change: impl FnOnce(&RowFormat, &mut [u64])) {
    let rows = bench.table.rows();
    let mut words = row_words(bench, row);
    change(rows, &mut words);
    rows.finish(row, &mut words);
    store(bench, bench.table.geometry().row(row), &words);
}

#[expect(clippy::unwrap_used, reason = "a test's helper: a failure is the test's")]
fn check(bench: &Bench, quiet: Quiet) -> CheckReport {
    let mut lane = bench.region.lane();
    let options = CheckOptions { quiet, problem_limit: 50, ..CheckOptions::default() };
    block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ())).unwrap()
}

#[track_caller]
fn assert_clean(report: &CheckReport, what: &str) {
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{what}: {} problems: {problems:#?}", report.problems_total);
}

/// A key of the width the bench's format has.
fn key(bench: &Bench, i: u64) -> Vec<u8> {
    let width = match bench.table.config().format {
        guira_layout::EntryFormat::Fixed { key_bytes, .. } => usize::from(key_bytes),
        guira_layout::EntryFormat::Bytes { .. } => (i % 4 + 8) as usize,
    };
    let mut key = i.to_le_bytes().to_vec();
    key.resize(width, 7);
    key
}

fn value(bench: &Bench, i: u64) -> Vec<u8> {
    let width = match bench.table.config().format {
        guira_layout::EntryFormat::Fixed { value_bytes, .. } => usize::from(value_bytes),
        guira_layout::EntryFormat::Bytes { .. } => (i % 13) as usize,
    };
    vec![i as u8; width]
}

/// Puts a value that lives in an extent; `None` if the table is full.
fn put_extent(extents: &mut Extents, client: &mut TestClient, key: &[u8], value: &[u8]) -> Option<Outcome> {
    let prepared = extents.prepare(&mut client.lane, key, value).expect("a value too large for a row");
    match client.change(key, Change::Put(prepared.value())) {
        Ok(changed) => Some(changed.outcome),
        Err(Error::Full { .. }) => {
            extents.give_back(prepared);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Writes an extent that no entry refers to.
fn write_extent(bench: &Bench, extents: &mut Extents, key: &[u8], value: &[u8]) -> ExtentRef {
    let prepared = extents.prepare(&mut bench.region.lane(), key, value).expect("a value too large for a row");
    let NewValue::Extent { extent, words } = prepared.value() else { unreachable!("it is an extent") };
    store(bench, Addr::main(extent.offset), words);
    extent
}

/// A table of 128 rows with 100 inline entries, and some extents if its format has any.
#[expect(clippy::unwrap_used, reason = "a test's helper: a failure is the test's")]
fn filled(preset: Preset, format: &str, profile: Profile) -> (Bench, TestClient) {
    let bench = Bench::of_rows(preset, format, 128, profile, 9);
    let mut client = bench.client(2);
    for i in 0..100 {
        assert_eq!(client.put(&key(&bench, i), &value(&bench, i)).unwrap().outcome, Outcome::Inserted);
    }
    if bench.table.config().format.has_extents() {
        let mut extents = Extents::new(&bench.table, client.client.owner());
        for (i, bytes) in [70, 200, 65, 900, 3000, 9000, 140_000, 70].into_iter().enumerate() {
            let put = put_extent(&mut extents, &mut client, &key(&bench, 1000 + i as u64), &vec![3; bytes]);
            assert_eq!(put, Some(Outcome::Inserted));
        }
    }
    (bench, client)
}

fn entry_of(bench: &Bench, key: &[u8]) -> (RowId, usize) {
    let placement = bench.table.placement();
    let (digest, rows) = (placement.digest(key), bench.table.rows());
    let RowPair { first, second } = placement.rows(digest);
    let found = |row| rows.find(&row_words(bench, row), &rows.probe(key, digest), 0).map(|found| (row, found.slot()));
    found(first).or_else(|| found(second)).expect("a stored key")
}

#[test]
fn sound_tables_are_clean() {
    for preset in Preset::ALL {
        for format in FORMATS {
            for profile in [Profile::Shm, Profile::Rxe] {
                let what = format!("{preset} {format} {profile}");
                println!("{what}");
                let (bench, mut client) = filled(preset, format, profile);
                for i in 0..30 {
                    client.change(&key(&bench, i), Change::Remove).unwrap();
                }
                for quiet in [Quiet::NobodyWorks, Quiet::OthersWork] {
                    let report = check(&bench, quiet);
                    assert_clean(&report, &what);
                    let (counts, config) = (&report.counts, bench.table.config());
                    let extents = if config.format.has_extents() { 8 } else { 0 };
                    assert_eq!((counts.inline_entries, counts.extent_entries), (70, extents), "{what}");
                    assert_eq!(counts.primary_entries + counts.secondary_entries, counts.entries);
                    assert_eq!((counts.rows, counts.unverified_rows), (128, 0));
                    assert_eq!(counts.rows_by_occupancy.iter().sum::<u64>(), 128);
                    let weighed = counts.rows_by_occupancy.iter().zip(0..).map(|(rows, entries)| rows * entries);
                    assert_eq!(weighed.sum::<u64>(), counts.entries);
                    assert!((counts.fill - (70 + extents) as f64 / config.slots() as f64).abs() < 1e-9);
                    let chunks = counts.chunks;
                    assert_eq!(chunks.free + chunks.owned + chunks.tail, config.chunks);
                    assert_eq!((report.used_slots, report.held_locks, report.unreferenced_extents), (1, 0, 0));
                    assert_space(counts, config);
                    let stats = block_on(table_stats(&mut bench.region.lane(), &bench.table)).unwrap();
                    assert_eq!(&stats, counts, "{what}");
                }
            }
        }
    }
}

/// The sums that hold in every sound table.
fn assert_space(counts: &TableStats, config: &TableConfig) {
    let (space, chunks) = (&counts.space, &counts.chunks);
    assert_eq!(space.total_bytes, config.chunks * config.chunk_bytes);
    assert_eq!(space.used_bytes, chunks.in_use() * config.chunk_bytes);
    assert_eq!(chunks.free + chunks.in_use(), config.chunks);
    assert!(space.longest_free_run <= chunks.free && (space.longest_free_run > 0) == (chunks.free > 0));
    assert!(space.live_bytes <= space.place_bytes && space.place_bytes <= space.used_bytes);
    assert_eq!(space.classes.iter().map(|class| class.used).sum::<u64>(), counts.extent_entries);
    assert_eq!(space.classes.iter().map(|class| class.chunks).sum::<u64>(), chunks.in_use());
    assert_eq!(space.classes.iter().map(|class| class.used * class.place_bytes).sum::<u64>(), space.place_bytes);
    assert!(space.classes.iter().all(|class| class.used + class.free == class.slots));
    assert_eq!(space.owners.iter().map(|owner| owner.chunks).sum::<u64>(), chunks.owned + chunks.tail);
}

#[test]
fn progress_goes_through_every_stage() {
    let (bench, _client) = filled(Preset::Tiny, "bytes:64", Profile::Tcp);
    let mut seen: Vec<Progress> = Vec::new();
    let options = CheckOptions::default();
    block_on(check_table(&mut bench.region.lane(), &bench.table, &options, &mut |progress| seen.push(progress)))
        .unwrap();
    for stage in [Stage::Superblock, Stage::Slots, Stage::Locks, Stage::Rows, Stage::Chunks] {
        assert!(seen.iter().any(|progress| progress.stage == stage), "{stage}");
    }
    assert!(seen.iter().all(|progress| progress.done <= progress.total));
}

#[test]
fn extents_nobody_refers_to_are_counted_not_reported() {
    let (bench, client) = filled(Preset::Hardened, "bytes:64", Profile::Shm);
    let mut extents = Extents::new(&bench.table, client.client.owner());
    for bytes in [100, 100, 200_000] {
        write_extent(&bench, &mut extents, b"lost", &vec![1; bytes]);
    }
    let report = check(&bench, Quiet::NobodyWorks);
    assert_clean(&report, "leaked extents");
    assert_eq!(report.unreferenced_extents, 3);
}

/// Damage, under a name: what it does to a table of `bytes:64`, and the kind of the problem it has to give.
type Damage = (ProblemKind, &'static str, fn(&Bench));

const SOME_ROW: RowId = RowId(5);

fn extent_entry(bench: &Bench) -> (RowId, usize) {
    entry_of(bench, &key(bench, 1001))
}

fn extent_at(bench: &Bench, (row, slot): (RowId, usize)) -> ExtentRef {
    bench.table.rows().extent_of(&row_words(bench, row), slot)
}

fn inline_entry(bench: &Bench) -> (RowId, usize) {
    entry_of(bench, &key(bench, 3))
}

fn change_extent(bench: &Bench, change: impl FnOnce(&mut ExtentRef)) {
    let at = extent_entry(bench);
    let mut extent = extent_at(bench, at);
    change(&mut extent);
    let mut entry = vec![0; bench.table.rows().entry_words()];
    bench.table.rows().encode_extent_entry(&mut entry, &extent);
    craft(bench, at.0, |rows, words| rows.put_entry(words, at.1, &entry, Placement::Extent));
}

fn free_slot(bench: &Bench, row: RowId) -> usize {
    bench.table.rows().free_slot(&row_words(bench, row)).expect("the table is nearly empty")
}

/// Puts a copy of an entry into the first free slot of a row.
fn copy_entry(bench: &Bench, (from, slot): (RowId, usize), to: RowId) {
    let (words, free) = (row_words(bench, from), free_slot(bench, to));
    let (entry, placement) = (bench.table.rows().entry(&words, slot), bench.table.rows().placement(&words, slot));
    craft(bench, to, |rows, words| rows.put_entry(words, free, entry, placement));
}

fn other_row(bench: &Bench, i: u64, row: RowId) -> RowId {
    let placement = bench.table.placement();
    placement.rows(placement.digest(&key(bench, i))).other(row).expect("one of the key's rows")
}

fn xor(bench: &Bench, addr: Addr, bits: u64) {
    word(bench, addr).fetch_xor(bits, Ordering::Relaxed);
}

fn set_chunk(bench: &Bench, chunk: u64, state: ChunkState) {
    store(bench, bench.table.geometry().chunk_word(chunk), &[ChunkWord::encode(state).0]);
}

fn seal_record(bench: &Bench, row: RowId) {
    let (rows, words) = (bench.table.rows(), row_words(bench, RowId(0)));
    let mut record = Record::default();
    record.clear();
    record.push(rows, row, Version(1), 0, &words);
    let slot = bench.table.geometry().slot(2);
    store(bench, slot.add_words(Record::WORD as u64), record.words());
    store(bench, slot.add_words(Seal::WORD as u64), &[Seal::of(record.words(), 7).0]);
}

fn set_slot(bench: &Bench, slot: u16, word: u64) {
    store(bench, bench.table.geometry().slot(slot), &[word]);
}

fn hold_lock(bench: &Bench, lock: u64, owner: u16) {
    let locks = bench.table.locks();
    let mask = locks.mask(LockId(lock));
    xor(bench, locks.addr(mask.word), locks.held(OwnerId(owner), mask.mask));
}

const SUPERBLOCK_AND_ROWS: &[Damage] = &[
    (ProblemKind::SuperblockDamaged, "a flipped bit", |bench| xor(bench, Addr::main(8 * 8), 1 << 20)),
    (ProblemKind::SuperblockDamaged, "a strange state", |bench| xor(bench, Addr::main(STATE_WORD as u64 * 8), 1)),
    (ProblemKind::SuperblockDamaged, "zeros", |bench| store(bench, Addr::main(0), &[0; 64])),
    (ProblemKind::SuperblockReplaced, "another incarnation", |bench| {
        let superblock = Superblock { incarnation: 1, ..bench.table.superblock().clone() };
        store(bench, Addr::main(0), &superblock.encode());
    }),
    (ProblemKind::TableDestroyed, "destroyed", |bench| {
        store(bench, Addr::main(STATE_WORD as u64 * 8), &[TableState::Destroyed.encode()]);
    }),
    (ProblemKind::GenerationCounter, "no generation", |bench| {
        store(bench, Addr::main(GENERATION_WORD as u64 * 8), &[0])
    }),
    (ProblemKind::GenerationCounter, "a generation too far", |bench| {
        xor(bench, Addr::main(GENERATION_WORD as u64 * 8), 1 << 60);
    }),
    (ProblemKind::RowTorn, "a flipped bit", |bench| xor(bench, bench.table.geometry().row(SOME_ROW), 1)),
    (ProblemKind::RowTorn, "a zeroed row", |bench| {
        store(bench, bench.table.geometry().row(SOME_ROW), &vec![0; bench.table.rows().row_words()]);
    }),
    (ProblemKind::RowTorn, "a misdirected row", |bench| {
        store(bench, bench.table.geometry().row(SOME_ROW), &row_words(bench, RowId(6)));
    }),
    (ProblemKind::RowLevel, "a level", |bench| {
        craft(bench, SOME_ROW, |rows, words| words[rows.trailer_word()] |= 1 << 32);
    }),
    (ProblemKind::OccupancyBits, "entry 13 of 6", |bench| {
        craft(bench, SOME_ROW, |rows, words| words[rows.trailer_word()] |= 1 << 49);
    }),
    (ProblemKind::TypeBits, "type of entry 13", |bench| {
        craft(bench, SOME_ROW, |rows, words| words[rows.trailer_word()] |= 1 << 63);
    }),
    (ProblemKind::TypeBits, "type of a free entry", |bench| {
        let slot = free_slot(bench, SOME_ROW);
        craft(bench, SOME_ROW, |rows, words| words[rows.trailer_word()] |= 1 << (50 + slot));
    }),
    (ProblemKind::FreeEntryNotZero, "a remnant", |bench| {
        let slot = free_slot(bench, SOME_ROW);
        craft(bench, SOME_ROW, |rows, words| words[(slot + 1) * rows.entry_words() - 1] = 1);
    }),
];

const ENTRIES: &[Damage] = &[
    (ProblemKind::EntryLengths, "a key too long", |bench| {
        let (row, slot) = inline_entry(bench);
        craft(bench, row, |rows, words| words[slot * rows.entry_words()] |= 0xff00);
    }),
    (ProblemKind::EntryDigest, "a digest's bit", |bench| {
        let (row, slot) = inline_entry(bench);
        craft(bench, row, |rows, words| words[slot * rows.entry_words()] ^= 1 << 40);
    }),
    (ProblemKind::EntryPadding, "a byte behind the value", |bench| {
        let (row, slot) = inline_entry(bench);
        craft(bench, row, |rows, words| words[(slot + 1) * rows.entry_words() - 1] |= 1 << 63);
    }),
    (ProblemKind::EntryPadding, "a byte behind the lengths", |bench| {
        let (row, slot) = extent_entry(bench);
        craft(bench, row, |rows, words| words[(slot + 1) * rows.entry_words() - 1] |= 1);
    }),
    (ProblemKind::EntryMisplaced, "in the wrong row", |bench| {
        let at = inline_entry(bench);
        let rows = bench.table.placement().rows(bench.table.placement().digest(&key(bench, 3)));
        let wrong = (0..).map(RowId).find(|row| rows.other(*row).is_none()).expect("most rows");
        copy_entry(bench, at, wrong);
        craft(bench, at.0, |rows, words| rows.clear_entry(words, at.1));
    }),
    (ProblemKind::DuplicateKey, "in both rows", |bench| {
        let at = inline_entry(bench);
        copy_entry(bench, at, other_row(bench, 3, at.0));
    }),
    (ProblemKind::DuplicateKey, "twice in a row", |bench| {
        let at = inline_entry(bench);
        copy_entry(bench, at, at.0);
    }),
    (ProblemKind::DuplicateKey, "two extents", |bench| {
        let at = extent_entry(bench);
        let old = extent_at(bench, at);
        let key = key(bench, 1001);
        let mut extents = Extents::new(&bench.table, OwnerId(3));
        let extent = write_extent(bench, &mut extents, &key, &[9; 100]);
        assert_ne!(old.offset, extent.offset);
        let to = other_row(bench, 1001, at.0);
        let (mut entry, slot) = (vec![0; bench.table.rows().entry_words()], free_slot(bench, to));
        bench.table.rows().encode_extent_entry(&mut entry, &extent);
        craft(bench, to, |rows, words| rows.put_entry(words, slot, &entry, Placement::Extent));
    }),
    (ProblemKind::DuplicateKey, "an extent and inline", |bench| {
        let at = extent_entry(bench);
        let (key, rows) = (key(bench, 1001), bench.table.rows());
        let mut entry = vec![0; rows.entry_words()];
        rows.encode_inline(&mut entry, &rows.probe(&key, bench.table.placement().digest(&key)), b"inline");
        let slot = free_slot(bench, at.0);
        craft(bench, at.0, |rows, words| rows.put_entry(words, slot, &entry, Placement::Inline));
    }),
];

const EXTENTS: &[Damage] = &[
    (ProblemKind::ExtentAddress, "beyond the chunks", |bench| change_extent(bench, |extent| extent.offset = 1 << 40)),
    (ProblemKind::ExtentAddress, "between two places", |bench| change_extent(bench, |extent| extent.offset += 8)),
    (ProblemKind::ExtentAddress, "more than 48 bits", |bench| change_extent(bench, |extent| extent.offset |= 1 << 50)),
    (ProblemKind::ExtentAddress, "impossible lengths", |bench| {
        change_extent(bench, |extent| extent.value_bytes = u32::MAX);
    }),
    (ProblemKind::ExtentAddress, "a run beyond the last chunk", |bench| {
        let last = bench.table.geometry().chunk(bench.table.config().chunks - 1).offset() + 72;
        change_extent(bench, |extent| (extent.offset, extent.value_bytes) = (last, 1 << 20));
    }),
    (ProblemKind::ExtentGeneration, "zero", |bench| change_extent(bench, |extent| extent.generation.0 = 0)),
    (ProblemKind::ExtentGeneration, "not drawn yet", |bench| {
        change_extent(bench, |extent| extent.generation.0 = 1 << 30);
    }),
    (ProblemKind::ExtentChunk, "a free chunk", |bench| {
        let chunk = bench.table.geometry().chunk_of(extent_at(bench, extent_entry(bench)).offset).expect("a chunk").0;
        set_chunk(bench, chunk, ChunkState::Free);
    }),
    (ProblemKind::ExtentChunk, "a chunk that is claimed", |bench| {
        let extent = extent_at(bench, extent_entry(bench));
        let chunk = bench.table.geometry().chunk_of(extent.offset).expect("a chunk").0;
        let class = ExtentClass::of(extent.words().expect("possible lengths"), bench.table.config().chunk_bytes);
        set_chunk(bench, chunk, ChunkState::Claiming { owner: OwnerId(3), class });
    }),
    (ProblemKind::ExtentChunk, "a chunk of another class", |bench| {
        let chunk = bench.table.geometry().chunk_of(extent_at(bench, extent_entry(bench)).offset).expect("a chunk").0;
        set_chunk(bench, chunk, ChunkState::Orphan { class: ExtentClass::Slot(7), free: 0 });
    }),
    (ProblemKind::ExtentFreed, "its mark", |bench| {
        let extent = extent_at(bench, extent_entry(bench));
        let mark = extent.mark_offset(bench.table.config(), bench.table.geometry()).expect("a possible extent");
        store(bench, Addr::main(mark), &[extent.generation.0]);
    }),
    (ProblemKind::ExtentReplaced, "another generation", |bench| {
        xor(bench, Addr::main(extent_at(bench, extent_entry(bench)).offset), 1);
    }),
    (ProblemKind::ExtentTorn, "its lengths", |bench| {
        xor(bench, Addr::main(extent_at(bench, extent_entry(bench)).offset + 8), 1);
    }),
    (ProblemKind::ExtentTorn, "its value", |bench| {
        xor(bench, Addr::main(extent_at(bench, extent_entry(bench)).offset + 64), 1 << 63);
    }),
    (ProblemKind::ExtentDigest, "another key", |bench| {
        let extent = extent_at(bench, extent_entry(bench));
        let (key, value) = (vec![0xee; extent.key_bytes as usize], vec![1; extent.value_bytes as usize]);
        let mut words = Vec::new();
        encode_extent(&mut words, &extent, &key, &value, bench.table.superblock().checksum_seed());
        store(bench, Addr::main(extent.offset), &words);
    }),
    (ProblemKind::ExtentShared, "in both rows", |bench| {
        let at = extent_entry(bench);
        copy_entry(bench, at, other_row(bench, 1001, at.0));
    }),
    (ProblemKind::ExtentShared, "twice in a row", |bench| {
        let at = extent_entry(bench);
        copy_entry(bench, at, at.0);
    }),
];

const CHUNKS_LOCKS_AND_SLOTS: &[Damage] = &[
    (ProblemKind::ChunkWord, "no state", |bench| store(bench, bench.table.geometry().chunk_word(40), &[9])),
    (ProblemKind::ChunkClass, "slots too large", |bench| {
        set_chunk(bench, 40, ChunkState::Orphan { class: ExtentClass::Slot(40), free: 0 });
    }),
    (ProblemKind::ChunkClass, "slots beyond all bounds", |bench| {
        set_chunk(bench, 40, ChunkState::Orphan { class: ExtentClass::Slot(250), free: 0 });
    }),
    (ProblemKind::ChunkClass, "a run of nothing", |bench| {
        set_chunk(bench, 40, ChunkState::Orphan { class: ExtentClass::Run(0), free: 0 });
    }),
    (ProblemKind::ChunkOwner, "a free slot's", |bench| {
        set_chunk(bench, 40, ChunkState::Owned { owner: OwnerId(9), class: ExtentClass::Slot(1) });
    }),
    (ProblemKind::ChunkOwner, "nobody's", |bench| {
        set_chunk(bench, 40, ChunkState::Owned { owner: OwnerId(0), class: ExtentClass::Run(1) });
    }),
    (ProblemKind::ChunkOwner, "no client's", |bench| {
        set_chunk(bench, 40, ChunkState::Owned { owner: OwnerId(5000), class: ExtentClass::Run(1) });
    }),
    (ProblemKind::ChunkOwner, "claimed by nobody", |bench| {
        set_chunk(bench, 40, ChunkState::Claiming { owner: OwnerId(9), class: ExtentClass::Run(2) });
    }),
    (ProblemKind::BrokenRun, "a missing tail", |bench| {
        set_chunk(bench, 40, ChunkState::Orphan { class: ExtentClass::Run(3), free: 0 });
        set_chunk(bench, 41, ChunkState::Tail { head: 40 });
    }),
    (ProblemKind::BrokenRun, "another run's tail", |bench| {
        set_chunk(bench, 40, ChunkState::Orphan { class: ExtentClass::Run(2), free: 0 });
        set_chunk(bench, 41, ChunkState::Tail { head: 39 });
    }),
    (ProblemKind::BrokenRun, "beyond the last chunk", |bench| {
        let last = bench.table.config().chunks - 1;
        set_chunk(bench, last, ChunkState::Orphan { class: ExtentClass::Run(2), free: 0 });
    }),
    (ProblemKind::StrayTail, "no run", |bench| set_chunk(bench, 40, ChunkState::Tail { head: 39 })),
    (ProblemKind::StrayTail, "its own", |bench| set_chunk(bench, 40, ChunkState::Tail { head: 40 })),
    (ProblemKind::StrayTail, "beyond the last chunk", |bench| {
        set_chunk(bench, 40, ChunkState::Tail { head: u32::MAX });
    }),
    (ProblemKind::StrayTail, "a run too short", |bench| {
        set_chunk(bench, 40, ChunkState::Orphan { class: ExtentClass::Run(2), free: 0 });
        set_chunk(bench, 41, ChunkState::Tail { head: 40 });
        set_chunk(bench, 42, ChunkState::Tail { head: 40 });
    }),
    (ProblemKind::StuckLock, "of a free slot", |bench| hold_lock(bench, 3, 9)),
    (ProblemKind::StuckLock, "of a slot in recovery", |bench| {
        set_slot(bench, 20, SlotWord { state: SlotState::Recovering, generation: 4 }.encode());
        hold_lock(bench, 3, 21);
    }),
    (ProblemKind::LockPoisoned, "poison", |bench| hold_lock(bench, 3, 0xffff)),
    (ProblemKind::LockPoisoned, "what a release leaves of it", |bench| hold_lock(bench, 3, 0xffff - 3)),
    (ProblemKind::SlotWord, "no state", |bench| set_slot(bench, 20, 0x7f)),
    (ProblemKind::UnfinishedCommit, "of a free slot", |bench| {
        seal_record(bench, SOME_ROW);
        set_slot(bench, 2, 0);
    }),
    (ProblemKind::RecordDamaged, "a flipped bit", |bench| {
        seal_record(bench, SOME_ROW);
        xor(bench, bench.table.geometry().slot(2).add_words(Record::WORD as u64 + 4), 2);
    }),
    (ProblemKind::RecordDamaged, "a row beyond the last", |bench| seal_record(bench, RowId(128))),
];

/// What is wrong only while nobody works.
const QUIET_ONLY: &[Damage] = &[
    (ProblemKind::StuckLock, "of a client in use", |bench| hold_lock(bench, 3, 3)),
    (ProblemKind::UnfinishedCommit, "of a client in use", |bench| seal_record(bench, SOME_ROW)),
    (ProblemKind::UnfinishedRecovery, "begun", |bench| {
        set_slot(bench, 20, SlotWord { state: SlotState::Recovering, generation: 4 }.encode());
    }),
];

/// Does `damage`, and returns the kinds the check reports.
fn kinds_after(bench: &Bench, damage: fn(&Bench), quiet: Quiet) -> Vec<ProblemKind> {
    damage(bench);
    let report = check(bench, quiet);
    report.problems.iter().for_each(|problem| println!("  {problem}"));
    assert_eq!(report.problems.len() as u64, report.problems_total.min(50));
    report.problems.iter().map(|problem| problem.kind).collect()
}

/// Damage to a table of another preset and format.
type DamageElsewhere = (ProblemKind, Preset, &'static str, fn(&Bench));

/// Each damage has a table and a thread of its own, because a check that looks again mostly waits.
fn provoke(damages: &[Damage], quiet: Quiet, provoked: &mut HashSet<ProblemKind>) {
    std::thread::scope(|scope| {
        for (kind, name, damage) in damages {
            scope.spawn(move || {
                let (bench, _client) = filled(Preset::Hardened, "bytes:64", Profile::Shm);
                let kinds = kinds_after(&bench, *damage, quiet);
                assert!(kinds.contains(kind), "{kind:?}, {name}: {kinds:?}");
            });
        }
    });
    provoked.extend(damages.iter().map(|(kind, _, _)| *kind));
}

/// Damage that `bytes:64` in `hardened` cannot have.
fn provoke_elsewhere(quiet: Quiet, provoked: &mut HashSet<ProblemKind>) {
    let cases: [DamageElsewhere; 6] = [
        (ProblemKind::PaddingNotZero, Preset::Hardened, "fixed:8:56", |bench| {
            craft(bench, SOME_ROW, |rows, words| words[rows.trailer_word() - 1] = 1);
        }),
        (ProblemKind::EntryPadding, Preset::Hardened, "fixed:5:0", |bench| {
            let (row, slot) = inline_entry(bench);
            craft(bench, row, |rows, words| words[slot * rows.entry_words()] |= 1 << 63);
        }),
        (ProblemKind::TypeBits, Preset::Tiny, "fixed:4:4", |bench| {
            let (row, slot) = inline_entry(bench);
            craft(bench, row, |rows, words| words[rows.trailer_word()] |= 1 << (50 + slot));
        }),
        (ProblemKind::LockBits, Preset::Tiny, "fixed:8:8", |bench| {
            let locks = bench.table.locks();
            let (last, addr) = (locks.mask(LockId(locks.locks())), locks.addr(locks.words() - 1));
            assert_eq!(last.word, locks.words() - 1, "the last word has room");
            xor(bench, addr, last.mask & 0xff << last.mask.trailing_zeros());
        }),
        (ProblemKind::RowVersion, Preset::Paper, "fixed:8:8", |bench| {
            let mut superblock = bench.table.superblock().clone();
            superblock.config.version_bits = 32;
            let mut words = row_words(bench, SOME_ROW);
            words[bench.table.rows().trailer_word()] |= 1 << 8;
            RowFormat::new(&superblock).finish(SOME_ROW, &mut words);
            store(bench, bench.table.geometry().row(SOME_ROW), &words);
        }),
        (ProblemKind::DuplicateKey, Preset::Paper, "fixed:4:4", |bench| {
            let at = inline_entry(bench);
            copy_entry(bench, at, at.0);
        }),
    ];
    for (kind, preset, format, damage) in cases {
        println!("{kind:?}: {preset} {format}");
        let bench = match kind {
            ProblemKind::LockBits => odd_locks(),
            _ => filled(preset, format, Profile::Tcp).0,
        };
        let kinds = kinds_after(&bench, damage, quiet);
        assert_eq!(kinds, [kind]);
        provoked.insert(kind);
    }
}

/// A table whose lock table does not fill its last word.
#[expect(clippy::unwrap_used, reason = "a test's helper: a failure is the test's")]
fn odd_locks() -> Bench {
    let options = guira_layout::PresetOptions {
        capacity: 1,
        format: "fixed:8:8".parse().unwrap(),
        extent_bytes: None,
        max_clients: Some(8),
        hash_seed: 3,
        device_bytes: u64::MAX,
    };
    let mut config = Preset::Hardened.config_of_rows(192, &options).unwrap();
    config.physical_locks = 6;
    Bench::of_config(config, Profile::Tcp, 3)
}

/// [R-ROW-1] [R-ROW-3] [R-HASH-1] [R-EXTENT-2] [R-EXTENT-3] [R-EXTENT-4] [R-LOCK-1] [R-SLOT-1] Every kind of problem is
/// reported as what it is, at the first look and after many.
#[test]
fn every_kind_of_damage_is_reported() {
    for quiet in [Quiet::NobodyWorks, Quiet::OthersWork] {
        let mut provoked = HashSet::new();
        for damages in [SUPERBLOCK_AND_ROWS, ENTRIES, EXTENTS, CHUNKS_LOCKS_AND_SLOTS] {
            provoke(damages, quiet, &mut provoked);
        }
        provoke_elsewhere(quiet, &mut provoked);
        let mut quiet_only: HashSet<ProblemKind> = QUIET_ONLY.iter().map(|(kind, _, _)| *kind).collect();
        if quiet == Quiet::NobodyWorks {
            provoke(QUIET_ONLY, quiet, &mut provoked);
            quiet_only.clear();
        }
        let missing: Vec<_> = ProblemKind::ALL.iter().filter(|kind| !provoked.contains(kind)).collect();
        assert!(missing.iter().all(|kind| quiet_only.contains(kind)), "{quiet:?}: {missing:?} were not provoked");
    }
    for (kind, name, damage) in QUIET_ONLY {
        let (bench, _client) = filled(Preset::Hardened, "bytes:64", Profile::Shm);
        assert_eq!(
            kinds_after(&bench, *damage, Quiet::OthersWork),
            [],
            "{kind:?}, {name}: others may be about to end it"
        );
    }
}

#[test]
fn locks_of_one_bit_are_stuck_only_while_nobody_works() {
    let (bench, _client) = filled(Preset::Paper, "fixed:8:8", Profile::Shm);
    let hold: fn(&Bench) = |bench| hold_lock(bench, 3, 1);
    assert_eq!(kinds_after(&bench, hold, Quiet::NobodyWorks), [ProblemKind::StuckLock]);
    assert_eq!(kinds_after(&bench, |_| (), Quiet::OthersWork), []);
}

#[test]
fn reports_keep_what_they_are_asked_to_keep() {
    let (bench, _client) = filled(Preset::Tiny, "fixed:8:8", Profile::Shm);
    for row in 0..128 {
        xor(&bench, bench.table.geometry().row(RowId(row)), 1);
    }
    for quiet in [Quiet::NobodyWorks, Quiet::OthersWork] {
        let options = CheckOptions { quiet, problem_limit: 5, ..CheckOptions::default() };
        let report = block_on(check_table(&mut bench.region.lane(), &bench.table, &options, &mut |_| ())).unwrap();
        assert_eq!((report.problems.len(), report.problems_total), (5, 128));
        assert_eq!((report.counts.unverified_rows, report.counts.entries), (128, 0));
    }
    let stats = block_on(table_stats(&mut bench.region.lane(), &bench.table)).unwrap();
    assert_eq!((stats.unverified_rows, stats.entries), (128, 0));
}

/// [R-ROW-1] A single flipped bit anywhere in a row is always reported, with its row, and nothing else is.
#[test]
fn every_flipped_bit_of_a_row_is_reported() {
    let seed = 20_250_611;
    println!("seed {seed}");
    let mut rng = Rng(seed);
    for preset in Preset::ALL {
        for format in FORMATS {
            let (bench, _client) = filled(preset, format, Profile::Shm);
            for _ in 0..150 {
                let row = RowId(rng.below(128));
                let at = bench.table.geometry().row(row).add_words(rng.below(bench.table.rows().row_words() as u64));
                let bit = 1 << rng.below(64);
                xor(&bench, at, bit);
                let report = check(&bench, Quiet::NobodyWorks);
                assert_eq!(report.problems_total, 1, "{preset} {format}: {row}, {at}, bit {bit:#x}");
                assert_eq!(
                    (report.problems[0].kind, &report.problems[0].place),
                    (ProblemKind::RowTorn, &row.to_string())
                );
                xor(&bench, at, bit);
            }
            assert_clean(&check(&bench, Quiet::NobodyWorks), format);
        }
    }
}

/// What a worker did.
#[derive(Debug, Default)]
struct Work {
    changes: u64,
    full: u64,
    moves: u64,
}

/// A client that changes keys of its own: puts, removes, and extents where there are any.
struct Worker {
    bench: Bench,
    client: TestClient,
    extents: Extents,
    rng: Rng,
    number: u64,
    keys: u64,
    done: Work,
}

impl Worker {
    fn new(bench: &Bench, number: u64, keys: u64) -> Worker {
        let client = bench.client(number as u16);
        let extents = Extents::new(&bench.table, client.client.owner());
        Worker { bench: bench.clone(), client, extents, rng: Rng(number), number, keys, done: Work::default() }
    }

    fn change_one(&mut self) {
        let key = key(&self.bench, self.rng.below(self.keys) * 16 + self.number);
        let changed = match self.rng.below(12) {
            0 => self.client.change(&key, Change::Remove),
            1..=5 if self.bench.table.config().format.has_extents() => {
                let value = vec![self.number as u8; 65 + self.rng.below(3000) as usize];
                let put = put_extent(&mut self.extents, &mut self.client, &key, &value);
                self.done.full += u64::from(put.is_none());
                return;
            }
            _ => self.client.put(&key, &value(&self.bench, self.done.changes)),
        };
        match changed {
            Ok(_) => self.done.changes += 1,
            Err(Error::Full { .. }) => self.done.full += 1,
            Err(error) => panic!("{error}"),
        }
        self.done.moves = self.client.client.counters().moves;
    }
}

fn work(bench: &Bench, number: u64, keys: u64, stop: &AtomicBool) -> Work {
    let mut worker = Worker::new(bench, number, keys);
    while !stop.load(Ordering::Relaxed) {
        worker.change_one();
    }
    worker.done
}

/// However the table changes between any two words the checker reads, it finds no problem that is not there; and one
/// that is there it finds all the same.
#[test]
fn changes_between_any_two_words_are_no_problems() {
    for (preset, format) in [(Preset::Hardened, "fixed:8:8"), (Preset::Tiny, "fixed:4:4"), (Preset::Tiny, "bytes:64")] {
        let bench = Bench::of_rows(preset, format, 64, Profile::Tcp, 5);
        let keys = bench.table.config().slots() * 80 / 100;
        let mut worker = Worker::new(&bench, 1, keys);
        (0..keys * 4).for_each(|_| worker.change_one());
        let mut rng = Rng(77);
        let hook = move |_| {
            if rng.below(4) == 0 {
                worker.change_one();
            }
            Next::Continue
        };
        let mut lane = bench.region.lane().hooked(Box::new(hook));
        let (mut looks, options) = (0, CheckOptions::default());
        for _ in 0..20 {
            let mut show = |progress: Progress| looks += u64::from(progress.stage == Stage::Suspects);
            let checked = check_table(&mut lane, &bench.table, &options, &mut show);
            let report = block_on(checked).unwrap();
            assert_clean(&report, format);
            assert!(report.counts.entries > 0 && report.counts.unverified_rows == 0);
        }
        println!("{preset} {format}: {looks} second looks");
        assert!(looks > 0, "{preset} {format}: the changes met no READ");
        let row = SOME_ROW;
        craft(&bench, row, |rows, words| words[rows.trailer_word()] |= 1 << 32);
        let report = block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ())).unwrap();
        let problems: Vec<_> = report.problems.iter().map(|problem| (problem.kind, problem.place.clone())).collect();
        assert_eq!(problems, [(ProblemKind::RowLevel, row.to_string())], "{preset} {format}");
    }
}

/// A table that others work on has no problem, however often it is checked; and damage is still found.
#[test]
fn busy_tables_have_no_false_problems() {
    for (preset, format, profile) in [
        (Preset::Hardened, "fixed:8:8", Profile::Shm),
        (Preset::Tiny, "fixed:4:4", Profile::Tcp),
        (Preset::Tiny, "bytes:64", Profile::Shm),
        (Preset::Hardened, "bytes:24", Profile::Rxe),
    ] {
        let bench = Bench::of_rows(preset, format, 64, profile, 5);
        let stop = AtomicBool::new(false);
        let keys = bench.table.config().slots() * 90 / 100 / 3;
        std::thread::scope(|scope| {
            let start = |worker| {
                let (bench, stop) = (bench.clone(), &stop);
                scope.spawn(move || work(&bench, worker, keys, stop))
            };
            let workers: Vec<_> = (0..3).map(start).collect();
            let busy = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check_while_busy(&bench, format)));
            stop.store(true, Ordering::Relaxed);
            for worker in workers {
                println!("{preset} {format} {profile}: {:?}", worker.join().expect("the worker's"));
            }
            assert!(busy.is_ok(), "{preset} {format} {profile}");
        });
        assert_clean(&check(&bench, Quiet::NobodyWorks), "afterwards");
    }
}

fn check_while_busy(bench: &Bench, format: &str) {
    let (mut looked_again, mut entries, mut checks) = (0, 0, 0);
    let started = std::time::Instant::now();
    while checks < 20 || started.elapsed().as_millis() < 1500 {
        let mut show = |progress: Progress| looked_again += u64::from(progress.stage == Stage::Suspects);
        let options = CheckOptions { quiet: Quiet::OthersWork, problem_limit: 50, ..CheckOptions::default() };
        let report =
            block_on(check_table(&mut bench.region.lane(), &bench.table, &options, &mut show)).expect("a check");
        assert_clean(&report, format);
        entries = entries.max(report.counts.entries);
        let stats = block_on(table_stats(&mut bench.region.lane(), &bench.table)).expect("a count");
        assert_eq!(stats.unverified_rows, 0);
        checks += 1;
    }
    println!("{format}: {checks} checks, {looked_again} second looks, up to {entries} entries");
    assert!(entries > 0);
    // A slot that nobody uses.
    set_slot(bench, 20, 0x7f);
    let kinds: Vec<_> = check(bench, Quiet::OthersWork).problems.iter().map(|problem| problem.kind).collect();
    set_slot(bench, 20, 0);
    assert_eq!(kinds, [ProblemKind::SlotWord]);
}
