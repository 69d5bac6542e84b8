//! Frames that are split, delayed, cut and lost: no batch hangs, and each error reports the possible effect.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use guira_fabric::{Addr, Effect, FabricError, Lane, Region, Verb, Waiting, post};
use guira_network::client::Loss;
use guira_network::tcp::TcpRegion;
use guira_network::tcp::batch::BatchShape;
use guira_network::wire::{Fabric, HEADER_WORDS, Hello};
use guira_testing::{is_long, patience};
use pollster::block_on;

use super::mock_node::{MockNode, options};
use crate::common::WAITING_MODES;
use crate::common::proxy::{Faults, Proxy};

/// The bytes of a Hello, and of a Welcome without a sample.
const HELLO_BYTES: u64 = (HEADER_WORDS as u64 + 7) * 8;
const WELCOME_BYTES: u64 = (HEADER_WORDS as u64 + 11) * 8;

/// Executes one WRITE, one FETCH-ADD, and one READ of the written words.
fn change(lane: &mut dyn Lane) -> (Result<(), FabricError>, u64, [u64; 2]) {
    let (mut found, mut into) = (0, [0; 2]);
    let mut batch = [
        Verb::Write { addr: Addr::main(8), words: &[5, 6] },
        Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found },
        Verb::Read { addr: Addr::main(8), into: &mut into },
    ];
    let result = block_on(post(lane, &mut batch));
    (result, found, into)
}

fn read(lane: &mut dyn Lane) -> Result<(), FabricError> {
    block_on(post(lane, &mut [Verb::Read { addr: Addr::main(8), into: &mut [0; 4] }]))
}

/// Returns the bytes of the request of [`change`] and of its reply.
fn change_bytes() -> (u64, u64) {
    let (mut found, mut into) = (0, [0; 2]);
    let batch = [
        Verb::Write { addr: Addr::main(8), words: &[5, 6] },
        Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found },
        Verb::Read { addr: Addr::main(8), into: &mut into },
    ];
    let shape = BatchShape::of(&batch).expect("it fits");
    (shape.request_words as u64 * 8, shape.reply_words as u64 * 8)
}

fn connect_through(proxy: &Proxy, waiting: Waiting, timeout: Duration) -> TcpRegion {
    let options = options(proxy.address).with_sample_words(0).with_waiting(waiting).with_batch_timeout(timeout);
    TcpRegion::connect(&options).expect("a session")
}

#[test]
fn greetings_have_the_lengths_that_this_test_assumes() {
    let node = MockNode::start(64, 64);
    let proxy = Proxy::start(node.address, Faults::default(), Faults::default());
    let _region = connect_through(&proxy, Waiting::InPlace, patience());
    let passed = [0, 1].map(|way: usize| proxy.passed[way].load(Ordering::SeqCst));
    assert_eq!(passed, [HELLO_BYTES, WELCOME_BYTES]);
    let hello = Hello {
        fabric: Fabric::Tcp,
        wanted: guira_network::wire::Grant::ReadOnly,
        token: None,
        prior_session: None,
        sample_words: 0,
    };
    assert_eq!(hello.encode().len() as u64 * 8 + 16, HELLO_BYTES);
}

/// Every frame, cut in two at every byte, with a pause between the halves.
#[test]
fn frames_that_arrive_in_two_pieces_are_complete() {
    let node = MockNode::start(64, 64);
    let (request_bytes, reply_bytes) = change_bytes();
    let delay = Duration::from_micros(500);
    let mut count = 0;
    for waiting in WAITING_MODES {
        // Both ways of waiting share the code under test: alternating is enough, except in a long run.
        let is_its_turn = |at: &u64| is_long() || at % 2 == (waiting == Waiting::InPlace) as u64;
        for at in (1..HELLO_BYTES + request_bytes).filter(is_its_turn) {
            let request = Faults { split_at: Some(at), delay, ..Faults::default() };
            check_whole(&node, waiting, request, Faults::default(), &mut count);
        }
        for at in (1..WELCOME_BYTES + reply_bytes).filter(is_its_turn) {
            let reply = Faults { split_at: Some(at), delay, ..Faults::default() };
            check_whole(&node, waiting, Faults::default(), reply, &mut count);
        }
    }
    println!("{count} splits");
    assert!(count >= HELLO_BYTES + request_bytes + WELCOME_BYTES + reply_bytes - 2);
}

