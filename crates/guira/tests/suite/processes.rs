//! Eight real processes on one table, with mixed operations on a thousand hot keys.
//!
//! Each value contains its key, its writer, and the writer's count. So every reader can check that a value was written
//! for its key, that no writer's count ever goes back, and that a key that is never removed is never missed. The test
//! program starts itself as the workers, which get their arguments in environment variables.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guira::admin::{Cause, ClientState, ProblemKind};
use guira::{CreateOptions, OpenOptions, Preset, Store, Url};
use guira_fabric::{Lane, Region, SplitMix64, Submitted, Verb};
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_layout::OwnerId;
use guira_testing::is_long;

use crate::common::Table;

const PROCESSES: u64 = 8;
const HOT_KEYS: u64 = 1_000;
const WORKER: &str = "GUIRA_TEST_WORKER";
const EXITS_WITHOUT_CLOSING: &str = "GUIRA_TEST_EXITS_WITHOUT_CLOSING";

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Returns a value: key, writer and count, then bytes that depend on all three.
fn value(number: u64, writer: u64, count: u64, bytes: usize) -> Vec<u8> {
    let mut value = [number, writer, count].map(u64::to_le_bytes).concat();
    value.extend((24..bytes).map(|i| (number * 3 + writer * 5 + count * 7 + i as u64) as u8));
    value
}

/// Returns the writer and the count of a value, which must be whole.
fn parse(number: u64, found: &[u8]) -> (u64, u64) {
    let word = |i: usize| u64::from_le_bytes(found[8 * i..8 * i + 8].try_into().expect("24 bytes at least"));
    let (writer, count) = (word(1), word(2));
    assert_eq!(word(0), number, "a value of another key");
    assert!(found == value(number, writer, count, found.len()), "a torn value of key {number}");
    (writer, count)
}

/// Whether the key is never removed, as keys with an even number.
fn is_permanent(number: u64) -> bool {
    number.is_multiple_of(2)
}

/// Runs as a process that ends without closing its client, if the environment asks for it; does nothing otherwise.
#[test]
fn exits_without_closing() {
    let Ok(arguments) = std::env::var(EXITS_WITHOUT_CLOSING) else { return };
    let client = Store::open(arguments).unwrap().client().unwrap();
    println!("slot {}", client.slot());
    std::process::exit(0);
}

/// [R-SLOT-1] [R-RECOVER-1] `stat` and `check` report dead clients and the locks they hold, and a client that needs
/// these locks recovers them.
#[test]
fn dead_clients_are_distinguished_from_living_ones() {
    let (table, store) = Table::create(&CreateOptions::new(1_000).format("fixed:8:8".parse().unwrap()));
    let url = &table.url;
    let arguments = ["--exact", "processes::exits_without_closing", "--nocapture"];
    let child = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env(EXITS_WITHOUT_CLOSING, url.to_string())
        .output();
    assert!(child.unwrap().status.success());
    let mut living = store.client().unwrap();
    let stat = store.stat().unwrap();
    let dead: Vec<_> = stat.clients.iter().filter(|client| client.state == ClientState::Dead).collect();
    assert_eq!((stat.clients.len(), dead.len()), (2, 1), "{stat:?}");
    assert!(store.check().unwrap().is_clean(), "a dead client that holds nothing is no problem");
    // As if it had died with the lock of this key's first row.
    let table = store.table();
    let row = table.placement().rows(table.placement().digest(&[1; 8])).first;
    let mask = table.locks().mask(table.locks().lock_of(row));
    let region = ShmRegion::open(&Location::file(&stat.region.file().unwrap().path), Access::ReadWrite).unwrap();
    let (addr, add) = (table.locks().addr(mask.word), table.locks().held(OwnerId::of_slot(dead[0].slot), mask.mask));
    let mut found = 0;
    let submitted = region.lane().submit(&mut [Verb::FetchAdd { addr, add, found: &mut found }]);
    assert!(matches!(submitted, Submitted::Done(Ok(()))));
    let report = store.check().unwrap();
    assert!(report.is_clean(), "a client that needs the lock recovers it: {report:?}");
    assert_eq!((report.dead_clients, report.under_way_total, report.under_way.len()), (1, 1, 1), "{report:?}");
    assert_eq!((report.under_way[0].kind, report.under_way[0].cause), (ProblemKind::StuckLock, Cause::DeadClient));
    assert_eq!(living.get(&[1; 8]).unwrap(), None, "reads go on");
    // A client that waits for no other one probes it all the same.
    let hasty = OpenOptions::default().deadline(Duration::ZERO);
    let mut hasty = Store::open_with(url, &hasty).unwrap().client().unwrap();
    hasty.put(&[1; 8], &[2; 8]).unwrap();
    assert_eq!((hasty.counters().recoveries, hasty.counters().replays), (1, 0));
    assert!(store.check().unwrap().is_clean());
    assert_eq!(store.stat().unwrap().clients.len(), 2, "the dead client's slot is free");
}

struct Worker {
    client: guira::Client,
    id: u64,
    rng: SplitMix64,
    counts: HashMap<u64, u64>,
    seen: HashMap<(u64, u64), u64>,
    longest_value: u64,
    buffer: Vec<u8>,
}

