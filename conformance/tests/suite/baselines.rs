//! The stores to which RCuckoo is compared: lookups return what a model has, and cost what the papers say.
//!
//! Linear tables of up to 8 slots are enumerated: every set of homes, with keys that repeat and keys that share a home,
//! READs of every length, records in the slots and in a heap. Larger ones, and those of cuckoo hashing, are drawn.
//! Swarms of each store are part of this, too.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use guira_conformance::swarm::{Baseline, Counts};
use guira_fabric::{Effect, Profile, Region, SplitMix64};
use guira_fabric_sim::{Network, Sim, SimOptions, Stopped};
use guira_lab::baselines::cuckoo::{CuckooStore, Probing, Shape as CuckooShape, Table as CuckooTable, WAYS};
use guira_lab::baselines::dummy::{DummyStore, Shape as DummyShape, Table as DummyTable};
use guira_lab::baselines::linear::clusters::Clusters;
use guira_lab::baselines::linear::model::{Costs, Distances};
use guira_lab::baselines::linear::{Builder, LinearStore, Shape, Table};
use guira_lab::baselines::{BuildError, Change, Client, ErrorKind, Layout, Ports, Store};

const SEED: u64 = 39;
const VALUE_BYTES: usize = 4;
const NETWORK: Network = Network::of(Profile::Mlx5);

/// The values of each key, in order.
type Model = BTreeMap<u32, Vec<Vec<u8>>>;

const LAYOUTS: [Layout; 2] = [Layout::Inline, Layout::Heap];

/// The value of a record.
fn value_of(record: u64, value_bytes: usize) -> Vec<u8> {
    SplitMix64::mix(record + 1).to_le_bytes().into_iter().cycle().take(value_bytes).collect()
}

/// The records of a table in which these keys were stored.
fn model_of(keys: &[u32], value_bytes: usize) -> Model {
    let mut model = Model::new();
    for (key, record) in keys.iter().zip(0..) {
        model.entry(*key).or_default().push(value_of(record, value_bytes));
    }
    model.values_mut().for_each(|values| values.sort());
    model
}

/// A linear table, and what it holds.
fn built(shape: Shape, keys: &[u32]) -> (Table, Model) {
    let mut builder = Builder::new(shape, keys.len() as u64, Profile::Mlx5.caps()).expect("a valid shape");
    for (key, record) in keys.iter().zip(0..) {
        builder.add(*key, &value_of(record, shape.value_bytes)).expect("there is room");
    }
    (builder.finish(), model_of(keys, shape.value_bytes))
}

/// A table of cuckoo hashing with these keys.
fn built_cuckoo(shape: CuckooShape, keys: &[u32]) -> Result<CuckooTable, BuildError> {
    let value = |record, value: &mut Vec<u8>| *value = value_of(record, shape.value_bytes);
    let key = |record| keys[record as usize];
    let table = CuckooTable::build(shape, Profile::Mlx5.caps(), keys.len() as u64, key, value, &|| false)?;
    Ok(table.expect("nobody stops it"))
}

/// Opens a client of a store on the heap.
fn client<S: Store>(store: &S) -> S::Client {
    store.client(Ports::of_verbs(store.nodes()[0].lane()), 0, &Rc::new(store.host()), &Rc::new(store.thread()))
}

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a lane on the heap never waits"),
    }
}

/// Asserts that a lookup has the answer of the model.
fn assert_answer(found: bool, values: &[u8], key: u32, value_bytes: usize, model: &Model, context: &str) {
    let mut values: Vec<Vec<u8>> = values.chunks(value_bytes).map(<[u8]>::to_vec).collect();
    values.sort();
    let expected = model.get(&key).cloned().unwrap_or_default();
    assert_eq!((found, &values), (!expected.is_empty(), &expected), "key {key}, {context}");
}

/// Looks keys up on the heap, and compares the answers with the model.
fn check<S: Store>(store: &S, keys: impl IntoIterator<Item = u32>, value_bytes: usize, model: &Model, context: &str) {
    let (mut client, mut values) = (client(store), Vec::new());
    for key in keys {
        values.clear();
        let found = ready(client.get(key.into(), &mut values)).expect("the heap");
        assert_answer(found, &values, key, value_bytes, model, context);
    }
}

