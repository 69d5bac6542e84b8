//! Encrypted bytes that are split, cut and changed in transit: only complete frames are executed, and each error
//! reports the possible effect.

use std::sync::atomic::Ordering;
use std::time::Duration;

use guira_fabric::{Addr, Effect, FabricError, Lane, Region, Verb, Waiting, post};
use guira_network::client::ConnectError;
use guira_network::tcp::TcpRegion;
use pollster::block_on;

use super::pki::TlsNode;
use crate::common::WAITING_MODES;
use crate::common::proxy::{Faults, Proxy};

/// The bytes that TLS 1.3 adds to one record of data: its header, the inner type, and the authentication tag.
const RECORD_BYTES: u64 = 5 + 1 + 16;

/// Executes one WRITE, one FETCH-ADD, and one READ of the written words; returns the counter before the addition.
fn change(lane: &mut dyn Lane) -> Result<u64, FabricError> {
    let (mut found, mut into) = (0, [0; 2]);
    let mut batch = [
        Verb::Write { addr: Addr::main(8), words: &[5, 6] },
        Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found },
        Verb::Read { addr: Addr::main(8), into: &mut into },
    ];
    block_on(post(lane, &mut batch[..]))?;
    assert_eq!(into, [5, 6]);
    Ok(found)
}

/// The bytes to and from the node: until a session is open, and of one [`change`] after that.
struct Lengths {
    greeting: [u64; 2],
    change: [u64; 2],
}

impl Lengths {
    fn measure(node: &TlsNode) -> Lengths {
        let proxy = Proxy::start(node.inner.addr, Faults::default(), Faults::default());
        let region = connect(node, &proxy, Waiting::InPlace).expect("a session");
        let passed = || [0, 1].map(|way: usize| proxy.passed[way].load(Ordering::SeqCst));
        let greeting = passed();
        change(&mut region.lane()).expect("no loss");
        let after = passed();
        let lengths = Lengths { greeting, change: [after[0] - greeting[0], after[1] - greeting[1]] };
        // A request is one record and so is its reply: 11 words and 5, and nothing else.
        assert_eq!(lengths.change, [11 * 8 + RECORD_BYTES, 5 * 8 + RECORD_BYTES]);
        lengths
    }
}

fn connect(node: &TlsNode, proxy: &Proxy, waiting: Waiting) -> Result<TcpRegion, ConnectError> {
    TcpRegion::connect(&node.options(proxy.address, waiting))
}

fn added(node: &TlsNode) -> u64 {
    node.inner.read(Addr::device(0), 1)[0]
}

/// Returns the distance of the positions that are tried: every byte, or a coprime step.
fn step() -> usize {
    if guira_testing::is_long() { 1 } else { 7 }
}

#[test]
fn encrypted_frames_that_arrive_in_two_pieces_are_complete() {
    let node = TlsNode::start();
    let lengths = Lengths::measure(&node);
    let delay = Duration::from_micros(500);
    let mut count = 0;
    for waiting in WAITING_MODES {
        for (way, (greeting, change_bytes)) in lengths.greeting.into_iter().zip(lengths.change).enumerate() {
            for at in (1..greeting + change_bytes).step_by(4 * step()) {
                let split = Faults { split_at: Some(at), delay, ..Faults::default() };
                let mut ways = [Faults::default(); 2];
                ways[way] = split;
                let proxy = Proxy::start(node.inner.addr, ways[0], ways[1]);
                let region = connect(&node, &proxy, waiting).unwrap_or_else(|error| panic!("{ways:?}: {error}"));
                count += 1;
                assert_eq!(change(&mut region.lane()), Ok(count), "{waiting:?} {ways:?}");
            }
        }
    }
    println!("{count} splits");
    assert!(count > 100, "{count} splits");
}

/// The connection is cut after a byte of a request or of its reply.
#[test]
fn a_cut_through_an_encrypted_frame_reports_the_effect() {
    let node = TlsNode::start();
    let lengths = Lengths::measure(&node);
    let (mut none, mut unknown) = (0, 0);
    for waiting in WAITING_MODES {
        for way in 0..2 {
            for at in (0..=lengths.change[way]).step_by(step()) {
                let mut ways = [Faults::default(); 2];
                ways[way].cut_at = Some(lengths.greeting[way] + at.max(1));
                // The complete reply: nothing is lost.
                if way == 1 && at == lengths.change[way] {
                    continue;
                }
                let arrives = way == 1 || at == lengths.change[way];
                match cut(&node, waiting, ways, u64::from(arrives)) {
                    Effect::None => none += 1,
                    _ => unknown += 1,
                }
            }
        }
    }
    println!("{none} cuts without an effect, {unknown} with one that is unknown");
    assert!(unknown > 20 && none + unknown >= 50, "{none} without, {unknown} unknown");
}

/// Returns the effect in the error of a change, which is executed `times` times.
fn cut(node: &TlsNode, waiting: Waiting, ways: [Faults; 2], times: u64) -> Effect {
    let before = added(node);
    let proxy = Proxy::start(node.inner.addr, ways[0], ways[1]);
    let ended = node.inner.handle.counters().sessions_ended;
    let Ok(region) = connect(node, &proxy, waiting) else {
        // The Welcome was cut before it was read.
        return Effect::None;
    };
    let mut lane = region.lane();
    let Err(FabricError::Disconnected { effect }) = change(&mut lane) else { panic!("{waiting:?} {ways:?}: no loss") };
    node.inner.wait_until("the end of the session", |now| now.sessions_ended > ended);
    let case = format!("{waiting:?} {ways:?}: {effect:?}");
    assert!(effect != Effect::None || added(node) == before, "{case}, and it was executed");
    assert_eq!(added(node), before + times, "{case}: only a complete frame is executed");
    assert_eq!(change(&mut lane), Err(FabricError::Disconnected { effect: Effect::None }), "{case}");
    effect
}

/// One bit that is changed in transit ends the session; the frame with it is neither executed nor accepted.
#[test]
fn changed_bytes_are_noticed() {
    let node = TlsNode::start();
    let lengths = Lengths::measure(&node);
    let mut count = 0;
    for waiting in WAITING_MODES {
        for way in 0..2 {
            // Without the header of a record: after a changed length, more bytes are waited for.
            for at in (5..lengths.change[way]).step_by(2 * step()) {
                let mut ways = [Faults::default(); 2];
                ways[way].flip_at = Some(lengths.greeting[way] + at);
                let before = added(&node);
                let proxy = Proxy::start(node.inner.addr, ways[0], ways[1]);
                let region = connect(&node, &proxy, waiting).expect("a session");
                let result = change(&mut region.lane());
                assert!(matches!(result, Err(FabricError::Disconnected { .. })), "{waiting:?} {ways:?}: {result:?}");
                assert_eq!(added(&node), before + way as u64, "{waiting:?} {ways:?}");
                assert!(region.session().loss().is_some());
                count += 1;
            }
        }
    }
    println!("{count} changed bytes");
    assert!(count > 20, "{count} changed bytes");
    assert!(node.inner.handle.counters().sessions_misunderstood > 10);
}
