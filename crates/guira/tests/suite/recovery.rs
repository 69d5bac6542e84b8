//! Recovery of real processes that are killed while they write.
//!
//! Writers put and remove keys of their own, in rows that they share with others. They report their changes in groups,
//! before they begin a group and after all of it was acknowledged. They are killed at any moment. Afterwards all
//! acknowledged changes are in the table, the changes under way took effect up to one of them and no further, and no
//! living client ever waits in vain: dead clients are recovered by clients that find their locks taken, and by those
//! that open when no slot is free. The test program starts itself as the writers, which get their arguments in
//! environment variables.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use guira::admin::ClientState;
use guira::{Blame, CreateOptions, Error, OpenOptions, OperationError, OperationErrorKind, Store, Url};
use guira_fabric::SplitMix64;
use guira_testing::{is_long, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::Table;

const WRITER: &str = "GUIRA_TEST_WRITER";
/// Keys of each writer, in rows that all writers share.
const KEYS: u64 = 40;
const FILLER: &str = "GUIRA_TEST_FILLER";
/// Bytes of the values with which a client fills the space.
const FILLER_VALUE_BYTES: usize = 3_000;
/// Most writers that are killed until the survivor has recovered two of them.
const MOST_KILLS: u64 = 3_000;
/// Writers at the same time.
const WRITERS: u64 = 3;
const SEED: u64 = 17;

/// Creates a table with few rows and few slots, so that everything is shared and slots run out.
fn create(format: &str) -> (Table, Store) {
    let options = CreateOptions::new(WRITERS * KEYS)
        .format(format.parse().unwrap())
        .max_clients(WRITERS as u16 + 3)
        .extent_bytes(8 << 20);
    Table::create(&options)
}

fn key(writer: u64, number: u64) -> [u8; 8] {
    (writer << 32 | number).to_le_bytes()
}

/// Returns the `count`th value of a key: the count, then bytes that depend on it.
fn value(count: u64, bytes: usize) -> Vec<u8> {
    let mut value = count.to_le_bytes().to_vec();
    value.extend((8..bytes).map(|i| (count * 7 + i as u64) as u8));
    value
}

/// A change: a put of a key's `count`th value if `count` is not a multiple of 5, its removal otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    number: u64,
    count: u64,
}

impl Change {
    fn removes(self) -> bool {
        self.count.is_multiple_of(5)
    }
}

/// Runs as a writer if the environment asks for it; does nothing otherwise.
#[test]
fn writer() {
    let Ok(arguments) = std::env::var(WRITER) else { return };
    let parts: Vec<&str> = arguments.split(',').collect();
    let number = |i: usize| parts[i].parse::<u64>().unwrap();
    let (id, seed, longest) = (number(1), number(2), number(3));
    let mut client = Store::open(parts[0]).unwrap().client().unwrap();
    let (mut rng, mut count, mut out) = (SplitMix64(seed), seed << 20, std::io::stdout().lock());
    loop {
        let changes = [(); GROUP].map(|()| {
            count += 1;
            Change { number: rng.below(KEYS), count }
        });
        let mut report = |kind: u64| {
            let numbers = changes.iter().flat_map(|change| [change.number, change.count]);
            let bytes: Vec<u8> = std::iter::once(kind).chain(numbers).flat_map(u64::to_le_bytes).collect();
            out.write_all(&bytes).and_then(|()| out.flush()).unwrap();
        };
        report(BEGINS);
        for change in changes {
            if change.removes() {
                client.remove(&key(id, change.number)).unwrap();
            } else {
                let bytes = 8 + rng.below(longest - 7) as usize;
                client.put(&key(id, change.number), &value(change.count, bytes)).unwrap();
            }
        }
        report(ACKNOWLEDGED);
    }
}

/// Changes that are reported together, because a report takes as long as a few of them.
const GROUP: usize = 32;
const BEGINS: u64 = u64::MAX - 1;
const ACKNOWLEDGED: u64 = u64::MAX - 2;

/// A writer process, and the thread that reads its reports.
struct Writer {
    child: Child,
    reports: JoinHandle<()>,
    reported: Arc<Mutex<Vec<u8>>>,
}

impl Writer {
    fn start(url: &Url, id: u64, seed: u64, longest: u64) -> Writer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "recovery::writer", "--nocapture", "--quiet"])
            .env(WRITER, format!("{url},{id},{seed},{longest}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        let reported = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&reported);
        let read = move || {
            let mut bytes = vec![0; 1 << 16];
            while let length @ 1.. = out.read(&mut bytes).unwrap() {
                shared.lock().unwrap().extend_from_slice(&bytes[..length]);
            }
        };
        Writer { child, reports: std::thread::spawn(read), reported }
    }

    /// Waits until the writer has begun its first changes.
    fn wait_until_it_writes(&self) {
        wait_until("the writer writes", || first_report(&self.reported.lock().unwrap()).is_some());
    }

    /// Kills the writer. Returns the changes it reported, and how many of them were acknowledged.
    fn kill(mut self) -> (Vec<Change>, usize) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        self.reports.join().unwrap();
        let reports = self.reported.lock().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it failed by itself: {status:?}");
        let first = first_report(&reports).unwrap_or(reports.len());
        let (mut changes, mut acknowledged) = (Vec::new(), 0);
        for report in reports[first..].chunks_exact(8 + 16 * GROUP) {
            let words: Vec<u64> =
                report.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            match words[0] {
                BEGINS => changes.extend(words[1..].chunks(2).map(|it| Change { number: it[0], count: it[1] })),
                ACKNOWLEDGED => acknowledged = changes.len(),
                other => panic!("an unknown report: {other:#x}"),
            }
        }
        (changes, acknowledged)
    }
}

