//! The decision, for every outcome; and, on a device, batches over a connection to itself that are added one by one.

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Region, SplitMix64};

use super::*;
use crate::DeviceOptions;

/// The results of a device that stores them in `order`.
fn results(order: ByteOrder) -> Observed {
    // Loading and storing are the same exchange of bytes.
    Observed { won: order.value(BEFORE), added: 0, lost: order.value(AFTER), words: [AFTER, 1] }
}

#[test]
fn a_device_that_works_is_used_in_either_byte_order() {
    for order in [ByteOrder::LittleEndian, ByteOrder::BigEndian] {
        assert_eq!(decide(Some(&results(order))), Some(order));
    }
    assert_ne!(results(ByteOrder::LittleEndian), results(ByteOrder::BigEndian));
}

#[test]
fn a_device_that_does_anything_else_is_not() {
    let right = results(ByteOrder::HOST);
    let other = |change: fn(&mut Observed)| {
        let mut observed = right;
        change(&mut observed);
        decide(Some(&observed))
    };
    assert_eq!(decide(None), None, "the device has refused the batch, or has not executed it");
    // A plain CAS, which compares the whole word, changes nothing.
    assert_eq!(other(|it| (it.lost, it.words) = (BEFORE, [BEFORE, 1])), None);
    // Masks that are ignored in the swap replace the whole word.
    assert_eq!(other(|it| (it.lost, it.words) = (SWAPPED, [SWAPPED, 1])), None);
    // Masks that are ignored in the comparison let the second attempt win.
    assert_eq!(other(|it| it.words = [BEFORE | LATE, 1]), None);
    // Operands that are read in the wrong byte order hit another field.
    assert_eq!(other(|it| it.words = [BEFORE | SWAPPED.swap_bytes(), 1]), None);
    // The old word is not returned.
    assert_eq!(other(|it| it.won = 0), None);
    assert_eq!(other(|it| it.lost = BEFORE), None);
    // Results in two byte orders.
    assert_eq!(other(|it| it.won = it.won.swap_bytes()), None);
    // The other requests of the batch were not executed.
    assert_eq!(other(|it| it.words[1] = 0), None);
    assert_eq!(other(|it| it.added = 1), None);
}

/// Each operand field is visible: the constants would be useless if a mistake left them alike.
#[test]
fn the_software_masked_cas_passes() {
    let word = AtomicU64::new(BEFORE);
    let attempt = |swap| guira_fabric::memory::masked_cas(&word, 0, swap, FIELD, FIELD);
    let (won, lost) = (attempt(SWAPPED), attempt(LATE));
    let observed = Observed { won, added: 0, lost, words: [word.load(Ordering::SeqCst), 1] };
    assert_eq!(decide(Some(&observed)), Some(ByteOrder::HOST));
}

fn with_device(test: impl FnOnce(&Device)) {
    let names = Device::names().unwrap_or_default();
    let open = |name: &String| Device::open(&DeviceOptions { device: Some(name.clone()), ..DeviceOptions::default() });
    match names.iter().find_map(|name| open(name).ok()) {
        Some(device) => test(&device),
        None => println!("skipped: there is no RDMA device with an active port"),
    }
}

/// Draws a verb on one of the two words; one of `kinds`, of which the last is a masked CAS that is a plain one.
fn draw<'b>(random: &mut SplitMix64, kinds: u64, words: &'b mut [u64; 2], found: &'b mut u64) -> Verb<'b> {
    let (at, operand) = (random.below(2), random.below(3));
    let (addr, words) = (Addr::main_word(at), &mut words[at as usize..]);
    match random.below(kinds) {
        0 => Verb::Read { addr, into: words },
        1 => {
            words.fill(operand);
            Verb::Write { addr, words }
        }
        2 => Verb::Cas { addr, compare: operand, swap: operand + 1, found },
        3 => Verb::FetchAdd { addr, add: operand, found },
        _ => Verb::MaskedCas { addr, compare: operand, swap: operand + 1, compare_mask: !0, swap_mask: !0, found },
    }
}

