//! Swarms: thousands of runs that each follow from a seed, with everything that can go wrong; and what no fabric may
//! do, which they must notice. What a run is and what must hold: `conformance/src/swarm`.
//!
//! [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-RECOVER-4] [R-RECOVER-5] [R-DROP-2] [R-SLOT-1] [R-SLOT-2]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use guira_conformance::storm::{Storm, Victims, storm};
use guira_conformance::swarm::{PrintedRun, Run, Setup, Tally, run, run_changed, run_printed};
use guira_fabric::Profile;
use guira_fabric_sim::Hazard;

/// Seeds that failed after which a test stops: they say what is wrong.
const ENOUGH_FAILURES: usize = 3;

fn is_long() -> bool {
    std::env::var_os("GUIRA_LONG").is_some_and(|value| value == "1")
}

/// Seeds that continuous integration runs, over all fabrics; with `GUIRA_LONG=1` as many as a soak does.
fn seeds() -> u64 {
    if is_long() { 100_000 } else { 6_000 }
}

/// Runs the first `seeds` on all cores, and adds up what they did.
fn run_all(seeds: u64, run: impl Fn(u64) -> Run + Sync) -> (Tally, Vec<(u64, Vec<String>)>) {
    run_until((0..seeds).collect(), usize::MAX, run)
}

