//! Allocation gates: no operation on an inline entry allocates, nor does any lookup, because a client keeps its buffers
//! from one operation to the next.
//!
//! A client is warmed up by filling its table, so that its buffers grow to the size that its searches need. Then every
//! operation runs ten thousand times under an allocator that counts.

use std::ops::Range;

use guira::Client;
use guira::{CreateOptions, EntryFormat, Put, Store, Url};
use guira_testing::unique_name;

/// Keys the tables are made for; they would fill 90 % of the entries.
const CAPACITY: u64 = 180_000;
/// Operations of each kind that are counted.
const OPERATIONS: u64 = 10_000;
/// Keys in a table whose inserts hardly ever move others: half of the entries.
const SPARSE_KEYS: u64 = CAPACITY * 5 / 9;
/// Keys in a table whose inserts often move others: [`OPERATIONS`] more fill it from 85 % to 90 %.
const DENSE_KEYS: u64 = CAPACITY - OPERATIONS;
/// Bytes of the keys and values of the format whose lengths vary: together they are less than its 64 inline bytes.
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 32;
/// Bytes of a value that does not fit in a row.
const EXTENT_VALUE_BYTES: usize = 300;
/// Seed of the tables' key hash. Equal seeds give equal tables, and equal searches.
const SEED: u64 = 19;

/// A table with one client; the table is destroyed when the test ends, however it ends.
struct Bench {
    url: Url,
    client: Option<Client>,
    format: &'static str,
    key_bytes: usize,
    value_bytes: usize,
    into: Vec<u8>,
}

impl Bench {
    fn new(format: &'static str) -> Bench {
        let url = Url::shm(&unique_name()).expect("a valid name");
        let parsed: EntryFormat = format.parse().expect("a valid format");
        let (key_bytes, value_bytes) = match parsed {
            EntryFormat::Fixed { key_bytes, value_bytes } => (usize::from(key_bytes), usize::from(value_bytes)),
            EntryFormat::Bytes { .. } => (KEY_BYTES, VALUE_BYTES),
        };
        let options = CreateOptions::new(CAPACITY).format(parsed).seed(SEED);
        println!("{format}: capacity {CAPACITY}, seed {SEED}, {OPERATIONS} operations of each kind");
        let store = Store::create(&url, &options).expect("a fresh name");
        let client = Some(store.client().expect("a free slot"));
        Bench { url, client, format, key_bytes, value_bytes, into: Vec::with_capacity(VALUE_BYTES) }
    }

    /// Does `operation` for each number of `keys`, with its key and its value. Returns the number of allocations.
    fn run(&mut self, keys: Range<u64>, operation: impl Fn(&mut Client, &[u8], &[u8], &mut Vec<u8>)) -> u64 {
        let client = self.client.as_mut().expect("the client lives as long as the table");
        let (mut key, mut value) = ([0; KEY_BYTES], [0; VALUE_BYTES]);
        let (key_bytes, value_bytes, into) = (self.key_bytes, self.value_bytes, &mut self.into);
        let info = allocation_counter::measure(|| {
            for i in keys {
                // A bijection, so that every number has a key of its own.
                let low = (i as u32).wrapping_mul(0x9e37_79b1).to_le_bytes();
                key[..4].copy_from_slice(&low);
                value[..4].copy_from_slice(&low);
                operation(client, &key[..key_bytes], &value[..value_bytes], into);
            }
        });
        info.count_total
    }

    /// Does `operation` [`OPERATIONS`] times, from the key of number `first` on, and checks that nothing is allocated.
    fn count(&mut self, name: &str, first: u64, operation: impl Fn(&mut Client, &[u8], &[u8], &mut Vec<u8>)) {
        let allocations = self.run(first..first + OPERATIONS, operation);
        assert_eq!(allocations, 0, "{}: allocations in {OPERATIONS} operations of the kind: {name}", self.format);
    }

    /// Returns how many entries inserts have moved so far.
    fn moves(&self) -> u64 {
        self.client.as_ref().map_or(0, |client| client.counters().moves)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.client = None;
        drop(Store::destroy(&self.url));
    }
}

fn insert(client: &mut Client, key: &[u8], value: &[u8], _: &mut Vec<u8>) {
    assert!(client.try_insert(key, value).expect("room for a key"), "the key is new");
}

fn exists(client: &mut Client, key: &[u8], value: &[u8], _: &mut Vec<u8>) {
    assert!(!client.try_insert(key, value).expect("a free lock"), "the key exists");
}

fn replace(client: &mut Client, key: &[u8], value: &[u8], _: &mut Vec<u8>) {
    assert_eq!(client.put(key, value).expect("a free lock"), Put::Replaced);
}

fn update(client: &mut Client, key: &[u8], value: &[u8], _: &mut Vec<u8>) {
    assert!(client.update(key, value).expect("a free lock"), "the key exists");
}

fn remove(client: &mut Client, key: &[u8], _: &[u8], _: &mut Vec<u8>) {
    assert!(client.remove(key).expect("a free lock"), "the key exists");
}

