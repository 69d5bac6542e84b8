//! A node and its clients on two hosts between which no packet passes for a while: what the kernels' timeouts make of
//! it. The table lies in shared memory, so that the test sees it from a third side.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guira::admin::ClientState;
use guira::errors::FabricError;
use guira::{CreateOptions, Effect, Error, OpenOptions, OperationError, OperationErrorKind, ServeOptions, Store};

use crate::common::Table;
use crate::common::hosts::{Host, Network, between_two_hosts};
use crate::node::PATIENCE;

const PLAYER: &str = "GUIRA_TEST_CUT";
const PORT: u16 = 7711;
/// So many entries that hardly any two clients want the same lock: they hold theirs independently of each other.
const CAPACITY: u64 = 100_000;
/// The clients that work all the time, so many that some of them hold locks at any time, and those that do nothing
/// until they are asked.
const BUSY: usize = 12;
const IDLE: usize = 2;
/// The shortest in which the node asks an idle client's kernel three times for a sign of life: after 1, 2 and 3 s.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
/// Longer than it takes to send anything again a few times, and shorter than half of the timeout.
const SHORT_CUT: Duration = Duration::from_millis(1_500);

/// A process on one of the hosts: this program again. It ends when this is dropped.
struct Player {
    child: Child,
    orders: ChildStdin,
    words: BufReader<ChildStdout>,
}