fn check_whole(node: &MockNode, waiting: Waiting, request: Faults, reply: Faults, count: &mut u64) {
    let proxy = Proxy::start(node.address, request, reply);
    let region = connect_through(&proxy, waiting, patience());
    let mut lane = region.lane();
    let (result, found, into) = change(&mut lane);
    assert_eq!((result, found, into), (Ok(()), *count, [5, 6]), "{waiting:?} {request:?} {reply:?}");
    *count += 1;
}

/// The connection is cut after every byte of a request and of its reply. A request that was not sent completely had no
/// effect.
#[test]
fn a_cut_connection_reports_the_effect() {
    let (request_bytes, reply_bytes) = change_bytes();
    let (mut undone, mut unknown) = (0, 0);
    for waiting in WAITING_MODES {
        // The Hello is answered before the proxy receives more. A complete request may be answered before the cut is
        // noticed: that is the cut before the first byte of the reply, below.
        for at in 1..request_bytes {
            let request = Faults { cut_at: Some(HELLO_BYTES + at), ..Faults::default() };
            match check_cut(waiting, request, Faults::default(), false) {
                Effect::None => undone += 1,
                _ => unknown += 1,
            }
        }
        for at in 0..reply_bytes {
            let reply = Faults { cut_at: Some(WELCOME_BYTES + at), ..Faults::default() };
            if check_cut(waiting, Faults::default(), reply, true) == Effect::Unknown {
                unknown += 1;
            }
        }
    }
    println!("{undone} cuts without an effect, {unknown} with one that is unknown");
    assert!(unknown >= 2 * reply_bytes - 2, "{unknown} effects unknown");
}

/// Cuts the connection, and checks a change and a READ. Returns the effect in the error of the change.
fn check_cut(waiting: Waiting, request: Faults, reply: Faults, may_change: bool) -> Effect {
    let node = MockNode::start(64, 64);
    let proxy = Proxy::start(node.address, request, reply);
    let region = connect_through(&proxy, waiting, patience());
    let mut lane = region.lane();
    let case = format!("{waiting:?} {request:?} {reply:?}");
    let (result, ..) = change(&mut lane);
    let Err(FabricError::Disconnected { effect }) = result else { panic!("{case}: {result:?}") };
    let word = || node.region.memory().main[1].load(Ordering::SeqCst);
    if effect == Effect::None || !may_change {
        // None of it is in flight any more.
        assert_eq!(word(), 0, "{case}");
    }
    assert!(region.session().loss().is_some(), "{case}");
    assert_eq!(read(&mut lane), Err(FabricError::Disconnected { effect: Effect::None }), "{case}");
    let (again, ..) = change(&mut region.lane());
    assert_eq!(again, Err(FabricError::Disconnected { effect: Effect::None }), "{case}");
    assert!(matches!(region.hold(1), Err(FabricError::Disconnected { effect: Effect::None })), "{case}");
    effect
}

/// A READ has no effect, wherever its reply is cut.
#[test]
fn a_cut_read_changed_nothing() {
    for waiting in WAITING_MODES {
        for at in 0..48 {
            let node = MockNode::start(64, 64);
            let proxy = Proxy::start(
                node.address,
                Faults::default(),
                Faults { cut_at: Some(WELCOME_BYTES + at), ..Faults::default() },
            );
            let region = connect_through(&proxy, waiting, patience());
            let result = read(&mut region.lane());
            assert_eq!(result, Err(FabricError::Disconnected { effect: Effect::None }), "{waiting:?} {at}");
        }
    }
}