/// Keys whose home is each slot of a table: so many for each.
fn keys_by_home(shape: &Shape, each: usize) -> Vec<Vec<u32>> {
    let mut by_home = vec![Vec::new(); shape.slots as usize];
    let mut key = 0_u32;
    while by_home.iter().any(|keys| keys.len() < each) {
        key += 1;
        let keys = &mut by_home[shape.home(key) as usize];
        if keys.len() < each {
            keys.push(key);
        }
    }
    by_home
}

/// Calls `visit` with every multiset of `count` numbers below `bound`, in ascending order.
fn multisets(count: usize, bound: usize, chosen: &mut Vec<usize>, visit: &mut dyn FnMut(&[usize])) {
    if chosen.len() == count {
        return visit(chosen);
    }
    for next in chosen.last().copied().unwrap_or(0)..bound {
        chosen.push(next);
        multisets(count, bound, chosen, visit);
        chosen.pop();
    }
}

/// Every table of up to 8 slots, with READs of every length: homes may repeat, and so may keys.
#[test]
fn linear_lookups_are_exact_on_every_small_table() {
    let mut tables = 0;
    for (slots, layout) in (2..=8_u64).flat_map(|slots| LAYOUTS.map(|layout| (slots, layout))) {
        let shape = Shape { slots, layout, value_bytes: VALUE_BYTES };
        let by_home = keys_by_home(&shape, 3);
        for count in 0..slots as usize {
            multisets(count, slots as usize, &mut Vec::new(), &mut |homes| {
                // Of the records of one home, the first and the third have one key.
                let nth = |place: usize| homes[..place].iter().filter(|home| **home == homes[place]).count();
                let keys: Vec<u32> = (0..homes.len()).map(|place| by_home[homes[place]][nth(place) % 2]).collect();
                let backwards: Vec<u32> = keys.iter().rev().copied().collect();
                for keys in [&keys, &backwards] {
                    let (table, model) = built(shape, keys);
                    for read_slots in 1..=slots {
                        let store = LinearStore::new(table.clone(), read_slots);
                        let context = format!("{keys:?} in {slots} slots, {layout:?}, READs of {read_slots}");
                        check(&store, by_home.iter().flatten().copied(), VALUE_BYTES, &model, &context);
                    }
                    tables += 1;
                }
            });
        }
    }
    assert!(tables > 20_000, "{tables} tables");
}

/// Draws keys, of which one in 16 repeats another.
fn drawn_keys(count: u64, draws: &mut SplitMix64) -> Vec<u32> {
    let mut keys: Vec<u32> = Vec::new();
    for number in 0..count {
        let repeats = number > 0 && draws.below(16) == 0;
        let other = draws.below(number.max(1)) as usize;
        keys.push(if repeats { keys[other] } else { draws.below(u64::from(u32::MAX)) as u32 + 1 });
    }
    keys
}

