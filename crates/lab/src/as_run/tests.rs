//! The batches of the actor, verb by verb.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

use guira_fabric::{Addr, Region, Verb, WORD_BYTES};
use guira_fabric_sim::{Card, Cluster, Sim, SimLane, SimOptions};

use super::client::{Client, ClientRules, Outcome, UpdateReads};
use super::hash::{Distance, Placement, Program};
use super::locks::{LockGroup, LockRules};
use super::mirror::Mirror;
use super::run::{COMPUTE, COMPUTE_LATER, Keys, Measured, Run, fill, run};
use super::search::{RowView, SearchOrder};
use super::table::{Layout, RowSums, Table};
use crate::simulated::{Compute, Mix};
use crate::steady::Span;

/// A verb of a batch: its name, its address and its words.
type Sent = (&'static str, Addr, usize);

fn layout(rows: u64, sums: RowSums) -> Layout {
    let placement = Placement::new(rows, Program::Store, Distance::Dependent { factor: 2.3 });
    Layout { placement, locks: LockRules { rows_per_lock: 16, locks_per_message: 64 }, sums, entry_words: 1 }
}

fn rules(layout: &Layout, update_reads: UpdateReads) -> ClientRules {
    ClientRules { update_reads, ..ClientRules::new(layout.clone()) }
}

/// Returns the batches of one operation of one client, and its result.
fn batches_of<F, T: 'static>(
    table: &Table,
    rules: ClientRules,
    operation: impl FnOnce(Client<SimLane>) -> F,
) -> (Vec<Vec<Sent>>, T)
where
    F: Future<Output = T> + 'static,
{
    let mut sim = Sim::new(table.region.clone(), &SimOptions::on_cluster(1, Cluster::new(Card::ConnectX5)));
    let (batches, result) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(None)));
    let watched = Rc::clone(&batches);
    sim.watch_batches(move |_, batch: &[Verb<'_>]| {
        watched.borrow_mut().push(batch.iter().map(|verb| (verb.name(), verb.addr(), verb.words())).collect());
    });
    let returned = Rc::clone(&result);
    sim.spawn(|region| {
        let mirrors = Rc::new(RefCell::new(table.mirrors.clone()));
        let operation = operation(Client::new(region.lane(), Rc::new(rules), Mirror::of(&mirrors, 0)));
        async move { *returned.borrow_mut() = Some(operation.await) }
    });
    sim.run();
    drop(sim);
    (batches.take(), result.take().expect("the operation ended"))
}

fn row(row: u64) -> Addr {
    Addr::main(row * 64)
}

/// Returns the first key of the table with rows for which `wanted` holds.
fn key_with(table: &Table, wanted: impl Fn(u64, u64) -> bool) -> u32 {
    let found = (1..=table.keys).find(|key| {
        let pair = table.layout.placement.of(*key);
        wanted(pair.primary, pair.secondary)
    });
    found.expect("a table has such a key")
}

#[test]
fn a_lookup_fetches_eight_bytes_of_each_row() {
    let table = Table::filled(layout(1 << 16, RowSums::None), 100_000);
    for (key, is_covered) in [
        (key_with(&table, |first, second| first.abs_diff(second) == 31), true),
        (key_with(&table, |first, second| first.abs_diff(second) == 33), false),
        (key_with(&table, |first, second| first.abs_diff(second) > 1000), false),
    ] {
        let pair = table.layout.placement.of(key);
        let read = |mut client: Client<SimLane>| async move { client.read(key).await.map(|()| Outcome::Done) };
        let (batches, _) = batches_of(&table, rules(&table.layout, UpdateReads::Covering), read);
        let covering = vec![("READ", row(pair.low()), 32)];
        let single = vec![("READ", row(pair.primary), 1), ("READ", row(pair.secondary), 1)];
        assert_eq!(batches, [if is_covered { covering } else { single }]);
    }
}