impl Player {
    fn start(host: &Host, role: &str) -> Player {
        let mut command: Command = host.command(std::env::current_exe().unwrap());
        let mut child = command
            .args(["--exact", "node::cut::player", "--nocapture", "--quiet"])
            .env(PLAYER, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, words) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut player = Player { child, orders, words };
        assert_eq!(player.hear(), "ready");
        player
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.words.read_line(&mut line).unwrap() > 0, "it ended: see its message above");
            if let Some(word) = line.strip_prefix("@@") {
                return word.trim_end().to_owned();
            }
        }
    }

    fn ask(&mut self, order: &str) -> Vec<u64> {
        writeln!(self.orders, "{order}").unwrap();
        self.hear().split(' ').map(|number| number.parse().unwrap()).collect()
    }

    fn tally(&mut self) -> Tally {
        let said = self.ask("tally");
        Tally { fenced: said[0], unknown: said[1], answered: said[2..].to_vec() }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What the busy clients were told.
#[derive(Debug)]
struct Tally {
    fenced: u64,
    unknown: u64,
    /// By client.
    answered: Vec<u64>,
}

fn say(word: impl std::fmt::Display) {
    println!("\n@@{word}");
    std::io::stdout().flush().unwrap();
}

/// The life of a process on one of the hosts, when this program was started as one; nothing otherwise.
#[test]
fn player() {
    let Ok(told) = std::env::var(PLAYER) else { return };
    let (role, place) = told.split_once(' ').unwrap();
    match role {
        "node" => {
            let addr: SocketAddr = ([0, 0, 0, 0], PORT).into();
            let options = ServeOptions::new(addr).insecure().threads(1).session_timeout(SESSION_TIMEOUT);
            let _served = Store::open(place).unwrap().serve(&options).unwrap();
            say("ready");
            // Until whoever started it ends.
            drop(std::io::stdin().read_line(&mut String::new()));
        }
        _ => clients(place),
    }
}

/// One busy client's words to the others.
#[derive(Default)]
struct Busy {
    answered: AtomicU64,
    fenced: AtomicU64,
    unknown: AtomicU64,
    /// The last value that was acknowledged, and the last that may have been written since.
    acknowledged: AtomicU64,
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

/// Writes one number after the other until it is time.
fn count_up(key: u8, client: &mut guira::Client, busy: &Busy, is_over: &AtomicBool) {
    for number in 1_u64.. {
        if is_over.load(Ordering::SeqCst) {
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
    let options = OpenOptions::default().reconnect_timeout(PATIENCE);
    let store = Store::open_with(url, &options).unwrap();
    let mut idle: Vec<guira::Client> = (0..IDLE).map(|_| store.client().unwrap()).collect();
    let mut clients: Vec<guira::Client> = (0..BUSY).map(|_| store.client().unwrap()).collect();
    let (busy, is_over) = (<[Busy; BUSY]>::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (key, (client, busy)) in (0..).zip(clients.iter_mut().zip(&busy)) {
            let is_over = &is_over;
            scope.spawn(move || count_up(key, client, busy, is_over));
        }
        say("ready");
        let sum = |of: fn(&Busy) -> &AtomicU64| busy.iter().map(|busy| of(busy).load(Ordering::SeqCst)).sum::<u64>();
        for order in std::io::stdin().lines().map_while(Result::ok) {
            match order.as_str() {
                "tally" => {
                    let of_each = busy.iter().map(|busy| busy.answered.load(Ordering::SeqCst));
                    let all = [sum(|busy| &busy.fenced), sum(|busy| &busy.unknown)].into_iter().chain(of_each);
                    say(all.map(|count| count.to_string()).collect::<Vec<_>>().join(" "));
                }
                // How many of the idle ones learn that they were shut out, by their next operation.
                "idle" => {
                    let put = |client: &mut guira::Client| client.put(b"idle", b"awake");
                    let fenced = idle.iter_mut().filter_map(|client| put(client).err()).filter(is_fenced).count();
                    say(fenced);
                }
                _ => break,
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
    let ends = busy.iter().flat_map(|busy| [&busy.acknowledged, &busy.possible]);
    say(ends.map(|number| number.load(Ordering::SeqCst).to_string()).collect::<Vec<_>>().join(" "));
}

/// Waits until `reached`, and says how long that took.
fn wait_until(what: &str, mut reached: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

/// A table, the node that serves it on one host, and its clients on the other.
struct Scene {
    clients: Player,
    _node: Player,
    store: Store,
    _table: Table,
}

impl Scene {
    fn new(network: &Network) -> Scene {
        let (table, store) = Table::create(&CreateOptions::new(CAPACITY).max_clients(40));
        let [host, other] = &network.hosts;
        let node = Player::start(host, &format!("node {}", table.url));
        let clients = Player::start(other, &format!("clients tcp://{}:{PORT}", host.addr));
        Scene { clients, _node: node, store, _table: table }
    }

    /// Clients that live, by what the kernel says of their slots.
    fn living(&self) -> Vec<u16> {
        let clients = self.store.stat().unwrap().clients;
        clients.iter().filter(|client| client.state != ClientState::Dead).map(|client| client.slot).collect()
    }

    /// Each client is answered again.
    fn wait_for_answers(&mut self) -> Duration {
        let before = self.clients.tally().answered;
        wait_until("the load goes on", || {
            let now = self.clients.tally().answered;
            now.iter().zip(&before).all(|(now, before)| now - before >= 5)
        })
    }

    /// Ends the load; nothing that was acknowledged is lost.
    fn end(mut self) {
        let ends = self.clients.ask("end");
        let mut reader = self.store.reader();
        for (key, ends) in (0_u8..).zip(ends.chunks(2)) {
            let found = reader.get(&[key]).unwrap().expect("it was written");
            let found = u64::from_le_bytes(found.try_into().unwrap());
            assert!(ends.contains(&found), "key {key}: {found}, where {ends:?} were acknowledged, and possible");
        }
        assert!(self.store.check().unwrap().is_clean());
    }
}

/// A cut that is shorter than the session timeout costs time and nothing else.
#[test]
fn clients_that_are_cut_off_for_a_moment_go_on() {
    between_two_hosts("node::cut::clients_that_are_cut_off_for_a_moment_go_on", |network| {
        let mut scene = Scene::new(network);
        scene.wait_for_answers();
        let slots = scene.living();
        assert_eq!(slots.len(), BUSY + IDLE);
        network.cut();
        std::thread::sleep(Duration::from_millis(100));
        let before = scene.clients.tally();
        std::thread::sleep(SHORT_CUT - Duration::from_millis(100));
        assert_eq!(scene.clients.tally().answered, before.answered, "nothing passes");
        network.mend();
        let took = scene.wait_for_answers();
        let tally = scene.clients.tally();
        println!("cut for {SHORT_CUT:?}: all go on {took:?} later; {tally:?}");
        assert_eq!((tally.fenced, tally.unknown, scene.living()), (0, 0, slots), "the same sessions");
        assert_eq!(scene.clients.ask("idle"), [0]);
        scene.end();
    });
}

/// [R-RECOVER-1] [R-SESSION-1] [R-SESSION-2] A client that is cut off for longer than the session timeout is shut out:
/// others recover what it held, and when it is back it learns that, once, and goes on.
#[test]
fn clients_that_are_cut_off_for_long_are_fenced_and_recovered() {
    between_two_hosts("node::cut::clients_that_are_cut_off_for_long_are_fenced_and_recovered", |network| {
        let mut scene = Scene::new(network);
        scene.wait_for_answers();
        assert_eq!(scene.living().len(), BUSY + IDLE);
        network.cut();
        let (mut died_ms, began) = (Vec::new(), Instant::now());
        wait_until("all are dead", || {
            let living = scene.living().len();
            while died_ms.len() < BUSY + IDLE - living {
                died_ms.push(began.elapsed().as_millis() as u64);
            }
            living == 0
        });
        println!("with a session timeout of {SESSION_TIMEOUT:?}, silent clients were dropped after {died_ms:?} ms");
        let timeout_ms = SESSION_TIMEOUT.as_millis() as u64;
        // Those who are idle were heard of when they last were asked, up to a third of the timeout before.
        assert!(died_ms[0] >= timeout_ms * 2 / 3 - 100, "somebody was given up early");
        assert!(died_ms[BUSY + IDLE - 1] <= timeout_ms * 3 / 2 + 1_000, "somebody was given up late");

        let recovered = scene.store.recover(&mut |_, _| ()).unwrap().recovered;
        let locks: u64 = recovered.iter().map(|client| client.locks).sum();
        println!("{} clients recovered, which held {locks} locks", recovered.len());
        assert!(recovered.len() == BUSY + IDLE && locks > 0, "those who were in a change held locks");
        let mut local = scene.store.client().unwrap();
        for key in 0..BUSY as u8 {
            assert!(local.get(&[key]).unwrap().is_some());
        }
        local.put(b"local", b"nobody is in the way").unwrap();
        drop(local);
        let cut_off = scene.clients.tally();
        network.mend();
        let fenced = BUSY as u64;
        let took = wait_until("all are told", || scene.clients.tally().fenced == fenced);
        scene.wait_for_answers();
        assert_eq!(scene.clients.ask("idle"), [IDLE as u64], "who did nothing is told, too");
        assert_eq!(scene.clients.ask("idle"), [0], "once");
        let tally = scene.clients.tally();
        println!("all were told {took:?} after the network was mended; {tally:?}");
        assert_eq!(tally.fenced, fenced, "once");
        assert!(tally.unknown - cut_off.unknown <= fenced, "at most one operation of each is unknown");
        scene.end();
    });
}
