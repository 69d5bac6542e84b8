//! What operations on a table that has grown cost, beside one that was created for as many keys and can grow, too.
//!
//! Both tables have the same keys, and take turns: in each round every kind of operation is timed on both, on the same
//! keys. A cost is the median of the rounds.

use std::time::Instant;

use guira::{Client, CreateOptions, Store, Url};
use serde::Serialize;

use super::inserter::{GROUP, key};
use super::systems::{CHECKED, shape};
use super::table_in;
use crate::error::PeersError;
use crate::load::ProgressFn;
use crate::measure::MANY;
use crate::record::{Key, ValueEnds, WORD_BYTES, difference, value_word};
use crate::testbed::directory;

const ROUNDS: usize = 5;
/// The most operations of a kind in a round.
const MOST_OPERATIONS: u64 = 1 << 20;

/// What one operation costs, in nanoseconds: one client that does nothing else, keys of 8 bytes all over the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// A get.
    pub get_ns: f64,
    /// A key of a get of 32 keys.
    pub get_many_ns: f64,
    /// A put of a key that is there.
    pub put_ns: f64,
}

/// A table, and what operations on it cost.
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

impl Costs {
    /// The number, the fields and the order of the kinds.
    const KINDS: usize = 3;

    fn of([get_ns, get_many_ns, put_ns]: [f64; Costs::KINDS]) -> Costs {
        Costs { get_ns, get_many_ns, put_ns }
    }
}

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
    let mut times: [[Vec<f64>; Costs::KINDS]; 2] = Default::default();
    for round in 0..ROUNDS {
        for kind in 0..Costs::KINDS {
            for (client, times) in clients.iter_mut().zip(&mut times) {
                watch("timing operations on both", round as u64, ROUNDS as u64)?;
                // Keys that no round used before, as far as there are enough: where they are has no order.
                let first = (round as u64 * operations) % (keys - operations + 1);
                times[kind].push(time(client, kind, first, operations)?);
            }
        }
    }
    let costly = |store: &Store, times: &[Vec<f64>; Costs::KINDS]| -> Result<TableCosts, PeersError> {
        let table = store.stat()?.table;
        let costs = Costs::of(std::array::from_fn(|kind| median(&times[kind])));
        Ok(TableCosts { capacity: table.capacity, fill: table.fill, costs })
    };
    let (grown, created) = (costly(grown, &times[0])?, costly(&created, &times[1])?);
    let ratios = Costs {
        get_ns: grown.costs.get_ns / created.costs.get_ns,
        get_many_ns: grown.costs.get_many_ns / created.costs.get_many_ns,
        put_ns: grown.costs.put_ns / created.costs.put_ns,
    };
    Ok(AfterGrowth { grown, created, ratios })
}

/// Carries out operations of this kind on keys from `first` on. Returns the nanoseconds of each.
fn time(client: &mut Client, kind: usize, first: u64, operations: u64) -> Result<f64, PeersError> {
    let numbers = first..first + operations;
    let mut value = Vec::with_capacity(WORD_BYTES);
    let start = Instant::now();
    match kind {
        0 => {
            for key in numbers.map(key) {
                let is_found = client.get_into(&key, &mut value)?;
                check(&key, is_found.then_some(&value))?;
            }
        }
        1 => {
            for first in numbers.step_by(MANY) {
                let keys: [Key; MANY] = std::array::from_fn(|at| key(first + at as u64));
                let mut checked = Ok(());
                client.get_many_with(&keys, |at, found| {
                    if checked.is_ok() {
                        checked = found.map_err(PeersError::from).and_then(|value| check(&keys[at], value));
                    }
                });
                checked?;
            }
        }
        _ => {
            for key in numbers.map(key) {
                client.put(&key, &value_word(&key, 0).to_le_bytes())?;
            }
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / operations as f64)
}

fn check(key: &Key, value: Option<impl AsRef<[u8]>>) -> Result<(), PeersError> {
    let Some(value) = value else { return Err(PeersError::missing(key)) };
    let ends = ValueEnds::of(value.as_ref(), WORD_BYTES);
    if difference(key, ends) == 0 { Ok(()) } else { Err(PeersError::wrong(key, ends)) }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
