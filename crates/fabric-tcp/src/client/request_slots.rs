//! Requests that wait for their answers.
//!
//! Each lane has a slot for as long as it lives, and each hold, fence or count for as long as it is asked. A frame's id
//! is its slot's index and a number that grows with each frame of the slot, so that no answer is taken for another's.
//!
//! Invariants: the answers of one slot arrive in the order of its frames; a slot whose owner is gone is free once
//! everything that it sent is answered; an answer never holds more words than were asked for.

use std::collections::BTreeMap;
use std::task::Waker;

use guira_fabric::FabricError;

use super::loss::Loss;
use crate::wire::{CloseReason, Header, HoldReply, Kind, decode_refusal};

/// Slots of a connection, at most.
pub(super) const MAX_REQUEST_SLOTS: usize = 1 << 16;
/// Words of an answer that a slot keeps room for.
const KEPT_WORDS: usize = 1 << 18;

/// What is to arrive for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// What a batch found: so many words, in the answers to so many frames.
    Found { words: usize, frames: u32 },
    /// One answer of this kind.
    Answer(Kind),
}

/// What arrived for a slot that nobody waits for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Abandoned {
    /// Nothing is to be done about it.
    Ignored,
    /// If this client slot's liveness was granted, it is to be given back.
    Hold(u16),
}

enum Stage {
    Idle,
    /// `is_partly_answered` if some of its frames are answered and others are not.
    Waiting {
        expected: Expected,
        is_partly_answered: bool,
    },
    Answered(Result<(), FabricError>),
}

struct RequestSlot {
    stage: Stage,
    /// The number of the next answer; while idle, of the next frame.
    number: u32,
    /// What was found so far.
    words: Vec<u64>,
    waker: Option<Waker>,
    abandoned: Option<Abandoned>,
    /// [`RequestSlots::tick`] when it was sent.
    sent_tick: u32,
    /// Until when the slot's task pauses, if it does.
    pause_ns: Option<u64>,
}

/// What is to be done once an answer was taken in.
#[derive(Default)]
pub(super) struct Delivered {
    pub(super) waker: Option<Waker>,
    /// A client slot's liveness that nobody wants any more.
    pub(super) release: Option<u16>,
}

#[derive(Default)]
pub(super) struct RequestSlots {
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    pauses: BTreeMap<(u64, u32), Waker>,
    /// Counts stretches of time; a slot that waits for several is overdue.
    tick: u32,
}

