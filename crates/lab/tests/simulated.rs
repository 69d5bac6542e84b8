//! Simulated runs on filled tables: what clients do is checked, equal runs are equal, and what is wrong is found.

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use guira_fabric::{Profile, Region};
use guira_fabric_sim::{Card, Cluster, Network, Resource};
use guira_lab::driver::OperationTally;
use guira_lab::simulated::{
    Audit, Compute, Deaths, FillError, FillPlan, FilledTable, LOADED, Load, Mix, Queues, Run, RunError, RunStats,
    Testbed, ValueError, Victims, run,
};
use guira_lab::steady::Span;
use guira_lab::workload::WorkloadError;
use guira_layout::{Preset, PresetOptions, TableConfig};
use guira_rcuckoo::{Change, Client, ClientConfig, NewValue, Reader, SlotClient, claim_slot, release_slot};

const SEED: u64 = 20_260_701;
const SLOTS: u16 = 48;
const CLIENTS: u32 = 32;
/// Bytes of the record of a split, without the words for an extent that a commit frees.
const RECORD_BYTES: u64 = 48;

fn plan(preset: Preset, format: &str, capacity: u64, records: u64) -> FillPlan {
    let caps = Profile::Mlx5.caps();
    let options = PresetOptions {
        capacity,
        format: format.parse().expect("nothing fails here"),
        extent_bytes: None,
        max_clients: Some(SLOTS),
        hash_seed: SEED,
        device_bytes: caps.device_bytes,
    };
    let config = preset.config(&options).expect("nothing fails here");
    FillPlan { config, caps, records, value_bytes: None, insert_row: None, seed: SEED }
}

fn filled(format: &str, capacity: u64, records: u64) -> FilledTable {
    fill(&plan(Preset::Hardened, format, capacity, records)).expect("nothing fails here")
}

fn fill(plan: &FillPlan) -> Result<FilledTable, FillError> {
    FilledTable::new(plan, &mut |_| ControlFlow::Continue(()))
}

fn a_run(filled: &FilledTable, mix: Mix) -> Run {
    let load = Load {
        seed: SEED,
        clients: CLIENTS,
        hosts: 4,
        in_flight: 1,
        mix,
        theta: 0.99,
        warm_ns: 50_000,
        span: Span::Exactly(500_000),
        most_inserts: u64::MAX,
        compute: Compute::default(),
    };
    Run {
        load,
        deaths: Deaths::NONE,
        queues: Queues::None,
        predictor_bytes: 0,
        client_config: ClientConfig::for_table(filled.table()).across(&Profile::Mlx5.caps()),
        knows_locks: false,
        audit: Audit::Whole,
    }
}

/// Returns the run with another load.
fn with_load(mut a_run: Run, change: impl FnOnce(&mut Load)) -> Run {
    change(&mut a_run.load);
    a_run
}

fn carry_out(a_run: &Run, filled: FilledTable) -> RunStats {
    on(a_run, filled, &Network::of(Profile::Mlx5))
}

fn on(a_run: &Run, filled: FilledTable, testbed: &dyn Testbed) -> RunStats {
    run(a_run, filled, testbed, &mut |_| ControlFlow::Continue(())).expect("nothing fails here")
}

/// Everything in the results of a run.
fn all(stats: &RunStats) -> String {
    let RunStats { counts, longest_ns, counters, busy, full, deaths, .. } = stats;
    let operations = serde_json::to_string(&counts.operations).expect("nothing fails here");
    let operations_by_client = &counts.by_client;
    let others = [*busy, *full, *deaths, stats.recoveries, stats.replays, stats.watched, stats.verbs, *longest_ns];
    format!("{operations} {operations_by_client:?} {counters:?} {others:?} {:?}", stats.violations)
}

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a lane that executes in place never waits"),
    }
}

