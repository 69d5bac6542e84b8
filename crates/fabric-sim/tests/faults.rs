//! Each fault happens, and does no more than its documentation says.
#![forbid(unsafe_code)]

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use common::{Seen, add, options, read, region};
use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Effect, FabricError, Lane, Profile, Region, Verb, pause_until, post};
use guira_fabric_sim::{
    ClientFault, ClientId, Fault, FaultPlan, Lost, Network, NodeEvent, NodeFault, Relaxations, Sim, Stopped,
};

/// Returns a plan with one fault, of client 0.
fn one_fault(after_verbs: u64, fault: Fault) -> FaultPlan {
    FaultPlan { clients: vec![ClientFault { client: ClientId(0), after_verbs, fault }], ..FaultPlan::default() }
}

/// Returns the word at `addr`.
fn word(region: &HeapRegion, addr: Addr) -> u64 {
    region.memory().space(addr.space())[addr.word() as usize].load(Ordering::Relaxed)
}

/// Posts two WRITEs of four words each from a client that dies, and returns the number of words that are written.
fn written_after_death(profile: Profile, after_verbs: u64, units: u64) -> usize {
    let heap = region(profile);
    let mut sim = Sim::new(heap.clone(), &options(profile, 3, one_fault(after_verbs, Fault::Die { units })));
    let seen = Seen::new();
    let recorded = seen.clone();
    let client = sim.spawn(|region| async move {
        let _hold = region.hold(3).expect("the heap region answers").expect("a free slot");
        let mut lane = region.lane();
        let words = [1, 2, 3, 4];
        let both = [Addr::main(0), Addr::main(64)].map(|addr| Verb::Write { addr, words: &words });
        let posted = post(&mut lane, both).await;
        recorded.push(posted);
    });
    assert_eq!(sim.run(), Stopped::Ended);
    let dies = after_verbs < 2;
    assert_eq!(sim.is_dead(client), dies);
    assert_eq!(sim.verbs_of(client), after_verbs.min(2));
    assert_eq!(seen.take().len(), usize::from(!dies), "a dead client learns nothing");
    assert!(heap.hold(3).expect("the heap region answers").is_some(), "other clients can take its slot");
    (0..128).filter(|index| word(&heap, Addr::main(index * 8)) != 0).count()
}

/// [`Fault::AfterWrite`] waits for a WRITE that is long enough, and then for as many verbs as it says.
#[test]
fn a_fault_waits_for_a_long_write() {
    let dies = |words, verbs| Fault::AfterWrite { words, verbs, then: Box::new(Fault::Die { units: 1 }) };
    for (fault, expected) in [(dies(4, 0), 1), (dies(3, 0), 1), (dies(4, 1), 5), (dies(4, 2), 8), (dies(5, 0), 8)] {
        assert_eq!(written_after_death_by(0, fault.clone()), expected, "{fault:?}");
    }
    // The first WRITE is over when it begins to wait.
    assert_eq!(written_after_death_by(1, dies(4, 0)), 5);
    assert_eq!(written_after_death_by(1, dies(4, 1)), 8);
}

/// Returns the number of words that a client writes in shared memory by two WRITEs of four words, after `after_verbs`
/// verbs of which `fault` is due.
fn written_after_death_by(after_verbs: u64, fault: Fault) -> usize {
    let heap = region(Profile::Shm);
    let mut sim = Sim::new(heap.clone(), &options(Profile::Shm, 3, one_fault(after_verbs, fault)));
    sim.spawn(|region| async move {
        let both = [Addr::main(0), Addr::main(64)].map(|addr| Verb::Write { addr, words: &[1, 2, 3, 4] });
        post(&mut region.lane(), both).await.expect("a living client");
    });
    assert_eq!(sim.run(), Stopped::Ended);
    (0..128).filter(|index| word(&heap, Addr::main(index * 8)) != 0).count()
}

