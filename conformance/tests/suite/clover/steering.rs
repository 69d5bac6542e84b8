//! The element that resolves conflicts: clients that know less than it take the round trips of those that know all; what it
//! forgets costs round trips and nothing else. Elements that rely on more, as printed, lose changes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use guira_check::history::{Answer, Call};
use guira_fabric::memory::Ordering;
use guira_fabric::{Region, pause_until};
use guira_fabric_sim::{
    Card, ClientFault, ClientId, Cluster, Fault, FaultPlan, NodeEvent, NodeFault, Sim, SimOptions, Stopped,
};
use guira_lab::baselines::Store;
use guira_lab::baselines::clover::{CloverStore, Counts, Reuse, Steering, Trust};

use super::{
    Actor, FIRST_VALUE, KEYS, NETWORK, SEED, audit, filled, reusing, simulation, some_fail, store, version_of,
};

const ALL: Steering = Steering { keys: KEYS, entries: 1_000, trust: Trust::Linked };
const CHANGES: Steering = Steering { entries: 0, ..ALL };

/// When a plan resets the element.
const RESET_NS: u64 = 1_000_000;

/// The calls of one client, one after the other.
type Calls = &'static [(u32, Call)];

/// Clients in turn, each of which begins with what the store was built with, and makes its calls when the one before has
/// ended. Returns the answer and the round trips of each, and its counts. The element forgets everything before client
/// `forgets_before`.
fn in_turn(store: &CloverStore, clients: &[Calls], forgets_before: usize) -> Vec<(Vec<(Answer, u64)>, Counts)> {
    let reset = NodeFault { at_ns: RESET_NS, fault: NodeEvent::ResetElement };
    let faults = FaultPlan { node: vec![reset], ..FaultPlan::default() };
    let mut sim = simulation(store, &SimOptions { faults, ..SimOptions::new(SEED, NETWORK) });
    let (history, results) = (filled(10), Rc::new(RefCell::new(Vec::new())));
    for (client, calls) in clients.iter().copied().enumerate() {
        if client == forgets_before {
            sim.run_until(RESET_NS + 1);
            assert_eq!(sim.element_bytes(), 0);
        }
        let (own, recorded, results) = (store.clone(), Rc::clone(&history), Rc::clone(&results));
        sim.spawn(move |region| async move {
            let mut actor = Actor::new(&own, &region, client as u64, &recorded);
            // It has entries.
            actor.call(9, Call::Update(FIRST_VALUE + 500 + client as u64)).await.expect("nothing fails here");
            let before = actor.client.counts();
            let mut answers = Vec::new();
            for (key, call) in calls {
                let (answer, cost) = actor.costs(*key, *call).await;
                answers.push((answer, cost.round_trips));
            }
            let after = actor.client.counts();
            results.borrow_mut().push((answers, Counts { stale: after.stale - before.stale, ..after }));
        });
        run_until_idle(&mut sim, forgets_before > client);
    }
    audit(&mut sim, store, &history, "in turn");
    results.take()
}

/// Runs the clients to their end, before the reset if that is still to come.
fn run_until_idle(sim: &mut Sim, is_before_reset: bool) {
    let end_ns = if is_before_reset { RESET_NS - 1 } else { u64::MAX };
    assert_eq!(sim.run_until(end_ns), Stopped::Ended);
}

/// No client.
const NEVER: usize = 100;
/// Calls that make the first entry of key 1 stale.
const CHANGED: Calls = &[(1, Call::Update(2_000)), (1, Call::Update(2_001)), (1, Call::Update(2_002))];

fn answers(results: &[(Vec<(Answer, u64)>, Counts)], client: usize) -> &[(Answer, u64)] {
    &results[client].0
}

