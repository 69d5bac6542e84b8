//! A region whose file is truncated while it is served: every client is told, nobody is answered with what the file
//! never had, and the process goes on. What makes the process survive it is tested where the handler is, in fabric-shm.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use guira_fabric::{Addr, Region, Verb};
use guira_fabric_shm::{CreateOptions, Location, ShmRegion};
use guira_fabric_tcp::client::{ConnectOptions, Endpoint, Loss, TcpRegion};
use guira_fabric_tcp::node::{Node, NodeError, NodeHandle};
use guira_fabric_tcp::wire::{self, CloseReason, Kind};

use crate::client::{Client, TIMEOUT};
use crate::test_node::{self, DEVICE_BYTES, MAIN_BYTES, options};

/// What every word of the region is.
const MARK: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// Clients that read, and that write, while the file is cut.
const READERS: u64 = 6;
const WRITERS: u64 = 2;
/// Words of one READ or WRITE.
const WORDS: usize = 512;
/// How long clients may take to hear of it: the node looks about once a second.
const SOON: Duration = Duration::from_secs(5);

/// A region with a name, full of marks, and a node over it.
struct TruncatableNode {
    region: ShmRegion,
    path: PathBuf,
    handle: NodeHandle,
}

impl TruncatableNode {
    fn new() -> TruncatableNode {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("guira-lost-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let location = Location::shm(&name).expect("a valid name");
        let created = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
        let region = ShmRegion::create(&location, created, |_| Ok::<(), String>(())).expect("a fresh name");
        region.main_words().iter().for_each(|word| word.store(MARK, Ordering::Relaxed));
        region.guard_against_truncation().expect("a place for a guard");
        let handle = Node::bind(region.clone(), options()).expect("a node").spawn().expect("threads");
        TruncatableNode { region, path: location.path().to_owned(), handle }
    }

    fn cut(&self, bytes: u64) {
        let file = OpenOptions::new().write(true).open(&self.path).expect("it has its name");
        file.set_len(bytes).expect("it is this user's");
    }

    /// Waits for the end of the node, which says how its memory was lost.
    fn end(self) -> String {
        let start = Instant::now();
        while self.handle.is_running() {
            assert!(start.elapsed() < TIMEOUT, "the node goes on");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.handle.counters().memory_lost, 1);
        let path = self.path.clone();
        std::fs::remove_file(&path).expect("it has its name");
        match self.handle.stop() {
            Err(NodeError::MemoryLost { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn nobody_is_answered_with_zeros_and_everybody_is_told() {
    for bytes in [0, MAIN_BYTES / 2] {
        let node = TruncatableNode::new();
        let other = test_node::heap(options());
        let addr = node.handle.local_addrs()[0];
        let answered = AtomicUsize::new(0);
        let heard = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..READERS + WRITERS)
                .map(|number| {
                    let answered = &answered;
                    scope.spawn(move || {
                        let client = Client::open(addr).0;
                        let end = if number < READERS { read(client, number, answered) } else { write(client, number) };
                        (end, Instant::now())
                    })
                })
                .collect();
            let start = Instant::now();
            while answered.load(Ordering::Relaxed) < 1_000 {
                assert!(start.elapsed() < TIMEOUT, "nobody reads");
                std::thread::sleep(Duration::from_millis(1));
            }
            let cut_at = Instant::now();
            node.cut(bytes);
            let heard = |(bye, at): (CloseReason, Instant)| (bye, at.saturating_duration_since(cut_at));
            clients.into_iter().map(|client| heard(client.join().expect("no zeros"))).collect::<Vec<_>>()
        });
        println!("{bytes} bytes: {} READs, then {heard:?}", answered.load(Ordering::Relaxed));
        assert!(heard.iter().all(|(bye, after)| *bye == CloseReason::MemoryLost && *after < SOON), "{heard:?}");
        let reason = node.end();
        assert!(
            reason.contains(&format!("was truncated to {bytes} of ")) && reason.contains("guira-lost-"),
            "{reason}"
        );
        // The process has other uses.
        let (mut client, _) = Client::open(other.addr);
        assert_eq!(client.read(Addr::main(0), 1), [0]);
    }
}

/// READs of one part of the region after the other, none of which finds anything but marks.
fn read(mut client: Client, number: u64, answered: &AtomicUsize) -> CloseReason {
    let places = MAIN_BYTES / (8 * WORDS as u64);
    for place in (0..places).cycle().skip((number * places / READERS) as usize) {
        let mut into = vec![0; WORDS];
        let batch = [Verb::Read { addr: Addr::main(place * 8 * WORDS as u64), into: &mut into }];
        match post(&mut client, &batch) {
            Ok(found) => assert!(found.iter().all(|word| *word == MARK), "a READ found {:x}", found[0]),
            Err(bye) => return bye,
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("it goes round and round")
}

/// WRITEs of what is there.
fn write(mut client: Client, number: u64) -> CloseReason {
    let places = MAIN_BYTES / (8 * WORDS as u64);
    for place in (0..places).cycle().skip((number * places / WRITERS) as usize) {
        let batch = [Verb::Write { addr: Addr::main(place * 8 * WORDS as u64), words: &[MARK; WORDS] }];
        if let Err(bye) = post(&mut client, &batch) {
            return bye;
        }
    }
    unreachable!("it goes round and round")
}

/// What a batch finds, or the farewell that comes instead.
fn post(client: &mut Client, batch: &[Verb<'_>]) -> Result<Vec<u64>, CloseReason> {
    let mut frame = Vec::new();
    wire::encode_batch(&mut frame, 1, batch).expect("a batch that fits");
    // A connection that is closed takes nothing: what was said before is read all the same.
    let _ = client.send_words(&frame);
    let answer = client.frame().expect("an answer or a farewell");
    match answer.header.kind {
        Kind::Done => Ok(answer.body),
        Kind::Close => Err(CloseReason::decode(&answer.body).expect("a farewell")),
        kind => panic!("{kind:?}"),
    }
}

/// Clients that say nothing hear of it, and so do those that ask for what is still there: the node looks by itself.
#[test]
fn a_node_finds_out_by_itself_that_its_file_was_cut() {
    let node = TruncatableNode::new();
    let endpoint = Endpoint::new("127.0.0.1", node.handle.local_addrs()[0].port());
    let region = TcpRegion::connect(&ConnectOptions::new(endpoint)).expect("a session");
    let (mut silent, _) = Client::open(node.handle.local_addrs()[0]);
    node.cut(MAIN_BYTES / 2);
    assert_eq!(silent.close_reason(), CloseReason::MemoryLost);
    let start = Instant::now();
    while !region.has_lost_bytes() {
        assert!(start.elapsed() < SOON, "{:?}", region.loss());
        let mut lane = region.lane();
        let batch = [Verb::Write { addr: Addr::main(0), words: &[MARK] }];
        if let Err(error) = pollster::block_on(guira_fabric::post(&mut lane, batch)) {
            println!("{error}");
        }
    }
    assert_eq!(region.loss(), Some(Loss::Closed(CloseReason::MemoryLost)));
    assert!(!node.region.has_lost_bytes(), "nothing that is gone was touched");
    node.end();
}