#[test]
fn a_client_dies_before_any_verb_and_inside_a_write() {
    for after_verbs in 0..4u64 {
        let before = 4 * after_verbs.min(2) as usize;
        for units in 0..6u64 {
            let cut = if after_verbs < 2 { units.min(4) as usize } else { 0 };
            assert_eq!(written_after_death(Profile::Shm, after_verbs, units), before + cut);
            // If the unit is larger than the WRITE, all or nothing of it is written.
            let whole = if after_verbs < 2 && units > 0 { 4 } else { 0 };
            for profile in Profile::REMOTE {
                assert_eq!(written_after_death(profile, after_verbs, units), before + whole, "{profile}");
            }
        }
    }
}

/// A dead client does not finish a batch in flight on another lane either, but a WRITE that was split is not torn.
#[test]
fn death_stops_all_lanes_of_a_client() {
    let (mut whole, mut untouched) = (0, 0);
    for seed in 0..200 {
        let heap = region(Profile::Mlx5);
        let mut plan = one_fault(1, Fault::Die { units: 0 });
        plan.relaxations = Relaxations { split_percent: 100, ..Relaxations::default() };
        let mut sim = Sim::new(heap.clone(), &options(Profile::Mlx5, seed, plan));
        sim.spawn(|region| async move {
            let (mut one, mut other) = (region.lane(), region.lane());
            let words = [1; 8];
            let mut writes = pin!(post(&mut one, [Verb::Write { addr: Addr::main(0), words: &words }]));
            let mut adds = pin!(post(&mut other, [Verb::Write { addr: Addr::main(64), words: &words }]));
            poll_fn(|cx| {
                assert!(writes.as_mut().poll(cx).is_pending());
                adds.as_mut().poll(cx)
            })
            .await
            .expect("nothing fails here");
        });
        assert_eq!(sim.run(), Stopped::Ended);
        for start in [0, 8] {
            match (start..start + 8).filter(|index| word(&heap, Addr::main(index * 8)) != 0).count() {
                8 => whole += 1,
                0 => untouched += 1,
                torn => panic!("seed {seed}: {torn} of 8 words"),
            }
        }
    }
    assert_eq!((whole, untouched), (200, 200), "only the verb that came first was executed");
}

/// Verbs that a client has sent are executed while it is stopped, except where verbs execute in place.
#[test]
fn a_client_stalls_and_resumes() {
    const STALL_NS: u64 = 1_000_000;
    for profile in Profile::ALL {
        let mut sim = Sim::new(region(profile), &options(profile, 1, one_fault(1, Fault::Stall { for_ns: STALL_NS })));
        let seen = Seen::new();
        let recorded = seen.clone();
        sim.spawn(|region| async move {
            let mut lane = region.lane();
            let (mut one, mut other) = (0, 0);
            let first = Verb::FetchAdd { addr: Addr::main(0), add: 1, found: &mut one };
            let second = Verb::FetchAdd { addr: Addr::main(8), add: 1, found: &mut other };
            post(&mut lane, [first, second]).await.expect("nothing fails here");
            recorded.push((lane.now_ns() > STALL_NS, 9, 9));
            pause_until(&mut lane, STALL_NS * 3 / 2).await;
            assert_eq!(lane.now_ns(), (STALL_NS * 3 / 2).max(lane.now_ns()));
        });
        let recorded = seen.clone();
        sim.spawn(|region| async move {
            let mut lane = region.lane();
            pause_until(&mut lane, STALL_NS / 2).await;
            let words = (
                read(&mut lane, Addr::main(0)).await.expect("nothing fails here"),
                read(&mut lane, Addr::main(8)).await.expect("nothing fails here"),
            );
            recorded.push((false, words.0, words.1));
        });
        assert_eq!(sim.run(), Stopped::Ended);
        let second = u64::from(!profile.caps().local);
        assert_eq!(seen.take(), [(false, 1, second), (true, 9, 9)], "{profile}");
    }
}