/// Drawn tables with records of several lengths: answers are exact, and a lookup takes as many READs of the table as there
/// are, of this length, up to the first empty slot.
#[test]
fn linear_lookups_are_exact_and_read_as_far_as_an_empty_slot() {
    const SLOTS: u64 = 600;
    let mut draws = SplitMix64(SEED);
    let cases = [(0, 4), (30, 4), (65, 28), (90, 124), (95, 7), (99, 4)];
    for ((percent, value_bytes), layout) in cases.into_iter().flat_map(|case| LAYOUTS.map(|layout| (case, layout))) {
        let keys = drawn_keys(SLOTS * percent / 100, &mut draws);
        let shape = Shape { slots: SLOTS, layout, value_bytes };
        let (table, model) = built(shape, &keys);
        let mut is_full = vec![false; SLOTS as usize];
        for key in &keys {
            let slot = (0..).find(|offset| !is_full[((shape.home(*key) + offset) % SLOTS) as usize]);
            is_full[((shape.home(*key) + slot.expect("one is empty")) % SLOTS) as usize] = true;
        }
        let absent = drawn_keys(100, &mut draws);
        for read_slots in [1, 2, 5, 23, 32, 599, 600, 10_000] {
            let store = LinearStore::new(table.clone(), read_slots);
            let context = format!("{percent} % full, {layout:?}, READs of {read_slots}");
            check(&store, model.keys().copied().chain(absent.clone()), value_bytes, &model, &context);
            let mut client = client(&store);
            for key in model.keys().copied().chain(absent.clone()) {
                let (before, counted) = (client.cost(), client.reads());
                ready(client.get(key.into(), &mut Vec::new())).expect("the heap");
                let (cost, home, length) = (client.cost().since(&before), shape.home(key), read_slots.min(SLOTS));
                let probed =
                    (0..).find(|offset| !is_full[((home + offset) % SLOTS) as usize]).expect("one is empty") + 1;
                let reads = probed.div_ceil(length);
                let crosses_end = home + (reads * length).min(SLOTS) > SLOTS && !(SLOTS - home).is_multiple_of(length);
                let (of_table, of_heap) = (client.reads().table - counted.table, client.reads().heap - counted.heap);
                assert_eq!(of_table, reads + u64::from(crosses_end), "{context}, home {home}");
                assert_eq!(cost.messages, of_table + of_heap, "{context}");
                let last_trip = u64::from(layout == Layout::Heap && of_heap > 0);
                assert!((reads..=reads + last_trip).contains(&cost.round_trips), "{context}");
                let stored = model.get(&key).map_or(0, Vec::len) as u64;
                assert!(of_heap >= if layout == Layout::Heap { stored } else { 0 }, "{context}");
                assert!(layout == Layout::Heap || of_heap == 0, "{context}");
            }
        }
    }
}

/// Hints of clusters change the size of READs, and no answer: right ones, which lookups have learned, and wrong ones. Once all
/// clusters are known, a lookup takes one round trip.
#[test]
fn linear_lookups_are_exact_whatever_is_known_of_clusters() {
    const SLOTS: u64 = 600;
    let mut draws = SplitMix64(SEED);
    for (percent, layout) in [40, 80, 95, 99].into_iter().flat_map(|percent| LAYOUTS.map(|layout| (percent, layout))) {
        let keys = drawn_keys(SLOTS * percent / 100, &mut draws);
        let shape = Shape { slots: SLOTS, layout, value_bytes: VALUE_BYTES };
        let (table, model) = built(shape, &keys);
        let distances = Distances::of(SLOTS, keys.len() as u64);
        for (wrong, most) in [(0, 600), (0, 4), (50, 600), (50, 4)] {
            let mut clusters = Clusters::new(SLOTS, shape.slot_bytes(), most, distances.clone(), Costs::PRINTED);
            (0..wrong).for_each(|_| clusters.note(draws.below(SLOTS), draws.below(SLOTS)));
            let store = LinearStore::new(table.clone(), 1).tracking(clusters);
            let absent = drawn_keys(200, &mut draws);
            let context = format!("{percent} % full, {layout:?}, {wrong} wrong hints, {most} clusters");
            let all: Vec<u32> = model.keys().copied().chain(absent).collect();
            check(&store, all.iter().chain(&all).copied(), VALUE_BYTES, &model, &context);
            let mut client = client(&store);
            let before = client.cost().round_trips;
            all.iter()
                .chain(&all)
                .for_each(|key| _ = ready(client.get((*key).into(), &mut Vec::new())).expect("the heap"));
            let learned = client.cost().round_trips;
            all.iter().for_each(|key| _ = ready(client.get((*key).into(), &mut Vec::new())).expect("the heap"));
            let (first, last) = (learned - before, client.cost().round_trips - learned);
            if (wrong, most, layout) == (0, 600, Layout::Inline) {
                assert!(first > 2 * last && last == all.len() as u64, "{context}: {first} round trips, then {last}");
            }
        }
    }
}

