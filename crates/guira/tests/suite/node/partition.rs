//! Network partitions: a node and its clients on two hosts between which no packet passes for a while, as the kernels'
//! timeouts see it. The table is in shared memory, so that the test can look at it all the time.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guira::admin::ClientState;
use guira::errors::FabricError;
use guira::{CreateOptions, Effect, Error, OpenOptions, OperationError, OperationErrorKind, ServeOptions, Store};
use guira_testing::{patience, wait_until};

use crate::common::Table;
use crate::common::fabric::is_skipped_over_rdma;
use crate::common::hosts::{Host, Network, with_two_hosts};

/// The environment variable that makes the program a process of a host: it holds a role and its argument.
const HOST_PROCESS: &str = "GUIRA_TEST_PARTITION";
const PORT: u16 = 7711;
/// Entries of the table, so many that two clients seldom want the same lock.
const CAPACITY: u64 = 100_000;
/// Clients that work all the time, so many that some of them hold locks at any time.
const BUSY: usize = 12;
/// Clients that do nothing until the test asks them to.
const IDLE: usize = 2;
/// The shortest session timeout in which the node probes an idle client's kernel three times: after 1, 2 and 3 s.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
/// Length of a short partition: longer than a few retransmissions take. The session timeout is far longer.
const SHORT_PARTITION: Duration = Duration::from_millis(1_500);

/// A process of this test program on one of the hosts. It is killed when this is dropped.
struct HostProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl HostProcess {
    fn start(host: &Host, role: &str) -> HostProcess {
        let mut command: Command = host.command(std::env::current_exe().unwrap());
        let mut child = command
            .args(["--exact", "node::partition::host_process", "--nocapture", "--quiet"])
            .env(HOST_PROCESS, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut process = HostProcess { child, input, output };
        assert_eq!(process.receive(), "ready");
        process
    }

    fn receive(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the process failed: see its message above");
            if let Some(word) = line.strip_prefix("@@") {
                return word.trim_end().to_owned();
            }
        }
    }

    fn request(&mut self, command: &str) -> Vec<u64> {
        writeln!(self.input, "{command}").unwrap();
        self.receive().split(' ').map(|number| number.parse().unwrap()).collect()
    }

