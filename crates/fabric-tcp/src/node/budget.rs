//! What one connection may do before others have their turn.
//!
//! Invariants: a turn ends after [`TURN_FRAMES`] frames, after [`TURN_REQUESTS`] requests that are no batches, and with
//! the first frame that ends later than [`TURN_TIME`] after its beginning. The clock is read once for
//! [`CLOCK_WORDS`] words and for each request, so that small batches do not pay for it.

use std::time::{Duration, Instant};

use crate::wire::{Header, Kind};

/// Frames of a turn: more than the lanes of one connection have in flight, as a rule.
const TURN_FRAMES: u32 = 256;
/// Holds, releases, fences and counts of a turn. Each may cost a system call, or a message to another loop.
const TURN_REQUESTS: u32 = 16;
/// Frames and requests of a turn that is small.
const SMALL_FRAMES: u32 = 16;
const SMALL_REQUESTS: u32 = 2;
/// How long a turn executes frames. The largest batch takes about as long.
const TURN_TIME: Duration = Duration::from_micros(500);
/// Words that are moved between two looks at the clock: some 10 microseconds.
const CLOCK_WORDS: usize = 8192;
/// What a frame costs beside its words, in words.
const FRAME_WORDS: usize = 64;

/// What is left of a turn.
pub(super) struct Budget {
    frames: u32,
    requests: u32,
    /// Words until the clock is read.
    words: usize,
    until: Instant,
    is_spent: bool,
}

impl Budget {
    /// A whole turn, which begins at `now`.
    pub(super) fn new(now: Instant) -> Budget {
        Budget {
            frames: TURN_FRAMES,
            requests: TURN_REQUESTS,
            words: CLOCK_WORDS,
            until: now + TURN_TIME,
            is_spent: false,
        }
    }

    /// Whether nothing more is to be executed in this turn.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Whether so little was asked for that a turn which took long was interrupted, by the system or others.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.frames + SMALL_FRAMES >= TURN_FRAMES && self.requests + SMALL_REQUESTS >= TURN_REQUESTS
    }

    /// A frame was executed, whose answer has `answer_words` words.
    #[inline]
    pub(super) fn spend(&mut self, header: &Header, answer_words: usize) {
        self.frames -= 1;
        self.words = self.words.saturating_sub(header.words + answer_words + FRAME_WORDS);
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
        assert_eq!(frames_of_turn(Kind::Batch, 132_610, later), TURN_FRAMES, "if they took no time");
        assert_eq!(frames_of_turn(Kind::Hold, 3, later), TURN_REQUESTS);
        let earlier = Instant::now() - 2 * TURN_TIME;
        assert_eq!(frames_of_turn(Kind::Hold, 3, earlier), 1);
        assert_eq!(frames_of_turn(Kind::Batch, 132_610, earlier), 1);
        assert_eq!(frames_of_turn(Kind::Batch, 8, earlier), (CLOCK_WORDS / 80) as u32 + 1);
    }
}
