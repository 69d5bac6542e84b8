//! Frames that are split, delayed, cut and lost: no batch hangs, and each error says what may have been changed.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use guira_fabric::{Addr, Effect, FabricError, Lane, Region, Verb, post};
use guira_fabric_tcp::client::{Loss, TcpRegion, Waiting};
use guira_fabric_tcp::wire::{BatchShape, HEADER_WORDS, Hello};
use pollster::block_on;

use crate::mock_node::{MockNode, WAITING_MODES, options};
use crate::proxy::{Faults, Proxy};

/// Bytes of a greeting, and of the answer to it without a sample.
const HELLO_BYTES: u64 = (HEADER_WORDS as u64 + 7) * 8;
const WELCOME_BYTES: u64 = (HEADER_WORDS as u64 + 11) * 8;

/// One WRITE, one FETCH-ADD, one READ of what was written.
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

fn look(lane: &mut dyn Lane) -> Result<(), FabricError> {
    block_on(post(lane, &mut [Verb::Read { addr: Addr::main(8), into: &mut [0; 4] }]))
}

/// How long the frames of [`change`] and of its answer are, in bytes.
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
fn greetings_are_as_long_as_this_test_believes() {
    let node = MockNode::start(64, 64);
    let proxy = Proxy::start(node.address, Faults::default(), Faults::default());
    let _region = connect_through(&proxy, Waiting::InPlace, Duration::from_secs(10));
    let passed = [0, 1].map(|way: usize| proxy.passed[way].load(Ordering::SeqCst));
    assert_eq!(passed, [HELLO_BYTES, WELCOME_BYTES]);
    let hello =
        Hello { wanted: guira_fabric_tcp::wire::Grant::ReadOnly, token: None, prior_session: None, sample_words: 0 };
    assert_eq!(hello.encode().len() as u64 * 8 + 16, HELLO_BYTES);
}

/// Every frame, cut in two at every byte, with a pause between the halves.
#[test]
fn frames_that_arrive_in_two_pieces_are_whole() {
    let node = MockNode::start(64, 64);
    let (request_bytes, reply_bytes) = change_bytes();
    let delay = Duration::from_micros(500);
    let is_long = std::env::var_os("GUIRA_LONG").is_some();
    let mut count = 0;
    for waiting in WAITING_MODES {
        // Both ways of waiting share what is tested: by turns is enough, unless there is time.
        let is_its_turn = |at: &u64| is_long || at % 2 == (waiting == Waiting::InPlace) as u64;
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
    let region = connect_through(&proxy, waiting, Duration::from_secs(10));
    let mut lane = region.lane();
    let (result, found, into) = change(&mut lane);
    assert_eq!((result, found, into), (Ok(()), *count, [5, 6]), "{waiting:?} {request:?} {reply:?}");
    *count += 1;
}

/// The connection is cut behind every byte of a request and of its answer. What was not sent whole had no effect.
#[test]
fn a_cut_tells_the_effect() {
    let (request_bytes, reply_bytes) = change_bytes();
    let (mut undone, mut unknown) = (0, 0);
    for waiting in WAITING_MODES {
        // The greeting is answered before the proxy sees more. What has come whole may be answered before the cut
        // shows: that is the answer's cut before its first byte, below.
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

/// Cuts, and asks what became of a change and of a look. The effect that the change's error told.
fn check_cut(waiting: Waiting, request: Faults, reply: Faults, may_change: bool) -> Effect {
    let node = MockNode::start(64, 64);
    let proxy = Proxy::start(node.address, request, reply);
    let region = connect_through(&proxy, waiting, Duration::from_secs(10));
    let mut lane = region.lane();
    let case = format!("{waiting:?} {request:?} {reply:?}");
    let (result, ..) = change(&mut lane);
    let Err(FabricError::Disconnected { effect }) = result else { panic!("{case}: {result:?}") };
    let word = || node.region.memory().main[1].load(Ordering::SeqCst);
    if effect == Effect::None || !may_change {
        // Nothing of it is under way any more.
        assert_eq!(word(), 0, "{case}");
    }
    assert!(region.loss().is_some(), "{case}");
    assert_eq!(look(&mut lane), Err(FabricError::Disconnected { effect: Effect::None }), "{case}");
    let (again, ..) = change(&mut region.lane());
    assert_eq!(again, Err(FabricError::Disconnected { effect: Effect::None }), "{case}");
    assert!(matches!(region.hold(1), Err(FabricError::Disconnected { effect: Effect::None })), "{case}");
    effect
}

/// A READ has no effect, wherever its answer is cut.
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
            let region = connect_through(&proxy, waiting, Duration::from_secs(10));
            let result = look(&mut region.lane());
            assert_eq!(result, Err(FabricError::Disconnected { effect: Effect::None }), "{waiting:?} {at}");
        }
    }
}

