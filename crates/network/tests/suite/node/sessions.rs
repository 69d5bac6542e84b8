//! The start and end of sessions, the owners of slots, and the treatment of misbehaving clients.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guira_fabric::{Addr, Region, Verb, post};
use guira_network::client::{ConnectOptions, Endpoint};
use guira_network::node::{MAX_HOLDS, Node, NodeAccess, NodeError, NodeEvent, NodeEventKind, Stop};
use guira_network::tcp::{BatchExecutor, TcpRegion, batch};
use guira_network::wire::{
    self, CloseReason, FenceReply, Grant, Hello, HoldReply, Kind, PriorSession, SessionId, Token, VERSION,
};

use guira_testing::{patience, wait_until};

use crate::common::client::{Client, HELLO};
use crate::common::test_node::{TestNode, heap, heap_region, on_each_region, options};

#[test]
fn a_slot_is_granted_only_when_its_last_session_has_ended() {
    on_each_region(options, |node| {
        let (mut first, _) = Client::open(node.addr);
        let (mut second, _) = Client::open(node.addr);
        assert_eq!(first.hold(3), Ok(HoldReply::Granted));
        assert_eq!(first.hold(3), Ok(HoldReply::Taken), "the session has it already");
        assert_eq!(second.hold(3), Ok(HoldReply::Taken));
        assert!(node.hold(3).is_none(), "local clients see it, too");
        let local = node.hold(4).expect("it is free");
        assert_eq!(second.hold(4), Ok(HoldReply::Taken), "a local client has it");
        drop(local);
        assert_eq!(second.hold(4), Ok(HoldReply::Granted));
        first.send(Kind::Release, &wire::encode_slot(3));
        first.read(Addr::main(0), 1);
        assert_eq!(second.hold(3), Ok(HoldReply::Granted));
        drop(second);
        node.wait_until("the end of a session", |now| now.sessions_ended == 1);
        assert_eq!((first.hold(3), first.hold(4)), (Ok(HoldReply::Granted), Ok(HoldReply::Granted)));
    });
}

/// The access control is replaced between the beginning of a connection and its Hello: the connection was accepted under
/// the old one, perhaps without TLS, and the client may only connect again.
#[test]
fn a_connection_does_not_outlive_the_access_that_accepted_it() {
    let node = heap(options());
    let mut early = Client::connect(node.addr);
    let mut hello = Vec::new();
    wire::append(&mut hello, Kind::Hello, 1, &HELLO.encode());
    early.send_words(&hello[..1]).expect("the node takes frames");
    node.wait_until("the first bytes", |now| now.bytes_in == 8);
    node.handle.set_access(NodeAccess::new().token(Token([5; 2]))).unwrap();
    let hello = Hello { token: Some(Token([5; 2])), ..HELLO };
    let mut words = Vec::new();
    wire::append(&mut words, Kind::Hello, 1, &hello.encode());
    let (mut granted, _) = Client::greet(node.addr, &hello).expect("a session under the new one");
    early.send_words(&words[1..]).expect("the node takes frames");
    let ended = early.frame().map(|frame| frame.header.kind);
    assert!(ended.is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof), "no session, and no reason to give up");
    granted.read(Addr::main(0), 1);
    let counters = node.handle.counters();
    assert_eq!((counters.sessions_opened, counters.connections_shed, counters.refused_token), (1, 1, 0));
}

/// Timeouts that no clock can reach are the longest possible ones.
#[test]
fn the_longest_timeouts_are_accepted() {
    let node = heap(options().session_timeout(Duration::MAX).greeting_timeout(Duration::MAX));
    let (_client, welcome) = Client::greet(node.addr, &HELLO).expect("a session");
    assert_eq!(welcome.session_timeout_ms, 65_535_000);
    let longest = ConnectOptions::new(Endpoint::new("127.0.0.1", node.addr.port()));
    let longest = longest.with_connect_timeout(Duration::MAX).with_batch_timeout(Duration::MAX);
    let mut into = [1];
    let region = TcpRegion::connect(&longest).expect("a session");
    pollster::block_on(post(&mut region.lane(), &mut [Verb::Read { addr: Addr::main(0), into: &mut into }])).unwrap();
    assert_eq!(into, [0]);
}

