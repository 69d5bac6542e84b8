//! Tests of the liberties of a queue pair: the simulator takes each that `PairOrder` and packets leave, and no other.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use common::{Seen, add, options, read, region};
use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Caps, Lane, PairOrder, Profile, Region, Verb, VerbClass, pause_until, post};
use guira_fabric_sim::{EventKind, FaultPlan, Part, Relaxations, Sim, Stopped};

const SEEDS: u64 = 60;
/// The first words of the two verbs of a pair.
const FIRST: Addr = Addr::main(64);
const SECOND: Addr = Addr::main(256);
/// Words of a READ or WRITE.
const WORDS: usize = 8;

const ALL: Relaxations = Relaxations {
    split_percent: 0,
    swap_percent: 50,
    overtake_percent: 50,
    resample_percent: 50,
    scatter_percent: 50,
    main_lag_ns: 0,
    proves_early: false,
};

fn verb<'b>(class: VerbClass, addr: Addr, buffer: &'b mut [u64; WORDS]) -> Verb<'b> {
    match class {
        VerbClass::Read => Verb::Read { addr, into: buffer },
        VerbClass::Write => Verb::Write { addr, words: buffer },
        VerbClass::Atomic => Verb::FetchAdd { addr, add: 1, found: &mut buffer[0] },
    }
}

/// The orders in which the two verbs of one batch were executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Orders {
    /// A step of the second verb came before the last step of the first.
    overlapped: bool,
    /// Every step of the second verb came before every step of the first.
    reversed: bool,
}

/// Executes a batch of a verb of each class with many seeds.
fn orders(profile: Profile, relaxations: Relaxations, first: VerbClass, second: VerbClass) -> Orders {
    let mut orders = Orders::default();
    for seed in 0..SEEDS {
        let plan = FaultPlan { relaxations, ..FaultPlan::default() };
        let mut sim = Sim::new(region(profile), &options(profile, seed, plan));
        let steps: Rc<RefCell<Vec<bool>>> = Rc::default();
        let recorded = Rc::clone(&steps);
        sim.watch(move |event| {
            if let Some(part) = part_of(&event.kind) {
                recorded.borrow_mut().push(part.addr >= SECOND);
            }
        });
        sim.spawn(move |region| async move {
            let (mut one, mut other) = ([1; WORDS], [1; WORDS]);
            let batch = [verb(first, FIRST, &mut one), verb(second, SECOND, &mut other)];
            post(&mut region.lane(), batch).await.expect("nothing fails here");
        });
        assert_eq!(sim.run(), Stopped::Ended);
        let steps = steps.take();
        let last_of_first = steps.iter().rposition(|is_second| !is_second).expect("the first verb was executed");
        orders.overlapped |= steps[..last_of_first].contains(&true);
        orders.reversed |= steps.is_sorted_by(|a, b| a >= b);
    }
    orders
}

fn part_of(kind: &EventKind) -> Option<Part> {
    match kind {
        EventKind::Read(part) | EventKind::Write(part) | EventKind::Swap(part) | EventKind::Add(part) => Some(*part),
        _ => None,
    }
}

/// With all liberties, a pair is executed out of order if and only if the table permits it; without them, or where
/// batches are executed in order, never.
#[test]
fn the_simulator_takes_each_liberty_of_the_table() {
    for (first, second) in VerbClass::ALL.into_iter().flat_map(|first| VerbClass::ALL.map(|second| (first, second))) {
        let order = PairOrder::on_queue_pair(first, second);
        for profile in Profile::ALL {
            let calm = orders(profile, Relaxations::default(), first, second);
            assert_eq!(calm, Orders::default(), "{profile}: {first:?}, {second:?}");
            let found = orders(profile, ALL, first, second);
            let is_open = order != PairOrder::Kept && !profile.caps().ordered_read_sampling;
            assert_eq!(found.overlapped, is_open, "{profile}: {first:?}, {second:?}");
            let reverses = order == PairOrder::Free || (first, second) == (VerbClass::Read, VerbClass::Read);
            assert_eq!(found.reversed, is_open && reverses, "{profile}: {first:?}, {second:?}");
        }
    }
}

