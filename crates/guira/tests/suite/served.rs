//! Unnamed tables and served tables, as their owner uses them. Clients of memory nodes are tested in other modules.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not tests themselves to the lint")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use guira::errors::NodeError;
use guira::{
    AdminError, Blame, CreateOptions, Effect, Error, OpenOptions, OperationError, OperationErrorKind, ServeOptions,
    Store, Url,
};
use guira_network::wire::{Fabric, Grant, Header, Hello, Kind, Welcome, append, from_wire, to_wire};

use crate::common::Table;

fn options() -> CreateOptions {
    CreateOptions::new(1_000).max_clients(8)
}

fn loopback() -> ServeOptions {
    ServeOptions::new("127.0.0.1:0".parse().unwrap()).threads(1)
}

/// Greets a memory node as a client that wants to write, and returns the reply.
fn greet(addr: SocketAddr) -> Welcome {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hello =
        Hello { fabric: Fabric::Tcp, wanted: Grant::ReadWrite, token: None, prior_session: None, sample_words: 1 };
    let mut words = Vec::new();
    append(&mut words, Kind::Hello, 1, &hello.encode());
    to_wire(&mut words);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    stream.write_all(&bytes).unwrap();
    let mut receive = |count: usize| {
        let mut bytes = vec![0; 8 * count];
        stream.read_exact(&mut bytes).unwrap();
        let mut words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        from_wire(&mut words);
        words
    };
    let head = receive(2);
    let header = Header::decode([head[0], head[1]]).unwrap();
    assert_eq!(header.kind, Kind::Welcome);
    Welcome::decode(&receive(header.words - 2)).unwrap()
}

#[test]
fn an_unnamed_table_works_like_any_other_and_is_private() {
    let store = Store::create_unnamed(&options()).unwrap();
    assert_eq!((store.url(), store.url().to_string().as_str()), (&Url::unnamed(), "memory://"));
    let other = Store::create_unnamed(&options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let store = store.clone();
            scope.spawn(move || store.client().unwrap().put(&thread.to_le_bytes(), b"seen").unwrap());
        }
    });
    assert_eq!(
        (store.len_estimate().unwrap().entries, other.len_estimate().unwrap().entries),
        (4, 0),
        "the tables are separate"
    );
    assert!(store.check().unwrap().is_clean());
    assert_eq!(store.stat().unwrap().clients.len(), 0);
    // A reader keeps the memory.
    let mut reader = store.reader();
    drop(store);
    assert_eq!(reader.get(&2_u32.to_le_bytes()).unwrap().as_deref(), Some(&b"seen"[..]));
    let errors = [Store::open(other.url()).err(), Store::destroy(other.url()).err()];
    for error in errors.map(|error| error.expect("an unnamed table cannot be reached by URL")) {
        assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None), "{error}");
        assert!(!error.is_not_found(), "{error}");
    }
    let error = Store::create_unnamed(&CreateOptions::new(1 << 42)).expect_err("a table larger than the address space");
    assert_eq!((error.insufficient_space(), error.effect()), (None, Effect::None), "{error}");
    let error = Store::create_unnamed(&CreateOptions::new(1 << 34)).expect_err("a table larger than the memory");
    assert!(
        error
            .insufficient_space()
            .is_some_and(|insufficient_space| insufficient_space.wanted_bytes > insufficient_space.available_bytes),
        "{error}"
    );
}

