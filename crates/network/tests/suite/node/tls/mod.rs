//! Nodes and clients with TLS: everything works as without it, and untrusted peers are refused with a reason.
//!
//! Proves, for both ways of waiting:
//!
//! - every verb, batches of several frames, 64 lanes of one connection, sessions that are replaced or fenced, and slow
//!   readers work as without TLS;
//! - a round trip is one TLS record each way;
//! - if records are split or cut at many places (seven times as many with `GUIRA_LONG=1`), or bits change on their way,
//!   each error reports the effect correctly;
//! - each failed handshake is reported to both sides with its cause, and counted: TLS on one side only, a wrong
//!   authority, name or time, no certificate, invalid bytes, silence;
//! - the memory of a session is bounded.
//!
//! Cannot show: the cryptography, which is that of ring and rustls; hostile records.

mod cuts;
mod handshakes;
mod pki;

use std::time::Duration;

use guira_fabric::{Addr, Effect, FabricError, Lane, Region, Submitted, Verb, Waiting, post};
use guira_network::tcp::{TcpLane, TcpRegion};
use guira_network::wire::{FenceReply, MAX_BATCH_VERBS, MAX_VERB_WORDS, PriorSession};
use guira_testing::{patience, wait_until};
use pollster::block_on;

use self::pki::TlsNode;
use crate::common::test_node::{MAIN_BYTES, options};
use crate::common::{WAITING_MODES, draw_numbers};

/// Every verb, in one batch: one request, one answer, one round trip.
#[test]
fn the_verbs_of_a_batch_take_effect_in_order_over_tls() {
    for waiting in WAITING_MODES {
        let node = TlsNode::start();
        let region = node.connect(waiting);
        let mut lane = region.lane();
        node.inner.executes_every_verb(|batch| block_on(post(&mut lane, batch)));
        assert_eq!(lane.traffic().round_trips, 1);
        let invalid = &mut [Verb::Write { addr: Addr::main(MAIN_BYTES), words: &[1] }][..];
        assert!(matches!(block_on(post(&mut lane, invalid)), Err(FabricError::OutOfBounds { .. })));
        let counters = region.session().counters().unwrap();
        // The invalid batch is refused before it is sent; a Hello and a batch were answered, and TLS adds no frames.
        assert_eq!((counters.batches, counters.answered_in.0.iter().sum::<u64>()), (1, 2), "{waiting:?}");
    }
}

#[test]
fn the_longest_batches_come_back_over_tls() {
    let node = TlsNode::start();
    for waiting in WAITING_MODES {
        let mut lane = node.connect(waiting).lane();
        let words: Vec<u64> = (0..MAX_VERB_WORDS as u64).map(|word| word * 3).collect();
        let (mut first, mut second) = (vec![0; MAX_VERB_WORDS], vec![0; MAX_VERB_WORDS]);
        // Longer than a frame: it is sent in several.
        let mut batch = [
            Verb::Write { addr: Addr::main(8), words: &words },
            Verb::Read { addr: Addr::main(8), into: &mut first },
            Verb::Write { addr: Addr::main(8), words: &words[1..] },
            Verb::Read { addr: Addr::main(8), into: &mut second },
        ];
        assert_eq!(block_on(post(&mut lane, &mut batch[..])), Ok(()));
        assert!(first == words && second[..MAX_VERB_WORDS - 1] == words[1..], "{waiting:?}");
        let before = node.inner.read(Addr::main(0), 1)[0];
        let mut found = [0; MAX_BATCH_VERBS];
        let adds = found.iter_mut().map(|found| Verb::FetchAdd { addr: Addr::main(0), add: 1, found });
        assert_eq!(block_on(post(&mut lane, &mut adds.collect::<Vec<_>>()[..])), Ok(()));
        assert!(found.iter().copied().eq(before..before + MAX_BATCH_VERBS as u64), "{waiting:?}");
        assert_eq!(lane.traffic().round_trips, 2);
    }
}

const LANES: u64 = 64;
const ROUNDS: u64 = 30;

/// Writes three words each time, now and then many more.
fn words_of(own: u64, round: u64) -> Vec<u64> {
    vec![own << 32 | round; if round % 10 == 9 { 4_000 } else { 3 }]
}