/// Changes a table as a client outside the simulation.
fn change(filled: &FilledTable, record: u64, change: Change<'_>) {
    let (table, mut key) = (filled.table(), Vec::new());
    filled.records().key_into(record, &mut key);
    let mut lane = filled.region().with_caps(Profile::Shm.caps()).lane();
    let owner = ready(claim_slot(&mut lane, table, 0, &SlotClient::default())).expect("the heap").expect("a free slot");
    let mut client = Client::new(Arc::clone(table), owner, ClientConfig::for_table(table));
    ready(client.change(&mut lane, &key, change)).expect("nothing fails here");
    ready(release_slot(&mut lane, table, owner)).expect("nothing fails here");
}

#[test]
fn a_filled_table_holds_its_records_and_nothing_else() {
    for (preset, format, records) in [
        (Preset::Hardened, "fixed:4:4", 20_000),
        (Preset::Hardened, "fixed:8:8", 20_000),
        (Preset::Hardened, "fixed:8:100", 3_000),
        (Preset::Hardened, "bytes:64", 3_000),
        (Preset::Paper, "fixed:4:4", 20_000),
        (Preset::Tiny, "fixed:4:4", 3_000),
    ] {
        let filled = fill(&plan(preset, format, records, records)).unwrap();
        let (table, mut lane) = (filled.table(), filled.region().with_caps(Profile::Shm.caps()).lane());
        let mut reader = Reader::new(Arc::clone(table), ClientConfig::for_table(table));
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for record in 0..records + 100 {
            filled.records().key_into(record, &mut key);
            value.clear();
            let found = ready(reader.get(&mut lane, &key, &mut value)).unwrap();
            assert_eq!(found.is_some(), record < records, "{preset} {format}, record {record}");
            if found.is_some() {
                assert_eq!(filled.records().serial_of(record, &value), Some(LOADED), "{preset} {format}");
            }
        }
    }
}

#[test]
fn equal_plans_give_equal_bytes_and_forks_go_their_own_way() {
    let (one, two) = (filled("fixed:4:4", 5_000, 5_000), filled("fixed:4:4", 5_000, 5_000));
    let words = |filled: &FilledTable| -> Vec<u64> {
        let memory = filled.region().memory();
        let cells = memory.main.iter().chain(memory.device);
        cells.map(|word| word.load(std::sync::atomic::Ordering::Relaxed)).collect()
    };
    assert!(words(&one) == words(&two), "a table's bytes follow from its plan");
    let fork = one.fork().unwrap();
    change(&fork, 7, Change::Remove);
    assert!(words(&one) == words(&two) && words(&fork) != words(&one));
}

#[test]
fn tables_that_cannot_be_filled_are_refused() {
    let huge = plan(Preset::Hardened, "fixed:4:4", 1 << 40, 4_000_000_000);
    let refused = fill(&huge).err().unwrap();
    assert!(matches!(refused, FillError::Memory { needed_bytes, .. } if needed_bytes > 1 << 43), "{refused}");
    let short = fill(&plan(Preset::Hardened, "fixed:8:2", 100, 10)).err().unwrap();
    assert_eq!(short, FillError::Values(ValueError::Short { value_bytes: 2 }));
    let other = FillPlan { value_bytes: Some(16), ..plan(Preset::Hardened, "fixed:8:8", 100, 10) };
    let format = other.config.format;
    assert_eq!(fill(&other).err(), Some(FillError::Values(ValueError::Format { format, value_bytes: 16 })));
    let long = FillPlan { value_bytes: Some(1_024), ..plan(Preset::Hardened, "bytes:24", 5_000, 5_000) };
    let full = fill(&long).err().unwrap();
    assert!(matches!(full, FillError::Record { record: 1_000.., records: 5_000, .. }), "{full}");
    let few = fill(&plan(Preset::Hardened, "fixed:1:4", 1_000, 257)).err().unwrap();
    assert_eq!(few, FillError::Keys { format: "fixed:1:4".to_owned(), most: 256, records: 257 });
    let full = fill(&plan(Preset::Hardened, "fixed:4:4", 5_000, 20_000)).err().unwrap();
    assert!(matches!(full, FillError::NoRoom { record: 5_000.., records: 20_000, .. }), "{full}");
    let stopped = FilledTable::new(&plan(Preset::Hardened, "fixed:8:8", 2_000_000, 1_200_000), &mut |stored| {
        assert!(stored > 1_000_000);
        ControlFlow::Break(())
    });
    assert_eq!(stopped.err(), Some(FillError::Stopped));
}

