//! A lane of a heap that shows a test each batch before it is carried out, which may refuse it.

use std::task::{Context, Poll};

use guira_fabric::heap::HeapLane;
use guira_fabric::{Caps, FabricError, Lane, Submitted, Traffic, Verb};

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
        match (self.watch)(batch) {
            Ok(()) => self.lane.submit(batch),
            Err(error) => Submitted::Done(Err(error)),
        }
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
