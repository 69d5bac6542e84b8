//! Who is not let in keeps nobody out: silent connections, by the thousand, and readers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guira_fabric_tcp::wire::{Bye, Grant, Hello, Kind};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::client::{Client, HELLO};
use crate::served::{Served, heap, options};

/// Silent connections of the first attack.
const SILENT: usize = 1_400;
/// Those of each address in the second, and the addresses.
const SILENT_OF_ADDRESS: usize = 60;
const ADDRESSES: u8 = 8;
/// Connections without a session, and those of one address, at most: docs/wire.md.
const STRANGERS: usize = 256;
const STRANGERS_OF_ADDRESS: usize = 64;
/// How long an honest client may take to come in.
const SOON: Duration = Duration::from_secs(1);

#[test]
fn silent_connections_of_one_address_keep_nobody_out() {
    let served = heap(options());
    let silent: Vec<TcpStream> = (0..SILENT).map(|_| TcpStream::connect(served.addr).expect("it listens")).collect();
    come_in(&served, 50);
    served.wait_until("all of them", |now| now.connections_accepted == SILENT as u64 + 50);
    let open = count_open(silent);
    println!("{open} of {SILENT} silent connections are left");
    assert!((1..=STRANGERS_OF_ADDRESS).contains(&open), "{open} of them are left");
    let counters = served.handle.counters();
    assert_eq!((counters.sessions_opened, counters.refused_full, counters.connections_refused), (50, 0, 0));
    assert!(counters.connections_shed >= (SILENT - STRANGERS_OF_ADDRESS) as u64, "{counters:?}");
}

#[test]
fn silent_connections_of_many_addresses_keep_nobody_out() {
    let served = heap(options());
    let from = |host: u8| {
        let served = &served;
        (0..SILENT_OF_ADDRESS).map(move |_| connect_from(Ipv4Addr::new(127, 0, 7, host), served.addr))
    };
    let silent: Vec<TcpStream> = (1..=ADDRESSES).flat_map(from).collect();
    assert!(silent.len() > STRANGERS);
    come_in(&served, 20);
    served.wait_until("all of them", |now| now.connections_accepted == silent.len() as u64 + 20);
    let all = silent.len();
    let open = count_open(silent);
    println!("{open} of {all} silent connections are left");
    assert!((STRANGERS / 2..=STRANGERS).contains(&open), "{open} of them are left");
}

/// Strangers that say a byte and stay, a hundred of them a second, on an address of their own or on the client's: a
/// client that takes a moment for its greeting comes in each time.
#[test]
fn connections_that_begin_a_greeting_keep_nobody_out() {
    let served = heap(options());
    for near in [true, false] {
        let (is_over, before) = (AtomicBool::new(false), served.handle.counters().connections_accepted);
        std::thread::scope(|scope| {
            let strangers = || {
                let mut all = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let host = if near { 1 } else { 2 + all.len() as u8 % 200 };
                    let mut stranger = connect_from(Ipv4Addr::new(127, 0, if near { 0 } else { 9 }, host), served.addr);
                    // It may have been closed at once.
                    let _ = stranger.write(b"H");
                    all.push(stranger);
                    std::thread::sleep(Duration::from_millis(5));
                }
                all.len()
            };
            let strangers = scope.spawn(strangers);
            served.wait_until("a full door", |now| now.connections_accepted > before + 300);
            for _ in 0..20 {
                let mut client = Client::connect(served.addr);
                std::thread::sleep(Duration::from_millis(20));
                client.send(Kind::Hello, &HELLO.encode());
                client.answer(1, Kind::Welcome).expect("a session");
            }
            is_over.store(true, Ordering::Relaxed);
            println!("{} strangers", strangers.join().expect("no panic"));
        });
    }
    assert!(served.handle.counters().connections_shed > 10, "the door was full");
}

/// A quarter of the sessions is for those who may write.
#[test]
fn readers_leave_room_for_writers() {
    let served = heap(options().max_sessions(8));
    let reader = Hello { wanted: Grant::ReadOnly, ..HELLO };
    let mut readers: Vec<Client> = (0..6).map(|_| Client::greet(served.addr, &reader).expect("a session").0).collect();
    assert_eq!(Client::greet(served.addr, &reader).map(drop), Err(Bye::Full { limit: 6 }));
    let _writers = [Client::open(served.addr), Client::open(served.addr)];
    assert_eq!(Client::greet(served.addr, &HELLO).map(drop), Err(Bye::Full { limit: 8 }));
    readers.pop();
    served.wait_until("the end of a reader", |now| now.sessions_ended == 1);
    readers.push(Client::greet(served.addr, &reader).expect("a session").0);
    // Where nobody may write, nothing is kept for those who do.
    let served = heap(options().max_sessions(8).grant(Grant::ReadOnly));
    let _all: Vec<Client> = (0..8).map(|_| Client::greet(served.addr, &reader).expect("a session").0).collect();
    assert_eq!(Client::greet(served.addr, &reader).map(drop), Err(Bye::Full { limit: 8 }));
}

/// So many clients come in one after the other, each of them soon.
fn come_in(served: &Served, clients: usize) {
    for _ in 0..clients {
        let start = Instant::now();
        let (mut client, _) = Client::open(served.addr);
        client.read(guira_fabric::Addr::main(0), 1);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
}

/// How many of these connections the node has not closed.
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