/// A client that believes in the first entry of a chain changes and reads the key like one that knows its end.
#[test]
fn stale_clients_take_the_fewest_round_trips() {
    let calls: Calls = &[(1, Call::Update(3_000)), (1, Call::Get)];
    let reads: Calls = &[(1, Call::Get), (1, Call::Insert(1)), (1, Call::Put(3_001)), (1, Call::Get)];
    let found = in_turn(&store(10, KEYS).behind(Some(ALL)), &[CHANGED, calls, reads], NEVER);
    assert_eq!(answers(&found, 1), [(Answer::Done, 2), (Answer::Found(3_000), 1)]);
    let expected = [(Answer::Found(3_000), 1), (Answer::Exists, 1), (Answer::Replaced, 2), (Answer::Found(3_001), 1)];
    assert_eq!(answers(&found, 2), expected);
    // Only changes are steered: a READ of a stale entry, the shortcut, the end.
    let found = in_turn(&store(10, KEYS).behind(Some(CHANGES)), &[CHANGED, calls, reads], NEVER);
    assert_eq!(answers(&found, 1), [(Answer::Done, 2), (Answer::Found(3_000), 1)]);
    assert_eq!(answers(&found, 2)[0], (Answer::Found(3_000), 3));
}

/// One CAS of a key after a reset, and the element knows the end of its chain again (C5 of the paper).
#[test]
fn one_change_of_a_key_makes_up_for_a_reset() {
    let once: Calls = &[(1, Call::Update(3_000))];
    let again: Calls = &[(1, Call::Update(3_001))];
    let found = in_turn(&store(10, KEYS).behind(Some(ALL)), &[CHANGED, once, again], 1);
    // A WRITE, a CAS in vain, the shortcut, the end, a CAS.
    assert_eq!((answers(&found, 1), found[1].1.stale), (&[(Answer::Done, 5)][..], 1));
    assert_eq!((answers(&found, 2), found[2].1.stale), (&[(Answer::Done, 2)][..], 0));
}

/// A client that believes a removed key to exist is not steered behind the removal: it would answer that it has replaced a
/// value. Nor is one that believes an existing key to be removed.
#[test]
fn nobody_is_steered_to_what_has_another_meaning() {
    let removes: Calls = &[(1, Call::Update(2_000)), (1, Call::Remove)];
    let stale: Calls = &[(1, Call::Get), (1, Call::Update(1)), (1, Call::Insert(2_001)), (1, Call::Get)];
    let found = in_turn(&store(10, KEYS).behind(Some(ALL)), &[removes, &[(1, Call::Update(7))], stale], NEVER);
    assert_eq!(answers(&found, 1)[0].0, Answer::Missing);
    let calls: Vec<Answer> = answers(&found, 2).iter().map(|(answer, _)| *answer).collect();
    assert_eq!(calls, [Answer::Absent, Answer::Missing, Answer::Done, Answer::Found(2_001)]);
}

/// Keys beyond those that it may know are as without it, and take none of its memory.
#[test]
fn an_element_knows_as_many_keys_as_it_may() {
    let few = Steering { keys: 1, ..CHANGES };
    let changes: Calls = &[(1, Call::Update(2_000)), (2, Call::Update(2_001)), (2, Call::Update(2_002))];
    let stale: Calls = &[(1, Call::Update(3_000)), (2, Call::Update(3_001))];
    let found = in_turn(&store(10, KEYS).behind(Some(few)), &[changes, stale], NEVER);
    assert_eq!(answers(&found, 1), [(Answer::Done, 2), (Answer::Done, 5)]);
}

