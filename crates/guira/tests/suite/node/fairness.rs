//! Fairness among 512 clients in four processes, each with a connection of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guira::{CreateOptions, ServeOptions, Store, Url};

use crate::common::fabric::is_skipped_over_rdma;

const PROCESSES: u64 = 4;
const CLIENTS_EACH: u64 = 128;
const KEYS_EACH: u64 = 8;
/// Entries of the table, so many that clients seldom wait for each other's locks: they compete for the node only.
const CAPACITY: u64 = 1_000_000;
/// Shortest measurement. It goes on until there were enough requests, because the machine may be busy.
const WINDOW: Duration = Duration::from_secs(4);
/// Longest measurement.
const LONGEST_WINDOW: Duration = Duration::from_secs(60);
/// Fewest requests of a measurement: 100 operations of each client on average, at three round trips for two operations.
const LEAST_REQUESTS: u64 = 150 * PROCESSES * CLIENTS_EACH;
/// Fewest operations of the slowest client, in percent of the mean.
const LEAST_PERCENT: u64 = 20;
/// The environment variable that makes the program a process of clients: it holds its number and a URL.
const CLIENT_PROCESS: &str = "GUIRA_TEST_FAIRNESS";

fn key(client: u64, number: u64) -> [u8; 8] {
    (client * KEYS_EACH + number % KEYS_EACH).to_le_bytes()
}

/// Runs one client, which updates and looks up keys in turn. Returns its operations during the measurement.
fn work(store: &Store, number: u64, starts: &Barrier, is_over: &AtomicBool) -> u64 {
    let mut client = store.client().unwrap();
    (0..KEYS_EACH).for_each(|i| assert!(client.try_insert(&key(number, i), &[0; 8]).unwrap()));
    starts.wait();
    starts.wait();
    let mut done = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        let key = key(number, done);
        match done % 2 {
            0 => assert!(client.update(&key, &done.to_le_bytes()).unwrap()),
            _ => assert!(client.get(&key).unwrap().is_some()),
        }
        done += 1;
    }
    done
}

/// Runs as a process of clients if the environment asks for it; does nothing otherwise.
#[test]
fn client_process() {
    let Ok(arguments) = std::env::var(CLIENT_PROCESS) else { return };
    let (number, url) = arguments.split_once(' ').unwrap();
    let (first, store) = (number.parse::<u64>().unwrap() * CLIENTS_EACH, Store::open(url).unwrap());
    let (starts, is_over) = (Barrier::new(CLIENTS_EACH as usize + 1), AtomicBool::new(false));
    let done: Vec<u64> = std::thread::scope(|scope| {
        let (store, starts, is_over) = (&store, &starts, &is_over);
        let work = |number| scope.spawn(move || work(store, number, starts, is_over));
        let threads: Vec<_> = (first..first + CLIENTS_EACH).map(work).collect();
        starts.wait();
        println!("\n@@ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        starts.wait();
        std::io::stdin().read_line(&mut String::new()).unwrap();
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    println!("\n@@{}", done.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
}

struct ClientProcess {
    child: Child,
}

impl ClientProcess {
    fn start(number: u64, url: &Url) -> ClientProcess {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node::fairness::client_process", "--nocapture", "--quiet"])
            .env(CLIENT_PROCESS, format!("{number} {url}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        ClientProcess { child }
    }

    fn receive(&mut self) -> String {
        // The process prints nothing after its message until it gets a command, so the buffer loses nothing.
        let mut lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
        let replies = lines.find_map(|line| line.strip_prefix("@@").map(str::to_owned));
        replies.expect("a process failed: see its message above")
    }
}

fn send_all(processes: &mut [ClientProcess], command: &str) {
    for process in processes {
        writeln!(process.child.stdin.as_mut().unwrap(), "{command}").unwrap();
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// No operation fails, and no client falls far behind the others.
#[test]
#[ignore = "measures the machine: cargo xtask release --only measured"]
fn hundreds_of_clients_make_fair_progress() {
    if is_skipped_over_rdma("it is about the node's threads, which execute nothing for these clients") {
        return;
    }
    let clients = PROCESSES * CLIENTS_EACH;
    let options = CreateOptions::new(CAPACITY).max_clients(clients as u16 + 16);
    let store = Store::create_unnamed(&options.format("fixed:8:8".parse().unwrap())).unwrap();
    let served = store.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into()).threads(2)).unwrap();
    let url = Url::tcp("127.0.0.1", served.local_addrs()[0].port()).unwrap();
    let mut processes: Vec<ClientProcess> = (0..PROCESSES).map(|number| ClientProcess::start(number, &url)).collect();
    processes.iter_mut().for_each(|process| assert_eq!(process.receive(), "ready"));
    // One connection for each client, and one for each process.
    assert_eq!(served.counters().sessions_open(), clients + PROCESSES);
    let (begun, requests) = (Instant::now(), served.counters().batches);
    send_all(&mut processes, "go");
    while begun.elapsed() < WINDOW
        || (served.counters().batches < requests + LEAST_REQUESTS && begun.elapsed() < LONGEST_WINDOW)
    {
        std::thread::sleep(Duration::from_millis(50));
    }
    send_all(&mut processes, "stop");
    let window = begun.elapsed();
    let replies: Vec<String> = processes.iter_mut().map(ClientProcess::receive).collect();
    let done: Vec<u64> =
        replies.iter().flat_map(|replies| replies.split(' ')).map(|count| count.parse().unwrap()).collect();
    assert_eq!(done.len() as u64, clients);
    let (least, most, sum) = (done.iter().min().unwrap(), done.iter().max().unwrap(), done.iter().sum::<u64>());
    println!(
        "{clients} clients in {window:?}: {least} operations at least, {} on average, {most} at most",
        sum / clients
    );
    assert!(sum >= 20 * clients, "too few operations to judge");
    assert!(least * clients * 100 >= sum * LEAST_PERCENT, "a client fell behind");
    for process in &mut processes {
        assert!(process.child.wait().unwrap().success());
    }
    assert!(store.check().unwrap().is_clean());
}
