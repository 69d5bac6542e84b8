//! A table with the keys of a case.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use guira::{Client, Reader};
use guira::{CreateOptions, Error, Store, Url};

use crate::counted_operations;

/// Keys that each table is created for. They fill 90 % of its entries, and many inserts move other entries.
pub const DENSE_KEYS: u32 = 4_000;
/// Keys that fill half of the entries: inserts hardly ever move other entries.
pub const HALF_KEYS: u32 = DENSE_KEYS * 5 / 9;
/// Operations counted for each case. More would give the same average.
pub const OPERATIONS: u32 = 1_000;
/// Bytes for extents in formats that have them: twice what [`OPERATIONS`] values of 4 KiB need.
const EXTENT_BYTES: u64 = 16 << 20;
/// Client slots: this program needs one. Fewer make the table faster to create.
const MAX_CLIENTS: u16 = 4;
/// Seed of the tables' key hash: equal seeds give equal tables.
const TABLE_SEED: u64 = 23;

const _: () = assert!(OPERATIONS < HALF_KEYS, "every table has a key for each operation");

/// Lengths of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub key_bytes: usize,
    pub value_bytes: usize,
}

/// A key and a value for it.
pub struct Item {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl AsRef<[u8]> for Item {
    fn as_ref(&self) -> &[u8] {
        &self.key
    }
}

impl Sizes {
    /// The items of `items` consecutive numbers from `first`. Different numbers have different keys.
    pub fn items(self, first: u32, items: u32) -> Vec<Item> {
        (first..first + items).map(|number| self.item(number)).collect()
    }

    fn item(self, number: u32) -> Item {
        // An odd multiplier is a bijection.
        let spread = number.wrapping_mul(0x9e37_79b1).to_le_bytes();
        let fill = |bytes: usize| spread.iter().copied().cycle().take(bytes).collect();
        Item { key: fill(self.key_bytes), value: fill(self.value_bytes) }
    }
}

/// A table, the one client that changes it, and a reader. The table is destroyed on drop.
pub struct Bench {
    pub client: Client,
    pub reader: Reader,
    _table: Destroyed,
}

/// Destroys the table on drop. The order of fields in [`Bench`] drops it after the client.
struct Destroyed(Url);

impl Drop for Destroyed {
    fn drop(&mut self) {
        if let Err(error) = Store::destroy(&self.0) {
            eprintln!("guira-instructions: {error}");
        }
    }
}

impl Bench {
    /// Creates a table of `format` that holds the items of the numbers below `keys`.
    pub fn new(format: &str, sizes: Sizes, keys: u32) -> Result<Bench> {
        Bench::with_options(format, sizes, keys, |options| options)
    }

    /// Same as [`Bench::new`], with a table that is divided into segments.
    pub fn in_segments(format: &str, sizes: Sizes, keys: u32) -> Result<Bench> {
        Bench::with_options(format, sizes, keys, CreateOptions::in_segments)
    }

    /// Same as [`Bench::new`], with a table whose changes write no redo records.
    pub fn without_records(format: &str, sizes: Sizes, keys: u32) -> Result<Bench> {
        Bench::with_options(format, sizes, keys, CreateOptions::without_commit_records)
    }

    fn with_options(
        format: &str,
        sizes: Sizes,
        keys: u32,
        change: fn(CreateOptions) -> CreateOptions,
    ) -> Result<Bench> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("guira-instructions-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let url = Url::shm(&name)?;
        let options = CreateOptions::new(u64::from(DENSE_KEYS)).format(format.parse()?).seed(TABLE_SEED);
        let options = change(options.extent_bytes(EXTENT_BYTES).max_clients(MAX_CLIENTS));
        let store = Store::create(&url, &options)?;
        let table = Destroyed(url);
        let mut bench = Bench { client: store.client()?, reader: store.reader(), _table: table };
        for item in sizes.items(0, keys) {
            bench.client.put(&item.key, &item.value).context("cannot fill the table")?;
        }
        Ok(bench)
    }

    /// Selects the items that are found with `posts` batches, and repeats them until there are [`OPERATIONS`]. In
    /// place, a hit in the key's first row is one batch, a hit in its second row is two.
    pub fn found_with(&mut self, posts: u64, items: Vec<Item>) -> Result<Vec<Item>> {
        let mut found = Vec::new();
        for item in items {
            let before = self.reader.traffic().round_trips;
            ensure!(self.reader.contains(&item.key)?, "a key is missing");
            if self.reader.traffic().round_trips - before == posts {
                found.push(item);
            }
        }
        ensure!(!found.is_empty(), "no key is found with {posts} batches");
        let copy = |item: &Item| Item { key: item.key.clone(), value: item.value.clone() };
        Ok(found.iter().cycle().take(OPERATIONS as usize).map(copy).collect())
    }

    /// Runs `operation`, counted, on each of `items`, and prints the line of the case. Each call must return true,
    /// which means that it did what the name of the case says.
    pub fn count(
        &mut self,
        case: &str,
        items: &[Item],
        mut operation: impl FnMut(&mut Bench, &Item) -> Result<bool, Error>,
    ) -> Result<()> {
        self.count_groups(case, items, 1, |bench, group| Ok(usize::from(operation(bench, &group[0])?)))
    }

    /// Same as [`Bench::count`], for an operation on up to `group_items` items that returns how many of them it
    /// handled. The counts are per item.
    pub fn count_groups(
        &mut self,
        case: &str,
        items: &[Item],
        group_items: usize,
        mut operation: impl FnMut(&mut Bench, &[Item]) -> Result<usize, Error>,
    ) -> Result<()> {
        let mut done = 0;
        counted_operations(&mut || {
            for group in items.chunks(group_items) {
                done += operation(self, black_box(group))?;
            }
            Ok(())
        })
        .with_context(|| format!("cannot carry out {case:?}"))?;
        ensure!(done == items.len(), "{done} of {} operations did what {case:?} says", items.len());
        println!("{} {case}", items.len());
        Ok(())
    }
}
