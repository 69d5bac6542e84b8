//! Histories of real processes, which must be linearizable.
//!
//! Eight processes read and change some tens of keys of one table, while one after the other is killed and replaced at
//! once, and others are stopped for 1 ms to 1 s. Each process records its calls before it makes them, and the
//! answers after it got them, in memory that the kernel keeps whatever happens to the process. A run consists of rounds
//! of some hundred faults, each with a table of its own, of one of three cases. After each round the dead clients are
//! recovered, the table is checked, and every key's history must be linearizable: an operation without an answer may
//! have happened or not, at any time, but all answers must fit. To show that the check can fail, each round then
//! falsifies answers, which must be detected.
//!
//! Where tables grow, each process also inserts keys of a share of its own, and the number of those that were
//! acknowledged is in that memory, too, so that it includes those of killed processes. An acknowledged key must be there
//! from then on, and such a table is never full. One test lets a table grow to many times the size that it was made for.
//!
//! The other tests do the same over TCP, with a memory node in a process of its own: clients are fenced while they
//! live, and learn of it; some clients map the table that the node serves; the node is killed and restarted; a proxy
//! delays, splits and cuts the connections.
//!
//! One test does the same over RDMA, if this machine has a device.
//!
//! A round ends when enough has happened in it, and a run when enough rounds have and enough was seen: no test depends
//! on how fast the machine is. With `GUIRA_LONG=1` there are ten times as many rounds. The test program
//! starts itself as the workers and the node, which get their arguments in environment variables.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

mod checker;
mod empty_restart;
mod fixture;
mod lock_monitor;
mod log;
mod node;
mod worker;
mod workers;

use std::time::Instant;

use guira::admin::ClientState;
use guira::{CreateOptions, Preset, Store};
use guira_conformance::{FaultyProxy, RdmaDevices};
use guira_testing::{is_long, patience};

use checker::Totals;
use fixture::{Fabric, Fixture};
use log::{SharedLog, now_ns};
use worker::{Share, key, value};
use workers::{FaultCounts, Workers};

const SEED: u64 = 23;
const PROCESSES: u64 = 8;
const KEYS: u64 = 40;
/// Entries for which most tables are made.
const CAPACITY: u64 = 200;
/// Entries left free for the keys in a table full of fillers. No worker changes the fillers; inserts have to move them.
const LEFT_FREE: u64 = KEYS + KEYS / 4;
/// Rounds from one report to the next, in long runs.
const REPORT_EVERY: u64 = 100;
/// A kind of table, and the longest value that is put into it.
#[derive(Clone, Copy)]
struct Case {
    preset: Preset,
    format: &'static str,
    longest_value: u64,
    /// Entries for which the table is made.
    capacity: u64,
    /// The inserts of the workers, if the table grows.
    growth: Option<Growth>,
}

/// The inserts that make a table grow.
#[derive(Clone, Copy)]
struct Growth {
    /// Keys that the table may have, after which the workers insert no more.
    max_capacity: u64,
    /// Whether the round lasts until the table has that many.
    is_filled: bool,
    /// Inserts of a worker for each operation that it records.
    inserts_per_operation: u64,
}

/// The cases: values in rows; values in rows and in extents; the same where rows are few and every insert moves
/// entries; and where segments are small and are split all the time.
const CASES: [Case; 4] = [
    Case::new(Preset::Hardened, "fixed:8:8", 8),
    Case::new(Preset::Hardened, "bytes:64", 3_000),
    Case::new(Preset::Tiny, "bytes:64", 500),
    Case {
        growth: Some(Growth { max_capacity: 1_000_000, is_filled: false, inserts_per_operation: 1 }),
        ..Case::new(Preset::Tiny, "bytes:64", 500)
    },
];

impl Case {
    /// Creates a case whose table does not grow.
    const fn new(preset: Preset, format: &'static str, longest_value: u64) -> Case {
        Case { preset, format, longest_value, capacity: CAPACITY, growth: None }
    }

    fn of(fabric: Fabric, round: u64) -> Case {
        if fabric == Fabric::Growing { Case::growing() } else { CASES[(round % rounds_of(fabric)) as usize] }
    }

    /// Returns the case of a table that grows to many times the size that it is made for, and no further. The fewer
    /// operations are recorded, the more of the deaths are in inserts.
    fn growing() -> Case {
        let (capacity, max_capacity, inserts_per_operation) =
            if is_long() { (1_000_000, 32_000_000, 64) } else { (20_000, 400_000, 2) };
        let growth = Some(Growth { max_capacity, is_filled: true, inserts_per_operation });
        Case { capacity, growth, ..Case::new(Preset::Hardened, "fixed:8:8", 8) }
    }

