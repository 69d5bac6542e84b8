//! What the world knows of a lane: how far its batch has come, and who waits for it.

use std::ops::Range;
use std::task::{Context, Waker};

use guira_fabric::memory::{Memory, write_words};
use guira_fabric::{Addr, Effect};

use crate::batch::{Batch, VerbKind};

pub(crate) struct LaneState {
    pub(crate) client: u32,
    pub(crate) phase: Phase,
    pub(crate) batch: Batch,
    /// The words of the verb under way that are still to be carried out, if others were let in between.
    pub(crate) remaining: Option<Range<usize>>,
    /// When the node is done with the verbs carried out.
    pub(crate) done_ns: u64,
    pub(crate) waker: Option<Waker>,
    /// Until when the lane waits, if it does.
    pub(crate) pause_until_ns: Option<u64>,
    /// The reply to the batch does not come.
    pub(crate) has_failed: bool,
    /// The connection is broken.
    pub(crate) is_lost: bool,
    /// Nobody has this lane: it carries the rest of a batch whose client was told that it failed.
    pub(crate) is_detached: bool,
    /// WRITEs carried out that nobody else sees yet, in their order.
    pub(crate) late_writes: Vec<(Addr, Vec<u64>)>,
}

/// How far a lane's batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is none.
    Idle,
    /// This verb is the next to arrive.
    Sending(usize),
    /// Its reply is on its way.
    Returning,
    /// Its reply is here.
    Landed,
}

impl LaneState {
    pub(crate) fn new(client: u32) -> LaneState {
        LaneState {
            client,
            phase: Phase::Idle,
            batch: Batch::default(),
            remaining: None,
            done_ns: 0,
            waker: None,
            pause_until_ns: None,
            has_failed: false,
            is_lost: false,
            is_detached: false,
            late_writes: Vec::new(),
        }
    }

    /// A lane of nobody that goes on with the batch of `lane` at verb `index`.
    pub(crate) fn detached_from(lane: &LaneState, index: usize) -> LaneState {
        let detached = LaneState::new(lane.client);
        LaneState {
            batch: lane.batch.clone(),
            phase: Phase::Sending(index),
            is_lost: true,
            is_detached: true,
            ..detached
        }
    }

    /// What the failed batch may have done, as far as its client can know.
    pub(crate) fn effect(&self) -> Effect {
        let changes = self.batch.sent.iter().any(|sent| sent.kind != VerbKind::Read);
        if changes { Effect::Unknown } else { Effect::None }
    }

    /// Makes its late WRITEs visible.
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
