//! Tools of several modules of the suite: tables, the fabric of memory nodes, a slow link, and hosts with a network
//! between them.

pub mod fabric;
pub mod hosts;
pub mod slow_link;

use guira::{CreateOptions, Store, Url};
use guira_testing::unique_name;

/// A table that is destroyed when the test ends, however it ends.
pub struct Table {
    pub url: Url,
}

impl Table {
    /// Returns a name for a table that does not exist yet.
    pub fn unused() -> Table {
        Table { url: Url::shm(&unique_name()).expect("a valid name") }
    }

    pub fn create(options: &CreateOptions) -> (Table, Store) {
        let table = Table::unused();
        let store = Store::create(&table.url, options).expect("a fresh name");
        (table, store)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.url));
    }
}
