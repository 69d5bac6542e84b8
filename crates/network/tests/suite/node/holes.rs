//! A region with addresses without memory: it comes when a client asks for it or changes it, within the node's limit, and
//! not when one reads it.

use guira_fabric::{Addr, FabricError, Region, Verb, Waiting};
use guira_fabric_shm::{CreateOptions, ShmRegion};
use guira_network::client::{ConnectOptions, Endpoint};
use guira_network::tcp::TcpRegion;
use guira_network::wire::{CloseReason, Grant, Hello, Kind, Reserve};
use guira_testing::patience;

use crate::common::client::{Client, HELLO};
use crate::common::test_node::{DEVICE_BYTES, TestNode, options};

const MIB: u64 = 1 << 20;
const MAIN_BYTES: u64 = 64 * MIB;
/// Everything behind the first MiB.
const HOLES: [(u64, u64); 4] = [(0, 0), (0, 0), (0, 0), (MIB, MAIN_BYTES)];

fn region() -> ShmRegion {
    let created = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES).with_holes(HOLES);
    ShmRegion::create_unnamed(created, |_| Ok::<(), String>(())).expect("memory")
}

fn stored(region: &ShmRegion) -> u64 {
    region.info().expect("it is open").stored_bytes
}

fn connect(node: &TestNode, grant: Grant, waiting: Waiting) -> TcpRegion {
    let endpoint = Endpoint::new("127.0.0.1", node.addr.port());
    let options = ConnectOptions::new(endpoint).with_grant(grant).with_waiting(waiting);
    TcpRegion::connect(&options.with_connect_timeout(patience())).expect("a session")
}

fn reserve(region: &TcpRegion, bytes: std::ops::Range<u64>) -> Result<(), FabricError> {
    pollster::block_on(guira_fabric::reserve(&mut region.lane(), bytes))
}

fn read(region: &TcpRegion, at: u64) -> Result<u64, FabricError> {
    let mut word = [7];
    let batch = [Verb::Read { addr: Addr::main(at), into: &mut word }];
    pollster::block_on(guira_fabric::post(&mut region.lane(), batch)).map(|()| word[0])
}

fn write(region: &TcpRegion, at: u64, word: u64) -> Result<(), FabricError> {
    let batch = [Verb::Write { addr: Addr::main(at), words: &[word] }];
    pollster::block_on(guira_fabric::post(&mut region.lane(), batch))
}

/// Memory that a client reserves is there, once, however it waits; also that which it writes without asking for it.
#[test]
fn memory_comes_when_it_is_reserved_or_written() {
    for waiting in [Waiting::InPlace, Waiting::Cooperative] {
        let region = region();
        let node = TestNode::new(region.clone(), options());
        let (client, first) = (connect(&node, Grant::ReadWrite, waiting), stored(&region));
        assert!(first < 2 * MIB);
        let part = 5 * MIB + 8..8 * MIB + 16;
        reserve(&client, part.clone()).expect("memory");
        let reserved = stored(&region);
        assert!((first + 3 * MIB..first + 4 * MIB).contains(&reserved), "{first}, then {reserved}");
        reserve(&client, part).expect("memory");
        reserve(&client, 0..MIB).expect("memory");
        assert_eq!(stored(&region), reserved);
        assert_eq!(
            (read(&client, 6 * MIB), write(&client, 6 * MIB, 3), read(&client, 6 * MIB)),
            (Ok(0), Ok(()), Ok(3))
        );
        assert_eq!(stored(&region), reserved);
        write(&client, 40 * MIB, 5).expect("memory");
        assert!((reserved + 1..=reserved + MIB / 4).contains(&stored(&region)));
        for bytes in [MAIN_BYTES - 8..MAIN_BYTES + 8, (1 << 62)..(1 << 62) + 8] {
            let refused = reserve(&client, bytes).expect_err("there are no such bytes");
            assert!(matches!(refused, FabricError::OutOfBounds { .. }), "{refused}");
        }
        // What a local client reserves and writes is there for clients of the node.
        pollster::block_on(guira_fabric::reserve(&mut region.lane(), 50 * MIB..51 * MIB)).expect("memory");
        let local = [Verb::Write { addr: Addr::main(50 * MIB), words: &[9] }];
        pollster::block_on(guira_fabric::post(&mut region.lane(), local)).expect("it is local");
        assert_eq!(read(&client, 50 * MIB), Ok(9));
    }
}

/// The node takes no more memory than it may: the batch that would need more has no effect, and the session goes on.
#[test]
fn a_node_takes_no_more_memory_than_it_may() {
    let region = region();
    let limit = stored(&region) + 2 * MIB;
    region.limit_memory(limit);
    let node = TestNode::new(region.clone(), options());
    let client = connect(&node, Grant::ReadWrite, Waiting::InPlace);
    reserve(&client, 4 * MIB..5 * MIB).expect("memory");
    let refused = reserve(&client, 8 * MIB..10 * MIB).expect_err("2 MiB in all");
    println!("{refused}");
    let FabricError::NoMemory { wanted, available, limiter } = refused else { panic!("{refused}") };
    assert!(
        wanted > 0 && available < wanted && limiter == "the memory node's limit (--max-memory)",
        "{wanted}, {available}, {limiter}"
    );
    // The first verb would fit.
    let batch = [
        Verb::Write { addr: Addr::main(4 * MIB), words: &[1] },
        Verb::Write { addr: Addr::main(32 * MIB), words: &[1; 1 << 17] },
    ];
    let refused = pollster::block_on(guira_fabric::post(&mut client.lane(), batch)).expect_err("no memory");
    assert!(matches!(refused, FabricError::NoMemory { .. }), "{refused}");
    assert_eq!(read(&client, 4 * MIB), Ok(0));
    assert!(stored(&region) <= limit);
}

