//! The state that the lanes of a connection share: their slots, the send queue, and the batches that wait for it.
//!
//! A batch goes through its slot: it waits in the queue, is posted, and is done or failed until its lane takes the
//! results. Batches are posted in the order in which they were submitted. The first one waits until the send queue has
//! room for all its work requests, and, if it is large, until a large buffer is free; those behind it wait, too. A large
//! buffer whose results were not taken yet is freed by moving them out, so the queue never waits for a task.
//!
//! Invariants: `in_use` is the number of requests posted and not completed, at most `depth`; a slot is in the queue
//! exactly while its stage is `Waiting`; a large buffer belongs to one slot or is in `free_large`. Of the batches that
//! wait, none with a large buffer is behind one without that needs one.

use std::collections::VecDeque;
use std::task::Waker;

use guira_fabric::Effect;

use super::buffers::{Buffer, Buffers};
use super::connection::LostConnection;
use super::plan::{Plan, Requests};
use crate::resources::QueuePair;

/// The progress of a slot's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none.
    Idle,
    /// It is in the queue.
    Waiting,
    /// This many of its work requests were posted.
    Posted(usize),
    /// It was executed, and its results were not taken.
    Done,
    /// It failed with this effect.
    Failed(Effect),
}

/// The results of a batch: in a buffer, or moved out of one.
pub(super) enum Results {
    Buffer(Buffer),
    Moved(Vec<u64>),
}

/// One lane's part of the state.
struct Slot {
    stage: Stage,
    requests: Requests,
    /// The batch's buffer; `None` while it waits for a large one, and once its results were moved out.
    buffer: Option<Buffer>,
    /// The data of a batch that waits for a large buffer, or the results moved out of one.
    moved: Vec<u64>,
    is_change: bool,
    /// Whether the lane was dropped: the slot is free once its batch has ended.
    is_orphan: bool,
    waker: Option<Waker>,
    /// The end of the lane's pause on the lanes' clock, and its task.
    pause: Option<(u64, Waker)>,
}

/// The state that lanes share, under one lock.
pub(super) struct Queue {
    slots: Vec<Slot>,
    free_slots: Vec<usize>,
    free_large: Vec<usize>,
    waiting: VecDeque<usize>,
    in_use: usize,
    depth: usize,
    lost: Option<LostConnection>,
    /// Tasks to be woken once the lock is released.
    woken: Vec<Waker>,
    /// The time at which the connection's thread wakes by itself.
    pub(super) next_wake_ns: u64,
}

/// The objects that batches are posted with.
pub(super) struct Port<'c> {
    pub(super) pair: &'c QueuePair,
    pub(super) buffers: &'c Buffers,
}

impl Queue {
    pub(super) fn new(lanes: usize, large_buffers: usize, depth: usize) -> Queue {
        let slot = || Slot {
            stage: Stage::Idle,
            requests: Requests::default(),
            buffer: None,
            moved: Vec::new(),
            is_change: false,
            is_orphan: false,
            waker: None,
            pause: None,
        };
        Queue {
            slots: std::iter::repeat_with(slot).take(lanes).collect(),
            free_slots: (0..lanes).rev().collect(),
            free_large: (0..large_buffers).collect(),
            waiting: VecDeque::with_capacity(lanes),
            in_use: 0,
            depth,
            lost: None,
            woken: Vec::with_capacity(2 * lanes),
            next_wake_ns: u64::MAX,
        }
    }

    pub(super) fn lost(&self) -> Option<&LostConnection> {
        self.lost.as_ref()
    }

    /// Takes a slot for a new lane, if one is free.
    pub(super) fn take_slot(&mut self) -> Option<usize> {
        self.free_slots.pop()
    }

    /// Returns the slot of a dropped lane, now or when its batch has ended.
    pub(super) fn give_slot(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        (slot.waker, slot.pause, slot.is_orphan) = (None, None, true);
        self.free_orphan(index);
    }

