//! The costs of operations on a table that has grown, beside one that was created for as many keys and can grow, too.
//!
//! Both tables have the same keys, and take turns: in each round every kind of operation is timed on both, on the same
//! keys. A cost is the median of the rounds.

use std::ops::Range;
use std::time::Instant;

use guira::{Client, CreateOptions, Store, Url};
use serde::Serialize;

use super::inserter::{GROUP, key};
use super::systems::{CHECKED, check, shape};
use super::table_in;
use crate::error::PeersError;
use crate::load::ProgressFn;
use crate::measure::MANY;
use crate::record::{Key, ValueEnds, WORD_BYTES, value_word};
use crate::testbed::directory;

const ROUNDS: usize = 5;
/// The most operations of a kind in a round.
const MOST_OPERATIONS: u64 = 1 << 20;

/// The costs of operations, in nanoseconds: of one client that does nothing else, keys of 8 bytes all over the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// A get.
    pub get_ns: f64,
    /// A key of a get of 32 keys.
    pub get_many_ns: f64,
    /// A put of a key that is there.
    pub put_ns: f64,
}

/// A table, and the costs of operations on it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TableCosts {
    /// Entries that it has room for.
    pub capacity: u64,
    /// Its entries, as a part of that.
    pub fill: f64,
    /// The costs.
    pub costs: Costs,
}

/// A table that has grown, beside one with the same keys that was created for them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AfterGrowth {
    /// The table that has grown.
    pub grown: TableCosts,
    /// The other one.
    pub created: TableCosts,
    /// The costs in the first one, as multiples of those in the other.
    pub ratios: Costs,
}

/// A kind of operations, which is carried out on the keys with these numbers.
type Kind = fn(&mut Client, Range<u64>) -> Result<(), PeersError>;

/// The kinds, in the order of the fields of [`Costs`].
const KINDS: [Kind; 3] = [get, get_many, put];

/// Times operations on the table `grown`, which has the first `keys` keys, and on one that is created for them.
pub fn compare(grown: &Store, keys: u64, watch: &mut ProgressFn<'_>) -> Result<AfterGrowth, PeersError> {
    let directory = directory()?;
    let url = Url::file(&table_in(directory.path())).map_err(guira::Error::from)?;
    let created = Store::create(&url, &shape(CreateOptions::new(keys).max_capacity(2 * keys), 1))?;
    let mut client = created.client()?;
    for first in (0..keys).step_by(GROUP as usize) {
        if first % CHECKED == 0 {
            watch("making a table for as many keys", first, keys)?;
        }
        let items: Vec<(Key, [u8; WORD_BYTES])> =
            (first..keys.min(first + GROUP)).map(key).map(|key| (key, value_word(&key, 0).to_le_bytes())).collect();
        client.put_many(&items).into_iter().try_for_each(|put| put.map(drop))?;
    }
    let mut clients = [grown.client()?, client];
    let operations = keys.min(MOST_OPERATIONS) / MANY as u64 * MANY as u64;
    let mut times: [[Vec<f64>; KINDS.len()]; 2] = Default::default();
    for round in 0..ROUNDS {
        for (kind, carry_out) in KINDS.iter().enumerate() {
            for (client, times) in clients.iter_mut().zip(&mut times) {
                watch("timing operations on both", round as u64, ROUNDS as u64)?;
                // Keys that no round used before, as far as there are enough: where they are has no order.
                let first = (round as u64 * operations) % (keys - operations + 1);
                let start = Instant::now();
                carry_out(client, first..first + operations)?;
                times[kind].push(start.elapsed().as_nanos() as f64 / operations as f64);
            }
        }
    }
    let [grown_times, created_times] = times;
    let (grown, created) = (TableCosts::of(grown, grown_times)?, TableCosts::of(&created, created_times)?);
    let ratios = Costs {
        get_ns: grown.costs.get_ns / created.costs.get_ns,
        get_many_ns: grown.costs.get_many_ns / created.costs.get_many_ns,
        put_ns: grown.costs.put_ns / created.costs.put_ns,
    };
    Ok(AfterGrowth { grown, created, ratios })
}

impl TableCosts {
    fn of(store: &Store, times: [Vec<f64>; KINDS.len()]) -> Result<TableCosts, PeersError> {
        let table = store.stat()?.table;
        let [get_ns, get_many_ns, put_ns] = times.map(median);
        Ok(TableCosts { capacity: table.capacity, fill: table.fill, costs: Costs { get_ns, get_many_ns, put_ns } })
    }
}

fn get(client: &mut Client, numbers: Range<u64>) -> Result<(), PeersError> {
    let mut value = Vec::with_capacity(WORD_BYTES);
    for key in numbers.map(key) {
        let is_found = client.get_into(&key, &mut value)?;
        check(&key, is_found.then(|| ValueEnds::of(&value, WORD_BYTES)))?;
    }
    Ok(())
}

fn get_many(client: &mut Client, numbers: Range<u64>) -> Result<(), PeersError> {
    for first in numbers.step_by(MANY) {
        let keys: [Key; MANY] = std::array::from_fn(|at| key(first + at as u64));
        let mut checked = Ok(());
        client.get_many_with(&keys, |at, found| {
            if checked.is_ok() {
                let ends = found.map(|value| value.map(|value| ValueEnds::of(value, WORD_BYTES)));
                checked = ends.map_err(PeersError::from).and_then(|ends| check(&keys[at], ends));
            }
        });
        checked?;
    }
    Ok(())
}

fn put(client: &mut Client, numbers: Range<u64>) -> Result<(), PeersError> {
    for key in numbers.map(key) {
        client.put(&key, &value_word(&key, 0).to_le_bytes())?;
    }
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
