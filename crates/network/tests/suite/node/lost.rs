//! A region whose file is truncated while it is served: every client gets a Close, none reads data that the file never
//! had, and the process goes on. The handler that makes the process survive is tested in fabric-shm.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use guira_fabric::{Addr, Region, Verb};
use guira_fabric_shm::{CreateOptions, Location, ShmRegion};
use guira_network::client::{ConnectOptions, Endpoint, Loss};
use guira_network::node::{Node, NodeError, NodeHandle};
use guira_network::tcp::BatchExecutor;
use guira_network::tcp::TcpRegion;
use guira_network::tcp::batch;
use guira_network::wire::{CloseReason, Kind};
use guira_testing::{patience, process_name, unique_name, wait_until};

use crate::common::client::Client;
use crate::common::test_node::{self, DEVICE_BYTES, MAIN_BYTES, options};

/// The value of every word of the region.
const MARK: u64 = 0x5a5a_5a5a_5a5a_5a5a;
/// The clients that read, and that write, while the file is truncated.
const READERS: u64 = 6;
const WRITERS: u64 = 2;
/// The words of one READ or WRITE.
const WORDS: usize = 512;

/// A region with a name, full of marks, and a node over it.
struct TruncatableNode {
    region: ShmRegion,
    path: PathBuf,
    handle: NodeHandle,
}

impl TruncatableNode {
    fn new() -> TruncatableNode {
        let location = Location::shm(&unique_name()).expect("a valid name");
        let created = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
        let region = ShmRegion::create(&location, created, |_| Ok::<(), String>(())).expect("a fresh name");
        region.main_words().iter().for_each(|word| word.store(MARK, Ordering::Relaxed));
        region.guard_against_truncation().expect("a place for a guard");
        let handle =
            Node::bind(BatchExecutor::new(region.clone()), options()).expect("a node").spawn().expect("threads");
        TruncatableNode { region, path: location.path().to_owned(), handle }
    }

    fn cut(&self, bytes: u64) {
        let file = OpenOptions::new().write(true).open(&self.path).expect("it has its name");
        file.set_len(bytes).expect("it is this user's");
    }

    /// Waits for the end of the node; returns how its memory was lost.
    fn end(self) -> String {
        wait_until("the node has ended", || !self.handle.is_running());
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
fn no_client_reads_zeros_and_all_get_a_close() {
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
                        if number < READERS { read(client, number, answered) } else { write(client, number) }
                    })
                })
                .collect();
            wait_until("the clients read", || answered.load(Ordering::Relaxed) >= 1_000);
            node.cut(bytes);
            clients.into_iter().map(|client| client.join().expect("no zeros")).collect::<Vec<_>>()
        });
        println!("{bytes} bytes: {} READs, then {heard:?}", answered.load(Ordering::Relaxed));
        assert!(heard.iter().all(|reason| *reason == CloseReason::MemoryLost), "{heard:?}");
        let reason = node.end();
        assert!(
            reason.contains(&format!("was truncated to {bytes} of ")) && reason.contains(process_name()),
            "{reason}"
        );
        // The process continues.
        let (mut client, _) = Client::open(other.addr);
        assert_eq!(client.read(Addr::main(0), 1), [0]);
    }
}

/// Reads one part of the region after the other, and checks that all words are marks.
fn read(mut client: Client, number: u64, answered: &AtomicUsize) -> CloseReason {
    let places = MAIN_BYTES / (8 * WORDS as u64);
    for place in (0..places).cycle().skip((number * places / READERS) as usize) {
        let mut into = vec![0; WORDS];
        let batch = [Verb::Read { addr: Addr::main(place * 8 * WORDS as u64), into: &mut into }];
        match post(&mut client, &batch) {
            Ok(found) => assert!(found.iter().all(|word| *word == MARK), "a READ found {:x}", found[0]),
            Err(reason) => return reason,
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("the loop is infinite")
}

/// Writes the values that are already there.
fn write(mut client: Client, number: u64) -> CloseReason {
    let places = MAIN_BYTES / (8 * WORDS as u64);
    for place in (0..places).cycle().skip((number * places / WRITERS) as usize) {
        let batch = [Verb::Write { addr: Addr::main(place * 8 * WORDS as u64), words: &[MARK; WORDS] }];
        if let Err(reason) = post(&mut client, &batch) {
            return reason;
        }
    }
    unreachable!("the loop is infinite")
}

/// Executes a batch; returns its results, or the reason of the Close.
fn post(client: &mut Client, batch: &[Verb<'_>]) -> Result<Vec<u64>, CloseReason> {
    let mut frame = Vec::new();
    batch::encode_batch(&mut frame, 1, batch).expect("a batch that fits");
    // A closed connection accepts nothing, but earlier frames are still read.
    let _ = client.send_words(&frame);
    let answer = client.frame().expect("a reply or a Close");
    match answer.header.kind {
        Kind::Done => Ok(answer.body),
        Kind::Close => Err(CloseReason::decode(&answer.body).expect("a Close")),
        kind => panic!("{kind:?}"),
    }
}

/// Silent clients get a Close, and so do those that access only bytes that remain: the node checks by itself.
#[test]
fn a_node_notices_by_itself_that_its_file_was_truncated() {
    let node = TruncatableNode::new();
    let endpoint = Endpoint::new("127.0.0.1", node.handle.local_addrs()[0].port());
    let region =
        TcpRegion::connect(&ConnectOptions::new(endpoint).with_connect_timeout(patience())).expect("a session");
    let (mut silent, _) = Client::open(node.handle.local_addrs()[0]);
    node.cut(MAIN_BYTES / 2);
    assert_eq!(silent.close_reason(), CloseReason::MemoryLost);
    wait_until("the client learns of it", || {
        let mut lane = region.lane();
        let batch = [Verb::Write { addr: Addr::main(0), words: &[MARK] }];
        if let Err(error) = pollster::block_on(guira_fabric::post(&mut lane, batch)) {
            println!("{error}");
        }
        region.has_lost_bytes()
    });
    assert_eq!(region.session().loss(), Some(Loss::Closed(CloseReason::MemoryLost)));
    assert!(!node.region.has_lost_bytes(), "nothing that is gone was touched");
    node.end();
}
