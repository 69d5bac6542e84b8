//! The bytes that have arrived, as frames.
//!
//! Invariant: frames begin at whole words of the buffer, so that a frame's words are read where the kernel put them.
//! The buffer is never longer than two of the longest frames, whatever a peer sends.

use std::io;

use zerocopy::IntoBytes;

use super::transport::{ReceiveMode, Transport};
use crate::wire::{HEADER_WORDS, Header, MAX_FRAME_WORDS, WireError, from_wire};

/// Words of the buffer, at first: most replies fit, and several of them.
const FIRST_WORDS: usize = 4096;
const WORD_BYTES: usize = 8;

const _: () = assert!(FIRST_WORDS < MAX_FRAME_WORDS, "the buffer grows when it must");

/// What has arrived and was not taken yet.
pub(super) struct Receiver {
    words: Vec<u64>,
    /// Where the next frame begins, in words.
    start: usize,
    /// Where the bytes that have arrived end.
    end_bytes: usize,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver { words: vec![0; FIRST_WORDS], start: 0, end_bytes: 0 }
    }

    /// The next frame, if all of it is here.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(Header, &[u64])>, WireError> {
        let Some(header) = self.header()? else { return Ok(None) };
        let end = self.start + header.words;
        if self.end_bytes < end * WORD_BYTES {
            return Ok(None);
        }
        let body = &mut self.words[self.start + HEADER_WORDS..end];
        self.start = end;
        from_wire(body);
        Ok(Some((header, body)))
    }

    /// Takes in what has arrived: how many bytes, 0 if the stream has ended.
    pub(super) fn fill(&mut self, transport: &dyn Transport, mode: ReceiveMode) -> io::Result<usize> {
        self.make_room();
        let bytes = transport.receive(&mut self.words.as_mut_bytes()[self.end_bytes..], mode)?;
        self.end_bytes += bytes;
        Ok(bytes)
    }

    /// Whether the buffer is full, so that more may have arrived than fitted.
    pub(super) fn is_full(&self) -> bool {
        self.end_bytes == self.words.len() * WORD_BYTES
    }

    fn header(&self) -> Result<Option<Header>, WireError> {
        if self.end_bytes < (self.start + HEADER_WORDS) * WORD_BYTES {
            return Ok(None);
        }
        let words = [self.words[self.start], self.words[self.start + 1]].map(u64::from_le);
        Header::decode(words).map(Some)
    }

    /// Moves the beginning of the next frame to the front, if there is too little room behind it, and grows the buffer
    /// if the frame is longer.
    fn make_room(&mut self) {
        if self.start * WORD_BYTES == self.end_bytes {
            (self.start, self.end_bytes) = (0, 0);
        }
        // What is no frame was found out before.
        let wanted = self.header().ok().flatten().map_or(FIRST_WORDS / 2, |header| header.words);
        if self.words.len() - self.start >= wanted && !self.is_full() {
            return;
        }
        self.words.copy_within(self.start..self.end_bytes.div_ceil(WORD_BYTES), 0);
        self.end_bytes -= self.start * WORD_BYTES;
        self.start = 0;
        if wanted > self.words.len() {
            self.words.resize(wanted.next_power_of_two().min(2 * MAX_FRAME_WORDS), 0);
        }
    }
}