/// Every mix on both formats, with and without queues: nothing is wrong, each kind of operation happens as often as
/// the mix says, inserts are in the table at the end, and equal runs have equal results.
#[test]
fn every_mix_runs_without_a_violation_and_equal_runs_are_equal() {
    for format in ["fixed:4:4", "fixed:8:8"] {
        let filled = filled(format, 40_000, 25_000);
        for mix in [Mix::YCSB_A, Mix::YCSB_B, Mix::YCSB_C, Mix::A_PRIME, Mix::B_PRIME, Mix::W] {
            for queues in [Queues::None, Queues::PerHost] {
                let a_run = Run { queues, ..a_run(&filled, mix) };
                let stats = carry_out(&a_run, filled.fork().unwrap());
                assert_eq!(stats.violations, Vec::<String>::new(), "{format} {mix:?} {queues:?}");
                let (operations, all_kinds) = (&stats.counts.operations, stats.counts.succeeded());
                assert!(all_kinds > 1_000, "{format} {mix:?}: {all_kinds} operations");
                for (tally, percent) in [
                    (&operations.read, mix.read_percent),
                    (&operations.update, mix.update_percent),
                    (&operations.insert, mix.insert_percent),
                ] {
                    let share = tally.count as f64 * 100.0 / all_kinds as f64;
                    assert!((share - f64::from(percent)).abs() < 4.0, "{format} {mix:?}: {share} for {percent}");
                    assert!(tally.count == 0 || (tally.round_trips.quantile(0.5) >= 1 && tally.wire_bytes > 0));
                }
                assert!(operations.read.count == 0 || operations.read.round_trips.quantile(0.5) == 1);
                let inserted = stats.records_at_end.unwrap() - 25_000;
                assert!((inserted > 0) == (mix.insert_percent > 0) && inserted >= operations.insert.count);
                assert_eq!(stats.counts.by_client.iter().sum::<u64>(), all_kinds);
                assert!((0.0..=1.0).contains(&stats.counts.fairness()));
                assert_eq!(all(&carry_out(&a_run, filled.fork().unwrap())), all(&stats), "{format} {mix:?} {queues:?}");
                let other = with_load(a_run, |load| load.seed += 1);
                assert_ne!(all(&carry_out(&other, filled.fork().unwrap())), all(&stats), "{format} {mix:?}");
            }
        }
    }
}

/// A table of 1,500 records with values of `value_bytes` bytes, those that do not fit in a row in extents.
fn filled_with(preset: Preset, value_bytes: usize) -> FilledTable {
    let of_default = plan(preset, "bytes:24", 2_000, 1_500);
    // 3 chunks for each client, besides the records'.
    let chunks = 60 + 3 * u64::from(CLIENTS);
    let config = TableConfig { chunks, ..of_default.config };
    fill(&FillPlan { config, value_bytes: Some(value_bytes), ..of_default }).expect("nothing fails here")
}

/// Values in rows and in extents: nothing is wrong, no extent leaks, and the round trips are those of the protocol. One
/// client alone has no conflicts, and a read of rows that are far apart still is one batch. [R-READ-6] [R-UPDATE-2]
#[test]
fn values_of_any_length_cost_the_round_trips_of_the_protocol() {
    for (value_bytes, read, update) in [(8, 1, 2), (64, 2, 3), (1_024, 2, 3)] {
        for preset in [Preset::Hardened, Preset::Paper] {
            let filled = filled_with(preset, value_bytes);
            let alone = with_load(a_run(&filled, Mix::YCSB_A), |load| {
                *load = Load { clients: 1, hosts: 1, theta: 0.0, ..load.clone() };
            });
            let stats = carry_out(&alone, filled.fork().unwrap());
            assert_eq!(stats.violations, Vec::<String>::new(), "{preset}, {value_bytes} bytes");
            let operations = &stats.counts.operations;
            let median = |tally: &OperationTally| tally.round_trips.quantile(0.5);
            assert_eq!((median(&operations.read), median(&operations.update)), (read, update), "{preset}");
            assert_eq!(operations.read.round_trips.quantile(1.0), read, "{preset}, {value_bytes} bytes");
            let least = (value_bytes * operations.read.count as usize) as u64;
            assert!(operations.read.wire_bytes > least, "{preset}, {value_bytes} bytes");
            assert_eq!(stats.records_at_end, Some(1_500));
        }
    }
}

