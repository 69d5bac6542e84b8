//! Damage to the superblock and to rows.

use guira_check::ProblemKind;
use guira_fabric::Addr;
use guira_layout::{GENERATION_WORD, RowId, STATE_WORD, Superblock, TableState};

use super::Damage;
use super::entries::free_slot;
use crate::check::table::{SOME_ROW, forge, xor};

pub const DAMAGES: &[Damage] = &[
    (ProblemKind::SuperblockDamaged, "a flipped bit", |bench| xor(bench, Addr::main(8 * 8), 1 << 20)),
    (ProblemKind::SuperblockDamaged, "an unknown state", |bench| xor(bench, Addr::main(STATE_WORD as u64 * 8), 1)),
    (ProblemKind::SuperblockDamaged, "zeros", |bench| bench.store(Addr::main(0), &[0; 64])),
    (ProblemKind::SuperblockReplaced, "another incarnation", |bench| {
        let superblock = Superblock { incarnation: 1, ..bench.table.superblock().clone() };
        bench.store(Addr::main(0), &superblock.encode());
    }),
    (ProblemKind::TableDestroyed, "destroyed", |bench| {
        bench.store(Addr::main(STATE_WORD as u64 * 8), &[TableState::Destroyed.encode()]);
    }),
    (ProblemKind::TableDestroyed, "a destroyed row", |bench| {
        let trailer = bench.table.geometry().trailer(RowId(5), bench.table.rows());
        bench.store(trailer, &guira_layout::DESTROYED_TRAILER);
    }),
    (ProblemKind::GenerationCounter, "no generation", |bench| {
        bench.store(Addr::main(GENERATION_WORD as u64 * 8), &[0])
    }),
    (ProblemKind::GenerationCounter, "a generation too far", |bench| {
        xor(bench, Addr::main(GENERATION_WORD as u64 * 8), 1 << 60);
    }),
    (ProblemKind::RowTorn, "a flipped bit", |bench| xor(bench, bench.table.geometry().row(SOME_ROW), 1)),
    (ProblemKind::RowTorn, "a zeroed row", |bench| {
        bench.store(bench.table.geometry().row(SOME_ROW), &vec![0; bench.table.rows().row_words()]);
    }),
    (ProblemKind::RowTorn, "a misdirected row", |bench| {
        bench.store(bench.table.geometry().row(SOME_ROW), &bench.row_words(RowId(6)));
    }),
    (ProblemKind::RowLevel, "a level", |bench| {
        forge(bench, SOME_ROW, |rows, words| words[rows.trailer_word()] |= 1 << 32);
    }),
    (ProblemKind::OccupancyBits, "entry 13 of 6", |bench| {
        forge(bench, SOME_ROW, |rows, words| words[rows.trailer_word()] |= 1 << 49);
    }),
    (ProblemKind::TypeBits, "type of entry 9 of 6", |bench| {
        forge(bench, SOME_ROW, |rows, words| words[rows.trailer_word()] |= 1 << 59);
    }),
    (ProblemKind::TypeBits, "entry 14 of 6 was replaced", |bench| {
        let (rows, mut words) = (bench.table.rows(), bench.row_words(SOME_ROW));
        words[rows.trailer_word()] |= 0xf << 60;
        rows.rewrite_checksum(SOME_ROW, &mut words);
        bench.store(bench.table.geometry().row(SOME_ROW), &words);
    }),
    (ProblemKind::TypeBits, "a free entry was replaced", |bench| {
        let (rows, mut words) = (bench.table.rows(), bench.row_words(SOME_ROW));
        rows.finish_replaced(SOME_ROW, &mut words, free_slot(bench, SOME_ROW));
        bench.store(bench.table.geometry().row(SOME_ROW), &words);
    }),
    (ProblemKind::TypeBits, "type of a free entry", |bench| {
        let slot = free_slot(bench, SOME_ROW);
        forge(bench, SOME_ROW, |rows, words| words[rows.trailer_word()] |= 1 << (50 + slot));
    }),
    (ProblemKind::FreeEntryNotZero, "a remnant", |bench| {
        let slot = free_slot(bench, SOME_ROW);
        forge(bench, SOME_ROW, |rows, words| words[(slot + 1) * rows.entry_words() - 1] = 1);
    }),
];
