//! Histories of real processes, which must be linearizable.
//!
//! Eight processes read and change some tens of keys of one table, while one of them is killed every 20 ms and replaced
//! at once, and others are stopped for 1 ms to 1 s. Each process records its calls before it makes them, and the
//! answers after it got them, in memory that the kernel keeps whatever happens to the process. A run consists of rounds
//! of some seconds, each with a table of its own, of one of three cases. After each round the dead clients are
//! recovered, the table is checked, and every key's history must be linearizable: an operation without an answer may
//! have happened or not, at any time, but all answers must fit. To show that the check can fail, each round then
//! falsifies answers, which must be detected.
//!
//! The other tests do the same over TCP, with a memory node in a process of its own: clients are fenced while they
//! live, and learn of it; some clients map the table that the node serves; the node is killed and restarted; a proxy
//! delays, splits and cuts the connections.
//!
//! One test does the same over RDMA, if this machine has a device.
//!
//! The run takes twenty seconds over shared memory, six over each kind of TCP and ten over RDMA; with `GUIRA_LONG=1`,
//! an hour, ten minutes, and a minute. The test program starts itself as the workers and the node, which get their
//! arguments in environment variables.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

mod checker;
mod empty_restart;
mod fixture;
mod lock_monitor;
mod log;
mod node;
mod worker;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guira::admin::ClientState;
use guira::{CreateOptions, Preset, Store};
use guira_conformance::RdmaDevices;

use crate::common::faulty_proxy::FaultyProxy;
use checker::Totals;
use fixture::{Fabric, Fixture};
use log::{SharedLog, now_ns};
use worker::{key, value};
use workers::{FaultCounts, Workers};

const SEED: u64 = 23;
const PROCESSES: u64 = 8;
const KEYS: u64 = 40;
/// Entries for which a table is made.
const CAPACITY: u64 = 200;
/// Entries left free for the keys in a table full of fillers. No worker changes the fillers; inserts have to move them.
const LEFT_FREE: u64 = KEYS + KEYS / 4;
/// Kills a second.
const KILLS_PER_S: u64 = 50;
/// Fewest kills a second that are accepted, on a busy machine.
const LEAST_KILLS_PER_S: u64 = 40;
const ROUND: Duration = Duration::from_secs(2);
/// A round over RDMA, in whose first second an emulated machine starts the workers.
const RDMA_ROUND: Duration = Duration::from_millis(3_300);
/// Rounds from one report to the next, in long runs.
const REPORT_EVERY: u64 = 100;
/// Most operations that may be refused for each process that is stopped or killed: each operation that waits for its
/// lock is refused at its deadline, while others succeed.
const MOST_REFUSED_PER_FAULT: u64 = 10;
/// Fewest operations a second, on a busy machine with two slow cores.
const LEAST_OPERATIONS_PER_S: u64 = 2_000;
/// Fewest operations a second over TCP, where each takes several switches between processes.
const LEAST_REMOTE_OPERATIONS_PER_S: u64 = 200;
/// Fewest operations a second behind the proxy, where each piece of a frame takes two more switches, and some are
/// delayed.
const LEAST_FAULTY_OPERATIONS_PER_S: u64 = 60;

/// Fewest operations a second over Soft-RoCE in an emulated machine.
const LEAST_RDMA_OPERATIONS_PER_S: u64 = 5;

/// A kind of table, and the longest value that is put into it.
#[derive(Clone, Copy)]
struct Case {
    preset: Preset,
    format: &'static str,
    longest_value: u64,
}

/// The cases: values in rows; values in rows and in extents; the same where rows are few and every insert moves
/// entries.
const CASES: [Case; 3] = [
    Case { preset: Preset::Hardened, format: "fixed:8:8", longest_value: 8 },
    Case { preset: Preset::Hardened, format: "bytes:64", longest_value: 3_000 },
    Case { preset: Preset::Tiny, format: "bytes:64", longest_value: 500 },
];

