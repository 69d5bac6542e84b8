//! Calls of a service: their times, computed by hand, their order, and faults.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::{Memory, Ordering};
use guira_fabric::{Addr, Effect, FabricError, Lane, Profile, Region, Verb, pause_until, post};
use guira_fabric_sim::{
    ClientFault, ClientId, Cluster, EventKind, Fault, FaultPlan, Lost, Model, Network, NodeEvent, NodeFault,
    NodeParameters, Resource, Service, Sim, SimOptions, Stopped, Work,
};

use super::by_hand::{ARRIVES_NS, Happened, RETURNS_NS, round, simulation, times};

/// Adds the first word of each request to a word of memory, and answers with the sum, the number of requests since the
/// start, and the rest of the request.
#[derive(Default)]
struct Adder {
    handled: u64,
}

/// The work of each request.
const WORK: Work = Work { hashes: 1, comparisons: 2, accesses: 2, lines: 1, copied_bytes: 32 };
/// Its price: a message, and that work.
const WORK_NS: u64 = 70 + 7 + 2 * 3 + 2 * 60 + 20 + 16;

impl Service for Adder {
    fn handle(&mut self, memory: Memory<'_>, request: &[u64], reply: &mut Vec<u64>) -> Work {
        self.handled += 1;
        let sum = memory.main[0].load(Ordering::Relaxed) + request[0];
        memory.main[0].store(sum, Ordering::Relaxed);
        reply.extend([sum, self.handled]);
        reply.extend(&request[1..]);
        WORK
    }

    fn restart(&mut self) {
        self.handled = 0;
    }
}

fn cluster() -> Cluster {
    let node = NodeParameters {
        message_ns: 70,
        hash_ns: 7,
        comparison_ns: 3,
        access_ns: 60,
        line_ns: 20,
        copied_byte_ps: 500,
        ..NodeParameters::TMPFS
    };
    Cluster { node, ..round() }
}

/// The time from the effect of a WRITE on the card to the moment at which it is in the node's memory: message, store.
const STORED_NS: u64 = 10 + 50;
/// The time from the end of the work to the end of the call: message, fetch, travel, completion.
const ANSWERED_NS: u64 = 10 + 400 + RETURNS_NS;

/// Returns the times at which the service handled requests of `client`.
fn handled(happened: &Happened, client: u32) -> Vec<u64> {
    let events = happened.borrow();
    let of_client = events.iter().filter(|event| event.1 == client && matches!(event.2, EventKind::Handled(_)));
    of_client.map(|event| event.0).collect()
}

type Replies = Rc<RefCell<Vec<(u32, Result<Vec<u64>, FabricError>)>>>;

/// Adds a client on a host of its own that calls the service with each of `requests`, one after the other.
fn call_with(sim: &mut Sim, client: u32, requests: &'static [&'static [u64]], replies: &Replies) {
    let replies = Rc::clone(replies);
    sim.spawn_on(client, move |region| async move {
        let mut lane = region.lane();
        for request in requests {
            let mut reply = vec![99];
            let result = lane.call(request, &mut reply).await;
            replies.borrow_mut().push((client, result.map(|()| reply)));
        }
    });
}

#[test]
fn a_call_takes_the_time_of_two_messages_and_of_its_work() {
    let (mut sim, happened) = simulation(cluster());
    sim.serve(1, Adder::default());
    let replies = Replies::default();
    call_with(&mut sim, 0, &[&[5, 8]], &replies);
    assert_eq!(sim.run(), Stopped::Ended);
    let handled_ns = ARRIVES_NS + STORED_NS;
    assert_eq!(handled(&happened, 0), [handled_ns]);
    assert_eq!(times(&happened, 0).1, [handled_ns + WORK_NS + ANSWERED_NS]);
    assert_eq!(*replies.borrow(), [(0, Ok(vec![5, 1, 8]))]);
    assert_eq!(sim.usage().busy_ns(Resource::NodeThreads), WORK_NS);
    assert_eq!(sim.verbs(), 1);
}

