//! A lane that notes what it sends.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use guira_fabric::heap::{HeapLane, HeapRegion};
use guira_fabric::{Addr, Caps, FabricError, Lane, Region, Space, Submitted, Traffic, Verb};
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

/// Batches in the order in which they were sent.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Vec<Sent>>>>);

impl Log {
    /// What was sent since the last call.
    pub fn take(&self) -> Vec<Vec<Sent>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A lane of a heap region.
pub struct LoggedLane {
    lane: HeapLane,
    log: Log,
}

impl LoggedLane {
    pub fn new(region: &HeapRegion, log: Log) -> LoggedLane {
        LoggedLane { lane: region.lane(), log }
    }
}

impl Lane for LoggedLane {
    fn caps(&self) -> &Caps {
        self.lane.caps()
    }

    fn traffic(&self) -> &Traffic {
        self.lane.traffic()
    }

    fn traffic_mut(&mut self) -> &mut Traffic {
        self.lane.traffic_mut()
    }

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        let sent = batch.iter().map(|verb| Sent { name: verb.name(), addr: verb.addr(), words: verb.words() });
        self.log.0.lock().unwrap_or_else(PoisonError::into_inner).push(sent.collect());
        self.lane.submit(batch)
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        self.lane.poll(batch, cx)
    }

    fn forget(&mut self) {
        self.lane.forget();
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        self.lane.poll_drain(found, cx)
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        self.lane.poll_pause(until_ns, cx)
    }

    fn now_ns(&mut self) -> u64 {
        self.lane.now_ns()
    }
}