    pub(super) fn stage(&self, slot: usize) -> Stage {
        self.slots[slot].stage
    }

    /// Queues a batch whose data is in `buffer`, or will be in a large one: then `data` is called with it, if one is
    /// free, or else with none, and must return the data for the slot. Swaps `requests` with those of the last batch.
    pub(super) fn submit(
        &mut self,
        index: usize,
        plan: Plan,
        requests: &mut Requests,
        buffer: Option<Buffer>,
        data: impl FnOnce(Option<Buffer>, &mut Vec<u64>),
    ) {
        let buffer = match buffer {
            Some(buffer) => Some(buffer),
            None => self.take_large().map(Buffer::Large),
        };
        let slot = &mut self.slots[index];
        slot.moved.clear();
        if !matches!(buffer, Some(Buffer::Lane(_))) {
            slot.moved.resize(if buffer.is_none() { plan.words } else { 0 }, 0);
            data(buffer, &mut slot.moved);
        }
        std::mem::swap(&mut slot.requests, requests);
        (slot.stage, slot.buffer, slot.is_change, slot.waker) = (Stage::Waiting, buffer, plan.is_change, None);
        self.waiting.push_back(index);
    }

    /// Posts the batches that fit.
    pub(super) fn advance(&mut self, port: &Port<'_>) {
        while let Some(&index) = self.waiting.front() {
            if !self.find_buffer(index, port) || self.in_use + self.slots[index].requests.len() > self.depth {
                return;
            }
            self.waiting.pop_front();
            let slot = &mut self.slots[index];
            let Some(buffer) = slot.buffer else { return };
            let (address, key) = port.buffers.address(buffer);
            let requests = slot.requests.link(address, key);
            // SAFETY: the requests are linked; their pieces lie in the connection's registered buffers, which outlive
            // the queue pair; and they stay in the slot until the batch has ended.
            match unsafe { port.pair.post(requests) } {
                Ok(()) => {
                    slot.stage = Stage::Posted(slot.requests.len());
                    self.in_use += slot.requests.len();
                }
                Err(error) => {
                    slot.stage = Stage::Posted(error.posted);
                    self.lose(LostConnection::Refused);
                    // The requests before the refused one end with errors, which nobody waits for.
                    let _ = port.pair.fail();
                    return;
                }
            }
        }
    }

    /// Ends the batch of a slot, which was executed.
    pub(super) fn complete(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        if let Stage::Posted(requests) = slot.stage {
            slot.stage = Stage::Done;
            self.in_use -= requests;
            self.woken.extend(slot.waker.take());
            self.free_orphan(index);
        }
    }

