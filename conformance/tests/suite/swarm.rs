//! Tests of swarms: thousands of runs that each follow from a seed, with faults of every kind; and canaries, which do
//! what no fabric may do and must be noticed. `conformance/src/swarm` describes runs and invariants.
//!
//! [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-RECOVER-4] [R-RECOVER-5] [R-DROP-2] [R-SLOT-1] [R-SLOT-2]
//!
//! Proves:
//!
//! - 2,500 simulated runs (30,000 with `GUIRA_LONG=1`) keep every invariant. Each run follows from its seed, which
//!   determines preset, format (with extents, too), network, clients, keys and faults. Many clients write each key with
//!   every operation, drop some of them, die, stall and lose connections whose last verbs arrive late;
//! - clients recover each other, die while they do, and are replaced by new clients in the same slots. Each key's
//!   history is linearizable, and the table is sound after every step that leaves no lock held. When the faults end, a
//!   last client can read every key, change some, and recover all dead clients; then no lock is held, no slot is in
//!   use, and no commit is half done. Runs in shared memory are one test, and runs over networks another;
//! - nothing is wrong where a queue pair takes its liberties. Of the seeds over RDMA, half draw each of these: adjacent
//!   READs sample in another order; READs sample some of their words again after the whole batch; WRITEs overtake READs
//!   and atomics in front of them (no batch has any, as order of verbs shows); words of a READ are sampled at different
//!   times, and those of a WRITE become visible packet by packet, in any order within a packet of 256 to 4,096 bytes;
//! - nothing is wrong in 200 more runs (4,000) in which tables grow throughout, to up to 256 segments, and in one of
//!   ten of the others. Clients die, are stopped and lose their connection at any verb of a split, in the middle of its
//!   WRITEs, or of the completion of a dead client's, and some sleep at any verb while others split many segments. In
//!   one of three runs the memory node refuses memory for further segments and values, from some split on and for a
//!   while: inserts then fail without effect, no segment is written that has no memory, and the table grows on when
//!   there is memory again. The test fails unless more than 1,600 segments are split, 66 clients die in a split, 13
//!   sleep through ten splits and go on, 200 reservations are refused, 50 inserts fail for it, and 50 segments are
//!   split afterwards;
//! - nothing is wrong in 300 runs (4,000) behind an element that lets tries of taken locks go on as READs, and forgets
//!   what it knows at any time;
//! - equal seeds give equal event logs;
//! - an element that passes on an answer which it has forgotten is noticed;
//! - a proof of death that comes too early is noticed, and so are rows that become visible after the release of their
//!   lock.
//!
//! Cannot show: orders that were not drawn; timing on real hardware.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use guira_conformance::storm::{Storm, Victims, storm};
use guira_conformance::swarm::{
    PrintedRun, Run, Setup, Tally, caught, run, run_behind, run_changed, run_printed, run_setup,
};
use guira_fabric::Profile;
use guira_fabric_sim::{Element, Hazard, Passing, Rewrite};
use guira_lab::simulated::LockElement;
use guira_testing::is_long;

/// Failed seeds after which a test stops.
const ENOUGH_FAILURES: usize = 3;

/// Returns the number of seeds over all fabrics.
fn seeds() -> u64 {
    if is_long() { 30_000 } else { 2_500 }
}

/// Runs the first `seeds` on all cores, and adds up their counts.
fn run_all(seeds: u64, run: impl Fn(u64) -> Run + Sync) -> (Tally, Vec<(u64, Vec<String>)>) {
    run_until((0..seeds).collect(), usize::MAX, run)
}

