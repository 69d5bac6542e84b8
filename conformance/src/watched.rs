//! A heap lane that shows each batch to a test, which may refuse it.

use guira_fabric::heap::HeapLane;
use guira_fabric::{FabricError, Lane, Submitted, Verb};

/// A callback for each batch; the batch is refused if it returns an error.
pub type Watch = Box<dyn FnMut(&[Verb<'_>]) -> Result<(), FabricError> + Send>;

/// A lane that calls its watch with each batch.
pub struct WatchedLane {
    lane: HeapLane,
    watch: Watch,
}

impl WatchedLane {
    /// Wraps `lane` with `watch`.
    pub fn new(lane: HeapLane, watch: Watch) -> WatchedLane {
        WatchedLane { lane, watch }
    }
}

impl Lane for WatchedLane {
    crate::delegate!(lane: caps, traffic, traffic_mut, poll, forget, poll_drain, poll_pause, now_ns);

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        match (self.watch)(batch) {
            Ok(()) => self.lane.submit(batch),
            Err(error) => Submitted::Done(Err(error)),
        }
    }
}
