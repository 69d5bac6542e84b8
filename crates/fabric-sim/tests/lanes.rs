//! Lanes and the executor without faults: interleaving of batches, and the contract of a lane.
#![forbid(unsafe_code)]

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use common::{Seen, add, options, read, region};
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, FabricError, Lane, Profile, Region, Submitted, Verb, pause_until, post};
use guira_fabric_sim::{EventKind, FaultPlan, Network, Sim, SimOptions, Stopped};

/// Batches of two clients interleave between verbs in some runs, and not in others.
#[test]
fn batches_interleave_between_verbs() {
    for profile in Profile::ALL {
        let (mut apart, mut together) = (0, 0);
        for seed in 0..400 {
            let mut sim = Sim::new(region(profile), &options(profile, seed, FaultPlan::default()));
            let seen = Seen::new();
            for _ in 0..2 {
                let seen = seen.clone();
                sim.spawn(|region| async move {
                    let mut lane = region.lane();
                    let (mut first, mut second) = (0, 0);
                    let one = Verb::FetchAdd { addr: Addr::main(0), add: 1, found: &mut first };
                    let other = Verb::FetchAdd { addr: Addr::main(0), add: 1, found: &mut second };
                    post(&mut lane, [one, other]).await.unwrap();
                    assert!(first < second, "the verbs of a batch take effect in order");
                    seen.push(second - first == 1);
                });
            }
            assert_eq!(sim.run(), Stopped::Ended);
            let whole = seen.take();
            if whole.iter().all(|whole| *whole) { together += 1 } else { apart += 1 }
        }
        assert!(apart > 3 && together > 3, "{profile}: {apart} runs interleaved, {together} did not");
    }
}

/// Every verb arrives as it was sent, and its result comes back. An empty batch and one out of bounds are handled, too.
#[test]
fn every_verb_does_what_it_says() {
    let mut sim = Sim::new(region(Profile::Tcp), &options(Profile::Tcp, 1, FaultPlan::default()));
    sim.spawn(|region| async move {
        let mut lane = region.lane();
        let (mut into, mut tail, mut swapped, mut failed, mut masked) = ([0; 3], [0; 1], 0, 0, 0);
        post(
            &mut lane,
            [
                Verb::Write { addr: Addr::main(8), words: &[5, 6, 7] },
                Verb::Cas { addr: Addr::main(16), compare: 6, swap: 60, found: &mut swapped },
                Verb::Cas { addr: Addr::main(16), compare: 6, swap: 61, found: &mut failed },
                Verb::MaskedCas {
                    addr: Addr::device(0),
                    compare: 0,
                    swap: 0xabcd,
                    compare_mask: 0xff,
                    swap_mask: 0xff,
                    found: &mut masked,
                },
                Verb::Read { addr: Addr::main(8), into: &mut into },
                Verb::Read { addr: Addr::device(0), into: &mut tail },
            ],
        )
        .await
        .unwrap();
        assert_eq!((into, tail, swapped, failed, masked), ([5, 60, 7], [0xcd], 6, 60, 0));
        assert_eq!(lane.traffic().round_trips, 1);
        assert!(lane.now_ns() > 20_000, "the reply crossed a network");
        assert_eq!(post(&mut lane, []).await, Ok(()));
        let beyond = read(&mut lane, Addr::main(common::MAIN_BYTES)).await;
        assert!(matches!(beyond, Err(FabricError::OutOfBounds { .. })));
    });
    assert_eq!(sim.run(), Stopped::Ended);
    assert_eq!(sim.verbs(), 6);
}