#[test]
fn an_update_locks_reads_writes_and_unlocks() {
    let table = Table::filled(layout(1 << 16, RowSums::None), 100_000);
    // Both rows have one lock: lock 1 of word 0.
    let key = key_with(&table, |first, second| (16..32).contains(&first) && (16..32).contains(&second));
    let pair = table.layout.placement.of(key);
    let holder = [pair.primary, pair.secondary].into_iter().find(|row| table.row(*row).contains(&u64::from(key)));
    let holder = holder.expect("the key is in the table");
    let index = table.row(holder).iter().position(|entry| *entry == u64::from(key)).expect("found above") as u64;
    let (lock, write) = (("MASKED CAS", Addr::device(0), 1), ("WRITE", row(holder).add_words(index), 1));
    let singles = [("READ", row(pair.primary), 8), ("READ", row(pair.secondary), 8)];
    let cover = ("READ", row(16), 16 * 8);
    for (reads, expected) in [
        (UpdateReads::Covering, vec![vec![lock, cover], vec![write, lock]]),
        (UpdateReads::Single, vec![vec![lock, singles[0], singles[1]], vec![write, lock]]),
    ] {
        let update = |mut client: Client<SimLane>| async move { client.update(key).await };
        let (batches, outcome) = batches_of(&table, rules(&table.layout, reads), update);
        assert_eq!(batches, expected, "{reads:?}");
        assert_eq!(outcome, Ok(Outcome::Done));
    }
    assert!(table.region.memory().device.iter().all(|word| word.load(std::sync::atomic::Ordering::Relaxed) == 0));
}

#[test]
fn later_code_writes_a_checksum_behind_each_entry() {
    let table = Table::filled(layout(1 << 12, RowSums::Written), 10_000);
    let update = |mut client: Client<SimLane>| async move { client.update(7).await };
    let (batches, _) = batches_of(&table, rules(&table.layout, UpdateReads::Single), update);
    let [.., writes] = batches.as_slice() else { panic!("an update has batches") };
    let [("WRITE", entry, 1), ("WRITE", sum, 1), ("MASKED CAS", ..)] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!(entry.offset() / (9 * WORD_BYTES), sum.offset() / (9 * WORD_BYTES), "they lie in one row of 9 words");
    assert_eq!(sum.word() % 9, 8);
}

#[test]
fn an_insert_locks_its_path_and_writes_it_from_the_empty_end() {
    let layout = layout(1 << 12, RowSums::None);
    let table = Table::empty(layout.clone(), 1);
    let insert = |mut client: Client<SimLane>| async move { client.insert(1).await };
    let (batches, outcome) = batches_of(&table, rules(&layout, UpdateReads::Covering), insert);
    let primary = layout.placement.of(1).primary;
    let lock = ("MASKED CAS", Addr::device(primary / 1024 * 8), 1);
    let expected = [vec![lock, ("READ", row(primary / 16 * 16), 128)], vec![("WRITE", row(primary), 1), lock]];
    assert_eq!((batches.as_slice(), outcome), (&expected[..], Ok(Outcome::Done)));
    // A second client has filled the primary row, which the first client has not seen: the second search uses the rows
    // of its lock alone.
    let mut table = Table::empty(layout.clone(), 2);
    let others: Vec<u32> = (2..)
        .filter(|key| {
            let pair = layout.placement.of(*key);
            pair.primary == primary && pair.secondary / 16 == primary / 16
        })
        .take(8)
        .collect();
    let words = &table.region.memory().main[primary as usize * 8..][..8];
    words.iter().zip(&others).for_each(|(word, key)| word.store((*key).into(), std::sync::atomic::Ordering::Relaxed));
    let mirrors = Rc::new(RefCell::new(std::mem::take(&mut table.mirrors)));
    let mut second = Mirror::of(&mirrors, 1);
    others.iter().enumerate().for_each(|(index, key)| second.change(primary, index, (*key).into()));
    table.mirrors = mirrors.take();
    let insert = |mut client: Client<SimLane>| async move { client.insert(1).await };
    let (batches, outcome) = batches_of(&table, rules(&layout, UpdateReads::Covering), insert);
    let moved_to = layout.placement.of(others[0]).secondary;
    let writes = [("WRITE", row(moved_to), 1), ("WRITE", row(primary), 1), lock];
    assert_eq!((batches.len(), &batches[1][..], outcome), (2, &writes[..], Ok(Outcome::Done)));
    assert_eq!((table.row(moved_to)[0], table.row(primary)[0]), (others[0].into(), 1));
}

