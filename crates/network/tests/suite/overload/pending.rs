//! Connections that are not admitted keep no client out: silent ones, by the thousand, and readers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use guira_network::node::{Node, NodeOptions};
use guira_network::tcp::BatchExecutor;
use guira_network::wire::{CloseReason, Fabric, Grant, Hello, Kind};
use guira_testing::patience;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::common::client::{Client, HELLO};
use crate::common::test_node::{TestNode, heap, heap_region, options};

/// The silent connections of the first attack.
const SILENT: usize = 1_400;
/// The silent connections of each address in the second attack, and the addresses.
const SILENT_OF_ADDRESS: usize = 60;
const ADDRESSES: u8 = 8;
/// The most connections without a session, and of one address: docs/wire.md.
const MAX_PENDING: usize = 256;
const MAX_PENDING_OF_ADDRESS: usize = 64;
/// The clients that connect at once, and are not accepted yet.
const FLOOD: usize = 600;

/// Returns options of a node that closes no silent connection while a test lasts, unless there are too many.
fn patient() -> NodeOptions {
    options().greeting_timeout(2 * patience())
}

#[test]
fn silent_connections_of_one_address_keep_no_client_out() {
    let node = heap(patient());
    let silent: Vec<TcpStream> = (0..SILENT).map(|_| TcpStream::connect(node.addr).expect("it listens")).collect();
    open_sessions(&node, 50);
    node.wait_until("all of them", |now| now.connections_accepted == SILENT as u64 + 50);
    let open = count_open(silent);
    println!("{open} of {SILENT} silent connections are left");
    assert!((1..=MAX_PENDING_OF_ADDRESS).contains(&open), "{open} of them are left");
    let counters = node.handle.counters();
    assert_eq!((counters.sessions_opened, counters.refused_full, counters.connections_refused), (50, 0, 0));
    assert!(counters.connections_shed >= (SILENT - MAX_PENDING_OF_ADDRESS) as u64, "{counters:?}");
}

#[test]
fn silent_connections_of_many_addresses_keep_no_client_out() {
    let node = heap(patient());
    let from = |host: u8| {
        let node = &node;
        (0..SILENT_OF_ADDRESS).map(move |_| connect_from(Ipv4Addr::new(127, 0, 7, host), node.addr))
    };
    let silent: Vec<TcpStream> = (1..=ADDRESSES).flat_map(from).collect();
    assert!(silent.len() > MAX_PENDING);
    open_sessions(&node, 20);
    node.wait_until("all of them", |now| now.connections_accepted == silent.len() as u64 + 20);
    let all = silent.len();
    let open = count_open(silent);
    println!("{open} of {all} silent connections are left");
    assert!((MAX_PENDING / 2..=MAX_PENDING).contains(&open), "{open} of them are left");
}

/// Connections that send a byte and stay, from other addresses or the client's own, four of them while each client
/// takes a moment for its Hello: it gets a session each time.
#[test]
fn connections_that_start_a_hello_keep_no_client_out() {
    let node = heap(patient());
    for near in [true, false] {
        let (mut hostile, before) = (Vec::new(), node.handle.counters().connections_accepted);
        let mut attack = || {
            let host = if near { 1 } else { 2 + hostile.len() as u8 % 200 };
            let mut connection = connect_from(Ipv4Addr::new(127, 0, if near { 0 } else { 9 }, host), node.addr);
            // It may have been closed at once.
            let _ = connection.write(b"H");
            hostile.push(connection);
        };
        (0..=300).for_each(|_| attack());
        node.wait_until("as many connections as there may be", |now| now.connections_accepted > before + 300);
        for _ in 0..20 {
            let mut client = Client::connect(node.addr);
            (0..4).for_each(|_| attack());
            client.send(Kind::Hello, &HELLO.encode());
            client.reply(1, Kind::Welcome).expect("a session");
        }
    }
    assert!(node.handle.counters().connections_shed > 10, "there were too many connections");
}

/// More clients connect at once than the standard library's queue has places for: none of them has to retry, which
/// would be in vain. The node listens, and accepts no connection yet.
#[test]
fn a_flood_waits_in_a_queue_that_is_long_enough() {
    let node = Node::bind(BatchExecutor::new(heap_region()), options()).expect("a node");
    let addr = node.local_addrs()[0];
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("Linux has it");
    let most: usize = allowed.trim().parse().expect("a number");
    let flood = FLOOD.min(most);
    let connect = |_| TcpStream::connect_timeout(&addr, patience());
    let waiting: Vec<_> = (0..flood).map_while(|number| connect(number).ok()).collect();
    assert_eq!(waiting.len(), flood, "all were queued at once");
}

