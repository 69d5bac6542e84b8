//! The stores to which RCuckoo is compared: lookups return what a model has, and cost what the papers say.
//!
//! Tables of up to 8 slots are enumerated: every set of homes, with keys that repeat and keys that share a home, READs of
//! every length. Larger ones are drawn. In the simulator READs are split, swapped and delayed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use guira_baselines::linear::{BuildError, Builder, LinearStore, Shape, Table};
use guira_baselines::{Change, Client, ErrorKind, Store};
use guira_fabric::{Effect, Profile, Region, SplitMix64};
use guira_fabric_sim::{FaultPlan, Network, Relaxations, Sim, SimOptions, Stopped};

const SEED: u64 = 39;
const VALUE_BYTES: usize = 4;

/// The values of each key, in order.
type Model = BTreeMap<u32, Vec<Vec<u8>>>;

/// A linear table, and what it holds.
fn built(slots: u64, value_bytes: usize, keys: &[u32]) -> (Table, Model) {
    let mut builder = Builder::new(Shape { slots, value_bytes }, Profile::Mlx5.caps()).expect("a valid shape");
    let mut model = Model::new();
    for (key, number) in keys.iter().zip(1_u64..) {
        let bytes = SplitMix64::mix(number).to_le_bytes();
        let value: Vec<u8> = bytes.iter().copied().cycle().take(value_bytes).collect();
        builder.add(*key, &value).expect("there is room");
        model.entry(*key).or_default().push(value);
    }
    model.values_mut().for_each(|values| values.sort());
    (builder.finish(), model)
}

/// Opens a client of a store on the heap.
fn client<S: Store>(store: &S) -> S::Client {
    store.client(Box::new(store.nodes()[0].lane()), 0, &Rc::new(store.host()))
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
    for slots in 2..=8_u64 {
        let shape = Shape { slots, value_bytes: VALUE_BYTES };
        let by_home = keys_by_home(&shape, 3);
        for count in 0..slots as usize {
            multisets(count, slots as usize, &mut Vec::new(), &mut |homes| {
                // Of the records of one home, the first and the third have one key.
                let nth = |place: usize| homes[..place].iter().filter(|home| **home == homes[place]).count();
                let keys: Vec<u32> = (0..homes.len()).map(|place| by_home[homes[place]][nth(place) % 2]).collect();
                let backwards: Vec<u32> = keys.iter().rev().copied().collect();
                for keys in [&keys, &backwards] {
                    let (table, model) = built(slots, VALUE_BYTES, keys);
                    for read_slots in 1..=slots {
                        let store = LinearStore::new(table.clone(), read_slots);
                        let context = format!("{keys:?} in {slots} slots, READs of {read_slots}");
                        check(&store, by_home.iter().flatten().copied(), VALUE_BYTES, &model, &context);
                    }
                    tables += 1;
                }
            });
        }
    }
    assert!(tables > 10_000, "{tables} tables");
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

/// Drawn tables with records of several lengths: answers are exact, and a lookup takes as many READs as there are, of this
/// length, up to the first empty slot.
#[test]
fn linear_lookups_are_exact_and_read_as_far_as_an_empty_slot() {
    const SLOTS: u64 = 600;
    let mut draws = SplitMix64(SEED);
    for (percent, value_bytes) in [(0, 4), (30, 4), (65, 28), (90, 124), (95, 7), (99, 4)] {
        let keys = drawn_keys(SLOTS * percent / 100, &mut draws);
        let (table, model) = built(SLOTS, value_bytes, &keys);
        let shape = *table.shape();
        let words = table.region().memory().main;
        let is_empty = |slot: u64| {
            let word = (slot % SLOTS * shape.slot_words()) as usize;
            words[word].load(guira_fabric::memory::Ordering::Relaxed) as u32 == 0
        };
        let absent = drawn_keys(100, &mut draws);
        for read_slots in [1, 2, 5, 23, 32, 599, 600, 10_000] {
            let store = LinearStore::new(table.clone(), read_slots);
            let context = format!("{percent} % full, READs of {read_slots}");
            check(&store, model.keys().copied().chain(absent.clone()), value_bytes, &model, &context);
            let mut client = client(&store);
            for key in model.keys().copied().chain(absent.clone()) {
                let before = client.cost();
                ready(client.get(key.into(), &mut Vec::new())).expect("the heap");
                let (cost, home, length) = (client.cost().since(&before), shape.home(key), read_slots.min(SLOTS));
                let probed = 1 + (0..SLOTS).find(|offset| is_empty(home + offset)).expect("one slot is empty");
                let reads = probed.div_ceil(length);
                let crosses_end = home + (reads * length).min(SLOTS) > SLOTS && !(SLOTS - home).is_multiple_of(length);
                assert_eq!(cost.round_trips, reads, "{context}");
                assert_eq!(cost.messages, reads + u64::from(crosses_end), "{context}, home {home}");
            }
        }
    }
}

/// READs that are split, swapped and delayed bring the same answers.
#[test]
fn linear_lookups_are_exact_on_a_simulated_network() {
    let mut draws = SplitMix64(SEED);
    for seed in 0..20 {
        let keys = drawn_keys(180, &mut draws);
        let (table, model) = built(200, VALUE_BYTES, &keys);
        let store = LinearStore::new(table, 1 + draws.below(40));
        let relaxations = Relaxations {
            split_percent: 30,
            swap_percent: 50,
            resample_percent: 20,
            scatter_percent: 30,
            ..Relaxations::default()
        };
        let faults = FaultPlan { relaxations, ..FaultPlan::default() };
        let options = SimOptions { faults, ..SimOptions::new(seed, Network::of(Profile::Mlx5)) };
        let mut sim = Sim::new(store.nodes()[0].clone(), &options);
        let (model, done) = (Rc::new(model), Rc::new(Cell::new(0)));
        for number in 0..4 {
            let (store, model, done) = (store.clone(), Rc::clone(&model), Rc::clone(&done));
            let absent = drawn_keys(20, &mut draws);
            sim.spawn(move |region| async move {
                let mut client = store.client(Box::new(region.lane()), number, &Rc::new(()));
                let mut values = Vec::new();
                for key in model.keys().copied().chain(absent) {
                    values.clear();
                    let found = client.get(key.into(), &mut values).await.expect("nothing fails here");
                    assert_answer(found, &values, key, VALUE_BYTES, &model, &format!("seed {seed}"));
                    done.set(done.get() + 1);
                }
            });
        }
        assert_eq!(sim.run(), Stopped::Ended);
        assert_eq!(done.get(), 4 * (model.len() + 20));
    }
}

#[test]
fn what_a_linear_table_cannot_do_is_refused() {
    let (table, _) = built(8, VALUE_BYTES, &[1, 2]);
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
    for slots in [0, 1, (1 << 32) + 1] {
        let refused = Builder::new(Shape { slots, value_bytes: 4 }, Profile::Mlx5.caps()).err();
        assert_eq!(refused, Some(BuildError::Slots { slots }));
    }
    let mut builder = Builder::new(Shape { slots: 3, value_bytes: 4 }, Profile::Mlx5.caps()).expect("a valid shape");
    assert_eq!(builder.add(0, b"four"), Err(BuildError::Key));
    assert_eq!(builder.add(1, b"three"), Err(BuildError::Value { bytes: 5, value_bytes: 4 }));
    assert_eq!((builder.add(1, b"four"), builder.add(1, b"four")), (Ok(()), Ok(())));
    assert_eq!(builder.add(2, b"four"), Err(BuildError::Full { records: 2 }));
    assert_eq!(builder.finish().records(), 2);
}
