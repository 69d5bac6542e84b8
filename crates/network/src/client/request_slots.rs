//! The request slots of a connection: the requests in flight, and their replies.
//!
//! Each lane has a request slot for as long as it lives, and each control request for as long as it is in flight. The
//! id of a frame is the index of its slot and a number that grows with each frame of the slot, so that no reply is
//! taken for another's.
//!
//! Invariants: the replies to one slot arrive in the order of its frames; a slot whose owner is gone is free once all
//! its frames are answered; a reply never has more words than were requested.

use std::collections::BTreeMap;
use std::task::Waker;

use guira_fabric::FabricError;

use super::loss::Loss;
use crate::wire::{CloseReason, Header, HoldReply, Kind, decode_refusal};

/// Maximum number of request slots of a connection.
pub const MAX_REQUEST_SLOTS: usize = 1 << 16;
/// The words of capacity that an idle slot keeps.
const KEPT_WORDS: usize = 1 << 18;

/// The reply that a slot expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The results of a batch: `words` words in the replies to `frames` frames.
    Found {
        /// The words of all replies together.
        words: usize,
        /// The frames of the batch.
        frames: u32,
    },
    /// One reply of this kind.
    Reply(Kind),
}

/// The treatment of a reply to a slot whose owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Abandoned {
    /// The reply is ignored.
    Ignored,
    /// A reply that grants the liveness of this client slot is followed by a release.
    Hold(u16),
}

enum Stage {
    Idle,
    /// A request is in flight; `is_partly_answered` if some of its frames are answered and others are not.
    Waiting {
        expected: Expected,
        is_partly_answered: bool,
    },
    Answered(Result<(), FabricError>),
}

struct RequestSlot {
    stage: Stage,
    /// The number of the next reply; while idle, of the next frame.
    number: u32,
    /// The results received so far.
    words: Vec<u64>,
    waker: Option<Waker>,
    abandoned: Option<Abandoned>,
    /// [`RequestSlots::tick`] when the request was sent.
    sent_tick: u32,
    /// The time at which the pause of the slot's task ends, if it pauses.
    pause_ns: Option<u64>,
}

/// The actions that follow from the delivery of a reply.
#[derive(Default)]
pub(super) struct Delivered {
    pub(super) waker: Option<Waker>,
    /// A client slot to release, because its requester is gone.
    pub(super) release: Option<u16>,
}

/// The request slots of a connection.
#[derive(Default)]
pub struct RequestSlots {
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    pauses: BTreeMap<(u64, u32), Waker>,
    /// The wakers that are not needed any more.
    discarded: Vec<Waker>,
    /// The number of ticks so far; a slot that waits for several is overdue.
    tick: u32,
}

impl RequestSlots {
    /// Takes a slot; `None` if all are taken.
    pub fn take(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        if self.slots.len() == MAX_REQUEST_SLOTS {
            return None;
        }
        let (words, waker, abandoned) = (Vec::new(), None, None);
        self.slots.push(RequestSlot {
            stage: Stage::Idle,
            number: 0,
            words,
            waker,
            abandoned,
            sent_tick: 0,
            pause_ns: None,
        });
        Some(self.slots.len() as u32 - 1)
    }

    /// Releases a slot: now, or once its request is answered. `hold` is the client slot whose liveness it requested.
    pub(super) fn release_slot(&mut self, index: u32, hold: Option<u16>) -> Delivered {
        self.end_pause(index);
        let slot = &mut self.slots[index as usize];
        self.discarded.extend(slot.waker.take());
        slot.abandoned = Some(hold.map_or(Abandoned::Ignored, Abandoned::Hold));
        match slot.stage {
            Stage::Waiting { .. } => Delivered::default(),
            _ => Delivered { waker: None, release: self.free(index) },
        }
    }

    /// Starts a request; returns the id of its first frame. [`frame_id`] returns those of the others.
    pub fn begin(&mut self, index: u32, expected: Expected) -> u64 {
        let sent_tick = self.tick;
        let slot = &mut self.slots[index as usize];
        assert!(matches!(slot.stage, Stage::Idle), "one request per slot");
        slot.stage = Stage::Waiting { expected, is_partly_answered: false };
        slot.words.clear();
        slot.sent_tick = sent_tick;
        u64::from(slot.number) << 32 | u64::from(index)
    }

    /// Notes that the request, of one frame, was answered and its reply consumed elsewhere.
    pub(super) fn finish(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.stage = Stage::Idle;
        slot.number = slot.number.wrapping_add(1);
    }

