//! Single lanes: each verb, its bounds, and buffers of every size.

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Effect, FabricError, Lane, MaskedCas, Region, Space, SplitMix64, Submitted, Verb, post};
use guira_fabric_verbs::{Connecting, ConnectionOptions, VerbsLane};
use guira_network::wire::Grant;

use crate::fixture::{Node, drain, load, run, spin_on, with_devices};

const FIRST: usize = 3_072;
const SECOND: usize = 1_024;
const ON_DEVICE: usize = 64;

/// One drawn verb: its kind, address, words and operands.
#[derive(Clone, Debug)]
struct Drawn {
    kind: u64,
    addr: Addr,
    words: Vec<u64>,
    found: u64,
    operand: u64,
}

impl Drawn {
    fn new(random: &mut SplitMix64, longest: u64) -> Drawn {
        let kind = random.below(4);
        let is_long = kind < 2;
        let words = if is_long { random.below(longest) + 1 } else { 1 };
        let addr = match (random.below(4), kind) {
            (0, _) => Addr::device(random.below(ON_DEVICE as u64 - words.min(32)) * 8),
            // A READ may cross from one segment to the next; a WRITE stays inside one.
            (1, 0) => Addr::main_word(FIRST as u64 - random.below(words + 1)),
            (2, _) => Addr::main_word(FIRST as u64 + random.below(SECOND as u64 - words)),
            _ => Addr::main_word(random.below(FIRST as u64 - words)),
        };
        let words = if addr.space() == Space::Device { words.min(32) } else { words };
        let content = (0..words).map(|_| random.below(3)).collect();
        Drawn { kind, addr, words: content, found: 0, operand: random.below(3) }
    }

    fn verb(&mut self) -> Verb<'_> {
        let Drawn { addr, words, found, operand, .. } = self;
        match self.kind {
            0 => Verb::Read { addr: *addr, into: words },
            1 => Verb::Write { addr: *addr, words },
            2 => Verb::Cas { addr: *addr, compare: *operand, swap: *operand + 1, found },
            _ => Verb::FetchAdd { addr: *addr, add: *operand, found },
        }
    }
}

/// Every verb has the result and the effect that it has in the heap backend. Soft-RoCE executes all verbs of a queue
/// pair in order; other devices may sample a READ after a WRITE behind it (docs/rdma.md).
#[test]
fn random_batches_agree_with_the_heap() {
    let seed = 0x1807_0001;
    println!("seed {seed:#x}");
    with_devices(|client, device| {
        let node = Node::new(&device, FIRST, SECOND, ON_DEVICE);
        let options = ConnectionOptions { lane_bytes: 1_024, ..ConnectionOptions::default() };
        let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &options);
        let main_words = (FIRST + SECOND) as u64;
        let heap = HeapRegion::new(main_words * 8, ON_DEVICE as u64 * 8, *connection.caps());
        let (mut lane, mut model) = (connection.lane(), heap.lane());
        let mut random = SplitMix64(seed);
        for batch in 0..600 {
            let (verbs, longest) = (random.below(20) + 1, [4, 4, 40, 900][random.below(4) as usize]);
            let mut drawn: Vec<Drawn> = (0..verbs).map(|_| Drawn::new(&mut random, longest)).collect();
            let mut expected = drawn.clone();
            run(&mut lane, &mut drawn.iter_mut().map(Drawn::verb).collect::<Vec<_>>()).unwrap();
            let mut verbs: Vec<Verb<'_>> = expected.iter_mut().map(Drawn::verb).collect();
            spin_on(post(&mut model, &mut verbs[..])).unwrap();
            for (got, expected) in drawn.iter().zip(&expected) {
                assert_eq!((&got.words, got.found), (&expected.words, expected.found), "batch {batch}: {expected:?}");
            }
        }
        let of_heap = heap.memory();
        for (at, word) in of_heap.main.iter().enumerate() {
            let got = if at < FIRST { load(&node.main[0], at) } else { load(&node.main[1], at - FIRST) };
            assert_eq!(got, word.load(Ordering::SeqCst), "word {at}");
        }
        assert!((0..ON_DEVICE).all(|at| load(&node.device, at) == of_heap.device[at].load(Ordering::SeqCst)));
        assert_eq!(lane.traffic(), model.traffic());
    });
}

