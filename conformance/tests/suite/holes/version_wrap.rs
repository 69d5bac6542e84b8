//! H3: an 8-bit version wraps around within one timeout.

use guira_conformance::{Actors, NextStep};
use guira_layout::{Preset, RowId};

use crate::holes::forged::{Forged, PRESETS, WHOLE, changed, update, wrong};

/// The number of a row's versions, as printed.
const ROUND: u64 = 256;

/// H3: between any two tries of a waiter the row is updated 256 times, and so has the version, and the checksum, that
/// it had; its busy owner is presumed dead. [R-REPAIR-1] [R-ROW-2]
#[test]
fn h03_version_wraps_within_one_timeout() {
    for preset in PRESETS {
        let forged = Forged::new(preset, RowId(2), RowId(7));
        let [busy_key, next_key, waiters_key] = [0, 1, 2].map(|i| &forged.home[i]);
        let mut actors = Actors::new(&forged.bench, WHOLE);
        let busy = actors.start(0, forged.config(), update(busy_key, 1));
        assert!(actors.finish(busy).0[0].is_ok());
        let mut updates = 1;
        let mut busy_until = |actors: &mut Actors, updates_more: u64| {
            for _ in 1..updates_more {
                assert!(actors.finish(busy).0[0].is_ok());
                actors.continue_with(busy, update(busy_key, 1));
                updates += 1;
            }
            assert!(actors.finish(busy).0[0].is_ok());
            actors.continue_with(busy, update(busy_key, 1));
            updates += 1;
            assert!(actors.run_until(busy, |step| step.writes_row(&forged.bench)));
        };
        busy_until(&mut actors, 1);
        let waiter = actors.start(1, forged.config(), update(waiters_key, 9));
        let mut tries = 0;
        let has_reclaimed = loop {
            let goes_on =
                actors.run_until(waiter, |step| matches!(step, NextStep::Pause(_)) || step.writes_row(&forged.bench));
            if !goes_on || !matches!(actors.next_step(waiter), NextStep::Pause(_)) {
                break goes_on;
            }
            tries += 1;
            busy_until(&mut actors, ROUND);
            actors.step(waiter);
        };
        let waiters = actors.finish(waiter).0;
        let next = actors.start(2, forged.config(), update(next_key, 7));
        let nexts = actors.finish(next).0;
        let (_, met) = actors.finish(busy);
        let violated = wrong(
            &forged,
            &[(busy_key, &[Some(1)]), (waiters_key, &changed(&waiters[0], 9)), (next_key, &changed(&nexts[0], 7))],
        );
        println!("{preset}: {updates} updates between {tries} tries: {violated:?}");
        assert!(tries > 5);
        assert_eq!(has_reclaimed, preset == Preset::Paper);
        assert_eq!(met.reclaimed_locks, u64::from(preset == Preset::Paper));
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}
