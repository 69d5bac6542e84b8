//! H14: a key is stored twice, and a change finds only one of its copies.

use guira_conformance::{Actors, Observed, Op};
use guira_layout::{Preset, RowId};
use guira_rcuckoo::Outcome;

use crate::holes::forged::{Forged, PRESETS, WHOLE, changed, update, value, wrong};

/// H14: an insert that was presumed dead continues, and really dies when it has copied an entry into rows that are
/// unlocked by now: there are two copies, one of them old. A remove finds one, and lookups return the other.
/// [R-REPAIR-1] [R-COMMIT-1] [R-RECOVER-2]
#[test]
fn h14_remove_hits_one_of_two_copies() {
    for preset in PRESETS {
        let forged = Forged::new(preset, RowId(14), RowId(19));
        let mut actors = Actors::new(&forged.bench, WHOLE);
        let slow = actors.start(0, forged.config(), vec![Op::Insert(forged.missing.clone(), value(5))]);
        assert!(actors.run_until(slow, |step| step.writes_row(&forged.bench)));
        // The first client is stopped, and another one waits for both locks.
        let other = actors.start(1, forged.config(), update(&forged.moved, 2));
        let (others, met) = actors.finish(other);
        let changed = changed(&others[0], 2);
        assert_eq!(wrong(&forged, &[(&forged.moved, &changed)]), [""; 0], "so far all is well");
        // The first client continues for one row.
        actors.step(slow);
        assert!(actors.run_until(slow, |step| step.writes_row(&forged.bench)));
        actors.kill(slow);
        let last = actors.start(2, forged.config(), vec![Op::Remove(forged.moved.clone())]);
        assert_eq!(actors.finish(last).0, [Ok(Observed::Outcome(Outcome::Removed))]);
        let violated = wrong(&forged, &[(&forged.moved, &[None])]);
        println!("{preset}: {} locks reclaimed: {violated:?}", met.leases);
        assert_eq!((others[0].is_ok(), met.leases), (preset == Preset::Paper, if others[0].is_ok() { 2 } else { 0 }));
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}
