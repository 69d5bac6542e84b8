//! Cases computed by hand, on a cluster with round constants, with an idle network unless said otherwise.

use std::cell::RefCell;
use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Profile, Region, Verb, pause_until, post};
use guira_fabric_sim::{
    Card, CardParameters, Cluster, EventKind, HostParameters, Resource, Sim, SimOptions, SimRegion, Stopped,
};

/// A card whose links and PCIe are infinitely fast, and whose messages take a multiple of ten nanoseconds.
const ROUND_CARD: CardParameters = CardParameters {
    units: 1,
    word_read_ps: 10_000,
    read_ps: 20_000,
    read_byte_ps: 100,
    write_ps: 10_000,
    write_byte_ps: 0,
    atomic_message_ps: 10_000,
    atomic_engines: 1,
    device_atomic_ps: 20_000,
    main_atomic_ps: 40_000,
    device_word_ps: 100_000,
    main_word_ps: 300_000,
    client_message_ps: 0,
    fetch_ns: 400,
    idle_fetch_ns: 0,
    store_ns: 50,
    pcie_byte_ps: 0,
    link_byte_ps: 0,
    ..Card::ConnectX5.parameters()
};

const ROUND_HOST: HostParameters = HostParameters {
    near_threads: 2,
    doorbell_ns: 100,
    doorbell_lock_ns: 20,
    own_doorbells: 3,
    shared_doorbells: 1,
    request_ns: 50,
    completion_ns: 90,
    far_batch_ns: 2_000,
    far_reply_store_ns: 200,
    far_compute_percent: 150,
};

pub fn round() -> Cluster {
    Cluster {
        card: ROUND_CARD,
        host: ROUND_HOST,
        to_node_ns: 1_000,
        to_client_ns: 800,
        jitter_ns: 0,
        ..Cluster::new(Card::ConnectX5)
    }
}

/// The time at which a near thread's batch of one verb arrives: doorbell, request, travel.
pub const ARRIVES_NS: u64 = 100 + 50 + 1_000;
/// The time from the node's card to the end of a near thread's batch: travel, completion.
pub const RETURNS_NS: u64 = 800 + 90;

/// The events of a run: times, clients and kinds.
pub type Happened = Rc<RefCell<Vec<(u64, u32, EventKind)>>>;

pub fn simulation(cluster: Cluster) -> (Sim, Happened) {
    let region = HeapRegion::new(1 << 16, 1 << 12, Profile::Mlx5.caps());
    let mut sim = Sim::new(region, &SimOptions::on_cluster(1, cluster));
    let happened = Happened::default();
    let events = Rc::clone(&happened);
    sim.watch(move |event| events.borrow_mut().push((event.at_ns, event.client, event.kind)));
    (sim, happened)
}

/// Returns the times at which verbs of `client` took effect, and at which its replies arrived.
pub fn times(happened: &Happened, client: u32) -> (Vec<u64>, Vec<u64>) {
    let (mut effects, mut replies) = (Vec::new(), Vec::new());
    for (at_ns, _, kind) in happened.borrow().iter().filter(|event| event.1 == client) {
        match kind {
            EventKind::Read(_) | EventKind::Write(_) | EventKind::Swap(_) | EventKind::Add(_) => effects.push(*at_ns),
            EventKind::Replied => replies.push(*at_ns),
            _ => {}
        }
    }
    (effects, replies)
}

async fn read(region: SimRegion, addr: Addr, words: usize) {
    let mut into = vec![0; words];
    post(&mut region.lane(), [Verb::Read { addr, into: &mut into }]).await.expect("nothing fails here");
}

async fn write(region: SimRegion, addr: Addr, words: usize) {
    post(&mut region.lane(), [Verb::Write { addr, words: &vec![7; words] }]).await.expect("nothing fails here");
}

async fn swap(region: SimRegion, addr: Addr, compare: u64, swap: u64) -> u64 {
    let mut found = 0;
    post(&mut region.lane(), [Verb::Cas { addr, compare, swap, found: &mut found }]).await.expect("nothing fails here");
    found
}

