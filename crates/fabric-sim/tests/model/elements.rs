//! Elements in front of the node: they see every verb once and in order, rewrite it, and see what it found, in a network as
//! on a cluster. What is delayed or late passes again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Effect, FabricError, Lane, Profile, Region, Verb, post};
use guira_fabric_sim::{
    Card, ClientFault, ClientId, Cluster, Element, EventKind, Fault, FaultPlan, Lost, Network, NodeEvent, NodeFault,
    Passing, Rewrite, Sim, SimLane, SimOptions, Stopped,
};

/// Where clients send verbs, and where the element lets them go.
const ASKED: Addr = Addr::main(64);
const STEERED: Addr = Addr::main(128);

/// What an element saw.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Saw {
    Read(u32, Addr),
    Write(u32, Addr, Vec<u64>),
    Cas(u32, Addr, [u64; 4]),
    Add(u32, Addr, u64),
    Reply(u32, u64),
    Reset,
}

/// An element that steers READs and WRITEs to [`STEERED`], lets a CAS compare and store one more than it says, and adds
/// 100 to what atomics have found.
#[derive(Clone, Default)]
struct Steers {
    saw: Rc<RefCell<Vec<Saw>>>,
    is_off: Rc<Cell<bool>>,
}

impl Element for Steers {
    fn request(&mut self, _queue_pair: u32, verb: u32, passing: Passing<'_>) -> Rewrite {
        let (saw, rewrite) = match passing {
            Passing::Read { addr, .. } => (Saw::Read(verb, addr), Rewrite::Address(STEERED)),
            Passing::Write { addr, words } => (Saw::Write(verb, addr, words.to_vec()), Rewrite::Address(STEERED)),
            Passing::Cas { addr, compare, swap, compare_mask, swap_mask } => (
                Saw::Cas(verb, addr, [compare, swap, compare_mask, swap_mask]),
                Rewrite::Cas { addr: STEERED, compare: compare + 1, swap: swap + 1 },
            ),
            Passing::FetchAdd { addr, add } => (Saw::Add(verb, addr, add), Rewrite::Nothing),
        };
        self.saw.borrow_mut().push(saw);
        if self.is_off.get() { Rewrite::Nothing } else { rewrite }
    }

    fn reply(&mut self, _queue_pair: u32, verb: u32, found: &mut u64) {
        self.saw.borrow_mut().push(Saw::Reply(verb, *found));
        *found += 100;
    }

    fn reset(&mut self) {
        self.saw.borrow_mut().push(Saw::Reset);
    }

    fn state_bytes(&self) -> u64 {
        8 * self.saw.borrow().len() as u64
    }
}

fn region() -> HeapRegion {
    HeapRegion::new(4096, 4096, Profile::Mlx5.caps())
}

fn word(region: &HeapRegion, addr: Addr) -> u64 {
    region.memory().main[addr.word() as usize].load(Ordering::Relaxed)
}

/// Options of a network and of a cluster.
fn options(faults: &FaultPlan) -> [SimOptions; 2] {
    let network = SimOptions::new(1, Network::of(Profile::Mlx5));
    let cluster = SimOptions::on_cluster(1, Cluster::new(Card::ConnectX5));
    [network, cluster].map(|options| SimOptions { faults: faults.clone(), ..options })
}

/// Runs a client behind an element. Returns what the element saw and the bytes of the node.
fn runs<F: Future<Output = ()> + 'static>(
    options: &SimOptions,
    client: impl FnOnce(SimLane) -> F + 'static,
) -> (Vec<Saw>, HeapRegion) {
    let (region, element) = (region(), Steers::default());
    let mut sim = Sim::new(region.clone(), options);
    sim.pass_through(element.clone());
    let ended = Rc::new(Cell::new(false));
    let noted = Rc::clone(&ended);
    sim.spawn(move |region| async move {
        client(region.lane()).await;
        noted.set(true);
    });
    assert_eq!((sim.run(), ended.get()), (Stopped::Ended, true));
    assert_eq!(sim.element_bytes(), 8 * element.saw.borrow().len() as u64);
    (element.saw.take(), region)
}