/// Runs `seeds` on all cores until `enough` of them failed, and adds up their counts.
fn run_until(seeds: Vec<u64>, enough: usize, run: impl Fn(u64) -> Run + Sync) -> (Tally, Vec<(u64, Vec<String>)>) {
    let (next, total, wrong) = (AtomicUsize::new(0), Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            if wrong.lock().expect("no thread panics while it holds the lock").len() >= enough {
                return;
            }
            let (tally, problems) = match caught(|| run(*seed)) {
                Ok(run) => (run.tally, run.wrong),
                Err(panic) => (Tally::default(), vec![panic]),
            };
            total.lock().expect("no thread panics while it holds the lock").add(&tally);
            if !problems.is_empty() {
                wrong.lock().expect("no thread panics while it holds the lock").push((*seed, problems));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (total, wrong) = (total.into_inner(), wrong.into_inner());
    (total.expect("no thread panics while it holds the lock"), wrong.expect("no thread panics while it holds the lock"))
}

/// Runs the seeds whose fabric is one of `profiles`, all of which have to pass; returns their counts and their number.
fn everything_holds(profiles: &[Profile]) -> (Tally, u64) {
    let seeds: Vec<u64> = (0..seeds()).filter(|seed| profiles.contains(&Setup::of_seed(*seed).profile)).collect();
    let count = seeds.len() as u64;
    let total = all_pass(seeds, "", |seed| run(seed, 0));
    assert!(total.settled + total.emptied >= count, "{} last clients in {count} seeds", total.settled);
    let least = [
        ("deaths", total.deaths, 2),
        ("recoveries", total.recoveries, 3),
        ("keys' histories", total.keys, 50),
        ("checks of rows", total.unlocked_steps, 20),
        ("extents", total.extents, 5),
    ];
    demand(&least.map(|(what, found, each)| (what, found, count * each)));
    let rare = [
        ("recoverers that died", total.recoverer_deaths),
        ("entries moved", total.moves),
        ("operations dropped", total.dropped),
        ("snapshots", total.stable_scans),
        ("damaged tables", total.flipped),
        ("checks of the whole table", total.whole),
        ("waits given up", total.busy),
        ("refusals for lack of room", total.full),
        ("segments split", total.splits),
    ];
    demand(&rare.map(|(what, found)| (what, found, count / 50)));
    // A bit is wrong after a death or a late correction only, and whoever meets it corrects it. [R-INSERT-7]
    let (noted, misnoted) = (total.noted_rows, total.misnoted_rows);
    assert!(
        noted > 10 * count && misnoted < noted / 500,
        "the map of full rows is wrong for {misnoted} of {noted} rows"
    );
    (total, count)
}

/// Runs `seeds`, all of which have to pass, and adds up their counts. `option` is that of `cargo xtask replay`.
fn all_pass(seeds: Vec<u64>, option: &str, run: impl Fn(u64) -> Run + Sync) -> Tally {
    let count = seeds.len();
    let (total, wrong) = run_until(seeds, ENOUGH_FAILURES, run);
    println!("{} of {count} seeds: {:?}", total.runs, total.counts());
    for (seed, wrong) in &wrong {
        println!("seed {seed}: {}\nreplay: cargo xtask replay {seed}{option}", wrong.join("; "));
    }
    assert!(wrong.is_empty(), "{} of {} seeds failed", wrong.len(), total.runs);
    total
}

/// Asserts that each thing happened more often than its bound.
fn demand(counts: &[(&str, u64, u64)]) {
    for (what, found, least) in counts {
        assert!(found > least, "{found} {what}, and more than {least} are wanted");
    }
}

/// Every seed of shared memory passes, each history is linearizable, and everything happened often enough to be
/// meaningful. Every change leaves a record here, and clients also die inside WRITEs, after any of their words.
///
/// [R-LOCK-7] [R-READ-3] [R-COMMIT-1] [R-COMMIT-2] [R-DROP-1]
#[test]
fn everything_holds_in_shared_memory() {
    let (total, count) = everything_holds(&[Profile::Shm]);
    demand(&[("commits completed", total.replays, count / 10)]);
}

/// The same for every seed of a network, where connections are lost, memory nodes restart, and queue pairs take their
/// liberties: READs sample late and again, and the words of a packet become visible in any order.
#[test]
fn everything_holds_over_networks() {
    let (total, count) = everything_holds(&Profile::REMOTE);
    demand(&[
        ("lost connections", total.cut_off, 2 * count),
        ("batches that were fenced", total.fenced, count / 50),
        ("empty nodes", total.emptied, count / 50),
        ("runs with the liberties of a queue pair", total.reordered, count / 3),
        ("commits completed", total.replays, 0),
    ]);
}

/// The same for tables that grow throughout: clients die, are stopped and lose their connection in the middle of splits
/// and of their completion, some sleep while others split ten segments or more, and the memory node refuses memory for
/// a while. Each of these happens in this range of seeds.
///
/// [R-GROW-4] [R-GROW-5] [R-GROW-7] [R-GROW-8] [R-GROW-9] [R-GROW-10] [R-GROW-11]
#[test]
fn everything_holds_while_tables_grow() {
    let count = if is_long() { 4_000 } else { 200 };
    let total = all_pass((0..count).collect(), " --growth", |seed| run_setup(Setup::growing(seed), 0));
    assert_eq!(total.settled, count);
    demand(&[
        ("segments split", total.splits, 8 * count),
        ("clients that died in a split", total.split_deaths, count / 3),
        ("clients that slept through ten splits", total.long_sleepers, count / 20),
        ("reservations that were refused", total.refused_memory, count),
        ("inserts without memory", total.without_memory, count / 4),
        ("segments split after a refusal", total.late_splits, count / 4),
        ("deaths", total.deaths, 2 * count),
        ("commits completed", total.replays, count / 4),
        ("checks of the whole table", total.whole, 4 * count),
        ("refusals for lack of room", total.full, count / 10),
        ("snapshots", total.stable_scans, count / 2),
    ]);
}

/// The same behind an element that answers tries of locks which it knows to be taken, and forgets everything at drawn
/// times: clients whose answer it has forgotten lose their connection, and nothing else happens.
///
/// [R-LOCK-2] [R-LOCK-3]
#[test]
fn everything_holds_behind_an_element_that_knows_locks() {
    let count = if is_long() { 4_000 } else { 300 };
    let run = |seed| run_behind(Setup::behind_element(seed), 0, |table| LockElement::new(*table.locks()));
    let total = all_pass((0..count).collect(), " --element", run);
    demand(&[
        ("tries that went on as READs", total.rewritten, 10 * count),
        ("deaths", total.deaths, count / 2),
        ("lost connections", total.cut_off, count),
        ("recoveries", total.recoveries, count),
    ]);
}

/// The same in preset `paper`, whose locks have a bit each and are cleared whoever has them; without faults.
#[test]
fn printed_clients_lose_nothing_behind_an_element_that_knows_locks() {
    let count = if is_long() { 1_000 } else { 100 };
    let run = |seed| {
        let drawn = Setup::printed(seed);
        let setup = Setup { profile: Profile::Mlx5, hazards: Vec::new(), is_on_cluster: true, ..drawn };
        run_behind(setup, 0, |table| LockElement::new(*table.locks()))
    };
    let (total, wrong) = run_all(count, run);
    assert_eq!(wrong, []);
    demand(&[("tries that went on as READs", total.rewritten, 10 * count)]);
}

/// An element that takes the word which a READ found for an answer: what it has forgotten may look like a lock that was
/// won.
struct Careless(LockElement);

impl Element for Careless {
    fn request(&mut self, queue_pair: u32, verb: u32, passing: Passing<'_>) -> Rewrite {
        self.0.request(queue_pair, verb, passing)
    }

    fn reply(&mut self, queue_pair: u32, verb: u32, found: &mut u64) {
        self.0.reply(queue_pair, verb, found);
    }

    fn answer(&mut self, queue_pair: u32, verb: u32, found: u64) -> Option<u64> {
        Some(self.0.answer(queue_pair, verb, found).unwrap_or(found))
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn state_bytes(&self) -> u64 {
        self.0.state_bytes()
    }
}

/// An element that passes on what it has forgotten is noticed: a client takes its READ for a lock.
#[test]
fn an_element_that_answers_what_it_has_forgotten_is_noticed() {
    let run = |seed| run_behind(Setup::behind_element(seed), 0, |table| Careless(LockElement::new(*table.locks())));
    let (total, wrong) = run_until((0..1_000).collect(), ENOUGH_FAILURES, run);
    println!("{} of {} seeds failed", wrong.len(), total.runs);
    assert_eq!(wrong.len(), ENOUGH_FAILURES);
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

/// A proof of death that comes while verbs of the dead client can still be executed, as from a timeout, is noticed: its
/// consequences are those of holes H5 and H6 of the printed protocol. Seeds are tried until enough have noticed, with
/// `GUIRA_LONG=1` all; and without such proofs, all of them pass.
#[test]
fn a_premature_proof_of_death_is_noticed() {
    /// Seeds that must notice.
    const LEAST: usize = 6;
    let only_lost = |seed| {
        let profile = Profile::REMOTE[seed as usize % 3];
        Setup { hazards: vec![Hazard::Disconnection], clients_per_fault: 1, profile, ..Setup::of_seed(seed) }
    };
    // Runs without such proofs are those of `everything_holds`, with fewer faults.
    let (seeds, enough, calm) = if is_long() { (1_000, usize::MAX, 1_000) } else { (1_000, LEAST, 100) };
    let early = |seed| run_changed(only_lost(seed), 0, |plan| plan.relaxations.proves_early = true);
    let (total, wrong) = run_until((0..seeds).collect(), enough, early);
    println!("{} of up to {seeds} seeds failed; {} clients lost their connection", wrong.len(), total.cut_off);
    assert!(wrong.len() >= LEAST, "{} seeds", wrong.len());
    let (_, wrong) = run_all(calm, |seed| run_changed(only_lost(seed), 0, |_| ()));
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Rows that become visible after the release of their lock are noticed. // hole H19
#[test]
fn a_memory_that_lags_behind_its_locks_is_noticed() {
    let calm = |seed| Setup { hazards: Vec::new(), ..Setup::of_seed(seed) };
    let (_, wrong) = run_all(40, |seed| run_changed(calm(seed), 0, |plan| plan.relaxations.main_lag_ns = 20_000));
    println!("{} of 40 seeds failed", wrong.len());
    assert!(wrong.len() > 10, "{} seeds", wrong.len());
}

/// [R-REPAIR-1] [R-REPAIR-3] [R-REPAIR-4] [R-REPAIR-7] [R-REPAIR-8] In swarms of preset `paper` one client dies
/// anywhere, and up to two that repair after it die in the middle of the repair. As long as no live client is presumed
/// dead and one repairs at a time, every key is linearizable, no lock stays held and the table is sound. Swarms in
/// which that is not so are only counted.
#[test]
fn printed_repair_holds_in_swarms_under_its_conditions() {
    let seeds = if is_long() { 600 } else { 200 };
    let (kept, repairs, dead_repairers) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let outside = AtomicU64::new(0);
    let (total, wrong) = run_all(seeds, |seed| {
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
        "{seeds} swarms of preset paper, {} deaths, {} locks reclaimed, {} leases revoked; {kept} met the conditions, \
         with {repairs} repairs and {dead_repairers} repairers that died; {outside} of the others failed",
        total.deaths, total.reclaimed, total.revocations
    );
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(kept > seeds / 4 && repairs > seeds / 4 && dead_repairers > seeds / 20);
    assert!(total.keys > seeds * 50);
}

/// Hundreds of deaths per second lose no key and cost little throughput; and clients that die with locks are recovered
/// while the others work.
#[test]
fn a_storm_loses_nothing() {
    const TORRENT_NS: u64 = 25_000_000;
    let scale = if is_long() { 4 } else { 2 };
    let span_ns = scale * TORRENT_NS;
    let calm = Storm { seed: 1, keys: 20_000, span_ns, deaths_per_second: 0, victims: Victims::Any };
    let stormy = Storm { deaths_per_second: 600, ..calm };
    let aimed = Storm { victims: Victims::LockHolders, ..stormy };
    let torrent = Storm { deaths_per_second: 2_500, span_ns: TORRENT_NS, ..aimed };
    let [calm, stormy, aimed, torrent] = thread::scope(|scope| {
        [calm, stormy, aimed, torrent].map(|it| scope.spawn(move || storm(&it, &mut |_| ()))).map(|run| run.join())
    })
    .map(|stats| stats.expect("it panicked"));
    for (name, stats) in [("calm", &calm), ("storm", &stormy), ("aimed", &aimed), ("torrent", &torrent)] {
        println!("{name}: {stats:?}");
        assert_eq!(stats.wrong, [""; 0], "{name}");
        assert!(stats.watched > 100, "{name}");
    }
    assert!(calm.deaths == 0 && stormy.deaths > 12 * scale && aimed.deaths > 12 * scale && torrent.deaths > 50);
    assert!(aimed.recoveries > 6 * scale && torrent.recoveries > 25);
    assert!(stormy.operations * 100 >= calm.operations * 75, "{} of {}", stormy.operations, calm.operations);
    assert!(torrent.operations > 5_000, "no client made progress");
}
