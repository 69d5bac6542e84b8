//! Workloads against real tables in shared memory.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use guira::{CreateOptions, Store, Url};
use guira_lab::driver::{Driver, DriverError, LoadMode, PhaseTally, Plan, RecordFormat, Removal, Verification};
use guira_lab::workload::{WorkloadName, WorkloadSpec};
use guira_testing::unique_name;

const SEED: u64 = 20_260_821;
const RECORDS: u64 = 2000;
const OPERATIONS: u64 = 10_001;

/// A table that is destroyed at the end of the test.
struct Table {
    url: Url,
    store: Store,
}

impl Table {
    fn new(format: &str, capacity: u64) -> Table {
        let url = Url::shm(&unique_name()).expect("it is a name");
        let options =
            CreateOptions::new(capacity).format(format.parse().expect("it is a format")).seed(SEED).max_clients(40);
        let store = Store::create(&url, &options).expect("there is room");
        Table { url, store }
    }

    fn plan(&self, name: WorkloadName, workers: u32) -> Plan {
        Plan {
            spec: WorkloadSpec { name, records: RECORDS, theta: 0.99, seed: SEED },
            operations: OPERATIONS,
            workers,
            format: RecordFormat::new(self.store.table().config().format, None, SEED).expect("the format says it"),
            verification: Verification::EveryRead,
            latency_every: 1,
        }
    }

    fn driver(&self, plan: Plan) -> Driver {
        let workers = plan.workers;
        Driver::new(self.store.clone(), plan, 0..workers).expect("the plan is possible")
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        Store::destroy(&self.url).expect("no other test destroys the table");
    }
}

fn counts(tally: &PhaseTally) -> [u64; 4] {
    tally.operations.named().map(|(_, kind)| kind.count)
}

#[test]
fn loading_reports_its_progress() {
    const RECORDS: u64 = 20_001;
    let table = Table::new("fixed:8:8", RECORDS);
    let spec = WorkloadSpec { name: WorkloadName::C, records: RECORDS, theta: 0.0, seed: SEED };
    let plan = Plan { spec, ..table.plan(WorkloadName::C, 4) };
    let mut of_all = 0;
    for share in [0..1, 1..4] {
        let mut driver = Driver::new(table.store.clone(), plan.clone(), share).expect("the plan is possible");
        let reports = Mutex::new(Vec::new());
        driver.load_with_progress(&|loaded| reports.lock().unwrap().push(loaded)).unwrap();
        let reports = reports.into_inner().unwrap();
        assert_eq!(reports.iter().max(), Some(&driver.records()), "{reports:?}");
        assert!(reports.len() > 1, "{reports:?}");
        of_all += driver.records();
    }
    assert_eq!(of_all, RECORDS);
}

#[test]
fn every_workload_runs_without_an_error() {
    println!("seed {SEED}");
    for format in ["fixed:8:8", "fixed:4:4", "fixed:32:100", "bytes:64"] {
        for name in WorkloadName::ALL {
            let table = Table::new(format, 2 * (RECORDS + OPERATIONS));
            let mut driver = table.driver(table.plan(name, 3));
            let load = driver.load().unwrap();
            assert_eq!((load.count(), load.errors()), (RECORDS, 0), "{format}, {name}");
            assert_eq!(table.store.stat().unwrap().table.entries, RECORDS);
            let run = driver.run().unwrap();
            assert_eq!((run.count(), run.errors()), (OPERATIONS, 0), "{format}, {name}: {:?}", run.failures);
            let inserted = run.operations.insert.count;
            assert_eq!(table.store.stat().unwrap().table.entries, RECORDS + inserted, "{format}, {name}");
            assert!(table.store.check().unwrap().is_clean(), "{format}, {name}");
            let figures = run.figures();
            assert!(figures.throughput_ops_per_s > 0.0);
            for (_, kind) in figures.operations.named().into_iter().filter(|(_, kind)| kind.count > 0) {
                assert!(kind.round_trips.mean >= 1.0 && kind.messages_mean >= 1.0 && kind.bytes_mean > 0.0);
                assert!(kind.latency_ns.p50 > 0 && kind.latency_ns.p50 <= kind.latency_ns.max);
            }
        }
    }
}