/// An answer that does not come costs the connection, after the time that was given, and no lane of it hangs.
#[test]
fn an_answer_that_is_late_costs_the_connection() {
    let timeout = Duration::from_millis(300);
    for waiting in WAITING_MODES {
        let node = MockNode::start(64, 64);
        let lost = Faults { lost_from: Some(WELCOME_BYTES + 8), ..Faults::default() };
        let proxy = Proxy::start(node.address, Faults::default(), lost);
        let region = connect_through(&proxy, waiting, timeout);
        let mut found = [0; 3];
        let mut lanes = [(); 3].map(|()| region.lane());
        let mut batches = found.each_mut().map(|found| [Verb::FetchAdd { addr: Addr::device(0), add: 1, found }]);
        let start = Instant::now();
        // All are under way before the first is waited for.
        let posted: Vec<_> =
            lanes.iter_mut().zip(&mut batches).map(|(lane, batch)| post(lane, &mut batch[..])).collect();
        let results: Vec<_> = std::thread::scope(|scope| {
            let waiting: Vec<_> = posted.into_iter().map(|posted| scope.spawn(|| block_on(posted))).collect();
            waiting.into_iter().map(|waiting| waiting.join().expect("no panic")).collect()
        });
        let elapsed = start.elapsed();
        for result in results {
            assert_eq!(result, Err(FabricError::Disconnected { effect: Effect::Unknown }), "{waiting:?}");
        }
        assert_eq!(region.loss(), Some(Loss::TimedOut { timeout_ms: 300 }));
        assert!(elapsed >= timeout && elapsed < timeout * 10, "{waiting:?}: {elapsed:?}");
    }
}

/// A node that is slow, and within its time, is waited for.
#[test]
fn delays_are_waited_for() {
    for waiting in WAITING_MODES {
        let node = MockNode::start(64, 64);
        let slow = Faults { delay: Duration::from_millis(120), ..Faults::default() };
        let proxy = Proxy::start(node.address, slow, slow);
        let region = connect_through(&proxy, waiting, Duration::from_secs(10));
        assert_eq!(change(&mut region.lane()), (Ok(()), 0, [5, 6]), "{waiting:?}");
    }
}

/// A session that was dropped on request says so, at once and ever after.
#[test]
fn a_dropped_session_is_fenced() {
    for waiting in WAITING_MODES {
        let node = MockNode::start(64, 64);
        let (first, second) = (node.connect(waiting), node.connect(waiting));
        let mut lane = first.lane();
        assert_eq!(change(&mut lane).0, Ok(()));
        let _hold = first.hold(7).unwrap().expect("free");
        second.fence(7).unwrap();
        // The node has said so before the change was sent, and executed nothing since.
        let (result, ..) = change(&mut lane);
        assert_eq!(result, Err(FabricError::Fenced { effect: Effect::None }), "{waiting:?}");
        assert_eq!(look(&mut lane), Err(FabricError::Fenced { effect: Effect::None }));
        assert_eq!(node.region.memory().device[0].load(Ordering::SeqCst), 1);
        assert_eq!(change(&mut second.lane()).0, Ok(()));
    }
}
