//! H14: a key stands twice, and a change finds one of its copies.

use guira_conformance::{Actors, Observed, Op};
use guira_layout::{Preset, RowId};
use guira_rcuckoo::Outcome;

use crate::holes::forged::{Forged, PRESETS, WHOLE, changed, update, value, wrong};

/// H14: an insert that was presumed dead goes on, and dies for good when it has copied an entry into rows that are
/// nobody's any more: there are two copies, an old one among them. A remove finds one, and the other is served.
/// [R-REPAIR-1] [R-COMMIT-1] [R-RECOVER-2]
#[test]
fn h14_remove_hits_one_of_two_copies() {
    for preset in PRESETS {
        let forged = Forged::new(preset, RowId(14), RowId(19));
        let mut actors = Actors::new(&forged.bench, WHOLE);
        let slow = actors.start(0, forged.config(), vec![Op::Insert(forged.missing.clone(), value(5))]);
        assert!(actors.run_until(slow, |step| step.writes_row(&forged.bench)));
        // It stands still. Another one waits for both locks.
        let other = actors.start(1, forged.config(), update(&forged.moved, 2));
        let (others, met) = actors.finish(other);
        let changed = changed(&others[0], 2);
        assert_eq!(wrong(&forged, &[(&forged.moved, &changed)]), [""; 0], "so far all is well");
        // It goes on, for one row.
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
