//! Reuse of memory: tables under endless updates of values from 100 B to 1 MiB do not grow after a warm-up.
//!
//! Every client updates every key, so most extents are freed by another client than the one that owns their chunk.
//! Sizes are drawn log-uniformly, so every size class is used all the time. For clients of one process, for clients
//! that open and close, and for four processes: no operation reports `Full`, chunks in use never exceed a stated bound
//! and do not creep up, values are whole, and the table is sound at the end. With `GUIRA_LONG=1` the tests run ten
//! times as long.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use guira::{Blame, CreateOptions, Store, Url};
use guira_fabric::SplitMix64;

use crate::common::Table;

const WORKER: &str = "GUIRA_TEST_REUSE";
const CLIENTS: u64 = 4;
const KEYS: u64 = 400;
const SMALLEST_BYTES: f64 = 100.0;
const LARGEST_BYTES: f64 = (1 << 20) as f64;
/// Bytes for extents: 1,024 chunks of 256 KiB.
const EXTENT_BYTES: u64 = 256 << 20;
/// Updates of one round; the first round is the warm-up.
const ROUND: u64 = 2_000;
const ROUNDS: u64 = 8;
/// Empty chunks that a client keeps: docs/space.md.
const RESERVE_CHUNKS: u64 = 8;
/// Chunks by which the maxima of the earlier and later rounds may differ by chance: 1/16 of all. Without reuse each
/// round adds more.
const CREEP_CHUNKS: u64 = 64;

/// Draws a size log-uniformly from the smallest to the largest: every octave is equally likely.
fn drawn_bytes(rng: &mut SplitMix64) -> usize {
    let unit = rng.unit_f64();
    (SMALLEST_BYTES * (LARGEST_BYTES / SMALLEST_BYTES).powf(unit)) as usize
}

/// Returns the factor of the number of rounds.
fn scale() -> u64 {
    if guira_testing::is_long() { 10 } else { 1 }
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Returns a value: the key's number and a count, then words that depend on both and on their position.
fn value(number: u64, count: u64, bytes: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes + 8);
    value.extend([number, count].map(u64::to_le_bytes).concat());
    for i in 2..bytes.div_ceil(8) as u64 {
        value.extend((number * 3 + count * 7 + i).to_le_bytes());
    }
    value.truncate(bytes);
    value
}

fn verify(number: u64, found: &[u8]) {
    let word = |i: usize| u64::from_le_bytes(found[8 * i..8 * i + 8].try_into().expect("16 bytes at least"));
    assert_eq!(word(0), number, "a value of another key");
    assert!(found == value(number, word(1), found.len()), "a torn value of key {number}");
}

fn create(keys: u64, extent_bytes: u64) -> (Table, Store) {
    Table::create(&CreateOptions::new(keys).extent_bytes(extent_bytes).seed(3))
}

fn open_clients(store: &Store) -> Vec<guira::Client> {
    (0..CLIENTS).map(|_| store.client().expect("a free slot")).collect()
}

/// The largest numbers that were seen in a round.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    /// Chunks in use.
    chunks: u64,
    /// Bytes of the slots of extents that entries refer to.
    place_bytes: u64,
    /// Size classes in use at the same time.
    classes: u64,
}

impl Peak {
    fn sample(&mut self, store: &Store) {
        let table = store.stat().expect("the table can be read").table;
        self.chunks = self.chunks.max(table.chunks.in_use());
        self.place_bytes = self.place_bytes.max(table.space.place_bytes);
        self.classes = self.classes.max(table.space.classes.len() as u64);
    }
}

/// Updates a key drawn from `rng`, and in every fourth call reads another.
fn step(client: &mut guira::Client, rng: &mut SplitMix64, count: u64) {
    let (number, bytes) = (rng.below(KEYS), drawn_bytes(rng));
    client.put(&key(number), &value(number, count, bytes)).expect("there is room");
    if count.is_multiple_of(4) {
        let number = rng.below(KEYS);
        if let Some(found) = client.get(&key(number)).expect("the table can be read") {
            verify(number, &found);
        }
    }
}