/// The requests of three clients, whose verbs pass the card one after the other, wait for a thread in the order of their
/// arrival; with two threads, only the third one waits.
#[test]
fn requests_wait_for_a_thread() {
    let arrived = [0, 10, 20].map(|behind| ARRIVES_NS + STORED_NS + behind);
    let [first, second, _] = arrived;
    for (threads, expected) in
        [(1, [first, first + WORK_NS, first + 2 * WORK_NS]), (2, [first, second, first + WORK_NS]), (3, arrived)]
    {
        let (mut sim, happened) = simulation(cluster());
        sim.serve(threads, Adder::default());
        let replies = Replies::default();
        (0..3).for_each(|client| call_with(&mut sim, client, &[&[1]], &replies));
        assert_eq!(sim.run(), Stopped::Ended);
        let handled: Vec<u64> = (0..3).flat_map(|client| handled(&happened, client)).collect();
        assert_eq!(handled, expected, "{threads} threads");
        let expected = [(0, Ok(vec![1, 1])), (1, Ok(vec![2, 2])), (2, Ok(vec![3, 3]))];
        assert_eq!(*replies.borrow(), expected);
    }
}

/// The client goes on at once; only a second notice waits for the acknowledgement of the first.
#[test]
fn nobody_waits_for_a_notice() {
    let (mut sim, happened) = simulation(cluster());
    sim.serve(1, Adder::default());
    let sent = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&sent);
    sim.spawn(move |region| async move {
        let (mut lane, mut other) = (region.lane(), region.lane());
        for lane in [&mut lane, &mut other] {
            lane.notify(&[1]).await.expect("it is sent");
            noted.borrow_mut().push(region.now_ns());
        }
        lane.notify(&[1]).await.expect("it is sent");
        noted.borrow_mut().push(region.now_ns());
        assert_eq!((lane.calls().notices, lane.calls().calls, lane.calls().words_out), (2, 0, 2));
    });
    assert_eq!(sim.run(), Stopped::Ended);
    // The acknowledgement leaves when the request is stored.
    let acknowledged_ns = ARRIVES_NS + STORED_NS + RETURNS_NS;
    assert_eq!(*sent.borrow(), [0, 0, acknowledged_ns]);
    assert_eq!(handled(&happened, 0).len(), 3);
    // The second one has no reply that would occupy the card.
    assert_eq!(sim.usage().busy_ns(Resource::NodeFetch), 0);
}

/// A notice that is handled while a call of the same lane waits is no reply to it.
#[test]
fn a_notice_is_not_answered() {
    for model in MODELS {
        let stalled = NodeFault { at_ns: 0, fault: NodeEvent::StallService { for_ns: 50_000 } };
        let faults = FaultPlan { node: vec![stalled], ..FaultPlan::default() };
        let mut sim = Sim::new(region(), &SimOptions { faults, model, ..SimOptions::new(1, NETWORK) });
        sim.serve(1, Adder::default());
        sim.spawn(move |region| async move {
            let (mut lane, mut reply) = (region.lane(), Vec::new());
            lane.notify(&[1, 77]).await.expect("it is sent");
            lane.call(&[10, 88], &mut reply).await.expect("nothing fails here");
            assert_eq!(reply, [11, 2, 88]);
        });
        assert_eq!(sim.run(), Stopped::Ended);
    }
}

/// Requests and replies have nothing to do with the size of the node's memory.
#[test]
fn a_request_may_be_longer_than_the_memory() {
    for model in MODELS {
        let mut sim = Sim::new(region(), &SimOptions { model, ..SimOptions::new(1, NETWORK) });
        sim.serve(1, Adder::default());
        for client in 0..8 {
            sim.spawn_on(client, move |region| async move {
                let (mut lane, mut reply, request) = (region.lane(), Vec::new(), [1; 1000]);
                lane.call(&request, &mut reply).await.expect("nothing fails here");
                assert_eq!(reply[2..], request[1..]);
            });
        }
        assert_eq!(sim.run(), Stopped::Ended);
    }
}

