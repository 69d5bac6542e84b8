//! The model with ConnectX-5 cards agrees with the paper's figure 1, and with READ rates of another paper.

use guira_fabric::Space;
use guira_fabric_sim::{Card, Cluster};

use crate::published::{FIGURE_1A, FIGURE_1C, READS_OF_SLOTS, figure_1b};
use guira_fabric_sim::load::{Addresses, Kind, Load, measure};

/// The largest distance from a published point.
const TOLERANCE: f64 = 0.05;

/// Whether a measured rate is near a published one.
fn is_near(what: &str, measured: f64, published: f64) -> bool {
    let distance = measured / published - 1.0;
    let fits = distance.abs() <= TOLERANCE;
    println!(
        "{what}: {measured:.2}, published {published:.2}, {:+.1} %{}",
        distance * 100.0,
        if fits { "" } else { " !" }
    );
    fits
}

#[test]
fn figure_1b_operations_against_offered_load() {
    let mut fits = true;
    for kind in [Kind::Write, Kind::Read, Kind::Cas] {
        for (requests, published) in figure_1b(kind) {
            let measured = measure(Cluster::new(Card::ConnectX5), requests, Load::of(kind), 1);
            fits &= is_near(&format!("{kind:?} with {requests} requests"), measured.mops, published);
        }
    }
    assert!(fits, "every point of figure 1(b) is met");
}

#[test]
fn figure_1c_atomics_on_one_and_on_many_addresses() {
    let mut fits = true;
    for (space, (one, independent)) in [Space::Main, Space::Device].into_iter().zip(FIGURE_1C) {
        for (addresses, published) in [(Addresses::One, one), (Addresses::Independent, independent)] {
            let load = Load { space, addresses, ..Load::of(Kind::Cas) };
            let measured = measure(Cluster::new(Card::ConnectX5), 360, load, 1);
            fits &= is_near(&format!("CAS in {space:?}, {addresses:?}"), measured.mops, published);
        }
    }
    assert!(fits, "every point of figure 1(c) is met");
}

/// The latency of one READ grows with its bytes as in figure 1(a).
#[test]
fn figure_1a_slope_of_the_latency_of_reads() {
    let cluster = Cluster { jitter_ns: 0, ..Cluster::new(Card::ConnectX5) };
    // One client: its rate is the inverse of the latency.
    let latency_us =
        |bytes: usize| 1.0 / measure(cluster, 1, Load { words: bytes / 8, ..Load::of(Kind::Read) }, 1).mops;
    let (shortest_us, published_shortest_us) = (latency_us(FIGURE_1A[0].0), FIGURE_1A[0].1);
    for (bytes, published_us) in FIGURE_1A {
        let rises_us = latency_us(bytes) - shortest_us;
        let published_rises_us = published_us - published_shortest_us;
        println!("READ of {bytes} bytes: {rises_us:.3} us more, published {published_rises_us:.3}");
        assert!((rises_us - published_rises_us).abs() < 0.12, "{bytes} bytes");
        assert!(bytes != 1024 || (rises_us / published_rises_us - 1.0).abs() < 0.1, "the slope");
    }
}

/// The sum of a part for the message and a part for the bytes agrees with what another paper measured between one
/// client host of 28 threads, with 16 READs in flight each, and one node.
#[test]
fn rates_of_reads_of_several_sizes() {
    let mut fits = true;
    for (bytes, published) in READS_OF_SLOTS {
        let cluster = Cluster::new(Card::ConnectX5).hosts(1).near_threads(14);
        let load = Load { words: bytes / 8, lanes: 16, ..Load::of(Kind::Read) };
        fits &= is_near(&format!("READs of {bytes} bytes"), measure(cluster, 28, load, 1).mops, published);
    }
    assert!(fits, "every rate is met");
}
