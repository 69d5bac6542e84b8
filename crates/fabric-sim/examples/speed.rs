//! Measures how many verbs a second one core simulates: `cargo run --release -p guira-fabric-sim --example speed`.
//!
//! It measures both models: latencies, and the network cards of a cluster with 8 client hosts. Clients post the batches
//! of lookups and changes (2 READs of a row; CAS and 2 READs, then WRITE and FETCH-ADD) to random rows, and do nothing
//! else. Tables that do not fit into the processor's caches show the cost of memory accesses.
#![forbid(unsafe_code)]

use std::time::Instant;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Lane, Profile, Region, Verb, post};
use guira_fabric_sim::{Card, Cluster, Network, Sim, SimOptions, SimRegion};

const ROW_WORDS: usize = 16;
const ROW_BYTES: u64 = ROW_WORDS as u64 * 8;
const DEVICE_BYTES: u64 = 256 << 10;
/// The client hosts.
const HOSTS: u32 = 8;
/// The approximate number of verbs of one measurement.
const VERBS: u64 = 1_000_000;
/// The virtual time of the trial that measures how many verbs are executed in a span.
const TRIAL_NS: u64 = 2_000_000;

fn main() {
    let network = SimOptions::new(1, Network::of(Profile::Mlx5));
    let cluster = SimOptions::on_cluster(1, Cluster::new(Card::ConnectX5));
    for (model, options) in [("latencies", network), ("network cards", cluster)] {
        for main_bytes in [1 << 20, 64 << 20] {
            println!("{model}, rows in {} MiB", main_bytes >> 20);
            [1, 16, 64, 256, 1024].iter().for_each(|clients| measure(&options, main_bytes, *clients));
        }
    }
}

fn measure(options: &SimOptions, main_bytes: u64, clients: u32) {
    let bytes = HeapRegion::new(main_bytes, DEVICE_BYTES, Profile::Mlx5.caps());
    let mut sim = Sim::new(bytes, options);
    for number in 0..clients {
        sim.spawn_on(number % HOSTS, move |region| work(region, main_bytes / ROW_BYTES, u64::from(number)));
    }
    let (mut end_ns, mut best, mut best_of_core) = (0, 0.0f64, 0.0f64);
    let mut next_span = |span_ns: u64| {
        end_ns += span_ns;
        let (before, started, started_s) = (sim.verbs(), Instant::now(), processor_seconds());
        sim.run_until(end_ns);
        (sim.verbs() - before, started.elapsed().as_secs_f64(), processor_seconds() - started_s)
    };
    let (trial, ..) = next_span(TRIAL_NS);
    let span_ns = TRIAL_NS * VERBS / trial.max(1);
    for _ in 0..5 {
        let (verbs, seconds, of_core) = next_span(span_ns);
        best = best.max(verbs as f64 / seconds);
        best_of_core = best_of_core.max(verbs as f64 / of_core.max(f64::MIN_POSITIVE));
    }
    let (best, best_of_core) = (best / 1e6, best_of_core / 1e6);
    println!(
        "{clients:>5} clients: {best:.2} million verbs a second, {best_of_core:.2} of processor time; the best of 5"
    );
}

/// Returns the processor time of this thread in seconds; on a shared machine it is less than the elapsed time.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

async fn work(region: SimRegion, rows: u64, number: u64) {
    let mut lane = region.lane();
    let mut state = number;
    let (mut first, mut second) = ([0; ROW_WORDS], [0; ROW_WORDS]);
    loop {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let row = |bits: u64| Addr::main(bits % rows * ROW_BYTES);
        let rows = [row(state >> 20), row(state >> 24)];
        let lock = Addr::device((state >> 16) % (DEVICE_BYTES / 8) * 8);
        let done = match state >> 63 {
            0 => look_up(&mut lane, rows, &mut first, &mut second).await,
            _ => change(&mut lane, rows, lock, &mut first, &mut second).await,
        };
        done.expect("nothing fails here");
    }
}

type Words = [u64; ROW_WORDS];

async fn look_up<L: Lane>(
    lane: &mut L,
    rows: [Addr; 2],
    first: &mut Words,
    second: &mut Words,
) -> Result<(), guira_fabric::FabricError> {
    post(lane, [Verb::Read { addr: rows[0], into: first }, Verb::Read { addr: rows[1], into: second }]).await
}

async fn change<L: Lane>(
    lane: &mut L,
    rows: [Addr; 2],
    lock: Addr,
    first: &mut Words,
    second: &mut Words,
) -> Result<(), guira_fabric::FabricError> {
    let mut found = 0;
    let take = Verb::MaskedCas { addr: lock, compare: 0, swap: 1, compare_mask: 1, swap_mask: 1, found: &mut found };
    let read = [Verb::Read { addr: rows[0], into: first }, Verb::Read { addr: rows[1], into: second }];
    let [read_first, read_second] = read;
    post(lane, [take, read_first, read_second]).await?;
    let give_back = Verb::FetchAdd { addr: lock, add: u64::MAX, found: &mut found };
    post(lane, [Verb::Write { addr: rows[0], words: first }, give_back]).await
}