    /// Abandons a request that will not be answered; returns whether a part of it was.
    pub(super) fn reset(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index as usize];
        self.discarded.extend(slot.waker.take());
        matches!(std::mem::replace(&mut slot.stage, Stage::Idle), Stage::Waiting { is_partly_answered: true, .. })
    }

    pub(super) fn is_waiting(&self, index: u32) -> bool {
        matches!(self.slots[index as usize].stage, Stage::Waiting { .. })
    }

    /// Returns the outcome of the slot's request if it is complete, and swaps its results into `words`. Otherwise keeps
    /// `waker` to be woken then.
    pub(super) fn outcome(
        &mut self,
        index: u32,
        words: &mut Vec<u64>,
        waker: Option<&Waker>,
    ) -> Option<Result<(), FabricError>> {
        let slot = &mut self.slots[index as usize];
        match std::mem::replace(&mut slot.stage, Stage::Idle) {
            Stage::Answered(result) => {
                std::mem::swap(&mut slot.words, words);
                slot.words.clear();
                slot.words.shrink_to(KEPT_WORDS);
                return Some(result);
            }
            stage => slot.stage = stage,
        }
        match (&mut slot.waker, waker) {
            (Some(kept), Some(waker)) if kept.will_wake(waker) => {}
            (kept, Some(waker)) => self.discarded.extend(kept.replace(waker.clone())),
            (_, None) => {}
        }
        None
    }

    /// Delivers a frame to its slot.
    ///
    /// # Errors
    /// The loss of the connection: the frame is a Close, or a reply that matches no request.
    pub(super) fn deliver(&mut self, header: Header, body: &[u64]) -> Result<Delivered, Loss> {
        if header.kind == Kind::Close {
            return Err(CloseReason::decode(body).map_or_else(Loss::ProtocolError, Loss::Closed));
        }
        let (index, number) = (header.id as u32, (header.id >> 32) as u32);
        let slot =
            self.slots.get_mut(index as usize).filter(|slot| slot.number == number).ok_or(Loss::UnexpectedReply)?;
        let Stage::Waiting { expected, is_partly_answered } = slot.stage else { return Err(Loss::UnexpectedReply) };
        slot.number = slot.number.wrapping_add(1);
        let result = match (header.kind, expected) {
            (Kind::Done, Expected::Found { words, frames }) => {
                let left = words.checked_sub(body.len()).ok_or(Loss::UnexpectedReply)?;
                slot.words.extend_from_slice(body);
                if frames > 1 {
                    let expected = Expected::Found { words: left, frames: frames - 1 };
                    slot.stage = Stage::Waiting { expected, is_partly_answered: true };
                    return Ok(Delivered::default());
                }
                if left == 0 { Ok(()) } else { return Err(Loss::UnexpectedReply) }
            }
            (kind, Expected::Reply(expected)) if kind == expected => {
                slot.words.extend_from_slice(body);
                Ok(())
            }
            (Kind::Refused, Expected::Found { frames, .. }) if frames > 1 || is_partly_answered => {
                return Err(Loss::PartRefused);
            }
            (Kind::Refused, _) => Err(decode_refusal(body).map_err(Loss::ProtocolError)?),
            _ => return Err(Loss::UnexpectedReply),
        };
        slot.stage = Stage::Answered(result);
        match slot.abandoned {
            None => Ok(Delivered { waker: slot.waker.take(), release: None }),
            Some(_) => Ok(Delivered { waker: None, release: self.free(index) }),
        }
    }

    /// Frees an abandoned slot; returns the client slot that has to be released for it.
    fn free(&mut self, index: u32) -> Option<u16> {
        let slot = &mut self.slots[index as usize];
        let is_answered = matches!(slot.stage, Stage::Answered(Ok(())));
        let granted = is_answered && HoldReply::decode(&slot.words) == Ok(HoldReply::Granted);
        let release = match slot.abandoned.take() {
            Some(Abandoned::Hold(slot)) if granted => Some(slot),
            _ => None,
        };
        self.discarded.extend(slot.waker.take());
        (slot.stage, slot.words) = (Stage::Idle, Vec::new());
        self.free.push(index);
        release
    }

    /// Registers `waker` to be woken when the clock reaches `until_ns`; returns whether that is the earliest of all.
    pub fn pause(&mut self, index: u32, until_ns: u64, waker: &Waker) -> bool {
        let slot = &mut self.slots[index as usize];
        if let Some(earlier_ns) = slot.pause_ns.replace(until_ns).filter(|earlier_ns| *earlier_ns != until_ns) {
            self.discarded.extend(self.pauses.remove(&(earlier_ns, index)));
        }
        self.discarded.extend(self.pauses.insert((until_ns, index), waker.clone()));
        self.next_pause_ns() == Some(until_ns)
    }

    /// Ends a pause.
    pub fn end_pause(&mut self, index: u32) {
        if let Some(until_ns) = self.slots[index as usize].pause_ns.take() {
            self.discarded.extend(self.pauses.remove(&(until_ns, index)));
        }
    }

    /// Takes the wakers that are not needed any more, for a caller that then holds no lock: the last waker of a task may
    /// own it, and with it lanes of the same connection.
    pub(super) fn take_discarded(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.discarded)
    }

    pub(super) fn next_pause_ns(&self) -> Option<u64> {
        self.pauses.first_key_value().map(|((until_ns, _), _)| *until_ns)
    }

    /// Removes a task whose pause is over.
    pub(super) fn pop_pause(&mut self, now_ns: u64) -> Option<Waker> {
        let entry = self.pauses.first_entry().filter(|entry| entry.key().0 <= now_ns)?;
        let ((_, index), waker) = entry.remove_entry();
        self.slots[index as usize].pause_ns = None;
        Some(waker)
    }

    /// Counts a tick; returns whether a request has waited for more than `max_ticks`.
    pub(super) fn tick(&mut self, max_ticks: u32) -> bool {
        self.tick = self.tick.wrapping_add(1);
        let age = |slot: &RequestSlot| self.tick.wrapping_sub(slot.sent_tick);
        self.slots.iter().any(|slot| matches!(slot.stage, Stage::Waiting { .. }) && age(slot) > max_ticks)
    }

    /// Takes the wakers of all tasks that wait for a reply.
    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        self.slots.iter_mut().filter_map(|slot| slot.waker.take()).collect()
    }
}

/// Returns the id of frame `index` of a request whose first frame has id `first`.
pub fn frame_id(first: u64, index: u32) -> u64 {
    first.wrapping_add(u64::from(index) << 32)
}
