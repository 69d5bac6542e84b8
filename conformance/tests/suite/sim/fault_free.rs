//! Runs without faults: every operation succeeds, every answer is linearizable, and the table is in order afterwards.

use guira_fabric::Profile;
use guira_fabric_sim::Stopped;
use guira_layout::Preset;

use crate::sim::scenario::{Run, Scenario, Tally};

const SEEDS: u64 = 8;

fn run_soundly(scenario: &Scenario) -> Run {
    let mut run = scenario.run();
    assert_eq!((run.stopped, run.tally.wrong), (Stopped::Ended, 0));
    run.assert_sound();
    run
}

/// [R-READ-1] [R-READ-3] [R-UPDATE-1] Clients that share a table in any network see linearizable keys, and leave the
/// table in order.
#[test]
fn keys_are_linearizable_in_every_network() {
    for preset in [Preset::Tiny, Preset::Hardened] {
        for profile in Profile::ALL {
            let runs = (0..SEEDS).map(|seed| run_soundly(&Scenario::new(preset, profile, seed)).tally);
            let total = runs.reduce(Tally::plus).expect("some runs");
            println!("{preset} {profile}: {total:?}");
            assert!(total.moves > 20 && total.conflicts > 100, "{preset} {profile}: no clients contended");
        }
    }
}

/// Equal seeds give equal runs, event by event; other seeds give others.
#[test]
fn equal_seeds_give_equal_event_logs() {
    for profile in Profile::ALL {
        let mut hashes = Vec::new();
        for seed in 0..SEEDS {
            let scenario = Scenario::new(Preset::Hardened, profile, seed);
            let (one, other) = (scenario.run(), scenario.run());
            assert_eq!(one.log_hash, other.log_hash, "{profile}, seed {seed}");
            assert_eq!((one.tally, one.verbs), (other.tally, other.verbs), "{profile}, seed {seed}");
            assert!(one.bench.words() == other.bench.words(), "{profile}, seed {seed}");
            hashes.push(one.log_hash);
        }
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len() as u64, SEEDS, "{profile}");
    }
}

/// The suite notices what no fabric may do: rows that become visible after the release of their lock lose changes.
#[test]
fn a_memory_that_lags_behind_its_locks_is_noticed() {
    let mut wrong = 0;
    for seed in 0..SEEDS {
        let scenario = Scenario { main_lag_ns: 3_000, ..Scenario::new(Preset::Hardened, Profile::Mlx5, seed) };
        wrong += scenario.run().tally.wrong;
    }
    assert!(wrong > 0);
}
