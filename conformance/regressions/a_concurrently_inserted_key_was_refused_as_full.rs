//! Cause: an insert that finds no room in its rows releases its locks and searches a path. If another client put the
//! same key in the meantime and took the last room with it, the search found no path.
//!
//! Effect: `Full`, for a key that exists and only had to be replaced. Nothing was lost.
//!
//! Fix: before it returns `Full`, it looks for the key among the rows it sampled, and if the key is there, locks its
//! rows again. [R-INSERT-5]

use std::sync::{Arc, Mutex};

use guira_conformance::{Bench, Sampling, StepPoint, SteppedLane};
use guira_fabric::{Profile, Region};
use guira_layout::{Preset, Rules, TableConfig};
use guira_rcuckoo::{Change, ClientConfig, ErrorKind, Outcome};

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// Creates a table with room for one more entry, and a key that can have it if others are moved.
fn nearly_full() -> (Bench, [u8; 8]) {
    let config = Bench::of_rows(Preset::Tiny, "fixed:8:8", 64, Profile::Shm, 11).table.config().clone();
    // By a map of full rows, the search would go on under the locks.
    let rules = Rules { map_full_rows: false, ..config.rules };
    let bench = Bench::of_config(TableConfig { rules, ..config }, Profile::Shm, 11);
    let mut filler = bench.client(0);
    let mut stored = Vec::new();
    for i in 0..4 * bench.table.config().max_entries() {
        match filler.put(&key(i), &key(i)) {
            Ok(_) => stored.push(i),
            Err(error) => assert!(matches!(error.kind, ErrorKind::Full { .. })),
        }
    }
    drop(filler);
    let moves = |hole: u64, wanted: u64| {
        let mut client = bench.fork().client(1);
        client.change(&key(hole), Change::Remove).expect("it is there");
        client.put(&key(wanted), &key(0)).is_ok() && client.client.counters().moves > 2
    };
    let pairs = stored.iter().flat_map(|hole| (1 << 32..(1 << 32) + 20).map(|wanted| (*hole, wanted)));
    let (hole, wanted) =
        pairs.into_iter().find(|(hole, wanted)| moves(*hole, *wanted)).expect("a removed key whose put moves another");
    bench.client(1).change(&key(hole), Change::Remove).expect("it is there");
    (bench, key(wanted))
}

#[test]
fn a_put_replaces_a_concurrently_inserted_key() {
    let (bench, wanted) = nearly_full();
    let mut replaced = 0;
    for turn in 0.. {
        let (bench, steps) = (bench.fork(), Arc::new(Mutex::new(0)));
        let (others, counted) = (bench.clone(), Arc::clone(&steps));
        let step = move |moment| {
            let mut step = counted.lock().unwrap();
            if moment != StepPoint::Pause {
                *step += 1;
                let config = ClientConfig { deadline_ns: 0, ..ClientConfig::for_table(&others.table) };
                if *step == turn {
                    // This is `Busy` if the first client holds the locks.
                    drop(others.client_with(3, others.region.lane(), config).put(&wanted, &key(7)));
                }
            }
        };
        let lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step));
        let mut client = bench.client(2).through(lane);
        let outcome = client.put(&wanted, &key(8)).map(|changed| changed.outcome);
        assert!(matches!(outcome, Ok(Outcome::Inserted | Outcome::Replaced)), "turn {turn}: {outcome:?}");
        replaced += u64::from(outcome == Ok(Outcome::Replaced));
        if *steps.lock().unwrap() < turn {
            break;
        }
    }
    assert!(replaced > 5, "others came first at {replaced} steps");
}