/// Batches that are added one by one do what they do in the heap backend. This is the way of a queue pair with masked
/// CAS, on drivers that have extended verbs without it (Soft-RoCE); inline data is part of it. Raw entries are
/// interpreted.
#[test]
fn batches_that_are_added_one_by_one_agree_with_the_heap() {
    let seed = 0x1807_0002;
    println!("seed {seed:#x}");
    with_device(|device| {
        let ways = [(Posting::OneByOne, MaskedCas::CasLoop, 4), (Posting::Interpreted, MaskedCas::Native, 5)];
        for ((posting, masked_cas, kinds), inline_bytes) in ways.into_iter().flat_map(|way| [(way, 0), (way, 64)]) {
            let options = ConnectionOptions { inline_bytes, ..OPTIONS };
            let looped = Loop::new(device, &options, posting).unwrap();
            let (mut lane, caps) = (looped.connection.lane(), *looped.connection.caps());
            assert_eq!(caps.masked_cas, masked_cas);
            let heap = HeapRegion::new(16, 0, caps);
            heap.memory().main[0].store(BEFORE, Ordering::SeqCst);
            let (mut model, mut random) = (heap.lane(), SplitMix64(seed));
            for batch in 0..200 {
                let mut drawn = random.clone();
                let (mut got, mut expected) = ([([0; 2], 0); 3], [([0; 2], 0); 3]);
                let mut verbs = got.each_mut().map(|(words, found)| draw(&mut random, kinds, words, found));
                run(&mut lane, &mut verbs).unwrap();
                let mut verbs = expected.each_mut().map(|(words, found)| draw(&mut drawn, kinds, words, found));
                assert!(matches!(model.submit(&mut verbs), Submitted::Done(Ok(()))));
                assert_eq!(got, expected, "{posting:?}, batch {batch}");
            }
        }
    });
}

/// A batch whose masked CAS go through a lane, their entries and a driver allocates nothing.
#[test]
fn masked_cas_does_not_allocate() {
    with_device(|device| {
        let looped = Loop::new(device, &OPTIONS, Posting::Interpreted).unwrap();
        let mut lane = looped.connection.lane();
        let mut round = || {
            let (addr, mut found, mut into) = (Addr::main(8), 0, [0; 2]);
            let masks = !0;
            let mut batch = [
                Verb::MaskedCas { addr, compare: 0, swap: 0, compare_mask: masks, swap_mask: masks, found: &mut found },
                Verb::Read { addr: Addr::main(0), into: &mut into },
            ];
            run(&mut lane, &mut batch).unwrap();
        };
        round();
        round();
        let allocated = allocation_counter::measure(|| (0..20).for_each(|_| round()));
        assert_eq!(allocated.count_total, 0);
    });
}

/// A device without masked CAS is not probed, and a batch with one is refused before it is posted.
#[test]
fn masked_cas_is_not_posted_where_it_is_missing() {
    with_device(|device| {
        if mlx5::library(device.opened()).is_some() {
            return println!("skipped: {} is an mlx5 device", device.name());
        }
        assert_eq!(masked_cas(device), None);
        assert_eq!(Target::new(device).unwrap().masked_cas(), MaskedCas::CasLoop);
        for posting in [Posting::Generic, Posting::OneByOne] {
            let looped = Loop::new(device, &OPTIONS, posting).unwrap();
            assert_eq!(looped.connection.caps().masked_cas, MaskedCas::CasLoop, "{posting:?}");
            assert_eq!(observe(&mut looped.connection.lane()), None);
            assert_eq!(looped.connection.lost(), None);
        }
        assert!(Loop::new(device, &OPTIONS, Posting::MaskedCas).is_err());
    });
}

/// A device that does not execute the batch is given up after a second.
#[test]
fn a_probe_is_bounded() {
    with_device(|device| {
        let mut looped = Loop::new(device, &OPTIONS, Posting::Generic).unwrap();
        looped.accepted.end().unwrap();
        let (mut lane, mut into, started_ns) = (looped.connection.lane(), [0], clock_ns());
        let mut batch = [Verb::Read { addr: Addr::main(0), into: &mut into }];
        let error = run(&mut lane, &mut batch).unwrap_err();
        let waited_ns = clock_ns() - started_ns;
        assert!(matches!(error, FabricError::Backend(_) | FabricError::Disconnected { .. }), "{error}");
        assert!(waited_ns < 3 * LIMIT_NS, "{waited_ns} ns");
    });
}
