//! A proxy in front of a memory node that delays bytes, splits them anywhere, and cuts connections in the middle of
//! frames.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use guira_fabric::SplitMix64;

/// Bits of the longest piece. Pieces have a byte to some kilobytes, roughly log-uniform, so that many frames arrive in
/// several.
const LONGEST_PIECE_BITS: u64 = 14;
/// One piece in this many is delayed.
const DELAY_INTERVAL: u64 = 16;

/// The faults that the proxy injects into each connection.
#[derive(Clone, Copy, Debug)]
pub struct ProxyFaults {
    /// Longest delay of a piece. Delays are uniform from zero.
    pub longest_delay: Duration,
    /// Bytes of one direction that go through, on average, before the connection is cut in both.
    pub cut_after_bytes: Option<u64>,
}

/// The proxy, which runs until the process ends.
pub struct FaultyProxy {
    /// The address at which it listens.
    pub addr: SocketAddr,
    counts: Arc<ProxyCounts>,
}

/// Counts of pieces and faults so far.
#[derive(Default)]
struct ProxyCounts {
    pieces: AtomicU64,
    delays: AtomicU64,
    cuts: AtomicU64,
}

impl FaultyProxy {
    /// Starts a proxy for connections to `node`, whose faults are drawn from `seed`.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(node: SocketAddr, seed: u64, faults: ProxyFaults) -> FaultyProxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let (addr, counts) = (listener.local_addr().expect("an address"), Arc::new(ProxyCounts::default()));
        let shared = Arc::clone(&counts);
        thread::spawn(move || {
            let mut rng = SplitMix64(seed);
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(node) = TcpStream::connect(node) else { continue };
                let (Ok(from), Ok(to)) = (node.try_clone(), client.try_clone()) else { continue };
                for (from, to) in [(client, node), (from, to)] {
                    let direction = Direction { faults, rng: SplitMix64(rng.next_u64()), counts: Arc::clone(&shared) };
                    thread::spawn(move || direction.forward(from, to));
                }
            }
        });
        FaultyProxy { addr, counts }
    }

    /// Returns how many pieces went through, how many were delayed, and how many connections were cut.
    pub fn counts(&self) -> [u64; 3] {
        let ProxyCounts { pieces, delays, cuts } = &*self.counts;
        [pieces, delays, cuts].map(|count| count.load(Ordering::Relaxed))
    }
}

/// One direction of one connection.
struct Direction {
    faults: ProxyFaults,
    rng: SplitMix64,
    counts: Arc<ProxyCounts>,
}

impl Direction {
    fn forward(mut self, mut from: TcpStream, mut to: TcpStream) {
        // A stream that is closed already can neither be configured nor shut down; that does not matter.
        let _ = to.set_nodelay(true);
        let mut bytes = vec![0; 1 << 16];
        let mut budget = self.faults.cut_after_bytes.map(|mean| self.rng.below(2 * mean));
        'connection: while let Ok(length @ 1..) = from.read(&mut bytes) {
            let mut unsent = &bytes[..length];
            while !unsent.is_empty() {
                let longest = 1 << (self.rng.below(LONGEST_PIECE_BITS) + 1);
                let most = budget.map_or(longest, |budget| longest.min(budget)).min(unsent.len() as u64);
                let (piece, remainder) = unsent.split_at((1 + self.rng.below(longest)).min(most) as usize);
                if self.rng.below(DELAY_INTERVAL) == 0 {
                    self.counts.delays.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(self.faults.longest_delay.mul_f64(self.rng.below(1_000) as f64 / 1_000.0));
                }
                if to.write_all(piece).is_err() {
                    break 'connection;
                }
                self.counts.pieces.fetch_add(1, Ordering::Relaxed);
                budget = budget.map(|budget| budget - piece.len() as u64);
                if budget == Some(0) {
                    self.counts.cuts.fetch_add(1, Ordering::Relaxed);
                    break 'connection;
                }
                unsent = remainder;
            }
        }
        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    }
}