#[test]
fn operations_do_not_depend_on_the_distribution_of_workers() {
    let table = Table::new("fixed:8:8", 2 * RECORDS);
    let plan = table.plan(WorkloadName::A, 4);
    table.driver(plan.clone()).load().unwrap();
    let together = table.driver(plan.clone()).run().unwrap();
    let mut apart = PhaseTally::default();
    for share in [0..1, 1..3, 3..4] {
        apart.merge(Driver::new(table.store.clone(), plan.clone(), share).unwrap().run().unwrap());
    }
    assert_eq!(counts(&together), counts(&apart));
    assert_eq!(together.errors() + apart.errors(), 0);
}

#[test]
fn a_worker_alone_costs_exactly_what_the_protocol_says() {
    let table = Table::new("fixed:8:8", 10 * RECORDS);
    let mut driver = table.driver(Plan { latency_every: 10, ..table.plan(WorkloadName::F, 1) });
    driver.load().unwrap();
    let run = driver.run().unwrap();
    let (read, modify) = (&run.operations.read, &run.operations.read_modify_write);
    // In a table this empty every key is in its primary row: a read is 1 round trip, an update 2, and no other client
    // interferes.
    let least_and_most = |trips: &guira_lab::driver::Distribution| (trips.quantile(0.0), trips.max());
    assert_eq!(least_and_most(&read.round_trips), (1, 1));
    assert_eq!(least_and_most(&modify.round_trips), (3, 3));
    assert_eq!((read.retries, modify.retries), (0, 0));
    assert_eq!(read.latency_ns.count() + modify.latency_ns.count(), OPERATIONS / 10, "every tenth is timed");
}

#[test]
fn a_second_run_continues_with_new_records() {
    let table = Table::new("fixed:8:8", 4 * OPERATIONS);
    let mut driver = table.driver(table.plan(WorkloadName::W, 2));
    for run in 1..=2 {
        let tally = driver.run().unwrap();
        assert_eq!(tally.errors(), 0, "{:?}", tally.failures);
        assert_eq!(table.store.stat().unwrap().table.entries, run * OPERATIONS);
    }
}

#[test]
fn failures_are_counted_and_reported() {
    let table = Table::new("fixed:8:8", 4 * OPERATIONS);
    let missing = table.driver(table.plan(WorkloadName::A, 2)).run().unwrap();
    assert_eq!(missing.count(), missing.errors(), "no record was loaded");
    assert_eq!(missing.count(), 200, "each worker gave up after 100 failures");
    assert!(missing.failures[0].contains("is missing"), "{:?}", missing.failures);
    assert_eq!(missing.figures().throughput_ops_per_s, 0.0);

    let plan = table.plan(WorkloadName::W, 1);
    table.driver(plan.clone()).run().unwrap();
    let again = table.driver(plan.clone()).run().unwrap();
    assert!(again.failures[0].contains("exists already"), "{:?}", again.failures);

    // Values of another seed's records do not verify.
    let reader = Plan { spec: WorkloadSpec { name: WorkloadName::C, ..plan.spec }, ..plan };
    table.driver(reader.clone()).load().unwrap();
    let mut client = table.store.client().unwrap();
    let mut key = Vec::new();
    (0..RECORDS).for_each(|record| {
        reader.format.key_into(record, &mut key);
        client.put(&key, b"no value").unwrap();
    });
    let wrong = table.driver(reader).run().unwrap();
    assert!(wrong.errors() == wrong.count() && wrong.failures[0].contains("is wrong"), "{:?}", wrong.failures);
}

/// The keys and values of a table.
fn content(table: &Table) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut content = BTreeMap::new();
    let mut note = |key: &[u8], value: &[u8]| {
        content.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    table.store.scan_with(&mut note).expect("it can be read");
    content
}