/// A forgotten batch takes effect, keeps its lane busy until it is drained, and then reports what its atomics found.
#[test]
fn a_forgotten_batch_is_drained() {
    let heap = region(Profile::Mlx5);
    let mut sim = Sim::new(heap.clone(), &options(Profile::Mlx5, 1, FaultPlan::default()));
    sim.spawn(|region| async move {
        let mut lane = region.lane();
        let (mut one, mut other, mut into) = (0, 0, [0; 2]);
        {
            let mut posted = pin!(post(
                &mut lane,
                [
                    Verb::FetchAdd { addr: Addr::device(8), add: 3, found: &mut one },
                    Verb::Read { addr: Addr::main(0), into: &mut into },
                    Verb::FetchAdd { addr: Addr::device(8), add: 3, found: &mut other },
                ]
            ));
            let polled = poll_fn(|cx| Poll::Ready(posted.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
        }
        assert!(matches!(lane.submit(&mut []), Submitted::Done(Err(FabricError::Backend(_)))));
        let mut found = [77; 3];
        assert_eq!(poll_fn(|cx| lane.poll_drain(&mut found, cx)).await, Ok(2));
        assert_eq!(found, [0, 3, 77]);
        assert_eq!(poll_fn(|cx| lane.poll_drain(&mut found, cx)).await, Ok(0));
        assert_eq!(add(&mut lane, Addr::device(8), 0).await, Ok(6));
    });
    assert_eq!(sim.run(), Stopped::Ended);
}

/// A pause ends exactly at its time, even after a longer or shorter one was dropped.
#[test]
fn pauses_end_at_their_time() {
    let mut sim = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, 1, FaultPlan::default()));
    for dropped_ns in [500, 9_000, 50_000] {
        sim.spawn(move |region| async move {
            let mut lane = region.lane();
            {
                let mut dropped = pin!(pause_until(&mut lane, dropped_ns));
                assert!(poll_fn(|cx| Poll::Ready(dropped.as_mut().poll(cx))).await.is_pending());
            }
            pause_until(&mut lane, 7_000).await;
            assert_eq!(lane.now_ns(), 7_000);
            pause_until(&mut lane, 6_000).await;
            assert_eq!(lane.now_ns(), 7_000, "time does not advance while a client runs");
        });
    }
    assert_eq!(sim.run(), Stopped::Ended);
}

/// A run that stops when its time is up continues as if it had not stopped; a client without events is stuck.
#[test]
fn a_run_can_be_interrupted() {
    let hash_of = |steps: &[u64]| {
        let mut sim = Sim::new(region(Profile::Rxe), &options(Profile::Rxe, 5, FaultPlan::default()));
        for client in 0..4 {
            sim.spawn(move |region| async move {
                let mut lane = region.lane();
                for _ in 0..10 {
                    add(&mut lane, Addr::main(client * 8), 1).await.unwrap();
                }
            });
        }
        for end_ns in steps {
            assert_eq!(sim.run_until(*end_ns), Stopped::TimeUp);
            assert!(sim.now_ns() <= *end_ns);
        }
        assert_eq!(sim.run(), Stopped::Ended);
        sim.log_hash()
    };
    assert_eq!(hash_of(&[]), hash_of(&[1, 20_000, 20_000, 77_777, 200_001]));
    let mut sim = Sim::new(region(Profile::Rxe), &options(Profile::Rxe, 5, FaultPlan::default()));
    sim.spawn(|_| std::future::pending());
    assert_eq!(sim.run(), Stopped::Stuck);
}

/// The last events are kept as text, in order.
#[test]
fn events_can_be_read() {
    let keep = SimOptions { keep_events: 100, ..SimOptions::new(1, Network::of(Profile::Mlx5)) };
    let mut sim = Sim::new(region(Profile::Mlx5), &keep);
    sim.spawn(|region| async move {
        add(&mut region.lane(), Addr::device(16), 1).await.unwrap();
    });
    sim.run();
    let events = sim.last_events();
    assert!(matches!(
        events[..].iter().map(|event| event.kind).collect::<Vec<_>>()[..],
        [EventKind::Posted(1), EventKind::Add(_), EventKind::Replied]
    ));
    assert!(events[1].to_string().contains("client 0 lane 0: FETCH-ADD 1 words at Device+0x10"), "{}", events[1]);
}

