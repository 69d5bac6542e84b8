//! Sent verbs: copies that own their buffers, for backends whose batches outlive the call that submits them.
//!
//! Invariant: the results of a verb are kept in the copy until [`Sent::copy_to`] copies them to the original verb.

use crate::{Addr, Verb};

/// A verb that owns its buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A READ, and the words that it has read.
    Read {
        /// The address of the first word.
        addr: Addr,
        /// The words that were read.
        into: Vec<u64>,
    },
    /// A WRITE.
    Write {
        /// The address of the first word.
        addr: Addr,
        /// The words to write.
        words: Vec<u64>,
    },
    /// A masked CAS, or a CAS, both of whose masks have all bits set.
    Cas {
        /// The word.
        addr: Addr,
        /// The value that the word must have.
        compare: u64,
        /// The new value.
        swap: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// The bits that are swapped.
        swap_mask: u64,
        /// The word before the attempt.
        found: u64,
    },
    /// A FETCH-ADD.
    FetchAdd {
        /// The word.
        addr: Addr,
        /// The addend.
        add: u64,
        /// The word before the addition.
        found: u64,
    },
}

impl Sent {
    /// Returns a copy of `verb` without results.
    pub fn copy_of(verb: &Verb<'_>) -> Sent {
        match verb {
            Verb::Read { addr, into } => Sent::Read { addr: *addr, into: vec![0; into.len()] },
            Verb::Write { addr, words } => Sent::Write { addr: *addr, words: words.to_vec() },
            Verb::Cas { addr, compare, swap, .. } => {
                Sent::Cas { addr: *addr, compare: *compare, swap: *swap, compare_mask: !0, swap_mask: !0, found: 0 }
            }
            Verb::MaskedCas { addr, compare, swap, compare_mask, swap_mask, .. } => Sent::Cas {
                addr: *addr,
                compare: *compare,
                swap: *swap,
                compare_mask: *compare_mask,
                swap_mask: *swap_mask,
                found: 0,
            },
            Verb::FetchAdd { addr, add, .. } => Sent::FetchAdd { addr: *addr, add: *add, found: 0 },
        }
    }

    /// Returns the verb, to be executed by [`crate::memory::execute`]. A CAS becomes a masked one, whether or not the
    /// region supports masked CAS.
    pub fn as_verb(&mut self) -> Verb<'_> {
        match self {
            Sent::Read { addr, into } => Verb::Read { addr: *addr, into },
            Sent::Write { addr, words } => Verb::Write { addr: *addr, words },
            Sent::Cas { addr, compare, swap, compare_mask, swap_mask, found } => Verb::MaskedCas {
                addr: *addr,
                compare: *compare,
                swap: *swap,
                compare_mask: *compare_mask,
                swap_mask: *swap_mask,
                found,
            },
            Sent::FetchAdd { addr, add, found } => Verb::FetchAdd { addr: *addr, add: *add, found },
        }
    }

    /// Copies the results to `verb`, the original of this copy.
    pub fn copy_to(&self, verb: &mut Verb<'_>) {
        match (self, verb) {
            (Sent::Read { into: from, .. }, Verb::Read { into, .. }) => into.copy_from_slice(from),
            (Sent::Cas { found: from, .. }, Verb::Cas { found, .. } | Verb::MaskedCas { found, .. })
            | (Sent::FetchAdd { found: from, .. }, Verb::FetchAdd { found, .. }) => **found = *from,
            _ => {}
        }
    }

    /// Returns the word that an atomic found; `None` for a READ or WRITE.
    pub fn found(&self) -> Option<u64> {
        match self {
            Sent::Cas { found, .. } | Sent::FetchAdd { found, .. } => Some(*found),
            Sent::Read { .. } | Sent::Write { .. } => None,
        }
    }
}