#[test]
fn one_verb_takes_the_sum_of_its_steps() {
    let cases: [(Addr, u8, u64, u64); 6] = [
        // A READ of a word: the unit, the fetch.
        (Addr::main(8), b'r', ARRIVES_NS, ARRIVES_NS + 10 + 400 + RETURNS_NS),
        (Addr::device(8), b'r', ARRIVES_NS, ARRIVES_NS + 10 + RETURNS_NS),
        // A WRITE: the unit, the store.
        (Addr::main(8), b'w', ARRIVES_NS, ARRIVES_NS + 10 + 50 + RETURNS_NS),
        (Addr::device(8), b'w', ARRIVES_NS, ARRIVES_NS + 10 + RETURNS_NS),
        // A CAS takes effect when the unit and the word are done.
        (Addr::main(8), b'c', ARRIVES_NS + 10 + 300, ARRIVES_NS + 10 + 300 + RETURNS_NS),
        (Addr::device(8), b'c', ARRIVES_NS + 10 + 100, ARRIVES_NS + 10 + 100 + RETURNS_NS),
    ];
    for (addr, verb, takes_effect_ns, replied_ns) in cases {
        let (mut sim, happened) = simulation(round());
        sim.spawn(move |region| async move {
            match verb {
                b'r' => read(region, addr, 1).await,
                b'w' => write(region, addr, 1).await,
                _ => assert_eq!(swap(region, addr, 0, 1).await, 0),
            }
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(times(&happened, 0), (vec![takes_effect_ns], vec![replied_ns]), "{} at {addr}", verb as char);
    }
}

#[test]
fn a_read_takes_a_part_for_the_message_and_a_part_for_its_bytes() {
    for words in [2, 8, 128] {
        let (mut sim, happened) = simulation(round());
        sim.spawn(move |region| read(region, Addr::main(0), words));
        assert_eq!(sim.run(), Stopped::Ended);
        let unit_ns = 20 + (words as u64 * 8 * 100).div_ceil(1000);
        let (_, replies) = times(&happened, 0);
        assert_eq!(replies, [ARRIVES_NS + unit_ns + 400 + RETURNS_NS], "{words} words");
    }
}

#[test]
fn two_reads_of_a_batch_are_served_one_after_the_other() {
    let (mut sim, happened) = simulation(round());
    sim.spawn(|region| async move {
        let (mut first, mut second) = ([0; 8], [0; 8]);
        let reads = [
            Verb::Read { addr: Addr::main(0), into: &mut first },
            Verb::Read { addr: Addr::main(64), into: &mut second },
        ];
        post(&mut region.lane(), reads).await.expect("nothing fails here");
    });
    assert_eq!(sim.run(), Stopped::Ended);
    // Two requests, one doorbell; 64 bytes take 6.4 ns besides the 20 of the message. Fetches overlap.
    let arrives_ns = ARRIVES_NS + 50;
    let effects = vec![arrives_ns, arrives_ns + 27];
    assert_eq!(times(&happened, 0), (effects, vec![arrives_ns + 27 + 27 + 400 + RETURNS_NS]));
}

#[test]
fn a_read_behind_an_atomic_starts_after_it() {
    let (mut sim, happened) = simulation(round());
    sim.spawn(|region| async move {
        let (mut found, mut row) = (0, [0; 1]);
        let lock = Verb::Cas { addr: Addr::device(8), compare: 0, swap: 1, found: &mut found };
        let read = Verb::Read { addr: Addr::main(0), into: &mut row };
        post(&mut region.lane(), [lock, read]).await.expect("nothing fails here");
    });
    assert_eq!(sim.run(), Stopped::Ended);
    let locked_ns = ARRIVES_NS + 50 + 10 + 100;
    assert_eq!(times(&happened, 0), (vec![locked_ns, locked_ns], vec![locked_ns + 10 + 400 + RETURNS_NS]));
}

/// A release behind `spinners` retries of the lock is served after them.
#[test]
fn a_release_queues_behind_the_retries_that_arrived_before_it() {
    for spinners in [0, 1, 10, 100] {
        let cluster = round().hosts(spinners + 1);
        let (mut sim, happened) = simulation(cluster);
        let lock = Addr::device(64);
        sim.spawn(|_| async {});
        for host in 0..spinners {
            sim.spawn_on(host + 1, move |region| async move {
                swap(region, lock, 0, 2).await;
            });
        }
        // It is posted at the same time, and arrives last of all.
        let releaser = sim.spawn_on(0, move |region| async move {
            let mut lane = region.lane();
            pause_until(&mut lane, 1).await;
            swap(region, lock, 0, 0).await;
        });
        assert_eq!(sim.run(), Stopped::Ended);
        let first_ns = ARRIVES_NS + 10 + 100;
        let (effects, replies) = times(&happened, releaser.0);
        let released_ns = if spinners == 0 { first_ns + 1 } else { first_ns + u64::from(spinners) * 100 };
        assert_eq!((effects, replies), (vec![released_ns], vec![released_ns + RETURNS_NS]), "{spinners} spinners");
    }
}

/// Atomics on other words pass the queue of a busy word, at the pace of the engine.
#[test]
fn atomics_on_different_words_do_not_wait_for_each_other() {
    let (mut sim, happened) = simulation(round().hosts(16));
    for host in 0..16u32 {
        sim.spawn_on(host, move |region| async move {
            swap(region, Addr::device(u64::from(host) * 8), 0, 1).await;
        });
    }
    assert_eq!(sim.run(), Stopped::Ended);
    for host in 0..16 {
        let (effects, _) = times(&happened, host);
        assert_eq!(effects, [ARRIVES_NS + 10 + 20 * u64::from(host) + 100]);
    }
}

#[test]
fn far_threads_take_longer_and_doorbells_are_shared() {
    let (mut sim, happened) = simulation(round());
    for _ in 0..5 {
        sim.spawn_on(3, |region| read(region, Addr::device(0), 1));
    }
    assert_eq!(sim.run(), Stopped::Ended);
    let replied_ns = |thread: u32| times(&happened, thread).1[0];
    let near_ns = ARRIVES_NS + 10 + RETURNS_NS;
    // Each waits for the processing unit as well: their READs arrive together.
    assert_eq!((replied_ns(0), replied_ns(1)), (near_ns, near_ns + 10));
    assert_eq!(replied_ns(2), near_ns + 2_000 + 200);
    // The fourth and the fifth share a register with a lock: one rings after the other.
    assert_eq!((replied_ns(3), replied_ns(4)), (near_ns + 2_200 + 20, near_ns + 2_200 + 20 + 120));
}

#[test]
fn a_thread_computes_and_posts_one_thing_at_a_time() {
    for (host_threads, percent) in [(0, 100), (2, 150)] {
        let (mut sim, _) = simulation(round());
        for _ in 0..host_threads {
            sim.spawn(|_| async {});
        }
        let seen = Rc::new(RefCell::new(0));
        let ends_ns = Rc::clone(&seen);
        sim.spawn(|region| async move {
            assert_eq!(region.host(), 0);
            let mut lane = region.lane();
            lane.compute(1_000).await;
            *ends_ns.borrow_mut() = region.now_ns();
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(*seen.borrow(), 10 * percent);
    }
}

#[test]
fn a_long_write_takes_effect_when_its_last_byte_has_arrived() {
    let mut cluster = round();
    cluster.card.link_byte_ps = 80;
    let (mut sim, happened) = simulation(cluster);
    sim.spawn(|region| write(region, Addr::main(0), 512));
    assert_eq!(sim.run(), Stopped::Ended);
    // Four packets: 4096 bytes, 82 and three times 66 of headers, four times 24 of Ethernet.
    let sends_ps: u64 = (4096 + 82 + 3 * 66 + 4 * 24) * 80;
    let (effects, _) = times(&happened, 0);
    assert_eq!(effects, [ARRIVES_NS + sends_ps.div_ceil(1000)]);
}

#[test]
fn the_reply_to_a_verb_acknowledges_the_writes_before_it() {
    let mut cluster = round();
    cluster.card.link_byte_ps = 1_000_000;
    // A release stands behind its WRITEs: one reply of 70 bytes, and 24 of Ethernet. A WRITE at the end has its own, of 54.
    for (writes_before, writes_behind, reply_bytes) in [(0, 0, 94), (2, 0, 94), (2, 1, 94 + 78), (0, 3, 94 + 78)] {
        let (mut sim, _) = simulation(cluster);
        sim.spawn(move |region| async move {
            let mut found = 0;
            let write = || Verb::Write { addr: Addr::main(0), words: &[1] };
            let mut batch: Vec<_> = (0..writes_before).map(|_| write()).collect();
            batch.push(Verb::Cas { addr: Addr::device(0), compare: 0, swap: 1, found: &mut found });
            batch.extend((0..writes_behind).map(|_| write()));
            post(&mut region.lane(), batch).await.expect("a batch");
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(sim.usage().busy_ns(Resource::NodeLinkOut), reply_bytes * 1_000, "{writes_before} {writes_behind}");
    }
}

#[test]
fn what_is_busy_is_reported() {
    let (mut sim, _) = simulation(round().hosts(4));
    for host in 0..4 {
        sim.spawn_on(host, |region| async move {
            swap(region, Addr::device(128), 0, 1).await;
        });
    }
    let before = sim.usage();
    assert_eq!(sim.run(), Stopped::Ended);
    let usage = sim.usage().since(&before);
    assert_eq!(usage.span_ns(), sim.now_ns());
    assert_eq!(usage.busy_ns(Resource::BusiestWord), 400);
    assert_eq!(usage.busiest_word(), Some(Addr::device(128)));
    assert_eq!(usage.busy_ns(Resource::NodeAtomics), 80);
    assert_eq!(usage.busy_ns(Resource::NodeMessages), 40);
    assert_eq!(usage.busy_ns(Resource::ClientProcessors), 100 + 50 + 90);
    assert_eq!(usage.busiest().0, Resource::BusiestWord);
}
