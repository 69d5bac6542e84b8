//! The tests of the public API that need `unsafe` system calls: forks, locks of other programs, and pages that may not
//! be written. One program, as `suite` is, which forbids `unsafe`.
#![allow(unsafe_code, reason = "it forks, locks bytes of a file, and forbids writes to pages of a region")]
#![expect(clippy::unwrap_used, reason = "helpers of tests are not tests themselves to the lint")]

mod children;
mod node_death;

use guira::{CreateOptions, Store, Url};
use guira_testing::unique_name;

/// A table that is destroyed on drop.
struct Table {
    url: Url,
}

impl Table {
    fn create(options: &CreateOptions) -> (Table, Store) {
        let table = Table { url: Url::shm(&unique_name()).unwrap() };
        let store = Store::create(&table.url, options).unwrap();
        (table, store)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.url));
    }
}
