//! Histories of real processes, checked linearizable.
//!
//! Eight processes read and change some tens of keys of one table, while one of them is killed every 20 ms and replaced
//! at once, and others are stopped for 1 ms to 1 s. Each writes down what it asks before it asks, and what it was
//! answered: the kernel keeps that, whatever happens to the process. A run is made of rounds of some seconds, each on a
//! table of its own, in one of three shapes; after each the dead are recovered, the table is checked, and every key's
//! history must be linearizable: what nobody was told may have happened or not, at any time, but everything that
//! somebody was told must fit. To show that the histories could tell, each round then falsifies answers, which must be
//! found.
//!
//! The same over TCP, with a memory node that is a process of its own: clients are shut out while they live, too, and
//! learn it; others map the table that the node serves; the node is killed and started again; what goes between them is
//! delayed, split and cut.
//!
//! Twenty seconds for shared memory, and six for each way over TCP; an hour, and ten minutes, with `GUIRA_LONG=1`.
//! The test program starts itself again as the workers and the node, told by an environment variable.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

mod crew;
mod emptied;
mod log;
mod node;
mod scene;
mod verdict;
mod watch;
mod worker;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guira::admin::ClientState;
use guira::{CreateOptions, Preset, Store};

use crate::common::rough::Rough;
use crew::{Crew, Deeds};
use log::{Shared, now_ns};
use scene::{Fabric, Scene};
use verdict::Sums;
use worker::{key, value};

const SEED: u64 = 23;
const PROCESSES: u64 = 8;
const KEYS: u64 = 40;
/// Entries a table is made for.
const CAPACITY: u64 = 200;
/// What is left free for the keys, of a table full of fillers: nobody changes these, and they make inserts move them.
const LEFT_FREE: u64 = KEYS + KEYS / 4;
/// As many kills a second as the issue of hardened recovery demands, and fewer on a busy machine.
const KILLS_PER_S: u64 = 50;
const LEAST_KILLS_PER_S: u64 = 40;
const ROUND: Duration = Duration::from_secs(2);
/// Rounds from one report to the next, in long runs.
const TOLD_EVERY: u64 = 100;
/// Operations that are refused, for each process that is stopped or killed: the others wait for it for their patience,
/// each operation of theirs, while they do others.
const MOST_REFUSED_EACH: u64 = 10;
/// Operations a second, on a machine of two slow cores that does other things, too.
const LEAST_OPERATIONS_PER_S: u64 = 2_000;
/// The same over TCP, where each takes several switches between processes.
const LEAST_REMOTE_OPERATIONS_PER_S: u64 = 200;
/// The same where each of a frame's pieces takes two more, and some are delayed.
const LEAST_ROUGH_OPERATIONS_PER_S: u64 = 60;

/// A table, and the values that are put into it.
#[derive(Clone, Copy)]
struct Shape {
    preset: Preset,
    format: &'static str,
    longest_value: u64,
}

/// Values in rows; values in rows and in extents; both where rows are few and every insert moves others.
const SHAPES: [Shape; 3] = [
    Shape { preset: Preset::Hardened, format: "fixed:8:8", longest_value: 8 },
    Shape { preset: Preset::Hardened, format: "bytes:64", longest_value: 3_000 },
    Shape { preset: Preset::Tiny, format: "bytes:64", longest_value: 500 },
];

fn is_long() -> bool {
    std::env::var("GUIRA_LONG").is_ok_and(|long| long == "1")
}

/// One test at a time: each wants the machine for itself, as far as it goes.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shape {
    fn of(round: u64) -> Shape {
        SHAPES[round as usize % SHAPES.len()]
    }

    fn options(&self, round: u64) -> CreateOptions {
        CreateOptions::new(CAPACITY)
            .format(self.format.parse().unwrap())
            .preset(self.preset)
            .max_clients(2 * PROCESSES as u16 + 8)
            .extent_bytes(64 << 20)
            .seed(SEED + round)
    }

    /// Fills the table; how many fillers it has.
    fn fill(&self, store: &Store) -> u64 {
        let mut client = store.client().unwrap();
        let mut put = |filler: u64| client.put(&key(filler), &value(filler, self.longest_value)).is_ok();
        let fillers = (KEYS..).take_while(|filler| put(*filler)).count() as u64 - LEFT_FREE;
        for filler in (KEYS + fillers..).take(LEFT_FREE as usize) {
            assert!(client.remove(&key(filler)).unwrap());
        }
        fillers
    }

    /// No move lost one of them.
    fn assert_fillers(&self, store: &Store, fillers: u64) {
        let mut reader = store.reader();
        for filler in KEYS..KEYS + fillers {
            let found = reader.get(&key(filler)).unwrap();
            assert!(found == Some(value(filler, self.longest_value)), "filler {filler}: {found:02x?}");
        }
    }
}

