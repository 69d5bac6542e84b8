//! Reservations of memory: the time of the node's processor, and a node that has no more.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{FabricError, Profile, Region, pause_until, reserve};
use guira_fabric_sim::{
    Card, Cluster, FaultPlan, MemoryLimit, Network, NodeParameters, Resource, Sim, SimOptions, SimRegion, Stopped,
};

const PART: u64 = NodeParameters::PART_BYTES;
/// Longer than the region: only its addresses count.
const PARTS: [Range<u64>; 3] = [0..2 * PART, PART..3 * PART, 0..3 * PART];

type Times = Rc<RefCell<Vec<(u32, u64)>>>;

/// Reserves `parts`, and notes when it learns that each is there.
async fn reserve_all(region: SimRegion, client: u32, parts: Vec<Range<u64>>, times: Times) {
    let mut lane = region.lane();
    for part in parts {
        reserve(&mut lane, part).await.expect("there is memory");
        times.borrow_mut().push((client, region.now_ns()));
    }
}

fn region() -> HeapRegion {
    HeapRegion::new(4096, 64, Profile::Mlx5.caps())
}

/// Two clients ask at the same time: the processor makes memory for one after the other, and no part twice.
#[test]
fn memory_takes_time_of_the_nodes_processor_once() {
    let cluster = Cluster { jitter_ns: 1, ..Cluster::new(Card::ConnectX5) };
    let mut sim = Sim::new(region(), &SimOptions::on_cluster(1, cluster));
    let times = Times::default();
    for client in 0..2 {
        let (parts, times) = ([vec![PARTS[0].clone(), PARTS[2].clone()], vec![PARTS[1].clone()]], Rc::clone(&times));
        sim.spawn_on(client, move |region| reserve_all(region, client, parts[client as usize].clone(), times));
    }
    assert_eq!(sim.run(), Stopped::Ended);
    // A request reaches the processor after 760 ns, and 509 + 250 ns are left when it is done.
    let (arrives, left) = (760, 509 + 250);
    let first = arrives + 1_000 + 2 * 12_000;
    let second = first + 1_000 + 12_000;
    let again = first + left + arrives;
    assert!(again < second, "the second client is served first");
    let expected = [(0, first + left), (1, second + left), (0, second + 1_000 + left)];
    assert_eq!(*times.borrow(), expected);
    assert_eq!(sim.usage().busy_ns(Resource::NodeProcessor), 3 * 1_000 + 3 * 12_000);
}

#[test]
fn memory_takes_no_time_without_cards() {
    let mut sim = Sim::new(region(), &SimOptions::new(1, Network::of(Profile::Mlx5)));
    let times = Times::default();
    let noted = Rc::clone(&times);
    sim.spawn(move |region| reserve_all(region, 0, PARTS.to_vec(), noted));
    assert_eq!(sim.run(), Stopped::Ended);
    assert_eq!(*times.borrow(), [(0, 0); 3]);
}

/// A node with memory for a part of its addresses refuses what is beyond, and nothing that was granted before, until it
/// has memory for all.
#[test]
fn a_node_without_memory_refuses_what_it_has_not_granted() {
    let until_ns = 1_000_000_000;
    let memory = Some(MemoryLimit { holes: std::iter::once(PART..4 * PART).collect(), grants: 1, until_ns });
    let options = SimOptions {
        faults: FaultPlan { memory, ..FaultPlan::default() },
        ..SimOptions::on_cluster(1, Cluster::new(Card::ConnectX5))
    };
    let mut sim = Sim::new(region(), &options);
    let answers = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&answers);
    sim.spawn(move |region| async move {
        let mut lane = region.lane();
        for part in [0..PART, PART..2 * PART, 2 * PART..3 * PART, PART..2 * PART, 4 * PART..5 * PART] {
            let answer = reserve(&mut lane, part).await;
            noted
                .borrow_mut()
                .push(answer.map_err(|error| matches!(error, FabricError::NoMemory { wanted: PART, .. })));
        }
        pause_until(&mut lane, until_ns).await;
        let answer = reserve(&mut lane, 2 * PART..3 * PART).await;
        noted.borrow_mut().push(answer.map_err(|_| false));
    });
    assert_eq!(sim.run(), Stopped::Ended);
    assert_eq!(*answers.borrow(), [Ok(()), Ok(()), Err(true), Ok(()), Ok(()), Ok(())]);
}