/// Checks that chunks in use stay under the bound that docs/space.md gives, and that after the first round, the
/// warm-up, the later half of the rounds uses hardly more than the earlier one.
fn assert_steady(name: &str, rounds: &[Peak], store: &Store) {
    let chunk_bytes = store.table().config().chunk_bytes;
    println!("{name}: most chunks in use: {:?}", rounds.iter().map(|peak| peak.chunks).collect::<Vec<_>>());
    for peak in rounds {
        let bound = CLIENTS * (peak.classes + RESERVE_CHUNKS) + (peak.place_bytes * 4 / 3).div_ceil(chunk_bytes);
        assert!(peak.chunks <= bound, "{name}: {peak:?}, the bound is {bound}");
    }
    let (earlier, later) = rounds[1..].split_at(rounds.len() / 2);
    let chunks = |rounds: &[Peak]| rounds.iter().map(|peak| peak.chunks).max().expect("rounds");
    assert!(chunks(later) <= chunks(earlier) + CREEP_CHUNKS, "{name}: {rounds:?}");
}

fn assert_sound(store: &Store) {
    let report = store.check().expect("the table can be read");
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.unreferenced_extents, 0);
    let mut reader = store.reader();
    for number in 0..KEYS {
        if let Some(found) = reader.get(&key(number)).expect("the table can be read") {
            verify(number, &found);
        }
    }
}

/// Runs clients of one process that update keys, in an order drawn with `seed`. Before `replaced_percent` of the
/// updates, the client that is to update is closed and replaced.
fn churn(name: &str, seed: u64, replaced_percent: u64) {
    let (_table, store) = create(2 * KEYS, EXTENT_BYTES);
    let mut rng = SplitMix64(seed);
    let mut clients = open_clients(&store);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS * scale() {
        let mut peak = Peak::default();
        for count in 0..ROUND {
            let turn = rng.below(CLIENTS) as usize;
            if rng.below(100) < replaced_percent {
                clients.remove(turn);
                clients.insert(turn, store.client().expect("a free slot"));
            }
            step(&mut clients[turn], &mut rng, count);
            if count.is_multiple_of(100) {
                peak.sample(&store);
            }
        }
        rounds.push(peak);
    }
    assert_steady(name, &rounds, &store);
    drop(clients);
    assert_sound(&store);
}

/// [R-EXTENT-4] [R-EXTENT-5] Clients of one process update keys in an order that is the same in each run.
#[test]
fn clients_in_turn_reuse_space() {
    churn("clients in turn", 11, 0);
}

/// [R-EXTENT-2] [R-EXTENT-5] The extents and chunks of closed clients are freed and adopted by others.
#[test]
fn clients_that_open_and_close_reuse_space() {
    churn("clients that come and go", 12, 1);
}

/// Runs as a worker if the environment asks for it, one round for each line it reads; does nothing otherwise.
#[test]
fn worker() {
    let Ok(arguments) = std::env::var(WORKER) else { return };
    let (url, seed) = arguments.split_once(',').expect("an address and a seed");
    let mut rng = SplitMix64(seed.parse().expect("a number"));
    let store = Store::open(url).expect("the table exists");
    let mut client = store.client().expect("a free slot");
    for line in std::io::stdin().lines() {
        let steps = line.expect("the parent lives").parse().expect("a number");
        (0..steps).for_each(|count| step(&mut client, &mut rng, count));
        println!("\nround done");
    }
}

struct Worker {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(url: &Url, seed: u64) -> Worker {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "reuse::worker", "--nocapture"])
            .env(WORKER, format!("{url},{seed}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Worker { child, output }
    }

    fn begin(&mut self, steps: u64) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{steps}").expect("the worker lives");
    }

    fn wait(&mut self) {
        let mut line = String::new();
        while line.trim() != "round done" {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).expect("a pipe"), 0, "a worker failed: see its message above");
        }
    }
}

