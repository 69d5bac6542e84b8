//! Hostile nodes that send invalid replies: no panic, no hang, and no unrequested reply is accepted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, FabricError, Profile, Region, Verb, Waiting, post};
use guira_network::client::{ConnectError, Loss};
use guira_network::tcp::TcpRegion;
use guira_network::wire::{CloseReason, Hello, Kind, WireError, append};
use guira_testing::patience;
use pollster::block_on;
use proptest::prelude::*;

use super::mock_node::{bytes, options, read_frame, welcome};
use crate::common::WAITING_MODES;

/// Starts a node that sends a Welcome, and replies to the next frame with the bytes that `reply` makes of its id.
fn node(reply: impl Fn(u64) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port left");
    let address = listener.local_addr().expect("a listener has an address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let (header, body) = read_frame(&mut stream)?;
        let hello = Hello::decode(&body).map_err(std::io::Error::other)?;
        let region = HeapRegion::new(64, 64, Profile::Tcp.caps());
        let mut out = Vec::new();
        append(&mut out, Kind::Welcome, header.id, &welcome(&region, &hello, 1).encode());
        stream.write_all(&bytes(&out))?;
        let (header, _) = read_frame(&mut stream)?;
        stream.write_all(&reply(header.id))?;
        // Until the client closes.
        stream.read_to_end(&mut Vec::new()).map(|_| ())
    });
    address
}

/// Starts a server that is not a node and answers a connection with `bytes`.
fn other_server(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port left");
    let address = listener.local_addr().expect("a listener has an address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut [0; 72])?;
        stream.write_all(&bytes)
    });
    address
}

/// Starts a node that closes its first `closed` connections, alternately before and after their Hello, as a node with
/// too many connections does; returns the number of closed ones, too.
fn closer(closed: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port left");
    let (address, count) = (listener.local_addr().expect("a listener has an address"), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for number in 0..closed {
            let (mut stream, _) = listener.accept()?;
            counted.fetch_add(1, Ordering::SeqCst);
            if number % 2 == 1 {
                stream.read_exact(&mut [0; 72])?;
            }
        }
        let (mut stream, _) = listener.accept()?;
        let (header, body) = read_frame(&mut stream)?;
        let hello = Hello::decode(&body).map_err(std::io::Error::other)?;
        let region = HeapRegion::new(64, 64, Profile::Tcp.caps());
        let mut out = Vec::new();
        append(&mut out, Kind::Welcome, header.id, &welcome(&region, &hello, 1).encode());
        stream.write_all(&bytes(&out))?;
        stream.read_to_end(&mut Vec::new()).map(|_| ())
    });
    (address, count)
}

/// A client of a node with too many connections gets a session in the end, or an error.
#[test]
fn an_evicted_client_retries_within_its_timeout() {
    for closed in [1, 2, 5] {
        for waiting in WAITING_MODES {
            let (address, count) = closer(closed);
            let start = Instant::now();
            let region = TcpRegion::connect(&options(address).with_waiting(waiting)).expect("a session at last");
            assert_eq!((region.session().loss(), count.load(Ordering::SeqCst)), (None, closed));
            // The pauses double: 5 + 10 + 20 + ... ms at least.
            let least = Duration::from_millis((5 << closed) - 5);
            assert!(start.elapsed() >= least, "{:?}", start.elapsed());
        }
    }
}

fn frame(kind: Kind, id: u64, body: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    append(&mut out, kind, id, body);
    bytes(&out)
}

/// Reads two words from a node with such replies; returns the result and the loss of the connection.
fn ask(
    waiting: Waiting,
    timeout: Duration,
    reply: impl Fn(u64) -> Vec<u8> + Send + 'static,
) -> (Result<(), FabricError>, Option<Loss>) {
    let options = options(node(reply)).with_waiting(waiting).with_batch_timeout(timeout);
    let region = TcpRegion::connect(&options).expect("a session");
    let mut into = [0; 2];
    let result = block_on(post(&mut region.lane(), &mut [Verb::Read { addr: Addr::main(0), into: &mut into }]));
    (result, region.session().loss())
}

#[test]
fn replies_that_match_no_request_end_the_connection() {
    for waiting in WAITING_MODES {
        let (result, loss) = ask(waiting, patience(), |id| frame(Kind::Done, id, &[1, 2]));
        assert_eq!((result, loss), (Ok(()), None), "an honest reply is accepted");
        let (result, loss) = ask(waiting, patience(), |id| frame(Kind::Refused, id, &[2, 0, 3]));
        assert_eq!((result, loss), (Err(FabricError::Misaligned { verb: "READ", addr: Addr::main(3) }), None));
        for (name, kind, change, body) in [
            ("short", Kind::Done, 0, vec![1]),
            ("long", Kind::Done, 0, vec![1, 2, 3]),
            ("longest", Kind::Done, 0, vec![1; 1 << 17]),
            ("another slot's", Kind::Done, 1, vec![1, 2]),
            ("another frame's", Kind::Done, 1 << 32, vec![1, 2]),
            ("of another kind of request", Kind::Held, 0, vec![1]),
            ("a Welcome", Kind::Welcome, 0, vec![1]),
        ] {
            let (result, loss) = ask(waiting, patience(), move |id| frame(kind, id ^ change, &body));
            assert!(matches!(result, Err(FabricError::Disconnected { .. })), "{waiting:?} {name}: {result:?}");
            assert_eq!(loss, Some(Loss::UnexpectedReply), "{waiting:?} {name}");
        }
        let (_, loss) = ask(waiting, patience(), |_| frame(Kind::Close, 0, &CloseReason::Shutdown.encode()));
        assert_eq!(loss, Some(Loss::Closed(CloseReason::Shutdown)));
        let (_, loss) = ask(waiting, patience(), |_| frame(Kind::Close, 0, &[77, 0]));
        assert!(matches!(loss, Some(Loss::ProtocolError(WireError::Value { .. }))), "{loss:?}");
        let (_, loss) = ask(waiting, patience(), |_| vec![0xff; 16]);
        assert!(matches!(loss, Some(Loss::ProtocolError(WireError::Length { .. }))), "{loss:?}");
        let (_, loss) = ask(waiting, patience(), |id| frame(Kind::Refused, id, &[99]));
        assert!(matches!(loss, Some(Loss::ProtocolError(_))), "{loss:?}");
    }
}