/// An invalid batch has no effect, and the queue pair still works for its lanes.
#[test]
fn invalid_batches_are_refused_and_the_lanes_go_on() {
    with_devices(|client, device| {
        let node = Node::new(&device, FIRST, SECOND, ON_DEVICE);
        let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &ConnectionOptions::default());
        let mut lane = connection.lane();
        let end = Addr::main_word((FIRST + SECOND) as u64);
        for bad in [end, Addr::main(4), Addr::device(ON_DEVICE as u64 * 8), Addr::main_word(FIRST as u64 - 1)] {
            let mut batch =
                [Verb::Write { addr: Addr::main(0), words: &[9] }, Verb::Write { addr: bad, words: &[9; 2] }];
            let error = run(&mut lane, &mut batch).unwrap_err();
            assert_eq!(error.effect(), Effect::None, "{error}");
        }
        let mut found = 7;
        let (compare, swap) = (0, 1);
        let masked =
            Verb::MaskedCas { addr: Addr::main(0), compare, swap, compare_mask: 1, swap_mask: 1, found: &mut found };
        assert_eq!(run(&mut lane, &mut [masked]), Err(FabricError::Unsupported { verb: "MASKED CAS" }));
        assert_eq!((load(&node.main[0], 0), found), (0, 7));
        run(&mut lane, &mut [Verb::Write { addr: Addr::main(0), words: &[3] }]).unwrap();
        assert_eq!(load(&node.main[0], 0), 3);
        assert_eq!(connection.lost(), None);
    });
}

#[test]
fn a_reader_cannot_change_a_byte() {
    with_devices(|client, device| {
        let node = Node::new(&device, FIRST, SECOND, ON_DEVICE);
        node.main[0][5].store(77, Ordering::SeqCst);
        let (connection, _accepted) = node.connect(&client, Grant::ReadOnly, &ConnectionOptions::default());
        let (mut lane, mut into) = (connection.lane(), [0; 2]);
        let refused = run(&mut lane, &mut [Verb::Write { addr: Addr::main(40), words: &[1] }]);
        assert_eq!(refused, Err(FabricError::ReadOnly { verb: "WRITE" }));
        run(&mut lane, &mut [Verb::Read { addr: Addr::main(40), into: &mut into }]).unwrap();
        assert_eq!(into, [77, 0]);
    });
}

/// A client that changes its copy of the grant is refused by the device, and loses its queue pair.
#[test]
fn the_device_enforces_the_grant_of_a_reader() {
    with_devices(|client, device| {
        let node = Node::new(&device, FIRST, SECOND, ON_DEVICE);
        let connecting = Connecting::new(&client, &ConnectionOptions::default()).unwrap();
        let (_accepted, mut parameters) = node.target.accept(Grant::ReadOnly, &connecting.parameters()).unwrap();
        parameters.grant = Grant::ReadWrite;
        let connection = connecting.connect(parameters).unwrap();
        let mut lane = connection.lane();
        let error = run(&mut lane, &mut [Verb::Write { addr: Addr::main(0), words: &[1] }]).unwrap_err();
        assert_eq!(error, FabricError::Disconnected { effect: Effect::Unknown });
        assert_eq!(load(&node.main[0], 0), 0);
        println!("lost: {}", connection.lost().unwrap());
    });
}

/// The capabilities come from the connection: its MTU, its queue, no masked CAS.
#[test]
fn capabilities_are_those_of_the_connection() {
    with_devices(|client, device| {
        let node = Node::new(&device, FIRST, SECOND, ON_DEVICE);
        let options = ConnectionOptions { queue_depth: 100, ..ConnectionOptions::default() };
        let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &options);
        let caps = connection.caps();
        assert_eq!(caps.atomic_write_unit, u64::from(client.mtu().min(device.mtu()).bytes()));
        assert_eq!((caps.max_batch, caps.masked_cas), (100, MaskedCas::CasLoop));
        assert_eq!((caps.max_verb_words, caps.device_bytes), (1 << 17, ON_DEVICE as u64 * 8));
        assert_eq!(connection.main_bytes(), (FIRST + SECOND) as u64 * 8);
        println!("{client:?}, {caps:?}");
    });
}

