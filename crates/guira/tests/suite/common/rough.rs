//! A proxy before a memory node that delays what goes through it, splits it anywhere, and cuts connections in the
//! middle of frames.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use guira_fabric::SplitMix64;

/// Pieces have a byte to some kilobytes, more or less log-uniform, so that many frames arrive in several.
const LONGEST_PIECE_BITS: u64 = 14;
/// One in so many pieces is delayed.
const DELAYED: u64 = 16;

/// What is done to each connection.
#[derive(Clone, Copy, Debug)]
pub struct Roughness {
    /// Of a piece, uniform from nothing.
    pub longest_delay: Duration,
    /// So many bytes of one direction go through on average before the connection is cut in both.
    pub cut_after_bytes: Option<u64>,
}

/// The proxy, which lasts until the process ends.
pub struct Rough {
    /// Where it listens.
    pub addr: SocketAddr,
    done: Arc<Done>,
}

/// What was done so far.
#[derive(Default)]
struct Done {
    pieces: AtomicU64,
    delays: AtomicU64,
    cuts: AtomicU64,
}

impl Rough {
    /// A proxy for connections to `node`.
    ///
    /// # Panics
    /// If there is no port for it.
    pub fn before(node: SocketAddr, seed: u64, roughness: Roughness) -> Rough {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let (addr, done) = (listener.local_addr().expect("an address"), Arc::new(Done::default()));
        let shared = Arc::clone(&done);
        thread::spawn(move || {
            let mut rng = SplitMix64(seed);
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(node) = TcpStream::connect(node) else { continue };
                let (Ok(from), Ok(to)) = (node.try_clone(), client.try_clone()) else { continue };
                for (from, to) in [(client, node), (from, to)] {
                    let way = Way { roughness, rng: SplitMix64(rng.next_u64()), done: Arc::clone(&shared) };
                    thread::spawn(move || way.pass(from, to));
                }
            }
        });
        Rough { addr, done }
    }

    /// Pieces that went through, pieces that were delayed, and connections that were cut.
    pub fn done(&self) -> [u64; 3] {
        let Done { pieces, delays, cuts } = &*self.done;
        [pieces, delays, cuts].map(|count| count.load(Ordering::Relaxed))
    }
}

/// One direction of one connection.
struct Way {
    roughness: Roughness,
    rng: SplitMix64,
    done: Arc<Done>,
}

impl Way {
    fn pass(mut self, mut from: TcpStream, mut to: TcpStream) {
        // A stream that is gone cannot be prepared, nor ended again.
        let _ = to.set_nodelay(true);
        let mut bytes = vec![0; 1 << 16];
        let mut left = self.roughness.cut_after_bytes.map(|mean| self.rng.below(2 * mean));
        'connection: while let Ok(length @ 1..) = from.read(&mut bytes) {
            let mut rest = &bytes[..length];
            while !rest.is_empty() {
                let longest = 1 << (self.rng.below(LONGEST_PIECE_BITS) + 1);
                let most = left.map_or(longest, |left| longest.min(left)).min(rest.len() as u64);
                let (piece, others) = rest.split_at((1 + self.rng.below(longest)).min(most) as usize);
                if self.rng.below(DELAYED) == 0 {
                    self.done.delays.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(self.roughness.longest_delay.mul_f64(self.rng.below(1_000) as f64 / 1_000.0));
                }
                if to.write_all(piece).is_err() {
                    break 'connection;
                }
                self.done.pieces.fetch_add(1, Ordering::Relaxed);
                left = left.map(|left| left - piece.len() as u64);
                if left == Some(0) {
                    self.done.cuts.fetch_add(1, Ordering::Relaxed);
                    break 'connection;
                }
                rest = others;
            }
        }
        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    }
}