/// Returns the position of the first report. The output of the test harness comes before it.
fn first_report(output: &[u8]) -> Option<usize> {
    output.windows(8).position(|window| window == BEGINS.to_le_bytes())
}

/// The last count of each key.
type Known = HashMap<u64, u64>;

fn apply(known: &mut Known, change: Change) {
    if change.removes() {
        known.remove(&change.number);
    } else {
        known.insert(change.number, change.count);
    }
}

/// Checks that the table has all acknowledged changes of writer `id`, and of the others those up to one of them. Brings
/// `known` up to date. Returns whether the writer died while changes were under way.
fn check_reported(store: &Store, id: u64, known: &mut Known, (changes, acknowledged): (Vec<Change>, usize)) -> bool {
    let mut reader = store.reader();
    let mut found = Known::new();
    for number in 0..KEYS {
        if let Some(bytes) = reader.get(&key(id, number)).unwrap() {
            let count = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(bytes, value(count, bytes.len()), "a torn value");
            found.insert(number, count);
        }
    }
    changes[..acknowledged].iter().for_each(|change| apply(known, *change));
    let mut under_way = changes[acknowledged..].iter();
    while *known != found {
        let next = under_way.next().unwrap_or_else(|| panic!("writer {id}: found {found:?}, reported {known:?}"));
        apply(known, *next);
    }
    changes.len() > acknowledged
}

/// Kills writers one after the other while the others go on.
fn kill_writers(name: &str, format: &str, longest: u64) {
    println!("{name}: seed {SEED}, {format}, values to {longest} bytes, {WRITERS} writers");
    let (table, store) = create(format);
    let mut rng = SplitMix64(SEED);
    let mut known: Vec<Known> = vec![Known::new(); WRITERS as usize];
    let mut survivor = store.client().unwrap();
    let mut seed = 0;
    let mut start = |id: u64| {
        seed += 1;
        Writer::start(&table.url, id, seed, longest)
    };
    let mut writers: Vec<Option<Writer>> = (0..WRITERS).map(|id| Some(start(id))).collect();
    let (mut under_way, mut kills) = (0, 0);
    let least_kills = if is_long() { 100 } else { 40 };
    // Another writer is usually faster than the survivor to recover a dead one.
    while kills < MOST_KILLS && (kills < least_kills || survivor.counters().recoveries < 2) {
        kills += 1;
        std::thread::sleep(Duration::from_micros(10_000 + rng.below(20_000)));
        let id = rng.below(WRITERS);
        let writer = writers[id as usize].take().unwrap();
        writer.wait_until_it_writes();
        let reported = writer.kill();
        // The locks of these keys guard all rows of the writers.
        (0..KEYS).for_each(|number| assert!(!survivor.remove(&key(99, number)).unwrap()));
        under_way += u64::from(check_reported(&store, id, &mut known[id as usize], reported));
        writers[id as usize] = Some(start(id));
    }
    for (id, writer) in (0..).zip(writers.iter_mut()) {
        let reported = writer.take().unwrap().kill();
        (0..KEYS).for_each(|number| assert!(!survivor.remove(&key(99, number)).unwrap()));
        check_reported(&store, id, &mut known[id as usize], reported);
    }
    let counters = survivor.counters();
    println!("{name}: {under_way} of {kills} deaths with changes under way; the survivor: {counters:?}");
    assert!(under_way > kills / 4 && counters.recoveries > 0, "dead clients leave something to recover");
    drop(survivor);
    // Opening as many clients as there are slots recovers the last dead ones.
    let slots = store.stat().unwrap().max_clients;
    let all: Vec<_> = (0..slots).map(|_| store.client().unwrap()).collect();
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert!(store.stat().unwrap().clients.iter().all(|client| client.state == ClientState::Live));
    drop(all);
    assert!(store.stat().unwrap().clients.is_empty());
}

/// [R-RECOVER-1] [R-RECOVER-2] [R-RECOVER-3] No acknowledged change is lost, and no lock stays held.
#[test]
fn killed_writers_of_rows_lose_nothing() {
    kill_writers("rows", "fixed:8:8", 8);
}

/// [R-RECOVER-2] [R-RECOVER-3] [R-EXTENT-2] The same holds for values in extents, whose chunks other clients adopt.
#[test]
fn killed_writers_of_extents_lose_nothing() {
    kill_writers("extents", "bytes:24", 600);
}

