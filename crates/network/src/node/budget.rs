//! The budget of a turn: what one connection may do before others have their turn.
//!
//! Invariants: a turn ends after [`TURN_FRAMES`] frames, after [`TURN_REQUESTS`] control requests, or with the first
//! frame that ends later than [`TURN_TIME`] after the start of the turn. The clock is read once for [`CLOCK_WORDS`]
//! words and for each request, so that small batches do not pay for it.

use std::time::{Duration, Instant};

use crate::wire::{Header, Kind};

/// The frames of a turn: usually more than the lanes of one connection have in flight.
const TURN_FRAMES: u32 = 256;
/// The control requests of a turn. Each may cost a system call, or a message to another loop.
const TURN_REQUESTS: u32 = 16;
/// The frames and control requests of a small turn.
const SMALL_FRAMES: u32 = 16;
const SMALL_REQUESTS: u32 = 2;
/// The duration of a turn. The largest batch takes about as long.
const TURN_TIME: Duration = Duration::from_micros(500);
/// The words that are copied between two readings of the clock: some 10 microseconds.
const CLOCK_WORDS: usize = 8192;
/// The overhead of a frame, in words.
const FRAME_WORDS: usize = 64;

/// The rest of a turn.
pub(super) struct Budget {
    frames: u32,
    requests: u32,
    /// The words until the clock is read.
    words: usize,
    until: Instant,
    is_spent: bool,
}

impl Budget {
    /// Creates the budget of a turn that starts at `now`.
    pub(super) fn new(now: Instant) -> Budget {
        Budget {
            frames: TURN_FRAMES,
            requests: TURN_REQUESTS,
            words: CLOCK_WORDS,
            until: now + TURN_TIME,
            is_spent: false,
        }
    }

    /// Whether the turn is over.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Whether the turn had so few requests that a long duration is due to an interruption, not to them.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.frames + SMALL_FRAMES >= TURN_FRAMES && self.requests + SMALL_REQUESTS >= TURN_REQUESTS
    }

    /// Charges a frame that was executed, whose reply has `reply_words` words.
    #[inline]
    pub(super) fn spend(&mut self, header: &Header, reply_words: usize) {
        self.frames -= 1;
        self.words = self.words.saturating_sub(header.words + reply_words + FRAME_WORDS);
        if header.kind != Kind::Batch {
            self.requests -= 1;
            self.words = 0;
        }
        if self.words == 0 {
            self.words = CLOCK_WORDS;
            self.is_spent = Instant::now() >= self.until;
        }
        self.is_spent |= self.frames == 0 || self.requests == 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames_of_turn(kind: Kind, words: usize, begin: Instant) -> u32 {
        let mut budget = Budget::new(begin);
        let mut frames = 0;
        while !budget.is_spent() {
            budget.spend(&Header { words, kind, count: 0, id: 0 }, words);
            frames += 1;
        }
        frames
    }

    #[test]
    fn a_turn_ends_by_frames_by_requests_and_by_time() {
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(frames_of_turn(Kind::Batch, 10, later), TURN_FRAMES);
        assert_eq!(frames_of_turn(Kind::Batch, 132_610, later), TURN_FRAMES, "if they take no time");
        assert_eq!(frames_of_turn(Kind::Hold, 3, later), TURN_REQUESTS);
        let earlier = Instant::now() - 2 * TURN_TIME;
        assert_eq!(frames_of_turn(Kind::Hold, 3, earlier), 1);
        assert_eq!(frames_of_turn(Kind::Batch, 132_610, earlier), 1);
        assert_eq!(frames_of_turn(Kind::Batch, 8, earlier), (CLOCK_WORDS / 80) as u32 + 1);
    }
}
