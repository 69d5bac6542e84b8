//! The send queue: frames that were submitted and are not all sent yet.
//!
//! Invariants: frames are sent in the order in which they were appended; none is sent after [`Outbox::close`]; the
//! frames that wait to be coalesced with others are fewer bytes than [`MAX_COALESCED_BYTES`] and one frame.

use std::io::ErrorKind;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::transport::Transport;
use crate::wire::{MAX_FRAME_WORDS, to_wire};

/// The words of capacity that an empty buffer keeps.
const KEPT_WORDS: usize = 2 * MAX_FRAME_WORDS;

/// Frames wait to be coalesced with others while they are fewer bytes than these: a few dozen requests. The cost of a
/// system call is small beside that of so many bytes.
pub const MAX_COALESCED_BYTES: usize = 16 << 10;

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// All frames were sent.
    All,
    /// Some frames wait for room.
    Some,
    /// The frames cannot be sent.
    Failed(ErrorKind),
}

#[derive(Default)]
pub(super) struct Outbox {
    words: Vec<u64>,
    /// The bytes of `words` that were sent.
    sent_bytes: usize,
    /// The bytes of the stream that were sent before those of `words`.
    sent_before_bytes: u64,
    failed: Option<ErrorKind>,
    /// Whether the last flush left a backlog.
    is_blocked: bool,
    is_closed: bool,
}

impl Outbox {
    /// Appends the frames that `write` writes, unless the outbox is closed; returns the byte of the stream at which
    /// they start.
    pub(super) fn append<T>(&mut self, write: impl FnOnce(&mut Vec<u64>) -> T) -> Option<(T, u64)> {
        if self.is_closed {
            return None;
        }
        let first = self.words.len();
        let written = write(&mut self.words);
        to_wire(&mut self.words[first..]);
        Some((written, self.sent_before_bytes + first as u64 * 8))
    }

    /// Sends as much as there is room for.
    pub(super) fn flush(&mut self, transport: &dyn Transport) -> Flushed {
        while self.has_backlog() {
            if let Some(failed) = self.failed {
                return Flushed::Failed(failed);
            }
            // Until all were sent.
            self.is_blocked = true;
            match transport.send(&self.words.as_bytes()[self.sent_bytes..]) {
                Ok(bytes) => self.sent_bytes += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Flushed::Some,
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Err(error) => self.failed = Some(error.kind()),
            }
        }
        self.sent_before_bytes += self.sent_bytes as u64;
        self.sent_bytes = 0;
        self.is_blocked = false;
        self.words.clear();
        self.words.shrink_to(KEPT_WORDS);
        Flushed::All
    }

    /// Whether frames wait for room, or cannot be sent.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether so many bytes wait that they are not held back any longer.
    pub(super) fn is_coalescing_limit_reached(&self) -> bool {
        self.words.len() * 8 - self.sent_bytes >= MAX_COALESCED_BYTES
    }

    fn has_backlog(&self) -> bool {
        self.sent_bytes < self.words.len() * 8
    }

    /// Discards all frames that were not sent yet, and accepts no more.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.sent_before_bytes += self.sent_bytes as u64;
        self.sent_bytes = 0;
        self.words = Vec::new();
    }

    /// Returns the bytes of the stream that were sent.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_before_bytes + self.sent_bytes as u64
    }
}