/// 16 bytes for each key, 12 for each entry, and 32 for each client (C3 of the paper has 16 a key).
#[test]
fn the_state_of_an_element_is_bounded() {
    for (steering, expected) in [
        (CHANGES, 16 * 8 + 32),
        (Steering { keys: 3, ..CHANGES }, 16 * 3),
        (ALL, 16 * 8 + 32 + 12 * 40),
        (Steering { entries: 5, ..ALL }, 16 * 8 + 32 + 12 * 5),
    ] {
        let store = store(10, KEYS).behind(Some(steering));
        let (mut sim, own) = (simulation(&store, &SimOptions::new(SEED, NETWORK)), store.clone());
        sim.spawn(move |region| async move {
            let mut actor = Actor::new(&own, &region, 0, &filled(10));
            for value in 0..40 {
                let key = 1 + value as u32 % 8;
                actor.takes(key, Call::Update(value), Answer::Done, if value == 0 { 3 } else { 2 }).await;
            }
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(sim.element_bytes(), expected, "{steering:?}");
    }
}

/// An element that was reset between the WRITE and the CAS of a change does not see that the change is made, and takes the
/// entry before it for the end. When that was used again, a client that knows the end is sent there in vain, and finds out
/// that its own entry is the end.
#[test]
fn a_change_that_the_element_has_missed_costs_round_trips() {
    /// When the CAS of client 0 arrives, when client 1 starts, and when client 0 goes on.
    const LATE_NS: u64 = 200_000;
    const OTHER_NS: u64 = 40_000;
    const AFTER_NS: u64 = 5_000_000;
    let store = reusing(40, Reuse::Checked).behind(Some(ALL));
    // The verbs before the CAS are the request of entries and the WRITE.
    let late = ClientFault { client: ClientId(0), after_verbs: 2, fault: Fault::DelayTail { by_ns: LATE_NS } };
    let reset = NodeFault { at_ns: OTHER_NS / 2, fault: NodeEvent::ResetElement };
    let faults = FaultPlan { clients: vec![late], node: vec![reset], ..FaultPlan::default() };
    let mut sim = simulation(&store, &SimOptions { faults, ..SimOptions::new(SEED, NETWORK) });
    let (history, done) = (filled(10), Rc::new(Cell::new(false)));
    let (own, recorded, noted) = (store.clone(), Rc::clone(&history), Rc::clone(&done));
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&own, &region, 0, &recorded);
        actor.call(1, Call::Update(FIRST_VALUE)).await.expect("nothing fails here");
        assert!((LATE_NS..AFTER_NS).contains(&region.now_ns()));
        pause_until(&mut region.lane(), AFTER_NS).await;
        // A WRITE, a CAS in vain, the shortcut and the server, which say nothing new, the end, a CAS.
        actor.takes(1, Call::Update(FIRST_VALUE + 1), Answer::Done, 6).await;
        actor.takes(1, Call::Update(FIRST_VALUE + 2), Answer::Done, 2).await;
        noted.set(true);
    });
    let (own, recorded) = (store.clone(), Rc::clone(&history));
    sim.spawn(move |region| async move {
        pause_until(&mut region.lane(), OTHER_NS).await;
        let mut actor = Actor::new(&own, &region, 1, &recorded);
        actor.call(1, Call::Update(2_000)).await.expect("nothing fails here");
        pause_until(&mut region.lane(), LATE_NS / 2).await;
        let before_last = own.nodes()[0].memory().main[0].load(Ordering::Relaxed) as u32;
        pause_until(&mut region.lane(), 2 * LATE_NS).await;
        for value in 2_001..2_101 {
            actor.call(2, Call::Update(value)).await.expect("nothing fails here");
        }
        assert!(version_of(&own, before_last as usize) > 1 && region.now_ns() < AFTER_NS);
    });
    audit(&mut sim, &store, &history, "a missed change");
    assert!(done.get());
}