impl Worker {
    fn step(&mut self) {
        let number = self.rng.below(HOT_KEYS);
        let bytes = 24 + self.rng.below(self.longest_value - 23) as usize;
        let count = self.counts.entry(number).or_insert(0);
        let next = value(number, self.id, *count + 1, bytes);
        let key = key(number);
        let wrote = match self.rng.below(10) {
            0..5 => return self.read(number),
            5 | 6 => self.client.put(&key, &next).map(|_| true),
            7 => self.client.update(&key, &next),
            8 => self.client.try_insert(&key, &next),
            _ if is_permanent(number) => self.client.put(&key, &next).map(|_| true),
            _ => self.client.remove(&key).map(|_| false),
        };
        if wrote.expect("the operation succeeds") {
            *count += 1;
        }
    }

    fn read(&mut self, number: u64) {
        let found = self.client.get_into(&key(number), &mut self.buffer).expect("the operation succeeds");
        assert!(found || !is_permanent(number), "key {number} exists and was missed");
        if found {
            let (writer, count) = parse(number, &self.buffer);
            let last = self.seen.entry((number, writer)).or_insert(0);
            assert!(count >= *last, "key {number}: writer {writer} went back from {last} to {count}");
            *last = count;
        }
    }
}

/// Runs as a worker if the environment asks for it; does nothing otherwise.
#[test]
fn worker() {
    let Ok(arguments) = std::env::var(WORKER) else { return };
    let parts: Vec<&str> = arguments.split(',').collect();
    let number = |i: usize| parts[i].parse::<u64>().unwrap();
    let url: Url = parts[0].parse().unwrap();
    let (id, seed, longest_value, milliseconds) = (number(1), number(2), number(3), number(4));
    let client = Store::open(&url).unwrap().client().unwrap();
    let (counts, seen, rng) = (HashMap::new(), HashMap::new(), SplitMix64(seed ^ (id << 32)));
    let mut worker = Worker { client, id, rng, counts, seen, longest_value, buffer: Vec::new() };
    let end = Instant::now() + Duration::from_millis(milliseconds);
    let mut steps = 0u64;
    while Instant::now() < end {
        (0..100).for_each(|_| worker.step());
        steps += 100;
    }
    println!("worker {id}: {steps} operations, {:?}", worker.client.counters());
}

fn start(url: &Url, id: u64, seed: u64, longest_value: u64, milliseconds: u64) -> Child {
    let arguments = format!("{url},{id},{seed},{longest_value},{milliseconds}");
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "processes::worker", "--nocapture"])
        .env(WORKER, arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("a process")
}

fn run(preset: Preset, format: &str, longest_value: u64) {
    let seed = 42;
    println!("seed {seed}, {preset}, {format}, values to {longest_value} bytes");
    let capacity = HOT_KEYS + if preset == Preset::Tiny { 200 } else { 0 };
    let options = CreateOptions::new(capacity)
        .format(format.parse().expect("a valid format"))
        .preset(preset)
        .extent_bytes(64 << 20);
    let (table, store) = Table::create(&options);
    let mut client = store.client().expect("a free slot");
    for number in (0..HOT_KEYS).filter(|number| is_permanent(*number)) {
        client.put(&key(number), &value(number, 99, 1, 24)).expect("room for a value");
    }
    let milliseconds = if is_long() { 4_000 } else { 1_000 };
    let children: Vec<Child> =
        (0..PROCESSES).map(|id| start(&table.url, id, seed, longest_value, milliseconds)).collect();
    // A check while they work reports no problem.
    let report = store.check().expect("the table can be read");
    assert!(report.is_clean(), "while others work: {:?}", report.problems);
    for mut child in children {
        assert!(child.wait().expect("a process").success(), "a worker failed: see its message above");
    }
    drop(client);
    let report = store.check().expect("the table can be read");
    assert!(report.is_clean(), "{:?}", report.problems);
    let stat = store.stat().expect("the table can be read");
    assert_eq!((stat.clients.len(), stat.table.chunks.owned), (0, 0), "all slots and chunks are released");
    let mut reader = store.reader();
    for number in 0..HOT_KEYS {
        match reader.get(&key(number)).expect("the table can be read") {
            Some(found) => drop(parse(number, &found)),
            None => assert!(!is_permanent(number)),
        }
    }
}

/// [R-LOCK-1] [R-LOCK-7] [R-READ-3] Values are stored in rows.
#[test]
fn hot_keys_in_default_tables() {
    run(Preset::Hardened, "bytes:64", 56);
}

/// [R-LOCK-5] With few locks and few entries everything is contended, and every insert moves entries.
#[test]
fn hot_keys_in_tiny_tables() {
    run(Preset::Tiny, "bytes:64", 56);
}

/// [R-READ-6] [R-EXTENT-4] Values are stored in rows and in extents, which are reused all the time.
#[test]
fn hot_keys_with_extents() {
    run(Preset::Hardened, "bytes:64", 3_000);
    run(Preset::Tiny, "bytes:64", 500);
}