/// A connection that is evicted for a closing session is counted like one evicted for a new connection.
#[test]
fn a_connection_evicted_for_a_close_is_counted() {
    let node = heap(patient());
    let (mut client, _) = Client::open(node.addr);
    let silent: Vec<TcpStream> =
        (0..MAX_PENDING_OF_ADDRESS).map(|_| TcpStream::connect(node.addr).expect("it listens")).collect();
    node.wait_until("all of them", |now| now.connections_accepted == 1 + MAX_PENDING_OF_ADDRESS as u64);
    assert_eq!(node.handle.counters().connections_shed, 0, "there is a place for each");
    client.send(Kind::Hello, &HELLO.encode());
    assert_eq!(client.close_reason(), CloseReason::ProtocolError);
    // It is counted before it is closed, which takes a message to its loop.
    node.wait_until("one that goes", |now| now.connections_shed == 1);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(count_open(silent), MAX_PENDING_OF_ADDRESS - 1);
}

/// The sessions of one address are bounded, even if others are free; other addresses are admitted, and so is it again.
#[test]
fn sessions_of_one_address_leave_room_for_others() {
    let node = heap(options().max_sessions_per_address(3));
    let greet_from = |host: u8| {
        let stream = connect_from(Ipv4Addr::new(127, 0, 5, host), node.addr);
        Client::greet_over(stream, &HELLO).map(|(client, _)| client)
    };
    let mut near: Vec<Client> = (0..3).map(|_| greet_from(1).expect("a session")).collect();
    let refused = greet_from(1).map(drop).expect_err("it has three");
    assert_eq!(refused, CloseReason::AddressFull { limit: 3 });
    assert!(refused.to_string().contains("this client's address"), "{refused}");
    let _far: Vec<Client> = (2..6).map(|host| greet_from(host).expect("a session")).collect();
    near.pop();
    node.wait_until("the end of one", |now| now.sessions_ended == 1);
    near.push(greet_from(1).expect("a session"));
    assert_eq!(greet_from(1).map(drop), Err(CloseReason::AddressFull { limit: 3 }));
    let counters = node.handle.counters();
    assert_eq!((counters.refused_address, counters.refused_full, counters.sessions_open()), (2, 0, 7));
    // A client that was refused because the node is full does not count for its address.
    let node = heap(options().max_sessions_per_address(3).max_sessions(1));
    let first = Client::open(node.addr);
    for _ in 0..4 {
        assert_eq!(Client::greet(node.addr, &HELLO).map(drop), Err(CloseReason::Full { limit: 1 }));
    }
    drop(first);
    node.wait_until("the end of one", |now| now.sessions_ended == 1);
    Client::open(node.addr);
}

/// A quarter of the sessions is reserved for clients with write access.
#[test]
fn readers_leave_room_for_writers() {
    let node = heap(options().max_sessions(8));
    let reader = Hello { fabric: Fabric::Tcp, wanted: Grant::ReadOnly, ..HELLO };
    let mut readers: Vec<Client> = (0..6).map(|_| Client::greet(node.addr, &reader).expect("a session").0).collect();
    assert_eq!(Client::greet(node.addr, &reader).map(drop), Err(CloseReason::Full { limit: 6 }));
    let _writers = [Client::open(node.addr), Client::open(node.addr)];
    assert_eq!(Client::greet(node.addr, &HELLO).map(drop), Err(CloseReason::Full { limit: 8 }));
    readers.pop();
    node.wait_until("the end of a reader", |now| now.sessions_ended == 1);
    readers.push(Client::greet(node.addr, &reader).expect("a session").0);
    // If no client may write, nothing is reserved for writers.
    let node = heap(options().max_sessions(8).grant(Grant::ReadOnly));
    let _all: Vec<Client> = (0..8).map(|_| Client::greet(node.addr, &reader).expect("a session").0).collect();
    assert_eq!(Client::greet(node.addr, &reader).map(drop), Err(CloseReason::Full { limit: 8 }));
}

/// Opens sessions one after the other.
fn open_sessions(node: &TestNode, clients: usize) {
    for _ in 0..clients {
        let (mut client, _) = Client::open(node.addr);
        client.read(guira_fabric::Addr::main(0), 1);
    }
}

/// Returns how many of the connections the node has not closed.
fn count_open(connections: Vec<TcpStream>) -> usize {
    let is_open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).expect("an option of the socket");
        stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    connections.iter().filter(|stream| is_open(stream)).count()
}

fn connect_from(source: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&stream, &SocketAddrV4::new(source, 0)).expect("an address of this machine");
    connect(&stream, &to).expect("it listens");
    stream.into()
}
