//! The number of system calls that send batches, counted by a transport.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::client::{
    Connection, Link, Loss, MAX_COALESCED_BYTES, ReceiveMode, Receiver, SLICE, Transport, start_driver,
};
use crate::wire::{Grant, Kind, PriorSession, SessionId, Welcome, append, to_wire};
use guira_fabric::process::Process;
use guira_fabric::{Addr, Effect, FabricError, Lane, Submitted, Verb, Waiting};
use guira_testing::patience;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use zerocopy::IntoBytes;

use crate::tcp::TcpLane;
use crate::tcp::plan::Bounds;

/// The bytes of a request with one READ.
const READ_BYTES: usize = 4 * 8;
/// A transport that counts its sends.
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
        // It fails if the other end is closed.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A connection to a node that only receives.
struct Fixture {
    connection: Arc<Connection>,
    bounds: Bounds,
    node: UnixStream,
    sends: Arc<AtomicUsize>,
}

impl Fixture {
    fn new(timeout: Duration) -> Fixture {
        let (stream, node) = UnixStream::pair().expect("a pair of sockets");
        stream.set_read_timeout(Some(SLICE)).expect("a timeout can be set");
        node.set_read_timeout(Some(patience())).expect("a timeout can be set");
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
        let link = Arc::new(Link::new(Box::new(transport), timeout, Process::current().unwrap(), Receiver::default()));
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let connection = Connection { link, waiting: Waiting::Cooperative, peer, welcome };
        Fixture { connection: Arc::new(connection), bounds, node, sends }
    }

    fn lanes<const N: usize>(&self) -> [TcpLane; N] {
        std::array::from_fn(|_| TcpLane::new(&self.connection, self.bounds))
    }

    fn sends(&self) -> usize {
        self.sends.load(Ordering::SeqCst)
    }

    /// Waits until `bytes` bytes have arrived at the node.
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

/// A waker that sends a message.
struct Woken(mpsc::Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // It fails if the test is over.
        let _ = self.0.send(());
    }
}

#[test]
fn batches_of_tasks_that_were_answered_together_are_sent_together() {
    let mut fixture = Fixture::new(patience());
    let mut lanes: [TcpLane; 16] = fixture.lanes();
    let link = &fixture.connection.link;
    for round in 1..=3 {
        link.extend_flush_window(16);
        for lane in &mut lanes {
            assert_eq!(fixture.sends(), round - 1, "others are awaited");
            link.note_reply_taken();
            submit(lane);
        }
        assert_eq!(fixture.sends(), round, "the last task sends all");
        lanes = fixture.lanes();
    }
    submit(&mut lanes[0]);
    assert_eq!(fixture.sends(), 4, "a batch outside of a flush window does not wait");
    fixture.arrive((3 * 16 + 1) * READ_BYTES);
}

#[test]
fn many_bytes_are_sent_at_once() {
    let mut fixture = Fixture::new(patience());
    let [mut lane, mut other] = fixture.lanes();
    fixture.connection.link.extend_flush_window(3);
    submit(&mut other);
    assert_eq!(fixture.sends(), 0);
    let words = vec![1; MAX_COALESCED_BYTES / 8];
    assert!(matches!(lane.submit(&mut [Verb::Write { addr: Addr::main(0), words: &words }]), Submitted::InFlight));
    assert_eq!(fixture.sends(), 1);
    fixture.arrive(READ_BYTES + READ_BYTES + MAX_COALESCED_BYTES);
}

#[test]
fn a_waiting_batch_is_sent_when_its_task_is_dropped() {
    let mut fixture = Fixture::new(patience());
    let [mut lane, mut other] = fixture.lanes();
    fixture.connection.link.extend_flush_window(3);
    submit(&mut lane);
    lane.forget();
    assert_eq!(fixture.sends(), 1);
    submit(&mut other);
    drop(other);
    assert_eq!(fixture.sends(), 2);
    fixture.arrive(2 * READ_BYTES);
}

/// Two replies arrive together; one task takes its own and goes on, the other is never polled again.
#[test]
fn a_task_that_is_not_polled_delays_others_by_one_flush_window_at_most() {
    let mut fixture = Fixture::new(patience());
    let [mut lane, mut other] = fixture.lanes();
    start_driver(&fixture.connection.link).expect("a thread starts");
    let (woken, wakes) = mpsc::channel();
    let waker = Waker::from(Arc::new(Woken(woken)));
    for lane in [&mut lane, &mut other] {
        submit(lane);
        assert!(poll(lane, &waker).is_pending());
    }
    let mut ids = [[0; 8]; 2];
    for id in &mut ids {
        let mut frame = [0; READ_BYTES];
        fixture.node.read_exact(&mut frame).expect("it arrives");
        id.copy_from_slice(&frame[8..16]);
    }
    let mut answers = Vec::new();
    for id in ids {
        append(&mut answers, Kind::Done, u64::from_le_bytes(id), &[7]);
    }
    to_wire(&mut answers);
    let sends = fixture.sends();
    fixture.node.write_all(answers.as_bytes()).expect("the client listens");
    wakes.recv().expect("the first is woken");
    wakes.recv().expect("and the second");
    assert!(matches!(poll(&mut lane, &waker), Poll::Ready(Ok(()))));
    submit(&mut lane);
    fixture.arrive(READ_BYTES);
    assert_eq!((fixture.sends(), fixture.connection.link.lost()), (sends + 1, None));
}

#[test]
fn a_batch_that_was_not_sent_has_no_effect() {
    let fixture = Fixture::new(patience());
    let [mut lane] = fixture.lanes();
    fixture.connection.link.extend_flush_window(2);
    let mut write = [Verb::Write { addr: Addr::main(0), words: &[1] }];
    assert!(matches!(lane.submit(&mut write), Submitted::InFlight));
    fixture.connection.link.lose(Loss::EndOfStream);
    let polled = lane.poll(&mut write, &mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else { panic!("it is lost") };
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert_eq!(fixture.sends(), 0);
}