#[test]
fn an_element_sees_and_rewrites_each_verb_of_a_batch() {
    for options in options(&FaultPlan::default()) {
        let (saw, region) = runs(&options, |mut lane| async move {
            let (mut cas, mut masked, mut added, mut into) = (0, 0, 0, [0]);
            let verbs = [
                Verb::Write { addr: ASKED, words: &[7] },
                Verb::Cas { addr: ASKED, compare: 6, swap: 8, found: &mut cas },
                Verb::MaskedCas { addr: ASKED, compare: 1, swap: 2, compare_mask: 0, swap_mask: 3, found: &mut masked },
                Verb::FetchAdd { addr: ASKED, add: 5, found: &mut added },
                Verb::Read { addr: ASKED, into: &mut into },
            ];
            post(&mut lane, verbs).await.expect("nothing fails here");
            assert_eq!((cas, masked, added, into), (107, 109, 100, [11]));
        });
        let (replies, requests): (Vec<Saw>, _) = saw.into_iter().partition(|saw| matches!(saw, Saw::Reply(..)));
        assert_eq!(
            requests,
            [
                Saw::Write(0, ASKED, vec![7]),
                Saw::Cas(1, ASKED, [6, 8, !0, !0]),
                Saw::Cas(2, ASKED, [1, 2, 0, 3]),
                Saw::Add(3, ASKED, 5),
                Saw::Read(4, ASKED),
            ]
        );
        assert_eq!(replies, [Saw::Reply(1, 7), Saw::Reply(2, 9), Saw::Reply(3, 0)]);
        assert_eq!((word(&region, ASKED), word(&region, STEERED)), (5, 11));
    }
}

/// An element that lets every CAS go on as a READ, and answers with one more than what that found, unless it forgets.
struct Reads {
    forgets: bool,
}

impl Element for Reads {
    fn request(&mut self, _queue_pair: u32, _verb: u32, passing: Passing<'_>) -> Rewrite {
        if matches!(passing, Passing::Cas { .. }) { Rewrite::Read } else { Rewrite::Nothing }
    }

    fn reply(&mut self, _queue_pair: u32, verb: u32, _found: &mut u64) {
        assert_eq!(verb, 2, "only the addition is an atomic here");
    }

    fn answer(&mut self, _queue_pair: u32, verb: u32, found: u64) -> Option<u64> {
        assert_eq!(verb, 1);
        (!self.forgets).then_some(found + 1)
    }

    fn reset(&mut self) {}

    fn state_bytes(&self) -> u64 {
        0
    }
}

/// A CAS that goes on as a READ changes nothing, and has the answer that the element makes of it. If there is none, the
/// connection is lost; what stands behind it in the batch is executed all the same.
#[test]
fn a_cas_may_go_on_as_a_read() {
    for (forgets, options) in
        [false, true].into_iter().flat_map(|forgets| options(&FaultPlan::default()).map(|it| (forgets, it)))
    {
        let (region, ended) = (region(), Rc::new(Cell::new(false)));
        let mut sim = Sim::new(region.clone(), &options);
        sim.pass_through(Reads { forgets });
        let noted = Rc::clone(&ended);
        sim.spawn(move |region| async move {
            let (mut lane, mut found, mut added) = (region.lane(), 0, 0);
            let verbs = [
                Verb::Write { addr: ASKED, words: &[7] },
                Verb::Cas { addr: ASKED, compare: 7, swap: 9, found: &mut found },
                Verb::FetchAdd { addr: ASKED, add: 5, found: &mut added },
            ];
            let posted = post(&mut lane, verbs).await;
            match forgets {
                false => assert_eq!((posted, found, added), (Ok(()), 8, 7)),
                true => {
                    assert_eq!(posted.expect_err("the answer was lost").effect(), Effect::Unknown);
                    assert!(write(&mut lane, 1).await.is_err(), "the connection is lost");
                }
            }
            noted.set(true);
        });
        assert_eq!((sim.run(), ended.get()), (Stopped::Ended, true));
        assert_eq!(word(&region, ASKED), 12);
    }
}

/// On a cluster a whole batch passes when its first verb reaches the port, in a network each verb when it is executed.
#[test]
fn a_batch_passes_when_it_arrives() {
    let places = options(&FaultPlan::default()).map(|options| {
        let saw = runs(&options, |mut lane| async move {
            let mut found = [0; 2];
            let verbs = found.each_mut().map(|found| Verb::FetchAdd { addr: ASKED, add: 1, found });
            post(&mut lane, verbs).await.expect("nothing fails here");
        });
        saw.0.iter().position(|saw| matches!(saw, Saw::Add(1, ..)))
    });
    assert_eq!(places, [Some(2), Some(1)]);
}