/// Where verbs execute in place, a client can be stopped in the middle of a WRITE, which continues with the client.
#[test]
fn a_client_stalls_inside_a_write() {
    const STALL_NS: u64 = 1_000_000;
    let mut cuts = [false; 4];
    for seed in 0..40 {
        let heap = region(Profile::Shm);
        let plan = one_fault(0, Fault::Stall { for_ns: STALL_NS });
        let mut sim = Sim::new(heap.clone(), &options(Profile::Shm, seed, plan));
        let client = sim.spawn(|region| async move {
            let mut lane = region.lane();
            post(&mut lane, [Verb::Write { addr: Addr::main(0), words: &[1; 4] }]).await.expect("nothing fails here");
        });
        let written = || (0..4).filter(|index| word(&heap, Addr::main(index * 8)) == 1).count();
        assert_eq!(sim.run_until(STALL_NS / 2), Stopped::TimeUp);
        cuts[written()] = true;
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!((written(), sim.verbs_of(client)), (4, 1));
        assert!(sim.now_ns() > STALL_NS);
    }
    assert_eq!(cuts, [true; 4]);
}

/// A client that is stopped while it pauses wakes when the stall ends.
#[test]
fn a_stall_outlasts_a_pause() {
    let stall = one_fault(0, Fault::Stall { for_ns: 500_000 });
    let mut sim = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, 1, stall));
    sim.spawn(|region| async move {
        let (mut posting, mut pausing) = (region.lane(), region.lane());
        let mut found = 0;
        let verb = Verb::FetchAdd { addr: Addr::main(0), add: 1, found: &mut found };
        let mut posted = pin!(post(&mut posting, [verb]));
        assert!(poll_fn(|cx| Poll::Ready(posted.as_mut().poll(cx))).await.is_pending());
        pause_until(&mut pausing, 10_000).await;
        assert!(pausing.now_ns() > 500_000, "{}", pausing.now_ns());
    });
    assert_eq!(sim.run(), Stopped::Ended);
}

#[test]
fn the_tail_of_a_batch_is_delayed() {
    const HELD_NS: u64 = 1_000_000;
    let held = one_fault(1, Fault::DelayTail { by_ns: HELD_NS });
    let mut sim = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, 1, held));
    sim.spawn(|region| async move {
        let mut lane = region.lane();
        let writes = [Addr::main(0), Addr::main(8)].map(|addr| Verb::Write { addr, words: &[1] });
        post(&mut lane, writes).await.expect("nothing fails here");
        assert!(lane.now_ns() > HELD_NS);
        post(&mut lane, [Verb::Write { addr: Addr::main(16), words: &[1] }]).await.expect("nothing fails here");
        assert!(lane.now_ns() < HELD_NS + 10_000, "the next batch is not delayed");
    });
    sim.spawn(|region| async move {
        let mut lane = region.lane();
        pause_until(&mut lane, HELD_NS / 2).await;
        let words = (read(&mut lane, Addr::main(0)).await, read(&mut lane, Addr::main(8)).await);
        assert_eq!(words, (Ok(1), Ok(0)));
    });
    assert_eq!(sim.run(), Stopped::Ended);
}