/// Many clients replace each other's extents, and add more; also while clients die. [R-EXTENT-4] [R-RECOVER-7]
#[test]
fn extents_that_many_clients_replace_are_neither_lost_nor_leaked() {
    let mix = Mix { read_percent: 50, update_percent: 45, insert_percent: 5 };
    for value_bytes in [64, 1_024] {
        let filled = filled_with(Preset::Hardened, value_bytes);
        for per_second in [0, 20_000] {
            let deaths = Deaths { per_second, victims: Victims::LockHolders };
            for (queues, audit) in [(Queues::None, Audit::Whole), (Queues::PerHost, Audit::Touched)] {
                let a_run = Run { deaths, queues, audit, ..a_run(&filled, mix) };
                let a_run = with_load(a_run, |load| load.span = Span::Exactly(1_000_000));
                let stats = carry_out(&a_run, filled.fork().unwrap());
                assert_eq!(stats.violations, Vec::<String>::new(), "{value_bytes} bytes, {deaths:?}");
                assert!(
                    stats.counts.operations.update.count > 200 && stats.counts.operations.insert.count > 20,
                    "{}",
                    all(&stats)
                );
                assert!((stats.deaths > 0) == (per_second > 0), "{}", all(&stats));
            }
        }
    }
}

/// Clients of a host that want the same lock wait in its queue, where their writes are combined: fewer ask for it in
/// vain, and more is done. [R-LOCK-4] [R-LOCK-8]
#[test]
fn queues_spare_round_trips_where_all_want_one_record() {
    let filled = filled("fixed:4:4", 20_000, 20_000);
    let steep = with_load(a_run(&filled, Mix::YCSB_A), |load| load.theta = 1.5);
    let alone = carry_out(&steep, filled.fork().unwrap());
    let queued = carry_out(&Run { queues: Queues::PerHost, ..steep }, filled.fork().unwrap());
    assert_eq!((&alone.violations, &queued.violations), (&Vec::new(), &Vec::new()));
    // Without queues, waiting writes end when other clients overwrite them. [R-LOCK-10]
    assert!(alone.counters.queue_waits == 0 && alone.counters.combined > 100, "{:?}", alone.counters);
    assert!(queued.counters.queue_waits > 200 && queued.counters.combined > 100, "{:?}", queued.counters);
    let conflicts =
        |stats: &RunStats| stats.counters.lock_conflicts as f64 / stats.counts.operations.update.count as f64;
    assert!(conflicts(&queued) < conflicts(&alone), "{} and {}", conflicts(&queued), conflicts(&alone));
}

