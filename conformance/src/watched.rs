//! A lane of a heap that shows a test each batch before it is carried out, which may refuse it.

use guira_fabric::heap::HeapLane;
use guira_fabric::{FabricError, Lane, Submitted, Verb};

/// What is called with each batch; with an error the batch is refused.
pub type Watch = Box<dyn FnMut(&[Verb<'_>]) -> Result<(), FabricError> + Send>;

/// A lane that calls its watch with each batch.
pub struct WatchedLane {
    lane: HeapLane,
    watch: Watch,
}

impl WatchedLane {
    /// `lane`, watched by `watch`.
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
