//! Verbs: one-sided operations as data.

use crate::Addr;

/// One step of an ordered batch. The buffers belong to the caller; a backend accesses them only inside
/// [`crate::Lane::submit`] and [`crate::Lane::poll`], so dropping or leaking the future that awaits a batch is
/// memory-safe.
///
/// Lengths are in 8-byte words; addresses are aligned to 8 bytes. A batch that violates this is refused as a whole,
/// before any of its verbs has an effect.
#[derive(Debug)]
pub enum Verb<'b> {
    /// Copies `into.len()` words from `addr`.
    Read {
        /// The address of the first word.
        addr: Addr,
        /// The buffer for the words.
        into: &'b mut [u64],
    },
    /// Stores `words` at `addr`, in ascending order.
    Write {
        /// The address of the first word.
        addr: Addr,
        /// The words to write.
        words: &'b [u64],
    },
    /// Stores `swap` if the word equals `compare`; `found` receives the old word.
    Cas {
        /// The word.
        addr: Addr,
        /// The value that the word must have.
        compare: u64,
        /// The new value.
        swap: u64,
        /// The word before the attempt.
        found: &'b mut u64,
    },
    /// Compares under `compare_mask`, swaps under `swap_mask`; `found` receives the old word. Only for regions
    /// whose [`crate::Caps::masked_cas`] is not [`crate::MaskedCas::CasLoop`].
    MaskedCas {
        /// The word.
        addr: Addr,
        /// The value that the word's bits under `compare_mask` must have.
        compare: u64,
        /// The new value of the bits under `swap_mask`.
        swap: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// The bits that are replaced.
        swap_mask: u64,
        /// The word before the attempt.
        found: &'b mut u64,
    },
    /// Adds `add` (wrapping); `found` receives the old word.
    FetchAdd {
        /// The word.
        addr: Addr,
        /// The addend.
        add: u64,
        /// The word before the addition.
        found: &'b mut u64,
    },
}

impl Verb<'_> {
    /// Returns the address of the first word that the verb touches.
    #[inline(always)]
    pub fn addr(&self) -> Addr {
        match self {
            Verb::Read { addr, .. }
            | Verb::Write { addr, .. }
            | Verb::Cas { addr, .. }
            | Verb::MaskedCas { addr, .. }
            | Verb::FetchAdd { addr, .. } => *addr,
        }
    }

    /// Returns the number of words that the verb touches.
    #[inline(always)]
    pub fn words(&self) -> usize {
        match self {
            Verb::Read { into, .. } => into.len(),
            Verb::Write { words, .. } => words.len(),
            _ => 1,
        }
    }

    /// Returns the verb's name as the specifications write it.
    #[inline(always)]
    pub fn name(&self) -> &'static str {
        match self {
            Verb::Read { .. } => "READ",
            Verb::Write { .. } => "WRITE",
            Verb::Cas { .. } => "CAS",
            Verb::MaskedCas { .. } => "MASKED CAS",
            Verb::FetchAdd { .. } => "FETCH-ADD",
        }
    }
}
