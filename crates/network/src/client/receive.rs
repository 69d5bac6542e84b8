//! The receive buffer, which cuts the stream into frames.
//!
//! Invariant: frames start at whole words of the buffer, so that a frame's words are read where the kernel put them.
//! The buffer is never longer than two of the longest frames, whatever the peer sends.

use std::io;

use zerocopy::IntoBytes;

use super::transport::{ReceiveMode, Transport};
use crate::wire::{HEADER_WORDS, Header, MAX_FRAME_WORDS, WireError, from_wire};

/// The initial words of the buffer: room for several typical replies.
const FIRST_WORDS: usize = 4096;
const WORD_BYTES: usize = 8;

const _: () = assert!(FIRST_WORDS < MAX_FRAME_WORDS, "the buffer grows when it must");

/// The bytes that have arrived and were not consumed yet.
pub struct Receiver {
    words: Vec<u64>,
    /// The start of the next frame, in words.
    start: usize,
    /// The end of the bytes that have arrived.
    end_bytes: usize,
}

impl Default for Receiver {
    /// An empty buffer.
    fn default() -> Receiver {
        Receiver { words: vec![0; FIRST_WORDS], start: 0, end_bytes: 0 }
    }
}

impl Receiver {
    /// Returns the next frame, if it is complete.
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

    /// Receives once; returns the number of bytes, 0 at the end of the stream.
    pub(super) fn fill(&mut self, transport: &dyn Transport, mode: ReceiveMode) -> io::Result<usize> {
        self.make_room();
        let bytes = transport.receive(&mut self.words.as_mut_bytes()[self.end_bytes..], mode)?;
        self.end_bytes += bytes;
        Ok(bytes)
    }

    /// Whether the buffer is full, so that more may have arrived than fits.
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

    /// Moves the start of the next frame to the front if there is too little room after it, and grows the buffer if the
    /// frame is longer.
    fn make_room(&mut self) {
        if self.start * WORD_BYTES == self.end_bytes {
            (self.start, self.end_bytes) = (0, 0);
        }
        // An invalid header was reported before.
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