/// After the last worker has ended: everybody who died is recovered, and the table is sound.
fn assert_sound(store: &Store) {
    let slots = store.stat().unwrap().max_clients;
    // As many clients as there are slots: whoever died is recovered.
    let all: Vec<_> = (0..slots).map(|_| store.client().unwrap()).collect();
    assert!(store.stat().unwrap().clients.iter().all(|client| client.state == ClientState::Live));
    drop(all);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.held_locks, 0, "every lock is free");
    assert!(store.stat().unwrap().clients.is_empty());
}

/// What was done in all rounds, and what their histories say.
struct Run {
    fabric: Fabric,
    length: Duration,
    sums: Sums,
    deeds: Deeds,
    /// Processes that were answered before the node ended and after it, of all its ends.
    survivors: u64,
    /// Pieces, delays and cuts of a rough way.
    roughness: [u64; 3],
}

impl Run {
    fn of(fabric: Fabric, length: Duration) -> Run {
        println!("seed {SEED}, {fabric:?}, {PROCESSES} processes, {KEYS} keys, rounds of {ROUND:?}, {length:?} in all");
        let (sums, deeds) = (Sums::default(), Deeds::default());
        let mut run = Run { fabric, length, sums, deeds, survivors: 0, roughness: [0; 3] };
        let (mut log, start) = (Shared::create(), Instant::now());
        for number in 0..run.rounds() {
            run.round(number, &mut log);
            if (number + 1) % TOLD_EVERY == 0 {
                println!("{} of {} rounds: {}; {}", number + 1, run.rounds(), run.deeds, run.sums);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{} rounds in {seconds:.0} s: {}; {}", run.rounds(), run.deeds, run.sums);
        assert_eq!(run.sums.found_falsehoods, run.sums.falsehoods, "the histories are sharp");
        // Fewer operations over a rough way see fewer values that can be told from earlier ones.
        let least = if fabric == Fabric::Rough { 1 } else { 3 * run.rounds() };
        assert!(run.sums.falsehoods > least, "{} answers falsified", run.sums.falsehoods);
        run
    }

    fn rounds(&self) -> u64 {
        self.length.as_secs() / ROUND.as_secs()
    }

    fn round(&mut self, number: u64, log: &mut Shared) {
        let shape = Shape::of(number);
        let mut scene = Scene::of(self.fabric, number);
        let fillers = shape.fill(&scene.store);
        let began_ns = now_ns();
        let deeds = Crew::start(&mut scene, log, shape.longest_value, SEED ^ (number << 20)).run();
        assert_sound(&scene.store);
        shape.assert_fillers(&scene.store, fillers);
        let mut told = log.take(began_ns);
        told.last_reads(&scene.store, shape.longest_value);
        self.survivors += deeds.restarts_ns.iter().map(|at_ns| told.survivors(*at_ns)).sum::<u64>();
        let roughness = scene.proxy.as_ref().map_or([0; 3], Rough::done);
        self.roughness.iter_mut().zip(roughness).for_each(|(sum, count)| *sum += count);
        self.deeds.add(&deeds);
        self.sums.judge(&told, number);
    }

    fn per_s(&self, count: u64) -> u64 {
        count / self.length.as_secs()
    }
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-READ-9] Whatever happens to the clients of a table, each of its keys is
/// linearizable, no lock stays held, and nothing is lost.
#[test]
fn histories_of_killed_and_stopped_processes_are_linearizable() {
    let _turn = turn();
    let run = Run::of(Fabric::Shm, Duration::from_secs(if is_long() { 3_600 } else { 20 }));
    let (sums, deeds) = (&run.sums, &run.deeds);
    assert!(run.per_s(deeds.kills) >= LEAST_KILLS_PER_S, "{} kills a second", run.per_s(deeds.kills));
    let operations_per_s = run.per_s(sums.answered);
    assert!(operations_per_s >= LEAST_OPERATIONS_PER_S, "{operations_per_s} operations a second");
    assert!(run.per_s(deeds.stops) >= 5 && deeds.kills_of_holders > deeds.kills / 20, "at moments of interest");
    let [recoveries, replays, moves, lost @ ..] = sums.counts;
    assert!(recoveries > deeds.kills / 10 && replays > 0 && moves > 0, "the dead leave something");
    assert!(sums.pending > deeds.kills / 4, "they die among operations");
    let refused = sums.without_effect;
    assert!(refused <= MOST_REFUSED_EACH * (deeds.stops + deeds.kills), "{refused} operations were refused");
    assert_eq!(lost, [0; 3], "what is mapped is not lost");
}

/// As long as a run over TCP takes.
fn remote_length() -> Duration {
    Duration::from_secs(if is_long() { 600 } else { 6 })
}

/// What every run over TCP has to come to.
fn assert_eventful(run: &Run) {
    let (sums, deeds) = (&run.sums, &run.deeds);
    let least_kills = run.fabric.kills_per_s() / 2;
    assert!(run.per_s(deeds.kills) >= least_kills, "{} kills a second", run.per_s(deeds.kills));
    let operations_per_s = run.per_s(sums.answered);
    let least = if run.fabric == Fabric::Rough { LEAST_ROUGH_OPERATIONS_PER_S } else { LEAST_REMOTE_OPERATIONS_PER_S };
    assert!(operations_per_s >= least, "{operations_per_s} operations a second");
    assert!(run.per_s(deeds.stops) >= 5 && deeds.kills_of_holders > 0, "at moments of interest");
    let [recoveries, _, moves, ..] = sums.counts;
    assert!(recoveries > deeds.kills / 10 && moves > 0, "the dead leave something");
    assert!(sums.pending > deeds.kills / 4, "they die among operations");
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-SESSION-1] [R-SESSION-2] The same over TCP, where clients are shut out
/// while they live, too: they are recovered at once, and learn it.
#[test]
fn histories_of_a_memory_node_are_linearizable() {
    let _turn = turn();
    let run = Run::of(Fabric::Tcp, remote_length());
    assert_eventful(&run);
    let [.., fenced, _, _] = run.sums.counts;
    assert!(run.per_s(run.deeds.fences) >= 5 && run.deeds.fences_of_holders > 0, "clients are shut out");
    assert!(fenced > run.deeds.fences / 4, "{fenced} were told of it");
}

/// [R-SLOT-1] [R-RECOVER-1] [R-LOCK-3] The same with clients of both kinds on one table: each recovers the other.
#[test]
fn histories_of_local_and_remote_clients_of_one_table_are_linearizable() {
    let _turn = turn();
    let run = Run::of(Fabric::Mixed, remote_length());
    assert_eventful(&run);
    let [_, replays, _, fenced, _, _] = run.sums.counts;
    assert!(replays > 0 || !is_long(), "the dead leave commits that others complete");
    assert!(run.per_s(run.deeds.fences) >= 2 && fenced > 0, "clients are shut out, and learn it");
}

/// [R-OPEN-1] [R-SESSION-1] The same over a node that is killed and started again: clients go on, nothing that was
/// acknowledged is lost, and what is not known to have happened is said to be so.
#[test]
fn histories_of_a_node_that_is_killed_are_linearizable() {
    let _turn = turn();
    let run = Run::of(Fabric::Restarted, remote_length());
    assert_eventful(&run);
    let restarts = run.deeds.restarts_ns.len() as u64;
    let [.., unknown] = run.sums.counts;
    println!("{restarts} times {} processes went on in another session", run.survivors);
    assert!(restarts >= run.length.as_secs(), "{restarts} ends of the node");
    assert!(run.survivors >= 2 * restarts, "{} went on", run.survivors);
    assert!(unknown > 0, "some lost their connection in a commit");
}

/// [R-SESSION-1] The same through a proxy that delays, splits anywhere, and cuts connections in the middle of frames.
#[test]
fn histories_over_a_rough_way_are_linearizable() {
    let _turn = turn();
    let run = Run::of(Fabric::Rough, remote_length());
    assert_eventful(&run);
    let [pieces, delays, cuts] = run.roughness;
    println!("{pieces} pieces, {delays} delays, {cuts} cuts");
    let [.., unknown] = run.sums.counts;
    assert!(pieces > 2 * run.sums.answered && delays > pieces / 40, "it splits and delays");
    assert!(run.per_s(cuts) >= 2, "it cuts");
    assert!(unknown > 0 || !is_long(), "also in commits");
}
