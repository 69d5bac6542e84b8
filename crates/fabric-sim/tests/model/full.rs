//! Resources that are full bound the rate, and the usage says which.

use guira_fabric::Space;
use guira_fabric_sim::{Card, Cluster, Resource};

use guira_fabric_sim::load::{Addresses, Kind, Load, measure};

/// The distance between a rate and its bound.
const TOLERANCE: f64 = 0.01;

fn assert_bound(what: &str, mops: f64, bound: f64) {
    assert!((mops / bound - 1.0).abs() < TOLERANCE, "{what}: {mops:.3} million a second, bound {bound:.3}");
}

#[test]
fn long_reads_fill_the_link_from_the_node() {
    for (bytes, packets) in [(1024u64, 1u64), (4096, 4)] {
        let load = Load { words: bytes as usize / 8, ..Load::of(Kind::Read) };
        let measured = measure(Cluster::new(Card::ConnectX5), 96, load, 1);
        // At 100 Gbit/s a byte takes 80 ps.
        let bound = 1e6 / ((bytes + packets * (62 + 24)) * 80) as f64;
        assert_bound(&format!("READs of {bytes} bytes"), measured.mops, bound);
        let (resource, share) = measured.usage.busiest();
        assert_eq!(resource, Resource::NodeLinkOut);
        assert!(share > 0.98, "{share}");
        assert!(measured.usage.share(Resource::NodeLinkIn) < 0.15, "requests are short");
    }
}

#[test]
fn long_writes_fill_the_link_to_the_node() {
    let load = Load { words: 512, ..Load::of(Kind::Write) };
    let measured = measure(Cluster::new(Card::ConnectX5), 96, load, 1);
    let bound = 1e6 / ((4096 + 82 + 3 * 66 + 4 * 24) * 80) as f64;
    assert_bound("WRITEs of 4 KiB", measured.mops, bound);
    assert_eq!(measured.usage.busiest().0, Resource::NodeLinkIn);
}

#[test]
fn clients_of_one_host_share_its_link() {
    let load = Load { words: 512, ..Load::of(Kind::Read) };
    let mut cluster = Cluster::new(Card::ConnectX5).hosts(1).near_threads(48);
    // Only the host's link is slower than it was.
    cluster.card.link_byte_ps = 80;
    let one = measure(cluster, 48, load, 1);
    let two = measure(cluster.hosts(2), 48, load, 1);
    let bound = 1e6 / ((4096 + 4 * (62 + 24)) * 80) as f64;
    assert_bound("one host", one.mops, bound);
    assert_bound("two hosts", two.mops, bound);
    assert!(one.usage.share(Resource::HostLinkIn) > 0.98);
    assert!(two.usage.share(Resource::HostLinkIn) < 0.52);
}

#[test]
fn atomics_are_bound_by_their_word_or_by_the_engine() {
    for (addresses, resource) in
        [(Addresses::One, Resource::BusiestWord), (Addresses::Independent, Resource::NodeAtomics)]
    {
        let load = Load { space: Space::Device, addresses, ..Load::of(Kind::Cas) };
        let measured = measure(Cluster::new(Card::ConnectX5), 360, load, 1);
        assert_eq!(measured.usage.busiest().0, resource);
    }
}

#[test]
fn a_few_clients_wait_for_round_trips() {
    let measured = measure(Cluster::new(Card::ConnectX5), 4, Load::of(Kind::Read), 1);
    let (_, share) = measured.usage.busiest();
    assert!(share < 0.2, "nothing is busy: {share}");
}

#[test]
fn newer_cards_are_faster_and_every_card_works() {
    let rates = Card::ALL.map(|card| {
        let load = Load { words: 8, ..Load::of(Kind::Read) };
        measure(Cluster::new(card), 640, load, 1).mops
    });
    assert!(rates.is_sorted(), "{rates:?}");
    assert!(rates[3] > 2.0 * rates[0], "{rates:?}");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed| measure(Cluster::new(Card::ConnectX5), 100, Load::of(Kind::Cas), seed).log_hash;
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
