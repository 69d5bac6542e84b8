//! 512 clients at once, in four processes, each with a connection of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guira::{CreateOptions, ServeOptions, Store, Url};

const PROCESSES: u64 = 4;
const CLIENTS_EACH: u64 = 128;
const KEYS_EACH: u64 = 8;
/// So many that clients seldom wait for each other's locks: what is shared here is the node.
const CAPACITY: u64 = 1_000_000;
/// The window is this long, and longer until there were enough requests, on a machine that does other things.
const WINDOW: Duration = Duration::from_secs(4);
const LONGEST_WINDOW: Duration = Duration::from_secs(60);
/// Three round trips for two operations, so that each comes to 100 operations on average.
const LEAST_REQUESTS: u64 = 150 * PROCESSES * CLIENTS_EACH;
/// The least part of the mean that the slowest client must come to, in percent.
const LEAST_PERCENT: u64 = 20;
const CROWD: &str = "GUIRA_TEST_CROWD";

fn key(client: u64, number: u64) -> [u8; 8] {
    (client * KEYS_EACH + number % KEYS_EACH).to_le_bytes()
}

/// Operations of one client in the window: changes and lookups by turns.
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

/// The life of one of the processes, when this program was started as one; nothing otherwise.
#[test]
fn member() {
    let Ok(told) = std::env::var(CROWD) else { return };
    let (number, url) = told.split_once(' ').unwrap();
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

struct Member {
    child: Child,
}

impl Member {
    fn start(number: u64, url: &Url) -> Member {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node::crowd::member", "--nocapture", "--quiet"])
            .env(CROWD, format!("{number} {url}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Member { child }
    }

    fn hear(&mut self) -> String {
        // Nothing follows what it says until it is answered.
        let mut lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
        let said = lines.find_map(|line| line.strip_prefix("@@").map(str::to_owned));
        said.expect("a member failed: see its message above")
    }
}

fn tell_all(members: &mut [Member], order: &str) {
    for member in members {
        writeln!(member.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// No operation of anybody fails, and nobody is left behind.
#[test]
fn hundreds_of_clients_make_fair_progress() {
    let clients = PROCESSES * CLIENTS_EACH;
    let options = CreateOptions::new(CAPACITY).max_clients(clients as u16 + 16);
    let store = Store::create_unnamed(&options.format("fixed:8:8".parse().unwrap())).unwrap();
    let served = store.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into()).threads(2)).unwrap();
    let url = Url::tcp("127.0.0.1", served.local_addrs()[0].port()).unwrap();
    let mut members: Vec<Member> = (0..PROCESSES).map(|number| Member::start(number, &url)).collect();
    members.iter_mut().for_each(|member| assert_eq!(member.hear(), "ready"));
    // One connection for each client, and one for each process.
    assert_eq!(served.counters().sessions_open(), clients + PROCESSES);
    let (begun, requests) = (Instant::now(), served.counters().batches);
    tell_all(&mut members, "go");
    while begun.elapsed() < WINDOW
        || (served.counters().batches < requests + LEAST_REQUESTS && begun.elapsed() < LONGEST_WINDOW)
    {
        std::thread::sleep(Duration::from_millis(50));
    }
    tell_all(&mut members, "stop");
    let window = begun.elapsed();
    let said: Vec<String> = members.iter_mut().map(Member::hear).collect();
    let done: Vec<u64> = said.iter().flat_map(|said| said.split(' ')).map(|count| count.parse().unwrap()).collect();
    assert_eq!(done.len() as u64, clients);
    let (least, most, sum) = (done.iter().min().unwrap(), done.iter().max().unwrap(), done.iter().sum::<u64>());
    println!(
        "{clients} clients in {window:?}: {least} operations at least, {} on average, {most} at most",
        sum / clients
    );
    assert!(sum >= 20 * clients, "too few to tell");
    assert!(least * clients * 100 >= sum * LEAST_PERCENT, "somebody is left behind");
    for member in &mut members {
        assert!(member.child.wait().unwrap().success());
    }
    assert!(store.check().unwrap().is_clean());
}
