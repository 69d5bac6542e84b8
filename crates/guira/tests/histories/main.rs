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
//! A minute; an hour with `GUIRA_LONG=1`. The test program starts itself again as the workers, told by an environment
//! variable.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

#[path = "../common/mod.rs"]
mod common;
mod crew;
mod log;
#[path = "../common/rng.rs"]
mod rng;
mod verdict;
mod watch;
mod worker;

use std::time::{Duration, Instant};

use guira::{ClientState, CreateOptions, Preset, Store};

use common::Table;
use crew::{Crew, Deeds};
use log::{Shared, now_ns};
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

fn length() -> Duration {
    let is_long = std::env::var("GUIRA_LONG").is_ok_and(|long| long == "1");
    Duration::from_secs(if is_long { 3_600 } else { 60 })
}

impl Shape {
    /// The table, and how many fillers it has.
    fn create(&self, round: u64) -> (Table, Store, u64) {
        let options = CreateOptions::new(CAPACITY)
            .format(self.format.parse().unwrap())
            .preset(self.preset)
            .max_clients(PROCESSES as u16 + 8)
            .extent_bytes(64 << 20)
            .seed(SEED + round);
        let (table, store) = Table::create(&options);
        let mut client = store.client().unwrap();
        let mut put = |filler: u64| client.put(&key(filler), &value(filler, self.longest_value)).is_ok();
        let fillers = (KEYS..).take_while(|filler| put(*filler)).count() as u64 - LEFT_FREE;
        for filler in (KEYS + fillers..).take(LEFT_FREE as usize) {
            assert!(client.remove(&key(filler)).unwrap());
        }
        (table, store, fillers)
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

/// One round: what was done to the processes, and what their histories say.
fn round(number: u64, log: &mut Shared, sums: &mut Sums, deeds: &mut Deeds) {
    let shape = SHAPES[number as usize % SHAPES.len()];
    let (table, store, fillers) = shape.create(number);
    let began_ns = now_ns();
    let mut crew = Crew::start(&table.url, &store, log, shape.longest_value, SEED ^ (number << 20));
    deeds.add(crew.run());
    assert_sound(&store);
    shape.assert_fillers(&store, fillers);
    let mut told = log.take(began_ns);
    told.last_reads(&store, shape.longest_value);
    sums.judge(&told, number);
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] [R-READ-9] Whatever happens to the clients of a table, each of its keys is
/// linearizable, no lock stays held, and nothing is lost.
#[test]
fn histories_of_killed_and_stopped_processes_are_linearizable() {
    println!("seed {SEED}, {PROCESSES} processes, {KEYS} keys, rounds of {ROUND:?}, {:?} in all", length());
    let (mut sums, mut deeds, start) = (Sums::default(), Deeds::default(), Instant::now());
    let (mut log, rounds) = (Shared::create(), length().as_secs() / ROUND.as_secs());
    for number in 0..rounds {
        round(number, &mut log, &mut sums, &mut deeds);
        if (number + 1) % TOLD_EVERY == 0 {
            println!("{} of {rounds} rounds: {deeds}; {sums}", number + 1);
        }
    }
    println!("{rounds} rounds in {:.0} s: {deeds}; {sums}", start.elapsed().as_secs_f64());
    let per_s = |count: u64| count / length().as_secs();
    assert!(per_s(deeds.kills) >= LEAST_KILLS_PER_S, "{} kills a second", per_s(deeds.kills));
    assert!(per_s(sums.answered) >= LEAST_OPERATIONS_PER_S, "{} operations a second", per_s(sums.answered));
    assert!(per_s(deeds.stops) >= 5 && deeds.kills_of_holders > deeds.kills / 20, "at moments of interest");
    let [recoveries, replays, moves] = sums.counts;
    assert!(recoveries > deeds.kills / 10 && replays > 0 && moves > 0, "the dead leave something");
    assert!(sums.pending > deeds.kills / 4, "they die among operations");
    let refused = sums.without_effect;
    assert!(refused <= MOST_REFUSED_EACH * (deeds.stops + deeds.kills), "{refused} operations were refused");
    assert_eq!(sums.found_falsehoods, sums.falsehoods, "the histories are sharp");
    assert!(sums.falsehoods > 3 * rounds);
}