#[test]
fn a_served_table_stays_in_use_and_keeps_its_identity() {
    let store = Store::create_unnamed(&options()).unwrap();
    let mut client = store.client().unwrap();
    let served = store.serve(&loopback().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    let [first, second] = *served.local_addrs() else { panic!("two addresses were requested") };
    client.put(b"cuckoo", b"grey").unwrap();
    let (one, two) = (greet(first), greet(second));
    assert_eq!((one.grant, one.region, one.main_bytes), (Grant::ReadWrite, two.region, two.main_bytes));
    assert_eq!((one.atomic_write_unit, served.counters().sessions_opened), (u64::MAX, 2));
    assert!(served.is_running() && store.node_counters().unwrap().is_none());
    let counters = served.counter_reader();
    served.stop().unwrap();
    assert_eq!((counters().sessions_opened, counters().sessions_open()), (2, 0));
    assert!(TcpStream::connect(first).is_err());
    assert_eq!(client.get(b"cuckoo").unwrap().as_deref(), Some(&b"grey"[..]));

    let again = store.serve(&loopback()).unwrap();
    assert_eq!(greet(again.local_addrs()[0]).region, one.region, "the memory of this process, which has no copy");
    let other = Store::create_unnamed(&options()).unwrap().serve(&loopback()).unwrap();
    assert_ne!(greet(other.local_addrs()[0]).region, one.region);
}

#[test]
fn a_named_table_keeps_its_identity_and_its_access() {
    let (table, store) = Table::create(&options());
    let region = |store: &Store| {
        let served = store.serve(&loopback()).unwrap();
        let welcome = greet(served.local_addrs()[0]);
        assert_eq!(welcome.atomic_write_unit, 8);
        (welcome.region, welcome.grant)
    };
    let (identity, grant) = region(&store);
    assert_eq!(grant, Grant::ReadWrite);
    let reading = Store::open_with(&table.url, &OpenOptions::default().read_only()).unwrap();
    assert_eq!(region(&reading), (identity, Grant::ReadOnly));
}

#[test]
fn mistakes_in_serving_are_reported() {
    let store = Store::create_unnamed(&options()).unwrap();
    let elsewhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let error = store.serve(&ServeOptions::new(elsewhere)).expect_err("no token");
    let Error::Admin(AdminError::Serve { source: NodeError::Exposed { addr }, .. }) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*addr, elsewhere);
    assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
    let served = store.serve(&loopback()).unwrap();
    let error = store.serve(&ServeOptions::new(served.local_addrs()[0])).expect_err("the address is in use");
    assert!(matches!(&error, Error::Admin(AdminError::Serve { source: NodeError::Listen { .. }, .. })), "{error}");
    assert_eq!(error.blame(), Blame::Fabric);
    drop(served);
    assert!(store.serve(&ServeOptions::new(elsewhere).insecure()).is_ok());
}

/// [R-DESTROY-2] A table that is destroyed on the host of its memory node is destroyed for the node's clients, whose
/// next lookup reports it.
#[test]
fn remote_readers_learn_that_a_table_was_destroyed_on_its_host() {
    let (table, store) = Table::create(&options());
    let served = store.serve(&loopback()).unwrap();
    let remote = Store::open(Url::tcp("127.0.0.1", served.local_addrs()[0].port()).unwrap()).unwrap();
    let (mut client, mut reader, mut task_reader) =
        (remote.client().unwrap(), remote.reader(), remote.to_async().reader());
    let large = vec![7; 10_000];
    assert!(client.try_insert(b"cuckoo", b"Guira guira").unwrap() && client.try_insert(b"large", &large).unwrap());
    assert_eq!(reader.get(b"large").unwrap().as_ref(), Some(&large));
    assert!(pollster::block_on(task_reader.contains(b"cuckoo")).unwrap());
    Store::destroy(&table.url).unwrap();
    let before = reader.traffic().round_trips;
    let errors = [
        reader.get(b"cuckoo").err(),
        reader.get(b"condor").err(),
        client.get(b"large").err(),
        client.get_many(&[b"cuckoo"]).remove(0).err(),
        client.put(b"cuckoo", b"again").err(),
        pollster::block_on(task_reader.get(b"cuckoo")).err(),
        remote.len_estimate().err(),
        remote.scan_with(&mut |_, _| panic!("nothing is left to visit")).err(),
    ];
    for error in errors {
        let error = error.expect("the table is gone");
        assert!(
            matches!(error, Error::Operation(OperationError { kind: OperationErrorKind::Destroyed, .. })),
            "{error:?}"
        );
    }
    // Each lookup samples once, and looks at the superblock.
    assert_eq!(reader.traffic().round_trips - before, 2 * 2);
    assert!(remote.is_destroyed().unwrap());
}
