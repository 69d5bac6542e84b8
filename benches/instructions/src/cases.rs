//! The cases: every operation of the public API, in each situation and format with a cost of its own.

use anyhow::Result;

use crate::bench::{Bench, DENSE_KEYS, HALF_KEYS, OPERATIONS, Sizes};

/// Formats with keys and values that are stored in the row.
const INLINE: [(&str, Sizes); 3] = [
    ("fixed:8:8", Sizes { key_bytes: 8, value_bytes: 8 }),
    ("fixed:4:4", Sizes { key_bytes: 4, value_bytes: 4 }),
    ("bytes:64", Sizes { key_bytes: 16, value_bytes: 32 }),
];
/// The format that stores long values in extents, and two such lengths of values.
const EXTENTS: (&str, [usize; 2]) = ("bytes:64", [200, 4096]);
const EXTENT_KEY_BYTES: usize = 16;
/// Keys per `get_many`.
const GROUP_KEYS: usize = 32;

/// Runs every case, each on a table of its own.
pub fn run_all() -> Result<()> {
    for (format, sizes) in INLINE {
        lookups(format, sizes)?;
        lookups_in_segments(format, sizes)?;
        changes(format, sizes)?;
        ycsb_a(format, sizes)?;
        for (fill, keys) in [("50 %", HALF_KEYS), ("90 %", DENSE_KEYS)] {
            insert_and_remove(&format!("{format} insert and remove at {fill} fill"), format, sizes, keys)?;
        }
    }
    let (format, lengths) = EXTENTS;
    for value_bytes in lengths {
        extents(format, Sizes { key_bytes: EXTENT_KEY_BYTES, value_bytes })?;
    }
    Ok(())
}

/// Looks up keys of a table that is divided into segments.
fn lookups_in_segments(format: &str, sizes: Sizes) -> Result<()> {
    for (row, posts) in [("first", 1), ("second", 2)] {
        let mut bench = Bench::in_segments(format, sizes, DENSE_KEYS)?;
        let items = bench.found_with(posts, sizes.items(0, DENSE_KEYS))?;
        let mut into = Vec::with_capacity(sizes.value_bytes);
        bench.count(&format!("{format} get_into, in the {row} row, in segments"), &items, |bench, item| {
            bench.reader.get_into(&item.key, &mut into)
        })?;
    }
    Ok(())
}

fn lookups(format: &str, sizes: Sizes) -> Result<()> {
    for (row, posts) in [("first", 1), ("second", 2)] {
        let mut bench = Bench::new(format, sizes, DENSE_KEYS)?;
        let items = bench.found_with(posts, sizes.items(0, DENSE_KEYS))?;
        bench.count(&format!("{format} get, in the {row} row"), &items, |bench, item| {
            Ok(bench.reader.get(&item.key)?.is_some())
        })?;
        let mut into = Vec::with_capacity(sizes.value_bytes);
        bench.count(&format!("{format} get_into, in the {row} row"), &items, |bench, item| {
            bench.reader.get_into(&item.key, &mut into)
        })?;
    }
    let mut bench = Bench::new(format, sizes, DENSE_KEYS)?;
    let case = format!("{format} get_many_with, {GROUP_KEYS} keys, per key");
    bench.count_groups(&case, &sizes.items(0, OPERATIONS), GROUP_KEYS, |bench, group| {
        let mut found = 0;
        bench.reader.get_many_with(group, |_, value| found += usize::from(matches!(value, Ok(Some(_)))));
        Ok(found)
    })?;
    let missing = sizes.items(DENSE_KEYS, OPERATIONS);
    let mut bench = Bench::new(format, sizes, DENSE_KEYS)?;
    bench.count(&format!("{format} get, missing"), &missing, |bench, item| Ok(bench.reader.get(&item.key)?.is_none()))
}

fn changes(format: &str, sizes: Sizes) -> Result<()> {
    let items = sizes.items(0, OPERATIONS);
    let fresh = || Bench::new(format, sizes, DENSE_KEYS);
    fresh()?.count(&format!("{format} update"), &items, |bench, item| bench.client.update(&item.key, &item.value))?;
    let mut bench = Bench::without_records(format, sizes, DENSE_KEYS)?;
    bench.count(&format!("{format} update, without records"), &items, |bench, item| {
        bench.client.update(&item.key, &item.value)
    })?;
    fresh()?.count(&format!("{format} put, key exists"), &items, |bench, item| {
        Ok(bench.client.put(&item.key, &item.value)? == guira::Put::Replaced)
    })?;
    fresh()?.count(&format!("{format} compare_and_swap"), &items, |bench, item| {
        Ok(bench.client.compare_and_swap(&item.key, &item.value, &item.value)?.is_done())
    })?;
    fresh()?.count(&format!("{format} remove"), &items, |bench, item| bench.client.remove(&item.key))
}

/// Runs as many lookups as updates, with redo records and without, which shows the cost of the records.
fn ycsb_a(format: &str, sizes: Sizes) -> Result<()> {
    let items = sizes.items(0, OPERATIONS);
    let case = format!("{format} YCSB-A");
    for (case, mut bench) in [
        (case.clone(), Bench::new(format, sizes, DENSE_KEYS)?),
        (format!("{case}, without records"), Bench::without_records(format, sizes, DENSE_KEYS)?),
    ] {
        let (mut into, mut is_lookup) = (Vec::with_capacity(sizes.value_bytes), false);
        bench.count(&case, &items, |bench, item| {
            is_lookup = !is_lookup;
            match is_lookup {
                true => bench.client.get_into(&item.key, &mut into),
                false => bench.client.update(&item.key, &item.value),
            }
        })?;
    }
    Ok(())
}

/// Inserts and removes in turn, so that the fill stays constant.
fn insert_and_remove(case: &str, format: &str, sizes: Sizes, keys: u32) -> Result<()> {
    let items = sizes.items(keys, OPERATIONS);
    Bench::new(format, sizes, keys)?.count(case, &items, |bench, item| {
        Ok(bench.client.try_insert(&item.key, &item.value)? && bench.client.remove(&item.key)?)
    })
}

fn extents(format: &str, sizes: Sizes) -> Result<()> {
    let items = sizes.items(0, OPERATIONS);
    let value_bytes = sizes.value_bytes;
    let fresh = || Bench::new(format, sizes, OPERATIONS);
    let mut into = Vec::with_capacity(value_bytes);
    fresh()?.count(&format!("{format} get_into, extent of {value_bytes} B"), &items, |bench, item| {
        bench.reader.get_into(&item.key, &mut into)
    })?;
    fresh()?.count(&format!("{format} update, extent of {value_bytes} B"), &items, |bench, item| {
        bench.client.update(&item.key, &item.value)
    })
}
