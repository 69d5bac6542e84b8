//! The state of a simulated lane: the progress of its batch and the task that waits for it.

use std::ops::Range;
use std::task::{Context, Waker};

use guira_fabric::memory::{Memory, prefetch_line, write_words};
use guira_fabric::{Addr, Effect};

use crate::batch::{Batch, VerbKind};
use crate::card::Passage;

/// The state of a lane.
pub(crate) struct LaneState {
    pub(crate) client: u32,
    /// The lane whose batch it carries on, if it is detached.
    pub(crate) queue_pair: Option<u32>,
    pub(crate) phase: Phase,
    pub(crate) batch: Batch,
    /// The pieces of a split verb that are still to be executed, the next one last.
    pub(crate) remaining: Vec<Range<usize>>,
    /// The READs that sample some of their words again at the end of the batch.
    pub(crate) resampled: Vec<(usize, Range<usize>)>,
    /// The time at which the node is done with the executed verbs.
    pub(crate) done_ns: u64,
    /// The batch on its way through the node's card, if cards are modelled.
    pub(crate) passage: Passage,
    pub(crate) waker: Option<Waker>,
    /// The end of the lane's pause, if it is pausing.
    pub(crate) pause_until_ns: Option<u64>,
    /// Whether the batch failed and gets no reply.
    pub(crate) has_failed: bool,
    /// Whether the connection is lost.
    pub(crate) is_lost: bool,
    /// Whether the lane carries a call whose reply nobody waits for.
    pub(crate) is_notice: bool,
    /// Whether no client uses the lane: it carries the rest of a batch whose failure was reported to its client.
    pub(crate) is_detached: bool,
    /// Executed WRITEs that other lanes do not see yet, in order.
    pub(crate) late_writes: Vec<(Addr, Vec<u64>)>,
}

/// The progress of a lane's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is no batch.
    Idle,
    /// The batch was sent, and this verb is the next to arrive.
    Sending(usize),
    /// The request of a call is on its way from the node's card to the service.
    Requesting,
    /// The request waits for a thread of the service, or is the job of one.
    Serving,
    /// The reply is on its way.
    Returning,
    /// The reply has arrived.
    Landed,
}

impl LaneState {
    pub(crate) fn new(client: u32) -> LaneState {
        LaneState {
            client,
            queue_pair: None,
            phase: Phase::Idle,
            batch: Batch::default(),
            remaining: Vec::new(),
            resampled: Vec::new(),
            done_ns: 0,
            passage: Passage::default(),
            waker: None,
            pause_until_ns: None,
            has_failed: false,
            is_lost: false,
            is_notice: false,
            is_detached: false,
            late_writes: Vec::new(),
        }
    }

    /// Brings what an event of the lane uses into the processor's cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch_line(&self.phase);
        prefetch_line(&self.batch);
        prefetch_line(&self.passage);
    }

    /// Creates a detached lane that continues the batch of `lane`, which has this number, at verb `index`. What has
    /// passed the element passes it again.
    pub(crate) fn detached_from(lane: &LaneState, number: u32, index: usize) -> LaneState {
        let detached = LaneState::new(lane.client);
        let mut batch = lane.batch.clone();
        batch.take_back(index);
        LaneState {
            batch,
            queue_pair: Some(number),
            is_notice: lane.is_notice,
            phase: Phase::Sending(index),
            is_lost: true,
            is_detached: true,
            ..detached
        }
    }

    /// Returns the effect of the failed batch, as far as its client can know.
    pub(crate) fn effect(&self) -> Effect {
        let changes = self.batch.sent.iter().any(|sent| sent.kind != VerbKind::Read);
        if changes { Effect::Unknown } else { Effect::None }
    }

    /// Makes the late WRITEs visible.
    pub(crate) fn show_late(&mut self, memory: Memory<'_>) {
        for (addr, words) in self.late_writes.drain(..) {
            let first = addr.word() as usize;
            write_words(&memory.space(addr.space())[first..first + words.len()], &words);
        }
    }

    pub(crate) fn register(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}
