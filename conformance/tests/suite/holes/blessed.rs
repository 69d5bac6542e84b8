//! H10: repair gives a half-written row a checksum that fits.

use guira_conformance::{Actors, Ahead};
use guira_fabric::WORD_BYTES;
use guira_layout::{Preset, RowId};

use crate::holes::crafted::{Crafted, PRESETS, update, wrong};

/// A client dies with `words` words of its row written. What is wrong after the next one has changed another entry of
/// the row; `None` if it ended before.
fn die_after(crafted: &Crafted, words: usize) -> Option<Vec<String>> {
    let crafted = crafted.fork();
    let (first, second) = (&crafted.home[3], &crafted.home[1]);
    let mut actors = Actors::new(&crafted.bench, WORD_BYTES);
    let dead = actors.start(0, crafted.config(), update(first, 1));
    assert!(actors.run_until(dead, |ahead| ahead.writes_row(&crafted.bench)));
    for _ in 0..words {
        actors.step(dead);
    }
    if words > 0 && !actors.ahead(dead).tears_row(&crafted.bench) {
        return None;
    }
    assert!(actors.ahead(dead) != Ahead::Nothing);
    actors.kill(dead);
    let next = actors.start(1, crafted.config(), update(second, 2));
    let (nexts, _) = actors.finish(next);
    assert!(nexts[0].is_ok(), "{nexts:?}");
    crafted.bench.audit().expect("every row verifies, and every lock is free");
    Some(wrong(&crafted, &[(first, &[Some(0), Some(1)]), (second, &[Some(2)])]))
}

/// H10: a client dies between two words of a value; repair makes the row verify as it is, and a value is served that
/// nobody wrote. [R-REPAIR-7] [R-RECOVER-6]
#[test]
fn h10_half_written_row_blessed() {
    for preset in PRESETS {
        let crafted = Crafted::new(preset, RowId(2), RowId(7));
        let runs: Vec<_> = (0..).map_while(|words| die_after(&crafted, words)).collect();
        let violated: Vec<&String> = runs.iter().flatten().collect();
        println!("{preset}: died before {} words, {} mixed values: {violated:?}", runs.len(), violated.len());
        assert!(runs.len() > 16);
        assert_eq!(violated.is_empty(), preset == Preset::Hardened);
    }
}