/// A missing reply costs the connection, after the timeout, and no lane hangs.
#[test]
fn a_late_reply_costs_the_connection() {
    for waiting in WAITING_MODES {
        // On a machine where the batches are not sent within the timeout, a longer one is tried.
        let mut timeouts = (0..).map(|doubled| Duration::from_secs(1 << doubled)).take_while(|it| *it < patience());
        assert!(timeouts.any(|timeout| costs_the_connection(waiting, timeout)), "{waiting:?}: sending takes too long");
    }
}

/// Loses the replies of three batches. Returns false if the connection was lost before all of them were sent.
fn costs_the_connection(waiting: Waiting, timeout: Duration) -> bool {
    let node = MockNode::start(64, 64);
    let lost = Faults { lost_from: Some(WELCOME_BYTES + 8), ..Faults::default() };
    let proxy = Proxy::start(node.address, Faults::default(), lost);
    let options = options(proxy.address).with_sample_words(0).with_waiting(waiting).with_batch_timeout(timeout);
    let Ok(region) = TcpRegion::connect(&options) else { return false };
    let mut found = [0; 3];
    let mut lanes = [(); 3].map(|()| region.lane());
    let mut batches = found.each_mut().map(|found| [Verb::FetchAdd { addr: Addr::device(0), add: 1, found }]);
    let start = Instant::now();
    // All are in flight before the first is waited for.
    let posted: Vec<_> = lanes.iter_mut().zip(&mut batches).map(|(lane, batch)| post(lane, &mut batch[..])).collect();
    let results: Vec<_> = std::thread::scope(|scope| {
        let waiting: Vec<_> = posted.into_iter().map(|posted| scope.spawn(|| block_on(posted))).collect();
        waiting.into_iter().map(|waiting| waiting.join().expect("no panic")).collect()
    });
    let elapsed = start.elapsed();
    assert_eq!(region.session().loss(), Some(Loss::TimedOut { timeout_ms: timeout.as_millis() as u64 }));
    assert!(elapsed >= timeout, "{waiting:?}: {elapsed:?}");
    if results.contains(&Err(FabricError::Disconnected { effect: Effect::None })) {
        return false;
    }
    let unknown = Err(FabricError::Disconnected { effect: Effect::Unknown });
    assert!(results.iter().all(|result| *result == unknown), "{waiting:?}: {results:?}");
    true
}

/// A node that answers late but within the timeout causes no error.
#[test]
fn short_delays_do_not_fail() {
    for waiting in WAITING_MODES {
        let node = MockNode::start(64, 64);
        let slow = Faults { delay: Duration::from_millis(120), ..Faults::default() };
        let proxy = Proxy::start(node.address, slow, slow);
        let region = connect_through(&proxy, waiting, patience());
        assert_eq!(change(&mut region.lane()), (Ok(()), 0, [5, 6]), "{waiting:?}");
    }
}

/// A session that was dropped on request reports it, at once and always.
#[test]
fn a_dropped_session_is_fenced() {
    for waiting in WAITING_MODES {
        let node = MockNode::start(64, 64);
        let (first, second) = (node.connect(waiting), node.connect(waiting));
        let mut lane = first.lane();
        assert_eq!(change(&mut lane).0, Ok(()));
        let _hold = first.hold(7).unwrap().expect("free");
        second.session().fence(7).unwrap();
        // The node has sent its Close before the change was sent, and executed nothing since.
        let (result, ..) = change(&mut lane);
        assert_eq!(result, Err(FabricError::Fenced { effect: Effect::None }), "{waiting:?}");
        assert_eq!(read(&mut lane), Err(FabricError::Fenced { effect: Effect::None }));
        assert_eq!(node.region.memory().device[0].load(Ordering::SeqCst), 1);
        assert_eq!(change(&mut second.lane()).0, Ok(()));
    }
}