/// [R-EXTENT-5] Four processes update keys at the same time, and the table is sampled meanwhile.
#[test]
fn four_processes_reuse_space() {
    let (table, store) = create(2 * KEYS, EXTENT_BYTES);
    let mut workers: Vec<Worker> = (0..CLIENTS).map(|id| Worker::start(&table.url, 100 + id)).collect();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS * scale() {
        workers.iter_mut().for_each(|worker| worker.begin(ROUND / CLIENTS));
        let mut peak = Peak::default();
        std::thread::scope(|scope| {
            let done = scope.spawn(|| workers.iter_mut().for_each(Worker::wait));
            while !done.is_finished() {
                peak.sample(&store);
                std::thread::sleep(Duration::from_millis(5));
            }
            done.join().expect("all workers live");
        });
        peak.sample(&store);
        rounds.push(peak);
    }
    for mut worker in workers {
        drop(worker.child.stdin.take());
        assert!(worker.child.wait().expect("a process").success(), "a worker failed: see its message above");
    }
    assert_steady("four processes", &rounds, &store);
    assert_sound(&store);
}

/// Puts values of `bytes` under new keys until there is no room, and returns how many were stored.
fn fill(client: &mut guira::Client, first: u64, bytes: usize) -> u64 {
    for number in first.. {
        if let Err(error) = client.put(&key(number), &value(number, 0, bytes)) {
            assert_eq!(error.blame(), Blame::Full, "{error}");
            return number - first;
        }
    }
    unreachable!("the table is finite")
}

fn remove(client: &mut guira::Client, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert!(client.remove(&key(number)).expect("the table is sound"));
    }
}

/// [R-EXTENT-5] A working client releases the space that others freed in its chunks, whatever class it works in; an
/// idle one does so on request.
#[test]
fn an_owner_releases_space_that_others_freed() {
    let (_table, store) = create(60_000, 16 << 20);
    let (mut owner, mut other) = (store.client().expect("a free slot"), store.client().expect("a free slot"));
    let peak = fill(&mut owner, 0, 1_000);
    remove(&mut other, 0..peak);
    // No other client may hand out slots in chunks of a living client.
    assert_eq!(fill(&mut other, 0, 20_000), 0, "the owner is idle");
    assert!(store.stat().expect("the table can be read").table.chunks.owned > 200);
    owner.release_memory().expect("the table is sound");
    let large = fill(&mut other, 0, 20_000);
    assert!(large > 500, "{large} values of 20,000 bytes");
    // Now without a request: a few hundred updates of one key, in a class of their own.
    remove(&mut owner, 0..large);
    for count in 0..400 {
        other.put(&key(0), &value(0, count, 200)).expect("a free slot, or a free chunk");
    }
    let again = fill(&mut owner, 1, 1_000);
    assert!(again * 100 >= peak * 90, "{again} values of 1,000 bytes, {peak} at first");
    remove(&mut owner, 1..again + 1);
    drop((owner, other));
    assert!(store.check().expect("the table can be read").is_clean());
}

/// [R-EXTENT-2] [R-EXTENT-6] Large values, each a run of 113 to 177 of 1,024 chunks, find adjacent free chunks beside small
/// values that are updated all the time, and that have used every chunk.
#[test]
fn runs_of_free_chunks_are_found_beside_small_values() {
    let (_table, store) = create(2 * KEYS, 128 << 20);
    let mut rng = SplitMix64(13);
    let mut clients = open_clients(&store);
    let (mut longest, mut free) = (u64::MAX, 0);
    for count in 0..ROUND * scale() {
        let turn = rng.below(CLIENTS) as usize;
        let (number, bytes) = (rng.below(KEYS), drawn_bytes(&mut rng) / 8 + 16);
        clients[turn].put(&key(number), &value(number, count, bytes)).expect("there is room");
        if count.is_multiple_of(50) {
            let bytes = (14 << 20) + rng.below(8 << 20) as usize;
            clients[turn].put(&key(KEYS), &value(KEYS, count, bytes)).expect("a run is free");
            let table = store.stat().expect("the table can be read").table;
            if table.space.longest_free_run < longest {
                (longest, free) = (table.space.longest_free_run, table.chunks.free);
            }
        }
    }
    println!("runs: at worst {longest} adjacent chunks of {free} free ones");
    drop(clients);
    assert_sound(&store);
}
