//! Every kind of damage, each in a table of its own, and the problem that a check reports for it.

mod entries;
mod extents;
mod other_formats;
mod owners;
mod rows;

use std::collections::HashSet;

use guira_check::{CheckOptions, Concurrency, ProblemKind, check_table, table_stats};
use guira_conformance::{Bench, block_on};
use guira_fabric::{Profile, Region, SplitMix64};
use guira_layout::{Preset, RowId};

use crate::check::table::{FORMATS, assert_clean, check, filled, xor};
use owners::hold_lock;
pub use owners::set_slot;

/// A kind of damage: the problem that a check must report, a name, and a function that damages a table of `bytes:64`.
pub type Damage = (ProblemKind, &'static str, fn(&Bench));

/// [R-ROW-1] [R-ROW-3] [R-HASH-1] [R-EXTENT-2] [R-EXTENT-3] [R-EXTENT-4] [R-LOCK-1] [R-SLOT-1] Every kind of problem is
/// reported correctly, by the first check and by later ones.
#[test]
fn every_kind_of_damage_is_reported() {
    for concurrency in [Concurrency::Exclusive, Concurrency::Shared] {
        let mut provoked = HashSet::new();
        for damages in [rows::DAMAGES, entries::DAMAGES, extents::DAMAGES, extents::OF_CHUNKS, owners::DAMAGES] {
            provoke(damages, concurrency, &mut provoked);
        }
        other_formats::provoke(concurrency, &mut provoked);
        let mut exclusive_only: HashSet<ProblemKind> =
            owners::EXCLUSIVE_ONLY.iter().map(|(kind, _, _)| *kind).collect();
        if concurrency == Concurrency::Exclusive {
            provoke(owners::EXCLUSIVE_ONLY, concurrency, &mut provoked);
            exclusive_only.clear();
        }
        let missing: Vec<_> = ProblemKind::ALL.iter().filter(|kind| !provoked.contains(kind)).collect();
        assert!(
            missing.iter().all(|kind| exclusive_only.contains(kind)),
            "{concurrency:?}: {missing:?} were not provoked"
        );
    }
    for (kind, name, damage) in owners::EXCLUSIVE_ONLY {
        let (bench, _client) = filled(Preset::Hardened, "bytes:64", Profile::Shm);
        assert_eq!(
            kinds_after(&bench, *damage, Concurrency::Shared),
            [],
            "{kind:?}, {name}: others may be about to end it"
        );
    }
}

#[test]
fn one_bit_locks_are_stuck_only_on_an_idle_table() {
    let (bench, _client) = filled(Preset::Paper, "fixed:8:8", Profile::Shm);
    let hold: fn(&Bench) = |bench| hold_lock(bench, 3, 1);
    assert_eq!(kinds_after(&bench, hold, Concurrency::Exclusive), [ProblemKind::StuckLock]);
    assert_eq!(kinds_after(&bench, |_| (), Concurrency::Shared), []);
}

#[test]
fn reports_keep_as_many_problems_as_asked() {
    let (bench, _client) = filled(Preset::Tiny, "fixed:8:8", Profile::Shm);
    for row in 0..128 {
        xor(&bench, bench.table.geometry().row(RowId(row)), 1);
    }
    for concurrency in [Concurrency::Exclusive, Concurrency::Shared] {
        let options = CheckOptions { concurrency, problem_limit: 5, ..CheckOptions::default() };
        let report = block_on(check_table(&mut bench.region.lane(), &bench.table, &options, &mut |_| ())).unwrap();
        assert_eq!((report.problems.len(), report.problems_total), (5, 128));
        assert_eq!((report.counts.unverified_rows, report.counts.entries), (128, 0));
    }
    let stats = block_on(table_stats(&mut bench.region.lane(), &bench.table)).unwrap();
    assert_eq!((stats.unverified_rows, stats.entries), (128, 0));
}

/// [R-ROW-1] A single flipped bit anywhere in a row is always reported, with its row, and no other problem is.
#[test]
fn every_flipped_bit_of_a_row_is_reported() {
    let seed = 20_250_611;
    println!("seed {seed}");
    let mut rng = SplitMix64(seed);
    for preset in Preset::ALL {
        for format in FORMATS {
            let (bench, _client) = filled(preset, format, Profile::Shm);
            for _ in 0..150 {
                let row = RowId(rng.below(128));
                let at = bench.table.geometry().row(row).add_words(rng.below(bench.table.rows().row_words() as u64));
                let bit = 1 << rng.below(64);
                xor(&bench, at, bit);
                let report = check(&bench, Concurrency::Exclusive);
                assert_eq!(report.problems_total, 1, "{preset} {format}: {row}, {at}, bit {bit:#x}");
                assert_eq!(
                    (report.problems[0].kind, &report.problems[0].place),
                    (ProblemKind::RowTorn, &row.to_string())
                );
                xor(&bench, at, bit);
            }
            assert_clean(&check(&bench, Concurrency::Exclusive), format);
        }
    }
}

/// Applies `damage`, and returns the kinds of problems that the check reports, including what dead clients left.
fn kinds_after(bench: &Bench, damage: fn(&Bench), concurrency: Concurrency) -> Vec<ProblemKind> {
    damage(bench);
    let report = check(bench, concurrency);
    assert_eq!(report.problems.len() as u64, report.problems_total.min(50));
    let all = report.problems.iter().chain(&report.under_way);
    all.inspect(|problem| println!("  {problem}")).map(|problem| problem.kind).collect()
}

/// Tries each damage in a table and a thread of its own, because a repeated check mostly waits.
fn provoke(damages: &[Damage], concurrency: Concurrency, provoked: &mut HashSet<ProblemKind>) {
    std::thread::scope(|scope| {
        for (kind, name, damage) in damages {
            scope.spawn(move || {
                let (bench, _client) = filled(Preset::Hardened, "bytes:64", Profile::Shm);
                let kinds = kinds_after(&bench, *damage, concurrency);
                assert!(kinds.contains(kind), "{kind:?}, {name}: {kinds:?}");
            });
        }
    });
    provoked.extend(damages.iter().map(|(kind, _, _)| *kind));
}