/// The element as printed steers to an entry whose CAS is on its way. On a cluster the client dies behind that: it has
/// passed the element, and never takes effect. What another client appends to its entry is in no chain, although it was
/// told so.
#[test]
fn steering_to_what_is_not_linked_loses_changes() {
    for (trust, expected) in [(Trust::Linked, FIRST_VALUE), (Trust::Sent, 1)] {
        let store = store(10, KEYS).behind(Some(Steering { trust, ..ALL }));
        let mut sim = simulation(&store, &SimOptions::on_cluster(SEED, Cluster::new(Card::ConnectX5)));
        let (history, found) = (filled(10), Rc::new(Cell::new(0)));
        let (own, recorded) = (store.clone(), Rc::clone(&history));
        let dies = sim.spawn(move |region| async move {
            let mut actor = Actor::new(&own, &region, 0, &recorded);
            actor.call(1, Call::Update(FIRST_VALUE + 1)).await.expect("never comes to this");
        });
        // Its verbs are the request of entries, the WRITE, and the CAS.
        sim.inject(dies, 2, Fault::Die { units: 0 });
        assert_eq!((sim.run(), sim.is_dead(dies)), (Stopped::Ended, true));
        let (own, recorded, noted) = (store.clone(), Rc::clone(&history), Rc::clone(&found));
        sim.spawn(move |region| async move {
            let mut actor = Actor::new(&own, &region, 1, &recorded);
            assert_eq!(actor.call(1, Call::Update(FIRST_VALUE)).await, Ok(Answer::Done));
            let mut reader = Actor::new(&own, &region, 2, &filled(10));
            let Ok(Answer::Found(value)) = reader.call(1, Call::Get).await else { panic!("the key exists") };
            noted.set(value);
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(found.get(), expected, "{trust:?}");
    }
    some_fail(|setup| setup.with_trust(Trust::Sent));
}

/// A client changes a key, about which it knows little, behind an element that forgets everything at a time; then another
/// reads it. Returns whether both succeed.
fn survives(trust: Trust, reset_ns: u64) -> bool {
    let store = reusing(40, Reuse::Checked).behind(Some(Steering { trust, ..ALL }));
    let reset = NodeFault { at_ns: reset_ns, fault: NodeEvent::ResetElement };
    let faults = FaultPlan { node: vec![reset], ..FaultPlan::default() };
    let cluster = SimOptions::on_cluster(SEED, Cluster::new(Card::ConnectX5));
    let mut sim = simulation(&store, &SimOptions { faults, ..cluster });
    let own = store.clone();
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&own, &region, 0, &filled(10));
        // The end of the chain has another version than what the next client believes in.
        for value in 0..60 {
            actor.call(1, Call::Update(FIRST_VALUE + value)).await.expect("nothing fails here");
        }
    });
    let (own, survived) = (store.clone(), Rc::new(Cell::new(false)));
    let noted = Rc::clone(&survived);
    sim.spawn(move |region| async move {
        pause_until(&mut region.lane(), STARTS_NS).await;
        let mut actor = Actor::new(&own, &region, 1, &filled(10));
        let changed = actor.call(1, Call::Update(2_000)).await;
        let mut reader = Actor::new(&own, &region, 2, &filled(10));
        noted.set(changed == Ok(Answer::Done) && reader.call(1, Call::Get).await == Ok(Answer::Found(2_000)));
    });
    assert_eq!(sim.run(), Stopped::Ended);
    survived.get()
}

/// When the client of [`survives`] starts, and more than its change takes.
const STARTS_NS: u64 = 2_000_000;
const CHANGES_NS: u64 = 12_000;

/// An element that compares another version than the client asks for translates the answer back. If it is reset in
/// between, the client tries again, and its entry is in the chain twice. Without translations, no reset does any harm.
#[test]
fn translated_answers_are_lost_with_the_state() {
    let harmful = |trust| {
        let times = (STARTS_NS..STARTS_NS + CHANGES_NS).step_by(50);
        times.filter(|at_ns| !survives(trust, *at_ns)).count()
    };
    assert_eq!(harmful(Trust::Linked), 0);
    let of_memory = harmful(Trust::Memory);
    println!("{of_memory} of {} resets do harm", CHANGES_NS / 50);
    assert!((1..20).contains(&of_memory), "{of_memory}");
}
