//! A measurement of how fast simulated runs are, on one core: `cargo run --release -p guira-lab --example simulation_speed
//! [RECORDS [MILLISECONDS]]`. It fills a table of `fixed:4:4` to 90 %, copies it, and runs YCSB-A and YCSB-C on the
//! copies, for so many milliseconds of virtual time.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ops::ControlFlow;
use std::time::Instant;

use guira_fabric::Profile;
use guira_fabric_sim::Network;
use guira_lab::simulated::{Audit, Compute, Deaths, FillPlan, FilledTable, Load, Mix, Queues, Run, run};
use guira_lab::steady::Span;
use guira_layout::{Preset, PresetOptions};
use guira_rcuckoo::ClientConfig;

const CLIENTS: u32 = 320;
const HOSTS: u32 = 8;
const WARM_NS: u64 = 200_000;
const SPAN_MS: u64 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let records = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let span_ms = std::env::args().nth(2).map_or(Ok(SPAN_MS), |text| text.parse())?;
    let caps = Profile::Mlx5.caps();
    let options = PresetOptions {
        capacity: records,
        format: "fixed:4:4".parse()?,
        extent_bytes: None,
        max_clients: Some(CLIENTS as u16),
        hash_seed: 1,
        device_bytes: caps.device_bytes,
    };
    let plan = FillPlan {
        config: Preset::Hardened.config(&options)?,
        caps,
        records,
        value_bytes: None,
        insert_row: None,
        seed: 1,
    };
    let started = Instant::now();
    let filled = FilledTable::new(&plan, &mut |_| ControlFlow::Continue(()))?;
    let fill_s = started.elapsed().as_secs_f64();
    println!("{records} records filled in {fill_s:.2} s, {:.0} ns each", fill_s * 1e9 / records as f64);
    for (name, mix, queues) in [
        ("YCSB-C", Mix::YCSB_C, Queues::None),
        ("YCSB-A", Mix::YCSB_A, Queues::PerHost),
        ("YCSB-A without queues", Mix::YCSB_A, Queues::None),
    ] {
        let started = Instant::now();
        let table = filled.fork()?;
        let fork_s = started.elapsed().as_secs_f64();
        let run_of = Run {
            load: Load {
                seed: 1,
                clients: CLIENTS,
                hosts: HOSTS,
                in_flight: 1,
                mix,
                theta: 0.99,
                warm_ns: WARM_NS,
                span: Span::Exactly(span_ms * 1_000_000),
                most_inserts: u64::MAX,
                compute: Compute::default(),
            },
            deaths: Deaths::NONE,
            queues,
            predictor_bytes: 0,
            client_config: ClientConfig::for_table(filled.table()).across(&caps),
            knows_locks: false,
            audit: Audit::Touched,
        };
        let started = Instant::now();
        let stats = run(&run_of, table, &Network::of(Profile::Mlx5), &mut |_| ControlFlow::Continue(()))?;
        let run_s = started.elapsed().as_secs_f64();
        println!(
            "{name}: copied in {fork_s:.2} s, {:.2} million operations per simulated second, {} verbs in {run_s:.2} s: \
             {:.2} million a second; {} watched; {} violations",
            stats.counts.per_second(stats.steadiness.span_ns) / 1e6,
            stats.verbs,
            stats.verbs as f64 / run_s / 1e6,
            stats.watched,
            stats.violation_count
        );
        stats.violations.iter().take(3).for_each(|violation| println!("{violation}"));
    }
    Ok(())
}