/// Clients that die are recovered by others, also inside queues; nothing is lost. [R-RECOVER-3]
/// [R-LOCK-4] The popular keys of some tables share a lock word: hundreds of clients that wait for it without a queue
/// must not keep it from being released.
#[test]
fn waiting_clients_leave_time_for_the_release_of_a_lock_word() {
    const MANY: u32 = 320;
    for seed in [2, 3, 6] {
        let caps = Profile::Mlx5.caps();
        let options = PresetOptions {
            capacity: 180_000,
            format: "fixed:4:4".parse().expect("nothing fails here"),
            extent_bytes: None,
            max_clients: Some(MANY as u16),
            hash_seed: seed,
            device_bytes: caps.device_bytes,
        };
        let config = Preset::Hardened.config(&options).expect("nothing fails here");
        let plan = FillPlan { config, caps, records: 180_000, value_bytes: None, insert_row: None, seed };
        let filled = fill(&plan).expect("nothing fails here");
        let [with_queues, without] = [Queues::PerHost, Queues::None].map(|queues| {
            let a_run = a_run(&filled, Mix::YCSB_A);
            let span = Span::Exactly(1_000_000);
            let load = Load { seed, clients: MANY, hosts: 8, warm_ns: 500_000, span, ..a_run.load };
            let a_run = Run { load, queues, ..a_run };
            let table = filled.fork().expect("nothing fails here");
            on(&a_run, table, &Cluster::new(Card::ConnectX5).hosts(8)).counts.succeeded()
        });
        println!("seed {seed}: {with_queues} operations with queues, {without} without");
        assert!(2 * without > with_queues, "seed {seed}: {with_queues} operations with queues, {without} without");
    }
}

#[test]
fn clients_that_die_are_replaced_and_nothing_is_lost() {
    let filled = filled("fixed:4:4", 20_000, 15_000);
    for (victims, queues) in [(Victims::Any, Queues::PerHost), (Victims::LockHolders, Queues::None)] {
        let deaths = Deaths { per_second: 50_000, victims };
        let mix = Mix { read_percent: 40, update_percent: 40, insert_percent: 20 };
        let a_run = Run { deaths, queues, ..a_run(&filled, mix) };
        let a_run = with_load(a_run, |load| load.span = Span::Exactly(3_000_000));
        let stats = carry_out(&a_run, filled.fork().unwrap());
        assert_eq!(stats.violations, Vec::<String>::new(), "{victims:?}");
        assert!(stats.deaths > 50 && stats.recoveries > 20 && stats.watched > 5, "{}", all(&stats));
        assert_eq!(all(&carry_out(&a_run, filled.fork().unwrap())), all(&stats), "{victims:?}");
    }
}

/// The printed protocol runs in the same way; deaths there are repaired after the timeouts, not recovered.
#[test]
fn tables_of_preset_paper_run() {
    let filled = fill(&plan(Preset::Paper, "fixed:4:4", 20_000, 15_000)).unwrap();
    let mix = Mix { read_percent: 50, update_percent: 25, insert_percent: 25 };
    let stats = carry_out(&a_run(&filled, mix), filled.fork().unwrap());
    assert_eq!(stats.violations, Vec::<String>::new());
    assert!(stats.counts.succeeded() > 1_000 && stats.counts.operations.insert.count > 100, "{}", all(&stats));
    let deaths = Deaths { per_second: 20_000, victims: Victims::Any };
    let client_config = ClientConfig {
        failure_timeout_ns: 50_000,
        lease_timeout_ns: 50_000,
        ..ClientConfig::for_table(filled.table())
    };
    for audit in [Audit::Whole, Audit::Touched] {
        let mortal = Run { deaths, client_config, audit, ..a_run(&filled, Mix::YCSB_B) };
        let stats = carry_out(&mortal, filled.fork().unwrap());
        assert!(stats.deaths > 3 && stats.counts.succeeded() > 1_000, "{}", all(&stats));
        assert!(!stats.violations.iter().any(|violation| violation.starts_with("at the end: ")), "{}", all(&stats));
    }
}

/// Clients that compute do fewer operations, and the time is a part of each of them.
#[test]
fn clients_compute() {
    let filled = filled("fixed:8:8", 5_000, 5_000);
    let idle = a_run(&filled, Mix::YCSB_A);
    let compute = Compute { lookup_ns: 10_000, change_ns: 30_000 };
    let busy = with_load(idle.clone(), |load| load.compute = compute);
    let [idle, busy] = [idle, busy].map(|a_run| carry_out(&a_run, filled.fork().unwrap()).counts);
    assert!(busy.succeeded() * 3 < idle.succeeded(), "{} and {}", busy.succeeded(), idle.succeeded());
    let [read, update] = [&busy.operations.read, &busy.operations.update].map(|tally| tally.latency_ns.quantile(0.0));
    assert!((10_000..30_000).contains(&read) && update >= 30_000, "{read} and {update} ns");
}