/// The READs of the paper's table 1: a lookup of a stored key, by READs of 32 slots, and of the printed sizes.
#[test]
fn linear_lookups_take_the_reads_of_the_paper() {
    const SLOTS: u64 = 1 << 19;
    let printed = [
        (25, 32, 1.00),
        (50, 32, 1.00),
        (65, 32, 1.01),
        (80, 32, 1.22),
        (85, 32, 1.53),
        (90, 32, 2.46),
        (95, 32, 7.41),
        (25, 5, 1.03),
        (50, 13, 1.03),
        (65, 23, 1.04),
        (80, 23, 1.39),
        (85, 23, 1.85),
        (90, 23, 3.17),
        (95, 23, 10.05),
        (65, 29, 1.02),
        (80, 96, 1.02),
        (85, 174, 1.01),
        (90, 201, 1.08),
        (95, 547, 1.16),
    ];
    let mut table: Option<(u64, Table, Vec<u32>)> = None;
    for (percent, read_slots, reads) in printed {
        let (_, table, keys) = match table.take() {
            Some(built) if built.0 == percent => table.insert(built),
            _ => {
                let mut draws = SplitMix64(SEED + percent);
                let keys: Vec<u32> =
                    (0..SLOTS * percent / 100).map(|_| draws.below(u64::from(u32::MAX)) as u32 + 1).collect();
                let (built, _) = built(Shape { slots: SLOTS, layout: Layout::Inline, value_bytes: 4 }, &keys);
                table.insert((percent, built, keys))
            }
        };
        let mut client = client(&LinearStore::new(table.clone(), read_slots));
        let mut values = Vec::new();
        for key in &*keys {
            values.clear();
            assert!(ready(client.get((*key).into(), &mut values)).expect("the heap"));
        }
        let mean = client.cost().round_trips as f64 / keys.len() as f64;
        let within = if percent == 95 { 0.08 } else { 0.03 };
        assert!((mean / reads - 1.0).abs() < within, "{percent} % full, {read_slots} slots: {mean} READs, not {reads}");
    }
}

const PROBINGS: [Probing; 3] = [Probing::Parallel, Probing::Sequential, Probing::SequentialAll];

/// Drawn tables of cuckoo hashing, of 2 slots and more: answers are exact, and take the READs of the algorithm.
#[test]
fn cuckoo_lookups_are_exact_and_read_the_candidates() {
    let mut draws = SplitMix64(SEED);
    let mut seed = 0;
    for (slots, percent) in [(2, 50), (3, 60), (8, 70), (60, 80), (600, 85)] {
        for (associativity, value_bytes, layout) in
            [(1, 4), (4, 4), (1, 28), (4, 7)].into_iter().flat_map(|(a, v)| LAYOUTS.map(|layout| (a, v, layout)))
        {
            for repeats in [false, true] {
                // Few small tables have a place for each of some drawn keys.
                let (table, keys) = std::iter::from_fn(|| {
                    seed += 1;
                    let shape = CuckooShape { slots, associativity, layout, value_bytes, seed };
                    let mut keys = drawn_keys(shape.places() * percent / 100, &mut draws);
                    if !repeats {
                        keys.sort_unstable();
                        keys.dedup();
                    }
                    Some(built_cuckoo(shape, &keys).ok().map(|table| (table, keys)))
                })
                .take(1_000)
                .flatten()
                .next()
                .expect("one of many tables can be built");
                let model = model_of(&keys, value_bytes);
                assert_eq!(table.records(), keys.len() as u64);
                let absent = drawn_keys(100, &mut draws);
                for probing in PROBINGS {
                    // It stops at the first slot that has the key.
                    if repeats && probing == Probing::Sequential {
                        continue;
                    }
                    let store = CuckooStore::new(table.clone(), probing);
                    let context = format!("{slots} slots of {associativity}, {layout:?}, {probing:?}");
                    check(&store, keys.iter().copied().chain(absent.clone()), value_bytes, &model, &context);
                    let mut client = client(&store);
                    for key in keys.iter().chain(&absent) {
                        let (before, counted) = (client.cost(), client.reads());
                        ready(client.get((*key).into(), &mut Vec::new())).expect("the heap");
                        let cost = client.cost().since(&before);
                        let of_table = client.reads().table - counted.table;
                        let of_heap = client.reads().heap - counted.heap;
                        assert_eq!(cost.messages, of_table + of_heap, "{context}");
                        if probing == Probing::Sequential && model.contains_key(key) {
                            assert!((1..=WAYS as u64).contains(&of_table), "{context}");
                        } else {
                            assert_eq!(of_table, WAYS as u64, "{context}");
                        }
                        let trips = if probing == Probing::Parallel { 1 } else { of_table };
                        let last = if layout == Layout::Inline { 0 } else { of_heap };
                        assert!((trips..=trips + last).contains(&cost.round_trips), "{context}: {cost:?}");
                    }
                }
            }
        }
    }
}