/// A node that is at its limit when it starts serves all that has memory, also in parts of which not everything has, and
/// never takes any of it for memory that it would have to add.
#[test]
fn a_node_at_its_limit_serves_what_has_memory() {
    let region = region();
    reserve(&connect(&TestNode::new(region.clone(), options()), Grant::ReadWrite, Waiting::InPlace), 4 * MIB..5 * MIB)
        .expect("memory");
    pollster::block_on(guira_fabric::reserve(&mut region.lane(), 20 * MIB..20 * MIB + 4096)).expect("memory");
    let limit = stored(&region);
    region.limit_memory(limit);
    let node = TestNode::new(region.clone(), options());
    for grant in [Grant::ReadOnly, Grant::ReadWrite] {
        let client = connect(&node, grant, Waiting::InPlace);
        for at in (0..MIB).chain(4 * MIB..5 * MIB).step_by(1 << 14).chain([20 * MIB]) {
            assert_eq!(read(&client, at), Ok(0), "at {at}");
            if grant == Grant::ReadWrite {
                write(&client, at, 1).expect("it has memory");
            }
        }
        for at in [20 * MIB + 8192, 40 * MIB] {
            assert_eq!(read(&client, at), Ok(0), "nobody wrote it");
            if grant == Grant::ReadWrite {
                let refused = write(&client, at, 1).expect_err("there is no memory");
                assert!(matches!(refused, FabricError::NoMemory { .. }), "{refused}");
            }
        }
    }
    assert_eq!(stored(&region), limit);
}

/// READs find what is there, whoever wrote it, and zeros where nothing is: they make the node take no memory, however
/// much they read, also those of clients that may write.
#[test]
fn reads_reserve_no_memory() {
    let region = region();
    let writer = TestNode::new(region.clone(), options());
    write(&connect(&writer, Grant::ReadWrite, Waiting::InPlace), 30 * MIB, 4).expect("memory");
    // Another node, which knows of nothing that was reserved.
    let node = TestNode::new(region.clone(), options());
    let client = connect(&node, Grant::ReadOnly, Waiting::InPlace);
    assert_eq!((read(&client, 30 * MIB), read(&client, 0)), (Ok(4), Ok(0)));
    let refused = reserve(&client, 40 * MIB..41 * MIB).expect_err("it may only read");
    assert_eq!(refused, FabricError::ReadOnly { verb: "reserving memory" });
    let first = stored(&region);
    for client in [&client, &connect(&node, Grant::ReadWrite, Waiting::InPlace)] {
        for at in (0..MAIN_BYTES).step_by(4096) {
            assert_eq!(read(client, at), Ok(if at == 30 * MIB { 4 } else { 0 }), "at {at}");
        }
        // One READ of both, between others, in a batch that has no memory in most places.
        let [mut before, mut after] = [[7; 3]; 2];
        let mut both = vec![7; 1 << 16];
        let batch = [
            Verb::Read { addr: Addr::main(40 * MIB - 16), into: &mut before },
            Verb::Read { addr: Addr::main(30 * MIB - (1 << 18) + 8), into: &mut both },
            Verb::Read { addr: Addr::device(0), into: &mut after },
        ];
        pollster::block_on(guira_fabric::post(&mut client.lane(), batch)).expect("it reads");
        assert_eq!((before, after), ([0; 3], [0; 3]));
        let found: Vec<_> = both.iter().enumerate().filter(|(_, word)| **word != 0).collect();
        assert_eq!(found, [((1 << 15) - 1, &4)]);
        let outside = [Verb::Read { addr: Addr::main(MAIN_BYTES - 8), into: &mut before }];
        let refused = pollster::block_on(guira_fabric::post(&mut client.lane(), outside)).expect_err("it ends outside");
        assert!(matches!(refused, FabricError::OutOfBounds { .. }), "{refused}");
    }
    assert_eq!(stored(&region), first);
}

/// A part that is empty, turned round or too long ends the session, as every frame that no client sends.
#[test]
fn impossible_requests_end_the_session() {
    let node = TestNode::new(region(), options());
    for body in
        [&[][..], &[0], &[0, 0], &[8, 0], &[0, Reserve::MAX_BYTES + 8], &[0, 8, 0], &[0x7fff_ffff_ffff_fff8, 1 << 63]]
    {
        let (mut client, _) =
            Client::greet(node.addr, &Hello { wanted: Grant::ReadWrite, ..HELLO }).expect("a session");
        client.send(Kind::Reserve, body);
        assert_eq!(client.close_reason(), CloseReason::ProtocolError, "{body:?}");
    }
    // A node with all of its memory has nothing to do.
    let whole = crate::common::test_node::heap(options());
    let client = connect(&whole, Grant::ReadWrite, Waiting::InPlace);
    reserve(&client, 0..4096).expect("it has it");
}