/// A batch may have more READs than the two sides may have in progress: the device holds the others back.
#[test]
fn a_batch_may_have_more_reads_than_may_be_in_progress() {
    with_devices(|client, device| {
        let node = Node::new(&device, FIRST, SECOND, ON_DEVICE);
        let connecting = Connecting::new(&client, &ConnectionOptions::default()).unwrap();
        let mut own = connecting.parameters();
        own.endpoint.reads_out = 1;
        let (_accepted, mut parameters) = node.target.accept(Grant::ReadWrite, &own).unwrap();
        parameters.endpoint.reads_in = 1;
        let connection = connecting.connect(parameters).unwrap();
        let (mut lane, mut found, mut read) = (connection.lane(), [0; 64], [0; 64]);
        let addr = |at: usize| Addr::main_word(at as u64 % 4);
        let add = |(at, found)| Verb::FetchAdd { addr: addr(at), add: 1, found };
        run(&mut lane, &mut found.iter_mut().enumerate().map(add).collect::<Vec<_>>()).unwrap();
        let of = |(at, word)| Verb::Read { addr: addr(at), into: std::slice::from_mut(word) };
        run(&mut lane, &mut read.iter_mut().enumerate().map(of).collect::<Vec<_>>()).unwrap();
        assert!((0..64).all(|at| found[at] == at as u64 / 4), "{found:?}");
        assert_eq!(read, [16; 64]);
    });
}

/// A forgotten batch takes effect, and its atomics' words are reported; until then nothing else is accepted.
#[test]
fn a_dropped_future_does_not_cancel_its_batch() {
    with_devices(|client, device| {
        let node = Node::new(&device, FIRST, SECOND, ON_DEVICE);
        let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &ConnectionOptions::default());
        let mut lane = connection.lane();
        for round in 0..50 {
            let (mut into, mut found, mut second) = ([0; 600], 1, 1);
            let mut batch = [
                Verb::Read { addr: Addr::main(0), into: &mut into },
                Verb::FetchAdd { addr: Addr::main(8), add: 2, found: &mut found },
                Verb::Write { addr: Addr::main(16), words: &[round] },
                Verb::FetchAdd { addr: Addr::main(24), add: 1, found: &mut second },
            ];
            drop(post(&mut lane, &mut batch[..]));
            let refused = lane.submit(&mut [Verb::Write { addr: Addr::main(16), words: &[99] }]);
            assert!(matches!(refused, Submitted::Done(Err(_))), "one batch in flight");
            let mut words = [0; 1];
            assert_eq!(drain(&mut lane, &mut words), Ok(2));
            assert_eq!((words, load(&node.main[0], 2)), ([2 * round], round));
            assert_eq!(drain(&mut lane, &mut words), Ok(0));
        }
    });
}

/// Submits a batch that adds 1 to the first word, and leaves it in flight.
fn add(lane: &mut VerbsLane, found: &mut u64) -> Submitted {
    let submitted = lane.submit(&mut [Verb::FetchAdd { addr: Addr::main(0), add: 1, found }]);
    lane.forget();
    submitted
}

/// A lane that is dropped with its batch in flight returns its slot, and the batch takes effect.
#[test]
fn dropped_lanes_return_their_slots() {
    with_devices(|client, device| {
        let node = Node::new(&device, FIRST, SECOND, ON_DEVICE);
        let options = ConnectionOptions { lanes: 4, ..ConnectionOptions::default() };
        let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &options);
        for _ in 0..40 {
            let mut found = 0;
            assert!(matches!(add(&mut connection.lane(), &mut found), Submitted::InFlight));
        }
        run(&mut connection.lane(), &mut [Verb::Read { addr: Addr::main(0), into: &mut [0] }]).unwrap();
        assert_eq!(load(&node.main[0], 0), 40);
    });
}