fn is_long() -> bool {
    std::env::var("GUIRA_LONG").is_ok_and(|long| long == "1")
}

/// Waits until no other test of this module runs: each is to have the machine for itself as far as possible.
fn run_alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Case {
    fn of(round: u64) -> Case {
        CASES[round as usize % CASES.len()]
    }

    fn options(&self, round: u64) -> CreateOptions {
        CreateOptions::new(CAPACITY)
            .format(self.format.parse().unwrap())
            .preset(self.preset)
            .max_clients(2 * PROCESSES as u16 + 8)
            .extent_bytes(64 << 20)
            .seed(SEED + round)
    }

    /// Fills the table, and returns how many fillers it has.
    fn fill(&self, store: &Store) -> u64 {
        let mut client = store.client().unwrap();
        let mut put = |filler: u64| client.put(&key(filler), &value(filler, self.longest_value)).is_ok();
        let fillers = (KEYS..).take_while(|filler| put(*filler)).count() as u64 - LEFT_FREE;
        for filler in (KEYS + fillers..).take(LEFT_FREE as usize) {
            assert!(client.remove(&key(filler)).unwrap());
        }
        fillers
    }

    /// Checks that no move lost a filler.
    fn assert_fillers(&self, store: &Store, fillers: u64) {
        let mut reader = store.reader();
        for filler in KEYS..KEYS + fillers {
            let found = reader.get(&key(filler)).unwrap();
            assert!(found == Some(value(filler, self.longest_value)), "filler {filler}: {found:02x?}");
        }
    }
}

/// Checks, after the last worker has ended, that all dead clients are recovered and the table is sound.
fn assert_sound(store: &Store) {
    let slots = store.stat().unwrap().max_clients;
    // Opening as many clients as there are slots recovers the dead ones.
    let all: Vec<_> = (0..slots).map(|_| store.client().unwrap()).collect();
    assert!(store.stat().unwrap().clients.iter().all(|client| client.state == ClientState::Live));
    drop(all);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.held_locks, 0, "every lock is free");
    assert!(store.stat().unwrap().clients.is_empty());
}

/// A run: the faults of all its rounds, and the totals of their histories.
struct Run {
    fabric: Fabric,
    length: Duration,
    totals: Totals,
    faults: FaultCounts,
    /// Processes that were answered both before and after a kill of the node, summed over all kills.
    survivors: u64,
    /// Pieces, delays and cuts of the proxy.
    proxy_counts: [u64; 3],
}

