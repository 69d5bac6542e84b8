//! Many lanes on one connection: from threads, and from tasks of an executor.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_executor::LocalExecutor;
use guira_fabric::{Addr, FabricError, Lane, Region, Verb, Waiting, pause_until, post};
use guira_network::tcp::TcpLane;
use pollster::block_on;

use super::mock_node::MockNode;
use crate::common::{WAITING_MODES, draw_numbers};

const LANES: u64 = 64;
const ROUNDS: u64 = 50;

/// Draws numbers; each lane writes other words, so that replies to another one would be noticed.
async fn work(lane: TcpLane, own: u64) -> Result<u64, FabricError> {
    draw_numbers(lane, ROUNDS, Addr::main(own * 24), |round| vec![own, round, own ^ round]).await
}

/// Checks that every number was drawn once.
fn check(node: &MockNode, sum: u64) {
    let count = LANES * ROUNDS;
    assert_eq!(node.region.memory().device[0].load(Ordering::SeqCst), count);
    assert_eq!(sum, count * (count - 1) / 2);
}

#[test]
fn threads_share_a_connection() {
    for waiting in WAITING_MODES {
        let node = MockNode::start(LANES * 24, 8);
        let region = node.connect(waiting);
        let sum = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    let region = &region;
                    scope.spawn(move || {
                        let lanes = (0..8).map(|lane| work(region.lane(), thread * 8 + lane));
                        lanes.map(|work| block_on(work).expect("no loss")).sum::<u64>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        check(&node, sum);
    }
}

#[test]
fn tasks_of_an_executor_share_a_connection() {
    let node = MockNode::start(LANES * 24, 8);
    // Lanes that wait cooperatively, on a connection whose lanes do not by default.
    let region = node.connect(Waiting::InPlace);
    let executor = LocalExecutor::new();
    let lane = || region.lane().waiting(Waiting::Cooperative);
    let tasks: Vec<_> = (0..LANES).map(|own| executor.spawn(work(lane(), own))).collect();
    let mut sum = 0;
    block_on(executor.run(async {
        for task in tasks {
            sum += task.await.expect("no loss");
        }
    }));
    check(&node, sum);
}

/// Lanes of both kinds on one connection, at the same time.
#[test]
fn threads_and_tasks_share_a_connection() {
    let node = MockNode::start(LANES * 24, 8);
    let region = node.connect(Waiting::InPlace);
    let sum = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..LANES)
            .map(|own| {
                let waiting = WAITING_MODES[(own % 2) as usize];
                let lane = region.lane().waiting(waiting);
                scope.spawn(move || block_on(work(lane, own)).expect("no loss"))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    check(&node, sum);
}

/// Pauses end on time and in order, and do not delay others.
#[test]
fn pauses_end_by_the_clock() {
    let node = MockNode::start(64, 8);
    let region = node.connect(Waiting::Cooperative);
    let executor = LocalExecutor::new();
    let start = Instant::now();
    let tasks: Vec<_> = [60u64, 20, 40, 20]
        .into_iter()
        .map(|pause_ms| {
            let mut lane = region.lane();
            executor.spawn(async move {
                let until_ns = lane.now_ns() + pause_ms * 1_000_000;
                pause_until(&mut lane, until_ns).await;
                assert!(lane.now_ns() >= until_ns, "a pause of {pause_ms} ms");
                start.elapsed()
            })
        })
        .collect();
    let mut last = Duration::ZERO;
    block_on(executor.run(async {
        for task in tasks {
            last = last.max(task.await);
        }
    }));
    assert!(last >= Duration::from_millis(60), "{last:?}");
    let mut lane = node.connect(Waiting::InPlace).lane();
    let until_ns = lane.now_ns() + 5_000_000;
    block_on(pause_until(&mut lane, until_ns));
    assert!(lane.now_ns() >= until_ns);
}

/// A blocking lane allocates nothing for a batch like one that it has sent before.
#[test]
fn a_batch_allocates_nothing() {
    let node = MockNode::start(1 << 12, 8);
    let mut lane = node.connect(Waiting::InPlace).lane();
    let words = [7; 100];
    let mut round = || {
        let (mut found, mut into) = (0, [0; 100]);
        let mut batch = [
            Verb::Write { addr: Addr::main(0), words: &words },
            Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found },
            Verb::Read { addr: Addr::main(0), into: &mut into },
        ];
        block_on(post(&mut lane, &mut batch[..])).unwrap();
        assert_eq!(into, words);
    };
    round();
    let allocations = allocation_counter::measure(|| (0..100).for_each(|_| round()));
    assert_eq!(allocations.count_total, 100 * POLLSTER_ALLOCATIONS, "{allocations:?}");
}

/// The allocations of `block_on` itself: its signal.
const POLLSTER_ALLOCATIONS: u64 = 1;
