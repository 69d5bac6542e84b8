//! The allocations of a node's thread, which only that thread can count.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Profile, Verb};
use guira_network::node::{Node, NodeOptions, Stop};
use guira_network::tcp::BatchExecutor;
use guira_network::tcp::batch::encode_batch;
use guira_network::wire::{self, Fabric, Grant, Hello, Kind};
use zerocopy::IntoBytes;

/// The bursts of the two runs, and the batches of a burst.
const FEW: u64 = 50;
const MANY: u64 = 2_000;
const BURST: u64 = 16;

/// Counts the allocations of a node's thread while it serves a client that sends `bursts` bursts.
fn allocations(bursts: u64) -> u64 {
    let region = HeapRegion::new(1 << 16, 1 << 12, Profile::Shm.caps());
    let options = NodeOptions::new((Ipv4Addr::LOCALHOST, 0).into(), [1, 2]).threads(1);
    let node = Node::bind(BatchExecutor::new(region), options).expect("a free port");
    let (addr, counters, stop) = (node.local_addrs()[0], node.counters(), Stop::new());
    let client = std::thread::spawn({
        let stop = stop.clone();
        move || {
            send(addr, bursts);
            stop.stop();
        }
    });
    // With one thread, the node runs on this one.
    let info = allocation_counter::measure(|| node.run(&stop).expect("the loop goes on"));
    client.join().expect("every batch is answered");
    assert_eq!(counters().batches, bursts * BURST);
    info.count_total
}

/// Sends bursts of batches with verbs of every kind, and waits for each burst's replies.
fn send(addr: SocketAddr, bursts: u64) {
    let mut stream = TcpStream::connect(addr).expect("the node listens");
    let hello =
        Hello { fabric: Fabric::Tcp, wanted: Grant::ReadWrite, token: None, prior_session: None, sample_words: 0 };
    let mut frames = Vec::new();
    wire::append(&mut frames, Kind::Hello, 0, &hello.encode());
    stream.write_all(frames.as_bytes()).expect("a greeting");
    let mut welcome = [0_u64; 13];
    stream.read_exact(welcome.as_mut_bytes()).expect("a welcome");
    frames.clear();
    let mut words = 0;
    for id in 0..BURST {
        let (mut into, mut found) = ([0; 4], [0; 3]);
        let [swapped, masked, added] = &mut found;
        let batch = [
            Verb::Write { addr: Addr::main(64), words: &[id; 4] },
            Verb::Read { addr: Addr::main(64), into: &mut into },
            Verb::Cas { addr: Addr::main(8), compare: 0, swap: 1, found: swapped },
            Verb::MaskedCas {
                addr: Addr::device(8),
                compare: 0,
                swap: 1,
                compare_mask: 1,
                swap_mask: 1,
                found: masked,
            },
            Verb::FetchAdd { addr: Addr::main(0), add: 1, found: added },
        ];
        words += encode_batch(&mut frames, id, &batch).expect("a batch that fits").reply_words;
    }
    let mut answers = vec![0_u64; words];
    for _ in 0..bursts {
        stream.write_all(frames.as_bytes()).expect("the node takes batches");
        stream.read_exact(answers.as_mut_bytes()).expect("an answer to each");
    }
}

#[test]
fn batches_allocate_nothing() {
    let (few, many) = (allocations(FEW), allocations(MANY));
    println!("{few} allocations with {} batches, {many} with {}", FEW * BURST, MANY * BURST);
    assert!(few > 0, "a session allocates, so the allocator counts");
    assert_eq!(few, many);
}
