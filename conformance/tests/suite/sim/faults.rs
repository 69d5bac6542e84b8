//! Runs with faults: no answer is wrong, and dead clients leave only what is documented.

use guira_check::ProblemKind;
use guira_conformance::block_on;
use guira_fabric::{Profile, Region};
use guira_fabric_sim::{Fault, Hazard, NodeEvent, Stopped};
use guira_layout::{Preset, RowId, SuperblockError};
use guira_rcuckoo::{TableError, open_table};

use crate::sim::scenario::{Flips, Run, Scenario, Tally};

/// Returns the seeds of each test on each network: many times as many with `GUIRA_LONG=1`.
fn seeds() -> std::ops::Range<u64> {
    if guira_testing::is_long() { 0..2_000 } else { 0..24 }
}

/// Runs a scenario for each network and seed, and adds up their counts.
fn runs(profiles: &[Profile], hazards: &[Hazard], mut judge: impl FnMut(Run)) -> Tally {
    let mut total = Tally::default();
    for profile in profiles {
        for seed in seeds() {
            let preset = if seed % 2 == 0 { Preset::Hardened } else { Preset::Tiny };
            let run = Scenario::new(preset, *profile, seed).with(hazards).run();
            assert_eq!(run.stopped, Stopped::Ended, "{profile}, seed {seed}");
            assert_eq!(run.tally.wrong, 0, "{profile}, seed {seed}");
            total = total.plus(run.tally);
            judge(run);
        }
    }
    println!("{total:?}");
    total
}

/// [R-READ-1] [R-READ-3] [R-UPDATE-1] Clients that stall, batches that arrive late or in parts, and verbs that are
/// executed in any order the network allows cause no wrong answer.
#[test]
fn a_slow_reordering_network_breaks_nothing() {
    let total = runs(&Profile::ALL, &Hazard::HARMLESS, |mut run| run.assert_sound());
    assert!(total.row_retries > 100, "no lookup met a row being written");
}

/// [R-LOCK-4] [R-COMMIT-1] Clients that die leave their locks: others get `Busy` at their deadline and never a wrong
/// answer, and the checker finds nothing but what these locks guard. Without such locks it finds nothing.
#[test]
fn dead_clients_leave_only_their_locks() {
    let hazards = [&Hazard::HARMLESS[..], &[Hazard::Death]].concat();
    let (mut deaths, mut sound, mut stuck, mut guarded) = (0, 0, 0, 0);
    let total = runs(&Profile::ALL, &hazards, |mut run| {
        deaths += run.dead.len();
        let planned = run.plan.clients.iter().filter(|fault| matches!(fault.fault, Fault::Die { .. })).count();
        assert!(run.dead.len() <= planned);
        let (busy, corrupt) = run.assert_answers();
        assert_eq!(corrupt, 0);
        let report = run.check();
        if run.bench.lock_words().is_empty() {
            sound += 1;
            assert!(report.is_clean() && busy == 0, "{:#?}", report.problems);
            return;
        }
        stuck += 1;
        let (locks, words) = (run.bench.table.locks(), run.bench.lock_words());
        let held: Vec<_> = words.iter().flat_map(|(word, value)| locks.all_held(*word, *value)).collect();
        for problem in &report.problems {
            use ProblemKind::{DuplicateKey, RowTorn, StuckLock, UnfinishedCommit};
            assert!(matches!(problem.kind, StuckLock | UnfinishedCommit | RowTorn | DuplicateKey), "{problem}");
            if matches!(problem.kind, RowTorn | DuplicateKey) {
                let row = problem.place.rsplit(' ').next().and_then(|row| row.parse().ok());
                let lock = locks.lock_of(RowId(row.expect("the place ends in the row's number")));
                assert!(held.iter().any(|(held, _)| *held == lock), "{problem}, although {lock} is free");
                guarded += 1;
            }
        }
    });
    println!("{deaths} deaths; {sound} tables without locks, {stuck} with; {guarded} problems of rows");
    assert!(deaths > 50 && sound > 10 && stuck > 10 && guarded > 0 && total.busy > 10);
}

/// [R-DROP-2] Clients whose connection breaks do not know the outcome of their last change, and stop; other clients
/// read right values.
#[test]
fn lost_connections_only_make_outcomes_unknown() {
    let hazards =
        [&[Hazard::Disconnection, Hazard::Stall, Hazard::Split, Hazard::Swap][..], &Hazard::QUEUE_PAIR].concat();
    let total = runs(&Profile::REMOTE, &hazards, |mut run| assert_eq!(run.assert_answers().1, 0));
    assert!(total.cut_off > 20, "{total:?}");
}

/// [R-OPEN-1] A memory node that restarts empty answers its old clients with errors, never with misses, and new ones
/// find no table.
#[test]
fn a_restarted_empty_node_holds_no_table() {
    let mut restarts = 0;
    let total = runs(&Profile::REMOTE, &[Hazard::Restart, Hazard::Stall], |mut run| {
        if !run.plan.node.iter().any(|fault| fault.fault == NodeEvent::Restart) {
            return run.assert_sound();
        }
        restarts += 1;
        let opened = block_on(open_table(&mut run.bench.region.lane(), run.bench.region.main_bytes()));
        assert!(matches!(opened, Err(TableError::Superblock(SuperblockError::Empty))), "{opened:?}");
    });
    assert!(restarts > 10 && total.cut_off > 100, "{restarts} {total:?}");
}

/// [R-ROW-1] [R-READ-1] Flipped bits in rows are detected, and the damaged values are never returned.
#[test]
fn flipped_bits_are_never_returned() {
    let total = runs(&Profile::ALL, &[Hazard::Flip, Hazard::Stall, Hazard::Split], |mut run| {
        run.assert_answers();
    });
    assert!(total.corrupt > 100, "{total:?}");
}

/// Flipped bits in lock words lock rows without an owner or let two clients in, which loses changes; but no lookup
/// finds a value that was never given to its key, and the checker finds every lock that is left.
#[test]
fn flipped_lock_bits_create_no_values() {
    let (mut left, mut wrong) = (0, 0);
    for seed in seeds() {
        let scenario = Scenario::new(Preset::Hardened, Profile::Mlx5, seed).with(&[Hazard::Flip, Hazard::Split]);
        let run = Scenario { flips: Flips::Locks, ..scenario }.run();
        assert_eq!((run.stopped, run.tally.invented), (Stopped::Ended, 0), "seed {seed}");
        wrong += run.tally.wrong;
        let kinds: Vec<ProblemKind> = run.check().problems.iter().map(|problem| problem.kind).collect();
        if !run.bench.lock_words().is_empty() {
            left += 1;
            let of_locks = [ProblemKind::StuckLock, ProblemKind::LockPoisoned, ProblemKind::LockBits];
            assert!(kinds.iter().any(|kind| of_locks.contains(kind)), "seed {seed}: {kinds:?}");
        }
    }
    println!("{left} tables with locks left, {wrong} wrong answers");
    assert!(left > 3);
}

/// Equal seeds give equal runs, whatever faults they have.
#[test]
fn equal_seeds_give_equal_faults() {
    for profile in Profile::ALL {
        for seed in 0..6 {
            let scenario = Scenario::new(Preset::Hardened, profile, seed).with(&Hazard::ALL);
            let (one, other) = (scenario.run(), scenario.run());
            assert_eq!(one.log_hash, other.log_hash, "{profile}, seed {seed}");
            assert_eq!(
                (one.tally, one.dead, one.plan),
                (other.tally, other.dead, other.plan),
                "{profile}, seed {seed}"
            );
        }
    }
}
