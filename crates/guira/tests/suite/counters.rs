//! Operations that depend on the current value: eight processes increment the same keys while some of them are killed,
//! and each sum is returned by one increment only; and the results of each such operation.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use guira::{Blame, CreateOptions, Effect, OpenOptions, OperationErrorKind, Preset, ServeOptions, Store, Url};
use guira_testing::{is_long, wait_until};

use crate::common::Table;

const PROCESSES: usize = 8;
const WORKER: &str = "GUIRA_TEST_COUNTER";
/// Shortest time from one kill to the next.
const KILL_EVERY: Duration = Duration::from_millis(40);
/// The keys. The last one is too long for a row.
const KEYS: [&[u8]; 3] = [b"visits", b"clicks", &[7; 60]];
/// Bytes of a worker's report of an increment: the key's number, and the sum.
const REPORT_BYTES: usize = 9;

/// Runs as a process that counts until its input ends, if the environment asks for it; does nothing otherwise.
#[test]
fn worker() {
    let Ok(url) = std::env::var(WORKER) else { return };
    let ended = thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut client = Store::open(url).unwrap().client().unwrap();
    let mut reports = std::io::stderr();
    while !ended.is_finished() {
        for (number, key) in KEYS.iter().enumerate() {
            let sum = client.increment(key, 1).unwrap();
            let mut report = [number as u8; REPORT_BYTES];
            report[1..].copy_from_slice(&sum.to_le_bytes());
            reports.write_all(&report).unwrap();
        }
    }
    client.close().unwrap();
}

/// A worker process, and the thread that reads its reports until it has ended.
struct Worker {
    process: Child,
    input: ChildStdin,
    has_reported: Arc<AtomicBool>,
    reports: JoinHandle<Vec<u8>>,
}

impl Worker {
    fn start(url: &Url) -> Worker {
        let mut process = Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", "counters::worker", "--nocapture"])
            .env(WORKER, url.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process");
        let (input, mut output) = (process.stdin.take().expect("a pipe"), process.stderr.take().expect("a pipe"));
        let has_reported = Arc::new(AtomicBool::new(false));
        let is_first = Arc::clone(&has_reported);
        let reports = thread::spawn(move || {
            let mut reports = vec![0; REPORT_BYTES];
            if output.read_exact(&mut reports).is_err() {
                return Vec::new();
            }
            is_first.store(true, Ordering::SeqCst);
            output.read_to_end(&mut reports).expect("a pipe");
            reports
        });
        Worker { process, input, has_reported, reports }
    }

    /// Adds the sums that a worker reported to `sums`, and checks that they grow and are unique.
    fn collect(reports: JoinHandle<Vec<u8>>, sums: &mut [BTreeSet<u64>; KEYS.len()]) {
        let mut last = [0; KEYS.len()];
        for report in reports.join().expect("the thread only reads").chunks_exact(REPORT_BYTES) {
            let number = usize::from(report[0]);
            assert!(number < KEYS.len(), "{}", String::from_utf8_lossy(report));
            let sum = u64::from_le_bytes(report[1..].try_into().expect("eight bytes"));
            assert!(sum > last[number], "a worker's sums grow");
            assert!(sums[number].insert(sum), "{sum} is the sum of two increments of key {number}");
            last[number] = sum;
        }
    }
}

/// [R-ADD-1] [R-CAS-1] [R-CAS-2] No acknowledged increment is lost and none counts twice while many processes add and
/// many of them are killed. Of each killed process, the effect of its last increment may be unknown.
fn count(owner: &Store, url: &Url) {
    let mut sums: [BTreeSet<u64>; KEYS.len()] = Default::default();
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(url)).collect();
    let kills = if is_long() { 75 } else { 25 };
    for kill in 0..kills {
        thread::sleep(KILL_EVERY);
        let worker = &mut workers[kill % PROCESSES];
        wait_until("the next victim counts", || worker.has_reported.load(Ordering::SeqCst));
        let mut victim = std::mem::replace(worker, Worker::start(url));
        victim.process.kill().expect("it is a child");
        assert!(!victim.process.wait().expect("it is a child").success(), "no worker ends on its own");
        Worker::collect(victim.reports, &mut sums);
    }
    for Worker { mut process, input, reports, .. } in workers {
        drop(input);
        assert!(process.wait().expect("it is a child").success());
        Worker::collect(reports, &mut sums);
    }
    let mut reader = owner.reader();
    let mut unknown = 0;
    for (key, sums) in KEYS.iter().zip(&sums) {
        let value = reader.get(key).expect("nothing is damaged").expect("it was counted");
        let total = u64::from_le_bytes(value.try_into().expect("eight bytes"));
        assert!(sums.last().is_some_and(|last| *last <= total), "an acknowledged increment was lost");
        unknown += total - sums.len() as u64;
        println!("{url}: {} increments acknowledged, {total} counted, {kills} processes killed", sums.len());
    }
    assert!(unknown <= kills as u64, "{unknown} increments were not acknowledged, with {kills} killed processes");
    assert!(owner.check().expect("a table").is_clean());
}

