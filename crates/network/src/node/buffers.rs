//! The input and output buffers of a connection: received requests and unsent replies, as aligned words.
//!
//! Invariants: a buffer keeps its initialized length, so nothing is zeroed per frame; it starts small, grows to what
//! one frame needs, and never beyond its bound; and it shrinks at a sweep if its length was not needed since the last
//! one. The input is in the byte order of the wire until its frame is taken.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::wire::{self, HEADER_WORDS, Header, MAX_FRAME_WORDS, WireError};

/// The words of a new buffer, and of one that has shrunk.
const INITIAL_WORDS: usize = 2048;
/// While more bytes of replies than these wait to be sent, no further frame is executed.
pub(super) const MAX_UNSENT_BYTES: usize = 64 << 10;
/// The words reserved for replies that may be added at any time: to fences that wait for the end of another session,
/// and the Close.
const RESERVED_WORDS: usize = 512;

/// Maximum number of bytes of the input buffer.
pub(super) const MAX_INPUT_BYTES: usize = MAX_FRAME_WORDS * 8;
/// Maximum number of bytes of the output buffer: the replies that may wait, one reply of any length, and the reserved
/// words.
pub(super) const MAX_OUTPUT_BYTES: usize = MAX_UNSENT_BYTES + (MAX_FRAME_WORDS + 1 + RESERVED_WORDS) * 8;

/// The input buffer: what was received.
pub(super) struct Input {
    words: Vec<u64>,
    /// The first word that was not taken.
    start: usize,
    /// The bytes that were received.
    filled: usize,
    /// The words that the frame at `start` needs, as far as they are known.
    wanted: usize,
    /// The largest number of words in use at once since the last sweep.
    peak: usize,
}

impl Input {
    pub(super) fn new() -> Input {
        Input { words: vec![0; INITIAL_WORDS], start: 0, filled: 0, wanted: HEADER_WORDS, peak: 0 }
    }

    /// Returns the space to receive to: at least one byte, if [`Input::next`] has found no complete frame.
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

    /// Notes that `bytes` bytes were received to [`Input::space`].
    pub(super) fn received(&mut self, bytes: usize) {
        self.filled += bytes;
        self.peak = self.peak.max(self.filled.div_ceil(8));
        debug_assert!(self.filled <= self.words.len() * 8, "no more is received than there is space for");
    }

    /// Returns the header of the next frame, if it has been received, and whether the frame is complete.
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

    /// Takes the frame that [`Input::next`] found complete; the body is valid until the next call.
    #[inline]
    pub(super) fn take(&mut self, header: &Header) -> &[u64] {
        let frame = self.start..self.start + header.words;
        self.start = frame.end;
        self.wanted = HEADER_WORDS;
        let body = &mut self.words[frame.start + HEADER_WORDS..frame.end];
        wire::from_wire(body);
        body
    }

    /// Returns the bytes that were received and not taken.
    pub(super) fn unread(&self) -> &[u8] {
        &self.words.as_bytes()[self.start * 8..self.filled]
    }

    /// Discards what was received.
    pub(super) fn discard(&mut self) {
        (self.start, self.filled, self.wanted) = (0, 0, HEADER_WORDS);
    }

    /// Frees memory that was not needed since the last sweep.
    pub(super) fn sweep(&mut self) {
        if self.start * 8 == self.filled {
            self.discard();
        }
        let used = self.filled.div_ceil(8);
        shrink(&mut self.words, self.peak.max(used));
        self.peak = used;
    }

    /// Returns the bytes of memory in use.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

/// Whether all bytes of a frame have been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    Complete,
    Partial,
}

/// The output buffer: what is to be sent.
pub(super) struct Output {
    words: Vec<u64>,
    /// The bytes at the start that were sent.
    sent: usize,
    /// The words to be sent, including those that were sent.
    end: usize,
    /// The longest `end` since the last sweep.
    peak: usize,
}

impl Output {
    pub(super) fn new() -> Output {
        Output { words: vec![0; INITIAL_WORDS], sent: 0, end: 0, peak: 0 }
    }

    /// Returns room for a frame of `words` words, to be filled and then added by [`Output::commit`]. Its contents are
    /// unspecified.
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
        assert!(needed * 8 <= MAX_OUTPUT_BYTES, "no more is executed while too much waits to be sent");
        if needed > self.words.len() {
            let doubled = (self.words.len() * 2).min(MAX_OUTPUT_BYTES / 8);
            grow(&mut self.words, doubled.max(needed));
        }
        &mut self.words[self.end..needed]
    }

    /// Adds the frame in the `words` words of [`Output::room`].
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

    /// Returns the bytes to be sent.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.words[..self.end].as_bytes()[self.sent..]
    }

    /// Returns the number of bytes to be sent.
    #[inline]
    pub(super) fn unsent_bytes(&self) -> usize {
        self.end * 8 - self.sent
    }

    /// Notes that `bytes` bytes of [`Output::unsent`] were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.end * 8 {
            (self.sent, self.end) = (0, 0);
        }
    }

    /// Discards what is to be sent.
    pub(super) fn discard(&mut self) {
        (self.sent, self.end) = (0, 0);
    }

    /// Frees memory that was not needed since the last sweep.
    pub(super) fn sweep(&mut self) {
        shrink(&mut self.words, self.peak.max(self.end));
        self.peak = self.end;
    }

    /// Returns the bytes of memory in use.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

/// Grows to exactly `length` words: the growth of a vector by itself takes up to twice as much.
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
            assert!(input.next().is_ok(), "the needed length is found as well");
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
    fn frames_are_taken_as_received_and_a_long_one_takes_no_more_memory_than_it_needs() {
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
    fn the_output_takes_no_more_memory_than_its_bound() {
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
        // As much as may wait, the longest reply, and the reserved words; some of it sent, in odd pieces.
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
