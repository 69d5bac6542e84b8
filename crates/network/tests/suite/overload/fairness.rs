//! The delay of an honest client beside sixteen hostile sessions: holds beside thousands of held slots, fences and
//! counts, the largest batches, incomplete frames, unread replies.
//!
//! All of them share this machine's processors with the node, which clients usually do not: their threads have the
//! lowest priority, and the time in which the client's thread or the node's waits for a processor is subtracted, as
//! counted by the kernel. With it 99 of 100 READs take 4 ms on two cores, a tick of the scheduler, and more beside
//! other programs; without it 1 ms.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, sleep};
use std::time::{Duration, Instant};

use guira_fabric::{Addr, Verb};
use guira_network::node::MAX_HOLDS;
use guira_network::tcp::batch;
use guira_network::wire::{self, Kind, MAX_VERB_WORDS};
use rustix::process::setpriority_process;

use super::StopOnDrop;
use crate::common::client::Client;
use crate::common::test_node::{TestNode, options, shm_region};

/// The READs of the honest client in each phase, and the pause between two of them.
const READS: usize = 2_000;
const PAUSE: Duration = Duration::from_millis(1);
/// The longest time of one READ.
const WORST: Duration = Duration::from_millis(100);
/// The bound for 99 of 100 READs: this multiple of their time without load, or this time if it is more: some turns.
const TIMES_CALM: u32 = 10;
const FLOOR: Duration = Duration::from_millis(5);
/// The shortest and the longest duration of a phase.
const LEAST: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(12);
/// The pairs of a hold and a release that are sent at once.
const PAIRS: u64 = 21_000;

#[test]
#[ignore = "measures the machine: cargo xtask release --only measured"]
fn hostile_sessions_of_every_kind_delay_no_other_session() {
    let node = TestNode::new(shm_region(), options());
    // The two are on different threads of the node, and so are those of each kind.
    let mut honest = [HonestClient::new(node.addr), HonestClient::new(node.addr)];
    let calm = Waits::of(&mut honest, Duration::ZERO);
    let holders = [hold_every_second_slot(node.addr, 0), hold_every_second_slot(node.addr, 2 * MAX_HOLDS as u64)];
    let is_over = AtomicBool::new(false);
    let (beside, sent) = std::thread::scope(|scope| {
        let hostile: [fn(u64) -> Vec<u64>; 5] = [holds, fences, reads, writes, swaps];
        let (over, mut streams) = (StopOnDrop(&is_over), Vec::new());
        for (number, frames) in hostile.into_iter().flat_map(|frames| [frames, frames]).enumerate() {
            streams.push(Stream::start(scope, node.addr, frames(number as u64), Replies::Read));
        }
        for number in 0..4 {
            streams.push(Stream::start(scope, node.addr, reads(number), Replies::Unread));
        }
        let halves = [Client::open(node.addr).0, Client::open(node.addr).0];
        for client in halves {
            scope.spawn(|| send_halves(client, &is_over));
        }
        assert_eq!(streams.len(), 14, "sixteen with the halves");
        sleep(Duration::from_millis(300));
        let beside = Waits::of(&mut honest, LEAST);
        drop(over);
        let sent: Vec<u64> = streams.iter().map(|stream| stream.sent.load(Ordering::Relaxed) >> 10).collect();
        (beside, sent)
    });
    drop(holders);
    println!("calm: {calm}; beside sixteen hostile sessions: {beside}; they sent {sent:?} KiB");
    println!("{:?}", node.handle.counters());
    let limit = (calm.p99 * TIMES_CALM).max(FLOOR);
    assert!(beside.worst <= WORST, "a READ took {:?}, {WORST:?} is allowed", beside.worst);
    assert!(beside.p99 <= limit, "one READ of 100 took more than {:?}, {limit:?} is allowed", beside.p99);
    // Hostile sessions are served all the same: each stream whose replies are read made progress.
    assert!(sent[..10].iter().all(|kib| *kib > 0), "{sent:?} KiB");
}