/// A client writes one number after the other, hundreds of batches at a time. Once another client has its slot, after
/// its session was dropped or its connection closed, the number changes no more.
#[test]
fn nothing_of_a_session_executes_after_its_slot_is_granted() {
    const ROUNDS: u64 = 30;
    on_each_region(options, |node| {
        let mut unfinished = 0;
        for round in 0..ROUNDS {
            let (mut writer, id) = Client::open(node.addr);
            let (mut other, _) = Client::open(node.addr);
            assert_eq!(writer.hold(9), Ok(HoldReply::Granted));
            node.write(Addr::main(128), &[0; 16]);
            let stream = writer.stream.try_clone().unwrap();
            let sent = Arc::new(AtomicU64::new(0));
            let writing = std::thread::spawn({
                let sent = Arc::clone(&sent);
                move || write_until_closed(&mut writer, &sent)
            });
            while node.read(Addr::main(128), 1) == [0] {
                std::thread::yield_now();
            }
            if round % 2 == 0 {
                assert_eq!(other.fence(9), Ok(FenceReply::Dropped));
            } else {
                stream.shutdown(Shutdown::Both).unwrap();
            }
            while other.hold(9) != Ok(HoldReply::Granted) {
                std::thread::yield_now();
            }
            let last = node.read(Addr::main(128), 16);
            assert!(last.iter().all(|word| *word == last[0]), "a WRITE is whole: {last:?}");
            // The node continues to receive from the dropped client, and executes nothing of it.
            wait_until("it sends more, or its connection is closed", || {
                sent.load(Ordering::Relaxed) > last[0] || writing.is_finished()
            });
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(node.read(Addr::main(128), 16), last, "round {round}");
            drop(stream.shutdown(Shutdown::Both));
            writing.join().unwrap();
            unfinished += u64::from(last[0] < sent.load(Ordering::Relaxed));
            let expected = if round % 2 == 0 { PriorSession::Fenced } else { PriorSession::Ended };
            let (_, welcome) =
                Client::greet(node.addr, &Hello { prior_session: Some(id), ..HELLO }).expect("a session");
            assert_eq!(welcome.prior_session, expected);
        }
        println!("{unfinished} of {ROUNDS} sessions ended before their last batch");
        assert!(unfinished >= ROUNDS / 3, "most sessions ended after their last batch, which proves nothing");
    });
}

/// Writes numbers until the connection is lost, and stores the last one that was sent.
fn write_until_closed(writer: &mut Client, sent: &AtomicU64) {
    const AT_ONCE: u64 = 100;
    let mut frames = Vec::new();
    loop {
        let last = sent.load(Ordering::Relaxed);
        frames.clear();
        for number in last + 1..=last + AT_ONCE {
            let write = Verb::Write { addr: Addr::main(128), words: &[number; 16] };
            batch::encode_batch(&mut frames, number, &[write]).expect("a batch that fits");
        }
        if writer.send_words(&frames).is_err() {
            return;
        }
        sent.store(last + AT_ONCE, Ordering::Relaxed);
    }
}

#[test]
fn a_fenced_client_gets_a_close_and_its_later_batches_do_nothing() {
    on_each_region(options, |node| {
        let (mut victim, id) = Client::open(node.addr);
        let (mut other, _) = Client::open(node.addr);
        assert_eq!(other.fence(5), Ok(FenceReply::NoSession));
        assert_eq!(victim.hold(5), Ok(HoldReply::Granted));
        victim.submit(&mut [Verb::Write { addr: Addr::main(0), words: &[1] }]).unwrap();
        assert_eq!(other.fence(5), Ok(FenceReply::Dropped));
        let mut frame = Vec::new();
        batch::encode_batch(&mut frame, 77, &[Verb::Write { addr: Addr::main(0), words: &[2] }]).unwrap();
        drop(victim.send_words(&frame));
        assert_eq!(victim.close_reason(), CloseReason::Fenced);
        assert_eq!(other.read(Addr::main(0), 1), [1]);
        assert_eq!(other.fence(5), Ok(FenceReply::NoSession));
        assert_eq!(other.hold(5), Ok(HoldReply::Granted));
        let (_client, welcome) =
            Client::greet(node.addr, &Hello { prior_session: Some(id), ..HELLO }).expect("a session");
        assert_eq!(welcome.prior_session, PriorSession::Fenced);
        let counters = other.count();
        assert_eq!((counters.sessions_fenced, counters.fences_dropped, counters.fences_no_session), (1, 1, 2));
    });
}

#[test]
fn a_session_may_drop_itself() {
    let node = heap(options());
    let (mut client, _) = Client::open(node.addr);
    assert_eq!(client.hold(5), Ok(HoldReply::Granted));
    client.send(Kind::Fence, &wire::encode_slot(5));
    assert_eq!(client.close_reason(), CloseReason::Fenced);
    assert!(node.hold(5).is_some());
}