#[test]
fn only_the_records_that_a_run_inserted_are_removed() {
    for (name, inserts) in [(WorkloadName::A, false), (WorkloadName::D, true), (WorkloadName::W, true)] {
        let table = Table::new("fixed:8:8", 2 * (RECORDS + OPERATIONS));
        let plan = table.plan(name, 3);
        let mut client = table.store.client().unwrap();
        let mut key = Vec::new();
        let mut put = |record| {
            plan.format.key_into(record, &mut key);
            client.put(&key, b"existing").unwrap();
        };
        // The first insert of the run finds its key taken by another client.
        put(RECORDS);
        let before = content(&table);
        let mut driver = table.driver(plan.clone()).loading(LoadMode::InsertOnly);
        driver.load().unwrap();
        let run = driver.run().unwrap();
        assert_eq!(run.operations.insert.errors, u64::from(inserts), "{name}: {:?}", run.failures);
        let inserted = run.operations.insert.count - u64::from(inserts);
        assert_eq!(driver.inserted(), RECORDS + inserted);
        let reports = AtomicU64::new(0);
        let removal = driver.remove_with_progress(&|removed| _ = reports.fetch_max(removed, Ordering::Relaxed));
        assert_eq!(removal, Removal { removed: RECORDS + inserted, left: 0, failure: None }, "{name}");
        assert_eq!((content(&table), reports.into_inner()), (before, RECORDS + inserted), "{name}");

        // The key of a record to load is taken: its value is not replaced, and the inserted records can be removed.
        put(700);
        let before = content(&table);
        let mut driver = table.driver(plan.clone()).loading(LoadMode::InsertOnly);
        let error = driver.load().unwrap_err();
        assert!(matches!(error, DriverError::Exists { record: 700 }), "{error}");
        assert!(driver.remove_with_progress(&|_| ()).removed > 0);
        assert_eq!(content(&table), before, "{name}");
    }
}

/// Cause: a workload checked whether to stop only after every 64th operation. Effect: where each operation waited for a
/// lock that was never released, the workload continued for minutes after its caller had ended.
#[test]
fn a_failing_run_stops_after_the_operation_during_which_it_was_stopped() {
    static CHECKS: AtomicU32 = AtomicU32::new(0);
    let table = Table::new("fixed:8:8", RECORDS);
    // Nothing is loaded: every read fails.
    let plan = Plan { operations: 10, ..table.plan(WorkloadName::C, 1) };
    let mut driver = table.driver(plan).stopping_when(|| CHECKS.fetch_add(1, Ordering::Relaxed) == 3);
    let ran = driver.run();
    assert!(matches!(ran, Err(DriverError::Stopped)), "{ran:?}");
    assert_eq!(CHECKS.load(Ordering::Relaxed), 4, "one before the first operation, one after each that failed");
}

#[test]
fn a_full_table_is_reported() {
    let table = Table::new("fixed:8:8", 100);
    let error = table.driver(table.plan(WorkloadName::A, 2)).load().unwrap_err();
    let DriverError::Store { attempt, source } = &error else { panic!("{error}") };
    assert!(attempt.starts_with("loading record") && source.blame() == guira::Blame::Full, "{error}");
    let full = table.driver(table.plan(WorkloadName::W, 1)).run().unwrap();
    assert!(full.count() < OPERATIONS && full.errors() >= 100, "{} of {}", full.errors(), full.count());
    assert!(full.failures.len() > 1, "{:?}", full.failures);
}

#[test]
fn impossible_plans_are_refused() {
    let table = Table::new("fixed:2:8", 100);
    let plan = table.plan(WorkloadName::A, 2);
    let refused = |plan: Plan, share| Driver::new(table.store.clone(), plan, share).err().unwrap();
    assert!(matches!(refused(plan.clone(), 0..3), DriverError::Share { .. }));
    assert!(matches!(refused(plan.clone(), 1..1), DriverError::Share { .. }));
    assert!(matches!(refused(Plan { latency_every: 0, ..plan.clone() }, 0..2), DriverError::Share { .. }));
    // Only inserts need more keys than there are records.
    let long = |name| Plan { operations: 65_536, ..table.plan(name, 2) };
    assert!(matches!(refused(long(WorkloadName::W), 0..2), DriverError::TooFewKeys { .. }));
    assert!(Driver::new(table.store.clone(), long(WorkloadName::A), 0..2).is_ok());
    let theta = WorkloadSpec { theta: 2.5, ..plan.spec.clone() };
    assert!(matches!(refused(Plan { spec: theta, ..plan }, 0..2), DriverError::Workload(_)));
}