fn removes_nothing(client: &mut Client, key: &[u8], _: &[u8], _: &mut Vec<u8>) {
    assert!(!client.remove(key).expect("a free lock"), "the key is gone");
}

fn get_into(client: &mut Client, key: &[u8], value: &[u8], into: &mut Vec<u8>) {
    assert!(client.get_into(key, into).expect("a readable table"), "the key exists");
    assert_eq!(into, value);
}

fn get_with(client: &mut Client, key: &[u8], value: &[u8], _: &mut Vec<u8>) {
    assert_eq!(client.get_with(key, 1.., |bytes| bytes == &value[1..]).expect("a readable table"), Some(true));
}

/// Looks the key up with one that is missing.
fn get_many(client: &mut Client, key: &[u8], value: &[u8], _: &mut Vec<u8>) {
    let missing = [0xff; KEY_BYTES];
    client.get_many_with(&[key, &missing[..key.len()]], |index, found| {
        assert_eq!(found.expect("a readable table"), (index == 0).then_some(value), "{index}");
    });
}

fn contains(client: &mut Client, key: &[u8], _: &[u8], _: &mut Vec<u8>) {
    assert!(client.contains(key).expect("a readable table"), "the key exists");
}

fn miss(client: &mut Client, key: &[u8], _: &[u8], into: &mut Vec<u8>) {
    assert!(!client.get_into(key, into).expect("a readable table"), "there is no such key");
}

fn operations_allocate_nothing(format: &'static str) {
    let mut bench = Bench::new(format);
    // The warm-up: a client that has filled a table has done searches as long as those to come.
    bench.run(0..CAPACITY, insert);
    bench.run(0..1, get_into);
    bench.run(0..1, get_with);
    bench.run(0..1, get_many);
    bench.run(SPARSE_KEYS..CAPACITY, remove);

    bench.count("insert at half fill", SPARSE_KEYS, insert);
    bench.count("get_into", 0, get_into);
    bench.count("get_with", 0, get_with);
    bench.count("get_many_with", 0, get_many);
    bench.count("contains", 0, contains);
    bench.count("get_into of a missing key", CAPACITY, miss);
    bench.count("update", 0, update);
    bench.count("put of an existing key", 0, replace);
    bench.count("insert of an existing key", 0, exists);
    bench.count("remove", SPARSE_KEYS, remove);
    bench.count("remove of a missing key", SPARSE_KEYS, removes_nothing);
    bench.run(SPARSE_KEYS..DENSE_KEYS, insert);
    let before = bench.moves();
    bench.count("insert at 85 % to 90 % fill", DENSE_KEYS, insert);
    let moves = bench.moves() - before;
    println!("{format}: {moves} entries were moved by the last {OPERATIONS} inserts");
    assert!(moves > OPERATIONS / 20, "{format}: {moves} moves are too few to count as inserts that move others");
}

/// The allocator counts: otherwise the tests below could not fail.
#[test]
fn allocations_are_counted() {
    let mut bench = Bench::new("fixed:8:8");
    bench.run(0..OPERATIONS, insert);
    let allocations = bench.run(0..OPERATIONS, |client, key, value, _| {
        assert_eq!(client.get(key).expect("a readable table").as_deref(), Some(value));
    });
    assert_eq!(allocations, OPERATIONS, "get returns a vector of its own");
}

#[test]
fn operations_on_four_byte_entries_allocate_nothing() {
    operations_allocate_nothing("fixed:4:4");
}

#[test]
fn operations_on_eight_byte_entries_allocate_nothing() {
    operations_allocate_nothing("fixed:8:8");
}

#[test]
fn operations_on_inline_entries_of_any_length_allocate_nothing() {
    operations_allocate_nothing("bytes:64");
}

/// A client reads extents into a buffer of its own, which grows to the longest value read so far. (Changes of extents
/// allocate: they keep lists of free slots.)
#[test]
fn lookups_of_extents_allocate_nothing() {
    let mut bench = Bench::new("bytes:64");
    let extent = vec![7; EXTENT_VALUE_BYTES];
    bench.run(0..OPERATIONS, |client, key, _, _| {
        assert!(client.try_insert(key, &extent).expect("room for a value"), "the key is new");
    });
    bench.into.reserve(EXTENT_VALUE_BYTES);
    let look_up = |client: &mut Client, key: &[u8], _: &[u8], into: &mut Vec<u8>| {
        assert!(client.get_into(key, into).expect("a readable table"), "the key exists");
        assert_eq!(into, &extent);
    };
    bench.run(0..1, look_up);
    bench.count("get_into of an extent", 0, look_up);
    let see = |client: &mut Client, key: &[u8], _: &[u8], _: &mut Vec<u8>| get_with(client, key, &extent, &mut vec![]);
    bench.run(0..1, see);
    bench.count("get_with of an extent", 0, see);
    bench.count("contains of an extent", 0, contains);
    let many = |client: &mut Client, key: &[u8], _: &[u8], into: &mut Vec<u8>| get_many(client, key, &extent, into);
    bench.run(0..1, many);
    bench.count("get_many_with of an extent", 0, many);
}