/// A table of slots of one record cannot be built beyond 92 %, one of four can: the builder ends and says so.
#[test]
fn a_cuckoo_table_that_cannot_be_built_is_refused() {
    let mut draws = SplitMix64(SEED);
    let keys: Vec<u32> = drawn_keys(4_096 * 95 / 100, &mut draws);
    let shape = CuckooShape { slots: 4_096, associativity: 1, layout: Layout::Inline, value_bytes: 4, seed: 1 };
    let error = built_cuckoo(shape, &keys).err().expect("it has no place for all");
    assert!(error.to_string().ends_with("of 3891 found no place after 100000 moves"), "{error}");
    let of_four = CuckooShape { slots: 1_024, associativity: 4, ..shape };
    assert_eq!(built_cuckoo(of_four, &keys).expect("it can be built").records(), 3_891);
    assert_eq!(built_cuckoo(shape, &vec![1; 4_097]).err(), Some(BuildError::Full { records: 4_096 }));
    assert_eq!(built_cuckoo(shape, &[0]).err(), Some(BuildError::Key));
    let none = CuckooShape { slots: 1, ..shape };
    assert!(matches!(built_cuckoo(none, &[]).err(), Some(BuildError::Slots { slots: 1, .. })));
    let stopped = CuckooTable::build(shape, Profile::Mlx5.caps(), 10, |_| 1, |_, value| *value = vec![0; 4], &|| true);
    assert!(stopped.is_ok_and(|table| table.is_none()));
}

/// Answers are the same whatever the network and its clients do: drawn stores, with READs that are split, swapped and
/// sampled again, deaths, stalls of clients and of the service, and lost connections.
#[test]
fn drawn_lookups_are_exact_on_simulated_networks() {
    const SEEDS: u64 = 40;
    for store in [Baseline::Linear, Baseline::Cuckoo, Baseline::Dummy] {
        let mut counts = Counts::default();
        for seed in 0..SEEDS {
            let run = store.run(seed, 0);
            assert_eq!(run.wrong, [""; 0], "{}; {:?}", run.setup, run.plan);
            counts.add(run.counts.all());
        }
        let least = [("operations", 200 * SEEDS), ("deaths", SEEDS / 10), ("reconnections", SEEDS / 10)];
        for (name, least) in least {
            assert!(counts.of(name) >= least, "{}: {name}: {} of {least}", store.name(), counts.of(name));
        }
    }
}