/// A task may have several lanes, whose batches are in flight at the same time.
#[test]
fn lanes_of_one_client_do_not_wait_for_each_other() {
    let mut sim = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, 1, FaultPlan::default()));
    sim.spawn(|region| async move {
        let mut lanes = [region.lane(), region.lane()];
        let [one, other] = &mut lanes;
        let started_ns = region.now_ns();
        let (mut one, mut other) = (pin!(add(one, Addr::main(0), 1)), pin!(add(other, Addr::main(0), 1)));
        let (mut first, mut second) = (None, None);
        poll_fn(|cx| {
            for (future, result) in [(&mut one, &mut first), (&mut other, &mut second)] {
                if result.is_none()
                    && let Poll::Ready(found) = future.as_mut().poll(cx)
                {
                    *result = Some(found.unwrap());
                }
            }
            if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!(first.unwrap() + second.unwrap(), 1);
        assert!(region.now_ns() - started_ns < 4_000, "one round trip, not two");
    });
    assert_eq!(sim.run(), Stopped::Ended);
}

/// A lane outside its simulation refuses batches, without effect.
#[test]
fn a_lane_refuses_batches_outside_its_simulation() {
    let heap = region(Profile::Mlx5);
    let mut sim = Sim::new(heap.clone(), &options(Profile::Mlx5, 1, FaultPlan::default()));
    let seen = Seen::new();
    let recorded = seen.clone();
    sim.spawn(|region| async move { recorded.push(region.lane()) });
    assert_eq!(sim.run(), Stopped::Ended);
    let mut lane = seen.take().pop().expect("a lane");
    let mut write = [Verb::Write { addr: Addr::main(0), words: &[1] }];
    assert!(matches!(lane.submit(&mut write), Submitted::Done(Err(FabricError::Backend(_)))));
    let mut other = Sim::new(heap.clone(), &options(Profile::Mlx5, 1, FaultPlan::default()));
    other.spawn(|_| async move {
        let mut write = [Verb::Write { addr: Addr::main(0), words: &[1] }];
        let refused = lane.submit(&mut write);
        assert!(
            matches!(refused, Submitted::Done(Err(FabricError::Backend(_)))),
            "the lane belongs to another simulation"
        );
    });
    assert_eq!(other.run(), Stopped::Ended);
    assert_eq!(heap.memory().main[0].load(guira_fabric::memory::Ordering::Relaxed), 0);
}

/// A flag with a future that is ready once the flag is raised.
#[derive(Clone, Default)]
struct Flag(Arc<Mutex<(bool, Option<Waker>)>>);

impl Flag {
    fn raise(&self) {
        let mut state = self.0.lock().expect("no panic while it is locked");
        state.0 = true;
        state.1.take().into_iter().for_each(Waker::wake);
    }

    async fn raised(&self) {
        poll_fn(|cx| {
            let mut state = self.0.lock().expect("no panic while it is locked");
            state.1 = Some(cx.waker().clone());
            if state.0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Clients may wake each other while they run and when one is spawned, and other threads may wake them, too.
#[test]
fn clients_can_be_woken_from_anywhere() {
    let mut sim = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, 1, FaultPlan::default()));
    let flags: [Flag; 3] = Default::default();
    let wait_for = |sim: &mut Sim, flag: Flag| sim.spawn(|_| async move { flag.raised().await });
    wait_for(&mut sim, flags[0].clone());
    let raised = flags[0].clone();
    sim.spawn(|region| async move {
        pause_until(&mut region.lane(), 100).await;
        raised.raise();
    });
    assert_eq!(sim.run(), Stopped::Ended);
    wait_for(&mut sim, flags[1].clone());
    assert_eq!(sim.run(), Stopped::Stuck);
    sim.spawn(|_| {
        flags[1].raise();
        async {}
    });
    assert_eq!(sim.run(), Stopped::Ended);
    wait_for(&mut sim, flags[2].clone());
    assert_eq!(sim.run(), Stopped::Stuck);
    std::thread::spawn(move || flags[2].raise()).join().unwrap();
    assert_eq!(sim.run(), Stopped::Ended);
}

/// A client may run another simulation; each lane belongs to one of them.
#[test]
fn simulations_nest() {
    let mut outer = Sim::new(region(Profile::Mlx5), &options(Profile::Mlx5, 1, FaultPlan::default()));
    outer.spawn(|outer_region| async move {
        let mut lane = outer_region.lane();
        assert_eq!(add(&mut lane, Addr::main(0), 1).await, Ok(0));
        let now_ns = lane.now_ns();
        let mut inner = Sim::new(region(Profile::Tcp), &options(Profile::Tcp, 1, FaultPlan::default()));
        inner.spawn(|region| async move { assert_eq!(add(&mut region.lane(), Addr::main(0), 1).await, Ok(0)) });
        assert_eq!(inner.run(), Stopped::Ended);
        assert_eq!(lane.now_ns(), now_ns);
        assert_eq!(add(&mut lane, Addr::main(0), 1).await, Ok(1));
    });
    assert_eq!(outer.run(), Stopped::Ended);
}

/// A watcher is called with every event, and sees the bytes as the event left them.
#[test]
fn a_watcher_sees_every_event() {
    let heap = region(Profile::Tcp);
    let mut sim = Sim::new(heap.clone(), &options(Profile::Tcp, 1, FaultPlan::default()));
    let (seen, keep) = (Seen::new(), heap.clone());
    let recorded = seen.clone();
    sim.watch(move |event| {
        if let EventKind::Add(part) = event.kind {
            let now = keep.memory().main[part.addr.word() as usize].load(Ordering::Relaxed);
            recorded.push((part.word, now));
        }
    });
    for _ in 0..2 {
        sim.spawn(|region| async move {
            add(&mut region.lane(), Addr::main(8), 5).await.expect("nothing fails here");
        });
    }
    assert_eq!(sim.run(), Stopped::Ended);
    assert_eq!(seen.take(), [(0, 5), (5, 10)]);
}
