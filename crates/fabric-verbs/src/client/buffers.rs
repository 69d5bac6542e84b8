//! The registered memory of a connection: a buffer for each lane, and a pool of larger ones.
//!
//! All of it is one mapping with one registration, so a work request needs no look-up. Forked children do not get it:
//! they could neither use it nor let the parent's device write to it.
//!
//! Invariants: the buffers do not overlap; the mapping outlives its registration.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guira_fabric::WORD_BYTES;
use guira_fabric::process::Process;

use super::options::ConnectionOptions;
use crate::VerbsError;
use crate::ffi;
use crate::resources::{ProtectionDomain, Registration};

/// A buffer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffer {
    /// The own buffer of the lane with this slot.
    Lane(usize),
    /// The buffer with this index in the pool.
    Large(usize),
}

/// The registered memory.
pub(super) struct Buffers {
    /// Declared first, so that it is released before the mapping.
    registration: Registration,
    mapping: Mapping,
    lanes: usize,
    pub(super) lane_words: usize,
    pub(super) large_words: usize,
}

impl Buffers {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, options: &ConnectionOptions) -> Result<Buffers, VerbsError> {
        let words = |bytes: u32| (bytes as usize).div_ceil(WORD_BYTES as usize);
        let (lane_words, large_words) = (words(options.lane_bytes), words(options.large_bytes));
        let (lanes, large) = (usize::from(options.lanes), usize::from(options.large_buffers));
        let mapping = Mapping::new(lanes * lane_words + large * large_words)?;
        let (start, bytes) = (mapping.start.as_ptr().cast(), mapping.bytes());
        // SAFETY: the mapping is released after the registration; its words are atomics.
        let registration = unsafe { Registration::new(domain, start, bytes, ffi::ACCESS_LOCAL_WRITE) }?;
        Ok(Buffers { registration, mapping, lanes, lane_words, large_words })
    }

    /// Returns the address of a buffer and the key of the registration.
    pub(super) fn address(&self, buffer: Buffer) -> (u64, u32) {
        let start = self.mapping.start.as_ptr() as u64 + self.first_word(buffer) as u64 * WORD_BYTES;
        (start, self.registration.local_key())
    }

    /// Copies `words` into a buffer, from its word `at` on. The batch of the buffer must not be posted.
    pub(super) fn write(&self, buffer: Buffer, at: usize, words: &[u64]) {
        for (cell, word) in self.cells(buffer, at, words.len()).iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
    }

    /// Copies words out of a buffer, from its word `at` on. The batch of the buffer must have completed.
    pub(super) fn read(&self, buffer: Buffer, at: usize, into: &mut [u64]) {
        let cells = self.cells(buffer, at, into.len());
        for (word, cell) in into.iter_mut().zip(cells) {
            *word = cell.load(Ordering::Relaxed);
        }
    }

    fn cells(&self, buffer: Buffer, at: usize, words: usize) -> &[AtomicU64] {
        let size = match buffer {
            Buffer::Lane(_) => self.lane_words,
            Buffer::Large(_) => self.large_words,
        };
        assert!(at + words <= size, "a batch is larger than its buffer");
        let first = self.first_word(buffer) + at;
        &self.mapping.words()[first..first + words]
    }

    fn first_word(&self, buffer: Buffer) -> usize {
        match buffer {
            Buffer::Lane(slot) => slot * self.lane_words,
            Buffer::Large(index) => self.lanes * self.lane_words + index * self.large_words,
        }
    }
}

/// Anonymous memory of whole pages that forked children do not get.
struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
    process: Process,
}

// SAFETY: the memory consists of atomics, and is accessed through shared references only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(words: usize) -> Result<Mapping, VerbsError> {
        let failed = |call| VerbsError::System { call, device: "-".to_owned(), error: io::Error::last_os_error() };
        let process = Process::current().map_err(|_| failed("pthread_atfork"))?;
        let (bytes, access) = (words * WORD_BYTES as usize, libc::PROT_READ | libc::PROT_WRITE);
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(failed("mmap"));
        }
        let start = NonNull::new(start.cast()).expect("mmap does not map address 0 unless it is asked to");
        let mapping = Mapping { start, words, process };
        // SAFETY: the range is the mapping.
        if unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTFORK) } != 0 {
            return Err(failed("madvise"));
        }
        Ok(mapping)
    }

    fn bytes(&self) -> usize {
        self.words * WORD_BYTES as usize
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, all initialised to zero by the kernel, and exists as long as `self`.
        // This process is the one that made it: the callers have checked that it was not forked.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child something else may be mapped there.
        if self.process.is_this() {
            // SAFETY: the mapping is not used afterwards.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes()) };
        }
    }
}
