//! The registered memory of a connection: a buffer for each lane, and a pool of larger ones.
//!
//! It grows by blocks of lanes, each a mapping with a registration of its own, when there are more lanes than memory
//! for them. Forked children do not get it: they could neither use it nor let the parent's device write to it.
//!
//! Invariants: the buffers do not overlap; a mapping outlives its registration; a block stays as long as the
//! connection.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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

/// Maximum number of blocks of lanes: 65,536 lanes, as over TCP, if a block has 64.
const MAX_BLOCKS: usize = 1024;

/// Registered memory.
struct Block {
    /// Declared first, so that it is released before the mapping.
    registration: Registration,
    mapping: Mapping,
}

impl Block {
    fn new(domain: &Arc<ProtectionDomain>, words: usize) -> Result<Block, VerbsError> {
        let mapping = Mapping::new(words)?;
        let (start, bytes) = (mapping.start.as_ptr().cast(), mapping.bytes());
        // SAFETY: the mapping is released after the registration; its words are atomics.
        let registration = unsafe { Registration::new(domain, start, bytes, ffi::ACCESS_LOCAL_WRITE) }?;
        Ok(Block { registration, mapping })
    }
}

/// The registered memory of a connection.
pub(super) struct Buffers {
    domain: Arc<ProtectionDomain>,
    /// The buffers of the first lanes, and behind them the larger ones.
    first: Block,
    /// The buffers of more lanes, as many in each block as in the first.
    more: Box<[OnceLock<Block>]>,
    /// Lanes of a block.
    pub(super) lanes: usize,
    pub(super) lane_words: usize,
    pub(super) large_words: usize,
}

impl Buffers {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, options: &ConnectionOptions) -> Result<Buffers, VerbsError> {
        let words = |bytes: u32| (bytes as usize).div_ceil(WORD_BYTES as usize);
        let (lane_words, large_words) = (words(options.lane_bytes), words(options.large_bytes));
        let (lanes, large) = (usize::from(options.lanes), usize::from(options.large_buffers));
        let first = Block::new(domain, lanes * lane_words + large * large_words)?;
        let more = std::iter::repeat_with(OnceLock::new).take(MAX_BLOCKS - 1).collect();
        Ok(Buffers { domain: Arc::clone(domain), first, more, lanes, lane_words, large_words })
    }

    /// Registers buffers for as many lanes as the first block has, behind `lanes` lanes that have theirs. Another
    /// thread may have done it.
    ///
    /// # Errors
    /// `Mismatch` if there are as many lanes as there may be; `Memlock`, `Forked` or `System`.
    pub(super) fn add(&self, lanes: usize) -> Result<(), VerbsError> {
        let block = self.more.get(lanes / self.lanes - 1).ok_or_else(|| VerbsError::Mismatch {
            reason: format!("the connection has {lanes} lanes, as many as it may have"),
        })?;
        if block.get().is_none() {
            // A block that another thread has set meanwhile is as good.
            let _ = block.set(Block::new(&self.domain, self.lanes * self.lane_words)?);
        }
        Ok(())
    }

    /// Returns the address of a buffer and the key of its registration.
    pub(super) fn address(&self, buffer: Buffer) -> (u64, u32) {
        let (block, first) = self.find(buffer);
        let start = block.mapping.start.as_ptr() as u64 + first as u64 * WORD_BYTES;
        (start, block.registration.local_key())
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
        let (block, first) = self.find(buffer);
        &block.mapping.words()[first + at..first + at + words]
    }

    /// Returns the block of a buffer, and the buffer's first word in it.
    fn find(&self, buffer: Buffer) -> (&Block, usize) {
        match buffer {
            Buffer::Lane(slot) if slot < self.lanes => (&self.first, slot * self.lane_words),
            Buffer::Lane(slot) => {
                let block = self.more[slot / self.lanes - 1].get().expect("a slot is added after its buffer");
                (block, slot % self.lanes * self.lane_words)
            }
            Buffer::Large(index) => (&self.first, self.lanes * self.lane_words + index * self.large_words),
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
