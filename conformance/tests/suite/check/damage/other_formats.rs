//! Damage that `bytes:64` in `hardened` cannot have.

use std::collections::HashSet;

use guira_check::{Concurrency, ProblemKind};
use guira_conformance::{Bench, growing};
use guira_fabric::Profile;
use guira_layout::{LockId, Preset, RowFormat};

use super::entries::{copy_entry, inline_entry};
use super::kinds_after;
use crate::check::table::{SOME_ROW, filled, forge, xor};

/// A kind of damage to a table of another preset and format.
type DamageElsewhere = (ProblemKind, Preset, &'static str, fn(&Bench));

/// Damage that `bytes:64` in `hardened` cannot have.
pub fn provoke(concurrency: Concurrency, provoked: &mut HashSet<ProblemKind>) {
    let cases: [DamageElsewhere; 7] = [
        (ProblemKind::PaddingNotZero, Preset::Hardened, "fixed:8:56", |bench| {
            forge(bench, SOME_ROW, |rows, words| words[rows.trailer_word() - 1] = 1);
        }),
        (ProblemKind::EntryPadding, Preset::Hardened, "fixed:5:0", |bench| {
            let (row, slot) = inline_entry(bench);
            forge(bench, row, |rows, words| words[slot * rows.entry_words()] |= 1 << 63);
        }),
        (ProblemKind::TypeBits, Preset::Tiny, "fixed:4:4", |bench| {
            let (row, slot) = inline_entry(bench);
            forge(bench, row, |rows, words| words[rows.trailer_word()] |= 1 << (50 + slot));
        }),
        (ProblemKind::LockBits, Preset::Tiny, "fixed:8:8", |bench| {
            let locks = bench.table.locks();
            let (last, addr) = (locks.mask(LockId(locks.locks())), locks.addr(locks.words() - 1));
            assert_eq!(last.word, locks.words() - 1, "the last word has room");
            xor(bench, addr, last.mask & 0xff << last.mask.trailing_zeros());
        }),
        (ProblemKind::SegmentMap, Preset::Hardened, "fixed:8:8", |bench| {
            // Its rows have depth 1, as it was created.
            bench.store(bench.table.geometry().map_word(1), &[4]);
        }),
        (ProblemKind::RowVersion, Preset::Paper, "fixed:8:8", |bench| {
            let mut superblock = bench.table.superblock().clone();
            superblock.config.version_bits = 32;
            let mut words = bench.row_words(SOME_ROW);
            words[bench.table.rows().trailer_word()] |= 1 << 8;
            RowFormat::new(&superblock).finish(SOME_ROW, &mut words);
            bench.store(bench.table.geometry().row(SOME_ROW), &words);
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
            ProblemKind::SegmentMap => growing_table(),
            _ => filled(preset, format, Profile::Tcp).0,
        };
        let kinds = kinds_after(&bench, damage, concurrency);
        assert_eq!(kinds, [kind]);
        provoked.insert(kind);
    }
}

/// Creates a table whose lock table does not fill its last word.
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

/// Creates a table that grows, with 3 segments.
fn growing_table() -> Bench {
    let whole = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, Profile::Tcp, 3);
    Bench::of_config(growing(whole.table.config().clone(), 3, 64), Profile::Tcp, 3)
}
