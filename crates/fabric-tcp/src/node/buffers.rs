//! What came from a client and was not executed yet, and what it was not sent yet: words, aligned, in two buffers.
//!
//! Invariants: a buffer is as long as it was ever filled, so nothing is zeroed per frame; it begins small, grows to
//! what one frame needs, and no further than its bound; and it shrinks at a sweep when nothing has needed its length
//! since the last one. What is in the input is in the order of the wire until its frame is taken.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::wire::{self, HEADER_WORDS, Header, MAX_FRAME_WORDS, WireError};

/// Words of a new buffer, and of one that has shrunk.
const INITIAL_WORDS: usize = 2048;
/// While more bytes of answers than these wait to be sent, no further frame is executed.
pub(super) const MAX_UNSENT_BYTES: usize = 64 << 10;
/// Words of the answers that may be added to any number of others: to requests that wait for another session's end,
/// and the farewell.
const RESERVED_WORDS: usize = 512;

/// Bytes of what was received, at most.
pub(super) const MAX_INPUT_BYTES: usize = MAX_FRAME_WORDS * 8;
/// Bytes of what is to be sent, at most: what may wait, one answer of any length, and what may be added.
pub(super) const MAX_OUTPUT_BYTES: usize = MAX_UNSENT_BYTES + (MAX_FRAME_WORDS + 1 + RESERVED_WORDS) * 8;

/// What was received.
pub(super) struct Input {
    words: Vec<u64>,
    /// The first word that was not executed.
    start: usize,
    /// Bytes that were received.
    filled: usize,
    /// Words that the frame at `start` needs, as far as that is known.
    wanted: usize,
    /// Words in use at once, at most, since the last sweep.
    peak: usize,
}

impl Input {
    pub(super) fn new() -> Input {
        Input { words: vec![0; INITIAL_WORDS], start: 0, filled: 0, wanted: HEADER_WORDS, peak: 0 }
    }

    /// Where to receive to: at least one byte, after [`Input::next`] has found no whole frame.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let first = self.start * 8;
        if first > 0 {
            let words = self.start..self.filled.div_ceil(8);
            self.words.copy_within(words, 0);
            self.filled -= first;
            self.start = 0;
        }
        if self.wanted > self.words.len() {
            let doubled = (self.words.len() * 2).min(self.wanted);
            grow(&mut self.words, doubled);
        }
        &mut self.words.as_mut_bytes()[self.filled..]
    }

    /// So many bytes were received to [`Input::space`].
    pub(super) fn received(&mut self, bytes: usize) {
        self.filled += bytes;
        self.peak = self.peak.max(self.filled.div_ceil(8));
        debug_assert!(self.filled <= self.words.len() * 8, "no more is received than there is space for");
    }

    /// The header of the next frame, if it has been received, and whether all of the frame has.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(Header, Completeness)>, WireError> {
        let unread = self.filled - self.start * 8;
        if unread < HEADER_WORDS * 8 {
            self.wanted = HEADER_WORDS;
            return Ok(None);
        }
        let header = Header::decode([self.words[self.start], self.words[self.start + 1]].map(u64::from_le))?;
        self.wanted = header.words;
        let whole = if unread >= header.words * 8 { Completeness::Complete } else { Completeness::Partial };
        Ok(Some((header, whole)))
    }

    /// Takes the frame that [`Input::next`] found whole; its body is valid until the next call.
    #[inline]
    pub(super) fn take(&mut self, header: &Header) -> &[u64] {
        let frame = self.start..self.start + header.words;
        self.start = frame.end;
        self.wanted = HEADER_WORDS;
        let body = &mut self.words[frame.start + HEADER_WORDS..frame.end];
        wire::from_wire(body);
        body
    }

    /// What was received and not taken.
    pub(super) fn unread(&self) -> &[u8] {
        &self.words.as_bytes()[self.start * 8..self.filled]
    }

    /// Forgets what was received.
    pub(super) fn discard(&mut self) {
        (self.start, self.filled, self.wanted) = (0, 0, HEADER_WORDS);
    }

    /// Gives back what was not needed since the last sweep.
    pub(super) fn sweep(&mut self) {
        if self.start * 8 == self.filled {
            self.discard();
        }
        let used = self.filled.div_ceil(8);
        shrink(&mut self.words, self.peak.max(used));
        self.peak = used;
    }

    /// Bytes of memory in use.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

/// Whether all of a frame has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    Complete,
    Partial,
}

/// What is to be sent.
pub(super) struct Output {
    words: Vec<u64>,
    /// Bytes at the beginning that were sent.
    sent: usize,
    /// Words that are to be sent, those that were sent included.
    end: usize,
    /// The longest `end` since the last sweep.
    peak: usize,
}

impl Output {
    pub(super) fn new() -> Output {
        Output { words: vec![0; INITIAL_WORDS], sent: 0, end: 0, peak: 0 }
    }

    /// Room for a frame of so many words, to be filled and then sent by [`Output::commit`]. What it holds is not
    /// certain.
    #[inline]
    pub(super) fn room(&mut self, words: usize) -> &mut [u64] {
        let end = self.end + words;
        if end > self.words.len() {
            return self.make_room(words);
        }
        &mut self.words[self.end..end]
    }

    #[cold]
    fn make_room(&mut self, words: usize) -> &mut [u64] {
        let first = self.sent / 8;
        self.words.copy_within(first..self.end, 0);
        self.end -= first;
        self.sent -= first * 8;
        let needed = self.end + words;
        assert!(needed * 8 <= MAX_OUTPUT_BYTES, "no more is executed while much waits to be sent");
        if needed > self.words.len() {
            let doubled = (self.words.len() * 2).min(MAX_OUTPUT_BYTES / 8);
            grow(&mut self.words, doubled.max(needed));
        }
        &mut self.words[self.end..needed]
    }