/// A client whose connection was lost cannot know whether its atomic took effect.
#[test]
fn a_lost_connection_leaves_an_atomic_unknown() {
    for (lost, executed) in [(Lost::Request, 0), (Lost::Reply, 1)] {
        let heap = region(Profile::Tcp);
        let mut sim = Sim::new(heap.clone(), &options(Profile::Tcp, 1, one_fault(0, Fault::LoseConnection(lost))));
        let client = sim.spawn(|region| async move {
            let mut lane = region.lane();
            let unknown = FabricError::Disconnected { effect: Effect::Unknown };
            assert_eq!(add(&mut lane, Addr::main(0), 1).await, Err(unknown));
            let none = FabricError::Disconnected { effect: Effect::None };
            assert_eq!(add(&mut lane, Addr::main(0), 1).await, Err(none));
            assert_eq!(add(&mut region.lane(), Addr::main(8), 1).await, Ok(0), "a new connection works");
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(word(&heap, Addr::main(0)), executed, "{lost:?}");
        assert!(!sim.is_dead(client));
    }
}

/// A batch that only reads had no effect, and a forgotten batch reports the loss when it is drained.
#[test]
fn draining_reports_a_lost_connection() {
    for (reads_only, effect) in [(true, Effect::None), (false, Effect::Unknown)] {
        let lost = one_fault(0, Fault::LoseConnection(Lost::Reply));
        let mut sim = Sim::new(region(Profile::Tcp), &options(Profile::Tcp, 1, lost));
        sim.spawn(move |region| async move {
            let mut lane = region.lane();
            let (mut into, words) = ([0], [1]);
            let addr = Addr::main(0);
            let verb =
                if reads_only { Verb::Read { addr, into: &mut into } } else { Verb::Write { addr, words: &words } };
            {
                let mut posted = pin!(post(&mut lane, [verb]));
                assert!(poll_fn(|cx| Poll::Ready(posted.as_mut().poll(cx))).await.is_pending());
            }
            let drained = poll_fn(|cx| lane.poll_drain(&mut [], cx)).await;
            assert_eq!(drained, Err(FabricError::Disconnected { effect }));
            assert_eq!(poll_fn(|cx| lane.poll_drain(&mut [], cx)).await, Ok(0));
        });
        assert_eq!(sim.run(), Stopped::Ended);
    }
}

/// Verbs that a client has sent can be executed long after the client noticed that its connection was lost. No other
/// client gets its slot before that, unless the rest of the batch is dropped.
#[test]
fn a_slot_is_not_granted_while_late_verbs_remain() {
    const LATE_NS: u64 = 1_000_000;
    let (mut waited, mut dropped) = (0, 0);
    for seed in 0..40 {
        let heap = region(Profile::Mlx5);
        let late = one_fault(1, Fault::LoseConnection(Lost::Late { by_ns: LATE_NS }));
        let mut sim = Sim::new(heap.clone(), &options(Profile::Mlx5, seed, late));
        sim.spawn(|region| async move {
            let _hold = region.hold(3).expect("the heap region answers").expect("a free slot");
            let writes = [Addr::main(0), Addr::main(8)].map(|addr| Verb::Write { addr, words: &[1] });
            let lost = post(&mut region.lane(), writes).await;
            assert_eq!(lost, Err(FabricError::Disconnected { effect: Effect::Unknown }));
        });
        let seen = Seen::new();
        let recorded = seen.clone();
        sim.spawn(|region| async move {
            let mut lane = region.lane();
            pause_until(&mut lane, LATE_NS / 2).await;
            assert_eq!(read(&mut lane, Addr::main(0)).await, Ok(1), "the first was executed");
            assert_eq!(read(&mut lane, Addr::main(8)).await, Ok(0), "the second is late");
            let _hold = loop {
                if let Some(hold) = region.hold(3).expect("the heap region answers") {
                    break hold;
                }
                let until_ns = lane.now_ns() + LATE_NS;
                pause_until(&mut lane, until_ns).await;
            };
            recorded.push(read(&mut lane, Addr::main(8)).await);
        });
        assert_eq!(sim.run(), Stopped::Ended);
        let found = seen.take();
        assert_eq!(found, [Ok(word(&heap, Addr::main(8)))], "no verb is executed once another client holds the slot");
        if found == [Ok(1)] { waited += 1 } else { dropped += 1 }
    }
    assert!(waited > 3 && dropped > 3, "{waited} waited for, {dropped} dropped");
}

/// Atomics on one word wait for each other; atomics on different words do not.
#[test]
fn atomics_on_one_word_follow_each_other() {
    let network = Network::of(Profile::Mlx5);
    let span_ns = |addr_of: fn(u64) -> Addr| {
        let mut sim = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, 1, FaultPlan::default()));
        for client in 0..32 {
            sim.spawn(move |region| async move {
                let mut lane = region.lane();
                for _ in 0..100 {
                    add(&mut lane, addr_of(client), 1).await.expect("nothing fails here");
                }
            });
        }
        assert_eq!(sim.run(), Stopped::Ended);
        sim.now_ns()
    };
    let [apart, device, main] =
        [span_ns(|client| Addr::device(client % 8 * 8)), span_ns(|_| Addr::device(0)), span_ns(|_| Addr::main(0))];
    // 32 clients send four times as many atomics as one word of the main space can execute, and fewer than eight words.
    for (span, atomic_ns) in [(device, network.device_atomic_ns), (main, network.main_atomic_ns)] {
        assert!((3_200 * atomic_ns..3_300 * atomic_ns).contains(&span), "{span}");
    }
    assert!(apart < 3_200 * network.device_atomic_ns * 9 / 10, "{apart}");
}

