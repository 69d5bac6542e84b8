//! The word-copy kernel, which executes verbs on memory that other processes change at the same time.
//!
//! Every access is a whole aligned 64-bit word, relaxed, with fences between verbs; never `memcpy` over racing bytes,
//! and never two access sizes on one word (both would be undefined behaviour). Reads of a multi-word object may
//! therefore be torn between words, but not within one: objects carry checksums.
//!
//! Ordering: a READ is followed by an acquire fence, so later verbs sample later; a WRITE is preceded by a release
//! fence, so a reader that sees one of its words also sees all earlier writes; atomics are acquire-release.

use std::sync::Arc;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::{Addr, Caps, FabricError, MaskedCas, Space, Verb, WORD_BYTES};

/// Words that stay where they are as long as the value exists, for a device that accesses them by itself.
pub type SharedWords = Arc<dyn AsRef<[AtomicU64]> + Send + Sync>;

/// A word that a READ samples: where it lies, while other processes change it, or in the buffer that it was copied to.
pub trait Word: Sized {
    /// Returns the word's value. Where others change it, each call samples it anew.
    fn load(&self) -> u64;

    /// Asks the processor to load the cache line of the word, if it may not be at hand.
    #[inline(always)]
    fn prefetch(&self) {}
}

impl Word for u64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        *self
    }
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Relaxed)
    }

    #[inline(always)]
    fn prefetch(&self) {
        prefetch_line(self);
    }
}

/// The two spaces of a region, mapped as words.
#[derive(Clone, Copy)]
pub struct Memory<'m> {
    /// The superblock, client slots, rows and extents.
    pub main: &'m [AtomicU64],
    /// The lock table.
    pub device: &'m [AtomicU64],
}

impl<'m> Memory<'m> {
    /// Returns the words of a space.
    #[inline(always)]
    pub fn space(&self, space: Space) -> &'m [AtomicU64] {
        match space {
            Space::Main => self.main,
            Space::Device => self.device,
        }
    }

    /// Returns the words that `verb` touches.
    ///
    /// # Errors
    /// `OutOfBounds` or `Misaligned`.
    #[inline(always)]
    pub fn range(&self, verb: &Verb<'_>) -> Result<&'m [AtomicU64], FabricError> {
        self.words(verb.name(), verb.addr(), verb.words())
    }

    /// Returns the `words` words at `addr`, which the verb called `verb` touches.
    ///
    /// # Errors
    /// `OutOfBounds` or `Misaligned`.
    #[inline(always)]
    pub fn words(&self, verb: &'static str, addr: Addr, words: usize) -> Result<&'m [AtomicU64], FabricError> {
        let space = self.space(addr.space());
        let first = addr.word() as usize;
        match space.get(first..first.wrapping_add(words)) {
            Some(range) if addr.is_aligned() => Ok(range),
            // Passes the verb's name, not the verb: a value passed by reference must lie in memory, as must all that it
            // points to.
            _ => Err(refusal(verb, addr, words, space.len())),
        }
    }
}

#[cold]
fn refusal(verb: &'static str, addr: Addr, words: usize, space_words: usize) -> FabricError {
    if !addr.is_aligned() {
        return FabricError::Misaligned { verb, addr };
    }
    FabricError::OutOfBounds { verb, addr, words, space_bytes: space_words as u64 * WORD_BYTES }
}

/// Checks a batch against the region's bounds and `caps`. A batch that fails here has had no effect.
///
/// # Errors
/// `OutOfBounds`, `Misaligned`, `TooLarge` or `Unsupported`.
#[inline(always)]
pub fn check(memory: Memory<'_>, caps: &Caps, batch: &[Verb<'_>]) -> Result<(), FabricError> {
    for verb in batch {
        memory.range(verb)?;
        if verb.words() > caps.max_verb_words {
            return Err(too_large(batch));
        }
        if caps.masked_cas == MaskedCas::CasLoop && matches!(verb, Verb::MaskedCas { .. }) {
            return Err(FabricError::Unsupported { verb: verb.name() });
        }
    }
    if batch.len() > caps.max_batch {
        return Err(too_large(batch));
    }
    Ok(())
}