/// The times of READs, without the time in which the client's thread, or the node's that serves it, was ready to run
/// and had no processor: that is due to this machine and its other programs, not to the node.
struct Waits {
    p50: Duration,
    p99: Duration,
    worst: Duration,
    /// The time of 99 of 100 READs with the time in which threads had no processor.
    p99_in_all: Duration,
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Waits { p50, p99, worst, p99_in_all } = self;
        write!(f, "half in {p50:?}, 99 % in {p99:?} ({p99_in_all:?} as the clock has it), all in {worst:?}")
    }
}

impl Waits {
    /// Measures one READ after the other, alternating between both clients.
    fn of(clients: &mut [HonestClient; 2], least: Duration) -> Waits {
        let begin = Instant::now();
        let (mut waits, mut all) = (Vec::new(), Vec::new());
        while waits.len() < READS || begin.elapsed() < least {
            if begin.elapsed() > LONGEST {
                break;
            }
            for client in &mut *clients {
                let (net, whole) = client.read();
                waits.push(net);
                all.push(whole);
            }
            sleep(PAUSE);
        }
        waits.sort_unstable();
        all.sort_unstable();
        let at = |share: usize| waits[waits.len() * share / 100];
        Waits { p50: at(50), p99: at(99), worst: waits[waits.len() - 1], p99_in_all: all[all.len() * 99 / 100] }
    }
}

/// A client, and the thread of the node that serves it.
struct HonestClient {
    client: Client,
    served_by: PathBuf,
}

impl HonestClient {
    /// Connects to the only node of this process, which must be idle.
    fn new(addr: SocketAddr) -> HonestClient {
        let mut client = Client::open(addr).0;
        let before = both_node_threads();
        (0..200).for_each(|_| _ = client.read(Addr::main(64), 1));
        let ran = |thread: &PathBuf| schedstat(thread)[0];
        let ran_before: Vec<u64> = before.iter().map(ran).collect();
        (0..200).for_each(|_| _ = client.read(Addr::main(64), 1));
        let more = before.into_iter().zip(ran_before).max_by_key(|(thread, before)| ran(thread) - before);
        HonestClient { client, served_by: more.expect("one of two").0 }
    }

    /// Returns how long this thread, and that of the node, have been ready to run and had no processor.
    fn delay(&self) -> Duration {
        let [own, of_node] = [Path::new("/proc/thread-self"), &self.served_by].map(|thread| schedstat(thread)[1]);
        Duration::from_nanos(own + of_node)
    }

    /// Returns how long a READ takes, without that delay, and with it.
    fn read(&mut self) -> (Duration, Duration) {
        let (delay, start) = (self.delay(), Instant::now());
        self.client.read(Addr::main(64), 1);
        let elapsed = start.elapsed();
        (elapsed.saturating_sub(self.delay().saturating_sub(delay)), elapsed)
    }
}

/// Returns the node's two threads. Each sets its name when it first runs, which may be after a reply of the other.
fn both_node_threads() -> Vec<PathBuf> {
    let begin = Instant::now();
    loop {
        let threads = node_threads();
        if threads.len() == 2 {
            return threads;
        }
        let count = threads.len();
        assert!(begin.elapsed() < LONGEST, "{count} threads of nodes: no other test of this process may run");
        sleep(PAUSE);
    }
}

fn node_threads() -> Vec<PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it").map(|task| task.expect("a thread").path());
    let is_of_node =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("guira-node-"));
    tasks.filter(is_of_node).collect()
}

/// Returns how long a thread ran and how long it waited for a processor, in ns; 0 if the kernel does not count: then
/// nothing is subtracted.
fn schedstat(thread: &Path) -> [u64; 2] {
    let text = std::fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or(0));
    std::array::from_fn(|_| fields.next().unwrap_or(0))
}

/// Opens a session with as many slots as it may have, none adjacent, because the kernel could merge adjacent locks.
fn hold_every_second_slot(addr: SocketAddr, first: u64) -> Client {
    let (mut client, _) = Client::open(addr);
    for slot in 0..MAX_HOLDS as u64 {
        client.send(Kind::Hold, &[first + 2 * slot]);
    }
    for _ in 0..MAX_HOLDS {
        assert_eq!(client.frame().expect("an answer").header.kind, Kind::Held);
    }
    client
}