/// A client that has lost its connection, which the node has not noticed yet, comes back: its prior session ends first.
#[test]
fn a_session_ends_when_its_client_comes_back() {
    on_each_region(options, |node| {
        let (mut lost, id) = Client::open(node.addr);
        assert_eq!(lost.hold(6), Ok(HoldReply::Granted));
        let hello = Hello { prior_session: Some(id), ..HELLO };
        let (mut client, welcome) = Client::greet(node.addr, &hello).expect("a session");
        assert_eq!(welcome.prior_session, PriorSession::Ended);
        assert_eq!(client.hold(6), Ok(HoldReply::Granted));
        assert_eq!(lost.close_reason(), CloseReason::Fenced);
        let unknown = Hello { prior_session: Some(SessionId([1, 2])), ..HELLO };
        assert_eq!(Client::greet(node.addr, &unknown).expect("a session").1.prior_session, PriorSession::Unknown);
        assert_eq!(Client::greet(node.addr, &HELLO).expect("a session").1.prior_session, PriorSession::None);
    });
}

#[test]
fn the_slots_of_a_session_are_bounded() {
    let node = heap(options());
    let (mut client, _) = Client::open(node.addr);
    for slot in 0..MAX_HOLDS as u16 {
        client.send(Kind::Hold, &wire::encode_slot(slot));
    }
    for _ in 0..MAX_HOLDS {
        assert_eq!(client.frame().unwrap().body, HoldReply::Granted.encode());
    }
    let error = client.hold(MAX_HOLDS as u16).unwrap_err();
    assert!(error.to_string().contains("4096"), "{error}");
    drop(client);
    node.wait_until("the end of its holds", |now| now.holds_ended == MAX_HOLDS as u64);
    assert!((0..MAX_HOLDS as u16).all(|slot| node.hold(slot).is_some()));
}

#[test]
fn only_clients_with_a_token_are_admitted() {
    let (token, reader) = (Token([1, 2]), Token([3, 4]));
    let node = heap(options().token(token).reader_token(reader));
    let greet = |token, wanted| Client::greet(node.addr, &Hello { token, wanted, ..HELLO });
    for wrong in [None, Some(Token([1, 3])), Some(Token([0, 2])), Some(Token([1 | 1 << 63, 2]))] {
        assert_eq!(greet(wrong, Grant::ReadWrite).map(|_| ()), Err(CloseReason::Unauthorized), "{wrong:?}");
    }
    for (token, wanted, granted) in [
        (token, Grant::ReadWrite, Grant::ReadWrite),
        (token, Grant::ReadOnly, Grant::ReadOnly),
        (reader, Grant::ReadWrite, Grant::ReadOnly),
    ] {
        assert_eq!(greet(Some(token), wanted).expect("a session").1.grant, granted);
    }
    assert_eq!(node.handle.counters().refused_token, 4);
    let read_only = heap(options().grant(Grant::ReadOnly));
    assert_eq!(Client::greet(read_only.addr, &HELLO).expect("a session").1.grant, Grant::ReadOnly);
}

#[test]
fn a_node_without_a_token_does_not_listen_to_other_machines() {
    let anywhere = "0.0.0.0:0".parse().unwrap();
    let bind = |options| Node::bind(BatchExecutor::new(heap_region()), options).map(|_| ());
    assert!(matches!(bind(options().listen(anywhere)), Err(NodeError::Exposed { addr }) if addr == anywhere));
    assert!(matches!(bind(options().listen("[::]:0".parse().unwrap())), Err(NodeError::Exposed { .. })));
    bind(options().listen(anywhere).insecure()).unwrap();
    bind(options().listen(anywhere).token(Token([1, 1]))).unwrap();
    bind(options().listen("127.3.2.1:0".parse().unwrap())).unwrap();
    let deferred = heap_region().with_caps(guira_fabric::Profile::Tcp.caps());
    assert!(matches!(Node::bind(BatchExecutor::new(deferred), options()), Err(NodeError::Unsuitable { .. })));
}

