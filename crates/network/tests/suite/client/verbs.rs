//! Every verb has the same effect over a connection as on the heap, in order, in one round trip.

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, FabricError, Lane, Profile, Region, Verb, Waiting, post};
use guira_network::tcp::TcpRegion;
use guira_network::wire::{FenceReply, Grant, PriorSession};
use pollster::block_on;
use proptest::prelude::*;

use super::mock_node::MockNode;
use crate::common::WAITING_MODES;

const MAIN_BYTES: u64 = 1 << 12;
const DEVICE_BYTES: u64 = 1 << 8;

/// A verb with buffers of its own.
#[derive(Clone, Debug)]
enum GeneratedVerb {
    Read { addr: Addr, words: usize },
    Write { addr: Addr, words: Vec<u64> },
    Cas { addr: Addr, compare: u64, swap: u64 },
    MaskedCas { addr: Addr, compare: u64, swap: u64, compare_mask: u64, swap_mask: u64 },
    FetchAdd { addr: Addr, add: u64 },
}

impl GeneratedVerb {
    /// Returns the words of its result.
    fn found(&self) -> usize {
        match self {
            GeneratedVerb::Read { words, .. } => *words,
            GeneratedVerb::Write { .. } => 0,
            _ => 1,
        }
    }
}

/// Posts `generated` and returns all results.
fn run(lane: &mut dyn Lane, generated: &[GeneratedVerb]) -> (Result<(), FabricError>, Vec<Vec<u64>>) {
    let mut found: Vec<Vec<u64>> = generated.iter().map(|verb| vec![u64::MAX; verb.found()]).collect();
    let mut batch: Vec<Verb<'_>> = generated
        .iter()
        .zip(&mut found)
        .map(|(verb, found)| match verb {
            GeneratedVerb::Read { addr, .. } => Verb::Read { addr: *addr, into: found },
            GeneratedVerb::Write { addr, words } => Verb::Write { addr: *addr, words },
            GeneratedVerb::Cas { addr, compare, swap } => {
                Verb::Cas { addr: *addr, compare: *compare, swap: *swap, found: &mut found[0] }
            }
            GeneratedVerb::MaskedCas { addr, compare, swap, compare_mask, swap_mask } => Verb::MaskedCas {
                addr: *addr,
                compare: *compare,
                swap: *swap,
                compare_mask: *compare_mask,
                swap_mask: *swap_mask,
                found: &mut found[0],
            },
            GeneratedVerb::FetchAdd { addr, add } => Verb::FetchAdd { addr: *addr, add: *add, found: &mut found[0] },
        })
        .collect();
    let result = block_on(post(lane, &mut batch[..]));
    drop(batch);
    (result, found)
}

/// Generates addresses in and around both spaces, some of them invalid.
fn addr() -> impl Strategy<Value = Addr> {
    let offset = prop_oneof![
        30 => (0..MAIN_BYTES / 8).prop_map(|word| word * 8),
        1 => 0..2 * MAIN_BYTES,
        1 => Just(MAIN_BYTES - 8),
        1 => (u64::MAX / 2 - 64..=u64::MAX / 2).prop_map(|offset| offset & !7),
    ];
    prop_oneof![
        3 => offset.prop_map(Addr::main),
        1 => (0..DEVICE_BYTES / 8).prop_map(|word| Addr::device(word * 8)),
    ]
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..3u64, 1 => any::<u64>()]
}

fn generated() -> impl Strategy<Value = GeneratedVerb> {
    prop_oneof![
        (addr(), 0..9usize).prop_map(|(addr, words)| GeneratedVerb::Read { addr, words }),
        (addr(), prop::collection::vec(word(), 0..9)).prop_map(|(addr, words)| GeneratedVerb::Write { addr, words }),
        (addr(), word(), word()).prop_map(|(addr, compare, swap)| GeneratedVerb::Cas { addr, compare, swap }),
        (addr(), word(), word(), word(), word()).prop_map(|(addr, compare, swap, compare_mask, swap_mask)| {
            GeneratedVerb::MaskedCas { addr, compare, swap, compare_mask, swap_mask }
        }),
        (addr(), word()).prop_map(|(addr, add)| GeneratedVerb::FetchAdd { addr, add }),
    ]
}

fn memory_of(region: &HeapRegion) -> Vec<u64> {
    let memory = region.memory();
    let words = memory.main.iter().chain(memory.device);
    words.map(|word| word.load(std::sync::atomic::Ordering::Relaxed)).collect()
}

/// Batches of every kind have the same results, refusals and effects on memory here and on the heap.
#[test]
fn every_verb_does_what_it_does_on_the_heap() {
    let node = MockNode::start(MAIN_BYTES, DEVICE_BYTES);
    let heap = HeapRegion::new(MAIN_BYTES, DEVICE_BYTES, Profile::Tcp.caps());
    let mut lanes: Vec<_> = WAITING_MODES.iter().map(|waiting| node.connect(*waiting).lane()).collect();
    let mut turn = 0;
    let (mut executed, mut refused) = (0, 0);
    let config = ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let batches = prop::collection::vec(generated(), 0..12);
    let counts = std::cell::RefCell::new((&mut turn, &mut executed, &mut refused));
    let lanes = std::cell::RefCell::new(&mut lanes);
    runner
        .run(&batches, |batch| {
            let mut counts = counts.borrow_mut();
            *counts.0 += 1;
            let (expected, expected_words) = run(&mut heap.lane(), &batch);
            let (result, words) = run(&mut lanes.borrow_mut()[*counts.0 % 2], &batch);
            match &result {
                Ok(()) => *counts.1 += 1,
                Err(_) => *counts.2 += 1,
            }
            prop_assert_eq!(result, expected);
            prop_assert_eq!(words, expected_words);
            prop_assert!(memory_of(&node.region) == memory_of(&heap), "memory differs");
            Ok(())
        })
        .unwrap();
    println!("{executed} batches executed, {refused} refused");
    assert!(executed > 400 && refused > 100, "{executed} executed, {refused} refused");
}

