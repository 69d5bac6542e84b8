//! The state that the lanes of a connection share: their slots, the send queue, and the batches that wait for it.
//!
//! A batch goes through its slot: it waits in the queue, is posted, and is done or failed until its lane takes the
//! results. Batches are posted in the order in which they were submitted. The first one waits until the send queue has
//! room for all its work requests, and, if it is large, until a large buffer is free; those behind it wait. A large
//! buffer whose results were not taken yet is freed by moving them out, so the queue never waits for a task. READs and
//! atomics beyond the number that both sides allow in progress are held back by the device, in the send queue.
//!
//! Invariants: `in_use` is the number of requests posted and not completed, at most `depth`; a slot is in the queue
//! exactly while its stage is `Waiting`; a large buffer belongs to one slot or is in `free_large`. Of the batches that
//! wait, none that has a large buffer is behind one that needs it, so the first one gets its buffer in the end.

use std::collections::VecDeque;
use std::task::Waker;

use guira_fabric::{Effect, clock_ns};

use super::buffers::{Buffer, Buffers};
use super::connection::LostConnection;
use super::plan::{Plan, Requests};
use crate::resources::QueuePair;

/// The progress of a slot's batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none.
    #[default]
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
#[derive(Default)]
struct Slot {
    stage: Stage,
    requests: Requests,
    /// The batch's buffer; `None` while it waits for a large one, and once its results were moved out.
    buffer: Option<Buffer>,
    /// The data of a batch that waits for a large buffer, or the results moved out of one.
    moved: Vec<u64>,
    /// Words of the batch's buffer.
    words: usize,
    /// Whether the lane was dropped: the slot is free once its batch has ended.
    is_orphan: bool,
    waker: Option<Waker>,
    /// The end of the lane's pause on the lanes' clock, and its task.
    pause: Option<(u64, Waker)>,
}

/// The end of the batches that a deferred action waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All of them completed.
    Completed,
    /// The connection was lost before; some may still be executed.
    Lost,
}

/// An action that waits for batches.
pub(super) type Deferred = Box<dyn FnOnce(Drained) + Send>;

/// Work to do once the lock is released.
pub(super) enum Ready {
    /// A task to be woken.
    Wake(Waker),
    /// An action to be run.
    Run(Deferred, Drained),
    /// A task that is not waited for any more. Dropping it may drop a lane of the connection.
    Discard(Waker),
}