/// Random bytes, and honest replies with a flipped bit, give a reply, a refusal, or the end of the connection.
#[test]
fn noise_ends_the_connection_and_nothing_else() {
    let noise = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200).prop_map(|noise| (noise, None)),
        (0..256usize).prop_map(|bit| (Vec::new(), Some(bit))),
    ];
    let config = ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let lost = std::cell::Cell::new(0);
    runner
        .run(&(noise, any::<bool>()), |((noise, bit), in_place)| {
            let waiting = WAITING_MODES[usize::from(in_place)];
            // An incomplete reply is waited for.
            let timeout = Duration::from_millis(200);
            let (result, loss) = ask(waiting, timeout, move |id| match bit {
                None => noise.clone(),
                Some(bit) => {
                    let mut honest = frame(Kind::Done, id, &[1, 2]);
                    honest[bit / 8] ^= 1 << (bit % 8);
                    honest
                }
            });
            lost.set(lost.get() + u64::from(loss.is_some()));
            prop_assert_eq!(loss.is_some(), matches!(result, Err(FabricError::Disconnected { .. })), "{:?}", result);
            Ok(())
        })
        .unwrap();
    println!("{} of 150 connections lost", lost.get());
    assert!(lost.get() > 75, "{} of 150 connections lost", lost.get());
}

/// Returns the error of a client whose connections a server of `start` closed until a timeout, and what `start` returned
/// besides: a short timeout, or a longer one if this thread is kept from running.
fn closed_within<S>(start: impl Fn() -> (SocketAddr, S)) -> (ConnectError, S) {
    let attempt = |factor| {
        let (address, server) = start();
        let timeout = factor * Duration::from_millis(500);
        let region = TcpRegion::connect(&options(address).with_connect_timeout(timeout));
        let error = region.expect_err("it closes every connection");
        matches!(error, ConnectError::Closed { .. }).then_some((error, server))
    };
    [1, 4, 16, 64].into_iter().find_map(attempt).expect("a connection that is closed in time")
}

#[test]
fn a_server_that_is_not_a_node_is_reported() {
    let connect = |address| TcpRegion::connect(&options(address));
    let error = connect(other_server(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())).unwrap_err();
    assert!(matches!(error, ConnectError::NotANode { .. }), "{error}");
    // A server that closes every connection.
    let (error, closed) = closed_within(|| closer(usize::MAX));
    let ConnectError::Closed { attempts, tried_ms, .. } = error else { panic!("{error}") };
    // One may have been closed after the timeout, and is not counted.
    let late = closed.load(Ordering::SeqCst) - attempts as usize;
    assert!(attempts > 0 && late <= 1, "{error}, and {late} more");
    assert!(error.to_string().contains(&format!("{attempts} times within {tried_ms} ms")), "{error}");
    // A server that closes one connection, and lets the next one wait until the timeout: it has not closed that one.
    let (error, _listener) = closed_within(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, accepting) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
        std::thread::spawn(move || accepting.accept().map(drop));
        (address, listener)
    });
    assert!(matches!(error, ConnectError::Closed { attempts: 1, .. }), "{error}");
    for reason in [
        CloseReason::Unauthorized,
        CloseReason::Version { node: 9 },
        CloseReason::Full { limit: 3 },
        CloseReason::Shutdown,
        CloseReason::Fenced,
    ] {
        let error = connect(other_server(frame(Kind::Close, 0, &reason.encode()))).unwrap_err();
        assert!(matches!(error, ConnectError::Rejected { reason: reported, .. } if reported == reason), "{error}");
        assert!(error.to_string().ends_with("nothing was changed"), "{error}");
    }
    // A server that accepts, and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = options(silent.local_addr().unwrap()).with_connect_timeout(Duration::from_millis(500));
    let error = TcpRegion::connect(&options).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { timeout_ms: 500, .. }), "{error}");
    let closed = silent.local_addr().unwrap();
    drop(silent);
    let error = connect(closed).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    let nowhere = guira_network::client::Endpoint::new("no-such-host.invalid", 1);
    let error = TcpRegion::connect(&guira_network::client::ConnectOptions::new(nowhere)).unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. }), "{error}");
}
