//! How many system calls batches take to leave, counted by a transport.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use guira_fabric::process::Process;
use guira_fabric::{Addr, Effect, FabricError, Lane, Submitted, Verb};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use zerocopy::IntoBytes;

use super::driver;
use super::lane::TcpLane;
use super::link::Link;
use super::loss::Loss;
use super::options::Waiting;
use super::outbox::MAX_COALESCED_BYTES;
use super::plan::Bounds;
use super::receive::Receiver;
use super::region::Connection;
use super::transport::{ReceiveMode, SLICE, Transport};
use crate::wire::{Grant, Kind, PriorSession, SessionId, Welcome, append, to_wire};

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

    fn receive(&self, into: &mut [u8], mode: ReceiveMode) -> io::Result<usize> {
        let flags = if mode == ReceiveMode::NonBlocking { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
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
            prior_session: PriorSession::None,
            session: SessionId([1, 2]),
            region: [3, 4],
            main_bytes: 1 << 20,
            device_bytes: 64,
            atomic_write_unit: 8,
            session_timeout_ms: 10_000,
            session_holds: 4096,
            node_holds: 16_384,
            sample: Vec::new(),
        };
        let bounds = Bounds::of(&welcome);
        let link = Arc::new(Link::new(Box::new(transport), timeout, Process::current().unwrap(), Receiver::new()));
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

fn submit(lane: &mut TcpLane) {
    assert!(matches!(lane.submit(&mut [Verb::Read { addr: Addr::main(0), into: &mut [0] }]), Submitted::InFlight));
}

fn poll(lane: &mut TcpLane, waker: &Waker) -> Poll<Result<(), FabricError>> {
    lane.poll(&mut [Verb::Read { addr: Addr::main(0), into: &mut [0] }], &mut Context::from_waker(waker))
}

/// Says when a task is woken.
struct Woken(mpsc::Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // The test is over, or wants to know.
        let _ = self.0.send(());
    }
}

#[test]
fn batches_of_tasks_that_were_answered_together_leave_together() {
    let mut setup = Setup::new(LONG);
    let mut lanes: [TcpLane; 16] = setup.lanes();
    let link = &setup.connection.link;
    for round in 1..=3 {
        link.extend_flush_window(16);
        for lane in &mut lanes {
            assert_eq!(setup.sends(), round - 1, "others are awaited");
            link.note_reply_taken();
            submit(lane);
        }
        assert_eq!(setup.sends(), round, "the last sends all");
        lanes = setup.lanes();
    }
    submit(&mut lanes[0]);
    assert_eq!(setup.sends(), 4, "who is in no round waits for nobody");
    setup.arrive((3 * 16 + 1) * READ_BYTES);
}

#[test]
fn much_leaves_at_once() {
    let mut setup = Setup::new(LONG);
    let [mut lane, mut other] = setup.lanes();
    setup.connection.link.extend_flush_window(3);
    submit(&mut other);
    assert_eq!(setup.sends(), 0);
    let words = vec![1; MAX_COALESCED_BYTES / 8];
    assert!(matches!(lane.submit(&mut [Verb::Write { addr: Addr::main(0), words: &words }]), Submitted::InFlight));
    assert_eq!(setup.sends(), 1);
    setup.arrive(READ_BYTES + READ_BYTES + MAX_COALESCED_BYTES);
}

#[test]
fn what_is_dropped_leaves_then() {
    let mut setup = Setup::new(LONG);
    let [mut lane, mut other] = setup.lanes();
    setup.connection.link.extend_flush_window(3);
    submit(&mut lane);
    lane.forget();
    assert_eq!(setup.sends(), 1);
    submit(&mut other);
    drop(other);
    assert_eq!(setup.sends(), 2);
    setup.arrive(2 * READ_BYTES);
}

/// Two answers arrive together; one task takes its own and goes on, the other is never polled again.
#[test]
fn a_task_that_is_not_polled_keeps_others_waiting_for_a_round_only() {
    let mut setup = Setup::new(LONG);
    let [mut lane, mut other] = setup.lanes();
    driver::start(&setup.connection.link).expect("a thread starts");
    let (woken, wakes) = mpsc::channel();
    let waker = Waker::from(Arc::new(Woken(woken)));
    for lane in [&mut lane, &mut other] {
        submit(lane);
        assert!(poll(lane, &waker).is_pending());
    }
    let mut ids = [[0; 8]; 2];
    for id in &mut ids {
        let mut frame = [0; READ_BYTES];
        setup.node.read_exact(&mut frame).expect("it arrives");
        id.copy_from_slice(&frame[8..16]);
    }
    let mut answers = Vec::new();
    for id in ids {
        append(&mut answers, Kind::Done, u64::from_le_bytes(id), &[7]);
    }
    to_wire(&mut answers);
    let sends = setup.sends();
    setup.node.write_all(answers.as_bytes()).expect("the client listens");
    wakes.recv().expect("the first is woken");
    wakes.recv().expect("and the second");
    assert!(matches!(poll(&mut lane, &waker), Poll::Ready(Ok(()))));
    submit(&mut lane);
    setup.arrive(READ_BYTES);
    assert_eq!((setup.sends(), setup.connection.link.lost()), (sends + 1, None));
}

#[test]
fn what_has_not_left_has_no_effect() {
    let setup = Setup::new(LONG);
    let [mut lane] = setup.lanes();
    setup.connection.link.extend_flush_window(2);
    let mut write = [Verb::Write { addr: Addr::main(0), words: &[1] }];
    assert!(matches!(lane.submit(&mut write), Submitted::InFlight));
    setup.connection.link.lose(Loss::EndOfStream);
    let polled = lane.poll(&mut write, &mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else { panic!("it is lost") };
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert_eq!(setup.sends(), 0);
}