#[cold]
fn too_large(batch: &[Verb<'_>]) -> FabricError {
    FabricError::TooLarge { verbs: batch.len(), words: batch.iter().map(Verb::words).max().unwrap_or(0) }
}

/// Executes one verb.
///
/// # Errors
/// `OutOfBounds` or `Misaligned`.
#[inline(always)]
pub fn execute(memory: Memory<'_>, verb: &mut Verb<'_>) -> Result<(), FabricError> {
    let range = memory.range(verb)?;
    match verb {
        Verb::Read { into, .. } => read_words(range, into),
        Verb::Write { words, .. } => write_words(range, words),
        Verb::Cas { compare, swap, found, .. } => **found = masked_cas(&range[0], *compare, *swap, !0, !0),
        Verb::MaskedCas { compare, swap, compare_mask, swap_mask, found, .. } => {
            **found = masked_cas(&range[0], *compare, *swap, *compare_mask, *swap_mask);
        }
        Verb::FetchAdd { add, found, .. } => **found = range[0].fetch_add(*add, Ordering::AcqRel),
    }
    Ok(())
}

/// Copies `from` into `into`, word by word in ascending order; reads after the call sample later.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub fn read_words(from: &[AtomicU64], into: &mut [u64]) {
    assert_eq!(from.len(), into.len(), "a READ's range and its buffer have one length");
    read_with(from, |from| {
        for (word, cell) in into.iter_mut().zip(from) {
            *word = Word::load(cell);
        }
    });
}

/// Passes `from` to `read`, which samples its words by [`Word::load`]; reads after the call sample later.
#[inline(always)]
pub fn read_with<T>(from: &[AtomicU64], read: impl FnOnce(&[AtomicU64]) -> T) -> T {
    let result = read(from);
    fence(Ordering::Acquire);
    result
}

/// Stores `words` into `to`, word by word in ascending order. A reader that sees one of them sees all earlier writes,
/// and a reader that sees the last one sees all of them.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub fn write_words(to: &[AtomicU64], words: &[u64]) {
    assert_eq!(to.len(), words.len(), "a WRITE's range and its data have one length");
    fence(Ordering::Release);
    let (Some((last_cell, to)), Some((last_word, words))) = (to.split_last(), words.split_last()) else { return };
    store_each(to, words);
    last_cell.store(*last_word, Ordering::Release);
}

/// Stores `words` into `to`, word by word in ascending order, as part of a WRITE.
#[inline(always)]
pub fn store_each(to: &[AtomicU64], words: &[u64]) {
    for (cell, word) in to.iter().zip(words) {
        cell.store(*word, Ordering::Relaxed);
    }
}

/// Passes `to` to `write`, which stores its words, each once. A reader that sees one of them sees all earlier writes.
#[inline(always)]
pub fn write_with(to: &[AtomicU64], write: impl FnOnce(&[AtomicU64])) {
    fence(Ordering::Release);
    write(to);
}

/// Compares and swaps under masks, and returns the old word. The swap happened if and only if
/// `(returned ^ compare) & compare_mask` is zero.
#[inline(always)]
pub fn masked_cas(cell: &AtomicU64, compare: u64, swap: u64, compare_mask: u64, swap_mask: u64) -> u64 {
    let mut current = cell.load(Ordering::Acquire);
    // Bounded by progress: each failed exchange means that another client's atomic on this word succeeded.
    while (current ^ compare) & compare_mask == 0 {
        let wanted = (current & !swap_mask) | (swap & swap_mask);
        match cell.compare_exchange_weak(current, wanted, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(seen) => current = seen,
        }
    }
    current
}

/// The number of words in a cache line.
const LINE_WORDS: usize = 8;
/// The maximum number of cache lines prefetched of one range: after a few, the processor's own prefetcher takes over,
/// and the processor can track fewer outstanding lines than this.
const MAX_PREFETCH_LINES: usize = 32;

