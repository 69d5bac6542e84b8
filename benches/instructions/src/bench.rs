//! A table with the keys that a case wants.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use guira::{Client, Reader};
use guira::{CreateOptions, Error, Store, Url};

use crate::counted_operations;

/// Keys each table is made for; they fill 90 % of its entries, and many inserts move others.
pub const DENSE_KEYS: u32 = 4_000;
/// Keys that fill half of its entries: inserts hardly ever move others.
pub const HALF_KEYS: u32 = DENSE_KEYS * 5 / 9;
/// Operations counted for each case. More would only be more of the same.
pub const OPERATIONS: u32 = 1_000;
/// Bytes for extents in formats that have them: twice what [`OPERATIONS`] values of 4 KiB need.
const EXTENT_BYTES: u64 = 16 << 20;
/// Client slots: this program needs one. Fewer make the table faster to create.
const MAX_CLIENTS: u16 = 4;
/// Seed of the tables' key hash: equal seeds give equal tables.
const TABLE_SEED: u64 = 23;

const _: () = assert!(OPERATIONS < HALF_KEYS, "every table has a key for each operation");

/// How long keys and values are.
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
    /// Items of numbers from `first` on. Different numbers have different keys.
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

/// A table, the one client that changes it, and a reader. The table is destroyed with it.
pub struct Bench {
    pub client: Client,
    pub reader: Reader,
    _table: Destroyed,
}

/// Destroys the table when it is dropped: after the client, which a struct's field order ensures.
struct Destroyed(Url);

impl Drop for Destroyed {
    fn drop(&mut self) {
        if let Err(error) = Store::destroy(&self.0) {
            eprintln!("guira-instructions: {error}");
        }
    }
}

impl Bench {
    /// A table of `format` that holds the items of the numbers below `keys`.
    pub fn new(format: &str, sizes: Sizes, keys: u32) -> Result<Bench> {
        Bench::with_options(format, sizes, keys, |options| options)
    }

    /// The same, whose changes leave no redo records.
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

    /// Those of `items` that are found with `posts` posts, repeated until there are [`OPERATIONS`] of them. In place, a
    /// hit in the key's first row is one post, one in its second row two.
    pub fn found_with(&mut self, posts: u64, items: Vec<Item>) -> Result<Vec<Item>> {
        let mut found = Vec::new();
        for item in items {
            let before = self.reader.traffic().round_trips;
            ensure!(self.reader.contains(&item.key)?, "a key is missing");
            if self.reader.traffic().round_trips - before == posts {
                found.push(item);
            }
        }
        ensure!(!found.is_empty(), "no key is found with {posts} posts");
        let copy = |item: &Item| Item { key: item.key.clone(), value: item.value.clone() };
        Ok(found.iter().cycle().take(OPERATIONS as usize).map(copy).collect())
    }

    /// Carries out `operation` on each of `items`, counted, and prints the case's line. Each must return true: it did
    /// what the case's name says.
    pub fn count(
        &mut self,
        case: &str,
        items: &[Item],
        mut operation: impl FnMut(&mut Bench, &Item) -> Result<bool, Error>,
    ) -> Result<()> {
        self.count_groups(case, items, 1, |bench, group| Ok(usize::from(operation(bench, &group[0])?)))
    }

    /// As [`Bench::count`], for an operation that takes up to `group_items` items at once and says how many of them it
    /// did. The counts are of one item.
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