#[test]
fn many_lanes_share_an_encrypted_connection() {
    for first in WAITING_MODES {
        let node = TlsNode::start();
        let region = node.connect(first);
        let sum: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..LANES)
                .map(|own| {
                    let waiting = if own % 2 == 0 { first } else { Waiting::Cooperative };
                    let lane = region.lane().waiting(waiting);
                    let work = draw_numbers(lane, ROUNDS, Addr::main(own * 32_000), move |round| words_of(own, round));
                    scope.spawn(move || block_on(work).expect("no loss"))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        let count = LANES * ROUNDS;
        assert_eq!((node.inner.read(Addr::device(0), 1), sum), (vec![count], count * (count - 1) / 2), "{first:?}");
        assert_eq!(node.inner.handle.counters().batches, count);
    }
}

#[test]
fn sessions_over_tls_are_superseded_and_fenced() {
    let node = TlsNode::start();
    for waiting in WAITING_MODES {
        let (first, second) = (node.connect(waiting), node.connect(waiting));
        let hold = first.hold(3).unwrap().expect("free");
        assert!(second.hold(3).unwrap().is_none());
        // The client comes back before the node has noticed the loss of its connection.
        let options = node.options(node.inner.addr, waiting).with_prior_session(first.session().id());
        let again = TcpRegion::connect(&options).expect("a session");
        assert_eq!(again.session().prior_session(), PriorSession::Ended);
        let mut into = [0];
        let read = block_on(post(&mut first.lane(), &mut [Verb::Read { addr: Addr::main(0), into: &mut into }]));
        assert_eq!(read, Err(FabricError::Fenced { effect: Effect::None }), "{waiting:?}");
        let _held = again.hold(3).unwrap().expect("its last owner is gone");
        assert_eq!(second.session().fence(3), Ok(FenceReply::Dropped));
        let write = block_on(post(&mut again.lane(), &mut [Verb::Write { addr: Addr::main(0), words: &[7] }]));
        assert_eq!(write, Err(FabricError::Fenced { effect: Effect::None }), "{waiting:?}");
        assert_eq!(node.inner.read(Addr::main(0), 1), [0], "nothing of a dropped session is executed");
        drop(hold);
    }
}

/// A client requests more replies than the kernel's buffers hold, and reads none: the node serves others meanwhile.
#[test]
fn a_client_over_tls_that_reads_no_replies_stalls_no_other() {
    let node = TlsNode::with(options().threads(1).session_timeout(10 * patience()));
    let (slow, other) = (node.connect(Waiting::InPlace), node.connect(Waiting::InPlace));
    let _lanes = request_without_reading(&slow);
    let mut lane = other.lane();
    for _ in 0..100 {
        read_word(&mut lane);
    }
}

/// The same client is dropped, and the node executes only as many requests as it may keep replies for.
#[test]
fn a_client_over_tls_that_reads_no_replies_is_dropped_and_takes_bounded_memory() {
    let node = TlsNode::with(options().threads(1).session_timeout(Duration::from_secs(1)));
    let (slow, other) = (node.connect(Waiting::InPlace), node.connect(Waiting::InPlace));
    let _lanes = request_without_reading(&slow);
    let (mut lane, mut reads) = (other.lane(), 0);
    wait_until("the client is dropped", || {
        read_word(&mut lane);
        reads += 1;
        let counters = node.inner.handle.counters();
        counters.sessions_too_slow + counters.sessions_cut_off == 1
    });
    let counters = node.inner.handle.counters();
    let executed = counters.reads - reads;
    println!("{executed} of {UNREAD} READs were executed, {reads} of another client");
    assert!(executed < UNREAD as u64, "{executed} executed");
    // The executed replies that the kernel has not accepted are at most one, and those that may wait.
    let reply_bytes = (MAX_VERB_WORDS as u64 + 2) * 8;
    assert!(counters.bytes_out + 2 * reply_bytes >= executed * reply_bytes, "{counters:?}");
}

/// READs of the largest size whose replies nobody reads.
const UNREAD: usize = 100;

fn request_without_reading(region: &TcpRegion) -> Vec<TcpLane> {
    let mut lanes: Vec<TcpLane> = (0..UNREAD).map(|_| region.lane()).collect();
    let mut into = vec![0; MAX_VERB_WORDS];
    for lane in &mut lanes {
        let submitted = lane.submit(&mut [Verb::Read { addr: Addr::main(0), into: &mut into }]);
        assert!(matches!(submitted, Submitted::InFlight));
    }
    lanes
}

fn read_word(lane: &mut TcpLane) {
    let mut word = [0];
    assert_eq!(block_on(post(lane, &mut [Verb::Read { addr: Addr::main(0), into: &mut word }])), Ok(()));
}

/// A client that reads late gets all its replies, byte for byte.
#[test]
fn replies_over_tls_that_are_read_late_are_complete() {
    for waiting in WAITING_MODES {
        let node = TlsNode::start();
        let words: Vec<u64> = (0..100_000).collect();
        node.inner.write(Addr::main(0), &words);
        let region = node.connect(waiting);
        let mut into = vec![vec![0; words.len()]; 30];
        let mut lanes: Vec<TcpLane> = (0..into.len()).map(|_| region.lane()).collect();
        let mut batches: Vec<_> = into.iter_mut().map(|into| [Verb::Read { addr: Addr::main(0), into }]).collect();
        let posted: Vec<_> =
            lanes.iter_mut().zip(&mut batches).map(|(lane, batch)| post(lane, &mut batch[..])).collect();
        std::thread::sleep(Duration::from_millis(200));
        for posted in posted {
            assert_eq!(block_on(posted), Ok(()));
        }
        assert!(into.iter().all(|found| *found == words), "{waiting:?}");
    }
}
