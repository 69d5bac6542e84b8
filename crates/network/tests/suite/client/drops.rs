//! Futures that are dropped while their batch is in flight: it still takes effect, and its atomics' results are kept.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use guira_fabric::{Addr, FabricError, Lane, Liveness, Region, Submitted, Verb, Waiting, clock_ns, post};
use guira_network::tcp::TcpLane;
use pollster::block_on;

use super::mock_node::MockNode;
use crate::common::WAITING_MODES;

/// A batch is dropped before it is polled, and after each number of polls; its lane is drained, and remains usable.
#[test]
fn a_dropped_batch_takes_effect_and_is_drained() {
    for waiting in WAITING_MODES {
        let node = MockNode::start(256, 64);
        let mut lane = node.connect(waiting).lane();
        // An in-place poll waits for the answer: there is nothing to drop after it.
        let polls = if waiting == Waiting::InPlace { 0..1 } else { 0..3 };
        let mut pending = 0;
        for (round, polls) in polls.cycle().take(60).enumerate() {
            let round = round as u64;
            let (mut first, mut second, mut into) = (0, 0, [0; 2]);
            let mut batch = [
                Verb::Read { addr: Addr::main(0), into: &mut into },
                Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut first },
                Verb::Write { addr: Addr::main(0), words: &[round + 1, round + 1] },
                Verb::Cas { addr: Addr::main(0), compare: round + 1, swap: round + 1, found: &mut second },
            ];
            let was_ready = {
                let mut posted = pin!(post(&mut lane, &mut batch[..]));
                let mut cx = Context::from_waker(Waker::noop());
                (0..polls).any(|_| posted.as_mut().poll(&mut cx).is_ready())
            };
            let mut found = [u64::MAX; 3];
            let drained = block_on(poll_fn(|cx| lane.poll_drain(&mut found, cx)));
            let expected = if was_ready { (Ok(0), [u64::MAX; 3]) } else { (Ok(2), [round, round + 1, u64::MAX]) };
            assert_eq!((drained, found), expected, "{waiting:?}, round {round}");
            pending += u64::from(!was_ready);
            assert_eq!(node.region.memory().main[1].load(Ordering::SeqCst), round + 1);
        }
        println!("{waiting:?}: {pending} of 60 batches were drained");
        assert!(pending >= 20, "{pending}");
    }
}

/// A lane with a batch in flight accepts no other; one that is dropped does not affect other lanes.
#[test]
fn a_dropped_lane_leaves_the_connection_to_others() {
    for waiting in WAITING_MODES {
        let node = MockNode::start(256, 64);
        let region = node.connect(waiting);
        let mut last = region.lane();
        for round in 0..200 {
            let mut lane = region.lane();
            let mut found = 0;
            let mut add = [Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found }];
            assert!(matches!(lane.submit(&mut add), Submitted::InFlight));
            let again = lane.submit(&mut add);
            assert!(matches!(again, Submitted::Done(Err(FabricError::Backend(_)))), "{again:?}");
            drop(lane);
            let mut into = [0];
            block_on(post(&mut last, &mut [Verb::Read { addr: Addr::device(0), into: &mut into }])).unwrap();
            assert_eq!(into[0], round + 1, "{waiting:?}: the dropped lane's batch was executed before");
        }
    }
}

/// A task that its wakers own, as those of some executors: the last one drops the task's lane.
struct Task {
    _lane: Mutex<TcpLane>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// A waker that the connection has no use for any more may be the last of its task, and drop a lane of the connection:
/// that used to lock its state a second time.
#[test]
fn a_discarded_waker_may_drop_a_lane() {
    let node = MockNode::start(256, 64);
    let region = node.connect(Waiting::Cooperative);
    let task = || Waker::from(Arc::new(Task { _lane: Mutex::new(region.lane()) }));
    let later = clock_ns() + 3_600_000_000_000;
    // A pause that begins again, ends, or whose lane is dropped.
    for again in [Some(later), Some(later + 1), Some(0), None] {
        let mut lane = region.lane();
        let mut pause = |until_ns| lane.poll_pause(until_ns, &mut Context::from_waker(&task()));
        assert!(pause(later).is_pending());
        assert_eq!(again.map(|until_ns| pause(until_ns).is_ready()), again.map(|until_ns| until_ns == 0));
    }
    // A batch whose reply is awaited by one task after the other, and whose lane is dropped in half of the rounds.
    for round in 0..100 {
        let mut lane = region.lane();
        let mut found = 0;
        let submitted = lane.submit(&mut [Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found }]);
        assert!(matches!(submitted, Submitted::InFlight));
        let mut drain = || lane.poll_drain(&mut [0], &mut Context::from_waker(&task()));
        if drain().is_pending() && drain().is_pending() && round % 2 == 0 {
            assert_eq!(block_on(poll_fn(|cx| lane.poll_drain(&mut [0], cx))), Ok(1));
        }
    }
}

/// A dropped fence request releases the slot that it was granted, and so does one that another request replaces.
#[test]
fn a_dropped_request_keeps_no_slot() {
    let node = MockNode::start(64, 64);
    let mut region = node.connect(Waiting::Cooperative);
    let mut cx = Context::from_waker(Waker::noop());
    let mut pending = 0;
    for round in 0..50 {
        for slot in [round, round + 100] {
            pending += u64::from(region.poll_fence(slot, 1, &mut cx).is_pending());
        }
    }
    // The session continues: a granted slot is free again only after a release.
    let _lane = region.lane();
    drop(region);
    assert!(pending > 50, "{pending} requests were in flight");
    let mut other = node.connect(Waiting::Cooperative);
    for slot in [3, 103, 149] {
        // The grants of the first client and their releases may take a while.
        let proof = std::iter::repeat_with(|| block_on(poll_fn(|cx| other.poll_fence(slot, 1, cx))).unwrap())
            .take(10_000)
            .find_map(|proof| proof);
        let proof = proof.expect("free");
        assert_eq!((proof.slot(), proof.generation()), (slot, 1));
        assert!(block_on(poll_fn(|cx| other.poll_fence(slot, 1, cx))).unwrap().is_none(), "one proof at a time");
    }
}
