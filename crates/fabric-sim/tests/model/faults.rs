//! Faults work on a cluster as on a network: deaths at verbs, stalls, delays, lost connections and restarts.

use std::cell::RefCell;
use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, FabricError, Lane, Profile, Region, Verb, post};
use guira_fabric_sim::{
    Card, ClientFault, ClientId, Cluster, Fault, FaultPlan, Lost, NodeEvent, NodeFault, Relaxations, Sim, SimOptions,
    SimRegion, Stopped,
};

/// A counter, in the space in which locks are.
const COUNTER: Addr = Addr::device(8);
const CLIENTS: u32 = 40;
const ROUNDS: u64 = 50;

fn simulation(seed: u64, faults: FaultPlan) -> (Sim, HeapRegion) {
    let region = HeapRegion::new(4096, 4096, Profile::Mlx5.caps());
    let options = SimOptions { faults, ..SimOptions::on_cluster(seed, Cluster::new(Card::ConnectX5)) };
    (Sim::new(region.clone(), &options), region)
}

fn one(client: u32, after_verbs: u64, fault: Fault) -> FaultPlan {
    let clients = vec![ClientFault { client: ClientId(client), after_verbs, fault }];
    FaultPlan { clients, ..FaultPlan::default() }
}

/// Adds to the counter and reads a row, in one batch.
async fn add<L: Lane>(lane: &mut L) -> Result<u64, FabricError> {
    let (mut found, mut row) = (0, [0; 8]);
    let verbs = [
        Verb::FetchAdd { addr: COUNTER, add: 1, found: &mut found },
        Verb::Read { addr: Addr::main(64), into: &mut row },
    ];
    post(lane, verbs).await?;
    Ok(found)
}

async fn add_always(region: SimRegion) {
    let mut lane = region.lane();
    for _ in 0..ROUNDS {
        if add(&mut lane).await.is_err() {
            return;
        }
    }
}

fn counted(region: &HeapRegion) -> u64 {
    region.memory().device[COUNTER.word() as usize].load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn clients_die_at_every_verb_and_the_others_go_on() {
    for seed in 0..10 {
        let mut plan = FaultPlan::default();
        for client in 0..CLIENTS / 2 {
            let fault = Fault::Die { units: 0 };
            let after_verbs = u64::from(client) * 3 + seed;
            plan.clients.push(ClientFault { client: ClientId(client), after_verbs, fault });
        }
        let (mut sim, region) = simulation(seed, plan);
        for client in 0..CLIENTS {
            sim.spawn_on(client % 8, add_always);
        }
        assert_eq!(sim.run(), Stopped::Ended);
        // Of the dead clients' verbs every other one is an addition, the first included.
        let of_dead: u64 = (0..CLIENTS / 2).map(|client| (u64::from(client) * 3 + seed).div_ceil(2)).sum();
        let dead = (0..CLIENTS).filter(|client| sim.is_dead(ClientId(*client))).count();
        assert_eq!(dead as u32, CLIENTS / 2);
        assert_eq!(counted(&region), of_dead + u64::from(CLIENTS / 2) * ROUNDS, "seed {seed}");
    }
}

#[test]
fn faults_are_deterministic() {
    let run = |seed| {
        let (mut sim, _) = simulation(seed, one(3, 7, Fault::Die { units: 0 }));
        for client in 0..CLIENTS {
            sim.spawn_on(client % 8, add_always);
        }
        sim.inject(ClientId(5), 9, Fault::Stall { for_ns: 30_000 });
        sim.inject(ClientId(6), 9, Fault::DelayTail { by_ns: 20_000 });
        sim.run();
        sim.log_hash()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Runs one client with `fault` before its second verb. Returns the result and the time of its end.
fn with_fault(fault: Fault) -> (Result<u64, FabricError>, u64, u64) {
    let (mut sim, region) = simulation(1, one(0, 1, fault));
    let seen = Rc::new(RefCell::new(None));
    let result = Rc::clone(&seen);
    sim.spawn(|region| async move {
        let mut lane = region.lane();
        let added = add(&mut lane).await;
        *result.borrow_mut() = Some((added, region.now_ns()));
    });
    sim.run();
    let (added, at_ns) = seen.take().expect("the client ends");
    (added, at_ns, counted(&region))
}

#[test]
fn a_stall_or_a_delay_postpones_the_reply() {
    for fault in [Fault::Stall { for_ns: 50_000 }, Fault::DelayTail { by_ns: 50_000 }] {
        let (added, at_ns, counted) = with_fault(fault.clone());
        assert_eq!((added, counted), (Ok(0), 1));
        assert!((50_000..60_000).contains(&at_ns), "{fault:?}: {at_ns} ns");
    }
}

#[test]
fn a_lost_connection_fails_the_batch() {
    for lost in [Lost::Request, Lost::Reply, Lost::Late { by_ns: 40_000 }] {
        let (added, at_ns, counted) = with_fault(Fault::LoseConnection(lost));
        assert!(matches!(added, Err(FabricError::Disconnected { .. })), "{lost:?}: {added:?}");
        assert_eq!(counted, 1, "the first verb was executed");
        assert!(at_ns >= 100_000, "{lost:?}: noticed at {at_ns} ns");
    }
}

#[test]
fn a_restart_loses_every_connection() {
    // Every batch is on its way.
    let node = vec![NodeFault { at_ns: 500, fault: NodeEvent::Restart }];
    let (mut sim, region) = simulation(1, FaultPlan { node, ..FaultPlan::default() });
    for client in 0..CLIENTS {
        sim.spawn_on(client % 8, |region| async move {
            let mut lane = region.lane();
            let lost = add(&mut lane).await;
            assert!(matches!(lost, Err(FabricError::Disconnected { .. })), "{lost:?}");
            add(&mut region.lane()).await.expect("new lanes work");
        });
    }
    assert_eq!(sim.run(), Stopped::Ended);
    assert_eq!(counted(&region), u64::from(CLIENTS));
}

#[test]
#[should_panic(expected = "serves every verb as a whole")]
fn verbs_are_not_split() {
    let relaxations = Relaxations { split_percent: 10, ..Relaxations::default() };
    simulation(1, FaultPlan { relaxations, ..FaultPlan::default() });
}
