//! Frames that were sent, and have not all left yet.
//!
//! Invariants: frames leave in the order in which they were appended; after [`Outbox::close`] none does; those that
//! wait for others to leave with are fewer bytes than [`MAX_COALESCED_BYTES`] and one frame.

use std::io::ErrorKind;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::transport::Transport;
use crate::wire::{MAX_FRAME_WORDS, to_wire};

/// Words the buffer keeps room for when it is empty.
const KEPT_WORDS: usize = 2 * MAX_FRAME_WORDS;

/// Frames wait for others to leave with while they are fewer bytes than these: a few dozen requests. The cost of a
/// system call is small beside that of so many bytes.
pub(super) const MAX_COALESCED_BYTES: usize = 16 << 10;

/// What became of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// They have all left.
    All,
    /// Some wait for room.
    Some,
    /// They cannot leave.
    Failed(ErrorKind),
}

#[derive(Default)]
pub(super) struct Outbox {
    words: Vec<u64>,
    /// Bytes of `words` that have left.
    sent_bytes: usize,
    /// Bytes that had left before those of `words`.
    sent_before_bytes: u64,
    failed: Option<ErrorKind>,
    /// Whether frames could not leave when it was last attempted.
    is_blocked: bool,
    is_closed: bool,
}

impl Outbox {
    /// Appends what `write` writes, unless the outbox is closed; says at which byte of the stream it begins.
    pub(super) fn append<T>(&mut self, write: impl FnOnce(&mut Vec<u64>) -> T) -> Option<(T, u64)> {
        if self.is_closed {
            return None;
        }
        let first = self.words.len();
        let written = write(&mut self.words);
        to_wire(&mut self.words[first..]);
        Some((written, self.sent_before_bytes + first as u64 * 8))
    }

    /// Sends what there is room for.
    pub(super) fn flush(&mut self, transport: &dyn Transport) -> Flushed {
        while self.has_backlog() {
            if let Some(failed) = self.failed {
                return Flushed::Failed(failed);
            }
            // Until all have left.
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

    /// Whether frames wait until there is room, or cannot leave.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether as many bytes wait as may wait for others.
    pub(super) fn is_coalescing_limit_reached(&self) -> bool {
        self.words.len() * 8 - self.sent_bytes >= MAX_COALESCED_BYTES
    }

    fn has_backlog(&self) -> bool {
        self.sent_bytes < self.words.len() * 8
    }

    /// Keeps everything from leaving that has not left yet.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.sent_before_bytes += self.sent_bytes as u64;
        self.sent_bytes = 0;
        self.words = Vec::new();
    }

    /// Bytes of the stream that have left.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_before_bytes + self.sent_bytes as u64
    }
}
