//! What a round trip of one blocking lane costs over loopback, beside the floor: the same bytes to and fro between two
//! threads with bare sockets, in the same run.
//!
//! ```text
//! cargo run --release -p guira-fabric-tcp --example round_trip
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Caps, FabricError, Lane, Profile, Region, Submitted, Verb};
use guira_fabric_tcp::client::{ConnectOptions, Endpoint, TcpLane, TcpRegion};
use guira_fabric_tcp::node::{Node, NodeOptions};
use guira_fabric_tcp::wire::BatchShape;

const ROUNDS: u32 = 20_000;
/// Turns of both, so that what else the machine does meets both alike.
const TURNS: u32 = 5;
/// Two rows' worth of words.
const READ_WORDS: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let caps = Caps { local: true, ..Profile::Tcp.caps() };
    let region = HeapRegion::new(1 << 16, 64, caps);
    let node =
        Node::bind(region, NodeOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)), [1, 1]).threads(1))?.spawn()?;
    let address = node.local_addrs()[0];
    let options = ConnectOptions::new(Endpoint::new(&address.ip().to_string(), address.port()));
    let mut lane = TcpRegion::connect(&options)?.lane();
    let mut into = [0; READ_WORDS];
    let shape = BatchShape::of(&[Verb::Read { addr: Addr::main(0), into: &mut into }])?;
    let (request_bytes, reply_bytes) = (shape.request_words * 8, shape.reply_words * 8);
    let mut echo = bare(request_bytes, reply_bytes)?;
    println!("one READ of {READ_WORDS} words: {request_bytes} bytes there, {reply_bytes} back; medians of {ROUNDS}");
    for _ in 0..TURNS {
        let floor_ns = median_ns(|| {
            echo.write_all(&vec![1; request_bytes])?;
            Ok(echo.read_exact(&mut vec![0; reply_bytes])?)
        })?;
        let lane_ns = median_ns(|| Ok(read(&mut lane)?))?;
        let ratio = lane_ns as f64 / floor_ns as f64;
        println!("lane {lane_ns} ns, bare sockets {floor_ns} ns, ratio {ratio:.2}");
    }
    Ok(())
}

fn read(lane: &mut TcpLane) -> Result<(), FabricError> {
    let mut into = [0; READ_WORDS];
    let mut batch = [Verb::Read { addr: Addr::main(0), into: &mut into }];
    match lane.submit(&mut batch) {
        Submitted::Done(result) => result,
        Submitted::InFlight => match lane.poll(&mut batch, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(FabricError::Backend("a lane that waits in place did not wait".to_owned())),
        },
    }
}

/// A thread that answers so many bytes with so many.
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
