//! Holes of repair that takes the locks of a live client: H5, H6, H11.

use guira_conformance::{Actors, NextStep};
use guira_layout::{Preset, RowId};

use crate::holes::forged::{Forged, PRESETS, WHOLE, changed, config_of, update, wrong};

/// Two rows under lock 0.
const HOME: RowId = RowId(2);
const AWAY: RowId = RowId(7);

/// Stops a client at its `stop`th step in an update, for as long as another one waits for its lock; then it continues.
/// Returns what is wrong afterwards; `None` if it ended before.
fn stop_at(forged: &Forged, stop: usize) -> Option<Vec<String>> {
    let forged = forged.fork();
    let (first, second) = (&forged.home[0], &forged.home[1]);
    let mut actors = Actors::new(&forged.bench, WHOLE);
    let slow = actors.start(0, forged.config(), update(first, 1));
    for _ in 0..stop {
        actors.step(slow);
    }
    if actors.next_step(slow) == NextStep::Nothing {
        return None;
    }
    let other = actors.start(1, forged.config(), update(second, 2));
    let (others, _) = actors.finish(other);
    let (slows, _) = actors.finish(slow);
    Some(wrong(&forged, &[(first, &changed(&slows[0], 1)), (second, &changed(&others[0], 2))]))
}

/// H5: a client presumed dead writes rows after its locks were reclaimed, and reverts what others changed there.
/// [R-REPAIR-1] [R-RECOVER-1]
#[test]
fn h05_stale_write_after_reclaim() {
    for preset in PRESETS {
        let forged = Forged::new(preset, HOME, AWAY);
        let runs: Vec<_> = (0..).map_while(|stop| stop_at(&forged, stop)).collect();
        let violated: Vec<&String> = runs.iter().flatten().collect();
        println!(
            "{preset}: stopped at {} steps, {} acknowledged updates lost: {violated:?}",
            runs.len(),
            violated.len()
        );
        assert!(runs.len() >= 4, "lock, READ, WRITE, release");
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}

/// H6: a client presumed dead releases a lock that another client holds by now, and two are in the critical section.
/// [R-REPAIR-8] [R-LOCK-1]
#[test]
fn h06_stale_release() {
    for preset in PRESETS {
        let forged = Forged::new(preset, HOME, AWAY);
        let [first, second, third] = [0, 1, 2].map(|i| &forged.home[i]);
        let mut actors = Actors::new(&forged.bench, WHOLE);
        let slow = actors.start(0, forged.config(), update(first, 1));
        assert!(actors.run_until(slow, |step| step.writes_row(&forged.bench)));
        assert!(actors.run_until(slow, NextStep::is_lock), "its release is next");
        // This client reclaims the lock, and holds it when the slow one continues.
        let next = actors.start(1, forged.config(), update(second, 2));
        let has_reclaimed = actors.run_until(next, |step| step.writes_row(&forged.bench));
        let (slows, _) = actors.finish(slow);
        let third_one = actors.start(2, forged.config(), update(third, 3));
        let (thirds, _) = actors.finish(third_one);
        let (nexts, _) = actors.finish(next);
        let expected =
            [(first, changed(&slows[0], 1)), (second, changed(&nexts[0], 2)), (third, changed(&thirds[0], 3))];
        let expected: Vec<(&[u8], &[Option<u64>])> = expected.iter().map(|(key, to)| (&key[..], &to[..])).collect();
        let violated = wrong(&forged, &expected);
        println!("{preset}: {violated:?}");
        assert_eq!(has_reclaimed, preset == Preset::Paper);
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
        assert!(slows[0].is_ok() && thirds[0].is_ok());
    }
}

/// H11: an owner that never stops is declared dead, because the rows that its waiter watches are not those it writes:
/// both share a lock (here a virtual one). [R-REPAIR-1] [R-RECOVER-1]
#[test]
fn h11_live_owner_declared_dead() {
    for preset in PRESETS {
        let mut config = config_of(preset, 128);
        // Rows r and r + 64 share a lock.
        config.physical_locks /= 2;
        let forged = Forged::of_config(config, HOME, RowId(AWAY.0 + 64));
        assert_eq!(forged.bench.table.locks().lock_of(HOME), forged.bench.table.locks().lock_of(RowId(HOME.0 + 64)));
        let (busy_key, next_key, waiters_key) = (&forged.away[0], &forged.away[1], &forged.home[0]);
        let mut actors = Actors::new(&forged.bench, WHOLE);
        let busy = actors.start(0, forged.config(), update(busy_key, 1));
        assert!(actors.run_until(busy, |step| step.writes_row(&forged.bench)));
        let waiter = actors.start(1, forged.config(), update(waiters_key, 9));
        let (mut updates, mut acts) = (1, true);
        // Each time the waiter tries, the busy client happens to hold the lock. The busy client never waits.
        while acts && actors.next_step(waiter) != NextStep::Nothing {
            acts =
                actors.run_until(waiter, |step| matches!(step, NextStep::Pause(_)) || step.writes_row(&forged.bench));
            if !acts || actors.next_step(waiter).writes_row(&forged.bench) {
                break;
            }
            assert!(actors.finish(busy).0[0].is_ok());
            updates += 1;
            actors.continue_with(busy, update(busy_key, updates));
            assert!(actors.run_until(busy, |step| step.writes_row(&forged.bench)));
            actors.step(waiter);
        }
        // The waiter holds the lock now, or it is free, and a third client changes what the busy one is about to write.
        let has_reclaimed = acts;
        let (waiters, waiter_met) = actors.finish(waiter);
        let next = actors.start(2, forged.config(), update(next_key, 7));
        let nexts = actors.finish(next).0;
        let (_, busy_met) = actors.finish(busy);
        let changed_waiter = changed(&waiters[0], 9);
        let violated = wrong(
            &forged,
            &[(busy_key, &[Some(updates)]), (waiters_key, &changed_waiter), (next_key, &changed(&nexts[0], 7))],
        );
        println!("{preset}: after {updates} updates of the owner, {} suspicions: {violated:?}", waiter_met.suspicions);
        assert!(updates > 5, "the owner was busy all the while");
        assert_eq!(has_reclaimed, preset == Preset::Paper);
        assert_eq!(busy_met.reclaimed_locks, u64::from(preset == Preset::Paper));
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}