#[test]
fn a_lock_is_taken_back_under_the_lease() {
    let table = Table::filled(layout(1 << 12, RowSums::Written), 10_000);
    let device = &table.region.memory().device;
    device[0].store(0b110, std::sync::atomic::Ordering::Relaxed);
    let reclaim = |mut client: Client<SimLane>| async move { client.reclaim(LockGroup { word: 0, mask: 0b10 }).await };
    let (batches, outcome) = batches_of(&table, rules(&table.layout, UpdateReads::Single), reclaim);
    assert_eq!(outcome, Ok(()));
    let (lease, whole) = (table.layout.lease_addr(), |row| ("READ", table.layout.row_addr(row), 9));
    let entries: Vec<u64> = (16..32).flat_map(|row| table.row(row)).filter(|entry| *entry != 0).collect();
    let mut expected = vec![vec![("READ", lease, 1)], vec![("CAS", lease, 1)], (16..32).map(whole).collect()];
    expected.extend(entries.iter().map(|entry| {
        let pair = table.layout.placement.of(*entry as u32);
        [pair.primary, pair.secondary].map(|row| ("READ", table.layout.row_addr(row), 1)).to_vec()
    }));
    expected.extend([vec![("MASKED CAS", Addr::device(0), 1)], vec![("CAS", lease, 1)]]);
    assert_eq!(batches, expected);
    // The other lock is still held, and the lease is free for the next client.
    let words = [0, lease.word() as usize].map(|word| device[word].load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(words, [0b100, 4]);
}

/// Returns a short run of clients that compute as the authors' do.
fn a_run(clients: u32, mix: Mix, keys: Keys) -> Run {
    let (most_inserts, span) = (u64::MAX, Span::Exactly(500_000));
    Run { clients, mix, keys, most_inserts, compute: COMPUTE, faults_per_second: 0, warm_ns: 100_000, span, seed: 1 }
}

fn measured(table: &mut Table, reads: UpdateReads, run_of: &Run) -> Measured {
    let (rules, cluster) = (rules(&table.layout, reads), Cluster::new(Card::ConnectX5));
    run(table, &rules, cluster, run_of, &mut |_| ControlFlow::Continue(())).expect("a run")
}

/// The published means are 204.8 bytes and 1.11 messages.
#[test]
fn lookups_cost_what_the_authors_counted() {
    let mut table = Table::filled(layout(1 << 16, RowSums::None), 200_000);
    let zipfian = crate::workload::Zipfian::new(200_000, 0.0).expect("valid");
    let span = Span::Exactly(5_000_000);
    let run_of = Run { compute: Compute::default(), span, ..a_run(16, Mix::YCSB_C, Keys::Zipf(zipfian)) };
    let mut measured = |run_of: &Run| measured(&mut table, UpdateReads::Covering, run_of).counts.operations.read;
    let (one, two) = (measured(&run_of), measured(&run_of));
    let reads = one.count as f64;
    let (bytes, messages) = (one.wire_bytes as f64 / reads, one.messages as f64 / reads);
    assert!((bytes - 204.8).abs() < 2.0 && (messages - 1.11).abs() < 0.01, "{bytes} bytes, {messages} messages");
    assert_eq!((one.count, one.wire_bytes), (two.count, two.wire_bytes), "runs repeat");
    assert_ne!(measured(&Run { seed: 2, ..run_of }).wire_bytes, one.wire_bytes);
}

#[test]
fn contended_updates_exclude_each_other() {
    let mut table = Table::filled(layout(1 << 10, RowSums::None), 4_000);
    let zipfian = crate::workload::Zipfian::new(4_000, 0.99).expect("valid");
    let mix = Mix { read_percent: 0, update_percent: 100, insert_percent: 0 };
    let compute = Compute { lookup_ns: 500, change_ns: 500 };
    let run_of = Run { compute, seed: 3, ..a_run(32, mix, Keys::Zipf(zipfian)) };
    for reads in [UpdateReads::Covering, UpdateReads::Single] {
        let measured = measured(&mut table, reads, &run_of);
        let updates = &measured.counts.operations.update;
        assert!(updates.retries > updates.count / 10, "{} of {}", updates.retries, updates.count);
        assert_eq!(measured.not_found, 0);
    }
    assert!((1..=4_000).all(|key| {
        let pair = table.layout.placement.of(key);
        [pair.primary, pair.secondary].iter().any(|row| table.row(*row).contains(&u64::from(key)))
    }));
}

/// Every second fault sends nothing, the others the entry alone. Locks stay held until a client takes them back, or for
/// ever.
#[test]
fn clients_that_die_stop_others_until_their_locks_are_taken_back() {
    let filled = Table::filled(layout(1 << 10, RowSums::Written), 4_000);
    let zipfian = crate::workload::Zipfian::new(4_000, 0.0).expect("valid");
    let (mix, span) = (Mix::YCSB_A, Span::Exactly(20_000_000));
    let run_of = Run { faults_per_second: 5_000, span, ..a_run(32, mix, Keys::Zipf(zipfian)) };
    let measured = |timeout_refusals| {
        let mut table = filled.clone();
        table.region = filled.region.copied();
        let rules = ClientRules { timeout_refusals, ..ClientRules::new(table.layout.clone()) };
        let cluster = Cluster::new(Card::ConnectX5);
        let measured = run(&mut table, &rules, cluster, &run_of, &mut |_| ControlFlow::Continue(())).expect("a run");
        assert!((1..=4_000).all(|key| {
            let pair = table.layout.placement.of(key);
            [pair.primary, pair.secondary].iter().any(|row| table.row(*row).contains(&u64::from(key)))
        }));
        measured
    };
    let (taken, kept) = (measured(100), measured(u32::MAX));
    assert!(taken.faults > 15 && taken.reclaimed > 15, "{} faults, {} taken", taken.faults, taken.reclaimed);
    assert_eq!(kept.reclaimed, 0);
    assert!(
        taken.counts.succeeded() > kept.counts.succeeded(),
        "{} {}",
        taken.counts.succeeded(),
        kept.counts.succeeded()
    );
}

#[test]
fn eight_clients_fill_a_table_without_losing_a_key() {
    let layout = layout(128, RowSums::None);
    let table = Table::filled(layout.clone(), 0);
    let filled =
        fill(&table, &rules(&layout, UpdateReads::Covering), Cluster::new(Card::ConnectX5), 8, 1).expect("a fill");
    let entries: Vec<u64> = (0..128).flat_map(|row| table.row(row)).filter(|entry| *entry != 0).collect();
    let mut keys = entries.clone();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((entries.len(), keys.len()), (filled.round_trips.len(), filled.round_trips.len()));
    assert!(filled.fill > 0.9 && filled.round_trips.iter().all(|trips| *trips >= 2), "{}", filled.fill);
}

/// Only the first point is fitted. The others judge the model: 15 % up to 160 clients, 25 % at 320.
#[test]
fn figure_6a_agrees() {
    let mut table = Table::filled(layout(1 << 20, RowSums::None), 3_700_000);
    for point in
        crate::published::series("6a").iter().find(|series| series.name == "RCuckoo").expect("it has").points.iter()
    {
        let run_of = a_run(point.x as u32, Mix::YCSB_C, Keys::OneEach);
        let measured = measured(&mut table, UpdateReads::Covering, &run_of);
        let difference = measured.counts.per_second(measured.steadiness.span_ns) / 1e6 / point.y - 1.0;
        let allowed = match point.x {
            ..=10.0 => 0.03,
            ..=160.0 => 0.15,
            _ => 0.25,
        };
        assert!(difference.abs() < allowed, "{} clients: {:+.1} %", point.x, 100.0 * difference);
    }
}

/// The time of a change is fitted to these points.
#[test]
fn eight_clients_of_figures_6b_and_6c_agree() {
    let later = (RowSums::Written, UpdateReads::Single, COMPUTE_LATER);
    let public = (RowSums::None, UpdateReads::Covering, COMPUTE);
    let figures = [("6b", Mix::YCSB_B, 0.99), ("6c", Mix::YCSB_A, 0.90)];
    for ((sums, reads, compute), (id, mix, theta)) in
        [later, public].into_iter().flat_map(|code| figures.map(|figure| (code, figure)))
    {
        let mut table = Table::filled(layout(1 << 17, sums), 900_000);
        let series = crate::published::series(id);
        let point = &series.iter().find(|series| series.name == "RCuckoo").expect("it has").points[0];
        let zipfian = crate::workload::Zipfian::new(table.keys.into(), theta).expect("valid");
        let run_of = Run { compute, span: Span::Exactly(5_000_000), ..a_run(8, mix, Keys::Zipf(zipfian)) };
        let measured = measured(&mut table, reads, &run_of);
        let difference = measured.counts.per_second(measured.steadiness.span_ns) / 1e6 / point.y - 1.0;
        assert!(point.x == 8.0 && difference.abs() < 0.06, "{id}: {:+.1} %", 100.0 * difference);
    }
}

/// Nothing of these runs is fitted. The messages of an insert are those of figure 7(d), and with its bytes they decide
/// throughput, as the link from the memory node is busy all the time.
#[test]
fn figure_7_agrees() {
    let published = |id: &str, name: &str| {
        let found = crate::published::series(id).into_iter().find(|series| series.name == name).expect("it has");
        found.points.into_iter().map(|point| (point.x, point.y)).collect::<Vec<_>>()
    };
    let layout = layout(1 << 15, RowSums::None);
    let messages = published("7d", "insert");
    for (place, fill) in [(2, 0.25), (4, 0.45), (6, 0.65)] {
        let keys = (8.0 * 32_768.0 * fill) as u32;
        let filled = Table::filled_by(320, layout.clone(), keys, SearchOrder::BreadthFirst, &|| false);
        assert_eq!((filled.keys, messages[place].0), (keys, 100.0 * fill));
        for (mix, name) in [(Mix::W, "W"), (Mix::A_PRIME, "A"), (Mix::B_PRIME, "B")] {
            let mut table = filled.clone();
            table.region = filled.region.copied();
            let run_of = a_run(320, mix, Keys::LastInserted);
            let measured = measured(&mut table, UpdateReads::Covering, &run_of);
            let inserts = &measured.counts.operations.insert;
            let of_insert = inserts.messages as f64 / inserts.count as f64 / messages[place].1 - 1.0;
            let mops = measured.counts.per_second(measured.steadiness.span_ns) / 1e6;
            let difference = mops / published("7a", name)[place].1 - 1.0;
            assert!(difference.abs() < 0.15, "{name} at {fill}: {:+.1} %", 100.0 * difference);
            assert!(of_insert.abs() < 0.15, "{name} at {fill}: messages {:+.1} %", 100.0 * of_insert);
        }
    }
}

/// Clients that saw rows as they were long ago insert into the same rows at once, and lose nothing.
#[test]
fn contended_inserts_lose_no_key() {
    let layout = layout(1 << 10, RowSums::None);
    let mut table = Table::filled_by(64, layout.clone(), 6_000, SearchOrder::BreadthFirst, &|| false);
    let run_of = Run {
        most_inserts: 1_000,
        compute: Compute { lookup_ns: 500, change_ns: 500 },
        warm_ns: 0,
        span: Span::UntilFull,
        ..a_run(64, Mix::W, Keys::LastInserted)
    };
    let measured = measured(&mut table, UpdateReads::Covering, &run_of);
    assert!(measured.inserts >= 1_000 && measured.counts.operations.insert.retries > 100, "{measured:?}");
    let mut entries: Vec<u64> = (0..1 << 10).flat_map(|row| table.row(row)).filter(|entry| *entry != 0).collect();
    entries.sort_unstable();
    let found = entries.len();
    entries.dedup();
    assert_eq!(entries.len(), found, "no key is in the table twice");
    // Operations that were under way at the end have moved entries or written the new one, or neither.
    assert!(found as u64 >= 6_000 + measured.inserts && (1..=6_000).all(|key| entries.binary_search(&key).is_ok()));
}