fn plan(after_verbs: u64, fault: Fault) -> FaultPlan {
    let clients = vec![ClientFault { client: ClientId(0), after_verbs, fault }];
    FaultPlan { clients, ..FaultPlan::default() }
}

async fn write<L: Lane>(lane: &mut L, word: u64) -> Result<(), FabricError> {
    post(lane, [Verb::Write { addr: ASKED, words: &[word] }]).await
}

/// A verb that is delayed passes anew, as it was posted, and is executed as it was rewritten then.
#[test]
fn what_is_delayed_passes_again() {
    let late = Fault::LoseConnection(Lost::Late { by_ns: 5_000 });
    for (fault, is_lost) in [(Fault::DelayTail { by_ns: 5_000 }, false), (late, true)] {
        for options in options(&plan(0, fault)) {
            let (region, element) = (region(), Steers::default());
            let mut sim = Sim::new(region.clone(), &options);
            sim.pass_through(element.clone());
            let is_off = Rc::clone(&element.is_off);
            sim.watch(move |event| {
                is_off.set(is_off.get() || matches!(event.kind, EventKind::Delayed(_) | EventKind::Disconnected));
            });
            sim.spawn(move |region| async move {
                assert_eq!(write(&mut region.lane(), 7).await.is_err(), is_lost);
            });
            assert_eq!(sim.run(), Stopped::Ended);
            sim.run_until(sim.now_ns() + 200_000);
            let passes = if sim.usage().busiest().1 > 0.0 { 2 } else { 1 };
            assert_eq!(element.saw.take(), vec![Saw::Write(0, ASKED, vec![7]); passes]);
            assert_eq!((word(&region, ASKED), word(&region, STEERED)), (7, 0));
        }
    }
}

/// On a cluster a verb that has passed is not executed if its client is dead by then.
#[test]
fn what_has_passed_may_never_be_executed() {
    let [_, options] = options(&plan(1, Fault::Die { units: 0 }));
    let (region, element) = (region(), Steers::default());
    let mut sim = Sim::new(region.clone(), &options);
    sim.pass_through(element.clone());
    sim.spawn(|region| async move {
        let mut lane = region.lane();
        write(&mut lane, 7).await.expect("it lives");
        write(&mut lane, 8).await.expect("never comes to this");
    });
    assert_eq!(sim.run(), Stopped::Ended);
    assert!(sim.is_dead(ClientId(0)));
    assert_eq!(element.saw.take(), [Saw::Write(0, ASKED, vec![7]), Saw::Write(0, ASKED, vec![8])]);
    assert_eq!(word(&region, STEERED), 7);
}

#[test]
fn a_plan_resets_the_element() {
    let reset = NodeFault { at_ns: 3_000, fault: NodeEvent::ResetElement };
    let restart = NodeFault { at_ns: 12_000, fault: NodeEvent::Restart };
    for (node, resets) in [(vec![reset], 1), (vec![restart], 1), (vec![reset, restart], 2)] {
        for options in options(&FaultPlan { node, ..FaultPlan::default() }) {
            let (saw, _) = runs(&options, |mut lane| async move {
                while lane.now_ns() < 20_000 && write(&mut lane, 7).await.is_ok() {}
            });
            assert_eq!(saw.iter().filter(|saw| **saw == Saw::Reset).count(), resets);
            assert!(saw.first() != Some(&Saw::Reset));
        }
    }
    // Without an element nothing happens.
    let [options, _] = options(&FaultPlan { node: vec![reset], ..FaultPlan::default() });
    let mut sim = Sim::new(region(), &options);
    assert_eq!((sim.run_until(10_000), sim.element_bytes()), (Stopped::Ended, 0));
}

#[test]
#[should_panic(expected = "one element")]
fn a_node_has_one_element() {
    let [options, _] = options(&FaultPlan::default());
    let mut sim = Sim::new(region(), &options);
    sim.pass_through(Steers::default());
    sim.pass_through(Steers::default());
}
