//! Microbenchmarks of a modelled cluster: clients that keep one request each in flight, and the rate at which they are
//! served. Figure 1 of the paper is measured so.

use std::task::{Context, Poll};

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Profile, Region, Space, SplitMix64, Verb, pause_until, post};

use crate::{Cluster, Sim, SimLane, SimOptions, SimRegion, Usage};

/// The span before a measurement.
const WARM_UP_NS: u64 = 100_000;
/// Clients begin within this span, so that their requests do not arrive all at once.
const STAGGER_NS: u64 = 20_000;
/// The span of a measurement.
const SPAN_NS: u64 = 1_000_000;
/// The distance of the addresses of two clients.
const STRIDE_BYTES: u64 = 64;

/// The kind of verb that clients post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// READs.
    Read,
    /// WRITEs.
    Write,
    /// CAS of a word with itself.
    Cas,
}

/// The addresses that clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// All clients use one address.
    One,
    /// Each client has its own.
    Independent,
}

/// A load: what each of a number of clients does, again and again.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The kind of verb.
    pub kind: Kind,
    /// The space of the addresses.
    pub space: Space,
    /// The addresses of the clients.
    pub addresses: Addresses,
    /// The words of a READ or WRITE.
    pub words: usize,
    /// The lanes of a client, each with one request in flight.
    pub lanes: u32,
}

impl Load {
    /// Requests of 8 bytes in the main space, each client at an address of its own.
    pub fn of(kind: Kind) -> Load {
        Load { kind, space: Space::Main, addresses: Addresses::Independent, words: 1, lanes: 1 }
    }
}

/// The results of a load.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Millions of verbs a second.
    pub mops: f64,
    /// The use of the cluster's resources.
    pub usage: Usage,
    /// The hash of all events: equal loads with equal seeds have equal hashes.
    pub log_hash: u64,
}

/// Measures `load` with `clients` clients, spread evenly over the hosts of `cluster`.
pub fn measure(cluster: Cluster, clients: u32, load: Load, seed: u64) -> Measured {
    let bytes = u64::from(clients) * STRIDE_BYTES.max(load.words as u64 * 8);
    let region = HeapRegion::new(bytes, bytes, Profile::Mlx5.caps());
    let mut sim = Sim::new(region, &SimOptions::on_cluster(seed, cluster));
    let mut draws = SplitMix64(seed);
    for client in 0..clients {
        let begins_ns = draws.next_u64() % STAGGER_NS;
        let offset = match load.addresses {
            Addresses::One => 0,
            Addresses::Independent => u64::from(client) * STRIDE_BYTES.max(load.words as u64 * 8),
        };
        sim.spawn_on(client % cluster.hosts, move |region| repeat_on_lanes(region, load, offset, begins_ns));
    }
    sim.run_until(WARM_UP_NS);
    let (verbs, usage) = (sim.verbs(), sim.usage());
    sim.run_until(WARM_UP_NS + SPAN_NS);
    let mops = (sim.verbs() - verbs) as f64 * 1e3 / SPAN_NS as f64;
    Measured { mops, usage: sim.usage().since(&usage), log_hash: sim.log_hash() }
}

/// Repeats a verb on each lane of a client.
async fn repeat_on_lanes(region: SimRegion, load: Load, offset: u64, begins_ns: u64) {
    let repeat = |_| Box::pin(repeat(region.lane(), load, offset, begins_ns));
    let mut lanes: Vec<_> = (0..load.lanes).map(repeat).collect();
    let poll_all = |cx: &mut Context<'_>| {
        lanes.iter_mut().for_each(|lane| assert!(lane.as_mut().poll(cx).is_pending(), "a lane never ends"));
        Poll::Pending
    };
    std::future::poll_fn(poll_all).await
}

async fn repeat(mut lane: SimLane, load: Load, offset: u64, begins_ns: u64) {
    let addr = match load.space {
        Space::Main => Addr::main(offset),
        Space::Device => Addr::device(offset),
    };
    let (mut words, mut found) = (vec![0; load.words], 0);
    pause_until(&mut lane, begins_ns).await;
    loop {
        let (words, found) = (&mut words, &mut found);
        let verb = match load.kind {
            Kind::Read => Verb::Read { addr, into: words },
            Kind::Write => Verb::Write { addr, words },
            Kind::Cas => Verb::Cas { addr, compare: 0, swap: 0, found },
        };
        post(&mut lane, [verb]).await.expect("nothing fails here");
    }
}