impl Run {
    fn of(fabric: Fabric, length: Duration) -> Run {
        println!(
            "seed {SEED}, {fabric:?}, {PROCESSES} processes, {KEYS} keys, {length:?} in rounds of {:?}",
            fabric.round()
        );
        let (totals, faults) = (Totals::default(), FaultCounts::default());
        let mut run = Run { fabric, length, totals, faults, survivors: 0, proxy_counts: [0; 3] };
        let (mut log, start) = (SharedLog::create(), Instant::now());
        for number in 0..run.rounds() {
            run.round(number, &mut log);
            if (number + 1) % REPORT_EVERY == 0 {
                println!("{} of {} rounds: {}; {}", number + 1, run.rounds(), run.faults, run.totals);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{} rounds in {seconds:.0} s: {}; {}", run.rounds(), run.faults, run.totals);
        assert_eq!(run.totals.detected, run.totals.falsified, "each falsified answer is detected");
        // Fewer operations over a rough way see fewer values that can be records from earlier ones.
        let least = match fabric {
            Fabric::Rdma if !is_long() => 0,
            Fabric::Faulty | Fabric::Rdma => 2,
            Fabric::Shm | Fabric::Tcp | Fabric::Mixed | Fabric::Restarted => 3 * run.rounds() + 1,
        };
        assert!(run.totals.falsified >= least, "{} answers falsified", run.totals.falsified);
        run
    }

    fn rounds(&self) -> u64 {
        (self.length.as_millis() / self.fabric.round().as_millis()) as u64
    }

    fn round(&mut self, number: u64, log: &mut SharedLog) {
        let case = Case::of(number);
        let mut fixture = Fixture::of(self.fabric, number);
        let fillers = case.fill(&fixture.store);
        let began_ns = now_ns();
        let faults = Workers::start(&mut fixture, log, case.longest_value, SEED ^ (number << 20)).run();
        assert_sound(&fixture.store);
        case.assert_fillers(&fixture.store, fillers);
        let mut records = log.take(began_ns);
        records.add_final_reads(&fixture.store, case.longest_value);
        self.survivors += faults.restarts_ns.iter().map(|at_ns| records.survivors(*at_ns)).sum::<u64>();
        let proxy_counts = fixture.proxy.as_ref().map_or([0; 3], FaultyProxy::counts);
        self.proxy_counts.iter_mut().zip(proxy_counts).for_each(|(sum, count)| *sum += count);
        self.faults.add(&faults);
        self.totals.check(&records, number);
    }

    fn per_s(&self, count: u64) -> u64 {
        count / self.length.as_secs()
    }
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-READ-9] While clients of a table are killed and stopped, each of its
/// keys is linearizable, no lock stays held, and nothing is lost.
#[test]
fn histories_of_killed_and_stopped_processes_are_linearizable() {
    let _alone = run_alone();
    let run = Run::of(Fabric::Shm, Duration::from_secs(if is_long() { 3_600 } else { 20 }));
    let (totals, faults) = (&run.totals, &run.faults);
    assert!(run.per_s(faults.kills) >= LEAST_KILLS_PER_S, "{} kills a second", run.per_s(faults.kills));
    let operations_per_s = run.per_s(totals.answered);
    assert!(operations_per_s >= LEAST_OPERATIONS_PER_S, "{operations_per_s} operations a second");
    assert!(
        run.per_s(faults.stops) >= 5 && faults.kills_of_holders > faults.kills / 20,
        "workers die while they hold locks"
    );
    let [recoveries, replays, moves, lost @ ..] = totals.counts;
    assert!(recoveries > faults.kills / 10 && replays > 0 && moves > 0, "dead clients leave something to recover");
    assert!(totals.pending > faults.kills / 4, "they die among operations");
    let refused = totals.without_effect;
    assert!(refused <= MOST_REFUSED_PER_FAULT * (faults.stops + faults.kills), "{refused} operations were refused");
    assert_eq!(lost, [0; 3], "a mapped table is not lost");
}

/// Returns the length of a run over TCP.
fn remote_length() -> Duration {
    Duration::from_secs(if is_long() { 600 } else { 6 })
}

/// Checks that a run over TCP had enough faults and enough operations.
fn assert_enough_happened(run: &Run) {
    let (totals, faults) = (&run.totals, &run.faults);
    let least_kills = run.fabric.kills_per_s() / 2;
    assert!(run.per_s(faults.kills) >= least_kills, "{} kills a second", run.per_s(faults.kills));
    let operations_per_s = run.per_s(totals.answered);
    let least =
        if run.fabric == Fabric::Faulty { LEAST_FAULTY_OPERATIONS_PER_S } else { LEAST_REMOTE_OPERATIONS_PER_S };
    assert!(operations_per_s >= least, "{operations_per_s} operations a second");
    assert!(run.per_s(faults.stops) >= 5 && faults.kills_of_holders > 0, "workers die while they hold locks");
    let [recoveries, _, moves, ..] = totals.counts;
    assert!(recoveries > faults.kills / 10 && moves > 0, "dead clients leave something to recover");
    assert!(totals.pending > faults.kills / 4, "they die among operations");
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-SESSION-1] [R-SESSION-2] The same holds over TCP, where living clients
/// are fenced as well: they are recovered at once, and learn of it.
#[test]
fn histories_of_a_memory_node_are_linearizable() {
    let _alone = run_alone();
    let run = Run::of(Fabric::Tcp, remote_length());
    assert_enough_happened(&run);
    let [.., fenced, _, _] = run.totals.counts;
    assert!(run.per_s(run.faults.fences) >= 5 && run.faults.fences_of_holders > 0, "clients are fenced");
    assert!(fenced > run.faults.fences / 4, "{fenced} learned of it");
}

/// [R-SLOT-1] [R-RECOVER-1] [R-LOCK-3] The same holds with local and remote clients of one table, which recover each
/// other.
#[test]
fn histories_of_local_and_remote_clients_of_one_table_are_linearizable() {
    let _alone = run_alone();
    let run = Run::of(Fabric::Mixed, remote_length());
    assert_enough_happened(&run);
    let [_, replays, _, fenced, _, _] = run.totals.counts;
    assert!(replays > 0 || !is_long(), "dead clients leave commits that others complete");
    assert!(run.per_s(run.faults.fences) >= 2 && fenced > 0, "clients are fenced, and learn of it");
}

/// [R-OPEN-1] [R-SESSION-1] The same holds with a node that is killed and restarted: clients go on, nothing that was
/// acknowledged is lost, and operations that may have happened report an unknown effect.
#[test]
fn histories_of_a_node_that_is_killed_are_linearizable() {
    let _alone = run_alone();
    let run = Run::of(Fabric::Restarted, remote_length());
    assert_enough_happened(&run);
    let restarts = run.faults.restarts_ns.len() as u64;
    let [.., unknown] = run.totals.counts;
    println!("{restarts} restarts; {} times a process went on in another session", run.survivors);
    assert!(restarts >= run.length.as_secs(), "{restarts} kills of the node");
    assert!(run.survivors >= 2 * restarts, "{} went on", run.survivors);
    assert!(unknown > 0, "some clients lost their connection in a commit");
}

/// [R-SESSION-1] The same holds behind a proxy that delays, splits anywhere, and cuts connections in the middle of
/// frames.
#[test]
fn histories_behind_a_faulty_proxy_are_linearizable() {
    let _alone = run_alone();
    let run = Run::of(Fabric::Faulty, remote_length());
    assert_enough_happened(&run);
    let [pieces, delays, cuts] = run.proxy_counts;
    println!("{pieces} pieces, {delays} delays, {cuts} cuts");
    let [.., unknown] = run.totals.counts;
    assert!(pieces > 2 * run.totals.answered && delays > pieces / 40, "it splits and delays");
    assert!(run.per_s(cuts) >= 2, "it cuts");
    assert!(unknown > 0 || !is_long(), "it cuts in commits, too");
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-SESSION-1] [R-SESSION-2] The same holds over RDMA, where the node's
/// device executes what clients post: nothing of a client that was killed or fenced is executed once it is recovered.
#[test]
fn histories_over_rdma_are_linearizable() {
    if RdmaDevices::find("histories").is_none() {
        return;
    }
    let _alone = run_alone();
    let run = Run::of(Fabric::Rdma, Duration::from_secs(if is_long() { 60 } else { 10 }));
    let (totals, faults) = (&run.totals, &run.faults);
    assert!(run.per_s(faults.kills) >= 1 && run.per_s(faults.stops) >= 1, "workers are killed and stopped");
    let operations_per_s = run.per_s(totals.answered);
    assert!(operations_per_s >= LEAST_RDMA_OPERATIONS_PER_S, "{operations_per_s} operations a second");
    let [recoveries, _, moves, fenced, ..] = totals.counts;
    assert!(faults.kills_of_holders > 0 && totals.pending > 0, "workers die among operations");
    assert!(recoveries > 0 && moves > 0, "dead clients leave something to recover");
    assert!(faults.fences > 0 && fenced > 0, "clients are fenced, and learn of it");
}