/// The service of RPC-dummy answers with the record at the place that a client knows, also where clients know no place.
#[test]
fn a_dummy_service_answers_with_the_record_of_a_place() {
    let mut draws = SplitMix64(SEED);
    for (seed, value_bytes) in [(0, VALUE_BYTES), (1, 8), (2, 60), (3, 200)] {
        let mut keys = drawn_keys(100, &mut draws);
        keys.sort_unstable();
        keys.dedup();
        let store = dummy(&keys, value_bytes);
        let mut sim = Sim::new(store.nodes()[0].clone(), &SimOptions::new(seed, NETWORK));
        let (threads, service) = store.service().expect("it calls one");
        sim.serve(threads, service);
        let (lookups, stored) = ([&keys[..], &drawn_keys(100, &mut draws)].concat(), keys.clone());
        let (found, calls) = (Rc::new(Cell::new(0)), lookups.len() as u64);
        let noted = Rc::clone(&found);
        sim.spawn(move |region| async move {
            let mut client = store.client(Ports::simulated(&region), 0, &Rc::new(()), &Rc::new(()));
            for key in lookups {
                let (mut value, model) = (Vec::new(), stored.binary_search(&key).ok());
                let is_found = client.get(key.into(), &mut value).await.expect("nothing fails here");
                assert_eq!(is_found.then_some(value), model.map(|record| value_of(record as u64, value_bytes)));
                noted.set(noted.get() + usize::from(is_found));
            }
            let refused = client.change(1, Change::Remove).await.expect_err("it is only read");
            assert_eq!(refused.effect, Effect::None);
            let cost = client.cost();
            assert_eq!((cost.round_trips, cost.messages), (calls, calls));
        });
        assert_eq!(sim.run(), Stopped::Ended);
        assert!(found.get() >= keys.len());
    }
    let error = ready(client(&dummy(&[1], 8)).get(1, &mut Vec::new())).expect_err("nobody to call");
    assert!(matches!(error.kind, ErrorKind::Refused(_)), "{error}");
    let table = |key, value_bytes| {
        let shape = DummyShape { records: 1, value_bytes: 4 };
        let value = move |_, value: &mut Vec<u8>| value.resize(value_bytes, 1);
        DummyTable::build(shape, Profile::Mlx5.caps(), move |_| key, value, &|| false).err()
    };
    assert_eq!(table(0, 4), Some(BuildError::Key));
    assert_eq!(table(1, 5), Some(BuildError::Value { bytes: 5, value_bytes: 4 }));
}

/// A store of RPC-dummy with these keys, in order.
fn dummy(keys: &[u32], value_bytes: usize) -> DummyStore {
    let (keys, shape) = (keys.to_vec(), DummyShape { records: keys.len() as u64, value_bytes });
    let value = |record, value: &mut Vec<u8>| *value = value_of(record, value_bytes);
    let table = DummyTable::build(shape, Profile::Mlx5.caps(), |place| keys[place as usize], value, &|| false);
    let table = table.expect("keys and values are right").expect("nobody stops it");
    let place = move |key: u32| keys.binary_search(&key).map_or(u64::MAX, |record| record as u64);
    DummyStore::new(table, Rc::new(place), 2)
}

#[test]
fn what_a_linear_table_cannot_do_is_refused() {
    let shape = Shape { slots: 8, layout: Layout::Inline, value_bytes: VALUE_BYTES };
    let (table, _) = built(shape, &[1, 2]);
    let mut client = client(&LinearStore::new(table, 4));
    for key in [0, 1 << 32, u64::MAX] {
        let error = ready(client.get(key, &mut Vec::new())).expect_err("no such key");
        assert!(matches!(error.kind, ErrorKind::Refused(_)) && error.effect == Effect::None, "{key}: {error}");
    }
    for change in [Change::Insert(b"four"), Change::Update(b"four"), Change::Put(b"four"), Change::Remove] {
        let error = ready(client.change(1, change)).expect_err("it is only read");
        assert_eq!(error.to_string(), "the table is built once, and then only read (nothing was changed)");
    }
    assert_eq!(client.cost().messages, 0);
    let refused = |slots, records| Builder::new(Shape { slots, ..shape }, records, Profile::Mlx5.caps()).err();
    for slots in [0, 1, (1 << 32) + 1] {
        assert_eq!(refused(slots, 0), Some(BuildError::Slots { slots, most: 1 << 32 }));
    }
    assert_eq!(refused(3, 3), Some(BuildError::Full { records: 2 }));
    let mut builder = Builder::new(Shape { slots: 3, ..shape }, 2, Profile::Mlx5.caps()).expect("a valid shape");
    assert_eq!(builder.add(0, b"four"), Err(BuildError::Key));
    assert_eq!(builder.add(1, b"three"), Err(BuildError::Value { bytes: 5, value_bytes: 4 }));
    assert_eq!((builder.add(1, b"four"), builder.add(1, b"four")), (Ok(()), Ok(())));
    assert_eq!(builder.add(2, b"four"), Err(BuildError::Full { records: 2 }));
    assert_eq!(builder.finish().records(), 2);
}