impl RequestSlots {
    /// A slot, unless as many as there may be are taken.
    pub(super) fn take(&mut self) -> Option<u32> {
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

    /// Gives a slot back: now, or when what it sent is answered. `hold` is the client slot whose liveness it asked for.
    pub(super) fn release_slot(&mut self, index: u32, hold: Option<u16>) -> Delivered {
        self.end_pause(index);
        let slot = &mut self.slots[index as usize];
        slot.waker = None;
        slot.abandoned = Some(hold.map_or(Abandoned::Ignored, Abandoned::Hold));
        match slot.stage {
            Stage::Waiting { .. } => Delivered::default(),
            _ => Delivered { waker: None, release: self.free(index) },
        }
    }

    /// Makes the slot wait; the id of its first frame. [`frame_id`] tells those of the others.
    pub(super) fn begin(&mut self, index: u32, expected: Expected) -> u64 {
        let sent_tick = self.tick;
        let slot = &mut self.slots[index as usize];
        assert!(matches!(slot.stage, Stage::Idle), "one request a slot");
        slot.stage = Stage::Waiting { expected, is_partly_answered: false };
        slot.words.clear();
        slot.sent_tick = sent_tick;
        u64::from(slot.number) << 32 | u64::from(index)
    }

    /// The slot's request was answered, and its answer taken elsewhere: it had one frame.
    pub(super) fn finish(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.stage = Stage::Idle;
        slot.number = slot.number.wrapping_add(1);
    }

    /// Lets go of a request that will not be answered; whether a part of it was.
    pub(super) fn reset(&mut self, index: u32) -> bool {
        let slot = &mut self.slots[index as usize];
        slot.waker = None;
        matches!(std::mem::replace(&mut slot.stage, Stage::Idle), Stage::Waiting { is_partly_answered: true, .. })
    }

    pub(super) fn is_waiting(&self, index: u32) -> bool {
        matches!(self.slots[index as usize].stage, Stage::Waiting { .. })
    }

    /// What became of the slot's request, if it is over; the words that were found are swapped into `words`. Otherwise
    /// keeps `waker` for that moment.
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
                slot.waker = None;
                return Some(result);
            }
            stage => slot.stage = stage,
        }
        match (&mut slot.waker, waker) {
            (Some(kept), Some(waker)) => kept.clone_from(waker),
            (kept @ None, Some(waker)) => *kept = Some(waker.clone()),
            (_, None) => {}
        }
        None
    }

    /// Takes in a frame.
    ///
    /// # Errors
    /// A farewell, or what is no answer to anything that was asked: the connection is over.
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
            (kind, Expected::Answer(expected)) if kind == expected => {
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

    /// Makes an abandoned slot anybody's; the client slot that has to be released for it.
    fn free(&mut self, index: u32) -> Option<u16> {
        let slot = &mut self.slots[index as usize];
        let is_answered = matches!(slot.stage, Stage::Answered(Ok(())));
        let granted = is_answered && HoldReply::decode(&slot.words) == Ok(HoldReply::Granted);
        let release = match slot.abandoned.take() {
            Some(Abandoned::Hold(slot)) if granted => Some(slot),
            _ => None,
        };
        (slot.stage, slot.waker, slot.words) = (Stage::Idle, None, Vec::new());
        self.free.push(index);
        release
    }

    /// Wakes `waker` when the clock reaches `until_ns`; whether that is earlier than all others.
    pub(super) fn pause(&mut self, index: u32, until_ns: u64, waker: &Waker) -> bool {
        let slot = &mut self.slots[index as usize];
        if let Some(earlier_ns) = slot.pause_ns.replace(until_ns).filter(|earlier_ns| *earlier_ns != until_ns) {
            self.pauses.remove(&(earlier_ns, index));
        }
        self.pauses.insert((until_ns, index), waker.clone());
        self.next_pause_ns() == Some(until_ns)
    }

    pub(super) fn end_pause(&mut self, index: u32) {
        if let Some(until_ns) = self.slots[index as usize].pause_ns.take() {
            self.pauses.remove(&(until_ns, index));
        }
    }

    pub(super) fn next_pause_ns(&self) -> Option<u64> {
        self.pauses.first_key_value().map(|((until_ns, _), _)| *until_ns)
    }

    /// A task whose pause is over.
    pub(super) fn pop_pause(&mut self, now_ns: u64) -> Option<Waker> {
        let entry = self.pauses.first_entry().filter(|entry| entry.key().0 <= now_ns)?;
        let ((_, index), waker) = entry.remove_entry();
        self.slots[index as usize].pause_ns = None;
        Some(waker)
    }

    /// A stretch of time has passed; whether something waits for more than `patience` of them.
    pub(super) fn tick(&mut self, max_ticks: u32) -> bool {
        self.tick = self.tick.wrapping_add(1);
        let age = |slot: &RequestSlot| self.tick.wrapping_sub(slot.sent_tick);
        self.slots.iter().any(|slot| matches!(slot.stage, Stage::Waiting { .. }) && age(slot) > max_ticks)
    }

    /// Everybody who waits for an answer.
    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        self.slots.iter_mut().filter_map(|slot| slot.waker.take()).collect()
    }
}

/// The id of frame `index` of a request whose first frame has id `first`.
pub(super) fn frame_id(first: u64, index: u32) -> u64 {
    first.wrapping_add(u64::from(index) << 32)
}
