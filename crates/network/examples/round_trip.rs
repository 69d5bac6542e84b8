//! Measures a round trip of one blocking lane over loopback, beside its lower bound: the same bytes exchanged by two
//! threads over bare sockets, in the same run; and with TLS, if it is compiled in.
//!
//! ```text
//! cargo run --release -p guira-network --features tls --example round_trip
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Caps, FabricError, Lane, Profile, Region, Submitted, Verb};
use guira_network::client::{ConnectOptions, Endpoint};
use guira_network::node::{Node, NodeHandle, NodeOptions};
use guira_network::tcp::batch::BatchShape;
use guira_network::tcp::{BatchExecutor, TcpLane, TcpRegion};

const ROUNDS: u32 = 20_000;
/// Alternations of the measurements, so that other load of the machine affects all alike.
const TURNS: u32 = 5;
/// The words of two rows.
const READ_WORDS: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let caps = Caps { local: true, ..Profile::Tcp.caps() };
    let region = HeapRegion::new(1 << 16, 64, caps);
    let options = NodeOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)), [1, 1]).threads(1);
    let encrypted = encrypted(region.clone(), options.clone())?;
    let node = Node::bind(BatchExecutor::new(region), options)?.spawn()?;
    let mut lane = TcpRegion::connect(&connect_options(&node))?.lane();
    let mut into = [0; READ_WORDS];
    let shape = BatchShape::of(&[Verb::Read { addr: Addr::main(0), into: &mut into }])?;
    let (request_bytes, reply_bytes) = (shape.request_words * 8, shape.reply_words * 8);
    let mut echo = bare(request_bytes, reply_bytes)?;
    println!("one READ of {READ_WORDS} words: {request_bytes} bytes there, {reply_bytes} back; medians of {ROUNDS}");
    let mut encrypted = encrypted.map(|(node, region)| (node, region.lane()));
    for _ in 0..TURNS {
        let floor_ns = median_ns(|| {
            echo.write_all(&vec![1; request_bytes])?;
            Ok(echo.read_exact(&mut vec![0; reply_bytes])?)
        })?;
        let lane_ns = median_ns(|| Ok(read(&mut lane)?))?;
        let ratio = lane_ns as f64 / floor_ns as f64;
        print!("lane {lane_ns} ns, bare sockets {floor_ns} ns, ratio {ratio:.2}");
        if let Some((_, lane)) = &mut encrypted {
            let tls_ns = median_ns(|| Ok(read(lane)?))?;
            print!("; lane behind TLS {tls_ns} ns, {:.2} of one without", tls_ns as f64 / lane_ns as f64);
        }
        println!();
    }
    Ok(())
}

fn connect_options(node: &NodeHandle) -> ConnectOptions {
    let address = node.local_addrs()[0];
    ConnectOptions::new(Endpoint::new(&address.ip().to_string(), address.port()))
}

/// A node that speaks TLS, and its client.
type Encrypted = Option<(NodeHandle, TcpRegion)>;

#[cfg(feature = "tls")]
fn encrypted(region: HeapRegion, options: NodeOptions) -> Result<Encrypted, Box<dyn Error>> {
    use guira_network::tls::{TlsClient, TlsServer};

    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    params.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let (pem, key) = (params.self_signed(&key)?.pem(), key.serialize_pem());
    let (pem, key) = (pem.as_bytes(), key.as_bytes());
    let node = Node::bind(BatchExecutor::new(region), options.tls(TlsServer::from_pem(pem, key, pem)?))?.spawn()?;
    let options = connect_options(&node).with_tls(TlsClient::with_identity(pem, pem, key)?);
    Ok(Some((node, TcpRegion::connect(&options)?)))
}

#[cfg(not(feature = "tls"))]
fn encrypted(_: HeapRegion, _: NodeOptions) -> Result<Encrypted, Box<dyn Error>> {
    Ok(None)
}

fn read(lane: &mut TcpLane) -> Result<(), FabricError> {
    let mut into = [0; READ_WORDS];
    let mut batch = [Verb::Read { addr: Addr::main(0), into: &mut into }];
    match lane.submit(&mut batch) {
        Submitted::Done(result) => result,
        Submitted::InFlight => match lane.poll(&mut batch, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => {
                Err(FabricError::Backend("a lane that waits in place returned without a result".to_owned()))
            }
        },
    }
}

/// Starts a thread that replies to each `request_bytes` bytes with `reply_bytes` bytes.
fn bare(request_bytes: usize, reply_bytes: usize) -> std::io::Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    std::thread::spawn(move || {
        let (mut request, reply) = (vec![0; request_bytes], vec![1; reply_bytes]);
        while server.read_exact(&mut request).and_then(|()| server.write_all(&reply)).is_ok() {}
    });
    Ok(client)
}

fn median_ns(mut trip: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<u64, Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        trip()?;
        times.push(u64::try_from(start.elapsed().as_nanos())?);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