/// The state that lanes share, under one lock.
pub(super) struct Queue {
    slots: Vec<Slot>,
    free_slots: Vec<usize>,
    free_large: Vec<usize>,
    waiting: VecDeque<usize>,
    /// Batches in `waiting` that still need a large buffer.
    without_buffer: usize,
    in_use: usize,
    /// The time of the last completion, or of the post that was the first after a pause.
    progress_ns: u64,
    depth: usize,
    lost: Option<LostConnection>,
    /// Tasks to be woken once the lock is released.
    woken: Vec<Waker>,
    /// Tasks to be dropped once the lock is released.
    discarded: Vec<Waker>,
    /// The batches submitted and completed so far: both happen in the same order.
    submitted: u64,
    completed: u64,
    /// Actions that wait until so many batches have completed, in that order.
    deferred: VecDeque<(u64, Deferred)>,
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
        let mut queue = Queue {
            slots: Vec::new(),
            free_slots: Vec::new(),
            free_large: (0..large_buffers).collect(),
            waiting: VecDeque::new(),
            without_buffer: 0,
            in_use: 0,
            progress_ns: 0,
            depth,
            lost: None,
            woken: Vec::new(),
            discarded: Vec::new(),
            submitted: 0,
            completed: 0,
            deferred: VecDeque::new(),
            next_wake_ns: u64::MAX,
        };
        queue.add_slots(lanes);
        queue
    }

    /// Adds slots for more lanes, and room for all that a batch of each of them needs.
    pub(super) fn add_slots(&mut self, lanes: usize) {
        let first = self.slots.len();
        self.slots.extend(std::iter::repeat_with(Slot::default).take(lanes));
        self.free_slots.reserve(self.slots.len());
        self.free_slots.extend((first..self.slots.len()).rev());
        self.waiting.reserve(self.slots.len());
        // A task that waits for a batch, and one that pauses.
        self.woken.reserve(2 * self.slots.len());
    }

    /// Returns the number of lanes for which there are slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
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
        self.discarded.extend(slot.waker.take());
        self.discarded.extend(slot.pause.take().map(|(_, waker)| waker));
        slot.is_orphan = true;
        self.free_orphan(index);
    }

    pub(super) fn stage(&self, slot: usize) -> Stage {
        self.slots[slot].stage
    }

    /// Queues a batch whose data is in `buffer`; without one, `data` is called and writes the data into a large buffer,
    /// if one is free, or else into the vector. Swaps `requests` with those of the slot's last batch.
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
            // Behind a batch that needs one, this batch must not hold the last one.
            None if self.without_buffer > 0 => None,
            None => self.free_large.pop().map(Buffer::Large),
        };
        self.without_buffer += usize::from(buffer.is_none());
        let slot = &mut self.slots[index];
        slot.moved.clear();
        if !matches!(buffer, Some(Buffer::Lane(_))) {
            slot.moved.resize(if buffer.is_none() { plan.words } else { 0 }, 0);
            data(buffer, &mut slot.moved);
        }
        std::mem::swap(&mut slot.requests, requests);
        self.discarded.extend(slot.waker.take());
        (slot.stage, slot.buffer, slot.words) = (Stage::Waiting, buffer, plan.words);
        self.waiting.push_back(index);
        self.submitted += 1;
    }

    /// Defers an action until every batch submitted so far has completed, or the connection is lost.
    pub(super) fn defer(&mut self, action: Deferred) {
        self.deferred.push_back((self.submitted, action));
    }

    /// Returns the time since when the device has completed nothing, if batches are posted.
    pub(super) fn busy_since_ns(&self) -> Option<u64> {
        (self.in_use > 0 && self.lost.is_none()).then_some(self.progress_ns)
    }

    /// Whether one batch alone was submitted and has not completed.
    pub(super) fn has_one_in_flight(&self) -> bool {
        self.submitted - self.completed == 1 && self.lost.is_none()
    }

    /// Whether an action still waits.
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Posts the batches that fit.
    pub(super) fn advance(&mut self, port: &Port<'_>) {
        while let Some(&index) = self.waiting.front() {
            let Some(buffer) = self.find_buffer(index, port) else { return };
            let slot = &mut self.slots[index];
            if self.in_use + slot.requests.len() > self.depth {
                return;
            }
            self.waiting.pop_front();
            if self.in_use == 0 {
                self.progress_ns = clock_ns();
            }
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
                    // The requests before the refused one end with errors, which no lane waits for.
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
            self.completed += 1;
            self.progress_ns = clock_ns();
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
        self.without_buffer = 0;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let effect = match slot.stage {
                Stage::Waiting => Effect::None,
                Stage::Posted(posted) if slot.requests.change_memory(posted) => Effect::Unknown,
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

    /// Registers the task that waits for the slot's batch. Returns another one that waited, to be dropped once the lock
    /// is released: that may drop a lane.
    #[must_use]
    pub(super) fn register(&mut self, index: usize, waker: &Waker) -> Option<Waker> {
        store(&mut self.slots[index].waker, waker)
    }

    /// Registers a pause until `until_ns`. Returns whether the connection's thread must be woken for it, and another
    /// task that paused, as [`Queue::register`] does.
    #[must_use]
    pub(super) fn pause(&mut self, index: usize, until_ns: u64, waker: &Waker) -> (bool, Option<Waker>) {
        let slot = &mut self.slots[index];
        let mut stored = slot.pause.take().map(|(_, waker)| waker);
        let other = store(&mut stored, waker);
        slot.pause = stored.map(|waker| (until_ns, waker));
        (until_ns < self.next_wake_ns, other)
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

    /// Takes a task that must be woken, or an action that must be run.
    pub(super) fn pop_ready(&mut self) -> Option<Ready> {
        if let Some(waker) = self.discarded.pop() {
            return Some(Ready::Discard(waker));
        }
        if let Some(waker) = self.woken.pop() {
            return Some(Ready::Wake(waker));
        }
        let (until, _) = self.deferred.front()?;
        let drained = match &self.lost {
            _ if *until <= self.completed => Drained::Completed,
            Some(_) => Drained::Lost,
            None => return None,
        };
        self.deferred.pop_front().map(|(_, action)| Ready::Run(action, drained))
    }

    /// Takes the actions that still wait, because the connection ends.
    pub(super) fn take_deferred(&mut self) -> impl Iterator<Item = Deferred> {
        std::mem::take(&mut self.deferred).into_iter().map(|(_, action)| action)
    }

    /// Gives the slot's batch a large buffer if it needs one; returns its buffer, if it has one now.
    fn find_buffer(&mut self, index: usize, port: &Port<'_>) -> Option<Buffer> {
        if let Some(buffer) = self.slots[index].buffer {
            return Some(buffer);
        }
        if self.free_large.is_empty() {
            self.move_results_out(port);
        }
        let buffer = Buffer::Large(self.free_large.pop()?);
        self.without_buffer -= 1;
        let slot = &mut self.slots[index];
        port.buffers.write(buffer, 0, &slot.moved);
        slot.buffer = Some(buffer);
        slot.buffer
    }

    /// Frees the large buffer of a batch whose results were not taken, if there is one, by copying them.
    fn move_results_out(&mut self, port: &Port<'_>) {
        let is_done = |slot: &Slot| slot.stage == Stage::Done && matches!(slot.buffer, Some(Buffer::Large(_)));
        let Some(index) = self.slots.iter().position(is_done) else { return };
        let slot = &mut self.slots[index];
        if let Some(buffer) = slot.buffer {
            slot.moved.resize(slot.words, 0);
            port.buffers.read(buffer, 0, &mut slot.moved);
        }
        self.free_buffer(index);
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

/// Stores the waker of a task, and returns one of another task that it takes the place of.
fn store(stored: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match stored {
        Some(stored) if stored.will_wake(waker) => None,
        _ => stored.replace(waker.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const LARGE: Plan = Plan { requests: 1, words: 100 };

    /// Submits a batch to the slot `index`, and returns the buffer that its data was written to.
    fn submit(queue: &mut Queue, index: usize, plan: Plan, buffer: Option<Buffer>) -> Option<Buffer> {
        let mut written = buffer;
        let data = |large: Option<Buffer>, moved: &mut Vec<u64>| {
            assert_eq!(moved.len(), if large.is_some() { 0 } else { plan.words });
            written = large;
        };
        queue.submit(index, plan, &mut Requests::default(), buffer, data);
        written
    }

    #[test]
    fn no_batch_overtakes_another_on_the_way_to_a_large_buffer() {
        let mut queue = Queue::new(5, 1, 8);
        let large = Some(Buffer::Large(0));
        assert_eq!(submit(&mut queue, 0, LARGE, None), large);
        assert_eq!(submit(&mut queue, 1, LARGE, None), None);
        queue.free_buffer(0);
        assert_eq!(submit(&mut queue, 2, LARGE, None), None, "the first that waits gets it");
        assert_eq!(submit(&mut queue, 3, LARGE, Some(Buffer::Lane(3))), Some(Buffer::Lane(3)));
        assert_eq!((queue.without_buffer, queue.waiting.len()), (2, 4));
        queue.lose(LostConnection::Refused);
        assert_eq!((queue.without_buffer, queue.waiting.len()), (0, 0));
    }

    #[test]
    fn a_lost_connection_ends_each_batch_with_its_effect() {
        let mut queue = Queue::new(4, 1, 8);
        for index in 0..3 {
            submit(&mut queue, index, LARGE, Some(Buffer::Lane(index)));
        }
        // Batches 0 and 1 were posted. They have no requests here, so they change nothing.
        (queue.slots[0].stage, queue.slots[1].stage) = (Stage::Posted(0), Stage::Posted(1));
        queue.lose(LostConnection::Completions);
        queue.lose(LostConnection::Refused);
        assert_eq!(queue.lost(), Some(&LostConnection::Completions), "the first cause is kept");
        assert!((0..3).all(|index| queue.stage(index) == Stage::Failed(Effect::None)));
        assert_eq!(queue.stage(3), Stage::Idle);
    }

    #[test]
    fn slots_return_when_their_batches_have_ended() {
        let mut queue = Queue::new(2, 1, 8);
        let (first, second) = (queue.take_slot().unwrap(), queue.take_slot().unwrap());
        assert_eq!((first, second, queue.take_slot()), (0, 1, None));
        queue.give_slot(second);
        assert_eq!(queue.take_slot(), Some(1));
        assert_eq!(submit(&mut queue, 0, LARGE, None), Some(Buffer::Large(0)));
        queue.slots[0].stage = Stage::Posted(0);
        queue.give_slot(0);
        assert_eq!(queue.take_slot(), None, "its batch is in flight");
        queue.complete(0);
        assert_eq!((queue.take_slot(), queue.free_large.len()), (Some(0), 1));
        queue.complete(77);
    }

    /// Runs the actions that are due, and returns how the batches that they waited for ended.
    fn run_deferred(queue: &mut Queue, ended: &Arc<Mutex<Vec<(u32, Drained)>>>) -> Vec<(u32, Drained)> {
        while let Some(Ready::Run(action, drained)) = queue.pop_ready() {
            action(drained);
        }
        std::mem::take(&mut ended.lock().unwrap())
    }

    #[test]
    fn an_action_waits_for_the_batches_before_it_and_no_others() {
        let mut queue = Queue::new(4, 1, 8);
        let ended = Arc::new(Mutex::new(Vec::new()));
        let defer = |queue: &mut Queue, number: u32| {
            let ended = Arc::clone(&ended);
            queue.defer(Box::new(move |drained| ended.lock().unwrap().push((number, drained))));
        };
        defer(&mut queue, 0);
        assert_eq!(run_deferred(&mut queue, &ended), [(0, Drained::Completed)], "nothing is in flight");
        for index in 0..3 {
            submit(&mut queue, index, LARGE, Some(Buffer::Lane(index)));
            queue.slots[index].stage = Stage::Posted(0);
            defer(&mut queue, index as u32 + 1);
        }
        assert!(run_deferred(&mut queue, &ended).is_empty() && queue.has_deferred());
        queue.complete(0);
        assert_eq!(run_deferred(&mut queue, &ended), [(1, Drained::Completed)]);
        queue.lose(LostConnection::Refused);
        assert_eq!(run_deferred(&mut queue, &ended), [(2, Drained::Lost), (3, Drained::Lost)]);
        assert!(!queue.has_deferred());
    }
}