/// A restarted node is empty, has lost the verbs in flight, and accepts only new connections.
#[test]
fn a_restarted_memory_node_is_empty() {
    let restart = NodeFault { at_ns: 500_000, fault: NodeEvent::Restart };
    let plan = FaultPlan { node: vec![restart], ..FaultPlan::default() };
    let mut sim = Sim::new(region(Profile::Tcp), &options(Profile::Tcp, 1, plan));
    let seen = Seen::new();
    for client in 0..20 {
        let recorded = seen.clone();
        sim.spawn(move |region| async move {
            let mut lane = region.lane();
            let addr = Addr::main(client * 8);
            let mut added = 0;
            let failed = loop {
                match add(&mut lane, addr, 1).await {
                    Ok(found) => assert_eq!(found, added),
                    Err(error) => break error,
                }
                added += 1;
            };
            assert!(added > 10, "{added}");
            let none = FabricError::Disconnected { effect: Effect::None };
            assert_eq!(read(&mut lane, addr).await, Err(none), "an old connection is an error, not a miss");
            assert_eq!(read(&mut region.lane(), addr).await, Ok(0));
            recorded.push(failed);
        });
    }
    assert_eq!(sim.run(), Stopped::Ended);
    let failures = seen.take();
    let count = |effect| failures.iter().filter(|failed| **failed == FabricError::Disconnected { effect }).count();
    let (unknown, none) = (count(Effect::Unknown), count(Effect::None));
    assert!(unknown > 0 && none > 0 && unknown + none == 20, "{failures:?}");
}

#[test]
fn bits_flip() {
    let flip = |at_ns, addr, bits| NodeFault { at_ns, fault: NodeEvent::Flip { addr, bits } };
    let node = vec![flip(50_000, Addr::main(8), 0x81), flip(60_000, Addr::device(0), 1 << 63)];
    let heap = region(Profile::Mlx5);
    let mut sim = Sim::new(heap.clone(), &options(Profile::Mlx5, 1, FaultPlan { node, ..FaultPlan::default() }));
    sim.spawn(|region| async move {
        let mut lane = region.lane();
        post(&mut lane, [Verb::Write { addr: Addr::main(8), words: &[1] }]).await.expect("nothing fails here");
        pause_until(&mut lane, 55_000).await;
        assert_eq!(read(&mut lane, Addr::main(8)).await, Ok(0x80));
        assert_eq!(read(&mut lane, Addr::device(0)).await, Ok(0));
        pause_until(&mut lane, 65_000).await;
        assert_eq!(read(&mut lane, Addr::device(0)).await, Ok(1 << 63));
    });
    assert_eq!(sim.run(), Stopped::Ended);
}

#[test]
#[should_panic(expected = "outside the region")]
fn a_flip_outside_the_region_is_refused() {
    let fault = NodeEvent::Flip { addr: Addr::device(common::DEVICE_BYTES), bits: 1 };
    let plan = FaultPlan { node: vec![NodeFault { at_ns: 1, fault }], ..FaultPlan::default() };
    Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, 1, plan));
}