    /// Ends all batches, because the connection is lost: those that wait have no effect, and neither have posted ones
    /// that change nothing.
    pub(super) fn lose(&mut self, cause: LostConnection) {
        if self.lost.is_some() {
            return;
        }
        self.lost = Some(cause);
        self.waiting.clear();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let effect = match slot.stage {
                Stage::Waiting => Effect::None,
                Stage::Posted(posted) if slot.is_change && slot.requests.change_memory(posted) => Effect::Unknown,
                Stage::Posted(_) => Effect::None,
                Stage::Idle | Stage::Done | Stage::Failed(_) => continue,
            };
            slot.stage = Stage::Failed(effect);
            self.woken.extend(slot.waker.take());
            self.free_orphan(index);
        }
    }

    /// Takes the results of a batch that is done. [`Queue::release`] must follow.
    pub(super) fn take_results(&mut self, index: usize) -> Results {
        let slot = &mut self.slots[index];
        slot.stage = Stage::Idle;
        match slot.buffer {
            Some(buffer) => Results::Buffer(buffer),
            None => Results::Moved(std::mem::take(&mut slot.moved)),
        }
    }

    /// Frees the slot's buffer after its results were taken.
    pub(super) fn release(&mut self, index: usize, results: Results) {
        let slot = &mut self.slots[index];
        slot.stage = Stage::Idle;
        match results {
            Results::Buffer(_) => self.free_buffer(index),
            Results::Moved(words) => slot.moved = words,
        }
    }

    /// Leaves a failed batch.
    pub(super) fn clear(&mut self, index: usize) {
        self.slots[index].stage = Stage::Idle;
    }

    /// Registers the task that waits for the slot's batch.
    pub(super) fn register(&mut self, index: usize, waker: &Waker) {
        store(&mut self.slots[index].waker, waker);
    }

    /// Registers a pause until `until_ns`. Returns whether the connection's thread must be woken for it.
    pub(super) fn pause(&mut self, index: usize, until_ns: u64, waker: &Waker) -> bool {
        let slot = &mut self.slots[index];
        match &mut slot.pause {
            Some((until, stored)) => {
                *until = until_ns;
                stored.clone_from(waker);
            }
            none => *none = Some((until_ns, waker.clone())),
        }
        until_ns < self.next_wake_ns
    }

    /// Wakes the tasks whose pauses have ended at `now_ns`, and notes the end of the next one.
    pub(super) fn end_pauses(&mut self, now_ns: u64) {
        self.next_wake_ns = u64::MAX;
        for slot in &mut self.slots {
            match slot.pause.take_if(|(until_ns, _)| *until_ns <= now_ns) {
                Some((_, waker)) => self.woken.push(waker),
                None => {
                    let until_ns = slot.pause.as_ref().map_or(u64::MAX, |(until_ns, _)| *until_ns);
                    self.next_wake_ns = self.next_wake_ns.min(until_ns);
                }
            }
        }
    }

    /// Takes a task that must be woken.
    pub(super) fn pop_woken(&mut self) -> Option<Waker> {
        self.woken.pop()
    }

    /// Gives the slot's batch a large buffer if it needs one; returns whether it has a buffer now.
    fn find_buffer(&mut self, index: usize, port: &Port<'_>) -> bool {
        if self.slots[index].buffer.is_some() {
            return true;
        }
        if self.free_large.is_empty() {
            self.move_results_out(port);
        }
        let Some(large) = self.take_large() else { return false };
        let slot = &mut self.slots[index];
        port.buffers.write(Buffer::Large(large), 0, &slot.moved);
        slot.buffer = Some(Buffer::Large(large));
        true
    }

    /// Frees the large buffer of a batch whose results were not taken, if there is one, by copying them.
    fn move_results_out(&mut self, port: &Port<'_>) {
        let is_done = |slot: &Slot| slot.stage == Stage::Done && matches!(slot.buffer, Some(Buffer::Large(_)));
        let Some(index) = self.slots.iter().position(is_done) else { return };
        let slot = &mut self.slots[index];
        if let Some(buffer) = slot.buffer {
            slot.moved.resize(port.buffers.large_words, 0);
            port.buffers.read(buffer, 0, &mut slot.moved);
        }
        self.free_buffer(index);
    }

    fn take_large(&mut self) -> Option<usize> {
        self.free_large.pop()
    }

    fn free_buffer(&mut self, index: usize) {
        if let Some(Buffer::Large(large)) = self.slots[index].buffer.take() {
            self.free_large.push(large);
        }
    }

    /// Frees the slot of a dropped lane whose batch has ended.
    fn free_orphan(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let has_ended = matches!(slot.stage, Stage::Idle | Stage::Done | Stage::Failed(_));
        if slot.is_orphan && has_ended {
            let is_lost = matches!(slot.stage, Stage::Failed(_));
            (slot.stage, slot.is_orphan) = (Stage::Idle, false);
            // The device may still access the buffers of a lost connection.
            if !is_lost {
                self.free_buffer(index);
            }
            self.free_slots.push(index);
        }
    }
}

fn store(stored: &mut Option<Waker>, waker: &Waker) {
    match stored {
        Some(stored) => stored.clone_from(waker),
        none => *none = Some(waker.clone()),
    }
}