/// Clients with several operations at once do more, have a slot for each, and die and are replaced as one.
#[test]
fn a_client_has_several_operations_at_once() {
    let filled = filled("fixed:4:4", 20_000, 15_000);
    let single = with_load(a_run(&filled, Mix::YCSB_C), |load| load.clients = 8);
    let several = with_load(single.clone(), |load| load.in_flight = 6);
    let [single, several] = [single, several].map(|a_run| {
        let stats = on(&a_run, filled.fork().unwrap(), &Cluster::new(Card::ConnectX5).hosts(4));
        assert_eq!(stats.violations, Vec::<String>::new());
        assert_eq!(stats.counts.by_client.len(), 8);
        stats.counts.succeeded()
    });
    assert!((4 * single..7 * single).contains(&several), "{single} and {several}");
    let mortal = with_load(a_run(&filled, Mix { read_percent: 40, update_percent: 40, insert_percent: 20 }), |load| {
        *load = Load { clients: 8, in_flight: 4, span: Span::Exactly(3_000_000), ..load.clone() };
    });
    let mortal = Run { deaths: Deaths { per_second: 20_000, victims: Victims::LockHolders }, ..mortal };
    let stats = carry_out(&mortal, filled.fork().unwrap());
    assert_eq!(stats.violations, Vec::<String>::new());
    assert!(stats.deaths > 20 && stats.recoveries >= stats.deaths, "{}", all(&stats));
    assert_eq!(all(&carry_out(&mortal, filled.fork().unwrap())), all(&stats));
    let too_many = with_load(a_run(&filled, Mix::YCSB_C), |load| load.in_flight = 2);
    let network = Network::of(Profile::Mlx5);
    let refused = run(&too_many, filled.fork().unwrap(), &network, &mut |_| ControlFlow::Continue(()));
    assert_eq!(refused.err(), Some(RunError::Clients { clients: 64, most: 48 }));
}

/// The same run on a cluster with cards.
#[test]
fn hosts_of_a_cluster_share_their_cards() {
    let filled = filled("fixed:4:4", 20_000, 20_000);
    let a_run = Run { queues: Queues::PerHost, ..a_run(&filled, Mix::YCSB_A) };
    let stats = on(&a_run, filled.fork().unwrap(), &Cluster::new(Card::ConnectX5).hosts(4));
    assert_eq!(stats.violations, Vec::<String>::new());
    assert!(stats.counts.succeeded() > 1_000);
}

/// A table that is made for 1,000 records and holds them, and may grow beyond any that a test stores.
fn growing() -> FilledTable {
    let fixed = plan(Preset::Hardened, "fixed:8:8", 1_000, 1_000);
    let options = PresetOptions {
        capacity: 1_000,
        format: fixed.config.format,
        extent_bytes: None,
        max_clients: Some(SLOTS),
        hash_seed: SEED,
        device_bytes: fixed.caps.device_bytes,
    };
    let config = Preset::Hardened.config_growing_to(200_000, &options).expect("nothing fails here");
    fill(&FillPlan { config, ..fixed }).expect("nothing fails here")
}

/// A run of inserts that ends with the last of so many.
fn a_load(filled: &FilledTable, clients: u32, inserts: u64) -> Run {
    with_load(a_run(filled, Mix::W), |load| {
        let (hosts, span) = (clients.min(4), Span::UntilFull);
        *load = Load { clients, hosts, warm_ns: 0, span, most_inserts: inserts, ..load.clone() };
    })
}

