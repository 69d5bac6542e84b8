//! H10: repair gives a half-written row a valid checksum.

use guira_conformance::{Actors, NextStep};
use guira_fabric::WORD_BYTES;
use guira_layout::{Preset, RowId};

use crate::holes::forged::{Forged, PRESETS, update, wrong};

/// Lets a client die with `words` words of its row written. Returns what is wrong after the next client has changed
/// another entry of the row; `None` if the first one ended before.
fn die_after(forged: &Forged, words: usize) -> Option<Vec<String>> {
    let forged = forged.fork();
    let (first, second) = (&forged.home[3], &forged.home[1]);
    let mut actors = Actors::new(&forged.bench, WORD_BYTES);
    let dead = actors.start(0, forged.config(), update(first, 1));
    assert!(actors.run_until(dead, |step| step.writes_row(&forged.bench)));
    for _ in 0..words {
        actors.step(dead);
    }
    if words > 0 && !actors.next_step(dead).tears_row(&forged.bench) {
        return None;
    }
    assert!(actors.next_step(dead) != NextStep::Nothing);
    actors.kill(dead);
    let next = actors.start(1, forged.config(), update(second, 2));
    let (nexts, _) = actors.finish(next);
    assert!(nexts[0].is_ok(), "{nexts:?}");
    forged.bench.audit().expect("every row verifies, and every lock is free");
    Some(wrong(&forged, &[(first, &[Some(0), Some(1)]), (second, &[Some(2)])]))
}

/// H10: a client dies between two words of a value; repair makes the row verify as it is, and lookups return a value
/// that was never written. [R-REPAIR-7] [R-RECOVER-6]
#[test]
fn h10_repair_checksums_a_half_written_row() {
    for preset in PRESETS {
        let forged = Forged::new(preset, RowId(2), RowId(7));
        let runs: Vec<_> = (0..).map_while(|words| die_after(&forged, words)).collect();
        let violated: Vec<&String> = runs.iter().flatten().collect();
        println!("{preset}: died before {} words, {} mixed values: {violated:?}", runs.len(), violated.len());
        assert!(runs.len() > 16);
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}
