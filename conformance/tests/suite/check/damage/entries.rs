//! Damage to entries of rows that verify, and entries moved by hand.

use guira_check::ProblemKind;
use guira_conformance::{Bench, Extents};
use guira_layout::{EntryKind, ExtentRef, OwnerId, RowId};

use super::Damage;
use crate::check::table::{entry_of, forge, key, write_extent};

pub const DAMAGES: &[Damage] = &[
    (ProblemKind::EntryLengths, "a key too long", |bench| {
        let (row, slot) = inline_entry(bench);
        forge(bench, row, |rows, words| words[slot * rows.entry_words()] |= 0xff00);
    }),
    (ProblemKind::EntryDigest, "a digest's bit", |bench| {
        let (row, slot) = inline_entry(bench);
        forge(bench, row, |rows, words| words[slot * rows.entry_words()] ^= 1 << 40);
    }),
    (ProblemKind::EntryPadding, "a byte behind the value", |bench| {
        let (row, slot) = inline_entry(bench);
        forge(bench, row, |rows, words| words[(slot + 1) * rows.entry_words() - 1] |= 1 << 63);
    }),
    (ProblemKind::EntryPadding, "a byte behind the lengths", |bench| {
        let (row, slot) = extent_entry(bench);
        forge(bench, row, |rows, words| words[(slot + 1) * rows.entry_words() - 1] |= 1);
    }),
    (ProblemKind::EntryMisplaced, "in the wrong row", |bench| {
        let at = inline_entry(bench);
        let rows = bench.table.placement().rows(bench.table.placement().digest(&key(bench, 3)));
        let wrong = (0..).map(RowId).find(|row| rows.other(*row).is_none()).expect("most rows");
        copy_entry(bench, at, wrong);
        forge(bench, at.0, |rows, words| rows.clear_entry(words, at.1));
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
        forge(bench, to, |rows, words| rows.put_entry(words, slot, &entry, EntryKind::Extent));
    }),
    (ProblemKind::DuplicateKey, "an extent and inline", |bench| {
        let at = extent_entry(bench);
        let (key, rows) = (key(bench, 1001), bench.table.rows());
        let mut entry = vec![0; rows.entry_words()];
        rows.encode_inline(&mut entry, &rows.probe(&key, bench.table.placement().digest(&key)), b"inline");
        let slot = free_slot(bench, at.0);
        forge(bench, at.0, |rows, words| rows.put_entry(words, slot, &entry, EntryKind::Inline));
    }),
];

pub fn extent_entry(bench: &Bench) -> (RowId, usize) {
    entry_of(bench, &key(bench, 1001))
}

pub fn extent_at(bench: &Bench, (row, slot): (RowId, usize)) -> ExtentRef {
    bench.table.rows().extent_of(&bench.row_words(row), slot)
}

pub fn inline_entry(bench: &Bench) -> (RowId, usize) {
    entry_of(bench, &key(bench, 3))
}

pub fn free_slot(bench: &Bench, row: RowId) -> usize {
    bench.table.rows().free_entry(&bench.row_words(row)).expect("the table is nearly empty")
}

/// Copies an entry into the first free slot of a row.
pub fn copy_entry(bench: &Bench, (from, slot): (RowId, usize), to: RowId) {
    let (words, free) = (bench.row_words(from), free_slot(bench, to));
    let (entry, placement) = (bench.table.rows().entry(&words, slot), bench.table.rows().entry_kind(&words, slot));
    forge(bench, to, |rows, words| rows.put_entry(words, free, entry, placement));
}

pub fn other_row(bench: &Bench, i: u64, row: RowId) -> RowId {
    let placement = bench.table.placement();
    placement.rows(placement.digest(&key(bench, i))).other(row).expect("one of the key's rows")
}