/// Runs a writer that increments `first`, then `second`, and a reader that samples `second`, then `first`. Returns how
/// often the reader saw `second` ahead, which is impossible for READs in order, and how often a READ was torn.
fn watch(profile: Profile, relaxations: Relaxations, first: Addr, second: Addr) -> (u64, u64) {
    let (mut ahead, mut torn) = (0, 0);
    for seed in 0..40 {
        let plan = FaultPlan { relaxations, ..FaultPlan::default() };
        let mut sim = Sim::new(region(profile), &options(profile, seed, plan));
        sim.spawn(move |region| async move {
            let mut lane = region.lane();
            for count in 1..100 {
                let (words, last) = ([count; 4], [count]);
                let both = [Verb::Write { addr: first, words: &words }, Verb::Write { addr: second, words: &last }];
                post(&mut lane, both).await.expect("nothing fails here");
                assert_eq!(read(&mut lane, first).await, Ok(count), "a lane sees its own WRITEs");
            }
        });
        let seen = Seen::new();
        let recorded = seen.clone();
        sim.spawn(move |region| async move {
            let mut lane = region.lane();
            for _ in 0..200 {
                let (mut one, mut other) = ([0; 4], [0]);
                let both = [Verb::Read { addr: second, into: &mut other }, Verb::Read { addr: first, into: &mut one }];
                post(&mut lane, both).await.expect("nothing fails here");
                let is_torn = one.iter().any(|word| word != &one[0]);
                recorded.push((other[0] > one.iter().copied().max().unwrap_or(0), is_torn));
            }
        });
        assert_eq!(sim.run(), Stopped::Ended);
        for (is_ahead, is_torn) in seen.take() {
            ahead += u64::from(is_ahead);
            torn += u64::from(is_torn);
        }
    }
    (ahead, torn)
}

/// READs of one batch sample in either order only where their order is not guaranteed.
#[test]
fn reads_of_a_batch_sample_in_either_order() {
    let swaps = Relaxations { swap_percent: 50, ..Relaxations::default() };
    for profile in Profile::ALL {
        let (ahead, torn) = watch(profile, swaps, Addr::main(0), Addr::main(64));
        assert_eq!(ahead > 0, !profile.caps().ordered_read_sampling, "{profile}: {ahead}");
        assert_eq!(torn, 0, "{profile}");
        assert_eq!(watch(profile, Relaxations::default(), Addr::main(0), Addr::main(64)), (0, 0), "{profile}");
    }
}

/// READs and WRITEs are executed in two parts, with other verbs in between.
#[test]
fn long_verbs_are_split() {
    let splits = Relaxations { split_percent: 50, ..Relaxations::default() };
    for profile in Profile::ALL {
        let (ahead, torn) = watch(profile, splits, Addr::main(0), Addr::main(64));
        assert!(torn > 0, "{profile}");
        assert_eq!(ahead, 0, "{profile}: a verb ends before the next begins");
    }
}

/// A WRITE to the main space can become visible after a later one to the device space.
#[test]
fn the_two_spaces_become_visible_at_different_times() {
    let lags = Relaxations { main_lag_ns: 3_000, ..Relaxations::default() };
    let (ahead, _) = watch(Profile::Mlx5, lags, Addr::main(0), Addr::device(0));
    assert!(ahead > 0);
    let (ahead, _) = watch(Profile::Mlx5, lags, Addr::main(0), Addr::main(64));
    assert_eq!(ahead, 0, "WRITEs of a lane to one space become visible in order");
    let (ahead, _) = watch(Profile::Mlx5, Relaxations::default(), Addr::main(0), Addr::device(0));
    assert_eq!(ahead, 0);
}

/// Equal seeds repeat faults, too.
#[test]
fn equal_plans_give_equal_event_logs() {
    let hash_of = |seed, by_ns| {
        let mut plan = one_fault(3, Fault::DelayTail { by_ns });
        plan.relaxations =
            Relaxations { split_percent: 30, swap_percent: 30, main_lag_ns: 100, ..Relaxations::default() };
        let mut sim = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, seed, plan));
        let clients: Vec<ClientId> =
            (0..4).map(|client| sim.spawn(move |region| work(region.lane(), client))).collect();
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(clients.iter().map(|client| sim.verbs_of(*client)).sum::<u64>(), sim.verbs());
        sim.log_hash()
    };
    assert_eq!(hash_of(1, 50), hash_of(1, 50));
    assert_ne!(hash_of(1, 50), hash_of(2, 50));
    assert_ne!(hash_of(1, 50), hash_of(1, 51));
}

async fn work<L: Lane>(mut lane: L, client: u64) {
    for _ in 0..10 {
        let (words, mut into) = ([client; 4], [0; 8]);
        let write = Verb::Write { addr: Addr::main(client * 32), words: &words };
        post(&mut lane, [write, Verb::Read { addr: Addr::main(0), into: &mut into }])
            .await
            .expect("nothing fails here");
    }
}
