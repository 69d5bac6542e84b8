//! A lane whose every step a test controls: it calls the test before each word, has a clock of its own, and samples
//! READs in the least convenient order that the fabric allows.
//!
//! Invariants: equal steps give equal results, because no real clock is read; a batch is executed inside `submit`.

use std::task::{Context, Poll};

use guira_fabric::heap::{HeapLane, HeapRegion};
use guira_fabric::memory::{check, execute};
use guira_fabric::{FabricError, Lane, Region, Submitted, Verb};

/// The order in which READs sample words where the fabric promises none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Ascending addresses, and verbs in the order of the batch.
    Ascending,
    /// The reverse: words of a READ unless verbs execute in place, and adjacent READs of a batch unless their order is
    /// promised.
    Descending,
}

/// The point at which a lane calls its `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPoint {
    /// Before a verb.
    Verb,
    /// Before a further word of a READ or WRITE.
    Word,
    /// While waiting for another client.
    Pause,
}

/// A lane of a heap region that calls `step` before each word it touches, and when it waits.
pub struct SteppedLane {
    region: HeapRegion,
    /// The source of promises and counters. Nothing is sent on it.
    lane: HeapLane,
    sampling: Sampling,
    step: Box<dyn FnMut(StepPoint) + Send>,
    now_ns: u64,
}

impl SteppedLane {
    /// Creates a lane of `region`.
    pub fn new(region: &HeapRegion, sampling: Sampling, step: Box<dyn FnMut(StepPoint) + Send>) -> SteppedLane {
        SteppedLane { region: region.clone(), lane: region.lane(), sampling, step, now_ns: 0 }
    }

    fn run(&mut self, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
        let swaps = self.sampling == Sampling::Descending && !self.caps().ordered_read_sampling;
        let is_read = |verb: &Verb<'_>| matches!(verb, Verb::Read { .. });
        for run in batch.chunk_by_mut(|a, b| is_read(a) && is_read(b)) {
            if swaps {
                run.reverse();
            }
            let result = run.iter_mut().try_for_each(|verb| self.execute(verb));
            if swaps {
                run.reverse();
            }
            result?;
        }
        Ok(())
    }

    fn execute(&mut self, verb: &mut Verb<'_>) -> Result<(), FabricError> {
        let region = self.region.clone();
        let memory = region.memory();
        let down = self.sampling == Sampling::Descending && !self.caps().local;
        match verb {
            Verb::Read { addr, into } => {
                let words = into.len();
                for i in 0..words {
                    (self.step)(if i == 0 { StepPoint::Verb } else { StepPoint::Word });
                    let word = if down { words - 1 - i } else { i };
                    let into = &mut into[word..=word];
                    execute(memory, &mut Verb::Read { addr: addr.add_words(word as u64), into })?;
                }
            }
            Verb::Write { addr, words } => {
                for word in 0..words.len() {
                    (self.step)(if word == 0 { StepPoint::Verb } else { StepPoint::Word });
                    let words = &words[word..=word];
                    execute(memory, &mut Verb::Write { addr: addr.add_words(word as u64), words })?;
                }
            }
            atomic => {
                (self.step)(StepPoint::Verb);
                execute(memory, atomic)?;
            }
        }
        Ok(())
    }
}

impl Lane for SteppedLane {
    crate::delegate!(lane: caps, traffic, traffic_mut, poll, forget, poll_drain);

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        let checked = check(self.region.memory(), self.region.caps(), batch);
        Submitted::Done(checked.and_then(|()| self.run(batch)))
    }

    fn poll_pause(&mut self, until_ns: u64, _: &mut Context<'_>) -> Poll<()> {
        (self.step)(StepPoint::Pause);
        self.now_ns = self.now_ns.max(until_ns);
        Poll::Ready(())
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }
}
