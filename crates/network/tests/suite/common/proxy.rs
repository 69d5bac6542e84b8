//! A proxy between a client and a node that splits, delays, changes and cuts the stream.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The faults of one direction of every connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The bytes that pass before the connection is cut in both directions.
    pub cut_at: Option<u64>,
    /// The position at which the stream is split: the bytes before it are sent separately.
    pub split_at: Option<u64>,
    /// The delay of the bytes after the split, or of all bytes without one.
    pub delay: Duration,
    /// The position from which bytes are lost while the connection stays open.
    pub lost_from: Option<u64>,
    /// The byte of which one bit is flipped.
    pub flip_at: Option<u64>,
}

pub struct Proxy {
    pub address: SocketAddr,
    /// The bytes that passed to the node, and back.
    pub passed: Arc<[AtomicU64; 2]>,
}

impl Proxy {
    /// Starts a proxy for a connection to `node`, until the process ends.
    pub fn start(node: SocketAddr, request: Faults, reply: Faults) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port left");
        let address = listener.local_addr().expect("a listener has an address");
        let passed = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let counts = Arc::clone(&passed);
        std::thread::spawn(move || {
            // One connection per proxy: the counts are of that connection alone.
            let Ok((client, _)) = listener.accept() else { return };
            let Ok(node) = TcpStream::connect(node) else { return };
            let copies = client.try_clone().and_then(|client| Ok((client, node.try_clone()?)));
            let Ok((client_copy, node_copy)) = copies else { return };
            let back = Arc::clone(&counts);
            std::thread::spawn(move || pass(node_copy, client_copy, reply, &back[1]));
            pass(client, node, request, &counts[0]);
        });
        Proxy { address, passed }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, way: Faults, passed: &AtomicU64) {
    // Options and shutdowns fail on a closed stream.
    let _ = to.set_nodelay(true);
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        if let Some(at) =
            way.flip_at.and_then(|at| usize::try_from(at.checked_sub(total)?).ok()).filter(|at| *at < bytes)
        {
            buffer[at] ^= 0x10;
        }
        let mut piece = &buffer[..bytes];
        while !piece.is_empty() {
            let until =
                |place: Option<u64>| place.filter(|place| *place > total).map_or(u64::MAX, |place| place - total);
            let next = until(way.cut_at).min(until(way.split_at)).min(until(way.lost_from));
            let (head, rest) = piece.split_at(usize::try_from(next).unwrap_or(usize::MAX).min(piece.len()));
            if way.split_at.is_none_or(|split| total >= split) && !way.delay.is_zero() {
                std::thread::sleep(way.delay);
            }
            let is_lost = way.lost_from.is_some_and(|from| total >= from);
            total += head.len() as u64;
            // Before it is sent: a receiver finds it counted.
            passed.store(total, Ordering::SeqCst);
            if !is_lost && to.write_all(head).is_err() {
                piece = &[];
                continue;
            }
            if way.cut_at.is_some_and(|cut| total >= cut) {
                let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                return;
            }
            piece = rest;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
