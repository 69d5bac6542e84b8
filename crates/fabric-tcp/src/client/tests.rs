//! How many system calls batches take to leave, counted by a transport.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use guira_fabric::{Addr, Effect, FabricError, Lane, Submitted, Verb};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::driver;
use super::lane::TcpLane;
use super::link::Link;
use super::loss::Loss;
use super::options::Waiting;
use super::outbox::GATHERED_BYTES;
use super::plan::Bounds;
use super::receive::Receiver;
use super::region::Connection;
use super::transport::{Patience, SLICE, Transport};
use crate::wire::{Fate, Grant, SessionId, Welcome};

/// Bytes of a request with one READ.
const READ_BYTES: usize = 4 * 8;
/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(60);

/// Counts how often it is told to send.
struct Counting {
    stream: UnixStream,
    sends: Arc<AtomicUsize>,
}

impl Transport for Counting {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.sends.fetch_add(1, Ordering::SeqCst);
        Ok(send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn receive(&self, into: &mut [u8], patience: Patience) -> io::Result<usize> {
        let flags = if patience == Patience::None { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        Ok(recv(&self.stream, into, flags)?.1)
    }

    fn shut(&self) {
        // It fails if the other end is gone.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A connection to a node that only listens.
struct Setup {
    connection: Arc<Connection>,
    node: UnixStream,
    sends: Arc<AtomicUsize>,
}

impl Setup {
    fn new(timeout: Duration) -> Setup {
        let (stream, node) = UnixStream::pair().expect("a pair of sockets");
        stream.set_read_timeout(Some(SLICE)).expect("a timeout can be set");
        node.set_read_timeout(Some(LONG)).expect("a timeout can be set");
        let sends = Arc::new(AtomicUsize::new(0));
        let transport = Counting { stream, sends: Arc::clone(&sends) };
        let welcome = Welcome {
            grant: Grant::ReadWrite,
            fate: Fate::None,
            session: SessionId([1, 2]),
            region: [3, 4],
            main_bytes: 1 << 20,
            device_bytes: 64,
            atomic_write_unit: 8,
            session_timeout_ms: 10_000,
            sample: Vec::new(),
        };
        let bounds = Bounds::of(&welcome);
        let link = Arc::new(Link::new(Box::new(transport), timeout, Receiver::new()));
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let connection = Connection { link, waiting: Waiting::Cooperative, peer, welcome, bounds };
        Setup { connection: Arc::new(connection), node, sends }
    }

    fn lanes<const N: usize>(&self) -> [TcpLane; N] {
        std::array::from_fn(|_| TcpLane::new(Arc::clone(&self.connection), self.connection.bounds))
    }

    fn sends(&self) -> usize {
        self.sends.load(Ordering::SeqCst)
    }

    /// Waits until so many bytes have arrived at the node.
    fn arrive(&mut self, bytes: usize) {
        self.node.read_exact(&mut vec![0; bytes]).expect("they arrive");
    }
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn submit(lane: &mut TcpLane) {
    assert!(matches!(lane.submit(&mut [Verb::Read { addr: Addr::main(0), into: &mut [0] }]), Submitted::InFlight));
}

fn poll(lane: &mut TcpLane, waker: &Waker) -> Poll<Result<(), FabricError>> {
    lane.poll(&mut [Verb::Read { addr: Addr::main(0), into: &mut [0] }], &mut Context::from_waker(waker))
}

#[test]
fn batches_of_tasks_that_share_a_connection_leave_together() {
    let mut setup = Setup::new(LONG);
    let mut lanes: [TcpLane; 16] = setup.lanes();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    for lane in &mut lanes {
        submit(lane);
        assert!(poll(lane, &waker).is_pending());
    }
    assert_eq!((setup.sends(), woken.0.load(Ordering::SeqCst)), (0, 16), "each task has made room for the others");
    for lane in &mut lanes {
        assert!(poll(lane, &waker).is_pending());
    }
    assert_eq!((setup.sends(), woken.0.load(Ordering::SeqCst)), (1, 16));
    setup.arrive(16 * READ_BYTES);
    assert!(lanes.iter_mut().all(|lane| poll(lane, &waker).is_pending()));
    assert_eq!(setup.sends(), 1, "who waits for an answer sends nothing");
}

#[test]
fn a_lane_that_has_a_connection_to_itself_waits_for_nobody() {
    let setup = Setup::new(LONG);
    let [mut lane] = setup.lanes();
    submit(&mut lane);
    assert_eq!(setup.sends(), 1);
}

#[test]
fn much_leaves_at_once() {
    let mut setup = Setup::new(LONG);
    let [mut lane, mut other] = setup.lanes();
    submit(&mut other);
    assert_eq!(setup.sends(), 0);
    let words = vec![1; GATHERED_BYTES / 8];
    assert!(matches!(lane.submit(&mut [Verb::Write { addr: Addr::main(0), words: &words }]), Submitted::InFlight));
    assert_eq!(setup.sends(), 1);
    setup.arrive(READ_BYTES + READ_BYTES + GATHERED_BYTES);
}

#[test]
fn what_is_dropped_leaves_then() {
    let mut setup = Setup::new(LONG);
    let [mut lane, mut other] = setup.lanes();
    submit(&mut lane);
    lane.forget();
    assert_eq!(setup.sends(), 1);
    submit(&mut other);
    drop(other);
    assert_eq!(setup.sends(), 2);
    setup.arrive(2 * READ_BYTES);
}

#[test]
fn what_nobody_polls_leaves_before_it_is_overdue() {
    let mut setup = Setup::new(Duration::from_secs(2));
    let [mut lane, _other] = setup.lanes();
    driver::start(&setup.connection.link).expect("a thread starts");
    submit(&mut lane);
    assert!(poll(&mut lane, Waker::noop()).is_pending());
    setup.arrive(READ_BYTES);
    assert_eq!((setup.sends(), setup.connection.link.lost()), (1, None));
}

#[test]
fn what_has_not_left_has_no_effect() {
    let setup = Setup::new(LONG);
    let [mut lane, _other] = setup.lanes();
    let mut write = [Verb::Write { addr: Addr::main(0), words: &[1] }];
    assert!(matches!(lane.submit(&mut write), Submitted::InFlight));
    setup.connection.link.lose(Loss::Closed);
    let mut cx = Context::from_waker(Waker::noop());
    // Once to make room for others, which nobody has told it is of no use.
    let polled = [lane.poll(&mut write, &mut cx), lane.poll(&mut write, &mut cx)];
    let Some(Poll::Ready(Err(error))) = polled.into_iter().find(Poll::is_ready) else { panic!("it is lost") };
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert_eq!(setup.sends(), 0);
}
