//! A lane that records the batches it sends.

use std::sync::{Arc, Mutex, PoisonError};

use guira_conformance::WatchedLane;
use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Region, Space, Verb};
use guira_layout::{Geometry, RowId};

/// A verb that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    name: &'static str,
    pub addr: Addr,
    pub words: usize,
}

impl Sent {
    pub fn is_read(&self) -> bool {
        self.name == "READ"
    }

    pub fn is_write(&self) -> bool {
        self.name == "WRITE"
    }

    pub fn is_atomic(&self) -> bool {
        !self.is_read() && !self.is_write()
    }

    /// Whether it is a WRITE to a table of `rows` rows.
    pub fn writes_row(&self, geometry: &Geometry, rows: u64) -> bool {
        let bytes = geometry.row(RowId(0)).offset()..geometry.row(RowId(rows)).offset();
        self.is_write() && self.addr.space() == Space::Main && bytes.contains(&self.addr.offset())
    }
}

/// Batches, in the order in which they were sent.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Vec<Sent>>>>);

impl Log {
    /// Returns the batches sent since the last call.
    pub fn take(&self) -> Vec<Vec<Sent>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Creates a lane of `region` that records in `log` what it sends.
pub fn logged(region: &HeapRegion, log: Log) -> WatchedLane {
    let watch = move |batch: &[Verb<'_>]| {
        let sent = batch.iter().map(|verb| Sent { name: verb.name(), addr: verb.addr(), words: verb.words() });
        log.0.lock().unwrap_or_else(PoisonError::into_inner).push(sent.collect());
        Ok(())
    };
    WatchedLane::new(region.lane(), Box::new(watch))
}
