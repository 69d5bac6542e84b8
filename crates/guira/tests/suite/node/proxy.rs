//! A proxy in front of a node that cuts connections after a given message, and holds replies back.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use guira_testing::patience;

/// The point at which a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// After this many messages of the client, the next one is lost together with the connection.
    Request(u32),
    /// After this many messages of the client, the connection is cut, and the node's reply to the last one is lost.
    Reply(u32),
}

/// The proxy, which runs until the process ends.
pub struct Proxy {
    pub addr: SocketAddr,
    plan: Arc<Plan>,
}

#[derive(Default)]
struct Plan {
    /// The cut of the next open connection that sends, if any.
    cut: Mutex<Option<Cut>>,
    /// Messages of clients since the cut was planned.
    seen: AtomicU32,
    has_cut: AtomicBool,
    /// The counter that each reply waits for, if replies are held back.
    held_by: Mutex<Option<Arc<AtomicU64>>>,
}

/// The growth of a counter for which a reply is held back.
pub const HELD_FOR: u64 = 3;

impl Plan {
    fn cut(&self) -> Option<Cut> {
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message of the client. Returns whether it may pass, and whether the connection ends after it.
    fn request(&self) -> (bool, bool) {
        let Some(cut) = self.cut() else { return (true, false) };
        let seen = self.seen.fetch_add(1, Ordering::SeqCst);
        match cut {
            Cut::Request(passing) if seen >= passing => (false, true),
            Cut::Reply(passing) if seen + 1 >= passing => (true, true),
            _ => (true, false),
        }
    }

    fn held_by(&self) -> Option<u64> {
        let counter = self.held_by.lock().unwrap_or_else(PoisonError::into_inner);
        counter.as_ref().map(|counter| counter.load(Ordering::SeqCst))
    }

    /// Waits until the counter that holds replies back has grown by [`HELD_FOR`], or replies are not held back any
    /// more. It passes the reply when that takes too long, so that the test can fail.
    fn wait_for_counter(&self) {
        let (Some(before), began) = (self.held_by(), Instant::now()) else { return };
        while self.held_by().is_some_and(|now| now < before + HELD_FOR) && began.elapsed() < patience() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn record_cut(&self) {
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.has_cut.store(true, Ordering::SeqCst);
    }
}

impl Proxy {
    pub fn start(node: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let plan = Arc::new(Plan::default());
        let shared = Arc::clone(&plan);
        // The thread ends with the process.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(node) = TcpStream::connect(node) else { continue };
                client.set_nodelay(true).and_then(|()| node.set_nodelay(true)).expect("sockets");
                let (replies_from, replies_to) =
                    (node.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
                let is_cut = Arc::new(AtomicBool::new(false));
                let (plan, cut) = (Arc::clone(&shared), Arc::clone(&is_cut));
                let replies_plan = Arc::clone(&shared);
                thread::spawn(move || requests(client, node, &plan, &cut));
                thread::spawn(move || replies(replies_from, replies_to, &replies_plan, &is_cut));
            }
        });
        Proxy { addr, plan }
    }

    /// Plans to cut the next connection that sends a message.
    pub fn cut(&self, cut: Cut) {
        self.plan.seen.store(0, Ordering::SeqCst);
        self.plan.has_cut.store(false, Ordering::SeqCst);
        *self.plan.cut.lock().unwrap_or_else(PoisonError::into_inner) = Some(cut);
    }

    /// Whether a connection was cut since the last call of [`Proxy::cut`].
    pub fn has_cut(&self) -> bool {
        self.plan.has_cut.load(Ordering::SeqCst)
    }

    /// Holds each reply back, from now on, until the counter has grown by [`HELD_FOR`]; `None` ends that.
    pub fn hold_replies(&self, counter: Option<&Arc<AtomicU64>>) {
        *self.plan.held_by.lock().unwrap_or_else(PoisonError::into_inner) = counter.map(Arc::clone);
    }

    /// Cancels a planned cut.
    pub fn stop_cutting(&self) {
        *self.plan.cut.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Forwards what the client sends. Bytes that arrive together count as one message, as they are with one batch in
/// flight.
fn requests(mut client: TcpStream, mut node: TcpStream, plan: &Plan, is_cut: &AtomicBool) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(length @ 1..) = client.read(&mut bytes) {
        let (passes, ends) = plan.request();
        is_cut.store(ends, Ordering::SeqCst);
        if passes && node.write_all(&bytes[..length]).is_err() {
            break;
        }
        if ends {
            plan.record_cut();
            if passes {
                // The node answers when it has carried the message out, and `replies` ends then.
                return;
            }
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = node.shutdown(Shutdown::Both);
}

fn replies(mut node: TcpStream, mut client: TcpStream, plan: &Plan, is_cut: &AtomicBool) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(length @ 1..) = node.read(&mut bytes) {
        plan.wait_for_counter();
        if is_cut.load(Ordering::SeqCst) || client.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = node.shutdown(Shutdown::Both);
}