fn holds(number: u64) -> Vec<u64> {
    let mut frames = Vec::new();
    for pair in 0..PAIRS {
        let slot = [40_000 + 1_000 * number + pair % 1_000];
        wire::append(&mut frames, Kind::Hold, pair, &slot);
        wire::append(&mut frames, Kind::Release, pair, &slot);
    }
    frames
}

fn fences(number: u64) -> Vec<u64> {
    let mut frames = Vec::new();
    for id in 0..PAIRS {
        wire::append(&mut frames, Kind::Fence, id, &[60_000 + 100 * number + id % 100]);
        if id % 4 == 0 {
            wire::append(&mut frames, Kind::Count, id, &[]);
        }
    }
    frames
}

fn reads(id: u64) -> Vec<u64> {
    let (mut frames, mut into) = (Vec::new(), vec![0; MAX_VERB_WORDS]);
    for _ in 0..16 {
        let read = Verb::Read { addr: Addr::main(4096), into: &mut into };
        batch::encode_batch(&mut frames, id, &[read]).expect("a batch that fits");
    }
    frames
}

fn writes(id: u64) -> Vec<u64> {
    let (mut frames, words) = (Vec::new(), vec![id; MAX_VERB_WORDS]);
    let write = Verb::Write { addr: Addr::main(4096), words: &words };
    batch::encode_batch(&mut frames, id, &[write]).expect("a batch that fits");
    frames
}

fn swaps(id: u64) -> Vec<u64> {
    let mut frames = Vec::new();
    for _ in 0..64 {
        let mut found = [0; 256];
        let add = |found| Verb::FetchAdd { addr: Addr::main(8), add: 1, found };
        let batch: Vec<Verb<'_>> = found.iter_mut().map(add).collect();
        batch::encode_batch(&mut frames, id, &batch).expect("a batch that fits");
    }
    frames
}

/// Whether a stream reads its replies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replies {
    Read,
    Unread,
}

/// A session that sends the same frames again and again, as fast as the node accepts them.
struct Stream {
    socket: TcpStream,
    /// The bytes that were sent.
    sent: Arc<AtomicU64>,
}

impl Stream {
    fn start<'s>(scope: &'s Scope<'s, '_>, addr: SocketAddr, frames: Vec<u64>, replies: Replies) -> Stream {
        let (client, _) = Client::open(addr);
        let socket = client.stream;
        socket.set_read_timeout(None).expect("an option of the socket");
        socket.set_write_timeout(None).expect("an option of the socket");
        let sent = Arc::new(AtomicU64::new(0));
        let (mut writes, mut reads) = (socket.try_clone().expect("a socket"), socket.try_clone().expect("a socket"));
        scope.spawn({
            let sent = Arc::clone(&sent);
            move || {
                lower_priority();
                let bytes: Vec<u8> = frames.iter().flat_map(|word| word.to_le_bytes()).collect();
                while let Some(part) = send_some(&mut writes, &bytes) {
                    sent.fetch_add(part, Ordering::Relaxed);
                }
            }
        });
        if replies == Replies::Read {
            scope.spawn(move || {
                lower_priority();
                let mut ignored = vec![0; 1 << 16];
                while reads.read(&mut ignored).is_ok_and(|bytes| bytes > 0) {}
            });
        }
        Stream { socket, sent }
    }
}

impl Drop for Stream {
    /// Ends the threads, however the test ends.
    fn drop(&mut self) {
        // The session may have ended, if replies were unread.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn send_some(stream: &mut TcpStream, bytes: &[u8]) -> Option<u64> {
    stream.write_all(bytes).ok().map(|()| bytes.len() as u64)
}

/// Sends most of the longest frame, and the rest of it byte by byte.
fn send_halves(mut client: Client, is_over: &AtomicBool) {
    lower_priority();
    let frame = writes(1);
    let bytes: Vec<u8> = frame.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (most, rest) = bytes.split_at(bytes.len() - 4096);
    client.stream.write_all(most).expect("the node takes halves");
    for byte in rest.chunks(1) {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        client.stream.write_all(byte).expect("the node takes halves");
    }
}

/// Gives this thread the lowest priority.
fn lower_priority() {
    setpriority_process(None, 19).expect("everybody may have less");
}
