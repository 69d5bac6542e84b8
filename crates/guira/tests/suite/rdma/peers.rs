//! A peer that speaks the node's protocol up to some message, and then vanishes or sends garbage.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use guira::errors::{AttachError, FabricError, TableError, VerbsError};
use guira::{Error, OpenError};
use guira_conformance::RdmaDevices;
use guira_fabric::MaskedCas;
use guira_fabric_verbs::{Device, DeviceOptions};
use guira_network::wire::{
    Gid, Grant, HEADER_WORDS, Header, Kind, Mtu, PacketNumber, PriorSession, QueuePairEndpoint, QueuePairNumber,
    Segment, SessionId, TargetParameters, Welcome,
};

use super::{attach_error, devices, refused};
use crate::common::fabric::url_of;

const MAIN_BYTES: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 4_096;
/// A queue pair that no device has: devices count up from small numbers.
const NO_QUEUE_PAIR: QueuePairNumber = QueuePairNumber(0x00de_adbe);

/// The end of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// After the Hello.
    Hello,
    /// After the Attach.
    Attach,
    /// After an Attached that cannot be parsed.
    Garbage,
    /// After an Attached whose segments are not the region of the Welcome.
    OtherSize,
    /// After an Attached of a queue pair that does not exist.
    Attached,
    /// After an Attached without main space, and a Reserved with these segments.
    Reserved(&'static [[u64; 4]]),
}

fn receive(stream: &mut TcpStream) -> io::Result<Header> {
    let mut words = [0; HEADER_WORDS];
    for word in &mut words {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        *word = u64::from_le_bytes(bytes);
    }
    let header = Header::decode(words).expect("a client sends valid frames");
    stream.read_exact(&mut vec![0; 8 * (header.words - HEADER_WORDS)])?;
    Ok(header)
}

fn send(stream: &mut TcpStream, kind: Kind, id: u64, body: &[u64]) -> io::Result<()> {
    let header = Header { words: HEADER_WORDS + body.len(), kind, count: 0, id };
    let bytes: Vec<u8> = header.encode().iter().chain(body).flat_map(|word| word.to_le_bytes()).collect();
    stream.write_all(&bytes)
}

fn welcome() -> Vec<u64> {
    let welcome = Welcome {
        grant: Grant::ReadWrite,
        prior_session: PriorSession::None,
        session: SessionId([1, 2]),
        region: [3, 4],
        main_bytes: MAIN_BYTES,
        device_bytes: DEVICE_BYTES,
        atomic_write_unit: 1_024,
        session_timeout_ms: 10_000,
        session_holds: 64,
        node_holds: 64,
        sample: Vec::new(),
    };
    welcome.encode()
}

fn attached(gid: Gid, main_bytes: u64) -> Vec<u64> {
    let endpoint = QueuePairEndpoint {
        gid,
        lid: 0,
        queue_pair: NO_QUEUE_PAIR,
        first_packet: PacketNumber(0),
        mtu: Mtu::of_bytes(1_024).unwrap(),
        reads_in: 16,
        reads_out: 0,
    };
    let segment = |bytes| vec![Segment { offset: 0, address: 4_096, bytes, key: 1 }];
    let parameters = TargetParameters {
        endpoint,
        grant: Grant::ReadWrite,
        masked_cas: MaskedCas::CasLoop,
        main: if main_bytes > 0 { segment(main_bytes) } else { Vec::new() },
        device: segment(DEVICE_BYTES),
    };
    parameters.encode()
}

/// Speaks with one client until `end`, and closes the connection.
fn speak(stream: &mut TcpStream, gid: Gid, end: End) -> io::Result<()> {
    let hello = receive(stream)?;
    if end == End::Hello {
        return Ok(());
    }
    send(stream, Kind::Welcome, hello.id, &welcome())?;
    let attach = receive(stream)?;
    assert_eq!(attach.kind, Kind::Attach, "the first request over RDMA");
    let body = match end {
        End::Hello | End::Attach => return Ok(()),
        End::Garbage => vec![u64::MAX; 11],
        End::OtherSize => attached(gid, MAIN_BYTES * 2),
        End::Attached => attached(gid, MAIN_BYTES),
        End::Reserved(_) => attached(gid, 0),
    };
    send(stream, Kind::Attached, attach.id, &body)?;
    let End::Reserved(parts) = end else { return Ok(()) };
    let reserve = receive(stream)?;
    assert_eq!(reserve.kind, Kind::Reserve, "it knows no part of the memory");
    send(stream, Kind::Reserved, reserve.id, parts.as_flattened())?;
    // The client gives up, or asks for more of what such a node has not.
    receive(stream).map(drop)
}

/// Starts a peer, which runs until the process ends.
fn start(devices: &RdmaDevices, end: End) -> SocketAddr {
    let options = DeviceOptions { device: Some(devices.node.clone()), ..DeviceOptions::default() };
    let gid = Device::open(&options).unwrap().gid().gid;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // A client that gives up closes the connection in the middle.
            drop(speak(&mut stream, gid, end));
        }
    });
    addr
}

#[test]
fn a_peer_that_vanishes_or_sends_garbage_is_an_error() {
    let Some(devices) = devices() else { return };
    // Nothing, not all that was asked for, outside of the space, over each other, in another order, and no part at all.
    let lies: [&[[u64; 4]]; 6] = [
        &[],
        &[[0, 4_096, 8, 1]],
        &[[0, 4_096, MAIN_BYTES + 8, 1]],
        &[[0, 4_096, 8_192, 1], [4_096, 0, 8_192, 2]],
        &[[8_192, 4_096, 8_192, 1], [0, 0, 8_192, 2]],
        &[[0, 4_096, 8_192, 1 << 32]],
    ];
    let ends = [End::Hello, End::Attach, End::Garbage, End::OtherSize, End::Attached];
    for end in ends.into_iter().chain(lies.map(End::Reserved)) {
        let url = url_of(start(&devices, end), Some(&devices));
        let began = Instant::now();
        match end {
            End::Hello => {
                let error = refused(&url);
                assert!(matches!(error, Error::Open(OpenError::Connect { .. })), "{end:?}: {error}");
            }
            End::Attach | End::Garbage => {
                let error = attach_error(&url);
                let AttachError::Refused { source, .. } = &*error else { panic!("{end:?}: {error}") };
                assert!(
                    matches!(source, FabricError::Disconnected { .. } | FabricError::ConnectionFailed { .. }),
                    "{end:?}: {source:?}"
                );
            }
            End::OtherSize => {
                let error = attach_error(&url);
                assert!(matches!(&*error, AttachError::Device(VerbsError::Mismatch { .. })), "{end:?}: {error}");
            }
            End::Attached | End::Reserved(_) => {
                let error = refused(&url);
                let Error::Open(OpenError::Table { source: TableError::Fabric(source), .. }) = &error else {
                    panic!("{end:?}: {error}")
                };
                assert!(
                    matches!(source, FabricError::Disconnected { .. } | FabricError::ConnectionFailed { .. }),
                    "{end:?}: {source:?}"
                );
            }
        }
        println!("{end:?}: {}, after {:?}", refused(&url), began.elapsed());
    }
}