#[test]
fn refused_clients_get_the_reason() {
    let node = heap(options().greeting_timeout(2 * patience()));
    let mut other_version = HELLO.encode();
    other_version[1] += 1;
    for (kind, body, reason) in [
        (Kind::Hello, other_version.to_vec(), CloseReason::Version { node: VERSION }),
        (Kind::Hello, vec![0; 7], CloseReason::ProtocolError),
        (Kind::Hello, HELLO.encode()[..6].to_vec(), CloseReason::ProtocolError),
        (Kind::Hold, vec![1], CloseReason::ProtocolError),
        (Kind::Count, vec![], CloseReason::ProtocolError),
        (Kind::Welcome, vec![0; 100_000], CloseReason::ProtocolError),
    ] {
        let mut client = Client::connect(node.addr);
        let mut frame = Vec::new();
        wire::append(&mut frame, kind, 1, &body);
        drop(client.send_words(&frame));
        assert_eq!(client.close_reason(), reason, "{kind:?}");
    }
    let counters = node.handle.counters();
    assert_eq!((counters.refused_version, counters.sessions_opened), (1, 0));
    assert_eq!((counters.greeted_wrongly, counters.greeted_late), (5, 0));
}

/// Half a Hello, a few bytes, and nothing at all: the node has a timeout, and says what arrived.
#[test]
fn clients_that_send_no_hello_in_time_are_refused() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let observe = move |event: &NodeEvent| {
        if let NodeEventKind::Refused { reason } = &event.kind {
            heard.lock().unwrap().push(reason.clone());
        }
    };
    let node = heap(options().greeting_timeout(Duration::from_millis(200)).observer(observe));
    let mut client = Client::connect(node.addr);
    client.stream.write_all(b"hi\x1b\n").unwrap();
    assert_eq!(client.close_reason(), CloseReason::TooSlow { seconds: 0 });
    assert!(said.lock().unwrap()[0].ends_with(r#", 4 bytes arrived, which begin with "hi\x1b\n""#), "{said:?}");
    for words in [0, 5] {
        let mut client = Client::connect(node.addr);
        client.send_words(&HELLO.encode()[..words]).unwrap();
        let close_reason = client.close_reason();
        assert!(
            close_reason == CloseReason::TooSlow { seconds: 0 } || close_reason == CloseReason::ProtocolError,
            "{close_reason:?}"
        );
    }
    let counters = node.handle.counters();
    assert_eq!((counters.greeted_wrongly + counters.greeted_late, counters.sessions_opened), (3, 0));
    assert!(counters.greeted_late >= 2);
    assert!(said.lock().unwrap().iter().any(|reason| reason.ends_with("; nothing of a greeting arrived")), "{said:?}");
}

#[test]
fn a_client_with_a_protocol_error_gets_a_close_and_is_dropped() {
    on_each_region(options, |node| {
        for (number, words) in [
            vec![u64::MAX, 1],
            vec![16 | 0x81 << 32, 1],
            vec![24 | 0x03 << 32, 1, 1 << 40],
            vec![16 | 0x02 << 32, 1],
            vec![32 | 0x02 << 32 | 1 << 40, 1, 0, 7 | 1 << 32],
            vec![72 | 0x01 << 32, 1, 0, 0, 0, 0, 0, 0, 0],
        ]
        .into_iter()
        .enumerate()
        {
            let (mut client, _) = Client::open(node.addr);
            client.hold(1).unwrap();
            client.send_words(&words).unwrap();
            assert_eq!(client.close_reason(), CloseReason::ProtocolError, "{words:x?}");
            assert!(node.hold(1).is_some(), "the session has ended");
            assert_eq!(node.handle.counters().sessions_misunderstood, number as u64 + 1);
        }
    });
}

#[test]
fn sessions_and_connections_are_bounded() {
    let node = heap(options().max_sessions(3).greeting_timeout(2 * patience()));
    let mut clients: Vec<Client> = (0..3).map(|_| Client::open(node.addr).0).collect();
    let refused = Client::greet(node.addr, &HELLO).map(|_| ());
    assert_eq!(refused, Err(CloseReason::Full { limit: 3 }));
    clients.pop();
    node.wait_until("the end of a session", |now| now.sessions_open() == 2);
    clients.push(Client::open(node.addr).0);
    assert_eq!(node.handle.counters().refused_full, 1);
    // Silent connections are bounded, too.
    let idle: Vec<Client> = (0..400).map(|_| Client::connect(node.addr)).collect();
    node.wait_until("all of them", |now| now.connections_accepted == 405);
    let shed = node.handle.counters().connections_shed;
    // Two that have had their Close may still be open.
    assert!((400 - 64..=400 - 64 + 2).contains(&shed), "{shed}");
    for client in &mut clients {
        client.read(Addr::main(0), 1);
    }
    drop(idle);
}

/// Opens a session that holds slot 2, and requests more replies than the kernel's buffers hold.
fn open_without_reading(node: &TestNode) -> (Client, SessionId) {
    let (mut slow, id) = Client::open(node.addr);
    slow.hold(2).expect("a session");
    let (mut into, mut frame) = (vec![0; 100_000], Vec::new());
    let read = Verb::Read { addr: Addr::main(0), into: &mut into };
    batch::encode_batch(&mut frame, 1, &[read]).expect("a batch that fits");
    for _ in 0..200 {
        slow.send_words(&frame).expect("the node receives");
    }
    (slow, id)
}

#[test]
fn a_client_that_reads_no_replies_stalls_no_other() {
    on_each_region(
        || options().threads(1).session_timeout(10 * patience()),
        |node| {
            let _slow = open_without_reading(&node);
            let (mut other, _) = Client::open(node.addr);
            for _ in 0..100 {
                assert_eq!(other.hold(2), Ok(HoldReply::Taken));
                other.read(Addr::main(0), 1);
            }
        },
    );
}

#[test]
fn a_client_that_reads_no_replies_is_dropped() {
    on_each_region(
        || options().threads(1).session_timeout(Duration::from_secs(1)),
        |node| {
            let (start, mut batches) = (Instant::now(), 0);
            let (_slow, id) = open_without_reading(&node);
            let (mut other, _) = Client::open(node.addr);
            while other.hold(2).unwrap() == HoldReply::Taken {
                other.read(Addr::main(0), 1);
                batches += 1;
                assert!(start.elapsed() < patience(), "the client was not dropped");
            }
            let by = if other.count().sessions_too_slow == 1 { "node" } else { "kernel" };
            println!("the {by} dropped it after {:?}; {batches} batches of another client meanwhile", start.elapsed());
            assert!(start.elapsed() > Duration::from_millis(500));
            let counters = other.count();
            // The kernel and the node have the same timeout; the first one drops it.
            assert_eq!(counters.sessions_too_slow + counters.sessions_cut_off, 1);
            assert!(counters.reads - batches < 200, "not all was executed: {counters:?}");
            let (_, welcome) =
                Client::greet(node.addr, &Hello { prior_session: Some(id), ..HELLO }).expect("a session");
            assert_eq!(welcome.prior_session, PriorSession::Fenced);
        },
    );
}

#[test]
fn a_client_that_reads_its_replies_late_gets_them_all() {
    on_each_region(options, |node| {
        let (mut client, _) = Client::open(node.addr);
        node.write(Addr::main(0), &[5]);
        let mut into = vec![0; 100_000];
        let mut frames = Vec::new();
        for id in 0..100 {
            batch::encode_batch(&mut frames, id, &[Verb::Read { addr: Addr::main(0), into: &mut into }]).unwrap();
        }
        client.send_words(&frames).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        for id in 0..100 {
            let found = client.reply(id, Kind::Done).unwrap();
            assert_eq!((found.len(), found[0]), (100_000, 5));
        }
    });
}

#[test]
fn a_node_that_stops_sends_its_clients_a_close() {
    on_each_region(options, |node| {
        let (mut first, _) = Client::open(node.addr);
        let (mut second, _) = Client::open(node.addr);
        let mut silent = Client::connect(node.addr);
        second.hold(1).unwrap();
        first.submit(&mut [Verb::Write { addr: Addr::main(0), words: &[1] }]).unwrap();
        node.wait_until("all connections", |now| now.connections_accepted == 3);
        let addr = node.addr;
        node.handle.stop().unwrap();
        for client in [&mut first, &mut second, &mut silent] {
            assert_eq!(client.close_reason(), CloseReason::Shutdown);
        }
        assert!(std::net::TcpStream::connect(addr).is_err(), "the node has stopped listening");
    });
}

#[test]
fn a_node_that_was_stopped_before_it_ran_does_not_run() {
    let stop = Stop::new();
    let node = Node::bind(BatchExecutor::new(heap_region()), options()).unwrap();
    stop.stop();
    node.run(&stop).unwrap();
}

/// Hundreds of clients add to a counter, many at a time; every one makes progress.
#[test]
fn hundreds_of_clients_make_progress_at_once() {
    const CLIENTS: usize = 512;
    const ADDS: u64 = 20;
    let node = heap(options());
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::open(node.addr).0).collect();
    for _ in 0..ADDS {
        for client in &mut clients {
            let mut found = 0;
            client.post(&[Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found }]);
        }
        for client in &mut clients {
            assert_eq!(client.frame().unwrap().header.kind, Kind::Done);
        }
    }
    assert_eq!(node.read(Addr::device(0), 1), [ADDS * CLIENTS as u64]);
    assert_eq!(node.handle.counters().sessions_open(), CLIENTS as u64);
    drop(clients);
    node.wait_until("the end of all sessions", |now| now.sessions_open() == 0);
}
