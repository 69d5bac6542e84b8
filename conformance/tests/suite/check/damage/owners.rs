//! Damage to everything that names its owner: locks, client slots, and the records in them.

use guira_check::ProblemKind;
use guira_conformance::Bench;
use guira_layout::{LockId, OwnerId, Record, RowId, SlotState, SlotWord};

use super::Damage;
use crate::check::table::{SOME_ROW, xor};

pub const DAMAGES: &[Damage] = &[
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

/// Damage that is a problem only while no client works.
pub const EXCLUSIVE_ONLY: &[Damage] = &[
    (ProblemKind::StuckLock, "of a client in use", |bench| hold_lock(bench, 3, 3)),
    (ProblemKind::UnfinishedCommit, "of a client in use", |bench| seal_record(bench, SOME_ROW)),
    (ProblemKind::UnfinishedRecovery, "begun", |bench| {
        set_slot(bench, 20, SlotWord { state: SlotState::Recovering, generation: 4 }.encode());
    }),
];

fn seal_record(bench: &Bench, row: RowId) {
    let (rows, words) = (bench.table.rows(), bench.row_words(RowId(0)));
    let mut record = Record::default();
    record.clear();
    record.push(rows, row, 0, &words);
    record.seal(rows.sums(), 7);
    let slot = bench.table.geometry().slot(2);
    bench.store(slot.add_words(Record::WORD as u64), record.words());
}

pub fn set_slot(bench: &Bench, slot: u16, word: u64) {
    bench.store(bench.table.geometry().slot(slot), &[word]);
}

pub fn hold_lock(bench: &Bench, lock: u64, owner: u16) {
    let locks = bench.table.locks();
    let mask = locks.mask(LockId(lock));
    xor(bench, locks.addr(mask.word), locks.held(OwnerId(owner), mask.mask));
}
