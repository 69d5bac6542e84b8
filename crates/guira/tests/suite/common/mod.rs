//! Tools of several modules of the suite: tables, a faulty proxy, the fabric of memory nodes, a slow link, and hosts
//! with a network between them.

pub mod fabric;
pub mod faulty_proxy;
pub mod hosts;
pub mod slow_link;

use std::sync::atomic::{AtomicU32, Ordering};

use guira::{CreateOptions, Store, Url};

/// A table that is destroyed when the test ends, however it ends.
pub struct Table {
    pub url: Url,
}

impl Table {
    pub fn create(options: &CreateOptions) -> (Table, Store) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let program = env!("CARGO_CRATE_NAME");
        let name = format!("guira-test-{program}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let url = Url::shm(&name).expect("a valid name");
        let store = Store::create(&url, options).expect("a fresh name");
        (Table { url }, store)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.url));
    }
}