/// Where clients poll, an element that knows locks takes atomics from the memory node, and nobody loses anything by it.
#[test]
fn an_element_that_knows_locks_spares_atomics() {
    let filled = fill(&plan(Preset::Hardened, "fixed:4:4", 2_000, 2_000)).expect("nothing fails here");
    let [without, with] = [false, true].map(|knows_locks| {
        let a_run = with_load(a_run(&filled, Mix::YCSB_A), |load| load.theta = 1.5);
        let client_config = ClientConfig { backoff_ns: 0, ..a_run.client_config };
        let a_run = Run { knows_locks, client_config, ..a_run };
        let stats = on(&a_run, filled.fork().expect("nothing fails here"), &Cluster::new(Card::ConnectX5).hosts(4));
        assert_eq!(stats.violations, Vec::<String>::new());
        assert_eq!(stats.element_bytes > 0, knows_locks);
        stats.usage.busy_ns(Resource::NodeAtomics)
    });
    assert!(with < without, "atomics take {with} ns with the element, {without} without");
}

/// [R-GROW-8] A split costs what the protocol says, and nobody waits for it where nobody else is.
#[test]
fn a_split_of_a_client_that_is_alone_costs_what_the_protocol_says() {
    const INSERTS: u64 = 50_000;
    let filled = growing();
    let stats = carry_out(&a_load(&filled, 1, INSERTS), filled.clone());
    assert_eq!((&stats.violations, stats.counts.operations.insert.count), (&Vec::new(), INSERTS));
    assert_eq!(stats.records_at_end, Some(1_000 + INSERTS));
    let costs = &stats.splits;
    let splits = costs.splits.count;
    assert_eq!((splits, costs.held_ns.count(), costs.in_vain), (stats.counters.splits, stats.counters.splits, 0));
    assert_eq!(filled.rows().expect("the heap").count(), (1 + splits) * 1_024);
    assert!(splits > 6, "{splits} splits");
    assert_eq!((costs.waits_ns.count(), costs.waits_ns.max()), (0, 0));
    let (trips, segment, locks) = (&costs.splits.round_trips, 1_024 * 128, 2 * 1_024 / 16 / 4);
    assert_eq!((trips.quantile(0.0), trips.max()), (3, 3));
    assert_eq!(costs.splits.messages, splits * (locks + 1 + 6 + locks));
    // Masked CAS and FETCH-ADDs; the READ; the WRITEs of both segments, the record, its retirement and two map words.
    let bytes = locks * (102 + 70 + 78 + 70) + (136 + segment) + (6 * 136 + 2 * segment + RECORD_BYTES + 3 * 8);
    assert_eq!(costs.splits.wire_bytes, splits * bytes);
}

/// Clients that grow a table together lose nothing, split no segment twice, and wait for each other's splits. [R-GROW-5]
#[test]
fn clients_that_grow_a_table_together_wait_for_its_splits() {
    const INSERTS: u64 = 30_000;
    let filled = growing();
    for queues in [Queues::None, Queues::PerHost] {
        let a_load = Run { queues, ..a_load(&filled, CLIENTS, INSERTS) };
        let grown = || {
            let table = filled.fork().expect("nothing fails here");
            (on(&a_load, table.clone(), &Cluster::new(Card::ConnectX5).hosts(4)), table)
        };
        let (stats, table) = grown();
        assert_eq!(stats.violations, Vec::<String>::new());
        assert_eq!((stats.records_at_end, stats.full, stats.busy), (Some(1_000 + INSERTS), 0, 0));
        let costs = &stats.splits;
        assert_eq!(costs.splits.count, stats.counters.splits);
        assert_eq!(table.rows().expect("the heap").count(), (1 + costs.splits.count) * 1_024);
        // Time for memory comes before the locks.
        assert!(costs.held_ns.max() < costs.splits.latency_ns.max(), "{costs:?}");
        assert!(costs.waits_ns.count() > costs.splits.count, "{queues:?}: {costs:?}");
        assert!(costs.in_vain > 0 && costs.waits_ns.max() <= stats.longest_ns, "{costs:?}");
        assert!(stats.steadiness.span_ns < 1_000_000_000 && stats.usage.busy_ns(Resource::NodeProcessor) > 0);
        let (again, _) = grown();
        assert_eq!((all(&again), again.steadiness.span_ns), (all(&stats), stats.steadiness.span_ns));
    }
}

