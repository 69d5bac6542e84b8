//! The watch over the name of a table's file. [R-OPEN-2]
//!
//! A file that was removed, moved or replaced stays usable for the processes that have it open, but whatever they store
//! there is lost to everybody else. So a thread of each store with such a file looks at the name once a second. When it
//! has found the name lost, every operation that begins fails with `Gone`, and a memory node of this process stops.
//!
//! Invariant: the thread keeps neither the file nor its mapping open, except to find out whether the table of a lost
//! name was destroyed.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use guira_fabric::Region;
use guira_fabric::signals::without_signals;
use guira_fabric_shm::{RegionName, ShmRegion};

use crate::store::{Inner, is_destroyed};
use crate::wait::block_on;

/// Time between two looks at a name.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time from finding a name lost to the look that counts: a process that destroys a table removes its name and then
/// marks the table, within microseconds.
const CONFIRMATION: Duration = Duration::from_millis(100);
/// Bytes of the thread's stack, which is hardly used.
const STACK_BYTES: usize = 256 << 10;

/// A running watch. Dropping it ends its thread soon after.
pub(crate) struct NameWatch(Thread);

impl NameWatch {
    /// Starts to watch the name of `region`, which is that of `store`.
    pub(crate) fn start(store: &Arc<Inner>, region: &ShmRegion) -> io::Result<NameWatch> {
        let (name, store) = (Arc::clone(region.name()), Arc::downgrade(store));
        let builder = thread::Builder::new().name("guira-name".to_owned()).stack_size(STACK_BYTES);
        let thread = without_signals(|| builder.spawn(move || watch(&name, &store)))?;
        Ok(NameWatch(thread.thread().clone()))
    }
}

impl Drop for NameWatch {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// Looks at `name` until it is lost, or `store` is dropped.
fn watch(name: &RegionName, store: &Weak<Inner>) {
    loop {
        thread::park_timeout(INTERVAL);
        if store.strong_count() == 0 {
            return;
        }
        if name.look().is_none() {
            continue;
        }
        thread::sleep(CONFIRMATION);
        let (Some(loss), Some(store)) = (name.look(), store.upgrade()) else { continue };
        // A destroyed table says so by itself. A truncated file must not be touched.
        let is_whole = store.first.verify_bytes().is_ok();
        if is_whole && block_on(store.verify_table(&store.first)).is_err_and(|error| is_destroyed(&error)) {
            return;
        }
        tracing::warn!(url = %store.url, %loss, "the table is gone");
        return name.record(loss);
    }
}