/// Runs `seeds` on all cores until `enough` of them failed, and adds up what they did.
fn run_until(seeds: Vec<u64>, enough: usize, run: impl Fn(u64) -> Run + Sync) -> (Tally, Vec<(u64, Vec<String>)>) {
    let (next, total, wrong) = (AtomicUsize::new(0), Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            if wrong.lock().expect("no thread panics while it holds the lock").len() >= enough {
                return;
            }
            let run = run(*seed);
            total.lock().expect("no thread panics while it holds the lock").add(&run.tally);
            if !run.passed() {
                wrong.lock().expect("no thread panics while it holds the lock").push((*seed, run.wrong));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (total, wrong) = (total.into_inner(), wrong.into_inner());
    (total.expect("no thread panics while it holds the lock"), wrong.expect("nobody panics with it"))
}

/// Runs the seeds whose fabric is one of `profiles`, of which every one has to pass; what they did, and how many there
/// are.
fn everything_holds(profiles: &[Profile]) -> (Tally, u64) {
    let seeds: Vec<u64> = (0..seeds()).filter(|seed| profiles.contains(&Setup::of_seed(*seed).profile)).collect();
    let count = seeds.len() as u64;
    let (total, wrong) = run_until(seeds, ENOUGH_FAILURES, |seed| run(seed, 0));
    println!("{} of {count} seeds: {:?}", total.runs, total.counts());
    for (seed, wrong) in &wrong {
        println!("seed {seed}: {}\nreplay: cargo xtask replay {seed}", wrong.join("; "));
    }
    assert!(wrong.is_empty(), "{} of {} seeds failed", wrong.len(), total.runs);
    assert!(total.settled + total.emptied >= count, "{} last clients in {count} seeds", total.settled);
    let least = [
        ("deaths", total.deaths, 2),
        ("recoveries", total.recoveries, 3),
        ("keys' histories", total.keys, 50),
        ("looks at rows", total.unlocked_steps, 20),
        ("extents", total.extents, 5),
    ];
    demand(&least.map(|(what, found, each)| (what, found, count * each)));
    let rare = [
        ("recoverers that died", total.recoverer_deaths),
        ("entries moved", total.moves),
        ("operations dropped", total.dropped),
        ("snapshots", total.stable_scans),
        ("damaged tables", total.flipped),
        ("looks at everything", total.whole),
        ("waits given up", total.busy),
        ("refusals for want of room", total.full),
    ];
    demand(&rare.map(|(what, found)| (what, found, count / 50)));
    (total, count)
}

/// Demands that more than so many of each thing were found.
fn demand(counts: &[(&str, u64, u64)]) {
    for (what, found, least) in counts {
        assert!(found > least, "{found} {what}, and more than {least} are wanted");
    }
}

/// Every seed of shared memory passes, each history is linearizable, and enough of everything happened that the word
/// means something. Every change leaves a record here, and clients die inside WRITEs, too, behind any of their words.
///
/// [R-LOCK-7] [R-READ-3] [R-COMMIT-1] [R-COMMIT-2] [R-DROP-1]
#[test]
fn everything_holds_in_shared_memory() {
    let (total, count) = everything_holds(&[Profile::Shm]);
    demand(&[("commits completed", total.replays, count / 10)]);
}

/// The same of every seed of a network, where connections are lost and memory nodes start again.
#[test]
fn everything_holds_over_networks() {
    let (total, count) = everything_holds(&Profile::REMOTE);
    demand(&[
        ("lost connections", total.cut_off, 2 * count),
        ("batches that were fenced", total.fenced, count / 50),
        ("empty nodes", total.emptied, count / 50),
        ("commits completed", total.replays, 0),
    ]);
}

/// Equal seeds give equal runs, event by event; other seeds give others.
#[test]
fn equal_seeds_give_equal_event_logs() {
    let mut hashes: Vec<u64> = (0..100)
        .map(|seed| {
            let (one, other) = (run(seed, 0), run(seed, 1_000));
            assert_eq!(one.log_hash, other.log_hash, "seed {seed}");
            assert_eq!((one.tally, &one.wrong), (other.tally, &other.wrong), "seed {seed}");
            assert!(one.bench.words() == other.bench.words(), "seed {seed}");
            one.log_hash
        })
        .collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 100);
}

/// A proof of death that comes while verbs of the dead can still be carried out, as a timeout gives it, is noticed:
/// what it costs is what holes H5 and H6 of the printed protocol cost. Seeds are tried until enough have noticed, with
/// `GUIRA_LONG=1` all; and without such proofs, all of them pass.
#[test]
fn a_premature_proof_of_death_is_noticed() {
    const SEEDS: u64 = 1_000;
    /// Seeds that must notice.
    const LEAST: usize = 6;
    let only_lost = |seed| {
        let profile = Profile::REMOTE[seed as usize % 3];
        Setup { hazards: vec![Hazard::Disconnection], clients_per_fault: 1, profile, ..Setup::of_seed(seed) }
    };
    let enough = if is_long() { usize::MAX } else { LEAST };
    let early = |seed| run_changed(only_lost(seed), 0, |plan| plan.liberties.proves_early = true);
    let (total, wrong) = run_until((0..SEEDS).collect(), enough, early);
    println!("{} of up to {SEEDS} seeds failed; {} clients lost their connection", wrong.len(), total.cut_off);
    assert!(wrong.len() >= LEAST, "{} seeds", wrong.len());
    let (_, wrong) = run_all(SEEDS, |seed| run_changed(only_lost(seed), 0, |_| ()));
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Rows that are seen later than the release of their lock are noticed. // hole H19
#[test]
fn a_memory_that_lags_behind_its_locks_is_noticed() {
    let calm = |seed| Setup { hazards: Vec::new(), ..Setup::of_seed(seed) };
    let (_, wrong) = run_all(40, |seed| run_changed(calm(seed), 0, |plan| plan.liberties.main_lag_ns = 20_000));
    println!("{} of 40 seeds failed", wrong.len());
    assert!(wrong.len() > 10, "{} seeds", wrong.len());
}

/// [R-REPAIR-1] [R-REPAIR-3] [R-REPAIR-4] [R-REPAIR-7] [R-REPAIR-8] In crowds of preset `paper` one client dies
/// anywhere, and up to two that repair after it die in the middle of that. As long as nobody who lives is presumed dead
/// and one repairs at a time, every key is linearizable, no lock stays held and the table is sound. Crowds in which it
/// is not so are told.
#[test]
fn printed_repair_holds_in_swarms_under_its_conditions() {
    const SEEDS: u64 = 600;
    let (kept, repairs, dead_repairers) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let outside = AtomicU64::new(0);
    let (total, wrong) = run_all(SEEDS, |seed| {
        let PrintedRun { mut run, repairs: log } = run_printed(seed, 0);
        if log.meets_conditions() {
            kept.fetch_add(1, Ordering::Relaxed);
            repairs.fetch_add(log.leases.len() as u64, Ordering::Relaxed);
            dead_repairers.fetch_add(log.dead_repairers(), Ordering::Relaxed);
        } else {
            outside.fetch_add(u64::from(!run.passed()), Ordering::Relaxed);
            run.wrong.clear();
        }
        run
    });
    let [kept, repairs, dead_repairers, outside] = [kept, repairs, dead_repairers, outside].map(AtomicU64::into_inner);
    println!(
        "{SEEDS} crowds of preset paper, {} deaths, {} locks reclaimed, {} leases revoked; {kept} kept the conditions, \
         with {repairs} repairs and {dead_repairers} repairers that died; {outside} of the others failed",
        total.deaths, total.reclaimed, total.revocations
    );
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(kept > SEEDS / 4 && repairs > SEEDS / 4 && dead_repairers > SEEDS / 20);
    assert!(total.keys > SEEDS * 50);
}

/// Hundreds of clients that die by the hundreds a second cost no key and little throughput; and those that die with
/// locks in their hands are recovered while the others work.
#[test]
fn a_storm_loses_nothing() {
    let calm = Storm { seed: 1, keys: 20_000, span_ns: 200_000_000, deaths_per_second: 0, victims: Victims::Any };
    let stormy = Storm { deaths_per_second: 600, ..calm };
    let aimed = Storm { victims: Victims::LockHolders, ..stormy };
    let torrent = Storm { deaths_per_second: 2_500, span_ns: 50_000_000, ..aimed };
    let [calm, stormy, aimed, torrent] = thread::scope(|scope| {
        [calm, stormy, aimed, torrent].map(|it| scope.spawn(move || storm(&it, &mut |_| ()))).map(|run| run.join())
    })
    .map(|stats| stats.expect("it panicked"));
    for (name, stats) in [("calm", &calm), ("storm", &stormy), ("aimed", &aimed), ("torrent", &torrent)] {
        println!("{name}: {stats:?}");
        assert_eq!(stats.wrong, [""; 0], "{name}");
        assert!(stats.watched > 100, "{name}");
    }
    assert!(calm.deaths == 0 && stormy.deaths > 100 && aimed.deaths > 100 && torrent.deaths > 100);
    assert!(aimed.recoveries > 50 && torrent.recoveries > 50);
    assert!(stormy.operations * 100 >= calm.operations * 75, "{} of {}", stormy.operations, calm.operations);
    assert!(torrent.operations > 10_000, "nobody got anywhere");
}