/// Records that are lost, outdated or not whole are found, by either audit.
#[test]
fn what_is_wrong_is_found() {
    let filled = filled("fixed:8:8", 2_000, 1_500);
    for audit in [Audit::Whole, Audit::Touched] {
        let a_run = Run { audit, ..a_run(&filled, Mix::YCSB_A) };
        // Record 0, which every client reads: it is lost, or has a value that no client stored.
        for wrong in [Change::Remove, Change::Update(NewValue::Inline(b"no value"))] {
            let damaged = filled.fork().unwrap();
            change(&damaged, 0, wrong);
            let stats = carry_out(&a_run, damaged);
            assert!(stats.violation_count > 0 && !stats.violations.is_empty(), "{audit:?} {wrong:?}");
        }
    }
    // A record that no client draws is missed only by the look at the whole table.
    let unused = with_load(a_run(&filled, Mix::YCSB_C), |load| {
        *load = Load { clients: 1, hosts: 1, theta: 2.0, ..load.clone() };
    });
    let damaged = filled.fork().unwrap();
    change(&damaged, 1_499, Change::Remove);
    let stats = carry_out(&unused, damaged);
    assert_eq!(stats.violations.len(), 1, "{:?}", stats.violations);
    assert!(stats.violations[0].contains("records that nobody wrote are left"), "{:?}", stats.violations);
    // So is one that no client can have stored.
    let damaged = filled.fork().unwrap();
    change(&damaged, 1_000_000, Change::Put(NewValue::Inline(b"a record")));
    assert_eq!(carry_out(&unused, damaged).violation_count, 1);
}

#[test]
fn impossible_runs_are_refused() {
    let (filled, empty) = (filled("fixed:4:4", 1_000, 500), filled("fixed:4:4", 1_000, 0));
    let good = a_run(&filled, Mix::YCSB_A);
    let network = Network::of(Profile::Mlx5);
    let refused = |a_run: &Run, filled: &FilledTable| {
        run(a_run, filled.fork().unwrap(), &network, &mut |_| ControlFlow::Continue(())).err().unwrap()
    };
    for clients in [0, 49, u32::MAX] {
        let error = refused(&with_load(good.clone(), |load| load.clients = clients), &filled);
        assert_eq!(error, RunError::Clients { clients, most: 48 });
    }
    let deaths = Deaths { per_second: 1, victims: Victims::Any };
    let mortal = Run { deaths, ..with_load(good.clone(), |load| load.clients = 42) };
    let error = refused(&mortal, &filled);
    assert_eq!(error, RunError::Clients { clients: 42, most: 39 });
    for hosts in [0, 33] {
        let wrong = with_load(good.clone(), |load| load.hosts = hosts);
        assert_eq!(refused(&wrong, &filled), RunError::Hosts { hosts, clients: 32 });
    }
    let mix = Mix { read_percent: 50, update_percent: 49, insert_percent: 0 };
    let wrong = with_load(good.clone(), |load| load.mix = mix);
    assert_eq!(refused(&wrong, &filled), RunError::Mix { percent: 99 });
    for theta in [-0.1, 2.1] {
        let error = refused(&with_load(good.clone(), |load| load.theta = theta), &filled);
        assert_eq!(error.to_string(), format!("theta {theta} is not in 0 to 2"));
    }
    assert!(matches!(
        refused(&with_load(good.clone(), |load| load.theta = f64::NAN), &filled),
        RunError::Workload(WorkloadError::ThetaOutOfRange { .. })
    ));
    assert_eq!(refused(&good, &empty), RunError::Workload(WorkloadError::NoRecords));
    let inserts = with_load(good.clone(), |load| load.mix = Mix::W);
    assert!(carry_out(&inserts, empty).counts.operations.insert.count > 0);
    let stopped = run(&good, filled.fork().unwrap(), &network, &mut |_| ControlFlow::Break(()));
    assert_eq!(stopped.err(), Some(RunError::Stopped));
}