/// A read-only session refuses changes before they are sent.
#[test]
fn a_read_only_session_reads() {
    let node = MockNode::start(MAIN_BYTES, DEVICE_BYTES);
    for waiting in WAITING_MODES {
        let options = node.options().with_waiting(waiting).with_grant(Grant::ReadOnly);
        let region = TcpRegion::connect(&options).unwrap();
        assert_eq!(region.session().grant(), Grant::ReadOnly);
        let before = node.batches();
        let mut lane = region.lane();
        let (result, _) = run(&mut lane, &[GeneratedVerb::Write { addr: Addr::main(0), words: vec![1] }]);
        assert_eq!(result, Err(FabricError::ReadOnly { verb: "WRITE" }));
        assert!(matches!(region.hold(1), Err(FabricError::ReadOnly { .. })));
        assert!(matches!(region.session().fence(1), Err(FabricError::ReadOnly { .. })));
        let (result, words) = run(&mut lane, &[GeneratedVerb::Read { addr: Addr::main(0), words: 1 }]);
        assert_eq!((result, words, node.batches()), (Ok(()), vec![vec![0]], before + 1));
    }
}

/// A batch longer than a frame is sent in several, in order, and takes one round trip.
#[test]
fn a_batch_longer_than_a_frame_is_one_round_trip() {
    let words = Profile::Tcp.caps().max_verb_words;
    let node = MockNode::start(words as u64 * 8, 8);
    for waiting in WAITING_MODES {
        let mut lane = node.connect(waiting).lane();
        let before = node.batches();
        let batch: Vec<GeneratedVerb> = (0..6)
            .flat_map(|round| {
                let write = GeneratedVerb::Write { addr: Addr::main(0), words: vec![round + 1; words] };
                let read = GeneratedVerb::Read { addr: Addr::main(0), words };
                [write, GeneratedVerb::FetchAdd { addr: Addr::device(0), add: 1 }, read]
            })
            .collect();
        let (result, found) = run(&mut lane, &batch);
        assert_eq!(result, Ok(()));
        for (round, found) in found.chunks(3).enumerate() {
            assert!(found[2].iter().all(|word| *word == round as u64 + 1), "{waiting:?}, round {round}");
        }
        assert_eq!(lane.traffic().round_trips, 1);
        assert!(node.batches() >= before + 6, "{} frames", node.batches() - before);
    }
}

#[test]
fn a_session_has_ids_and_a_sample() {
    let node = MockNode::start(MAIN_BYTES, DEVICE_BYTES);
    let (result, _) =
        run(&mut node.region.lane(), &[GeneratedVerb::Write { addr: Addr::main(0), words: vec![3, 4, 5] }]);
    assert_eq!(result, Ok(()));
    let region = node.connect(Waiting::InPlace);
    assert_eq!((region.session().sample().len(), &region.session().sample()[..4]), (512, &[3, 4, 5, 0][..]));
    assert_eq!((region.session().region_id(), region.session().prior_session()), ([7, 8], PriorSession::None));
    assert_eq!((region.main_bytes(), region.device_bytes()), (MAIN_BYTES, DEVICE_BYTES));
    assert_eq!(*region.caps(), guira_fabric::Caps { device_bytes: DEVICE_BYTES, ..Profile::Tcp.caps() });
    let options = node.options().with_prior_session(region.session().id()).with_sample_words(2);
    let next = TcpRegion::connect(&options).unwrap();
    assert_eq!((next.session().prior_session(), next.session().sample()), (PriorSession::Ended, &[3, 4][..]));
    assert_ne!(next.session().id(), region.session().id());
}

#[test]
fn one_session_holds_a_slot_until_it_is_released_or_fenced() {
    let node = MockNode::start(MAIN_BYTES, DEVICE_BYTES);
    for waiting in WAITING_MODES {
        let (first, second) = (node.connect(waiting), node.connect(waiting));
        let hold = first.hold(3).unwrap().expect("free");
        assert!(second.hold(3).unwrap().is_none());
        let other = second.hold(4).unwrap().expect("free");
        drop(hold);
        // Released once the node has read it, which the answer to what was sent later proves.
        first.session().counters().unwrap();
        let hold = second.hold(3).unwrap().expect("released");
        assert_eq!(first.session().fence(9), Ok(FenceReply::NoSession));
        assert_eq!(first.session().fence(3), Ok(FenceReply::Dropped));
        let refused = second.hold(5).map(|hold| hold.is_some());
        assert_eq!(refused, Err(FabricError::Fenced { effect: guira_fabric::Effect::None }), "{waiting:?}");
        drop((hold, other));
        assert_eq!(node.held(), []);
    }
}