    /// The `words` words of [`Output::room`] hold a frame.
    #[inline]
    pub(super) fn commit(&mut self, words: usize) {
        let frame: Range<usize> = self.end..self.end + words;
        wire::to_wire(&mut self.words[frame.clone()]);
        self.end = frame.end;
        self.peak = self.peak.max(self.end);
    }

    /// Adds a frame.
    pub(super) fn append(&mut self, frame: &[u64]) {
        self.room(frame.len()).copy_from_slice(frame);
        self.commit(frame.len());
    }

    /// What is to be sent.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.words[..self.end].as_bytes()[self.sent..]
    }

    /// How much is to be sent.
    #[inline]
    pub(super) fn unsent_bytes(&self) -> usize {
        self.end * 8 - self.sent
    }

    /// So many bytes of [`Output::unsent`] were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.end * 8 {
            (self.sent, self.end) = (0, 0);
        }
    }

    /// Forgets what is to be sent.
    pub(super) fn discard(&mut self) {
        (self.sent, self.end) = (0, 0);
    }

    /// Gives back what was not needed since the last sweep.
    pub(super) fn sweep(&mut self) {
        shrink(&mut self.words, self.peak.max(self.end));
        self.peak = self.end;
    }

    /// Bytes of memory in use.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

/// Grows to so many words, and no further: a vector that grows as it likes takes up to twice as much.
fn grow(words: &mut Vec<u64>, length: usize) {
    words.reserve_exact(length - words.len());
    words.resize(length, 0);
}

fn shrink(words: &mut Vec<u64>, needed: usize) {
    let needed = needed.max(INITIAL_WORDS);
    if words.len() > needed {
        words.truncate(needed);
        words.shrink_to(needed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    fn receive(input: &mut Input, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            assert!(input.next().is_ok(), "which also finds how much is needed");
            let space = input.space();
            let part = space.len().min(bytes.len());
            assert!(part > 0, "there is always space for something");
            space[..part].copy_from_slice(&bytes[..part]);
            input.received(part);
            bytes = &bytes[part..];
        }
    }

    fn frame(words: usize) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.extend(Header { words, kind: Kind::Batch, count: 1, id: words as u64 }.encode());
        frame.extend(HEADER_WORDS as u64..words as u64);
        wire::to_wire(&mut frame);
        frame.as_bytes().to_vec()
    }

    #[test]
    fn frames_come_out_as_they_came_in_and_a_long_one_takes_no_more_than_it_needs() {
        let mut input = Input::new();
        let longest = [HEADER_WORDS, 3, 2_000, MAX_FRAME_WORDS, 5, 100_000, MAX_FRAME_WORDS];
        for words in longest {
            let bytes = frame(words);
            let (first, rest) = bytes.split_at(bytes.len() - 3);
            receive(&mut input, first);
            assert!(!matches!(input.next(), Ok(Some((_, Completeness::Complete)))), "three bytes are missing");
            receive(&mut input, rest);
            let Ok(Some((header, Completeness::Complete))) = input.next() else { panic!("a frame of {words} words") };
            assert!(input.take(&header).iter().copied().eq(HEADER_WORDS as u64..words as u64));
            assert!(input.bytes() <= MAX_INPUT_BYTES, "{} bytes", input.bytes());
        }
        assert_eq!(input.bytes(), MAX_INPUT_BYTES);
        input.sweep();
        assert_eq!(input.bytes(), MAX_INPUT_BYTES, "it was needed since the last sweep");
        input.sweep();
        assert_eq!(input.bytes(), INITIAL_WORDS * 8);
        receive(&mut input, &frame(9)[..20]);
        input.sweep();
        receive(&mut input, &frame(9)[20..]);
        assert!(matches!(input.next(), Ok(Some((Header { words: 9, .. }, Completeness::Complete)))));
    }

    #[test]
    fn what_is_to_be_sent_takes_no_more_than_its_bound() {
        let mut output = Output::new();
        let (mut expected, mut sent) = (Vec::new(), Vec::new());
        let mut next = 0;
        let mut add = |output: &mut Output, words: usize| {
            for word in output.room(words) {
                *word = next;
                expected.push(next);
                next += 1;
            }
            output.commit(words);
        };
        // As much as may wait, the longest answer, and what may be added to it; some of it sent, by odd pieces.
        for round in 0..5 {
            while output.unsent_bytes() <= MAX_UNSENT_BYTES {
                add(&mut output, if round % 2 == 0 { 7 } else { MAX_FRAME_WORDS });
            }
            if output.unsent_bytes() <= MAX_UNSENT_BYTES + 7 * 8 {
                let sending = output.unsent_bytes() - MAX_UNSENT_BYTES;
                sent.extend_from_slice(&output.unsent()[..sending]);
                output.sent(sending);
                add(&mut output, MAX_FRAME_WORDS);
            }
            add(&mut output, RESERVED_WORDS);
            assert!(output.bytes() <= MAX_OUTPUT_BYTES, "{} bytes", output.bytes());
            while output.unsent_bytes() > 999 * round {
                let sending = output.unsent_bytes().min(77_777);
                sent.extend_from_slice(&output.unsent()[..sending]);
                output.sent(sending);
            }
        }
        sent.extend_from_slice(output.unsent());
        wire::to_wire(&mut expected);
        assert!(sent == expected.as_bytes(), "all of it, in order");
        output.sent(output.unsent_bytes());
        output.sweep();
        output.sweep();
        assert_eq!(output.bytes(), INITIAL_WORDS * 8);
    }
}
