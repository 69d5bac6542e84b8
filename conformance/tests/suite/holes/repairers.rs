//! Holes of several repairers after one death, which interfere with each other, or with other clients: H7, H8, H9.

use guira_conformance::{Actors, NextStep, Op};
use guira_layout::{LockId, Preset, RowId};

use crate::holes::forged::{Forged, PRESETS, WHOLE, changed, config_of, takes_over, update, value, wrong};

/// H7: repair clears a lock that changed hands since its holder was suspected, because the lock does not name its
/// holder. [R-REPAIR-5] [R-REPAIR-8] [R-RECOVER-3]
#[test]
fn h07_repair_clears_a_lock_that_changed_hands() {
    for preset in PRESETS {
        let forged = Forged::new(preset, RowId(2), RowId(7));
        let [dead_key, first, second] = [0, 1, 2].map(|i| &forged.home[i]);
        let mut actors = Actors::new(&forged.bench, WHOLE);
        let dead = actors.start(0, forged.config(), update(dead_key, 1));
        assert!(actors.run_until(dead, |step| step.writes_row(&forged.bench)));
        actors.kill(dead);
        let one = actors.start(1, forged.config(), update(first, 1));
        assert!(actors.run_until(one, takes_over));
        // The other client repairs first, takes the lock, and is about to write when the first one gets the lease.
        let other = actors.start(2, forged.config(), update(second, 2));
        let has_repaired = actors.run_until(other, |step| step.writes_row(&forged.bench));
        let (ones, met) = actors.finish(one);
        let (others, _) = actors.finish(other);
        let violated = wrong(&forged, &[(first, &changed(&ones[0], 1)), (second, &changed(&others[0], 2))]);
        println!("{preset}: {violated:?}");
        assert_eq!(has_repaired, preset == Preset::Paper, "only there two can repair one client at once");
        assert_eq!(met.repair_state_4, u64::from(preset == Preset::Paper));
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}

/// Lets an insert die that has copied `moved` to its other row, and not overwritten it in the first: it stands twice.
fn die_in_a_move(forged: &Forged, actors: &mut Actors) {
    let dead = actors.start(0, forged.config(), vec![Op::Insert(forged.missing.clone(), value(5))]);
    assert!(actors.run_until(dead, |step| step.writes_row(&forged.bench)), "the row it moves an entry to");
    actors.step(dead);
    assert!(actors.run_until(dead, |step| step.writes_row(&forged.bench)), "the row it moves an entry from");
    actors.kill(dead);
}

/// H8: to remove a copy, repair writes the key's other row, whose lock it does not hold, and reverts what the next
/// holder of that lock wrote in the meantime. [R-REPAIR-7] [R-RECOVER-3]
#[test]
fn h08_repair_writes_a_row_whose_lock_it_does_not_hold() {
    for preset in PRESETS {
        // The rows are under locks 0 and 1.
        let forged = Forged::new(preset, RowId(14), RowId(19));
        let (at_home, away) = (&forged.home[0], &forged.away[0]);
        let mut actors = Actors::new(&forged.bench, WHOLE);
        die_in_a_move(&forged, &mut actors);
        let one = actors.start(1, forged.config(), update(at_home, 1));
        let other = actors.start(2, forged.config(), update(away, 2));
        // Each client repairs the lock it waits for. One has read both rows and is about to clear the copy in `away`.
        assert!(actors.run_until(one, |step| step.writes_row(&forged.bench)));
        let (others, met) = actors.finish(other);
        let (ones, _) = actors.finish(one);
        let violated = wrong(
            &forged,
            &[(at_home, &changed(&ones[0], 1)), (away, &changed(&others[0], 2)), (&forged.moved, &[Some(0)])],
        );
        println!("{preset}: {violated:?}");
        assert_eq!(met.repair_state_2, u64::from(preset == Preset::Paper));
        assert!(ones[0].is_ok());
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}

/// H9: a slow repairer loses its lease and continues: two clients repair at once. [R-REPAIR-4] [R-RECOVER-4]
#[test]
fn h09_a_slow_repairer_loses_its_lease() {
    for preset in PRESETS {
        let forged = Forged::new(preset, RowId(2), RowId(7));
        let (at_home, away) = (&forged.home[0], &forged.away[0]);
        let mut actors = Actors::new(&forged.bench, WHOLE);
        die_in_a_move(&forged, &mut actors);
        let slow = actors.start(1, forged.config(), update(at_home, 1));
        assert!(actors.run_until(slow, |step| step.writes_row(&forged.bench)), "it is about to clear the copy");
        let other = actors.start(2, forged.config(), update(away, 2));
        let (others, met) = actors.finish(other);
        let (slows, _) = actors.finish(slow);
        let violated = wrong(
            &forged,
            &[(at_home, &changed(&slows[0], 1)), (away, &changed(&others[0], 2)), (&forged.moved, &[Some(0)])],
        );
        println!("{preset}: {violated:?}");
        assert_eq!(met.revocations, u64::from(preset == Preset::Paper));
        assert!(slows[0].is_ok());
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}

/// Leases of one holder after which a lease word is what it was.
const ROUND: usize = 256;

/// H9: the counter of a lease wraps, so a holder that repaired 256 times looks like one that has not moved, and loses
/// its lease in the middle of the last repair. [R-REPAIR-3] [R-REPAIR-4] [R-RECOVER-4]
#[test]
fn h09_the_counter_of_a_lease_wraps() {
    for preset in PRESETS {
        let mut config = config_of(preset, 128);
        // There is one region, so one lease, for all locks.
        config.repair_regions = config.repair_regions.min(1);
        let forged = Forged::of_config(config, RowId(2), RowId(7));
        let (at_home, away) = (&forged.home[0], &forged.away[0]);
        let mut actors = Actors::new(&forged.bench, WHOLE);
        let far_key = far_key(&forged);
        die_in_a_move(&forged, &mut actors);
        // Others die with lock 6, one after the other, and one client is always the first to repair.
        let locks = forged.bench.table.locks();
        let far = locks.mask(LockId(6));
        let strand = |forged: &Forged| {
            let addr = locks.addr(far.word);
            let word = forged.bench.words_at(addr, 1)[0];
            let held = locks.held(guira_layout::OwnerId(9), far.mask);
            forged.bench.store(addr, &[word | if preset == Preset::Paper { held } else { 0 }]);
        };
        strand(&forged);
        let busy = actors.start(1, forged.config(), update(&far_key, 1));
        let has_lease = actors.run_until(busy, takes_over);
        actors.step(busy);
        // A client that waits for the first dead one sees the lease taken, and is then stopped for a while.
        let waiter = actors.start(2, forged.config(), update(away, 2));
        let sees_it = preset == Preset::Paper && sees_lease(&forged, &mut actors, waiter);
        for i in 2..=ROUND as u64 {
            assert!(actors.finish(busy).0[0].is_ok());
            strand(&forged);
            actors.continue_with(busy, update(&far_key, i));
        }
        assert!(actors.finish(busy).0[0].is_ok());
        // This is its 257th lease, whose word is that of the first: it repairs what the waiter waits for.
        actors.continue_with(busy, update(at_home, 1));
        assert!(actors.run_until(busy, |step| step.writes_row(&forged.bench)), "it is about to clear the copy");
        let (waiters, met) = actors.finish(waiter);
        let (busys, busy_met) = actors.finish(busy);
        let violated = wrong(
            &forged,
            &[(at_home, &changed(&busys[0], 1)), (away, &changed(&waiters[0], 2)), (&forged.moved, &[Some(0)])],
        );
        println!("{preset}: {} leases, {} revoked: {violated:?}", busy_met.leases, met.revocations);
        assert_eq!((has_lease, sees_it), (preset == Preset::Paper, preset == Preset::Paper));
        assert_eq!(met.revocations, u64::from(preset == Preset::Paper), "of a holder that was never slow");
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}

/// Returns a key under lock 6.
fn far_key(forged: &Forged) -> Vec<u8> {
    let table = &forged.bench.table;
    let is_under = |key: &Vec<u8>| {
        let pair = table.placement().rows(table.placement().digest(key));
        [pair.first, pair.second].iter().all(|row| table.locks().lock_of(*row) == LockId(6))
    };
    forged.bench.contents().expect("a table in order").into_keys().find(is_under).expect("a key of two near rows")
}

/// Lets `waiter` wait until it suspects the holder of its lock and has read the lease.
fn sees_lease(forged: &Forged, actors: &mut Actors, waiter: usize) -> bool {
    let lease = forged.bench.table.geometry().lease(0);
    let reads = |step: &NextStep| matches!(step, NextStep::Verb { addr, .. } if *addr == lease);
    actors.run_until(waiter, reads) && actors.run_until(waiter, |step| matches!(step, NextStep::Pause(_)))
}
