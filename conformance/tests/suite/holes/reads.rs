//! Holes of lookups while a key moves: H1 and H2.

use std::cell::RefCell;
use std::rc::Rc;

use guira_conformance::{Flaw, Granularity, Op, Orders, ScheduledLane, Scheduler, explore};
use guira_fabric::Profile;
use guira_layout::{Preset, RowId};

use crate::holes::printed::{Retry, look_up};
use guira_conformance::crowded::{Fixture, HOME, PRESETS, client, operate};

/// The row that `moved` moves to: before `HOME`, so that it moves from its secondary to its primary row.
const PRIMARY: RowId = RowId(HOME.0 - 5);

/// [R-READ-3] H1. A key moves from L2 to L1 between the samples of L1 and L2: the lookup finds it in neither.
#[test]
fn h01_a_key_that_moves_is_missed() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, PRIMARY);
        for profile in Profile::REMOTE {
            let ops = [vec![Op::Get(fixture.moved.to_vec())], vec![fixture.moving_put()]];
            let explored = fixture.explore(profile, Orders::All, &Flaw::None, ops);
            match preset {
                Preset::Paper => explored.assert_violated(&format!("H1 {preset} {profile}")),
                _ => explored.assert_holds(&format!("H1 {preset} {profile}"), 100),
            }
        }
    }
}

/// [R-READ-4] H2. L2 is torn when it is sampled, because another client changes another of its entries; then the key
/// moves to L1, of which there is a valid sample: a retry that samples L2 alone finds the key in neither. The lookup
/// validates what it samples, so H1 is closed.
#[test]
fn h02_a_partial_retry_combines_two_moments() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, PRIMARY);
        for retry in [Retry::TornRow, Retry::Both] {
            let make = |scheduler: &Scheduler| {
                let bench = fixture.bench.fork();
                let mut reader = ScheduledLane::new(&bench.region, scheduler, Granularity::Verbs, Flaw::None);
                let writer = ScheduledLane::new(&bench.region, scheduler, Granularity::Halves, Flaw::None);
                let (put, _) = operate(
                    client(&bench, 0, writer),
                    vec![Fixture::update(&fixture.neighbour, 1), fixture.moving_put()],
                );
                let (answer, table, moved) = (Rc::new(RefCell::new(None)), bench.table, fixture.moved);
                let into = Rc::clone(&answer);
                let lookup = Box::pin(async move {
                    *into.borrow_mut() = look_up(&mut reader, &table, &moved, retry).await;
                });
                (answer, vec![lookup as guira_conformance::Task, put])
            };
            let judge = |answer: Rc<RefCell<Option<Vec<u8>>>>| {
                let found = answer.borrow().is_some();
                if found { Ok(()) } else { Err("a key that always exists is missed".to_owned()) }
            };
            let explored = explore(Orders::Switches(4), make, judge);
            match retry {
                Retry::TornRow => explored.assert_violated(&format!("H2 {preset} {retry:?}")),
                Retry::Both => explored.assert_holds(&format!("H2 {preset} {retry:?}"), 100),
            }
        }
    }
}