/// A client takes a lock by CAS and writes the row that it guards behind it, in one batch, then releases the lock.
/// Returns the number of seeds in which the row was written while the lock was free.
fn unguarded_writes(relaxations: Relaxations) -> u64 {
    let lock = Addr::device(0);
    let mut unguarded = 0;
    for seed in 0..SEEDS {
        let heap = region(Profile::Mlx5);
        let plan = FaultPlan { relaxations, ..FaultPlan::default() };
        let mut sim = Sim::new(heap.clone(), &options(Profile::Mlx5, seed, plan));
        sim.spawn(move |region| async move {
            let mut lane = region.lane();
            for round in 1..20 {
                let (mut found, row) = (0, [round; WORDS]);
                let take = Verb::Cas { addr: lock, compare: 0, swap: 1, found: &mut found };
                let batch = [take, Verb::Write { addr: FIRST, words: &row }];
                post(&mut lane, batch).await.expect("nothing fails here");
                assert_eq!(found, 0, "no other client takes the lock");
                assert_eq!(read(&mut lane, FIRST).await, Ok(round), "the batch is done");
                add(&mut lane, lock, 1u64.wrapping_neg()).await.expect("nothing fails here");
            }
        });
        let early: Rc<Cell<bool>> = Rc::default();
        let noticed = Rc::clone(&early);
        sim.watch(move |event| {
            let is_free = heap.memory().device[0].load(Ordering::Relaxed) == 0;
            noticed.set(noticed.get() | (is_free && matches!(event.kind, EventKind::Write(_))));
        });
        assert_eq!(sim.run(), Stopped::Ended);
        unguarded += u64::from(early.get());
    }
    unguarded
}

/// A protocol that relies on an order that a queue pair does not give fails in the simulator.
#[test]
fn a_write_behind_the_cas_of_a_lock_is_noticed() {
    let in_order = Relaxations { overtake_percent: 0, ..ALL };
    assert_eq!(unguarded_writes(in_order), 0);
    assert!(unguarded_writes(Relaxations { overtake_percent: 30, ..Relaxations::default() }) > SEEDS / 2);
}

/// The batches by which a reader validates a miss.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Validation {
    /// Both rows, and the first one again, in one batch, as where READs sample in order.
    SameBatch,
    /// Both rows again in a second batch.
    NextBatch,
}

/// A writer moves a key to and fro between two rows, so that it is in one of them at every moment. A row is one word: a
/// version, and whether the key is there. Returns the number of times that a reader finds it in neither.
fn wrong_misses(relaxations: Relaxations, validation: Validation) -> usize {
    let missed = Seen::new();
    for seed in 0..SEEDS {
        let plan = FaultPlan { relaxations, ..FaultPlan::default() };
        let mut sim = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, seed, plan));
        sim.spawn(|region| async move {
            let mut lane = region.lane();
            for version in 0..100 {
                let (to, from) = if version % 2 == 0 { (FIRST, SECOND) } else { (SECOND, FIRST) };
                let (with_key, without) = ([version << 1 | 1], [version << 1]);
                let copy = Verb::Write { addr: to, words: &with_key };
                let clear = Verb::Write { addr: from, words: &without };
                post(&mut lane, [copy, clear]).await.expect("nothing fails here");
            }
        });
        let missed = missed.clone();
        sim.spawn(move |region| async move {
            let mut lane = region.lane();
            // The key is not there until the first move.
            pause_until(&mut lane, 10_000).await;
            for _ in 0..60 {
                let ([mut one, mut other], mut again) = ([[0]; 2], [[0]; 2]);
                let [first, second] = &mut again;
                let rows = [Verb::Read { addr: FIRST, into: &mut one }, Verb::Read { addr: SECOND, into: &mut other }];
                let look = Verb::Read { addr: FIRST, into: first };
                if validation == Validation::SameBatch {
                    let batch: Vec<Verb<'_>> = rows.into_iter().chain([look]).collect();
                    post(&mut lane, batch).await.expect("nothing fails here");
                    again[1] = other;
                } else {
                    post(&mut lane, rows).await.expect("nothing fails here");
                    let batch = [look, Verb::Read { addr: SECOND, into: second }];
                    post(&mut lane, batch).await.expect("nothing fails here");
                }
                let is_in_neither = (one[0] | other[0]) & 1 == 0;
                if is_in_neither && again == [one, other] {
                    missed.push(());
                }
            }
        });
        assert_eq!(sim.run(), Stopped::Ended);
    }
    missed.take().len()
}