    fn tally(&mut self) -> Tally {
        let counts = self.request("tally");
        Tally { fenced: counts[0], unknown: counts[1], answered: counts[2..].to_vec() }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Counts of the outcomes of the busy clients' operations.
#[derive(Debug)]
struct Tally {
    fenced: u64,
    unknown: u64,
    /// Answered operations of each client.
    answered: Vec<u64>,
}

fn send(word: impl std::fmt::Display) {
    println!("\n@@{word}");
    std::io::stdout().flush().unwrap();
}

/// Runs as a process of a host if the environment asks for it; does nothing otherwise.
#[test]
fn host_process() {
    let Ok(arguments) = std::env::var(HOST_PROCESS) else { return };
    let (role, argument) = arguments.split_once(' ').unwrap();
    match role {
        "node" => {
            let addr: SocketAddr = ([0, 0, 0, 0], PORT).into();
            let (timeout_s, url) = argument.split_once(' ').unwrap();
            let timeout = Duration::from_secs(timeout_s.parse().unwrap());
            let options = ServeOptions::new(addr).insecure().threads(1).session_timeout(timeout);
            let _served = Store::open(url).unwrap().serve(&options).unwrap();
            send("ready");
            // Until the test ends.
            drop(std::io::stdin().read_line(&mut String::new()));
        }
        _ => clients(argument),
    }
}

/// The progress of one busy client, which other threads read.
#[derive(Default)]
struct BusyClient {
    answered: AtomicU64,
    fenced: AtomicU64,
    unknown: AtomicU64,
    /// The last value that was acknowledged.
    acknowledged: AtomicU64,
    /// The last value that may have been written.
    possible: AtomicU64,
}

fn is_fenced(error: &Error) -> bool {
    matches!(
        error,
        Error::Operation(OperationError {
            kind: OperationErrorKind::Fabric { source: FabricError::Fenced { .. } },
            ..
        })
    )
}

/// Writes one number after the other until `is_stopping` is set.
fn write_numbers(key: u8, client: &mut guira::Client, busy: &BusyClient, is_stopping: &AtomicBool) {
    for number in 1_u64.. {
        if is_stopping.load(Ordering::SeqCst) {
            return;
        }
        let counter = match client.put(&[key], &number.to_le_bytes()) {
            Ok(_) => {
                busy.acknowledged.store(number, Ordering::SeqCst);
                busy.possible.store(number, Ordering::SeqCst);
                &busy.answered
            }
            Err(error) if error.effect() == Effect::Unknown => {
                busy.possible.store(number, Ordering::SeqCst);
                &busy.unknown
            }
            Err(error) => {
                assert!(is_fenced(&error), "{error}");
                &busy.fenced
            }
        };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

fn clients(url: &str) {
    let options = OpenOptions::default().reconnect_timeout(patience());
    let store = Store::open_with(url, &options).unwrap();
    let mut idle: Vec<guira::Client> = (0..IDLE).map(|_| store.client().unwrap()).collect();
    let mut clients: Vec<guira::Client> = (0..BUSY).map(|_| store.client().unwrap()).collect();
    let (busy, is_stopping) = (<[BusyClient; BUSY]>::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (key, (client, busy)) in (0..).zip(clients.iter_mut().zip(&busy)) {
            let is_stopping = &is_stopping;
            scope.spawn(move || write_numbers(key, client, busy, is_stopping));
        }
        send("ready");
        let sum =
            |of: fn(&BusyClient) -> &AtomicU64| busy.iter().map(|busy| of(busy).load(Ordering::SeqCst)).sum::<u64>();
        for command in std::io::stdin().lines().map_while(Result::ok) {
            match command.as_str() {
                "tally" => {
                    let of_each = busy.iter().map(|busy| busy.answered.load(Ordering::SeqCst));
                    let all = [sum(|busy| &busy.fenced), sum(|busy| &busy.unknown)].into_iter().chain(of_each);
                    send(all.map(|count| count.to_string()).collect::<Vec<_>>().join(" "));
                }
                // Counts the idle clients whose next operation reports that they were fenced.
                "idle" => {
                    let put = |client: &mut guira::Client| client.put(b"idle", b"awake");
                    let fenced = idle.iter_mut().filter_map(|client| put(client).err()).filter(is_fenced).count();
                    send(fenced);
                }
                _ => break,
            }
        }
        is_stopping.store(true, Ordering::SeqCst);
    });
    let ends = busy.iter().flat_map(|busy| [&busy.acknowledged, &busy.possible]);
    send(ends.map(|number| number.load(Ordering::SeqCst).to_string()).collect::<Vec<_>>().join(" "));
}

/// A table, the node that serves it on one host, and its clients on the other.
struct Fixture {
    clients: HostProcess,
    _node: HostProcess,
    store: Store,
    _table: Table,
}

impl Fixture {
    fn new(network: &Network, session_timeout: Duration) -> Fixture {
        let (table, store) = Table::create(&CreateOptions::new(CAPACITY).max_clients(40));
        let [host, other] = &network.hosts;
        let node = HostProcess::start(host, &format!("node {} {}", session_timeout.as_secs(), table.url));
        let clients = HostProcess::start(other, &format!("clients tcp://{}:{PORT}", host.addr));
        Fixture { clients, _node: node, store, _table: table }
    }

    /// Returns the slots of the clients that the kernel does not report dead.
    fn living(&self) -> Vec<u16> {
        let clients = self.store.stat().unwrap().clients;
        clients.iter().filter(|client| client.state != ClientState::Dead).map(|client| client.slot).collect()
    }

    /// Waits until each client has got answers again.
    fn wait_for_answers(&mut self) -> Duration {
        let before = self.clients.tally().answered;
        wait_until("all clients get answers", || {
            let now = self.clients.tally().answered;
            now.iter().zip(&before).all(|(now, before)| now - before >= 5)
        })
    }

    /// Cuts the network while clients hold locks, and returns the time before that. A client holds one for a part of each
    /// change only, so this may take some attempts, of which the clients notice no more than a delay.
    fn cut_among_locks(&mut self, network: &Network) -> Instant {
        const ATTEMPTS: u32 = 100;
        for _ in 0..ATTEMPTS {
            let began = Instant::now();
            network.cut();
            // The node carries out what it had received.
            std::thread::sleep(Duration::from_millis(100));
            if self.store.check().unwrap().held_locks > 0 {
                return began;
            }
            network.heal();
            self.wait_for_answers();
        }
        panic!("no client held a lock at any of {ATTEMPTS} moments");
    }

    /// Ends the load, and checks that nothing that was acknowledged is lost.
    fn end(mut self) {
        let ends = self.clients.request("end");
        let mut reader = self.store.reader();
        for (key, ends) in (0_u8..).zip(ends.chunks(2)) {
            let found = reader.get(&[key]).unwrap().expect("it was written");
            let found = u64::from_le_bytes(found.try_into().unwrap());
            assert!(ends.contains(&found), "key {key}: found {found}; acknowledged and possible: {ends:?}");
        }
        assert!(self.store.check().unwrap().is_clean());
    }
}

/// A partition that is shorter than the session timeout delays operations, and has no other effect.
#[test]
fn clients_that_are_cut_off_for_a_moment_go_on() {
    if is_skipped_over_rdma("Soft-RoCE works in the first network namespace only") {
        return;
    }
    with_two_hosts("node::partition::clients_that_are_cut_off_for_a_moment_go_on", |network| {
        let mut fixture = Fixture::new(network, patience());
        fixture.wait_for_answers();
        let slots = fixture.living();
        assert_eq!(slots.len(), BUSY + IDLE);
        network.cut();
        let before = fixture.clients.tally();
        std::thread::sleep(SHORT_PARTITION);
        let during = fixture.clients.tally();
        // The last answer of each client may have arrived before.
        let is_cut = |(now, before): (&u64, &u64)| now - before <= 1;
        assert!(during.answered.iter().zip(&before.answered).all(is_cut), "no packet passes");
        network.heal();
        let took = fixture.wait_for_answers();
        let tally = fixture.clients.tally();
        println!("partition of {SHORT_PARTITION:?}: all clients go on {took:?} later; {tally:?}");
        assert_eq!((tally.fenced, tally.unknown, fixture.living()), (0, 0, slots), "the sessions are kept");
        assert_eq!(fixture.clients.request("idle"), [0]);
        fixture.end();
    });
}

/// [R-RECOVER-1] [R-SESSION-1] [R-SESSION-2] A client that is cut off for longer than the session timeout is fenced:
/// others recover what it held, and when it is connected again, one operation reports that, and it goes on.
#[test]
fn clients_that_are_cut_off_for_long_are_fenced_and_recovered() {
    if is_skipped_over_rdma("Soft-RoCE works in the first network namespace only") {
        return;
    }
    with_two_hosts("node::partition::clients_that_are_cut_off_for_long_are_fenced_and_recovered", |network| {
        let mut fixture = Fixture::new(network, SESSION_TIMEOUT);
        fixture.wait_for_answers();
        assert_eq!(fixture.living().len(), BUSY + IDLE);
        let (mut died_ms, began) = (Vec::new(), fixture.cut_among_locks(network));
        wait_until("all clients are dead", || {
            let living = fixture.living().len();
            while died_ms.len() < BUSY + IDLE - living {
                died_ms.push(began.elapsed().as_millis() as u64);
            }
            living == 0
        });
        println!("with a session timeout of {SESSION_TIMEOUT:?}, silent clients were dropped after {died_ms:?} ms");
        let timeout_ms = SESSION_TIMEOUT.as_millis() as u64;
        // An idle client was last heard of when it was last probed, up to a third of the timeout before.
        assert!(died_ms[0] >= timeout_ms * 2 / 3 - 100, "a client was dropped too early");

        let recovered = fixture.store.recover(&mut |_, _| ()).unwrap().recovered;
        let locks: u64 = recovered.iter().map(|client| client.locks).sum();
        println!("recovered {} clients, which held {locks} locks", recovered.len());
        assert!(recovered.len() == BUSY + IDLE && locks > 0, "clients held locks when they were cut off");
        let mut local = fixture.store.client().unwrap();
        for key in 0..BUSY as u8 {
            assert!(local.get(&[key]).unwrap().is_some());
        }
        local.put(b"local", b"no lock is held").unwrap();
        drop(local);
        let cut_off = fixture.clients.tally();
        network.heal();
        let fenced = BUSY as u64;
        let took = wait_until("all clients learn that they were fenced", || fixture.clients.tally().fenced == fenced);
        fixture.wait_for_answers();
        assert_eq!(fixture.clients.request("idle"), [IDLE as u64], "idle clients learn of it, too");
        assert_eq!(fixture.clients.request("idle"), [0], "only once");
        let tally = fixture.clients.tally();
        println!("all learned of it {took:?} after the network was healed; {tally:?}");
        assert_eq!(tally.fenced, fenced, "each learns of it once");
        assert!(tally.unknown - cut_off.unknown <= fenced, "at most one operation of each is unknown");
        fixture.end();
    });
}