/// Asks the processor to load the cache lines of `range`, which will be used soon. The loop is by index, so that it
/// compiles to nothing but the hints if the compiler knows the length of the range.
#[inline(always)]
pub fn prefetch(range: &[AtomicU64]) {
    let words = range.len().min(MAX_PREFETCH_LINES * LINE_WORDS);
    let mut first = 0;
    while first < words {
        prefetch_line(&range[first]);
        first += LINE_WORDS;
    }
}

/// Asks the processor to load the cache line in which `value` begins.
#[inline(always)]
pub fn prefetch_line<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint that never faults, and every x86-64 processor has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Profile;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n as u64).map(AtomicU64::new).collect()
    }

    #[test]
    fn verbs_act_on_their_space() {
        let (main, device) = (words(16), words(4));
        let memory = Memory { main: &main, device: &device };
        let mut into = [0; 2];
        execute(memory, &mut Verb::Read { addr: Addr::main(8), into: &mut into }).unwrap();
        assert_eq!(into, [1, 2]);
        execute(memory, &mut Verb::Write { addr: Addr::device(0), words: &[7, 8] }).unwrap();
        assert_eq!(device[1].load(Ordering::Relaxed), 8);
        assert_eq!(main[1].load(Ordering::Relaxed), 1);
        let mut found = 0;
        execute(memory, &mut Verb::FetchAdd { addr: Addr::main(0), add: u64::MAX, found: &mut found }).unwrap();
        assert_eq!((found, main[0].load(Ordering::Relaxed)), (0, u64::MAX));
    }

    #[test]
    fn masked_cas_touches_its_field_only() {
        let cell = AtomicU64::new(0xaaaa_0000_bbbb_cccc);
        assert_eq!(masked_cas(&cell, 0, 0x1234 << 32, 0xffff << 32, 0xffff << 32), 0xaaaa_0000_bbbb_cccc);
        assert_eq!(cell.load(Ordering::Relaxed), 0xaaaa_1234_bbbb_cccc);
        assert_eq!(masked_cas(&cell, 0, 0x5678 << 32, 0xffff << 32, 0xffff << 32), 0xaaaa_1234_bbbb_cccc);
        assert_eq!(cell.load(Ordering::Relaxed), 0xaaaa_1234_bbbb_cccc, "a failed swap changes nothing");
    }

    #[test]
    fn a_bad_batch_is_refused_whole() {
        let (main, device) = (words(16), words(4));
        let memory = Memory { main: &main, device: &device };
        let caps = Profile::Shm.caps();
        let mut into = [0; 4];
        for (addr, bounds) in [(Addr::main(13 * 8), true), (Addr::device(8), true), (Addr::main(4), false)] {
            let batch = [Verb::Write { addr: Addr::main(0), words: &[99] }, Verb::Read { addr, into: &mut into }];
            let error = check(memory, &caps, &batch).unwrap_err();
            assert_eq!(matches!(error, FabricError::OutOfBounds { .. }), bounds, "{error}");
            assert_eq!(error.effect(), crate::Effect::None);
        }
        let far = Addr::main(u64::MAX >> 1 & !7);
        assert!(memory.range(&Verb::Read { addr: far, into: &mut into }).is_err());
    }

    #[test]
    fn masked_cas_is_refused_where_it_is_unsupported() {
        let (main, device) = (words(16), words(4));
        let memory = Memory { main: &main, device: &device };
        let mut found = 0;
        let verb = Verb::MaskedCas {
            addr: Addr::device(0),
            compare: 0,
            swap: 1,
            compare_mask: 1,
            swap_mask: 1,
            found: &mut found,
        };
        let error = check(memory, &Profile::Rxe.caps(), &[verb]).unwrap_err();
        assert_eq!(error, FabricError::Unsupported { verb: "MASKED CAS" });
    }
}