/// [R-RECOVER-1] Writers that are stopped at any moment are alive: a client that finds their locks taken gets `Busy`
/// with their slot, no client takes their slots, and they go on unharmed.
#[test]
fn stopped_writers_are_alive() {
    let (table, store) = create("fixed:8:8");
    let quick = Store::open_with(&table.url, &OpenOptions::default().deadline(Duration::from_millis(3))).unwrap();
    let mut other = quick.client().unwrap();
    let writers: Vec<Writer> = (0..WRITERS).map(|id| Writer::start(&table.url, id, id + 1, 8)).collect();
    wait_until("the writers write", || store.len_estimate().unwrap().entries >= 20);
    let (mut busy, mut rng) = (0, SplitMix64(SEED));
    for _ in 0..100 {
        let victim = Pid::from_child(&writers[rng.below(WRITERS) as usize].child);
        kill_process(victim, Signal::STOP).unwrap();
        for number in 0..KEYS {
            match other.put(&key(99, number), &[0; 8]) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.blame(), Blame::Busy, "{error}");
                    busy += 1;
                    break;
                }
            }
        }
        kill_process(victim, Signal::CONT).unwrap();
        std::thread::sleep(Duration::from_micros(rng.below(3_000)));
    }
    println!("{busy} waits for a stopped writer");
    assert_eq!(other.counters().recoveries, 0, "[R-RECOVER-1] no client is dead");
    // This client recovers the killed writers, and waits for the others as long as they may be kept from running.
    let mut patient = store.client().unwrap();
    for (id, writer) in (0..).zip(writers) {
        let reported = writer.kill();
        for number in 0..KEYS {
            patient.put(&key(99, number), &[0; 8]).unwrap();
        }
        check_reported(&store, id, &mut Known::new(), reported);
    }
}

/// Runs as a client that fills all space with values and dies, if the environment asks for it; does nothing otherwise.
#[test]
fn filler() {
    let Ok(url) = std::env::var(FILLER) else { return };
    let mut client = Store::open(url).unwrap().client().unwrap();
    let full = (0..).find_map(|number| client.put(&key(0, number), &[7; FILLER_VALUE_BYTES]).err()).unwrap();
    assert_eq!(full.blame(), Blame::Full, "{full}");
    std::process::exit(0);
}

/// Fills all space by a client that dies.
fn run_filler(url: &Url) {
    let arguments = ["--exact", "recovery::filler", "--nocapture"];
    let status = Command::new(std::env::current_exe().unwrap()).args(arguments).env(FILLER, url.to_string()).status();
    assert!(status.unwrap().success());
}

/// [R-DESTROY-1] [R-DESTROY-2] A recovery in a destroyed table reports that the table was destroyed: on request, by
/// slot, or by a client that needs the dead client's space.
#[test]
fn dead_clients_of_a_destroyed_table_are_not_recovered() {
    let options = CreateOptions::new(4_000).format("bytes:24".parse().unwrap()).extent_bytes(4 << 20);
    let (table, store) = Table::create(&options);
    let mut client = store.client().unwrap();
    run_filler(&table.url);
    let dead = store.stat().unwrap().clients.into_iter().find(|client| client.state == ClientState::Dead).unwrap();
    Store::destroy(&table.url).unwrap();
    let errors = [
        client.put(&key(1, 0), &[8; FILLER_VALUE_BYTES]).map(drop).unwrap_err(),
        store.recover(&mut |_, _| ()).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(error, Error::Operation(OperationError { kind: OperationErrorKind::Destroyed, .. })),
            "{error:?}"
        );
        assert!(error.to_string().ends_with("the table was destroyed; nothing was changed"), "{error}");
    }
    assert_eq!(client.counters().recoveries, 0);
    let killed = store.kill_client(dead.slot, Duration::from_secs(1)).unwrap();
    assert_eq!((killed.killed, killed.recovered), (false, None));
    assert!(killed.failed.unwrap().contains("destroyed"));
}

/// [R-RECOVER-3] [R-EXTENT-2] Space that is freed in a dead client's chunks is available to all clients.
#[test]
fn space_freed_in_chunks_of_a_dead_client_is_reused() {
    let options = CreateOptions::new(4_000).format("bytes:24".parse().unwrap()).extent_bytes(4 << 20);
    let (table, store) = Table::create(&options);
    let mut client = store.client().unwrap();
    run_filler(&table.url);
    let full = client.put(&key(1, 0), &[8; FILLER_VALUE_BYTES]).unwrap_err();
    assert_eq!(full.blame(), Blame::Full, "all of the dead client's space is in use: {full}");
    assert_eq!(client.counters().recoveries, 1);
    let removed = (0..).take_while(|number| client.remove(&key(0, *number)).unwrap()).count() as u64;
    assert!(removed > 1_000);
    for number in 0..removed {
        client.put(&key(1, number), &[8; FILLER_VALUE_BYTES]).unwrap();
    }
    assert!(store.check().unwrap().is_clean());
}
