//! Damage to extents and to the chunks they lie in.

use guira_check::ProblemKind;
use guira_conformance::Bench;
use guira_fabric::Addr;
use guira_layout::{ChunkState, ChunkWord, EntryKind, ExtentClass, ExtentRef, OwnerId, encode_extent};

use super::Damage;
use super::entries::{copy_entry, extent_at, extent_entry, other_row};
use crate::check::table::{forge, xor};

pub const DAMAGES: &[Damage] = &[
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
        bench.store(Addr::main(mark), &[extent.generation.0]);
    }),
    (ProblemKind::ExtentReplaced, "another generation", |bench| {
        xor(bench, Addr::main(extent_at(bench, extent_entry(bench)).offset), 1);
    }),
    (ProblemKind::ExtentTorn, "its lengths", |bench| {
        xor(bench, Addr::main(extent_at(bench, extent_entry(bench)).offset), 1 << 48);
    }),
    (ProblemKind::ExtentTorn, "its checksum", |bench| {
        xor(bench, Addr::main(extent_at(bench, extent_entry(bench)).offset + 8), 1);
    }),
    (ProblemKind::ExtentTorn, "its value", |bench| {
        xor(bench, Addr::main(extent_at(bench, extent_entry(bench)).offset + 64), 1 << 63);
    }),
    (ProblemKind::ExtentDigest, "another key", |bench| {
        let extent = extent_at(bench, extent_entry(bench));
        let (key, value) = (vec![0xee; extent.key_bytes as usize], vec![1; extent.value_bytes as usize]);
        let mut words = Vec::new();
        encode_extent(&mut words, &extent, &key, &value, bench.table.rows().sums());
        bench.store(Addr::main(extent.offset), &words);
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

pub const OF_CHUNKS: &[Damage] = &[
    (ProblemKind::ChunkWord, "no state", |bench| bench.store(bench.table.geometry().chunk_word(40), &[9])),
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
    (ProblemKind::ChunkOwner, "unowned", |bench| {
        set_chunk(bench, 40, ChunkState::Owned { owner: OwnerId(0), class: ExtentClass::Run(1) });
    }),
    (ProblemKind::ChunkOwner, "no client's", |bench| {
        set_chunk(bench, 40, ChunkState::Owned { owner: OwnerId(5000), class: ExtentClass::Run(1) });
    }),
    (ProblemKind::ChunkOwner, "unclaimed", |bench| {
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
];

fn change_extent(bench: &Bench, change: impl FnOnce(&mut ExtentRef)) {
    let at = extent_entry(bench);
    let mut extent = extent_at(bench, at);
    change(&mut extent);
    let mut entry = vec![0; bench.table.rows().entry_words()];
    bench.table.rows().encode_extent_entry(&mut entry, &extent);
    forge(bench, at.0, |rows, words| rows.put_entry(words, at.1, &entry, EntryKind::Extent));
}

fn set_chunk(bench: &Bench, chunk: u64, state: ChunkState) {
    bench.store(bench.table.geometry().chunk_word(chunk), &[ChunkWord::encode(state).0]);
}