#[test]
fn killed_processes_lose_no_increment() {
    let (table, store) = Table::create(&CreateOptions::new(1_000).max_clients(64));
    count(&store, &table.url);
    let served = Store::create_unnamed(&CreateOptions::new(1_000).max_clients(64)).unwrap();
    let node = served.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    count(&served, &Url::tcp("127.0.0.1", node.local_addrs()[0].port()).unwrap());
}

/// [R-ADD-1] Sums are modulo 2^64; a value that is no number is not changed, and a table for other values refuses.
#[test]
fn only_numbers_are_incremented() {
    for preset in [Preset::Hardened, Preset::Paper] {
        let (_table, store) = Table::create(&CreateOptions::new(1_000).preset(preset));
        let mut client = store.client().unwrap();
        for key in KEYS {
            assert_eq!(client.increment(key, 5).unwrap(), 5);
            assert_eq!(client.increment(key, 7_u64.wrapping_neg()).unwrap(), 2_u64.wrapping_neg());
            assert_eq!(client.get(key).unwrap().as_deref(), Some(&2_u64.wrapping_neg().to_le_bytes()[..]));
            for value in [&b"seven b"[..], b"", &[1; 300]] {
                client.put(key, value).unwrap();
                let error = client.increment(key, 1).unwrap_err();
                assert!(matches!(error.operation_kind(), Some(OperationErrorKind::NotANumber)), "{error:?}");
                assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
                assert_eq!(client.get(key).unwrap().as_deref(), Some(value));
            }
        }
        let sum = pollster::block_on(async {
            let mut client = store.to_async().client().await?;
            client.increment(b"another", 1).await?;
            client.increment(b"another", 1).await
        });
        assert_eq!(sum.unwrap(), 2);
    }
    let (_table, store) = Table::create(&CreateOptions::new(1_000).format("fixed:8:4".parse().unwrap()));
    let error = store.client().unwrap().increment(&[1; 8], 1).unwrap_err();
    assert!(error.to_string().starts_with("increment: "), "{error}");
    assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
}

/// [R-CAS-1] [R-CAS-2] A conditional update sees the current value and stores the result; one that another client
/// always precedes fails at its deadline.
#[test]
fn conditional_updates_see_the_current_value() {
    for preset in [Preset::Hardened, Preset::Paper] {
        let (table, store) = Table::create(&CreateOptions::new(1_000).preset(preset));
        let mut client = store.client().unwrap();
        for bytes in [10, 200] {
            let (old, new) = (vec![1; bytes], vec![2; bytes]);
            assert_eq!(client.update_with(b"key", |found| found.map(|_| unreachable!())).unwrap(), None);
            assert_eq!(client.get_or_insert_with(b"key", || old.clone()).unwrap(), old);
            assert_eq!(client.get_or_insert_with(b"key", || unreachable!()).unwrap(), old);
            let changed = client.update_with(b"key", |found| (found == Some(&old)).then(|| new.clone()));
            assert_eq!(changed.unwrap().as_ref(), Some(&new));
            assert_eq!(client.get(b"key").unwrap().as_ref(), Some(&new));
            let before = client.traffic().verbs.writes;
            let same = client.update_with(b"key", |found| found.map(<[u8]>::to_vec));
            assert_eq!(same.unwrap().as_ref(), Some(&new));
            assert_eq!(client.traffic().verbs.writes, before, "nothing is written");
            assert_eq!(client.update_with(b"key", |_| None).unwrap(), None);
            assert_eq!(client.get(b"key").unwrap(), None);
        }
        let mut other = store.client().unwrap();
        let hasty = Store::open_with(&table.url, &OpenOptions::new().deadline(Duration::from_millis(20))).unwrap();
        let mut times = 0_u64;
        let error = hasty.client().unwrap().update_with(b"key", |_| {
            times += 1;
            other.put(b"key", &times.to_le_bytes()).unwrap();
            Some(b"too late".to_vec())
        });
        let error = error.unwrap_err();
        let Some(OperationErrorKind::Contended { attempts, .. }) = error.operation_kind() else { panic!("{error:?}") };
        assert_eq!(u64::from(*attempts), times);
        assert_eq!((error.blame(), error.effect()), (Blame::Busy, Effect::None));
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&times.to_le_bytes()[..]));
    }
}
