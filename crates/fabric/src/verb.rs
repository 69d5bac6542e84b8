//! Verbs: one-sided operations as data.

use crate::Addr;

/// One step of an ordered batch. Buffers are the caller's; a backend touches them only inside [`crate::Lane::submit`]
/// and [`crate::Lane::poll`], so dropping or leaking the future that awaits a batch is memory-safe.
///
/// Lengths are in 8-byte words; addresses are aligned to 8 bytes. A batch that breaks this is refused whole, before any
/// of its verbs has an effect.
#[derive(Debug)]
pub enum Verb<'b> {
    /// Copies `into.len()` words from `addr`.
    Read {
        /// Where to read.
        addr: Addr,
        /// Where the words go.
        into: &'b mut [u64],
    },
    /// Stores `words` at `addr`, in ascending order.
    Write {
        /// Where to write.
        addr: Addr,
        /// What to write.
        words: &'b [u64],
    },
    /// Stores `swap` if the word equals `compare`; `found` receives the word as it was.
    Cas {
        /// The word.
        addr: Addr,
        /// What the word must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
        /// The word before the attempt.
        found: &'b mut u64,
    },
    /// Compares under `compare_mask`, swaps under `swap_mask`; `found` receives the word as it was. Only for regions
    /// whose [`crate::Caps::masked_cas`] is not [`crate::MaskedCas::CasLoop`].
    MaskedCas {
        /// The word.
        addr: Addr,
        /// What the word's bits under `compare_mask` must be.
        compare: u64,
        /// What its bits under `swap_mask` become.
        swap: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Bits that are replaced.
        swap_mask: u64,
        /// The word before the attempt.
        found: &'b mut u64,
    },
    /// Adds `add` (wrapping); `found` receives the word as it was.
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
    /// The address the verb touches first.
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

    /// How many words the verb touches.
    #[inline(always)]
    pub fn words(&self) -> usize {
        match self {
            Verb::Read { into, .. } => into.len(),
            Verb::Write { words, .. } => words.len(),
            _ => 1,
        }
    }

    /// The verb's name as the specifications write it.
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