/// READs that are relied on to sample in order, which a queue pair does not promise, give wrong answers; samples of a
/// later batch do not.
#[test]
fn a_miss_validated_in_its_own_batch_is_noticed() {
    let liberties = Relaxations { scatter_percent: 0, ..ALL };
    assert!(wrong_misses(liberties, Validation::SameBatch) > 10);
    assert_eq!(wrong_misses(liberties, Validation::NextBatch), 0);
    assert_eq!(wrong_misses(Relaxations::default(), Validation::SameBatch), 0);
}

/// The packets of a WRITE are executed in order, and the words of one packet in any order.
#[test]
fn a_long_write_is_executed_packet_by_packet() {
    const PACKET_WORDS: usize = 8;
    const PACKETS: usize = 4;
    let caps = Caps { atomic_write_unit: 8 * PACKET_WORDS as u64, ..Profile::Rxe.caps() };
    let (mut partial, mut scattered) = (0u32, 0u32);
    for seed in 0..SEEDS {
        let heap = HeapRegion::new(common::MAIN_BYTES, common::DEVICE_BYTES, caps);
        let relaxations = Relaxations { scatter_percent: 100, ..Relaxations::default() };
        let plan = FaultPlan { relaxations, ..FaultPlan::default() };
        let mut sim = Sim::new(heap.clone(), &options(Profile::Rxe, seed, plan));
        let images: Rc<RefCell<Vec<Vec<u64>>>> = Rc::default();
        let (recorded, memory) = (Rc::clone(&images), heap.clone());
        sim.watch(move |event| {
            if matches!(event.kind, EventKind::Write(_)) {
                let words = &memory.memory().main[..PACKETS * PACKET_WORDS];
                recorded.borrow_mut().push(words.iter().map(|word| word.load(Ordering::Relaxed)).collect());
            }
        });
        sim.spawn(|region| async move {
            let words = [1; PACKETS * PACKET_WORDS];
            let mut lane = region.lane();
            post(&mut lane, [Verb::Write { addr: Addr::main(0), words: &words }]).await.expect("nothing fails here");
        });
        assert_eq!(sim.run(), Stopped::Ended);
        let images = images.take();
        assert_eq!(images.last().map(|image| image.iter().sum()), Some((PACKETS * PACKET_WORDS) as u64));
        for image in images {
            let packets: Vec<&[u64]> = image.chunks(PACKET_WORDS).collect();
            let whole = packets.iter().take_while(|packet| packet.iter().all(|word| *word == 1)).count();
            let untouched = packets.iter().rev().take_while(|packet| packet.iter().all(|word| *word == 0)).count();
            assert!(whole + untouched + 1 >= PACKETS, "seed {seed}: {image:?}");
            partial += u32::from(whole + untouched < PACKETS);
            scattered += u32::from(packets.iter().any(|packet| !packet.is_sorted_by(|a, b| a >= b)));
        }
    }
    assert!(partial > 100 && scattered > 100, "{partial}, {scattered}");
}

/// Verbs that sample again report the last sample, and equal seeds give equal runs.
#[test]
fn equal_seeds_take_equal_liberties() {
    let hash_of = |seed| {
        let plan = FaultPlan { relaxations: ALL, ..FaultPlan::default() };
        let mut sim = Sim::new(region(Profile::Rxe), &options(Profile::Rxe, seed, plan));
        let late = Seen::new();
        for client in 0..4u64 {
            let late = late.clone();
            sim.spawn(move |region| async move {
                let mut lane = region.lane();
                for _ in 0..20 {
                    late.push(count(&mut lane, client).await);
                }
            });
        }
        assert_eq!(sim.run(), Stopped::Ended);
        (sim.log_hash(), late.take())
    };
    let (hash, late) = hash_of(1);
    assert_eq!((hash, late.clone()), hash_of(1));
    assert_ne!(hash, hash_of(2).0);
    assert!(late.contains(&true) && late.contains(&false), "a READ in front of an atomic sometimes samples after it");
}

/// Reads a counter and increments it, in one batch. Returns whether the READ sampled after the increment.
async fn count<L: Lane>(lane: &mut L, client: u64) -> bool {
    let (mut seen, mut found) = ([0], 0);
    let addr = Addr::main(8 * client);
    let look = Verb::Read { addr, into: &mut seen };
    post(lane, [look, Verb::FetchAdd { addr, add: 1, found: &mut found }]).await.expect("nothing fails here");
    seen[0] > found
}