/// A call that is dropped is handled nevertheless, and the next one on the lane gets its own reply.
#[test]
fn a_dropped_call_goes_on() {
    for model in MODELS {
        let mut sim = Sim::new(region(), &SimOptions { model, ..SimOptions::new(1, NETWORK) });
        sim.serve(1, Adder::default());
        let reply = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&reply);
        sim.spawn(move |region| async move {
            let (mut lane, mut reply) = (region.lane(), Vec::new());
            begin(pin!(lane.call(&[1], &mut reply))).await;
            lane.call(&[10], &mut reply).await.expect("nothing fails here");
            into.replace(reply);
            // Verbs wait for nothing else, either.
            let mut word = [0];
            post(&mut lane, [Verb::Read { addr: Addr::main(0), into: &mut word }]).await.expect("nothing fails here");
            assert_eq!(word, [11]);
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(*reply.borrow(), [11, 2]);
    }
}

/// A client that has begun a call does other things, and receives the answer without waiting if it has arrived.
#[test]
fn a_call_that_was_begun_is_answered_later() {
    for model in MODELS {
        let mut sim = Sim::new(region(), &SimOptions { model, ..SimOptions::new(1, NETWORK) });
        sim.serve(1, Adder::default());
        let ends = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&ends);
        sim.spawn(move |region| async move {
            let (mut lane, mut other, mut reply) = (region.lane(), region.lane(), vec![99]);
            let nothing = lane.end_call(&mut reply).await;
            assert!(matches!(nothing, Err(FabricError::Backend(_))), "{nothing:?}");
            lane.begin_call(&[5, 8]).await.expect("it is sent");
            assert_eq!((region.now_ns(), lane.calls().calls), (0, 1));
            pause_until(&mut other, 100_000).await;
            lane.end_call(&mut reply).await.expect("nothing fails here");
            assert_eq!((region.now_ns(), &reply[..]), (100_000, &[5, 1, 8][..]));
            lane.begin_call(&[1]).await.expect("it is sent");
            lane.end_call(&mut reply).await.expect("nothing fails here");
            assert!(region.now_ns() > 100_000);
            assert_eq!(reply, [6, 2]);
            assert_eq!((lane.calls().calls, lane.calls().words_in), (2, 5));
            noted.borrow_mut().push(());
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(ends.borrow().len(), 1);
    }
}

/// Begins an operation, which does not end at once.
async fn begin<T>(mut operation: Pin<&mut impl Future<Output = T>>) {
    let poll = |cx: &mut Context<'_>| {
        assert!(operation.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    };
    poll_fn(poll).await;
}

fn region() -> HeapRegion {
    HeapRegion::new(64, 64, Profile::Mlx5.caps())
}

/// Runs a client that calls twice under `faults`. Returns its results, and the sum in memory.
fn under(faults: FaultPlan, model: Model) -> (Vec<Result<Vec<u64>, FabricError>>, u64, u64) {
    let region = region();
    let options = SimOptions { faults, model, ..SimOptions::new(1, NETWORK) };
    let mut sim = Sim::new(region.clone(), &options);
    sim.serve(1, Adder::default());
    let replies = Replies::default();
    call_with(&mut sim, 0, &[&[1], &[10]], &replies);
    sim.run();
    let results = replies.take().into_iter().map(|(_, result)| result).collect();
    (results, region.memory().main[0].load(Ordering::Relaxed), sim.now_ns())
}

const NETWORK: Network = Network::of(Profile::Mlx5);
const MODELS: [Model; 2] = [
    Model::Cluster(Cluster { jitter_ns: 1, ..Cluster::new(guira_fabric_sim::Card::ConnectX5) }),
    Model::Network(NETWORK),
];

/// The client's request is one of its verbs: it dies before it, or loses request or reply; a late one is handled long
/// after the client has noticed.
#[test]
fn faults_of_a_client_hit_its_calls() {
    let at = |after_verbs, fault| FaultPlan {
        clients: vec![ClientFault { client: ClientId(0), after_verbs, fault }],
        ..FaultPlan::default()
    };
    let lost = |lost| Fault::LoseConnection(lost);
    let failed = || vec![Err(disconnected(Effect::Unknown)), Err(disconnected(Effect::None))];
    for model in MODELS {
        let (results, sum, _) = under(at(0, Fault::Die { units: 0 }), model);
        assert_eq!((results, sum), (vec![], 0));
        let (results, sum, _) = under(at(1, Fault::Die { units: 0 }), model);
        assert_eq!((results, sum), (vec![Ok(vec![1, 1])], 1));
        for (fault, expected) in [(Lost::Request, 0), (Lost::Reply, 1), (Lost::Late { by_ns: 5_000 }, 1)] {
            let (results, sum, _) = under(at(0, lost(fault)), model);
            assert_eq!((results, sum), (failed(), expected), "{fault:?}");
        }
        let (_, _, usual_ns) = under(FaultPlan::default(), model);
        for fault in [Fault::Stall { for_ns: 50_000 }, Fault::DelayTail { by_ns: 50_000 }] {
            let (results, sum, ended_ns) = under(at(0, fault.clone()), model);
            assert_eq!((results, sum), (vec![Ok(vec![1, 1]), Ok(vec![11, 2])], 11));
            assert!(ended_ns >= usual_ns + 40_000, "{fault:?}: {ended_ns}");
        }
    }
}

fn disconnected(effect: Effect) -> FabricError {
    FabricError::Disconnected { effect }
}

/// Whenever the node restarts, or its service stalls: a call that fails may have had an effect, and is never handled
/// twice; what waits is lost, or handled later.
#[test]
fn faults_of_the_node_hit_calls() {
    let node = |at_ns, fault| FaultPlan { node: vec![NodeFault { at_ns, fault }], ..FaultPlan::default() };
    for model in MODELS {
        let (_, _, usual_ns) = under(FaultPlan::default(), model);
        let mut failed = 0;
        for at_ns in (0..usual_ns).step_by(53) {
            let (results, sum, _) = under(node(at_ns, NodeEvent::Restart), model);
            assert_eq!(sum, 0, "restarted at {at_ns} ns");
            failed += usize::from(results[0].is_err());
            let expected = [
                vec![Err(disconnected(Effect::Unknown)), Err(disconnected(Effect::None))],
                vec![Err(disconnected(Effect::None)); 2],
                vec![Ok(vec![1, 1]), Err(disconnected(Effect::Unknown))],
                vec![Ok(vec![1, 1]), Err(disconnected(Effect::None))],
                // The last reply was on its way.
                vec![Ok(vec![1, 1]), Ok(vec![11, 2])],
            ];
            assert!(expected.contains(&results), "restarted at {at_ns} ns: {results:?}");
            let (results, sum, ended_ns) = under(node(at_ns, NodeEvent::StallService { for_ns: 100_000 }), model);
            assert_eq!((results, sum), (vec![Ok(vec![1, 1]), Ok(vec![11, 2])], 11), "stalled at {at_ns} ns");
            assert!(ended_ns < usual_ns + 101_000, "stalled at {at_ns} ns: {ended_ns}");
        }
        assert!(failed > 5, "{failed}");
    }
}

/// Requests of clients that died while they waited are handled, as they are in the node's memory, and nobody is told.
#[test]
fn a_request_outlives_its_client() {
    let region = region();
    let fault = ClientFault { client: ClientId(1), after_verbs: 1, fault: Fault::Die { units: 0 } };
    let stalled = NodeFault { at_ns: 0, fault: NodeEvent::StallService { for_ns: 20_000 } };
    let faults = FaultPlan { clients: vec![fault], node: vec![stalled], ..FaultPlan::default() };
    let mut sim = Sim::new(region.clone(), &SimOptions { faults, ..SimOptions::on_cluster(1, cluster()) });
    sim.serve(1, Adder::default());
    let replies = Replies::default();
    call_with(&mut sim, 0, &[&[1], &[1]], &replies);
    sim.spawn_on(1, |region| async move {
        let (mut calling, mut lane, mut reply) = (region.lane(), region.lane(), Vec::new());
        let mut call = pin!(calling.call(&[100], &mut reply));
        begin(call.as_mut()).await;
        pause_until(&mut lane, 10_000).await;
        // It dies when this arrives.
        let _ = post(&mut lane, [Verb::Write { addr: Addr::main(8), words: &[1] }]).await;
        unreachable!("the client is dead");
    });
    assert_eq!(sim.run(), Stopped::Ended);
    assert!(sim.is_dead(ClientId(1)));
    assert_eq!(region.memory().main[0].load(Ordering::Relaxed), 102);
    assert_eq!(replies.borrow().len(), 2);
    assert_eq!(region.memory().main[1].load(Ordering::Relaxed), 0);
}

#[test]
fn a_node_without_a_service_refuses_calls() {
    let mut sim = Sim::new(region(), &SimOptions::on_cluster(1, cluster()));
    let replies = Replies::default();
    call_with(&mut sim, 0, &[&[1]], &replies);
    assert_eq!(sim.run(), Stopped::Ended);
    let (_, result) = replies.take().remove(0);
    let error = result.expect_err("there is no service");
    assert!(error.to_string().contains("no service") && error.effect() == Effect::None, "{error}");
}

/// Equal seeds give equal runs, with verbs and calls of many clients side by side.
#[test]
fn calls_are_deterministic() {
    let run = |seed| {
        let mut sim =
            Sim::new(region(), &SimOptions::on_cluster(seed, Cluster::new(guira_fabric_sim::Card::ConnectX5)));
        sim.serve(2, Adder::default());
        for client in 0..40 {
            sim.spawn_on(client % 8, move |region| async move {
                let (mut lane, mut calls, mut reply) = (region.lane(), region.lane(), Vec::new());
                for _ in 0..20 {
                    let mut found = 0;
                    let add = Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found };
                    post(&mut lane, [add]).await.expect("nothing fails here");
                    calls.call(&[1], &mut reply).await.expect("nothing fails here");
                }
                let _ = lane.traffic();
            });
        }
        assert_eq!(sim.run(), Stopped::Ended);
        (sim.log_hash(), sim.now_ns())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
