//! A measurement of how fast the protocol runs in simulation, on one core: `cargo run --release -p guira-conformance
//! --example simulated_speed`. Half of the operations are lookups, half are puts of existing keys, of keys drawn
//! uniformly.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use guira_conformance::Bench;
use guira_fabric::{Profile, Region, SplitMix64};
use guira_fabric_sim::{Network, Sim, SimOptions, SimRegion};
use guira_layout::Preset;
use guira_rcuckoo::{Change, Client, ClientConfig, NewValue, SlotClient, Table, claim_slot};

const CLIENTS: u16 = 60;
/// Virtual time of a measurement.
const SPAN_NS: u64 = 20_000_000;

fn main() {
    for keys in [10_000, 1_000_000] {
        let bench = Bench::of_capacity(Preset::Hardened, "fixed:8:8", keys, Profile::Mlx5, 1);
        let mut filler = bench.client(CLIENTS);
        for key in 0..keys {
            filler.put(&key.to_le_bytes(), &key.to_le_bytes()).expect("room for every key");
        }
        let mut sim = Sim::new(bench.region.clone(), &SimOptions::new(1, Network::of(Profile::Mlx5)));
        for slot in 0..CLIENTS {
            let table = Arc::clone(&bench.table);
            sim.spawn(move |region| work(region, table, slot, keys));
        }
        let mut best = 0.0f64;
        for span in 1..=5 {
            let (before, started) = (sim.verbs(), Instant::now());
            sim.run_until(span * SPAN_NS);
            best = best.max((sim.verbs() - before) as f64 / started.elapsed().as_secs_f64());
        }
        println!("{keys} keys, {CLIENTS} clients: {:.2} million verbs per second, the best of 5", best / 1e6);
    }
}

async fn work(region: SimRegion, table: Arc<Table>, slot: u16, keys: u64) {
    let mut lane = region.lane();
    let owner = claim_slot(&mut lane, &table, slot, &SlotClient::default())
        .await
        .expect("nothing fails here")
        .expect("a free slot");
    let config = ClientConfig { seed: u64::from(slot), ..ClientConfig::for_table(&table) };
    let mut client = Client::new(table, owner, config);
    let (mut rng, mut value) = (SplitMix64(u64::from(slot)), Vec::new());
    loop {
        let key = rng.below(keys).to_le_bytes();
        if rng.below(2) == 0 {
            value.clear();
            let found = client.get(&mut lane, &key, &mut value).await.expect("nothing fails here");
            assert!(found.is_some(), "every key exists");
        } else {
            let put = Change::Put(NewValue::Inline(&key));
            client.change(&mut lane, &key, put).await.expect("nothing fails here");
        }
    }
}
