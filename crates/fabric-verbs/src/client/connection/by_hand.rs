//! The cost of a lane, compared with work requests that are posted and awaited by hand on the same queue pair.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use guira_fabric::memory::AtomicU64;
use guira_fabric::{Addr, Space, Verb, post};
use guira_network::wire::Grant;

use super::*;
use crate::client::buffers::Buffer;
use crate::client::plan::{self, Requests};
use crate::{DeviceOptions, Target};

const BATCHES: u32 = 200;
const ROUNDS: usize = 7;
const ROW_WORDS: usize = 16;
const ROWS: [Addr; 2] = [Addr::main(256), Addr::main(1_024)];

fn reads<'b>(first: &'b mut [u64], second: &'b mut [u64]) -> [Verb<'b>; 2] {
    [Verb::Read { addr: ROWS[0], into: first }, Verb::Read { addr: ROWS[1], into: second }]
}

fn by_lane(lane: &mut VerbsLane) -> Duration {
    let started = Instant::now();
    for _ in 0..BATCHES {
        let (mut first, mut second) = ([0; ROW_WORDS], [0; ROW_WORDS]);
        let mut batch = pin!(post(lane, reads(&mut first, &mut second)));
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = batch.as_mut().poll(&mut cx) {
                break result.expect("the connection lives");
            }
        }
    }
    started.elapsed()
}

/// Posts the same two READs, linked before, and polls the completion queue.
fn by_hand(inner: &Inner, slot: usize) -> Duration {
    let (mut first, mut second, mut requests) = ([0; ROW_WORDS], [0; ROW_WORDS], Requests::default());
    let batch = reads(&mut first, &mut second);
    let parts = inner.parts();
    inner.bounds.plan(&parts, &batch).expect("the rows lie inside");
    plan::encode(&parts, &batch, (slot, 0), &mut requests, |_, _| {});
    let (address, key) = inner.buffers.address(Buffer::Lane(slot));
    let linked = requests.link(address, key);
    let (started, mut completions) = (Instant::now(), [ffi::zeroed::<ffi::Wc>(); COMPLETIONS]);
    for _ in 0..BATCHES {
        // SAFETY: the requests are linked, and name the registered buffer of a slot that no lane has.
        let posted = unsafe { inner.pair.post(linked) };
        assert!(posted.is_ok());
        while inner.completions.poll(&mut completions) == Ok(0) {}
        assert_eq!(completions[0].status, ffi::WC_SUCCESS);
    }
    started.elapsed()
}

/// Prints the ratio of the two: a number to look at, not a gate.
#[test]
fn a_lane_and_requests_by_hand() {
    let names = Device::names().unwrap_or_default();
    let open = |name: &String| Device::open(&DeviceOptions { device: Some(name.clone()), ..DeviceOptions::default() });
    let devices: Vec<Device> = names.iter().filter_map(|name| open(name).ok()).collect();
    let (Some(client), Some(device)) = (devices.first(), devices.last()) else {
        return println!("skipped: there is no RDMA device with an active port");
    };
    let target = Target::new(device).unwrap();
    let words: Vec<AtomicU64> = (0..1_024).map(|_| AtomicU64::new(0)).collect();
    target.register(Space::Main, Arc::new(words) as _).unwrap();
    let connecting = Connecting::new(client, &ConnectionOptions::default()).unwrap();
    let (_accepted, parameters) = target.accept(Grant::ReadOnly, &connecting.parameters()).unwrap();
    let connection = connecting.connect(parameters).unwrap();
    let mut lane = connection.lane();
    let slot = connection.user.inner.queue().take_slot().unwrap();
    // In turns, so that what else the machine does meets both; the fastest round of each is the one it met least.
    let rounds: Vec<(Duration, Duration)> =
        (0..ROUNDS).map(|_| (by_lane(&mut lane), by_hand(&connection.user.inner, slot))).collect();
    let [lane, hand] = [
        rounds.iter().map(|(lane, _)| *lane).min().unwrap() / BATCHES,
        rounds.iter().map(|(_, hand)| *hand).min().unwrap() / BATCHES,
    ];
    println!("two READs: {lane:?} by a lane, {hand:?} by hand, {:.2} times", lane.as_secs_f64() / hand.as_secs_f64());
}