    fn options(&self, round: u64) -> CreateOptions {
        let options = CreateOptions::new(self.capacity)
            .format(self.format.parse().unwrap())
            .preset(self.preset)
            .max_clients(2 * PROCESSES as u16 + 8)
            .seed(SEED + round);
        match self.growth {
            Some(growth) => options.max_capacity(growth.max_capacity),
            None => options.extent_bytes(64 << 20),
        }
    }

    /// Fills the table, or puts some keys into one that grows, and returns how many fillers it has.
    fn fill(&self, store: &Store) -> u64 {
        let mut client = store.client().unwrap();
        if self.growth.is_some() {
            let mut put = |filler: u64| client.put(&key(filler), &value(filler, self.longest_value));
            (KEYS..KEYS + self.capacity).for_each(|filler| assert!(put(filler).is_ok()));
            return self.capacity;
        }
        let mut put = |filler: u64| client.put(&key(filler), &value(filler, self.longest_value)).is_ok();
        let fillers = (KEYS..).take_while(|filler| put(*filler)).count() as u64 - LEFT_FREE;
        for filler in (KEYS + fillers..).take(LEFT_FREE as usize) {
            assert!(client.remove(&key(filler)).unwrap());
        }
        fillers
    }

    /// Returns the inserts of the worker in `place`, one of [`PROCESSES`].
    fn share(&self, place: u64) -> Share {
        let first = KEYS + self.capacity;
        let keys = self.growth.map_or(0, |growth| (growth.max_capacity - first) / PROCESSES);
        let inserts_per_operation = self.growth.map_or(0, |growth| growth.inserts_per_operation);
        Share { place, first: first + place, keys, inserts_per_operation }
    }

    /// Returns the number of inserts after which a round may end.
    fn least_inserts(&self) -> u64 {
        self.growth.filter(|growth| growth.is_filled).map_or(0, |_| PROCESSES * self.share(0).keys)
    }

    /// Checks that no move and no split lost one of the `fillers`, or a key whose insert was acknowledged.
    fn assert_fillers(&self, store: &Store, fillers: u64, acknowledged: [u64; PROCESSES as usize]) {
        let mut reader = store.reader();
        let shares = (0..).zip(acknowledged).map(|(place, count)| (self.share(place), count));
        let inserted = shares.flat_map(|(share, count)| (0..count).map(move |index| share.key(index)));
        for filler in (KEYS..KEYS + fillers).chain(inserted) {
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

/// An event that must have happened a number of times before a run ends.
struct Goal {
    what: &'static str,
    count: u64,
    least: u64,
}

impl Goal {
    fn new(what: &'static str, count: u64, least: u64) -> Goal {
        Goal { what, count, least }
    }

    fn is_reached(&self) -> bool {
        self.count >= self.least
    }
}

/// A run: the faults of all its rounds, and the totals of their histories.
struct Run {
    fabric: Fabric,
    /// The fewest rounds. What must happen in a run is in proportion to them.
    least_rounds: u64,
    totals: Totals,
    faults: FaultCounts,
    /// Processes that were answered both before and after a kill of the node, summed over all kills.
    survivors: u64,
    /// Splits of segments.
    splits: u64,
    /// Acknowledged inserts of keys that make tables grow.
    inserts: u64,
    /// Pieces, delays and cuts of the proxy.
    proxy_counts: [u64; 3],
}

impl Run {
    /// Runs as many rounds as the fabric has, and more until all `goals` are reached.
    fn until(fabric: Fabric, goals: fn(&Run) -> Vec<Goal>) -> Run {
        let least_rounds = rounds(fabric);
        println!("seed {SEED}, {fabric:?}, {PROCESSES} processes, {KEYS} keys, {least_rounds} rounds or more");
        let (totals, faults) = (Totals::default(), FaultCounts::default());
        let (survivors, splits, inserts, proxy_counts) = (0, 0, 0, [0; 3]);
        let mut run = Run { fabric, least_rounds, totals, faults, survivors, splits, inserts, proxy_counts };
        let (mut log, start, mut late) = (SharedLog::create(), Instant::now(), None);
        for number in 0.. {
            if number >= least_rounds {
                let missing = goals(&run).into_iter().find(|goal| !goal.is_reached());
                let Some(Goal { what, count, least }) = missing else { break };
                let late = late.get_or_insert_with(Instant::now);
                assert!(late.elapsed() < patience(), "{what}: {count} of {least}; {}; {}", run.faults, run.totals);
            }
            run.round(number, &mut log);
            if (number + 1) % REPORT_EVERY == 0 {
                println!("{} of {least_rounds} rounds: {}; {}", number + 1, run.faults, run.totals);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{seconds:.0} s: {}; {}; {} inserts, {} splits", run.faults, run.totals, run.inserts, run.splits);
        assert_eq!(run.totals.detected, run.totals.falsified, "each falsified answer is detected");
        run
    }

    fn round(&mut self, number: u64, log: &mut SharedLog) {
        let case = Case::of(self.fabric, number);
        let mut fixture = Fixture::of(self.fabric, number);
        let fillers = case.fill(&fixture.store);
        let segments = fixture.store.stat().unwrap().table.segments;
        let began_ns = now_ns();
        let faults = Workers::start(&mut fixture, log, case, SEED ^ (number << 20)).run();
        assert_sound(&fixture.store);
        self.splits += fixture.store.stat().unwrap().table.segments - segments;
        let acknowledged = log.acknowledged();
        case.assert_fillers(&fixture.store, fillers, acknowledged);
        self.inserts += acknowledged.iter().sum::<u64>();
        let mut records = log.take(began_ns);
        records.add_final_reads(&fixture.store, case.longest_value);
        self.survivors += faults.restarts_ns.iter().map(|at_ns| records.survivors(*at_ns)).sum::<u64>();
        let proxy_counts = fixture.proxy.as_ref().map_or([0; 3], FaultyProxy::counts);
        self.proxy_counts.iter_mut().zip(proxy_counts).for_each(|(sum, count)| *sum += count);
        self.faults.add(&faults);
        self.totals.check(&records, number);
    }

    /// Returns the goals of every run: workers die while they hold locks, among operations, and leave something to
    /// recover, and the checker was shown falsified answers.
    fn common_goals(&self) -> Vec<Goal> {
        let (totals, faults, rounds) = (&self.totals, &self.faults, self.least_rounds);
        let kills = rounds * self.fabric.goals().kills;
        let [recoveries, _, moves, ..] = totals.counts;
        // Fewer operations over a rough way see fewer values that can be records from earlier ones.
        let falsified = match self.fabric {
            Fabric::Rdma if !is_long() => 0,
            Fabric::Faulty | Fabric::Rdma => 2,
            Fabric::Shm | Fabric::Growing | Fabric::Tcp | Fabric::Mixed | Fabric::Restarted => 3 * rounds + 1,
        };
        // Of a table that grows all the time, most kills interrupt inserts, which are not recorded.
        let interrupting = if self.fabric == Fabric::Growing { 20 } else { 4 };
        vec![
            Goal::new("kills of holders of a lock", faults.kills_of_holders, (kills / 20).max(1)),
            Goal::new("recoveries", recoveries, (kills / 10).max(1)),
            Goal::new("operations that a kill interrupted", totals.pending, (kills / interrupting).max(1)),
            Goal::new("moves", moves, 1),
            Goal::new("splits", self.splits, if self.fabric.grows() { 5 } else { 0 }),
            Goal::new("falsified answers", totals.falsified, falsified),
        ]
    }
}

/// Returns the fewest rounds of a run.
fn rounds(fabric: Fabric) -> u64 {
    // The table of a long run is larger instead.
    if is_long() && fabric != Fabric::Growing { 10 * rounds_of(fabric) } else { rounds_of(fabric) }
}

/// Returns the number of cases of a fabric, each of which has a round.
fn rounds_of(fabric: Fabric) -> u64 {
    match fabric {
        Fabric::Growing => 1,
        _ => CASES.iter().filter(|case| case.growth.is_none() || fabric.grows()).count() as u64,
    }
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-READ-9] While clients of a table are killed and stopped, each of its
/// keys is linearizable, no lock stays held, and nothing is lost.
#[test]
fn histories_of_killed_and_stopped_processes_are_linearizable() {
    let run = Run::until(Fabric::Shm, |run| {
        let [_, replays, ..] = run.totals.counts;
        run.common_goals().into_iter().chain([Goal::new("replays", replays, 1)]).collect()
    });
    let [.., fenced, lost, unknown] = run.totals.counts;
    assert_eq!([fenced, lost, unknown], [0; 3], "a mapped table is not lost");
}

/// [R-GROW-6] [R-GROW-8] [R-GROW-10] While a table grows to twenty times the size that it was made for, or with
/// `GUIRA_LONG=1` from 1 to 32 million keys, and clients are killed all the time, no client finds it full, no
/// acknowledged insert is lost, and the keys that clients change meanwhile are linearizable.
#[test]
fn histories_while_a_table_grows_to_many_times_its_size_are_linearizable() {
    let case = Case::growing();
    let run = Run::until(Fabric::Growing, |run| {
        // A segment has at most 1,024 rows of 7 entries, and the first ones are not much larger than they have to be.
        let splits = Case::growing().least_inserts() / (2 * 1_024 * 7);
        let kills = if is_long() { 500 } else { 20 };
        let own = [
            Goal::new("splits of a table that grows all the time", run.splits, splits),
            Goal::new("kills while the table grew", run.faults.kills_in_growth, kills),
        ];
        run.common_goals().into_iter().chain(own).collect()
    });
    assert!(run.inserts >= case.least_inserts(), "{} inserts were acknowledged", run.inserts);
    let [.., fenced, lost, unknown] = run.totals.counts;
    assert_eq!([fenced, lost, unknown], [0; 3], "a mapped table is not lost");
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-SESSION-1] [R-SESSION-2] The same holds over TCP, where living clients
/// are fenced as well: they are recovered at once, and learn of it.
#[test]
fn histories_of_a_memory_node_are_linearizable() {
    Run::until(Fabric::Tcp, |run| {
        let [.., fenced, _, _] = run.totals.counts;
        let own = [
            Goal::new("fences of holders of a lock", run.faults.fences_of_holders, 1),
            Goal::new("operations that report a fence", fenced, 3 * run.least_rounds),
        ];
        run.common_goals().into_iter().chain(own).collect()
    });
}

/// [R-SLOT-1] [R-RECOVER-1] [R-LOCK-3] The same holds with local and remote clients of one table, which recover each
/// other.
#[test]
fn histories_of_local_and_remote_clients_of_one_table_are_linearizable() {
    Run::until(Fabric::Mixed, |run| {
        let [_, replays, _, fenced, _, _] = run.totals.counts;
        let own = [
            Goal::new("commits that others complete", replays, u64::from(is_long())),
            Goal::new("operations that report a fence", fenced, 1),
        ];
        run.common_goals().into_iter().chain(own).collect()
    });
}

/// [R-OPEN-1] [R-SESSION-1] The same holds with a node that is killed and restarted: clients go on, nothing that was
/// acknowledged is lost, and operations that may have happened report an unknown effect.
#[test]
fn histories_of_a_node_that_is_killed_are_linearizable() {
    let run = Run::until(Fabric::Restarted, |run| {
        let [.., unknown] = run.totals.counts;
        let restarts = run.least_rounds * Fabric::Restarted.goals().restarts;
        let own = [
            Goal::new("times that a process went on in another session", run.survivors, 2 * restarts),
            Goal::new("commits whose connection was lost", unknown, 1),
        ];
        run.common_goals().into_iter().chain(own).collect()
    });
    println!("{} times a process went on in another session", run.survivors);
}

/// [R-SESSION-1] The same holds behind a proxy that delays, splits anywhere, and cuts connections in the middle of
/// frames.
#[test]
fn histories_behind_a_faulty_proxy_are_linearizable() {
    let run = Run::until(Fabric::Faulty, |run| {
        let [_, _, cuts] = run.proxy_counts;
        let [.., unknown] = run.totals.counts;
        let own = [
            Goal::new("cuts", cuts, 4 * run.least_rounds),
            Goal::new("cuts in commits", unknown, u64::from(is_long())),
        ];
        run.common_goals().into_iter().chain(own).collect()
    });
    let [pieces, delays, cuts] = run.proxy_counts;
    println!("{pieces} pieces, {delays} delays, {cuts} cuts");
    assert!(pieces > 2 * run.totals.answered && delays > pieces / 40, "it splits and delays");
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-SESSION-1] [R-SESSION-2] The same holds over RDMA, where the node's
/// device executes what clients post: nothing of a client that was killed or fenced is executed once it is recovered.
#[test]
fn histories_over_rdma_are_linearizable() {
    if RdmaDevices::find("histories").is_none() {
        return;
    }
    Run::until(Fabric::Rdma, |run| {
        let [.., fenced, _, _] = run.totals.counts;
        let own = [Goal::new("operations that report a fence", fenced, 1)];
        run.common_goals().into_iter().chain(own).collect()
    });
}
